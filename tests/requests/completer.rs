//! Completions: requests that have no code, completed by threads, callbacks and C libraries.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::ffi::c_void;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cancelling::{asleep, ends_cancelled};
use forebear::{
    Abandoned, CancelReason, Cancellation, Completer, Error, Outcome, Request, RequestPool, Runtime, State,
    WaitError, block_on, select, yield_now,
};
use support::order::root;
use support::{Count, Joined, in_both_worlds, on_each, on_each_of, until};

fn made<T: Send + 'static>(runtime: &Runtime, name: &'static str) -> (Completer<T>, Request<T>) {
    runtime.enter(|| Request::completer(name))
}

#[test]
fn a_completion_is_waited_for_like_a_request() {
    in_both_worlds(|| {
        let (completer, answer) = Request::completer("answer");
        assert_eq!((completer.name(), answer.name(), answer.state()), ("answer", "answer", State::Queued));
        assert!(matches!(answer.wait_timeout(Duration::from_millis(1)), Err(WaitError::TimedOut)));
        assert!(matches!(answer.wait_timeout(Duration::ZERO), Err(WaitError::TimedOut)));
        assert_eq!(answer.get(), None);
        completer.complete(vec![7]).unwrap();
        assert_eq!(answer.wait().unwrap(), &[7]);
        assert_eq!(answer.take().unwrap(), [7]);
    });
}

#[test]
fn a_thread_completes_what_requests_and_threads_wait_for() {
    on_each(|runtime| {
        for n in 0..100 {
            let (completer, answer) = made(runtime, "answer");
            let waiter = cancelling::waiter(runtime, &answer);
            let thread = thread::spawn(move || completer.complete(n).unwrap());
            assert_eq!(answer.wait().unwrap(), &n);
            waiter.take().unwrap().unwrap();
            thread.joined().unwrap();
        }
    });
}

#[test]
fn a_request_completes_it() {
    on_each(|runtime| {
        let (completer, answer) = made(runtime, "answer");
        let waiter = cancelling::waiter(runtime, &answer);
        root(runtime).spawn(move || completer.complete(1).unwrap()).take().unwrap();
        waiter.take().unwrap().unwrap();
        assert_eq!(answer.take().unwrap(), 1);
    });
}

#[test]
fn a_completion_fails_with_its_name() {
    on_each(|runtime| {
        let (completer, answer) = made::<u32>(runtime, "network 7");
        let other = answer.clone();
        let asks = root(runtime).name("asks").try_build(move || Ok(*other.wait()?));
        asks.submit();
        completer.fail(Error::other("unplugged"));
        let Err(WaitError::Failed(failure)) = asks.take() else { panic!() };
        let told = format!("{failure:#}");
        assert!(told.contains("network 7") && told.contains("asks") && told.contains("unplugged"), "{told}");
        assert!(matches!(answer.wait(), Err(WaitError::Failed(_))));
    });
}

#[test]
fn a_completer_that_is_dropped_fails_its_waiters_by_name() {
    on_each(|runtime| {
        let (completer, answer) = made::<u32>(runtime, "network 7");
        let waiter = cancelling::waiter(runtime, &answer);
        drop(completer);
        let Err(WaitError::Failed(failure)) = waiter.take().unwrap() else { panic!() };
        assert_eq!(failure.request(), "network 7");
        assert!(failure.downcast_ref::<Abandoned>().is_some());
        // Also by an unwind.
        let (completer, answer) = made::<u32>(runtime, "network 8");
        let thread = thread::spawn(move || {
            let _completer = completer;
            panic!("on its way");
        });
        assert!(matches!(answer.wait(), Err(WaitError::Failed(failure)) if failure.request() == "network 8"));
        thread.joined().unwrap_err();
    });
}

#[test]
fn a_cancel_ends_it_at_once_and_the_completer_comes_too_late() {
    on_each(|runtime| {
        let (completer, answer) = made(runtime, "answer");
        let told = Count::new();
        let counted = told.clone();
        completer.on_cancelled(move || _ = counted.up());
        assert!(!completer.is_cancelled());
        assert_eq!(answer.cancel(), Cancellation::Marked);
        assert_eq!(ends_cancelled(&answer), CancelReason::Asked);
        assert!(completer.is_cancelled());
        assert_eq!(told.get(), 1);
        let value = Arc::new(());
        assert!(completer.complete(value.clone()).is_err_and(|back| Arc::ptr_eq(&back, &value)));

        let (completer, answer) = made::<u32>(runtime, "answer");
        answer.cancel();
        completer.fail(Error::other("too late"));
        ends_cancelled(&answer);
        let (completer, answer) = made::<u32>(runtime, "answer");
        answer.cancel();
        drop(completer);
        ends_cancelled(&answer);
    });
}

