//! The survey: a search of all waits for cycles that no single walk could find.
//!
//! A walk requests a survey from the runtime in three cases. It was cut; or it ended at a scope of which another job
//! may lead back; or its target was claimed and on no stack yet. A worker that has had no work for a whole tick then
//! makes the survey. It reads every stack of every runtime, and every thread that runs requests. It collects their
//! edges and searches them once, in time linear in their number. It confirms a cycle as a walk does, and ends one of
//! its waits for a request. An edge to an unstarted request that is being ended leads to the stack that drops its
//! captures.
//!
//! A survey misses no cycle. A waiter that requests one has bound its wait before, by an exchange of the same word that
//! the survey clears by an exchange. So the survey sees the edge, and all that led to it. A survey need not be fast,
//! since a cycle stays. After a survey that has found nothing, the next one waits sixteen times as long as this one
//! took. A survey stops at the first sign of work.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::time::Duration;

use forebear_context::context::edge::{Ahead, Held};
use forebear_context::context::{Context, Reason, Ticket};
use forebear_context::shim::time;

use super::ahead;
use super::any::members_of;
use super::names::{StandsBy, each_standing, is_job, on_stack};
use super::ring::{break_open, has_wait_to_end, is_ending};
use super::waiters::is_wanted_by_scope;
use crate::deadlock::declared::EarlyStarts;
use crate::deadlock::foreign_stacks::lock_foreign_stacks;
use crate::record::dependents;
use crate::record::dropping;
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::shared::survey::Survey;
use crate::stack::coroutine::Coroutine;
use crate::state::word::{HELD, WAITERS};

/// How often it is looked whether there is work.
const LOOK_UP_EVERY: usize = 1024;
/// A pause after a survey is so many times as long.
const PAUSE: u32 = 16;

impl Survey {
    /// The survey that is due, if one is, by a thread that has nothing else to do and holds no lock. Answers whether a cycle
    /// was answered.
    pub(crate) fn make_now(&self) -> bool {
        // SAFETY: by the comment above: the caller holds no lock.
        self.take_note() && unsafe { look_at_all(&|| false) } == SurveyResult::Reported
    }
}

/// A survey by a thread that is about to block, and holds no lock: nobody else would make it.
pub(super) fn look_here() {
    // SAFETY: by the caller.
    while unsafe { look_at_all(&|| false) } == SurveyResult::Reported {}
}

/// A wait that was found.
pub(super) struct SurveyNode {
    pub(super) context: NonNull<Context>,
    pub(super) ticket: Ticket,
    ahead: Ahead,
    /// What it waits for any of; empty if it is for something else. Compared only.
    pub(super) members: Vec<NonNull<Header>>,
    /// Where it stands on the path that is being searched; `None` before, `OVER` after.
    place: Option<usize>,
}

const OVER: usize = usize::MAX;

/// What leads to nodes, by address, and the nodes. Of one type, whatever lies at the address: so there is one function that sorts them.
type Leads = Vec<(NonNull<()>, usize)>;

#[derive(Default)]
pub(super) struct Graph {
    pub(super) nodes: Vec<SurveyNode>,
    /// Which scopes those that wait are jobs of, and which locks they have shares of.
    parts: Leads,
    /// Which contexts wait for what is after a request on the stack of a node, or for what ends there.
    declared: Leads,
    /// What others wait for and cannot end before a node continues. Compared only.
    pub(super) standing: Leads,
    by_context: HashMap<usize, usize>,
    /// Jobs that are after what their scopes' ends keep, in cycles without a wait that could be ended.
    early: EarlyStarts,
}

impl Survey {
    /// A worker is about to sleep, for a `tick` if it has one. Makes the survey that is due, or has the worker return
    /// for it in `soon`. `ticked` says whether the worker has slept for a tick and found nothing since. `has_work` says
    /// whether there is work after all.
    pub(crate) fn before_sleep(
        &self,
        tick: Option<Duration>,
        ticked: impl FnOnce() -> bool,
        soon: impl Fn() -> Duration,
        has_work: &dyn Fn() -> bool,
    ) -> Option<Duration> {
        if !self.is_noted() {
            return tick;
        }
        let wait = if ticked() { self.make(soon, has_work) } else { Some(soon()) };
        match (tick, wait) {
            (Some(tick), Some(wait)) => Some(tick.min(wait)),
            (tick, wait) => tick.or(wait),
        }
    }

