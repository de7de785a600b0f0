//! Demand: who is spared by `cancel` because somebody wants it, and what becomes of that when the last of them goes.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cancelling::{Gate, asleep, ends_cancelled, on_each_clocked, sleeper, waiter};
use forebear::{
    CancelReason, Cancellation, Request, State, WaitError, check_cancelled, is_cancelled, spawn, yield_now,
};
use support::order::root;
use support::{Come, Count, Flag, Joined, Watchdog, hold_thread_until, hold_workers, on_each, until};

const SECOND: Duration = Duration::from_secs(1);

// ---- who is demand ------------------------------------------------------------------------------------------------------

#[test]
fn a_live_request_that_waits_spares_it() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let target = sleeper(runtime, &gate);
        let waiter = waiter(runtime, &target);
        for _ in 0..3 {
            assert_eq!(target.cancel(), Cancellation::Vetoed);
            assert!(!target.is_cancelled());
        }
        gate.open();
        assert!(waiter.take().unwrap().is_ok());
        assert_eq!(target.state(), State::Finished, "a veto is no mark");
    });
}

#[test]
fn a_foreign_thread_that_waits_spares_it() {
    on_each(|runtime| {
        // Nothing tells when it has begun to wait but the veto, so it is given ever more time.
        for turns in 0.. {
            let mut gate = Gate::new(runtime);
            let target = sleeper(runtime, &gate);
            let wants = target.clone();
            let waiter = thread::spawn(move || wants.wait().cloned());
            (0..turns).for_each(|_| thread::yield_now());
            let came = target.cancel();
            gate.open();
            let answer = waiter.joined().unwrap();
            if came == Cancellation::Vetoed {
                answer.unwrap().unwrap();
                assert_eq!(target.state(), State::Finished);
                return;
            }
            assert!(matches!(answer, Err(WaitError::TargetCancelled(_))));
            assert!(turns < 2_000, "it is never spared");
        }
    });
}

/// In the original one probe with a time-out made it uncancellable for ever.
#[test]
fn d17_a_foreign_thread_counts_only_while_it_waits() {
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let target = sleeper(runtime, &gate);
        let wants = target.clone();
        let waiter = thread::spawn(move || wants.wait_timeout(SECOND).map(drop));
        until(|| {
            clock.advance(SECOND);
            waiter.is_finished()
        });
        assert!(matches!(waiter.joined().unwrap(), Err(WaitError::TimedOut)));
        assert_eq!(target.cancel(), Cancellation::Marked);
        ends_cancelled(&target);
    });
}

#[test]
fn who_lends_its_stack_spares_it() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let closed = gate.request();
        let (give, given) = mpsc::channel();
        let lender = root(runtime).spawn(move || {
            let child = Request::new(move || closed.wait().copied());
            give.send(child.clone()).unwrap();
            child.wait().cloned()
        });
        let child = given.come().unwrap();
        asleep(&child);
        assert_eq!(child.cancel(), Cancellation::Vetoed);
        gate.open();
        lender.take().unwrap().unwrap().unwrap();
    });
}

#[test]
fn a_foreign_thread_that_runs_it_spares_it() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        assert_eq!(gate.request().cancel(), Cancellation::Vetoed);
    });
}

#[test]
fn who_only_watches_does_not_spare_it() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let target = sleeper(runtime, &gate);
        let watchers: Vec<_> = (0..3)
            .map(|_| {
                let target = target.clone();
                let watcher = root(runtime).spawn(move || target.watch().cloned());
                asleep(&watcher);
                watcher
            })
            .collect();
        let any = target.to_untyped();
        let foreign = thread::spawn(move || any.watch());
        assert_eq!(target.cancel(), Cancellation::Marked);
        let told = |answer| assert!(matches!(answer, Err(WaitError::TargetCancelled(_))));
        watchers.into_iter().for_each(|watcher| told(watcher.take().unwrap().map(drop)));
        told(foreign.joined().unwrap());
        ends_cancelled(&target);
    });
}

#[test]
fn a_watcher_submits_and_never_runs_it() {
    on_each(|runtime| {
        let watcher = root(runtime).spawn(|| Request::new(|| 7).watch().copied());
        assert_eq!(watcher.watch().unwrap().clone().unwrap(), 7);
        assert_eq!(runtime.metrics().direct, 0);
    });
}

