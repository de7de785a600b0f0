//! What a deadline does when it comes, and that it leaves no trace when it does not.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use forebear::time::{Clock, now, sleep};
use forebear::{
    CancelReason, Cancellation, Request, RequestBuilder, State, WaitError, check_cancelled, is_cancelled,
    shield, yield_now,
};

use super::cancelling::{Gate, asleep, ends_cancelled, on_each_clocked};
use super::support::order::root;
use super::support::{
    Come, Count, Flag, Joined, Modes, hold_thread_until, hold_workers, not_on, on_each, until,
};
use super::{NANO, SECOND, armed, counts, limited, settle, sleeps};

// ---- what a deadline does -------------------------------------------------------------------------------------------

#[test]
fn a_request_is_aborted_when_its_deadline_comes_and_not_before() {
    on_each_clocked(|runtime, clock| {
        for describe in [
            |builder: RequestBuilder, _| builder.timeout(SECOND),
            |builder: RequestBuilder, now| builder.deadline(now + SECOND),
        ] {
            let request = sleeps(&describe(root(runtime), clock.now()));
            assert_eq!(request.deadline(), Some(clock.now() + SECOND));
            clock.advance(SECOND - NANO);
            settle(runtime);
            assert_eq!(request.state(), State::Suspended);
            clock.advance(NANO);
            assert_eq!(ends_cancelled(&request), CancelReason::Deadline);
        }
    });
}

#[test]
fn on_the_machines_own_clock_and_on_a_virtual_one_too() {
    on_each(|runtime| {
        let start = runtime.enter(now);
        let request = root(runtime).timeout(Duration::from_millis(3)).try_spawn(|| Ok(sleep(Duration::MAX)?));
        assert_eq!(ends_cancelled(&request), CancelReason::Deadline);
        assert!(runtime.enter(now) >= start + Duration::from_millis(3));
    });
}

#[test]
fn it_is_aborted_whoever_waits_for_it() {
    on_each_clocked(|runtime, clock| {
        let request = sleeps(&limited(runtime));
        let target = request.clone();
        let inside = root(runtime).spawn(move || target.wait().copied());
        asleep(&inside);
        let target = request.clone();
        let outside = thread::spawn(move || target.wait().copied());
        assert_eq!(request.cancel(), Cancellation::Vetoed);
        clock.advance(SECOND);
        let told = |answer| matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Deadline)));
        assert!(told(inside.take().unwrap()) && told(outside.joined().unwrap()));
    });
}

#[test]
fn what_is_past_or_at_once_never_runs() {
    on_each_clocked(|runtime, clock| {
        let past = clock.now();
        clock.advance(SECOND);
        for builder in [root(runtime).timeout(Duration::ZERO), root(runtime).deadline(past)] {
            let (ended, dropped) = (Count::new(), Count::new());
            let (up, probe) = (ended.clone(), dropped.probe());
            let request = builder.build(move || {
                drop(probe);
                unreachable!("its time was over")
            });
            request.on_cancelled(move || _ = up.up());
            assert_eq!((request.state(), ended.get(), dropped.get()), (State::Cancelled, 1, 1));
            let submitted = builder.spawn(|| unreachable!("its time was over"));
            assert_eq!(ends_cancelled(&submitted), CancelReason::Deadline);
            assert!(request.deadline().is_some_and(|due| due <= clock.now()));
        }
    });
}

#[test]
fn for_ever_is_no_limit() {
    on_each_clocked(|runtime, clock| {
        let request = sleeps(&root(runtime).timeout(Duration::MAX));
        assert_eq!(request.deadline(), None);
        let far = sleeps(&root(runtime).timeout(Duration::from_secs(1 << 40)));
        clock.advance(Duration::from_secs(1 << 30));
        settle(runtime);
        assert_eq!((request.state(), far.state()), (State::Suspended, State::Suspended));
        clock.advance(Duration::from_secs(1 << 40));
        assert_eq!(ends_cancelled(&far), CancelReason::Deadline);
        assert_eq!(request.cancel(), Cancellation::Marked);
        ends_cancelled(&request);
    });
}

#[test]
fn of_two_the_nearer_one_counts() {
    on_each_clocked(|runtime, clock| {
        let start = clock.now();
        for (at, after, first) in [(1, 2, 1), (3, 2, 2)] {
            let request = root(runtime).deadline(start + at * SECOND).timeout(after * SECOND).build(|| ());
            assert_eq!(request.deadline(), Some(start + first * SECOND));
        }
    });
}

