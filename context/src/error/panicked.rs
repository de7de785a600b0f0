//! The payload of a panic, shared by all waiters.
//!
//! A payload is only `Send`: one thread at a time may touch it. So it stands behind a lock, and its message,
//! if it is text, is copied out before it is shared. There are two ways to the payload itself, and each
//! shuts the other:
//!
//! | state | [`take`](Panicked::take) | [`lend`](Panicked::lend) as the right type | as another type |
//! | --- | --- | --- | --- |
//! | *there* | moves it out: *taken* | moves it to where it stays: *lent* | nothing |
//! | *lent* | nothing | lends it | nothing |
//! | *taken* | nothing | nothing | nothing |
//!
//! A reference that was lent lives as long as the failure, so a payload that was ever lent cannot be taken any more.
//! This needs no `unsafe`. To lend, the box is downcast to a type known to be `Sync`, and moved, under the lock, to a
//! cell that is written once. Only the content of that cell is lent. The cell is std's, because loom has none of its
//! kind. It is accessed under the lock only, which is the shim's.

use std::any::Any;
use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{OnceLock, PoisonError};

use crate::context::user_code;
use crate::shim::{Mutex, MutexGuard};

/// The panic of a request. As an error it is its message.
pub(super) struct Panicked {
    message: Cow<'static, str>,
    there: Mutex<Option<Contained<Box<dyn Any + Send>>>>,
    lent: OnceLock<Contained<Box<dyn Any + Send + Sync>>>,
}

impl Panicked {
    pub(super) fn new(payload: Box<dyn Any + Send>) -> Self {
        let message = if let Some(text) = payload.downcast_ref::<&'static str>() {
            Cow::Borrowed(*text)
        } else if let Some(text) = payload.downcast_ref::<String>() {
            Cow::Owned(text.clone())
        } else {
            Cow::Borrowed("(non-string payload)")
        };
        Panicked { message, there: Mutex::new(Some(Contained::new(payload))), lent: OnceLock::new() }
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// The payload, unless it is taken or lent.
    pub(super) fn take(&self) -> Option<Box<dyn Any + Send>> {
        self.lock().take()?.into_inner()
    }

    /// The payload as a `P`, from now on never to be taken.
    pub(super) fn lend<P: Any + Send + Sync>(&self) -> Option<&P> {
        let mut there = self.lock();
        if let Some(payload) = there.take().and_then(Contained::into_inner) {
            match payload.downcast::<P>() {
                // Cannot be set already: a payload that is still *there* was never lent.
                Ok(payload) => drop(self.lent.set(Contained::new(payload))),
                Err(payload) => *there = Some(Contained::new(payload)),
            }
        }
        self.lent.get()?.get()?.downcast_ref()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Contained<Box<dyn Any + Send>>>> {
        // Nothing panics while it is held; and what it guards is whole at every moment.
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.message)
    }
}

impl fmt::Debug for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Panicked").field(&self.message).finish()
    }
}

impl StdError for Panicked {}

/// Drops `value`; a panic of its destructor ends here, and what it carried is dropped. The hook has seen that panic.
///
/// Should the destructor of what it carried panic as well, what that panic carried is forgotten.
pub fn drop_contained<T>(value: T) {
    user_code();
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        discard(payload);
    }
}

/// Apart from [`drop_contained`], so that this stays small enough to be inlined.
#[cold]
#[inline(never)]
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(next);
    }
}

/// Drops each of these, whatever the destructors of the others do. The first panic comes out when all have been dropped; the others end here, and so
/// does the first while the thread unwinds already.
///
/// A collection that drops its items itself ends the process at the second panic.
pub fn drop_each<T>(items: impl IntoIterator<Item = T>) {
    user_code();
    let mut first = None;
    for item in items {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(item))) {
            match first {
                None => first = Some(payload),
                Some(_) => drop_contained(payload),
            }
        }
    }
    match first {
        Some(payload) if std::thread::panicking() => drop_contained(payload),
        Some(payload) => resume_unwind(payload),
        None => {}
    }
}

/// A collection of a user's values, which drops what is in it by [`drop_each`].
#[derive(Debug, Default)]
pub struct Each<C: Default + IntoIterator>(pub C);

impl<C: Default + IntoIterator> Each<C> {
    /// The collection.
    pub fn take(&mut self) -> C {
        std::mem::take(&mut self.0)
    }
}

impl<C: Default + IntoIterator> Deref for Each<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.0
    }
}

impl<C: Default + IntoIterator> DerefMut for Each<C> {
    fn deref_mut(&mut self) -> &mut C {
        &mut self.0
    }
}

impl<C: Default + IntoIterator> Drop for Each<C> {
    fn drop(&mut self) {
        drop_each(self.take());
    }
}

/// A value whose destructor cannot unwind into the code that happens to drop the last handle. Empty only while it
/// is moved out or dropped.
pub(super) struct Contained<T>(Option<T>);

impl<T> Contained<T> {
    pub(super) fn new(value: T) -> Self {
        Contained(Some(value))
    }

    pub(super) fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }

    fn into_inner(mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            drop_contained(value);
        }
    }
}
