//! A thief's patience: when it has emptied a shared queue, it judges what its stolen work was good for, and how long it steals nothing (decision
//! 0028; in the runtime `worker/patience.rs`).

use crate::costs::{FEW, LONGEST_PAUSE, Nanos, SHORTEST_PAUSE, WORTH_IT, WORTH_IT_EACH};

/// See the module head.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// Since when it has been at what it took last.
    since: Option<Nanos>,
    /// For how long, and at how many, since it last judged.
    stolen: (Nanos, u64),
    /// The shared queue was empty after the last theft.
    all: bool,
    /// How many there were when it last judged, unless they were worth it or the pause that followed is over.
    few: u64,
    pause: Nanos,
    until: Nanos,
}

impl Patience {
    /// So many were taken, and whether these were all. Answers whether to order more now.
    pub(super) fn theft(&mut self, now: Nanos, items: u64, all: bool) -> bool {
        self.since = Some(now);
        self.stolen.1 += items;
        self.all = all;
        all && (self.pause == 0 || self.grows(self.stolen.1))
    }

    /// It searches for work: what it had is used up. Answers whether there was any, and so whether the clock was read.
    pub(super) fn stolen_used_up(&mut self, now: Nanos) -> bool {
        let Some(since) = self.since.take() else { return false };
        self.stolen.0 += now - since;
        if !self.all {
            return true;
        }
        let (lasted, items) = std::mem::take(&mut self.stolen);
        if lasted >= WORTH_IT.max(WORTH_IT_EACH * items) {
            (self.few, self.pause, self.until) = (0, 0, 0);
            return true;
        }
        if !self.grows(items) {
            self.pause = (self.pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            self.until = now + self.pause;
        }
        self.few = items;
        true
    }

    /// So many are few, and more than the last.
    fn grows(&self, items: u64) -> bool {
        items <= FEW && items > self.few
    }

    /// What is left of its pause.
    pub(super) fn left(&mut self, now: Nanos) -> Nanos {
        let left = self.until.saturating_sub(now);
        if self.until != 0 && left == 0 {
            (self.few, self.until) = (0, 0);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all of so many, which last for so long each. Answers whether it ordered more, and its pause from then on.
    fn take(thief: &mut Patience, now: &mut Nanos, items: u64, each: Nanos) -> (bool, Nanos) {
        let orders = thief.theft(*now, items, true);
        *now += items * each;
        thief.stolen_used_up(*now);
        (orders, thief.left(*now))
    }

    #[test]
    fn it_judges_as_the_runtime_does() {
        let (mut thief, mut now) = (Patience::default(), 0);
        for items in [1, 2, 4, 8, 16, 32] {
            assert_eq!(
                take(&mut thief, &mut now, items, 200),
                (true, 0),
                "growing batches of few are not judged"
            );
        }
        assert_eq!(
            take(&mut thief, &mut now, 64, 200),
            (true, 25_000),
            "many tiny ones are left to their maker"
        );
        assert_eq!(take(&mut thief, &mut now, 64, 200), (false, 50_000), "for longer and longer");
        assert_eq!(take(&mut thief, &mut now, 64, 400), (false, 0), "what lasts is worth it");
        assert_eq!(take(&mut thief, &mut now, 1, 200), (true, 0));
        assert_eq!(
            take(&mut thief, &mut now, 1, 200),
            (true, 25_000),
            "one at a time is judged the second time"
        );
        assert_eq!(take(&mut thief, &mut now, 1, 200), (false, 50_000), "and not ordered in a pause");
        assert_eq!(take(&mut thief, &mut now, 2, 200), (true, 49_600), "what grows is");
        now += 50_000;
        assert_eq!(thief.left(now), 0);
        assert_eq!(take(&mut thief, &mut now, 1, 200), (true, 0), "after a pause it may grow from one again");
        thief.theft(now, 32, false);
        assert!(thief.stolen_used_up(now + 10) && thief.left(now + 10) == 0, "the shared queue is not empty");
    }
}
