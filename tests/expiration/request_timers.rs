//! Expiration timers of requests, by the client within the process: T-numbers are rows of `docs/behaviours.md`.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cancelling::{Gate, asleep, ends_cancelled, on_each_clocked, was_cancelled};
use forebear::time::{ManualClock, now, sleep};
use forebear::timer::{InProcessTimer, Scope, TimerClient, TimerError, TimerGuard};
use forebear::{
    CancelReason, Cancelled, Request, Runtime, State, WaitError, check_cancelled, is_cancelled, join, shield,
    spawn, try_spawn, yield_now,
};
use support::order::root;
use support::{Come, Count, Flag, Joined, Modes, hold_thread_until, in_both_worlds, not_on, settle, until};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

/// A timer of `after` for a scope of that name.
fn expires<'c>(timers: &'c InProcessTimer, scope: &str, after: Duration) -> TimerGuard<'c> {
    TimerGuard::builder().client(timers).scope(scope).expires(after).expect("a request has timers")
}

/// Runs `body` as a root that is asleep when this returns.
fn sleeping(
    runtime: &Runtime,
    timers: &InProcessTimer,
    body: impl FnOnce(&InProcessTimer) -> Result<(), Cancelled> + Send + 'static,
) -> Request<()> {
    let timers = timers.clone();
    let request = root(runtime).try_spawn(move || Ok(body(&timers)?));
    asleep(&request);
    request
}

fn for_ever() -> Result<(), Cancelled> {
    sleep(Duration::MAX)
}

/// Nothing is armed, and the client has no record.
#[track_caller]
fn no_trace(runtime: &Runtime, timers: &InProcessTimer) {
    assert_eq!(runtime.metrics().armed, 0);
    assert_eq!(format!("{timers:?}"), "InProcessTimer { requests: 0, timers: 0 }");
}

#[test]
fn t1_t7_released_in_time_however_the_block_ends_nothing_happens() {
    on_each_clocked(|runtime, clock| {
        let timers = InProcessTimer::new();
        for how in 0..3 {
            let client = timers.clone();
            let request = root(runtime).try_spawn(move || {
                let inside = || {
                    let _timer = expires(&client, "block", SECOND);
                    if how == 1 {
                        return Err(forebear::Error::other("its own"));
                    }
                    assert!(how != 2);
                    Ok(())
                };
                let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(inside));
                assert_eq!((how, ended.is_err()), (how, how == 2));
                assert_eq!(format!("{client:?}"), "InProcessTimer { requests: 1, timers: 0 }");
                Ok(check_cancelled()?)
            });
            assert!(request.wait().is_ok());
            clock.advance(2 * SECOND);
            assert!(!request.is_cancelled());
            no_trace(runtime, &timers);
        }
    });
}

#[test]
fn t8_late_the_request_is_aborted_when_the_timer_expires_and_not_before() {
    on_each_clocked(|runtime, clock| {
        let timers = InProcessTimer::new();
        let request = sleeping(runtime, &timers, |timers| {
            let _timer = expires(timers, "block", SECOND);
            for_ever()
        });
        let wanted = cancelling::waiter(runtime, &request);
        clock.advance(SECOND - NANO);
        settle(runtime);
        assert_eq!(request.state(), State::Suspended);
        clock.advance(NANO);
        assert_eq!(ends_cancelled(&request), CancelReason::Expired);
        let told = wanted.take().unwrap();
        assert!(matches!(told, Err(WaitError::TargetCancelled(CancelReason::Expired))));
        no_trace(runtime, &timers);
    });
}

#[test]
fn a_timer_holds_though_every_worker_thread_is_stuck_in_a_computation() {
    let _not = not_on(Modes::Both, "it holds its workers");
    on_each_clocked(|runtime, clock| {
        let (timers, started) = (InProcessTimer::new(), Count::new());
        let stuck: Vec<_> = (0..runtime.workers())
            .map(|_| {
                let (timers, started) = (timers.clone(), started.clone());
                runtime.spawn(move || {
                    let _timer = expires(&timers, "computation", SECOND);
                    started.up();
                    hold_thread_until(is_cancelled);
                })
            })
            .collect();
        hold_thread_until(|| started.get() == stuck.len());
        clock.advance(SECOND);
        stuck.iter().for_each(|stuck| assert_eq!(ends_cancelled(stuck), CancelReason::Expired));
    });
}

