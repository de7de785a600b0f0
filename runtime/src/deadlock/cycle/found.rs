//! Found cycles: what the waits get that ended as [circular](forebear_context::context::Cause::Circular), until they look.
//!
//! A wait is ended under their lock, so who is woken by that finds its cycle there.

use std::ptr;
use std::sync::PoisonError;

use forebear_context::context::{Context, Ticket};
use forebear_context::error::Cycle;
use forebear_context::shim::{Mutex, MutexGuard};

/// Of those that have not looked yet.
static FOUND: Mutex<Vec<FoundCycle>> = Mutex::new(Vec::new());

/// Where the wait's context is, which wait it was, and the cycle.
pub(super) type FoundCycle = (usize, Ticket, Cycle);

pub(super) fn lock_found() -> MutexGuard<'static, Vec<FoundCycle>> {
    FOUND.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the wait that goes on here, which nothing else can end, with these names. By the thread that it waits on, which then
/// makes it ready. False: it was over.
pub(crate) fn end(context: &Context, names: Vec<String>) -> bool {
    let ticket = context.ticket();
    let mut found = lock_found();
    let ended = context.end_circular_wait();
    if ended {
        found.push((ptr::from_ref(context).addr(), ticket, Cycle::new(names)));
    }
    ended
}

/// The cycle for which the wait that `ticket` names was ended, which is over and was this context's.
#[cold]
pub(crate) fn take_cycle(context: &Context, ticket: Ticket) -> Option<Cycle> {
    let mut found = lock_found();
    let address = ptr::from_ref(context).addr();
    let at = found.iter().position(|take_cycle| take_cycle.0 == address && take_cycle.1 == ticket)?;
    Some(found.swap_remove(at).2)
}