#[test]
fn a_waiter_that_descends_from_it_does_not_spare_it() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let (give, given) = mpsc::channel();
        let target = root(runtime).spawn(move || {
            let me = Request::current().unwrap();
            let above = me.clone();
            let child = Request::builder().own_stack().spawn(move || above.wait());
            let grandchild = Request::builder().own_stack().spawn(move || {
                let grandchild = Request::builder().own_stack().spawn(move || me.wait());
                asleep(&grandchild);
                grandchild
            });
            let grandchild = grandchild.wait().unwrap().clone();
            asleep(&child);
            give.send((child, grandchild)).unwrap();
            closed.wait().copied()
        });
        let (child, grandchild) = given.come().unwrap();
        asleep(&target);
        assert_eq!(target.cancel(), Cancellation::Marked);
        ends_cancelled(&target);
        // Cancelled with it, or told that it is over, whichever came first.
        for waiter in [child, grandchild] {
            let answer = waiter.watch().cloned();
            assert!(
                matches!(answer, Ok(Err(WaitError::TargetCancelled(_))) | Err(WaitError::TargetCancelled(_))),
                "{answer:?}"
            );
        }
    });
}

/// Though it stands in the list of waiters until its worker comes to it.
#[test]
fn a_waiter_that_is_cancelled_itself_does_not_spare_it() {
    let _not = support::not_on(support::Modes::Both, "it holds its workers");
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let target = sleeper(runtime, &gate);
        let waiters: Vec<_> = (0..3).map(|_| waiter(runtime, &target)).collect();
        let held = hold_workers(runtime);
        assert_eq!(target.cancel(), Cancellation::Vetoed);
        for waiter in &waiters {
            assert_eq!(waiter.cancel(), Cancellation::Marked);
            assert_eq!(waiter.state(), State::Suspended);
        }
        assert_eq!(target.cancel(), Cancellation::Marked);
        held.release();
        ends_cancelled(&target);
        waiters.iter().for_each(|waiter| _ = ends_cancelled(waiter));
    });
}

// ---- a veto is remembered -----------------------------------------------------------------------------------------------

/// In the original the veto was final, and the work went on for nobody.
#[test]
fn d4_a_vetoed_request_is_cancelled_when_its_last_live_waiter_is() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let target = sleeper(runtime, &gate);
        let waiters: Vec<_> = (0..4).map(|_| waiter(runtime, &target)).collect();
        assert_eq!(target.cancel(), Cancellation::Vetoed);
        for (n, waiter) in waiters.iter().enumerate() {
            assert!(!target.is_cancelled(), "{n} of 4 have gone");
            assert_eq!(waiter.cancel(), Cancellation::Marked);
            ends_cancelled(waiter);
        }
        assert_eq!(ends_cancelled(&target), CancelReason::Asked);
    });
}

#[test]
fn a_vetoed_request_is_cancelled_when_its_last_live_waiters_time_is_up() {
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let target = sleeper(runtime, &gate);
        let waiters = [1, 2, 3].map(|n| {
            let target = target.clone();
            let waiter = root(runtime).spawn(move || target.wait_timeout(n * SECOND).cloned());
            asleep(&waiter);
            waiter
        });
        assert_eq!(target.cancel(), Cancellation::Vetoed);
        for waiter in waiters {
            assert!(!target.is_cancelled());
            clock.advance(SECOND);
            assert!(matches!(waiter.take().unwrap(), Err(WaitError::TimedOut)));
        }
        assert!(target.is_cancelled(), "before the last wait returned");
        ends_cancelled(&target);
    });
}

#[test]
fn a_vetoed_request_is_cancelled_when_the_foreign_thread_goes() {
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let target = sleeper(runtime, &gate);
        let wants = target.clone();
        let waiter = thread::spawn(move || wants.wait_timeout(SECOND).cloned());
        // A veto shows that it waits.
        until(|| target.cancel() == Cancellation::Vetoed || target.is_cancelled());
        if !target.is_cancelled() {
            clock.advance(SECOND);
            assert!(matches!(waiter.joined().unwrap(), Err(WaitError::TimedOut)));
            assert!(target.is_cancelled());
        } else {
            drop(waiter.joined().unwrap());
        }
        ends_cancelled(&target);
    });
}

