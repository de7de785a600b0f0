//! `Condvar`: who is notified, in which order, and that the mutex is had again however a wait ends.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cancelling::{asleep, ends_cancelled, on_each_clocked};
use forebear::sync::{Condvar, Mutex, MutexGuard};
use forebear::{Cancellation, Cancelled, Request, Runtime, State, TimeoutError, WaitError, no_suspend};
use support::order::{BY_URGENCY, on_one, root, wait_by_urgency};
use support::{Count, Flag, Joined, in_both_worlds, on_each, settle, until};

/// A count, and a condition for it. Clones are the same.
#[derive(Clone, Default)]
struct Shared(Arc<(Mutex<usize>, Condvar)>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.0.0.lock()
    }

    fn changed(&self) -> &Condvar {
        &self.0.1
    }

    /// Counts itself and waits once.
    fn come_and_wait(&self) -> Result<(), Cancelled> {
        let mut count = self.lock();
        *count += 1;
        self.changed().wait(&mut count)
    }

    /// Returns when so many have counted themselves; since they have the mutex until they are listed, they all wait then.
    fn wait_for(&self, n: usize) {
        until(|| *self.lock() == n);
    }
}

/// So many requests that wait once; they all do when this returns.
fn waiters(runtime: &Runtime, shared: &Shared, n: usize) -> Vec<Request<Result<(), Cancelled>>> {
    let waiters = (0..n).map(|_| {
        let shared = shared.clone();
        root(runtime).spawn(move || shared.come_and_wait())
    });
    let waiters = waiters.collect();
    shared.wait_for(n);
    waiters
}

// ---- who is notified -----------------------------------------------------------------------------------------------------------

#[test]
fn it_has_as_many_go_on_as_it_says() {
    on_each(|runtime| {
        let shared = Shared::default();
        let done = Count::new();
        let waiter = || {
            let (shared, done) = (shared.clone(), done.clone());
            move || {
                shared.come_and_wait().unwrap();
                done.up();
            }
        };
        let requests: Vec<_> = (0..5).map(|_| root(runtime).spawn(waiter())).collect();
        let threads: Vec<_> = (0..2).map(|_| thread::spawn(waiter())).collect();
        shared.wait_for(7);
        let mut expected = 0;
        for (asked, answered) in [(1, 1), (0, 0), (2, 2), (1, 1)] {
            assert_eq!(shared.changed().notify(asked), answered);
            expected += answered;
            done.wait_for(expected);
            settle(runtime);
            assert_eq!(done.get(), expected);
        }
        assert!(shared.changed().notify_one());
        assert_eq!(shared.changed().notify_all(), 2);
        assert_eq!(shared.changed().notify_all(), 0);
        assert!(!shared.changed().notify_one());
        requests.iter().for_each(|request| request.wait().copied().unwrap());
        threads.into_iter().for_each(|thread| thread.joined().unwrap());
    });
}

#[test]
fn a_notification_that_nobody_waits_for_is_lost() {
    in_both_worlds(|| {
        let shared = Shared::default();
        assert!(!shared.changed().notify_one());
        assert_eq!(shared.changed().notify(3), 0);
        let answer = shared.changed().wait_timeout(&mut shared.lock(), Duration::from_millis(1));
        assert_eq!(answer, Err(TimeoutError::TimedOut));
    });
}

#[test]
fn two_notifications_before_the_first_waiter_runs_reach_two() {
    on_one(|runtime, _| {
        let shared = Shared::default();
        let waiters = waiters(runtime, &shared, 3);
        let notify = shared.clone();
        // On their worker: none of them has gone on in between.
        let told = runtime.run(move || (notify.changed().notify_one(), notify.changed().notify_one()));
        assert_eq!(told, (true, true));
        until(|| waiters.iter().filter(|waiter| waiter.is_done()).count() == 2);
        assert!(shared.changed().notify_one() && !shared.changed().notify_one());
        waiters.iter().for_each(|waiter| waiter.wait().unwrap().unwrap());
    });
}

