//! Stealing, and what a worker does before it sleeps. See the head of [`super`].

use std::ptr::NonNull;
use std::time::Duration;

use forebear_context::lineage::NO_KEY;

use super::{Next, Worker};
use crate::cancel;
use crate::record::header::Header;
use crate::shared::worker::WorkerRecord;
use crate::state::attention::{HUNGRY, MESSAGE};

impl Worker {
    /// Takes half of what `victim` has published; the first is the answer, the rest goes to the own shared queue.
    /// Nothing if the best of it is younger than `limit`.
    pub(super) fn rob(&self, victim: &WorkerRecord, limit: u64) -> Option<NonNull<Header>> {
        self.patience.stolen_used_up();
        let mut first = None;
        let mut rest = self.take_hand();
        let (taken, left) = victim.post.shared_queue.pop_half(limit, |key, header| match first {
            None => first = Some(header),
            Some(_) => rest.push((key, header)),
        });
        #[cfg(not(mutant = "stolen_kept_at_the_end"))]
        if self.has_swept() {
            let stolen = first.into_iter().chain(rest.drain(..).map(|(_, header)| header)).collect();
            let mut kept = cancel::refuse_stolen(self, stolen).into_iter();
            first = kept.next();
            // SAFETY: E1.
            rest.extend(kept.map(|header| (unsafe { header.as_ref() }.lineage.key(), header)));
        }
        if taken > 0 {
            self.steals.count();
        }
        if !rest.is_empty() {
            self.post.shared_queue.push_stolen(rest.drain(..), &self.shared().signals);
        }
        self.give_back_hand(rest);
        if taken > 0 && self.patience.theft(taken as u32, !left) {
            // The next batch is ordered now, so that it is there when this one is used up.
            victim.post.attention.raise(HUNGRY);
        }
        first
    }

    /// Looks at the other workers' shared queues, and at what they hold back; says that one is hungry if there is nothing, patience permitting.
    pub(crate) fn steal(&self) -> Option<Next> {
        self.patience.stolen_used_up();
        while let Some(victim) = self.best_victim() {
            // Another thief may have come first: then the others are looked at again, since nobody else may look at them.
            let Some(header) = self.rob(victim, victim.post.shared_queue.key()) else { continue };
            if !self.is_delayed(header) && self.claim(header, false) {
                return Some(self.begin(header));
            }
            // What was taken with it stands in the own shared queue.
            if let Some(next) = self.pick() {
                return Some(next);
            }
        }
        let held = self.take_held();
        if held.is_none() && self.patience.is_over() {
            self.say_hungry();
        }
        held
    }

    /// The other worker whose shared queue has the best.
    fn best_victim(&self) -> Option<&WorkerRecord> {
        let others =
            self.shared().other_records(self.index).map(|other| (other.post.shared_queue.key(), other));
        others.filter(|&(key, _)| key != NO_KEY).min_by_key(|&(key, _)| key).map(|(_, other)| other)
    }

    pub(super) fn say_hungry(&self) -> bool {
        let mut busy = false;
        for other in self.shared().other_records(self.index) {
            other.post.attention.raise(HUNGRY);
            busy |= other.post.running_key() != NO_KEY;
        }
        busy
    }

    /// Leaves word with the others; answers the tick to sleep with while any of them works.
    pub(crate) fn before_sleep(&self) -> Option<Duration> {
        if self.shared().is_inherited() {
            crate::record::report::die(
                &"it was forked inside a request, and the other workers are in the parent process: exec or _exit there",
            );
        }
        self.sleeps.count();
        self.note_private();
        self.ready().trim();
        let left = self.patience.left();
        let watches = left.is_some() || self.say_hungry();
        if watches {
            self.begins_watch();
        }
        let tick = left.or_else(|| watches.then(|| self.patience.tick()));
        self.before_sleep_in(self.trim_if_quiet().into_iter().chain(tick).chain(self.hold_left()).min())
    }

    /// The worker is about to sleep, with a `tick` if it has one: makes the survey that is due, or sees to it that the worker comes
    /// back for it.
    pub(crate) fn before_sleep_in(&self, tick: Option<Duration>) -> Option<Duration> {
        self.shared()
            .survey
            .before_sleep(tick, || self.has_ticked(), || self.tick(), &|| self.best() != NO_KEY)
    }

    /// How long to sleep at most, for what nobody tells.
    pub(crate) fn tick(&self) -> Duration {
        self.patience.tick()
    }

    /// Whether it has slept for a tick since it last found something.
    pub(crate) fn has_ticked(&self) -> bool {
        self.patience.ticks.get() > 1
    }

    /// Something was found: ticks begin short again.
    pub(crate) fn found(&self) {
        self.patience.ticks.set(0);
    }

    /// Whether nothing on this worker can go on or be resumed by itself any more.
    pub(crate) fn is_drained(&self) -> bool {
        // The loop that asks is on a coroutine of its own.
        self.busy_coroutines.get() <= 1
            && !self.put_aside.is_any()
            && self.ready().len() == 0
            && self.post.held.key() == NO_KEY
            && self.list.front().is_none()
    }

    /// The best this worker may take, for the engine's search.
    pub(crate) fn best(&self) -> u64 {
        let mail = if self.post.mailbox.is_empty() { NO_KEY } else { 0 };
        let pooled = self.driver.as_ref().is_some_and(|driver| driver.has_ready());
        let yielded = if self.ready().len() == 0 && !pooled { NO_KEY } else { 0 };
        let message = if self.post.attention.get() & MESSAGE == 0 { NO_KEY } else { 0 };
        let alarm = if self.is_alarm_due() { 0 } else { NO_KEY };
        mail.min(yielded)
            .min(alarm)
            .min(message)
            .min(self.list.key())
            .min(self.post.shared_queue.key())
            .min(self.shared().injector.key())
    }
}
