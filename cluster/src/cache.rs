//! [`Cache`]: the values that a worker has read from the store.
//!
//! # The states of an entry
//!
//! ```text
//!   absent --first get--> loading --read and decoded--> present --evicted--> absent
//!                            +--failed, cancelled--> absent
//! ```
//!
//! * The first caller *loads*: it reads and decodes, without the lock. Callers beside it wait for its end and look again. So an object is read once, and a loader that is cancelled holds nobody up.
//! * *Present* entries count with the size of the object. When their sum is above the limit, those that were used least recently are dropped. A task that holds one keeps it alive.
//! * A value that is larger than the limit is given to its loader and to nobody else.
//!
//! All state is under one lock, which nobody holds while it waits or runs user code.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebear::sync::Event;
use forebear::{Cancelled, Error};
use serde::de::DeserializeOwned;

use crate::engine::{ObjectId, ObjectStore, StoreError};
use crate::error::{FailureKind, Kinded};

/// The limit of a worker's cache, in bytes, if not told otherwise.
pub(crate) const CACHE: u64 = 256 << 20;

type Key = (ObjectId, TypeId);
type Value = Arc<dyn Any + Send + Sync>;

pub(crate) struct Cache {
    store: Arc<dyn ObjectStore>,
    limit: u64,
    state: Mutex<CacheState>,
}

#[derive(Default)]
struct CacheState {
    entries: HashMap<Key, CacheEntry>,
    /// The sum of what is present.
    used: u64,
    /// Rises with each use.
    clock: u64,
}

enum CacheEntry {
    /// Set when the loader has ended.
    Loading(Arc<Event>),
    Present {
        value: Value,
        bytes: u64,
        used_at: u64,
    },
}

/// Ends a load that has not succeeded.
struct Loading<'a> {
    cache: &'a Cache,
    key: Key,
    over: Arc<Event>,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        if matches!(state.entries.get(&self.key), Some(CacheEntry::Loading(_))) {
            state.entries.remove(&self.key);
        }
        drop(state);
        self.over.set();
    }
}

impl Cache {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, limit: u64) -> Cache {
        Cache { store, limit, state: Mutex::default() }
    }

    pub(crate) fn store(&self) -> &dyn ObjectStore {
        &*self.store
    }

    /// Nothing that is done under the lock can leave it half done, so a panic there changes nothing.
    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of an object. Suspends. A cancellation point.
    pub(crate) fn get<T: DeserializeOwned + Send + Sync + 'static>(
        &self,
        object: ObjectId,
        bytes: u64,
    ) -> Result<Arc<T>, Error> {
        let key = (object, TypeId::of::<T>());
        let value = loop {
            let over = {
                let mut state = self.lock();
                let now = state.tick();
                match state.entries.get_mut(&key) {
                    Some(CacheEntry::Present { value, used_at, .. }) => {
                        *used_at = now;
                        break value.clone();
                    }
                    Some(CacheEntry::Loading(over)) => Err(over.clone()),
                    None => {
                        let over = Arc::new(Event::new());
                        state.entries.insert(key, CacheEntry::Loading(over.clone()));
                        Ok(over)
                    }
                }
            };
            match over {
                Err(over) => over.wait()?,
                Ok(over) => {
                    let loading = Loading { cache: self, key, over };
                    let read = self.store.get(object).map_err(|error| of_store(&error))?;
                    let value: T = postcard::from_bytes(&read)
                        .map_err(|error| Kinded(FailureKind::Codec { message: error.to_string() }))?;
                    drop(read);
                    let value = Arc::new(value);
                    // Values are dropped without the lock: their destructors may do anything.
                    let evicted = self.keep(key, value.clone(), bytes);
                    drop(loading);
                    drop(evicted);
                    return Ok(value);
                }
            }
        };
        value.downcast().map_err(|_| Error::other("the cache holds another type under this one"))
    }

    /// Makes a loaded value present, and says what had to go.
    fn keep(&self, key: Key, value: Value, bytes: u64) -> Vec<Value> {
        let mut evicted = Vec::new();
        if bytes > self.limit {
            return evicted;
        }
        let mut state = self.lock();
        let used_at = state.tick();
        // A token names the size, and may have come from anywhere.
        state.used = state.used.saturating_add(bytes);
        state.entries.insert(key, CacheEntry::Present { value, bytes, used_at });
        while state.used > self.limit {
            let oldest = state.entries.iter().filter_map(|(key, entry)| match entry {
                CacheEntry::Present { used_at, .. } => Some((*used_at, *key)),
                CacheEntry::Loading(_) => None,
            });
            let Some((_, oldest)) = oldest.min_by_key(|(used_at, _)| *used_at) else { break };
            if let Some(CacheEntry::Present { value, bytes, .. }) = state.entries.remove(&oldest) {
                state.used = state.used.saturating_sub(bytes);
                evicted.push(value);
            }
        }
        evicted
    }
}

