//! Which worker raids, and when. [`crate::state::raid`] says how.
//!
//! A worker that goes to sleep raises its hungry bit on all others, and sleeps with a tick while any of them works. If another worker still has
//! private work after a tick, it has reached no scheduling point since, or none at which it could publish. Then the sleeper raids it. So other
//! workers can take private work after the longest tick and one of the shortest, less than 5 ms. Only a worker that has slept reads
//! a clock for this, and a worker that reaches forks and waits is not raided. Where the system has no `membarrier`, nobody raids.
//!
//! # The watch
//!
//! A worker that sleeps with such a tick *watches*. A worker that fell asleep while no other worked does not watch, so
//! that a single new request wakes no worker for it. The invariant holds while a worker sleeps and none watches: *the
//! hungry bit of each other worker is set, or a worker is about to take a published request*. Then the next fork
//! publishes and wakes. Three rules keep it:
//!
//! * A worker that goes to sleep without a tick sets the bit on all others.
//! * Only a publication clears the bit, and it wakes a worker if none searches. That worker finds no work, and watches; or it takes work, and
//!   sets the bits again if no worker watches then.
//! * A worker that has watched and has found work does the same.
//!
//! In the last two cases the worker may see that another has private work at that moment. Then it wakes one more, which will watch, since the
//! owner of that work may run code that reaches no fork.
//!
//! # What is not raided
//!
//! A request that is spawned in a cancelled one is in the private queue until its maker, a few steps later, cancels it
//! (`schedule/worker/marks.rs`, `attend_spawn`). A raider leaves such an entry to the owner, so no worker starts it. The insertion is a release that
//! the raider's walk acquires, so the raider sees every mark that the owner knew of when it inserted the entry. A cancel may have spared an entry
//! that has a waiter, so the raider takes that.

use std::ptr::NonNull;

use forebear_context::shim::time;

use super::Worker;
use super::patience::TICK;
use crate::cancel;
use crate::record::header::Header;
use crate::record::reclaim;
use crate::shared::worker::WorkerRecord;
use crate::state::asymmetric;
use crate::state::attention::HUNGRY;
use crate::state::word::{LOCAL, WAITERS};

impl Worker {
    /// Takes the oldest out of the private queue.
    pub(super) fn pop_listed(&self) -> Option<NonNull<Header>> {
        let front = self.list.front()?;
        self.take_out(front);
        Some(NonNull::from(front))
    }
}

/// The raider's side.
impl Worker {
    /// This worker is about to sleep with a tick while others work.
    pub(super) fn begins_watch(&self) {
        self.watches_since.set(Some(time::now()));
        self.shared().watchers.begin();
        if self.shared().other_records(self.index).any(|other| other.post.raids.has_more(other.list.first()))
        {
            // The owners have until the next tick to publish.
            self.patience.ticks.set(0);
        }
    }

    /// This worker has slept. Raids the workers that have not published since.
    pub(crate) fn ends_watch(&self) {
        let Some(since) = self.watches_since.take() else { return };
        self.shared().watchers.end();
        if self.shared().ending.is_shut() || !asymmetric::is_available() {
            return;
        }
        let hungry =
            |other: &&WorkerRecord| other.post.attention.get() & HUNGRY != 0 && other.keeps_something();
        if self.shared().other_records(self.index).any(|other| hungry(&other))
            && time::now() - since >= TICK / 2
        {
            self.shared().other_records(self.index).filter(hungry).for_each(|other| self.raid(other));
        }
    }

    #[cold]
    fn raid(&self, owner: &WorkerRecord) {
        let Some(mut raid) = owner.post.raids.begin(&owner.post.attention, owner.list.first()) else {
            return;
        };
        let mut stolen = self.take_hand();
        // SAFETY: `look` passes the fence, and keeps memory of headers what it is.
        _ = reclaim::read_section(|| unsafe { raid.walk(|h| show(h, &mut stolen)) });
        if !stolen.is_empty() {
            owner.post.shared_queue.push_all(stolen.drain(..));
            self.shared().signals.notify_any();
        }
        // Before that the owner must not settle: what it refuses when it is shut down, it looks for in its shared queue, too.
        drop(raid);
        self.give_back_hand(stolen);
    }

