//! Who has started and not ended: found by a look at the stacks of all workers, while they go on.
//!
//! A worker that is stuck in somebody's loop answers nothing. So whoever wants to know looks at its carriers himself. What he
//! reads may change under his eyes, but the memory that he reads is there: carriers while their list is locked (K5), the
//! strand of a foreign thread while its desk is, requests because none is given back while anybody looks ([`crate::graves`]). That what he has read belongs together he finds out afterwards: the request on top is still the same,
//! no request has been started on that worker meanwhile, and each one read says that it runs on that stack. Otherwise he
//! looks again.

use std::ptr;

use forebear_context::context::{Context, Reason};
use forebear_context::shim::atomic::{Ordering, fence};
use forebear_context::shim::thread;

use super::finish::Laggard;
use crate::any::{self, RequestId, State};
use crate::foreign;
use crate::graves;
use crate::header::{ARM, Header};
use crate::home::Home;
use crate::scope::ScopeCore;
use crate::shared::Shared;
use crate::strand::Strand;
use crate::word::{Confided, SECRET};
use crate::worker::Worker;

/// How often a stack is looked at that changes all the while: then it is on the move, and so no stuck one.
const LOOKS: usize = 100;
/// No stack holds more requests than this.
const DEEPEST: usize = 1 << 20;

/// One that was found.
struct Found {
    laggard: Laggard,
    header: *const Header,
    /// What it waits for, if that is a request.
    target: *const Header,
    scope: *const ScopeCore,
}

/// All that have started and are not over, by worker and from the top of each stack down; then scopes in foreign threads that
/// wait for one of them.
pub(super) fn find(shared: &Shared) -> Vec<Laggard> {
    let mut found = Vec::new();
    graves::look(|| {
        each_stack(shared, |strand, home, worker| {
            let count = || match worker {
                Some(worker) => worker.started.get() + worker.direct.get(),
                None => shared.foreign_direct_count.load(Ordering::Relaxed),
            };
            look(strand, home, worker.map(|worker| worker.index), &count, &mut found);
        });
        name_targets(&mut found);
    });
    let scopes = scopes(&found);
    found.into_iter().map(|found| found.laggard).chain(scopes).collect()
}

/// How many have started and are not over. A stack that changes under the look counts as it was read last.
pub(super) fn count(shared: &Shared) -> usize {
    let mut all = 0;
    graves::look(|| {
        each_stack(shared, |strand, home, _| {
            let depth = || {
                let mut depth = 0;
                let top: *const Header = strand.request.get();
                walk(strand, top, home, |h| depth += usize::from(!h.is(ARM))).then_some(depth)
            };
            all += (0..LOOKS).find_map(|_| depth()).unwrap_or(1);
        });
    });
    all
}

/// Calls `with` for each stack that a request of the runtime may stand on, its home, and its worker if it has one.
fn each_stack(shared: &Shared, mut with: impl FnMut(&Strand, &Home, Option<&Worker>)) {
    for worker in shared.workers() {
        worker.post.each_carrier(|carrier| {
            // SAFETY: K5: the list is locked.
            let strand = unsafe { &carrier.as_ref().strand };
            with(strand, worker.home(), Some(worker));
        });
    }
    for home in shared.depot.foreign() {
        // SAFETY: homes stay as long as the record.
        let home = unsafe { home.as_ref() };
        home.desk.look(|context| {
            // SAFETY: what a desk names is a foreign strand's, which stays while the desk is locked.
            with(unsafe { foreign::of_context(context) }, home, None);
        });
    }
}

/// Looks at one stack, which may change meanwhile.
fn look(
    strand: &Strand,
    home: &Home,
    worker: Option<usize>,
    count: &dyn Fn() -> u64,
    found: &mut Vec<Found>,
) {
    for _ in 0..LOOKS {
        let before = count();
        fence(Ordering::Acquire);
        let top = strand.request.get();
        let here = frames(strand, top, home, worker);
        fence(Ordering::Acquire);
        let same = ptr::eq(top, strand.request.get()) && before == count();
        if let Some(here) = here.filter(|_| same) {
            found.extend(here);
            return;
        }
        thread::yield_now();
    }
}

