//! `join`: two closures, perhaps in parallel, on the caller's stack and without an allocation.

#[path = "../support/mod.rs"]
mod support;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Mutex;
use std::thread;

use forebear::{AnyRequest, Error, Request, WaitError, join, scope, spawn, try_join, yield_now};
use support::{Count, Flag, hold_thread_until, in_both_worlds, inside_each, mix, on_each, on_each_of};

#[test]
fn both_arms_run_and_both_values_come_back_in_their_places() {
    in_both_worlds(|| {
        let (a, b) = join(|| String::from("first"), || vec![2]);
        assert_eq!((a.as_str(), b.as_slice()), ("first", [2].as_slice()));
    });
}

#[test]
fn arms_borrow_from_the_caller() {
    in_both_worlds(|| {
        let mut numbers = vec![1, 2, 3, 4];
        let (left, right) = numbers.split_at_mut(2);
        join(|| left[0] = 10, || right[1] = 40);
        assert_eq!(numbers, [10, 2, 3, 40]);
    });
}

#[test]
fn the_first_arm_need_not_be_send() {
    in_both_worlds(|| {
        let local = Rc::new(Cell::new(1));
        let seen = thread::current().id();
        let (there, _) = join(
            || {
                local.set(2);
                yield_now().unwrap();
                (thread::current().id(), local.clone())
            },
            || yield_now().unwrap(),
        );
        assert_eq!(there.0, seen, "it stays on its stack");
        assert_eq!(there.1.get(), 2);
    });
}

fn payload(unwound: thread::Result<impl Sized>) -> &'static str {
    *unwound.err().expect("it unwinds").downcast::<&'static str>().unwrap()
}

fn throw(what: &'static str) -> ! {
    resume_unwind(Box::new(what))
}

#[test]
fn a_panic_of_the_first_arm_comes_out_after_the_second_has_run() {
    in_both_worlds(|| {
        let second = Cell::new(false);
        let second = AssertUnwindSafe(Mutex::new(second));
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            join(
                || throw("first"),
                || {
                    yield_now().unwrap();
                    second.lock().unwrap().set(true);
                },
            )
        }));
        assert_eq!(payload(unwound), "first");
        assert!(second.lock().unwrap().get());
    });
}

#[test]
fn a_panic_of_the_second_arm_comes_out_after_the_first_has_run() {
    in_both_worlds(|| {
        let mut first = false;
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            join(
                || {
                    yield_now().unwrap();
                    first = true;
                },
                || throw("second"),
            )
        }));
        assert_eq!(payload(unwound), "second");
        assert!(first);
    });
}

#[test]
fn of_two_panics_the_first_arms_comes_out() {
    in_both_worlds(|| {
        for yielding in [false, true] {
            let unwound = catch_unwind(AssertUnwindSafe(|| {
                join(
                    || {
                        if yielding {
                            yield_now().unwrap();
                        }
                        throw("first")
                    },
                    || throw("second"),
                )
            }));
            assert_eq!(payload(unwound), "first");
        }
    });
}

/// Whoever ran the second arm, what its value or panic holds is dropped once.
#[test]
fn what_a_panic_of_the_first_arm_leaves_unused_is_dropped_once() {
    in_both_worlds(|| {
        for yielding in [false, true] {
            let drops = Count::new();
            let (value, captured) = (drops.probe(), drops.probe());
            let unwound = catch_unwind(AssertUnwindSafe(|| {
                join(
                    || {
                        if yielding {
                            yield_now().unwrap();
                        }
                        throw("first")
                    },
                    || {
                        let _captured = captured;
                        value
                    },
                )
            }));
            assert_eq!(payload(unwound), "first");
            assert_eq!(drops.get(), 2);
        }
    });
}

/// Its destructor waits, and panics.
struct Falls(Count);

impl Drop for Falls {
    fn drop(&mut self) {
        assert!(!thread::panicking(), "it is not dropped by an unwind");
        yield_now().unwrap();
        self.0.up();
        throw("falls on purpose");
    }
}

/// The waiter runs the second arm, or another worker does.
#[test]
fn the_value_of_one_arm_is_dropped_before_the_panic_of_the_other_goes_on() {
    in_both_worlds(|| {
        for yielding in [false, true] {
            let dropped = Count::new();
            let value = || {
                if yielding {
                    yield_now().unwrap();
                }
                Falls(dropped.clone())
            };
            let panics = |what| {
                if yielding {
                    yield_now().unwrap();
                }
                throw(what)
            };
            let unwound = catch_unwind(AssertUnwindSafe(|| join(value, || panics("second"))));
            assert_eq!((payload(unwound), dropped.get()), ("second", 1));
            let unwound = catch_unwind(AssertUnwindSafe(|| join(|| panics("first"), value)));
            assert_eq!((payload(unwound), dropped.get()), ("first", 2));
        }
    });
}

