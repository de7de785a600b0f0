//! Runtimes without threads of their own: the caller drives what is aborted to its end.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use forebear::channel;
use forebear::sync::Event;
use forebear::time::sleep;
use forebear::{Request, Runtime, ShutdownError, TimeoutError, WaitError, scope, shield, yield_now};

use super::support::{Flag, Kind, Watchdog, hold_thread_until};
use super::{LONG, SECOND, clocked, is_over, is_shut_down, while_time_passes};

fn seeded(test: impl Fn(&Runtime)) {
    let _dog = Watchdog::new("");
    test(&Runtime::builder().seeded(7).build().unwrap());
}

#[test]
fn the_synchronous_mode_refuses_what_comes_after() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(0).build().unwrap();
    let unsubmitted = runtime.enter(|| Request::new(|| 1));
    assert_eq!(runtime.spawn(|| 1).take().unwrap(), 1);
    runtime.shutdown(LONG).unwrap();
    is_shut_down(unsubmitted.wait());
    is_shut_down(runtime.spawn(|| 1).wait());
}

#[test]
fn finish_lets_it_end() {
    seeded(|runtime| {
        let requests: Vec<_> = (0..10)
            .map(|n| {
                runtime.spawn(move || {
                    for _ in 0..n {
                        yield_now().unwrap();
                    }
                    n
                })
            })
            .collect();
        runtime.finish(LONG).unwrap();
        for (n, request) in requests.into_iter().enumerate() {
            assert_eq!(request.take().unwrap(), n);
        }
        is_shut_down(runtime.spawn(|| 1).wait());
    });
}

/// Also what the seeded mode has put among those to draw from, and nobody has begun.
#[test]
fn what_a_seed_has_not_begun_is_refused_whatever_the_seed() {
    let _dog = Watchdog::new("");
    for seed in 0..100 {
        let runtime = Runtime::builder().seeded(seed).build().unwrap();
        let requests: Vec<_> = (0..5).map(|_| runtime.spawn(|| while yield_now().is_ok() {})).collect();
        runtime.enter(|| _ = yield_now());
        runtime.shutdown(LONG).unwrap();
        for request in requests {
            is_shut_down(request.wait());
        }
    }
}

/// A wait in a scope's job that only a time ends.
fn waits_for_a_time(timeout: Duration) -> Result<(), TimeoutError> {
    scope(|s| _ = s.spawn(move || _ = shield(|| Event::new().wait_timeout(timeout))));
    shield(|| Event::new().wait_timeout(timeout))
}

#[test]
fn what_a_time_ends_within_the_grace_is_waited_for() {
    let _dog = Watchdog::new("");
    for end in [Runtime::finish, Runtime::shutdown] {
        for grace in [LONG, Duration::MAX] {
            let runtime = Runtime::builder().workers(0).build().unwrap();
            let requests: Vec<_> = (1..4)
                .map(|n| {
                    runtime.spawn(move || {
                        waits_for_a_time(Duration::from_millis(n)) == Err(TimeoutError::TimedOut)
                    })
                })
                .collect();
            end(&runtime, grace).unwrap();
            for request in requests {
                is_over(request.wait().map(|timed_out| assert!(timed_out)));
            }
        }
    }
}

/// The destructor of a value that nobody has a handle of is called by the loop.
#[test]
fn a_destructor_outside_of_any_request_is_waited_for_until_a_time_ends_it_within_the_grace() {
    struct Waits(Flag);
    impl Drop for Waits {
        fn drop(&mut self) {
            let ended = Event::new().wait_timeout(Duration::from_millis(2));
            assert_eq!(ended, Err(TimeoutError::TimedOut));
            self.0.raise();
        }
    }
    let _dog = Watchdog::new("");
    for end in [Runtime::finish, Runtime::shutdown] {
        let runtime = Runtime::builder().workers(0).build().unwrap();
        let dropped = Flag::default();
        let value = Waits(dropped.clone());
        drop(runtime.spawn(move || {
            let _ = shield(|| Event::new().wait_timeout(Duration::from_millis(2)));
            value
        }));
        end(&runtime, LONG).unwrap();
        assert!(dropped.is_up());
    }
}

