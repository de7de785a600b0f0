//! The end of a runtime without threads: the thread that ends it drives it meanwhile. *Without threads* in the head of [`super::finish`]
//! says how far.

use std::time::{Duration, Instant};

use forebear_context::clock::deadline_after;
use forebear_context::context::{ForeignContext, Reason};
use forebear_context::shim::{Arc, time};

use super::laggards;
use super::late::say_that_it_is_endless;
use crate::cancel;
use crate::foreign;
use crate::record::fiber::Fiber;
use crate::schedule::driver::Limit;
use crate::shared::Shared;
use crate::shared::driven::Seat;
use crate::shared::late_end::first_word;

/// In a runtime without threads of its own: drives until all that has begun has ended, or until nothing continues
/// without other threads or before the grace is over, or until the grace is over. Only on a thread that may drive. `call` is the user's.
pub(super) fn drive_within(shared: &Arc<Shared>, grace: Duration, call: &str) {
    let Some(fiber) = foreign::fiber().filter(|fiber| !fiber.has_worker()) else { return };
    let Some(index) = foreign::seat(shared) else { return };
    let seat = Seat { shared: shared.clone(), index };
    attend(&seat, fiber);
    let mut limit = Limit::of_grace(shared, seat.worker().begun(), grace);
    // Where the grace is endless: when it is said for what this waits.
    let mut word = if limit.until().is_none() { first_word() } else { None };
    loop {
        if is_due(word) {
            word = None;
            say_that_it_is_endless(shared, call);
        }
        // Looked for before what is ready runs: who was woken by a deadline that is gone is ready by then (T3).
        let next = shared.deadlines.next();
        let ran = drive(&seat, fiber, &mut limit, word);
        if limit.is_over(shared) {
            break;
        }
        if ran || is_due(word) {
            continue;
        }
        let Some(at) = next else { return };
        if limit.until().is_some_and(|until| at > until) {
            break;
        }
        if laggards::is_empty(shared) {
            return;
        }
        sleep(shared, fiber, at);
        shared.deadlines.fire_due(shared.deadlines.now());
    }
    // What the seeded mode has drawn from and nobody has begun is among the unstarted again, where others look.
    seat.worker().put_back_drawn();
    if has_left(shared) {
        limit.pass(shared);
    }
}

/// Whether something has not ended.
pub(super) fn has_left(shared: &Shared) -> bool {
    !laggards::is_empty(shared) || shared.has_unstarted()
}

fn is_due(word: Option<Instant>) -> bool {
    word.is_some_and(|at| at <= time::now())
}

fn attend(seat: &Seat, fiber: &Fiber) {
    cancel::read_messages(fiber);
    cancel::attend_messages(seat.worker());
}

/// Lets run what stands on this thread's seat, until nothing can continue, the limit is over or the word due; answers whether anything has. What stands on
/// other threads' seats continues when those threads wait.
fn drive(seat: &Seat, fiber: &Fiber, limit: &mut Limit, word: Option<Instant>) -> bool {
    attend(seat, fiber);
    let mut ran = false;
    let until = limit.until();
    while !limit.is_over(&seat.shared)
        && !is_due(word)
        && (seat.worker().step_at_end(fiber, until) || seat.stirs(fiber, until))
    {
        limit.count();
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
