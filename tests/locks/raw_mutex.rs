//! `RawMutex`: a lock that anybody may release.
//!
//! What it has in common with `Mutex` is tested there: they are one lock below.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cancelling::{asleep, ends_cancelled};
use forebear::sync::{RawMutex, UnlockError};
use forebear::{Cancellation, TimeoutError, spawn, yield_now};
use support::order::{BY_URGENCY, on_one, root, wait_by_urgency};
use support::{Joined, in_both_worlds, on_each, until};

#[test]
fn another_than_the_one_who_took_it_may_release_it() {
    in_both_worlds(|| {
        let lock = Arc::new(RawMutex::new());
        lock.lock();
        let (by_thread, by_request) = (lock.clone(), lock.clone());
        thread::spawn(move || by_thread.unlock()).joined().unwrap().unwrap();
        assert!(lock.try_lock() && !lock.try_lock());
        spawn(move || by_request.unlock()).wait().unwrap().unwrap();
        assert!(!lock.is_locked());
    });
}

#[test]
fn to_release_one_that_nobody_has_is_an_error_and_changes_nothing() {
    in_both_worlds(|| {
        let lock = RawMutex::new();
        assert_eq!(lock.unlock(), Err(UnlockError::NotLocked));
        assert!(lock.try_lock());
        lock.unlock().unwrap();
        assert_eq!(lock.unlock(), Err(UnlockError::NotLocked));
        assert_eq!(lock.unlock().unwrap_err().to_string(), "the lock was not locked");
        lock.lock();
        lock.unlock().unwrap();
    });
}

/// Requests and threads pass a turn round: each takes the next one's lock, which that one's predecessor has released.
#[test]
fn a_turn_is_passed_round_by_releasing_each_others_locks() {
    on_each(|runtime| {
        const PARTIES: usize = 4;
        const ROUNDS: usize = 100;
        let turns: Arc<[RawMutex; PARTIES]> = Arc::new([const { RawMutex::new() }; PARTIES]);
        turns.iter().for_each(RawMutex::lock);
        let party = |n: usize| {
            let turns = turns.clone();
            move || {
                for _ in 0..ROUNDS {
                    turns[n].lock();
                    turns[(n + 1) % PARTIES].unlock().unwrap();
                }
            }
        };
        let requests = [0, 2].map(|n| root(runtime).spawn(party(n)));
        let threads = [1, 3].map(|n| thread::spawn(party(n)));
        turns[0].unlock().unwrap();
        for request in requests {
            request.wait().copied().unwrap();
        }
        for thread in threads {
            thread.joined().unwrap();
        }
        // The last has released the first one's.
        assert!(!turns[0].is_locked() && turns[1].is_locked());
    });
}

/// Of several that release it at once as many succeed as have taken it.
#[test]
fn of_two_who_release_it_at_once_one_is_refused() {
    on_each(|runtime| {
        for _ in 0..50 {
            let lock = Arc::new(RawMutex::new());
            lock.lock();
            let takers: Vec<_> = (0..2)
                .map(|_| {
                    let lock = lock.clone();
                    runtime.spawn(move || lock.lock_timeout(Duration::from_secs(600)))
                })
                .collect();
            let releasers: Vec<_> = (0..4)
                .map(|_| {
                    let lock = lock.clone();
                    runtime.spawn(move || lock.unlock().is_ok())
                })
                .collect();
            let mut released = releasers.iter().filter(|releaser| releaser.wait().copied().unwrap()).count();
            assert!((1..=3).contains(&released), "{released}");
            // Three were taken, one after the other: so there are three releases.
            while released < 3 {
                until(|| lock.is_locked());
                released += usize::from(lock.unlock().is_ok());
            }
            takers.iter().for_each(|taker| taker.wait().unwrap().unwrap());
            until(|| !lock.is_locked() || lock.unlock().is_ok());
            assert_eq!(lock.unlock(), Err(UnlockError::NotLocked));
        }
    });
}

#[test]
fn a_wait_with_a_limit_times_out_and_leaves_no_trace() {
    in_both_worlds(|| {
        let lock = RawMutex::new();
        lock.lock();
        assert_eq!(lock.lock_timeout(Duration::ZERO), Err(TimeoutError::TimedOut));
        assert_eq!(lock.lock_timeout(Duration::from_millis(2)), Err(TimeoutError::TimedOut));
        lock.unlock().unwrap();
        assert!(lock.try_lock());
        lock.unlock().unwrap();
        lock.lock_timeout(Duration::MAX).unwrap();
    });
}

#[test]
fn a_cancelled_waiter_leaves_at_once_and_a_plain_one_stays() {
    on_each(|runtime| {
        let lock = Arc::new(RawMutex::new());
        lock.lock();
        let (theirs, plains) = (lock.clone(), lock.clone());
        let leaver = root(runtime).spawn(move || theirs.lock_or_cancelled());
        asleep(&leaver);
        let plain = root(runtime).spawn(move || {
            plains.lock();
            plains.unlock()
        });
        asleep(&plain);
        assert_eq!(leaver.cancel(), Cancellation::Marked);
        ends_cancelled(&leaver);
        plain.cancel();
        runtime.run(|| yield_now().unwrap());
        assert!(!plain.is_done());
        lock.unlock().unwrap();
        ends_cancelled(&plain);
        assert!(lock.try_lock());
    });
}

#[test]
fn the_most_urgent_waiter_gets_it_first_and_equals_by_age() {
    on_one(|runtime, log| {
        let lock = Arc::new(RawMutex::new());
        lock.lock();
        let theirs = lock.clone();
        let waiters = wait_by_urgency(runtime, &log, move || theirs.lock());
        for n in 1..=waiters.len() {
            lock.unlock().unwrap();
            until(|| log.told().len() == n);
        }
        waiters.iter().for_each(|waiter| waiter.wait().copied().unwrap());
        log.check(&BY_URGENCY);
    });
}
