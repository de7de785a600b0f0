//! A thread exits that has driven a runtime without workers, or has made and run requests.

use std::cell::RefCell;
use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, OnceLock, mpsc};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use forebear::sync::{Event, Mutex, RwLock};
use forebear::{
    CancelReason, Priority, Request, Runtime, State, WaitError, block_on, shield, spawn, try_scope, yield_now,
};

use crate::child;
use crate::forked::{ended_well, fork};

fn synchronous() -> Runtime {
    crate::warned(Runtime::builder().workers(0)).build().unwrap()
}

/// Runs `body` on a thread of its own, which has exited when this returns.
fn on_a_thread<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    thread::scope(|threads| threads.spawn(body).join().unwrap())
}

/// A request that began on a thread that has exited.
fn begun_and_left(runtime: &Runtime, go: &Arc<Event>) -> Request<()> {
    on_a_thread(|| {
        let go = go.clone();
        let request = Request::builder().name("left").on(runtime).try_spawn(move || Ok(go.wait()?));
        assert_eq!(request.state(), State::Suspended);
        request
    })
}

#[test]
fn a_frame_suspended_inside_a_thread_local_ends_before_that_is_destroyed_when_its_thread_exits() {
    thread_local!(static KEY: Vec<String> = vec!["on the heap".to_owned()]);
    let end = child::run("", &[], |_| {
        let runtime = synchronous();
        let seen = Arc::new(OnceLock::new());
        let request = on_a_thread(|| {
            let seen = seen.clone();
            let request = runtime.spawn(move || {
                KEY.with(|value| {
                    assert!(Event::new().wait().is_err(), "the exit cancels it");
                    seen.set(value[0].clone()).unwrap();
                });
            });
            assert_eq!(request.state(), State::Suspended);
            request
        });
        assert_eq!(seen.get().unwrap(), "on the heap");
        assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(CancelReason::ThreadExited))));
        assert_eq!(runtime.metrics().left_behind, 0);
    });
    end.assert_survived();
    assert!(!end.stderr.contains("forebear:"), "{end:#?}");
}

#[test]
fn whoever_waits_for_a_request_of_a_thread_that_has_exited_is_told_so() {
    let end = child::run("", &[], |_| {
        let runtime = synchronous();
        let (go, called) = (Arc::new(Event::new()), Arc::new(AtomicUsize::new(0)));
        let request = on_a_thread(|| {
            let (go, called) = (go.clone(), called.clone());
            let outer = runtime.try_spawn(move || {
                // Run on its waiter's stack.
                let inner = Request::try_new(move || Ok(go.wait()?));
                inner.wait()?;
                Ok(())
            });
            outer.on_cancelled(move || _ = called.fetch_add(1, Ordering::Relaxed));
            outer
        });
        let waiter = {
            let request = request.clone();
            runtime.spawn(move || request.wait().map(drop).unwrap_err())
        };
        for answer in [waiter.wait().unwrap().clone(), request.wait().map(drop).unwrap_err()] {
            assert!(matches!(answer, WaitError::TargetCancelled(CancelReason::ThreadExited)), "{answer:?}");
        }
        assert_eq!(called.load(Ordering::Relaxed), 1);
        assert_eq!(runtime.metrics().left_behind, 0);
        runtime.shutdown(Duration::ZERO).unwrap();
    });
    end.assert_survived();
}

/// A request that waits for another thread's is cancelled, so the exit does not wait for that one.
#[test]
fn a_thread_that_exits_does_not_wait_for_what_another_has_begun() {
    let end = child::run("", &[], |_| {
        let (runtime, go) = (synchronous(), Arc::new(Event::new()));
        // This thread alone can go on with the target, and it joins the other one first.
        let target = {
            let go = go.clone();
            runtime.try_spawn(move || Ok(go.wait()?))
        };
        let (theirs, waits) = (runtime.clone(), target.clone());
        let request = on_a_thread(move || theirs.spawn(move || waits.wait().copied()));
        assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(CancelReason::ThreadExited))));
        assert!(!target.is_done() && !target.is_cancelled());
        go.set();
        target.wait().unwrap();
    });
    end.assert_survived();
}

