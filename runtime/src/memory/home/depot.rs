//! The depot: what the homes of one runtime share, and what becomes of homes whose threads are gone.

use std::ptr::NonNull;
use std::sync::PoisonError;

use forebear_context::shim::atomic::Ordering;
use forebear_context::shim::{Arc, Mutex};

use super::end::{Late, end_on, release_if_done};
use super::stock::Stock;
use super::{Home, closed_mark};
use crate::shared::Shared;

/// What homes of a runtime share.
#[derive(Default)]
pub(crate) struct Depot {
    state: Mutex<DepotState>,
    /// Memory that no home has.
    pub(crate) stock: Stock,
    /// Held by whoever works for closed homes.
    pub(super) closed: Mutex<()>,
}

#[derive(Default)]
struct DepotState {
    /// Homes whose thread is gone.
    spare: Vec<NonNull<Home>>,
    homes: Vec<NonNull<Home>>,
    /// The runtime is over: homes are closed, not spared.
    closing: bool,
}

// SAFETY: the homes belong to the depot; each is touched by its one owner, and passes through the lock.
unsafe impl Send for DepotState {}

impl Depot {
    /// A home for a foreign thread: a spare one, or a new one.
    pub(crate) fn open(&self, shared: &Arc<Shared>) -> NonNull<Home> {
        let spare = self.state.lock().unwrap_or_else(PoisonError::into_inner).spare.pop();
        spare.unwrap_or_else(|| self.open_for(shared, u32::MAX))
    }

    /// The home of worker number `worker`.
    pub(crate) fn open_for(&self, shared: &Arc<Shared>, worker: u32) -> NonNull<Home> {
        let home = NonNull::from(Box::leak(Box::new(Home::new(shared, worker))));
        self.state.lock().unwrap_or_else(PoisonError::into_inner).homes.push(home);
        home
    }

    /// A foreign thread ends: its home is kept for the next, unless the runtime is over.
    ///
    /// # Safety
    ///
    /// The caller is the owner, and is not any more afterwards; it holds a count of the record.
    pub(crate) unsafe fn leave(&self, home: NonNull<Home>) {
        // SAFETY: by contract.
        unsafe { home.as_ref() }.give_all();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closing {
            drop(state);
            // SAFETY: by contract.
            unsafe { self.close(home) };
        } else {
            state.spare.push(home);
        }
    }

    /// The runtime is over: closes the spare homes, and from now on every home that is left.
    pub(crate) fn close_spare(&self) {
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.closing = true;
            let spare = state.spare.pop();
            drop(state);
            match spare {
                // SAFETY: a spare home has no owner but the lock it was popped under.
                Some(home) => unsafe { self.close(home) },
                None => return,
            }
        }
    }

    /// The homes of foreign threads, spare ones too. Valid as long as the record.
    pub(crate) fn foreign(&self) -> Vec<NonNull<Home>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: made by `open_for`, freed with the depot.
        state.homes.iter().copied().filter(|home| unsafe { home.as_ref() }.is_foreign()).collect()
    }

    /// Whether the runtime is over and its threads are gone.
    pub(crate) fn is_closing(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closing
    }

    /// Closes a home: from now on the end of its headers is worked by whoever brings it.
    ///
    /// # Safety
    ///
    /// The caller is the owner, and holds a count of the runtime's record.
    pub(crate) unsafe fn close(&self, home: NonNull<Home>) {
        // Dropped after the lock.
        let late = Late::default();
        let guard = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: by contract.
        let home = unsafe { home.as_ref() };
        // One header more, so that the home cannot be done while its returns are being worked.
        home.large.set(home.large.get() + 1);
        let mut at = home.returns.0.swap(closed_mark(), Ordering::AcqRel);
        while let Some(header) = NonNull::new(at) {
            // SAFETY: M2; M1 by the lock.
            unsafe {
                at = header.as_ref().next_return();
                end_on(home, header, Some(&late));
            }
        }
        home.large.set(home.large.get() - 1);
        release_if_done(home, true);
        drop(guard);
    }
}

impl Drop for Depot {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for home in state.homes.drain(..) {
            // SAFETY: made by `open`; the record goes only when every home has let go of it.
            drop(unsafe { Box::from_raw(home.as_ptr()) });
        }
    }
}
