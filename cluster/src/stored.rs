//! [`Stored`]: a value in the store of the engine, which tasks take as an argument.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use forebear::Error;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::coordinator::Shared;
use crate::coordinator::board::Unheld;
use crate::ctx::TaskCtx;
use crate::engine::ObjectId;
use crate::error::FetchError;
use crate::holds::note;
use crate::remote::Fetch;

/// A value in the engine's store. A token of a few bytes: an argument of tasks, also of many.
///
/// [`ClusterCoordinator::put`](crate::ClusterCoordinator::put) stores a value, and [`RemoteValue::stored`](crate::RemoteValue::stored) gives the token of a result. A result of more than
/// 256 KiB is in the store already, so it passes from worker to worker and not through the coordinator.
///
/// A worker reads an object once, and keeps it in a cache of bounded size ([`get`](Self::get)). The store drops the object when the last clone on the coordinator is dropped, and the tasks that were
/// scheduled before have ended.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, Stored, TaskFn, tasks};
///
/// const TABLE: TaskFn<u32, Vec<u32>> = TaskFn::new("table", |_, n| Ok((0..n).collect()));
/// const LOOK_UP: TaskFn<(Stored<Vec<u32>>, usize), u32> = TaskFn::new("look up", |ctx, (table, at)| {
///     let table = table.get(ctx)?; // an `Arc<Vec<u32>>`, which each worker has once
///     Ok(table[at])
/// });
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![TABLE, LOOK_UP]).start()?;
/// let table = cluster.schedule(&TABLE, 100_000)?.stored().unwrap();
/// let values: Vec<_> = (0..10).map(|at| cluster.schedule(&LOOK_UP, (table.clone(), at))).collect::<Result<_, _>>()?;
/// assert_eq!(cluster.fetch(values).unwrap().iter().sum::<u32>(), 45);
/// # Ok::<(), ClusterError>(())
/// ```
pub struct Stored<T> {
    pub(crate) object: ObjectId,
    pub(crate) bytes: u64,
    /// What drops the object. Nothing, in a copy that came to a worker.
    pub(crate) kept: Option<Arc<Kept>>,
    pub(crate) of: PhantomData<fn() -> T>,
}

/// Drops an object of the store when the last holder is gone.
pub(crate) struct Kept {
    pub(crate) shared: Weak<Shared>,
    pub(crate) object: ObjectId,
    pub(crate) bytes: u64,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.follow(shared.board.unhold(Unheld::Object(self.object)));
        }
    }
}

impl<T> Stored<T> {
    pub(crate) fn new(kept: Arc<Kept>) -> Stored<T> {
        Stored { object: kept.object, bytes: kept.bytes, kept: Some(kept), of: PhantomData }
    }

    /// Its size in the store, in bytes.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess};
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(1)).start()?;
    /// let table = cluster.put(&vec![0_u8; 1_000])?;
    /// assert_eq!(table.size(), 1_002); // the encoded form begins with the length
    /// # Ok::<(), ClusterError>(())
    /// ```
    #[must_use]
    pub fn size(&self) -> u64 {
        self.bytes
    }
}

impl<T: DeserializeOwned> Stored<T> {
    /// The value, on the coordinator, each time from the store.
    ///
    /// Suspends while it is read. A cancellation point.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess};
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(1)).start()?;
    /// let table = cluster.put(&vec![7_u8; 100])?;
    /// assert_eq!(table.fetch().unwrap(), [7; 100]);
    /// # Ok::<(), ClusterError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`FetchError`]: `Closed` also for a token that a task has received.
    pub fn fetch(&self) -> Result<T, FetchError> {
        let shared = self.kept.as_ref().and_then(|kept| kept.shared.upgrade());
        shared.ok_or(FetchError::Closed)?.fetch_object(self.object, None)
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> Stored<T> {
    /// The value, on a worker. The first call on a worker reads it from the store; a call beside it waits for that.
    ///
    /// The worker keeps the decoded value in a cache, which drops the values that were used least recently when it is full. Its limit counts the size in the store, and is a setting of the engine. A value beyond the limit is
    /// read each time.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](forebear::Cancelled). A task that returns one of the others fails. The kind is
    /// [`FailureKind::Store`](crate::FailureKind::Store) if the store does not have the object, as with a token of
    /// another cluster. It is [`FailureKind::Codec`](crate::FailureKind::Codec) if the object has another type.
    pub fn get(&self, ctx: &TaskCtx) -> Result<Arc<T>, Error> {
        ctx.node.cache()?.get(self.object, self.bytes)
    }
}

/// The value, as by [`Stored::fetch`].
impl<T: DeserializeOwned> Fetch for &Stored<T> {
    type Output = T;

    fn fetch_all(self) -> Result<T, FetchError> {
        Stored::fetch(self)
    }
}

impl<T> Clone for Stored<T> {
    fn clone(&self) -> Self {
        Stored { object: self.object, bytes: self.bytes, kept: self.kept.clone(), of: PhantomData }
    }
}

impl<T> fmt::Debug for Stored<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stored({}, {} bytes)", self.object, self.bytes)
    }
}

impl<T> Serialize for Stored<T> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        note(|| Some(self.kept.clone()?));
        (self.object, self.bytes).serialize(to)
    }
}

impl<'de, T> Deserialize<'de> for Stored<T> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (object, bytes) = Deserialize::deserialize(from)?;
        Ok(Stored { object, bytes, kept: None, of: PhantomData })
    }
}