#[test]
fn a_scope_that_lent_to_a_request_of_a_thread_that_exits_returns_when_that_has_ended() {
    let end = child::run("", &[], |_| {
        let runtime = synchronous();
        let (tell, told) = mpsc::channel();
        let lends = {
            let runtime = runtime.clone();
            thread::spawn(move || {
                let lent = [7; 100];
                let answer = runtime.enter(|| {
                    try_scope(|s| {
                        on_a_thread(|| {
                            runtime.enter(|| {
                                let job = s.try_spawn(|| {
                                    let waited = Event::new().wait();
                                    tell.send(lent[50]).unwrap();
                                    Ok(waited?)
                                });
                                assert_eq!(job.state(), State::Suspended);
                            });
                        });
                        Ok(())
                    })
                });
                assert!(answer.is_err(), "a job was skipped");
            })
        };
        assert_eq!(told.recv().unwrap(), 7);
        lends.join().unwrap();
    });
    end.assert_survived();
}

#[test]
fn a_run_that_lent_to_a_request_of_a_thread_that_exits_returns_when_that_has_ended() {
    let end = child::run("", &[], |_| {
        let runtime = crate::warned(Runtime::builder().seeded(7)).build().unwrap();
        let suspended = Arc::new(Event::new());
        let (tell, told) = mpsc::channel();
        let (sit, seated) = mpsc::channel();
        // A thread that has the only seat, and drives what the other one asks for.
        let driver = {
            let (runtime, suspended) = (runtime.clone(), suspended.clone());
            thread::spawn(move || {
                runtime.enter(|| sit.send(()).unwrap());
                runtime.enter(|| suspended.wait().unwrap());
            })
        };
        seated.recv().unwrap();
        let lends = {
            let (runtime, suspended) = (runtime.clone(), suspended.clone());
            thread::spawn(move || {
                let lent = [7; 100];
                let answer = runtime.try_run(|| {
                    suspended.set();
                    let waited = Event::new().wait();
                    tell.send(lent[50]).unwrap();
                    Ok(waited?)
                });
                assert!(answer.is_err());
            })
        };
        driver.join().unwrap();
        assert_eq!(told.recv().unwrap(), 7);
        lends.join().unwrap();
    });
    end.assert_survived();
}

/// A runtime whose warnings come out of a channel.
fn warning() -> (Runtime, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let warns = move |what: &str| _ = tell.lock().unwrap().send(what.to_owned());
    (Runtime::builder().workers(0).on_warning(warns).build().unwrap(), told)
}

/// No cancel ends the wait for a lock.
#[test]
fn a_thread_that_exits_waits_for_a_request_that_no_cancel_ends_and_says_so() {
    let end = child::run("", &[], |_| {
        let (runtime, warnings) = warning();
        let lock = Arc::new(Mutex::new(0));
        let held = lock.lock();
        let exits = {
            let (runtime, lock) = (runtime.clone(), lock.clone());
            thread::Builder::new().name("the thread".into()).spawn(move || {
                let request =
                    Request::builder().name("wants the lock").on(&runtime).spawn(move || *lock.lock() += 1);
                assert_eq!(request.state(), State::Suspended);
                request
            })
        };
        let warning = warnings.recv().unwrap();
        for part in ["thread 'the thread' exits, and waits for", "'wants the lock'", "before it exits"] {
            assert!(warning.contains(part), "no `{part}` in {warning}");
        }
        drop(held);
        let request = exits.unwrap().join().unwrap();
        assert_eq!(*lock.lock(), 1);
        assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(CancelReason::ThreadExited))));
    });
    end.assert_survived();
}

