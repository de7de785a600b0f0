//! Letting others go first: all that is ready, by [`yield_now`], or what is older, as a join does.

use std::ptr::NonNull;

use forebear_context::error::Cancelled;
use forebear_context::shim::mutant;

use crate::cancel;
use crate::record::callback;
use crate::record::fiber::{self, Descent, Fiber};
use crate::record::no_suspend;
use crate::schedule::driver;
use crate::schedule::worker::{OnWorker, Worker};
use crate::stack::coroutine::Coroutine;
use crate::state::attention::{DRIVEN, HUNGRY, OLDER};

/// Lets everything else that is ready on this worker go first.
///
/// Suspends. In a foreign thread it yields the thread's time slice.
///
/// # Errors
///
/// [`Cancelled`] if the current request was cancelled.
///
/// ```
/// use forebear::{spawn, yield_now};
/// spawn(|| yield_now()).take()??;
/// # Ok::<(), forebear::Error>(())
/// ```
#[inline(always)]
#[track_caller]
pub fn yield_now() -> Result<(), Cancelled> {
    let Some(fiber) = fiber::get() else {
        std::thread::yield_now();
        return Ok(());
    };
    let Some(worker) = fiber.worker() else {
        if cancel::refuses(fiber) {
            return Err(Cancelled::new());
        }
        if driver::drive_some(fiber) {
            return if cancel::refuses(fiber) { Err(Cancelled::new()) } else { Ok(()) };
        }
        std::thread::yield_now();
        return Ok(());
    };
    if fiber.context().no_suspend().get() != 0 {
        no_suspend::refuse(fiber, "the others");
    }
    let next = match worker.rotate(fiber) {
        Ok(next) => next,
        Err(()) if cancel::refuses(fiber) => return Err(Cancelled::new()),
        Err(()) => worker.leave_yielding(fiber),
    };
    if let Some(next) = next {
        // SAFETY: F2: we are on the fiber's stack, and it stands in the ready queue.
        unsafe { leave_for(fiber, next) };
        // The worker is all that has to be known still: a fiber never changes it.
        if cancel::concerns_worker(&worker.post.attention) && cancel::refuses_here() {
            return Err(Cancelled::new());
        }
    }
    Ok(())
}

/// Leaves the fiber's stack for `next`, which the worker has chosen.
///
/// # Safety
///
/// F2: on the stack of `fiber`, which stands in the ready queue; `next` does not.
#[inline(always)]
unsafe fn leave_for(fiber: &Fiber, next: NonNull<Coroutine>) {
    // SAFETY: K3: `next` is alive; F2 by contract.
    unsafe { fiber.context().switch().leave(Some(next.as_ref().context())) };
}

/// Something concerns a worker on which a join is about to run its first branch: publishes for the hungry, and lets what is older go first. Without that a tree of
/// joins would have no scheduling point, and all that is older would wait until it is over.
#[cold]
#[inline(never)]
pub(crate) fn attend_join(worker: &Worker, fiber: &Fiber) {
    let attention = worker.post.attention.get();
    if attention & HUNGRY != 0 {
        worker.feed();
    }
    if attention & (OLDER | DRIVEN) == OLDER {
        give_way(worker, fiber);
    }
}

/// Suspends if something older than what runs here is ready. The fiber stands in the ready queue meanwhile, at the place of its age: nothing younger goes before it.
fn give_way(worker: &Worker, fiber: &Fiber) {
    let may_leave = fiber.context().no_suspend().get() == 0
        && fiber.request().is_some()
        && !callback::is_inside()
        && !std::thread::panicking();
    mutant!("join_never_gives_way", return);
    if !may_leave || !worker.older_is_ready() || worker.reserve_coroutine().is_err() {
        return;
    }
    // Its place among those of one key goes by where its request stands now.
    fiber.descent.set(Descent::of_top(fiber.request()));
    mutant!("gives_way_as_a_yield", worker.ready().push_yielded(NonNull::from(fiber), false), {
        worker.make_ready(NonNull::from(fiber));
    });
    mutant!("gives_way_twice", worker.make_ready(NonNull::from(fiber)));
    if let Some(next) = worker.leave_parked(fiber) {
        // SAFETY: as in `yield_now`.
        unsafe { leave_for(fiber, next) };
    }
}
