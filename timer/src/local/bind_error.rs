//! Why a server could not have its path.

use std::error::Error as StdError;
use std::path::PathBuf;
use std::{fmt, io};

use crate::expiry::TimerError;

/// Why a server could not have its path: the error in the [`TimerError::Io`] of
/// [`LocalTimerServer::bind_at`](super::LocalTimerServer::bind_at). What stood there stands there still.
///
/// ```
/// use forebear::timer::TimerError;
/// use forebear::timer::local::{BindError, LocalTimerServer};
///
/// # let directory = std::env::temp_dir().join(format!("forebear-taken-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory).unwrap();
/// let path = directory.join("data.txt");
/// std::fs::write(&path, "precious").unwrap();
/// let Err(TimerError::Io(error)) = LocalTimerServer::bind_at(&path) else { panic!("it was replaced") };
/// let why = error.get_ref().and_then(|error| error.downcast_ref::<BindError>());
/// assert!(matches!(why, Some(BindError::Occupied { found: "an ordinary file", .. })));
/// assert_eq!(std::fs::read(&path).unwrap(), b"precious");
/// # std::fs::remove_dir_all(&directory).unwrap();
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum BindError {
    /// A server has the path. The kind of the `io::Error` is `AddrInUse`.
    #[non_exhaustive]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// At the path is something else than the socket of a server that has ended. The kind is `AlreadyExists`.
    #[non_exhaustive]
    Occupied {
        /// The path.
        path: PathBuf,
        /// What stands there.
        found: &'static str,
    },
    /// Where the server's lock file belongs is something that no server has made. The kind is `AlreadyExists`.
    #[non_exhaustive]
    LockOccupied {
        /// The path of the lock file.
        path: PathBuf,
        /// What stands there.
        found: &'static str,
    },
    /// The system refuses the socket or the lock file. The kind is that of the source.
    #[non_exhaustive]
    Io {
        /// Which of them.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl BindError {
    /// The kind of the `io::Error` that a user gets.
    pub(super) fn kind(&self) -> io::ErrorKind {
        match self {
            BindError::InUse { .. } => io::ErrorKind::AddrInUse,
            BindError::Occupied { .. } | BindError::LockOccupied { .. } => io::ErrorKind::AlreadyExists,
            BindError::Io { source, .. } => source.kind(),
        }
    }
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::InUse { path } => {
                write!(
                    f,
                    "{path:?} has a timer server already: connect to it, stop it, or choose another path"
                )
            }
            BindError::Occupied { path, found } => write!(
                f,
                "{path:?} is {found}, not the socket of a timer server that has ended, and was left alone: move it away, or choose another path"
            ),
            BindError::LockOccupied { path, found } => write!(
                f,
                "{path:?}, where the timer server's lock file belongs, is {found}, and was left alone: move it away, or choose another path"
            ),
            BindError::Io { path, source } => {
                write!(f, "no timer server can have its socket at {path:?}: {source}")?;
                let advice = match source.kind() {
                    io::ErrorKind::NotFound => "make its directory first",
                    io::ErrorKind::InvalidFilename => "choose a shorter path",
                    _ => return Ok(()),
                };
                write!(f, "; {advice}")
            }
        }
    }
}

impl StdError for BindError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // What `Display` says, the source does not say again.
        match self {
            BindError::Io { source, .. } => source.source(),
            _ => None,
        }
    }
}

impl From<BindError> for TimerError {
    fn from(error: BindError) -> TimerError {
        TimerError::Io(io::Error::new(error.kind(), error))
    }
}
