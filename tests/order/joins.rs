//! Joins: what is older goes first, between one branch and the next.
//!
//! On one worker, if nothing else is said. Everything has a stack of its own, as in `tests/order/order.rs`.

#[path = "../support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use forebear::channel::unbounded;
use forebear::sync::Event;
use forebear::{Priority, Request, Runtime, State, join, no_suspend, spawn, yield_now};
use support::order::{Log, on_one, root};
use support::until;

/// A tree of joins with so many leaves, from that one on.
fn tree(first: usize, leaves: usize, leaf: &(dyn Fn(usize) + Sync)) {
    match leaves {
        1 => leaf(first),
        _ => {
            _ = join(|| tree(first, leaves / 2, leaf), || tree(first + leaves / 2, leaves - leaves / 2, leaf))
        }
    }
}

/// A request of that priority that waits, and notes its name when it goes on.
fn waits(runtime: &Runtime, priority: Priority, name: &'static str, log: &Log) -> (Arc<Event>, Request<()>) {
    let (event, log) = (Arc::new(Event::new()), log.clone());
    let its = event.clone();
    let waits = root(runtime).priority(priority).spawn(move || {
        its.wait().unwrap();
        log.note(name);
    });
    until(|| waits.state() == State::Suspended);
    (event, waits)
}

/// Where that stands in the log.
fn place(log: &Log, name: &str) -> usize {
    let told = log.told();
    told.iter().position(|noted| noted == name).unwrap_or_else(|| panic!("no {name}: {told:?}"))
}

#[test]
fn what_is_older_and_was_woken_goes_before_the_next_branches() {
    on_one(|runtime, log| {
        let (event, older) = waits(runtime, Priority::URGENT, "older", &log);
        let notes = log.clone();
        let young = root(runtime).spawn(move || {
            tree(0, 16, &|n| {
                notes.note(format!("leaf {n}"));
                if n == 0 {
                    event.set();
                }
            });
        });
        young.wait().unwrap();
        older.wait().unwrap();
        // One more leaf may run: the second branch of the innermost join.
        assert!(place(&log, "older") <= 2, "{:?}", log.told());
        assert_eq!(log.told().len(), 17, "each leaf runs once");
    });
}

#[test]
fn what_is_older_and_has_come_goes_before_the_next_branches() {
    on_one(|runtime, log| {
        let (notes, its, on) = (log.clone(), log.clone(), runtime.clone());
        let comes = move || {
            let note = its.clone();
            root(&on).priority(Priority::URGENT).spawn(move || note.note("older")).submit();
        };
        let young = root(runtime).spawn(move || {
            tree(0, 16, &|n| {
                notes.note(format!("leaf {n}"));
                if n == 0 {
                    thread::scope(|s| s.spawn(&comes).join().unwrap());
                }
            });
        });
        young.wait().unwrap();
        until(|| log.told().len() == 17);
        assert!(place(&log, "older") <= 2, "{:?}", log.told());
    });
}

#[test]
fn what_is_younger_waits_until_the_tree_is_over_also_if_something_older_has_a_turn() {
    on_one(|runtime, log| {
        let (event, older) = waits(runtime, Priority::URGENT, "older", &log);
        let (also, younger) = waits(runtime, Priority::BACKGROUND, "younger", &log);
        let notes = log.clone();
        let tree = root(runtime).spawn(move || {
            tree(0, 16, &|n| {
                notes.note(format!("leaf {n}"));
                match n {
                    0 => also.set(),
                    5 => event.set(),
                    _ => {}
                }
            });
        });
        [&tree, &older, &younger].into_iter().for_each(|request| *request.wait().unwrap());
        assert!((6..=8).contains(&place(&log, "older")), "{:?}", log.told());
        assert_eq!(place(&log, "younger"), 17, "{:?}", log.told());
    });
}

#[test]
fn an_older_request_that_is_woken_again_and_again_has_its_turn_each_time_and_the_tree_ends() {
    on_one(|runtime, log| {
        let ((wake, woken), notes) = (unbounded(), log.clone());
        let older = root(runtime).priority(Priority::URGENT).spawn(move || {
            while let Ok(turn) = woken.recv() {
                notes.note(format!("turn {turn}"));
            }
        });
        until(|| older.state() == State::Suspended);
        let notes = log.clone();
        let young = root(runtime).spawn(move || {
            tree(0, 80, &|n| {
                notes.note(format!("leaf {n}"));
                if n % 2 == 0 {
                    wake.send(n / 2).unwrap();
                }
            });
        });
        young.wait().unwrap();
        older.wait().unwrap();
        for turn in 0..40 {
            let (turn, leaf) =
                (place(&log, &format!("turn {turn}")), place(&log, &format!("leaf {}", 2 * turn)));
            assert!(turn > leaf && turn <= leaf + 2, "{:?}", log.told());
        }
    });
}

