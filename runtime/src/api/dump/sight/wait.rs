//! Where one wait leads: what the waiter waits for, and who holds or owes it.

use std::ptr;

use forebear_context::context::edge::Held;
use forebear_context::context::{Context, Label, Reason};
use forebear_context::shim::thread;

use super::{Certainty, Leads, Seen, life_of, see, see_edges};
use crate::api::dump::{WaitInfo, text};
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::shared::{OfRuntime, Shared};

/// How often a dump tries to hold a wait that another thread holds, or has chosen.
const TRIES: usize = 100;

/// Holds the wait that continues, if it has parked.
pub(super) fn hold(context: &Context) -> Option<Held<'_>> {
    for _ in 0..TRIES {
        let ticket = context.ticket();
        if !context.is_parked() {
            return None;
        }
        if let held @ Some(_) = context.hold(ticket) {
            return held;
        }
        // Another thread holds it, or it has been chosen, and continues soon.
        thread::yield_now();
    }
    None
}

/// What a wait is for.
pub(super) struct SeenWait {
    pub(super) info: WaitInfo,
    pub(super) leads: Leads,
    /// The request that is waited for.
    pub(super) target: Option<Seen>,
    /// The runtime of that.
    pub(super) of: *const Shared,
}

/// What a held wait is for.
pub(super) fn describe(held: &Held<'_>, fiber: &Fiber) -> SeenWait {
    let (reason, target) = held.waits_for();
    let mut wait = SeenWait {
        info: WaitInfo { reason, what: reason.to_string(), owners: Vec::new(), since: None },
        leads: Leads::default(),
        target: None,
        of: ptr::null(),
    };
    match reason {
        Reason::Request | Reason::Arm => {
            // SAFETY: the waiter has a count of its target, and the wait is held.
            if let Some(target) = unsafe { target.cast::<Header>().as_ref() } {
                let mut seen = see(target, life_of(target), Certainty::Wanted, true);
                seen.info.waits_for = see_edges(target);
                // SAFETY: M3: the target has an arena.
                wait.of = unsafe { target.arena.get().as_ref() }.map_or(ptr::null(), |arena| arena.shared());
                wait.info.owners.push(seen.party());
                if reason == Reason::Request {
                    wait.info.what = format!("request {}", text::quoted(&seen.info.name));
                }
                wait.target = Some(seen);
            }
        }
        Reason::Scope => wait.leads.scope = target.addr(),
        // The innermost scope is the pool's.
        Reason::Pool => wait.leads.scope = fiber.scopes.get().addr(),
        // SAFETY: the wait is held.
        _ => match unsafe { held.context().owner_wait() } {
            Some(owned) => {
                wait.info.what = owned.to_string();
                // SAFETY: the wait is held.
                wait.leads.holder =
                    unsafe { owned.owner() }.map_or(0, |holder| holder.as_ptr().expose_provenance());
                wait.leads.whole = owned.whole().map_or(0, |whole| whole.addr().get());
            }
            None => {
                // SAFETY: the wait is held.
                let label = unsafe { held.context().awaited_name() }.map_or(Label::NONE, Label::new);
                wait.info.what = format!("{reason}{label}");
            }
        },
    }
    wait
}
