//! Cancelling: what `cancel` and `abort` do to the request itself, and what they answer.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cancelling::{Gate, asleep, ends_cancelled, sleeper};
use forebear::time::timeout;
use forebear::{
    CancelReason, Cancellation, Outcome, Request, State, WaitError, cancel_reason, check_cancelled,
    is_cancelled, join, shield, spawn, try_spawn, yield_now,
};
use support::order::root;
use support::{
    Come, Count, Flag, Joined, hold_thread_until, hold_workers, in_both_worlds, inside_each, on_each, until,
};

// ---- before it has started ----------------------------------------------------------------------------------------------

#[test]
fn cancelled_before_it_is_submitted_it_ends_there_and_then() {
    in_both_worlds(|| {
        let (drops, told) = (Count::new(), Count::new());
        let probe = drops.probe();
        let request = Request::new(move || drop(probe));
        let up = told.clone();
        request.on_cancelled(move || _ = up.up());
        assert_eq!(request.cancel(), Cancellation::Marked);
        assert_eq!((drops.get(), told.get(), request.state()), (1, 1, State::Cancelled));
        request.submit();
        assert_eq!(ends_cancelled(&request), CancelReason::Asked);
    });
}

#[test]
fn cancelled_while_queued_it_ends_there_and_then() {
    let _not = support::not_on(support::Modes::Both, "it holds its workers");
    on_each(|runtime| {
        let held = hold_workers(runtime);
        let drops = Count::new();
        let requests: Vec<_> = (0..50)
            .map(|_| {
                let probe = drops.probe();
                runtime.spawn(move || -> u32 { unreachable!("{probe:?}") })
            })
            .collect();
        for (n, request) in requests.iter().enumerate() {
            assert_eq!(request.state(), State::Queued);
            assert_eq!(request.cancel(), Cancellation::Marked);
            assert_eq!((drops.get(), request.state()), (n + 1, State::Cancelled));
            assert_eq!(ends_cancelled(request), CancelReason::Asked);
        }
        held.release();
        // The queue, which they never left, goes on.
        assert_eq!(runtime.run(|| 7), 7);
    });
}

#[test]
fn cancelled_in_its_makers_private_list_it_ends_there_and_then() {
    inside_each(|| {
        let drops = Count::new();
        let probe = drops.probe();
        let request = Request::builder().build(|| ());
        drop(request);
        let child = spawn(move || drop(probe));
        let before = drops.get();
        if child.cancel() == Cancellation::Marked && child.is_done() {
            assert_eq!(drops.get(), before + 1);
            ends_cancelled(&child);
        }
        drop(child);
        until(|| drops.get() == 1);
        // Whoever took it first, it is one of the two: on one worker nobody else can have.
        let kept: Vec<_> = (0..10).map(|n| spawn(move || n)).collect();
        let gone: Vec<_> = (0..10).map(|n| spawn(move || n)).collect();
        gone.iter().rev().for_each(|request| _ = request.cancel());
        let sum: u32 = kept.into_iter().map(|request| request.take().unwrap()).sum();
        assert_eq!(sum, 45, "the rest of the list is whole");
        gone.iter().for_each(|request| until(|| request.is_done()));
    });
}

#[test]
fn its_callbacks_are_called_by_who_cancels_it_before_cancel_returns() {
    in_both_worlds(|| {
        let here = thread::current().id();
        let (told, request) = (mpsc::channel(), Request::new(|| ()));
        let tell = |what: &'static str| {
            let tell = told.0.clone();
            move || tell.send((what, thread::current().id())).unwrap()
        };
        let [finished, first, failed, done, second, late] =
            ["finished", "first", "failed", "done", "second", "late"].map(tell);
        request
            .on_finished(move |()| finished())
            .on_cancelled(first)
            .on_failed(move |_| failed())
            .on_done(move |how| {
                if matches!(how, Outcome::Cancelled(CancelReason::Asked)) {
                    done();
                }
            })
            .on_cancelled(second);
        request.cancel();
        let order: Vec<_> = told.1.try_iter().collect();
        assert_eq!(order, [("first", here), ("second", here), ("done", here)]);
        // Later ones at once, if it is theirs.
        request.on_finished(|()| unreachable!()).on_failed(|_| unreachable!()).on_cancelled(late);
        assert_eq!(told.1.try_iter().collect::<Vec<_>>(), [("late", here)]);
    });
}