#[test]
fn the_most_urgent_waiter_is_notified_first_and_equals_by_age() {
    on_one(|runtime, log| {
        let shared = Shared::default();
        let theirs = shared.clone();
        let waiters = wait_by_urgency(runtime, &log, move || theirs.come_and_wait().unwrap());
        for n in 1..=waiters.len() {
            assert!(shared.changed().notify_one());
            until(|| log.told().len() == n);
        }
        log.check(&BY_URGENCY);
    });
}

// ---- the mutex is had again ----------------------------------------------------------------------------------------------------

#[test]
fn a_wait_lets_go_of_the_mutex_and_has_it_again() {
    on_each(|runtime| {
        let shared = Shared::default();
        let waiter = {
            let shared = shared.clone();
            root(runtime).spawn(move || {
                let mut count = shared.lock();
                shared.changed().wait(&mut count).unwrap();
                // Nobody else has it, and what was done meanwhile is seen.
                assert!(shared.0.0.try_lock().is_none());
                *count
            })
        };
        asleep(&waiter);
        // It lets go of it when it is listed.
        let mut count = shared.lock();
        assert!(shared.changed().notify_one());
        settle(runtime);
        assert!(!waiter.is_done(), "the mutex is not free");
        *count = 7;
        drop(count);
        assert_eq!(waiter.wait().copied().unwrap(), 7);
        assert!(!shared.0.0.is_locked());
    });
}

#[test]
fn a_cancelled_waiter_leaves_at_once_with_the_mutex() {
    on_each(|runtime| {
        let shared = Shared::default();
        let waiter = {
            let shared = shared.clone();
            root(runtime).spawn(move || {
                let mut count = shared.lock();
                let answer = shared.changed().wait(&mut count);
                assert!(shared.0.0.try_lock().is_none());
                *count += 1;
                answer
            })
        };
        asleep(&waiter);
        // It leaves at once, but does not answer before it has the mutex.
        let count = shared.lock();
        assert_eq!(waiter.cancel(), Cancellation::Marked);
        settle(runtime);
        assert!(!waiter.is_done());
        drop(count);
        ends_cancelled(&waiter);
        assert_eq!(*shared.lock(), 1);
        assert!(!shared.changed().notify_one(), "it has left no trace");
    });
}

#[test]
fn in_a_cancelled_request_the_mutex_is_not_let_go_of() {
    on_each(|runtime| {
        let request = runtime.spawn(|| {
            let shared = Shared::default();
            let mut count = shared.lock();
            Request::current().unwrap().cancel();
            assert_eq!(shared.changed().wait(&mut count), Err(Cancelled::new()));
            let told = shared.changed().wait_while(&mut count, |_| unreachable!("cancelled is told first"));
            assert_eq!(told, Err(Cancelled::new()));
            let told = shared.changed().wait_timeout(&mut count, Duration::MAX);
            assert_eq!(told, Err(TimeoutError::Cancelled));
            assert!(shared.0.0.is_locked());
        });
        ends_cancelled(&request);
    });
}

#[test]
fn a_wait_that_times_out_has_the_mutex_and_leaves_no_trace() {
    in_both_worlds(|| {
        let shared = Shared::default();
        let mut count = shared.lock();
        for limit in [Duration::ZERO, Duration::from_millis(2)] {
            assert_eq!(shared.changed().wait_timeout(&mut count, limit), Err(TimeoutError::TimedOut));
            assert!(shared.0.0.is_locked());
            assert!(!shared.changed().notify_one());
        }
    });
}

#[test]
fn a_wait_times_out_when_its_time_has_come_and_not_before() {
    on_each_clocked(|runtime, clock| {
        let shared = Shared::default();
        let waiters: Vec<_> = (1..=2)
            .map(|n| {
                let shared = shared.clone();
                let waiter = root(runtime).spawn(move || {
                    let limit = n * Duration::from_secs(1);
                    shared.changed().wait_timeout(&mut shared.lock(), limit)
                });
                asleep(&waiter);
                waiter
            })
            .collect();
        clock.advance(Duration::from_millis(999));
        settle(runtime);
        assert!(waiters.iter().all(|waiter| !waiter.is_done()));
        clock.advance(Duration::from_millis(1));
        assert_eq!(waiters[0].wait().copied().unwrap(), Err(TimeoutError::TimedOut));
        assert!(shared.changed().notify_one());
        assert_eq!(waiters[1].wait().copied().unwrap(), Ok(()));
    });
}

