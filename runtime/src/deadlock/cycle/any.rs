//! Waits for any one of several requests, by a set: cycles that lead through them.
//!
//! Such a wait is ended by the first of its members that is over. So it stands in a cycle only if *every* member leads back: a [knot]. A
//! single walk follows one way, so it ends there as at a scope, and leaves word. The survey has all waits, and searches them for knots when it has
//! found no plain cycle.
//!
//! A member leads somewhere if it stands on a stack that waits, if it is being ended there without having started, or if it is after either. What
//! is queued, what a pool holds back, and a completion lead nowhere: they may end, and so nothing is found. A wait with a limit is no edge.
//!
//! A knot is confirmed as a cycle is: all its waits are held at once, and each member is looked at again. Then one of its waits for a request is ended,
//! or else one for a lock. If there is none, a wait of a set is: a member comes out of the set, and the wait for that member closes a cycle
//! that can be told.
//!
//! A set's wait leads to all that its [`Several`] names, and differs from a scope's by its reason.

use std::collections::{HashMap, HashSet};
use std::ptr::{self, NonNull};

use forebear_context::context::edge::{Ahead, Held};
use forebear_context::context::{Cause, Reason, Ticket, unpark};
use forebear_context::source::Several;

use super::bind_to;
use super::knot::{self, Place};
use super::names::each_standing;
use super::ring::break_open;
use super::survey::{Graph, is_still_blocked, nth_of};
use super::waiters::can_be_waited_for;
use crate::record::fiber::Fiber;
use crate::record::header::Header;

/// The same as [`bind`](super::bind) for a wait for any of `several`, which is the target of the wait. Its cycle is found by a survey.
///
/// # Safety
///
/// As there.
pub(crate) unsafe fn bind_to_any(fiber: &Fiber, ticket: Ticket, several: &Several) {
    if can_be_waited_for(fiber) {
        // SAFETY: X1: it lies in the frame of the wait; X3: by contract.
        unsafe { fiber.context().lead(Ahead::All(NonNull::from(several).cast())) };
        // SAFETY: by contract.
        unsafe { bind_to(fiber, ticket, false, break_open) };
    }
}

/// What a held wait waits for any of; empty if it is for something else.
pub(super) fn members_of(held: &Held<'_>) -> Vec<NonNull<Header>> {
    let mut members = Vec::new();
    if let (Reason::Select, several) = held.waits_for()
        && matches!(held.ahead(), Ahead::All(whole) if ptr::addr_eq(whole.as_ptr(), several))
        // SAFETY: it lies in the frame of the wait, which is held.
        && let Some(several) = unsafe { several.cast::<Several>().as_ref() }
    {
        // SAFETY: the wait is held, and was bound.
        unsafe { several.each_request(&mut |member| members.push(member.cast())) };
    }
    members
}

impl Graph {
    /// Searches for knots, and ends a wait in each that it finds. Whether one was told.
    pub(super) fn search_knots(&mut self) -> bool {
        if self.nodes.iter().all(|node| node.members.is_empty()) {
            return false;
        }
        self.standing.sort_unstable();
        let places = self.places();
        let knots = knot::knots(&places);
        knots.iter().fold(false, |reported, knot| self.tell_knot(&places, knot) | reported)
    }

    /// The nodes, and behind them the members that they wait for any of.
    fn places(&self) -> Vec<Place> {
        let all_of = |node| (0..).map_while(|number| self.ahead_of(node, number)).collect();
        let mut places: Vec<Place> =
            (0..self.nodes.len()).map(|node| Place { ahead: all_of(node), for_any: false }).collect();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| !node.members.is_empty()) {
            let first = places.len();
            places[index] = Place { ahead: (first..first + node.members.len()).collect(), for_any: true };
            places.extend(node.members.iter().map(|&member| Place {
                ahead: (0..).map_while(|number| nth_of(&self.standing, member.cast(), number)).collect(),
                for_any: false,
            }));
        }
        places
    }

    /// Confirms a knot, and ends one of its waits. Whether one was told.
    fn tell_knot(&self, places: &[Place], knot: &[usize]) -> bool {
        let nodes = knot.iter().copied().filter(|&place| place < self.nodes.len());
        let held: Option<HashMap<usize, Held<'_>>> =
            nodes.map(|node| Some((node, self.hold(node)?))).collect();
        let Some(mut held) = held else { return false };
        let mut standing = HashSet::new();
        for one in held.values() {
            // SAFETY: a context with an edge is a fiber's; Y3.
            each_standing(unsafe { Fiber::of(one.context()) }, &mut |h, _| {
                _ = standing.insert(NonNull::from(h))
            });
        }
        let is_blocked = |node: usize, one: &Held<'_>| match places[node].for_any {
            // SAFETY: while the wait is held the waiter has a count of each member.
            true => members_of(one).into_iter().all(|member| unsafe {
                standing.contains(&member) && !member.as_ref().word().load().is_terminal()
            }),
            false => {
                let mut next = places[node].ahead.iter().filter_map(|ahead| held.get(ahead));
                next.any(|next| is_still_blocked(one, next))
            }
        };
        if !held.iter().all(|(&node, one)| is_blocked(node, one)) {
            return false;
        }
        let first = |reason: &dyn Fn(Reason) -> bool| {
            held.iter().filter(|(_, one)| reason(one.waits_for().0)).map(|(&node, _)| node).min()
        };
        let start = first(&|reason| reason == Reason::Request).or_else(|| first(&Reason::has_owner));
        if let Some(start) = start {
            let ring = knot::round(places, knot, start);
            let ring: Vec<Held<'_>> = ring.iter().filter_map(|node| held.remove(node)).collect();
            drop(held);
            return break_open(ring).is_some();
        }
        let Some(any) = first(&|reason| reason == Reason::Select) else { return false };
        let (context, ticket) = (self.nodes[any].context, self.nodes[any].ticket);
        // It is not ended while it is held.
        drop(held);
        // SAFETY: C1: foreign stacks are kept.
        unsafe { unpark(context, ticket, Cause::Circular) }
    }
}
