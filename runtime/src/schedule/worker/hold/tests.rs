//! A target that was claimed, and whose header does not say yet where it runs.

use std::any::TypeId;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering}; // not modelled: a test
use std::sync::{Arc, Mutex};
use std::thread;

use crate::record::fiber::{self, Fiber};
use crate::record::header::{Header, VTable};
use crate::schedule::worker::{HasWorkers, OnWorker};
use crate::state::attention::HOLDS;
use crate::{Request, Runtime};

const NAME: &str = "claimed a moment ago";
const CONSUMERS: usize = 64;

/// What a test does where a worker has claimed the request of that name, and the header does not say so yet.
static BETWEEN: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);

/// This thread has claimed a request, and is about to run it.
pub(crate) fn after_the_claim(h: &Header) {
    if h.name() == NAME
        && let Some(between) = BETWEEN.lock().unwrap().take()
    {
        between();
    }
}

fn until(holds: impl Fn() -> bool) {
    while !holds() {
        thread::yield_now();
    }
}

/// Gives an unsubmitted request a table of functions of its own, as the compiler may.
fn with_a_table_of_its_own<T>(request: Request<T>) -> Request<T> {
    let header = request.header_ptr();
    let table: &'static VTable = Box::leak(Box::new(VTable { ..*request.header().vtable }));
    // SAFETY: nobody else knows of the request, and both tables have the same functions.
    unsafe { (&raw mut (*header.as_ptr()).vtable).write(table) };
    request
}

#[test]
fn a_callable_is_known_by_its_type_wherever_its_table_stands() {
    fn one<'a>(n: &'a mut u32) -> impl FnOnce() + use<'a> {
        move || *n += 1
    }
    fn other<'a>(n: &'a mut u32) -> impl FnOnce() + use<'a> {
        move || *n -= 1
    }
    fn type_id_of<C>(_: C) -> TypeId {
        crate::record::cell::type_id_of::<C>()
    }
    let (mut a, mut b) = (0, 0);
    assert_eq!(type_id_of(one(&mut a)), type_id_of(one(&mut b)));
    assert_ne!(type_id_of(one(&mut a)), type_id_of(other(&mut b)));
    assert_eq!(crate::record::cell::type_id_of::<fn()>(), TypeId::of::<fn()>());
}

#[test]
fn consumers_of_a_target_that_was_claimed_a_moment_ago_are_held_back() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let [claimed, held] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let begun = Arc::new(AtomicUsize::new(0));
    *BETWEEN.lock().unwrap() = Some(Box::new({
        let (claimed, held, begun) = (claimed.clone(), held.clone(), begun.clone());
        move || {
            let worker = fiber::get().and_then(Fiber::worker).unwrap();
            let other = &worker.shared().workers()[1 - worker.index];
            let holds = || other.post.attention.get() & HOLDS != 0;
            claimed.store(true, Ordering::Release);
            until(|| holds() || begun.load(Ordering::Acquire) == CONSUMERS);
            held.store(holds(), Ordering::Release);
        }
    }));
    let input = runtime.enter(|| Request::builder().name(NAME).own_stack().spawn(|| ()));
    until(|| claimed.load(Ordering::Acquire));
    runtime.run(move || {
        let consumer = |_| {
            let (input, begun) = (input.clone(), begun.clone());
            with_a_table_of_its_own(Request::new(move || {
                begun.fetch_add(1, Ordering::AcqRel);
                input.wait().copied()
            }))
        };
        let consumers: Vec<_> = (0..CONSUMERS).map(consumer).collect();
        consumers.iter().for_each(|consumer| _ = consumer.submit());
        consumers.iter().for_each(|consumer| _ = consumer.wait().unwrap());
    });
    assert!(held.load(Ordering::Acquire), "all were started");
}
