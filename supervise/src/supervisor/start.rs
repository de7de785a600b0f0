//! How a session starts: which process is chief, what the state begins with, and when the others may begin.
//!
//! ```text
//!   chief     take the place -> restore, or init -> local init -> checks -> event file, START -> first checkpoint -> record "ready" -> services
//!   another   wait for "ready" -> restore the newest checkpoint -> local init -> checks, else wait and try again -> watch the chief
//! ```
//!
//! The first checkpoint of a state that was initialised is on disk before the chief says that it is ready, so that the others have something to
//! restore. A state that was restored is on disk already; the service saves it again at once, behind the job's back.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebear::time::now;
use forebear::{Error, TimeoutError, blocking};

use super::builder::Check;
use super::chief::{self, ChiefRecord, ChiefView, Phase, Place};
use super::error::{ChiefDied, SuperviseError};
use super::preparing::{Prepared, Preparing, Readiness};
use super::role::{Chief, ChiefDeath};
use super::seat::Seat;
use super::session::{Running, Session, lock};
use super::watch::Watch;
use super::{Supervisor, Task};
use crate::ordinary;
use crate::{Checkpoint, CheckpointError, Checkpoints, JoinError, Member, State};

/// Files may be removed by the chief between the look into the directory and the reading: so often another look is taken.
const LOOKS_FOR_A_FILE: u32 = 16;

/// What a start may do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// All of it.
    Start,
    /// Restore, but neither initialise nor wait nor serve.
    Recover,
}

/// What became of the state.
struct Ready {
    restored_from: Option<Checkpoint>,
    not_ready: Option<String>,
}

/// The role of this process, and by what it has it.
enum Role {
    Chief(Option<Place>),
    /// With what has been prepared, and the chief that is watched from now on.
    Other(Ready, Option<(Watch, Option<ChiefRecord>)>),
}

impl<S: State> Supervisor<S> {
    pub(super) fn prepare(&self, mode: Mode) -> Result<Session<S>, SuperviseError> {
        let settings = &self.settings;
        self.is_not_stopped()?;
        let checkpoints = self.checkpoints()?;
        let (ready, place, watched, is_chief) = match self.role(checkpoints.as_ref(), mode)? {
            Role::Chief(place) => (self.lead(checkpoints.as_ref(), mode)?, place, None, true),
            Role::Other(ready, watched) => (ready, None, watched, false),
        };
        // One that has come while the state was prepared.
        self.is_not_stopped()?;
        let mut running = Running::new(settings.clone(), checkpoints);
        running.restored_from = ready.restored_from;
        running.not_ready = ready.not_ready;
        running.is_chief = is_chief.into();
        running.seat = Seat::new(place);
        running.events = lock(&self.kept_events).take().into();
        let session = Session(Arc::new(running));
        if let Some((watch, record)) = watched {
            let watcher = session.clone();
            settings.coordinator.spawn("chief watch", move |me| watcher.watch_chief(me, &watch, record));
        }
        if mode == Mode::Start && is_chief {
            session.begin()?;
        }
        Ok(session)
    }

    /// No stop was requested, and no error reported.
    fn is_not_stopped(&self) -> Result<(), SuperviseError> {
        let coordinator = &self.settings.coordinator;
        if !coordinator.should_stop() {
            return Ok(());
        }
        Err(match coordinator.requested_failure() {
            Some((failure, also)) => {
                SuperviseError::Job(JoinError::Failed { failure, also, stragglers: Vec::new() })
            }
            None => SuperviseError::Stopped,
        })
    }

    fn checkpoints(&self) -> Result<Option<Checkpoints>, SuperviseError> {
        let settings = &self.settings;
        Ok(match (&settings.own_checkpoints, &settings.dir) {
            _ if !settings.has_checkpoints => None,
            (Some(own), _) => Some(own.clone()),
            (None, Some(dir)) => {
                let warns = settings.clone();
                Some(Checkpoints::open(dir)?.on_warning(move |text| warns.warn(text)))
            }
            (None, None) => None,
        })
    }

