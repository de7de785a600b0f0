//! Urgency: what becomes urgent because somebody urgent waits for it.
//!
//! As in `tests/order/order.rs`, everything has a stack of its own, and what is to be ordered is queued while the worker is held.

#[path = "../support/mod.rs"]
mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use forebear::{AnyRequest, Cancellation, Priority, Request, RequestPool, Runtime, State};
use support::order::{Gate, Log, on_one, root};
use support::{Flag, Watchdog, hold_thread_until, hold_workers, until};

type Lock = Arc<forebear::sync::Mutex<()>>;

/// A root that waits for `target`, and then notes its name.
fn waits(
    runtime: &Runtime,
    log: &Log,
    priority: Priority,
    name: &'static str,
    target: &AnyRequest,
) -> Request<()> {
    let (log, target) = (log.clone(), target.clone());
    root(runtime).priority(priority).spawn(move || {
        target.wait().unwrap();
        log.note(name);
    })
}

/// Three as urgent as most, which note that they are others.
fn others(runtime: &Runtime, log: &Log) -> [Request<()>; 3] {
    [(); 3].map(|()| {
        let log = log.clone();
        root(runtime).spawn(move || log.note("other"))
    })
}

#[test]
fn a_waiters_urgency_reaches_an_unstarted_target() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let note = |name: &'static str| {
            let log = log.clone();
            move || log.note(name)
        };
        let target = root(runtime).priority(Priority::BACKGROUND).spawn(note("target"));
        let others: Vec<_> = (0..3).map(|_| root(runtime).spawn(note("other"))).collect();
        let waiter = waits(runtime, &log, Priority::URGENT, "waiter", &target.to_untyped());
        held.release();
        waiter.wait().unwrap();
        for other in &others {
            other.wait().unwrap();
        }
        log.check(&["target", "waiter", "other", "other", "other"]);
    });
}

#[test]
fn a_waiters_urgency_reaches_a_started_target_when_it_is_woken() {
    on_one(|runtime, log| {
        let gate = Gate::new(runtime);
        let target = waits(runtime, &log, Priority::BACKGROUND, "target", &gate.request.to_untyped());
        until(|| target.state() == State::Suspended);
        let waiter = waits(runtime, &log, Priority::URGENT, "waiter", &target.to_untyped());
        until(|| waiter.state() == State::Suspended);
        let held = hold_workers(runtime);
        let others = others(runtime, &log);
        gate.open();
        held.release();
        waiter.wait().unwrap();
        for other in &others {
            other.wait().unwrap();
        }
        log.check(&["target", "waiter", "other", "other", "other"]);
    });
}

#[test]
fn a_waiters_urgency_goes_on_to_what_its_target_waits_for() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let background = || root(runtime).priority(Priority::BACKGROUND);
        let first = {
            let log = log.clone();
            background().spawn(move || log.note("first"))
        };
        let second = waits(runtime, &log, Priority::BACKGROUND, "second", &first.to_untyped());
        let others = others(runtime, &log);
        let waiter = waits(runtime, &log, Priority::URGENT, "waiter", &second.to_untyped());
        held.release();
        waiter.wait().unwrap();
        for other in &others {
            other.wait().unwrap();
        }
        log.check(&["first", "second", "waiter", "other", "other", "other"]);
    });
}

