//! Workers: that work is shared by all of them, that one whose request waits does something else, and that none sleeps
//! over work.

mod support;

use std::collections::HashSet;
use std::sync::{Arc, Barrier, Mutex};

use forebear::{Request, State, parallelism, spawn, yield_now};
use support::{Count, Flag, hold_workers, in_both_worlds, on_each};

#[test]
fn a_request_waits_inside_a_request_inside_a_request() {
    in_both_worlds(|| {
        let outer = spawn(|| {
            let middle = spawn(|| {
                let inner = Request::new(|| 1);
                *inner.wait().unwrap() + 1
            });
            middle.take().unwrap() + 1
        });
        assert_eq!(outer.take().unwrap(), 3);
    });
}

#[test]
fn while_requests_wait_their_workers_do_other_work() {
    on_each(|runtime| {
        // More wait than there are workers, all for one that ends only if yet another can run.
        let own = || Request::builder().on(runtime).own_stack();
        let (flag, waiting) = (Flag::new(), Count::new());
        let gate = {
            let flag = flag.clone();
            own().build(move || {
                flag.wait();
                5
            })
        };
        let waiters: Vec<_> = (0..runtime.workers() * 3)
            .map(|_| {
                let (gate, waiting) = (gate.clone(), waiting.clone());
                own().spawn(move || {
                    waiting.up();
                    *gate.wait().unwrap()
                })
            })
            .collect();
        waiting.wait_for(waiters.len());
        own().build(move || flag.raise()).wait().unwrap();
        for waiter in waiters {
            assert_eq!(waiter.take().unwrap(), 5);
        }
    });
}

#[test]
fn requests_made_outside_start_while_all_workers_were_asleep() {
    on_each(|runtime| {
        for n in 0..200 {
            assert_eq!(Request::builder().on(runtime).own_stack().spawn(move || n).take().unwrap(), n);
        }
    });
}

#[test]
fn queued_work_is_shared_by_all_workers() {
    on_each(|runtime| {
        // Each keeps its worker until all workers have one.
        let here = Arc::new(Barrier::new(runtime.workers()));
        let requests: Vec<_> = (0..runtime.workers())
            .map(|_| {
                let here = here.clone();
                Request::builder().on(runtime).own_stack().spawn(move || {
                    here.wait();
                    Request::current().unwrap().assigned_worker().unwrap()
                })
            })
            .collect();
        let mut workers: Vec<_> = requests.into_iter().map(|request| request.take().unwrap()).collect();
        workers.sort_unstable();
        assert_eq!(workers, (0..runtime.workers()).collect::<Vec<_>>());
    });
}

#[test]
fn children_of_one_request_are_shared_by_all_workers() {
    on_each(|runtime| {
        let seen = Arc::new(Mutex::new(HashSet::new()));
        runtime.run(|| {
            assert_eq!(parallelism().get(), runtime.workers());
            while seen.lock().unwrap().len() < runtime.workers() {
                let children: Vec<_> = (0..runtime.workers() * 4)
                    .map(|_| {
                        let seen = seen.clone();
                        spawn(move || {
                            let me = Request::current().unwrap().assigned_worker().unwrap();
                            yield_now().unwrap();
                            seen.lock().unwrap().insert(me);
                        })
                    })
                    .collect();
                for child in children {
                    child.take().unwrap();
                }
            }
        });
    });
}

#[test]
fn waiting_requests_are_woken_while_the_workers_are_busy_with_nothing_else() {
    on_each(|runtime| {
        let held = hold_workers(runtime);
        let ran = Count::new();
        let requests: Vec<_> = (0..50)
            .map(|_| {
                let ran = ran.clone();
                Request::builder().on(runtime).own_stack().spawn(move || ran.up())
            })
            .collect();
        assert_eq!(ran.get(), 0, "all workers are held");
        assert!(requests.iter().all(|request| request.state() == State::Queued));
        held.release();
        for request in requests {
            request.wait().unwrap();
        }
        assert_eq!(ran.get(), 50);
    });
}
