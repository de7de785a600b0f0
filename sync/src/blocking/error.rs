//! Why a blocking call was not made.

use std::error::Error as StdError;
use std::{fmt, io};

use forebear_context::error::{Cancelled, Chain};

/// [`blocking`](super::blocking()) has not called its function, or does not answer what that returns.
///
/// ```no_run
/// use forebear::{BlockingError, blocking};
///
/// match blocking(|| std::fs::read_to_string("Cargo.toml")) {
///     Ok(text) => println!("{}", text.unwrap_or_default()),
///     Err(BlockingError::Cancelled) => {} // clean up, and return
///     Err(error) => eprintln!("{error}"), // the process may have no more threads
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum BlockingError {
    /// The caller was cancelled. The function may run to its end.
    Cancelled,
    /// No thread could be started, and there was none: the function was dropped uncalled. This is the system's error.
    NoThread(io::Error),
}

impl fmt::Display for BlockingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockingError::Cancelled if f.alternate() => Chain::of(self).fmt(f),
            BlockingError::Cancelled => f.write_str("the wait for a blocking call was cut short"),
            BlockingError::NoThread(error) => write!(
                f,
                "no thread could be started for a blocking call ({error}), and there is none: \
                 allow the process more threads, or make a call before a sandbox forbids them"
            ),
        }
    }
}

impl StdError for BlockingError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            BlockingError::Cancelled => Some(&CANCELLED),
            BlockingError::NoThread(error) => Some(error),
        }
    }
}

/// What the chain of every error shows that means a cancel.
static CANCELLED: Cancelled = Cancelled::new();

impl From<Cancelled> for BlockingError {
    fn from(_: Cancelled) -> Self {
        BlockingError::Cancelled
    }
}