/// The chain is there and suspended when the urgent one comes.
#[test]
fn an_urgency_that_comes_late_goes_along_the_whole_chain() {
    on_one(|runtime, log| {
        let gate = Gate::new(runtime);
        let mut last: AnyRequest = gate.request.to_untyped();
        let chain: Vec<_> = ["first", "second", "third"]
            .into_iter()
            .map(|name| {
                let (log, before) = (log.clone(), last.clone());
                let link = root(runtime).priority(Priority::BACKGROUND).spawn(move || {
                    before.wait().unwrap();
                    log.note(name);
                });
                until(|| link.state() == State::Suspended);
                last = link.to_untyped();
                link
            })
            .collect();
        let waiter = {
            let log = log.clone();
            root(runtime).priority(Priority::URGENT).spawn(move || {
                last.wait().unwrap();
                log.note("waiter");
            })
        };
        until(|| waiter.state() == State::Suspended);
        let held = hold_workers(runtime);
        let others = others(runtime, &log);
        gate.open();
        held.release();
        waiter.wait().unwrap();
        for request in others.iter().chain(&chain) {
            request.wait().unwrap();
        }
        log.check(&["first", "second", "third", "waiter", "other", "other", "other"]);
    });
}

/// Somebody urgent waits for a request that waits for a request that waits for one that has not started. It rises along all of
/// them; when the urgent one gives up, it falls: the unstarted one goes back to its place, and the others, when they are next
/// made ready, go behind whoever has come meanwhile.
#[test]
fn urgency_rises_and_falls_three_deep_down_to_an_unstarted_request() {
    for gives_up in [false, true] {
        on_one(|runtime, log| {
            let held = hold_workers(runtime);
            let background = || root(runtime).priority(Priority::BACKGROUND);
            let urgent = Arc::new(Mutex::new(None::<Request<()>>));
            let late = Arc::new(Mutex::new(None::<Request<()>>));
            let third = {
                let (log, late, runtime) = (log.clone(), late.clone(), runtime.clone());
                background().spawn(move || {
                    log.note("third");
                    *late.lock().unwrap() = Some(root(&runtime).spawn(move || log.note("late")));
                })
            };
            let second = {
                let (log, third, urgent) = (log.clone(), third.clone(), urgent.clone());
                background().spawn(move || {
                    if gives_up {
                        let urgent = urgent.lock().unwrap().take().unwrap();
                        assert_eq!(urgent.cancel(), Cancellation::Marked);
                    }
                    third.wait().unwrap();
                    log.note("second");
                })
            };
            let first = waits(runtime, &log, Priority::BACKGROUND, "first", &second.to_untyped());
            let waiter = {
                let (log, first) = (log.clone(), first.clone());
                root(runtime).priority(Priority::URGENT).spawn(move || {
                    let answer = first.wait().map(drop);
                    assert_eq!(answer.is_err(), gives_up);
                    log.note(if gives_up { "gives up" } else { "waiter" });
                })
            };
            *urgent.lock().unwrap() = Some(waiter.clone());
            let others = others(runtime, &log);
            held.release();
            first.wait().unwrap();
            for other in others.iter().chain([&late.lock().unwrap().take().unwrap()]) {
                other.wait().unwrap();
            }
            let _ = waiter.watch();
            match gives_up {
                false => {
                    log.check(&["third", "second", "first", "waiter", "other", "other", "other", "late"])
                }
                true => {
                    log.check(&["gives up", "other", "other", "other", "third", "late", "second", "first"])
                }
            }
        });
    }
}

/// Of those who wait the most urgent that is left counts.
#[test]
fn urgency_falls_to_that_of_the_most_urgent_who_still_waits() {
    on_one(|runtime, log| {
        let gate = Gate::new(runtime);
        let target = {
            let (log, gate) = (log.clone(), gate.request.to_untyped());
            root(runtime).priority(Priority::new(100)).spawn(move || {
                gate.wait().unwrap();
                log.note("target");
            })
        };
        let waiters = [50, 10, -10, 20].map(|priority| {
            let target = target.clone();
            let waiter =
                root(runtime).priority(Priority::new(priority)).spawn(move || target.wait().map(drop));
            until(|| waiter.state() == State::Suspended);
            waiter
        });
        // Also its watchers count as nobody.
        let watched = target.clone();
        let watcher = root(runtime).priority(Priority::new(-100)).spawn(move || watched.watch().map(drop));
        until(|| watcher.state() == State::Suspended);
        for gone in [2, 1] {
            waiters[gone].cancel();
            let _ = waiters[gone].watch();
        }
        let held = hold_workers(runtime);
        let others = [15, 25].map(|priority| {
            let log = log.clone();
            root(runtime).priority(Priority::new(priority)).spawn(move || log.note(priority.to_string()))
        });
        gate.open();
        held.release();
        for other in &others {
            other.wait().unwrap();
        }
        target.wait().unwrap();
        log.check(&["15", "target", "25"]);
    });
}

