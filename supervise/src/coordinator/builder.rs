//! [`CoordinatorBuilder`]: the settings of a coordinator.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebear::{Failure, Runtime};

use super::board::{Board, Rules};
use super::delayed::Delayed;
use super::report::print_unhandled;
#[cfg(unix)]
use super::signals;
use super::{Coordinator, CoordinatorShared, EndOfInput, IsClean};
use crate::contain::print;

/// How long `join` waits after a stop, if nothing else is said.
const GRACE: Duration = Duration::from_secs(120);

/// A [`Coordinator`] that is being described. From [`Coordinator::builder`].
///
/// ```
/// use forebear::{Runtime, Error};
/// use forebear_supervise::{Coordinator, JoinError};
/// use std::time::Duration;
///
/// let runtime = Runtime::builder().workers(1).build()?;
/// let coordinator = Coordinator::builder()
///     .runtime(&runtime)
///     .grace(Duration::from_secs(10)) // for all workers together, after a stop
///     .cancel_after(Duration::from_millis(5)) // a worker that asks in time ends by itself
///     .clean_stop::<std::num::ParseIntError>() // no failure
///     .clean_stop_if(|failure| failure.request() == "optional")
///     .late_errors_count(true)
///     .on_unhandled_failure(|failure| eprintln!("{failure:#}"))
///     .on_warning(|text| eprintln!("{text}"))
///     .build()?;
/// coordinator.spawn("optional", |_| Err(Error::other("not needed")));
/// coordinator.join()?;
///
/// let strict = Coordinator::builder().no_clean_stops().build()?;
/// strict.report(forebear_supervise::EndOfInput)?;
/// assert!(matches!(strict.join(), Err(JoinError::Failed { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing before `build`"]
pub struct CoordinatorBuilder {
    grace: Duration,
    cancel_after: Duration,
    late_errors_count: bool,
    /// `None`: the default.
    clean: Option<Vec<IsClean>>,
    on_unhandled_failure: Box<dyn Fn(&Failure) + Send + Sync>,
    on_warning: Box<dyn Fn(&str) + Send + Sync>,
    runtime: Option<Runtime>,
    stop_on_signals: bool,
}

impl CoordinatorBuilder {
    /// How long [`join`](Coordinator::join) waits for all workers together after a stop. Default: 120 seconds. With zero it checks once.
    pub fn grace(mut self, total: Duration) -> Self {
        self.grace = total;
        self
    }

    /// How long after a stop requests are cancelled and child processes get SIGTERM, if they have not ended by then. Default: zero, at once. A thread waits for
    /// the delay, on the monotonic clock. It ends when the stop is cleared, or the coordinator is dropped.
    pub fn cancel_after(mut self, delay: Duration) -> Self {
        self.cancel_after = delay;
        self
    }