    /// Answers how long to wait for what is left to do.
    #[cold]
    fn make(&self, soon: impl Fn() -> Duration, has_work: &dyn Fn() -> bool) -> Option<Duration> {
        // Another worker makes one if not.
        let Some(mut next) = self.try_begin() else { return Some(soon()) };
        let begin = time::now();
        if let Some(left) =
            next.and_then(|next| next.checked_duration_since(begin)).filter(|left| !left.is_zero())
        {
            return Some(left);
        }
        self.take_note();
        // SAFETY: in it foreign stacks are kept.
        let result = unsafe { look_at_all(has_work) };
        *next = Some(time::now() + (time::now() - begin) * PAUSE);
        drop(next);
        if result != SurveyResult::Clear {
            // Once more: where one cycle was another may be, and a survey that was broken off has seen nothing.
            self.note();
            return Some(soon());
        }
        None
    }
}

#[derive(PartialEq, Eq)]
enum SurveyResult {
    Clear,
    BrokenOff,
    Reported,
}

/// Collects the edges of all stacks, and searches them for cycles and knots.
///
/// # Safety
///
/// By a thread that holds no lock.
unsafe fn look_at_all(is_wanted: &dyn Fn() -> bool) -> SurveyResult {
    let foreign_stacks = lock_foreign_stacks();
    let mut graph = Graph::default();
    let (mut seen, mut broken_off) = (0, false);
    let mut see = |context: NonNull<Context>| {
        seen += 1_usize;
        broken_off |= seen.is_multiple_of(LOOK_UP_EVERY) && is_wanted();
        if !broken_off {
            // SAFETY: Y1, Y2: registered, or in a slot of a runtime that is.
            unsafe { graph.see(context) };
        }
        !broken_off
    };
    for &context in &foreign_stacks.threads {
        see(context);
    }
    for runtime in &foreign_stacks.runtimes {
        // SAFETY: Y2: a runtime leaves this list before its record goes.
        unsafe { runtime.as_ref() }.slab.each_top(|top| see(Coroutine::context_in(top)));
    }
    if broken_off {
        return SurveyResult::BrokenOff;
    }
    let reported = graph.search() || graph.search_knots();
    drop(foreign_stacks);
    graph.early.start();
    if reported { SurveyResult::Reported } else { SurveyResult::Clear }
}

/// The `number`th node that belongs to `key`, in a sorted list.
pub(super) fn nth_of(list: &[(NonNull<()>, usize)], key: NonNull<()>, number: usize) -> Option<usize> {
    let first = list.partition_point(|entry| entry.0 < key);
    list.get(first + number).filter(|entry| entry.0 == key).map(|entry| entry.1)
}

/// Whether a wait that leads nowhere is still for something that is after others, or that ends on the stack of `next`.
pub(super) fn is_still_blocked(held: &Held<'_>, next: &Held<'_>) -> bool {
    let (Reason::Request | Reason::Arm, target) = held.waits_for() else { return true };
    // SAFETY: while the wait is held the waiter has a count of its target.
    let target = unsafe { target.cast::<Header>().as_ref() };
    held.ahead() != Ahead::Unknown
        || target.is_some_and(|target| {
            // SAFETY: a context with an edge is a fiber's; Y3.
            let ending = dropping::is_dropped_on(unsafe { Fiber::of(next.context()) }, target);
            ending || target.word().load().life() == HELD
        })
}

impl Graph {
    /// Adds the wait of this context to the graph, if it has an edge.
    ///
    /// # Safety
    ///
    /// Y1 or Y2 for the context.
    unsafe fn see(&mut self, at: NonNull<Context>) {
        // SAFETY: by contract.
        let context = unsafe { at.as_ref() };
        let Some(edge) = context.edge() else { return };
        let Some(held) = context.hold_in_turn(edge.ticket) else { return };
        // SAFETY: a context with an edge is a fiber's.
        let fiber = unsafe { Fiber::of(context) };
        let mut way = held.ahead();
        if way == Ahead::Unknown
            && let (Reason::Request | Reason::Arm, target) = held.waits_for()
            // SAFETY: while the wait is held the waiter has a count of its target.
            && let Some(found) = unsafe { target.cast::<Header>().as_ref() }.and_then(|target| ahead(fiber, target))
        {
            // SAFETY: X1 by Y1 and Y2; X3: the wait is held.
            unsafe { context.complete(found) };
            way = found;
        }
        if let Ahead::Owner(wait) = way {
            // SAFETY: the wait is held, so its record stays.
            let wait = unsafe { wait.as_ref() };
            // SAFETY: as above, so the lock of the wait stays too.
            way = match unsafe { wait.owner() } {
                Some(context) => Ahead::Stack { context, foreign: true },
                None => Ahead::Unknown,
            };
        }
        let index = self.nodes.len();
        for h in on_stack(fiber).filter(|h| is_wanted_by_scope(h, fiber)) {
            self.parts.extend(NonNull::new(h.scope.get().cast_mut()).map(|scope| (scope.cast(), index)));
        }
        self.parts.extend(context.shares().iter().map(|lock| (lock, index)));
        // What has not started stands on no stack, but its waiters wait for this one.
        each_standing(fiber, &mut |h, way| {
            if way != StandsBy::Running {
                self.declared.extend(dependents::waiters(h).into_iter().map(|waiter| (waiter.cast(), index)));
            }
            // Not the running ones once more. A job that is being ended is counted down only when its captures are gone.
            if way == StandsBy::Declared || way == StandsBy::Ending && is_wanted_by_scope(h, fiber) {
                self.parts.extend(NonNull::new(h.scope.get().cast_mut()).map(|scope| (scope.cast(), index)));
            }
            if h.word().load().has(WAITERS) {
                self.standing.push((NonNull::from(h).cast(), index));
            }
        });
        self.by_context.insert(at.addr().get(), index);
        let members = members_of(&held);
        self.nodes.push(SurveyNode { context: at, ticket: edge.ticket, ahead: way, members, place: None });
    }

