//! What the owner of a context does for it.
//!
//! Each context has one table. All its functions are unsafe to call: the caller promises that the context has this very table, since a function takes it
//! for the kind of context that it was written for; and where a field says *on the context's own stack*, that the caller is the code that runs there. `unpark` and
//! `ready` are for any thread, by C1. A function that reads the context of another stack (`name`, `in_request`, `word`) is called while that stack's
//! wait is held, or under the lock of the list in which it stands.

use std::fmt;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::{Cause, Context, OwnerWait, Ticket};
use crate::error::Cycle;
use crate::shim::atomic::AtomicU64;

/// Calls back with a name, which need not outlive the call.
pub type NameFn = unsafe fn(&Context, &mut dyn FnMut(&str));

/// What the owner of a context does for it. One static table per kind of owner.
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
/// | `give_way` | a ready fiber of the worker, if there is one | as any other thread | nobody |
/// | `is_alone` | whether the worker has nothing else to run | whether it has no seat | true |
/// | `turn` | counted by the worker, so that a seed replays it | as any other thread | counted by the thread |
#[derive(Clone, Copy)]
pub struct Table {
    /// Called by [`Context::park`] on the context's own stack, which has something to wait for. A coroutine's owner
    /// answers whom to switch to, or `None` if the context may go on after all; a foreign thread blocks here.
    pub prepare: unsafe fn(&Context, Option<Instant>) -> Option<NonNull<Context>>,
    /// Called right after the context was entered again.
    pub finish: unsafe fn(&Context),
    /// Settles the wait and makes the context runnable, or refuses. Called by anybody.
    pub unpark: unsafe fn(NonNull<Context>, Ticket, Cause) -> bool,
    /// Ends a wait that was chosen ([`Context::choose`]), and makes the context runnable. Called by the thread that has chosen it.
    pub ready: unsafe fn(NonNull<Context>, Ticket),
    /// Whether a request runs on this context right now.
    pub in_request: unsafe fn(&Context) -> bool,
    /// Which request holds what is taken here by a lock that its holder may take again: its address, which is compared and not followed; 0
    /// outside any request. On the context's own stack.
    pub requester: unsafe fn(&Context) -> usize,
    /// The number of that request; 0 outside any request. On the context's own stack.
    pub request_number: unsafe fn(&Context) -> u64,
    /// The root key of the most urgent that runs on this context, or waits for it; smaller goes first.
    pub urgency: unsafe fn(&Context) -> u64,
    /// The word of the request on top, which a cancel marks; null outside any request.
    pub word: unsafe fn(&Context) -> *const AtomicU64,
    /// The name of what runs on this context right now.
    pub name: NameFn,
    /// Whether the request on top was cancelled and may be told so. On the context's own stack.
    pub is_cancelled: unsafe fn(&Context) -> bool,
    /// A wait for what has this name is about to begin inside a region that must not suspend: panics. On the context's own stack.
    pub refuse_wait: unsafe fn(&Context, &str),
    /// The time on the clock that limits go by. On the context's own stack.
    pub now: unsafe fn(&Context) -> Instant,
    /// The time after so long on that clock, or very soon after that; `None` if it is too far off to be told. On the context's own stack.
    pub deadline: unsafe fn(&Context, Duration) -> Option<Instant>,
    /// Sees to it that the wait which the ticket names ends with [`Cause::TimedOut`] at that time, or at once if it is past,
    /// unless it ends otherwise. On the context's own stack.
    pub arm: unsafe fn(&Context, Ticket, Instant) -> Alarm,
    /// Takes an alarm back. When it returns no timer touches the context. On the context's own stack.
    pub disarm: unsafe fn(&Context, Alarm),
    /// The context waits, under the ticket, for something that another context holds, and its node stands in the list there. The
    /// holder becomes as urgent; and if the wait has no limit, and closes a cycle, the cycle is answered: the wait is settled
    /// then, and is not parked. On the context's own stack.
    pub wait_for_owner: unsafe fn(&Context, Ticket, &OwnerWait, limited: bool) -> Option<Cycle>,
    /// The cycle for which the wait under the ticket was ended with [`Cause::Circular`]. On the context's own stack, once.
    pub take_cycle: unsafe fn(&Context, Ticket) -> Option<Cycle>,
    /// It has given back what others wait for, and is only as urgent as its requests. On the context's own stack.
    pub gave_back: unsafe fn(&Context),
    /// Whether the context, which a lock has named for its holder, is of the thread that calls, so that it cannot go on before this one
    /// waits. False if that is not known. On the context's own stack.
    pub shares_thread: unsafe fn(&Context, holder: NonNull<Context>) -> bool,
    /// Lets others go first: answers whom to switch to, the context being listed to be entered again; `None` if there is nobody, or the context
    /// cannot be left. On the context's own stack, outside of any wait.
    pub give_way: unsafe fn(&Context) -> Option<NonNull<Context>>,
    /// Whether nothing else could run on this thread now, as far as it knows, so that a look for what is held elsewhere delays nobody. A hint. On the
    /// context's own stack.
    pub is_alone: unsafe fn(&Context) -> bool,
    /// A number that differs from one call to the next, for choices that should not always fall out the same. On the context's own
    /// stack.
    pub turn: unsafe fn(&Context) -> u64,
}

/// What it takes to disarm a time-out.
#[derive(Debug)]
#[must_use = "what nobody disarms may go off when its context has gone"]
pub struct Alarm {
    /// The owner's name for it; 0: there is no entry anywhere.
    pub number: u64,
    /// The thread is to block until then at most, and to end the wait by itself.
    pub own: Option<Instant>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}
