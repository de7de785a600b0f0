//! `finish` lets work end, for as long as its grace.

use std::time::{Duration, Instant};

use forebear::time::{Clock, ManualClock, Subscription, timeout};
use forebear::{Request, Runtime, spawn, yield_now};

use super::support::order::root;
use super::support::{Count, Flag, Watchdog, again_in_child, hold_thread_until, is_child};
use super::{LONG, SECOND, clocked, is_shut_down, on_each, stuck, while_time_passes};

#[test]
fn without_work_it_ends_at_once() {
    on_each(|runtime| {
        runtime.finish(Duration::MAX).unwrap();
        is_shut_down(runtime.spawn(|| 1).wait());
        runtime.finish(Duration::ZERO).unwrap();
    });
}

#[test]
fn what_was_submitted_ends_with_its_value_and_so_does_what_it_makes() {
    on_each(|runtime| {
        let ran = Count::new();
        let requests: Vec<_> = (0..20)
            .map(|n| {
                let ran = ran.clone();
                root(runtime).spawn(move || {
                    for _ in 0..n {
                        yield_now().unwrap();
                    }
                    let children: Vec<_> = (0..5)
                        .map(|_| {
                            spawn({
                                let ran = ran.clone();
                                move || ran.up()
                            })
                        })
                        .collect();
                    children.into_iter().for_each(|child| _ = child.take().unwrap());
                    // Nobody waits for this one.
                    drop(spawn(move || ran.up()));
                    n
                })
            })
            .collect();
        runtime.finish(Duration::MAX).unwrap();
        assert_eq!(ran.get(), 20 * 6);
        for (n, request) in requests.into_iter().enumerate() {
            assert_eq!(request.take().unwrap(), n);
        }
        assert_eq!(runtime.metrics().live_stacks, 0);
    });
}

/// Also what the thread would run by itself, without a worker.
#[test]
fn afterwards_regions_with_a_limit_are_refused_as_requests_are() {
    on_each(|runtime| {
        runtime.finish(LONG).unwrap();
        runtime.enter(|| {
            is_shut_down(timeout(LONG, || unreachable!("it has no runtime")));
            is_shut_down(Request::new(|| unreachable!("it has no runtime")).wait().copied());
        });
        runtime.shutdown(LONG).unwrap();
    });
}

#[test]
fn what_a_foreign_thread_runs_is_waited_for_too() {
    on_each(|runtime| {
        let (free, started, over) = (Flag::new(), Flag::new(), Flag::new());
        std::thread::scope(|threads| {
            let (free, started, over) = (&free, &started, &over);
            threads.spawn(move || {
                let (open, up) = (free.clone(), started.clone());
                let direct = runtime.enter(|| {
                    Request::new(move || {
                        up.raise();
                        hold_thread_until(|| open.is_up());
                        // It still takes work on.
                        spawn(|| 7).take().unwrap()
                    })
                });
                assert_eq!(*direct.wait().unwrap(), 7);
                over.raise();
            });
            started.wait();
            let ends = threads.spawn(|| runtime.finish(Duration::MAX));
            assert!(!over.is_up());
            free.raise();
            ends.join().unwrap().unwrap();
        });
        assert!(over.is_up());
    });
}

/// A clock that is moved by hand, and counts who looks at it.
#[derive(Clone, Debug)]
struct Watched(ManualClock, Count);

impl Clock for Watched {
    fn now(&self) -> Instant {
        let now = self.0.now();
        self.1.up();
        now
    }

    fn subscribe(&self, callback: Box<dyn Fn(Instant) + Send + Sync>) -> Option<Subscription> {
        self.0.subscribe(callback)
    }
}

#[test]
fn what_is_left_after_the_grace_is_shut_down() {
    for workers in [1, 2] {
        let _dog = Watchdog::new(workers);
        let clock = Watched(ManualClock::new(), Count::new());
        let runtime = Runtime::builder().workers(workers).clock(clock.clone()).build().unwrap();
        let endless = root(&runtime).spawn(|| while yield_now().is_ok() {});
        let brief = root(&runtime).spawn(|| 1);
        hold_thread_until(|| brief.is_done());
        let before = clock.1.get();
        std::thread::scope(|threads| {
            let ends = threads.spawn(|| runtime.finish(SECOND));
            // It knows by now when its grace is over. The grace that comes then begins after this.
            hold_thread_until(|| clock.1.get() > before);
            clock.0.advance(SECOND);
            ends.join().unwrap().unwrap();
        });
        is_shut_down(endless.wait());
        assert_eq!(brief.take().unwrap(), 1);
    }
}

#[test]
fn and_what_does_not_end_then_is_named() {
    let _dog = Watchdog::new("");
    let (runtime, clock) = clocked(1);
    let free = Flag::new();
    let _request = stuck(&runtime, "stuck", &free);
    let error = while_time_passes(&clock, || runtime.finish(SECOND)).unwrap_err();
    assert_eq!(error.laggards().len(), 1);
    assert_eq!(error.laggards()[0].name, "stuck");
    free.raise();
    runtime.finish(Duration::MAX).unwrap();
}

#[test]
fn the_default_runtime_is_waited_for_and_says_at_exit_what_was_left() {
    const NAME: &str = "finishes::the_default_runtime_is_waited_for_and_says_at_exit_what_was_left";
    let _dog = Watchdog::new("");
    if !is_child(NAME) {
        let (ok, told) = again_in_child(NAME, ("FINISH", "yes"), "");
        assert!(ok && !told.contains("leaves undone"), "{told}");
        let (ok, told) = again_in_child(NAME, ("FINISH", "no"), "");
        assert!(ok, "the exit waits for nobody: {told}");
        if cfg!(debug_assertions) {
            assert!(told.contains("leaves undone") && told.contains("'left behind'"), "said: {told}");
        }
        return;
    }
    let (free, started) = (Flag::new(), Flag::new());
    let request = {
        let (free, up) = (free.clone(), started.clone());
        Request::builder().name("left behind").spawn(move || {
            up.raise();
            free.wait();
            7
        })
    };
    started.wait();
    if std::env::var("FINISH").unwrap() == "yes" {
        free.raise();
        Runtime::current().finish(Duration::MAX).unwrap();
        assert_eq!(request.take().unwrap(), 7);
        is_shut_down(spawn(|| 1).wait());
        // Another may take its place.
        Runtime::builder().workers(1).build_global().unwrap();
        assert_eq!(spawn(|| 1).take().unwrap(), 1);
    }
}
