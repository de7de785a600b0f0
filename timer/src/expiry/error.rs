//! Why a timer could not be had, moved or released, and what goes wrong in a server.

use std::error::Error as StdError;
use std::{fmt, io};

use forebear_context::error::{Chain, Failure};

/// An error of a client, queue or server of timers.
///
/// ```
/// use std::time::Duration;
/// use forebear::timer::{TimerError, TimerGuard, channel};
///
/// let (timers, server) = channel();
/// drop(server);
/// let client = timers.client("worker 1");
/// let refused = TimerGuard::builder().client(&client).expires(Duration::from_secs(5));
/// assert!(matches!(refused, Err(TimerError::ServerGone)));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum TimerError {
    /// No client was given, and none is configured for the process.
    NotConfigured,
    /// The server of the client is gone, or was never there. Returned at once: no call waits for a server.
    ServerGone,
    /// The request does not fit into one message to the server.
    #[non_exhaustive]
    TooLarge {
        /// How large it would be, in bytes.
        size: usize,
        /// How large it may be.
        limit: usize,
    },
    /// The client belongs to no worker here: one that times requests was called outside of any.
    NoWorker,
    /// The client cannot send a [`Signal`](super::Signal) along with a timer.
    SignalUnsupported,
    /// What the client or the queue stands on has failed.
    Io(io::Error),
    /// A part of a server has panicked: its queue, its table, or its reaper.
    Panicked(Failure),
    /// The server was asked to stop, and did not finish its round in time. It stops when that round ends.
    StillRunning,
    /// For clients, queues and servers that you write: whatever else there is to say.
    Other(Box<dyn StdError + Send + Sync>),
}

impl TimerError {
    /// An error from text, or from any other.
    ///
    /// ```
    /// use forebear::timer::TimerError;
    ///
    /// let error = TimerError::other("the modem is offline");
    /// assert!(format!("{error}").contains("modem"));
    /// ```
    pub fn other(error: impl Into<Box<dyn StdError + Send + Sync>>) -> TimerError {
        TimerError::Other(error.into())
    }

    /// A message of `size` bytes where `limit` may be sent.
    ///
    /// ```
    /// use forebear::timer::TimerError;
    ///
    /// let error = TimerError::too_large(2000, 1024);
    /// assert!(matches!(error, TimerError::TooLarge { size: 2000, limit: 1024, .. }));
    /// ```
    #[must_use]
    pub fn too_large(size: usize, limit: usize) -> TimerError {
        TimerError::TooLarge { size, limit }
    }
}

impl fmt::Display for TimerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return Chain::of(self).fmt(f);
        }
        match self {
            TimerError::NotConfigured => {
                f.write_str("there is no timer client: configure one first, or give one to the builder")
            }
            TimerError::ServerGone => f.write_str("the timer server is gone"),
            TimerError::TooLarge { size, limit } => {
                write!(
                    f,
                    "a timer request of {size} bytes, where {limit} fit in one message; shorten the scope's name"
                )
            }
            TimerError::NoWorker => f.write_str("no worker here can own a timer"),
            TimerError::SignalUnsupported => {
                f.write_str("this timer client sends no signals along with timers")
            }
            #[cfg(all(target_os = "linux", feature = "local"))]
            TimerError::Io(error)
                if error.get_ref().is_some_and(|why| why.is::<crate::local::BindError>()) =>
            {
                fmt::Display::fmt(error, f)
            }
            TimerError::Io(error) => write!(f, "timer messages cannot pass: {error}"),
            TimerError::Panicked(failure) => {
                write!(f, "a part of the timer server panicked: {}", failure.error())
            }
            TimerError::StillRunning => f.write_str("the timer server did not finish its round in time"),
            TimerError::Other(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl StdError for TimerError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // What `Display` says, the source does not say again.
        match self {
            TimerError::Io(error) => error.source(),
            TimerError::Panicked(failure) => failure.error().source(),
            TimerError::Other(error) => error.source(),
            _ => None,
        }
    }
}

impl From<io::Error> for TimerError {
    fn from(error: io::Error) -> TimerError {
        TimerError::Io(error)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_alternate_display_writes_the_causes() {
        let failure = Failure::from_error(forebear_context::error::Error::other("no disk"), "rounds", None);
        let error = TimerError::Io(io::Error::other(failure));
        assert_eq!(error.to_string(), "timer messages cannot pass: request `rounds` failed");
        assert_eq!(format!("{error:#}"), format!("{error}: no disk"));
    }
}
