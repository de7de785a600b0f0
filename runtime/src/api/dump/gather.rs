//! Gathers what was seen of a runtime: each request once, in the order of a dump, with the owners of what it waits for.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ptr::NonNull;

use forebear_context::context::Context;
use forebear_context::shim::Arc;
use forebear_pool::WorkerState;

use super::answer::{ask_all, see_from_outside};
use super::sight::{self, Certainty, Seen};
use super::{Dump, Party, WaitInfo, WorkerInfo};
use crate::api::any::RequestId;
use crate::record::reclaim;
use crate::schedule::worker::HasWorkers;
use crate::shared::Shared;
use crate::shared::sightings::first_tick;
use crate::time::coarse;

/// Looks at all there is. `states` are those of the workers.
pub(crate) fn take(shared: &Arc<Shared>, states: &[WorkerState]) -> Dump {
    reclaim::read_section(|| {
        let mut seen = Vec::new();
        sight::see_shared_queues(shared, &mut seen);
        let answers = ask_all(shared);
        let mut threads = Vec::new();
        sight::see_foreign(shared, &mut seen, &mut threads);
        let mut workers = Vec::new();
        for (worker, answer) in shared.workers().iter().zip(answers) {
            let answered = answer.is_some();
            let answer = answer.unwrap_or_else(|| see_from_outside(worker));
            seen.extend(answer.seen);
            if shared.driven.is_none() {
                let state = states.get(worker.index).copied().unwrap_or(WorkerState::Stopped);
                let (index, runs, private) = (worker.index, answer.runs, answer.private);
                workers.push(WorkerInfo { index, state, answered, runs, private });
            }
        }
        sight::see_shared_queues(shared, &mut seen);
        sight::see_completions(shared, &mut seen);
        let mut seen = sort(distinct(seen));
        name_owners(&mut seen, &mut threads);
        let (earlier, now) = (shared.sightings.all(), coarse::now(shared));
        for one in &mut seen {
            one.info.known_for = coarse::between(first_tick(&earlier, one.info.id), now);
        }
        shared.sightings.note(|| coarse::now(shared));
        let requests = seen.into_iter().map(|seen| seen.info).collect();
        Dump { runtime: shared.name.clone(), workers, requests, threads: sight::thread_infos(threads) }
    })
}

/// What has started, as it is seen from outside, by worker and from the top of each stack down. Inside [`reclaim::read_section`].
pub(crate) fn started(shared: &Shared) -> Vec<Seen> {
    let mut seen = Vec::new();
    sight::each_stack(shared, |fiber, place| sight::see_stack(fiber, place, false, &mut seen));
    seen.retain(|seen| seen.certainty == Certainty::Started);
    name_owners(&mut seen, &mut Vec::new());
    seen
}

/// What is after completions, directly or not, and waits for them, in the order of a dump.
pub(crate) fn held(shared: &Shared) -> Vec<Seen> {
    let mut seen = Vec::new();
    sight::see_completions(shared, &mut seen);
    seen.retain(|seen| seen.info.waits_for.is_some());
    sort(distinct(seen))
}

/// The waits of code of the user's that runs outside of any request, on workers' stacks. Inside [`reclaim::read_section`].
pub(crate) fn nameless(shared: &Shared) -> Vec<(usize, WaitInfo)> {
    let mut seen = Vec::new();
    sight::each_stack(shared, |fiber, place| seen.extend(sight::see_nameless(fiber, place)));
    seen
}

/// How many have started and are not over, the arms of joins not counted. Inside [`reclaim::read_section`].
pub(crate) fn count_started(shared: &Shared) -> usize {
    let mut all = 0;
    sight::each_stack(shared, |fiber, place| all += sight::depth(fiber, place));
    all
}

/// What was seen twice once: where it was seen to be farthest on.
fn distinct(mut seen: Vec<Seen>) -> Vec<Seen> {
    sort_by(&mut seen, &|a, b| b.certainty.cmp(&a.certainty));
    let mut known = HashSet::new();
    seen.retain(|seen| known.insert((seen.info.id, seen.info.is_arm.then_some(seen.header))));
    seen
}

/// Sorts; equal ones keep their order. By one type of comparison: the code of each kind of sort is in every program.
fn sort_by(seen: &mut [Seen], compare: &dyn Fn(&Seen, &Seen) -> Ordering) {
    seen.sort_by(compare);
}

/// Generation by generation; within one by the parents' order, then by rank.
fn sort(mut seen: Vec<Seen>) -> Vec<Seen> {
    let in_generations = |seen: &Seen| (seen.depth, seen.key, seen.rank, seen.info.id);
    sort_by(&mut seen, &|a, b| in_generations(a).cmp(&in_generations(b)));
    let mut order: HashMap<RequestId, usize> = HashMap::new();
    let mut from = 0;
    while from < seen.len() {
        let depth = seen[from].depth;
        let to = from + seen[from..].partition_point(|seen| seen.depth == depth);
        let parent = |seen: &Seen| {
            seen.info.parent.and_then(|parent| order.get(&parent).copied()).unwrap_or(usize::MAX)
        };
        let in_families = |seen: &Seen| (seen.key, parent(seen), seen.rank, seen.info.id);
        sort_by(&mut seen[from..to], &|a, b| in_families(a).cmp(&in_families(b)));
        for (n, seen) in seen[from..to].iter().enumerate() {
            order.entry(seen.info.id).or_insert(from + n);
        }
        from = to;
    }
    seen
}

/// Finds out who holds or owes what is waited for.
fn name_owners(seen: &mut [Seen], threads: &mut Vec<sight::Blocked>) {
    // One party for each, but of the same type as the others: the code of each kind of map is in every program.
    let mut by_context: HashMap<usize, Vec<Party>> = HashMap::new();
    let mut by_scope: HashMap<usize, Vec<Party>> = HashMap::new();
    let mut by_share: HashMap<usize, Vec<Party>> = HashMap::new();
    for one in seen.iter() {
        let party = one.party();
        if one.context != 0 {
            by_context.insert(one.context, vec![party.clone()]);
        }
        if one.scope != 0 {
            by_scope.entry(one.scope).or_default().push(party.clone());
        }
        for share in &one.shares {
            by_share.entry(*share).or_default().push(party.clone());
        }
    }
    for one in threads.iter() {
        for share in &one.shares {
            by_share.entry(*share).or_default().push(Party::Other { name: one.info.name.clone() });
        }
    }
    let name = |wait: &sight::Leads, owners: &mut Vec<Party>| {
        if let Some(jobs) = by_scope.get(&wait.scope) {
            owners.extend(jobs.iter().cloned());
        }
        if let Some(readers) = by_share.get(&wait.whole) {
            owners.extend(readers.iter().cloned());
        }
        if let Some(holder) = NonNull::new(std::ptr::with_exposed_provenance_mut::<Context>(wait.holder)) {
            match by_context.get(&wait.holder) {
                Some(party) => owners.extend(party.iter().cloned()),
                None => owners.extend(sight::stranger(holder)),
            }
        }
    };
    for one in seen.iter_mut() {
        if let Some(wait) = &mut one.info.waits_for {
            name(&one.leads, &mut wait.owners);
        }
    }
    for one in threads.iter_mut() {
        name(&one.leads, &mut one.info.waits_for.owners);
    }
    threads.retain(|one| {
        one.of_runtime || one.info.waits_for.owners.iter().any(|party| matches!(party, Party::Request { .. }))
    });
}
