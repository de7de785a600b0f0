//! The depot: what the arenas of one runtime share, and what becomes of arenas whose threads are gone.
//!
//! # States of an arena
//!
//! | state | owner (M1) | `returns` |
//! |---|---|---|
//! | in use | the worker, or the foreign thread that has opened it | a list |
//! | spare | the thread that pops it under the depot's lock | a list |
//! | closed, for good | the holder of the lock `closed` | the mark |
//!
//! A foreign thread that exits makes its arena spare, or closes it if the runtime is over. The end of the runtime closes the spare arenas and those of the workers.
//! The memory of all arenas goes with the depot, so a pointer to an arena is valid as long as the runtime's record.
//!
//! # The races
//!
//! *A thread that leaves against the end of the runtime.* Both take the depot's lock. Either the thread finds `closing` set, and closes its arena itself; or
//! its arena is among the spare ones when [`close_spare`](Depot::close_spare) takes them out.
//!
//! *A thread that leaves against a thread that returns what keeps an error.* See *The races* in the head of [`end`](mod@super::end).
//!
//! *A close against its own last header.* The closer works off the returns, and the last of them would let the record go (M3). So the closer counts one cell more
//! until it has finished.

use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use forebear_context::shim::Mutex;
use forebear_context::shim::atomic::Ordering;

use super::end::{Late, end_on, release_if_done};
use super::stock::Stock;
use super::{Arena, closed_mark};
use crate::record::runtime::RuntimeRecord;

/// What arenas of a runtime share.
#[derive(Default)]
pub(crate) struct Depot {
    state: Mutex<DepotState>,
    /// Memory that no arena has.
    pub(crate) stock: Stock,
    /// Held by a thread that works for closed arenas.
    pub(super) closed: Mutex<()>,
}

#[derive(Default)]
struct DepotState {
    /// Arenas whose thread is gone.
    spare: Vec<NonNull<Arena>>,
    arenas: Vec<NonNull<Arena>>,
    /// The runtime is over: arenas are closed, not spared.
    closing: bool,
}

// SAFETY: the arenas belong to the depot; each is touched by its one owner, and passes through the lock.
unsafe impl Send for DepotState {}

impl Depot {
    /// An arena for a foreign thread: a spare one, or a new one. `runtime` is whose depot this is.
    ///
    /// # Safety
    ///
    /// RR1; the caller has a count of the record.
    pub(crate) unsafe fn open(&self, runtime: NonNull<RuntimeRecord>) -> NonNull<Arena> {
        let spare = self.state.lock().unwrap_or_else(PoisonError::into_inner).spare.pop();
        // SAFETY: by contract.
        spare.unwrap_or_else(|| unsafe { self.open_for(runtime, u32::MAX) })
    }

    /// The arena of worker number `worker`.
    ///
    /// # Safety
    ///
    /// As [`open`](Self::open).
    pub(crate) unsafe fn open_for(&self, runtime: NonNull<RuntimeRecord>, worker: u32) -> NonNull<Arena> {
        // SAFETY: by contract.
        let arena = NonNull::from(Box::leak(Box::new(unsafe { Arena::new(runtime, worker) })));
        self.state.lock().unwrap_or_else(PoisonError::into_inner).arenas.push(arena);
        arena
    }

    /// A foreign thread ends: its arena is kept for the next, unless the runtime is over. Destructors of the user's may be called.
    ///
    /// # Safety
    ///
    /// The caller is the owner, and is not any more afterwards; it holds a count of the record.
    pub(crate) unsafe fn leave(&self, arena: NonNull<Arena>) {
        if !self.is_closing() {
            // To the other threads. If the runtime is over, no thread takes any, and the rest of a first chunk need not be cut.
            // SAFETY: by contract.
            unsafe { arena.as_ref() }.give_all();
        }
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.closing {
                drop(state);
                // SAFETY: by contract.
                return unsafe { self.close(arena) };
            }
            // SAFETY: by contract.
            if !unsafe { arena.as_ref() }.has_returns() {
                state.spare.push(arena);
                return;
            }
            drop(state);
            // SAFETY: by contract.
            unsafe { arena.as_ref() }.drain_returns();
        }
    }

    /// Takes in what was returned to the arena, if it is spare, as its owner for that long. False: it is not, so it has another owner.
    pub(crate) fn take_in_spare(&self, arena: &Arena) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let found = state.spare.iter().position(|spare| ptr::eq(spare.as_ptr(), arena));
        let Some(spare) = found.map(|at| state.spare.swap_remove(at)) else { return false };
        drop(state);
        arena.drain_returns();
        // SAFETY: this thread has just taken it; the caller has a count of the record.
        unsafe { self.leave(spare) };
        true
    }

    /// The runtime is over: closes the spare arenas, and from now on every arena that is left.
    pub(crate) fn close_spare(&self) {
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.closing = true;
            let spare = state.spare.pop();
            drop(state);
            match spare {
                // SAFETY: a spare arena has no owner but the lock it was popped under.
                Some(arena) => unsafe { self.close(arena) },
                None => return,
            }
        }
    }

    /// The arenas of foreign threads, spare ones too. Valid as long as the record.
    pub(crate) fn foreign(&self) -> Vec<NonNull<Arena>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: made by `open_for`, freed with the depot.
        state.arenas.iter().copied().filter(|arena| unsafe { arena.as_ref() }.is_foreign()).collect()
    }

    /// How many requests foreign threads have run on their own stacks.
    pub(crate) fn direct(&self) -> u64 {
        // SAFETY: as above.
        self.foreign().iter().map(|arena| unsafe { arena.as_ref() }.direct.get()).sum()
    }

    /// Whether the runtime is over and its threads are gone.
    pub(crate) fn is_closing(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closing
    }

    /// Closes an arena: from now on the thread that brings a header's end does its work.
    ///
    /// # Safety
    ///
    /// The caller is the owner, and holds a count of the runtime's record.
    pub(crate) unsafe fn close(&self, arena: NonNull<Arena>) {
        // Dropped after the lock.
        let late = Late::default();
        let guard = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: by contract.
        let arena = unsafe { arena.as_ref() };
        // One header more, so that the arena cannot be done while its returns are being worked.
        arena.large.set(arena.large.get() + 1);
        let mut at = arena.returns.list.swap(closed_mark(), Ordering::AcqRel);
        while let Some(header) = NonNull::new(at) {
            // SAFETY: M2: the header is in the list of returns, so its memory is there.
            at = unsafe { header.as_ref() }.next_return();
            // SAFETY: M1 by the lock; only the list of returns knew the header.
            unsafe { end_on(arena, header, true, &late) };
        }
        arena.large.set(arena.large.get() - 1);
        release_if_done(arena, true);
        drop(guard);
    }
}

impl Drop for Depot {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for arena in state.arenas.drain(..) {
            // SAFETY: made by `open`; the record goes only when every arena has released it.
            drop(unsafe { Box::from_raw(arena.as_ptr()) });
        }
    }
}