#[test]
fn a_waiter_is_demand_and_its_cancel_reaches_the_completion_it_has_made() {
    on_each(|runtime| {
        let (give, made) = mpsc::channel();
        let request = root(runtime).try_build(move || {
            let (completer, answer) = Request::<u32>::completer("answer");
            give.send((completer, answer.clone())).unwrap();
            Ok(*answer.wait()?)
        });
        request.submit();
        asleep(&request);
        let (completer, answer) = made.recv().unwrap();
        assert_eq!(answer.cancel(), Cancellation::Vetoed);
        request.abort(CancelReason::Asked);
        ends_cancelled(&request);
        ends_cancelled(&answer);
        assert_eq!(completer.complete(1), Err(1));
    });
}

#[test]
fn a_completion_that_nobody_waits_for_goes_with_its_maker() {
    on_each(|runtime| {
        let (give, made) = mpsc::channel();
        let request = root(runtime).spawn(move || {
            give.send(Request::<u32>::completer("answer")).unwrap();
            while yield_now().is_ok() {}
        });
        until(|| request.state() != State::Queued);
        let (completer, answer) = made.recv().unwrap();
        request.abort(CancelReason::Asked);
        ends_cancelled(&request);
        assert_eq!(ends_cancelled(&answer), CancelReason::Parent);
        assert!(completer.is_cancelled());
        // Made by one that is cancelled.
        let late = root(runtime).spawn(|| {
            Request::current().unwrap().abort(CancelReason::Asked);
            let (completer, answer) = Request::completer("late");
            assert!(completer.is_cancelled() && answer.is_cancelled());
            assert_eq!(completer.complete(1), Err(1));
        });
        ends_cancelled(&late);
    });
}

/// A library in C: it calls back from a thread of its own.
struct Library;

impl Library {
    fn start(callback: extern "C" fn(*mut c_void, u32), data: *mut c_void) -> thread::JoinHandle<()> {
        let data = data.addr();
        thread::spawn(move || callback(std::ptr::with_exposed_provenance_mut(data), 42))
    }
}

extern "C" fn done(data: *mut c_void, value: u32) {
    // SAFETY: what `Box::into_raw` has given to the library, which calls back once.
    let completer = unsafe { Box::from_raw(data.cast::<Completer<u32>>()) };
    completer.complete(value).ok();
}

#[test]
fn a_callback_of_a_c_library_completes_it() {
    on_each(|runtime| {
        for cancelled in [false, true] {
            let (completer, answer) = made(runtime, "library");
            if cancelled {
                answer.cancel();
            }
            let data = Box::into_raw(Box::new(completer));
            data.expose_provenance();
            let thread = Library::start(done, data.cast());
            assert_eq!(answer.wait().ok(), if cancelled { None } else { Some(&42) });
            thread.joined().unwrap();
        }
    });
}

#[test]
fn callbacks_run_on_the_thread_that_completes() {
    on_each(|runtime| {
        let (completer, answer) = made(runtime, "answer");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (finished, done) = (seen.clone(), seen.clone());
        answer.on_finished(move |n: &u32| {
            let name = Request::current().map(|request| request.name().to_owned());
            finished.lock().unwrap().push((*n, name, thread::current().id()));
        });
        answer.on_done(move |how| {
            assert!(matches!(how, Outcome::Finished(5)));
            done.lock().unwrap().push((0, None, thread::current().id()));
        });
        let thread = thread::spawn(move || completer.complete(5).unwrap());
        let id = thread.thread().id();
        thread.joined().unwrap();
        assert_eq!(*seen.lock().unwrap(), [(5, Some("answer".to_owned()), id), (0, None, id)]);
        assert_eq!(answer.take().unwrap(), 5);
        // One that panics fails it.
        let (completer, answer) = made(runtime, "answer");
        answer.on_finished(|_: &u32| panic!("in a callback"));
        answer.on_failed(|_| ());
        completer.complete(5).unwrap();
        assert!(matches!(answer.wait(), Err(WaitError::Failed(failure)) if failure.is_panic()));
    });
}