#[test]
fn an_unsubmitted_request_whose_last_handle_goes_tells_its_callbacks_it_was_cancelled() {
    in_both_worlds(|| {
        let told = Count::new();
        let up = told.clone();
        let request = Request::new(|| ());
        request.on_cancelled(move || _ = up.up()).on_finished(|()| unreachable!());
        drop(request);
        assert_eq!(told.get(), 1);
    });
}

// ---- while it runs ------------------------------------------------------------------------------------------------------

#[test]
fn a_suspended_request_wakes_at_once_and_its_wait_answers_cancelled() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let sleeper = sleeper(runtime, &gate);
        let told = sleeper.to_untyped();
        let seen = Flag::new();
        let up = seen.clone();
        sleeper.on_cancelled(move || up.raise());
        assert!(!sleeper.is_cancelled());
        assert_eq!(sleeper.cancel(), Cancellation::Marked);
        assert!(sleeper.is_cancelled() && told.is_cancelled());
        // The gate is shut: nothing but the cancel can have ended this.
        assert_eq!(ends_cancelled(&sleeper), CancelReason::Asked);
        assert!(seen.is_up());
    });
}

#[test]
fn d4_a_suspended_request_is_cancelled_though_it_sleeps_deep_down_on_a_busy_worker() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let free = Flag::new();
        let busy: Vec<_> = (0..3 * runtime.workers())
            .map(|_| {
                let free = free.clone();
                root(runtime).spawn(move || free.wait())
            })
            .collect();
        let sleepers: Vec<_> = (0..20).map(|_| sleeper(runtime, &gate)).collect();
        sleepers.iter().for_each(|sleeper| _ = sleeper.cancel());
        sleepers.iter().for_each(|sleeper| _ = ends_cancelled(sleeper));
        free.raise();
        busy.iter().for_each(|busy| busy.wait().copied().unwrap());
    });
}

#[test]
fn one_that_never_waits_runs_to_its_end_and_its_value_is_dropped() {
    let _not = support::not_on(support::Modes::Both, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        let (drops, started, free) = (Count::new(), Flag::new(), Flag::new());
        let probe = drops.probe();
        let (up, may) = (started.clone(), free.clone());
        let request = root(runtime).spawn(move || {
            up.raise();
            hold_thread_until(|| may.is_up());
            probe
        });
        started.wait();
        assert_eq!(request.cancel(), Cancellation::Marked);
        assert_eq!(request.state(), State::Running);
        assert_eq!(drops.get(), 0);
        free.raise();
        ends_cancelled(&request);
        assert_eq!(drops.get(), 1, "before anybody is told");
    });
}

#[test]
fn one_that_computes_can_ask_and_so_stop() {
    let _not = support::not_on(support::Modes::Both, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        let started = Flag::new();
        let up = started.clone();
        let asking = root(runtime).spawn(move || {
            up.raise();
            hold_thread_until(is_cancelled);
            assert!(check_cancelled().is_err() && yield_now().is_err());
        });
        let up = started.clone();
        let handing_on = root(runtime).try_spawn(move || {
            up.wait();
            loop {
                check_cancelled()?;
                std::hint::spin_loop();
            }
            #[allow(unreachable_code, reason = "for the type")]
            Ok(())
        });
        started.wait();
        asking.cancel();
        ends_cancelled(&asking);
        until(|| handing_on.state() == State::Running);
        handing_on.cancel();
        ends_cancelled(&handing_on);
    });
    assert!(!is_cancelled() && check_cancelled().is_ok() && yield_now().is_ok(), "outside any request");
}

#[test]
fn a_request_may_cancel_itself_and_learns_it_at_its_next_wait() {
    in_both_worlds(|| {
        let request = Request::new(|| {
            let me = Request::current().unwrap();
            // Whoever waits for it here lends it a stack: aborted, not asked.
            assert!(!is_cancelled());
            me.abort(CancelReason::Asked);
            assert!(is_cancelled());
            let done = Request::ready(1);
            assert!(matches!(done.wait(), Err(WaitError::Cancelled)));
            7
        });
        assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(CancelReason::Asked))));
        ends_cancelled(&request);
    });
    on_each(|runtime| {
        let request = root(runtime).spawn(|| {
            assert_eq!(Request::current().unwrap().cancel(), Cancellation::Marked);
            assert_eq!(Request::current().unwrap().cancel(), Cancellation::Marked, "and stays so");
            yield_now().is_err()
        });
        ends_cancelled(&request);
    });
}

