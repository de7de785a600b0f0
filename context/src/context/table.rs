//! The functions that a context's owner provides for it.
//!
//! Each context has one table. All its functions are unsafe to call. The caller promises that the context has this very table, since each function
//! assumes the kind of context that it was written for. Where a field says *on the context's own stack*, the caller also promises that it runs on
//! that stack. Any thread may call `unpark` and `ready` (C1). A function that reads the context of another stack (`name`, `in_request`, `word`) is
//! called while that stack's wait is held, or under the lock of its list.

use std::fmt;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::{Cause, Context, OwnerWait, Ticket};
use crate::error::Cycle;
use crate::shim::atomic::AtomicU64;

/// Calls back with a name, which need not outlive the call.
pub type NameFn = unsafe fn(&Context, &mut dyn FnMut(&str));

/// The functions that a context's owner provides for it. One static table per kind of owner.
///
/// # Who implements it
///
/// There are three owners. The functions of one bear the fields' names.
///
/// | function | a worker's coroutine: `runtime/src/schedule/coroutine.rs` and `coroutine/table.rs` | a thread that has met a runtime: `runtime/src/foreign/mod.rs` | any other thread: `context/src/context/foreign.rs`, [`ForeignContext::TABLE`](super::ForeignContext::TABLE) |
/// |---|---|---|---|
/// | `prepare` | the worker leaves the stack for another | drives the runtimes in which it has a seat, else blocks | blocks |
/// | `finish` | undoes what the leave has noted | nothing | nothing |
/// | `unpark` | settles, then into the worker's ready queue or mailbox | settles and wakes the thread | the same |
/// | `ready` | the same, of a wait that was chosen | as any other thread | wakes the thread |
/// | `in_request`, `requester`, `request_number`, `word` | the request on top | the request that it runs itself | none |
/// | `urgency`, `name` | the fiber's, the request's | the same, else the thread's name | none, the thread's name |
/// | `is_cancelled`, `refuse_wait` | asks the request and its region | the same | never |
/// | `now`, `deadline`, `arm`, `disarm` | its runtime's clock and timer; the worker may keep the time | those of the runtime that it has entered, else its own | the system's clock; it ends the wait itself |
/// | `wait_for_owner`, `take_cycle`, `gave_back` | raises the holder, searches for a cycle | the same | nothing |
/// | `shares_thread` | whether the holder is of this worker | as any other thread | false |
/// | `lost_share` | removes the entry from that stack's list | the same | nothing |
/// | `give_way` | a ready fiber of the worker, if there is one | as any other thread | none |
/// | `is_alone` | whether the worker has nothing else to run | whether it has no seat | true |
/// | `turn` | counted by the worker, so that a seed replays it | as any other thread | counted by the thread |
#[derive(Clone, Copy)]
pub struct Table {
    /// Called by [`Context::park`] on the context's own stack, before it suspends. The owner of a coroutine returns the context to
    /// switch to, or `None` if the wait is already settled. A foreign thread blocks in this call.
    pub prepare: unsafe fn(&Context, Option<Instant>) -> Option<NonNull<Context>>,
    /// Called right after the context is entered again.
    pub finish: unsafe fn(&Context),
    /// Settles the wait and makes the context runnable; false if the ticket is old or the wait is settled. For any thread.
    pub unpark: unsafe fn(NonNull<Context>, Ticket, Cause) -> bool,
    /// Ends a wait that was chosen ([`Context::choose`]), and makes the context runnable. Called by the thread that has chosen it.
    pub ready: unsafe fn(NonNull<Context>, Ticket),
    /// Whether a request runs on this context right now.
    pub in_request: unsafe fn(&Context) -> bool,
    /// The identity of the calling request, for locks that their holder may take again: its address, which is compared and never followed; 0
    /// outside any request. On the context's own stack.
    pub requester: unsafe fn(&Context) -> usize,
    /// The number of that request; 0 outside any request. On the context's own stack.
    pub request_number: unsafe fn(&Context) -> u64,
    /// The smallest root key of the requests that run on this context or wait for it; smaller goes first.
    pub urgency: unsafe fn(&Context) -> u64,
    /// The word of the request on top, which a cancel marks; null outside any request.
    pub word: unsafe fn(&Context) -> *const AtomicU64,
    /// The name of what runs on this context right now.
    pub name: NameFn,
    /// Whether the request on top is cancelled, and not in a shielded region. On the context's own stack.
    pub is_cancelled: unsafe fn(&Context) -> bool,
    /// What the panic says if the context is in a region that must not suspend; the caller is about to wait for what has this name. On the
    /// context's own stack.
    pub refuse_wait: unsafe fn(&Context, &str) -> Option<String>,
    /// The time on the clock that measures time limits. On the context's own stack.
    pub now: unsafe fn(&Context) -> Instant,
    /// The time on that clock after this duration, or very soon after; `None` if an `Instant` cannot express it. On the context's own stack.
    pub deadline: unsafe fn(&Context, Duration) -> Option<Instant>,
    /// Arms a time limit: at that time, or at once if it has passed, settles the wait under the ticket with [`Cause::TimedOut`] unless it is
    /// already settled. On the context's own stack.
    pub arm: unsafe fn(&Context, Ticket, Instant) -> Alarm,
    /// Disarms it. After this returns no timer touches the context. On the context's own stack.
    pub disarm: unsafe fn(&Context, Alarm),
    /// The context waits, under the ticket, for something that another context holds, and its node is in the list there. Raises the
    /// holder to the waiter's urgency. If the wait has no limit and closes a cycle, settles the wait and returns the cycle; the context
    /// then does not park. On the context's own stack.
    pub wait_for_owner: unsafe fn(&Context, Ticket, &OwnerWait, limited: bool) -> Option<Cycle>,
    /// The cycle for which the wait under the ticket was settled with [`Cause::Circular`]. Called once, on the context's own stack.
    pub take_cycle: unsafe fn(&Context, Ticket) -> Option<Cycle>,
    /// The context has released what others wait for: lowers its urgency to that of its own requests. On the context's own stack.
    pub gave_back: unsafe fn(&Context),
    /// Whether `holder`, which a lock names as its holder, belongs to the calling thread, so that it cannot run before this context
    /// waits. False if that is not known. On the context's own stack.
    pub shares_thread: unsafe fn(&Context, holder: NonNull<Context>) -> bool,
    /// A guard was dropped here that `taker` had acquired, another stack of this thread, which may be gone: removes the share that has this key from the list of
    /// `taker`. On the context's own stack.
    pub lost_share: unsafe fn(&Context, taker: NonNull<Context>, share: NonNull<()>),
    /// Yields to another context: queues the caller to be entered again, and returns the context to switch to. `None` if there is none, or the
    /// caller may not suspend. On the context's own stack, outside any wait.
    pub give_way: unsafe fn(&Context) -> Option<NonNull<Context>>,
    /// Whether this thread has nothing else to run, as far as it knows, so that polling a lock that another thread holds delays no other work. A hint.
    /// On the context's own stack.
    pub is_alone: unsafe fn(&Context) -> bool,
    /// A number that differs from one call to the next, to vary arbitrary choices. On the context's own stack.
    pub turn: unsafe fn(&Context) -> u64,
}

/// What [`Table::disarm`] needs.
#[derive(Debug)]
#[must_use = "an alarm that is not disarmed may fire after its context is gone"]
pub struct Alarm {
    /// The owner's number of the entry; 0 if there is no entry.
    pub number: u64,
    /// The time until which the thread blocks at most; it then ends the wait itself.
    pub own: Option<Instant>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}
