//! Requests as futures: `(&request).await`, `request.await`, on executors of other crates. `tests/bridges/wakers.rs` has wakers that do their worst.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/executor.rs"]
mod executor;
#[path = "../support/mod.rs"]
mod support;

use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread;

use cancelling::{Gate, asleep, ends_cancelled};
use executor::{Unparker, behind, drive, poll, poll_by};
use forebear::{
    AnyRequest, CancelReason, Cancellation, DoneFuture, Request, Runtime, ShutdownError, TakeFuture,
    WaitError, WaitFuture, block_on, check_cancelled, spawn, yield_now,
};
use support::order::root;
use support::{Come, Flag, Joined, Kind, Modes, not_on, on_each, on_each_of, runtime, until};

const NO_DRIVER: &str = "an executor of another crate drives no requests";

// ---- what a future answers -------------------------------------------------------------------------------------------

#[test]
fn a_future_answers_as_the_wait_does() {
    let _out = not_on(Modes::Both, NO_DRIVER);
    on_each(|runtime| {
        let value = root(runtime).build(|| vec![1, 2]);
        assert_eq!(drive((&value).into_future()).unwrap(), &[1, 2]);
        assert_eq!(drive((&value.to_untyped()).into_future()).unwrap(), ());
        assert_eq!(drive((&value).into_future()).unwrap(), &[1, 2]);
        assert_eq!(drive(value.into_future()).unwrap(), [1, 2]);

        let shared = root(runtime).build(|| 1);
        let other = shared.clone();
        assert!(matches!(drive(shared.into_future()), Err(WaitError::Shared)));
        assert_eq!(other.get(), Some(&1));

        let bad = root(runtime).name("bad").try_build::<u32>(|| Err(forebear::Error::other("no")));
        let Err(WaitError::Failed(failure)) = drive((&bad).into_future()) else { panic!() };
        assert_eq!(failure.request(), "bad");
        let panics = root(runtime).build::<u32>(|| panic!("yes"));
        assert!(matches!(drive(panics.into_future()), Err(WaitError::Failed(failure)) if failure.is_panic()));
        let never = root(runtime).build(|| 1);
        never.abort(CancelReason::Other(3));
        let answer = drive((&never).into_future());
        assert!(matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Other(3)))));
        assert_eq!(drive(Request::ready(5).into_future()).unwrap(), 5);
    });
}

#[test]
fn a_poll_submits_and_runs_nothing() {
    on_each_of(&[1, 2], |runtime| {
        let here = thread::current().id();
        let request = root(runtime).build(move || thread::current().id() != here);
        let mut future = (&request).into_future();
        let _ = poll(&mut future);
        drop(future);
        assert_eq!(request.wait().unwrap(), &true);
    });
}

#[test]
fn the_waker_is_called_once() {
    on_each_of(&[1, 2], |runtime| {
        let mut gate = Gate::new(runtime);
        let request = behind(runtime, &gate);
        let (first, last) = (Unparker::here(), Unparker::here());
        let (mut future, mut other) = ((&request).into_future(), request.clone().into_future());
        assert!(poll_by(&mut future, &Waker::from(first.clone())).is_pending());
        assert!(poll_by(&mut other, &Waker::from(first.clone())).is_pending());
        // The task that polls last is woken, and nobody else.
        for _ in 0..3 {
            assert!(poll_by(&mut other, &Waker::from(last.clone())).is_pending());
        }
        gate.open();
        until(|| first.times() + last.times() == 2);
        assert_eq!((first.times(), last.times()), (1, 1));
        assert!(matches!(poll_by(&mut future, &Waker::from(last.clone())), Poll::Ready(Ok(7))));
        drop(other);
        assert_eq!((first.times(), last.times()), (1, 1));
        assert_eq!(Arc::strong_count(&first), 1, "a waker is kept");
        assert_eq!(Arc::strong_count(&last), 1, "a waker is kept");
    });
}