/// Also where there is nothing to wait for: the original's simplification for targets that are over hid the cancel.
#[test]
fn in_a_cancelled_request_every_further_wait_answers_cancelled() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let refused = Count::new();
        let up = refused.clone();
        let request = root(runtime).spawn(move || {
            let (done, early) = (Request::ready(1), spawn(|| 2));
            assert_eq!(early.wait().unwrap(), &2);
            Request::current().unwrap().abort(CancelReason::Asked);
            for _ in 0..3 {
                assert!(matches!(done.wait(), Err(WaitError::Cancelled)));
                assert!(matches!(early.watch(), Err(WaitError::Cancelled)));
                assert!(matches!(early.to_untyped().wait(), Err(WaitError::Cancelled)));
                assert!(matches!(closed.wait(), Err(WaitError::Cancelled)));
                assert!(matches!(closed.wait_timeout(std::time::Duration::MAX), Err(WaitError::Cancelled)));
                assert!(matches!(Request::ready(3).take(), Err(WaitError::Cancelled)));
                assert!(yield_now().is_err());
                up.up();
            }
        });
        ends_cancelled(&request);
        assert_eq!(refused.get(), 3);
    });
}

// ---- the answers --------------------------------------------------------------------------------------------------------

#[test]
fn d11_cancel_after_the_end_changes_nothing_and_says_so() {
    in_both_worlds(|| {
        let good = Request::new(|| String::from("good"));
        good.wait().unwrap();
        let bad = Request::<u32>::try_new(|| Err(forebear::Error::other("bad")));
        assert!(bad.wait().is_err());
        let gone = Request::new(|| ());
        gone.cancel();
        for _ in 0..2 {
            assert_eq!(good.cancel(), Cancellation::AlreadyDone);
            assert_eq!(good.to_untyped().abort(CancelReason::Other(1)), Cancellation::AlreadyDone);
            assert_eq!((good.wait().unwrap().as_str(), good.state()), ("good", State::Finished));
            assert!(!good.is_cancelled());
            assert_eq!(bad.to_untyped().cancel(), Cancellation::AlreadyDone);
            assert!(
                matches!(bad.wait(), Err(WaitError::Failed(failure)) if failure.error().to_string() == "bad")
            );
            assert!(!bad.is_cancelled());
            assert_eq!(gone.cancel(), Cancellation::AlreadyDone);
            assert_eq!(gone.abort(CancelReason::Other(1)), Cancellation::AlreadyDone);
            assert_eq!(ends_cancelled(&gone), CancelReason::Asked);
        }
        assert_eq!(Request::ready(1).cancel(), Cancellation::AlreadyDone);
        assert_eq!(good.take().unwrap(), "good");
    });
}

/// In the original a second cancel that met a veto took the first one back.
#[test]
fn d11_a_cancelled_request_is_never_un_cancelled() {
    let _not = support::not_on(support::Modes::Both, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        let (started, free) = (Flag::new(), Flag::new());
        let (up, may) = (started.clone(), free.clone());
        let request = root(runtime).spawn(move || {
            up.raise();
            hold_thread_until(|| may.is_up());
            assert!(is_cancelled());
            7
        });
        started.wait();
        assert_eq!(request.cancel(), Cancellation::Marked);
        // From now on somebody wants it.
        let wants = request.clone();
        thread::scope(|threads| {
            let waiter = threads.spawn(move || wants.wait().copied());
            let asked = request.clone();
            let late = threads.spawn(move || {
                for _ in 0..100 {
                    assert_eq!(asked.cancel(), Cancellation::Marked);
                    assert!(asked.is_cancelled());
                }
            });
            late.joined().unwrap();
            free.raise();
            let told = waiter.joined().unwrap();
            assert!(matches!(told, Err(WaitError::TargetCancelled(CancelReason::Asked))), "{told:?}");
        });
        ends_cancelled(&request);
    });
}

#[test]
fn every_wait_for_a_cancelled_request_answers_the_same_any_number_of_times() {
    in_both_worlds(|| {
        let request = Request::new(|| 1);
        request.abort(CancelReason::Other(9));
        for _ in 0..3 {
            assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(CancelReason::Other(9)))));
            assert!(matches!(request.watch(), Err(WaitError::TargetCancelled(CancelReason::Other(9)))));
            let any = request.to_untyped().wait();
            assert!(matches!(any, Err(WaitError::TargetCancelled(CancelReason::Other(9)))));
            assert!(matches!(
                request.clone().take(),
                Err(WaitError::TargetCancelled(CancelReason::Other(9)))
            ));
        }
        // The remedy is a new one.
        assert_eq!(Request::new(|| 1).take().unwrap(), 1);
    });
}

