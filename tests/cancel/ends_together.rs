//! Requests that are cancelled together, by a pool, a set, a scope, a `select!` or a dependent: when the captures of one are dropped, they wait for
//! another of them.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use cancelling::{asleep, ends_cancelled, on_each_clocked};
use forebear::sync::Event;
use forebear::{
    AnyRequest, CancelReason, Cancellation, Completer, Error, Request, RequestPool, RequestSet, Runtime,
    State, WaitError, is_cancelled, scope, select, shield, then_all, try_scope, wait_all, yield_now,
};
use support::{
    Count, Flag, Joined, Kind, Watchdog, hold_thread_until, in_both_worlds, on_each, on_each_of, until,
};

/// Waits for a request when it is dropped, and counts that.
#[derive(Debug)]
struct WaitsFor {
    wanted: Arc<OnceLock<Request<()>>>,
    ends: Count,
}

impl Drop for WaitsFor {
    fn drop(&mut self) {
        let wanted = self.wanted.get().unwrap();
        let _ = shield(|| wanted.wait().copied());
        assert!(wanted.is_done());
        self.ends.up();
    }
}

/// What to capture, where to put what it waits for, and how often it has waited.
fn waits_for() -> (WaitsFor, Arc<OnceLock<Request<()>>>, Count) {
    let (wanted, ends) = (Arc::new(OnceLock::new()), Count::new());
    (WaitsFor { wanted: wanted.clone(), ends: ends.clone() }, wanted, ends)
}

fn until_cancelled() -> Result<(), Error> {
    loop {
        yield_now()?;
    }
}

/// A request that runs until it is cancelled, and runs already.
fn endless(runtime: &Runtime) -> Request<()> {
    let began = Flag::new();
    let up = began.clone();
    let endless = Request::builder().name("endless").detached().on(runtime).try_spawn(move || {
        up.raise();
        until_cancelled()
    });
    began.wait();
    endless
}

/// A request that has been submitted and does not start, with these captures. The completer keeps it from starting.
fn unstarted(runtime: &Runtime, captures: WaitsFor) -> (Completer<()>, Request<()>) {
    let (completer, gate) = Request::completer("gate");
    let unstarted = Request::builder()
        .name("unstarted")
        .detached()
        .on(runtime)
        .after(&gate)
        .build(move || drop(captures));
    unstarted.submit();
    (completer, unstarted)
}

/// How a pool stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    BeforeTheWait,
    ByAMember,
    ByAThread,
    ByAFailure,
    ByTheReceiver,
}

/// What the captures of the first included request wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// The second, which the pool holds back.
    TheSecond,
    /// What is after the second.
    WhatIsAfterTheSecond,
    /// The second, which runs until it is cancelled.
    WhatRuns,
}

fn included_captures_wait(stop: Stop, wanted: For) {
    let runtime = Runtime::current();
    let (captures, place, ends) = waits_for();
    let (completer, first, second);
    if wanted == For::WhatRuns {
        second = endless(&runtime);
        let (gate, request) = unstarted(&runtime, captures);
        (completer, first) = (Some(gate), request);
    } else {
        second = Request::new(|| unreachable!());
        (completer, first) = (None, Request::new(move || drop(captures)));
    }
    let waited_for =
        if wanted == For::WhatIsAfterTheSecond { second.then(|()| unreachable!()) } else { second.clone() };
    place.set(waited_for).unwrap();
    let began = Flag::new();
    let mut pool = RequestPool::new().max_active(1 + usize::from(wanted == For::WhatRuns));
    let (canceller, up) = (pool.canceller(), began.clone());
    pool.try_add(move || {
        up.raise();
        match stop {
            Stop::ByAFailure => return Err(Error::other("no")),
            Stop::ByTheReceiver => return Ok(()),
            Stop::ByAMember => canceller.cancel(),
            Stop::BeforeTheWait | Stop::ByAThread => {}
        }
        until_cancelled()
    });
    pool.include(first.clone()).include(second.clone());
    let canceller = pool.canceller();
    if stop == Stop::BeforeTheWait {
        canceller.cancel();
    }
    let up = began.clone();
    let thread = (stop == Stop::ByAThread).then(|| {
        thread::spawn(move || {
            hold_thread_until(|| up.is_up());
            canceller.cancel();
        })
    });
    let answer = pool.try_wait_each(|_, ()| Err(Error::other("full")));
    assert!(answer.is_err());
    for request in [&first, &second] {
        assert_eq!(request.state(), State::Cancelled, "{stop:?}, {wanted:?}");
    }
    assert_eq!(ends.get(), 1);
    assert!(place.get().unwrap().is_done());
    if let Some(thread) = thread {
        thread.joined().unwrap();
    }
    drop(completer);
}