/// On a clock that others move, and with a request that sleeps more than once.
#[test]
fn finish_lets_what_a_time_ends_within_the_grace_end_by_itself() {
    let _dog = Watchdog::new("");
    let (runtime, clock) = clocked(0);
    let ended = while_time_passes(&clock, || {
        let sleeps = runtime.spawn(|| (0..3).all(|_| sleep(SECOND).is_ok()));
        runtime.finish(Duration::MAX)?;
        assert_eq!(sleeps.take().ok(), Some(true));
        Ok(())
    });
    ended.unwrap();
}

#[test]
fn what_a_time_ends_after_the_grace_is_named_at_once() {
    let _dog = Watchdog::new("");
    for end in [Runtime::finish, Runtime::shutdown] {
        // Nobody moves the clock.
        let (runtime, clock) = clocked(0);
        let request = Request::builder()
            .name("late")
            .on(&runtime)
            .own_stack()
            .spawn(|| shield(|| Event::new().wait_timeout(2 * SECOND)).is_err());
        runtime.enter(|| _ = yield_now());
        for grace in [Duration::ZERO, SECOND] {
            let error = end(&runtime, grace).unwrap_err();
            let [laggard] = error.laggards() else { panic!("{error:?}") };
            assert_eq!(laggard.name, "late");
        }
        clock.advance(2 * SECOND);
        end(&runtime, Duration::ZERO).unwrap();
        is_over(request.wait());
    }
}

/// Nobody waits for a deadline that is not needed any more.
#[test]
fn who_is_woken_before_his_time_is_over_does_not_hold_up_the_end() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(0).build().unwrap();
    let event = Arc::new(Event::new());
    let theirs = event.clone();
    let waits = runtime.spawn(move || shield(|| theirs.wait_timeout(LONG)).is_ok());
    let started = Flag::new();
    let sets = {
        let started = started.clone();
        thread::spawn(move || {
            hold_thread_until(|| started.is_up());
            (0..1000).for_each(|_| thread::yield_now());
            event.set();
        })
    };
    started.raise();
    runtime.shutdown(Duration::MAX).unwrap();
    is_over(waits.wait());
    sets.join().unwrap();
}

/// A thread that drives towards the end looks for cycles as any driver does, and answers the waiter.
#[test]
fn a_cycle_that_closes_in_a_shielded_region_during_the_end_is_named_to_its_waiter() {
    let _dog = Watchdog::new("");
    for end in [Runtime::finish, Runtime::shutdown] {
        let runtime = Runtime::builder().workers(0).build().unwrap();
        let (own, (tell, told)) = (Arc::new(Mutex::new(None::<Request<()>>)), mpsc::channel());
        let request = runtime.spawn({
            let own = own.clone();
            move || {
                shield(|| {
                    let _ = Event::new().wait_timeout(Duration::from_millis(2));
                    scope(|s| {
                        for waits in [true, false] {
                            let (own, tell) = (own.clone(), tell.clone());
                            s.spawn(move || {
                                if waits {
                                    let own = own.lock().unwrap().take().unwrap();
                                    let answer = own.wait().copied();
                                    tell.send(matches!(answer, Err(WaitError::CircularWait(_)))).unwrap();
                                }
                            });
                        }
                    });
                });
            }
        });
        *own.lock().unwrap() = Some(request);
        end(&runtime, LONG).unwrap();
        assert_eq!(told.try_recv(), Ok(true));
    }
}

// ---- while something is always ready ---------------------------------------------------------------------------------------

/// The kinds that the thread drives which ends them.
const DRIVEN: [Kind; 3] = [Kind::Synchronous, Kind::Seeded(1), Kind::Seeded(2)];

/// A call that ends a runtime within a grace.
type End = fn(&Runtime, Duration) -> Result<(), ShutdownError>;

const ENDS: [End; 2] = [Runtime::finish, Runtime::shutdown];

