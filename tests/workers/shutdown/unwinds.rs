//! What is in the middle of something when its runtime is shut down: it is told, unwinds, and ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use forebear::{
    CancelReason, Error, Request, RequestPool, Runtime, ShutdownError, State, WaitError, check_cancelled,
    join, scope, shield, spawn, try_scope, yield_now,
};

use super::support::order::root;
use super::support::{Count, Flag, Watchdog, hold_thread_until, hold_workers, runtime, until};
use super::{LONG, WORKERS, is_over, is_shut_down, on_each};
use crate::cancelling::asleep;

/// A request that never ends by itself.
fn endless(runtime: &Runtime) -> Request<()> {
    root(runtime).spawn(|| while yield_now().is_ok() {})
}

#[test]
fn new_work_is_refused_at_once_wherever_it_comes_from() {
    on_each(|runtime| {
        let (before, inside) = (runtime.enter(|| Request::new(|| 1)), runtime.run(|| Request::new(|| 2)));
        let (waited, any) = (runtime.enter(|| Request::new(|| 3)), runtime.enter(|| Request::new(|| 4)));
        runtime.shutdown(LONG).unwrap();
        let cancelled = Count::new();
        let told = cancelled.clone();
        let spawned = runtime.spawn(|| 5);
        assert_eq!(spawned.state(), State::Cancelled, "at once");
        let after = runtime.enter(|| Request::new(|| 6));
        after.on_cancelled(move || _ = told.up());
        for request in [before, inside, spawned, after] {
            request.submit();
            assert_eq!(request.state(), State::Cancelled);
            is_shut_down(request.wait());
        }
        assert_eq!(cancelled.get(), 1);
        is_shut_down(waited.wait());
        is_shut_down(any.to_untyped().wait_timeout(LONG));
        is_shut_down(runtime.try_run(|| Ok(1)));
        let error = runtime.enter(|| {
            let mut pool = RequestPool::new();
            pool.add(|| 1);
            pool.wait().unwrap_err()
        });
        assert!(!matches!(error, WaitError::TimedOut), "{error:?}");
        assert!(
            runtime
                .enter(|| try_scope(|s| {
                    s.spawn(|| 1);
                    Ok(())
                }))
                .is_err()
        );
        // Both arms always run.
        assert_eq!(runtime.enter(|| join(|| 1, || 2)), (1, 2));
    });
}

#[test]
fn what_is_suspended_queued_private_or_published_ends_cancelled() {
    on_each(|runtime| {
        let dropped = Count::new();
        let waits = endless(runtime);
        let suspended = {
            let waits = waits.clone();
            root(runtime).spawn(move || waits.wait().is_err())
        };
        asleep(&suspended);
        let (send, children) = mpsc::channel();
        let probe = dropped.probe();
        let family = root(runtime).spawn(move || {
            let _probe = probe;
            // Some of them stay private; a second worker is shown some.
            let made: Vec<_> = (0..50).map(|_| spawn(|| while yield_now().is_ok() {})).collect();
            send.send(made.clone()).unwrap();
            made.into_iter().for_each(|child| _ = child.take());
        });
        let children = children.recv().unwrap();
        let held = hold_workers(runtime);
        let queued: Vec<_> = (0..50).map(|n| (runtime.spawn(move || n), dropped.probe())).collect();
        let ends = thread::scope(|threads| {
            let ends = threads.spawn(|| runtime.shutdown(LONG));
            for (request, _) in &queued {
                hold_thread_until(|| request.is_done());
            }
            drop(held);
            ends.join().unwrap()
        });
        ends.unwrap();
        for request in queued.iter().map(|(request, _)| request) {
            is_shut_down(request.wait());
        }
        for request in children.iter().chain([&waits, &family]) {
            is_shut_down(request.wait());
        }
        is_over(suspended.wait());
        drop(queued);
        assert_eq!(dropped.get(), 51);
        assert_eq!(runtime.metrics().live_stacks, 0);
    });
}

#[test]
fn who_waits_for_it_does_not_spare_it() {
    on_each(|runtime| {
        let target = endless(runtime);
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let target = target.clone();
                thread::spawn(move || target.wait().copied())
            })
            .collect();
        runtime.shutdown(LONG).unwrap();
        waiters.into_iter().for_each(|waiter| is_shut_down(waiter.join().unwrap()));
    });
}

