//! [`Snapshot`]: a value behind a lock, as a state.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebear::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CopiedState, SavedSections, SectionError, Sections, State};

/// The one section of a snapshot.
const SECTION: &str = "value";

/// A value behind a lock, as the state of a job. A save clones it, and writes the clone by serde while the job continues.
///
/// The lock is held only during a closure or a clone. The closures must not wait.
///
/// # What serde attributes break
///
/// The bytes are those of the crate `postcard`, which writes the fields one after another, without their names. A restore reads them in the order of the type. So a
/// type must write the same fields whatever their values are, and read them without looking ahead:
///
/// * `skip_serializing_if` leaves a field out that a restore expects: remove it. `skip` is right.
/// * `untagged`, `tag` (also with `content`) and `flatten` need a format with names: write an enum without them, or fields of the struct's own.
/// * A field that was added, removed or moved makes earlier files unreadable, or makes them mean something else; `default` does not help. Raise the schema number.
///
/// The first save of each snapshot decodes what it has encoded, so that such a type is an error then ([`SectionError::UnsupportedType`]) and not at the first restart.
/// It checks one value: with `skip_serializing_if` another one may be the first that cannot be read. It needs memory for the bytes and one more value.
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
    /// A save of this process has read back what it has written. Shared with the copies.
    reads_back: Arc<AtomicBool>,
}

impl<T> Snapshot<T> {
    /// A state with this value. `schema`: a number of your choice, which you change with the meaning of `T`.
    pub fn new(schema: u64, value: T) -> Self {
        Snapshot { schema, value: Mutex::new(value), reads_back: Arc::default() }
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
        put(&value, &self.reads_back, out)
    }

    fn restore(&self, from: &SavedSections) -> Result<(), Error> {
        let value = from.get(SECTION)?;
        self.set(value);
        Ok(())
    }

    fn copy(&self) -> Option<Box<dyn CopiedState>> {
        let (value, reads_back) = (self.get(), self.reads_back.clone());
        Some(Box::new(move |out: &mut Sections<'_>| put(&value, &reads_back, out)))
    }
}

/// Writes the value: the first time in one piece, which is decoded before, then without a copy of the bytes.
fn put<T: Serialize + DeserializeOwned>(
    value: &T,
    reads_back: &AtomicBool,
    out: &mut Sections<'_>,
) -> Result<(), Error> {
    if reads_back.load(Ordering::Relaxed) {
        return out.put(SECTION, value);
    }
    let failed = |source| SectionError::UnsupportedType { section: SECTION.to_owned(), source };
    let bytes = postcard::to_stdvec(value).map_err(failed)?;
    let read = postcard::take_from_bytes::<T>(&bytes).and_then(|(_, rest)| match rest {
        [] => Ok(()),
        _ => Err(postcard::Error::SerdeDeCustom),
    });
    read.map_err(failed)?;
    out.put_bytes(SECTION, &bytes)?;
    reads_back.store(true, Ordering::Relaxed);
    Ok(())
}

impl<T: fmt::Debug> fmt::Debug for Snapshot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("schema", &self.schema).field("value", &*self.lock()).finish()
    }
}
