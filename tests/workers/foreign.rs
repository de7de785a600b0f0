//! Foreign threads: whatever a request may do, a thread that is no worker may do; and several runtimes in one process.

#[path = "../support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use forebear::{
    AnyRequest, CancelReason, Request, Runtime, State, WaitError, join, parallelism, scope, spawn, yield_now,
};
use support::{
    Count, Flag, Joined, Watchdog, hold_workers, in_both_worlds, join_all, on_each, runtime, until,
};

fn current_name() -> Option<String> {
    Request::current().map(|me| me.name().to_owned())
}

// ---- what a foreign thread runs itself ---------------------------------------------------------------------------------

#[test]
fn outside_any_request_there_is_no_current_one() {
    on_each(|runtime| {
        assert!(Request::current().is_none());
        runtime.enter(|| assert!(Request::current().is_none()));
        runtime.enter(|| Request::new(|| ()).wait().map(|_| ()).unwrap());
        assert!(Request::current().is_none(), "also after it ran one");
    });
}

#[test]
fn what_a_foreign_thread_runs_is_current_there() {
    on_each(|runtime| {
        let here = thread::current().id();
        runtime.enter(|| {
            let outer = Request::builder().name("outer").build(move || {
                assert_eq!(thread::current().id(), here, "nobody else knew of it");
                assert_eq!(current_name().as_deref(), Some("outer"));
                let me = Request::current().unwrap();
                assert_eq!(me.parent(), None);
                assert_eq!(me.assigned_worker(), None, "this thread is its worker for life");
                let inner = Request::builder().name("inner").build(move || {
                    assert_eq!(thread::current().id(), here);
                    let me = Request::current().unwrap();
                    assert_eq!(me.name(), "inner");
                    me.parent().unwrap().name().to_owned()
                });
                assert_eq!(inner.wait().unwrap(), "outer");
                assert_eq!(current_name().as_deref(), Some("outer"), "and again, when the inner one is over");
                me
            });
            let me: AnyRequest = outer.wait().unwrap().clone();
            assert_eq!(me, outer.to_untyped());
            assert_eq!(outer.assigned_worker(), None);
        });
    });
}

#[test]
fn children_made_in_a_foreign_thread_know_their_parent_wherever_they_run() {
    on_each(|runtime| {
        let outer = runtime.enter(|| {
            Request::builder().name("outer").build(|| {
                let spawned = Request::builder().name("spawned").own_stack().spawn(|| {
                    let me = Request::current().unwrap();
                    assert!(me.assigned_worker().is_some());
                    me.parent().unwrap().name().to_owned()
                });
                spawned.take().unwrap()
            })
        });
        assert_eq!(outer.wait().unwrap(), "outer");
    });
}

#[test]
fn an_arm_of_a_foreign_join_knows_its_maker_and_outside_it_has_none() {
    on_each(|runtime| {
        let outer = Request::builder().name("outer").on(runtime).build(|| {
            let (a, b) = join(current_name, || {
                // Elsewhere or here: the same.
                current_name()
            });
            assert_eq!((a.as_deref(), b.as_deref()), (Some("outer"), Some("outer")));
        });
        outer.wait().unwrap();
        runtime.enter(|| {
            let (a, b) = join(current_name, current_name);
            assert_eq!((a, b), (None, None));
        });
    });
}

#[test]
fn a_foreign_thread_may_exit_before_its_children() {
    let _not = support::not_on(
        support::Modes::Synchronous,
        "what it has begun polls on in spite of the cancel, and its thread would have to drive that to its end",
    );
    on_each(|runtime| {
        let (go, done) = (Flag::new(), Count::new());
        let (send, parents) = mpsc::channel();
        let thread = {
            let (runtime, go, done) = (runtime.clone(), go.clone(), done.clone());
            thread::spawn(move || {
                runtime.enter(|| {
                    let outer = Request::builder().name("outer").build(move || {
                        for _ in 0..10 {
                            let (go, done, send) = (go.clone(), done.clone(), send.clone());
                            spawn(move || {
                                go.wait();
                                send.send(Request::current().unwrap().parent().map(|p| p.name().to_owned()))
                                    .unwrap();
                                // And it may itself have children, whose line leads through a thread that is gone.
                                spawn(move || done.up());
                            });
                        }
                    });
                    outer.wait().unwrap();
                });
            })
        };
        thread.joined().unwrap();
        go.raise();
        done.wait_for(10);
        // What is over and forgotten need not be told, but a name that is told is the right one.
        for name in parents.iter().take(10).flatten() {
            assert_eq!(name, "outer");
        }
    });
}