#[test]
fn a_pool_that_stops_marks_all_that_is_included_before_it_ends_any() {
    in_both_worlds(|| {
        for wanted in [For::TheSecond, For::WhatIsAfterTheSecond, For::WhatRuns] {
            for stop in
                [Stop::BeforeTheWait, Stop::ByAMember, Stop::ByAThread, Stop::ByAFailure, Stop::ByTheReceiver]
            {
                included_captures_wait(stop, wanted);
            }
        }
    });
}

#[test]
fn a_member_of_a_stopped_pool_gets_an_answer_from_what_the_pool_held_back() {
    in_both_worlds(|| {
        let held = Request::new(|| unreachable!());
        let after = held.then(|()| unreachable!());
        let mut pool = RequestPool::<()>::new().max_active(1);
        let (canceller, answers) = (pool.canceller(), Count::new());
        let (held2, told) = (held.clone(), answers.clone());
        pool.try_add(move || {
            canceller.cancel();
            for answer in [shield(|| after.wait()), shield(|| held2.wait())] {
                assert!(answer.is_err());
                told.up();
            }
            until_cancelled()
        });
        pool.include(held.clone());
        assert!(matches!(pool.wait(), Err(WaitError::TargetCancelled(CancelReason::PoolCancelled))));
        assert_eq!(answers.get(), 2);
    });
}

#[test]
fn the_receiver_of_a_stopped_pool_gets_an_answer_from_what_the_pool_held_back() {
    in_both_worlds(|| {
        let held = Request::new(|| unreachable!());
        let after = held.then(|()| unreachable!());
        let mut pool = RequestPool::new().max_active(1);
        let canceller = pool.canceller();
        pool.add(|| ());
        pool.include(held.clone());
        let mut answers = 0;
        let answer = pool.wait_each(|_, ()| {
            canceller.cancel();
            for answer in [after.wait(), held.wait()] {
                assert!(answer.is_err());
                answers += 1;
            }
        });
        assert!(matches!(answer, Err(WaitError::TargetCancelled(CancelReason::PoolCancelled))));
        assert_eq!(answers, 2);
    });
}

/// A pool is stopped while one of its members waits for what the waiter does next. `by_the_member`: the member stops it.
fn a_member_waits_for_captures(by_the_member: bool) {
    let (completer, answer) = Request::<()>::completer("answer");
    let (began, told) = (Flag::new(), Count::new());
    let mut pool = RequestPool::new().max_active(1);
    let (canceller, up, counts) = (pool.canceller(), began.clone(), told.clone());
    let stops = by_the_member.then(|| canceller.clone());
    pool.add(move || {
        stops.iter().for_each(|canceller| canceller.cancel());
        up.raise();
        assert!(matches!(shield(|| answer.wait().copied()), Err(WaitError::Failed(_))));
        counts.up();
    });
    pool.add(move || drop(completer));
    let thread = (!by_the_member).then(|| {
        thread::spawn(move || {
            hold_thread_until(|| began.is_up());
            canceller.cancel();
        })
    });
    assert!(matches!(pool.wait(), Err(WaitError::TargetCancelled(CancelReason::PoolCancelled))));
    assert_eq!(told.get(), 1);
    if let Some(thread) = thread {
        thread.joined().unwrap();
    }
}

/// The member that has begun is shielded, and waits for what is abandoned with the captures of one that never begins.
#[test]
fn a_stopped_pool_drops_what_has_not_begun_though_no_member_ends() {
    in_both_worlds(|| a_member_waits_for_captures(true));
    on_each_of(&[1, 2], |runtime| {
        runtime.enter(|| a_member_waits_for_captures(false));
        runtime.run(|| a_member_waits_for_captures(false));
    });
}

