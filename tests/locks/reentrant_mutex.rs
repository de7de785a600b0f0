//! `ReentrantMutex`: who may come again, and who may not.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cancelling::{asleep, ends_cancelled};
use forebear::sync::{ReentrantMutex, ReentrantMutexGuard};
use forebear::time::timeout;
use forebear::{Cancellation, Cancelled, Request, TimeoutError, WaitError, join, no_suspend, yield_now};
use support::order::{BY_URGENCY, on_one, root, wait_by_urgency};
use support::{Flag, Joined, in_both_worlds, on_each, settle};

type Shared = Arc<ReentrantMutex<Cell<u32>>>;

#[test]
fn whoever_has_it_may_have_it_again() {
    in_both_worlds(|| {
        let mutex = ReentrantMutex::new(RefCell::new(vec![1]));
        assert!(!mutex.is_owned() && !mutex.is_locked());
        let first = mutex.lock();
        {
            let second = mutex.lock();
            second.borrow_mut().push(2);
            let third = mutex.try_lock().unwrap();
            let fourth = mutex.lock_timeout(Duration::ZERO).unwrap();
            let fifth = mutex.lock_or_cancelled().unwrap();
            // In any order.
            drop((second, fifth, third));
            assert!(mutex.is_owned());
            drop(fourth);
        }
        assert!(mutex.is_owned() && mutex.is_locked());
        assert_eq!(*first.borrow(), [1, 2]);
        drop(first);
        assert!(!mutex.is_owned() && !mutex.is_locked());
    });
}

#[test]
fn others_wait_until_the_last_is_given_back() {
    on_each(|runtime| {
        let mutex = Shared::default();
        let (first, second) = (mutex.lock(), mutex.lock());
        let (theirs, threads) = (mutex.clone(), mutex.clone());
        let request = root(runtime).spawn(move || theirs.lock().replace(3));
        asleep(&request);
        assert!(thread::spawn(move || threads.try_lock().is_none() && !threads.is_owned()).joined().unwrap());
        first.set(1);
        drop(first);
        settle(runtime);
        assert!(!request.is_done());
        second.set(2);
        drop(second);
        assert_eq!(request.wait().copied().unwrap(), 2);
        assert_eq!(mutex.lock().get(), 3);
    });
}

/// Two requests on one worker are two, though they are on one thread.
#[test]
fn another_request_on_the_same_worker_is_another() {
    on_one(|runtime, _| {
        let mutex = Shared::default();
        let (begun, free) = (Flag::new(), Flag::new());
        let holder = {
            let (mutex, begun, free) = (mutex.clone(), begun.clone(), free.clone());
            root(runtime).spawn(move || {
                let first = mutex.lock();
                begun.raise();
                free.wait();
                // It is the same after the waits.
                let second = mutex.lock();
                second.set(first.get() + 1);
            })
        };
        begun.wait();
        let theirs = mutex.clone();
        let other = root(runtime).spawn(move || {
            assert!(theirs.is_locked() && !theirs.is_owned() && theirs.try_lock().is_none());
            theirs.lock().get()
        });
        asleep(&other);
        free.raise();
        assert_eq!(other.wait().copied().unwrap(), 1);
        holder.wait().unwrap();
    });
}

/// It is the thread's, whether it has used the runtime before or not.
#[test]
fn a_thread_keeps_it_when_it_gets_to_know_a_runtime() {
    on_each(|runtime| {
        let runtime = runtime.clone();
        thread::spawn(move || {
            let mutex = Shared::default();
            let first = mutex.lock();
            assert_eq!(runtime.spawn(|| 7).wait().copied().unwrap(), 7);
            let second = mutex.lock();
            second.set(1);
            assert!(mutex.is_owned());
            drop(first);
            drop(second);
            assert!(!mutex.is_locked());
            let again = mutex.lock_timeout(Duration::MAX).unwrap();
            assert!(mutex.lock_timeout(Duration::ZERO).is_ok());
            drop(again);
        })
        .joined()
        .unwrap();
    });
}

