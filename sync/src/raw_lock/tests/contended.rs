//! Requests of a runtime contend for a lock, and then nobody does: the lock is as new. The other tests drive the steps by hand.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use forebear::{Runtime, yield_now};
use forebear_context::context::current;

use super::*;

const REQUESTS: u32 = 8;
const SECTIONS: u32 = 200;

/// A section that is held across yields, so that the others of its worker come meanwhile. Answers whether it had to wait.
fn section(lock: &RawLock) -> bool {
    // SAFETY: the context of the calling stack, which stays on its thread.
    let context = unsafe { current().expect("a request's").as_ref() };
    let terms = LockTerms { reason: Reason::Lock, deadline: None, caller: Location::caller(), of: &LOCK };
    let waits = !lock.try_fast();
    if waits {
        lock.waiting(context, terms).wait().expect("nothing refuses it");
    }
    yield_now().expect("nobody cancels it");
    // SAFETY: taken above, by this stack.
    unsafe { lock.unlock() };
    waits
}

#[track_caller]
fn assert_as_new(lock: &RawLock) {
    assert!(lock.word.load(Ordering::Relaxed).is_null(), "{lock:?}");
    assert!(lock.line.with(|line| line.queue.is_empty()));
    assert!(!lock.has_waiters.load(Ordering::Relaxed), "else each lock and release goes the slow way");
    assert!(lock.try_fast());
    assert_eq!(holder(lock.word.load(Ordering::Relaxed)), me());
    // SAFETY: just taken.
    unsafe { lock.unlock() };
    assert!(lock.word.load(Ordering::Relaxed).is_null());
}

#[test]
fn a_lock_for_which_requests_have_waited_has_no_queue_and_is_taken_by_one_exchange() {
    for workers in [1, 2] {
        let runtime = Runtime::builder().workers(workers).build().expect("a runtime");
        let (lock, waits) = (Arc::new(RawLock::default()), Arc::new(AtomicU32::new(0)));
        let contend = || {
            let (lock, waits) = (lock.clone(), waits.clone());
            runtime.spawn(move || {
                for _ in 0..SECTIONS {
                    waits.fetch_add(u32::from(section(&lock)), std::sync::atomic::Ordering::Relaxed);
                }
            })
        };
        let requests: Vec<_> = (0..REQUESTS).map(|_| contend()).collect();
        requests.into_iter().for_each(|request| request.take().expect("it ends"));
        let waits = waits.load(std::sync::atomic::Ordering::Relaxed);
        assert!(waits > REQUESTS, "they have contended: {waits} waits");
        let lock = lock.clone();
        runtime.spawn(move || assert_as_new(&lock)).take().expect("it is as new");
    }
}