/// It yields in a loop, where no cancel comes.
#[test]
fn a_thread_that_exits_says_for_whom_it_waits_though_that_one_is_always_ready() {
    let end = child::run("", &[], |_| {
        let (runtime, warnings) = warning();
        let ends = Arc::new(AtomicUsize::new(0));
        let exits = {
            let (runtime, ends) = (runtime.clone(), ends.clone());
            thread::spawn(move || {
                let yields = Request::builder().name("yields").on(&runtime).own_stack();
                yields.spawn(move || {
                    shield(|| while ends.load(Ordering::Relaxed) == 0 && yield_now().is_ok() {});
                })
            })
        };
        let warning = warnings.recv().unwrap();
        assert!(warning.contains("exits, and waits for") && warning.contains("'yields'"), "{warning}");
        ends.store(1, Ordering::Relaxed);
        let request = exits.join().unwrap();
        assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(CancelReason::ThreadExited))));
    });
    end.assert_survived();
}

/// The exit of the only thread of a forked process is that of the process, as the main thread's is.
#[test]
fn the_main_thread_waits_a_second_for_what_no_cancel_ends_and_no_longer() {
    let end = child::run("", &[], |_| {
        ended_well(fork(|| {
            struct Says;
            impl Drop for Says {
                fn drop(&mut self) {
                    eprintln!("a frame continued");
                }
            }
            let runtime = synchronous();
            let request = Request::builder().name("stays").on(&runtime).spawn(|| {
                let _says = Says;
                _ = shield(|| Event::new().wait());
            });
            assert_eq!(request.state(), State::Suspended);
            eprintln!("the process ends");
            std::process::exit(0);
        }));
    });
    end.assert_survived();
    let (_, at_exit) = end.stderr.split_once("the process ends").unwrap();
    assert!(at_exit.contains("leaves 1 suspended stacks behind") && at_exit.contains("'stays'"), "{end:#?}");
    assert!(!at_exit.contains("a frame continued"), "{end:#?}");
}

/// What has begun submits one root itself, and another thread submits one meanwhile.
#[test]
fn roots_that_come_while_a_thread_exits_are_run_by_the_next_that_drives() {
    for kind in ["synchronous", "seeded"] {
        let end = child::run(kind, &[], |kind| {
            let runtime = match kind {
                "seeded" => crate::warned(Runtime::builder().seeded(3)).build().unwrap(),
                _ => synchronous(),
            };
            let (begun, go) = (Arc::new(Event::new()), Arc::new(Event::new()));
            let (leave, leaves) = mpsc::channel::<()>();
            let (tell, exits) = mpsc::channel();
            // Many: in the seeded mode the driver draws what runs.
            let roots = |runtime: &Runtime| {
                let root = || Request::new(|| thread::current().id());
                runtime.enter(|| (0..20).map(|_| root()).collect::<Vec<_>>())
            };
            let thread = {
                let (runtime, begun, go) = (runtime.clone(), begun.clone(), go.clone());
                thread::spawn(move || {
                    let (began, submits) = (begun.clone(), roots(&runtime));
                    drop(runtime.spawn(move || {
                        began.set();
                        _ = Event::new().wait();
                        submits.iter().for_each(|root| _ = root.submit());
                        tell.send(submits).unwrap();
                        _ = shield(|| go.wait());
                    }));
                    runtime.enter(|| begun.wait().unwrap());
                    leaves.recv().unwrap();
                })
            };
            begun.wait().unwrap();
            leave.send(()).unwrap();
            let mut submitted = exits.recv().unwrap();
            let root = || runtime.spawn(|| thread::current().id());
            submitted.extend(forebear::no_suspend("queues", || (0..20).map(|_| root()).collect::<Vec<_>>()));
            go.set();
            thread.join().unwrap();
            for root in submitted {
                assert_eq!(root.state(), State::Queued);
                assert_eq!(root.wait().copied().unwrap(), thread::current().id());
            }
        });
        end.assert_survived();
    }
}

#[test]
fn a_lock_that_a_suspended_request_holds_is_free_when_its_thread_has_exited() {
    for kind in ["synchronous", "seeded"] {
        let end = child::run(kind, &[], |kind| {
            let runtime = match kind {
                "seeded" => crate::warned(Runtime::builder().seeded(3)).build().unwrap(),
                _ => synchronous(),
            };
            let lock = Arc::new(Mutex::new(0));
            let holder = on_a_thread(|| {
                let (lock, held) = (lock.clone(), Arc::new(Event::new()));
                let holds = held.clone();
                let request = runtime.spawn(move || {
                    let mut guard = lock.lock();
                    holds.set();
                    _ = Event::new().wait();
                    *guard += 1;
                });
                runtime.enter(|| held.wait().unwrap());
                request
            });
            assert!(matches!(holder.wait(), Err(WaitError::TargetCancelled(CancelReason::ThreadExited))));
            assert_eq!(*lock.try_lock().unwrap(), 1);
        });
        end.assert_survived();
    }
}