#[test]
fn it_counts_from_when_the_request_is_made() {
    on_each_clocked(|runtime, clock| {
        let builder = limited(runtime);
        clock.advance(SECOND);
        let request = builder.build(|| ());
        assert_eq!(request.deadline(), Some(clock.now() + SECOND));
        clock.advance(SECOND / 2);
        assert_eq!(builder.build(|| ()).deadline(), Some(clock.now() + SECOND));
        assert!(request.wait().is_ok());
    });
}

#[test]
fn what_has_not_started_ends_where_it_lies_and_a_worker_calls_back() {
    let _not = not_on(Modes::Synchronous, "it holds its workers");
    on_each_clocked(|runtime, clock| {
        let (tell, told) = mpsc::channel();
        let probes = Count::new();
        let make = |builder: &RequestBuilder, tell: mpsc::Sender<bool>| {
            let probe = probes.probe();
            let request = builder.build(move || drop(probe));
            let clocks = thread::current().id();
            request.on_cancelled(move || tell.send(thread::current().id() == clocks).unwrap());
            request
        };
        let held = hold_workers(runtime);
        let new = make(&limited(runtime), tell.clone());
        let queued = make(&limited(runtime), tell);
        queued.submit();
        clock.advance(SECOND);
        assert!(new.is_cancelled() && queued.is_cancelled());
        // The thread that moves the clock runs no code of theirs.
        assert!(probes.get() == 0 && !new.is_done() && !queued.is_done());
        held.release();
        assert_eq!(told.all().collect::<Vec<_>>(), [false, false]);
        assert_eq!(ends_cancelled(&new), CancelReason::Deadline);
        assert_eq!(ends_cancelled(&queued), CancelReason::Deadline);
        assert_eq!(probes.get(), 2);
    });
}

#[test]
fn an_unsubmitted_one_that_nobody_touches_ends_too() {
    on_each_clocked(|runtime, clock| {
        let request = limited(runtime).build(|| unreachable!("its time was over"));
        clock.advance(SECOND);
        until(|| request.is_done());
        assert_eq!(ends_cancelled(&request), CancelReason::Deadline);
    });
}

#[test]
fn a_private_child_that_has_not_started_ends_at_its_own_deadline() {
    let _not = not_on(Modes::Both, "it holds its worker");
    on_each_clocked(|runtime, clock| {
        let (go, started) = (Flag::new(), Flag::new());
        let (may, up) = (go.clone(), started.clone());
        let parent = root(runtime).spawn(move || {
            // Submitted, and still in the worker's private queue if nobody is hungry.
            let child = Request::builder().timeout(SECOND).spawn(|| yield_now().is_ok());
            up.raise();
            hold_thread_until(|| may.is_up());
            child.wait().copied()
        });
        hold_thread_until(|| started.is_up());
        clock.advance(SECOND);
        go.raise();
        let answer = parent.take().unwrap();
        assert!(matches!(answer, Ok(true) | Err(WaitError::TargetCancelled(CancelReason::Deadline))));
    });
}

#[test]
fn a_request_may_move_the_clock_to_the_deadline_of_its_own_child() {
    on_each_clocked(|runtime, clock| {
        let time = clock.clone();
        let told = runtime.run(move || {
            let (new, queued) = (Count::new(), Count::new());
            let child = |dropped: &Count| {
                let probe = dropped.probe();
                Request::builder().own_stack().timeout(SECOND).build(move || drop(probe))
            };
            let [new, queued] = [child(&new), child(&queued)];
            queued.submit();
            time.advance(SECOND);
            [new.wait().copied(), queued.wait().copied()]
        });
        let ended = |answer: &Result<(), WaitError>| {
            matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Deadline)))
        };
        // What was queued may have run.
        assert!(ended(&told[0]) && (ended(&told[1]) || told[1].is_ok()));
    });
}

