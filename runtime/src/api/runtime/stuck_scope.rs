//! A scope of a plain thread that waits, and none of whose jobs can go on: a warning names the jobs.
//!
//! The waiting thread checks this itself, each second while it waits. A job *goes on* if it runs, sleeps, or waits for a request that goes on. The check
//! follows what a dump knows of the owners of waits. A job that has not started goes on if any request of its runtime runs. So a scope whose jobs compute
//! for a long time gives no warning. Nor does a scope that was stopped: it has no list of its jobs any more (`cancel/scope.rs`).
//!
//! The thread is in the middle of a wait, where no user code may run. So the hook is called on a thread that is started for it, which gets the text and
//! the runtime's record, and never refers to the scope.

use std::collections::{HashMap, HashSet};
use std::ptr;

use forebear_context::context::Reason;

use super::laggards::into_laggard;
use super::late::list;
use crate::api::any::{AnyRequest, RequestId, State};
use crate::api::dump::{self, Party, Seen};
use crate::record::reclaim;
use crate::record::scope_core::ScopeCore;
use crate::shared::thread::warn_elsewhere;
use crate::shared::{OfRuntime, Shared};

/// Checks a scope that its thread waits for, between the begin of the wait and its end. `jobs` are those of its jobs that are roots and not over; `shared` is
/// the runtime that the scope or one of these belongs to. Returns whether to check again later: the warning has not been given.
#[cold]
pub(super) fn check(scope: &ScopeCore, jobs: &[AnyRequest], shared: &Shared) -> bool {
    let mut runtimes: Vec<&Shared> = vec![shared];
    for job in jobs {
        let of = of_runtime(job);
        if !runtimes.iter().any(|known| ptr::eq(*known, of)) {
            runtimes.push(of);
        }
    }
    let mut texts = Vec::new();
    for shared in runtimes {
        let started = reclaim::read_section(|| dump::started(shared));
        let jobs = jobs.iter().filter(|job| ptr::eq(of_runtime(job), shared));
        match stuck(started, jobs, ptr::from_ref(scope).addr()) {
            None => return true,
            Some(stuck) if stuck.is_empty() => {}
            Some(stuck) => texts.push((shared, stuck)),
        }
    }
    if texts.is_empty() {
        return true;
    }
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed thread");
    for (shared, stuck) in texts {
        let text = format!(
            "a scope in thread '{thread}' waits, and none of its jobs can go on: {}. Runtime::dump shows all requests; Scope::cancel ends the jobs",
            list(stuck)
        );
        if warn_elsewhere(shared.arc(), text).is_err() {
            // The next check tries again.
            return true;
        }
    }
    false
}

fn of_runtime(job: &AnyRequest) -> &Shared {
    // SAFETY: the handle keeps the header.
    let arena = unsafe { job.raw().as_ref() }.arena.get();
    // SAFETY: M3: a submitted request has an arena, which keeps its record.
    unsafe { &*arena }.shared()
}

/// The jobs that have not ended, in words; `None` if one of them goes on. `roots` are those that are roots, of this runtime.
fn stuck<'a>(
    started: Vec<Seen>,
    roots: impl Iterator<Item = &'a AnyRequest>,
    scope: usize,
) -> Option<Vec<String>> {
    let any_runs = started.iter().any(|one| one.info.state == State::Running);
    // A published arm of a join has the number of its request.
    let mut by_id: HashMap<RequestId, Vec<&Seen>> = HashMap::new();
    for one in &started {
        by_id.entry(one.info.id).or_default().push(one);
    }
    let unstarted: Vec<_> = roots.filter(|root| !by_id.contains_key(&root.id()) && !root.is_done()).collect();
    if any_runs && !unstarted.is_empty() {
        return None;
    }
    let mut next: Vec<RequestId> =
        started.iter().filter(|one| one.scope == scope).map(|one| one.info.id).collect();
    let mut seen: HashSet<RequestId> = next.iter().copied().collect();
    while let Some(id) = next.pop() {
        let Some(parts) = by_id.get(&id) else {
            // It has not started, or belongs to another runtime.
            if any_runs {
                return None;
            }
            continue;
        };
        for part in parts {
            let wait = part.info.waits_for.as_ref().filter(|wait| wait.reason != Reason::Sleep)?;
            next.extend(wait.owners.iter().filter_map(|owner| match owner {
                Party::Request { id, .. } => Some(*id).filter(|id| seen.insert(*id)),
                Party::Other { .. } => None,
            }));
        }
    }
    let unstarted = unstarted.into_iter().map(|root| format!("request '{}' (not started)", root.name()));
    let unstarted: Vec<_> = unstarted.collect();
    let jobs = started.into_iter().filter(|one| one.scope == scope).map(into_laggard);
    Some(jobs.map(|job| job.to_string()).chain(unstarted).collect())
}