#[test]
fn a_future_polled_after_its_end_is_a_named_panic() {
    fn twice<F: Future + Unpin>(mut future: F) -> String {
        assert!(poll(&mut future).is_ready());
        let panicked = catch_unwind(AssertUnwindSafe(|| poll(&mut future).is_ready()));
        *panicked.unwrap_err().downcast::<String>().unwrap()
    }
    let seven = Request::ready(7);
    assert_eq!(twice((&seven).into_future()), "forebear: a `WaitFuture` was polled after its end");
    assert_eq!(
        twice((&seven.to_untyped()).into_future()),
        "forebear: a `DoneFuture` was polled after its end"
    );
    assert_eq!(twice(seven.into_future()), "forebear: a `TakeFuture` was polled after its end");
}

#[test]
fn futures_go_to_other_threads_if_the_value_may() {
    fn sends<T: Send + Unpin>() {}
    sends::<WaitFuture<'_, u32>>();
    sends::<TakeFuture<u32>>();
    sends::<DoneFuture<'_>>();
}

// ---- demand and drops ------------------------------------------------------------------------------------------------

#[test]
fn a_future_is_demand_until_it_is_dropped() {
    on_each_of(&[1, 2], |runtime| {
        let gate = Gate::new(runtime);
        let request = behind(runtime, &gate);
        let mut future = (&request).into_future();
        assert!(poll(&mut future).is_pending());
        asleep(&request);
        assert_eq!(request.cancel(), Cancellation::Vetoed);
        assert!(!request.is_cancelled());
        drop(future);
        ends_cancelled(&request);
    });
}

#[test]
fn dropping_the_future_of_a_reference_withdraws_and_no_more() {
    on_each_of(&[1, 2], |runtime| {
        let mut gate = Gate::new(runtime);
        let request = behind(runtime, &gate);
        let mut future = (&request).into_future();
        assert!(poll(&mut future).is_pending());
        drop(future);
        assert!(!request.is_cancelled());
        gate.open();
        assert_eq!(request.take().unwrap(), 7);
    });
}

#[test]
fn dropping_the_future_of_a_request_cancels_it() {
    on_each_of(&[1, 2], |runtime| {
        for polls in 0..2 {
            let gate = Gate::new(runtime);
            let request = behind(runtime, &gate);
            let any = request.to_untyped();
            let mut future = request.into_future();
            for _ in 0..polls {
                assert!(poll(&mut future).is_pending());
            }
            drop(future);
            assert_eq!(cancelling::was_cancelled(&any), CancelReason::Asked);
        }
    });
}

#[test]
fn dropping_the_future_of_a_request_spares_what_others_want() {
    on_each_of(&[1, 2], |runtime| {
        let mut gate = Gate::new(runtime);
        let request = behind(runtime, &gate);
        let (mut one, mut two) = (request.clone().into_future(), (&request).into_future());
        assert!(poll(&mut one).is_pending() && poll(&mut two).is_pending());
        drop(one);
        assert!(!request.is_cancelled());
        gate.open();
        assert_eq!(drive(&mut two).unwrap(), &7);
    });
}

#[test]
fn futures_dropped_at_every_step_leave_nothing() {
    on_each_of(&[1, 2], |runtime| {
        let alive = Arc::new(());
        for step in 0..5 {
            for ending in 0..3 {
                let mut gate = Gate::new(runtime);
                let (target, here) = (gate.request(), alive.clone());
                let request = root(runtime).try_build(move || {
                    target.wait()?;
                    match ending {
                        0 => Ok(here),
                        1 => Err(forebear::Error::other("no")),
                        _ => panic!("{here:?}"),
                    }
                });
                request.on_failed(|_| ());
                let woken = Unparker::here();
                let waker = Waker::from(woken.clone());
                let kept = request.clone();
                let mut of_reference = (&kept).into_future();
                let mut of_handle = request.into_future();
                if step > 0 {
                    assert!(poll_by(&mut of_reference, &waker).is_pending());
                    assert!(poll_by(&mut of_handle, &waker).is_pending());
                }
                if step > 1 {
                    gate.open();
                }
                if step > 2 {
                    until(|| woken.times() == 2);
                }
                if step > 3 {
                    assert!(poll_by(&mut of_reference, &waker).is_ready());
                    assert!(poll_by(&mut of_handle, &waker).is_ready());
                }
                drop(of_reference);
                drop(of_handle);
                drop(gate);
                let _ = kept.wait();
                drop(kept);
                // Whoever still gives something back is on its way.
                until(|| Arc::strong_count(&woken) == 2);
            }
        }
        until(|| Arc::strong_count(&alive) == 1);
    });
}

