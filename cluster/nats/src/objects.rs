//! [`Objects`]: the store of large values, as the coordinator and the tasks on a worker call it. The work is done on the thread of the engine; the caller is suspended.

use std::future::Future;
use std::sync::Arc;

use forebear::Request;
use forebear_cluster::engine::{ObjectId, ObjectStore, StoreError};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::store::Store;

pub(crate) struct Objects {
    store: Store,
    /// The runtime of the engine's thread. It ends with the engine.
    runtime: Handle,
    /// Why the coordinator was told that the server is away, while it is. `None` on a worker: it waits until the server is back.
    away: Option<watch::Receiver<Option<String>>>,
}

impl Objects {
    /// Called on the engine's thread.
    pub(crate) fn here(store: &Store) -> Arc<Objects> {
        Arc::new(Objects { store: store.clone(), runtime: Handle::current(), away: None })
    }

    /// The same, on the coordinator.
    pub(crate) fn of_coordinator(store: &Store, away: watch::Receiver<Option<String>>) -> Arc<Objects> {
        Arc::new(Objects { store: store.clone(), runtime: Handle::current(), away: Some(away) })
    }

    /// Suspends until that is done, or the coordinator was told that the server is away. A cancel of the caller aborts it.
    fn call<T: Send + 'static>(
        &self,
        done: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (completer, answer) = Request::completer("object store");
        let away = self.away.clone();
        let task = self.runtime.spawn(async move {
            let done = tokio::select! {
                done = done => done,
                reason = lost(away) => Err(StoreError::Unavailable { reason }),
            };
            let _ = completer.complete(done);
        });
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
        let store = self.store.clone();
        self.call(async move {
            let read = store.get(&object.to_string()).await;
            let read = read.map_err(|message| StoreError::Failed { message })?;
            read.map(Arc::from).ok_or(StoreError::Missing)
        })
    }

    fn delete(&self, object: ObjectId) {
        let store = self.store.clone();
        self.runtime.spawn(async move { store.delete(&object.to_string()).await });
    }
}
