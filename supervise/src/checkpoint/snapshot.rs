//! [`Snapshot`]: a value behind a lock, as a state.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebear::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CopiedState, SavedSections, Sections, State};

/// The one section of a snapshot.
const SECTION: &str = "value";

/// A value behind a lock, as the state of a job. A save clones it, and writes the clone by serde while the job continues.
///
/// The lock is held only during a closure or a clone. The closures must not wait.
///
/// ```
/// use forebear_supervise::Snapshot;
///
/// let state = Snapshot::new(1, vec![1_u64]);
/// assert_eq!(state.update(|values| values.pop()), Some(1));
/// state.set(vec![2, 3]);
/// assert_eq!(state.get(), [2, 3]);
/// ```
pub struct Snapshot<T> {
    schema: u64,
    value: Mutex<T>,
}

impl<T> Snapshot<T> {
    /// A state with this value. `schema`: a number of your choice, which you change with the meaning of `T`.
    pub fn new(schema: u64, value: T) -> Self {
        Snapshot { schema, value: Mutex::new(value) }
    }

    /// A clone of the value.
    pub fn get(&self) -> T
    where
        T: Clone,
    {
        self.lock().clone()
    }

    /// Replaces the value.
    pub fn set(&self, value: T) {
        let old = std::mem::replace(&mut *self.lock(), value);
        drop(old);
    }

    /// Changes the value in place. `f` must not wait, nor use this snapshot.
    pub fn update<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        // A closure that has panicked half-way has left what it has left: as with any value that it could reach.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Serialize + DeserializeOwned + Clone + Send + 'static> State for Snapshot<T> {
    fn schema(&self) -> u64 {
        self.schema
    }

    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
        let value = self.get();
        out.put(SECTION, &value)
    }

    fn restore(&self, from: &SavedSections) -> Result<(), Error> {
        let value = from.get(SECTION)?;
        self.set(value);
        Ok(())
    }

    fn copy(&self) -> Option<Box<dyn CopiedState>> {
        let value = self.get();
        Some(Box::new(move |out: &mut Sections<'_>| out.put(SECTION, &value)))
    }
}

impl<T: fmt::Debug> fmt::Debug for Snapshot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("schema", &self.schema).field("value", &*self.lock()).finish()
    }
}
