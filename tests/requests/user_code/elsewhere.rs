//! Code of the user's that a call runs on the caller's own stack: what it may do there, and where its panic comes out.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use forebear::channel::watch;
use forebear::sync::Mutex;
use forebear::time::{Clock, ManualClock, Subscription, sleep};
use forebear::{Request, Runtime, State, spawn};

use super::child;
use super::support::{Count, Watchdog, in_both_worlds, until};

/// What a panic on purpose says.
const ON_PURPOSE: &str = "on purpose";

/// That `call` panics on purpose, on this stack.
#[track_caller]
fn panics_here<T>(call: impl FnOnce() -> T) {
    let payload = catch_unwind(AssertUnwindSafe(call)).map(drop).unwrap_err();
    assert_eq!(payload.downcast_ref(), Some(&ON_PURPOSE));
}

#[derive(Debug)]
struct RefusesSubscribers;

impl Clock for RefusesSubscribers {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn subscribe(&self, _: Box<dyn Fn(Instant) + Send + Sync>) -> Option<Subscription> {
        // All is allowed here.
        assert_eq!(spawn(|| 1).take().unwrap(), 1);
        std::panic::panic_any(ON_PURPOSE)
    }
}

#[test]
fn a_panic_of_a_clock_that_is_subscribed_to_comes_out_of_the_build() {
    for workers in [0, 1, 2] {
        panics_here(|| Runtime::builder().workers(workers).clock(RefusesSubscribers).build());
    }
    // And leaves nothing behind that would be in the way of the next one.
    assert_eq!(Runtime::builder().workers(1).build().unwrap().run(|| 1), 1);
}

#[test]
fn a_panic_of_a_subscriber_comes_out_of_the_call_that_moves_the_clock() {
    in_both_worlds(|| {
        let clock = ManualClock::new();
        let start = clock.now();
        let subscription = clock.on_advance(|_| {
            assert_eq!(spawn(|| 1).take().unwrap(), 1);
            std::panic::panic_any(ON_PURPOSE)
        });
        panics_here(|| clock.advance(Duration::from_secs(1)));
        assert_eq!(clock.now(), start + Duration::from_secs(1));
        drop(subscription);
        clock.advance(Duration::from_secs(1));
    });
}

/// One that sleeps on this clock until `after` has passed.
fn sleeper(runtime: &Runtime, after: Duration) -> Request<()> {
    let request = runtime.try_spawn(move || Ok(sleep(after)?));
    until(|| request.state() == State::Suspended);
    request
}

#[test]
fn a_panic_of_a_subscriber_keeps_nobody_from_learning_of_the_jump() {
    let _dog = Watchdog::new("a subscriber that panics");
    for workers in [1, 2] {
        let clock = ManualClock::new();
        let (first, told) = (clock.on_advance(|_| std::panic::panic_any(ON_PURPOSE)), Count::new());
        let runtime = Runtime::builder().workers(workers).clock(clock.clone()).build().unwrap();
        let last = clock.on_advance({
            let told = told.clone();
            move |_| _ = told.up()
        });
        let sleeper = sleeper(&runtime, Duration::from_secs(1));
        panics_here(|| clock.advance(Duration::from_secs(2)));
        assert_eq!(told.get(), 1);
        sleeper.wait().unwrap();
        drop((first, last));
    }
}

#[test]
fn a_subscriber_may_wait_for_what_sleeps_until_the_jump() {
    let _dog = Watchdog::new("a subscriber that waits");
    for workers in [1, 2] {
        let (clock, place) = (ManualClock::new(), Arc::new(OnceLock::<Request<()>>::new()));
        let subscription = clock.on_advance({
            let place = place.clone();
            move |_| _ = place.get().unwrap().wait().unwrap()
        });
        let runtime = Runtime::builder().workers(workers).clock(clock.clone()).build().unwrap();
        place.set(sleeper(&runtime, Duration::from_secs(1))).unwrap();
        clock.advance(Duration::from_secs(2));
        drop(subscription);
    }
}

/// Uses the default runtime when a runtime subscribes.
#[derive(Debug)]
struct UsesTheDefault;