#[test]
fn detached_requests_and_orphans_are_reached() {
    on_each(|runtime| {
        let (send, made) = mpsc::channel();
        runtime.run(|| {
            let detached = Request::builder().detached().spawn(|| while yield_now().is_ok() {});
            let orphan = spawn(|| {
                let grandchild = spawn(|| while yield_now().is_ok() {});
                // So that it is not taken directly.
                yield_now().unwrap();
                grandchild
            });
            send.send((detached, orphan)).unwrap();
        });
        let (detached, orphan) = made.recv().unwrap();
        let grandchild = orphan.wait().unwrap().clone();
        runtime.shutdown(LONG).unwrap();
        is_shut_down(detached.wait());
        is_shut_down(grandchild.wait());
    });
}

#[test]
fn joins_scopes_and_pools_come_to_their_end() {
    on_each(|runtime| {
        let started = Count::new();
        let endless = || {
            started.up();
            while yield_now().is_ok() {}
        };
        thread::scope(|threads| {
            let joined = threads.spawn(|| runtime.try_run(|| Ok(join(endless, endless))).is_err());
            let scoped = threads.spawn(|| {
                runtime.try_run(|| {
                    scope(|s| {
                        s.spawn(endless);
                        s.spawn(endless);
                    });
                    Ok(())
                })
            });
            let outside = threads.spawn(|| {
                runtime.enter(|| {
                    try_scope(|s| {
                        s.spawn(endless);
                        Ok(())
                    })
                })
            });
            let pooled = threads.spawn(|| {
                runtime.try_run(|| {
                    let mut pool = RequestPool::new().max_active(2);
                    (0..5).for_each(|_| _ = pool.add(endless));
                    Ok(pool.wait()?)
                })
            });
            let pool_outside = threads.spawn(|| {
                runtime.enter(|| {
                    let mut pool = RequestPool::new().max_active(2);
                    (0..5).for_each(|_| _ = pool.add(endless));
                    pool.wait()
                })
            });
            hold_thread_until(|| started.get() >= 5);
            runtime.shutdown(LONG).unwrap();
            assert!(joined.join().unwrap());
            assert!(scoped.join().unwrap().is_err());
            assert!(outside.join().unwrap().is_err());
            assert!(pooled.join().unwrap().is_err());
            assert!(pool_outside.join().unwrap().is_err());
        });
    });
}

#[test]
fn a_shielded_region_and_what_it_makes_go_on_to_their_end() {
    on_each(|runtime| {
        let (shut, cleaned) = (Flag::new(), Count::new());
        let request = {
            let (shut, cleaned, count) = (shut.clone(), cleaned.clone(), cleaned.clone());
            root(runtime).spawn(move || {
                let inside = shield(|| {
                    cleaned.up();
                    shut.wait();
                    // Made, submitted, published and waited for after the shutdown.
                    let parts: Vec<_> = (0..20)
                        .map(|_| {
                            let count = count.clone();
                            spawn(move || {
                                yield_now().unwrap();
                                let count = count.clone();
                                root_child(move || count.up()).wait().unwrap();
                            })
                        })
                        .collect();
                    parts.into_iter().all(|part| part.take().is_ok())
                });
                assert!(inside);
                let late = spawn(|| 1).take();
                assert!(matches!(late, Err(WaitError::Cancelled)), "{late:?}");
                check_cancelled()?;
                Ok::<_, forebear::Error>(())
            })
        };
        cleaned.wait_for(1);
        thread::scope(|threads| {
            let ends = threads.spawn(|| runtime.shutdown(LONG));
            hold_thread_until(|| request.is_cancelled());
            assert_eq!(runtime.spawn(|| ()).state(), State::Cancelled);
            shut.raise();
            ends.join().unwrap().unwrap();
        });
        assert_eq!(cleaned.get(), 21);
        is_shut_down(request.wait());
    });
}

/// A child that goes by the injector.
fn root_child<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Request<T> {
    Request::builder().own_stack().spawn(f)
}