/// Who waits, waits in three different ways; only when all have gone is it over.
#[test]
fn the_last_of_different_waiters_makes_up_for_the_veto() {
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let target = sleeper(runtime, &gate);
        let by_cancel = waiter(runtime, &target);
        let (by_time, by_abort) = (target.clone(), target.clone());
        let by_time = root(runtime).spawn(move || by_time.wait_timeout(SECOND).cloned());
        let by_abort = root(runtime).spawn(move || by_abort.to_untyped().wait());
        asleep(&by_time);
        asleep(&by_abort);
        assert_eq!(target.cancel(), Cancellation::Vetoed);
        by_abort.abort(CancelReason::Other(1));
        assert_eq!(ends_cancelled(&by_abort), CancelReason::Other(1));
        assert!(!target.is_cancelled());
        clock.advance(SECOND);
        assert!(matches!(by_time.take().unwrap(), Err(WaitError::TimedOut)));
        assert!(!target.is_cancelled());
        by_cancel.cancel();
        ends_cancelled(&target);
    });
}

#[test]
fn a_vetoed_request_is_cancelled_when_its_lender_is() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let (give, given) = mpsc::channel();
        let lender = root(runtime).spawn(move || {
            let lent = Request::builder().detached().build(move || closed.wait().copied());
            give.send(lent.clone()).unwrap();
            lent.wait().cloned()
        });
        let lent = given.come().unwrap();
        asleep(&lent);
        assert_eq!(lent.cancel(), Cancellation::Vetoed);
        assert_eq!(lender.cancel(), Cancellation::Marked);
        ends_cancelled(&lent);
        ends_cancelled(&lender);
    });
}

#[test]
fn a_vetoed_request_that_has_not_started_ends_there_and_then_with_its_last_waiter() {
    let _not = support::not_on(support::Modes::Synchronous, "it holds its workers");
    on_each_clocked(|runtime, clock| {
        let drops = Count::new();
        let probe = drops.probe();
        let held = hold_workers(runtime);
        let target = root(runtime).build(move || -> u32 { unreachable!("{probe:?}") });
        let wants = target.clone();
        let waiter = thread::spawn(move || wants.wait_timeout(SECOND).copied());
        until(|| target.state() == State::Queued);
        until(|| target.cancel() != Cancellation::AlreadyDone);
        until(|| {
            clock.advance(SECOND);
            waiter.is_finished()
        });
        let answer = waiter.joined().unwrap();
        assert!(matches!(answer, Err(WaitError::TimedOut | WaitError::TargetCancelled(_))), "{answer:?}");
        assert_eq!((target.state(), drops.get()), (State::Cancelled, 1), "though no worker is free");
        held.release();
    });
}

#[test]
fn a_request_that_nobody_asked_to_stop_goes_on_when_its_waiters_time_is_up() {
    on_each_clocked(|runtime, clock| {
        let mut gate = Gate::new(runtime);
        let target = sleeper(runtime, &gate);
        let wants = target.clone();
        let waiter = root(runtime).spawn(move || wants.wait_timeout(SECOND).cloned());
        asleep(&waiter);
        clock.advance(SECOND);
        assert!(matches!(waiter.take().unwrap(), Err(WaitError::TimedOut)));
        assert!(!target.is_cancelled());
        gate.open();
        target.take().unwrap().unwrap();
    });
}

#[test]
fn a_veto_ends_with_the_request() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let target = sleeper(runtime, &gate);
        let waiter = waiter(runtime, &target);
        assert_eq!(target.cancel(), Cancellation::Vetoed);
        gate.open();
        assert!(waiter.take().unwrap().is_ok());
        assert_eq!((target.state(), target.cancel()), (State::Finished, Cancellation::AlreadyDone));
        target.take().unwrap().unwrap();
    });
}

// ---- what a cancelled waiter does to its target -------------------------------------------------------------------------

