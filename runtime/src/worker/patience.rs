//! A thief's patience: stealing is only worth it when the loot lasts longer than the way.
//!
//! A thief that has used up its loot in under 4 µs orders nothing for a while, which doubles up to 0.4 ms; it sleeps with a
//! tick meanwhile, so no wake-up depends on its order. It alone reads the clock.

use std::cell::Cell;
use std::time::{Duration, Instant};

use forebear_context::shim::time;

/// When this worker last took something, and how long it holds back.
#[derive(Default)]
pub(super) struct Patience {
    loot: Cell<Option<Instant>>,
    pause: Cell<Duration>,
    until: Cell<Option<Instant>>,
    pub(super) ticks: Cell<u32>,
}

const WORTH_IT: Duration = Duration::from_micros(4);
const SHORTEST_PAUSE: Duration = Duration::from_micros(25);
const LONGEST_PAUSE: Duration = Duration::from_micros(400);
const TICK: Duration = Duration::from_micros(200);
/// Ticks double up to this: hunger was left behind, so a fork is enough; the tick is for what nobody told.
const LONGEST_TICK: Duration = Duration::from_millis(5);

impl Patience {
    pub(super) fn loot_taken(&self) {
        self.loot.set(Some(time::now()));
        self.ticks.set(0);
    }

    pub(super) fn loot_used_up(&self) {
        let Some(since) = self.loot.take() else { return };
        let now = time::now();
        if now - since >= WORTH_IT {
            self.pause.set(Duration::ZERO);
            self.until.set(None);
            return;
        }
        let pause = (self.pause.get() * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        self.pause.set(pause);
        self.until.set(Some(now + pause));
    }

    pub(super) fn left(&self) -> Option<Duration> {
        let left = self.until.get()?.saturating_duration_since(time::now());
        if left.is_zero() {
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
