//! Workers: that work is shared by all of them, that one whose request waits does something else, that none sleeps over
//! work, and what they do when there are no more stacks.

#[path = "../support/mod.rs"]
mod support;

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use forebear::pool::WorkerState;
use forebear::sync::Event;
use forebear::{
    Request, Runtime, StackError, State, WaitError, join, parallelism, scope, spawn, try_scope, yield_now,
};
use support::{
    Count, Flag, Watchdog, hold_thread_until, hold_workers, in_both_worlds, on_each, on_each_of, until,
};

/// Numbers of workers that are looked at one by one, by groups, and by groups in turn.
const FEW_AND_MANY: [usize; 6] = [1, 2, 4, 16, 20, 40];

#[test]
fn a_request_waits_inside_a_request_inside_a_request() {
    in_both_worlds(|| {
        let outer = spawn(|| {
            let middle = spawn(|| {
                let inner = Request::new(|| 1);
                *inner.wait().unwrap() + 1
            });
            middle.take().unwrap() + 1
        });
        assert_eq!(outer.take().unwrap(), 3);
    });
}

#[test]
fn while_requests_wait_their_workers_do_other_work() {
    on_each(|runtime| {
        // More wait than there are workers, all for one that ends only if yet another can run.
        let own = || Request::builder().on(runtime).own_stack();
        let (flag, waiting) = (Flag::new(), Count::new());
        let gate = {
            let flag = flag.clone();
            own().build(move || {
                flag.wait();
                5
            })
        };
        let waiters: Vec<_> = (0..runtime.workers() * 3)
            .map(|_| {
                let (gate, waiting) = (gate.clone(), waiting.clone());
                own().spawn(move || {
                    waiting.up();
                    *gate.wait().unwrap()
                })
            })
            .collect();
        waiting.wait_for(waiters.len());
        own().build(move || flag.raise()).wait().unwrap();
        for waiter in waiters {
            assert_eq!(waiter.take().unwrap(), 5);
        }
    });
}

#[test]
fn requests_made_outside_start_while_all_workers_were_asleep() {
    on_each_of(&FEW_AND_MANY, |runtime| {
        for n in 0..200 {
            assert_eq!(Request::builder().on(runtime).own_stack().spawn(move || n).take().unwrap(), n);
        }
    });
}

#[test]
fn queued_work_is_shared_by_all_workers() {
    on_each_of(&FEW_AND_MANY, |runtime| {
        // Each keeps its worker until all workers have one.
        let here = Arc::new(Barrier::new(runtime.workers()));
        let requests: Vec<_> = (0..runtime.workers())
            .map(|_| {
                let here = here.clone();
                Request::builder().on(runtime).own_stack().spawn(move || {
                    here.wait();
                    Request::current().unwrap().assigned_worker().unwrap()
                })
            })
            .collect();
        let mut workers: Vec<_> = requests.into_iter().map(|request| request.take().unwrap()).collect();
        workers.sort_unstable();
        assert_eq!(workers, (0..runtime.workers()).collect::<Vec<_>>());
    });
}

#[test]
fn children_of_one_request_are_shared_by_all_workers() {
    let _not = support::not_on(support::Modes::Both, "the thread that waits is the worker");
    on_each(|runtime| {
        let seen = Arc::new(Mutex::new(HashSet::new()));
        runtime.run(|| {
            assert_eq!(parallelism().get(), runtime.workers());
            while seen.lock().unwrap().len() < runtime.workers() {
                let children: Vec<_> = (0..runtime.workers() * 4)
                    .map(|_| {
                        let seen = seen.clone();
                        spawn(move || {
                            let me = Request::current().unwrap().assigned_worker().unwrap();
                            yield_now().unwrap();
                            seen.lock().unwrap().insert(me);
                        })
                    })
                    .collect();
                for child in children {
                    child.take().unwrap();
                }
            }
        });
    });
}