#[test]
fn try_join_answers_the_first_error_and_always_runs_both() {
    in_both_worlds(|| {
        let ran = Count::new();
        let good = || {
            ran.up();
            Ok(1)
        };
        let bad = |text: &'static str| {
            ran.up();
            Err::<i32, Error>(Error::other(text))
        };
        let text = |result: Result<(i32, i32), WaitError>| {
            let error = result.unwrap_err();
            error.failure().unwrap().error().to_string()
        };
        assert_eq!(try_join(good, good).unwrap(), (1, 1));
        assert_eq!(text(try_join(|| bad("a"), good)), "a");
        assert_eq!(text(try_join(good, || bad("b"))), "b");
        assert_eq!(text(try_join(|| bad("a"), || bad("b"))), "a");
        assert_eq!(ran.get(), 8);
    });
}

// ---- arms that wait -----------------------------------------------------------------------------------------------------

#[test]
fn the_first_arm_may_spin_for_what_the_second_does() {
    in_both_worlds(|| {
        let flag = Flag::new();
        join(|| flag.wait(), || flag.raise());
    });
}

#[test]
fn the_second_arm_may_spin_for_what_the_first_did_or_does() {
    in_both_worlds(|| {
        let (one, two) = (Flag::new(), Flag::new());
        join(
            || {
                one.raise();
                two.wait();
            },
            || {
                one.wait();
                two.raise();
            },
        );
    });
}

#[test]
fn arms_play_ping_pong_by_yielding() {
    in_both_worlds(|| {
        let ball = Count::new();
        let play = |mine: usize| {
            for round in 0..200 {
                support::until(|| ball.get() == 2 * round + mine);
                ball.up();
            }
        };
        join(|| play(0), || play(1));
        assert_eq!(ball.get(), 400);
    });
}

/// The shared request waits for the other arm, so each arm suspends until the other has moved.
#[test]
fn arms_wait_for_each_other_through_a_shared_request() {
    in_both_worlds(|| {
        let flag = Flag::new();
        let up = flag.clone();
        let shared = Request::new(move || {
            up.wait();
            7
        });
        let (first, second) = (shared.clone(), shared);
        let (a, b) = join(
            || *first.wait().unwrap(),
            || {
                flag.raise();
                *second.wait().unwrap()
            },
        );
        assert_eq!((a, b), (7, 7));
    });
}

#[test]
fn every_arm_of_nested_joins_may_wait_for_every_other() {
    fn all(left: usize, right: usize, here: &Count) {
        if right - left == 1 {
            here.up();
            here.wait_for(32);
            return;
        }
        let middle = left.midpoint(right);
        join(|| all(left, middle, here), || all(middle, right, here));
    }
    in_both_worlds(|| all(0, 32, &Count::new()));
}

// ---- nesting, identity ----------------------------------------------------------------------------------------------------

fn fib(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (a, b) = join(|| fib(n - 1), || fib(n - 2));
    a + b
}

#[test]
fn joins_nest() {
    in_both_worlds(|| assert_eq!(fib(16), 987));
}

#[test]
fn joins_nest_with_requests_and_scopes_between() {
    fn sum(numbers: &[u64], depth: usize) -> u64 {
        if numbers.len() < 3 {
            return numbers.iter().sum();
        }
        let (left, right) = numbers.split_at(numbers.len() / 2);
        match depth % 3 {
            0 => {
                let (a, b) = join(|| sum(left, depth + 1), || sum(right, depth + 1));
                a + b
            }
            1 => {
                let owned = left.to_vec();
                let a = spawn(move || sum(&owned, depth + 1));
                sum(right, depth + 1) + a.take().unwrap()
            }
            _ => {
                let mut a = 0;
                let b = scope(|s| {
                    s.spawn(|| a = sum(left, depth + 1));
                    sum(right, depth + 1)
                });
                a + b
            }
        }
    }
    let numbers: Vec<u64> = (0..3_000).map(|n| mix(n) >> 32).collect();
    let expected: u64 = numbers.iter().sum();
    in_both_worlds(|| assert_eq!(sum(&numbers, 0), expected));
}

/// Never suspends, but comes to a fork now and then, where the oldest arm is published for whoever is hungry.
fn fork_until(flag: &Flag) {
    hold_thread_until(|| {
        join(|| (), || ());
        flag.is_up()
    });
}