#[test]
fn a_cancelled_waiter_cancels_its_target_that_nobody_else_wants() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let (give, given) = mpsc::channel();
        // Its child, on a stack of its own.
        let waiter = root(runtime).spawn(move || {
            let child = Request::builder().own_stack().build(move || closed.wait().copied());
            give.send(child.clone()).unwrap();
            child.wait().cloned()
        });
        let child = given.come().unwrap();
        asleep(&child);
        asleep(&waiter);
        waiter.cancel();
        ends_cancelled(&waiter);
        ends_cancelled(&child);
    });
}

#[test]
fn a_shared_target_is_spared_while_another_live_request_waits_for_it() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let (give, given) = mpsc::channel();
        let first = root(runtime).spawn(move || {
            let shared = Request::builder().own_stack().build(move || closed.wait().copied());
            give.send(shared.clone()).unwrap();
            shared.wait().cloned()
        });
        let shared = given.come().unwrap();
        asleep(&first);
        asleep(&shared);
        let second = waiter(runtime, &shared);
        first.cancel();
        ends_cancelled(&first);
        assert_eq!(shared.state(), State::Suspended, "the second wants it");
        assert!(!shared.is_cancelled());
        // And it remembers.
        second.cancel();
        ends_cancelled(&second);
        ends_cancelled(&shared);
    });
}

#[test]
fn a_chain_of_waiters_falls_with_its_head() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let mut chain = vec![sleeper(runtime, &gate)];
        for _ in 0..50 {
            // Submitted by nobody but its waiter.
            let target = chain.last().unwrap().clone();
            chain.push(root(runtime).build(move || target.wait().cloned().and_then(|answer| answer)));
        }
        let head = chain.pop().unwrap();
        // The last but one of each is run by the one before.
        let starts = head.clone();
        let starter = root(runtime).spawn(move || starts.watch().map(drop));
        chain.iter().for_each(asleep);
        assert_eq!(chain[0].cancel(), Cancellation::Vetoed);
        assert_eq!(head.cancel(), Cancellation::Marked);
        ends_cancelled(&head);
        chain.iter().rev().for_each(|request| _ = ends_cancelled(request));
        assert!(starter.take().unwrap().is_err());
    });
}

#[test]
fn another_ones_target_is_spared_if_somebody_submitted_it_and_its_creator_lives() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        // Made and submitted outside: its creator is a thread, and lives.
        let target = sleeper(runtime, &gate);
        let waiter = waiter(runtime, &target);
        waiter.cancel();
        ends_cancelled(&waiter);
        assert_eq!((target.is_cancelled(), target.state()), (false, State::Suspended));
        // Made and submitted by a request that lives.
        let (closed, stays) = (gate.request(), gate.request());
        let (give, given) = mpsc::channel();
        let creator = root(runtime).spawn(move || {
            let child = Request::builder().own_stack().spawn(move || closed.wait().copied());
            asleep(&child);
            give.send(child).unwrap();
            stays.wait().copied()
        });
        let child = given.come().unwrap();
        let waiter = cancelling::waiter(runtime, &child);
        waiter.cancel();
        ends_cancelled(&waiter);
        assert_eq!((child.is_cancelled(), child.state()), (false, State::Suspended));
        gate.open();
        target.take().unwrap().unwrap();
        child.take().unwrap().unwrap();
        creator.take().unwrap().unwrap();
    });
}

#[test]
fn another_ones_target_goes_if_only_waiters_submitted_it() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let target = root(runtime).build(move || closed.wait().copied());
        let waiter = waiter(runtime, &target);
        asleep(&target);
        waiter.cancel();
        ends_cancelled(&waiter);
        ends_cancelled(&target);
    });
}

#[test]
fn another_ones_target_goes_if_its_creator_is_over() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let creator = root(runtime).spawn(move || {
            let child = Request::builder().own_stack().spawn(move || closed.wait().copied());
            asleep(&child);
            child
        });
        let child = creator.take().unwrap();
        let waiter = waiter(runtime, &child);
        waiter.cancel();
        ends_cancelled(&waiter);
        ends_cancelled(&child);
    });
}

// ---- lenders ------------------------------------------------------------------------------------------------------------