#[test]
fn waiting_requests_are_woken_while_the_workers_are_busy_with_nothing_else() {
    let _not = support::not_on(support::Modes::Both, "it holds its workers");
    on_each(|runtime| {
        let held = hold_workers(runtime);
        let ran = Count::new();
        let requests: Vec<_> = (0..50)
            .map(|_| {
                let ran = ran.clone();
                Request::builder().on(runtime).own_stack().spawn(move || ran.up())
            })
            .collect();
        assert_eq!(ran.get(), 0, "all workers are held");
        assert!(requests.iter().all(|request| request.state() == State::Queued));
        held.release();
        for request in requests {
            request.wait().unwrap();
        }
        assert_eq!(ran.get(), 50);
    });
}

#[test]
fn all_that_is_made_is_run_however_many_workers_there_are() {
    /// A request in so many has something to wait for while its siblings are made.
    fn grow(depth: usize, made: &Arc<AtomicUsize>) {
        if made.fetch_add(1, Ordering::Relaxed) % 16 == 7 {
            yield_now().unwrap();
        }
        if depth == 0 {
            return;
        }
        let children: Vec<_> = (0..6)
            .map(|n| {
                let made = made.clone();
                let child = move || grow(depth - 1, &made);
                if n == 5 { Request::builder().own_stack().spawn(child) } else { spawn(child) }
            })
            .collect();
        join(|| grow(depth - 1, made), || grow(depth - 1, made));
        for child in children.into_iter().rev() {
            child.take().unwrap();
        }
    }
    on_each_of(&FEW_AND_MANY, |runtime| {
        // Between two rounds the workers go to sleep, as far as they come.
        for _ in 0..10 {
            let made = Arc::new(AtomicUsize::new(0));
            runtime.run(|| grow(4, &made));
            assert_eq!(made.load(Ordering::Relaxed), (0..=4).map(|level| 8_usize.pow(level)).sum::<usize>());
        }
    });
}

// ---- without another stack -------------------------------------------------------------------------------------------------

/// A runtime all of whose stacks are in use: one in each worker's loop, the rest under requests that wait for `go`.
struct Full {
    runtime: Runtime,
    /// Its one worker runs the gate.
    gates: Runtime,
    go: Flag,
    waiters: Vec<Request<()>>,
    /// On which workers they are.
    places: Arc<Mutex<Vec<usize>>>,
}

impl Full {
    fn new(workers: usize, waiters: usize) -> Full {
        let runtime = Runtime::builder().workers(workers).max_stacks(workers + waiters).run_on_caller(false);
        let (runtime, gates, go) = (runtime.build().unwrap(), support::runtime(1), Flag::new());
        let gate = {
            let go = go.clone();
            gates.spawn(move || hold_thread_until(|| go.is_up()))
        };
        let places: Arc<Mutex<Vec<_>>> = Arc::default();
        let waiters: Vec<_> = (0..waiters)
            .map(|_| {
                let (gate, places) = (gate.clone(), places.clone());
                let waiter = runtime.spawn(move || {
                    places.lock().unwrap().push(Request::current().unwrap().assigned_worker().unwrap());
                    *gate.wait().unwrap()
                });
                hold_thread_until(|| waiter.state() == State::Suspended);
                waiter
            })
            .collect();
        Full { runtime, gates, go, waiters, places }
    }

    /// Lets the waiters go on, and says when all is over that was begun.
    fn end(self) {
        self.go.raise();
        for waiter in &self.waiters {
            waiter.wait().unwrap();
        }
        self.gates.run(|| ());
        assert_eq!(self.runtime.run(|| spawn(|| 7).take().unwrap()), 7, "the runtime goes on");
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        self.go.raise();
    }
}

fn is_out_of_stacks(error: &WaitError) -> bool {
    let WaitError::Failed(failure) = error else { return false };
    matches!(failure.downcast_ref(), Some(StackError::Exhausted { .. }))
}