impl Clock for UsesTheDefault {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn subscribe(&self, _: Box<dyn Fn(Instant) + Send + Sync>) -> Option<Subscription> {
        assert_eq!(spawn(|| 1).take().unwrap(), 1);
        None
    }
}

#[test]
fn a_clock_may_use_the_default_runtime_when_the_next_one_subscribes_to_it() {
    let end = child::run("", &[], |_| {
        for workers in [1, 2] {
            Runtime::builder().workers(workers).clock(UsesTheDefault).build_global().unwrap();
            assert_eq!(Runtime::current().workers(), workers);
            assert_eq!(spawn(|| 2).take().unwrap(), 2);
        }
    });
    end.assert_survived();
}

/// Its destructor makes a request and waits for it; then it panics, if it is to.
struct Falls(bool, Count);

impl Drop for Falls {
    fn drop(&mut self) {
        self.1.up();
        assert_eq!(spawn(|| 1).take().unwrap(), 1);
        if self.0 {
            std::panic::panic_any(ON_PURPOSE);
        }
    }
}

#[test]
fn the_destructor_of_an_older_value_of_a_latest_channel_may_wait_and_its_panic_comes_out_of_the_send() {
    in_both_worlds(|| {
        let dropped = Count::new();
        let (sender, receiver) = watch::channel(Falls(true, dropped.clone()));
        panics_here(|| sender.send(Falls(false, dropped.clone())));
        assert_eq!(dropped.get(), 1);
        // The newer value is there, and the channel goes on.
        assert!(!receiver.get().0);
        drop((sender, receiver));
        assert_eq!(dropped.get(), 2);
    });
}

struct Unspeakable;

impl fmt::Debug for Unspeakable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert_eq!(spawn(|| 1).take().unwrap(), 1);
        std::panic::panic_any(ON_PURPOSE)
    }
}

#[test]
fn a_panic_of_the_debug_of_what_a_lock_holds_comes_out_of_the_format_and_lets_go_of_the_lock() {
    in_both_worlds(|| {
        let lock = Mutex::new(Unspeakable);
        panics_here(|| format!("{lock:?}"));
        assert!(lock.try_lock().is_some());
    });
}

impl fmt::Debug for Falls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Falls")
    }
}

impl Clock for Falls {
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// A runtime whose hooks and clock own what waits and panics when it is dropped.
fn owning(workers: usize, dropped: &Count) -> Runtime {
    let falls = || Falls(true, dropped.clone());
    let (one, two) = (falls(), falls());
    let builder = Runtime::builder().workers(workers).clock(falls());
    let builder = builder.on_warning(move |_| _ = &one).on_unhandled_failure(move |_| _ = &two);
    builder.build().unwrap()
}

#[test]
fn what_hooks_and_a_clock_own_may_wait_and_panic_when_the_runtime_goes() {
    let _dog = Watchdog::new("what hooks own");
    for workers in [0, 1, 2] {
        // With the last handle. A thread that has used the runtime keeps its record until it exits.
        let dropped = Count::new();
        let runtime = owning(workers, &dropped);
        thread::spawn(move || drop(runtime)).join().unwrap();
        until(|| dropped.get() == 3);

        // In a request of another.
        let dropped = Count::new();
        let runtime = owning(workers, &dropped);
        spawn(move || drop(runtime)).wait().unwrap();
        until(|| dropped.get() == 3);

        // As a thread exits that has used it.
        let dropped = Count::new();
        let runtime = owning(workers, &dropped);
        let (go, goes) = mpsc::channel::<()>();
        let (used, uses) = mpsc::channel();
        let user = thread::spawn({
            let runtime = runtime.clone();
            move || {
                assert_eq!(runtime.run(|| 1), 1);
                drop(runtime);
                used.send(()).unwrap();
                _ = goes.recv();
            }
        });
        uses.recv().unwrap();
        thread::spawn(move || drop(runtime)).join().unwrap();
        drop(go);
        user.join().unwrap();
        until(|| dropped.get() == 3);
    }
}
