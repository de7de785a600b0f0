//! Regions in which a stack must not be left: [`no_suspend`].
//!
//! The count is the stack's, not the request's: whatever runs on top of the region must not suspend either, a target that a
//! wait runs right here included. A wait that would have to suspend panics. What cannot give up half-way, because others borrow from its frame (the end of a `scope`, a `join` whose second arm was taken, `run`), ends
//! the process by name.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::foreign;
use crate::header::Header;
use crate::hooks;
use crate::strand::Strand;

/// Calls `f`, and has every wait inside it panic that would suspend the request or block the thread; the message says
/// `name`. For calls into code that keeps a borrow in a thread-local for as long as they last (`scoped_tls` and its like),
/// which no other request of this worker may see.
///
/// Does not suspend. A wait for what is over already is none, and one that runs its target on this very stack does not
/// suspend, unless the target does: then the target has failed. A [`scope`](crate::scope()) or [`join`](crate::join()) inside that
/// would have to wait for another thread cannot give up, and ends the process with a message.
///
/// # Panics
///
/// With the panic of `f`.
///
/// ```
/// use forebear_runtime::{Request, WaitError, no_suspend};
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
    let Some(strand) = foreign::strand() else { return f() };
    let count = strand.context().no_suspend();
    count.set(count.get() + 1);
    let outer = strand.no_suspend.replace(Some(name.into()));
    let result = catch_unwind(AssertUnwindSafe(f));
    strand.no_suspend.set(outer);
    count.set(count.get() - 1);
    result.unwrap_or_else(|payload| resume_unwind(payload))
}

/// A wait on `strand` is about to suspend or block, for `what`: panics inside a region, and ends the process where a panic
/// would do no good.
#[cold]
pub(crate) fn refuse(strand: &Strand, what: &str, can_panic: bool) {
    let who = strand.request().map_or("a thread", Header::name);
    // SAFETY: the name lies in a frame of this stack, below this one.
    match strand.no_suspend.get().map(|name| unsafe { name.as_ref() }) {
        None => hooks::die(&format_args!(
            "request '{who}' waits for '{what}' inside a panic hook, which runs on the thread's own stack"
        )),
        Some(region) if can_panic => {
            panic!(
                "forebear: '{who}' waits for '{what}' inside the region '{region}', where it must not suspend"
            )
        }
        Some(region) => hooks::die(&format_args!(
            "'{who}' has to wait for '{what}' inside the region '{region}', where it must not suspend"
        )),
    }
}
