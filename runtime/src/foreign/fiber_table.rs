//! The functions of a context's table that need to know no more than the context's fiber. Those of a coroutine and those of a foreign thread are the
//! same; each table adds what parks, wakes and times its stack (`foreign/mod.rs`, `schedule/coroutine/table.rs`).
//!
//! *By the table* in a safety note means: these functions are called with a context that has one of those two tables. Such a context lies in a
//! record with a fiber at a fixed distance behind it ([`Fiber::of`]). `word` and `in_request` are also called by a thread under whose lock the
//! context's node stands. Then the stack is left, or about to be, so what they read does not change.

use std::ptr::{self, NonNull};

use forebear_context::context::{Context, ForeignContext, OwnerWait, Table, Ticket};
use forebear_context::error::Cycle;
use forebear_context::shim::atomic::{AtomicU64, Ordering};

use crate::cancel;
use crate::deadlock::owner;
use crate::record::any;
use crate::record::fiber::Fiber;
use crate::record::no_suspend;

/// See the module head. For contexts behind which a fiber lies.
pub(crate) const OF_FIBER: Table = Table {
    in_request,
    requester,
    request_number,
    urgency,
    word,
    is_cancelled,
    refuse_wait,
    wait_for_owner,
    take_cycle,
    gave_back,
    lost_share,
    ..ForeignContext::TABLE
};

/// # Safety
///
/// As [`Table::in_request`].
unsafe fn in_request(context: &Context) -> bool {
    // SAFETY: by the table.
    unsafe { Fiber::of(context) }.request().is_some()
}

/// # Safety
///
/// As [`Table::requester`].
unsafe fn requester(context: &Context) -> usize {
    // SAFETY: by the table.
    owner::requester(unsafe { Fiber::of(context) }).map_or(0, |h| ptr::from_ref(h).addr())
}

/// # Safety
///
/// As [`Table::request_number`].
unsafe fn request_number(context: &Context) -> u64 {
    // SAFETY: by the table.
    owner::caller(unsafe { Fiber::of(context) }).map_or(0, |h| any::id_of(h).as_u64())
}

/// # Safety
///
/// As [`Table::urgency`].
unsafe fn urgency(context: &Context) -> u64 {
    // SAFETY: by the table.
    unsafe { Fiber::of(context) }.urgency.load(Ordering::Relaxed)
}

/// # Safety
///
/// As [`Table::word`].
unsafe fn word(context: &Context) -> *const AtomicU64 {
    // SAFETY: by the table.
    let request = unsafe { Fiber::of(context) }.request();
    request.map_or(ptr::null(), |request| request.identity().bare.as_atomic())
}

/// # Safety
///
/// As [`Table::is_cancelled`].
unsafe fn is_cancelled(context: &Context) -> bool {
    // SAFETY: by the table.
    cancel::refuses(unsafe { Fiber::of(context) })
}

/// # Safety
///
/// As [`Table::refuse_wait`].
unsafe fn refuse_wait(context: &Context, what: &str) -> Option<String> {
    // SAFETY: by the table.
    Some(no_suspend::refusal(unsafe { Fiber::of(context) }, what))
}

/// # Safety
///
/// As [`Table::wait_for_owner`].
unsafe fn wait_for_owner(
    context: &Context,
    ticket: Ticket,
    wait: &OwnerWait,
    limited: bool,
) -> Option<Cycle> {
    // SAFETY: by the table: the context is a foreign fiber's, on whose own stack this is; `wait` stays for the wait, by the field's
    // contract.
    let fiber = unsafe { Fiber::of(context) };
    // SAFETY: as above.
    unsafe { owner::wait_for_owner(fiber, ticket, wait, limited) }
}

/// # Safety
///
/// As [`Table::take_cycle`].
unsafe fn take_cycle(context: &Context, ticket: Ticket) -> Option<Cycle> {
    // SAFETY: by the table.
    owner::take_cycle(unsafe { Fiber::of(context) }, ticket)
}

/// # Safety
///
/// As [`Table::gave_back`].
unsafe fn gave_back(context: &Context) {
    // SAFETY: by the table.
    owner::gave_back(unsafe { Fiber::of(context) });
}

/// # Safety
///
/// As [`Table::lost_share`].
unsafe fn lost_share(context: &Context, taker: NonNull<Context>, share: NonNull<()>) {
    // SAFETY: by the table.
    owner::lost_share(unsafe { Fiber::of(context) }, taker, share);
}
