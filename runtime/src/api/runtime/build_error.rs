//! [`BuildError`]: why a runtime could not be built.

use std::fmt;

use forebear_context::error::StackError;
use forebear_pool::StartError;

/// A runtime that could not be built.
///
/// ```
/// use forebear::{BuildError, Runtime};
///
/// let refused = Runtime::builder().workers(1_000_000).build();
/// let Err(BuildError::Workers { asked, max, .. }) = refused else { panic!() };
/// assert!(asked == 1_000_000 && max < asked);
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// More workers than can be.
    #[non_exhaustive]
    Workers {
        /// How many were asked for.
        asked: usize,
        /// How many there may be at most.
        max: usize,
    },
    /// The stack size asked for is beyond the largest class.
    #[non_exhaustive]
    StackSize {
        /// The bytes asked for.
        asked: usize,
        /// The largest that can be had.
        max: usize,
    },
    /// Fewer stacks than the workers need for themselves.
    #[non_exhaustive]
    Stacks {
        /// How many were asked for.
        asked: usize,
        /// How many there must be at least.
        min: usize,
    },
    /// A seeded runtime has one thread, the caller's, and a clock of its own.
    #[non_exhaustive]
    Seeded {
        /// The setting that does not go with a seed.
        with: &'static str,
    },
    /// A runtime without workers must notice that a thread exits before the thread's locals are destroyed. This system's C library offers no
    /// function for that (`__cxa_thread_atexit_impl`): ask for at least one worker.
    NoExitCalls,
    /// The workers could not be given the stacks they begin on.
    Stack(StackError),
    /// The threads could not be started.
    Start(StartError),
    /// The present default runtime has work.
    DefaultBusy,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Workers { asked, max } => {
                write!(f, "a runtime of {asked} workers was asked for: ask for at most {max}")
            }
            BuildError::StackSize { asked, max } => {
                write!(f, "stacks of {asked} bytes were asked for: ask for at most {max}")
            }
            BuildError::Stacks { asked, min } => {
                write!(
                    f,
                    "at most {asked} stacks were asked for and the workers alone need {min}: raise max_stacks, or ask \
                     for fewer workers"
                )
            }
            BuildError::Seeded { with } => write!(
                f,
                "a seeded runtime runs everything on the thread that uses it, under a clock of its own: leave `{with}` out"
            ),
            BuildError::NoExitCalls => f.write_str(
                "a runtime without workers was asked for, and the C library has no __cxa_thread_atexit_impl, by which the \
                 exit of a thread is noticed in time: ask for at least one worker",
            ),
            BuildError::Stack(error) => error.fmt(f),
            BuildError::Start(error) => error.fmt(f),
            BuildError::DefaultBusy => f.write_str(
                "the current default runtime has unfinished requests: wait for them, or shut it down, before replacing it",
            ),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BuildError::Start(error) => std::error::Error::source(error),
            _ => None,
        }
    }
}
