//! Code of the user's that the runtime calls for its own ends: the clock, and the hooks for warnings and for failures that nobody has
//! looked at.
//!
//! Such code belongs to no request, and its caller may be in the middle of any operation. So
//!
//! * it is called where the runtime holds nothing: no lock of its own, no wait begun, no queue half changed;
//! * it may read, notify, send without waiting, cancel and drop. It must neither wait nor make, submit for a wait or
//!   run a request. That is *refused* before anything is changed, by a panic that names the callback and what it did;
//! * a panic ends where it was called. One of a hook is reported in one line; a clock that panics leaves nothing to go by, and ends the
//!   process by name.
//!
//! # How it is refused
//!
//! While such a *call* lasts, the thread-local has its name. The fiber has no arena, so the fast ways of making, taking
//! and running a request are closed. And its count of regions that must not suspend is raised. The cold ways call
//! [`refuse`] first: making a request ([`crate::api::origin`]), waiting for one ([`crate::schedule::wait`]), and every
//! other wait, which reads that count ([`mod@crate::record::no_suspend`]). A `join` runs both of its arms here, and
//! publishes neither.
//!
//! Calls nest: a hook may ask for the time, and a clock may go by that of another runtime.
//!
//! # Invariants
//!
//! * **UC1** A call's name, and what it has changed of the fiber, are taken back before the call's frame is left, also by an unwind. No
//!   switch lies in between, since nothing suspends.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use forebear_context::context;

use crate::record::above::fiber_here;
use crate::record::fiber::Fiber;

forebear_context::shim::thread_local! {
    /// The name of the innermost call, and how many there are.
    static CALLED: Cell<Option<(&'static str, u32)>> = const { Cell::new(None) };
}

/// A runtime's clock is asked.
pub(crate) const CLOCK: &str = "the clock of a runtime";
/// The hook for warnings.
pub(crate) const ON_WARNING: &str = "the hook `on_warning`";
/// The hook for failures.
pub(crate) const ON_UNSEEN_FAILURE: &str = "the hook `on_unhandled_failure`";

/// An error that is written to standard error.
pub(crate) const DISPLAY: &str = "the `Display` of an error";
/// The subscriber of `tracing`.
#[cfg(feature = "tracing")]
pub(crate) const SUBSCRIBER: &str = "the subscriber of `tracing`";

/// Clocks that read each other recurse without end. A chain of more than a few makes no sense.
const DEEPEST: u32 = 16;

/// Calls `f`, which is the user's and has this name. A panic is answered.
pub(crate) fn call<R>(name: &'static str, f: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    context::user_code();
    let depth = inside().map_or(0, |(_, depth)| depth);
    if depth == DEEPEST {
        return Err(Box::new(format!("{name} comes back to itself")));
    }
    // None: the thread's locals are being destroyed, where nothing waits and nothing is made.
    let fiber = fiber_here();
    let before = CALLED.try_with(|called| called.replace(Some((name, depth + 1)))).ok().flatten();
    let change = |fiber: &Fiber| {
        let count = fiber.context().no_suspend();
        count.set(count.get() + 1);
        (fiber.arena.replace(ptr::null()), fiber.no_suspend.replace(Some(name.into())))
    };
    let was = fiber.map(|fiber| (fiber, change(fiber)));
    let result = catch_unwind(AssertUnwindSafe(f));
    // UC1.
    if let Some((fiber, (arena, outer))) = was {
        let count = fiber.context().no_suspend();
        fiber.arena.set(arena);
        fiber.no_suspend.set(outer);
        count.set(count.get() - 1);
    }
    let _ = CALLED.try_with(|called| called.set(before));
    result
}

fn inside() -> Option<(&'static str, u32)> {
    CALLED.try_with(Cell::get).ok().flatten()
}

/// Whether such code is being called on this thread.
#[cold]
pub(crate) fn is_inside() -> bool {
    inside().is_some()
}

/// Code on this thread is about to do `what`, which is forbidden inside such a callback.
///
/// # Panics
///
/// In such a call.
#[cold]
#[inline(never)]
#[track_caller]
pub(crate) fn refuse(what: &str) {
    if let Some(refused) = refusal(what) {
        panic!("{refused}");
    }
}

/// What that panic says, in such a call.
pub(crate) fn refusal(what: &str) -> Option<String> {
    let (name, _) = inside()?;
    Some(format!("forebear: {name} must not {what}: the runtime calls it, and would have to wait for itself"))
}
