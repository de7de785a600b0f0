//! [`yield_now`]: letting others go first.

use forebear_context::error::Cancelled;

use crate::cancel;
use crate::record::fiber;
use crate::record::no_suspend;
use crate::schedule::driver;
use crate::schedule::worker::OnWorker;

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
        // SAFETY: K3; F2: we are on the fiber's stack. The yielder stands in the ready queue, and `next` does not.
        unsafe { fiber.context().switch().leave(Some(next.as_ref().context())) };
        // The worker is all that has to be known still: a fiber never changes it.
        if cancel::concerns_worker(&worker.post.attention) && cancel::refuses_here() {
            return Err(Cancelled::new());
        }
    }
    Ok(())
}