/// Threads come and go, and none of them is taken for one that was.
#[test]
fn a_guard_that_was_leaked_is_nobodys() {
    let mutex = Shared::default();
    for round in 0..20 {
        let theirs = mutex.clone();
        let had = thread::spawn(move || theirs.try_lock().map(std::mem::forget).is_some()).join().unwrap();
        assert_eq!(had, round == 0);
    }
}

/// Whether the child takes the lock that its waiter has depends on nothing but that: not on the stack that it is run on.
#[test]
fn a_child_is_another_owner_wherever_it_is_run() {
    on_each(|runtime| {
        for is_direct in [true, false] {
            let mutex = Shared::default();
            let request = runtime.spawn(move || {
                let held = mutex.lock();
                let theirs = mutex.clone();
                let child = move || {
                    assert!(!theirs.is_owned() && theirs.try_lock().is_none());
                    theirs.lock().set(1);
                };
                let child =
                    if is_direct { Request::new(child) } else { Request::builder().own_stack().build(child) };
                let refused = child.wait().copied();
                (held.get(), format!("{:#}", refused.unwrap_err()))
            });
            let (value, message) = request.take().unwrap();
            assert_eq!(value, 0);
            // The cycle is told to the child's wait for the lock, or to the wait for the child.
            assert!(message.contains("ReentrantMutex") || message.contains("panicked"), "{message}");
        }
    });
}

#[test]
fn regions_callbacks_and_own_arms_count_as_the_request_that_called() {
    on_one(|runtime, _| {
        let mutex = Shared::default();
        let (late, theirs, again) = (mutex.clone(), mutex.clone(), mutex.clone());
        // On the worker: if this thread ran it, the worker could take an arm of its join.
        let request = Request::builder().own_stack().on(runtime).build(move || {
            let held = theirs.lock();
            timeout(Duration::from_secs(60), || theirs.lock().set(1)).unwrap();
            timeout(Duration::from_secs(60), || {
                timeout(Duration::from_secs(60), || theirs.lock().set(2)).unwrap()
            })
            .unwrap();
            let (own, other) = (theirs.clone(), theirs.clone());
            join(move || own.lock().set(3), move || other.lock().set(other.lock().get() + 1));
            // What is taken in a region is the caller's outside.
            let inside = timeout(Duration::from_secs(60), || theirs.lock()).unwrap();
            drop(held);
            assert!(theirs.is_owned());
            let value = inside.get();
            std::mem::forget(inside);
            value
        });
        // The guard that was forgotten is the request's, and its callbacks are part of it.
        let owned = Arc::new(AtomicBool::new(false));
        let told = owned.clone();
        let request = request.on_done(move |_| told.store(again.is_owned(), Ordering::Relaxed));
        request.submit();
        assert_eq!(request.wait().copied().unwrap(), 4);
        assert!(owned.load(Ordering::Relaxed));
        assert!(late.is_locked() && !late.is_owned());
    });
}

#[test]
fn requests_and_threads_exclude_each_other_also_across_waits() {
    on_each(|runtime| {
        let mutex = Shared::default();
        let add = || {
            let mutex = mutex.clone();
            move || {
                for round in 0..100 {
                    let outer = mutex.lock();
                    let seen = outer.get();
                    if round % 4 == 0 {
                        let _ = yield_now();
                    }
                    mutex.lock().set(seen + 1);
                }
            }
        };
        let requests: Vec<_> = (0..6).map(|_| root(runtime).spawn(add())).collect();
        let threads: Vec<_> = (0..2).map(|_| thread::spawn(add())).collect();
        threads.into_iter().for_each(|thread| thread.joined().unwrap());
        requests.iter().for_each(|request| request.wait().copied().unwrap());
        assert_eq!(mutex.lock().get(), 8 * 100);
    });
}

