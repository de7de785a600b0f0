//! [`no_suspend`]: opens a region in which a stack must not be left. The rule is in [`mod@crate::record::no_suspend`].

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::foreign;
use forebear_context::error::internal::resume;

/// Calls `f`, and has every wait inside it panic that would suspend the request or block the thread; the message says
/// `name`. For calls into code that keeps a borrow in a thread-local for as long as they last (`scoped_tls` and its like),
/// which no other request of this worker may see.
///
/// Does not suspend. A wait for a request that is over returns at once. A wait that runs its target on this stack is
/// allowed, too; if the target would suspend, the target fails.
///
/// [`Runtime::run`](crate::Runtime::run) inside panics at the call, and so does the first spawn into a
/// [`scope`](crate::scope()) that was opened inside. Both would have to wait for code that borrows from them, and could
/// not return early. [`join`](crate::join()) runs both of its closures here, one after the other.
///
/// # Panics
///
/// With the panic of `f`.
///
/// ```
/// use forebear::{Request, WaitError, no_suspend};
///
/// let (go, went) = std::sync::mpsc::channel();
/// let job = Request::builder().name("render").build(move || {
///     let input = Request::builder().own_stack().spawn(move || went.recv()); // never run here
///     no_suspend("gl context", || drop(input.wait()))
/// });
/// let Err(WaitError::Failed(failure)) = job.wait() else { panic!() };
/// assert!(failure.panic_message().unwrap().contains("gl context"));
/// go.send(7).ok();
/// ```
pub fn no_suspend<R>(name: &str, f: impl FnOnce() -> R) -> R {
    let Some(fiber) = foreign::fiber() else { return f() };
    let count = fiber.context().no_suspend();
    count.set(count.get() + 1);
    let outer = fiber.no_suspend.replace(Some(name.into()));
    let result = catch_unwind(AssertUnwindSafe(f));
    fiber.no_suspend.set(outer);
    count.set(count.get() - 1);
    result.unwrap_or_else(|payload| resume(payload))
}
