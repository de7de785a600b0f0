//! Holds: consumers of one input that wait for it by plain `wait` use all workers, and a hold is a delay, never a condition.

#[path = "../support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use forebear::sync::Event;
use forebear::{CancelReason, Error, Request, Runtime, State, WaitError, yield_now};
use support::{Count, Flag, Watchdog, hold_thread_until, runtime};

const CONSUMERS: usize = 64;
/// So many a worker starts before it holds the others back.
const FEW: usize = 3;

/// Requests of one callable that wait for `input` and then call `then`; `first` is called before the wait. Every second is made by a builder, so
/// the compiler may make two tables of functions for them.
fn consumers(
    input: &Request<()>,
    first: impl Fn(usize) + Clone + Send + 'static,
    then: impl Fn() + Clone + Send + 'static,
) -> Vec<Request<()>> {
    so_many_consumers(CONSUMERS, input, first, then)
}

fn so_many_consumers(
    count: usize,
    input: &Request<()>,
    first: impl Fn(usize) + Clone + Send + 'static,
    then: impl Fn() + Clone + Send + 'static,
) -> Vec<Request<()>> {
    let consumer = |n| {
        let (input, first, then) = (input.clone(), first.clone(), then.clone());
        let callable = move || {
            first(n);
            input.wait()?;
            then();
            Ok::<_, Error>(())
        };
        let consumer = match n % 2 {
            0 => Request::try_new(callable),
            _ => Request::builder().try_build(callable),
        };
        consumer.submit();
        consumer
    };
    (0..count).map(consumer).collect()
}

/// Holds its thread until all workers are held here, as often as their shares allow.
#[derive(Default)]
struct Rounds {
    state: Mutex<Shares>,
    all: Condvar,
}

#[derive(Default)]
struct Shares {
    /// How many consumers each worker has begun while the input ran. A worker runs what it has begun.
    begun: HashMap<ThreadId, usize>,
    /// How many had been begun by one worker when the first went on.
    pinned: Option<usize>,
    rounds: usize,
    there: usize,
    missed: bool,
}

impl Shares {
    /// In so many rounds each worker can run one: of its own, or of what nobody has begun. A worker may run one of these while its own have yet
    /// to hear of the input's end: once, since the worker that tells them takes part in each round, too.
    fn rounds(&self, workers: usize) -> usize {
        let own: Vec<usize> =
            self.begun.values().copied().chain(std::iter::repeat(0)).take(workers).collect();
        let free = CONSUMERS - own.iter().sum::<usize>();
        let takes = |own: &usize, round: usize| round.saturating_sub(*own).max(1);
        let fits = |round: &usize| own.iter().map(|own| takes(own, *round)).sum::<usize>() <= free;
        (1..=CONSUMERS / workers).take_while(fits).last().unwrap_or(0)
    }
}

impl Rounds {
    fn begin(&self) {
        *self.state.lock().unwrap().begun.entry(std::thread::current().id()).or_default() += 1;
    }

    fn take_part(&self, workers: usize) {
        let mut state = self.state.lock().unwrap();
        if state.pinned.is_none() {
            state.pinned = state.begun.values().max().copied();
            state.rounds = state.rounds(workers);
        }
        state.there += 1;
        let end = state.there.div_ceil(workers) * workers;
        self.all.notify_all();
        let waits = |state: &mut Shares| state.there < end && end <= state.rounds * workers && !state.missed;
        let (mut state, late) = self.all.wait_timeout_while(state, Duration::from_secs(10), waits).unwrap();
        // Once is enough.
        state.missed |= late.timed_out();
    }
}

/// So many ticks of a hold are over in this time, at most.
fn ticks_in(mut time: Duration) -> usize {
    let ticks = std::iter::successors(Some(Duration::from_micros(200)), |tick| {
        Some((*tick * 2).min(Duration::from_millis(5)))
    });
    ticks
        .take_while(|tick| {
            let left = time.checked_sub(*tick);
            time = left.unwrap_or_default();
            left.is_some()
        })
        .count()
}