#[test]
fn what_a_thread_has_submitted_and_not_begun_runs_elsewhere_when_it_exits() {
    for kind in ["synchronous", "seeded"] {
        let end = child::run(kind, &[], |kind| {
            let runtime = match kind {
                "seeded" => crate::warned(Runtime::builder().seeded(3)).build().unwrap(),
                _ => synchronous(),
            };
            let go = Arc::new(Event::new());
            let begun = begun_and_left_in_either(&runtime, &go);
            let queued = on_a_thread(|| {
                forebear::no_suspend("queues", || {
                    (0..10)
                        .map(|n| runtime.spawn(move || spawn(move || n).take().unwrap()))
                        .collect::<Vec<_>>()
                })
            });
            for (n, request) in queued.into_iter().enumerate() {
                assert_eq!(request.wait().copied().unwrap(), n);
            }
            // The next who has the seat goes on as if nothing had been.
            assert_eq!(runtime.run(|| spawn(|| 7).take().unwrap()), 7);
            assert!(matches!(begun.wait(), Err(WaitError::TargetCancelled(CancelReason::ThreadExited))));
            drop(runtime);
        });
        end.assert_survived();
    }
}

/// Each has two entries then: its own, and one by the urgency of the request that polls it.
#[test]
fn what_was_raised_and_not_begun_runs_elsewhere_when_its_thread_exits() {
    for kind in ["synchronous", "seeded"] {
        let end = child::run(kind, &[], |kind| {
            let runtime = match kind {
                "seeded" => crate::warned(Runtime::builder().seeded(3)).build().unwrap(),
                _ => synchronous(),
            };
            let queue = |n: i64| {
                let builder = Request::builder().priority(Priority::BACKGROUND);
                let builder = if n % 2 == 0 { builder } else { builder.order_hint(-n) };
                let mut queued = builder.spawn(move || n).into_future();
                let poll = Pin::new(&mut queued).poll(&mut Context::from_waker(Waker::noop()));
                assert!(poll.is_pending());
                queued
            };
            let queues = move || forebear::no_suspend("queues", || (0..10).map(queue).collect::<Vec<_>>());
            let urgent = Request::builder().priority(Priority::URGENT).own_stack().on(&runtime).build(queues);
            let queued = on_a_thread(|| urgent.take().unwrap());
            runtime.enter(|| {
                for (n, future) in (0..).zip(queued) {
                    assert_eq!(block_on(future).unwrap().unwrap(), n);
                }
                // Nobody stands in the way of others of their kind.
                let others = [3, 1, 2].map(|n| {
                    Request::builder().priority(Priority::BACKGROUND).order_hint(n).spawn(move || n)
                });
                assert_eq!(others.map(|other| other.take().unwrap()), [3, 1, 2]);
            });
            drop(runtime);
        });
        end.assert_survived();
    }
}

fn begun_and_left_in_either(runtime: &Runtime, go: &Arc<Event>) -> Request<()> {
    on_a_thread(|| {
        let begun = Arc::new(Event::new());
        let request = {
            let (go, begun) = (go.clone(), begun.clone());
            runtime.try_spawn(move || {
                begun.set();
                Ok(go.wait()?)
            })
        };
        runtime.enter(|| begun.wait().unwrap());
        request
    })
}

