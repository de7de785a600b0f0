//! The table of functions through which locks, channels and waits call what a coroutine's stack belongs to: its request, its worker and
//! its runtime. What parks and wakes the coroutine stands in [`super`].

use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use forebear_context::context::{Alarm, Cause, Context, OwnerWait, Table, Ticket};
use forebear_context::error::Cycle;
use forebear_context::shim::atomic::{AtomicU64, Ordering};

use super::{finish, prepare, ready, unpark};
use crate::cancel;
use crate::deadlock::owner;
use crate::record::any;
use crate::record::header::Header;
use crate::record::no_suspend;
use crate::schedule::worker::Worker;
use crate::shared::Shared;
use crate::stack::coroutine::{Coroutine, fiber_of};
use crate::time::deadlines::keep;

pub(super) static TABLE: Table = Table {
    prepare,
    finish,
    unpark,
    ready,
    in_request,
    requester,
    request_number,
    urgency,
    word,
    name,
    is_cancelled,
    refuse_wait,
    now,
    deadline,
    arm,
    disarm,
    wait_for_owner,
    take_cycle,
    gave_back,
    shares_thread,
    give_way,
    turn,
};

unsafe fn is_cancelled(context: &Context) -> bool {
    // SAFETY: by the table.
    cancel::refuses(unsafe { fiber_of(context) })
}

unsafe fn refuse_wait(context: &Context, what: &str) {
    // SAFETY: by the table.
    no_suspend::refuse(unsafe { fiber_of(context) }, what, true);
}

/// The coroutine's runtime.
///
/// # Safety
///
/// The context is a coroutine's, and its worker has not ended.
unsafe fn shared(context: &Context) -> &Shared {
    // SAFETY: by the table; K1, and a worker's record is its runtime's.
    unsafe { (*fiber_of(context).worker).shared() }
}

unsafe fn now(context: &Context) -> Instant {
    // SAFETY: by the table.
    unsafe { shared(context) }.deadlines.now()
}

unsafe fn deadline(context: &Context, timeout: Duration) -> Option<Instant> {
    // SAFETY: by the table.
    let worker = unsafe { worker_of(context) };
    worker.shared().deadlines.after_on(worker, timeout)
}

unsafe fn arm(context: &Context, ticket: Ticket, at: Instant) -> Alarm {
    // SAFETY: by the table: the alarm is taken back before the context goes.
    unsafe {
        let worker = worker_of(context);
        let shared = worker.shared();
        match shared.deadlines.arm_own(worker, at, context, ticket) {
            Some(alarm) => alarm,
            None => keep(&shared.deadlines, shared.driven.as_ref(), at, context, ticket),
        }
    }
}

unsafe fn disarm(context: &Context, alarm: Alarm) {
    // The timer has taken the entry out, and the memory stays (K3): no need to wait until the timer has done with it.
    if context.cause() != Cause::TimedOut {
        // SAFETY: by the table; K1.
        unsafe {
            let worker = worker_of(context);
            worker.shared().deadlines.put_to_rest(worker, context, alarm);
        }
    }
}

unsafe fn wait_for_owner(
    context: &Context,
    ticket: Ticket,
    wait: &OwnerWait,
    limited: bool,
) -> Option<Cycle> {
    // SAFETY: by the table.
    unsafe { owner::wait_for_owner(fiber_of(context), ticket, wait, limited) }
}

unsafe fn shares_thread(context: &Context, holder: NonNull<Context>) -> bool {
    // SAFETY: by the table.
    owner::shares_worker(unsafe { fiber_of(context) }, holder)
}

unsafe fn give_way(context: &Context) -> Option<NonNull<Context>> {
    // SAFETY: by the table.
    let fiber = unsafe { fiber_of(context) };
    let next = fiber.worker()?.leave_to_others(fiber)?;
    // SAFETY: K3.
    Some(unsafe { next.as_ref() }.context())
}

unsafe fn take_cycle(context: &Context, ticket: Ticket) -> Option<Cycle> {
    // SAFETY: by the table.
    owner::take_cycle(unsafe { fiber_of(context) }, ticket)
}

unsafe fn gave_back(context: &Context) {
    // SAFETY: by the table.
    owner::gave_back(unsafe { fiber_of(context) });
}

/// Counted by the worker, so that a seed replays it.
unsafe fn turn(context: &Context) -> u64 {
    // SAFETY: by the table; K1.
    let turns = unsafe { &(*fiber_of(context).worker).turns };
    turns.replace(turns.get() + 1)
}

unsafe fn in_request(context: &Context) -> bool {
    // SAFETY: as in `prepare`.
    let coroutine = unsafe { Coroutine::of(NonNull::from(context)).as_ref() };
    coroutine.fiber.request().is_some()
}

unsafe fn requester(context: &Context) -> usize {
    // SAFETY: by the table.
    owner::requester(unsafe { fiber_of(context) }).map_or(0, |h| std::ptr::from_ref(h).addr())
}

unsafe fn request_number(context: &Context) -> u64 {
    // SAFETY: by the table.
    owner::requester(unsafe { fiber_of(context) }).map_or(0, |h| any::id_of(h).as_u64())
}

unsafe fn urgency(context: &Context) -> u64 {
    // SAFETY: by the table.
    unsafe { Coroutine::of(NonNull::from(context)).as_ref() }.fiber.urgency.load(Ordering::Relaxed)
}

unsafe fn word(context: &Context) -> *const AtomicU64 {
    // SAFETY: by the table.
    unsafe { Coroutine::of(NonNull::from(context)).as_ref() }
        .fiber
        .request()
        .map_or(ptr::null(), |request| request.identity().bare.as_atomic())
}

unsafe fn name(context: &Context, with: &mut dyn FnMut(&str)) {
    // SAFETY: as in `prepare`.
    let coroutine = unsafe { Coroutine::of(NonNull::from(context)).as_ref() };
    with(coroutine.fiber.request().map_or("worker", Header::name));
}

/// A coroutine's worker.
///
/// # Safety
///
/// The context is a coroutine's.
unsafe fn worker_of(context: &Context) -> &Worker {
    // SAFETY: by contract; K1.
    unsafe { &*fiber_of(context).worker }
}
