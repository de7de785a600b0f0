//! The work inside the tasks, and readings of the process: everything that is the same for all runtimes.

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::rival::Run;

pub mod contend;
pub mod forest;
pub mod graph;
pub mod idle;
pub mod image;
pub mod memory;

pub use self::memory::Memory;

/// The processor time of all threads for an operation, in nanoseconds. It covers the whole repeat, also the parts outside
/// [`Run::elapsed`].
pub const CPU: &str = "cpu ns";

/// The processor time that all threads of this process have used.
#[must_use]
pub fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec as u32)
}

/// The n-th Fibonacci number, by a loop.
#[must_use]
pub fn fib(n: u64) -> u64 {
    (0..n).fold((0, 1), |(a, b), _| (b, a + b)).0
}

/// Bytes for up to two million tasks to mark, so that each leaves a trace by one plain store to a place of its own.
static MARKS: OnceLock<Vec<AtomicU8>> = OnceLock::new();

/// `n` bytes, all zero.
///
/// # Panics
///
/// If `n` is above two million.
pub fn marks(n: u64) -> &'static [AtomicU8] {
    let all = MARKS.get_or_init(|| (0..2_000_000).map(|_| AtomicU8::new(0)).collect());
    let marks = &all[..n as usize];
    marks.iter().for_each(|mark| mark.store(0, Relaxed));
    marks
}

/// How many of them are set.
#[must_use]
pub fn marked(marks: &[AtomicU8]) -> u64 {
    marks.iter().map(|mark| u64::from(mark.load(Relaxed))).sum()
}

/// The body of a task that is waited for at once: takes a number along, and counts as 1.
#[inline]
pub fn one(i: u64) -> u64 {
    black_box(i);
    1
}

/// The work of a task of [`Load::Queued`](crate::Load::Queued): takes two words along, and counts as 1.
pub fn two_words(i: u64) -> impl FnOnce() -> u64 + Send + 'static {
    let (i, one) = (black_box(i), black_box(1_u64));
    move || {
        black_box(i);
        one
    }
}

/// The variable by which `claims` passes its calibration to its children, so that all compute equally long.
pub const SPIN_VARIABLE: &str = "FOREBEAR_BENCH_SPIN";

/// Steps of [`spin`] that take about a millisecond on this machine, when it is left alone.
pub fn steps_per_ms() -> u64 {
    static STEPS: OnceLock<u64> = OnceLock::new();
    *STEPS.get_or_init(|| {
        if let Some(steps) = std::env::var(SPIN_VARIABLE).ok().and_then(|text| text.parse().ok()) {
            return steps;
        }
        let once = |_| {
            let start = Instant::now();
            spin(100_000);
            start.elapsed()
        };
        let best = (0..50).map(once).min().unwrap_or(Duration::from_millis(1));
        (100_000.0 / best.as_secs_f64() / 1e3) as u64
    })
}

