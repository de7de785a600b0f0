//! [`CheckpointError`]: why a checkpoint could not be written or read.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use forebear::{BlockingError, Chain, Error};

/// Why a checkpoint could not be written or read.
///
/// ```
/// use forebear_supervise::{CheckpointError, Checkpoints, Snapshot};
/// use std::sync::Arc;
///
/// # let dir = std::env::temp_dir().join(format!("schema-{}", std::process::id()));
/// let checkpoints = Checkpoints::open(&dir)?;
/// checkpoints.save(1, &Arc::new(Snapshot::new(1, 5_u64)))?;
/// let changed = Arc::new(Snapshot::new(2, String::new()));
/// match checkpoints.restore(&changed) {
///     Err(CheckpointError::Schema { want: 2, found: 1, .. }) => {} // convert it, or begin anew
///     other => panic!("{other:?}"),
/// }
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), CheckpointError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The system refuses an operation: the disk is full, permission or directory is missing, or there are no descriptors left. A file that cannot be
    /// opened or read for such a reason may be the newest: neither a restore nor a save goes past it.
    #[non_exhaustive]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is damaged or not complete. A restore of the newest file skips such files, and returns this only if all are damaged.
    #[non_exhaustive]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The section whose checksum is wrong. `None`: the file's own structure is.
        section: Option<String>,
    },
    /// A later version of this library has written the file. Neither a restore of the newest file nor a save goes past it: it may be the newest.
    #[non_exhaustive]
    Version {
        /// The file.
        path: PathBuf,
        /// The version of its format.
        found: u32,
    },
    /// The file has another schema than the state. Older files are not tried.
    #[non_exhaustive]
    Schema {
        /// The file.
        path: PathBuf,
        /// The schema of the state.
        want: u64,
        /// The schema of the file.
        found: u64,
    },
    /// The state returned an error from `save` or `restore`.
    #[non_exhaustive]
    State {
        /// The file.
        path: PathBuf,
        /// Its error.
        source: Error,
    },
    /// Another process is saving into the same directory.
    #[non_exhaustive]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// No thread could be started for the file: see [`BlockingError::NoThread`].
    #[non_exhaustive]
    NoThread {
        /// The refusal.
        source: BlockingError,
    },
    /// The waiting request was cancelled. A save that had begun continues to its end; a restore may have happened.
    Cancelled,
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return Chain::of(self).fmt(f);
        }
        match self {
            CheckpointError::Io { path, .. } => {
                write!(f, "{}: the system has refused an operation there", path.display())
            }
            CheckpointError::Corrupt { path, section: Some(section) } => {
                write!(f, "{}: the section `{section}` is damaged", path.display())
            }
            CheckpointError::Corrupt { path, section: None } => {
                write!(f, "{}: the checkpoint is damaged or not whole", path.display())
            }
            CheckpointError::Version { path, found } => {
                write!(f, "{}: format {found} is newer than this program, which knows 1", path.display())
            }
            CheckpointError::Schema { path, want, found } => write!(
                f,
                "{}: the checkpoint has schema {found}, the program wants {want}: convert it, or begin in another directory",
                path.display()
            ),
            CheckpointError::State { path, .. } => write!(f, "{}: the state", path.display()),
            CheckpointError::Busy { path } => {
                write!(
                    f,
                    "{}: another process, or another supervisor of this one, is saving a checkpoint there",
                    path.display()
                )
            }
            CheckpointError::NoThread { .. } => f.write_str("no thread reads or writes checkpoints"),
            CheckpointError::Cancelled => f.write_str("the wait for a checkpoint was cut short"),
        }
    }
}

impl StdError for CheckpointError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            CheckpointError::Io { source, .. } => Some(source),
            CheckpointError::State { source, .. } => Some(&**source),
            CheckpointError::NoThread { source } => Some(source),
            CheckpointError::Cancelled => Some(&crate::CANCELLED),
            _ => None,
        }
    }
}

impl From<BlockingError> for CheckpointError {
    fn from(error: BlockingError) -> Self {
        match error {
            BlockingError::Cancelled => CheckpointError::Cancelled,
            source => CheckpointError::NoThread { source },
        }
    }
}

impl From<forebear::Cancelled> for CheckpointError {
    fn from(_: forebear::Cancelled) -> Self {
        CheckpointError::Cancelled
    }
}

/// An error of the system, with the path it is about.
pub(super) fn io_at(path: &Path) -> impl Fn(io::Error) -> CheckpointError {
    move |source| CheckpointError::Io { path: path.to_owned(), source }
}