/// It is marked at once, and returns when the lent frame has ended.
#[test]
fn a_cancelled_lender_waits_for_its_frame_and_is_then_told_cancelled() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let closed = gate.request();
        let (give, given) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let lender = root(runtime).spawn(move || {
            let lent = Request::builder().detached().build(move || closed.wait().copied());
            give.send(lent.clone()).unwrap();
            tell.send(lent.wait().cloned()).unwrap();
            assert!(is_cancelled() && check_cancelled().is_err());
        });
        let lent = given.come().unwrap();
        asleep(&lent);
        let second = waiter(runtime, &lent);
        assert_eq!(lender.cancel(), Cancellation::Marked);
        assert!(lender.is_cancelled() && !lender.is_done());
        // Spared: the second wants it.
        for _ in 0..20 {
            runtime.run(|| yield_now().unwrap());
        }
        assert!(!lent.is_cancelled() && !lent.is_done());
        gate.open();
        assert!(second.take().unwrap().is_ok());
        let answer = told.come().unwrap();
        assert!(matches!(answer, Err(WaitError::Cancelled)), "{answer:?}");
        ends_cancelled(&lender);
    });
}

#[test]
fn cancelled_while_a_child_runs_on_its_stack_both_are_told_at_their_next_waits() {
    for spawned in [false, true] {
        on_each(|runtime| {
            let gate = Gate::new(runtime);
            let closed = gate.request();
            let (give, given) = mpsc::channel();
            let (tell, told) = mpsc::channel();
            let parent = root(runtime).spawn(move || {
                let tell_child = tell.clone();
                let body = move || tell_child.send(("child", closed.wait().copied())).unwrap();
                let child = if spawned { spawn(body) } else { Request::new(body) };
                give.send(child.clone()).unwrap();
                tell.send(("parent", child.wait().copied())).unwrap();
            });
            let child = given.come().unwrap();
            asleep(&child);
            parent.cancel();
            ends_cancelled(&parent);
            ends_cancelled(&child);
            let answers: Vec<_> = told.iter().collect();
            let [(_, Err(WaitError::Cancelled)), (_, Err(WaitError::Cancelled))] = &answers[..] else {
                panic!("{answers:?}, spawned: {spawned}")
            };
        });
    }
}

/// Also when its own cancel comes between the target's end and its going on.
#[test]
fn cancelled_is_told_before_the_value_though_the_target_ended_first() {
    let _dog = Watchdog::new("one worker");
    // On one worker, where it is known who goes on first.
    let runtime = support::runtime(1);
    let (tell, told) = mpsc::channel();
    let (give, given) = mpsc::channel();
    runtime.run(move || {
        // The target runs on this stack, and makes the one that waits for it: so this goes on first when it ends.
        let target = Request::new(move || {
            let target = Request::current().unwrap();
            let waiter =
                Request::builder().own_stack().detached().spawn(move || tell.send(target.wait()).unwrap());
            asleep(&waiter);
            give.send(waiter).unwrap();
        });
        target.wait().unwrap();
        let waiter = given.come().unwrap();
        assert_eq!(waiter.cancel(), Cancellation::Marked);
        ends_cancelled(&waiter);
    });
    let answer = told.come().unwrap();
    assert!(matches!(answer, Err(WaitError::Cancelled)), "{answer:?}");
}

/// A child that is taken by value runs without a single exchange; its taker is told all the same.
#[test]
fn cancelled_is_told_before_the_value_of_a_child_taken_by_value() {
    let _not = support::not_on(support::Modes::Both, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        let (inside, out) = (Flag::new(), Flag::new());
        let (up, may) = (inside.clone(), out.clone());
        let (tell, told) = mpsc::channel();
        let taker = root(runtime).spawn(move || {
            let child = spawn(move || {
                up.raise();
                hold_thread_until(|| may.is_up());
                7
            });
            tell.send(child.take()).unwrap();
        });
        inside.wait();
        assert_eq!(taker.cancel(), Cancellation::Marked);
        out.raise();
        ends_cancelled(&taker);
        let answer = told.come().unwrap();
        assert!(matches!(answer, Err(WaitError::Cancelled)), "{answer:?}");
    });
}
