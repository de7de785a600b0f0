//! A plain thread's wait for a scope: each second it checks whether the jobs can go on (`api/runtime/stuck_scope.rs`).

use std::time::Instant;

use forebear_context::context::{Context, Reason};

use crate::record::fiber::Fiber;
use crate::record::scope_core::ScopeCore;
use crate::shared::OfRuntime;
use crate::shared::late_end::first_word;

/// When a wait that has begun is first checked: in a second, if it is one for a scope.
pub(super) fn first_look(context: &Context) -> Option<Instant> {
    if context.waits_for().0 != Reason::Scope { None } else { first_word() }
}

/// Checks the wait. Returns when to check it next, if it is to be checked again. Called on the thread's own stack, inside the wait.
#[cold]
pub(super) fn look(fiber: &Fiber) -> Option<Instant> {
    let (Reason::Scope, target) = fiber.context().waits_for() else { return None };
    // SAFETY: a wait for a scope names it, and the scope lies in a frame of this stack that is left only after the wait.
    let scope = unsafe { &*target.cast::<ScopeCore>().cast_const() };
    let roots = scope.roots_left();
    // SAFETY: the owner is not over while a scope is in it.
    let owner = unsafe { scope.owner.as_ref() };
    // SAFETY: the handle keeps the header.
    let of = owner.or_else(|| roots.first().map(|job| unsafe { job.raw().as_ref() }));
    // SAFETY: M3: a request that was submitted, or runs, has an arena, which keeps the runtime's record.
    let shared = of.map(|h| unsafe { &*h.arena.get() }.shared());
    let again = shared.is_none_or(|shared| (shared.calls.check_scope)(scope, &roots, shared));
    again.then(first_word).flatten()
}
