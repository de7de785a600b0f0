//! Urgency: a request that others wait for is as urgent as the most urgent of them, and so is what it waits for itself.
//!
//! It travels as a root key (see `docs/decisions/0001`): from the waiter to the target, and if the target's stack is parked
//! in a wait of its own, on to that one's target, and so on, by a loop. A raise of something unstarted is a second entry by
//! the new key; of something started it lowers its strand's urgency, which decides when the strand is made ready.
//!
//! What a parked strand waits for may be followed only on its own worker's thread: there it cannot go on meanwhile, so it
//! keeps its target alive. A chain that leads to another worker goes on there: the raise is left in that worker's post.
//!
//! # Invariants
//!
//! * **U1** A chain is followed on the thread of the worker whose strand is looked into.
//! * **U2** Who follows has a count of the request at hand, or is on the thread of a parked strand that has.
//! * **U3** Who waits for a pool says where its lanes are: in its own frame, so they may be read on its worker's thread while
//!   it is parked, or was woken and has not gone on. The lanes' own waits lead to the members.

use std::ptr::{self, NonNull};

use forebear_context::context::Reason;
use forebear_context::shim::atomic::Ordering;

use crate::any::AnyRequest;
use crate::attention::RAISED;
use crate::header::Header;
use crate::home;
use crate::request_pool::Lanes;
use crate::word::{HELD, NEW};
use crate::worker::Worker;

/// A chain longer than this is cut: order is a preference, and nobody may stop a worker by it.
const LONGEST: usize = 64;

/// Something of root key `key` on this thread waits for the target. `here` is the worker whose thread this is.
///
/// # Safety
///
/// U2.
pub(crate) unsafe fn raise(here: Option<&Worker>, target: NonNull<Header>, key: u64) {
    // SAFETY: U2.
    let h = unsafe { target.as_ref() };
    if !h.raise_urgency(key) {
        // Whoever raised it so far has followed the chain, and a wait that began since then has passed it on.
        return;
    }
    // SAFETY: U2.
    unsafe { follow(here, target, key) };
}

/// The target's urgency has been lowered to `key`: does what follows from it.
///
/// # Safety
///
/// U2.
pub(crate) unsafe fn follow(here: Option<&Worker>, target: NonNull<Header>, key: u64) {
    // Further branches of the way: allocated only where there is one.
    let mut rest = Vec::new();
    let mut target = target;
    for _ in 0..LONGEST {
        // SAFETY: U2; what a strand on this thread waits for stays as it is while nothing runs here.
        let next = unsafe { step(here, target, key, &mut rest) };
        match next.or_else(|| rest.pop()) {
            Some(next) => target = next,
            None => return,
        }
    }
}

/// Does what follows for the target alone. Answers what it waits for itself, if that has become more urgent by this; more
/// of that goes to `rest`.
///
/// # Safety
///
/// U2.
unsafe fn step(
    here: Option<&Worker>,
    target: NonNull<Header>,
    key: u64,
    rest: &mut Vec<NonNull<Header>>,
) -> Option<NonNull<Header>> {
    // SAFETY: U2.
    let h = unsafe { target.as_ref() };
    let bits = h.word.load();
    if bits.is_terminal() {
        return None;
    }
    if bits.is_unstarted() {
        enter_again(here, target, key);
        return None;
    }
    let strand = h.strand.load(Ordering::Relaxed);
    // SAFETY: a home that a request ran on stays while the request does (M3).
    let ran_on = unsafe { h.ran_on.load(Ordering::Relaxed).as_ref() };
    // On a foreign thread, which has no order; or just claimed, and its start will see the urgency.
    let home = ran_on.filter(|home| home.worker != u32::MAX && !strand.is_null())?;
    // SAFETY: a carrier's strand stays (K3); if it has gone on to another request meanwhile, that one is raised until
    // it ends, which does no harm.
    let strand = unsafe { &*strand };
    strand.urgency.fetch_min(key, Ordering::Relaxed);
    let worker = home.shared().workers().get(home.worker as usize)?;
    if !here.is_some_and(|here| ptr::eq(here, worker)) {
        h.word.add_link();
        worker.post.leave_raise(target, key);
        home.shared().wake(worker.index);
        return None;
    }
    if crate::strand::get().is_some_and(|current| ptr::eq(current, strand)) {
        return None;
    }
    // U1: on this very thread, and not current: it is parked, or was woken and has not gone on.
    match strand.context().waits_for() {
        (Reason::Request, next) => {
            let next = NonNull::new(next.cast::<Header>())?;
            // SAFETY: U2: the strand waits for it, so it holds a count.
            unsafe { next.as_ref() }.raise_urgency(key).then_some(next)
        }
        (Reason::Pool, lanes) => {
            // SAFETY: U3.
            let lanes = unsafe { lanes.cast::<Lanes>().as_ref() }?;
            // SAFETY: U2: the handle's link.
            rest.extend(
                lanes.iter().map(AnyRequest::raw).filter(|lane| unsafe { lane.as_ref() }.raise_urgency(key)),
            );
            rest.pop()
        }
        _ => None,
    }
}

/// It stands somewhere among the less urgent: a second entry, here, by the new key. Whoever comes to the first one finds a
/// shell.
fn enter_again(here: Option<&Worker>, target: NonNull<Header>, key: u64) {
    // SAFETY: U2 by the callers.
    let h = unsafe { target.as_ref() };
    // SAFETY: M3.
    let home = unsafe { h.home.get().as_ref() };
    let Some(worker) = here.filter(|w| home.is_some_and(|home| ptr::eq(home.shared(), w.shared()))) else {
        return;
    };
    if matches!(h.word.load().life(), NEW | HELD) {
        // It has no entry. A pool that holds it back looks at its urgency when it admits it.
        return;
    }
    h.word.add_link();
    worker.post.shelf.push(key, target);
    worker.shared().signals.notify_any();
}

impl Worker {
    /// Follows the chains that others have left here.
    #[cold]
    pub(crate) fn follow_raises(&self) {
        self.post.attention.clear(RAISED);
        for (target, key) in self.post.take_raises() {
            // SAFETY: the link that came with it.
            unsafe {
                follow(Some(self), target, key);
                if target.as_ref().word.release_link() {
                    home::end(target);
                }
            }
        }
    }
}
