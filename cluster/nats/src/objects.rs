//! [`Objects`]: the store of large values, as the coordinator and the tasks on a worker call it. The work is done on the thread of the engine; the caller is suspended.
//!
//! A read whose caller has given up goes on, and the next read of that object takes it up. Else a program that asks again and again, with less time than a read takes, would never have its value.

mod read;

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebear::{Request, TimeoutError};
use forebear_cluster::engine::{ObjectId, ObjectStore, StoreError};
use tokio::runtime::Handle;
use tokio::sync::watch;

use self::read::Read;
use crate::store::Store;

pub(crate) struct Objects {
    store: Store,
    /// The runtime of the engine's thread. It ends with the engine.
    runtime: Handle,
    /// Why the coordinator was told that the server is away, while it is. `None` on a worker: it waits until the server is back.
    away: Option<watch::Receiver<Option<String>>>,
    /// Reads whose callers have given up.
    late: Mutex<HashMap<ObjectId, Read>>,
}

impl Objects {
    fn new(store: &Store, away: Option<watch::Receiver<Option<String>>>) -> Arc<Objects> {
        Arc::new(Objects { store: store.clone(), runtime: Handle::current(), away, late: Mutex::default() })
    }

    /// Called on the engine's thread.
    pub(crate) fn here(store: &Store) -> Arc<Objects> {
        Objects::new(store, None)
    }

    /// The same, on the coordinator.
    pub(crate) fn of_coordinator(store: &Store, away: watch::Receiver<Option<String>>) -> Arc<Objects> {
        Objects::new(store, Some(away))
    }

    /// Suspends until that is done, or the coordinator was told that the server is away. A cancel of the caller aborts it.
    fn call<T: Send + 'static>(
        &self,
        done: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (completer, answer) = Request::completer("object store");
        let done = unless_lost(self.away.clone(), done);
        let task = self.runtime.spawn(async move { _ = completer.complete(done.await) });
        match answer.take() {
            Ok(answer) => answer,
            Err(error) => {
                task.abort();
                if error.is_cancelled() {
                    return Err(StoreError::Cancelled);
                }
                // The thread has ended, and has dropped what it had to do.
                Err(StoreError::Failed { message: error.to_string() })
            }
        }
    }

    fn late(&self) -> MutexGuard<'_, HashMap<ObjectId, Read>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up a read whose caller has given up. One that has failed meanwhile says nothing of what the store would say now.
    fn take_late(&self, object: ObjectId) -> Option<Read> {
        self.late().remove(&object).filter(|read| !read.has_failed())
    }
}

/// Reads an object.
async fn read(store: Store, object: ObjectId) -> Result<Arc<[u8]>, StoreError> {
    let read = store.get(&object.to_string()).await.map_err(|message| StoreError::Failed { message })?;
    read.map(Arc::from).ok_or(StoreError::Missing)
}

/// Does that, unless the coordinator is told first that the server is away.
async fn unless_lost<T>(
    away: Option<watch::Receiver<Option<String>>>,
    done: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::select! {
        done = done => done,
        reason = lost(away) => Err(StoreError::Unavailable { reason }),
    }
}

/// Waits until the server is away, and says why.
async fn lost(away: Option<watch::Receiver<Option<String>>>) -> String {
    if let Some(mut away) = away
        && let Ok(reason) = away.wait_for(Option::is_some).await
        && let Some(reason) = &*reason
    {
        return reason.clone();
    }
    std::future::pending().await
}

impl ObjectStore for Objects {
    fn put(&self, object: ObjectId, bytes: Arc<[u8]>) -> Result<(), StoreError> {
        let store = self.store.clone();
        self.call(async move {
            store.put(&object.to_string(), &bytes).await.map_err(|message| StoreError::Failed { message })
        })
    }

    fn get(&self, object: ObjectId) -> Result<Arc<[u8]>, StoreError> {
        match self.take_late(object) {
            Some(late) => late.take(),
            None => self.call(read(self.store.clone(), object)),
        }
    }

    fn get_timeout(&self, object: ObjectId, timeout: Duration) -> Result<Arc<[u8]>, StoreError> {
        let late = self.take_late(object);
        let read = late.unwrap_or_else(|| {
            Read::begin(&self.runtime, unless_lost(self.away.clone(), read(self.store.clone(), object)))
        });
        match read.wait(timeout) {
            Ok(()) => read.take(),
            Err(TimeoutError::Cancelled) => Err(StoreError::Cancelled),
            Err(TimeoutError::TimedOut) => {
                self.late().insert(object, read);
                Err(StoreError::TimedOut)
            }
        }
    }

    fn delete(&self, object: ObjectId) {
        self.late().remove(&object);
        let store = self.store.clone();
        self.runtime.spawn(async move { store.delete(&object.to_string()).await });
    }
}
