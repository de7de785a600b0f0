//! Regions with a time limit: `timeout` and `try_timeout`.

#![allow(clippy::unit_arg, reason = "what only waits answers nothing")]

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cancelling::{Gate, asleep, ends_cancelled, on_each_clocked};
use forebear::sync::{Event, Mutex};
use forebear::time::{Clock, now, sleep, timeout, try_timeout};
use forebear::{
    CancelReason, Cancellation, Cancelled, Error, OrUnwind, Request, Runtime, State, WaitError,
    check_cancelled, is_cancelled, join, scope, shield, spawn, yield_now,
};
use support::order::root;
use support::{Come, Flag, Joined, Modes, hold_thread_until, in_both_worlds, not_on, on_each, until};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);
const FOREVER: Duration = Duration::MAX;

type Way = fn(&Request<()>) -> Result<(), Error>;

/// Runs `body` as a root that sleeps in it, and has `limit` pass.
fn passes<T: Send + Sync + 'static>(
    runtime: &Runtime,
    clock: &forebear::time::ManualClock,
    limit: Duration,
    body: impl FnOnce() -> T + Send + 'static,
) -> T {
    let request = root(runtime).spawn(body);
    asleep(&request);
    clock.advance(limit - NANO);
    for _ in 0..5 {
        runtime.run(|| yield_now().unwrap());
    }
    assert_eq!(request.state(), State::Suspended);
    clock.advance(NANO);
    request.take().unwrap()
}

#[test]
fn a_region_that_returns_in_time_answers_what_it_returned() {
    in_both_worlds(|| {
        // It borrows, and what is not `Send` goes in and comes out.
        let mut count = 0;
        let shared = Rc::new(Cell::new(1));
        // In the seeded mode any other time comes when nobody else can go on.
        let out = timeout(FOREVER, || {
            count += 1;
            yield_now().unwrap();
            shared.set(7);
            shared.clone()
        });
        assert_eq!((count, out.unwrap().get()), (1, 7));
        assert_eq!(try_timeout(FOREVER, || Ok("12".parse::<u32>()?)).unwrap(), 12);
    });
}

#[test]
fn waits_inside_end_when_its_limit_comes_and_the_region_says_so() {
    on_each_clocked(|runtime, clock| {
        let (inside, answer, after) = passes(runtime, clock, SECOND, || {
            let inside = Cell::new(None);
            let answer = timeout(SECOND, || inside.set(Some(sleep(FOREVER))));
            // The caller is not concerned.
            (inside.take(), answer, check_cancelled().is_ok() && sleep(Duration::ZERO).is_ok())
        });
        assert!(matches!(inside, Some(Err(Cancelled { .. }))));
        assert!(matches!(answer, Err(WaitError::TimedOut)));
        assert!(after);
        assert_eq!(runtime.metrics().armed, 0);
    });
}

#[test]
fn on_the_machines_own_clock_and_on_a_virtual_one_too() {
    in_both_worlds(|| {
        let start = now();
        let answer = try_timeout(Duration::from_millis(3), || Ok(sleep(FOREVER)?));
        assert!(matches!(answer, Err(WaitError::TimedOut)));
        assert!(now() >= start + Duration::from_millis(3));
    });
}

#[test]
fn every_kind_of_wait_inside_ends() {
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let ways: [Way; 6] = [
            |gate| Ok(*gate.wait()?),
            |gate| Ok(*gate.wait_timeout(FOREVER)?),
            |_| Ok(Event::new().wait()?),
            |gate| {
                let (first, second) = join(|| gate.wait().copied(), || gate.wait().copied());
                Ok(first.and(second)?)
            },
            |gate| {
                scope(|s| drop(s.spawn(|| gate.wait().copied())));
                Ok(())
            },
            |gate| {
                let mutex = Mutex::new(());
                let _held = mutex.lock();
                let closed = gate.clone();
                Ok(spawn(move || closed.wait().copied()).take()??)
            },
        ];
        for way in ways {
            let closed = gate.request();
            let answer = passes(runtime, clock, SECOND, move || try_timeout(SECOND, || way(&closed)));
            assert!(matches!(answer, Err(WaitError::TimedOut)), "{answer:?}");
        }
    });
}

#[test]
fn a_computation_inside_that_asks_is_told() {
    let _not = not_on(Modes::Both, "it holds its worker");
    on_each_clocked(|runtime, clock| {
        let started = Flag::new();
        let up = started.clone();
        let request = root(runtime).spawn(move || {
            let answer = timeout(SECOND, || {
                up.raise();
                hold_thread_until(is_cancelled);
                7
            });
            (matches!(answer, Err(WaitError::TimedOut)), is_cancelled())
        });
        hold_thread_until(|| started.is_up());
        clock.advance(SECOND);
        assert_eq!(request.take().unwrap(), (true, false), "what it returned comes too late");
    });
}

