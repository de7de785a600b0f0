//! When nothing on a thread's seats can continue: is there anybody who could end one of the waits there, and if not, which is
//! answered as circular.
//!
//! The waits of a cycle end as circular when the last of them closes it, or at a survey ([`crate::deadlock::cycle`]): the driving thread
//! makes a survey that is due before anything else. What is left are waits that close no cycle and can still never end: their
//! chains lead to the ends of scopes and pools whose jobs are all suspended here. Where one wait leads out of the thread
//! (another seat, a guest, another runtime) somebody may still come. If none does, the innermost wait for a request is
//! answered, with the names along its chain.
//!
//! A request that is held back leads to its pool. A completion leads out of the thread: any thread may complete it. So does what waits for it
//! through declared dependencies ([`crate::api::after`]), and the end of a scope that has such a job.
//!
//! A dependent moves while this looks: its dependency ends, it is queued, another thread completes what it is after. So a dependent leads away
//! unless something that it is after is *seen* to stand here. That stays true while the stack there waits, which is looked at last.
//!
//! A sleep without an end is ended by a cancel alone. In the seeded mode, where all contexts are requests, nobody is left who could ask
//! for one. In the synchronous mode a thread that has no seat may: there it leads out of the thread.

use std::ptr::{self, NonNull};

use forebear_context::context::Reason;
use forebear_context::shim::atomic::Ordering;

use crate::deadlock::cycle;
use crate::deadlock::declared;
use crate::record::fiber::Fiber;
use crate::record::header::{AFTER, Header};
use crate::record::scope_core::ScopeCore;
use crate::schedule::held_back;
use crate::schedule::worker::OnWorker;
use crate::shared::driven::Seat;
use crate::state::word::HELD;

/// Where a wait leads.
enum Edge {
    /// To this stack of the thread's.
    Here(*const Fiber),
    /// To the end of others that cannot go on either.
    Others,
    /// To somebody who may come.
    Away,
}

/// Ends the innermost wait for a request here if nothing can end any. False: somebody may come.
///
/// On the thread whose seats these are, in its driver, with nothing ready. `host` is its own fiber. `others`: other threads have seats in further runtimes
/// that this thread deals with.
pub(crate) fn settle_stuck(seats: &[Seat], host: &Fiber, others: bool) -> bool {
    // What a single walk could not see as it closed.
    if seats.iter().any(|seat| seat.shared.survey.make_now()) {
        return true;
    }
    if seats.iter().any(|seat| seat.shared.deadlines.next().is_some()) {
        return false;
    }
    let has_others =
        |seat: &Seat| seat.shared.driven.as_ref().is_some_and(|driven| driven.has_others(seat.index));
    if others || seats.iter().any(has_others) {
        return false;
    }
    let mut waits: Vec<(u64, &Fiber)> = Vec::new();
    let mut all_wait = true;
    for seat in seats {
        seat.worker().driver().each_begun(|fiber| {
            all_wait &= fiber.context().is_waiting();
            // SAFETY: K3; if it waits it stays while this looks.
            waits.push((fiber.due.get().0, unsafe { &*ptr::from_ref(fiber) }));
        });
    }
    if !all_wait {
        // Another thread has woken it, perhaps by a survey, and it has not arrived here yet.
        return false;
    }
    let host_waits = host.context().is_waiting() && host.context().waits_for().0 != Reason::None;
    waits.extend(host_waits.then_some((0, host)));
    let leads_away = |fiber: &Fiber| match edge(seats, host, fiber) {
        // SAFETY: a stack of this thread's that a request runs on, which is not over. One that does not wait is ready, and
        // has not been seen yet.
        Edge::Here(next) => !unsafe { (*next).context() }.is_waiting(),
        Edge::Others => false,
        Edge::Away => true,
    };
    if waits.iter().any(|(_, fiber)| leads_away(fiber)) {
        return false;
    }
    let asks = |fiber: &Fiber| fiber.context().waits_for().0 == Reason::Request;
    // The innermost of these; the host began before all that it drives.
    let innermost = waits.iter().rev().filter(|(_, fiber)| asks(fiber)).max_by_key(|wait| wait.0);
    let Some(&(_, fiber)) = innermost else { return false };
    if !cycle::end(fiber.context(), names_along(seats, host, fiber)) {
        return false;
    }
    if let Some(worker) = fiber.worker() {
        worker.make_ready(NonNull::from(fiber));
    }
    true
}

