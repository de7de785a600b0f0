//! Yielding: behind which fibers a yield goes.
//!
//! As in `tests/order/order.rs`, everything has a stack of its own, and what is to be ordered is queued while the worker is held.

#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use forebear::channel::bounded;
use forebear::time::ManualClock;
use forebear::{Priority, Request, State, spawn, yield_now};
use support::order::{Gate, on_one, root};
use support::{Count, Flag, Kind, Watchdog, hold_thread_until, hold_workers, on_each, until};

#[test]
fn those_that_yield_take_turns() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let players: Vec<_> = ["a", "b", "c"]
            .into_iter()
            .map(|name| {
                let log = log.clone();
                root(runtime).spawn(move || {
                    for _ in 0..3 {
                        log.note(name);
                        yield_now().unwrap();
                    }
                })
            })
            .collect();
        held.release();
        for player in &players {
            player.wait().unwrap();
        }
        let told = log.told();
        assert_eq!(told.len(), 9);
        // Once all have begun, they alternate.
        let begun = told.iter().position(|name| name == "c").unwrap();
        for turn in told[begun..].windows(3).filter(|turn| turn.len() == 3) {
            let distinct: std::collections::HashSet<_> = turn.iter().collect();
            assert!(distinct.len() >= 2, "{told:?}");
        }
        assert_ne!(told[..3], ["a", "a", "a"], "a yield lets others go first");
    });
}

#[test]
fn a_yield_goes_behind_what_is_ready_also_if_that_is_younger_and_unstarted() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let older = {
            let log = log.clone();
            root(runtime).spawn(move || {
                let child = {
                    let log = log.clone();
                    spawn(move || log.note("child"))
                };
                yield_now().unwrap();
                log.note("older");
                child.wait().unwrap();
            })
        };
        let younger = {
            let log = log.clone();
            root(runtime).spawn(move || log.note("younger"))
        };
        held.release();
        older.wait().unwrap();
        younger.wait().unwrap();
        let told = log.told();
        assert_eq!(told[0], "child", "{told:?}");
    });
}

/// However many poll, what they poll for comes to run.
#[test]
fn those_that_poll_do_not_starve_a_younger_root() {
    on_each(|runtime| {
        for pollers in [1, 2, 3, 10] {
            let flag = Flag::new();
            let polling: Vec<_> = (0..pollers)
                .map(|_| {
                    let flag = flag.clone();
                    root(runtime).priority(Priority::URGENT).spawn(move || flag.wait())
                })
                .collect();
            let up = flag.clone();
            let younger = root(runtime).priority(Priority::BACKGROUND).spawn(move || up.raise());
            younger.wait().unwrap();
            for poller in &polling {
                poller.wait().unwrap();
            }
        }
    });
}

#[test]
fn those_that_poll_do_not_starve_one_that_was_woken() {
    on_each(|runtime| {
        for pollers in [1, 2, 3, 10] {
            let (flag, gate) = (Flag::new(), Gate::new(runtime));
            let woken = {
                let (flag, gate) = (flag.clone(), gate.request.to_untyped());
                root(runtime).priority(Priority::BACKGROUND).spawn(move || {
                    gate.wait().unwrap();
                    flag.raise();
                })
            };
            until(|| woken.state() == State::Suspended);
            let polling: Vec<_> = (0..pollers)
                .map(|_| {
                    let flag = flag.clone();
                    root(runtime).priority(Priority::URGENT).spawn(move || flag.wait())
                })
                .collect();
            gate.open();
            woken.wait().unwrap();
            for poller in &polling {
                poller.wait().unwrap();
            }
        }
    });
}

/// Counted in yields: each that begins joins those that poll until all have begun. Whether they are roots, each younger than all that
/// poll, or children of one root, which are as old.
#[test]
fn how_many_poll_does_not_say_how_long_what_is_unstarted_waits() {
    const MANY: usize = 2_000;
    // So many yields at the most go before one that begins.
    const TURNS: usize = 64;
    for children in [false, true] {
        on_one(|runtime, _| {
            let (begun, turns) = (Count::new(), Count::new());
            let poll = || {
                let (begun, turns) = (begun.clone(), turns.clone());
                move || {
                    begun.up();
                    while begun.get() < MANY {
                        turns.up();
                        yield_now().unwrap();
                    }
                }
            };
            let held = hold_workers(runtime);
            if children {
                let all: Vec<_> = (0..MANY).map(|_| poll()).collect();
                let parent = root(runtime).spawn(move || {
                    let polling: Vec<_> = all.into_iter().map(spawn).collect();
                    // Not by a wait, which would run one after the other on this stack.
                    while polling.iter().any(|one| !one.is_done()) {
                        yield_now().unwrap();
                    }
                });
                held.release();
                parent.wait().unwrap();
            } else {
                let polling: Vec<_> = (0..MANY).map(|_| root(runtime).spawn(poll())).collect();
                held.release();
                polling.iter().for_each(|one| one.wait().copied().unwrap());
            }
            // The parent polls, too; and each that has seen the last begin yields no more.
            assert!(turns.get() <= (TURNS + 2) * MANY, "{} yields for {MANY} that begin", turns.get());
        });
    }
}

/// The maker yields behind its child, which another runs on its own stack: no start is counted. The others keep the worker busy with
/// what is woken for as long as the maker does not go on.
#[test]
fn a_yield_ends_though_what_was_unstarted_has_begun_elsewhere_and_others_are_woken_again_and_again() {
    const MANY: usize = 10_000;
    on_one(|runtime, _| {
        let turns = root(runtime)
            .spawn(|| {
                let (back, turns) = (Flag::new(), Count::new());
                let (ball, hit) = (bounded::<()>(1), bounded::<()>(1));
                let (give, given) = bounded::<Request<()>>(1);
                let first = {
                    let (back, turns, ball, hit) = (back.clone(), turns.clone(), ball.0, hit.1);
                    Request::builder().own_stack().spawn(move || {
                        given.recv().unwrap().wait().unwrap();
                        while !back.is_up() && turns.up() < MANY {
                            ball.send(()).unwrap();
                            hit.recv().unwrap();
                        }
                    })
                };
                let second = {
                    let (ball, hit) = (ball.1, hit.0);
                    Request::builder().own_stack().spawn(move || {
                        while ball.recv().is_ok() {
                            hit.send(()).unwrap();
                        }
                    })
                };
                while [&first, &second].iter().any(|player| player.state() != State::Suspended) {
                    yield_now().unwrap();
                }
                let child = spawn(|| ());
                give.send(child).unwrap();
                yield_now().unwrap();
                back.raise();
                first.wait().unwrap();
                second.wait().unwrap();
                turns.get()
            })
            .take()
            .unwrap();
        assert!(turns < MANY / 10, "{turns} went before it");
    });
}

/// The request that is polled has not been submitted when its deadline comes, so the worker's loop ends it.
#[test]
fn one_that_yields_until_another_is_over_has_that_one_end_when_its_deadline_comes() {
    for workers in [1, 2] {
        let _dog = Watchdog::new(format_args!("{workers} workers"));
        let clock = ManualClock::new();
        let runtime = Kind::Workers(workers).builder().clock(clock.clone()).build().unwrap();
        let polled = Flag::new();
        let polls = runtime.spawn({
            let polled = polled.clone();
            move || {
                let late = Request::builder().timeout(Duration::from_secs(1)).build(|| ());
                until(|| {
                    polled.raise();
                    late.is_done()
                });
            }
        });
        hold_thread_until(|| polled.is_up());
        clock.advance(Duration::from_secs(2));
        polls.wait().unwrap();
    }
}