#[test]
fn abort_marks_whoever_waits_and_they_are_told_why() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let target = sleeper(runtime, &gate);
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let target = target.clone();
                let waiter = root(runtime).spawn(move || target.wait().cloned());
                asleep(&waiter);
                waiter
            })
            .collect();
        let foreign = {
            let target = target.clone();
            thread::spawn(move || target.wait().cloned())
        };
        assert_eq!(target.abort(CancelReason::Other(3)), Cancellation::Marked);
        let told = |answer: Result<_, WaitError>| {
            assert!(matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Other(3)))), "{answer:?}");
        };
        waiters.into_iter().for_each(|waiter| told(waiter.take().unwrap()));
        told(foreign.joined().unwrap());
        ends_cancelled(&target);
    });
}

#[test]
fn the_reason_of_the_first_mark_stays() {
    let _not = support::not_on(support::Modes::Both, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        let (started, free) = (Flag::new(), Flag::new());
        let busy = |started: &Flag, free: &Flag| {
            let (up, may) = (started.clone(), free.clone());
            root(runtime).spawn(move || {
                up.raise();
                hold_thread_until(|| may.is_up());
            })
        };
        let first = busy(&started, &free);
        started.wait();
        assert_eq!(first.abort(CancelReason::Other(1)), Cancellation::Marked);
        assert_eq!(first.abort(CancelReason::Other(2)), Cancellation::Marked);
        assert_eq!(first.cancel(), Cancellation::Marked);
        free.raise();
        assert_eq!(ends_cancelled(&first), CancelReason::Other(1));
        assert_eq!(first.abort(CancelReason::Other(3)), Cancellation::AlreadyDone);
        assert_eq!(ends_cancelled(&first), CancelReason::Other(1));
        // Also if the first had none to give.
        let (started, free) = (Flag::new(), Flag::new());
        let second = busy(&started, &free);
        started.wait();
        second.cancel();
        second.abort(CancelReason::Other(2));
        free.raise();
        assert_eq!(ends_cancelled(&second), CancelReason::Asked);
    });
}

/// Why a request ended does not change when more happens to its family.
#[test]
fn the_reason_stays_though_the_parent_is_cancelled_later() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let (give, given) = mpsc::channel();
        let parent = root(runtime).spawn(move || {
            let child = Request::new(|| ());
            child.cancel();
            give.send(child).unwrap();
            closed.wait().copied()
        });
        let child = given.come().unwrap();
        asleep(&parent);
        assert_eq!(ends_cancelled(&child), CancelReason::Asked);
        parent.cancel();
        ends_cancelled(&parent);
        assert_eq!(ends_cancelled(&child), CancelReason::Asked);
    });
}

#[test]
fn a_request_can_ask_why_it_was_cancelled() {
    const WHY: CancelReason = CancelReason::Other(7);
    assert_eq!(cancel_reason(), None);
    on_each(|runtime| {
        let request = root(runtime).spawn(|| {
            assert_eq!(cancel_reason(), None);
            Request::current().unwrap().abort(WHY);
            Request::current().unwrap().abort(CancelReason::Stopped);
            assert_eq!(shield(cancel_reason), None, "it is held back");
            let both = join(cancel_reason, || join(cancel_reason, cancel_reason));
            assert_eq!(both, (Some(WHY), (Some(WHY), Some(WHY))));
            // A cleanup that is sheltered knows only of its own children.
            let child = shield(|| {
                let child = spawn(|| {
                    Request::current().unwrap().abort(CancelReason::Stopped);
                    cancel_reason()
                });
                child.wait().unwrap_err()
            });
            assert!(matches!(child, WaitError::TargetCancelled(CancelReason::Stopped)), "{child:?}");
            assert_eq!(cancel_reason(), Some(WHY));
        });
        assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(WHY))));
    });
}

#[test]
fn in_a_region_the_reason_is_its_deadline_or_that_of_the_request() {
    on_each(|runtime| {
        let computed = root(runtime).spawn(|| {
            let mut told = None;
            let region = timeout(Duration::from_millis(1), || {
                until(is_cancelled);
                told = cancel_reason();
            });
            assert!(region.is_err());
            assert_eq!(cancel_reason(), None, "the request itself goes on");
            told
        });
        assert_eq!(computed.take().unwrap(), Some(CancelReason::Deadline));
        let (told, tell) = (Arc::new(Mutex::new(None)), Flag::new());
        let stopped = root(runtime).spawn({
            let (told, tell) = (told.clone(), tell.clone());
            move || {
                let _late = timeout(Duration::from_secs(600), || {
                    tell.raise();
                    until(is_cancelled);
                    *told.lock().unwrap() = cancel_reason();
                });
            }
        });
        tell.wait();
        stopped.abort(CancelReason::Stopped);
        assert!(stopped.wait().is_err());
        assert_eq!(*told.lock().unwrap(), Some(CancelReason::Stopped));
    });
}