/// What is wanted is in the pool's hands, and so is the thread that waits for the pool; a thread that is no member wants it, and a member waits for that thread.
#[test]
fn a_thread_gets_an_answer_from_what_a_stopped_pool_held_back() {
    on_each_of(&[1, 2], |runtime| {
        let (held, told) = (Request::builder().on(runtime).build(|| ()), Event::new());
        let (began, wants) = (Flag::new(), held.clone());
        thread::scope(|s| {
            let (told, began2) = (&told, began.clone());
            s.spawn(move || {
                hold_thread_until(|| began2.is_up());
                assert!(wants.wait().is_err());
                told.set();
            });
            runtime.enter(|| {
                let mut pool = RequestPool::<()>::new().max_active(1);
                let canceller = pool.canceller();
                pool.try_add(move || {
                    began.raise();
                    canceller.cancel();
                    shield(|| told.wait())?;
                    until_cancelled()
                });
                pool.include(held.clone());
                assert!(pool.wait().is_err());
            });
        });
    });
}

/// The waiter is cancelled, and one of its lanes knows that already. The receiver does not: it is shielded.
#[test]
fn a_shielded_receiver_of_a_cancelled_waiter_gets_what_the_pool_holds_back() {
    on_each(|runtime| {
        let ran = Count::new();
        let up = ran.clone();
        let waiter = runtime.spawn(move || {
            let held = Request::builder().detached().build(move || _ = up.up());
            let mut pool = RequestPool::new().max_active(2);
            let (began, ended) = (Flag::new(), Flag::new());
            let (up, over, waits) = (began.clone(), ended.clone(), began.clone());
            pool.try_add(move || {
                up.raise();
                let answer = until_cancelled();
                over.raise();
                answer
            });
            pool.try_add(move || {
                waits.wait();
                Ok(())
            });
            pool.include(held.clone());
            let answer = pool.wait_each(|_, ()| {
                Request::current().unwrap().cancel();
                ended.wait();
                shield(|| {
                    // So that the lane is over.
                    (0..20).for_each(|_| yield_now().unwrap());
                    held.wait().unwrap();
                });
            });
            assert!(matches!(answer, Err(WaitError::Cancelled)));
        });
        until(|| waiter.is_done());
        assert_eq!((waiter.state(), ran.get()), (State::Cancelled, 1));
    });
}

/// Waits for a pool whose one member raises the flag and runs until it is cancelled, so that the pool holds the included requests back.
fn holds_back<const N: usize>(began: Flag, included: [Request<()>; N]) -> Result<(), Error> {
    let mut pool = RequestPool::<()>::new().max_active(1);
    pool.try_add(move || {
        began.raise();
        until_cancelled()
    });
    for request in included {
        pool.include(request);
    }
    Ok(pool.wait()?)
}

/// A request waits for a pool that holds two requests back, and is stopped by `stop`; the captures of the first wait for the second.
fn a_waiter_stops(runtime: &Runtime, timeout: Option<Duration>, stop: impl Fn(&Request<()>)) {
    let (captures, place, ends) = waits_for();
    let first = Request::builder().on(runtime).build(move || drop(captures));
    let second = Request::builder().on(runtime).build(|| ());
    place.set(second.clone()).unwrap();
    let began = Flag::new();
    let (up, included) = (began.clone(), [first.clone(), second.clone()]);
    let mut builder = Request::builder().on(runtime).name("waiter");
    if let Some(timeout) = timeout {
        builder = builder.timeout(timeout);
    }
    let waiter = builder.try_spawn(move || holds_back(up, included));
    began.wait();
    first.submit();
    stop(&waiter);
    until(|| waiter.is_done());
    assert_eq!(waiter.state(), State::Cancelled);
    until(|| first.is_done());
    until(|| ends.get() == 1);
}

#[test]
fn a_pool_whose_waiter_is_cancelled_expires_or_is_shut_down_releases_what_it_held_back() {
    on_each(|runtime| a_waiter_stops(runtime, None, |waiter| _ = waiter.abort(CancelReason::Aborted)));
    on_each_clocked(|runtime, clock| {
        a_waiter_stops(runtime, Some(Duration::from_secs(1)), |_| _ = clock.advance(Duration::from_secs(2)));
    });
    on_each_of(&[1, 2], |runtime| {
        a_waiter_stops(runtime, None, |_| runtime.shutdown(Duration::from_secs(60)).unwrap());
    });
}

