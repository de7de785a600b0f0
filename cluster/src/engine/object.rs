//! [`ObjectStore`]: where an engine keeps values that are too large for a message.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::TaskId;

/// A result of more bytes than this is kept in the store of the engine, and does not travel in a message: 256 KiB.
pub const INLINE: usize = 256 << 10;

/// The name of an object. No object has the name of an earlier one.
///
/// It is written with lower-case letters, digits, `.` and `-` alone, so it can be the name of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectId {
    job: u64,
    of: Of,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
enum Of {
    /// The coordinator has put it.
    Put(u64),
    /// The result of an attempt.
    Result { task: TaskId, attempt: u32 },
}

impl ObjectId {
    pub(crate) fn put(job: u64, number: u64) -> ObjectId {
        ObjectId { job, of: Of::Put(number) }
    }

    pub(crate) fn result(job: u64, task: TaskId, attempt: u32) -> ObjectId {
        ObjectId { job, of: Of::Result { task, attempt } }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            Of::Put(number) => write!(f, "{:016x}.put.{number}", self.job),
            Of::Result { task, attempt } => write!(f, "{:016x}.result.{}.{attempt}", self.job, task.0),
        }
    }
}

/// Keeps objects for the coordinator and for all workers of a job.
///
/// An object does not change once it is there. It survives the worker that has put it. All objects are dropped with the job.
///
/// ```
/// use forebear_cluster::engine::{ObjectId, ObjectStore, StoreError};
/// use std::collections::HashMap;
/// use std::sync::{Arc, Mutex};
///
/// #[derive(Default)]
/// struct Memory(Mutex<HashMap<ObjectId, Arc<[u8]>>>);
///
/// impl ObjectStore for Memory {
///     fn put(&self, object: ObjectId, bytes: Arc<[u8]>) -> Result<(), StoreError> {
///         self.0.lock().unwrap().insert(object, bytes);
///         Ok(())
///     }
///
///     fn get(&self, object: ObjectId) -> Result<Arc<[u8]>, StoreError> {
///         self.0.lock().unwrap().get(&object).cloned().ok_or(StoreError::Missing)
///     }
///
///     fn delete(&self, object: ObjectId) {
///         self.0.lock().unwrap().remove(&object);
///     }
/// }
/// ```
pub trait ObjectStore: Send + Sync + 'static {
    /// Keeps these bytes under that name.
    ///
    /// May suspend. A cancellation point then.
    ///
    /// # Errors
    ///
    /// [`StoreError`], but not `Missing` or `TimedOut`.
    fn put(&self, object: ObjectId, bytes: Arc<[u8]>) -> Result<(), StoreError>;

    /// The bytes of that name.
    ///
    /// May suspend. A cancellation point then.
    ///
    /// # Errors
    ///
    /// [`StoreError`], but not `TimedOut`.
    fn get(&self, object: ObjectId) -> Result<Arc<[u8]>, StoreError>;

    /// The same, and gives up after `timeout`. What was read by then may be kept for the next read of this object. A timeout of zero does not wait. Default: the same without a limit, for a store that answers by
    /// itself. One that may have to wait for another machine has a method of its own.
    ///
    /// May suspend. A cancellation point then.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn get_timeout(&self, object: ObjectId, timeout: Duration) -> Result<Arc<[u8]>, StoreError> {
        let _ = timeout;
        self.get(object)
    }

    /// Drops the object, if it is there. Does not wait. A store that cannot be reached drops it when it can be.
    fn delete(&self, object: ObjectId);
}

/// Why an object cannot be put or read.
///
/// ```
/// use forebear_cluster::engine::StoreError;
///
/// fn of_system(error: std::io::Error) -> StoreError {
///     match error.kind() {
///         std::io::ErrorKind::NotFound => StoreError::Missing,
///         _ => StoreError::Failed { message: error.to_string() },
///     }
/// }
/// assert_eq!(of_system(std::io::ErrorKind::NotFound.into()), StoreError::Missing);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The store has no object of this name: it was dropped, or the store has lost it.
    Missing,
    /// The store cannot do this now: its disk is full, for instance.
    Failed {
        /// What it says.
        message: String,
    },
    /// The store cannot be reached, and the engine has told the coordinator so by [`Event::Unavailable`](super::Event::Unavailable).
    Unavailable {
        /// Why, as the event says.
        reason: String,
    },
    /// The time that the caller has given was over first.
    TimedOut,
    /// The caller has been cancelled.
    Cancelled,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Missing => f.write_str("the engine's store does not have it"),
            StoreError::Failed { message } => write!(f, "the engine's store has failed: {message}"),
            StoreError::Unavailable { reason } => {
                write!(f, "the engine's store cannot be reached: {reason}")
            }
            StoreError::TimedOut => {
                f.write_str("the engine's store has not answered in the time that was given")
            }
            StoreError::Cancelled => f.write_str("the calling request has been cancelled"),
        }
    }
}

impl std::error::Error for StoreError {}
