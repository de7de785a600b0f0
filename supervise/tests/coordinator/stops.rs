//! The stop, and how workers hear of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use forebear_supervise::Coordinator;

use crate::MS;
use crate::support::{self, Come, Watchdog};

#[test]
fn r01_a_new_coordinator_is_not_stopped_and_a_wait_for_the_stop_times_out() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    assert!(!coordinator.should_stop());
    assert!(!coordinator.wait_for_stop_timeout(MS).unwrap());
    assert!(!coordinator.wait_for_stop_timeout(Duration::ZERO).unwrap());
    assert!(!coordinator.joined() && coordinator.requested_error().is_none());
}

#[test]
fn r02_a_stop_is_seen_by_all_at_once() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    coordinator.request_stop();
    assert!(coordinator.should_stop());
    assert!(coordinator.wait_for_stop_timeout(Duration::MAX).unwrap());
    let other = coordinator.clone();
    assert!(std::thread::spawn(move || other.should_stop()).join().unwrap());
}

#[test]
fn r03_a_wait_for_the_stop_answers_whether_there_is_one() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    let (told, answer) = mpsc::channel();
    let waiter = coordinator.clone();
    let thread = std::thread::spawn(move || told.send(waiter.wait_for_stop().is_ok()).unwrap());
    assert!(!coordinator.wait_for_stop_timeout(MS).unwrap());
    coordinator.request_stop();
    assert!(answer.come().unwrap());
    thread.join().unwrap();
}

#[test]
fn r04_who_waits_already_is_woken_in_threads_and_in_requests() {
    let _dog = Watchdog::new("");
    for _ in 0..50 {
        let coordinator = Coordinator::new();
        let begun = Arc::new(AtomicU32::new(0));
        let wait = || {
            let (coordinator, begun) = (coordinator.clone(), begun.clone());
            move || {
                begun.fetch_add(1, Ordering::Relaxed);
                coordinator.wait_for_stop()
            }
        };
        let (thread, request) = (std::thread::spawn(wait()), forebear::spawn(wait()));
        support::until(|| begun.load(Ordering::Relaxed) == 2);
        coordinator.request_stop();
        assert!(thread.join().unwrap().is_ok() && request.take().unwrap().is_ok());
    }
}

#[test]
fn r05_a_stop_may_be_requested_by_anybody_any_number_of_times() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    coordinator.spawn("worker", |me| {
        (0..3).for_each(|_| me.request_stop());
        Ok(())
    });
    coordinator.join().unwrap();
    coordinator.request_stop(); // also the joiner
    assert!(coordinator.should_stop());
}