    fn role(&self, checkpoints: Option<&Checkpoints>, mode: Mode) -> Result<Role, SuperviseError> {
        let settings = &self.settings;
        let Some(dir) = settings.dir.as_deref() else {
            if settings.chief != Chief::No {
                if checkpoints.is_none() && settings.own_events.is_none() {
                    settings.warn("the supervisor has no directory: nothing of the job is saved or shown");
                }
                return Ok(Role::Chief(None));
            }
            if settings.session_manager.is_none() {
                return Err(SuperviseError::NoDirectory);
            }
            return Ok(Role::Other(self.follow(checkpoints)?, None));
        };
        if settings.chief != Chief::No {
            if let Some(place) = take(dir)? {
                return Ok(Role::Chief(Some(place)));
            }
            if settings.chief == Chief::Yes {
                return Err(SuperviseError::SecondChief {
                    dir: dir.to_owned(),
                    process: chief::process_at(dir),
                });
            }
        }
        ordinary::make_dir(dir).map_err(|error| (dir.to_owned(), error))?;
        let watch = Watch::begin(dir, settings.look_every).map_err(|error| (dir.to_owned(), error))?;
        if mode == Mode::Recover {
            let ChiefView { held, record } = found(&watch)?;
            let record = record.filter(|_| held);
            return Ok(Role::Other(self.follow(checkpoints)?, Some((watch, record))));
        }
        self.wait_for_chief(dir, checkpoints, watch)
    }

    fn wait_for_chief(
        &self,
        dir: &Path,
        checkpoints: Option<&Checkpoints>,
        watch: Watch,
    ) -> Result<Role, SuperviseError> {
        let settings = &self.settings;
        let waiting = settings.coordinator.enlist("start of the job");
        waiting.stop_by(watch.waker());
        let (begun, mut last) = (now(), String::new());
        loop {
            let ChiefView { held, record } = found(&watch)?;
            let reason = match record {
                _ if !held && settings.chief == Chief::Elect => match take(dir)? {
                    Some(place) => return Ok(Role::Chief(Some(place))),
                    None => "another process becomes the chief".to_owned(),
                },
                Some(ChiefRecord { phase: Phase::Ready, .. }) if held => match self.follow(checkpoints)? {
                    Ready { not_ready: Some(reason), .. } => reason,
                    ready => return Ok(Role::Other(ready, Some((watch, record)))),
                },
                Some(ChiefRecord { phase: Phase::Starting, pid, .. }) if held => {
                    format!("the chief, process {pid}, prepares the state")
                }
                Some(ChiefRecord { phase: Phase::Stopped, .. }) => {
                    "the chief has stopped, and no other one has come".to_owned()
                }
                Some(ChiefRecord { pid, .. }) if !held => {
                    format!(
                        "the chief, process {pid}, has ended without a clean stop, and no other one has come"
                    )
                }
                _ => "no chief has come".to_owned(),
            };
            if reason != last {
                settings.warn(&format!("{}: the job waits: {reason}", dir.display()));
                last.clone_from(&reason);
            }
            self.sleep(&watch, begun, settings.wait_for_chief, reason)?;
        }
    }

    /// Waits until the watch has something new, or a stop is requested.
    fn sleep(
        &self,
        watch: &Watch,
        begun: Instant,
        at_most: Duration,
        reason: String,
    ) -> Result<(), SuperviseError> {
        let waited = now().saturating_duration_since(begun);
        let left = at_most.saturating_sub(waited);
        self.is_not_stopped()?;
        if left.is_zero() {
            return Err(SuperviseError::NotReady { reason, waited });
        }
        match watch.changed().wait_timeout(left) {
            // After the last of the time there is one more look.
            Ok(()) | Err(TimeoutError::TimedOut) => Ok(()),
            Err(TimeoutError::Cancelled) => {
                self.is_not_stopped()?;
                Err(SuperviseError::Cancelled)
            }
        }
    }