#[test]
fn t5_the_same_scope_again_moves_the_deadline_and_the_first_release_ends_it() {
    fn level(timers: &InProcessTimer, clock: &ManualClock, left: u32) -> Result<(), Cancelled> {
        let _timer = expires(timers, "recursion", SECOND);
        clock.advance(SECOND / 2);
        check_cancelled()?;
        if left == 0 { Ok(()) } else { level(timers, clock, left - 1) }
    }
    on_each_clocked(|runtime, clock| {
        let timers = InProcessTimer::new();
        // Four deep, each with a second: two seconds in all.
        let (client, time) = (timers.clone(), clock.clone());
        let deep = root(runtime).try_spawn(move || {
            level(&client, &time, 3)?;
            // The innermost has released it for all.
            time.advance(9 * SECOND);
            Ok(check_cancelled()?)
        });
        assert!(deep.wait().is_ok(), "{deep:?}");
        // A level that takes as long as its timer is ended.
        let request = sleeping(runtime, &timers, |timers| {
            let _outer = expires(timers, "recursion", 5 * SECOND);
            let _inner = expires(timers, "recursion", SECOND);
            for_ever()
        });
        clock.advance(SECOND);
        assert_eq!(ends_cancelled(&request), CancelReason::Expired);
        no_trace(runtime, &timers);
    });
}

#[test]
fn t6_different_scopes_of_a_request_are_separate_timers() {
    on_each_clocked(|runtime, clock| {
        let timers = InProcessTimer::new();
        let request = sleeping(runtime, &timers, |timers| {
            let _long = expires(timers, "long", 2 * SECOND);
            drop(expires(timers, "short", SECOND));
            for_ever()
        });
        clock.advance(SECOND);
        settle(runtime);
        assert!(!request.is_cancelled());
        clock.advance(SECOND);
        assert_eq!(ends_cancelled(&request), CancelReason::Expired);
    });
}

#[test]
fn t10_one_expired_timer_ends_its_request_once_and_drops_all_its_timers() {
    on_each_clocked(|runtime, clock| {
        let (timers, ended) = (InProcessTimer::new(), Count::new());
        let request = sleeping(runtime, &timers, |timers| {
            let _timers = [("a", 1), ("b", 1), ("c", 2)].map(|(name, n)| expires(timers, name, n * SECOND));
            for_ever()
        });
        let other = sleeping(runtime, &timers, |timers| {
            let _timer = expires(timers, "a", 2 * SECOND);
            for_ever()
        });
        let up = ended.clone();
        request.on_cancelled(move || _ = up.up());
        clock.advance(SECOND);
        assert_eq!(ends_cancelled(&request), CancelReason::Expired);
        assert_eq!((ended.get(), runtime.metrics().armed), (1, 1));
        assert!(!other.is_cancelled());
        clock.advance(SECOND);
        assert_eq!(ends_cancelled(&other), CancelReason::Expired);
        assert_eq!(ended.get(), 1);
        no_trace(runtime, &timers);
    });
}

#[test]
fn t11_a_deadline_that_is_now_or_past_has_expired() {
    on_each_clocked(|runtime, _| {
        let timers = InProcessTimer::new();
        let client = timers.clone();
        let request = root(runtime).try_spawn(move || {
            let _timer = expires(&client, "block", Duration::ZERO);
            Ok(check_cancelled()?)
        });
        assert_eq!(ends_cancelled(&request), CancelReason::Expired);
        no_trace(runtime, &timers);
    });
}

#[test]
fn t12_a_release_of_what_is_not_there_is_nothing() {
    on_each_clocked(|runtime, clock| {
        let timers = InProcessTimer::new();
        let (client, time) = (timers.clone(), clock.clone());
        let request = root(runtime).try_spawn(move || {
            client.release(&Scope::named("never acquired"))?;
            let timer = expires(&client, "block", SECOND);
            client.release(timer.scope())?;
            client.release(&Scope::named("never acquired"))?;
            time.advance(2 * SECOND);
            drop(timer);
            Ok(check_cancelled()?)
        });
        assert!(request.wait().is_ok(), "{request:?}");
        no_trace(runtime, &timers);
    });
}

