//! The standard services of the chief: checkpoints, summaries, and the rate of steps. Each is a looper, so its error stops the job.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebear::time::now;

use super::FreeOnDrop;
use super::builder::SupervisorSettings;
use super::chief::Phase;
use super::error::SuperviseError;
use super::session::{Session, lock};
use crate::contain::contained;
use crate::{EventWriter, Every, SessionLog, State, Summary};

impl<S: State> Session<S> {
    /// Starts the standard services, if that has not been done: [`Supervisor::start`](super::Supervisor::start) does it unless the builder was set
    /// [not to](super::SupervisorBuilder::services). They are workers of the coordinator, named `checkpoint`, `summary` and `step counter`.
    ///
    /// Before that it writes the first checkpoint of a state that was initialised, and lets the other processes of the job begin.
    ///
    /// Suspends.
    ///
    /// ```
    /// use forebear_supervise::{Snapshot, Supervisor};
    ///
    /// # let dir = std::env::temp_dir().join(format!("services-{}", std::process::id()));
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).dir(&dir).services(false).build();
    /// supervisor.run(|session| {
    ///     session.state().set(7); // is in the first checkpoint
    ///     session.start_services()?;
    ///     assert!(session.coordinator().workers().contains(&"checkpoint".to_owned()));
    ///     Ok(())
    /// })?;
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), forebear_supervise::SuperviseError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SuperviseError`]: `NotChief`; `Checkpoint`, `Events`, `Io`, `Cancelled`, and no service was started.
    pub fn start_services(&self) -> Result<(), SuperviseError> {
        if !self.is_chief() {
            return Err(SuperviseError::NotChief);
        }
        if self.0.serves.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let not_yet = FreeOnDrop(&self.0.serves);
        let saved = self.announce()?;
        std::mem::forget(not_yet);
        self.save_every(saved);
        if self.events().is_some() {
            self.show_every();
        }
        Ok(())
    }

    /// Opens the event file, writes the first checkpoint of a state that was initialised, and writes into the record that the other processes may begin. Answers whether it has
    /// written a checkpoint.
    fn announce(&self) -> Result<bool, SuperviseError> {
        self.open_events()?;
        let saves = self.0.settings.save_every.is_some() && self.checkpoints().is_some();
        let first = saves && self.restored_from().is_none() && !self.0.took_over.load(Ordering::Relaxed);
        if first {
            self.save_now()?;
        }
        self.ready()?;
        Ok(first)
    }

    pub(super) fn ready(&self) -> Result<(), SuperviseError> {
        self.tell(Phase::Ready)?;
        self.0.begun.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// `saved`: there is no need to begin with a checkpoint.
    fn save_every(&self, mut saved: bool) {
        let Some(period) = self.0.settings.save_every.filter(|_| self.checkpoints().is_some()) else {
            return;
        };
        let session = self.clone();
        self.every("checkpoint", Every::Skip(period), move || {
            if !std::mem::take(&mut saved) {
                session.turn(|| session.save_now().map(drop))?;
            }
            Ok(())
        });
    }

    fn show_every(&self) {
        let settings = &self.0.settings;
        if let Some(period) = settings.summarise_every.filter(|_| settings.summary.is_some()) {
            let session = self.clone();
            self.every("summary", Every::Skip(period), move || {
                let Some(summary) = &session.0.settings.summary else { return Ok(()) };
                let step = session.steps().get();
                let summary = summary(session.state())?;
                session.turn(|| session.summary_computed(summary, step))?;
                Ok(())
            });
        }
        if let Some(period) = settings.count_steps_every {
            let session = self.clone();
            let mut before = None;
            self.every("step counter", Every::Skip(period), move || {
                let seen = (session.steps().get(), now());
                let rate = before.replace(seen).map_or(0.0, |before| rate(before, seen));
                let tag = format!("{}/sec", session.steps().name());
                session.turn(|| session.summary_computed(Summary::new().scalar(&tag, rate), seen.0))?;
                Ok(())
            });
        }
    }

    /// Opens the writer of summaries, and says that the run begins.
    pub(super) fn open_events(&self) -> Result<(), SuperviseError> {
        let settings = &self.0.settings;
        let kept = lock(&self.0.events).clone();
        let is_new = kept.is_none();
        let events = match (kept, &settings.own_events, &settings.dir) {
            (Some(kept), ..) => kept,
            _ if !settings.has_events => return Ok(()),
            (None, Some(own), _) => own.clone(),
            (None, None, Some(dir)) => create(dir)?,
            (None, None, None) => return Ok(()),
        };
        *lock(&self.0.events) = Some(events.clone());
        if is_new {
            events.session(Some(self.steps().get()), SessionLog::Start)?;
        }
        Ok(())
    }

    /// Says that the run has ended, unless the writer is kept, and has all of it written. Answers the writer that is kept.
    pub(super) fn close_events(&self) -> Result<Option<Arc<EventWriter>>, SuperviseError> {
        let Some(events) = lock(&self.0.events).take() else { return Ok(None) };
        if self.0.settings.keep_event_file {
            events.flush()?;
            return Ok(Some(events));
        }
        let stopped = events.session(None, SessionLog::Stop);
        events.flush()?;
        stopped?;
        Ok(None)
    }
}

fn create(dir: &Path) -> Result<Arc<EventWriter>, SuperviseError> {
    let created = EventWriter::create(dir);
    Ok(Arc::new(created.map_err(|error| (dir.to_owned(), error))?))
}

/// Steps per second. Infinite if no time has passed, unless there were no steps.
fn rate(before: (u64, Instant), now: (u64, Instant)) -> f64 {
    let steps = now.0.saturating_sub(before.0) as f64;
    let seconds = now.1.saturating_duration_since(before.1);
    if steps == 0.0 && seconds == Duration::ZERO { 0.0 } else { steps / seconds.as_secs_f64() }
}

impl<S> SupervisorSettings<S> {
    pub(super) fn warn(&self, text: &str) {
        contained(|| (self.on_warning)(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 35.
    #[test]
    fn the_rate_is_infinite_if_no_time_has_passed() {
        let start = Instant::now();
        assert_eq!(rate((10, start), (30, start + Duration::from_secs(4))), 5.0);
        assert_eq!(rate((10, start), (30, start)), f64::INFINITY);
        assert_eq!(rate((10, start), (10, start)), 0.0);
        assert_eq!(rate((10, start), (0, start + Duration::from_secs(1))), 0.0, "set back by a restore");
    }
}