/// Its destructor is user code that begins when the thread exits, and may do what it likes.
#[test]
fn a_thread_local_whose_destructor_uses_a_runtime_does_no_harm() {
    type Told = mpsc::Sender<Result<(), String>>;
    struct Late(Option<(Runtime, Arc<Event>, Told)>);
    impl Drop for Late {
        fn drop(&mut self) {
            let Some((runtime, go, tell)) = self.0.take() else { return };
            // After forebear's own thread-local it is refused by name.
            let used = catch_unwind(AssertUnwindSafe(|| {
                let one = runtime.spawn(|| 7);
                assert_eq!(one.wait().ok(), Some(&7));
                drop(runtime.try_spawn(move || Ok(go.wait()?)));
            }));
            _ = tell.send(
                used.map_err(|why| why.downcast_ref::<&str>().map_or(String::new(), |why| why.to_string())),
            );
        }
    }
    thread_local!(static LATE: RefCell<Late> = const { RefCell::new(Late(None)) });
    for workers in ["0", "2"] {
        for first in ["local", "runtime"] {
            let end = child::run(&format!("{workers} {first}"), &[], |how| {
                let (workers, first) = how.split_once(' ').unwrap();
                let runtime = Runtime::builder().workers(workers.parse().unwrap()).build().unwrap();
                let go = Arc::new(Event::new());
                let (tell, told) = mpsc::channel();
                on_a_thread(|| {
                    // Thread-locals go in the opposite order of their first use.
                    let use_it = || runtime.run(|| ());
                    if first == "runtime" {
                        use_it();
                    }
                    LATE.with_borrow_mut(|late| late.0 = Some((runtime.clone(), go.clone(), tell)));
                    use_it();
                });
                match told.recv().unwrap() {
                    Ok(()) => assert_eq!(first, "runtime"),
                    Err(why) => assert!(why.contains("locals are being destroyed"), "{why}"),
                }
                go.set();
                assert_eq!(runtime.run(|| spawn(|| 7).take().unwrap()), 7);
                drop(runtime);
            });
            end.assert_survived();
        }
    }
}

#[test]
fn a_runtime_whose_threads_have_exited_before_their_requests_ended_can_be_ended() {
    for how in ["drop", "shutdown", "finish"] {
        let end = child::run(how, &[], |how| {
            let runtime = synchronous();
            let go = Arc::new(Event::new());
            let requests: Vec<_> = (0..40).map(|_| begun_and_left(&runtime, &go)).collect();
            match how {
                "shutdown" => runtime.shutdown(Duration::ZERO).unwrap(),
                "finish" => runtime.finish(Duration::from_secs(60)).unwrap(),
                _ => {}
            }
            drop(runtime);
            go.set();
            for request in requests {
                assert!(matches!(
                    request.wait(),
                    Err(WaitError::TargetCancelled(CancelReason::ThreadExited))
                ));
            }
        });
        end.assert_survived();
    }
}

/// Nobody would look at all waits: the worker has left its loop, and its runtime is not shut down.
#[test]
fn a_cycle_of_threads_is_found_while_the_only_worker_exits() {
    thread_local!(static AT_EXIT: RefCell<Option<Stays>> = const { RefCell::new(None) });
    struct Stays(mpsc::Sender<()>, mpsc::Receiver<()>);
    impl Drop for Stays {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
            _ = self.1.recv();
        }
    }
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(1).run_on_caller(false).build().unwrap();
        let ((tell, exits), (free, stays)) = (mpsc::channel(), mpsc::channel());
        runtime.run(move || AT_EXIT.set(Some(Stays(tell, stays))));
        let drops = thread::spawn(move || drop(runtime));
        exits.recv().unwrap();
        // Each reads one lock, and wants to write the other.
        let locks = [RwLock::new(()), RwLock::new(())];
        let read = Barrier::new(2);
        let told = thread::scope(|threads| {
            let each = [0, 1].map(|own| {
                let (locks, read) = (&locks, &read);
                threads.spawn(move || {
                    // A look has the library know the thread.
                    _ = Event::new().wait_timeout(Duration::ZERO);
                    let _reads = locks[own].read();
                    read.wait();
                    catch_unwind(AssertUnwindSafe(|| drop(locks[1 - own].write()))).is_err()
                })
            });
            each.map(|thread| thread.join().unwrap())
        });
        assert_eq!(told.iter().filter(|told| **told).count(), 1, "{told:?}");
        free.send(()).unwrap();
        drops.join().unwrap();
    });
    end.assert_survived();
}