/// A stack is as urgent as the most urgent request on it, also when one who waits for the topmost has given up.
#[test]
fn a_stack_falls_to_the_urgency_of_the_lender_below() {
    on_one(|runtime, log| {
        let gate = Gate::new(runtime);
        let inline = {
            let (log, gate) = (log.clone(), gate.request.to_untyped());
            let builder = Request::builder().on(runtime).priority(Priority::BACKGROUND);
            builder.build(move || {
                gate.wait().unwrap();
                log.note("inline");
            })
        };
        let lender = waits(runtime, &log, Priority::new(-10), "lender", &inline.to_untyped());
        until(|| inline.state() == State::Suspended);
        let waiter = {
            let inline = inline.clone();
            root(runtime).priority(Priority::new(-20)).spawn(move || inline.wait().map(drop))
        };
        until(|| waiter.state() == State::Suspended);
        assert_eq!(waiter.cancel(), Cancellation::Marked);
        assert!(waiter.watch().is_err());
        let held = hold_workers(runtime);
        let others = others(runtime, &log);
        gate.open();
        held.release();
        for request in others.iter().chain([&lender]) {
            request.wait().unwrap();
        }
        log.check(&["inline", "lender", "other", "other", "other"]);
    });
}

/// The chain stands on one worker, and the urgent one comes to it and goes on another.
#[test]
fn an_urgency_that_comes_from_another_worker_falls_there_too() {
    for gives_up in [false, true] {
        let _dog = Watchdog::new("two workers");
        let (runtime, log) = (&support::runtime(2), Log::default());
        // Keeps one worker, and says which.
        let hold = |free: &Flag| {
            const NOT_YET: usize = usize::MAX;
            let (free, at) = (free.clone(), Arc::new(AtomicUsize::new(NOT_YET)));
            let says = at.clone();
            let holder = root(runtime).spawn(move || {
                says.store(Request::current().unwrap().assigned_worker().unwrap(), Ordering::Release);
                hold_thread_until(|| free.is_up());
            });
            until(|| at.load(Ordering::Acquire) != NOT_YET);
            (holder, at.load(Ordering::Acquire))
        };
        let (gate, [one, two]) = (Gate::new(runtime), [(); 2].map(|()| Flag::new()));
        let (holder, elsewhere) = hold(&one);
        let mut last = gate.request.to_untyped();
        let chain = ["first", "second"].map(|name| {
            let (log, before) = (log.clone(), last.clone());
            let link = root(runtime).priority(Priority::BACKGROUND).spawn(move || {
                before.wait().unwrap();
                log.note(name);
            });
            until(|| link.state() == State::Suspended);
            last = link.to_untyped();
            link
        });
        let (other_holder, here) = hold(&two);
        assert!(here != elsewhere && chain.iter().all(|link| link.assigned_worker() == Some(here)));
        one.raise();
        holder.wait().unwrap();
        let waiter = {
            let target = chain[1].clone();
            root(runtime).priority(Priority::URGENT).spawn(move || target.wait().map(drop))
        };
        until(|| waiter.state() == State::Suspended);
        if gives_up {
            assert_eq!(waiter.cancel(), Cancellation::Marked);
            assert!(waiter.watch().is_err());
        }
        two.raise();
        other_holder.wait().unwrap();
        // Whoever begins here has heard of it.
        let free = [(); 2].map(|()| Flag::new());
        let holders = free.each_ref().map(hold);
        let others = others(runtime, &log);
        gate.open();
        let (mine, theirs) = if holders[0].1 == here { (0, 1) } else { (1, 0) };
        free[mine].raise();
        for request in others.iter().chain(&chain) {
            request.wait().unwrap();
        }
        free[theirs].raise();
        for (holder, _) in &holders {
            holder.wait().unwrap();
        }
        match gives_up {
            false => log.check(&["first", "second", "other", "other", "other"]),
            true => log.check(&["other", "other", "other", "first", "second"]),
        }
    }
}