#[test]
fn a_pool_that_is_dropped_unwaited_drops_captures_that_wait_for_each_other() {
    in_both_worlds(|| {
        let (captures, place, ends) = waits_for();
        let (first, second) = (Request::new(move || drop(captures)), Request::new(|| ()));
        place.set(second.then(|()| ())).unwrap();
        let mut pool = RequestPool::<()>::new();
        pool.include(first).include(second);
        drop(pool);
        assert_eq!(ends.get(), 1);
        assert_eq!(place.get().unwrap().state(), State::Finished);
    });
}

#[test]
fn a_set_that_is_cancelled_marks_all_before_it_ends_any() {
    in_both_worlds(|| {
        let runtime = Runtime::current();
        let (captures, place, ends) = waits_for();
        let second = endless(&runtime);
        place.set(second.clone()).unwrap();
        let (_completer, first) = unstarted(&runtime, captures);
        RequestSet::from_iter([first.clone(), second.clone()]).cancel();
        assert_eq!(ends.get(), 1);
        ends_cancelled(&first);
        ends_cancelled(&second);
    });
}

/// A cancel of both has been vetoed by this wait alone, which ends now.
fn leaves_together(leave: impl Fn([&Request<()>; 2], &dyn Fn())) {
    let runtime = Runtime::current();
    let (captures, place, ends) = waits_for();
    let second = endless(&runtime);
    place.set(second.clone()).unwrap();
    let (_completer, first) = unstarted(&runtime, captures);
    leave([&first, &second], &|| {
        for request in [&first, &second] {
            assert_eq!(request.cancel(), Cancellation::Vetoed);
        }
    });
    until(|| first.is_done() && second.is_done());
    assert_eq!(ends.get(), 1);
    ends_cancelled(&first);
    ends_cancelled(&second);
}

#[test]
fn a_set_that_is_dropped_leaves_all_before_any_ends() {
    in_both_worlds(|| {
        leaves_together(|both, cancel| {
            let set: RequestSet<()> = both.into_iter().cloned().collect();
            cancel();
            drop(set);
        });
    });
}

#[test]
fn a_wait_for_all_that_fails_leaves_all_before_any_ends() {
    on_each(|runtime| {
        runtime.enter(|| {
            leaves_together(|[first, second], cancel| {
                let (completer, third) = Request::<()>::completer("third");
                let all = [first.clone(), second.clone(), third];
                let waiter = runtime.spawn(move || wait_all(&all).is_err());
                asleep(&waiter);
                cancel();
                completer.fail(Error::other("no"));
                assert!(waiter.take().unwrap());
            });
        });
    });
}

#[test]
fn a_select_that_ends_leaves_all_before_any_ends() {
    on_each(|runtime| {
        runtime.enter(|| {
            leaves_together(|[first, second], cancel| {
                let event = Arc::new(Event::new());
                let (first, second, happens) = (first.clone(), second.clone(), event.clone());
                let waiter = Request::builder().on(runtime).own_stack().spawn(move || {
                    select! {
                        _ = &first => false,
                        _ = &second => false,
                        happened = &*happens => happened.is_ok(),
                    }
                });
                asleep(&waiter);
                cancel();
                event.set();
                assert!(waiter.take().unwrap());
            });
        });
    });
}

/// Calls a closure when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A request that nobody runs, whose captures cancel the request that looks at it.
fn cancels_who_looks(runtime: &Runtime) -> Request<()> {
    let made = Arc::new(OnceLock::new());
    let place = made.clone();
    let maker = runtime.spawn(move || {
        let captures = OnDrop(|| _ = Request::current().unwrap().abort(CancelReason::Aborted));
        place.set(Request::new(move || drop(captures))).unwrap();
        until(is_cancelled);
    });
    until(|| made.get().is_some());
    maker.cancel();
    until(|| maker.is_done());
    made.get().unwrap().clone()
}

