//! What a stopped pool held back: a waiter for it gets an answer, and what the pool releases ends outside of any wait.

use super::*;

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

/// A request that sleeps, and a child of it with these captures that has not been submitted.
fn sleeper_with_child(runtime: &Runtime, captures: WaitsFor) -> (Request<()>, Request<()>) {
    let made = Arc::new(OnceLock::new());
    let child = made.clone();
    let parent = Request::builder().detached().on(runtime).try_spawn(move || {
        child.set(Request::new(move || drop(captures))).unwrap();
        Ok(Event::new().wait()?)
    });
    asleep(&parent);
    (parent, made.get().unwrap().clone())
}

/// In the synchronous mode the first of the released runs on the thread that releases, which has not come to the second. Elsewhere that is a race.
#[test]
fn what_is_cancelled_while_a_pool_releases_ends_when_all_is_released() {
    // The waiter of a pool that holds three back is cancelled. The first that is released cancels the parent of the second. The captures of the second
    // wait for the third.
    let releases = |runtime: &Runtime| {
        let (captures, place, ends) = waits_for();
        let (parent, second) = sleeper_with_child(runtime, captures);
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

/// In the synchronous mode the first of the released runs on the thread that releases, and is over when the runtime is shut. Elsewhere that is a race.
#[test]
fn what_a_shutdown_refuses_while_a_pool_releases_ends_when_all_is_released() {
    // The captures of the second wait for the third.
    let releases = |runtime: &Runtime| {
        let (captures, place, ends) = waits_for();
        let (began, runs) = (Flag::new(), Flag::new());
        let up = runs.clone();
        let first = Request::builder().on(runtime).build(move || {
            up.raise();
            while !is_cancelled() {
                thread::yield_now();
            }
        });
        let second = Request::builder().on(runtime).build(move || drop(captures));
        let third = Request::builder().on(runtime).build(|| ());
        place.set(third.clone()).unwrap();
        let (up, included) = (began.clone(), [first.clone(), second.clone(), third.clone()]);
        let waiter = Request::builder().on(runtime).try_spawn(move || holds_back(up, included));
        began.wait();
        for request in [&first, &second, &third] {
            request.submit();
        }
        thread::scope(|threads| {
            let shutdown = threads.spawn(|| {
                hold_thread_until(|| runs.is_up());
                // Without workers it does not wait for what stands on the other thread, and names that.
                _ = runtime.shutdown(Duration::from_secs(60));
            });
            waiter.abort(CancelReason::Aborted);
            until(|| [&waiter, &first, &second, &third].iter().all(|request| request.is_done()));
            shutdown.joined().unwrap();
        });
        assert_eq!(ends.get(), 1);
        second
    };
    on_each(|runtime| _ = releases(runtime));
    let _dog = Watchdog::new("synchronous");
    assert_eq!(ends_cancelled(&releases(&Kind::Synchronous.build())), CancelReason::Shutdown);
}

/// A thread that blocks admits what a pool holds back, since no member goes on. That is refused, for its maker has been cancelled meanwhile. Its captures
/// wait, and not in the middle of the wait of that thread.
#[test]
fn what_a_blocking_thread_admits_and_is_refused_ends_outside_of_its_wait() {
    on_each_of(&[1], |runtime| {
        let (captures, place, ends) = waits_for();
        place.set(Request::builder().own_stack().on(runtime).build(|| ())).unwrap();
        let (parent, included) = sleeper_with_child(runtime, captures);
        // The pool waits on a worker of another runtime.
        let other = Runtime::builder().workers(1).build().unwrap();
        let (began, asked, stands) = (Flag::new(), Flag::new(), Arc::new(Event::new()));
        let waiter = {
            let (included, up, asked, stands) =
                (included.clone(), began.clone(), asked.clone(), stands.clone());
            Request::builder().on(&other).try_spawn(move || {
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
            // Neither worker has time: the one does not deliver the mark of the parent, the other does not look at the pool when its member stands still.
            let free = Flag::new();
            let holder = |on: &Runtime| {
                let (busy, go) = (Flag::new(), free.clone());
                let up = busy.clone();
                let holder = Request::builder().on(on).spawn(move || {
                    up.raise();
                    hold_thread_until(|| go.is_up());
                });
                (holder, busy)
            };
            let (of_parent, busy) = holder(runtime);
            hold_thread_until(|| busy.is_up());
            assert_eq!(parent.abort(CancelReason::Aborted), Cancellation::Marked);
            let (of_pool, busy) = holder(&other);
            // Only a look: a wait would be demand, and nothing were refused.
            let wanted = included.clone();
            let asker = thread::Builder::new().name("asker".into());
            let asker = asker.spawn_scoped(threads, move || wanted.watch().is_err()).unwrap();
            until(|| runtime.dump().threads.iter().any(|thread| thread.name == "asker"));
            asked.raise();
            hold_thread_until(|| busy.is_up());
            let timed_out = Event::new().wait_timeout(Duration::from_micros(1));
            assert!(timed_out.is_err());
            free.raise();
            assert!(asker.joined().unwrap());
            of_parent.wait().unwrap();
            of_pool.wait().unwrap();
        });
        stands.set();
        assert!(waiter.wait().is_err());
        ends_cancelled(&included);
        until(|| ends.get() == 1);
    });
}