#[test]
fn cancel_on_drop_cancels_unless_it_is_disarmed() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (gone, kept) = (sleeper(runtime, &gate), sleeper(runtime, &gate));
        kept.cancel_on_drop().disarm();
        drop(gone.cancel_on_drop());
        ends_cancelled(&gone);
        assert!(!kept.is_cancelled());
        let mut gate = gate;
        gate.open();
        kept.take().unwrap().unwrap();
    });
}

// ---- from where ---------------------------------------------------------------------------------------------------------

#[test]
fn cancel_may_be_called_from_callbacks_and_destructors() {
    struct Cancels(Request<Result<(), WaitError>>);
    impl Drop for Cancels {
        fn drop(&mut self) {
            self.0.cancel();
        }
    }
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let [a, b, c, d, e] = [(); 5].map(|()| sleeper(runtime, &gate));
        // Of a success, on a worker.
        let target = a.clone();
        root(runtime).build(|| ()).on_finished(move |()| _ = target.cancel()).submit();
        ends_cancelled(&a);
        // Of a cancellation, here.
        let target = b.clone();
        runtime.enter(|| Request::new(|| ())).on_cancelled(move || _ = target.cancel()).cancel();
        ends_cancelled(&b);
        // A callable that is dropped unrun, and one that ran.
        let captured = Cancels(c.clone());
        runtime.enter(|| Request::new(move || drop(captured))).cancel();
        ends_cancelled(&c);
        let captured = Cancels(d.clone());
        root(runtime).spawn(move || drop(captured));
        ends_cancelled(&d);
        // A value.
        let value = Cancels(e.clone());
        let request = runtime.enter(|| Request::new(move || value));
        request.wait().unwrap();
        drop(request);
        ends_cancelled(&e);
    });
}

#[test]
fn a_callback_may_cancel_its_own_request_which_is_too_late() {
    in_both_worlds(|| {
        let request = Request::new(|| 7);
        let told = Count::new();
        let (me, up) = (request.to_untyped(), told.clone());
        request.on_finished(move |_| {
            assert_eq!(me.cancel(), Cancellation::AlreadyDone);
            assert_eq!(me.abort(CancelReason::Other(1)), Cancellation::AlreadyDone);
            assert!(!me.is_cancelled() && !is_cancelled());
            up.up();
        });
        assert_eq!(request.wait().unwrap(), &7);
        assert_eq!((told.get(), request.state()), (1, State::Finished));
    });
}

/// One callable's destructor cancels the next, and so on: a long line, of which nothing may be put on the stack.
#[test]
fn a_line_of_requests_whose_ends_cancel_the_next_ends() {
    struct Next(Option<Request<()>>);
    impl Drop for Next {
        fn drop(&mut self) {
            if let Some(next) = self.0.take() {
                next.cancel();
            }
        }
    }
    in_both_worlds(|| {
        let drops = Count::new();
        let mut line = Next(None);
        for _ in 0..20_000 {
            let (next, probe) = (line, drops.probe());
            line = Next(Some(Request::new(move || drop((next, probe)))));
        }
        drop(line);
        assert_eq!(drops.get(), 20_000);
    });
}

#[test]
fn a_race_of_many_cancels_with_the_end_has_one_outcome() {
    on_each(|runtime| {
        for round in 0..200 {
            let request = root(runtime).spawn(move || {
                for _ in 0..round % 7 {
                    yield_now()?;
                }
                Ok::<_, forebear::Cancelled>(round)
            });
            let answers = thread::scope(|threads| {
                let cancellers = [(); 3].map(|()| threads.spawn(|| request.cancel()));
                cancellers.map(|canceller| canceller.joined().unwrap())
            });
            until(|| request.is_done());
            match request.state() {
                State::Cancelled => {
                    ends_cancelled(&request);
                    assert!(answers.contains(&Cancellation::Marked));
                }
                state => {
                    assert_eq!(state, State::Finished);
                    assert_eq!(answers, [Cancellation::AlreadyDone; 3]);
                    assert_eq!(request.wait().unwrap().unwrap(), round);
                }
            }
        }
        drop(try_spawn(|| Ok(())));
    });
}