/// On the worker where a waiter of `full` is parked, a scope ends whose only job runs on the other worker until `go`. Returns
/// when the first worker's thread sleeps: there is nothing that it could do.
fn scope_left_without_a_stack(full: &Full, go: &Flag) -> Vec<Request<()>> {
    let place = full.places.lock().unwrap()[0];
    let (here, started) = (Count::new(), Flag::new());
    let roots: Vec<_> = (0..2)
        .map(|_| {
            let (here, started, go) = (here.clone(), started.clone(), go.clone());
            full.runtime.spawn(move || {
                here.up();
                hold_thread_until(|| here.get() == 2);
                if Request::current().unwrap().assigned_worker() != Some(place) {
                    return;
                }
                scope(|s| {
                    Request::builder().own_stack().spawn_in(s, || {
                        started.raise();
                        hold_thread_until(|| go.is_up());
                    });
                    hold_thread_until(|| started.is_up());
                });
            })
        })
        .collect();
    hold_thread_until(|| started.is_up() && full.runtime.states()[place] == WorkerState::Sleeping);
    roots
}

#[test]
fn a_worker_without_a_stack_for_its_loop_sleeps_until_what_it_waits_for_is_over() {
    for _ in 0..20 {
        let _dog = Watchdog::new("");
        let (full, go) = (Full::new(2, 2), Flag::new());
        let roots = scope_left_without_a_stack(&full, &go);
        go.raise();
        roots.iter().for_each(|root| root.wait().copied().unwrap());
        full.end();
    }
}

/// When what was woken has ended, its stack is the loop's.
#[test]
fn a_worker_without_a_stack_for_its_loop_goes_on_with_what_is_woken() {
    for _ in 0..20 {
        let _dog = Watchdog::new("");
        let (full, go) = (Full::new(2, 2), Flag::new());
        let roots = scope_left_without_a_stack(&full, &go);
        full.go.raise();
        // The other worker still holds the job, so it is the first that runs this.
        assert_eq!(full.runtime.spawn(|| 1).take().unwrap(), 1);
        assert!(!roots.iter().all(Request::is_done));
        go.raise();
        roots.iter().for_each(|root| root.wait().copied().unwrap());
        full.end();
    }
}

#[test]
fn a_scope_without_another_stack_runs_its_jobs_itself_wherever_they_stand() {
    for _ in 0..20 {
        let _dog = Watchdog::new("");
        let full = Full::new(2, 2);
        let (held, ended) = (Flag::new(), Flag::new());
        let scoped = {
            let (held, ended) = (held.clone(), ended.clone());
            full.runtime.spawn(move || {
                hold_thread_until(|| held.is_up());
                let jobs = Count::new();
                // The other worker was hungry before it was held. So these are published, and nobody comes for them.
                scope(|s| {
                    for _ in 0..10 {
                        s.spawn(|| jobs.up());
                    }
                });
                ended.raise();
                jobs.get()
            })
        };
        hold_thread_until(|| scoped.state() != State::Queued);
        let holder = {
            let (held, ended) = (held.clone(), ended.clone());
            full.runtime.spawn(move || {
                held.raise();
                hold_thread_until(|| ended.is_up());
            })
        };
        assert_eq!(scoped.take().unwrap(), 10);
        holder.wait().unwrap();
        full.end();
    }
}

/// Its jobs are what it may wait for. A sibling that waits for it in turn must not be run on top of it.
#[test]
fn a_scope_without_another_stack_runs_nothing_that_might_wait_for_it() {
    let _dog = Watchdog::new("");
    let full = Full::new(1, 1);
    let sibling = full.runtime.spawn(|| {
        let scoped = spawn(|| {
            let jobs = Count::new();
            scope(|s| {
                let probe = jobs.clone();
                s.spawn(move || probe.up());
            });
            jobs.get()
        });
        spawn(move || scoped.wait().copied())
    });
    assert_eq!(sibling.take().unwrap().take().unwrap().unwrap(), 1);
    full.end();
}

