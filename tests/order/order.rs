//! Order: the oldest ancestor first, and what stands in front of that.
//!
//! Most of these tests hold the only worker of a runtime, queue what they want to see ordered, let go, and read the
//! [`Log`](support::order::Log). Everything has a stack of its own, so that nobody who waits runs it out of turn.

#[path = "../support/mod.rs"]
mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebear::{Priority, Request, Runtime, State, spawn};
use support::order::{Gate, Log, on_one, root};
use support::{Count, Flag, Watchdog, hold_thread_until, hold_workers, until};

// ---- lineage ---------------------------------------------------------------------------------------------------------------

#[test]
fn the_oldest_root_goes_first() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let made: Vec<_> = (0..5)
            .map(|n| {
                let log = log.clone();
                root(runtime).build(move || log.note(n.to_string()))
            })
            .collect();
        // It is the age that counts, not when it was submitted.
        for n in [3, 0, 4, 2, 1] {
            made[n].submit();
        }
        held.release();
        for request in &made {
            request.wait().unwrap();
        }
        log.check(&["0", "1", "2", "3", "4"]);
    });
}

#[test]
fn children_go_before_younger_roots_and_grandchildren_before_younger_children() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let roots: Vec<_> = ["a", "b"]
            .into_iter()
            .map(|name| {
                let log = log.clone();
                root(runtime).spawn(move || {
                    log.note(name);
                    for kid in 1..=2 {
                        let log = log.clone();
                        spawn(move || {
                            log.note(format!("{name}{kid}"));
                            for grandkid in 1..=2 {
                                let log = log.clone();
                                spawn(move || log.note(format!("{name}{kid}.{grandkid}")));
                            }
                        });
                    }
                })
            })
            .collect();
        held.release();
        for root in &roots {
            root.wait().unwrap();
        }
        until(|| log.told().len() == 14);
        log.check(&[
            "a", "a1", "a1.1", "a1.2", "a2", "a2.1", "a2.2", "b", "b1", "b1.1", "b1.2", "b2", "b2.1", "b2.2",
        ]);
    });
}

/// Both makers were resumed before anything of theirs was started, so all four children stand in the list of the one worker.
#[track_caller]
fn check_children_of_resumed(make: impl Fn(&Runtime, MakesTwo, MakesTwo) -> [Request<()>; 2]) {
    on_one(|runtime, log| {
        let gate = Gate::new(runtime);
        let maker = |name: &'static str| {
            let (log, gate) = (log.clone(), gate.request.to_untyped());
            Box::new(move || {
                gate.wait().unwrap();
                for kid in 1..=2 {
                    let log = log.clone();
                    spawn(move || log.note(format!("{name}{kid}")));
                }
            }) as MakesTwo
        };
        let makers = make(runtime, maker("a"), maker("b"));
        until(|| makers.iter().all(|maker| maker.state() == State::Suspended));
        let held = hold_workers(runtime);
        gate.open();
        held.release();
        for maker in &makers {
            maker.wait().unwrap();
        }
        until(|| log.told().len() == 4);
        log.check(&["a1", "a2", "b1", "b2"]);
    });
}

type MakesTwo = Box<dyn FnOnce() + Send>;

#[test]
fn each_queue_is_in_lineage_order_also_one_workers_list_of_one_root() {
    check_children_of_resumed(|runtime, a, b| {
        root(runtime).spawn(move || [spawn(a), spawn(b)]).take().unwrap()
    });
}

/// A key is a priority and a deadline; where both are the same, the older root goes first.
#[test]
fn each_queue_is_in_lineage_order_also_one_workers_list_of_two_roots_with_one_deadline() {
    let deadline = Instant::now() + Duration::from_secs(3600);
    check_children_of_resumed(|runtime, a, b| {
        [a, b].map(|maker| root(runtime).deadline(deadline).spawn(maker))
    });
}

#[test]
fn siblings_run_by_age_whatever_the_order_in_which_they_were_submitted() {
    on_one(|runtime, log| {
        let made = root(runtime).spawn({
            let log = log.clone();
            move || {
                let made: Vec<_> = (0..5)
                    .map(|n| {
                        let log = log.clone();
                        Request::new(move || log.note(n.to_string()))
                    })
                    .collect();
                for n in [3, 0, 4, 2, 1] {
                    made[n].submit();
                }
                made
            }
        });
        // A wait would run them.
        until(|| log.told().len() == 5);
        drop(made);
        log.check(&["0", "1", "2", "3", "4"]);
    });
}