/// The names along the waits, from `fiber` on.
fn names_along(seats: &[Seat], host: &Fiber, fiber: &Fiber) -> Vec<String> {
    let mut path = vec![fiber];
    while let Some(at) = path.last()
        && let Edge::Here(next) = edge(seats, host, at)
        && !path.iter().any(|on| ptr::eq(*on, next))
    {
        // SAFETY: a stack of this thread's that a request runs on, which is not over.
        path.push(unsafe { &*next });
    }
    let mut names = Vec::new();
    for (at, on) in path.iter().enumerate() {
        names.push(on.request().map_or("the calling thread", Header::name).to_owned());
        let (reason, target) = on.context().waits_for();
        // What it waits for may stand below what runs on that stack.
        if reason == Reason::Request
            // SAFETY: a waiter holds a count of what it waits for.
            && let Some(target) = unsafe { target.cast::<Header>().as_ref() }
            && !path.get(at + 1).and_then(|next| next.request()).is_some_and(|top| ptr::eq(top, target))
        {
            names.push(target.name().to_owned());
        }
    }
    names
}

/// Whether a seed decides what runs on it.
fn is_seeded(fiber: &Fiber) -> bool {
    fiber.worker().is_some_and(|worker| worker.driver().chance.is_some())
}

/// Where the wait of `fiber` leads.
fn edge(seats: &[Seat], host: &Fiber, fiber: &Fiber) -> Edge {
    let (reason, target) = fiber.context().waits_for();
    let h = match (reason, NonNull::new(target.cast::<Header>())) {
        (Reason::Scope, _) => {
            // SAFETY: C4: the scope stays while its fiber, which is this thread's, waits.
            let scope = unsafe { target.cast::<ScopeCore>().as_ref() };
            return if scope.is_some_and(ScopeCore::has_dependents) { Edge::Away } else { Edge::Others };
        }
        (Reason::Pool, _) => return Edge::Others,
        // One that has an end is armed.
        (Reason::Sleep, _) if is_seeded(fiber) => return Edge::Others,
        // SAFETY: a waiter holds a count of what it waits for.
        (Reason::Request | Reason::Arm, Some(target)) => unsafe { target.as_ref() },
        _ => return Edge::Away,
    };
    match h.is(AFTER) && h.word().load().life() == HELD {
        true => edge_of_dependent(seats, host, h),
        false => edge_to(seats, host, h),
    }
}

/// Where the wait for a dependent leads.
fn edge_of_dependent(seats: &[Seat], host: &Fiber, h: &Header) -> Edge {
    let mut leads = edge_to(seats, host, h);
    let is_owed = declared::any_dependency(h, |dependency| {
        match edge_to(seats, host, dependency) {
            Edge::Away => {}
            found => leads = found,
        }
        held_back::is_completion(dependency)
    });
    if is_owed { Edge::Away } else { leads }
}

/// Where a wait for this request leads, not through what it is after.
fn edge_to(seats: &[Seat], host: &Fiber, h: &Header) -> Edge {
    let bits = h.word().load();
    if bits.is_unstarted() {
        return if held_back::is_held_by_pool(h) { Edge::Others } else { Edge::Away };
    }
    if bits.is_terminal() {
        return Edge::Away;
    }
    let at = h.fiber.load(Ordering::Relaxed).cast_const();
    // SAFETY: M3: arenas stay while headers of them do.
    let arena = unsafe { h.ran_on.load(Ordering::Relaxed).as_ref() };
    match arena {
        _ if ptr::eq(at, host) => Edge::Here(at),
        Some(arena) if seats.iter().any(|seat| ptr::eq(seat.worker().arena(), arena)) => Edge::Here(at),
        _ => Edge::Away,
    }
}
