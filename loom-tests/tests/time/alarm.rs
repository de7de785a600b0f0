//! A worker that keeps the time of its own, on its way to sleep, against the timer thread, which does it instead. Shipped: `Shards` and the
//! engine's `Worker::idle` with `Signals`; what the worker does before it sleeps and in its search is as in the runtime's.
//!
//! A lost wake-up shows as a deadlock: a worker that sleeps for ever. Time does not pass: the worker has come to when all is due on it, or
//! to when nothing is yet; the timer thread to when the worker has neglected it.
#![cfg(loom)]

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use forebear_context::shim::{Arc, Mutex, thread};
use forebear_loom_tests::explore;
use forebear_pool::{Signals, Supply, Worker};
use forebear_runtime::model::alarms::{self, Fire, Fired, Shards, Standing};

/// So many seconds after the start.
fn at(seconds: u64) -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now) + Duration::from_secs(seconds)
}

/// A sleeper.
#[derive(Debug)]
struct Sleeper(u32);

// SAFETY: it stands nowhere.
unsafe impl alarms::TimerEntry for Sleeper {
    fn standing(&self) -> Option<NonNull<Standing>> {
        None
    }
}

/// A runtime of one worker.
struct House {
    signals: Signals,
    shards: Shards<Sleeper>,
    /// What time the worker sees.
    now: Instant,
    /// What it has fired itself, and who was brought by the timer thread. The first is no lock in the runtime, and nobody meets there.
    ready: Mutex<Vec<u32>>,
    mail: Mutex<Vec<u32>>,
}

/// Takes down whom it wakes, and brings them when the lock is about to be given up.
struct Brings<'a>(&'a House, Vec<u32>, bool);

impl Fire<Sleeper> for Brings<'_> {
    fn fire(&mut self, Sleeper(name): Sleeper) -> Option<Sleeper> {
        self.1.push(name);
        None
    }

    fn done(&mut self) {
        let Brings(house, some, own) = self;
        if *own {
            house.ready.lock().unwrap().append(some);
        } else if !some.is_empty() {
            house.mail.lock().unwrap().append(some);
            house.signals.wake(0);
        }
    }
}

impl House {
    /// With two sleepers, due at one.
    fn new(now: u64) -> Arc<House> {
        let house = House {
            signals: Signals::new(1),
            shards: Shards::new(2, at(0), Some(Duration::from_secs(1))),
            now: at(now),
            ready: Mutex::new(Vec::new()),
            mail: Mutex::new(Vec::new()),
        };
        for name in [1, 2] {
            // SAFETY: nobody else is there yet.
            unsafe { house.shards.insert(0, at(1), Sleeper(name), || at(0), || ()).unwrap() };
        }
        Arc::new(house)
    }

    /// One at a time, by the worker.
    fn fire_own(&self) {
        if self.shards.may_be_due(0, self.now) {
            self.shards.sees(0, self.now);
            // SAFETY: the worker calls.
            unsafe { self.shards.fire_own(0, self.now, 1, &mut Brings(self, Vec::new(), true)) };
        }
    }

    /// The timer thread, once.
    fn keep(&self, now: u64) {
        let mut brings = Brings(self, Vec::new(), false);
        while self.shards.is_neglected(0, at(now))
            && !matches!(self.shards.fire(0, at(now), 1, &mut brings), Fired::All)
        {}
    }
}

impl Supply for House {
    type Task = (u32, bool);

    fn signals(&self) -> &Signals {
        &self.signals
    }

    fn take(&self, _: usize) -> Option<(u32, bool)> {
        let own = self.ready.lock().unwrap().pop().map(|name| (name, true));
        own.or_else(|| self.mail.lock().unwrap().pop().map(|name| (name, false)))
    }

    fn steal(&self, _: usize) -> Option<(u32, bool)> {
        None
    }

    fn best(&self, _: usize) -> u64 {
        u64::MAX
    }

    fn before_sleep(&self, _: usize) -> Option<Duration> {
        self.fire_own();
        self.shards.left(0, self.now)
    }
}

fn worker(house: &Arc<House>) -> thread::JoinHandle<[(u32, bool); 2]> {
    let house = house.clone();
    thread::spawn(move || {
        let worker = Worker::attach(house, 0);
        [(); 2].map(|()| worker.idle().unwrap())
    })
}

fn names(came: [(u32, bool); 2]) -> [u32; 2] {
    let mut names = came.map(|(name, _)| name);
    names.sort_unstable();
    names
}

#[test]
fn sleepers_that_are_due_reach_their_worker_by_itself_or_by_the_timer_thread() {
    explore(&["itself", "both", "timer thread"], |answers| {
        let house = House::new(1);
        let worker = worker(&house);
        house.keep(9);
        let came = worker.join().unwrap();
        assert_eq!(names(came), [1, 2]);
        answers.note(match came.iter().filter(|(_, own)| *own).count() {
            2 => "itself",
            1 => "both",
            _ => "timer thread",
        });
        assert_eq!(house.shards.armed(), 0);
    });
}

/// The worker has found nothing to be due yet, and goes to sleep.
#[test]
fn what_the_timer_thread_brings_reaches_a_worker_that_goes_to_sleep_until_later() {
    explore(&[], |_| {
        let house = House::new(0);
        let worker = worker(&house);
        house.keep(9);
        assert_eq!(names(worker.join().unwrap()), [1, 2]);
    });
}
