//! Trees of tasks that record when they are made, started and over, so that picks can be compared with
//! the exact order.
//!
//! The exact order is that of lineage: an older root comes first. Within one root a task comes before its children, and an
//! elder child with all below it before a younger one. So a task's place is its root's number, then its number in a walk
//! of the tree.
//!
//! No task waits: whatever runs was picked by a worker that searched for work. A task is *known* from the stamp after its
//! making. The pick of a task lies between two stamps: the end of what its worker did *before*, and the *begin* of the
//! task.
//!
//! A pick of a task is **inverted** if an earlier task of the order was known before that pick began, but was picked
//! later: its own pick began when the first task was running. A task that another worker was picking at that moment does
//! not count. So no inversion is an accident of stamping; a few inversions are missed.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::load::Arrivals;
use crate::measure::quantile;
use crate::rival::{Run, Spawn};
use crate::work;

/// Of a thousand picks, those that passed over an unstarted root and took a task of a younger one.
pub const ROOTS_PASSED: &str = "roots passed over";
/// Picks that are inverted against a task of an older root, in percent.
pub const BETWEEN: &str = "between roots %";
/// Picks that are inverted, but only against tasks of the same root, in percent.
pub const WITHIN: &str = "within a root %";
/// Tasks that ran on another thread than their maker's, in percent. Roots do not count.
pub const MOVED: &str = "moved %";
/// What a runtime counts itself: tasks that a worker published,
pub const PUBLISHED: &str = "published";
/// thefts,
pub const STEALS: &str = "steals";
/// and sleeps.
pub const SLEEPS: &str = "sleeps";
/// From the beginning of a batch until the oldest root is over, in microseconds.
pub const OLDEST: &str = "oldest us";
/// From a root's arrival until it is over, in microseconds: the mean,
pub const MEAN: &str = "mean us";
/// and what a hundredth part exceeds.
pub const LATE: &str = "p99 us";

const CHILDREN: u64 = 4;
/// Levels below the root.
const LEVELS: u32 = 3;
const EACH: u64 = 85;
/// The mean time that a task computes.
const MEAN_MICROS: u64 = 8;

/// How many tasks so many trees have.
#[must_use]
pub fn tasks(roots: u64) -> u64 {
    roots * EACH
}

/// What one task has stamped.
#[derive(Debug, Default)]
struct Stamped {
    known: AtomicU64,
    before: AtomicU64,
    began: AtomicU64,
}

/// One root: how many of its tasks are not over, when it arrived and when it was over, in
/// nanoseconds.
#[derive(Debug)]
struct Root {
    left: AtomicU64,
    came: AtomicU64,
    over: AtomicU64,
}

struct Forest {
    spawner: Arc<dyn Spawn>,
    /// By place in the exact order.
    tasks: Box<[Stamped]>,
    roots: Box<[Root]>,
    start: Instant,
    left: AtomicU64,
    moved: AtomicU64,
    over: Sender<()>,
}

thread_local! {
    /// When this thread ended its last task, perhaps one of an earlier forest.
    static BEFORE: Cell<u64> = const { Cell::new(0) };
}

/// The next stamp: one sequence for all forests, so that none has a stamp less than one of an earlier.
static STAMPS: AtomicU64 = AtomicU64::new(1);

fn stamp() -> u64 {
    STAMPS.fetch_add(1, SeqCst)
}

/// How many tasks there are in a tree of so many levels below its root.
const fn size(levels: u32) -> u64 {
    (CHILDREN.pow(levels + 1) - 1) / (CHILDREN - 1)
}

const _: () = assert!(size(LEVELS) == EACH);

impl Forest {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn submit(self: &Arc<Forest>, root: u64) {
        self.roots[root as usize].came.store(self.now(), Relaxed);
        self.make(root * EACH, LEVELS);
    }

    fn make(self: &Arc<Forest>, place: u64, levels: u32) {
        let (forest, maker) = (self.clone(), thread::current().id());
        self.spawner.spawn(Box::new(move || {
            if levels < LEVELS && maker != thread::current().id() {
                forest.moved.fetch_add(1, Relaxed);
            }
            forest.task(place, levels);
        }));
        self.tasks[place as usize].known.store(stamp(), Relaxed);
    }

    fn task(self: &Arc<Forest>, place: u64, levels: u32) {
        let stamped = &self.tasks[place as usize];
        stamped.before.store(BEFORE.get(), Relaxed);
        stamped.began.store(stamp(), Relaxed);
        work::spin(work::steps_per_ms() * (scattered(place) % (2 * MEAN_MICROS * 1000)) / 1_000_000);
        if levels > 0 {
            for child in 0..CHILDREN {
                self.make(place + 1 + child * size(levels - 1), levels - 1);
            }
        }
        let root = &self.roots[(place / EACH) as usize];
        if root.left.fetch_sub(1, AcqRel) == 1 {
            root.over.store(self.now(), Relaxed);
        }
        BEFORE.set(stamp());
        if self.left.fetch_sub(1, AcqRel) == 1 {
            self.over.send(()).expect("the caller waits");
        }
    }
}