#[test]
fn a_notification_given_to_one_who_leaves_goes_to_the_next() {
    on_each(|runtime| {
        for round in 0..50 {
            let shared = Shared::default();
            let told = Count::new();
            let waiters: Vec<_> = (0..6)
                .map(|_| {
                    let (shared, told) = (shared.clone(), told.clone());
                    root(runtime).spawn(move || {
                        let answer = shared.come_and_wait();
                        // Whoever says `Ok` was notified, and whoever was says so.
                        answer.map(|()| told.up())
                    })
                })
                .collect();
            shared.wait_for(6);
            let canceller = {
                let waiters = waiters.clone();
                thread::spawn(move || {
                    waiters.iter().skip(round % 2).step_by(2).for_each(|waiter| _ = waiter.cancel());
                })
            };
            let reached = shared.changed().notify(2);
            canceller.joined().unwrap();
            assert_eq!(reached, 2, "three stay");
            told.wait_for(2);
            settle(runtime);
            assert_eq!(told.get(), 2);
            shared.changed().notify_all();
            waiters.iter().for_each(|waiter| _ = waiter.wait());
        }
    });
}

// ---- conditions ----------------------------------------------------------------------------------------------------------------

#[test]
fn wait_while_goes_on_when_the_condition_does_not_hold() {
    on_each(|runtime| {
        let shared = Shared::default();
        shared.changed().wait_while(&mut shared.lock(), |_| false).unwrap();
        let waiter = {
            let shared = shared.clone();
            root(runtime).spawn(move || {
                let mut count = shared.lock();
                shared.changed().wait_while(&mut count, |count| *count < 3).unwrap();
                *count
            })
        };
        for _ in 0..3 {
            until(|| waiter.state() == State::Suspended);
            *shared.lock() += 1;
            shared.changed().notify_all();
        }
        assert_eq!(waiter.wait().copied().unwrap(), 3);
    });
}

#[test]
fn wait_timeout_while_asks_once_more_when_time_is_up() {
    on_each_clocked(|runtime, clock| {
        let second = Duration::from_secs(1);
        let shared = Shared::default();
        let still = |n| {
            let shared = shared.clone();
            let waiter = root(runtime).spawn(move || {
                let mut count = shared.lock();
                shared.changed().wait_timeout_while(&mut count, second, |count| *count < n)
            });
            asleep(&waiter);
            waiter
        };
        let (met, unmet) = (still(1), still(2));
        // Notifications do not make it longer.
        clock.advance(second / 2);
        shared.changed().notify_all();
        settle(runtime);
        // Nobody is notified of this.
        *shared.lock() = 1;
        clock.advance(second / 2);
        assert_eq!(met.wait().copied().unwrap(), Ok(()));
        assert_eq!(unmet.wait().copied().unwrap(), Err(TimeoutError::TimedOut));
        let at_once = shared.changed().wait_timeout_while(&mut shared.lock(), Duration::ZERO, |_| false);
        assert_eq!(at_once, Ok(()));
    });
}

#[test]
fn producers_and_consumers_of_both_kinds_lose_nothing() {
    on_each(|runtime| {
        const EACH: usize = 200;
        let buffer = Arc::new((Mutex::new(VecDeque::new()), Condvar::new(), Condvar::new()));
        let sum = Count::new();
        let producer = || {
            let buffer = buffer.clone();
            move || {
                let (queue, not_empty, not_full) = &*buffer;
                for _ in 0..EACH {
                    let mut queue = queue.lock();
                    not_full.wait_while(&mut queue, |queue| queue.len() == 3).unwrap();
                    queue.push_back(());
                    not_empty.notify_one();
                }
            }
        };
        let consumer = || {
            let (buffer, sum) = (buffer.clone(), sum.clone());
            move || {
                let (queue, not_empty, not_full) = &*buffer;
                for _ in 0..EACH {
                    let mut queue = queue.lock();
                    not_empty.wait_while(&mut queue, |queue| queue.is_empty()).unwrap();
                    queue.pop_front().unwrap();
                    sum.up();
                    not_full.notify_one();
                }
            }
        };
        let requests = [
            root(runtime).spawn(producer()),
            root(runtime).spawn(producer()),
            root(runtime).spawn(consumer()),
        ];
        let threads = [thread::spawn(producer()), thread::spawn(consumer()), thread::spawn(consumer())];
        for request in requests {
            request.wait().copied().unwrap();
        }
        for thread in threads {
            thread.joined().unwrap();
        }
        assert_eq!(sum.get(), 3 * EACH);
        assert!(buffer.0.lock().is_empty());
    });
}