#[test]
fn a_job_that_needs_another_stack_fails_when_there_is_none_and_its_scope_ends() {
    let _dog = Watchdog::new("");
    let full = Full::new(1, 1);
    let builders =
        [Request::builder().own_stack(), Request::builder().stack_size(8 << 20), Request::builder()];
    for (n, builder) in builders.into_iter().enumerate() {
        let (ran, dropped) = (Flag::new(), Count::new());
        let (up, probe) = (ran.clone(), dropped.probe());
        let scoped = full.runtime.spawn(move || {
            try_scope(|s| {
                builder.spawn_in(s, move || {
                    let _probe = probe;
                    up.raise();
                });
                Ok(())
            })
        });
        let answer = scoped.take().unwrap();
        assert_eq!((ran.is_up(), dropped.get()), (n == 2, 1));
        match answer {
            Ok(()) => assert_eq!(n, 2),
            Err(error) => assert!(n < 2 && is_out_of_stacks(&error), "{error:?}"),
        }
    }
    full.end();
}

#[test]
fn a_yielder_without_a_stack_for_the_loop_lets_an_unstarted_root_in() {
    let _dog = Watchdog::new("");
    let full = Full::new(1, 1);
    let (flag, polls) = (Flag::new(), Flag::new());
    let poller = {
        let (flag, polls) = (flag.clone(), polls.clone());
        full.runtime.spawn(move || {
            polls.raise();
            flag.wait();
        })
    };
    hold_thread_until(|| polls.is_up());
    let root = full.runtime.spawn(move || flag.raise());
    poller.wait().unwrap();
    root.wait().unwrap();
    full.end();
}

/// A root that wants a stack of its own can begin nowhere. That must not keep the yielder from giving way to others.
#[test]
fn a_yielder_without_a_stack_for_the_loop_gives_way_to_others_beside_a_root_that_cannot_begin() {
    let _dog = Watchdog::new("");
    let full = Full::new(1, 2);
    // To what was woken.
    let (polls, woken) = (Flag::new(), Flag::new());
    let poller = {
        let (polls, woken, waiters) = (polls.clone(), woken.clone(), full.waiters.clone());
        full.runtime.spawn(move || {
            polls.raise();
            hold_thread_until(|| woken.is_up());
            while !waiters.iter().all(Request::is_done) {
                yield_now().unwrap();
            }
        })
    };
    hold_thread_until(|| polls.is_up());
    let root = Request::builder().on(&full.runtime).own_stack().spawn(|| 3);
    full.go.raise();
    full.gates.run(|| ());
    woken.raise();
    poller.wait().unwrap();
    assert_eq!(root.take().unwrap(), 3, "now there is a stack again");
    full.end();
    // To another yielder.
    let runtime = Runtime::builder().workers(1).max_stacks(2).run_on_caller(false).build().unwrap();
    let (there, turns, ended) = (Flag::new(), Count::new(), Flag::new());
    let first = {
        let (turns, ended) = (turns.clone(), ended.clone());
        runtime.spawn(move || {
            while !ended.is_up() {
                turns.up();
                yield_now().unwrap();
            }
        })
    };
    let second = {
        let (there, turns, ended) = (there.clone(), turns.clone(), ended.clone());
        runtime.spawn(move || {
            hold_thread_until(|| there.is_up());
            let before = turns.get();
            while turns.get() < before + 3 {
                yield_now().unwrap();
            }
            ended.raise();
        })
    };
    hold_thread_until(|| second.state() == State::Running);
    let root = Request::builder().on(&runtime).own_stack().spawn(|| 4);
    there.raise();
    second.wait().unwrap();
    first.wait().unwrap();
    assert_eq!(root.take().unwrap(), 4);
}