#[test]
fn a_thread_that_waits_for_what_runs_elsewhere_blocks_and_gets_the_value() {
    on_each(|runtime| {
        let free = Flag::new();
        let request = {
            let free = free.clone();
            let started = Flag::new();
            let up = started.clone();
            let request = runtime.spawn(move || {
                up.raise();
                free.wait();
                String::from("value")
            });
            started.wait();
            request
        };
        let ready = std::sync::Barrier::new(5);
        thread::scope(|threads| {
            let waiters = [(); 4].map(|()| {
                threads.spawn(|| {
                    ready.wait();
                    assert_eq!(request.wait().unwrap(), "value");
                })
            });
            ready.wait();
            free.raise();
            join_all(waiters);
        });
    });
}

#[test]
fn a_wait_for_itself_in_a_foreign_thread_is_circular() {
    on_each(|runtime| {
        runtime.enter(|| {
            let me =
                Request::builder().name("ouroboros").build(|| match Request::current().unwrap().wait() {
                    Err(WaitError::CircularWait(cycle)) => {
                        assert_eq!(cycle.names().collect::<Vec<_>>(), ["ouroboros", "ouroboros"]);
                    }
                    other => panic!("{other:?}"),
                });
            me.wait().unwrap();
        });
    });
}

// ---- several runtimes ---------------------------------------------------------------------------------------------------

#[test]
fn a_request_of_one_runtime_waits_for_a_request_of_another() {
    on_each(|one| {
        let two = Runtime::builder().workers(1).name("two").build().unwrap();
        let inner = two.clone();
        one.run(move || {
            let here = thread::current().id();
            let child = inner.spawn(|| (thread::current().id(), thread::current().name().map(str::to_owned)));
            let (there, name) = child.take().unwrap();
            assert_ne!(here, there, "waits across runtimes do not lend");
            assert!(name.is_some_and(|name| name.starts_with("two")));
            assert_eq!(thread::current().id(), here);
        });
    });
}

#[test]
fn runtimes_may_wait_for_each_other_to_any_depth() {
    fn bounce(left: u32, here: Runtime, there: Runtime) -> u32 {
        if left == 0 {
            return 0;
        }
        let (a, b) = (there.clone(), here.clone());
        there.spawn(move || bounce(left - 1, a, b)).take().unwrap() + 1
    }
    on_each(|one| {
        let two = runtime(1);
        // Where it has no threads this one drives it, once it has dealt with it. If the worker of `two` were the first to, nobody would.
        one.run(|| ());
        assert_eq!(bounce(200, one.clone(), two), 200);
    });
}

#[test]
fn a_request_of_another_runtime_has_no_parent_here() {
    on_each(|one| {
        let two = runtime(1);
        let parent = one.run(|| two.spawn(|| Request::current().unwrap().parent()).take().unwrap());
        assert_eq!(parent, None);
    });
}

#[test]
fn enter_says_what_free_functions_mean_and_takes_it_back() {
    let _dog = Watchdog::new("");
    let (three, five) = (runtime(3), runtime(5));
    three.enter(|| {
        assert_eq!(parallelism().get(), 3);
        five.enter(|| assert_eq!(parallelism().get(), 5));
        assert_eq!(parallelism().get(), 3);
        let unwound = catch_unwind(AssertUnwindSafe(|| five.enter(|| resume_unwind(Box::new(())))));
        assert!(unwound.is_err());
        assert_eq!(parallelism().get(), 3, "also when it unwinds");
        let worker = spawn(|| thread::current().name().map(str::to_owned)).take();
        drop(worker);
        assert_eq!(five.run(|| parallelism().get()), 5, "a request means its own");
    });
}

#[test]
fn inside_a_request_enter_makes_requests_of_the_other_runtime() {
    let _not = support::not_on(support::Modes::Both, "the thread that waits is the worker");
    on_each(|one| {
        let two = Runtime::builder().workers(2).name("two").build().unwrap();
        one.run(|| {
            let name = || thread::current().name().unwrap_or_default().to_owned();
            let there = two.enter(|| {
                assert_eq!(parallelism().get(), 2);
                spawn(name).take().unwrap()
            });
            assert!(there.starts_with("two"), "{there}");
            let here = spawn(name).take().unwrap();
            assert!(here.starts_with("test"), "{here}");
            // What is run directly meanwhile belongs where it was made, and so do its children.
            let mine = Request::new(|| spawn(|| parallelism().get()).take().unwrap());
            let count = two.enter(|| *mine.wait().unwrap());
            assert_eq!(count, one.workers());
        });
    });
}

