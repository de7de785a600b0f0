//! [`Looper`]: a worker that does something every so often, on a grid of time, until a stop.

use std::io;
use std::time::{Duration, Instant};

use forebear::time::now;
use forebear::{Cancelled, Error, Failure, Request, check_cancelled, shield, yield_now};

use super::member::attempt;
use super::{Coordinator, Member};

/// When the turns of a looper are due. The first one is due at once.
///
/// ```
/// use forebear_supervise::{Coordinator, EndOfInput, Every};
/// use std::time::Duration;
///
/// let coordinator = Coordinator::new();
/// for every in [Every::BackToBack, Every::CatchUp(Duration::from_millis(1)), Every::Skip(Duration::from_millis(1))] {
///     let mut left = 3;
///     coordinator.every(format!("{every:?}"), every, move || {
///         left -= 1;
///         if left == 0 { Err(EndOfInput.into()) } else { Ok(()) }
///     });
/// }
/// coordinator.join()?;
/// # Ok::<(), forebear_supervise::JoinError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// Each as soon as the one before has ended.
    BackToBack,
    /// At the instants of a grid that begins with the first turn. After a turn that takes too long, those that were missed follow one another without a pause.
    /// A period of zero is `BackToBack`.
    CatchUp(Duration),
    /// At the instants of the same grid. Those that were missed are left out.
    Skip(Duration),
}

/// Work that is done periodically. Implemented for closures that return a `Result`: they are the [`turn`](Self::turn).
///
/// ```
/// use forebear::{Error, Failure};
/// use forebear_supervise::{Coordinator, Every, Looper};
///
/// struct Log(Vec<u64>, Coordinator);
///
/// impl Looper for Log {
///     fn turn(&mut self) -> Result<(), Error> {
///         self.0.push(self.0.len() as u64);
///         if self.0.len() == 3 {
///             self.1.request_stop();
///         }
///         Ok(())
///     }
///
///     fn stop(&mut self, failure: Option<&Failure>) -> Result<(), Error> {
///         assert!(failure.is_none() && self.0 == [0, 1, 2]);
///         Ok(())
///     }
/// }
///
/// let coordinator = Coordinator::new();
/// coordinator.every_on_thread("log", Every::BackToBack, Log(Vec::new(), coordinator.clone()))?;
/// coordinator.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Looper: Send + 'static {
    /// Called once, before the first turn.
    ///
    /// # Errors
    ///
    /// One ends the looper, and is reported.
    fn start(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Called at each instant of the grid.
    ///
    /// # Errors
    ///
    /// One ends the looper, and is reported.
    fn turn(&mut self) -> Result<(), Error>;

    /// Called once, at the end: after a stop, or with the failure of the looper itself. It may wait: a stop does not cancel it.
    ///
    /// # Errors
    ///
    /// One is reported, after the failure of the looper itself.
    fn stop(&mut self, failure: Option<&Failure>) -> Result<(), Error> {
        let _ = failure;
        Ok(())
    }
}

impl<F: FnMut() -> Result<(), Error> + Send + 'static> Looper for F {
    fn turn(&mut self) -> Result<(), Error> {
        self()
    }
}

impl Coordinator {
    /// Runs a looper as a worker, in a request. An error of the looper is reported, and requests a stop. Does not suspend.
    ///
    /// A stop cancels forebear's waits in it. A turn that computes for long or blocks its thread delays other requests of that worker: use
    /// [`every_on_thread`](Self::every_on_thread) for those.
    ///
    /// ```
    /// use forebear_supervise::{Coordinator, Every};
    /// use std::time::Duration;
    ///
    /// let coordinator = Coordinator::new();
    /// let (stop, mut turns) = (coordinator.clone(), 0);
    /// coordinator.every("three times", Every::CatchUp(Duration::from_millis(1)), move || {
    ///     turns += 1;
    ///     if turns == 3 {
    ///         stop.request_stop();
    ///     }
    ///     Ok(())
    /// });
    /// coordinator.join()?;
    /// # Ok::<(), forebear_supervise::JoinError>(())
    /// ```
    pub fn every(&self, name: impl Into<String>, every: Every, mut looper: impl Looper) -> Request<()> {
        self.spawn(name, move |me| run(me, every, &mut looper))
    }