/// The second sibling runs first, and what it makes stands between the two others. No cancel may miss one of them for that.
#[test]
fn a_cancel_reaches_siblings_that_do_not_stand_together() {
    on_one(|runtime, log| {
        let (stands, go_on) = (Flag::new(), Flag::new());
        let family = Arc::new(Mutex::new(Vec::new()));
        let parent = root(runtime).spawn({
            let (log, stands, go_on, family) =
                (log.clone(), stands.clone(), go_on.clone(), Arc::clone(&family));
            move || {
                let kid = |name: &'static str| {
                    let log = log.clone();
                    move || log.note(name)
                };
                let (older, below, younger) = (kid("older"), kid("below"), kid("younger"));
                let older = spawn(older);
                let between = spawn(move || spawn(below));
                let younger = spawn(younger);
                let below = between.take().unwrap();
                family.lock().unwrap().extend([older, below, younger]);
                stands.raise();
                hold_thread_until(|| go_on.is_up());
            }
        });
        stands.wait();
        parent.cancel();
        go_on.raise();
        assert!(parent.wait().is_err());
        for request in family.lock().unwrap().iter() {
            assert!(request.wait().is_err());
            assert_eq!(request.state(), State::Cancelled);
        }
        log.check(&[]);
    });
}

/// The younger sibling runs on its waiter's stack before the older one, and makes a child, which stands behind the older one all the same.
#[test]
fn a_child_of_what_was_run_out_of_turn_goes_behind_the_older_siblings_of_its_parent() {
    on_one(|runtime, log| {
        let gate = Gate::new(runtime);
        let parent = {
            let (log, gate) = (log.clone(), gate.request.to_untyped());
            root(runtime).spawn(move || {
                let [older, below] = ["older", "below"].map(|name| {
                    let log = log.clone();
                    move || log.note(name)
                });
                let older = spawn(older);
                let younger = spawn(move || {
                    let below = spawn(below);
                    gate.wait().unwrap();
                    below.wait().copied().unwrap();
                });
                younger.wait().unwrap();
                older.wait().copied().unwrap();
            })
        };
        until(|| log.told().len() == 2);
        gate.open();
        parent.wait().unwrap();
        log.check(&["older", "below"]);
    });
}

#[test]
fn a_parent_that_was_woken_goes_before_its_own_children() {
    on_one(|runtime, log| {
        let gate = Gate::new(runtime);
        let parent = {
            let (log, target) = (log.clone(), gate.request.to_untyped());
            root(runtime).spawn(move || {
                let (first, second) = (log.clone(), log.clone());
                // It keeps the worker until its parent has been woken.
                let opens = Request::builder().own_stack().spawn(move || {
                    first.note("first child");
                    gate.open();
                });
                let other = Request::builder().own_stack().spawn(move || second.note("second child"));
                target.wait().unwrap();
                log.note("parent");
                opens.wait().unwrap();
                other.wait().unwrap();
            })
        };
        parent.wait().unwrap();
        log.check(&["first child", "parent", "second child"]);
    });
}

#[test]
fn what_was_woken_and_what_is_fresh_are_ordered_by_age_alike() {
    on_one(|runtime, log| {
        let gate = Gate::new(runtime);
        let note = |name: &'static str| {
            let log = log.clone();
            move || log.note(name)
        };
        let first = root(runtime).build(note("first"));
        let second = {
            let (log, gate) = (log.clone(), gate.request.to_untyped());
            root(runtime).spawn(move || {
                gate.wait().unwrap();
                log.note("second, resumed");
            })
        };
        let third = root(runtime).build(note("third"));
        until(|| second.state() == State::Suspended);
        let held = hold_workers(runtime);
        third.submit();
        first.submit();
        gate.open();
        held.release();
        for request in [&first, &second, &third] {
            request.wait().unwrap();
        }
        log.check(&["first", "second, resumed", "third"]);
    });
}

// ---- priorities --------------------------------------------------------------------------------------------------------------

#[test]
fn smaller_priorities_are_ordered_first() {
    let (urgent, normal, background) = (Priority::URGENT, Priority::NORMAL, Priority::BACKGROUND);
    assert!(urgent < normal && normal < background);
    assert_eq!(Priority::default(), normal);
    assert_eq!((urgent.level(), normal.level(), background.level()), (-1, 0, 1));
    let mut all: Vec<_> = [5, -128, 0, 127, -5].map(Priority::new).into();
    all.sort();
    assert_eq!(all, [-128, -5, 0, 5, 127].map(Priority::new));
    assert!(format!("{urgent:?}").contains("-1") || format!("{urgent:?}").to_uppercase().contains("URGENT"));
}

#[test]
fn explicit_priorities_stand_before_age_and_equal_ones_go_by_age() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let levels = [1, 0, -1, 0, 1, -1, 127, -128];
        let made: Vec<_> = levels
            .into_iter()
            .enumerate()
            .map(|(at, level)| {
                let log = log.clone();
                root(runtime).priority(Priority::new(level)).build(move || log.note(format!("{level}.{at}")))
            })
            .collect();
        for request in made.iter().rev() {
            request.submit();
        }
        held.release();
        for request in &made {
            request.wait().unwrap();
        }
        log.check(&["-128.7", "-1.2", "-1.5", "0.1", "0.3", "1.0", "1.4", "127.6"]);
    });
}

