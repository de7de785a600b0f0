//! Whether a cancel concerns the calling code: one table of the queries, and which code may call each.
//!
//! A mark may be on its way to a thread, as a message to its arena. The worker's attention word announces the message before it can
//! matter. So the fast path is one load of that word. Only the slow path reads the messages, and then the request's word.
//!
//! | function | its question | may be called by | fast path | slow path |
//! |---|---|---|---|---|
//! | [`concerns`] | may a cancel concern what runs on this fiber? | the fiber's thread | the worker's attention; on a foreign thread: any request on top | |
//! | [`concerns_worker`] | the same of any fiber of the worker | the worker | its attention | |
//! | [`refuses`] | is a wait or yield on this fiber refused? | the fiber's thread | [`concerns`] | reads the messages, then as `is_cancelled_here`; no during an unwind |
//! | [`refuses_here`] | the same, where `concerns` has said yes | the thread | | as `refuses` |
//! | [`is_cancelled_by_messages`] | is the request on top cancelled? | the fiber's thread | | reads the messages, then as `is_cancelled_here` |
//! | [`is_cancelled_here`] | is it, by what this thread knows? | the fiber's thread | its word | an arm: its maker's word, too |
//! | [`is_cancelled`] | is this request? | any thread that has a count of it | its word | an arm: its maker's word, too |
//! | [`is_orphaned_by_cancel`](super::is_orphaned_by_cancel) | has a cancel of an ancestor reached it, which is to be submitted or started? | its owner | its parent's word | walks along the ancestors |
//! | [`asks`](super::asks) | does a cancelled waiter that leaves ask for its target's cancel? | the waiter | | both requests' words |
//!
//! The messages themselves are read by [`read_messages`], which runs no user code.

use forebear_context::shim::atomic::Ordering;

use super::{attend_arena, attend_messages};
use crate::record::fiber::{self, Fiber};
use crate::record::header::{ARM, Header};
use crate::shared::thread;
use crate::shared::worker::{OnRecord, is_unwinding};
use crate::state::attention::{Attention, MARKS, MESSAGE};
use crate::state::word::{MARKED, SHIELDED};

/// Whether the request that runs on `fiber` has been cancelled, and is in no shielded region.
#[inline]
pub(crate) fn is_cancelled_here(fiber: &Fiber) -> bool {
    fiber.request().is_some_and(is_cancelled)
}

/// Whether the request (an arm's: its maker) is cancelled, and neither is in a shielded region.
#[inline]
pub(crate) fn is_cancelled(h: &Header) -> bool {
    if h.is(ARM) {
        return arm_is_cancelled(h);
    }
    !h.bare.load().is_demand()
}

#[cold]
fn arm_is_cancelled(h: &Header) -> bool {
    // A region of the maker's that was open before the join shelters both arms, and does not end before them. One that an arm opens shelters only that arm.
    h.identity().bare.load().has(MARKED) && !h.is_sheltered() && !h.bare.load().has(SHIELDED)
}

/// Whether a wait or yield on this fiber is to be refused. The fast part: nothing of the sort concerns its worker.
#[inline(always)]
pub(crate) fn refuses(fiber: &Fiber) -> bool {
    concerns(fiber) && refuses_slowly(fiber)
}

/// Whether a cancel may concern what runs on this fiber.
#[inline(always)]
pub(crate) fn concerns(fiber: &Fiber) -> bool {
    match fiber.worker_record() {
        Some(worker) => concerns_worker(&worker.post.attention),
        None => !fiber.request.get().is_null(),
    }
}

/// The same of any fiber of a worker.
#[inline(always)]
pub(crate) fn concerns_worker(attention: &Attention) -> bool {
    attention.get() & (MESSAGE | MARKS) != 0
}

/// Reads the messages, and then whether the request on top is cancelled.
#[cold]
#[inline(never)]
pub(crate) fn is_cancelled_by_messages(fiber: &Fiber) -> bool {
    read_messages(fiber);
    is_cancelled_here(fiber)
}

#[cold]
#[inline(never)]
fn refuses_slowly(fiber: &Fiber) -> bool {
    read_messages(fiber);
    // A destructor that waits during an unwind waits in order to clean up.
    is_cancelled_here(fiber) && !is_unwinding(fiber)
}

/// Whether a wait or yield on the calling fiber is to be refused; [`concerns`] has returned true.
#[cold]
#[inline(never)]
pub(crate) fn refuses_here() -> bool {
    fiber::get().is_some_and(refuses_slowly)
}

/// Whether the request on top is cancelled, as far as this thread knows, and its waits are allowed all the same, since an unwind runs them.
#[inline]
pub(crate) fn is_outlasted(fiber: &Fiber) -> bool {
    concerns(fiber) && is_cancelled_here(fiber) && is_unwinding(fiber)
}

/// Works off the messages that other threads have left for this one. Runs no user code.
pub(crate) fn read_messages(fiber: &Fiber) {
    match fiber.worker_record() {
        Some(worker) => attend_messages(worker),
        // The requests of this stack use the thread's arenas, which are few, while the stack may be deep.
        None if thread::each_arena(|arena| {
            if !arena.owner_mailbox.is_empty() {
                attend_arena(arena);
            }
        }) => {}
        // The thread's locals are being destroyed.
        None => {
            let mut at = fiber.request();
            while let Some(frame) = at {
                // SAFETY: arenas stay while headers of them do (M3).
                if let Some(arena) = unsafe { frame.ran_on.load(Ordering::Relaxed).as_ref() }
                    && !arena.owner_mailbox.is_empty()
                {
                    attend_arena(arena);
                }
                // SAFETY: a request below another on a stack is not over.
                at = unsafe { frame.lender.get().as_ref() };
            }
        }
    }
}