#[test]
fn no_time_runs_nothing() {
    in_both_worlds(|| {
        let dropped = support::Count::new();
        let probe = dropped.probe();
        let answer = timeout(Duration::ZERO, move || drop(probe));
        assert!(matches!(answer, Err(WaitError::TimedOut)));
        assert_eq!(dropped.get(), 1);
        let answer =
            try_timeout(Duration::ZERO, || -> Result<(), Error> { unreachable!("there is no time") });
        assert!(matches!(answer, Err(WaitError::TimedOut)));
    });
}

#[test]
fn of_nested_regions_the_nearest_limit_counts() {
    on_each_clocked(|runtime, clock| {
        // The inner one's.
        let told = passes(runtime, clock, SECOND, || {
            timeout(2 * SECOND, || timeout(SECOND, || sleep(FOREVER)).map(drop)).map(drop)
        });
        assert!(matches!(told, Ok(())));
        let told = passes(runtime, clock, SECOND, || {
            let mut inner = None;
            let outer = timeout(SECOND, || inner = Some(timeout(2 * SECOND, || sleep(FOREVER)).map(drop)));
            (inner, outer)
        });
        // The outer one's: the inner one's caller is cancelled then.
        assert!(matches!(told, (Some(Err(WaitError::Cancelled)), Err(WaitError::TimedOut))), "{told:?}");
        let dues = runtime.run(|| {
            let due = || Request::current().unwrap().deadline().unwrap();
            timeout(SECOND, || (due(), timeout(2 * SECOND, due).unwrap())).unwrap()
        });
        assert_eq!(dues.0, dues.1);
    });
}

#[test]
fn a_deadline_of_the_caller_counts_inside_too() {
    on_each_clocked(|runtime, clock| {
        let (tell, told) = mpsc::channel();
        let request = root(runtime).timeout(SECOND).spawn(move || {
            let answer = try_timeout(2 * SECOND, || Ok(sleep(FOREVER)?));
            tell.send(matches!(answer, Err(WaitError::Cancelled))).unwrap();
        });
        asleep(&request);
        clock.advance(SECOND);
        assert_eq!(told.come(), Ok(true));
        assert_eq!(ends_cancelled(&request), CancelReason::Deadline);
    });
}

#[test]
fn a_caller_that_is_cancelled_is_told_that_first() {
    on_each(|runtime| {
        let (tell, told) = mpsc::channel();
        let request = root(runtime).spawn(move || {
            let answer = try_timeout(FOREVER, || Ok(sleep(FOREVER)?));
            tell.send(matches!(answer, Err(WaitError::Cancelled))).unwrap();
            let answer = timeout(FOREVER, || unreachable!("its caller is cancelled"));
            tell.send(matches!(answer, Err(WaitError::Cancelled))).unwrap();
        });
        asleep(&request);
        assert_eq!(request.cancel(), Cancellation::Marked);
        assert_eq!([told.come(), told.come()], [Ok(true), Ok(true)]);
        assert_eq!(ends_cancelled(&request), CancelReason::Asked);
    });
}

#[test]
fn somebody_who_cancels_the_region_alone_is_told_apart() {
    in_both_worlds(|| {
        let answer = timeout(FOREVER, || {
            let region = Request::current().unwrap();
            assert_eq!(region.name(), "timeout");
            region.abort(CancelReason::Other(7));
            assert!(is_cancelled());
        });
        assert!(matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Other(7)))));
        assert!(!is_cancelled());
    });
}

#[test]
fn what_is_made_inside_has_its_limit_and_may_outlive_it() {
    on_each_clocked(|runtime, clock| {
        let left = runtime.run(|| {
            timeout(SECOND, || {
                let child = Request::builder().own_stack().try_spawn(|| Ok(sleep(FOREVER)?));
                asleep(&child);
                child
            })
            .unwrap()
        });
        assert_eq!(left.deadline(), Some(clock.now() + SECOND));
        clock.advance(SECOND);
        assert_eq!(ends_cancelled(&left), CancelReason::Deadline);
    });
}

#[test]
fn an_error_or_a_panic_of_its_own_is_never_hidden() {
    on_each_clocked(|runtime, clock| {
        // Also if the time was over meanwhile.
        let failed = passes(runtime, clock, SECOND, || {
            try_timeout(SECOND, || {
                let _ = sleep(FOREVER);
                Ok("x".parse::<u32>()?)
            })
        });
        assert!(matches!(failed, Err(WaitError::Failed(_))), "{failed:?}");
        let panicked = passes(runtime, clock, SECOND, || {
            let region = || {
                timeout(SECOND, || {
                    if sleep(FOREVER).is_err() {
                        std::panic::resume_unwind(Box::new(7))
                    }
                })
            };
            let payload = catch_unwind(AssertUnwindSafe(region)).unwrap_err();
            payload.downcast::<i32>().is_ok()
        });
        assert!(panicked);
        let early = runtime.enter(|| try_timeout(SECOND, || Ok("x".parse::<u32>()?)));
        assert!(matches!(early, Err(WaitError::Failed(_))));
        assert_eq!(runtime.metrics().armed, 0);
    });
}