#[test]
fn children_inherit_their_roots_priority() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let families: Vec<_> =
            [("late", Priority::BACKGROUND), ("normal", Priority::NORMAL), ("first", Priority::URGENT)]
                .into_iter()
                .map(|(name, priority)| {
                    let log = log.clone();
                    root(runtime).priority(priority).spawn(move || {
                        let child = Request::builder().own_stack().spawn({
                            let log = log.clone();
                            move || log.note(name)
                        });
                        child.wait().unwrap();
                        log.note(name);
                    })
                })
                .collect();
        held.release();
        for family in &families {
            family.wait().unwrap();
        }
        log.check(&["first", "first", "normal", "normal", "late", "late"]);
    });
}

#[test]
fn a_priority_given_inside_a_request_makes_a_root_for_the_order() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let note = |name: &'static str| {
            let log = log.clone();
            move || log.note(name)
        };
        let (later, child, more_urgent) = (note("later"), note("child"), note("more urgent"));
        let older = root(runtime).spawn(move || {
            Request::builder().priority(Priority::BACKGROUND).spawn(later);
            Request::builder().spawn(child);
            let urgent = Request::builder().priority(Priority::URGENT).build(more_urgent);
            // For all else it is a child.
            let parent = Request::builder().priority(Priority::URGENT).build(|| Request::current()?.parent());
            assert_eq!(parent.take().unwrap(), Request::current());
            urgent.submit();
        });
        let younger = root(runtime).spawn(note("younger root"));
        held.release();
        older.wait().unwrap();
        younger.wait().unwrap();
        until(|| log.told().len() == 4);
        log.check(&["more urgent", "child", "younger root", "later"]);
    });
}

/// Urgent work that comes while the worker is deep in direct runs gets in at the next wait, however deep.
#[test]
fn an_urgent_root_gets_in_at_the_next_wait_of_a_worker_deep_in_direct_runs() {
    let _not = support::not_on(support::Modes::Both, "it holds its workers");
    for kind in support::kinds() {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let runtime = kind.build();
        let (log, deep, pushed, ended) = (Log::default(), Count::new(), Flag::new(), Flag::new());
        // Every worker goes down a chain of direct runs, and waits at its end until the urgent one is there.
        fn dive(depth: usize, bottom: &Arc<dyn Fn() + Send + Sync>) {
            if depth == 0 {
                bottom();
            } else {
                let bottom = bottom.clone();
                Request::new(move || dive(depth - 1, &bottom)).wait().unwrap();
            }
        }
        let divers: Vec<_> = (0..runtime.workers())
            .map(|_| {
                let (log, deep, pushed, ended) = (log.clone(), deep.clone(), pushed.clone(), ended.clone());
                let bottom: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
                    deep.up();
                    hold_thread_until(|| pushed.is_up());
                    // The next waits, on every worker, until one of them has let the urgent one in.
                    let mut waits = 0;
                    while !ended.is_up() {
                        Request::new(|| ()).wait().unwrap();
                        waits += 1;
                        // The worker that was told lets it in at its very next wait; the others run on meanwhile.
                        assert!(waits < 100_000_000, "it never gets in");
                    }
                    log.note("after");
                });
                root(&runtime).spawn(move || dive(20, &bottom))
            })
            .collect();
        hold_thread_until(|| deep.get() == runtime.workers());
        let urgent = {
            let (log, ended) = (log.clone(), ended.clone());
            root(&runtime).priority(Priority::URGENT).spawn(move || {
                log.note("urgent");
                ended.raise();
            })
        };
        pushed.raise();
        urgent.wait().unwrap();
        for diver in &divers {
            diver.wait().unwrap();
        }
        assert_eq!(log.told()[0], "urgent");
    }
}

/// On one worker, exactly: what the worker was about to run directly is queued instead.
#[test]
fn on_one_worker_the_wait_after_an_urgent_push_runs_the_urgent_one_first() {
    on_one(|runtime, log| {
        let (there, pushed) = (Flag::new(), Flag::new());
        let diver = {
            let (log, there, pushed) = (log.clone(), there.clone(), pushed.clone());
            root(runtime).spawn(move || {
                let outer = Request::new(move || {
                    there.raise();
                    hold_thread_until(|| pushed.is_up());
                    let target = Request::new({
                        let log = log.clone();
                        move || log.note("target")
                    });
                    target.wait().unwrap();
                    log.note("waiter");
                });
                outer.wait().unwrap();
            })
        };
        hold_thread_until(|| there.is_up());
        let urgent = {
            let log = log.clone();
            root(runtime).priority(Priority::URGENT).spawn(move || log.note("urgent"))
        };
        let normal = {
            let log = log.clone();
            root(runtime).spawn(move || log.note("normal"))
        };
        pushed.raise();
        urgent.wait().unwrap();
        normal.wait().unwrap();
        diver.wait().unwrap();
        log.check(&["urgent", "target", "waiter", "normal"]);
    });
}
