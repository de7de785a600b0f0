//! The end of a runtime without threads: the thread that ends it drives it meanwhile. *Without threads* in the head of [`super::finish`]
//! says how far.

use std::time::{Duration, Instant};

use forebear_context::clock::deadline_after;
use forebear_context::context::{ForeignContext, Reason};
use forebear_context::shim::{Arc, time};

use super::laggards;
use crate::cancel;
use crate::foreign;
use crate::record::fiber::Fiber;
use crate::shared::Shared;
use crate::shared::driven::Seat;

/// In a runtime without threads of its own: drives until all that has begun has ended, or until nothing continues
/// without other threads or before the grace is over. Only on a thread that may drive.
pub(super) fn drive_within(shared: &Arc<Shared>, grace: Duration) {
    let until = shared.deadlines.after(grace);
    let Some(fiber) = foreign::fiber().filter(|fiber| !fiber.has_worker()) else { return };
    let Some(index) = foreign::seat(shared) else { return };
    loop {
        // Looked for before what is ready runs: who was woken by a deadline that is gone is ready by then (T3).
        let next = shared.deadlines.next();
        if drive(shared, fiber, index) {
            continue;
        }
        let Some(at) = next.filter(|at| until.is_none_or(|until| *at <= until)) else { return };
        if laggards::is_empty(shared) {
            return;
        }
        sleep(shared, fiber, at);
        shared.deadlines.fire_due(shared.deadlines.now());
    }
}

/// Lets run what stands on this thread's seat, until nothing can continue; answers whether anything has. What stands on other threads' seats continues when
/// those threads wait.
fn drive(shared: &Arc<Shared>, fiber: &Fiber, index: usize) -> bool {
    let seat = Seat { shared: shared.clone(), index };
    let worker = seat.worker();
    cancel::read_messages(fiber);
    cancel::attend_messages(worker);
    let mut ran = false;
    while worker.step_at_end(fiber) || seat.stirs(fiber) {
        ran = true;
    }
    ran
}

/// How long a driver sleeps at most before it checks again: a deadline that is disarmed does not wake it.
const LOOK: Duration = Duration::from_millis(50);

/// Sleeps until it is `at` on the runtime's clock, or something comes on a seat of this thread's, or earlier.
fn sleep(shared: &Shared, fiber: &Fiber, at: Instant) {
    let context = fiber.context();
    let left = at.saturating_duration_since(shared.deadlines.now());
    // By a clock of the user's, who moves it fires the deadline, which wakes this thread.
    let wake = deadline_after(time::now(), left.min(LOOK));
    // SAFETY: C2: this is the fiber's own thread, and it is not in a wait; C4: for nothing, and it is taken back below.
    let ticket = unsafe { context.begin(Reason::None, std::ptr::null_mut()) };
    // SAFETY: the fiber is foreign, and this is its thread. It returns when it is nudged.
    let _ = unsafe { ForeignContext::block(context, wake) };
    // SAFETY: C2: begun above, and not parked.
    unsafe { context.abandon(ticket) };
}
