//! `Event` and `Latch`: what has happened, and who goes on then.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use cancelling::{asleep, ends_cancelled, on_each_clocked};
use forebear::sync::{Event, Latch};
use forebear::{Cancellation, Cancelled, Request, TimeoutError, WaitError, no_suspend, yield_now};
use support::order::{BY_URGENCY, on_one, root, wait_by_urgency};
use support::{Joined, in_both_worlds, on_each};

const MOMENT: Duration = Duration::from_millis(2);

#[test]
fn an_event_is_set_and_reset() {
    in_both_worlds(|| {
        let event = Event::default();
        assert!(!event.is_set());
        assert_eq!(event.wait_timeout(Duration::ZERO), Err(TimeoutError::TimedOut));
        event.set();
        event.set();
        assert!(event.is_set());
        event.wait().unwrap();
        event.wait_timeout(Duration::ZERO).unwrap();
        event.reset();
        event.reset();
        assert!(!event.is_set());
        assert_eq!(event.wait_timeout(MOMENT), Err(TimeoutError::TimedOut));
    });
}

#[test]
fn all_who_wait_go_on_and_see_what_was_done_before() {
    on_each(|runtime| {
        let shared = Arc::new((AtomicUsize::new(0), Event::new(), Latch::new(2)));
        let waiter = || {
            let shared = shared.clone();
            move || {
                shared.1.wait().unwrap();
                shared.2.wait().unwrap();
                shared.0.load(Ordering::Relaxed)
            }
        };
        let requests: Vec<_> = (0..5).map(|_| root(runtime).spawn(waiter())).collect();
        let threads: Vec<_> = (0..3).map(|_| thread::spawn(waiter())).collect();
        requests.iter().for_each(asleep);
        shared.0.store(1, Ordering::Relaxed);
        shared.1.set();
        shared.2.count_down();
        assert!(requests.iter().all(|request| !request.is_done()));
        shared.0.store(2, Ordering::Relaxed);
        shared.2.count_down();
        for request in &requests {
            assert_eq!(request.wait().copied().unwrap(), 2);
        }
        for thread in threads {
            assert_eq!(thread.joined().unwrap(), 2);
        }
    });
}

/// Also if it is reset before they come to that.
#[test]
fn who_waits_when_it_is_set_goes_on() {
    on_each(|runtime| {
        let event = Arc::new(Event::new());
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let event = event.clone();
                let waiter = root(runtime).spawn(move || event.wait());
                asleep(&waiter);
                waiter
            })
            .collect();
        // They are listed when something else has run on each worker.
        for _ in 0..20 {
            runtime.run(|| yield_now().unwrap());
        }
        let theirs = event.clone();
        runtime.run(move || {
            theirs.set();
            theirs.reset();
        });
        waiters.iter().for_each(|waiter| waiter.wait().unwrap().unwrap());
        assert!(!event.is_set());
    });
}

#[test]
fn a_latch_opens_once_and_for_good() {
    in_both_worlds(|| {
        let latch = Latch::new(3);
        for left in [3, 2, 1] {
            assert_eq!(latch.count(), left);
            assert_eq!(latch.wait_timeout(Duration::ZERO), Err(TimeoutError::TimedOut));
            latch.count_down();
        }
        latch.wait().unwrap();
        // It stays at zero.
        latch.count_down();
        assert_eq!(latch.count(), 0);
        latch.wait_timeout(MOMENT).unwrap();
        Latch::new(0).wait().unwrap();
    });
}

#[test]
fn a_latch_is_counted_down_by_many_at_once() {
    on_each(|runtime| {
        for _ in 0..20 {
            let latch = Arc::new(Latch::new(8));
            let parts: Vec<_> = (0..6)
                .map(|_| {
                    let latch = latch.clone();
                    runtime.spawn(move || latch.count_down())
                })
                .collect();
            let theirs = latch.clone();
            let thread = thread::spawn(move || (0..2).for_each(|_| theirs.count_down()));
            latch.wait().unwrap();
            assert_eq!(latch.count(), 0);
            thread.joined().unwrap();
            parts.iter().for_each(|part| part.wait().copied().unwrap());
        }
    });
}

#[test]
fn the_most_urgent_go_on_first() {
    on_one(|runtime, log| {
        let event = Arc::new(Event::new());
        let theirs = event.clone();
        let waiters = wait_by_urgency(runtime, &log, move || theirs.wait().unwrap());
        event.set();
        waiters.iter().for_each(|waiter| waiter.wait().copied().unwrap());
        log.check(&BY_URGENCY);
    });
}

#[test]
fn a_wait_times_out_when_its_time_has_come_and_not_before() {
    on_each_clocked(|runtime, clock| {
        let both = Arc::new((Event::new(), Latch::new(1)));
        let (first, second) = (both.clone(), both.clone());
        let waiters = [
            root(runtime).spawn(move || first.0.wait_timeout(Duration::from_secs(1))),
            root(runtime).spawn(move || second.1.wait_timeout(Duration::from_secs(1))),
        ];
        waiters.iter().for_each(asleep);
        clock.advance(Duration::from_millis(999));
        for _ in 0..20 {
            runtime.run(|| yield_now().unwrap());
        }
        assert!(waiters.iter().all(|waiter| !waiter.is_done()));
        clock.advance(Duration::from_millis(1));
        for waiter in &waiters {
            assert_eq!(waiter.wait().copied().unwrap(), Err(TimeoutError::TimedOut));
        }
        both.0.set();
        both.1.count_down();
    });
}

#[test]
fn a_cancelled_waiter_leaves_at_once_and_cancelled_is_told_first() {
    on_each(|runtime| {
        let both = Arc::new((Event::new(), Latch::new(1)));
        let (first, second, third) = (both.clone(), both.clone(), both.clone());
        let waiters =
            [root(runtime).spawn(move || first.0.wait()), root(runtime).spawn(move || second.1.wait())];
        for waiter in &waiters {
            asleep(waiter);
            assert_eq!(waiter.cancel(), Cancellation::Marked);
            ends_cancelled(waiter);
        }
        both.0.set();
        both.1.count_down();
        let request = runtime.spawn(move || {
            Request::current().unwrap().cancel();
            assert_eq!(third.0.wait(), Err(Cancelled::new()));
            assert_eq!(third.1.wait(), Err(Cancelled::new()));
            assert_eq!(third.1.wait_timeout(MOMENT), Err(TimeoutError::Cancelled));
        });
        ends_cancelled(&request);
    });
}

#[test]
fn a_region_that_must_not_suspend_refuses_a_wait_by_name() {
    on_each(|runtime| {
        for name in ["Event", "Latch"] {
            let wait = move || if name == "Event" { Event::new().wait() } else { Latch::new(1).wait() };
            let request = runtime.spawn(move || no_suspend("a region", wait));
            let Err(WaitError::Failed(failure)) = request.wait() else { panic!("it has to wait") };
            let text = failure.panic_message().unwrap();
            assert!(text.contains("a region") && text.contains(name), "{text}");
        }
    });
}
