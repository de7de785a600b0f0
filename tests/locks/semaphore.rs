//! `Semaphore`: how many at a time, in which order, and that no permit is lost.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::panic::catch_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cancelling::{asleep, ends_cancelled, on_each_clocked};
use forebear::sync::{Barrier, Semaphore};
use forebear::{
    Cancellation, Cancelled, Priority, Request, Runtime, State, TimeoutError, WaitError, no_suspend, spawn,
    yield_now,
};
use support::order::{BY_URGENCY, on_one, root, wait_by_urgency};
use support::{Joined, in_both_worlds, on_each, settle, until};

/// A request that waits for `n` permits, keeps them until its answer is dropped, and sleeps when this returns.
fn wants(
    runtime: &Runtime,
    semaphore: &Arc<Semaphore>,
    n: usize,
) -> Request<Result<forebear::sync::OwnedSemaphorePermit, Cancelled>> {
    let semaphore = semaphore.clone();
    let request = root(runtime).spawn(move || semaphore.acquire_many_owned(n));
    asleep(&request);
    request
}

// ---- how many ------------------------------------------------------------------------------------------------------------------

#[test]
fn as_many_are_inside_as_there_are_permits_and_no_more() {
    on_each(|runtime| {
        let semaphore = Arc::new(Semaphore::new(3));
        let inside = Arc::new(Semaphore::new(3));
        let visit = || {
            let (semaphore, inside) = (semaphore.clone(), inside.clone());
            move || {
                for round in 0..100 {
                    let _permit = semaphore.acquire().unwrap();
                    let _here = inside.try_acquire().expect("there are three at most");
                    if round % 4 == 0 {
                        yield_now().unwrap();
                    }
                }
            }
        };
        let requests: Vec<_> = (0..6).map(|_| root(runtime).spawn(visit())).collect();
        let threads: Vec<_> = (0..3).map(|_| thread::spawn(visit())).collect();
        threads.into_iter().for_each(|thread| thread.joined().unwrap());
        requests.iter().for_each(|request| request.wait().copied().unwrap());
        assert_eq!((semaphore.available(), inside.available()), (3, 3));
        // None of three leaves before all are inside.
        let together = Arc::new(Barrier::new(3));
        let meets = || {
            let (semaphore, together) = (semaphore.clone(), together.clone());
            move || {
                let _permit = semaphore.acquire().unwrap();
                together.wait().unwrap();
            }
        };
        let three: Vec<_> = (0..3).map(|_| root(runtime).spawn(meets())).collect();
        three.iter().for_each(|request| request.wait().copied().unwrap());
    });
}

#[test]
fn what_is_free_is_to_be_had_without_waiting() {
    in_both_worlds(|| {
        let semaphore = Semaphore::new(4);
        let one = semaphore.acquire().unwrap();
        let two = semaphore.try_acquire_many(2).unwrap();
        assert_eq!((one.permits(), two.permits(), semaphore.available()), (1, 2, 1));
        assert!(semaphore.try_acquire_many(2).is_none());
        let last = semaphore.try_acquire().unwrap();
        assert!(semaphore.try_acquire().is_none());
        // None are always there.
        assert_eq!(semaphore.acquire_many(0).unwrap().permits(), 0);
        assert_eq!(semaphore.try_acquire_many(0).unwrap().permits(), 0);
        drop((one, two, last));
        assert_eq!(semaphore.available(), 4);
    });
}

#[test]
fn permits_are_split_and_merged_forgotten_and_added() {
    in_both_worlds(|| {
        let semaphore = Arc::new(Semaphore::new(5));
        let mut four = semaphore.acquire_many(4).unwrap();
        let mut three = four.split(3).unwrap();
        assert!(four.split(2).is_none());
        assert_eq!((four.permits(), three.permits()), (1, 3));
        three.split(1).unwrap().forget();
        four.merge(three);
        assert_eq!(four.permits(), 3);
        drop(four);
        assert_eq!(semaphore.available(), 4);
        semaphore.add_permits(3);
        assert_eq!(semaphore.available(), 7);
        let mut owned = semaphore.clone().try_acquire_many_owned(7).unwrap();
        assert!(semaphore.clone().try_acquire_many_owned(1).is_none());
        let part = owned.split(2).unwrap();
        assert!(Arc::ptr_eq(part.semaphore(), &semaphore) && owned.split(6).is_none());
        owned.split(1).unwrap().forget();
        owned.merge(part);
        assert_eq!(owned.permits(), 6);
        drop(owned);
        assert_eq!(semaphore.available(), 6);
    });
}

#[test]
fn permits_of_two_semaphores_are_not_merged() {
    let semaphores = [Semaphore::new(1), Semaphore::new(1)];
    let told = catch_unwind(|| {
        let [mut one, other] = [&semaphores[0], &semaphores[1]].map(|s| s.try_acquire().unwrap());
        one.merge(other);
    });
    assert!(told.unwrap_err().downcast_ref::<&str>().unwrap().contains("two semaphores"));
    assert_eq!(semaphores.map(|semaphore| semaphore.available()), [1, 1]);
}