/// The second child's tree is on the stack that its elder sister has left before. Its place is its own all the same: behind the first child, which is ready, too.
#[test]
fn a_join_that_lets_others_go_first_has_the_place_of_its_own_request() {
    on_one(|runtime, log| {
        let (event, older) = waits(runtime, Priority::URGENT, "older", &log);
        let notes = log.clone();
        let parent = root(runtime).spawn(move || {
            let events = [(); 2].map(|()| Arc::new(Event::new()));
            let sister = |event: &Arc<Event>, name| {
                let (event, log) = (event.clone(), notes.clone());
                spawn(move || {
                    event.wait().unwrap();
                    log.note(name);
                })
            };
            let (eldest, second) = (sister(&events[0], "eldest"), sister(&events[1], "second"));
            while second.state() != State::Suspended || eldest.state() != State::Suspended {
                yield_now().unwrap();
            }
            events[0].set();
            // With a limit, so that it runs on a stack of its own.
            let limit = Duration::from_secs(60);
            eldest.wait_timeout(limit).unwrap();
            let log = notes.clone();
            let youngest = spawn(move || {
                tree(0, 16, &|n| {
                    log.note(format!("leaf {n}"));
                    if n == 0 {
                        events[1].set();
                        event.set();
                    }
                });
            });
            youngest.wait_timeout(limit).unwrap();
            second.wait().unwrap();
        });
        parent.wait().unwrap();
        older.wait().unwrap();
        let (older, second) = (place(&log, "older"), place(&log, "second"));
        assert!(older < second && second <= 4, "{:?}", log.told());
    });
}

/// Where a stack may not be left, the tree runs to its end.
#[test]
fn in_a_region_and_in_an_unwind_a_join_keeps_its_stack() {
    struct Joins<'a>(&'a (dyn Fn() + Sync));
    impl Drop for Joins<'_> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    on_one(|runtime, _| {
        for unwinds in [false, true] {
            let log = Log::default();
            let (event, older) = waits(runtime, Priority::URGENT, "older", &log);
            let notes = log.clone();
            let joins = move || {
                tree(0, 8, &|n| {
                    notes.note(format!("leaf {n}"));
                    if n == 0 {
                        event.set();
                    }
                });
            };
            let young = root(runtime).spawn(move || match unwinds {
                false => no_suspend("the tree", joins),
                true => {
                    let unwinds = catch_unwind(AssertUnwindSafe(|| {
                        let _joins = Joins(&joins);
                        resume_unwind(Box::new("as it is meant to"));
                    }));
                    assert!(unwinds.is_err());
                    yield_now().unwrap();
                }
            });
            young.wait().unwrap();
            older.wait().unwrap();
            assert_eq!(place(&log, "older"), 8, "unwinds: {unwinds}: {:?}", log.told());
        }
    });
}

/// On two workers: the younger root is long code without a scheduling point, which ends when the urgent request has run.
#[test]
fn an_urgent_request_runs_on_whichever_worker_comes_to_a_join_first() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    for _ in 0..100 {
        let (ran, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let long = |body: fn(&AtomicBool)| {
            let (ran, begun) = (ran.clone(), begun.clone());
            runtime.spawn(move || {
                begun.fetch_add(1, SeqCst);
                body(&ran);
            })
        };
        let joins = long(|ran| {
            while !ran.load(SeqCst) {
                join(thread::yield_now, thread::yield_now);
            }
        });
        until(|| begun.load(SeqCst) == 1);
        let spins = long(|ran| {
            while !ran.load(SeqCst) {
                thread::yield_now();
            }
        });
        until(|| begun.load(SeqCst) == 2);
        let its = ran.clone();
        let urgent =
            Request::builder().on(&runtime).priority(Priority::URGENT).spawn(move || its.store(true, SeqCst));
        let limit = Duration::from_secs(20);
        let in_time = urgent.wait_timeout(limit).is_ok();
        ran.store(true, SeqCst);
        [&joins, &spins].into_iter().for_each(|request| *request.wait().unwrap());
        assert!(in_time, "neither worker took it");
    }
}

/// More workers than one push tells: who takes one up tells the next. Each urgent request holds its worker until all have begun.
#[test]
fn urgent_requests_take_all_workers_from_trees_of_joins() {
    const WORKERS: usize = 12;
    let runtime = Runtime::builder().workers(WORKERS).build().unwrap();
    let all = Arc::new(AtomicBool::new(false));
    let (trees, begun) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let joins = || {
        let (all, trees) = (all.clone(), trees.clone());
        runtime.spawn(move || {
            trees.fetch_add(1, SeqCst);
            while !all.load(SeqCst) {
                join(thread::yield_now, thread::yield_now);
            }
        })
    };
    let joins: Vec<_> = (0..WORKERS).map(|_| joins()).collect();
    until(|| trees.load(SeqCst) == WORKERS);
    let urgent = |_| {
        let (all, begun) = (all.clone(), begun.clone());
        Request::builder().on(&runtime).priority(Priority::URGENT).spawn(move || {
            begun.fetch_add(1, SeqCst);
            while begun.load(SeqCst) < WORKERS && !all.load(SeqCst) {
                thread::yield_now();
            }
            all.store(true, SeqCst);
        })
    };
    let urgent: Vec<_> = (0..WORKERS).map(urgent).collect();
    let limit = Duration::from_secs(20);
    let in_time = urgent.iter().all(|request| request.wait_timeout(limit).is_ok());
    let begun = begun.load(SeqCst);
    all.store(true, SeqCst);
    urgent.iter().chain(&joins).for_each(|request| *request.wait().unwrap());
    assert!(in_time, "{begun} of {WORKERS} have begun");
}
