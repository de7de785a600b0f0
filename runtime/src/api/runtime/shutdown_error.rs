//! What an end of a runtime answers if it has not come: [`ShutdownError`], and each [`Laggard`] by name.

use std::fmt;

use crate::api::any::{RequestId, State};

/// Code that has not ended although its runtime was shut down. It is a started request, a scope in a foreign thread
/// that waits for one, or code that a worker's thread runs outside of any request, such as a destructor.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use forebear::{Laggard, Request, Runtime};
///
/// let ((began, begins), (go, goes)) = (mpsc::channel(), mpsc::channel::<()>());
/// let runtime = Runtime::builder().workers(1).build()?;
/// let stuck = Request::builder().name("stuck").on(&runtime).spawn(move || {
///     began.send(()).unwrap();
///     goes.recv().ok() // it does not notice a cancel
/// });
/// begins.recv()?;
/// let error = runtime.shutdown(Duration::ZERO).unwrap_err();
/// let laggard: &Laggard = &error.laggards()[0];
/// assert_eq!((laggard.id, laggard.name.as_str()), (stuck.id(), "stuck"));
/// go.send(())?;
/// # runtime.shutdown(Duration::from_secs(60))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Laggard {
    /// The number of the request; of a scope in a foreign thread, and of code outside of any request, one that nothing else has.
    pub id: RequestId,
    /// The name of the request. `a destructor outside of any request` if that waits, `code outside of any request` if it does not, and `the destructor
    /// of a thread-local` if the worker's thread exits.
    pub name: String,
    /// What it is doing: [`State::Running`] or [`State::Suspended`].
    pub state: State,
    /// The number of the worker it runs on; `None` in a foreign thread.
    pub worker: Option<usize>,
    /// What it waits for, as far as that is known.
    pub waits_for: Option<String>,
}

impl fmt::Display for Laggard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "request '{}' ({}",
            self.name,
            if self.state == State::Running { "running" } else { "suspended" }
        )?;
        match self.worker {
            Some(worker) => write!(f, " on worker {worker}")?,
            None => f.write_str(" in a foreign thread")?,
        }
        match &self.waits_for {
            Some(target) => write!(f, ", waits for {target})"),
            None => f.write_str(")"),
        }
    }
}

/// Why a runtime has not ended.
///
/// ```
/// use std::time::Duration;
/// use forebear::{Runtime, ShutdownError};
///
/// let runtime = Runtime::builder().workers(1).build()?;
/// let inside = runtime.run(|| runtime.shutdown(Duration::ZERO));
/// let Err(error @ ShutdownError::Inside) = inside else { panic!() };
/// assert!(error.laggards().is_empty());
/// # Ok::<(), forebear::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ShutdownError {
    /// It was called inside a request of that very runtime, or in a destructor that the end of such a request calls. Or it was called on the thread
    /// of one of its workers, in the destructor of a thread-local. It would have had to wait for itself. Nothing was done.
    Inside,
    /// The grace is over, and these have not ended. They were aborted, and continue until they check for it.
    #[non_exhaustive]
    Laggards {
        /// Those that have started and not ended.
        laggards: Vec<Laggard>,
    },
}

impl ShutdownError {
    /// The requests that have not ended; empty if none was asked to end.
    #[must_use]
    pub fn laggards(&self) -> &[Laggard] {
        match self {
            ShutdownError::Laggards { laggards } => laggards,
            ShutdownError::Inside => &[],
        }
    }
}

impl fmt::Display for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShutdownError::Inside => f.write_str(
                "a runtime cannot be ended inside one of its own requests, or on the thread of a worker of its own: end it from a thread that runs none",
            ),
            ShutdownError::Laggards { laggards } => {
                f.write_str("the runtime was shut down, and these requests did not end within the grace period: ")?;
                for (n, laggard) in laggards.iter().enumerate() {
                    write!(f, "{}{laggard}", if n == 0 { "" } else { ", " })?;
                }
                f.write_str("; call is_cancelled() or check_cancelled() in long loops")
            }
        }
    }
}

impl std::error::Error for ShutdownError {}