#[test]
fn t26_one_that_is_never_released_goes_with_its_request() {
    on_each_clocked(|runtime, clock| {
        let timers = InProcessTimer::new();
        let client = timers.clone();
        let request = root(runtime).spawn(move || {
            for name in ["a", "b"] {
                // As by a guard that is forgotten.
                client.acquire(&Scope::named(name), now() + SECOND).unwrap();
            }
        });
        assert!(request.wait().is_ok());
        no_trace(runtime, &timers);
        clock.advance(2 * SECOND);
        assert!(!request.is_cancelled());
        let links = format!("{:?}", request.to_untyped());
        assert!(links.contains("links: 1"), "{links}");
    });
}

#[test]
fn it_can_be_extended() {
    on_each_clocked(|runtime, clock| {
        let timers = InProcessTimer::new();
        let time = clock.clone();
        let request = sleeping(runtime, &timers, move |timers| {
            let mut timer = expires(timers, "block", SECOND);
            time.advance(SECOND / 2);
            timer.extend(SECOND).unwrap();
            for_ever()
        });
        clock.advance(SECOND - NANO);
        settle(runtime);
        assert!(!request.is_cancelled());
        clock.advance(NANO);
        assert_eq!(ends_cancelled(&request), CancelReason::Expired);
    });
}

#[test]
fn a_timer_belongs_to_the_request_that_acquires_it_and_to_no_other_on_its_stack() {
    on_each_clocked(|runtime, clock| {
        let timers = InProcessTimer::new();
        let (tell, told) = mpsc::channel();
        let request = sleeping(runtime, &timers, move |timers| {
            let timers = timers.clone();
            let child = try_spawn(move || {
                let _timer = expires(&timers, "child", SECOND);
                Ok(for_ever()?)
            });
            let answer = child.wait().copied();
            tell.send(matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Expired)))).unwrap();
            Ok(())
        });
        clock.advance(SECOND);
        assert_eq!(told.come(), Ok(true));
        assert!(request.wait().is_ok());
    });
}

#[test]
fn the_arms_of_a_join_are_one_request() {
    on_each_clocked(|runtime, clock| {
        let timers = InProcessTimer::new();
        let request = sleeping(runtime, &timers, |timers| {
            let arm = || {
                let _timer = expires(timers, "arm", SECOND);
                for_ever()
            };
            let (first, second) = join(arm, arm);
            assert!(first.is_err() && second.is_err());
            first
        });
        clock.advance(SECOND);
        assert_eq!(ends_cancelled(&request), CancelReason::Expired);
        no_trace(runtime, &timers);
    });
}

/// Both branches pass one line. The first to leave it releases its own timer only.
#[test]
fn branches_of_a_join_in_parallel_have_timers_of_their_own() {
    for workers in [1, 2] {
        let clock = ManualClock::new();
        let runtime = Runtime::builder().workers(workers).clock(clock.clone()).build().unwrap();
        let timers = InProcessTimer::new();
        let (acquired, released) = (Flag::new(), Flag::new());
        let request = {
            let (timers, acquired, released) = (timers.clone(), acquired.clone(), released.clone());
            root(&runtime).try_spawn(move || {
                let timed = || TimerGuard::builder().client(&timers).expires(SECOND).unwrap();
                let (_, stuck) = join(
                    || {
                        let timer = timed();
                        // By the other branch, on another stack.
                        acquired.wait();
                        drop(timer);
                        released.raise();
                    },
                    || {
                        let _timer = timed();
                        acquired.raise();
                        for_ever()
                    },
                );
                Ok(stuck?)
            })
        };
        until(|| released.is_up());
        let armed = runtime.metrics().armed;
        clock.advance(SECOND);
        if armed == 0 {
            // Nothing else would end it.
            let _ = request.cancel();
        }
        assert_eq!(ends_cancelled(&request), CancelReason::Expired);
        no_trace(&runtime, &timers);
    }
}

#[test]
fn what_it_has_made_ends_with_it() {
    on_each_clocked(|runtime, clock| {
        let timers = InProcessTimer::new();
        let (tell, told) = mpsc::channel();
        let request = sleeping(runtime, &timers, move |timers| {
            let _timer = expires(timers, "block", SECOND);
            let child = Request::builder().own_stack().try_spawn(|| Ok(for_ever()?));
            tell.send(child.to_untyped()).unwrap();
            for_ever()
        });
        let child = told.come().unwrap();
        clock.advance(SECOND);
        assert_eq!(ends_cancelled(&request), CancelReason::Expired);
        assert_eq!(was_cancelled(&child), CancelReason::Parent);
    });
}