#[test]
fn there_are_never_too_many() {
    let semaphore = Semaphore::new(Semaphore::MAX_PERMITS - 1);
    semaphore.add_permits(1);
    assert!(catch_unwind(|| semaphore.add_permits(1)).is_err());
    assert!(catch_unwind(|| semaphore.add_permits(usize::MAX)).is_err());
    assert_eq!(semaphore.available(), Semaphore::MAX_PERMITS);
    assert!(catch_unwind(|| drop(semaphore.acquire_many(Semaphore::MAX_PERMITS + 1))).is_err());
    assert!(catch_unwind(|| Semaphore::new(Semaphore::MAX_PERMITS + 1)).is_err());
    drop(semaphore.acquire_many(Semaphore::MAX_PERMITS).unwrap());
    assert_eq!(semaphore.available(), Semaphore::MAX_PERMITS);
}

#[test]
fn a_permit_is_given_back_by_whoever_has_it() {
    in_both_worlds(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let permit = semaphore.clone().acquire_owned().unwrap();
        let waiter = {
            let semaphore = semaphore.clone();
            spawn(move || semaphore.clone().acquire_owned())
        };
        thread::spawn(move || drop(permit)).joined().unwrap();
        let permit = waiter.take().unwrap().unwrap();
        assert_eq!(semaphore.available(), 0);
        spawn(move || drop(permit)).wait().unwrap();
        assert_eq!(semaphore.available(), 1);
    });
}

// ---- order ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_large_request_is_not_passed_by_small_ones() {
    on_one(|runtime, log| {
        let semaphore = Arc::new(Semaphore::new(3));
        let two = semaphore.try_acquire_many(2).unwrap();
        let ask = |name: &'static str, n| {
            let (semaphore, log) = (semaphore.clone(), log.clone());
            let request = root(runtime).spawn(move || {
                let _permits = semaphore.acquire_many(n).unwrap();
                log.note(name);
            });
            asleep(&request);
            request
        };
        let requests = [ask("three", 3), ask("one", 1), ask("another", 1)];
        settle(runtime);
        // One is free, and is not for those who would go before the first.
        assert_eq!(semaphore.available(), 1);
        assert!(semaphore.try_acquire().is_none());
        assert_eq!(semaphore.acquire_timeout(Duration::ZERO).err(), Some(TimeoutError::TimedOut));
        drop(two);
        requests.iter().for_each(|request| request.wait().copied().unwrap());
        log.check(&["three", "one", "another"]);
    });
}

#[test]
fn only_who_is_more_urgent_goes_before_those_who_wait() {
    on_each(|runtime| {
        let semaphore = Arc::new(Semaphore::new(2));
        let one = semaphore.try_acquire().unwrap();
        let large = wants(runtime, &semaphore, 2);
        settle(runtime);
        let at_once = |priority| {
            let semaphore = semaphore.clone();
            let request = root(runtime)
                .priority(priority)
                .spawn(move || semaphore.acquire_timeout(Duration::ZERO).is_ok());
            *request.wait().unwrap()
        };
        assert!(!at_once(Priority::NORMAL) && !at_once(Priority::BACKGROUND));
        assert!(at_once(Priority::URGENT));
        assert!(!large.is_done());
        drop(one);
        assert_eq!(large.take().unwrap().unwrap().permits(), 2);
    });
}

/// Each finds a permit free that those who wait have no use for.
#[test]
fn who_waits_is_passed_by_32_more_urgent_newcomers_at_most() {
    on_one(|runtime, _| {
        for waiting in [2, 1] {
            let semaphore = Arc::new(Semaphore::new(2));
            let one = semaphore.try_acquire().unwrap();
            let large: Vec<_> = (0..waiting).map(|_| wants(runtime, &semaphore, 2)).collect();
            let mut newcomers = (0..100).map(|_| {
                let semaphore = semaphore.clone();
                let newcomer = root(runtime).priority(Priority::URGENT);
                let newcomer = newcomer.spawn(move || drop(semaphore.acquire().unwrap()));
                until(|| newcomer.is_done() || newcomer.state() == State::Suspended);
                newcomer
            });
            let passed = newcomers.by_ref().take_while(Request::is_done).count();
            assert!(passed <= 32, "{passed} passed, {waiting} wait");
            drop(one);
            large.into_iter().for_each(|large| drop(large.take().unwrap().unwrap()));
        }
    });
}

#[test]
fn the_most_urgent_waiter_is_first_and_equals_by_age() {
    on_one(|runtime, log| {
        let semaphore = Arc::new(Semaphore::new(0));
        let theirs = semaphore.clone();
        let waiters = wait_by_urgency(runtime, &log, move || theirs.acquire().unwrap().forget());
        for n in 1..=waiters.len() {
            semaphore.add_permits(1);
            until(|| log.told().len() == n);
        }
        log.check(&BY_URGENCY);
    });
}