    /// This worker has found work. Ensures that a worker watches, or will.
    pub(crate) fn hands_watch_on(&self) {
        if self.is_unwatched() {
            self.hand_watch_on();
        }
    }

    fn is_unwatched(&self) -> bool {
        let shared = self.shared();
        shared.signals.sleeping() > 0 && shared.watchers.is_empty() && self.driver.is_none()
    }

    #[cold]
    fn hand_watch_on(&self) {
        self.say_hungry();
        if self.shared().other_records(self.index).any(|other| other.keeps_something()) {
            self.shared().signals.notify_any();
        }
    }

    /// Whether to wake another worker, because none watches and others have private work.
    pub(crate) fn wants_a_watch(&self) -> bool {
        self.is_unwatched() && self.shared().other_records(self.index).any(|other| other.keeps_something())
    }
}

/// Raids one entry.
fn show(h: &Header, stolen: &mut Vec<(u64, NonNull<Header>)>) -> bool {
    debug_assert_ne!(h.place.get(), crate::record::header::HeaderPlace::Child);
    if h.bare.load().has(LOCAL)
        // SAFETY: M3: a listed request has an arena.
        && let Some(arena) = unsafe { h.arena.get().as_ref() }
    {
        h.bare.revoke_for_raid(&h.local, &arena.local_owner);
    }
    if is_left_to_its_maker(h) {
        return false;
    }
    let raided = h.bare.raid();
    if raided {
        stolen.push((h.lineage.key(), NonNull::from(h)));
    }
    raided
}

/// Whether the owner is about to cancel the entry: a cancelled request has made it, and it has no waiter.
fn is_left_to_its_maker(h: &Header) -> bool {
    cancel::is_orphaned_by_cancel(h) && !h.bare.load().has(WAITERS)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::schedule::worker::HasWorkers;
    use crate::{CancelReason, Request, Runtime, WaitError, no_suspend, spawn};

    /// With the longest tick it would take more than 5 ms until it raids.
    #[test]
    fn who_goes_to_sleep_beside_private_work_looks_again_after_the_shortest_tick() {
        let runtime = Runtime::builder().workers(0).build().unwrap();
        let rt = runtime.clone();
        runtime.run(move || {
            // A seat that no thread has.
            let sleeper = &rt.shared().workers()[1];
            let next_tick = || {
                sleeper.patience.ticks.set(u32::MAX);
                sleeper.begins_watch();
                sleeper.watches_since.set(None);
                sleeper.shared().watchers.end();
                sleeper.patience.tick()
            };
            no_suspend("a child stays private", || {
                assert!(next_tick() > TICK, "nobody keeps anything");
                let child = spawn(|| ());
                assert_eq!(next_tick(), TICK);
                child
            })
        });
    }

    /// A worker that took it would begin it. Its maker cancels it a few steps later.
    #[test]
    fn what_a_cancelled_request_has_just_made_is_left_to_it() {
        let runtime = Runtime::builder().workers(0).build().unwrap();
        let maker = runtime.spawn(|| {
            no_suspend("a child stays private", || {
                let (me, child) = (Request::current(), spawn(|| ()));
                let abort = || me.iter().for_each(|me| _ = me.abort(CancelReason::Other(1)));
                // Elsewhere, so that this thread has not attended to it.
                std::thread::scope(|threads| drop(threads.spawn(abort))); // not modelled: a test
                let mut stolen = Vec::new();
                assert!(!show(child.header(), &mut stolen) && stolen.is_empty());
            });
        });
        assert!(matches!(maker.wait(), Err(WaitError::TargetCancelled(_))), "{maker:?}");
    }
}