/// Through a wait for a pool to its members: those that have begun, and those that will.
/// One of background priority is queued to go on behind others, when an urgent one begins to wait for it.
fn a_raise_overtakes_what_is_queued(waits_for_it: impl FnOnce(&Request<()>, &Lock) + Send + 'static) {
    on_one(|runtime, log| {
        let (gate, lock, held) = (Gate::new(runtime), Lock::default(), Flag::new());
        let holder = {
            let (log, gate, lock, held) =
                (log.clone(), gate.request.to_untyped(), lock.clone(), held.clone());
            root(runtime).priority(Priority::BACKGROUND).spawn(move || {
                let guard = lock.lock();
                held.raise();
                gate.wait().unwrap();
                log.note("holder");
                drop(guard);
            })
        };
        held.wait();
        let middle: Vec<_> = (0..20)
            .map(|_| {
                let (log, gate) = (log.clone(), gate.request.to_untyped());
                root(runtime).spawn(move || {
                    gate.wait().unwrap();
                    log.note("middle");
                })
            })
            .collect();
        let urgent = {
            let (log, gate, holder) = (log.clone(), gate.request.to_untyped(), holder.clone());
            root(runtime).priority(Priority::URGENT).spawn(move || {
                gate.wait().unwrap();
                waits_for_it(&holder, &lock);
                log.note("urgent");
            })
        };
        for one in middle.iter().chain([&holder, &urgent]) {
            until(|| one.state() == State::Suspended);
        }
        let workers = hold_workers(runtime);
        gate.open();
        workers.release();
        for one in middle.iter().chain([&holder, &urgent]) {
            one.wait().unwrap();
        }
        let told = log.told();
        assert_eq!(told[..2], ["holder", "urgent"], "{told:?}");
    });
}

#[test]
fn a_raise_moves_a_holder_of_a_lock_that_is_queued_to_go_on() {
    a_raise_overtakes_what_is_queued(|_, lock| drop(lock.lock()));
}

#[test]
fn a_raise_moves_a_request_that_is_queued_to_go_on() {
    a_raise_overtakes_what_is_queued(|holder, _| *holder.wait().unwrap());
}

#[test]
fn an_urgency_goes_through_a_pool_to_its_members() {
    for bound in [1, 2] {
        on_one(|runtime, log| {
            let gate = Gate::new(runtime);
            let user = {
                let (log, gate) = (log.clone(), gate.request.to_untyped());
                root(runtime).priority(Priority::BACKGROUND).spawn(move || {
                    let mut pool = RequestPool::new().max_active(bound);
                    for name in ["first", "second", "third"] {
                        let (log, gate) = (&log, &gate);
                        pool.add(move || {
                            gate.wait().unwrap();
                            log.note(name);
                        });
                    }
                    pool.wait_each(|_, ()| ()).unwrap();
                })
            };
            until(|| user.state() == State::Suspended);
            let waiter = waits(runtime, &log, Priority::URGENT, "waiter", &user.to_untyped());
            until(|| waiter.state() == State::Suspended);
            let held = hold_workers(runtime);
            let others = others(runtime, &log);
            gate.open();
            held.release();
            for request in others.iter().chain([&waiter]) {
                request.wait().unwrap();
            }
            let told = log.told();
            assert_eq!(told[3..], ["waiter", "other", "other", "other"], "{told:?}");
        });
    }
}