    /// Prepares the state of a process that is not the chief, as far as that can be done now.
    fn follow(&self, checkpoints: Option<&Checkpoints>) -> Result<Ready, SuperviseError> {
        if let Some(ready) = self.by_manager(checkpoints, false)? {
            return Ok(ready);
        }
        let restored = checkpoints.map_or(Ok(None), |checkpoints| self.restore(checkpoints))?;
        if let Some(one) = &restored {
            self.settings.steps.set(one.step);
        }
        let not_ready = self.local_init()?;
        Ok(Ready { restored_from: restored, not_ready })
    }

    /// Prepares the state of the chief.
    fn lead(&self, checkpoints: Option<&Checkpoints>, mode: Mode) -> Result<Ready, SuperviseError> {
        if let Some(ready) = self.by_manager(checkpoints, true)? {
            return Ok(ready);
        }
        let settings = &self.settings;
        let mut restored = None;
        if let Some(checkpoints) = checkpoints {
            if mode == Mode::Start && !settings.wait_for_checkpoint.is_zero() {
                self.wait_for_checkpoint(checkpoints)?;
            }
            restored = self.restore(checkpoints)?;
        }
        if let (None, Some(file)) = (&restored, &settings.restore_from) {
            restored = Some(match checkpoints {
                Some(checkpoints) => checkpoints.restore_from(file, &settings.state)?,
                None => return Err(SuperviseError::NoCheckpoints),
            });
        }
        match &restored {
            Some(one) => settings.steps.set(one.step),
            None if mode == Mode::Recover => {}
            None if settings.init.is_empty() => {
                let missing = settings.state.missing();
                if !missing.is_empty() {
                    return Err(SuperviseError::NothingToStartFrom { missing });
                }
            }
            None => {
                settings.steps.set(0);
                call(&settings.init, &settings.state)?;
            }
        }
        let not_ready = self.local_init()?;
        if mode == Mode::Start && not_ready.is_some() {
            let missing = settings.state.missing();
            return Err(match not_ready {
                Some(reason) if missing.is_empty() => {
                    SuperviseError::NotReady { reason, waited: Duration::ZERO }
                }
                _ => SuperviseError::InitIncomplete { missing },
            });
        }
        // What is restored, but not ready, counts as not restored.
        Ok(Ready { restored_from: restored.filter(|_| not_ready.is_none()), not_ready })
    }

    fn by_manager(
        &self,
        checkpoints: Option<&Checkpoints>,
        is_chief: bool,
    ) -> Result<Option<Ready>, SuperviseError> {
        let Some(manager) = &self.settings.session_manager else { return Ok(None) };
        let with = Preparing { is_chief, checkpoints: checkpoints.cloned() };
        let prepared = manager.prepare(&self.settings.state, &with);
        let Prepared { step, restored_from } =
            prepared.map_err(|source| SuperviseError::Prepare { source })?;
        self.settings.steps.set(step);
        Ok(Some(Ready { restored_from, not_ready: None }))
    }

    /// What every process does to its state. Answers why it is not ready, if it is not.
    fn local_init(&self) -> Result<Option<String>, SuperviseError> {
        let settings = &self.settings;
        let state = &*settings.state;
        let ask = |check: &Option<Check<S>>| match check.as_ref().map(|check| check(state)) {
            Some(Readiness::NotReady(reason)) => Some(reason),
            Some(Readiness::Ready) | None => None,
        };
        if let Some(reason) = ask(&settings.local_init_when) {
            return Ok(Some(reason));
        }
        call(&settings.local_init, state)?;
        let missing = state.missing();
        if !missing.is_empty() {
            return Ok(Some(format!("not initialised: {}", missing.join(", "))));
        }
        Ok(ask(&settings.ready))
    }

