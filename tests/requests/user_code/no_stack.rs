//! A thread drives a runtime that has no free stack: what has to end there, or to be said, is code of the user's. It runs on a stack that is kept
//! for that, and not in the middle of the thread's own wait.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebear::sync::Event;
use forebear::{OrUnwind, Request, Runtime, RuntimeBuilder, WaitError, shield, spawn, yield_now};

use crate::child;
use crate::support::{Count, Kind, Watchdog};

const CHILDREN: usize = 5;

/// Calls its closure when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// So many stacks that one request can be suspended.
fn with_one_stack(kind: &str) -> RuntimeBuilder {
    let kind = match kind.strip_prefix("seeded ") {
        Some(seed) => Kind::Seeded(seed.parse().unwrap()),
        None => Kind::Synchronous,
    };
    kind.builder().max_stacks(2)
}

/// A request that has the only stack, and whose children have none. What each has captured waits when it is dropped; the last sets the
/// event that the request waits for.
fn without_stacks(runtime: &Runtime, told: mpsc::Sender<usize>) -> Request<()> {
    let begun = Arc::new(Event::new());
    let parent = {
        let begun = begun.clone();
        runtime.spawn(move || {
            let (all, left) = (Arc::new(Event::new()), Arc::new(AtomicUsize::new(CHILDREN)));
            let child = |n| {
                let (told, all, left) = (told.clone(), all.clone(), left.clone());
                let captured = OnDrop(move || {
                    shield(|| {
                        // Refused, for want of a stack.
                        let _ = spawn(|| 2).take();
                        assert!(Event::new().wait_timeout(Duration::from_micros(50)).is_err());
                        yield_now().unwrap();
                    });
                    told.send(n).unwrap();
                    if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                        all.set();
                    }
                });
                Request::builder().own_stack().spawn(move || drop(captured))
            };
            let _children: Vec<_> = (0..CHILDREN).map(child).collect();
            begun.set();
            shield(|| all.wait()).unwrap();
        })
    };
    runtime.enter(|| begun.wait().unwrap());
    parent
}

/// Each child's destructor has said its number, once, and the runtime goes on.
fn all_came(runtime: &Runtime, tells: &mpsc::Receiver<usize>) {
    let mut came: Vec<_> = tells.try_iter().collect();
    came.sort_unstable();
    assert_eq!(came, (0..CHILDREN).collect::<Vec<_>>());
    assert_eq!(runtime.run(|| 7), 7);
}

const KINDS: [&str; 4] = ["synchronous", "seeded 1", "seeded 2", "seeded 3"];

#[test]
fn a_destructor_may_wait_where_a_thread_that_drives_ends_what_is_cancelled_and_has_no_stack() {
    for kind in KINDS {
        let end = child::run(kind, &[], |kind| {
            let runtime = with_one_stack(kind).on_unhandled_failure(|_| ()).build().unwrap();
            let (told, tells) = mpsc::channel();
            let parent = without_stacks(&runtime, told);
            parent.cancel();
            let _ = parent.watch();
            all_came(&runtime, &tells);
        });
        end.assert_survived();
    }
}

#[test]
fn a_destructor_may_wait_where_a_thread_that_drives_has_no_stack_for_a_request() {
    for kind in KINDS {
        let end = child::run(kind, &[], |kind| {
            let runtime = with_one_stack(kind).on_unhandled_failure(|_| ()).build().unwrap();
            let (told, tells) = mpsc::channel();
            without_stacks(&runtime, told).wait().unwrap();
            all_came(&runtime, &tells);
        });
        end.assert_survived();
    }
}

/// A destructor that waits in an unwind has the stack, and has made other work; the hook ends its wait.
#[test]
fn a_warning_is_given_where_a_thread_that_drives_has_no_stack_left() {
    for kind in KINDS {
        let end = child::run(kind, &[], |kind| {
            let event = Arc::new(Event::new());
            let hook = {
                let event = event.clone();
                move |_: &str| event.set()
            };
            let builder = with_one_stack(kind).on_warning(hook).on_unhandled_failure(|_| ());
            let runtime = builder.build().unwrap();
            let begun = Arc::new(Event::new());
            let waits = {
                let begun = begun.clone();
                runtime.spawn(move || {
                    let _waits = OnDrop(move || {
                        let _queued = forebear::shield(|| Request::builder().own_stack().spawn(|| ()));
                        event.wait().unwrap();
                    });
                    begun.set();
                    Event::new().wait().or_unwind();
                })
            };
            runtime.enter(|| begun.wait().unwrap());
            waits.cancel();
            assert!(waits.watch().is_err());
            assert_eq!(runtime.run(|| 7), 7);
        });
        end.assert_survived();
    }
}

/// The stack that it asks for is larger than any. So it never runs, and fails when it is started.
#[test]
fn captures_of_a_request_whose_stack_is_too_large_may_wait_and_panic() {
    for kind in [Kind::Workers(1), Kind::Workers(2), Kind::Synchronous, Kind::Seeded(1)] {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let told = Count::new();
        let tell = told.clone();
        let runtime = kind.builder().on_unhandled_failure(move |_| _ = tell.up()).build().unwrap();
        runtime.run(|| {
            let captured = OnDrop(|| {
                assert_eq!(spawn(|| 2).take().unwrap(), 2);
                panic!("captures panic on purpose");
            });
            let request = Request::builder().stack_size(1 << 30).build(move || drop(captured));
            assert_eq!(told.get(), 1, "the panic ends there, and is reported");
            assert!(matches!(request.wait(), Err(WaitError::Failed(failure)) if !failure.is_panic()));
        });
        assert_eq!(told.get(), 1);
    }
}