/// A stolen arm goes by its maker's id, name and parent.
#[test]
fn in_a_stolen_arm_the_maker_is_current() {
    on_each_of(&[2, 4], |runtime| {
        let me = runtime.run(|| {
            let maker = Request::builder().name("maker").own_stack().build(|| {
                let second = Flag::new();
                let me = Request::current().unwrap();
                let here = thread::current().id();
                // The first arm does not let go of its stack, so only a thief can run the second.
                let (_, arm) = join(
                    || fork_until(&second),
                    || {
                        let arm = Request::current().unwrap();
                        // A child of it has the maker for its parent.
                        let child = spawn(|| Request::current().unwrap().parent().unwrap());
                        let parent = child.take().unwrap();
                        second.raise();
                        (thread::current().id(), arm, parent)
                    },
                );
                assert_ne!(arm.0, here, "it was stolen");
                for who in [&arm.1, &arm.2] {
                    assert_eq!(who, &me);
                    assert_eq!((who.id(), who.name()), (me.id(), "maker"));
                    assert_eq!(who.parent(), me.parent());
                }
                me
            });
            let me: AnyRequest = maker.wait().unwrap().clone();
            assert_eq!(me, maker.to_untyped());
            me
        });
        assert!(me.is_done());
    });
}

#[test]
fn a_stolen_arm_that_waits_for_its_maker_is_told_of_the_cycle() {
    on_each_of(&[2, 4], |runtime| {
        runtime.run(|| {
            let stolen = Flag::new();
            let me = Request::current().unwrap();
            let (_, answer) = join(
                || fork_until(&stolen),
                || {
                    stolen.raise();
                    me.wait()
                },
            );
            assert!(matches!(answer, Err(WaitError::CircularWait(_))), "{answer:?}");
        });
    });
}

#[test]
fn an_arm_that_is_not_stolen_is_told_of_the_cycle_too() {
    inside_each(|| {
        let me = Request::current().unwrap();
        let (a, b) = join(|| me.wait(), || me.wait());
        assert!(matches!(a, Err(WaitError::CircularWait(_))), "{a:?}");
        assert!(matches!(b, Err(WaitError::CircularWait(_))), "{b:?}");
    });
}

// ---- publication ----------------------------------------------------------------------------------------------------------

/// A hundred arms are made before anybody else is there to be hungry; then one comes, and they are shared.
#[test]
fn arms_made_before_the_second_worker_is_hungry_are_shared_in_the_end() {
    on_each_of(&[2, 4], |runtime| {
        let threads = Mutex::new(HashSet::new());
        // All workers but one are busy, and it makes the arms.
        let (free, busy) = (Flag::new(), Count::new());
        let holders: Vec<_> = (1..runtime.workers())
            .map(|_| {
                let (free, busy) = (free.clone(), busy.clone());
                runtime.spawn(move || {
                    busy.up();
                    hold_thread_until(|| free.is_up());
                })
            })
            .collect();
        hold_thread_until(|| busy.get() == holders.len());
        fn nest(left: usize, free: &Flag, threads: &Mutex<HashSet<thread::ThreadId>>) {
            let note = || {
                threads.lock().unwrap().insert(thread::current().id());
            };
            if left == 0 {
                // The innermost first arm: all others are made. The others may come now; it has joins still to make.
                note();
                free.raise();
                while threads.lock().unwrap().len() < 2 {
                    join(|| (), || ());
                    thread::yield_now();
                }
                return;
            }
            join(|| nest(left - 1, free, threads), note);
        }
        runtime.run(|| nest(100, &free, &threads));
        assert!(threads.lock().unwrap().len() >= 2);
        for holder in holders {
            holder.take().unwrap();
        }
    });
}

#[test]
fn what_suspends_makes_its_arms_visible() {
    on_each(|runtime| {
        runtime.run(|| {
            let arm = Flag::new();
            let shared = {
                let arm = arm.clone();
                // On its own stack: so the first arm suspends, and cannot lend.
                Request::builder().own_stack().spawn(move || arm.wait())
            };
            join(|| shared.wait().map(|_| ()).unwrap(), || arm.raise());
        });
    });
}

#[test]
fn a_guard_that_is_not_send_may_live_across_a_join() {
    inside_each(|| {
        let cell = RefCell::new(1);
        let guard = cell.borrow_mut();
        join(|| yield_now().unwrap(), || yield_now().unwrap());
        drop(guard);
        assert_eq!(cell.into_inner(), 1);
    });
}