#[test]
fn a_guard_of_a_part_counts_as_one() {
    in_both_worlds(|| {
        let mut mutex = ReentrantMutex::new((1, "one"));
        let part = ReentrantMutexGuard::map(mutex.lock(), |pair| &pair.1);
        let whole = mutex.lock();
        assert_eq!((*part, format!("{part:?}"), whole.0), ("one", "\"one\"".to_owned(), 1));
        drop(whole);
        assert!(mutex.is_owned());
        drop(part);
        assert!(!mutex.is_locked());
        mutex.get_mut().0 = 2;
        assert_eq!(format!("{mutex:?}"), "ReentrantMutex { value: (2, \"one\"), .. }");
        assert_eq!(mutex.into_inner(), (2, "one"));
    });
}

#[test]
fn a_wait_with_a_limit_times_out_and_leaves_no_trace() {
    on_each(|runtime| {
        let mutex = Shared::default();
        let held = mutex.lock();
        let theirs = mutex.clone();
        let told = root(runtime).spawn(move || theirs.lock_timeout(Duration::from_millis(2)).map(|_| ()));
        assert_eq!(told.wait().copied().unwrap(), Err(TimeoutError::TimedOut));
        drop(held);
        assert!(mutex.try_lock().is_some());
    });
}

#[test]
fn a_cancelled_waiter_leaves_at_once_and_cancelled_is_told_first() {
    on_each(|runtime| {
        let mutex = Shared::default();
        let held = mutex.lock();
        let theirs = mutex.clone();
        let leaver = root(runtime).spawn(move || theirs.lock_or_cancelled().map(|_| ()));
        asleep(&leaver);
        assert_eq!(leaver.cancel(), Cancellation::Marked);
        ends_cancelled(&leaver);
        drop(held);
        let theirs = mutex.clone();
        let request = runtime.spawn(move || {
            Request::current().unwrap().cancel();
            let held = theirs.lock();
            assert_eq!(theirs.lock_or_cancelled().err(), Some(Cancelled::new()));
            assert_eq!(theirs.lock_timeout(Duration::MAX).err(), Some(TimeoutError::Cancelled));
            drop(held);
        });
        ends_cancelled(&request);
        assert!(!mutex.is_locked());
    });
}

#[test]
fn the_most_urgent_waiter_is_first_and_equals_by_age() {
    on_one(|runtime, log| {
        let mutex = Shared::default();
        let held = mutex.lock();
        let theirs = mutex.clone();
        let waiters = wait_by_urgency(runtime, &log, move || drop((theirs.lock(), theirs.lock())));
        drop(held);
        waiters.iter().for_each(|waiter| waiter.wait().copied().unwrap());
        log.check(&BY_URGENCY);
    });
}

#[test]
fn a_cycle_through_it_is_found_and_named() {
    on_each(|runtime| {
        let mutex = Shared::default();
        let request = root(runtime).name("holder").spawn(move || {
            let _held = mutex.lock();
            let theirs = mutex.clone();
            let child = Request::builder().name("child").own_stack().spawn(move || drop(theirs.lock()));
            child.wait().copied()
        });
        let Err(error) = request.wait().unwrap() else { panic!("somebody is told") };
        let text = format!("{error:#}");
        assert!(text.contains("`child`") && text.contains("holder"), "{text}");
    });
}

#[test]
fn a_region_that_must_not_suspend_refuses_a_wait_by_name_and_only_that() {
    on_each(|runtime| {
        let mutex = Shared::default();
        let held = mutex.lock();
        no_suspend("a region", || drop(mutex.lock()));
        let theirs = mutex.clone();
        let request = root(runtime).spawn(move || no_suspend("a region", || drop(theirs.lock())));
        let Err(WaitError::Failed(failure)) = request.wait() else { panic!("it has to wait") };
        let text = failure.panic_message().unwrap();
        assert!(text.contains("a region") && text.contains("ReentrantMutex"), "{text}");
        drop(held);
    });
}