/// Computes a number of steps, and not for a time: two arms on one core must take twice as long as
/// one.
pub fn spin(steps: u64) -> u64 {
    let mut x = black_box(88_172_645_463_325_252_u64);
    for _ in 0..steps {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    black_box(x)
}

/// One arm of [`Load::Coarse`](crate::Load::Coarse): a millisecond. Counts as 1.
pub fn arm() -> u64 {
    spin(steps_per_ms());
    1
}

/// A leaf of [`Load::Urgent`](crate::Load::Urgent), which computes for so many microseconds. Counts as 1.
#[must_use]
pub fn leaf(micros: u64) -> u64 {
    spin(steps_per_ms() * micros / 1000);
    1
}

/// Counts the tasks that were cancelled: held by each, and dropped with it, whether it ran or not.
#[derive(Debug)]
pub struct Over(Arc<AtomicU64>);

impl Over {
    /// Where they are counted.
    #[must_use]
    pub fn counter() -> Arc<AtomicU64> {
        Arc::default()
    }

    /// For one task.
    #[must_use]
    pub fn new(counter: &Arc<AtomicU64>) -> Over {
        Over(counter.clone())
    }

    /// The task has finished by itself, and is not counted.
    pub fn forget(self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// The pause before coarse work: long enough for every worker to have gone to sleep.
pub fn pause() {
    steps_per_ms();
    #[allow(clippy::disallowed_methods, reason = "the pause is the load: workers are to fall asleep")]
    std::thread::sleep(Duration::from_millis(5));
}

/// The names of the figures.
pub const FIGURES: &[&str] = &[
    CPU,
    graph::IDEAL,
    memory::HELD[0],
    memory::HELD[1],
    memory::HELD[2],
    memory::BARE,
    memory::TRIMMED[0],
    memory::TRIMMED[1],
    memory::TRIMMED[2],
    memory::TRIMMED[3],
    memory::TRIMMED[4],
    forest::ROOTS_PASSED,
    forest::BETWEEN,
    forest::WITHIN,
    forest::OLDEST,
    forest::MEAN,
    forest::MOVED,
    forest::PUBLISHED,
    forest::STEALS,
    forest::SLEEPS,
    forest::LATE,
    idle::SWITCHES,
    idle::WAKER,
    idle::P99,
    LATE[0],
    LATE[1],
    LATE[2],
    contend::WAITS[0],
    contend::WAITS[1],
    contend::WAITS[2],
    WORST,
    "at 1",
    "at 2",
    "at 4",
    "at 8",
    "at 10",
    "at 16",
    "at 10^2",
    "at 10^3",
    "at 10^4",
    "at 10^5",
    "at 10^6",
];

/// Points of a curve with few items are measured over at least so many items. The time of the last point is for so
/// many.
pub const ITEMS: u64 = 20_000;

/// How many times an item costs among many what it costs among few; see [`crate::claims::growth`].
pub const WORST: &str = "worst ratio";

/// The name of the figure at a point of a curve; `None` for a number that no curve has.
#[must_use]
pub fn at(n: u64) -> Option<&'static str> {
    let name = match n {
        100.. if 10_u64.pow(n.ilog10()) == n => format!("at 10^{}", n.ilog10()),
        _ => format!("at {n}"),
    };
    FIGURES.iter().find(|known| **known == name).copied()
}

/// The names of the figures of [`late`].
pub const LATE: [&str; 3] = ["p50 us late", "p99 us late", "us late at most"];

/// How far off the timers of [`Load::Timer`](crate::Load::Timer) and [`Load::Timeouts`](crate::Load::Timeouts) are.
pub const HOUR: Duration = Duration::from_secs(3600);

/// How long after now the `i`th timer of many is due: an hour and up to a minute, in no order.
#[inline]
#[must_use]
pub fn far(i: u64) -> Duration {
    HOUR + Duration::from_nanos(scattered(i) % 60_000_000_000)
}

/// A pseudo-random number for this index.
#[inline]
fn scattered(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8
}

/// The instants of [`Load::Sleepers`](crate::Load::Sleepers), of which the first comes when all have had time to fall asleep.
///
/// # Panics
///
/// If there are none.
#[must_use]
pub fn instants(n: u64, spread_ms: u64) -> Vec<Instant> {
    // What a fresh stack takes, and some.
    let first = Instant::now() + Duration::from_millis(20) + Duration::from_micros(10) * n as u32;
    let step = Duration::from_millis(spread_ms).as_nanos() as u64 / n;
    let mut order: Vec<u64> = (0..n).collect();
    order.sort_by_key(|i| scattered(*i));
    order.into_iter().map(|place| first + Duration::from_nanos(place * step)).collect()
}

/// How late a sleeper is, in nanoseconds.
///
/// # Panics
///
/// If it is early.
#[must_use]
pub fn lateness(due: Instant) -> u64 {
    Instant::now().checked_duration_since(due).expect("a sleeper woke early").as_nanos() as u64
}

/// Makes a run of a tree's time and value, and of how late the sleepers beside it were.
#[must_use]
pub fn beside(tree: Run, due: &[Instant], lateness: Vec<u64>) -> Run {
    assert_eq!(lateness.len(), due.len(), "each of them has a turn");
    Run { figures: late(due, lateness).figures, ..tree }
}

/// Makes a run of the sleepers' results: from the last instant on.
#[must_use]
pub fn late(due: &[Instant], mut late: Vec<u64>) -> Run {
    let end = Instant::now();
    let elapsed = due.iter().max().map_or(Duration::ZERO, |last| end - *last);
    late.sort_unstable();
    let at = |share: f64| late[((late.len() - 1) as f64 * share).round() as usize] as f64 / 1e3;
    let figures = LATE.into_iter().zip([0.5, 0.99, 1.0].map(at)).collect();
    Run { elapsed, value: late.len() as u64, figures }
}