/// Each round holds all workers. A worker runs what it has begun while the input ran, which is no more than its ticks allow; all others are shared
/// out, to the last.
#[test]
fn consumers_of_one_input_are_run_by_all_workers() {
    for workers in [2, 4] {
        let _dog = Watchdog::new(format_args!("{workers} workers"));
        let runtime = runtime(workers);
        let rounds = Arc::new(Rounds::default());
        let shares = rounds.clone();
        let most = runtime.run(move || {
            let (begun, start) = (Count::new(), Instant::now());
            let input = {
                let begun = begun.clone();
                Request::new(move || {
                    hold_thread_until(|| begun.get() >= FEW * (workers - 1));
                    // Long enough to start all of them.
                    let start = Instant::now();
                    hold_thread_until(|| start.elapsed() >= Duration::from_millis(20));
                })
            };
            let (first, then) = (rounds.clone(), rounds);
            let of = input.clone();
            let first = move |_| {
                if !of.is_done() {
                    first.begin();
                }
                begun.up();
            };
            let consumers = consumers(&input, first, move || then.take_part(workers));
            input.wait().unwrap();
            let most = FEW + ticks_in(start.elapsed());
            // By a watch, which runs nothing here: what this worker has begun goes first.
            consumers.iter().for_each(|consumer| *consumer.watch().unwrap());
            most
        });
        let shares = shares.state.lock().unwrap();
        let pinned = shares.pinned.unwrap();
        assert!(pinned <= most, "{pinned} of them on one of {workers}, and {most} at most by its ticks");
        assert!(!shares.missed, "a worker was missing in a round of {}, {}", shares.rounds, shares.there);
    }
}

#[test]
fn a_target_that_spins_until_the_last_held_consumer_has_begun_ends() {
    for workers in [2, 4] {
        let _dog = Watchdog::new(format_args!("{workers} workers"));
        runtime(workers).run(|| {
            let last = Arc::new(Flag::new());
            let input = {
                let last = last.clone();
                Request::new(move || hold_thread_until(|| last.is_up()))
            };
            let first = move |n| {
                if n == CONSUMERS - 1 {
                    last.raise();
                }
            };
            let consumers = consumers(&input, first, || ());
            input.wait().unwrap();
            consumers.iter().for_each(|consumer| *consumer.wait().unwrap());
        });
    }
}

/// However many are held: one for each tick of 5 ms would be more than two minutes.
#[test]
fn a_target_that_yields_until_a_crowd_of_held_consumers_has_begun_ends() {
    const CROWD: usize = 28_000;
    let _dog = Watchdog::new("2 workers");
    runtime(2).run(|| {
        let begun = Count::new();
        let input = {
            let begun = begun.clone();
            Request::builder().own_stack().try_build(move || {
                while begun.get() < CROWD {
                    yield_now()?;
                }
                Ok(())
            })
        };
        input.submit();
        let consumers = so_many_consumers(CROWD, &input, move |_| _ = begun.up(), || ());
        consumers.iter().for_each(|consumer| *consumer.wait().unwrap());
    });
}

#[test]
fn a_target_that_is_suspended_until_the_last_consumer_has_begun_ends() {
    let _dog = Watchdog::new("2 workers");
    runtime(2).run(|| {
        let (begun, last) = (Count::new(), Arc::new(Event::new()));
        let input = {
            let (begun, last) = (begun.clone(), last.clone());
            Request::try_new(move || {
                hold_thread_until(|| begun.get() > FEW);
                Ok(last.wait()?)
            })
        };
        let first = move |n| {
            begun.up();
            if n == CONSUMERS - 1 {
                last.set();
            }
        };
        let consumers = consumers(&input, first, || ());
        input.wait().unwrap();
        consumers.iter().for_each(|consumer| *consumer.wait().unwrap());
    });
}

/// The target needs what is held back, and says so by a wait: it runs that itself.
#[test]
fn a_target_that_waits_for_a_held_request_runs_it() {
    let _dog = Watchdog::new("2 workers");
    runtime(2).run(|| {
        let (begun, held) = (Count::new(), Arc::new(Mutex::new(None::<Request<()>>)));
        let input = {
            let (begun, held) = (begun.clone(), held.clone());
            Request::try_new(move || {
                hold_thread_until(|| begun.get() > FEW);
                let held = held.lock().unwrap().take().unwrap();
                // It waits for this one in turn: so the cycle is named, and nobody hangs.
                assert!(matches!(held.wait(), Err(WaitError::CircularWait(_) | WaitError::Failed(_))));
                Ok(())
            })
        };
        let consumers = consumers(&input, move |_| _ = begun.up(), || ());
        *held.lock().unwrap() = consumers.last().cloned();
        input.wait().unwrap();
        consumers[..CONSUMERS - 1].iter().for_each(|consumer| *consumer.wait().unwrap());
    });
}