#[test]
fn a_computation_that_asks_is_told() {
    let _not = not_on(Modes::Both, "it holds its worker");
    on_each_clocked(|runtime, clock| {
        // Every worker is stuck in one.
        let started = Count::new();
        let stuck: Vec<_> = (0..runtime.workers())
            .map(|_| {
                let started = started.clone();
                limited(runtime).spawn(move || {
                    started.up();
                    hold_thread_until(is_cancelled);
                    assert!(check_cancelled().is_err());
                })
            })
            .collect();
        hold_thread_until(|| started.get() == stuck.len());
        clock.advance(SECOND);
        stuck.iter().for_each(|stuck| assert_eq!(ends_cancelled(stuck), CancelReason::Deadline));
    });
}

#[test]
fn what_it_returns_after_that_is_cancelled_and_an_error_of_its_own_is_a_failure() {
    let _not = not_on(Modes::Both, "it holds its worker");
    on_each_clocked(|runtime, clock| {
        let over = clock.now() + SECOND;
        let value = limited(runtime).spawn(|| hold_thread_until(is_cancelled));
        let started = Flag::new();
        let up = started.clone();
        let error = limited(runtime).try_spawn(move || -> Result<(), forebear::Error> {
            up.raise();
            hold_thread_until(is_cancelled);
            Ok("x".parse::<u32>().map(drop)?)
        });
        until(|| clock.now() >= over || started.is_up() || runtime.workers() == 1);
        clock.set(over);
        assert_eq!(ends_cancelled(&value), CancelReason::Deadline);
        match error.wait() {
            Err(WaitError::Failed(_)) => assert!(started.is_up()),
            Err(WaitError::TargetCancelled(CancelReason::Deadline)) => assert!(!started.is_up()),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_shielded_region_holds_it_back() {
    on_each_clocked(|runtime, clock| {
        let mut gate = Gate::new(runtime);
        let (closed, (tell, told)) = (gate.request(), mpsc::channel());
        let request = limited(runtime).spawn(move || {
            let inside = shield(|| closed.wait().copied());
            tell.send((inside.is_ok(), check_cancelled().is_err())).unwrap();
        });
        asleep(&request);
        clock.advance(SECOND);
        settle(runtime);
        assert!(request.is_cancelled() && request.state() == State::Suspended);
        gate.open();
        assert_eq!(told.come(), Ok((true, true)));
        assert_eq!(ends_cancelled(&request), CancelReason::Deadline);
    });
}

#[test]
fn the_first_mark_keeps_its_reason() {
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let request = limited(runtime).spawn(move || shield(|| closed.wait().copied()));
        asleep(&request);
        assert_eq!(request.abort(CancelReason::Other(7)), Cancellation::Marked);
        clock.advance(SECOND);
        drop(gate);
        assert_eq!(ends_cancelled(&request), CancelReason::Other(7));
    });
}

#[test]
fn a_foreign_thread_that_runs_it_is_told() {
    on_each_clocked(|runtime, clock| {
        let started = Flag::new();
        let up = started.clone();
        let request = Request::builder().on(runtime).timeout(SECOND).build(move || {
            up.raise();
            sleep(Duration::MAX).is_err()
        });
        let runs = request.clone();
        let thread = thread::spawn(move || drop(runs.wait().copied()));
        started.wait();
        clock.advance(SECOND);
        thread.joined().unwrap();
        assert_eq!(ends_cancelled(&request), CancelReason::Deadline);
    });
}

// ---- no trace -------------------------------------------------------------------------------------------------------

#[test]
fn one_that_ends_before_its_deadline_leaves_no_trace() {
    on_each_clocked(|runtime, clock| {
        let plain = root(runtime).spawn(|| 1);
        plain.wait().unwrap();
        let before = counts(&plain.to_untyped());
        for round in 0..3 {
            let builder = limited(runtime);
            let value = builder.spawn(|| 1);
            value.wait().unwrap();
            let called = builder.build(|| 1);
            called.on_finished(|one| assert_eq!(*one, 1));
            called.wait().unwrap();
            let failed = builder.spawn(|| -> u32 { std::panic::resume_unwind(Box::new(1)) });
            assert!(failed.wait().is_err());
            let cancelled = builder.build(|| 1);
            cancelled.cancel();
            for over in [&value, &called, &failed, &cancelled] {
                assert_eq!(counts(&over.to_untyped()), before, "round {round}: {over:?}");
            }
            drop(builder.build(|| 1));
            assert_eq!(armed(runtime), 0, "round {round}");
            clock.advance(2 * SECOND);
            assert!(value.is_done() && !value.is_cancelled());
            assert_eq!(value.take().unwrap(), 1);
        }
    });
}
