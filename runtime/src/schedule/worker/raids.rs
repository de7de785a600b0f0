//! Which worker raids, and when. [`crate::state::raid`] says how.
//!
//! A worker that goes to sleep leaves its hunger with all others, and sleeps with a tick while any of them works. If another still keeps something
//! private after a tick, it has come to no scheduling point since, or to none at which it could publish: the sleeper raids it. So what
//! is private can be taken by others after the longest tick and one of the shortest, less than 5 ms. Only a worker that has slept reads
//! a clock for it, and a worker that comes to forks and waits is not raided.
//!
//! # The watch
//!
//! A worker that sleeps with such a tick *watches*. A worker that fell asleep while nobody worked does not: nobody is to be woken for it when a
//! single request comes. So this holds: *if a worker sleeps and none watches, the hungry bit of each other worker is up, or somebody is on its way to
//! what was published.* Then the next fork publishes and wakes. What keeps it so:
//!
//! * a worker that goes to sleep without a tick raises the bit on all others;
//! * the bit comes down only by a publication, which wakes one, if nobody searches. That one finds nothing, and watches; or it takes something, and
//!   raises the bits again if nobody watches then;
//! * so does a worker that has watched and has found something.
//!
//! If one of the last two finds that somebody keeps something private at that moment, it wakes one more, who will watch: that work may stand
//! beside code that comes to no fork.
//!
//! # What is not raided
//!
//! A request that is spawned in a cancelled one stands in the private queue until its maker, a few steps later, cancels it
//! (`schedule/worker/marks.rs`, `attend_spawn`). A raider leaves such an entry to the owner, so no worker starts it. The insertion is a release that
//! the raider's walk acquires, so the raider sees every mark that the owner knew of when it inserted the entry. An entry that has a waiter may have been
//! spared by the cancel, and is raided.

use std::ptr::NonNull;

use forebear_context::shim::atomic::Ordering;
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
    /// It is about to sleep with a tick while others work.
    pub(super) fn begins_watch(&self) {
        self.watches_since.set(Some(time::now()));
        self.shared().watching.fetch_add(1, Ordering::AcqRel);
        if self.shared().other_records(self.index).any(|other| other.post.raids.has_more(other.list.first()))
        {
            // Until the next tick they may answer.
            self.patience.ticks.set(0);
        }
    }

    /// It has slept. Raids the workers that have not answered since.
    pub(crate) fn ends_watch(&self) {
        let Some(since) = self.watches_since.take() else { return };
        self.shared().watching.fetch_sub(1, Ordering::AcqRel);
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

    /// It has found something. Sees to it that somebody watches, or will.
    pub(crate) fn hands_watch_on(&self) {
        if self.is_unwatched() {
            self.hand_watch_on();
        }
    }

    fn is_unwatched(&self) -> bool {
        let shared = self.shared();
        shared.signals.sleeping() > 0 && shared.watching.load(Ordering::Acquire) == 0 && self.driver.is_none()
    }

    #[cold]
    fn hand_watch_on(&self) {
        self.say_hungry();
        if self.shared().other_records(self.index).any(|other| other.keeps_something()) {
            self.shared().signals.notify_any();
        }
    }

    /// Whether another worker is to be woken, for nobody watches what others keep.
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

/// Whether the owner is about to cancel it: a cancelled request has made it, and nobody waits for it.
fn is_left_to_its_maker(h: &Header) -> bool {
    cancel::is_orphaned_by_cancel(h) && !h.bare.load().has(WAITERS)
}
