//! Patterns of use that programs are built from, by the names that `docs/behaviours.md` gives them.

#[path = "../support/mod.rs"]
mod support;

use std::sync::mpsc;
use std::thread;

use forebear::{
    CancelReason, Cancellation, Request, State, WaitError, check_cancelled, is_cancelled, yield_now,
};
use support::{Joined, Watchdog, on_each, on_each_of, until};

/// What reaches the loop of a user interface.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Cancelled,
    Failed(String),
    Finished(u32),
}

/// The main thread creates, subscribes and submits, and never waits for a request. Handlers send to its loop. Each ends by one event.
#[test]
fn p7_the_main_thread_fires_and_listens_and_never_waits() {
    on_each_of(&[1, 2], |runtime| {
        let (send, events) = mpsc::channel();
        let listen = |request: &Request<u32>| {
            let (finished, failed, cancelled) = (send.clone(), send.clone(), send.clone());
            request
                .on_finished(move |value| finished.send(Event::Finished(*value)).unwrap())
                .on_failed(move |failure| failed.send(Event::Failed(failure.request().to_owned())).unwrap())
                .on_cancelled(move || cancelled.send(Event::Cancelled).unwrap())
                .submit();
        };
        let (begun, is_begun) = mpsc::channel();
        let endless = runtime.enter(|| {
            let fine = Request::new(|| 7);
            let bad = Request::builder().name("bad").try_build(|| Ok("x".parse::<u32>()?));
            listen(&fine);
            listen(&bad);
            // Its work goes on without a handle.
            drop((fine, bad));
            let endless = Request::builder().own_stack().try_build(move || {
                begun.send(()).unwrap();
                loop {
                    yield_now()?;
                }
            });
            listen(&endless);
            endless
        });
        drop(send);
        is_begun.recv().unwrap();
        // The cancel button has an effect, and answers.
        assert!(!matches!(endless.cancel(), Cancellation::Vetoed));
        assert!(endless.is_cancelled());
        let mut seen: Vec<_> = events.iter().collect();
        seen.sort();
        assert_eq!(seen, [Event::Cancelled, Event::Failed("bad".to_owned()), Event::Finished(7)]);
    });
}

/// A long loop looks whether it is cancelled, and an error that it handles as its own does not swallow the cancel.
#[test]
fn p11_a_long_loop_looks_for_a_cancel_and_cannot_lose_it() {
    on_each_of(&[1, 2], |runtime| {
        let (begun, is_begun) = mpsc::channel();
        let long = Request::builder().own_stack().on(runtime).spawn(move || {
            begun.send(()).unwrap();
            let mut steps = 0_u64;
            while !is_cancelled() {
                steps += 1;
            }
            // It handles this as an error of its own, and goes on to a value.
            assert!(check_cancelled().is_err());
            check_cancelled().err().map_or(0, |_| steps)
        });
        is_begun.recv().unwrap();
        long.cancel();
        assert!(matches!(long.wait(), Err(WaitError::TargetCancelled(CancelReason::Asked))));
    });
}

/// A request is suspended until a callback of another thread wakes it, in any context; and a cancel reaches who waits at once.
#[test]
fn p12_a_request_awaits_an_outside_future() {
    on_each(|runtime| {
        let (completer, answer) = runtime.enter(|| Request::completer("remote network"));
        let batch = runtime.spawn(move || answer.wait().copied());
        let seen = batch.clone();
        let remote = thread::spawn(move || {
            until(|| seen.state() != State::Queued);
            completer.complete(3).unwrap();
        });
        assert_eq!(batch.wait().unwrap().as_ref().unwrap(), &3);
        remote.joined().unwrap();
    });
    let _dog = Watchdog::new("a cancel");
    on_each_of(&[1, 2], |runtime| {
        let (send, stopped) = mpsc::channel();
        let (started, is_started) = mpsc::channel();
        let batch = Request::builder().own_stack().on(runtime).try_spawn(move || {
            let (completer, answer) = Request::<u32>::completer("remote network");
            completer.on_cancelled(move || send.send(()).unwrap());
            started.send(completer).unwrap();
            Ok(*answer.wait()?)
        });
        let completer = is_started.recv().unwrap();
        batch.cancel();
        assert!(matches!(batch.wait(), Err(WaitError::TargetCancelled(_))));
        // The library is told to stop, and comes too late.
        stopped.recv().unwrap();
        assert_eq!(completer.complete(3), Err(3));
    });
}