#[test]
fn several_are_served_by_one_release() {
    on_each(|runtime| {
        let semaphore = Arc::new(Semaphore::new(0));
        let waiters = [1, 2, 1].map(|n| wants(runtime, &semaphore, n));
        settle(runtime);
        semaphore.add_permits(5);
        let permits = waiters.map(|waiter| waiter.take().unwrap().unwrap());
        assert_eq!(semaphore.available(), 1);
        drop(permits);
        assert_eq!(semaphore.available(), 5);
    });
}

// ---- how waits end -------------------------------------------------------------------------------------------------------------

#[test]
fn a_wait_with_a_limit_times_out_and_leaves_no_trace() {
    in_both_worlds(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        for limit in [Duration::ZERO, Duration::from_millis(2)] {
            let told = semaphore.acquire_many_timeout(2, limit).err();
            assert_eq!(told, Some(TimeoutError::TimedOut));
            let told = semaphore.clone().acquire_many_owned_timeout(2, limit).err();
            assert_eq!(told, Some(TimeoutError::TimedOut));
        }
        // Nobody stands in its way.
        drop(semaphore.try_acquire().unwrap());
        drop(semaphore.acquire_timeout(Duration::MAX).unwrap());
        assert_eq!(semaphore.available(), 1);
    });
}

#[test]
fn a_wait_times_out_when_its_time_has_come_and_not_before() {
    on_each_clocked(|runtime, clock| {
        let semaphore = Arc::new(Semaphore::new(1));
        let theirs = semaphore.clone();
        let waiter = root(runtime).spawn(move || {
            theirs.acquire_many_timeout(2, Duration::from_secs(1)).map(|permits| permits.forget())
        });
        asleep(&waiter);
        clock.advance(Duration::from_millis(999));
        settle(runtime);
        assert!(!waiter.is_done());
        clock.advance(Duration::from_millis(1));
        assert_eq!(waiter.wait().copied().unwrap(), Err(TimeoutError::TimedOut));
        assert!(semaphore.try_acquire().is_some());
    });
}

/// Those behind a large one that leaves have what it kept from them.
#[test]
fn who_leaves_lets_those_behind_go_on() {
    on_each(|runtime| {
        let semaphore = Arc::new(Semaphore::new(2));
        let large = wants(runtime, &semaphore, 3);
        settle(runtime);
        let small = [wants(runtime, &semaphore, 1), wants(runtime, &semaphore, 1)];
        settle(runtime);
        assert_eq!(semaphore.available(), 2);
        assert_eq!(large.cancel(), Cancellation::Marked);
        ends_cancelled(&large);
        let permits = small.map(|small| small.take().unwrap().unwrap());
        assert_eq!(semaphore.available(), 0);
        drop(permits);
    });
}

#[test]
fn in_a_cancelled_request_no_permit_is_had() {
    on_each(|runtime| {
        let semaphore = Arc::new(Semaphore::new(1));
        let theirs = semaphore.clone();
        let request = runtime.spawn(move || {
            Request::current().unwrap().cancel();
            assert_eq!(theirs.acquire().err(), Some(Cancelled::new()));
            let told = theirs.acquire_timeout(Duration::MAX).err();
            assert_eq!(told, Some(TimeoutError::Cancelled));
            // To try is not to wait.
            assert!(theirs.try_acquire().is_some());
        });
        ends_cancelled(&request);
        assert_eq!(semaphore.available(), 1);
    });
}

#[test]
fn a_permit_given_to_one_who_leaves_is_not_lost() {
    on_each(|runtime| {
        for round in 0..50 {
            let semaphore = Arc::new(Semaphore::new(0));
            let waiters: Vec<_> = (0..6)
                .map(|n| {
                    let semaphore = semaphore.clone();
                    root(runtime).spawn(move || semaphore.acquire_many(1 + n % 2).map(drop))
                })
                .collect();
            let canceller = {
                let waiters = waiters.clone();
                thread::spawn(move || {
                    waiters.iter().skip(round % 2).step_by(2).for_each(|waiter| _ = waiter.cancel());
                })
            };
            semaphore.add_permits(1);
            semaphore.add_permits(1);
            canceller.joined().unwrap();
            for (n, waiter) in waiters.iter().enumerate() {
                let answer = waiter.wait();
                let was_cancelled = n % 2 == round % 2;
                assert!(was_cancelled || matches!(answer, Ok(Ok(()))), "{answer:?}");
            }
            assert_eq!(semaphore.available(), 2);
            assert!(semaphore.try_acquire_many(2).is_some());
        }
    });
}

#[test]
fn a_region_that_must_not_suspend_refuses_a_wait_by_name_and_only_that() {
    on_each(|runtime| {
        let request = runtime.spawn(|| {
            let semaphore = Semaphore::new(1);
            no_suspend("a region", || {
                let _one = semaphore.acquire().unwrap();
                let _two = semaphore.acquire();
            });
        });
        let Err(WaitError::Failed(failure)) = request.wait() else { panic!("it has to wait") };
        let text = failure.panic_message().unwrap();
        assert!(text.contains("a region") && text.contains("Semaphore"), "{text}");
    });
}
