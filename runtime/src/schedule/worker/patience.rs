//! A thief's patience: stealing pays only if the stolen work lasts longer than the transfer.
//!
//! A theft costs both sides. The thief pays some 200 ns a request, for cache lines that another core has written. The
//! maker pays nearly as much, to publish the request and later to take its memory back. A shorter request is better run
//! by its maker. A maker whose published requests are stolen as soon as they appear gets nothing else done.
//!
//! So a thief measures the time from each theft to its next search for work: that is how long the stolen work lasted. It judges when a shared queue
//! is empty after a theft, since the first requests of a tree to be published are leaves, and the last are whole branches. If all stolen work took
//! less than [`WORTH_IT`], or less than [`WORTH_IT_EACH`] a request, the thief *pauses*. In a pause it does not set the hungry bit of others. Pauses
//! double up to 0.4 ms. The thief sleeps with a tick meanwhile, so no wake-up depends on its bit. It still takes what is already published.
//!
//! A small batch proves nothing while each batch is larger than the one before: makers begin with one request and double. The thief then keeps
//! setting the hungry bit, in a pause too. A maker that makes one request at a time and takes it back never publishes more than one; a thief that
//! set the bit after each theft would never pause. Only the thief reads the clock.

use std::cell::Cell;
use std::time::{Duration, Instant};

use forebear_context::shim::time;

/// When this worker last took something, and how long it holds back.
#[derive(Default)]
pub(super) struct Patience {
    /// Since when it has been at what it took last.
    since: Cell<Option<Instant>>,
    /// For how long, and at how many, since it last judged.
    stolen: Cell<(Duration, u32)>,
    /// The shared queue was empty after the last theft.
    all: Cell<bool>,
    /// How many there were when it last judged, unless they were worth it or the pause that followed is over.
    few: Cell<u32>,
    pause: Cell<Duration>,
    until: Cell<Option<Instant>>,
    pub(super) ticks: Cell<u32>,
}

const WORTH_IT: Duration = Duration::from_micros(4);
const WORTH_IT_EACH: Duration = Duration::from_nanos(400);
/// No more than these are few.
const FEW: u32 = 32;
const SHORTEST_PAUSE: Duration = Duration::from_micros(25);
const LONGEST_PAUSE: Duration = Duration::from_micros(400);
pub(super) const TICK: Duration = Duration::from_micros(200);
/// Ticks double up to this: hunger was left behind, so a fork is enough; the tick is for who does not come to a fork. From the first tick
/// that finds private work to the raid is another one of the shortest: together less than 5 ms.
const LONGEST_TICK: Duration = Duration::from_millis(4);

impl Patience {
    /// So many were taken, and whether these were all. Answers whether to order more now, for the time when they are used up.
    pub(super) fn theft(&self, items: u32, all: bool) -> bool {
        self.theft_at(time::now(), items, all)
    }

    fn theft_at(&self, now: Instant, items: u32, all: bool) -> bool {
        self.since.set(Some(now));
        let (lasted, before) = self.stolen.get();
        self.stolen.set((lasted, before + items));
        self.all.set(all);
        self.ticks.set(0);
        all && (self.pause.get().is_zero() || self.grows(before + items))
    }

    /// It searches for work: what it had is used up.
    pub(super) fn stolen_used_up(&self) {
        if self.since.get().is_some() {
            self.stolen_used_up_at(time::now());
        }
    }