#[test]
fn the_end_of_a_shielded_region_aborts_what_it_has_left_behind() {
    on_each(|runtime| {
        let (shut, up) = (Flag::new(), Flag::new());
        let (send, left) = mpsc::channel();
        let request = {
            let (shut, up) = (shut.clone(), up.clone());
            root(runtime).spawn(move || {
                shield(|| {
                    up.raise();
                    shut.wait();
                    let running = spawn(|| while yield_now().is_ok() {});
                    yield_now().unwrap();
                    send.send(running).unwrap();
                });
            })
        };
        up.wait();
        thread::scope(|threads| {
            let ends = threads.spawn(|| runtime.shutdown(LONG));
            hold_thread_until(|| runtime.spawn(|| ()).is_done());
            // A foreign thread's wait is demand, and does not count.
            let waits = threads.spawn(move || left.recv().unwrap().wait().copied());
            shut.raise();
            ends.join().unwrap().unwrap();
            is_shut_down(waits.join().unwrap());
        });
        is_over(request.wait());
    });
}

#[test]
fn a_destructor_that_waits_is_waited_for() {
    struct Waits(Count);
    impl Drop for Waits {
        fn drop(&mut self) {
            let answer = shield(|| spawn(|| 7).take());
            assert_eq!(answer.ok(), Some(7));
            self.0.up();
        }
    }
    on_each(|runtime| {
        let dropped = Count::new();
        let target = endless(runtime);
        let waits = {
            let (dropped, target) = (dropped.clone(), target.clone());
            root(runtime).spawn(move || {
                let _waits = Waits(dropped);
                _ = target.wait();
            })
        };
        asleep(&waits);
        runtime.shutdown(LONG).unwrap();
        assert_eq!(dropped.get(), 1);
        is_over(waits.wait());
    });
}

#[test]
fn callbacks_run_and_may_wait_in_a_shield() {
    on_each(|runtime| {
        let called = Count::new();
        let (running, queued) = (endless(runtime), runtime.enter(|| Request::new(|| ())));
        let held = hold_workers(runtime);
        queued.submit();
        for request in [&running, &queued] {
            let (cancelled, done, weak) = (called.clone(), called.clone(), request.to_untyped());
            request.on_cancelled(move || {
                assert!(weak.is_done(), "for its own callbacks it is over");
                cancelled.up();
            });
            request.on_done(move |outcome| {
                assert!(matches!(outcome, forebear::Outcome::Cancelled(forebear::CancelReason::Shutdown)));
                done.up();
            });
            request.on_finished(|()| unreachable!("it was aborted"));
        }
        thread::scope(|threads| {
            let ends = threads.spawn(|| runtime.shutdown(LONG));
            hold_thread_until(|| queued.is_done());
            drop(held);
            ends.join().unwrap().unwrap();
        });
        assert_eq!(called.get(), 4);
    });
}

#[test]
fn a_callback_under_way_is_waited_for() {
    on_each(|runtime| {
        let (free, started, over) = (Flag::new(), Flag::new(), Flag::new());
        let request = {
            let (free, started, over) = (free.clone(), started.clone(), over.clone());
            let request = runtime.enter(|| Request::builder().own_stack().build(|| 1));
            request.on_finished(move |_| {
                started.raise();
                free.wait();
                over.raise();
            });
            request
        };
        request.submit();
        started.wait();
        thread::scope(|threads| {
            let ends = threads.spawn(|| runtime.shutdown(LONG));
            hold_thread_until(|| runtime.spawn(|| ()).is_done());
            free.raise();
            ends.join().unwrap().unwrap();
        });
        assert!(over.is_up());
        assert_eq!(request.wait().ok(), Some(&1), "it had returned before");
    });
}

#[test]
fn timed_waits_end_without_their_time() {
    on_each(|runtime| {
        let target = endless(runtime);
        let waits: Vec<_> = (0..10)
            .map(|_| {
                let target = target.clone();
                root(runtime).spawn(move || match target.wait_timeout(LONG) {
                    Err(WaitError::Cancelled) => {}
                    // Another worker may have aborted its target before this one hears of the end.
                    of_target => is_shut_down(of_target),
                })
            })
            .collect();
        waits.iter().for_each(asleep);
        runtime.shutdown(LONG).unwrap();
        waits.iter().for_each(|wait| is_over(wait.wait()));
    });
}

