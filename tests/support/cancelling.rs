//! What the tests of cancellation share: a target that ends when it is told to and not before, and requests that sleep.

#![allow(dead_code, reason = "every test program uses a part of it")]

use std::fmt::Debug;
use std::sync::mpsc;
use std::thread;

use forebear::time::ManualClock;
use forebear::{AnyRequest, CancelReason, Outcome, Request, Runtime, State, WaitError};

use super::support::order::root;
use super::support::{Come, Flag, Joined, Kind, Watchdog, kinds, until};

/// A request to wait for that runs on a foreign thread, blocked, and ends when it is opened. No worker can run it, and no
/// cancel ends it: its runner wants it. Opened when it is dropped.
pub(crate) struct Gate {
    request: Request<()>,
    open: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Gate {
    pub(crate) fn new(runtime: &Runtime) -> Gate {
        let (open, opened) = mpsc::channel::<()>();
        let started = Flag::new();
        let up = started.clone();
        let request = Request::builder().name("gate").detached().on(runtime).build(move || {
            up.raise();
            let _ = opened.come();
        });
        let runner = request.clone();
        let thread = thread::spawn(move || runner.wait().copied().unwrap());
        started.wait();
        Gate { request, open: Some(open), thread: Some(thread) }
    }

    /// What to wait for.
    pub(crate) fn request(&self) -> Request<()> {
        self.request.clone()
    }

    /// Lets it end. Returns when all who wait for it have been woken.
    pub(crate) fn open(&mut self) {
        drop(self.open.take());
        if let Some(thread) = self.thread.take() {
            thread.joined().unwrap();
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// Yields until the request has started and waits for something.
pub(crate) fn asleep<T>(request: &Request<T>) {
    until(|| request.state() == State::Suspended);
}

/// A root that waits for the gate on a stack of its own, and answers what its wait answered. Returns when it sleeps.
pub(crate) fn sleeper(runtime: &Runtime, gate: &Gate) -> Request<Result<(), WaitError>> {
    let target = gate.request();
    let sleeper = root(runtime).name("sleeper").spawn(move || target.wait().copied());
    asleep(&sleeper);
    sleeper
}

/// Waits for it, and checks that it ended cancelled whichever way one asks.
#[track_caller]
pub(crate) fn ends_cancelled<T: Debug>(request: &Request<T>) -> CancelReason {
    let answer = request.watch();
    let Err(WaitError::TargetCancelled(why)) = answer else { panic!("{answer:?} of {request:?}") };
    assert_eq!(request.state(), State::Cancelled);
    assert!(matches!(request.outcome(), Some(Outcome::Cancelled(reason)) if reason == why));
    assert!(request.get().is_none() && request.is_done() && request.is_cancelled());
    why
}

/// A root that waits for `target` on a stack of its own, and answers what its wait answered. Returns when it sleeps.
pub(crate) fn waiter<T: Send + Sync + 'static>(
    runtime: &Runtime,
    target: &Request<T>,
) -> Request<Result<(), WaitError>> {
    let target = target.clone();
    let waiter = root(runtime).name("waiter").spawn(move || target.wait().map(drop));
    asleep(&waiter);
    waiter
}

/// Waits for it without wanting it, and checks that it was cancelled. Answers why.
#[track_caller]
pub(crate) fn was_cancelled(request: &AnyRequest) -> CancelReason {
    match request.watch() {
        Err(WaitError::TargetCancelled(why)) => why,
        answer => panic!("{answer:?} of {request:?}"),
    }
}

/// Runs the test against runtimes of every kind whose time stands still; a seeded one's moves by itself.
#[track_caller]
pub(crate) fn on_each_clocked(test: impl Fn(&Runtime, &ManualClock)) {
    for kind in kinds().filter(|kind| !matches!(kind, Kind::Seeded(_))) {
        let _dog = Watchdog::new(format_args!("{kind:?}, manual clock"));
        let clock = ManualClock::new();
        let runtime = kind.builder().clock(clock.clone()).build().unwrap();
        test(&runtime, &clock);
    }
}
