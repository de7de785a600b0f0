//! Waits with a limit, on a clock that moves by hand: what they answer, and that they leave no trace.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cancelling::{Gate, asleep, ends_cancelled, on_each_clocked};
use forebear::time::ManualClock;
use forebear::{
    AnyRequest, Cancellation, Request, Runtime, State, WaitError, join, shield, spawn, yield_now,
};
use support::order::root;
use support::{Come, Flag, Joined, Random, hold_workers, in_both_worlds, on_each, until};

const SECOND: Duration = Duration::from_secs(1);

/// A root that waits for `target` for so long, on a stack of its own. Returns when it sleeps.
fn timed(runtime: &Runtime, target: &Request<()>, limit: Duration) -> Request<Result<(), WaitError>> {
    let target = target.clone();
    let waiter = root(runtime).spawn(move || target.wait_timeout(limit).copied());
    asleep(&waiter);
    waiter
}

/// A foreign thread that waits for `target` for so long. It may not have begun to when this returns.
fn timed_thread(target: &Request<()>, limit: Duration) -> thread::JoinHandle<Result<(), WaitError>> {
    let target = target.to_untyped();
    thread::spawn(move || target.wait_timeout(limit))
}

/// What the two counts of a request are, as its description tells.
fn counts(request: &AnyRequest) -> String {
    let text = format!("{request:?}");
    text[text.find("handles").expect("it tells them")..].to_owned()
}

// ---- what they answer ---------------------------------------------------------------------------------------------------

#[test]
fn a_wait_times_out_when_its_time_has_come_and_not_before() {
    on_each_clocked(|runtime, clock| {
        let mut gate = Gate::new(runtime);
        let target = gate.request();
        let waiters: Vec<_> = [3, 1, 2].map(|n| (n, timed(runtime, &target, n * SECOND))).into();
        for now in 1..=3 {
            clock.advance(SECOND - Duration::from_nanos(1));
            for _ in 0..5 {
                runtime.run(|| yield_now().unwrap());
            }
            assert!(waiters.iter().all(|(n, waiter)| *n < now || waiter.state() == State::Suspended));
            clock.advance(Duration::from_nanos(1));
            let (_, waiter) = waiters.iter().find(|(n, _)| *n == now).unwrap();
            assert!(matches!(waiter.wait().unwrap(), Err(WaitError::TimedOut)));
        }
        gate.open();
        assert!(target.wait().is_ok());
    });
}

#[test]
fn a_foreign_threads_wait_times_out() {
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let waiter = timed_thread(&gate.request(), SECOND);
        until(|| {
            clock.advance(SECOND);
            waiter.is_finished()
        });
        assert!(matches!(waiter.joined().unwrap(), Err(WaitError::TimedOut)));
    });
}

#[test]
fn on_the_machines_own_clock_too() {
    in_both_worlds(|| {
        let free = Flag::new();
        let may = free.clone();
        let target = Request::builder().own_stack().build(move || {
            until(|| may.is_up());
            7
        });
        assert!(matches!(target.wait_timeout(Duration::from_millis(2)), Err(WaitError::TimedOut)));
        assert!(matches!(target.to_untyped().wait_timeout(Duration::ZERO), Err(WaitError::TimedOut)));
        free.raise();
        assert_eq!(target.wait_timeout(Duration::MAX).unwrap(), &7);
    });
}