#[test]
fn run_borrows_and_returns_what_the_closure_returns() {
    on_each(|runtime| {
        let text = String::from("borrowed");
        let mut seen = Vec::new();
        let length = runtime.run(|| {
            assert!(Request::current().is_some());
            assert!(Request::current().unwrap().assigned_worker().is_some(), "on a worker");
            seen.push(text.as_str());
            text.len()
        });
        assert_eq!((length, seen.as_slice()), (8, ["borrowed"].as_slice()));
    });
}

#[test]
fn run_panics_with_the_panic_of_the_closure() {
    on_each(|runtime| {
        let unwound = catch_unwind(AssertUnwindSafe(|| runtime.run(|| resume_unwind(Box::new(7_u32)))));
        assert_eq!(*unwound.unwrap_err().downcast::<u32>().unwrap(), 7);
        let error = runtime.try_run(|| Ok("x".parse::<u32>()?)).unwrap_err();
        assert!(error.downcast_ref::<std::num::ParseIntError>().is_some());
        assert_eq!(runtime.run(|| 1), 1, "and the runtime goes on");
    });
}

#[test]
fn run_may_be_called_in_a_request_of_the_same_and_of_another_runtime() {
    on_each(|one| {
        let two = runtime(1);
        let mut deep = 0;
        one.run(|| one.run(|| two.run(|| one.run(|| two.run(|| deep += 1)))));
        assert_eq!(deep, 1);
    });
}

#[test]
fn scopes_and_joins_work_in_foreign_threads() {
    in_both_worlds(|| {
        let mut halves = [0; 2];
        let (left, right) = halves.split_at_mut(1);
        scope(|s| {
            s.spawn(|| left[0] = 1);
            s.spawn(|| right[0] = 2);
        });
        assert_eq!(halves, [1, 2]);
        let (a, b) = join(|| 1, || 2);
        assert_eq!((a, b), (1, 2));
    });
}

// ---- ends ----------------------------------------------------------------------------------------------------------------

/// The threads of this process whose name begins so. One may be missed while others end.
#[cfg(target_os = "linux")]
fn threads_named(prefix: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with(prefix)).count()
}