#[test]
fn an_unwind_that_says_that_the_region_is_cancelled_ends_there() {
    on_each_clocked(|runtime, clock| {
        let answer = passes(runtime, clock, SECOND, || timeout(SECOND, || sleep(FOREVER).or_unwind()));
        assert!(matches!(answer, Err(WaitError::TimedOut)));
        // One that says so of something else goes on.
        let through = runtime
            .run(|| forebear::catch(|| timeout(SECOND, || Err::<(), _>(WaitError::Shared).or_unwind())));
        assert!(through.is_err_and(|error| error.downcast_ref::<WaitError>().is_some()));
    });
}

#[test]
fn shields_inside_hold_it_back_and_one_inside_a_shield_counts() {
    on_each_clocked(|runtime, clock| {
        let mut gate = Gate::new(runtime);
        let closed = gate.request();
        let request = root(runtime).spawn(move || {
            let mut kept = None;
            let answer = timeout(SECOND, || kept = Some(shield(|| closed.wait().copied())));
            (kept, answer)
        });
        asleep(&request);
        clock.advance(SECOND);
        for _ in 0..5 {
            runtime.run(|| yield_now().unwrap());
        }
        assert_eq!(request.state(), State::Suspended);
        gate.open();
        assert!(matches!(request.take().unwrap(), (Some(Ok(())), Err(WaitError::TimedOut))));
        // A cancelled request cleans up, but not for ever.
        let (tell, told) = mpsc::channel();
        let request = root(runtime).spawn(move || {
            Request::current().unwrap().abort(CancelReason::Asked);
            let answer = shield(|| try_timeout(SECOND, || Ok(sleep(FOREVER)?)));
            tell.send(matches!(answer, Err(WaitError::TimedOut))).unwrap();
        });
        asleep(&request);
        clock.advance(SECOND);
        assert_eq!(told.come(), Ok(true));
        assert_eq!(ends_cancelled(&request), CancelReason::Asked);
    });
}

#[test]
fn a_plain_thread_has_regions_too() {
    on_each_clocked(|runtime, clock| {
        let entered = runtime.clone();
        let started = Flag::new();
        let up = started.clone();
        let thread = thread::spawn(move || {
            let region = || {
                up.raise();
                sleep(FOREVER).is_err()
            };
            entered.enter(|| matches!(timeout(SECOND, region), Err(WaitError::TimedOut)))
        });
        started.wait();
        clock.advance(SECOND);
        assert!(thread.joined().unwrap());
    });
}

#[test]
fn a_runtime_that_is_entered_inside_is_still_the_one_meant() {
    let _not = not_on(Modes::Both, "it has runtimes with threads");
    on_each(|runtime| {
        let other = Runtime::builder().workers(1).name("other").build().unwrap();
        runtime.run(|| {
            other.enter(|| {
                let worker = timeout(SECOND, || spawn(|| thread::current().name().map(str::to_owned)).take());
                let worker = worker.unwrap().unwrap();
                assert!(worker.is_some_and(|name| name.starts_with("other")));
                assert!(timeout(SECOND, || Request::current().unwrap().parent().is_some()).unwrap());
            });
        });
    });
}

#[test]
fn regions_that_end_in_time_leave_no_trace() {
    in_both_worlds(|| {
        let before = Runtime::current().metrics().armed;
        for _ in 0..100 {
            assert_eq!(timeout(60 * SECOND, || 7).unwrap(), 7);
        }
        assert_eq!(Runtime::current().metrics().armed, before);
    });
}

#[test]
fn limit_and_end_at_once_leave_nobody_behind() {
    on_each_clocked(|runtime, clock| {
        for round in 0..60 {
            let gate = Gate::new(runtime);
            let closed = gate.request();
            let request = root(runtime).spawn(move || try_timeout(SECOND, || Ok(*closed.wait()?)));
            asleep(&request);
            thread::scope(|threads| {
                let time = threads.spawn(|| _ = clock.advance(SECOND));
                let end = threads.spawn(move || {
                    (0..round).for_each(|_| std::hint::spin_loop());
                    drop(gate);
                });
                support::join_all([time, end]);
            });
            let answer = request.take().unwrap();
            assert!(matches!(answer, Ok(()) | Err(WaitError::TimedOut)), "{answer:?}");
            until(|| runtime.metrics().armed == 0);
        }
    });
}