#[test]
fn metrics_count_what_is_published_and_stolen_and_who_sleeps() {
    let _dog = Watchdog::new("metrics");
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let before = runtime.metrics();
    runtime.run(|| {
        let taken = Flag::new();
        // This worker has no time for them, so only the other can raise the flag; a fork shows what there is if that is hungry. While this worker has
        // no core, the other may fetch one unpublished.
        while !taken.is_up() || runtime.metrics().published == before.published {
            let taken = taken.clone();
            drop(spawn(move || taken.raise()));
        }
    });
    let after = runtime.metrics();
    assert!(after.published > before.published, "{before:?}, {after:?}");
    assert!(after.steals > before.steals, "{before:?}, {after:?}");
    // Now there is nothing to do for either.
    until(|| runtime.metrics().sleeps > 0);
}

/// Each of these needs a stack of its own, so its waiter queues it and suspends. The others have nothing to do and ask for it in
/// vain: it would be one chain on many workers.
#[test]
fn a_chain_of_waits_stays_on_its_worker_while_others_have_nothing_to_do() {
    fn below(levels: usize, worker: Option<usize>) -> usize {
        let here = Request::current().unwrap().assigned_worker();
        let moved = usize::from(here != worker);
        if levels == 0 {
            return moved;
        }
        let next = Request::builder().stack_size(768 * 1024).build(move || below(levels - 1, here));
        next.take().unwrap() + moved
    }
    on_each_of(&[2, 4, 16], |runtime| {
        // They have left word that they are hungry.
        hold_thread_until(|| runtime.states().iter().all(|state| *state == WorkerState::Sleeping));
        let published = runtime.metrics().published;
        let chain = runtime.spawn(|| below(300, Request::current().unwrap().assigned_worker()));
        // Or this thread might begin it.
        hold_thread_until(|| chain.state() == State::Finished);
        assert_eq!(chain.take().unwrap(), 0, "of 300 waits");
        assert_eq!(runtime.metrics().published, published, "nobody was to take it");
    });
}

/// The waiter's worker has something to go on with, so who has nothing to do gets what was queued.
#[test]
fn what_a_waiter_has_queued_is_shown_if_something_else_goes_on() {
    let _dog = Watchdog::new("what a waiter has queued");
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let (busy, free, parked, hungry) = (Flag::new(), Flag::new(), Flag::new(), Flag::new());
    let other = {
        let (busy, free) = (busy.clone(), free.clone());
        runtime.spawn(move || {
            busy.raise();
            hold_thread_until(|| free.is_up());
        })
    };
    hold_thread_until(|| busy.is_up());
    let parent = {
        let (parked, hungry) = (parked.clone(), hungry.clone());
        runtime.spawn(move || {
            let (go, done) = (Arc::new(Event::new()), Flag::new());
            let child = {
                let (go, done) = (go.clone(), done.clone());
                spawn(move || {
                    parked.raise();
                    go.wait().unwrap();
                    // No scheduling point from here on.
                    hold_thread_until(|| done.is_up());
                })
            };
            yield_now().unwrap();
            hold_thread_until(|| hungry.is_up());
            go.set();
            let queued = Request::new(move || done.raise());
            // With a limit, so the waiter does not run it itself.
            queued.wait_timeout(Duration::from_secs(60)).unwrap();
            child.take().unwrap();
        })
    };
    hold_thread_until(|| parked.is_up());
    free.raise();
    other.take().unwrap();
    // Now it has left word.
    hold_thread_until(|| runtime.states().contains(&WorkerState::Sleeping));
    hungry.raise();
    parent.take().unwrap();
}

/// Also if it is the first thing that its worker finds, at its first look.
#[test]
fn a_worker_that_runs_a_request_says_that_it_runs() {
    for _ in 0..50 {
        let runtime = support::runtime(1);
        let (started, over) = (Flag::new(), Flag::new());
        let (up, go) = (started.clone(), over.clone());
        let busy = runtime.spawn(move || {
            up.raise();
            while !go.is_up() {
                std::hint::spin_loop();
            }
        });
        while !started.is_up() {
            std::hint::spin_loop();
        }
        let states = runtime.states();
        over.raise();
        busy.take().unwrap();
        assert_eq!(states, [WorkerState::Running]);
    }
}