#[test]
fn who_passes_on_that_its_target_was_shut_down_is_shut_down_itself() {
    on_each(|runtime| {
        let (started, shut) = (Flag::new(), Flag::new());
        let request = {
            let (started, shut) = (started.clone(), shut.clone());
            root(runtime).try_spawn(move || {
                started.raise();
                // Without a look whether it is cancelled.
                hold_thread_until(|| shut.is_up());
                Err::<(), Error>(WaitError::TargetCancelled(CancelReason::Shutdown).into())
            })
        };
        hold_thread_until(|| started.is_up());
        thread::scope(|threads| {
            let ends = threads.spawn(|| runtime.shutdown(LONG));
            hold_thread_until(|| runtime.spawn(|| ()).state() == State::Cancelled);
            shut.raise();
            ends.join().unwrap().unwrap();
        });
        is_shut_down(request.wait());
    });
}

#[test]
fn what_a_foreign_thread_runs_is_told() {
    on_each(|runtime| {
        let (started, told) = (Count::new(), AtomicUsize::new(0));
        thread::scope(|threads| {
            for n in 0..3 {
                let (started, told) = (&started, &told);
                let target = endless(runtime);
                threads.spawn(move || {
                    let up = started.clone();
                    let request = runtime.enter(|| {
                        Request::new(move || {
                            up.up();
                            match n {
                                0 => while yield_now().is_ok() {},
                                1 => while !forebear::is_cancelled() {},
                                _ => {
                                    // Its target may be over before it is told itself.
                                    match target.wait() {
                                        Err(WaitError::Cancelled) => assert!(forebear::is_cancelled()),
                                        of_target => is_shut_down(of_target),
                                    }
                                    while !forebear::is_cancelled() {}
                                }
                            }
                        })
                    });
                    is_shut_down(request.wait());
                    told.fetch_add(1, Ordering::AcqRel);
                });
            }
            started.wait_for(3);
            runtime.shutdown(LONG).unwrap();
        });
        assert_eq!(told.load(Ordering::Acquire), 3);
    });
}

#[test]
fn inside_a_request_of_that_runtime_it_is_refused_and_nothing_is_done() {
    for workers in WORKERS {
        let _dog = Watchdog::new(workers);
        let runtime = runtime(workers);
        let inside = runtime.run(|| (runtime.shutdown(LONG), runtime.finish(LONG)));
        for answer in [inside.0, inside.1] {
            let error = answer.unwrap_err();
            assert!(matches!(error, ShutdownError::Inside) && error.laggards().is_empty(), "{error:?}");
            assert!(error.to_string().contains("from a thread that runs none"));
        }
        // Directly in a foreign thread too, and in a callback.
        let here = runtime.clone();
        let direct = runtime.enter(|| Request::new(move || here.shutdown(LONG).is_err()));
        assert!(direct.wait().unwrap());
        let (here, refused) = (runtime.clone(), Flag::new());
        let up = refused.clone();
        let done = runtime.spawn(|| ());
        done.on_done(move |_| {
            if here.shutdown(LONG).is_err() {
                up.raise();
            }
        });
        until(|| done.is_done());
        assert_eq!(runtime.spawn(|| 7).take().ok(), if refused.is_up() { Some(7) } else { None });
        runtime.shutdown(LONG).unwrap();
    }
}

#[test]
fn a_panic_on_the_way_out_is_a_failure_and_not_hidden() {
    on_each(|runtime| {
        let target = endless(runtime);
        let fails = root(runtime).spawn(move || {
            _ = target.wait();
            std::panic::resume_unwind(Box::new("on the way out"))
        });
        let fails: Request<()> = fails;
        asleep(&fails);
        runtime.shutdown(LONG).unwrap();
        assert!(matches!(fails.wait(), Err(WaitError::Failed(_))), "{fails:?}");
    });
}

#[test]
fn an_unwinding_wait_unwinds() {
    on_each(|runtime| {
        let target = endless(runtime);
        let unwound = Count::new();
        let probe = unwound.probe();
        let waits = root(runtime).spawn(move || {
            let _probe = probe;
            target.force();
        });
        asleep(&waits);
        runtime.shutdown(LONG).unwrap();
        assert_eq!(unwound.get(), 1);
        is_shut_down(waits.wait());
        assert!(catch_unwind(AssertUnwindSafe(|| waits.force())).is_err());
    });
}