/// The select has submitted two, and stands in no list, when its request is cancelled.
#[test]
fn a_select_that_is_refused_asks_all_that_it_has_submitted_before_one_of_them_ends() {
    on_each(|runtime| {
        runtime.enter(|| {
            let (captures, place, ends) = waits_for();
            let (_completer, gate) = Request::<()>::completer("gate");
            let first = Request::builder().detached().after(&gate).build(move || drop(captures));
            let second = Request::builder().own_stack().detached().try_build(until_cancelled);
            place.set(second.clone()).unwrap();
            let arms = [first.clone(), second.clone(), cancels_who_looks(runtime)];
            let waiter = Request::builder().own_stack().spawn(move || {
                let [first, second, third] = &arms;
                select! {
                    biased;
                    _ = first => 1,
                    _ = second => 2,
                    answer = third => {
                        assert!(matches!(answer, Err(WaitError::Cancelled)), "{answer:?}");
                        3
                    }
                }
            });
            waiter.submit();
            until(|| waiter.is_done() && first.is_done() && second.is_done());
            assert_eq!(ends.get(), 1);
            ends_cancelled(&first);
            ends_cancelled(&second);
        });
    });
}

#[test]
fn a_scope_of_a_thread_that_is_stopped_marks_all_jobs_before_it_ends_any() {
    on_each(|runtime| {
        runtime.enter(|| {
            let (captures, place, ends) = waits_for();
            let (_completer, gate) = Request::<()>::completer("gate");
            let began = Flag::new();
            scope(|s| {
                let job = Request::builder().after(&gate).spawn_in(s, move || drop(captures));
                let up = began.clone();
                let second = s.try_spawn(move || {
                    up.raise();
                    until_cancelled()
                });
                place.set(second).unwrap();
                began.wait();
                s.cancel();
                until(|| job.is_done());
            });
            assert_eq!(ends.get(), 1);
        });
    });
}

/// The dependent is ended by its worker's loop, since its parent is cancelled; what it alone wants goes with it.
#[test]
fn a_dependent_that_ends_leaves_all_that_it_is_after_before_any_of_that_ends() {
    on_each(|runtime| {
        let (captures, place, ends) = waits_for();
        let (_completer, gate) = Request::<()>::completer("gate");
        // Asleep, so that it does not see its mark by itself.
        let second =
            Request::builder().own_stack().detached().on(runtime).try_build(|| Ok(Event::new().wait()?));
        let first = Request::builder().detached().on(runtime).after(&gate).build(move || drop(captures));
        place.set(second.clone()).unwrap();
        let both = [first.clone(), second.clone()];
        let made = Arc::new(OnceLock::new());
        let child = made.clone();
        let parent = runtime.spawn(move || {
            let dependent = then_all((&both[0], &both[1]), |_| ());
            dependent.submit();
            child.set(dependent).unwrap();
            until(is_cancelled);
        });
        until(|| made.get().is_some());
        asleep(&second);
        parent.cancel();
        ends_cancelled(made.get().unwrap());
        until(|| first.is_done() && second.is_done());
        assert_eq!(ends.get(), 1);
        ends_cancelled(&first);
        ends_cancelled(&second);
    });
}

/// Waits for its own request when it is dropped.
struct WaitsForItself(Arc<OnceLock<AnyRequest>>, Count);

impl Drop for WaitsForItself {
    fn drop(&mut self) {
        if matches!(self.0.get().unwrap().wait(), Err(WaitError::CircularWait(_))) {
            self.1.up();
        }
    }
}

#[test]
fn a_cancel_by_a_thread_that_no_runtime_has_met_names_a_wait_of_captures_for_their_own_request() {
    on_each(|runtime| {
        let (itself, told) = (Arc::new(OnceLock::new()), Count::new());
        let captures = WaitsForItself(itself.clone(), told.clone());
        let request = Request::builder().on(runtime).build(move || drop(captures));
        itself.set(request.to_untyped()).unwrap();
        let thread = thread::spawn(move || request.cancel());
        assert_eq!(thread.joined().unwrap(), Cancellation::Marked);
        assert_eq!(told.get(), 1);
    });
}

/// A thread that blocks in the first's captures leaves the second to workers, which have gone.
#[test]
fn what_a_thread_cancels_together_ends_also_when_the_workers_have_gone() {
    on_each_of(&[1, 2], |runtime| {
        let (captures, place, ends) = waits_for();
        let first = Request::builder().on(runtime).build(move || drop(captures));
        let second = Request::builder().on(runtime).build(|| ());
        place.set(second.clone()).unwrap();
        runtime.shutdown(Duration::from_secs(60)).unwrap();
        RequestSet::from_iter([first.clone(), second.clone()]).cancel();
        assert_eq!(ends.get(), 1);
        ends_cancelled(&first);
        ends_cancelled(&second);
    });
}

