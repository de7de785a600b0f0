//! The same with a growing number: a curve of nanoseconds for an item.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::{Duration, Instant};

use forebear::sync::Mutex;
use forebear::{Request, Runtime, join, scope, spawn};

use super::time::timers_of_one;
use super::{Forebear, SMALL_STACK, nested, pause, sum};
use crate::load::{Fixed, Grows, How, Load};
use crate::measure::median;
use crate::rival::{Rival, Run};
use crate::work::{self, ITEMS, WORST, at};

/// So many passes over all points. A disturbance in one pass affects all points of that pass.
const PASSES: usize = 7;

/// The cost of an item among more is divided by its cost among this many. Fewer would measure special cases: a wait that needs
/// no switch, a list of one.
const FEW: u64 = 1_000;

/// Measures the curve.
pub(super) fn curve(workers: usize, of: Grows, up_to: u64) -> Run {
    if let Grows::Workers(fixed) = of {
        let counts = [1, 2, 4, 8, 16].into_iter().filter(|count| *count <= up_to);
        let runtimes: Vec<_> = counts.map(|count| (count, Forebear::start(count as usize))).collect();
        return drawn(&runtimes, 2, |_, forebear| once(forebear, fixed));
    }
    let small =
        Runtime::builder().workers(workers).stack_size(SMALL_STACK).build().expect("forebear's runtime");
    let sizes = std::iter::successors(Some(1), |n| Some(n * 10)).take_while(|n| *n <= up_to);
    drawn(&sizes.map(|n| (n, ())).collect::<Vec<_>>(), FEW, |n, ()| {
        let repeats = (ITEMS / n).max(1);
        let many = move || (0..repeats).map(|_| items(of, n)).sum::<Duration>();
        small.run(many).as_nanos() as f64 / (repeats * n) as f64
    })
}

/// The medians over the passes, and the worst from `few` on, divided by that of `few`.
fn drawn<T>(points: &[(u64, T)], few: u64, measure: impl Fn(u64, &T) -> f64) -> Run {
    let mut passes = vec![Vec::new(); points.len()];
    for pass in 0..=PASSES {
        for ((n, with), passes) in points.iter().zip(&mut passes) {
            let nanos = measure(*n, with);
            // The first is for warming up.
            if pass > 0 {
                passes.push(nanos);
            }
        }
    }
    let mut figures = Vec::new();
    let (mut base, mut worst) = (f64::NAN, f64::NAN);
    for ((n, _), mut nanos) in points.iter().zip(passes) {
        nanos.sort_by(f64::total_cmp);
        let nanos = median(&nanos);
        figures.extend(at(*n).map(|name| (name, nanos)));
        if *n == few {
            base = nanos;
        }
        if *n >= few {
            worst = worst.max(nanos);
        }
    }
    let last = figures.last().map_or(0.0, |figure| figure.1);
    figures.push((WORST, worst / base));
    let load_of_many = last * ITEMS as f64;
    Run { elapsed: Duration::from_nanos(load_of_many as u64), value: ITEMS, figures }
}

/// Nanoseconds a piece of the work.
fn once(forebear: &Forebear, fixed: Fixed) -> f64 {
    // The others have slept meanwhile.
    forebear.run(Load::SETTLING).expect("it has the means");
    let load = match fixed {
        Fixed::Tree => Load::Skynet { leaves: 100_000, how: How::Value },
        Fixed::Fib => Load::Fib { n: 26, how: How::Join },
        Fixed::Arms => return arms(forebear),
        Fixed::Roots => Load::Roots { roots: 64, children: 128 },
        Fixed::Lock => Load::LockContended { tasks: 64, each: 2_000 },
    };
    let run = forebear.run(load).expect("it has the means");
    assert_eq!(run.value, load.expected(), "{load:?}");
    run.elapsed.as_nanos() as f64 / load.ops() as f64
}

fn arms(forebear: &Forebear) -> f64 {
    const ARMS: u64 = 400;
    fn halves(arms: u64) {
        match arms {
            1 => _ = work::spin(work::steps_per_ms() / 20),
            _ => _ = join(|| halves(arms / 2), || halves(arms - arms / 2)),
        }
    }
    let run = forebear.runtime.run(|| {
        Run::timed(|| {
            halves(ARMS);
            ARMS
        })
    });
    run.elapsed.as_nanos() as f64 / ARMS as f64
}

/// How long so many items take, inside.
fn items(of: Grows, n: u64) -> Duration {
    let start = Instant::now();
    let done = match of {
        Grows::Requests => sum((0..n).map(|i| spawn(move || work::one(i))).collect()),
        Grows::Depth => nested(n),
        Grows::WaitersOfRequest => waiters_of_request(n),
        Grows::WaitersOfLock => waiters_of_lock(n),
        Grows::Timers => timers_of_one(n, true),
        Grows::Workers(_) => unreachable!("not inside"),
    };
    assert_eq!(done, n, "{of:?}");
    start.elapsed()
}

/// Yields until all of them wait.
fn until_come(come: &AtomicU64, n: u64) {
    while come.load(Acquire) < n {
        pause();
    }
}

fn waiters_of_request(n: u64) -> u64 {
    let come = Arc::new(AtomicU64::new(0));
    let all = come.clone();
    let first = Request::new(move || until_come(&all, n));
    first.submit();
    let waiter = |_| {
        let (come, first) = (come.clone(), first.clone());
        spawn(move || {
            come.fetch_add(1, AcqRel);
            first.wait().expect("nobody cancels, nothing panics");
            1
        })
    };
    sum((0..n).map(waiter).collect())
}

fn waiters_of_lock(n: u64) -> u64 {
    let (come, lock) = (AtomicU64::new(0), Mutex::new(0));
    scope(|s| {
        let held = lock.lock();
        for _ in 0..n {
            s.spawn(|| {
                come.fetch_add(1, AcqRel);
                *lock.lock() += 1;
            });
        }
        until_come(&come, n);
        drop(held);
    });
    lock.into_inner()
}
