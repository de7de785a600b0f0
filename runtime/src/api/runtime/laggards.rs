//! The requests that have started and not ended. They are found by reading the stacks of all workers while these
//! run.
//!
//! A worker that is stuck in somebody's loop answers nothing, and this is asked when somebody is stuck. So it asks nobody, and sees what
//! a dump sees of a worker that does not answer ([`crate::api::dump`]).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ptr;

use forebear_context::context::Reason;
use forebear_pool::WorkerState;

use super::shutdown_error::Laggard;
use crate::api::any::{RequestId, State};
use crate::api::dump::{self, ON_THE_SAME_STACK, RequestInfo, Seen, WaitInfo};
use crate::record::reclaim;
use crate::shared::Shared;

/// So many owners of one thing are named.
const SHOWN: usize = 8;

/// All requests that have started and are not over, by worker, and from the top of each stack down. A request whose `join` has a branch on another
/// stack stands there once. Then destructors
/// that wait outside of any request. Then scopes in foreign threads that wait for one of these.
pub(super) fn find(shared: &Shared) -> Vec<Laggard> {
    let (found, nameless) = reclaim::read_section(|| (dump::started(shared), dump::nameless(shared)));
    let scopes = scopes(&found);
    let nameless = nameless.into_iter().map(into_nameless);
    let found = once_each(found);
    found.into_iter().map(into_laggard).chain(nameless).chain(scopes).collect()
}

/// Each request once: as it was seen to run, else in the wait that tells most. That for a branch of its own tells least.
fn once_each(found: Vec<Seen>) -> Vec<Seen> {
    let told = |seen: &Seen| match &seen.info.waits_for {
        _ if seen.info.state == State::Running => 3,
        Some(wait) if wait.reason != Reason::Arm => 2,
        Some(_) => 1,
        None => 0,
    };
    let mut each: Vec<Seen> = Vec::with_capacity(found.len());
    let mut places = HashMap::new();
    for seen in found {
        match places.entry(seen.info.id) {
            Entry::Vacant(place) => {
                place.insert(each.len());
                each.push(seen);
            }
            Entry::Occupied(place) => {
                let before = &mut each[*place.get()];
                if told(&seen) > told(before) {
                    *before = seen;
                }
            }
        }
    }
    each
}

/// A destructor of captures that never ran, of an error or of a value, which a worker's loop has called.
fn into_nameless((worker, wait): (usize, WaitInfo)) -> Laggard {
    Laggard {
        id: RequestId::next(),
        name: "a destructor outside of any request".to_owned(),
        state: State::Suspended,
        worker: Some(worker),
        waits_for: Some(in_words(wait)),
    }
}

pub(super) fn into_laggard(seen: Seen) -> Laggard {
    let RequestInfo { id, name, state, worker, waits_for, .. } = seen.info;
    Laggard { id, name, state, worker, waits_for: waits_for.map(in_words) }
}

/// The workers whose threads have left their loops and not exited: they destroy thread-locals. To be asked when that has taken a while.
pub(super) fn exiting(shared: &Shared) -> Vec<Laggard> {
    let into_laggard = |worker| Laggard {
        id: RequestId::next(),
        name: "the destructor of a thread-local".to_owned(),
        state: State::Running,
        worker: Some(worker),
        waits_for: None,
    };
    shared.ending.workers_exiting().into_iter().map(into_laggard).collect()
}

/// What the stacks do not show: workers and threads that run user code outside any request, and do not wait in it; else workers that the system has not run since they
/// were woken. To be called when nothing else is found and yet a worker or thread has not left. `states` are those of the workers.
pub(super) fn unseen(shared: &Shared, states: &[WorkerState]) -> Vec<Laggard> {
    let gone = shared.ending.workers_left();
    let is_here = |worker: &usize| !gone[*worker];
    let is_busy = |worker: &usize| matches!(states[*worker], WorkerState::Running | WorkerState::Searching);
    let into_laggard = |worker, name: &str| Laggard {
        id: RequestId::next(),
        name: name.to_owned(),
        state: State::Running,
        worker,
        waits_for: None,
    };
    let workers = (0..states.len()).filter(is_here).filter(is_busy).map(Some);
    let threads = shared.ending.has_foreign().then_some(None);
    let code = |worker| into_laggard(worker, "code outside of any request");
    let found: Vec<_> = workers.chain(threads).map(code).collect();
    if !found.is_empty() {
        return found;
    }
    let late = |worker| into_laggard(Some(worker), "a worker's thread that has not ended yet");
    (0..states.len()).filter(is_here).map(late).collect()
}

/// What is waited for, and who holds or owes it.
fn in_words(wait: WaitInfo) -> String {
    let owners: Vec<String> =
        wait.owners.iter().take(SHOWN).map(|owner| format!("'{}'", owner.name())).collect();
    let owners = owners.join(", ");
    match wait.reason {
        _ if owners.is_empty() => wait.what,
        Reason::Request if wait.what.ends_with(ON_THE_SAME_STACK) => {
            format!("request {owners}{ON_THE_SAME_STACK}")
        }
        Reason::Request => format!("request {owners}"),
        reason if reason.has_owner() => format!("{}, held by {owners}", wait.what),
        _ => format!("{}: {owners}", wait.what),
    }
}

/// How many have started and are not over. A stack that changes under the look counts as one.
pub(super) fn count(shared: &Shared) -> usize {
    reclaim::read_section(|| dump::count_started(shared))
}

/// Requests that have not started, since what they are after is up to a completer, in words: each, and what it waits for.
pub(super) fn held(shared: &Shared) -> Vec<String> {
    let in_words = |Seen { info, .. }: Seen| {
        let wait = info.waits_for.map_or_else(String::new, |wait| format!(", waits for {}", in_words(wait)));
        format!("request '{}' (not started{wait})", info.name)
    };
    dump::held(shared).into_iter().map(in_words).collect()
}

/// Whether none is found, of requests, of destructors that wait outside of any, and of dependents that are after completions.
pub(super) fn is_empty(shared: &Shared) -> bool {
    if shared.awaits_completions() {
        return false;
    }
    reclaim::read_section(|| dump::count_started(shared) == 0 && dump::nameless(shared).is_empty())
}

/// Scopes in foreign threads that wait for one that was found.
fn scopes(found: &[Seen]) -> Vec<Laggard> {
    let mut scopes = Vec::new();
    crate::shared::parked::each_scope(|thread, scope| {
        if let Some(job) = found.iter().find(|found| found.scope == ptr::from_ref(scope).addr()) {
            scopes.push(Laggard {
                id: RequestId::next(),
                name: format!("a scope in thread '{thread}'"),
                state: State::Suspended,
                worker: None,
                waits_for: Some(format!("request '{}'", job.info.name)),
            });
        }
    });
    scopes
}