/// In the synchronous mode the first of the released runs on the thread that releases, which has not come to the second. Elsewhere that is a race.
#[test]
fn what_is_cancelled_while_a_pool_releases_ends_when_all_is_released() {
    // The waiter of a pool that holds three back is cancelled. The first that is released cancels the parent of the second. The captures of the second
    // wait for the third.
    let releases = |runtime: &Runtime| {
        let (captures, place, ends) = waits_for();
        let made = Arc::new(OnceLock::new());
        let child = made.clone();
        let parent = Request::builder().detached().on(runtime).try_spawn(move || {
            child.set(Request::new(move || drop(captures))).unwrap();
            Ok(Event::new().wait()?)
        });
        asleep(&parent);
        let second = made.get().unwrap().clone();
        let cancelled = parent.clone();
        let first = Request::builder().on(runtime).build(move || _ = cancelled.abort(CancelReason::Aborted));
        let third = Request::builder().on(runtime).build(|| ());
        place.set(third.clone()).unwrap();
        let (began, included) = (Flag::new(), [first.clone(), second.clone(), third.clone()]);
        let up = began.clone();
        let waiter = Request::builder().on(runtime).try_spawn(move || holds_back(up, included));
        began.wait();
        for request in [&first, &second, &third] {
            request.submit();
        }
        waiter.abort(CancelReason::Aborted);
        until(|| [&waiter, &parent, &first, &second, &third].iter().all(|request| request.is_done()));
        assert_eq!((first.state(), third.state()), (State::Finished, State::Finished));
        assert_eq!(ends.get(), 1);
        second.state()
    };
    on_each(|runtime| _ = releases(runtime));
    let _dog = Watchdog::new("synchronous");
    assert_eq!(releases(&Kind::Synchronous.build()), State::Cancelled);
}

/// The workers have gone, so both dependents are refused. Which of them the finisher finds first is its own affair.
#[test]
fn dependents_of_a_completion_end_together_when_the_workers_have_gone() {
    for (completes, is_first) in [(true, true), (true, false), (false, true), (false, false)] {
        on_each_of(&[1, 2], |runtime| {
            let (captures, place, ends) = waits_for();
            let (completer, answer) = runtime.enter(|| Request::completer("answer"));
            let after = || Request::builder().detached().on(runtime).after(&answer);
            let waits = after().build(move || drop(captures));
            let wanted = after().build(|| ());
            place.set(wanted.clone()).unwrap();
            let both = if is_first { [&waits, &wanted] } else { [&wanted, &waits] };
            both.into_iter().for_each(|dependent| _ = dependent.submit());
            runtime.shutdown(Duration::from_secs(60)).unwrap();
            assert!(both.iter().all(|dependent| !dependent.is_done()));
            if completes {
                completer.complete(()).unwrap();
            } else {
                drop(completer);
            }
            assert_eq!(ends.get(), 1);
            ends_cancelled(&waits);
            ends_cancelled(&wanted);
        });
    }
}

/// A job of a plain thread's scope fails when the body is over. That cancels another job, which has not begun, and whose captures wait for the one that
/// fails.
#[test]
fn what_a_failing_job_cancels_may_wait_for_that_job() {
    on_each_of(&[1], |runtime| {
        let (captures, place, ends) = waits_for();
        let (began, go) = (Flag::new(), Flag::new());
        thread::scope(|threads| {
            let (up, goes) = (began.clone(), go.clone());
            let body = || {
                try_scope(|s| {
                    let fails = s.try_spawn(move || -> Result<(), Error> {
                        up.raise();
                        hold_thread_until(|| goes.is_up());
                        Err(std::fmt::Error.into())
                    });
                    began.wait();
                    place.set(fails).unwrap();
                    drop(s.spawn(move || drop(captures)));
                    Ok(())
                })
            };
            let opener = thread::Builder::new().name("opener".into());
            let opener = opener.spawn_scoped(threads, || runtime.enter(body)).unwrap();
            until(|| runtime.dump().threads.iter().any(|thread| thread.name == "opener"));
            go.raise();
            assert!(opener.joined().unwrap().is_err());
        });
        assert_eq!(ends.get(), 1);
    });
}