// ---- misuse --------------------------------------------------------------------------------------------------------------------

#[test]
fn two_mutexes_at_once_are_refused_and_one_after_the_other_are_not() {
    on_each(|runtime| {
        let shared = Shared::default();
        let other = Mutex::new(());
        // Nobody waits: any mutex will do.
        let _ = shared.changed().wait_timeout(&mut other.lock(), Duration::ZERO);
        let waiter = waiters(runtime, &shared, 1).remove(0);
        let mut held = other.lock();
        let told = catch_unwind(AssertUnwindSafe(|| shared.changed().wait(&mut held)));
        let payload = told.unwrap_err();
        assert!(payload.downcast_ref::<&str>().unwrap().contains("two mutexes"));
        assert!(other.is_locked());
        drop(held);
        assert!(!other.is_locked());
        shared.changed().notify_all();
        waiter.wait().unwrap().unwrap();
    });
}

#[test]
fn a_region_that_must_not_suspend_refuses_it_by_name_before_the_mutex_is_let_go_of() {
    on_each(|runtime| {
        let request = runtime.spawn(|| {
            let shared = Shared::default();
            let mut count = shared.lock();
            let told = catch_unwind(AssertUnwindSafe(|| {
                no_suspend("a region", || shared.changed().wait(&mut count))
            }));
            let text = *told.unwrap_err().downcast::<String>().unwrap();
            assert!(text.contains("a region") && text.contains("Condvar"), "{text}");
            assert!(shared.0.0.is_locked());
            *count += 1;
        });
        request.wait().unwrap();
    });
}

/// Waits for a condition with a lock in its hand, for which the one who has the mutex waits. Whose wait closes the cycle is told.
#[test]
fn a_cycle_through_the_mutex_that_is_to_be_had_again_is_named() {
    on_each(|runtime| {
        let shared = Shared::default();
        let inner = Arc::new(Mutex::new(()));
        let waiter = {
            let (shared, inner) = (shared.clone(), inner.clone());
            root(runtime).name("waiter").spawn(move || {
                let _inner = inner.lock();
                let mut count = shared.lock();
                let told = catch_unwind(AssertUnwindSafe(|| shared.changed().wait(&mut count))).err()?;
                // It does not have the mutex: neither the value nor the right to let go of it.
                assert!(catch_unwind(AssertUnwindSafe(|| *count)).is_err());
                drop(count);
                assert!(shared.0.0.is_locked());
                Some(*told.downcast::<String>().unwrap())
            })
        };
        asleep(&waiter);
        let has_it = Flag::new();
        let holder = {
            let (shared, inner, has_it) = (shared.clone(), inner.clone(), has_it.clone());
            root(runtime).name("holder").spawn(move || {
                let _count = shared.lock();
                has_it.raise();
                drop(inner.lock());
            })
        };
        has_it.wait();
        asleep(&holder);
        assert!(shared.changed().notify_one());
        let text = match (waiter.wait().unwrap(), holder.wait()) {
            (Some(text), Ok(())) => text.clone(),
            (None, Err(WaitError::Failed(failure))) => failure.panic_message().unwrap().to_owned(),
            both => panic!("one of them is told: {both:?}"),
        };
        for part in ["deadlock", "`waiter`", "`holder`", "Mutex", "tests/locks/condvar.rs"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!shared.0.0.is_locked() && !inner.is_locked());
    });
}

#[test]
fn a_panic_in_a_condition_lets_go_of_the_mutex() {
    on_each(|runtime| {
        let shared = Shared::default();
        let theirs = shared.clone();
        let request = runtime.spawn(move || {
            let mut count = theirs.lock();
            theirs.changed().wait_while(&mut count, |_| panic!("in a condition"))
        });
        assert!(matches!(request.wait(), Err(WaitError::Failed(_))));
        assert!(shared.0.0.try_lock().is_some());
    });
}
