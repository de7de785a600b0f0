//! Verdicts: what the waits are told that ended as [circular](forebear_context::context::Cause::Circular), until they look.
//!
//! A wait is ended under their lock, so who is woken by that finds its circle there.

use std::ptr;
use std::sync::PoisonError;

use forebear_context::context::{Context, Ticket};
use forebear_context::error::Cycle;
use forebear_context::shim::{Mutex, MutexGuard};

/// Of those that have not looked yet.
static VERDICTS: Mutex<Vec<Verdict>> = Mutex::new(Vec::new());

/// Where the wait's context is, which wait it was, and the circle.
pub(super) type Verdict = (usize, Ticket, Cycle);

pub(super) fn lock_verdicts() -> MutexGuard<'static, Vec<Verdict>> {
    VERDICTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the wait that goes on here, which nothing else can end, with these names. By the thread that it waits on, which then
/// makes it ready. False: it was over.
pub(crate) fn end(context: &Context, names: Vec<String>) -> bool {
    let ticket = context.ticket();
    let mut verdicts = lock_verdicts();
    let told = context.end_circular_wait();
    if told {
        verdicts.push((ptr::from_ref(context).addr(), ticket, Cycle::new(names)));
    }
    told
}

/// The circle for which the wait that `ticket` names was ended, which is over and was this context's.
#[cold]
pub(crate) fn verdict(context: &Context, ticket: Ticket) -> Option<Cycle> {
    let mut verdicts = lock_verdicts();
    let address = ptr::from_ref(context).addr();
    let at = verdicts.iter().position(|verdict| verdict.0 == address && verdict.1 == ticket)?;
    Some(verdicts.swap_remove(at).2)
}