    fn restore(&self, checkpoints: &Checkpoints) -> Result<Option<Checkpoint>, SuperviseError> {
        let mut looks = 0;
        loop {
            looks += 1;
            match checkpoints.restore(&self.settings.state) {
                Err(CheckpointError::Io { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && looks < LOOKS_FOR_A_FILE => {}
                restored => return Ok(restored?),
            }
        }
    }

    fn wait_for_checkpoint(&self, checkpoints: &Checkpoints) -> Result<(), SuperviseError> {
        let (dir, settings) = (checkpoints.dir(), &self.settings);
        let watch = Watch::begin(dir, settings.look_every).map_err(|error| (dir.to_owned(), error))?;
        let waiting = settings.coordinator.enlist("start of the job");
        waiting.stop_by(watch.waker());
        let begun = now();
        loop {
            // A file that comes after the list is a change.
            watch.changed().reset();
            if !checkpoints.list()?.is_empty() {
                return Ok(());
            }
            match self.sleep(&watch, begun, settings.wait_for_checkpoint, String::new()) {
                Err(SuperviseError::NotReady { .. }) => return Ok(()),
                slept => slept?,
            }
        }
    }
}

impl<S: State> Session<S> {
    /// What a chief does once its state is ready.
    pub(super) fn begin(&self) -> Result<(), SuperviseError> {
        if self.0.settings.services {
            return self.start_services();
        }
        self.open_events()?;
        self.ready()
    }

    /// The life of the request that watches the chief: until that has ended, or this process has taken its place.
    fn watch_chief(&self, me: &Member, watch: &Watch, mut known: Option<ChiefRecord>) -> Result<(), Error> {
        let settings = &self.0.settings;
        let Some(dir) = &settings.dir else { return Ok(()) };
        loop {
            let ChiefView { held, record } = found(watch)?;
            let over = match (known, record) {
                // Before the first chief, in a session that was recovered.
                (None, record) => {
                    known = record.filter(|_| held);
                    None
                }
                // Also a later one, of whose life this process has seen nothing.
                (Some(_), Some(now)) if now.phase == Phase::Stopped => Some((now, true)),
                (Some(_), Some(now)) if !held => Some((now, false)),
                (Some(before), Some(now)) if before.epoch == now.epoch => None,
                (Some(before), Some(_)) if settings.when_chief_dies == ChiefDeath::Stop => {
                    Some((before, false))
                }
                // Another chief has come.
                (Some(_), Some(_)) => {
                    known = record;
                    None
                }
                // There was no room for the whole record.
                (Some(before), None) => (!held).then_some((before, false)),
            };
            match (over, settings.when_chief_dies) {
                (None, _) => {}
                (Some(_), ChiefDeath::GoOn) => known = record.filter(|_| held),
                (Some((_, true)), _) => {
                    me.request_stop();
                    return Ok(());
                }
                (Some((before, false)), ChiefDeath::Stop) => {
                    return Err(ChiefDied { dir: dir.clone(), process: before.pid }.into());
                }
                (Some((before, false)), ChiefDeath::TakeOver) => {
                    if let Some(mut place) = take(dir)? {
                        if place.follows_a_clean_stop() {
                            // Another one was quicker, and has ended the job since the look.
                            place.tell(Phase::Stopped).map_err(SuperviseError::from)?;
                            me.request_stop();
                            return Ok(());
                        }
                        let pid = before.pid;
                        settings.warn(&format!(
                            "{}: the chief, process {pid}, has died; this one, process {}, takes its place",
                            dir.display(),
                            std::process::id()
                        ));
                        self.take_over(place);
                        return Ok(self.turn(|| self.begin())?);
                    }
                    // Another one is quicker: the next look shows it.
                }
            }
            watch.changed().wait()?;
        }
    }
}

fn call<S>(tasks: &[Task<S>], state: &S) -> Result<(), SuperviseError> {
    tasks.iter().try_for_each(|task| task(state)).map_err(|source| SuperviseError::Prepare { source })
}

fn take(dir: &Path) -> Result<Option<Place>, SuperviseError> {
    let dir = dir.to_owned();
    Ok(blocking(move || chief::take(&dir))??)
}

fn found(watch: &Watch) -> Result<ChiefView, SuperviseError> {
    watch.look().map_err(|(path, source)| SuperviseError::Io { path, source })
}
