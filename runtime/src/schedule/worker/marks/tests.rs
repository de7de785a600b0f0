//! What is spawned in a cancelled request, and shown to another worker before its maker comes to cancel it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering}; // not modelled: a test
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::record::fiber::{self, Fiber};
use crate::schedule::worker::{OnWorker, Worker};
use crate::state::attention::{HUNGRY, RAIDED};
use crate::{CancelReason, Error, Request, Runtime, WaitError, spawn, try_spawn, yield_now};

thread_local! {
    /// What a test does where this worker has put a spawned request into its private queue, and has not attended to anything.
    static BETWEEN: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// This worker has put a spawned request into its private queue.
pub(super) fn after_the_insertion() {
    if let Ok(Some(between)) = BETWEEN.try_with(RefCell::take) {
        between();
    }
}

/// Whether it comes to hold within a minute.
fn is_soon(mut holds: impl FnMut() -> bool) -> bool {
    let limit = Instant::now() + Duration::from_secs(60);
    while Instant::now() < limit {
        if holds() {
            return true;
        }
        thread::yield_now();
    }
    false
}

/// A runtime of two workers, where the second may raid the first. None: no worker raids on this system.
fn two_workers() -> Option<Runtime> {
    if !crate::state::asymmetric::is_available() {
        eprintln!("skipped: without membarrier no worker raids");
        return None;
    }
    Some(Runtime::builder().workers(2).build().unwrap())
}

/// The worker of this thread.
fn worker() -> &'static Worker {
    fiber::get().and_then(Fiber::worker).unwrap()
}

/// Waits until the other worker sleeps, has said so here, and watches: what is spawned next is attended to, and raided if that takes long.
fn until_the_other_watches() {
    let shared = worker().shared();
    assert!(is_soon(|| {
        if shared.signals.sleeping() == 0 || worker().post.attention.get() & HUNGRY == 0 {
            return false;
        }
        let watches = !shared.watchers.is_empty();
        if !watches {
            // It fell asleep before this worker had work, so nothing but a published request would wake it.
            shared.signals.notify_any();
        }
        watches
    }));
}

/// Waits until the other worker has raided this one and found nothing to start.
fn until_raided_in_vain() -> bool {
    let asleep = || worker().shared().signals.sleeping() == 1;
    is_soon(|| worker().post.attention.get() & RAIDED != 0 && asleep())
}

#[test]
fn a_child_that_a_cancelled_request_spawns_is_raided_by_nobody() {
    let Some(runtime) = two_workers() else { return };
    let [began, raided] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (tell, told) = mpsc::channel();
    let maker = {
        let (began, raided) = (began.clone(), raided.clone());
        move || -> Result<(), Error> {
            until_the_other_watches();
            Request::current().unwrap().abort(CancelReason::Asked);
            let seen = began.clone();
            BETWEEN.set(Some(Box::new(move || {
                // A child that has begun runs on the other worker.
                let found = || seen.load(Ordering::Relaxed) || until_raided_in_vain();
                raided.store(found(), Ordering::Relaxed);
            })));
            tell.send(spawn(move || began.store(true, Ordering::Relaxed))).unwrap();
            Ok(())
        }
    };
    let maker = runtime.enter(|| Request::builder().own_stack().try_spawn(maker));
    let child = told.recv().unwrap();
    assert!(matches!(child.take(), Err(WaitError::TargetCancelled(CancelReason::Parent))));
    assert!(maker.take().is_err());
    assert!(raided.load(Ordering::Relaxed), "no worker has raided the maker");
    assert!(!began.load(Ordering::Relaxed), "it was born cancelled");
}

#[test]
fn a_child_that_is_raided_before_its_maker_is_cancelled_hears_of_the_cancel() {
    let Some(runtime) = two_workers() else { return };
    let [began, heard] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (tell, told) = mpsc::channel();
    let maker = {
        let (began, heard) = (began.clone(), heard.clone());
        move || -> Result<(), Error> {
            until_the_other_watches();
            let (seen, own) = (began.clone(), Request::current().unwrap());
            BETWEEN.set(Some(Box::new(move || {
                assert!(is_soon(|| seen.load(Ordering::Relaxed)), "no worker has raided the maker");
                // By another thread: this worker learns of it by a message.
                thread::spawn(move || own.abort(CancelReason::Asked)).join().unwrap();
            })));
            let child = try_spawn(move || {
                began.store(true, Ordering::Relaxed);
                let told = is_soon(|| yield_now().is_err());
                heard.store(told, Ordering::Relaxed);
                Ok(())
            });
            tell.send(child).unwrap();
            Ok(())
        }
    };
    let maker = runtime.enter(|| Request::builder().own_stack().try_spawn(maker));
    let child = told.recv().unwrap();
    assert!(matches!(child.take(), Err(WaitError::TargetCancelled(CancelReason::Parent))));
    assert!(heard.load(Ordering::Relaxed), "the cancel has not come to the worker that runs the child");
    assert!(maker.take().is_err());
}
