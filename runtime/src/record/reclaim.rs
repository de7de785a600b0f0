//! Deferred reclamation: memory of requests that ended while a *reader* read the stacks of threads that keep running.
//!
//! A reader, such as a thread that names laggards ([`crate::api::runtime`]), reads requests that may end meanwhile. While there is a reader,
//! the memory of an ended request is not freed. A header on a free list stays a header, since no chunk of cells is freed or changes its class
//! (`record/arena/stock.rs`). Large cells and side blocks are deferred until the last reader leaves. So a reader may read old state, never
//! freed memory.
//! The invariants GV1 and GV2 are in the head of [`readers`].

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::PoisonError;

use forebear_context::error::internal::drop_contained;
use forebear_context::shim::{Mutex, MutexGuard};

use crate::record::above::above;
use crate::record::fiber;
use crate::record::readers::{self, has_readers};
use crate::record::side::{self, Side};

static DEFERRED: Mutex<Deferred> = Mutex::new(Deferred { sides: Vec::new(), cells: Vec::new() });

#[derive(Default)]
struct Deferred {
    #[allow(clippy::vec_box, reason = "they must stay where they are")]
    sides: Vec<Box<Side>>,
    cells: Vec<(NonNull<u8>, Layout)>,
}

// SAFETY: what is deferred belongs to nobody else.
unsafe impl Send for Deferred {}

impl Drop for Deferred {
    fn drop(&mut self) {
        for (cell, layout) in self.cells.drain(..) {
            // SAFETY: deferred with this layout, by its last owner.
            unsafe { std::alloc::dealloc(cell.as_ptr(), layout) };
        }
    }
}

fn lock() -> MutexGuard<'static, Deferred> {
    DEFERRED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `look`; no memory of requests is given back meanwhile.
pub(crate) fn read_section<R>(read: impl FnOnce() -> R) -> R {
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            let mut deferred = lock();
            // Under the lock: a thread that defers checks again there.
            if readers::leave() {
                let deferred_now = std::mem::take(&mut *deferred);
                drop(deferred);
                drop(deferred_now);
            }
        }
    }
    let pays = readers::enter();
    let _over = Over;
    readers::look_begins(pays);
    read()
}

/// Keeps other threads from deferring, and from ending a read section.
#[derive(Debug)]
pub(crate) struct HeldReclaim {
    _deferred: MutexGuard<'static, Deferred>,
}

impl std::fmt::Debug for Deferred {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deferred").finish_non_exhaustive()
    }
}

/// Holds the memory that is to be freed later over a fork.
pub(crate) fn hold() -> HeldReclaim {
    HeldReclaim { _deferred: lock() }
}

/// In a forked child there is no read section: the thread of the parent's section is not there to end it, and everything would be deferred for
/// ever. What has been deferred goes with the next look.
pub(crate) fn forget(_: &mut HeldReclaim) {
    readers::forget();
}

/// How many cells are deferred.
#[cfg(test)]
pub(crate) fn cells() -> usize {
    lock().cells.len()
}

/// Frees a side block that nobody needs any more, at once or later. What others own in it goes now.
///
/// Where nothing of the user's may run it goes later, if others own anything in it: see [`keep_for_later`](crate::shared::thread::keep_for_later) and `schedule/worker/marks.rs`.
pub(crate) fn free_side(mut side: Box<Side>) {
    if side.owns() {
        free_owning(side);
    } else if has_readers() {
        lock().sides.push(side);
    } else {
        side::free_plain(side);
    }
}

/// The same for a block in which others own something: nearly none.
#[cold]
#[inline(never)]
fn free_owning(mut side: Box<Side>) {
    if let Some(fiber) = fiber::get() {
        match (above().keep_for_later)(fiber, side) {
            Some(now) => side = now,
            None => return,
        }
    }
    if !has_readers() {
        side::free(side);
        return;
    }
    let owned = (side.failure.get_mut().take(), std::mem::take(&mut side.callbacks));
    lock().sides.push(side);
    drop_contained(owned);
}

/// The same for a block in which others own something: on a worker its loop does it, on another thread the caller.
pub(crate) fn leave_side(side: Box<Side>) {
    let left = match fiber::get() {
        Some(fiber) => (above().leave_to_loop)(fiber, side),
        None => Some(side),
    };
    left.into_iter().for_each(free_side);
}

/// Frees a large cell, at once or later.
///
/// # Safety
///
/// It was allocated with this layout, and is the caller's.
pub(crate) unsafe fn free_cell(cell: NonNull<u8>, layout: Layout) {
    if has_readers() {
        lock().cells.push((cell, layout));
    } else {
        // SAFETY: by contract.
        unsafe { std::alloc::dealloc(cell.as_ptr(), layout) };
    }
}