    /// The `number`th node that an edge of `node` leads to.
    pub(super) fn ahead_of(&self, node: usize, number: usize) -> Option<usize> {
        match self.nodes[node].ahead {
            // What it waits for has not started: it may be after others, or ends without.
            Ahead::Unknown => nth_of(&self.declared, self.nodes[node].context.cast(), number),
            Ahead::Owner(_) => None,
            Ahead::Stack { context, .. } => {
                (number == 0).then(|| self.by_context.get(&context.addr().get()).copied()).flatten()
            }
            Ahead::All(scope) => nth_of(&self.parts, scope, number),
        }
    }

    /// Searches for cycles, and ends a wait in each that it finds. Each node is left once, by each of its edges once.
    fn search(&mut self) -> bool {
        self.parts.sort_unstable();
        self.declared.sort_unstable();
        let mut reported = false;
        // Nodes, and which of their edges comes next.
        let mut path: Vec<(usize, usize)> = Vec::new();
        for start in 0..self.nodes.len() {
            if self.nodes[start].place.is_some() {
                continue;
            }
            self.nodes[start].place = Some(0);
            path.push((start, 0));
            while let Some(&mut (node, ref mut number)) = path.last_mut() {
                let at = *number;
                *number += 1;
                let Some(next) = self.ahead_of(node, at) else {
                    self.nodes[node].place = Some(OVER);
                    path.pop();
                    continue;
                };
                match self.nodes[next].place {
                    None => {
                        self.nodes[next].place = Some(path.len());
                        path.push((next, 0));
                    }
                    Some(OVER) => {}
                    Some(place) => reported |= self.tell(&path[place..]),
                }
            }
        }
        reported
    }

    /// Holds the wait of a node. `None`: it is over, or leads elsewhere, or is about to be ended.
    pub(super) fn hold(&self, node: usize) -> Option<Held<'_>> {
        let node = &self.nodes[node];
        // SAFETY: Y1, Y2, as when it was seen.
        let held = unsafe { node.context.as_ref() }.hold_in_turn(node.ticket)?;
        let ahead = match held.ahead() {
            Ahead::Owner(wait) => {
                // SAFETY: the wait is held, so its record stays.
                let wait = unsafe { wait.as_ref() };
                // SAFETY: as above, so the lock of the wait stays too.
                unsafe { wait.owner() }
                    .map_or(Ahead::Unknown, |context| Ahead::Stack { context, foreign: true })
            }
            ahead => ahead,
        };
        (ahead == node.ahead && !is_ending(&held)).then_some(held)
    }

    /// These nodes lead to each other in a cycle. Answers whether a wait in it was ended, or will be. If only ends of
    /// scopes wait in it, no wait can be ended. Then the jobs of these scopes that are declared to be after something
    /// in the cycle are started early.
    fn tell(&mut self, ring: &[(usize, usize)]) -> bool {
        let hold = |&(node, _): &(usize, usize)| self.hold(node);
        let Some(held) = ring.iter().map(hold).collect::<Option<Vec<_>>>() else { return false };
        let nexts = held.iter().cycle().skip(1);
        if !held.iter().zip(nexts).all(|(one, next)| is_still_blocked(one, next)) {
            return false;
        }
        if has_wait_to_end(&held) {
            return break_open(held).is_some();
        }
        let mut early = EarlyStarts::default();
        for (held, next) in held.iter().zip(held.iter().cycle().skip(1)) {
            let Ahead::All(scope) = held.ahead() else { continue };
            // SAFETY: a context with an edge is a fiber's; Y3.
            each_standing(unsafe { Fiber::of(next.context()) }, &mut |h, way| {
                if way == StandsBy::Declared && is_job(h, scope) {
                    early.add(h);
                }
            });
        }
        drop(held);
        self.early.append(early)
    }
}
