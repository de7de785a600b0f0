//! `RwLock`: circles of waits that lead through those who read.

#[path = "support/cancelling.rs"]
mod cancelling;
mod support;

use std::sync::Arc;

use cancelling::asleep;
use forebear::sync::{Mutex, RwLock};
use forebear::{Request, WaitError, spawn, yield_now};
use support::order::root;
use support::{Flag, on_each, until};

/// Exactly one of them was told of a circle with these names in it; the other went on.
fn one_is_told<T: std::fmt::Debug>(both: [&Request<T>; 2], parts: &[&str]) {
    let told: Vec<_> = both.into_iter().map(|request| request.wait()).filter_map(Result::err).collect();
    let [WaitError::Failed(failure)] = &told[..] else { panic!("one of them is told: {told:?}") };
    let text = failure.panic_message().unwrap();
    for part in ["deadlock", "tests/rw_lock_circles.rs"].iter().chain(parts) {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_circle_through_one_who_reads_is_found_and_named_whoever_closes_it() {
    on_each(|runtime| {
        for reader_first in [true, false] {
            let (lock, other) = (Arc::new(RwLock::new(())), Arc::new(Mutex::new(())));
            let (has_lock, has_other, go_on) = (Flag::new(), Flag::new(), Flag::new());
            let reader = {
                let (lock, other, mine, theirs, go_on) =
                    (lock.clone(), other.clone(), has_lock.clone(), has_other.clone(), go_on.clone());
                root(runtime).name("reader").spawn(move || {
                    let _reading = lock.read();
                    mine.raise();
                    theirs.wait();
                    if !reader_first {
                        go_on.wait();
                    }
                    drop(other.lock());
                })
            };
            let writer = {
                let (lock, other, mine, theirs, go_on) =
                    (lock.clone(), other.clone(), has_other.clone(), has_lock.clone(), go_on.clone());
                root(runtime).name("writer").spawn(move || {
                    let _other = other.lock();
                    mine.raise();
                    theirs.wait();
                    if reader_first {
                        go_on.wait();
                    }
                    drop(lock.write());
                })
            };
            asleep(if reader_first { &reader } else { &writer });
            go_on.raise();
            one_is_told([&reader, &writer], &["`writer`", "`reader`", "RwLock", "Mutex"]);
            assert!(!lock.is_locked());
        }
    });
}

#[test]
fn to_write_while_one_reads_is_told_at_once() {
    on_each(|runtime| {
        let lock = Arc::new(RwLock::new(()));
        // So that no worker is idle, and makes a survey.
        let told = Flag::new();
        let busy: Vec<_> = (0..4)
            .map(|_| {
                let told = told.clone();
                root(runtime).spawn(move || {
                    while !told.is_up() {
                        yield_now().unwrap();
                    }
                })
            })
            .collect();
        let theirs = lock.clone();
        let request = root(runtime).name("both").spawn(move || {
            let _reading = theirs.read();
            drop(theirs.write());
        });
        let Err(WaitError::Failed(failure)) = request.wait() else { panic!("it is told") };
        let text = failure.panic_message().unwrap();
        assert!(text.contains("deadlock") && text.contains("`both`") && text.contains("RwLock"), "{text}");
        told.raise();
        busy.iter().for_each(|request| _ = request.wait().unwrap());
        assert!(!lock.is_locked());
    });
}

#[test]
fn of_two_that_read_and_both_want_to_write_one_is_told() {
    on_each(|runtime| {
        let lock = Arc::new(RwLock::new(0));
        let reads = [0; 2].map(|_| Flag::new());
        let both = [0, 1].map(|me| {
            let (lock, reads) = (lock.clone(), reads.clone());
            root(runtime).name(["one", "two"][me]).spawn(move || {
                let reading = lock.read();
                reads[me].raise();
                reads[1 - me].wait();
                let mut writing = lock.write();
                *writing += 1;
                drop(reading);
            })
        });
        // The first at the gate waits for itself; when it has been told, the other does.
        for request in &both {
            let Err(WaitError::Failed(failure)) = request.wait() else { panic!("it reads, too") };
            assert!(failure.panic_message().unwrap().contains("deadlock"), "{failure:#}");
        }
        assert!(!lock.is_locked());
    });
}

#[test]
fn to_read_twice_with_a_writer_in_between_is_a_circle() {
    on_each(|runtime| {
        let lock = Arc::new(RwLock::new(()));
        let (reads, go_on) = (Flag::new(), Flag::new());
        let reader = {
            let (lock, reads, go_on) = (lock.clone(), reads.clone(), go_on.clone());
            root(runtime).name("reader").spawn(move || {
                let _reading = lock.read();
                reads.raise();
                go_on.wait();
                drop(lock.read());
            })
        };
        reads.wait();
        let theirs = lock.clone();
        let writer = root(runtime).name("writer").spawn(move || drop(theirs.write()));
        asleep(&writer);
        go_on.raise();
        one_is_told([&reader, &writer], &["`reader`", "`writer`", "RwLock"]);
    });
}

#[test]
fn a_thread_that_reads_is_found_in_a_circle_too() {
    on_each(|runtime| {
        let lock = Arc::new(RwLock::new(()));
        runtime.enter(|| {
            spawn(|| ()).wait().unwrap();
            let reading = lock.read();
            let theirs = lock.clone();
            let child = Request::builder().own_stack().name("child").spawn(move || drop(theirs.write()));
            match child.wait() {
                Err(WaitError::CircularWait(cycle)) => {
                    assert!(cycle.to_string().contains("child"), "{cycle}");
                    drop(reading);
                    child.wait().unwrap();
                }
                Err(WaitError::Failed(failure)) => assert!(format!("{failure:#}").contains("deadlock")),
                other => panic!("{other:?}"),
            }
        });
        until(|| !lock.is_locked());
    });
}

#[test]
fn a_writer_that_waits_for_readers_that_go_on_is_in_no_circle() {
    on_each(|runtime| {
        let lock = Arc::new(RwLock::new(0));
        // Readers wait for each other's work, in a chain, and for yields; a writer comes in between all the time.
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let lock = lock.clone();
                root(runtime).spawn(move || {
                    for _ in 0..20 {
                        *lock.write() += 1;
                        yield_now().unwrap();
                    }
                })
            })
            .collect();
        let readers: Vec<_> = (0..6)
            .map(|_| {
                let lock = lock.clone();
                root(runtime).spawn(move || {
                    for _ in 0..20 {
                        let reading = lock.read();
                        let child = Request::builder().own_stack().spawn(|| yield_now().unwrap());
                        child.wait().unwrap();
                        drop(reading);
                    }
                })
            })
            .collect();
        for request in writers.iter().chain(&readers) {
            request.wait().unwrap();
        }
        assert_eq!(*lock.read(), 60);
    });
}