#[test]
fn a_target_that_ends_in_time_is_told_as_by_wait() {
    on_each_clocked(|runtime, clock| {
        let mut gate = Gate::new(runtime);
        let waiters: Vec<_> = (0..3).map(|_| timed(runtime, &gate.request(), SECOND)).collect();
        let foreign = timed_thread(&gate.request(), SECOND);
        clock.advance(SECOND / 2);
        gate.open();
        waiters.into_iter().for_each(|waiter| waiter.take().unwrap().unwrap());
        foreign.joined().unwrap().unwrap();
        // Failures and cancellations likewise.
        let bad = root(runtime).build(|| -> () { std::panic::resume_unwind(Box::new(1)) });
        assert!(matches!(bad.wait_timeout(SECOND), Err(WaitError::Failed(failure)) if failure.is_panic()));
        let gone = root(runtime).build(|| ());
        gone.cancel();
        assert!(matches!(gone.wait_timeout(SECOND), Err(WaitError::TargetCancelled(_))));
        // The time is long over by then.
        clock.advance(100 * SECOND);
        assert!(matches!(bad.wait_timeout(SECOND), Err(WaitError::Failed(_))));
    });
}

#[test]
fn without_any_time_it_submits_and_answers_what_there_is() {
    let _not = support::not_on(support::Modes::Synchronous, "it holds its workers");
    on_each_clocked(|runtime, _| {
        let held = hold_workers(runtime);
        let request = runtime.enter(|| Request::new(|| 7));
        assert!(matches!(request.wait_timeout(Duration::ZERO), Err(WaitError::TimedOut)));
        assert_eq!(request.state(), State::Queued);
        held.release();
        until(|| request.is_done());
        assert_eq!(request.wait_timeout(Duration::ZERO).unwrap(), &7);
        let inside = runtime.run(|| {
            let later = Request::builder().own_stack().build(|| 1);
            let early = later.wait_timeout(Duration::ZERO).copied();
            (early, later.take().unwrap())
        });
        assert!(matches!(inside, (Err(WaitError::TimedOut) | Ok(1), 1)));
    });
}

#[test]
fn for_ever_is_no_limit() {
    on_each_clocked(|runtime, clock| {
        let mut gate = Gate::new(runtime);
        let waiter = timed(runtime, &gate.request(), Duration::MAX);
        clock.advance(Duration::from_secs(1 << 40));
        clock.advance(Duration::MAX);
        for _ in 0..5 {
            runtime.run(|| yield_now().unwrap());
        }
        assert_eq!(waiter.state(), State::Suspended);
        gate.open();
        waiter.take().unwrap().unwrap();
    });
}

#[test]
fn a_wait_with_a_limit_never_runs_its_target_here() {
    let _not = support::not_on(support::Modes::Synchronous, "a submit runs the target first");
    on_each_clocked(|runtime, _| {
        let target = root(runtime).spawn(|| {
            let target = Request::new(Request::current);
            let any = target.to_untyped();
            let ran_as = target.wait_timeout(SECOND).unwrap().clone();
            assert!(ran_as == Some(any));
        });
        target.watch().unwrap();
        assert_eq!(runtime.metrics().direct, 0);
        // Nor in a foreign thread.
        let me = thread::current().id();
        let target = runtime.enter(|| Request::new(move || thread::current().id() == me));
        assert_eq!(target.wait_timeout(SECOND).unwrap(), &false);
    });
}

/// If several apply: the waiter's own cancel, then the target's outcome, then the time.
#[test]
fn of_several_answers_the_cancel_is_told_first_then_the_outcome_then_the_time() {
    let _not = support::not_on(support::Modes::Synchronous, "it holds its workers");
    on_each_clocked(|runtime, clock| {
        let mut gate = Gate::new(runtime);
        let target = gate.request();
        let [late, told, stopped] = [(); 3].map(|()| timed(runtime, &target, SECOND));
        let shut = Gate::new(runtime);
        let outlived = timed(runtime, &shut.request(), SECOND);
        // All of this happens before any of them can go on.
        let held = hold_workers(runtime);
        clock.advance(SECOND);
        gate.open();
        stopped.cancel();
        held.release();
        assert!(matches!(outlived.take().unwrap(), Err(WaitError::TimedOut)));
        assert!(told.take().unwrap().is_ok() && late.take().unwrap().is_ok());
        ends_cancelled(&stopped);
    });
}

// ---- no trace -----------------------------------------------------------------------------------------------------------

