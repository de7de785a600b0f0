//! [`Objects`]: the store of an engine whose workers live in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::{ObjectId, ObjectStore, StoreError};

#[derive(Default)]
pub(crate) struct Objects(Mutex<HashMap<ObjectId, Arc<[u8]>>>);

impl Objects {
    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectId, Arc<[u8]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObjectStore for Objects {
    fn put(&self, object: ObjectId, bytes: Arc<[u8]>) -> Result<(), StoreError> {
        self.lock().insert(object, bytes);
        Ok(())
    }

    fn get(&self, object: ObjectId) -> Result<Arc<[u8]>, StoreError> {
        self.lock().get(&object).cloned().ok_or(StoreError::Missing)
    }

    fn delete(&self, object: ObjectId) {
        self.lock().remove(&object);
    }
}
