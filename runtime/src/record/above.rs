//! What the lower layers call of the layers above: a table of functions, given before the first runtime of the process is made.
//!
//! Each entry is an inversion that the work itself has; any other call goes downwards.
//!
//! | function | who calls it | why it stands above |
//! |---|---|---|
//! | `fiber` | a call of a user's clock or hook, on a thread that may have no fiber yet | to make one takes the table of a foreign thread's context, which drives runtimes |
//! | `conclude` | the canceller of a request that has not started | it is an end as any other, and an end spreads a cancel |
//! | `admit` | the thread that closes the last open edge of a dependent while it searches for a cycle | it queues the dependent |
//! | `drive` | a foreign thread that waits | it drives the runtimes in which it has a seat |
//! | `owns`, `keep_for_later`, `leave_to_loop` | the thread that ends a header, or frees its side block | what a foreign thread has leads to runtimes, and what a worker has to its queues |
//! | `attend_returns` | the thread that returns a header which keeps an error | which foreign threads wait stands in a list of the layer above, and which of them have seats in the runtime's record |
//! | `disarm_due` | the last child of a request that is over | deadlines lead to workers |
//! | `limit_comes`, `abort`, `leave_end` | the thread that fires a deadline or an expiration timer | it is a cancel, and a cancel ends waits that have deadlines |

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering}; // not modelled: written once, before any runtime is there
use std::time::Instant;

use forebear_context::error::CancelReason;

use crate::record::arena::Arena;
use crate::record::fiber::{self, Fiber};
use crate::record::header::Header;
use crate::record::side::Side;
use crate::state::due::Due;

/// See the module head. Each function of a request asks for what the function of that name above asks for.
pub(crate) struct Above {
    /// The fiber of the calling thread, made if it has none. `None` only while the thread's locals are being destroyed.
    pub fiber: fn() -> Option<&'static Fiber>,
    /// [`conclude`](crate::schedule::finish::conclude).
    pub conclude: unsafe fn(NonNull<Header>, u64, bool, bool),
    /// [`admit`](crate::schedule::dependents::admit).
    pub admit: unsafe fn(NonNull<Header>),
    /// [`wait`](crate::schedule::driver::wait).
    pub drive: unsafe fn(&Fiber, Option<Instant>, Option<Instant>) -> bool,
    /// [`owns`](crate::shared::thread::owns).
    pub owns: fn(*const Arena) -> bool,
    /// Keeps the block for later if nothing of the user's may run on this fiber, which is current; else answers it.
    pub keep_for_later: fn(&Fiber, Box<Side>) -> Option<Box<Side>>,
    /// Leaves the block to the loop of the worker that this fiber, which is current, belongs to; answers it if there is none.
    pub leave_to_loop: fn(&Fiber, Box<Side>) -> Option<Box<Side>>,
    /// Has what was returned to the arena taken in: by its worker; by its foreign thread, if that waits; here, if it has no owner.
    pub attend_returns: fn(&Arena),
    /// Takes back the deadline of a request of the arena's: see [`disarm_due`](crate::shared::deadlines::Deadlines::disarm_due).
    pub disarm_due: fn(&Arena, NonNull<Header>, &Due) -> bool,
    /// [`limit_comes`](crate::cancel::limit_comes).
    pub limit_comes: unsafe fn(NonNull<Header>),
    /// [`abort`](crate::cancel::abort).
    pub abort: unsafe fn(NonNull<Header>, CancelReason),
    /// [`leave_end`](crate::cancel::leave_end).
    pub leave_end: unsafe fn(NonNull<Header>),
    /// Publishes the branches that are private on this fiber, which is current.
    pub publish_arms: fn(&Fiber),
}

static ABOVE: AtomicPtr<Above> = AtomicPtr::new(ptr::null_mut());

/// From now on it is there. Before the first runtime is made.
pub(crate) fn provide(table: &'static Above) {
    ABOVE.store(ptr::from_ref(table).cast_mut(), Ordering::Release);
}

#[inline(always)]
fn provided() -> Option<&'static Above> {
    // SAFETY: null, or what `provide` was given. The acquire pairs with its release.
    unsafe { ABOVE.load(Ordering::Acquire).as_ref() }
}

/// The table. Of a thread that has something to do with a runtime.
#[inline(always)]
pub(crate) fn above() -> &'static Above {
    match provided() {
        Some(table) => table,
        None => unreachable!("it is provided before the first runtime is made"),
    }
}

/// The fiber that the caller is on, made if this is a thread that has none and there is any runtime. `None`, too, while the thread's locals are being
/// destroyed.
pub(crate) fn fiber_here() -> Option<&'static Fiber> {
    fiber::get().or_else(|| provided().and_then(|table| (table.fiber)()))
}