#[cfg(target_os = "linux")]
#[test]
fn the_last_handle_lets_submitted_work_end_and_joins_the_threads() {
    let _not = support::not_on(support::Modes::Both, "it holds its workers");
    for kind in support::kinds() {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let runtime = kind.builder().name("ending").build().unwrap();
        let (done, holding) = (Count::new(), hold_workers(&runtime));
        until(|| threads_named("ending") == runtime.workers());
        let handles: Vec<_> = (0..20)
            .map(|n| {
                let done = done.clone();
                runtime.spawn(move || {
                    let (mine, children) = (done.clone(), done.clone());
                    mine.up();
                    spawn(move || {
                        for _ in 0..n {
                            yield_now().unwrap();
                        }
                        children.up();
                    });
                    n
                })
            })
            .collect();
        let second = runtime.clone();
        drop(runtime);
        // There is another handle.
        until(|| threads_named("ending") == second.workers());
        assert_eq!(done.get(), 0);
        let dropper = thread::spawn(move || drop(second));
        holding.release();
        dropper.joined().unwrap();
        assert_eq!(done.get(), 40, "all that was submitted has ended, and what that submitted too");
        // A joined thread may be seen for a moment after.
        until(|| threads_named("ending") == 0);
        for (n, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.take().unwrap(), n, "values outlive the runtime");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_runtime_may_be_dropped_inside_its_own_request() {
    for kind in support::kinds() {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let runtime = kind.builder().name("inside").build().unwrap();
        let (done, go) = (Count::new(), Flag::new());
        let (after, may) = (done.clone(), go.clone());
        let owned = runtime.clone();
        let request = Request::builder().on(&runtime).own_stack().spawn(move || {
            may.wait();
            drop(owned);
            // It goes on as before, and so does what it makes.
            let child = spawn(move || after.up());
            yield_now().unwrap();
            child.take().unwrap();
        });
        drop(runtime);
        go.raise();
        request.take().unwrap();
        assert_eq!(done.get(), 1);
        until(|| threads_named("inside") == 0);
    }
}

#[test]
fn handles_outlive_their_runtime() {
    for kind in support::kinds() {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let runtime = kind.build();
        let drops = Count::new();
        let finished = {
            let value = drops.probe();
            runtime.spawn(move || value)
        };
        let failed = runtime.spawn(|| -> u32 { resume_unwind(Box::new("no")) });
        assert!(failed.wait().is_err());
        let never = runtime.enter(|| Request::builder().name("never").build(|| 1));
        let any = finished.to_untyped();
        drop(runtime);
        assert_eq!(
            (finished.state(), failed.state(), never.state()),
            (State::Finished, State::Failed, State::New)
        );
        assert!(format!("{finished:?} {failed:?} {never:?} {any:?}").contains("never"));
        assert!(matches!(failed.wait(), Err(WaitError::Failed(_))));
        assert!(any.wait().is_ok());
        assert_eq!(drops.get(), 0);
        drop(finished.clone());
        drop(finished);
        assert_eq!(drops.get(), 1);
        drop(any);
        // What nobody had submitted cannot run any more.
        assert!(matches!(never.wait(), Err(WaitError::TargetCancelled(CancelReason::Shutdown))), "{never:?}");
        assert_eq!(never.state(), State::Cancelled);
    }
}

#[test]
fn an_unsubmitted_request_may_be_dropped_after_its_runtime() {
    for kind in support::kinds() {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let runtime = kind.build();
        let drops = Count::new();
        let made_inside = {
            let probe = drops.probe();
            runtime.run(|| Request::new(move || drop(probe)))
        };
        let made_outside = {
            let probe = drops.probe();
            runtime.enter(|| Request::new(move || drop(probe)))
        };
        drop(runtime);
        thread::spawn(move || drop(made_inside)).joined().unwrap();
        drop(made_outside);
        assert_eq!(drops.get(), 2);
    }
}

#[test]
fn handles_may_be_dropped_by_any_thread_at_any_time_of_the_runtimes_end() {
    on_each(|sized| {
        for _ in 0..30 {
            let runtime = runtime(sized.workers());
            let live = Count::new();
            let handles: Vec<_> = (0..60)
                .map(|_| {
                    let probe = live.probe();
                    runtime.spawn(move || {
                        spawn(|| ());
                        probe
                    })
                })
                .collect();
            let mut parts: [Vec<_>; 3] = Default::default();
            for (n, handle) in handles.into_iter().enumerate() {
                parts[n % 3].push(handle);
            }
            thread::scope(|threads| {
                let droppers = parts.map(|part| {
                    threads.spawn(move || {
                        for handle in part {
                            let _ = format!("{handle:?} {:?}", handle.state());
                        }
                    })
                });
                join_all(droppers.into_iter().chain([threads.spawn(move || drop(runtime))]));
            });
            assert_eq!(live.get(), 60);
        }
    });
}

/// Each of many threads makes requests of every runtime, and waits for those of the others.
#[test]
fn many_threads_and_several_runtimes_share_requests() {
    on_each(|one| {
        let runtimes = [one.clone(), runtime(1), runtime(2)];
        let sum = AtomicUsize::new(0);
        thread::scope(|threads| {
            let makers = [0, 1, 2, 3, 4, 5].map(|t| {
                let (runtimes, sum) = (&runtimes, &sum);
                threads.spawn(move || {
                    for round in 0..40 {
                        let requests: Vec<_> = runtimes
                            .iter()
                            .map(|runtime| runtime.enter(|| Request::new(move || t + round)))
                            .collect();
                        let shared = requests.clone();
                        let other = runtimes[round % 3].spawn(move || {
                            shared.iter().map(|request| *request.wait().unwrap()).sum::<usize>()
                        });
                        let mine: usize = requests.iter().map(|request| *request.wait().unwrap()).sum();
                        assert_eq!(other.take().unwrap(), mine);
                        sum.fetch_add(mine, Ordering::Relaxed);
                    }
                })
            });
            join_all(makers);
        });
        let expected: usize = (0..6).flat_map(|t| (0..40).map(move |round| 3 * (t + round))).sum();
        assert_eq!(sum.into_inner(), expected);
    });
}
