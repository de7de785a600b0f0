//! Memory that is to be freed later: memory of requests that ended while somebody looked at the stacks of threads that go on.
//!
//! Who names laggards ([`crate::api::runtime`]) reads requests that may end under his eyes. While anybody looks, the memory of what
//! ends is not given back: a header of the free lists stays a header, since no chunk of cells goes or changes its class then
//! (`record/arena/stock.rs`); large ones, and side blocks, are deferred until the last look is over. So a reader may see what is out of
//! date, never what is gone.
//!
//! # Invariants
//!
//! * **GV1** Who looks says so, then passes a fence, then reads the first pointer. Who frees has taken the request off its
//!   stack, then passes a fence, then asks whether anybody looks. (Nearly all is freed while nobody looks, so the fence is one of which the looker pays
//!   all, [`crate::state::asymmetric`], where there is one.) So one of them sees the other: what is freed was off its
//!   stack when the look began.
//! * **GV2** Where there is no such fence, or none any more, the count of looks has the bit [`PAY`], for good. Who frees and finds the
//!   count not zero passes a fence of its own and reads the count again. The bit is set before the first runtime starts, or
//!   by a looker that has paid once more and still is counted. So nobody reads zero after that looker has begun.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::PoisonError;

use forebear_context::error::internal::drop_contained;
use forebear_context::shim::atomic::{AtomicUsize, Ordering, fence};
use forebear_context::shim::{Mutex, MutexGuard};

use crate::record::fiber;
use crate::record::side::{self, Side};
use crate::shared::thread;
use crate::state::asymmetric;

/// How many look, in all runtimes: a stack may hold requests of several.
static READERS: AtomicUsize = AtomicUsize::new(0);
/// In [`READERS`]: a thread that frees memory passes a fence of its own (GV2).
const PAY: usize = 1 << (usize::BITS - 1);
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
            // Under the lock: who defers looks again there.
            if READERS.fetch_sub(1, Ordering::AcqRel) & !PAY == 1 {
                let deferred_now = std::mem::take(&mut *deferred);
                drop(deferred);
                drop(deferred_now);
            }
        }
    }
    let pays = READERS.fetch_add(1, Ordering::AcqRel) & PAY == 0;
    let _over = Over;
    // GV1.
    if pays {
        asymmetric::heavy();
        settle_who_pays();
    } else {
        fence(Ordering::SeqCst);
    }
    read()
}

/// GV2. By the first runtime, before it starts; and by a looker that has paid.
pub(crate) fn settle_who_pays() {
    if !asymmetric::is_available() {
        READERS.fetch_or(PAY, Ordering::AcqRel);
    }
}

/// Whether what has gone off its stack may be seen by somebody all the same.
pub(crate) fn has_readers() -> bool {
    // GV1.
    asymmetric::light();
    READERS.load(Ordering::Acquire) > 0 && has_readers_now()
}

#[cold]
fn has_readers_now() -> bool {
    // GV2.
    fence(Ordering::SeqCst);
    READERS.load(Ordering::Acquire) & !PAY > 0
}

/// Keeps everybody else from deferring, and from the end of a look.
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

/// In a forked child nobody looks: who did is not there to say that it is over, and all would be deferred for ever. What has been deferred goes
/// with the next look.
pub(crate) fn forget(_: &mut HeldReclaim) {
    READERS.fetch_and(PAY, Ordering::Relaxed);
}

/// How many cells are deferred.
#[cfg(test)]
pub(crate) fn cells() -> usize {
    lock().cells.len()
}

/// Frees a side block that nobody needs any more, at once or later. What others own in it goes now.
///
/// Where nothing of the user's may run it goes later, if others own anything in it: see [`thread::keep_for_later`] and `schedule/worker/marks.rs`.
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
    match fiber::get().map(|fiber| (fiber, fiber.worker())) {
        Some((fiber, Some(worker))) if worker.holds_back(fiber) => return worker.drop_later(side),
        Some((_, None)) if thread::is_in_a_wait() => return thread::keep_for_later(side),
        _ => {}
    }
    if !has_readers() {
        side::free(side);
        return;
    }
    let owned = (side.failure.get_mut().take(), std::mem::take(&mut side.callbacks));
    lock().sides.push(side);
    drop_contained(owned);
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
