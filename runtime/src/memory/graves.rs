//! Graves: memory of requests that ended while somebody looked at the stacks of threads that go on.
//!
//! Who names laggards ([`crate::api::runtime`]) reads requests that may end under his eyes. While anybody looks, the memory of what
//! ends is not given back: a header of the free lists stays a header, since no chunk of cells goes or changes its class then
//! (`memory/home/stock.rs`); large ones, and side blocks, are buried until the last look is over. So a reader may see what is out of
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

use crate::foreign;
use crate::record::side::{self, Side};
use crate::stack::strand;
use crate::state::asymmetric;

/// How many look, in all runtimes: a stack may hold requests of several.
static LOOKS: AtomicUsize = AtomicUsize::new(0);
/// In [`LOOKS`]: whoever frees pays a fence of its own (GV2).
const PAY: usize = 1 << (usize::BITS - 1);
static GRAVES: Mutex<Graves> = Mutex::new(Graves { sides: Vec::new(), cells: Vec::new() });

#[derive(Default)]
struct Graves {
    #[allow(clippy::vec_box, reason = "they must stay where they are")]
    sides: Vec<Box<Side>>,
    cells: Vec<(NonNull<u8>, Layout)>,
}

// SAFETY: what is buried belongs to nobody else.
unsafe impl Send for Graves {}

impl Drop for Graves {
    fn drop(&mut self) {
        for (cell, layout) in self.cells.drain(..) {
            // SAFETY: buried with this layout, by its last owner.
            unsafe { std::alloc::dealloc(cell.as_ptr(), layout) };
        }
    }
}

fn lock() -> MutexGuard<'static, Graves> {
    GRAVES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `look`; no memory of requests is given back meanwhile.
pub(crate) fn look<R>(look: impl FnOnce() -> R) -> R {
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            let mut graves = lock();
            // Under the lock: who buries looks again there.
            if LOOKS.fetch_sub(1, Ordering::AcqRel) & !PAY == 1 {
                let graves_now = std::mem::take(&mut *graves);
                drop(graves);
                drop(graves_now);
            }
        }
    }
    let pays = LOOKS.fetch_add(1, Ordering::AcqRel) & PAY == 0;
    let _over = Over;
    // GV1.
    if pays {
        asymmetric::heavy();
        settle_who_pays();
    } else {
        fence(Ordering::SeqCst);
    }
    look()
}

/// GV2. By the first runtime, before it starts; and by a looker that has paid.
pub(crate) fn settle_who_pays() {
    if !asymmetric::is_available() {
        LOOKS.fetch_or(PAY, Ordering::AcqRel);
    }
}

/// Whether what has gone off its stack may be seen by somebody all the same.
pub(crate) fn anybody_looks() -> bool {
    // GV1.
    asymmetric::light();
    LOOKS.load(Ordering::Acquire) > 0 && anybody_looks_now()
}

#[cold]
fn anybody_looks_now() -> bool {
    // GV2.
    fence(Ordering::SeqCst);
    LOOKS.load(Ordering::Acquire) & !PAY > 0
}

/// Keeps everybody else from burying, and from the end of a look.
#[derive(Debug)]
pub(crate) struct Held {
    _graves: MutexGuard<'static, Graves>,
}

impl std::fmt::Debug for Graves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graves").finish_non_exhaustive()
    }
}

/// Holds the graves over a fork.
pub(crate) fn hold() -> Held {
    Held { _graves: lock() }
}

/// In a forked child nobody looks: who did is not there to say that it is over, and all would be buried for ever. What has been buried goes
/// with the next look.
pub(crate) fn forget(_: &mut Held) {
    LOOKS.fetch_and(PAY, Ordering::Relaxed);
}

/// How many cells are buried.
#[cfg(test)]
pub(crate) fn cells() -> usize {
    lock().cells.len()
}

/// Frees a side block that nobody needs any more, at once or later. What others own in it goes now.
///
/// Where nothing of the user's may run it goes later, if others own anything in it: see [`foreign::keep_for_later`] and `schedule/worker/marks.rs`.
pub(crate) fn free_side(mut side: Box<Side>) {
    if side.owns() {
        free_owning(side);
    } else if anybody_looks() {
        lock().sides.push(side);
    } else {
        side::free_plain(side);
    }
}

/// The same for a block in which others own something: nearly none.
#[cold]
#[inline(never)]
fn free_owning(mut side: Box<Side>) {
    match strand::get().map(|strand| (strand, strand.worker())) {
        Some((strand, Some(worker))) if worker.holds_back(strand) => return worker.drop_later(side),
        Some((_, None)) if foreign::is_in_a_wait() => return foreign::keep_for_later(side),
        _ => {}
    }
    if !anybody_looks() {
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
    if anybody_looks() {
        lock().cells.push((cell, layout));
    } else {
        // SAFETY: by contract.
        unsafe { std::alloc::dealloc(cell.as_ptr(), layout) };
    }
}
