//! How a scenario is explored by shuttle: many orders of its steps, chosen at random.
//!
//! Half of the executions choose whose step is next each time anew. The others give every thread a rank, have the first that
//! can continue do so, and change ranks at a few places ("probabilistic concurrency testing"): so a thread stands still for very
//! long, which the first half does not come to. All of it follows from one seed, and an execution from its schedule.
//!
//! | variable | what it says | else |
//! |---|---|---|
//! | `FOREBEAR_SHUTTLE_RUNS` | how many executions of a scenario of weight one | 2,000 |
//! | `FOREBEAR_SHUTTLE_SEED` | what the schedules follow from | 1 |
//! | `FOREBEAR_SHUTTLE_REPLAY` | the schedule of one execution, as a failure prints it; no others run | |

use std::cell::Cell;
use std::env;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, Runner, current};

use crate::Answers;

/// How often ranks change in the executions with ranks. Few changes find what needs few quickly.
const CHANGES: [usize; 3] = [2, 4, 10];

/// Runs `scenario` in many executions; in `1 / weight` times as many if one takes longer. Fails if one of `expected` was not
/// answered in any of them, or if something else was.
///
/// One scenario at a time in a process: what the shipped code has once for the process is then the scenario's.
///
/// # Panics
///
/// If the scenario does in some execution, if all its threads wait for each other, or if one goes on for ever.
pub fn roam(weight: usize, expected: &[&'static str], scenario: impl Fn(&Answers) + Send + Sync + 'static) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);

    let roam = Arc::new(Roam::new(scenario));
    let (runs, seed) = (number("FOREBEAR_SHUTTLE_RUNS", 2_000), number("FOREBEAR_SHUTTLE_SEED", 1));
    // It does what is done once in a process; the steps of all others are their schedule's alone.
    roam.run(RandomScheduler::new_from_seed(seed, 1), "the first");
    if let Ok(schedule) = env::var("FOREBEAR_SHUTTLE_REPLAY") {
        let schedule: String = schedule.split_whitespace().collect();
        roam.run(ReplayScheduler::new_from_encoded(&schedule), "replayed");
        return;
    }
    let part = (runs as usize / (2 * CHANGES.len() * weight)).max(1);
    roam.run(RandomScheduler::new_from_seed(seed, part * CHANGES.len()), "anew each time");
    for changes in CHANGES {
        roam.run(PctScheduler::new_from_seed(seed, changes, part), "by rank");
    }
    let executions = roam.executions.load(Relaxed);
    print!("{} steps each, ", roam.steps.load(Relaxed) / executions);
    roam.answers.check(expected, executions);
}

fn number(variable: &str, otherwise: u64) -> u64 {
    match env::var(variable) {
        Ok(number) => number.parse().unwrap_or_else(|_| panic!("{variable}={number} is no number")),
        Err(_) => otherwise,
    }
}

/// One scenario's exploration.
struct Roam<F> {
    scenario: F,
    answers: Answers,
    executions: AtomicUsize,
    steps: AtomicUsize,
}

impl<F: Fn(&Answers) + Send + Sync + 'static> Roam<F> {
    fn new(scenario: F) -> Roam<F> {
        Roam {
            scenario,
            answers: Answers::default(),
            executions: AtomicUsize::new(0),
            steps: AtomicUsize::new(0),
        }
    }

    fn run(self: &Arc<Roam<F>>, scheduler: impl Scheduler + 'static, how: &'static str) {
        let mut config = Config::new();
        config.stack_size = 256 << 10;
        config.silence_warnings = true;
        // What others do while the one that has failed unwinds is of no interest.
        config.ungraceful_shutdown_config.immediately_return_on_panic = true;
        let (this, told) = (Arc::clone(self), Told { of: Arc::clone(self), how, before: Cell::new(0) });
        told.before.set(self.executions.load(Relaxed));
        Runner::new(scheduler, config).run(move || {
            this.executions.fetch_add(1, Relaxed);
            (this.scenario)(&this.answers);
            this.steps.fetch_add(current::context_switches(), Relaxed);
        });
        drop(told);
    }
}

/// Says in which execution it was, when that has failed.
struct Told<F> {
    of: Arc<Roam<F>>,
    how: &'static str,
    before: Cell<usize>,
}

impl<F> Drop for Told<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let nth = self.of.executions.load(Relaxed) - self.before.get();
            let seed = number("FOREBEAR_SHUTTLE_SEED", 1);
            eprintln!("failed in execution {nth}, {}, with FOREBEAR_SHUTTLE_SEED={seed}", self.how);
            eprintln!("that one alone: FOREBEAR_SHUTTLE_REPLAY='the schedule printed above'");
        }
    }
}
