//! The table of functions through which locks, channels and waits call what a coroutine's stack belongs to: its request, its worker and
//! its runtime. What parks and wakes the coroutine stands in [`super`].
//!
//! *By the table* in a safety note means: this table is given to contexts of coroutines only, by [`Coroutine::build`]. So the context lies in a
//! coroutine, whose worker, with the runtime's record, outlives it (K1). Each function is called on the coroutine's own stack, hence on the thread of that
//! worker, and may touch what is the worker's own. `name` alone is also called by a thread that holds the wait.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use forebear_context::context::{Alarm, Cause, Context, Table, Ticket};

use super::{finish, prepare, ready, unpark};
use crate::deadlock::owner;
use crate::foreign::fiber_table::OF_FIBER;
use crate::record::header::Header;
use crate::schedule::worker::{OnWorker, Worker};
use crate::shared::Shared;
use crate::stack::coroutine::{Coroutine, fiber_of};
use crate::time::deadlines::keep;

pub(super) static TABLE: Table = Table {
    prepare,
    finish,
    unpark,
    ready,
    name,
    now,
    deadline,
    arm,
    disarm,
    shares_thread,
    give_way,
    is_alone,
    turn,
    ..OF_FIBER
};

/// The coroutine's runtime.
///
/// # Safety
///
/// The context is a coroutine's, and its worker has not ended.
unsafe fn shared(context: &Context) -> &Shared {
    // SAFETY: by the table; K1, and a worker's record is its runtime's.
    unsafe { worker_of(context) }.shared()
}

/// # Safety
///
/// As [`Table::now`].
unsafe fn now(context: &Context) -> Instant {
    // SAFETY: by the table.
    unsafe { shared(context) }.deadlines.now()
}

/// # Safety
///
/// As [`Table::deadline`].
unsafe fn deadline(context: &Context, timeout: Duration) -> Option<Instant> {
    // SAFETY: by the table.
    let worker = unsafe { worker_of(context) };
    worker.shared().deadlines.after_on(worker, timeout)
}

/// # Safety
///
/// As [`Table::arm`].
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

/// # Safety
///
/// As [`Table::disarm`].
unsafe fn disarm(context: &Context, alarm: Alarm) {
    // The timer has taken the entry out, and the memory stays (K3): no need to wait until the timer has done with it.
    if context.cause() != Cause::TimedOut {
        // SAFETY: by the table: the context is that of the coroutine that calls.
        let worker = unsafe { worker_of(context) };
        // SAFETY: K1: the worker's own thread; by the table, the alarm is one of this context.
        unsafe { worker.shared().deadlines.put_to_rest(worker, context, alarm) };
    }
}

/// # Safety
///
/// As [`Table::shares_thread`].
unsafe fn shares_thread(context: &Context, holder: NonNull<Context>) -> bool {
    // SAFETY: by the table.
    owner::shares_worker(unsafe { fiber_of(context) }, holder)
}

/// # Safety
///
/// As [`Table::give_way`].
unsafe fn give_way(context: &Context) -> Option<NonNull<Context>> {
    // SAFETY: by the table.
    let fiber = unsafe { fiber_of(context) };
    let next = fiber.worker()?.leave_to_others(fiber)?;
    // SAFETY: K3.
    Some(unsafe { next.as_ref() }.context())
}

/// # Safety
///
/// As [`Table::is_alone`].
unsafe fn is_alone(context: &Context) -> bool {
    // SAFETY: by the table.
    unsafe { worker_of(context) }.has_nothing_ready()
}

/// Counted by the worker, so that a seed replays it.
///
/// # Safety
///
/// As [`Table::turn`].
unsafe fn turn(context: &Context) -> u64 {
    // SAFETY: by the table; K1.
    unsafe { worker_of(context) }.next_turn()
}

/// # Safety
///
/// As [`Table::name`].
unsafe fn name(context: &Context, with: &mut dyn FnMut(&str)) {
    // SAFETY: by the table: the context lies in a coroutine; its thread calls this, or one that holds its wait, so it stays.
    let coroutine = unsafe { Coroutine::of(NonNull::from(context)).as_ref() };
    with(coroutine.fiber.request().map_or("worker", Header::name));
}

/// A coroutine's worker.
///
/// # Safety
///
/// The context is a coroutine's.
unsafe fn worker_of(context: &Context) -> &Worker {
    // SAFETY: the context is a coroutine's, by contract; K1: its worker outlives it.
    unsafe { &*fiber_of(context).worker.cast::<Worker>() }
}
