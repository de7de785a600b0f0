//! What is spawned in a cancelled request, and shown to another worker before its maker comes to cancel it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering}; // not modelled: a test
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::{CancelReason, Error, Request, Runtime, WaitError, try_spawn, yield_now};

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

#[test]
fn a_child_that_another_worker_raids_while_its_cancelled_maker_spawns_it_hears_of_the_cancel() {
    if !crate::state::asymmetric::is_available() {
        eprintln!("skipped: without membarrier no worker raids");
        return;
    }
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let [began, heard] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (tell, told) = mpsc::channel();
    let maker = {
        let (began, heard) = (began.clone(), heard.clone());
        move || -> Result<(), Error> {
            Request::current().unwrap().abort(CancelReason::Asked);
            let seen = began.clone();
            BETWEEN.set(Some(Box::new(move || _ = is_soon(|| seen.load(Ordering::Relaxed)))));
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
    assert!(began.load(Ordering::Relaxed), "no worker has raided the maker");
    assert!(matches!(child.take(), Err(WaitError::TargetCancelled(CancelReason::Parent))));
    assert!(heard.load(Ordering::Relaxed), "the cancel has not come to the worker that runs the child");
    assert!(maker.take().is_err());
}
