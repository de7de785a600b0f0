//! Wakers that do their worst: they panic, wait, poll and drop.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/executor.rs"]
mod executor;
#[path = "../support/mod.rs"]
mod support;

use std::cell::{Cell, RefCell};
use std::future::IntoFuture;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::{Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread;

use cancelling::{Gate, asleep};
use executor::{Unparker, behind, poll, poll_by};
use forebear::{Request, wait_first, yield_now};
use support::order::root;
use support::{Flag, on_each_of, until};

thread_local! {
    static PANICS_IN: Cell<&'static str> = const { Cell::new("") };
    /// What the next `clone` of this thread does.
    static CLONE_DOES: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

fn panic_if_in(method: &'static str) {
    if PANICS_IN.get() == method {
        PANICS_IN.set("");
        panic!("a waker's `{method}`");
    }
}

/// A waker whose methods panic where the thread says so; all of them panic in `wake`.
fn hostile() -> Waker {
    const METHODS: RawWakerVTable = RawWakerVTable::new(
        |_| {
            panic_if_in("clone");
            if let Some(does) = CLONE_DOES.take() {
                does();
            }
            RawWaker::new(std::ptr::null(), &METHODS)
        },
        |_| panic!("a waker's `wake`"),
        |_| panic!("a waker's `wake_by_ref`"),
        |_| panic_if_in("drop"),
    );
    // SAFETY: the methods use no data, so they may be called in any order on any thread.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &METHODS)) }
}

#[test]
fn a_waker_that_panics_harms_nobody() {
    on_each_of(&[1, 2], |runtime| {
        let mut gate = Gate::new(runtime);
        let request = behind(runtime, &gate);
        let mut futures: Vec<_> = (0..4).map(|_| (&request).into_future()).collect();
        for future in &mut futures {
            assert!(poll_by(future, &hostile()).is_pending());
        }
        let woken = Unparker::here();
        let mut last = (&request).into_future();
        assert!(poll_by(&mut last, &Waker::from(woken.clone())).is_pending());
        let waiter = cancelling::waiter(runtime, &request);
        gate.open();
        waiter.take().unwrap().unwrap();
        until(|| woken.times() == 1);
        for mut future in futures {
            assert!(matches!(poll(&mut future), Poll::Ready(Ok(7))));
        }
    });
}

#[test]
fn a_waker_whose_clone_or_destructor_panics_leaves_the_future_whole() {
    on_each_of(&[1], |runtime| {
        let mut gate = Gate::new(runtime);
        let request = behind(runtime, &gate);
        let mut future = (&request).into_future();
        for method in ["clone", "clone", "drop"] {
            let waker = hostile();
            PANICS_IN.set(method);
            let polled = catch_unwind(AssertUnwindSafe(|| poll_by(&mut future, &waker).is_pending()));
            assert_eq!(polled.is_err(), method == "clone", "{method}");
            PANICS_IN.set("");
        }
        // Another one takes its place.
        let woken = Unparker::here();
        PANICS_IN.set("drop");
        assert!(poll_by(&mut future, &Waker::from(woken.clone())).is_pending());
        PANICS_IN.set("");
        gate.open();
        until(|| woken.times() == 1);
        assert!(matches!(poll(&mut future), Poll::Ready(Ok(7))));
    });
}

/// The request ends after the poll has found that it must wait, and before the future stands in its list. So no end ever calls the waker.
#[test]
fn a_waker_that_is_dropped_without_a_notice_may_panic() {
    on_each_of(&[1, 2], |runtime| {
        let (completer, answer) = runtime.enter(|| Request::completer("answer"));
        let mut future = (&answer).into_future();
        let waker = hostile();
        CLONE_DOES.set(Some(Box::new(move || completer.complete(7).unwrap())));
        PANICS_IN.set("drop");
        let polled = catch_unwind(AssertUnwindSafe(|| poll_by(&mut future, &waker)));
        assert_eq!(PANICS_IN.replace(""), "", "the clone was dropped");
        assert!(matches!(polled, Ok(Poll::Ready(Ok(7)))));
    });
}

/// Holds up the thread that wakes by it until something has happened.
struct Slow(Box<dyn Fn() + Send + Sync>);

impl Wake for Slow {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

#[test]
fn a_waker_that_is_slow_holds_up_no_other_waiter() {
    on_each_of(&[1, 2], |runtime| {
        let mut gate = Gate::new(runtime);
        let request = behind(runtime, &gate);
        let (over, going) = (Flag::new(), Flag::new());
        let (seen, up) = (over.clone(), going.clone());
        let mut future = (&request).into_future();
        let slow = Waker::from(Arc::new(Slow(Box::new(move || {
            up.raise();
            support::hold_thread_until(|| seen.is_up());
        }))));
        assert!(poll_by(&mut future, &slow).is_pending());
        // It stands behind in the list.
        thread::scope(|scope| {
            let waits = scope.spawn(|| request.wait().copied());
            gate.open();
            going.wait();
            assert_eq!(waits.join().unwrap().unwrap(), 7);
            over.raise();
        });
    });
}

#[test]
fn a_waker_may_poll_and_drop_its_own_future() {
    on_each_of(&[1, 2], |runtime| {
        for drops in [false, true] {
            let mut gate = Gate::new(runtime);
            let future = Arc::new(Mutex::new(Some(behind(runtime, &gate).into_future())));
            let (own, done) = (future.clone(), Flag::new());
            let up = done.clone();
            let waker = Waker::from(Arc::new(Slow(Box::new(move || {
                let mut own = own.lock().unwrap();
                if drops {
                    own.take();
                } else {
                    assert!(matches!(poll(own.as_mut().unwrap()), Poll::Ready(Ok(7))));
                }
                up.raise();
            }))));
            assert!(poll_by(future.lock().unwrap().as_mut().unwrap(), &waker).is_pending());
            gate.open();
            done.wait();
        }
    });
}

#[test]
fn a_waker_may_wait() {
    on_each_of(&[1, 2], |runtime| {
        let mut gate = Gate::new(runtime);
        let request = behind(runtime, &gate);
        let (done, of) = (Flag::new(), runtime.clone());
        let up = done.clone();
        let waker = Waker::from(Arc::new(Slow(Box::new(move || {
            assert_eq!(root(&of).build(|| 5).take().unwrap(), 5);
            yield_now().unwrap();
            up.raise();
        }))));
        let mut future = (&request).into_future();
        assert!(poll_by(&mut future, &waker).is_pending());
        gate.open();
        done.wait();
    });
}

#[test]
fn a_waker_may_wait_for_who_waits_for_the_same_request_among_several() {
    on_each_of(&[1, 2], |runtime| {
        let (completer, target) = runtime.enter(|| Request::<u32>::completer("target"));
        let (never, other) = runtime.enter(|| Request::<u32>::completer("other"));
        let (done, first) = (Flag::new(), Arc::new(Mutex::new(None::<Request<u32>>)));
        let (up, waits_for) = (done.clone(), first.clone());
        let waker = Waker::from(Arc::new(Slow(Box::new(move || {
            let first = waits_for.lock().unwrap().clone().unwrap();
            assert_eq!(*first.wait().unwrap(), 7);
            up.raise();
        }))));
        let mut future = (&target).into_future();
        assert!(poll_by(&mut future, &waker).is_pending());
        // It is listed after the future.
        let two = [target.clone(), other];
        let waits = root(runtime).build(move || *two[wait_first(&two).unwrap().unwrap()].wait().unwrap());
        *first.lock().unwrap() = Some(waits.clone());
        waits.submit();
        asleep(&waits);
        completer.complete(7).unwrap();
        done.wait();
        drop(never);
    });
}