#[test]
fn a_wait_that_timed_out_leaves_no_trace() {
    on_each_clocked(|runtime, clock| {
        let mut gate = Gate::new(runtime);
        let closed = gate.request();
        let target = root(runtime).spawn(move || closed.wait().copied().unwrap());
        asleep(&target);
        let any = target.to_untyped();
        let before = counts(&any);
        for round in 0..10 {
            let waiters: Vec<_> = (0..5).map(|_| timed(runtime, &target, SECOND)).collect();
            let watcher = any.clone();
            let foreign = thread::spawn(move || watcher.wait_timeout(SECOND));
            until(|| {
                clock.advance(SECOND);
                foreign.is_finished()
            });
            for waiter in waiters {
                assert!(matches!(waiter.take().unwrap(), Err(WaitError::TimedOut)));
            }
            assert!(matches!(foreign.joined().unwrap(), Err(WaitError::TimedOut)));
            assert_eq!(counts(&any), before, "round {round}");
            assert!(!target.is_cancelled());
        }
        // It can be waited for, and taken, as ever.
        gate.open();
        target.wait().unwrap();
        target.take().unwrap();
    });
}

/// In the original the mark of a foreign wait was for ever.
#[test]
fn what_a_wait_gave_up_can_be_cancelled() {
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let target = root(runtime).spawn(move || drop(closed.wait()));
        asleep(&target);
        let inside = timed(runtime, &target, SECOND);
        let outside = timed_thread(&target, SECOND);
        assert_eq!(inside.state(), State::Suspended);
        until(|| {
            clock.advance(SECOND);
            outside.is_finished()
        });
        assert!(matches!(inside.take().unwrap(), Err(WaitError::TimedOut)));
        assert!(outside.joined().unwrap().is_err());
        assert_eq!(target.cancel(), Cancellation::Marked);
        ends_cancelled(&target);
    });
}

/// A deadline belongs to one wait: whatever ended that, the next waits have nothing of it.
#[test]
fn the_time_of_a_wait_that_ended_otherwise_means_nothing_to_the_next() {
    on_each_clocked(|runtime, clock| {
        let (mut first, mut second) = (Gate::new(runtime), Gate::new(runtime));
        let (one, two) = (first.request(), second.request());
        let (tell, told) = mpsc::channel();
        // Its first wait ends by the target, or by a cancel; its second has no limit.
        let [by_target, by_cancel] = [(); 2].map(|()| {
            let (one, two, tell) = (one.clone(), two.clone(), tell.clone());
            let request = root(runtime).spawn(move || {
                let began = one.wait_timeout(SECOND).is_ok();
                tell.send(()).unwrap();
                (began, shield(|| two.wait().copied()).is_ok())
            });
            asleep(&request);
            request
        });
        by_cancel.cancel();
        told.come().unwrap();
        first.open();
        told.come().unwrap();
        asleep(&by_target);
        asleep(&by_cancel);
        clock.advance(100 * SECOND);
        for _ in 0..10 {
            runtime.run(|| yield_now().unwrap());
        }
        assert_eq!((by_target.state(), by_cancel.state()), (State::Suspended, State::Suspended));
        second.open();
        assert_eq!(by_target.take().unwrap(), (true, true));
        ends_cancelled(&by_cancel);
    });
}

#[test]
fn arms_and_children_wait_with_limits_of_their_own() {
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let (a, b, c) = (gate.request(), gate.request(), gate.request());
        let waiting = root(runtime).spawn(move || {
            let child = Request::builder().own_stack().spawn(move || c.wait_timeout(3 * SECOND).copied());
            let arms = join(|| a.wait_timeout(SECOND).copied(), || b.wait_timeout(2 * SECOND).copied());
            (arms, child.take().unwrap())
        });
        until(|| {
            clock.advance(SECOND);
            waiting.is_done()
        });
        let answer = waiting.take().unwrap();
        let ((Err(WaitError::TimedOut), Err(WaitError::TimedOut)), Err(WaitError::TimedOut)) = answer else {
            panic!("{answer:?}")
        };
    });
}

