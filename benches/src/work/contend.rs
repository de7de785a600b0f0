//! Contenders for one lock: how long each waits for it, and how long they take if they have to append in
//! order.

use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::thread;
use std::time::{Duration, Instant};

use crate::load::Contenders;
use crate::measure::median;
use crate::rival::Run;

/// The names of the figures of a [`Contest`].
pub const WAITS: [&str; 3] = ["longest wait to the median", "us longest wait", "ns median wait"];

/// So many steps, each of which needs the one before: some hundreds of nanoseconds.
#[inline]
pub fn spin() {
    black_box((0..200_u64).fold(black_box(1_u64), |x, i| x.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i));
}

/// A lock that threads may wait for.
pub trait Locked: Send + Sync {
    /// Calls `f` with the number behind it.
    fn with(&self, f: impl FnOnce(&mut u64));
}

impl Locked for Mutex<u64> {
    #[inline(always)]
    fn with(&self, f: impl FnOnce(&mut u64)) {
        f(&mut self.lock().expect("nobody panics"));
    }
}

#[cfg(feature = "rivals")]
impl Locked for parking_lot::Mutex<u64> {
    #[inline(always)]
    fn with(&self, f: impl FnOnce(&mut u64)) {
        f(&mut self.lock());
    }
}

/// Several contenders take a lock again and again, until there have been so many sections of [`spin`]. Outside the lock they
/// compute as long.
#[derive(Debug)]
pub struct Contest {
    many: u64,
    sections: u64,
    arrived: AtomicU64,
    waits: Mutex<Vec<f64>>,
    start: Instant,
}

impl Contest {
    /// Among so many, for so many sections.
    #[must_use]
    pub fn new(many: u64, sections: u64) -> Contest {
        let waits = Mutex::new(Vec::with_capacity((sections + many) as usize));
        Contest { many, sections, arrived: AtomicU64::new(0), waits, start: Instant::now() }
    }

    /// One more contender has started.
    pub fn arrive(&self) {
        self.arrived.fetch_add(1, AcqRel);
    }

    /// Whether all have started. Until then none takes the lock.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.arrived.load(Acquire) == self.many
    }

    /// One section, of a contender that requested the lock at `asked`. Answers whether the
    /// contender continues.
    pub fn section(&self, asked: Instant, waits: &mut Vec<Duration>, number: &mut u64) -> bool {
        waits.push(asked.elapsed());
        // The last wait of each counts, too: it may have stood there from the beginning.
        let goes_on = *number < self.sections;
        if goes_on {
            *number += 1;
            spin();
        }
        goes_on
    }

    /// Adds the waits of one contender.
    ///
    /// # Panics
    ///
    /// If another has panicked there.
    pub fn tell(&self, waits: &[Duration]) {
        let waits = waits.iter().map(|wait| wait.as_nanos() as f64);
        self.waits.lock().expect("nobody panics").extend(waits);
    }

    /// The whole work of one contender. `pause` lets others run.
    pub fn take_part(&self, lock: &impl Locked, pause: impl Fn()) {
        self.arrive();
        while !self.is_complete() {
            pause();
        }
        let mut waits = Vec::with_capacity(4 * (self.sections / self.many) as usize);
        loop {
            let (asked, mut goes_on) = (Instant::now(), false);
            lock.with(|number| goes_on = self.section(asked, &mut waits, number));
            if !goes_on {
                break;
            }
            spin();
        }
        self.tell(&waits);
    }

    /// All have ended; the lock has this number.
    ///
    /// # Panics
    ///
    /// If there is no wait.
    #[must_use]
    pub fn run(self, value: u64) -> Run {
        let mut waits = self.waits.into_inner().expect("nobody panics");
        waits.sort_by(f64::total_cmp);
        let (longest, median) = (*waits.last().expect("there were some"), median(&waits));
        let figures = WAITS.into_iter().zip([longest / median.max(1.0), longest / 1e3, median]).collect();
        Run { elapsed: self.start.elapsed(), value, figures }
    }
}

/// Whether the `n`th is a thread.
#[must_use]
pub fn is_thread(of: Contenders, n: u64) -> bool {
    match of {
        Contenders::Threads => true,
        Contenders::Tasks => false,
        Contenders::Mixed => n.is_multiple_of(2),
    }
}

fn number(lock: &impl Locked) -> u64 {
    let mut number = 0;
    lock.with(|it| number = *it);
    number
}

/// A contest of threads.
pub fn by_threads(lock: &impl Locked, many: u64, sections: u64) -> Run {
    let contest = Contest::new(many, sections);
    thread::scope(|scope| {
        let take_part = || contest.take_part(lock, thread::yield_now);
        (0..many).for_each(|_| _ = scope.spawn(take_part));
    });
    contest.run(number(lock))
}

/// Polls under the lock until all contenders before it have appended, and appends.
pub fn append(lock: &impl Locked, n: u64) {
    let mut done = false;
    while !done {
        lock.with(|last| {
            done = *last == n - 1;
            if done {
                *last = n;
            }
        });
    }
}

/// Threads that append in order; the last is made first.
pub fn append_by_threads(lock: &impl Locked, many: u64) -> Run {
    Run::timed(|| {
        thread::scope(|scope| (1..=many).rev().for_each(|n| _ = scope.spawn(move || append(lock, n))));
        number(lock)
    })
}
