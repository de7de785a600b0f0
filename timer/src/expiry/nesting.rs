//! Which places the caller is inside of, so that a closure's timer is not released by another one of the same place.
//!
//! # Vocabulary
//!
//! * **place**: the scope that a caller has by its file and line, and by its holder: the calling request or thread.
//! * **depth**: how many closures that began at this place, for this holder, have not returned. They are nested, since a closure returns to
//!   its caller. Outside of all it is 0.
//!
//! What is acquired at a place at a depth above 0 has a scope of its own: the name of the place, and the depth behind it. So the release of the inner one leaves
//! the outer one running. At depth 0 the scope is the place itself.
//!
//! The depths are in a thread-local: all that one holder runs, it runs on one thread.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::Scope;

std::thread_local! {
    /// Of places whose depth is not 0.
    static DEPTHS: RefCell<BTreeMap<Scope, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// A closure that runs under the timer of its place. Dropping it ends that.
#[derive(Debug)]
pub(super) struct Inside {
    place: Scope,
}

impl Inside {
    /// The caller begins a closure at this place: what its timer is for.
    pub(super) fn enter(place: Scope) -> (Inside, Scope) {
        // A thread whose locals are gone has depth 0 all the time.
        let depth = DEPTHS.try_with(|depths| {
            let mut depths = depths.borrow_mut();
            let depth = depths.entry(place.clone()).or_default();
            *depth += 1;
            *depth - 1
        });
        let scope = named(&place, "nested", depth.unwrap_or(0));
        (Inside { place }, scope)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        _ = DEPTHS.try_with(|depths| {
            let mut depths = depths.borrow_mut();
            match depths.get_mut(&self.place) {
                Some(depth) if *depth > 1 => *depth -= 1,
                _ => _ = depths.remove(&self.place),
            }
        });
    }
}

/// What a guard at this place is for: not what a closure's timer is for that the caller is inside of.
pub(super) fn of_guard(place: Scope) -> Scope {
    let depth = DEPTHS.try_with(|depths| depths.borrow().get(&place).copied());
    named(&place, "inside", depth.ok().flatten().unwrap_or(0))
}

fn named(place: &Scope, how: &str, depth: u64) -> Scope {
    if depth == 0 {
        return place.clone();
    }
    let scope = Scope::named(format!("{} {how} {depth}", place.name()));
    match place.holder() {
        Some(holder) => scope.held_by(holder),
        None => scope,
    }
}
