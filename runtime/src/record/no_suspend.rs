//! Regions in which a stack must not be left: [`no_suspend`](crate::no_suspend()).
//!
//! The count is the stack's, not the request's: whatever runs on top of the region must not suspend either, a target that a
//! wait runs right here included.
//!
//! # The rule
//!
//! Inside a region the thread runs nothing but the region's own code: no other request of the worker, and none of a runtime that the thread drives.
//!
//! * A wait that would have to suspend the request, or to block the thread, panics before it has begun anything.
//! * What lends its frame, and therefore cannot give up later, is refused before it lends. [`Runtime::run`](crate::Runtime::run) panics at the
//!   call. A [`scope`](crate::scope()) that was opened inside panics at its first spawn, wherever that is; the name of the region is in the message.
//!   A [`join`](crate::join()) runs both closures here: no arm of the stack is published while a region is open on it.
//! * A submit queues, and runs nothing here. The last handle of a runtime without threads leaves its end to the next wait of the thread, or to the
//!   thread's end.
//!
//! So no wait inside a region has anything lent, and each may panic. If one came to suspend all the same the process would end ([`die`]).

use std::ptr::NonNull;

use crate::record::callback;
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::record::report;

/// The name of the innermost region that is open on this stack, if any.
#[inline(always)]
pub(crate) fn region(fiber: &Fiber) -> Option<NonNull<str>> {
    match fiber.context().no_suspend().get() {
        0 => None,
        _ => Some(fiber.no_suspend.get().unwrap_or(NonNull::from("a panic hook"))),
    }
}

/// A job is about to be spawned into a scope that was opened in this region: panics.
#[cold]
#[track_caller]
pub(crate) fn refuse_job(region: &str) -> ! {
    callback::refuse("make a request");
    panic!(
        "forebear: a job is spawned into a scope that was opened inside the region '{region}', where it must not suspend: \
         the scope could not wait for the job"
    )
}

/// A wait on `fiber` is about to suspend or block, for `what`, inside a region or a callback: panics, where its caller is called.
#[cold]
#[track_caller]
pub(crate) fn refuse(fiber: &Fiber, what: &str) -> ! {
    panic!("{}", refusal(fiber, what))
}

/// What that panic says. Inside a panic hook, where it would do no good, the process ends.
#[cold]
pub(crate) fn refusal(fiber: &Fiber, what: &str) -> String {
    if let Some(refused) = callback::refusal(&format!("wait for '{what}'")) {
        return refused;
    }
    let who = who(fiber);
    let region = region_or_die(fiber, what);
    format!("forebear: '{who}' waits for '{what}' inside the region '{region}', where it must not suspend")
}

/// The same for a wait whose frame is lent, so that a panic would do no good anywhere: the process ends.
#[cold]
pub(crate) fn die(fiber: &Fiber, what: &str) -> ! {
    let who = who(fiber);
    let region = region_or_die(fiber, what);
    report::die(&format_args!(
        "'{who}' has to wait for '{what}' inside the region '{region}', where it must not suspend"
    ))
}

fn who(fiber: &Fiber) -> &str {
    fiber.request().map_or("a thread", Header::name)
}

/// The region. If there is none, this is a panic hook.
fn region_or_die<'a>(fiber: &'a Fiber, what: &str) -> &'a str {
    match fiber.no_suspend.get() {
        // SAFETY: the name lies in a frame of this stack, below this one.
        Some(name) => unsafe { &*name.as_ptr() },
        None => report::die(&format_args!(
            "request '{}' waits for '{what}' inside a panic hook, which runs on the thread's own stack",
            who(fiber)
        )),
    }
}
