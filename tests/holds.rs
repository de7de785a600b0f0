//! Holds: consumers of one input that wait for it by plain `wait` use all workers, and a hold is a delay, never a condition.

mod support;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use forebear::sync::Event;
use forebear::{CancelReason, Request, Runtime, State, WaitError};
use support::{Count, Flag, Watchdog, hold_thread_until, runtime};

const CONSUMERS: usize = 64;
/// So many a worker starts before it holds the others back.
const FEW: usize = 3;

/// Requests of one callable that wait for `input` and then call `then`; `first` is called before the wait.
fn consumers(
    input: &Request<()>,
    first: impl Fn(usize) + Clone + Send + 'static,
    then: impl Fn() + Clone + Send + 'static,
) -> Vec<Request<()>> {
    let consumer = |n| {
        let (input, first, then) = (input.clone(), first.clone(), then.clone());
        let consumer = Request::try_new(move || {
            first(n);
            input.wait()?;
            then();
            Ok(())
        });
        consumer.submit();
        consumer
    };
    (0..CONSUMERS).map(consumer).collect()
}

/// Holds its thread until so many others are held here, too. The first half of the consumers takes part: how the last ones are shared out depends
/// on when each worker's tick is over.
#[derive(Default)]
struct Rounds {
    there: Mutex<usize>,
    all: Condvar,
    missed: AtomicBool,
}

impl Rounds {
    /// False: a worker was missing for a long time.
    fn take_part(&self, workers: usize) -> bool {
        let mut there = self.there.lock().unwrap();
        *there += 1;
        if *there > CONSUMERS / 2 {
            return true;
        }
        let round = (*there - 1) / workers;
        self.all.notify_all();
        let (_there, late) = self
            .all
            .wait_timeout_while(there, Duration::from_secs(10), |there| {
                *there < (round + 1) * workers && !self.missed.load(Relaxed)
            })
            .unwrap();
        if late.timed_out() {
            // Once is enough.
            self.missed.store(true, Relaxed);
        }
        !late.timed_out()
    }
}

/// Each round holds all workers, so each of them has to run its share of the first half: what is pinned elsewhere is missing.
#[test]
fn consumers_of_one_input_are_run_by_all_workers() {
    for workers in [2, 4] {
        let _dog = Watchdog::new(format_args!("{workers} workers"));
        let runtime = runtime(workers);
        let ran = runtime.run(move || {
            let begun = Count::new();
            let input = {
                let begun = begun.clone();
                Request::new(move || {
                    hold_thread_until(|| begun.get() >= FEW * (workers - 1));
                    // Long enough to start all of them.
                    let start = Instant::now();
                    hold_thread_until(|| start.elapsed() >= Duration::from_millis(20));
                })
            };
            let rounds = Arc::new(Rounds::default());
            let ran = Arc::new(Mutex::new(Vec::<(ThreadId, bool)>::new()));
            let consumers = consumers(&input, move |_| _ = begun.up(), {
                let ran = ran.clone();
                move || {
                    let met = rounds.take_part(workers);
                    ran.lock().unwrap().push((std::thread::current().id(), met));
                }
            });
            input.wait().unwrap();
            consumers.iter().for_each(|consumer| *consumer.wait().unwrap());
            std::mem::take(&mut *ran.lock().unwrap())
        });
        assert_eq!(ran.len(), CONSUMERS);
        let of = |id: ThreadId| ran.iter().filter(|(thread, _)| *thread == id).count();
        let most = ran.iter().map(|(thread, _)| of(*thread)).max().unwrap();
        assert!(
            ran.iter().all(|(_, met)| *met),
            "a worker was missing in a round; {most} of them on one of {workers}"
        );
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