#[test]
fn a_shielded_region_holds_it_back() {
    on_each_clocked(|runtime, clock| {
        let (timers, mut gate) = (InProcessTimer::new(), Gate::new(runtime));
        let closed = gate.request();
        let (tell, told) = mpsc::channel();
        let request = sleeping(runtime, &timers, move |timers| {
            let _timer = expires(timers, "block", SECOND);
            tell.send(shield(|| closed.wait().is_ok())).unwrap();
            check_cancelled()
        });
        clock.advance(SECOND);
        settle(runtime);
        assert_eq!(request.state(), State::Suspended);
        gate.open();
        assert_eq!(told.come(), Ok(true));
        assert_eq!(ends_cancelled(&request), CancelReason::Expired);
    });
}

#[test]
fn a_request_that_a_foreign_thread_runs_has_timers_too() {
    on_each_clocked(|runtime, clock| {
        let (timers, started) = (InProcessTimer::new(), support::Flag::new());
        let (client, up) = (timers.clone(), started.clone());
        let request = Request::builder().on(runtime).try_build(move || {
            let _timer = expires(&client, "block", SECOND);
            up.raise();
            Ok(for_ever()?)
        });
        let runs = request.clone();
        let thread = thread::spawn(move || drop(runs.wait().copied()));
        started.wait();
        clock.advance(SECOND);
        thread.joined().unwrap();
        assert_eq!(ends_cancelled(&request), CancelReason::Expired);
        no_trace(runtime, &timers);
    });
}

#[test]
fn outside_any_request_there_is_no_worker() {
    let timers = InProcessTimer::new();
    let refused = TimerGuard::builder().client(&timers).expires(SECOND);
    assert!(matches!(refused, Err(TimerError::NoWorker)));
    assert!(matches!(timers.release(&Scope::named("block")), Err(TimerError::NoWorker)));
}

#[test]
fn on_the_machines_own_clock_and_on_a_virtual_one_too() {
    in_both_worlds(|| {
        let timers = InProcessTimer::new();
        let request = Request::builder().own_stack().try_spawn(move || {
            let _timer = expires(&timers, "block", Duration::from_millis(2));
            Ok(for_ever()?)
        });
        assert_eq!(ends_cancelled(&request), CancelReason::Expired);
    });
}

#[test]
fn a_timer_is_no_look_at_a_failure() {
    let told = Count::new();
    let up = told.clone();
    let clock = ManualClock::new();
    let runtime = Runtime::builder()
        .workers(1)
        .clock(clock.clone())
        .on_unhandled_failure(move |_| _ = up.up())
        .build()
        .unwrap();
    let timers = InProcessTimer::new();
    drop(runtime.try_spawn(move || -> Result<(), forebear::Error> {
        let _timer = expires(&timers, "block", SECOND);
        Err(forebear::Error::other("its own"))
    }));
    until(|| told.get() == 1);
}

#[test]
fn many_at_once_expire_and_are_released() {
    on_each_clocked(|runtime, clock| {
        let timers = InProcessTimer::new();
        for round in 0..20_usize {
            let requests: Vec<_> = (0..20)
                .map(|n| {
                    let (timers, time) = (timers.clone(), clock.clone());
                    root(runtime).spawn(move || {
                        for turn in 0..5 {
                            let _timer = expires(&timers, ["a", "b"][turn % 2], SECOND);
                            if (n + turn + round) % 7 == 0 {
                                time.advance(SECOND / 2);
                            }
                            if yield_now().is_err() {
                                return;
                            }
                        }
                    })
                })
                .collect();
            for request in &requests {
                match request.wait() {
                    Ok(()) => {}
                    Err(WaitError::TargetCancelled(CancelReason::Expired)) => {}
                    other => panic!("{other:?}"),
                }
            }
            until(|| runtime.metrics().armed == 0);
        }
        no_trace(runtime, &timers);
        assert!(runtime.run(|| spawn(|| 1).take().unwrap()) == 1);
    });
}