impl CacheState {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

/// What a task fails with if the store fails it.
pub(crate) fn of_store(error: &StoreError) -> Error {
    match error {
        StoreError::Cancelled => Cancelled::new().into(),
        error => Kinded(FailureKind::Store { message: error.to_string() }).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use forebear::spawn;

    use super::*;

    /// Counts the reads. The first read of an object waits for its gate.
    #[derive(Default)]
    struct Counted {
        objects: Mutex<HashMap<ObjectId, Arc<[u8]>>>,
        reads: AtomicUsize,
        reading: Event,
        gate: Event,
    }

    impl ObjectStore for Counted {
        fn put(&self, object: ObjectId, bytes: Arc<[u8]>) -> Result<(), StoreError> {
            self.objects.lock().unwrap().insert(object, bytes);
            Ok(())
        }

        fn get(&self, object: ObjectId) -> Result<Arc<[u8]>, StoreError> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.reading.set();
            self.gate.wait().map_err(|_| StoreError::Cancelled)?;
            self.objects.lock().unwrap().get(&object).cloned().ok_or(StoreError::Missing)
        }

        fn delete(&self, object: ObjectId) {
            self.objects.lock().unwrap().remove(&object);
        }
    }

    fn object(n: u64) -> ObjectId {
        ObjectId::put(1, n)
    }

    /// A cache of so many bytes over objects of four bytes, whose gate is open or not.
    fn cache(limit: u64, open: bool) -> (Arc<Counted>, Arc<Cache>) {
        let store = Arc::new(Counted::default());
        for n in 0..9 {
            let bytes = postcard::to_stdvec(&vec![n as u8; 3]).unwrap();
            store.put(object(n), bytes.into()).unwrap();
        }
        if open {
            store.gate.set();
        }
        (store.clone(), Arc::new(Cache::new(store, limit)))
    }

    fn get(cache: &Cache, n: u64) -> Result<Arc<Vec<u8>>, Error> {
        cache.get(object(n), 4)
    }

    #[test]
    fn what_is_used_least_recently_goes_when_the_cache_is_full() {
        let (store, cache) = cache(8, true);
        for n in [0, 1, 0, 2, 0, 0] {
            assert_eq!(*get(&cache, n).unwrap(), vec![n as u8; 3]);
        }
        assert_eq!(store.reads.load(Ordering::Relaxed), 3, "0 was used between");
        get(&cache, 1).unwrap();
        assert_eq!(store.reads.load(Ordering::Relaxed), 4, "1 had to go");
        assert_eq!(cache.lock().used, 8);
        assert!(
            cache.get::<Vec<u8>>(object(3), 9).is_ok(),
            "what is larger than the cache is read, and not kept"
        );
        assert_eq!(cache.lock().used, 8);
    }

    #[test]
    fn a_size_that_no_value_has_is_counted_without_an_overflow() {
        let (store, cache) = cache(u64::MAX, true);
        for n in [1, 2, 1, 2] {
            assert_eq!(*cache.get::<Vec<u8>>(object(n), u64::MAX).unwrap(), vec![n as u8; 3]);
        }
        assert_eq!((cache.lock().used, store.reads.load(Ordering::Relaxed)), (u64::MAX, 2));
    }

    #[test]
    fn an_object_is_read_once_however_many_ask_for_it() {
        let (store, cache) = cache(8, false);
        let all: Vec<_> = (0..5)
            .map(|_| {
                let cache = cache.clone();
                spawn(move || get(&cache, 7).unwrap())
            })
            .collect();
        store.reading.wait().unwrap();
        store.gate.set();
        for one in all {
            assert_eq!(*one.take().unwrap(), [7, 7, 7]);
        }
        assert_eq!(store.reads.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_loader_that_is_cancelled_holds_nobody_up() {
        let (store, cache) = cache(8, false);
        let its = cache.clone();
        let loader = spawn(move || get(&its, 7).map(|_| ()).unwrap_err().is_cancelled());
        store.reading.wait().unwrap();
        store.reading.reset();
        let its = cache.clone();
        let second = spawn(move || get(&its, 7).unwrap());
        loader.cancel();
        store.reading.wait().unwrap();
        store.gate.set();
        assert_eq!(*second.take().unwrap(), [7, 7, 7]);
    }

    #[test]
    fn what_is_not_there_or_is_another_type_is_an_error_and_is_not_kept() {
        let (store, cache) = cache(8, true);
        for _ in 0..2 {
            let missing = get(&cache, 99).unwrap_err();
            assert!(matches!(missing.downcast_ref(), Some(Kinded(FailureKind::Store { .. }))), "{missing}");
            let other = cache.get::<[String; 9]>(object(1), 4).unwrap_err();
            assert!(matches!(other.downcast_ref(), Some(Kinded(FailureKind::Codec { .. }))), "{other}");
        }
        assert_eq!(store.reads.load(Ordering::Relaxed), 4);
        assert!(get(&cache, 1).is_ok());
        assert!(cache.lock().entries.len() == 1);
    }
}