// ---- in requests -----------------------------------------------------------------------------------------------------

#[test]
fn a_poll_in_a_cancelled_request_is_refused() {
    on_each_of(&[1, 2], |runtime| {
        let gate = Gate::new(runtime);
        let target = behind(runtime, &gate);
        let (other, started) = (target.clone(), Flag::new());
        let up = started.clone();
        let poller = root(runtime).spawn(move || {
            let mut future = (&other).into_future();
            assert!(poll(&mut future).is_pending());
            up.raise();
            while check_cancelled().is_ok() {
                let _ = yield_now();
            }
            matches!(poll(&mut future), Poll::Ready(Err(WaitError::Cancelled)))
        });
        let seen = Arc::new(Mutex::new(None));
        let told = seen.clone();
        started.wait();
        let watcher = poller.clone();
        poller.on_cancelled(move || *told.lock().unwrap() = Some(()));
        poller.abort(CancelReason::Asked);
        ends_cancelled(&watcher);
        assert!(seen.lock().unwrap().is_some());
        // Nobody else has submitted it: it goes with the one that wanted it.
        ends_cancelled(&target);
    });
}

#[test]
fn who_waits_for_what_its_own_future_wants_continues_at_once_when_it_is_cancelled() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (target, (give, given)) = (gate.request(), mpsc::channel());
        let waiter = root(runtime).try_spawn(move || {
            let wanted = Request::new(move || target.wait().copied());
            let mut future = (&wanted).into_future();
            assert!(poll(&mut future).is_pending());
            give.send(wanted.clone()).unwrap();
            wanted.wait()?.clone()?;
            drop(future);
            Ok(())
        });
        let wanted: Request<Result<(), WaitError>> = given.come().unwrap();
        asleep(&wanted);
        assert_eq!(waiter.cancel(), Cancellation::Marked);
        ends_cancelled(&waiter);
        ends_cancelled(&wanted);
    });
}

#[test]
fn a_request_that_polls_itself_is_told_the_cycle() {
    on_each(|runtime| {
        let (give, own) = mpsc::channel::<AnyRequest>();
        let request = root(runtime).name("self").build(move || {
            let own = own.recv().unwrap();
            let mut future = (&own).into_future();
            match poll(&mut future) {
                Poll::Ready(Err(WaitError::CircularWait(cycle))) => cycle.to_string(),
                other => panic!("{other:?}"),
            }
        });
        give.send(request.to_untyped()).unwrap();
        assert!(request.take().unwrap().contains("self"));
    });
}

#[test]
fn a_request_awaits_others_by_block_on() {
    on_each(|runtime| {
        let made = root(runtime).spawn(|| {
            let requests: Vec<_> = (0..10).map(|n| spawn(move || n)).collect();
            block_on(async {
                let mut sum = 0;
                for request in &requests {
                    sum += request.await?;
                }
                Ok::<i32, WaitError>(sum)
            })
        });
        assert_eq!(made.take().unwrap().unwrap().unwrap(), 45);
        // And on the thread, whose wait drives those runtimes that have no threads.
        let seven = root(runtime).build(|| 7);
        assert_eq!(block_on(&seven).unwrap().unwrap(), &7);
    });
}

// ---- executors -------------------------------------------------------------------------------------------------------

/// Thousands of requests, of which every third is dropped before its end and every fifth awaited by reference.
async fn many(runtime: Runtime, each: usize) -> usize {
    let mut over = 0;
    for n in 0..each {
        let request = root(&runtime).try_build(move || {
            yield_now()?;
            Ok(n)
        });
        if n % 3 == 0 {
            let mut future = request.into_future();
            let _ = poll(&mut future);
            continue;
        }
        let value = match n % 5 {
            0 => (&request).await.copied(),
            _ => request.await,
        };
        over += usize::from(value.is_ok_and(|value| value == n));
    }
    over
}