    /// Runs a looper as a worker, in a thread of its own, where a turn may block.
    ///
    /// ```
    /// use forebear_supervise::{Coordinator, EndOfInput, Every};
    ///
    /// let coordinator = Coordinator::new();
    /// let mut left = 3;
    /// coordinator.every_on_thread("reader", Every::BackToBack, move || {
    ///     left -= 1; // or a call that blocks the thread
    ///     if left == 0 { Err(EndOfInput.into()) } else { Ok(()) }
    /// })?;
    /// coordinator.join()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the system starts no thread.
    pub fn every_on_thread(
        &self,
        name: impl Into<String>,
        every: Every,
        mut looper: impl Looper,
    ) -> io::Result<()> {
        self.spawn_thread(name, move |me| run(me, every, &mut looper))
    }
}

fn run(me: &Member, every: Every, looper: &mut impl Looper) -> Result<(), Error> {
    let ran = match attempt(me.name(), || turns(me, every, looper)) {
        // A wait that the stop has ended is no failure.
        Err((_, true)) if me.should_stop() => Ok(()),
        ran => ran.map_err(|(failure, _)| failure),
    };
    let stopped = match attempt(me.name(), || shield(|| looper.stop(ran.as_ref().err()))) {
        Err((_, true)) => Err(Cancelled::new().into()),
        stopped => stopped.map_err(|(failure, _)| Error::from(failure)),
    };
    match (ran, stopped) {
        (Err(first), Err(second)) => {
            me.coordinator().record_or_tell(first, false);
            Err(second)
        }
        (ran, stopped) => stopped.and(ran.map_err(Error::from)),
    }
}

fn turns(me: &Member, every: Every, looper: &mut impl Looper) -> Result<(), Error> {
    looper.start()?;
    let mut due = now();
    while !me.should_stop() {
        looper.turn()?;
        match next(every, due, now()) {
            Some((next, pause)) if !pause.is_zero() => {
                due = next;
                me.wait_for_stop_timeout(pause)?;
                continue;
            }
            // It is late.
            Some((next, _)) => due = next,
            None => {}
        }
        // Without a pause, others on its worker have their turn here.
        check_cancelled()?;
        yield_now()?;
    }
    Ok::<(), Error>(())
}

/// When the next turn is due, and how long that is from now. `None`: at once, always.
fn next(every: Every, due: Instant, now: Instant) -> Option<(Instant, Duration)> {
    let (period, skips) = match every {
        Every::BackToBack => return None,
        Every::CatchUp(period) => (period, false),
        Every::Skip(period) => (period, true),
    };
    if period.is_zero() {
        return None;
    }
    // A turn that is due later than any instant never comes.
    let Some(mut next) = due.checked_add(period) else { return Some((due, Duration::MAX)) };
    if skips && next < now {
        let behind = now.duration_since(next).as_nanos();
        let short = period.as_nanos() - behind % period.as_nanos();
        // Less than a period, which was added to an instant above.
        let wait = Duration::new((short / 1_000_000_000) as u64, (short % 1_000_000_000) as u32);
        next = now + if wait == period { Duration::ZERO } else { wait };
    }
    Some((next, next.saturating_duration_since(now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_late_turn_is_made_up_for_or_left_out() {
        let start = Instant::now();
        let at = |ms: u32| start + MS * ms;
        assert_eq!(next(Every::CatchUp(MS * 10), at(0), at(3)), Some((at(10), MS * 7)));
        assert_eq!(next(Every::CatchUp(MS * 10), at(0), at(35)), Some((at(10), Duration::ZERO)));
        assert_eq!(next(Every::Skip(MS * 10), at(0), at(35)), Some((at(40), MS * 5)));
        assert_eq!(next(Every::Skip(MS * 10), at(0), at(40)), Some((at(40), Duration::ZERO)));
        assert_eq!(next(Every::Skip(MS * 10), at(0), at(3)), Some((at(10), MS * 7)));
    }

    #[test]
    fn a_period_of_zero_has_no_grid() {
        assert_eq!(next(Every::CatchUp(Duration::ZERO), Instant::now(), Instant::now()), None);
        assert_eq!(next(Every::BackToBack, Instant::now(), Instant::now()), None);
    }

    #[test]
    fn a_period_that_no_clock_holds_is_never_over() {
        let due = Instant::now();
        assert_eq!(next(Every::CatchUp(Duration::MAX), due, due), Some((due, Duration::MAX)));
    }
}
