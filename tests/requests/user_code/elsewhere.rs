//! Code of the user's that a call runs on the caller's own stack: what it may do there, and where its panic comes out.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use forebear::channel::watch;
use forebear::sync::Mutex;
use forebear::time::{Clock, ManualClock, Subscription};
use forebear::{Runtime, spawn};

use super::support::{Count, in_both_worlds};

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