    /// An error with an `E` anywhere in its chain of causes stops without a failure. The first call of this method, or of
    /// [`clean_stop_if`](Self::clean_stop_if), replaces the default, [`EndOfInput`]; further calls add kinds.
    pub fn clean_stop<E: StdError + 'static>(self) -> Self {
        self.clean_stop_if(|failure| failure.downcast_ref::<E>().is_some())
    }

    /// As [`clean_stop`](Self::clean_stop), for failures for which `is_clean` returns true. It is called in the thread that reports the failure. If it
    /// panics, the failure counts as one.
    pub fn clean_stop_if(mut self, is_clean: impl Fn(&Failure) -> bool + Send + Sync + 'static) -> Self {
        self.clean.get_or_insert_default().push(Box::new(is_clean));
        self
    }

    /// Every error is a failure, also [`EndOfInput`].
    pub fn no_clean_stops(mut self) -> Self {
        self.clean = Some(Vec::new());
        self
    }

    /// Whether an error counts that is reported after a stop without an error: `true` makes [`join`](Coordinator::join) return it. `false`, if not
    /// given, passes it to [`on_unhandled_failure`](Self::on_unhandled_failure), since workers that are stopped often fail for that reason. A
    /// cancellation never counts after a stop.
    pub fn late_errors_count(mut self, yes: bool) -> Self {
        self.late_errors_count = yes;
        self
    }

    /// Receives each failure that no caller gets. These are failures after the stop or after the join, failures beyond
    /// the number that is kept, and the first failure if the last handle is dropped before a
    /// [`join`](Coordinator::join). Default: one line on standard error.
    ///
    /// The hook is called in the thread that reports the failure or drops the handle, and must not wait. A panic of the hook ends there, and changes nothing. A
    /// failure that the hook itself reports, and that no caller gets, is written to standard error: the hook is not called for it.
    pub fn on_unhandled_failure(mut self, hook: impl Fn(&Failure) + Send + Sync + 'static) -> Self {
        self.on_unhandled_failure = Box::new(hook);
        self
    }

    /// Receives a warning, as text for a human reader, when a join has ignored stragglers. Default: it is written to standard error. The hook must not wait. A panic
    /// of the hook ends there.
    pub fn on_warning(mut self, hook: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.on_warning = Box::new(hook);
        self
    }

    /// The runtime on which [`spawn`](Coordinator::spawn) and [`every`](Coordinator::every) run their requests. Default: the caller's current runtime.
    pub fn runtime(mut self, runtime: &Runtime) -> Self {
        self.runtime = Some(runtime.clone());
        self
    }

    /// The first SIGINT or SIGTERM requests a stop. The second one ends the process, as it would have without this.
    ///
    /// The handlers are installed once in the life of the process, for all coordinators together; handlers that were there before are called, too. When no
    /// coordinator with this setting is left, a signal ends the process at once. On Linux a signal that the process ignores when this is built, as under `nohup`,
    /// stays ignored. A child of a fork that executes no program has the handlers and not the thread that hears: there both signals do nothing.
    ///
    /// ```
    /// use forebear_supervise::Coordinator;
    ///
    /// let coordinator = Coordinator::builder().stop_on_signals().build()?;
    /// coordinator.spawn("server", |me| Ok(me.wait_for_stop()?)); // until Ctrl-C
    /// coordinator.request_stop(); // as the signal does
    /// coordinator.join()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(unix)]
    pub fn stop_on_signals(mut self) -> Self {
        self.stop_on_signals = true;
        self
    }

    /// Makes the coordinator.
    ///
    /// # Errors
    ///
    /// With [`stop_on_signals`](Self::stop_on_signals), if the handlers cannot be installed, or their thread cannot be started.
    pub fn build(self) -> io::Result<Coordinator> {
        let is_clean: IsClean = match self.clean {
            None => Box::new(|failure| failure.downcast_ref::<EndOfInput>().is_some()),
            Some(kinds) => Box::new(move |failure| kinds.iter().any(|is_clean| is_clean(failure))),
        };
        let coordinator = Coordinator(Arc::new(CoordinatorShared {
            board: Board::new(),
            grace: self.grace,
            cancel_after: self.cancel_after,
            delayed: Delayed::default(),
            rules: Rules { late_errors_count: self.late_errors_count },
            is_clean,
            on_unhandled_failure: self.on_unhandled_failure,
            on_warning: self.on_warning,
            runtime: self.runtime,
        }));
        #[cfg(unix)]
        if self.stop_on_signals {
            signals::watch(&coordinator)?;
        }
        Ok(coordinator)
    }
}

impl Default for CoordinatorBuilder {
    fn default() -> Self {
        CoordinatorBuilder {
            grace: GRACE,
            cancel_after: Duration::ZERO,
            late_errors_count: false,
            clean: None,
            on_unhandled_failure: Box::new(print_unhandled),
            on_warning: Box::new(|text| print(format_args!("forebear: {text}"))),
            runtime: None,
            stop_on_signals: false,
        }
    }
}

impl fmt::Debug for CoordinatorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoordinatorBuilder")
            .field("grace", &self.grace)
            .field("cancel_after", &self.cancel_after)
            .field("late_errors_count", &self.late_errors_count)
            .field("stop_on_signals", &self.stop_on_signals)
            .finish_non_exhaustive()
    }
}
