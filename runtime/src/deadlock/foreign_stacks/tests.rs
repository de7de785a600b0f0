use std::cell::Cell;
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::api::any::{AnyRequest, State};
use crate::deadlock::urgency;
use crate::schedule::held_back::will_end;
use crate::schedule::worker::OnWorker;
use crate::state::word::QUEUED;
use crate::{Runtime, spawn};

/// The part of a word that says how far the request is.
const LIFE: u64 = 0b111;

/// Calls `look` with a request whose runtime has unmapped its stacks, as a reader finds it that has read the request's word before: the word and
/// the stack's address are those of a request that is suspended.
fn with_one_whose_stack_is_gone(look: impl FnOnce(&AnyRequest)) {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let other = Runtime::builder().workers(1).build().unwrap();
    let (release, released) = mpsc::channel();
    let awaited = other.spawn(move || released.recv().unwrap());
    let request = runtime.spawn(move || awaited.wait().map(drop).unwrap());
    while request.state() != State::Suspended {
        thread::yield_now();
    }
    let any = AnyRequest::from(&request);
    // SAFETY: the handle's link.
    let h = unsafe { any.raw().as_ref() };
    let (word, stack) = (h.bare.as_atomic().load(Ordering::Relaxed), h.fiber.load(Ordering::Relaxed));
    release.send(()).unwrap();
    request.wait().unwrap();
    drop(runtime);
    let now = (h.bare.as_atomic().load(Ordering::Relaxed), h.fiber.load(Ordering::Relaxed));
    h.bare.as_atomic().store(word, Ordering::Relaxed);
    h.fiber.store(stack, Ordering::Relaxed);
    look(&any);
    h.bare.as_atomic().store(now.0, Ordering::Relaxed);
    h.fiber.store(now.1, Ordering::Relaxed);
}

#[test]
fn the_state_of_a_request_is_asked_for_while_its_stack_is_unmapped() {
    with_one_whose_stack_is_gone(|any| assert_eq!(any.state(), State::Running));
}

#[test]
fn a_pool_asks_whether_a_member_goes_on_while_its_stack_is_unmapped() {
    with_one_whose_stack_is_gone(|any| assert!(will_end(any)));
}

#[test]
fn a_raise_that_comes_after_the_end_of_a_runtime_leaves_nothing_there() {
    with_one_whose_stack_is_gone(|any| {
        // SAFETY: the handle's link.
        let h = unsafe { any.raw().as_ref() };
        let started = h.bare.load().0;
        for (life, key) in [(started & LIFE, 2), (QUEUED, 1)] {
            h.bare.as_atomic().store(started & !LIFE | life, Ordering::Relaxed);
            let links = h.bare.load().links();
            // SAFETY: U2: the handle.
            unsafe { urgency::raise(None, any.raw(), key) };
            assert_eq!(h.urgency(), key);
            assert_eq!(h.bare.load().links(), links, "nobody will release that");
        }
    });
}

#[test]
fn a_stack_that_its_worker_has_given_back_is_no_workers() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let shared = runtime.shared().clone();
    runtime.run(move || {
        let worker = crate::record::fiber::get().and_then(OnWorker::worker).unwrap();
        let coroutine = Coroutine::build(shared.slab.take(shared.default_class).unwrap(), worker);
        // SAFETY: just built.
        let at = unsafe { coroutine.as_ref() }.context();
        let of = || {
            let of = Cell::new(None);
            with_holder(None, at, |record| of.set(record.worker().map(|worker| worker.index)));
            of.get()
        };
        assert_eq!(of(), Some(worker.index));
        worker.post.unlist_coroutine(coroutine);
        // SAFETY: nothing has run on it.
        let slot = unsafe { Coroutine::dismantle(coroutine) };
        assert_eq!(of(), None, "it may be built anew by another worker at any time");
        shared.slab.give_back(slot);
    });
}

/// For ThreadSanitizer: a coroutine is built where another thread raises one that was there before.
#[test]
fn a_stack_is_built_anew_while_others_read_it() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let shared = runtime.shared().clone();
    let (give, stacks) = mpsc::channel();
    let reader = thread::spawn(move || {
        for address in stacks {
            let at = NonNull::new(std::ptr::with_exposed_provenance_mut::<Context>(address)).unwrap();
            for key in (1..=100).rev() {
                with_holder(None, at, |record| {
                    record.lower_urgency(key);
                    let _ = (record.is_parked(), record.worker().is_some());
                });
            }
        }
    });
    runtime.run(move || {
        let worker = crate::record::fiber::get().and_then(OnWorker::worker).unwrap();
        for _ in 0..100 {
            let coroutine = Coroutine::build(shared.slab.take(shared.default_class).unwrap(), worker);
            // SAFETY: just built.
            give.send(unsafe { coroutine.as_ref() }.context().as_ptr().expose_provenance()).unwrap();
            worker.post.unlist_coroutine(coroutine);
            // SAFETY: nothing has run on it.
            shared.slab.give_back(unsafe { Coroutine::dismantle(coroutine) });
            spawn(|| ()).take().unwrap();
        }
    });
    reader.join().unwrap();
}