/// What a wait for something that another holds is for: a lock, and where it is waited for.
fn owned_by_another(context: &Context, reason: Reason) -> String {
    // It may have ended by now.
    let held = context.hold(context.ticket());
    // SAFETY: the wait is held.
    let wait = held.as_ref().and_then(|held| unsafe { held.context().owner_wait() });
    wait.map_or_else(|| reason.to_string(), ToString::to_string)
}

/// The requests on a stack from `top` down, those that belong to `home`. `None`: they do not belong together.
fn frames(strand: &Strand, top: *const Header, home: &Home, worker: Option<usize>) -> Option<Vec<Found>> {
    let mut frames = Vec::new();
    let mut above: Option<String> = None;
    let belong_together = walk(strand, top, home, |h| {
        let name = if h.is(ARM) { h.identity().name() } else { h.name() }.to_owned();
        let context = strand.context();
        let (reason, target) = context.waits_for();
        let on_top = above.is_none();
        let waits = on_top && context.is_waiting() && reason != Reason::None;
        let waits_for = match (&above, reason) {
            (Some(above), _) => Some(format!("request '{above}', on the same stack")),
            _ if !waits => None,
            (_, Reason::None | Reason::Yield) => None,
            (_, reason) if reason.has_owner() => Some(owned_by_another(context, reason)),
            (_, reason) => Some(reason.to_string()),
        };
        let parked = !on_top || waits;
        frames.push(Found {
            laggard: Laggard {
                id: any::id_of(h),
                name: name.clone(),
                state: if parked { State::Suspended } else { State::Running },
                worker,
                waits_for,
            },
            header: h,
            target: if waits && reason == Reason::Request { target.cast() } else { ptr::null() },
            scope: h.scope.get(),
        });
        above = Some(name);
    });
    belong_together.then_some(frames)
}

/// Calls `with` for the requests on a stack from `top` down that belong to `home` and are not over. False: they do not belong
/// together.
fn walk(strand: &Strand, top: *const Header, home: &Home, mut with: impl FnMut(&Header)) -> bool {
    let mut at = top;
    for _ in 0..DEEPEST {
        // SAFETY: it was on the stack after the look began, so its memory stays until that is over; and what is or was a header
        // has nothing but headers below it.
        let Some(h) = (unsafe { at.as_ref() }) else { return true };
        let here = ptr::eq(h.strand.load(Ordering::Relaxed), strand);
        let ran_here = ptr::eq(h.ran_on.load(Ordering::Relaxed), home);
        let below = h.lender.get();
        // A look only: whoever it is may be over, and is not to be written to.
        let bits = h.bare.load();
        let over = bits.is_terminal() || bits.has(SECRET) && h.secret.is(Confided::Done);
        if here && ran_here && !over {
            with(h);
        } else if !here {
            return false;
        }
        at = below;
    }
    false
}

/// What waits for one that was found is told so by name.
fn name_targets(found: &mut [Found]) {
    for n in 0..found.len() {
        let target = found[n].target;
        if !target.is_null()
            && let Some(at) = found.iter().position(|other| ptr::eq(other.header, target))
        {
            found[n].laggard.waits_for = Some(format!("request '{}'", found[at].laggard.name));
        }
    }
}

/// Scopes in foreign threads that wait for one that was found.
fn scopes(found: &[Found]) -> Vec<Laggard> {
    let mut scopes = Vec::new();
    crate::parked::each_scope(|thread, scope| {
        if let Some(job) = found.iter().find(|found| ptr::eq(found.scope, scope)) {
            scopes.push(Laggard {
                id: RequestId::next(),
                name: format!("a scope in thread '{thread}'"),
                state: State::Suspended,
                worker: None,
                waits_for: Some(format!("request '{}'", job.laggard.name)),
            });
        }
    });
    scopes
}