/// In a shield, where no cancel comes: one that yields in a loop, and two that send to each other, until then.
fn always_ready(runtime: &Runtime, end: &Flag) -> Vec<Request<()>> {
    let ((to_left, left), (to_right, right)) = (channel::bounded::<()>(1), channel::bounded::<()>(1));
    let [yields, sends, answers] = [(); 3].map(|()| end.clone());
    let root = |name: &'static str| Request::builder().name(name).on(runtime).own_stack();
    let begun = vec![
        root("yields").spawn(move || {
            shield(|| {
                while !yields.is_up() {
                    yield_now().unwrap();
                }
            });
        }),
        root("sends").spawn(move || {
            shield(|| while !sends.is_up() && to_right.send(()).is_ok() && left.recv().is_ok() {});
        }),
        root("answers").spawn(move || {
            shield(|| while !answers.is_up() && right.recv().is_ok() && to_left.send(()).is_ok() {});
        }),
    ];
    runtime.enter(|| _ = yield_now());
    begun
}

#[test]
fn an_end_returns_when_the_grace_is_over_though_something_is_always_ready() {
    for kind in DRIVEN {
        for (call, grace) in
            ENDS.into_iter().flat_map(|call| [Duration::ZERO, SECOND / 50].map(|grace| (call, grace)))
        {
            let _dog = Watchdog::new(format_args!("{kind:?}, {grace:?}"));
            let runtime = kind.builder().on_warning(|_| ()).build().unwrap();
            let end = Flag::new();
            let requests = always_ready(&runtime, &end);
            let error = call(&runtime, grace).unwrap_err();
            let mut named: Vec<_> = error.laggards().iter().map(|laggard| laggard.name.as_str()).collect();
            named.sort_unstable();
            assert_eq!(named, ["answers", "sends", "yields"], "{kind:?}");
            end.raise();
            runtime.shutdown(LONG).unwrap();
            for request in requests {
                is_over(request.wait());
            }
        }
    }
}

#[test]
fn finish_names_and_aborts_what_is_ready_when_the_grace_is_over() {
    for kind in DRIVEN {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let (tell, told) = mpsc::channel();
        let warns = move |what: &str| _ = tell.send(what.to_owned());
        let runtime = kind.builder().on_warning(warns).build().unwrap();
        let yields = Request::builder().name("yields").on(&runtime);
        let request = yields.own_stack().spawn(|| while yield_now().is_ok() {});
        runtime.finish(SECOND / 50).unwrap();
        is_shut_down(request.wait());
        assert!(told.try_iter().any(|what| what.contains("'yields'")), "{kind:?}");
    }
}

#[test]
fn an_end_without_a_limit_says_for_whom_it_waits_though_something_is_always_ready() {
    for kind in [Kind::Synchronous, Kind::Seeded(1)] {
        for call in ENDS {
            let _dog = Watchdog::new(format_args!("{kind:?}"));
            let end = Flag::new();
            let warns = {
                let end = end.clone();
                move |what: &str| {
                    assert!(what.contains("waits for ever") && what.contains("'yields'"), "{what}");
                    end.raise();
                }
            };
            let runtime = kind.builder().on_warning(warns).build().unwrap();
            let requests = always_ready(&runtime, &end);
            call(&runtime, Duration::MAX).unwrap();
            for request in requests {
                is_over(request.wait());
            }
        }
    }
}

/// Whether nothing else is ready, or a request yields in a loop, which lets virtual time pass.
#[test]
fn in_the_seeded_mode_no_time_passes_that_is_later_than_the_grace() {
    for (seed, busy) in (0..5).flat_map(|seed| [(seed, false), (seed, true)]) {
        let _dog = Watchdog::new(format_args!("{seed}"));
        let runtime = Kind::Seeded(seed).build();
        let begin = runtime.now();
        let late = Request::builder().name("late").on(&runtime).own_stack();
        let late = late.spawn(|| shield(|| Event::new().wait_timeout(2 * SECOND)).is_err());
        let end = Flag::new();
        let yields = {
            let end = end.clone();
            runtime.spawn(move || shield(|| while busy && !end.is_up() && yield_now().is_ok() {}))
        };
        runtime.enter(|| _ = yield_now());
        let error = runtime.shutdown(SECOND / 50).unwrap_err();
        assert!(error.laggards().iter().any(|laggard| laggard.name == "late"), "{error:?}");
        assert_eq!(runtime.now() - begin, SECOND / 50);
        end.raise();
        runtime.shutdown(LONG).unwrap();
        assert_eq!(runtime.now() - begin, 2 * SECOND);
        is_over(late.wait());
        is_over(yields.wait());
    }
}
