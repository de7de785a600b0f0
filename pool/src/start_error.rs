//! Why an engine does not start, and the checks before any thread is made.

use std::fmt;
use std::io;

use crate::Options;
use forebear_context::error::Chain;

/// The most workers an engine may have.
pub const MAX_WORKERS: usize = 1 << 14;

/// Whether an engine with these options can be started over signals made for so many workers.
pub(crate) fn check(options: &Options, signals: usize) -> Result<(), StartError> {
    let asked = options.workers;
    check_workers(asked)?;
    if asked != signals {
        Err(StartError::OtherSignals { asked, signals })
    } else if options.prefix.contains('\0') {
        Err(StartError::Name { prefix: options.prefix.clone() })
    } else {
        Ok(())
    }
}

/// Whether there can be that many workers.
pub(crate) fn check_workers(asked: usize) -> Result<(), StartError> {
    match asked {
        0 => Err(StartError::NoWorkers),
        1..=MAX_WORKERS => Ok(()),
        _ => Err(StartError::TooManyWorkers { asked }),
    }
}

/// Why an engine did not start. Nothing is left running.
///
/// ```
/// use forebear::pool::{FifoQueue, Job, StartError, ThreadPool};
///
/// let refused = ThreadPool::new(0, FifoQueue::<Job>::new());
/// assert!(matches!(refused, Err(StartError::NoWorkers)));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// No worker at all was asked for.
    NoWorkers,
    /// More than [`MAX_WORKERS`] were asked for.
    TooManyWorkers {
        /// How many were asked for.
        asked: usize,
    },
    /// The supply's signals were made for another number of workers.
    OtherSignals {
        /// How many the options ask for.
        asked: usize,
        /// How many the signals know.
        signals: usize,
    },
    /// A thread's name cannot hold a zero byte.
    Name {
        /// The prefix with the zero byte.
        prefix: String,
    },
    /// The system would not make a thread.
    Thread {
        /// The number of the worker whose thread it was to be; as many had been made.
        index: usize,
        /// What the system said.
        source: io::Error,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return Chain::of(self).fmt(f);
        }
        match self {
            StartError::NoWorkers => f.write_str("an engine needs at least one worker"),
            StartError::TooManyWorkers { asked } => {
                write!(f, "{asked} workers asked for, at most {MAX_WORKERS}")
            }
            StartError::OtherSignals { asked, signals } => {
                write!(f, "{asked} workers asked for, but the signals were made for {signals}")
            }
            StartError::Name { prefix } => {
                write!(f, "the thread name prefix {prefix:?} contains a zero byte")
            }
            StartError::Thread { index, .. } => {
                write!(f, "the thread of worker {index} could not be started")
            }
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Thread { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_alternate_display_writes_the_causes() {
        let error = StartError::Thread { index: 2, source: io::Error::other("no more threads") };
        assert_eq!(error.to_string(), "the thread of worker 2 could not be started");
        assert_eq!(format!("{error:#}"), "the thread of worker 2 could not be started: no more threads");
    }
}