#[test]
fn a_completion_is_awaited_selected_and_pooled() {
    on_each(|runtime| {
        let (completer, answer) = made(runtime, "answer");
        let other = answer.clone();
        let awaits = root(runtime).spawn(move || block_on(async { (&other).await.copied() }));
        let other = answer.clone();
        let selects = root(runtime).spawn(move || {
            select! { told = &other => told.copied() }
        });
        let mut pool = RequestPool::<'_, ()>::new();
        pool.include(answer);
        asleep(&awaits);
        asleep(&selects);
        completer.complete(3).unwrap();
        assert_eq!(awaits.take().unwrap().unwrap().unwrap(), 3);
        assert_eq!(selects.take().unwrap().unwrap(), 3);
        pool.wait().unwrap();
    });
}

#[test]
fn the_value_goes_when_nobody_can_reach_it() {
    on_each(|runtime| {
        let gone = Count::new();
        let (completer, answer) = made(runtime, "answer");
        drop(answer);
        completer.complete(gone.probe()).unwrap();
        assert_eq!(gone.get(), 1);
        let (completer, answer) = made(runtime, "answer");
        completer.complete(gone.probe()).unwrap();
        assert_eq!(gone.get(), 1);
        drop(answer);
        assert_eq!(gone.get(), 2);
    });
}

#[test]
fn a_completion_outlives_its_runtime() {
    let _dog = support::Watchdog::new("");
    for completes in [true, false] {
        let runtime = support::runtime(1);
        let (completer, answer) = made(&runtime, "answer");
        drop(runtime);
        if completes {
            completer.complete(1).unwrap();
            assert_eq!(answer.take().unwrap(), 1);
        } else {
            drop(answer);
            drop(completer);
        }
    }
    let runtime = support::runtime(1);
    runtime.shutdown(Duration::from_secs(60)).unwrap();
    let (completer, answer) = made(&runtime, "late");
    assert_eq!(ends_cancelled(&answer), CancelReason::Shutdown);
    assert_eq!(completer.complete(1), Err(1));
}

#[test]
fn a_dump_names_what_has_not_come() {
    on_each_of(&[1], |runtime| {
        let (completer, answer) = made::<u32>(runtime, "network 7");
        let waiter = cancelling::waiter(runtime, &answer);
        let text = runtime.dump().to_string();
        assert!(text.contains("network 7"), "{text}");
        completer.complete(1).unwrap();
        waiter.take().unwrap().unwrap();
    });
}

#[test]
fn thousands_are_completed_and_cancelled_at_once() {
    on_each_of(&[1, 2], |runtime| {
        let (completers, answers): (Vec<_>, Vec<_>) = (0..3_000).map(|_| made(runtime, "answer")).unzip();
        let taken = thread::scope(|scope| {
            let canceller = scope
                .spawn(|| answers.iter().step_by(2).filter(|a| a.cancel() == Cancellation::Marked).count());
            let too_late = completers.into_iter().filter_map(|c| c.complete(1).err()).count();
            (canceller.joined().unwrap(), too_late)
        });
        assert_eq!(taken.0, taken.1, "marked, and completed all the same");
        let finished = answers.iter().filter(|answer| answer.wait().is_ok()).count();
        assert_eq!(finished, 3_000 - taken.1);
    });
}

/// A request of a seeded runtime watches a completion behind a shield, in a run inside it, when its runtime is shut and another thread lets go of the completer.
#[test]
fn a_shielded_watch_in_a_seeded_runtime_ends_when_its_completer_goes() {
    for seed in 0..32 {
        let runtime = Runtime::builder().seeded(seed).build().unwrap();
        let kept = Arc::new(Mutex::new(None));
        let inner = (runtime.clone(), kept.clone());
        runtime.run(move || {
            let (runtime, kept) = inner;
            let (completer, answer) = Request::<u32>::completer("promise");
            *kept.lock().unwrap() = Some(completer);
            drop(forebear::spawn(move || {
                runtime.run(|| forebear::shield(|| _ = answer.watch()));
            }));
        });
        let completer = kept.lock().unwrap().take();
        thread::spawn(move || drop(completer)).join().unwrap();
        runtime.shutdown(Duration::from_secs(20)).unwrap();
    }
}