#[test]
fn a_thread_that_waits_for_a_held_request_gets_it() {
    let _dog = Watchdog::new("2 workers");
    let runtime = runtime(2);
    let (begun, over) = (Count::new(), Arc::new(Flag::new()));
    let input = {
        let (begun, over) = (begun.clone(), over.clone());
        runtime.spawn(move || {
            begun.up();
            hold_thread_until(|| over.is_up());
        })
    };
    hold_thread_until(|| begun.get() == 1);
    let consumers = runtime.enter(|| consumers(&input, move |_| _ = begun.up(), || ()));
    // Not the last: it may run here, on this thread, and waits for the input as a thread does.
    let ends = std::thread::scope(|s| {
        let last = consumers.last().unwrap();
        let waits = s.spawn(|| last.wait().copied());
        hold_thread_until(|| matches!(last.state(), State::Running | State::Suspended | State::Finished));
        over.raise();
        waits.join().unwrap()
    });
    ends.unwrap();
    consumers.iter().for_each(|consumer| *consumer.wait().unwrap());
}

/// Whatever is held when a runtime is shut down ends like all that is queued, and nothing of it is left.
#[test]
fn what_is_held_ends_with_its_runtime() {
    for abort in [false, true] {
        let _dog = Watchdog::new(format_args!("abort {abort}"));
        let runtime = runtime(2);
        let dropped = Arc::new(AtomicUsize::new(0));
        struct Kept(Arc<AtomicUsize>);
        impl Drop for Kept {
            fn drop(&mut self) {
                self.0.fetch_add(1, Release);
            }
        }
        let (begun, over) = (Count::new(), Arc::new(Flag::new()));
        let input = {
            let over = over.clone();
            runtime.spawn(move || hold_thread_until(|| over.is_up()))
        };
        let parent = runtime.spawn({
            let (begun, dropped, input) = (begun.clone(), dropped.clone(), input.clone());
            move || {
                let consumer = |_| {
                    let (input, kept, begun) = (input.clone(), Kept(dropped.clone()), begun.clone());
                    Request::try_new(move || {
                        begun.up();
                        let _kept = kept;
                        input.wait()?;
                        Ok(())
                    })
                };
                let consumers: Vec<_> = (0..CONSUMERS).map(consumer).collect();
                consumers.iter().for_each(|consumer| _ = consumer.submit());
                consumers
            }
        });
        hold_thread_until(|| begun.get() > FEW);
        let consumers = match abort {
            true => {
                let consumers = parent.take().unwrap();
                consumers.iter().for_each(|consumer| _ = consumer.abort(CancelReason::Asked));
                over.raise();
                consumers
            }
            false => {
                let consumers = parent.take().unwrap();
                let closer = std::thread::spawn({
                    let runtime = runtime.clone();
                    move || drop(runtime.shutdown(Duration::from_secs(60)))
                });
                // What is queued ends at once, also what is held back; the input goes on.
                hold_thread_until(|| consumers.iter().all(Request::is_done));
                over.raise();
                closer.join().unwrap();
                consumers
            }
        };
        for consumer in &consumers {
            hold_thread_until(|| consumer.is_done());
        }
        drop(consumers);
        drop(input);
        drop(runtime);
        hold_thread_until(|| dropped.load(Acquire) == CONSUMERS);
        assert_eq!(dropped.load(Relaxed), CONSUMERS);
    }
}

/// With one worker nobody else could start them.
#[test]
fn one_worker_holds_nothing_back() {
    let _dog = Watchdog::new("1 worker");
    let other = Runtime::builder().workers(1).build().unwrap();
    let over = Arc::new(Flag::new());
    let input = {
        let over = over.clone();
        other.spawn(move || hold_thread_until(|| over.is_up()))
    };
    runtime(1).run(|| {
        let begun = Count::new();
        let first = {
            let (begun, over) = (begun.clone(), over.clone());
            move |_| {
                begun.up();
                if begun.get() == CONSUMERS {
                    over.raise();
                }
            }
        };
        consumers(&input, first, || ()).iter().for_each(|consumer| *consumer.wait().unwrap());
        assert_eq!(begun.get(), CONSUMERS);
    });
}