// ---- races --------------------------------------------------------------------------------------------------------------

/// Whichever comes first, each wait returns, with an answer that fits.
#[test]
fn time_end_and_cancel_at_once_leave_nobody_behind() {
    on_each_clocked(|runtime, clock| {
        for round in 0..60 {
            let mut random = Random::new(round);
            let gate = Gate::new(runtime);
            let target = gate.request();
            let waiters: Vec<_> = (0..8).map(|n| timed(runtime, &target, (n % 3 + 1) * SECOND)).collect();
            let chosen: Vec<_> = waiters.iter().filter(|_| random.below(3) == 0).cloned().collect();
            let start = std::sync::Barrier::new(3);
            let turns = [(); 3].map(|()| random.below(50));
            thread::scope(|threads| {
                let start = &start;
                let begin = move |turns| {
                    start.wait();
                    (0..turns).for_each(|_| std::hint::spin_loop());
                };
                let (mut gate, chosen) = (gate, &chosen);
                let time = threads.spawn(move || {
                    begin(turns[0]);
                    clock.advance(SECOND);
                    clock.advance(SECOND);
                });
                let end = threads.spawn(move || {
                    begin(turns[1]);
                    gate.open();
                });
                let cancels = threads.spawn(move || {
                    begin(turns[2]);
                    chosen.iter().for_each(|waiter| _ = waiter.cancel());
                });
                support::join_all([time, end, cancels]);
            });
            for waiter in waiters {
                match waiter.watch() {
                    Ok(Ok(()) | Err(WaitError::TimedOut)) => assert!(!waiter.is_cancelled()),
                    Err(WaitError::TargetCancelled(_)) => assert!(waiter.is_cancelled()),
                    other => panic!("{other:?}"),
                }
            }
        }
    });
}

#[test]
fn many_sleepers_wake_each_at_its_time() {
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let target = gate.request();
        let sleepers: Vec<_> = (0..2_000_u32)
            .map(|n| {
                let (target, n) = (target.clone(), n * 7 % 100);
                let waiter = root(runtime).spawn(move || (n, target.wait_timeout((n + 1) * SECOND).is_err()));
                asleep(&waiter);
                waiter
            })
            .collect();
        for now in 0..100 {
            clock.advance(SECOND);
            until(|| sleepers.iter().enumerate().all(|(n, s)| n as u32 * 7 % 100 > now || s.is_done()));
            let early = sleepers.iter().enumerate().any(|(n, s)| n as u32 * 7 % 100 > now && s.is_done());
            assert!(!early, "somebody woke before its time");
        }
        assert!(sleepers.into_iter().all(|sleeper| sleeper.take().unwrap().1));
    });
}

/// The runtime of the clock goes while a foreign thread waits by it.
#[test]
fn runtimes_with_clocks_of_their_own_do_not_disturb_each_other() {
    let _not = support::not_on(support::Modes::Both, "it holds its workers");
    on_each(|runtime| {
        let clock = ManualClock::new();
        let other = Runtime::builder().workers(1).clock(clock.clone()).build().unwrap();
        let mut gate = Gate::new(&other);
        let slow = timed(&other, &gate.request(), SECOND);
        // By the clock of the target's runtime, though it waits elsewhere.
        let across = timed(runtime, &gate.request(), SECOND);
        let held = hold_workers(runtime);
        assert_eq!((slow.state(), across.state()), (State::Suspended, State::Suspended));
        clock.advance(SECOND);
        held.release();
        assert!(matches!(slow.take().unwrap(), Err(WaitError::TimedOut)));
        assert!(matches!(across.take().unwrap(), Err(WaitError::TimedOut)));
        gate.open();
        let ran = runtime.run(|| spawn(|| 1).wait_timeout(Duration::MAX).copied().unwrap());
        assert_eq!(ran, 1);
    });
}