/// A pseudo-random number that is the same every time.
fn scattered(n: u64) -> u64 {
    let x = (n ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ (x >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 20
}

/// Runs the forest, and reduces its stamps to figures.
///
/// # Panics
///
/// If the runtime drops a task.
#[must_use]
pub fn run(spawner: &Arc<dyn Spawn>, roots: u64, arrivals: Arrivals) -> Run {
    work::steps_per_ms();
    let (over, all_over) = channel();
    let root = |_| Root { left: AtomicU64::new(EACH), came: AtomicU64::new(0), over: AtomicU64::new(0) };
    let forest = Arc::new(Forest {
        spawner: spawner.clone(),
        tasks: (0..tasks(roots)).map(|_| Stamped::default()).collect(),
        roots: (0..roots).map(root).collect(),
        start: Instant::now(),
        left: AtomicU64::new(tasks(roots)),
        moved: AtomicU64::new(0),
        over,
    });
    let counted = spawner.counts();
    let begin = match arrivals {
        Arrivals::Batch => {
            let gate = hold(&**spawner);
            (0..roots).for_each(|root| forest.submit(root));
            let begin = forest.now();
            gate.wait();
            begin
        }
        Arrivals::Poisson(percent) => {
            arrive(&forest, roots, percent);
            0
        }
    };
    all_over.recv().expect("all tasks were run");
    let elapsed = Duration::from_nanos(forest.now() - begin);
    let mut figures = inversions(&forest.tasks);
    let latency = |root: &Root| (root.over.load(Relaxed) - root.came.load(Relaxed).max(begin)) as f64 / 1e3;
    let mut latencies: Vec<f64> = forest.roots.iter().map(latency).collect();
    if arrivals == Arrivals::Batch {
        figures.push((OLDEST, latencies[0]));
    }
    figures.push((MOVED, 100.0 * forest.moved.load(Relaxed) as f64 / (tasks(roots) - roots) as f64));
    let after = spawner.counts().into_iter().zip(counted);
    figures.extend(after.map(|((name, after), (_, before))| (name, (after - before) as f64)));
    figures.push((MEAN, latencies.iter().sum::<f64>() / roots as f64));
    latencies.sort_by(f64::total_cmp);
    figures.push((LATE, quantile(&latencies, 0.99)));
    Run { elapsed, value: tasks(roots), figures }
}

/// Blocks all workers until the caller arrives at the barrier.
fn hold(spawner: &dyn Spawn) -> Arc<Barrier> {
    let workers = spawner.workers();
    let (come, gate) = (Arc::new(Barrier::new(workers + 1)), Arc::new(Barrier::new(workers + 1)));
    for _ in 0..workers {
        let (come, gate) = (come.clone(), gate.clone());
        spawner.spawn(Box::new(move || {
            come.wait();
            gate.wait();
            BEFORE.set(stamp());
        }));
    }
    come.wait();
    gate
}

/// Submits the roots as they come.
fn arrive(forest: &Arc<Forest>, roots: u64, percent: u64) {
    let cores = thread::available_parallelism().map_or(1, usize::from).min(forest.spawner.workers());
    let each = (EACH * MEAN_MICROS * 1000) as f64 * 100.0 / (cores as f64 * percent as f64);
    let mut due = 0.0;
    for root in 0..roots {
        // Evenly between 0, exclusively, and 1.
        let even = (scattered(!root) % (1 << 20)) as f64;
        due += -((even + 1.0) / f64::from(1 << 20)).ln() * each;
        let left = Duration::from_nanos(due as u64).saturating_sub(forest.start.elapsed());
        #[allow(clippy::disallowed_methods, reason = "when roots come is the load")]
        thread::sleep(left);
        forest.submit(root);
    }
}

/// See the module head.
fn inversions(tasks: &[Stamped]) -> Vec<(&'static str, f64)> {
    let picks: Vec<[u64; 3]> = tasks
        .iter()
        .map(|task| [task.known.load(Relaxed), task.before.load(Relaxed), task.began.load(Relaxed)])
        .collect();
    let each = EACH as usize;
    let (mut roots, mut between, mut within) = (0_u64, 0_u64, 0_u64);
    for (place, &[_, before, began]) in picks.iter().enumerate() {
        let passes_over = |other: &[u64; 3]| other[0] < before && other[1] > began;
        let first_of_root = place - place % each;
        roots += u64::from(picks[..first_of_root].iter().step_by(each).any(passes_over));
        if picks[..first_of_root].iter().any(passes_over) {
            between += 1;
        } else {
            within += u64::from(picks[first_of_root..place].iter().any(passes_over));
        }
    }
    let share = |count: u64, of: f64| count as f64 * of / picks.len() as f64;
    vec![
        (ROOTS_PASSED, share(roots, 1000.0)),
        (BETWEEN, share(between, 100.0)),
        (WITHIN, share(within, 100.0)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamped(known: u64, before: u64, began: u64) -> Stamped {
        let [known, before, began] = [known, before, began].map(AtomicU64::new);
        Stamped { known, before, began }
    }

    #[test]
    fn a_pick_is_inverted_if_what_it_passed_over_was_known_before_and_picked_after() {
        let mut tasks: Vec<Stamped> = (0..tasks(2)).map(|_| stamped(1, 2, 3)).collect();
        let shares = |tasks: &[Stamped]| inversions(tasks).iter().map(|it| it.1).collect::<Vec<_>>();
        assert_eq!(shares(&tasks), [0.0, 0.0, 0.0]);
        let one = 100.0 / tasks.len() as f64;
        // An older root's task, picked by a look that began when the younger root's ran.
        tasks[7] = stamped(1, 4, 5);
        let all_but_the_first_seven = 8..tasks.len();
        assert_eq!(shares(&tasks)[1], 85.0 * one, "{all_but_the_first_seven:?}");
        assert_eq!(shares(&tasks)[2], 77.0 * one, "the later ones of the same root");
        assert_eq!(shares(&tasks)[0], 0.0, "it is no root");
        tasks[7] = stamped(2, 4, 5);
        assert_eq!(shares(&tasks), [0.0, 0.0, 0.0], "it was not known before the look");
    }
}