/// Its destructor waits for a request.
#[derive(Debug)]
struct ErrorWaitsFor(#[expect(dead_code, reason = "for its destructor")] WaitsFor);

impl std::fmt::Display for ErrorWaitsFor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("waits")
    }
}

impl std::error::Error for ErrorWaitsFor {}

/// The last job of a scope ends, which ends the header of its parent, a job of another scope that has failed. What that has failed with waits for the
/// request whose scope it is.
#[test]
fn an_error_that_goes_with_the_last_job_of_a_scope_may_wait_for_the_scope() {
    on_each_of(&[1, 2, 4], |runtime| {
        let (error, place, ends) = waits_for();
        let opener = Request::builder().name("opener").own_stack().on(runtime).build(move || {
            let answer = try_scope(|outer| {
                drop(outer.spawn(move || {
                    let (began, over) = (Flag::new(), Flag::new());
                    let (up, down) = (began.clone(), over.clone());
                    let answer = try_scope(|inner| {
                        drop(inner.try_spawn(move || -> Result<(), Error> {
                            drop(outer.spawn(move || {
                                up.raise();
                                down.wait();
                            }));
                            began.wait();
                            Err(ErrorWaitsFor(error).into())
                        }));
                        Ok(())
                    });
                    assert!(matches!(&answer, Err(WaitError::Failed(_))));
                    drop(answer);
                    over.raise();
                }));
                Ok(())
            });
            // The child of the job that has failed is cancelled for that.
            assert!(matches!(answer, Err(WaitError::Cancelled)));
        });
        place.set(opener.clone()).unwrap();
        opener.submit();
        opener.wait().unwrap();
        until(|| ends.get() == 1);
    });
}

/// A thread that blocks admits what a pool holds back, since no member goes on. That is refused, for its maker has been cancelled meanwhile. Its captures
/// wait, and not in the middle of the wait of that thread.
#[test]
fn what_a_blocking_thread_admits_and_is_refused_ends_outside_of_its_wait() {
    on_each_of(&[1], |runtime| {
        let (captures, place, ends) = waits_for();
        place.set(Request::builder().own_stack().on(runtime).build(|| ())).unwrap();
        let made = Arc::new(OnceLock::new());
        let child = made.clone();
        let parent = Request::builder().detached().on(runtime).try_spawn(move || {
            child.set(Request::new(move || drop(captures))).unwrap();
            Ok(Event::new().wait()?)
        });
        asleep(&parent);
        let included = made.get().unwrap().clone();
        let (began, asked, stands) = (Flag::new(), Flag::new(), Arc::new(Event::new()));
        let waiter = {
            let (included, up, asked, stands) =
                (included.clone(), began.clone(), asked.clone(), stands.clone());
            Request::builder().on(runtime).try_spawn(move || {
                let mut pool = RequestPool::<()>::new().max_active(1);
                pool.try_add(move || {
                    up.raise();
                    hold_thread_until(|| asked.is_up());
                    Ok(stands.wait()?)
                });
                pool.include(included);
                Ok(pool.wait()?)
            })
        };
        began.wait();
        thread::scope(|threads| {
            // Only a look: a wait would be demand, and nothing were refused.
            let wanted = included.clone();
            let asker = thread::Builder::new().name("asker".into());
            let asker = asker.spawn_scoped(threads, move || wanted.watch().is_err()).unwrap();
            until(|| runtime.dump().threads.iter().any(|thread| thread.name == "asker"));
            // The only worker has something to do when the member stands still. So it does not look at the pool.
            let (busy, free) = (Flag::new(), Flag::new());
            let (up, go) = (busy.clone(), free.clone());
            let holder = Request::builder().on(runtime).spawn(move || {
                up.raise();
                hold_thread_until(|| go.is_up());
            });
            asked.raise();
            hold_thread_until(|| busy.is_up());
            assert_eq!(parent.abort(CancelReason::Aborted), Cancellation::Marked);
            let timed_out = Event::new().wait_timeout(Duration::from_micros(1));
            assert!(timed_out.is_err());
            free.raise();
            assert!(asker.joined().unwrap());
            holder.wait().unwrap();
        });
        stands.set();
        assert!(waiter.wait().is_err());
        ends_cancelled(&included);
        until(|| ends.get() == 1);
    });
}
