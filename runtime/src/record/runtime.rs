//! What the records need of the runtime that they belong to. The runtime's own record contains this one ([`crate::shared::Shared`]); a record
//! leads to its runtime by a pointer to it.
//!
//! # Invariants
//!
//! * **RR1** Each of them is a part of a [`Shared`](crate::shared::Shared) that lies in an `Arc`.

use std::ptr::NonNull;

use forebear_pool::Signals;

use crate::record::arena::Depot;
use crate::record::hooks::Hooks;

/// See the module head.
pub(crate) struct RuntimeRecord {
    pub depot: Depot,
    pub signals: Signals,
    pub hooks: Hooks,
    /// Whether other threads drive its workers, which have none of their own.
    pub is_driven: bool,
    /// How counts of the whole record are taken and given back.
    pub counts: Counts,
}

/// See the field.
pub(crate) struct Counts {
    /// One more.
    ///
    /// # Safety
    ///
    /// RR1; the caller has a count, or another owner keeps one meanwhile.
    pub take: unsafe fn(NonNull<RuntimeRecord>),
    /// One less. The record goes with the last.
    ///
    /// # Safety
    ///
    /// RR1; the count is the caller's.
    pub give_back: unsafe fn(NonNull<RuntimeRecord>),
}

/// A count of a runtime's record.
pub(crate) struct KeptRuntime(NonNull<RuntimeRecord>);

impl KeptRuntime {
    /// One more count.
    ///
    /// # Safety
    ///
    /// RR1; there is a count that somebody keeps meanwhile.
    pub(crate) unsafe fn new(runtime: NonNull<RuntimeRecord>) -> KeptRuntime {
        // SAFETY: RR1: the record begins a whole one, whose counts these are; a count is kept meanwhile, so it is there.
        let take = unsafe { runtime.as_ref() }.counts.take;
        // SAFETY: as above.
        unsafe { take(runtime) };
        KeptRuntime(runtime)
    }

    /// It is given back by [`from_raw`](Self::from_raw).
    pub(crate) fn into_raw(self) -> NonNull<RuntimeRecord> {
        std::mem::ManuallyDrop::new(self).0
    }

    /// Takes over a count that was turned into a pointer.
    ///
    /// # Safety
    ///
    /// It came from [`into_raw`](Self::into_raw), and has not been given back.
    pub(crate) unsafe fn from_raw(runtime: NonNull<RuntimeRecord>) -> KeptRuntime {
        KeptRuntime(runtime)
    }

    /// The record.
    pub(crate) fn get(&self) -> &RuntimeRecord {
        // SAFETY: the count.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for KeptRuntime {
    fn drop(&mut self) {
        // SAFETY: the count is this one's.
        unsafe { (self.get().counts.give_back)(self.0) };
    }
}
