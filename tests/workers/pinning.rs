//! Pinning: a started request runs on one worker for its life, so what is not `Send` may live across its waits.

#[path = "../support/mod.rs"]
mod support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::thread;

use forebear::{Request, join, scope, spawn, yield_now};
use support::{Flag, in_both_worlds, inside_each, on_each, until};

#[test]
fn what_is_not_send_may_live_across_waits() {
    in_both_worlds(|| {
        let requests: Vec<_> = (0..10)
            .map(|n| {
                spawn(move || {
                    let local = Rc::new(RefCell::new(vec![n]));
                    let mut guard = local.borrow_mut();
                    for _ in 0..3 {
                        guard.push(*Request::builder().own_stack().build(move || n).wait().unwrap());
                        yield_now().unwrap();
                        guard.push(spawn(move || n).take().unwrap());
                    }
                    drop(guard);
                    assert_eq!(Rc::strong_count(&local), 1);
                    local.take()
                })
            })
            .collect();
        for (n, request) in requests.into_iter().enumerate() {
            assert_eq!(request.take().unwrap(), [n; 7]);
        }
    });
}

/// Each way to suspend, many requests at once, and the thread asked before and after.
#[test]
fn a_request_resumes_on_the_thread_it_was_started_on() {
    inside_each(|| {
        let requests: Vec<_> = (0..40)
            .map(|n| {
                spawn(move || {
                    let (thread, me) = (thread::current().id(), Request::current().unwrap());
                    let worker = me.assigned_worker().unwrap();
                    let check = |how: &str| {
                        assert_eq!(thread::current().id(), thread, "after {how}");
                        assert_eq!(me.assigned_worker(), Some(worker), "after {how}");
                    };
                    for _ in 0..5 {
                        yield_now().unwrap();
                        check("a yield");
                        Request::builder().own_stack().build(move || n).wait().unwrap();
                        check("a wait");
                        spawn(yield_now).take().unwrap().unwrap();
                        check("a take");
                        join(|| yield_now().unwrap(), || yield_now().unwrap());
                        check("a join");
                        scope(|s| {
                            s.spawn(|| yield_now().unwrap());
                            s.spawn(|| yield_now().unwrap());
                        });
                        check("a scope");
                    }
                })
            })
            .collect();
        for request in requests {
            request.take().unwrap();
        }
    });
}

/// The wake-up comes from another worker or a foreign thread, and goes to the worker that the request is of.
#[test]
fn a_wake_up_from_elsewhere_resumes_it_on_its_worker() {
    on_each(|runtime| {
        let flag = Flag::new();
        let gate = {
            let flag = flag.clone();
            // Foreign: the thread that calls runs it, and so wakes those who wait.
            runtime.enter(|| Request::new(move || until(|| flag.is_up())))
        };
        let waiting = support::Count::new();
        let waiters: Vec<_> = (0..12)
            .map(|_| {
                let (gate, waiting) = (gate.to_untyped(), waiting.clone());
                Request::builder().on(runtime).own_stack().spawn(move || {
                    let thread = thread::current().id();
                    waiting.up();
                    gate.wait().unwrap();
                    assert_eq!(thread::current().id(), thread);
                })
            })
            .collect();
        waiting.wait_for(12);
        flag.raise();
        gate.wait().unwrap();
        for waiter in waiters {
            waiter.take().unwrap();
        }
    });
}

#[test]
fn the_assigned_worker_is_known_from_the_start_and_stays() {
    let _not = support::not_on(support::Modes::Both, "it counts workers");
    on_each(|runtime| {
        let free = Flag::new();
        let seen = Arc::new(Mutex::new(None));
        let request = {
            let (free, seen) = (free.clone(), seen.clone());
            Request::builder().on(runtime).own_stack().build(move || {
                *seen.lock().unwrap() = Request::current().unwrap().assigned_worker();
                free.wait();
                thread::current().name().map(str::to_owned)
            })
        };
        assert_eq!(request.assigned_worker(), None, "not before it has started");
        request.submit();
        until(|| seen.lock().unwrap().is_some());
        let worker = seen.lock().unwrap().unwrap();
        assert!(worker < runtime.workers());
        assert_eq!(
            (request.assigned_worker(), request.to_untyped().assigned_worker()),
            (Some(worker), Some(worker))
        );
        free.raise();
        assert_eq!(request.wait().unwrap().as_deref(), Some(format!("test #{worker}").as_str()));
        assert_eq!(request.assigned_worker(), Some(worker), "and when it is over");
    });
}

/// Of a direct run, whose worker is its waiter's.
#[test]
fn what_runs_on_its_waiters_stack_is_assigned_to_its_waiters_worker() {
    inside_each(|| {
        let me = Request::current().unwrap();
        let mine = || me.assigned_worker();
        let (unsubmitted, thread) = (Request::new(|| thread::current().id()), thread::current().id());
        assert_eq!(unsubmitted.wait().unwrap(), &thread);
        assert_eq!(unsubmitted.assigned_worker(), mine());
        // Two deep, and when it is over.
        let outer = Request::new(|| {
            let inner = Request::new(|| Request::current().unwrap().assigned_worker());
            (*inner.wait().unwrap(), inner.assigned_worker())
        });
        assert_eq!(outer.wait().unwrap(), &(mine(), mine()));
    });
}

#[test]
fn thread_locals_keep_their_values_across_waits() {
    thread_local!(static HERE: Cell<u32> = const { Cell::new(0) });
    inside_each(|| {
        // Others on the worker change it meanwhile, but only ever upwards: it is the same variable all along.
        let requests: Vec<_> = (0..20)
            .map(|_| {
                spawn(|| {
                    for _ in 0..10 {
                        let before = HERE.get();
                        let place = HERE.with(|here| std::ptr::from_ref(here).addr());
                        yield_now().unwrap();
                        assert!(HERE.get() >= before);
                        assert_eq!(HERE.with(|here| std::ptr::from_ref(here).addr()), place);
                        HERE.set(HERE.get() + 1);
                    }
                })
            })
            .collect();
        for request in requests {
            request.take().unwrap();
        }
    });
}