    fn stolen_used_up_at(&self, now: Instant) {
        let Some(since) = self.since.take() else { return };
        let (lasted, items) = self.stolen.get();
        let lasted = lasted + now.saturating_duration_since(since);
        if !self.all.get() {
            self.stolen.set((lasted, items));
            return;
        }
        self.stolen.set((Duration::ZERO, 0));
        if lasted >= WORTH_IT.max(WORTH_IT_EACH * items) {
            self.few.set(0);
            self.pause.set(Duration::ZERO);
            self.until.set(None);
            return;
        }
        if !self.grows(items) {
            let pause = (self.pause.get() * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            self.pause.set(pause);
            self.until.set(Some(now + pause));
        }
        self.few.set(items);
    }

    /// So many are few, and more than the last.
    fn grows(&self, items: u32) -> bool {
        items <= FEW && items > self.few.get()
    }

    /// What is left of its pause.
    pub(super) fn left(&self) -> Option<Duration> {
        self.until.get()?;
        self.left_at(time::now())
    }

    fn left_at(&self, now: Instant) -> Option<Duration> {
        let left = self.until.get()?.saturating_duration_since(now);
        if left.is_zero() {
            self.few.set(0);
            self.until.set(None);
            return None;
        }
        Some(left)
    }

    pub(super) fn is_over(&self) -> bool {
        self.left().is_none()
    }

    pub(super) fn tick(&self) -> Duration {
        let ticks = self.ticks.get();
        self.ticks.set(ticks.saturating_add(1));
        (TICK * (1 << ticks.min(8))).min(LONGEST_TICK)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const TINY: Duration = Duration::from_nanos(200);

    /// A thief whose stolen work lasts as long as the test says.
    struct Thief {
        patience: Patience,
        now: Instant,
    }

    impl Thief {
        fn new() -> Thief {
            Thief { patience: Patience::default(), now: Instant::now() }
        }

        /// Takes so many, which last for so long. Answers whether it has ordered more when it took them.
        fn takes(&mut self, items: u32, all: bool, lasting: Duration) -> bool {
            let orders = self.patience.theft_at(self.now, items, all);
            self.now += lasting;
            self.patience.stolen_used_up_at(self.now);
            orders
        }

        fn pause(&self) -> Duration {
            self.patience.pause.get()
        }
    }

    #[test]
    fn many_tiny_requests_are_left_to_their_maker_for_longer_and_longer() {
        let mut thief = Thief::new();
        let mut pauses = Vec::new();
        for _ in 0..7 {
            thief.takes(64, true, TINY * 64);
            pauses.push(thief.pause().as_micros());
        }
        assert_eq!(pauses, [25, 50, 100, 200, 400, 400, 400]);
        assert!(!thief.takes(64, true, TINY * 64), "nor is more ordered with a theft");
    }

    /// The longest, and after that the shortest, since a sleeper that finds private work begins anew.
    #[test]
    fn ticks_double_and_the_longest_with_the_shortest_is_less_than_the_5_ms_that_are_promised() {
        let patience = Patience::default();
        let ticks: Vec<_> = (0..300).map(|_| patience.tick()).collect();
        assert_eq!(ticks[0], TICK);
        assert!(ticks.windows(2).all(|two| two[1] >= two[0] && two[1] <= 2 * two[0]));
        let longest = ticks.iter().max().unwrap();
        assert!(*longest + ticks[0] < Duration::from_millis(5), "{longest:?}");
    }

    #[test]
    fn requests_that_last_are_worth_it_and_end_a_pause() {
        let mut thief = Thief::new();
        thief.takes(64, true, TINY * 64);
        assert!(!thief.takes(64, true, WORTH_IT_EACH * 64), "it was in a pause");
        assert_eq!(thief.pause(), Duration::ZERO);
        assert!(thief.takes(64, true, WORTH_IT_EACH * 64));
    }

    #[test]
    fn a_branch_behind_the_leaves_counts_for_all_of_them() {
        let mut thief = Thief::new();
        for items in [32, 16, 8, 4, 2, 1] {
            assert!(!thief.takes(items, false, TINY * items), "the shared queue is not empty");
        }
        assert!(thief.takes(1, true, Duration::from_micros(100)), "it is now, and there was no pause");
        assert_eq!(thief.pause(), Duration::ZERO);
    }

    #[test]
    fn growing_batches_of_few_are_not_judged() {
        let mut thief = Thief::new();
        for items in [1, 2, 4, 8, 16, 32] {
            assert!(thief.takes(items, true, TINY * items));
            assert_eq!(thief.pause(), Duration::ZERO, "{items}");
        }
    }

    #[test]
    fn one_at_a_time_is_judged_the_second_time() {
        let mut thief = Thief::new();
        assert!(thief.takes(1, true, TINY));
        assert_eq!(thief.pause(), Duration::ZERO);
        assert!(thief.takes(1, true, TINY), "it could not know yet");
        assert_eq!(thief.pause(), SHORTEST_PAUSE);
    }

    #[test]
    fn in_a_pause_only_a_batch_that_grows_is_ordered_with_a_theft() {
        let mut thief = Thief::new();
        for _ in 0..2 {
            thief.takes(1, true, TINY);
        }
        assert!(!thief.takes(1, true, TINY), "one at a time");
        assert!(thief.takes(2, true, TINY * 2));
        assert!(thief.takes(4, true, TINY * 4));
        assert!(!thief.takes(4, true, TINY * 4));
    }

    #[test]
    fn after_a_pause_batches_may_grow_from_one_again() {
        let mut thief = Thief::new();
        for _ in 0..2 {
            thief.takes(1, true, TINY);
        }
        assert_eq!(thief.patience.left_at(thief.now), Some(SHORTEST_PAUSE));
        thief.now += SHORTEST_PAUSE;
        assert_eq!(thief.patience.left_at(thief.now), None);
        assert!(thief.takes(1, true, TINY));
        assert_eq!(thief.pause(), SHORTEST_PAUSE, "it was not judged");
        assert!(thief.takes(2, true, TINY * 2));
        assert_eq!(thief.pause(), SHORTEST_PAUSE, "nor was that");
    }
}