const TASKS: usize = 8;
const EACH: usize = 600;
const WHOLE: usize = EACH - EACH.div_ceil(3);

#[test]
fn tokio_awaits_thousands_of_requests() {
    on_each_of(&[1, 2], |runtime| {
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let over = tokio.block_on(async {
            let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(many(runtime.clone(), EACH))).collect();
            let mut over = 0;
            for task in tasks {
                over += task.await.unwrap();
            }
            over
        });
        assert_eq!(over, TASKS * WHOLE);
    });
}

#[test]
fn a_task_of_tokio_that_is_aborted_cancels_its_request() {
    on_each_of(&[1, 2], |runtime| {
        let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let gate = Gate::new(runtime);
        let request = behind(runtime, &gate);
        let any = request.to_untyped();
        tokio.block_on(async {
            let task = tokio::spawn(request.into_future());
            tokio::task::yield_now().await;
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
        });
        assert_eq!(cancelling::was_cancelled(&any), CancelReason::Asked);
    });
}

#[test]
fn smols_executor_awaits_thousands_of_requests() {
    on_each_of(&[1, 2], |runtime| {
        let executor = Arc::new(async_executor::Executor::new());
        let tasks: Vec<_> = (0..TASKS).map(|_| executor.spawn(many(runtime.clone(), EACH))).collect();
        let (stop, stopped) = (Flag::new(), Unparker::here());
        let runners: Vec<_> = (0..2)
            .map(|_| {
                let (executor, stop) = (executor.clone(), stop.clone());
                thread::spawn(move || {
                    while !stop.is_up() {
                        if !executor.try_tick() {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let over: usize = tasks.into_iter().map(drive).sum();
        stop.raise();
        runners.into_iter().for_each(|runner| runner.join().unwrap());
        drop(stopped);
        assert_eq!(over, TASKS * WHOLE);
    });
}

#[test]
fn a_hand_written_executor_awaits_and_drops_thousands_at_once() {
    on_each_of(&[1, 2, 4], |runtime| {
        let mut gate = Gate::new(runtime);
        let request = behind(runtime, &gate);
        let woken = Unparker::here();
        let waker = Waker::from(woken.clone());
        let mut futures: Vec<_> = (0..5_000).map(|_| (&request).into_future()).collect();
        for future in &mut futures {
            assert!(poll_by(future, &waker).is_pending());
        }
        let last = futures.split_off(2_500);
        // Half of them go while the request ends.
        thread::scope(|scope| {
            let drops = scope.spawn(|| drop(futures));
            gate.open();
            drops.joined().unwrap();
        });
        for future in last {
            assert_eq!(drive(future).unwrap(), &7);
        }
        until(|| Arc::strong_count(&woken) == 2);
    });
}

// ---- the end of a runtime --------------------------------------------------------------------------------------------

#[test]
fn a_future_of_a_runtime_that_has_given_up_is_woken_and_told() {
    let _dog = support::Watchdog::new("");
    let runtime = runtime(1);
    let (open, stuck) = mpsc::channel::<()>();
    let started = Flag::new();
    let up = started.clone();
    let laggard = root(&runtime).name("laggard").spawn(move || {
        up.raise();
        let _ = stuck.recv();
    });
    started.wait();
    let woken = Unparker::here();
    let waker = Waker::from(woken.clone());
    let mut future = (&laggard).into_future();
    assert!(poll_by(&mut future, &waker).is_pending());
    let ended = runtime.shutdown(std::time::Duration::from_millis(1));
    assert!(matches!(ended, Err(ShutdownError::Laggards { .. })));
    assert_eq!(woken.times(), 1);
    assert!(matches!(poll_by(&mut future, &waker), Poll::Ready(Err(WaitError::ShutDown))));
    drop(open);
}

#[test]
fn the_synchronous_mode_runs_what_is_polled_as_what_is_submitted() {
    let runtime = Kind::Synchronous.build();
    let request = root(&runtime).build(|| 7);
    assert!(matches!(poll(&mut (&request).into_future()), Poll::Ready(Ok(7)) | Poll::Pending));
    assert_eq!(drive(request.into_future()).unwrap(), 7);
}
