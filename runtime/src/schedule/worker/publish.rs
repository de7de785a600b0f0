//! Publication: which private requests a worker moves to its shared queue, and when.
//!
//! A request that its maker will probably run itself stays private. A worker publishes when another worker is hungry: at its next fork or pick,
//! or before it runs a target on its waiter's stack. It publishes its oldest arm and a batch of its oldest requests; batches double while
//! workers stay hungry.
//!
//! * Only a publication clears the hungry bit. While a worker has nothing to publish, the bit stays set, so the first fork publishes. The worker
//!   sets it again if more workers sleep than requests were published.
//! * A single private request that a pick is about to take is not published, since another worker would race for it. So a chain of waits, each
//!   of which needs a stack of its own, stays on its worker.
//! * A fiber that suspends publishes its arms, since it may wait for one of them.
//! * How often an idle worker sets the hungry bit is up to its [`patience`](super::patience).
//! * A worker that reaches no scheduling point publishes nothing. A worker that sleeps beside it publishes for it (`schedule/worker/raids.rs`).

use std::ptr::{self, NonNull};

use forebear_context::shim::mutant;

use super::Worker;
use crate::cancel;
use crate::deadlock::urgency;
use crate::record::callback;
use crate::record::children;
use crate::record::fiber::{self, Fiber};
use crate::record::header::Header;
use crate::state::attention::{DRIVEN, HUNGRY, MESSAGE, OLDER, RAIDED, RAISED};

const LARGEST_BATCH: u32 = 64;

impl Worker {
    /// A request of this worker's was put into the private queue.
    #[inline(always)]
    pub(crate) fn note_inserted(&self, key: u64) {
        if key < self.private.get() {
            self.private.set(key);
            self.post.set_private_key(key);
        }
    }

    #[inline(always)]
    pub(super) fn note_private(&self) {
        let key = self.list.key();
        if self.private.get() != key {
            self.private.set(key);
            self.post.set_private_key(key);
        }
    }

    /// Does what the attention word asks for; with `feeds`, for the hungry too.
    #[cold]
    #[inline(never)]
    pub(crate) fn attend(&self, feeds: bool) {
        self.put_aside.hold_back(|| self.attend_now(feeds));
    }

    fn attend_now(&self, feeds: bool) {
        let bits = self.post.attention.get();
        if bits & RAIDED != 0 {
            self.settle_raid();
        }
        if bits & HUNGRY != 0 && feeds {
            self.feed();
        }
        if bits & RAISED != 0 {
            urgency::follow_raises(self);
        }
        if bits & MESSAGE != 0 {
            cancel::attend_messages(self);
        }
        if bits & OLDER != 0 {
            self.post.attention.clear(OLDER);
            // What the bit stood for may have come after the caller's look at the mail.
            #[cfg(not(mutant = "older_cleared_after_the_mail"))]
            if !self.post.mailbox.is_empty() {
                self.collect_mail_now();
            }
        }
    }

    /// Whether something older than what runs is ready here or may be taken. Takes the bit down if not.
    #[cold]
    pub(crate) fn older_is_ready(&self) -> bool {
        self.post.attention.clear(OLDER);
        self.collect_mail();
        let mine = self.running();
        let is_older = |key| mutant!("younger_is_older", key > mine, key < mine);
        let older = is_older(self.ready().key()) || is_older(self.shared().injector.key());
        if older {
            self.post.attention.raise(OLDER);
        }
        older
    }

    /// Publishes for hungry workers.
    #[cold]
    #[inline(never)]
    pub(crate) fn feed(&self) {
        self.feed_all_but(ptr::null());
    }

    /// The same if anybody is hungry.
    pub(crate) fn feed_if_hungry(&self) {
        if self.post.attention.get() & (HUNGRY | DRIVEN) == HUNGRY {
            self.feed();
        }
    }

    /// The worker is about to run `target` on the stack of its waiter: publishes others if somebody is hungry. The target is not
    /// shown, to be raced for.
    #[inline]
    pub(crate) fn feed_beside(&self, target: &Header) {
        if self.post.attention.get() & (HUNGRY | DRIVEN) == HUNGRY {
            self.feed_all_but(target);
        }
    }

    #[cold]
    #[inline(never)]
    fn feed_all_but(&self, target: *const Header) {
        let fiber = fiber::get().filter(|fiber| self.owns(fiber));
        let arms = fiber.is_some_and(|fiber| !fiber.branches.is_empty());
        if callback::is_inside() || !arms && self.list.front_but(target).is_none() {
            // The bit stays up: the first fork will find it.
            self.batch.set(1);
            return;
        }
        let batch = self.batch.get();
        self.post.attention.feed(|| {
            if let Some(fiber) = fiber {
                self.publish_arm(fiber);
            }
            self.publish_private(batch, target);
        });
        self.batch.set((batch * 2).min(LARGEST_BATCH));
        let shared = self.shared();
        if are_too_few(shared.signals.sleeping(), shared.at_a_time, || self.post.shared_queue.count()) {
            // The next fork shows more, before its owner goes into long code.
            self.post.attention.raise(HUNGRY);
        }
        shared.signals.notify_any();
    }

    /// Puts up to `most` of the oldest private requests in the shared queue, but not `target`. The caller notifies.
    pub(super) fn publish_private(&self, most: u32, target: *const Header) {
        let mut batch = self.take_hand();
        for _ in 0..most {
            let Some(h) = self.list.front_but(target) else { break };
            self.take_out(h);
            let header = NonNull::from(h);
            children::link(h);
            h.word().publish();
            self.published.count();
            batch.push((h.lineage.key(), header));
        }
        if !batch.is_empty() {
            self.post.shared_queue.push_all(batch.drain(..));
        }
        self.give_back_hand(batch);
        self.note_private();
    }

    /// Publishes the fiber's outermost arm.
    pub(super) fn publish_arm(&self, fiber: &Fiber) -> Option<()> {
        let (key, node) = self.put_aside.hold_back(|| crate::schedule::branches::publish_oldest(fiber))?;
        self.published.count();
        self.post.shared_queue.push(key, node);
        Some(())
    }

    #[cold]
    pub(crate) fn publish_arms(&self, fiber: &Fiber) {
        while self.publish_arm(fiber).is_some() {}
        self.shared().signals.notify_any();
    }
}

/// Whether fewer are shown than could be run beside who shows them by those that sleep. One that has just been shown does for
/// one.
fn are_too_few(sleeping: usize, at_a_time: usize, shown: impl FnOnce() -> usize) -> bool {
    let hungry = sleeping.min(at_a_time.saturating_sub(1));
    hungry > 1 && shown() < hungry
}

#[cfg(test)]
mod tests {
    use super::are_too_few;

    #[test]
    fn hunger_stands_until_as_many_are_shown_as_sleepers_could_run() {
        let too_few = |sleeping, cores, shown| are_too_few(sleeping, cores, || shown);
        assert!(too_few(7, 8, 1) && too_few(7, 8, 6) && !too_few(7, 8, 7));
        assert!(too_few(15, 4, 2) && !too_few(15, 4, 3), "no more than have cores");
        assert!(!are_too_few(15, 2, || unreachable!("two cores do not look")), "nor beside nobody");
        assert!(!are_too_few(1, 64, || unreachable!("it was shown one")));
    }
}
