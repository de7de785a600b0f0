//! What borrows is over before its frame is left: attacks on every call that lends its frame to other stacks. `docs/loans.md` names, for each
//! such call, the test that attacks it.

#[path = "../support/mod.rs"]
mod support;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use forebear::sync::Event;
use forebear::{CancelReason, Request, Runtime, Scope, WaitError, join, no_suspend, scope, spawn, yield_now};
use support::{
    Count, Flag, Modes, Watchdog, in_both_worlds, kinds, not_on, on_each, on_each_of, runtime, until,
};

/// Calls `f` on so many threads at once, which no runtime has met.
fn on_strangers(many: usize, f: impl Fn() + Sync) {
    let ready = AtomicUsize::new(0);
    thread::scope(|threads| {
        for _ in 0..many {
            threads.spawn(|| {
                ready.fetch_add(1, Ordering::AcqRel);
                while ready.load(Ordering::Acquire) < many {
                    std::hint::spin_loop();
                }
                f();
            });
        }
    });
}

/// Keeps a worker for a moment.
fn dawdle() {
    (0..50).for_each(|_| thread::yield_now());
}

/// What a body that panics says.
fn said(f: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(f)).expect_err("it panics");
    payload.downcast_ref::<String>().expect("a message").clone()
}

#[test]
fn a_scope_waits_for_the_jobs_that_strangers_spawn() {
    on_each_of(&[2], |runtime| {
        for round in 0..300 {
            let (over, many) = (AtomicUsize::new(0), 2 + round % 2);
            runtime.enter(|| {
                scope(|s| {
                    on_strangers(many, || {
                        s.spawn(|| {
                            dawdle();
                            over.fetch_add(1, Ordering::AcqRel);
                        });
                    });
                });
            });
            assert_eq!(over.into_inner(), many, "round {round}");
        }
    });
}

#[test]
fn a_stopped_scope_waits_for_the_jobs_that_strangers_spawn() {
    on_each_of(&[2], |runtime| {
        for _ in 0..200 {
            let dropped = Count::new();
            let rounds = 1 + runtime.run(|| {
                scope(|s| {
                    s.cancel();
                    on_strangers(3, || {
                        let probe = dropped.probe();
                        // In the default runtime; cancelled, or about to be.
                        s.spawn(move || {
                            let _probe = probe;
                            dawdle();
                        });
                    });
                    2
                })
            });
            assert_eq!((rounds, dropped.get()), (3, 3));
        }
    });
}

/// Spawns into its scope when it is dropped.
struct SpawnsInDrop<'scope, 'env>(&'scope Scope<'scope, 'env>, &'scope AtomicUsize);

impl Drop for SpawnsInDrop<'_, '_> {
    fn drop(&mut self) {
        let over = self.1;
        self.0.spawn(move || over.fetch_add(1, Ordering::AcqRel));
    }
}

#[test]
fn a_scope_waits_for_what_the_destructors_of_its_cancelled_jobs_spawn() {
    in_both_worlds(|| {
        for _ in 0..20 {
            let (spawned, over) = (AtomicUsize::new(0), Count::new());
            // It may unwind: what a cancelled job spawns is skipped.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                scope(|s| {
                    for _ in 0..4 {
                        let captured = (SpawnsInDrop(s, &spawned), over.probe());
                        s.spawn(move || {
                            let _captured = captured;
                            yield_now().is_ok()
                        });
                    }
                    s.cancel();
                })
            }));
            // All callables of the first four are dropped.
            assert_eq!(over.get(), 4);
        }
    });
}

#[test]
fn a_run_in_a_region_is_refused_before_anything_is_lent() {
    in_both_worlds(|| {
        let other = runtime(1);
        let ran = Count::new();
        for of in [&Runtime::current(), &other] {
            let text =
                said(|| no_suspend("the region", || of.run(|| ran.up())).checked_add(0).map_or((), |_| ()));
            assert!(text.contains("the region") && text.contains("Runtime::run"), "{text}");
            said(|| no_suspend("the region", || drop(of.try_run(|| Ok(ran.up())))));
        }
        other.run(|| ());
        assert_eq!(ran.get(), 0);
    });
}

#[test]
fn a_scope_in_a_region_refuses_its_first_job_by_name() {
    in_both_worlds(|| {
        let ran = Count::new();
        no_suspend("the region", || {
            assert_eq!(scope(|_| 7), 7);
            let text = said(|| scope(|s| drop(s.spawn(|| ran.up()))));
            assert!(text.contains("the region"), "{text}");
            said(|| scope(|s| drop(Request::builder().spawn_in(s, || ran.up()))));
            // Whoever spawns.
            scope(|s| {
                on_strangers(2, || assert!(said(|| drop(s.spawn(|| ran.up()))).contains("the region")))
            });
        });
        // One that was opened outside takes jobs, and waits outside.
        scope(|s| no_suspend("the region", || drop(s.spawn(|| ran.up()))));
        assert_eq!(ran.get(), 1);
    });
}

#[test]
fn a_join_in_a_region_runs_both_here_and_one_after_the_other() {
    in_both_worlds(|| {
        let here = thread::current().id();
        for _ in 0..20 {
            let (a, b) = no_suspend("the region", || {
                join(
                    || {
                        // Time for whoever is hungry.
                        let (c, d) = join(dawdle, || thread::current().id());
                        (c, d, thread::current().id())
                    },
                    || thread::current().id(),
                )
            });
            assert_eq!(((), here, here, here), (a.0, a.1, a.2, b));
        }
        let second = Count::new();
        let panics =
            || no_suspend("the region", || join(|| std::panic::resume_unwind(Box::new(())), || second.up()));
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(second.get(), 1);
    });
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Also on a thread that drives a runtime without threads, and whatever ends inside the region.
#[test]
fn no_other_request_runs_on_the_thread_inside_a_region() {
    type Attack = fn(&Runtime);
    const ATTACKS: [(&str, Attack); 6] = [
        ("a scope", |_| _ = catch_unwind(|| scope(|s| drop(s.spawn(|| yield_now().ok()))))),
        ("a join", |_| _ = join(|| yield_now().is_ok(), || ())),
        ("a spawn", |_| drop(spawn(|| ()))),
        ("a run", |runtime| _ = catch_unwind(|| runtime.run(|| ()))),
        ("a wait", |_| _ = catch_unwind(|| Request::builder().own_stack().spawn(|| ()).wait().is_ok())),
        ("the end of another runtime", |_| {
            let other = Runtime::builder().workers(0).build().unwrap();
            drop(other.spawn(|| assert!(!INSIDE.get())));
        }),
    ];
    on_each(|runtime| {
        for (name, attack) in ATTACKS {
            let (event, seen) = (Arc::new(Event::new()), Arc::new(AtomicUsize::new(0)));
            let (set, saw) = (event.clone(), seen.clone());
            let other = runtime.spawn(move || {
                set.wait().unwrap();
                saw.store(1 + usize::from(INSIDE.get()), Ordering::Release);
            });
            let _ = catch_unwind(AssertUnwindSafe(|| {
                no_suspend("the region", || {
                    INSIDE.set(true);
                    event.set();
                    runtime.enter(|| attack(runtime));
                    INSIDE.set(false);
                })
            }));
            INSIDE.set(false);
            other.wait().unwrap();
            assert_eq!(seen.load(Ordering::Acquire), 1, "{name}: it ran inside the region");
        }
    });
}

#[test]
fn a_run_returns_when_its_request_is_over_also_if_its_caller_is_cancelled() {
    on_each(|runtime| {
        let other = self::runtime(1);
        for of in [runtime.clone(), other] {
            let begun = Flag::new();
            let up = begun.clone();
            let caller = runtime.spawn(move || {
                let (lent, over) = (vec![7; 100], AtomicUsize::new(0));
                let answer = of.try_run(|| {
                    up.raise();
                    while yield_now().is_ok() {}
                    dawdle();
                    over.store(lent.iter().sum(), Ordering::Release);
                    Ok(())
                });
                (answer.is_err(), over.into_inner())
            });
            until(|| begun.is_up());
            let watched = caller.to_untyped();
            watched.abort(CancelReason::Asked);
            assert!(matches!(caller.wait(), Err(WaitError::TargetCancelled(_))));
        }
    });
}

/// What a cancelled request makes is cancelled at birth; what is dropped unrun inside a destructor of the same kind is put off, but not what
/// borrows.
#[test]
fn a_run_in_a_destructor_of_a_cancelled_request_returns() {
    struct RunsInDrop(Runtime, Count);
    impl Drop for RunsInDrop {
        fn drop(&mut self) {
            let lent = [1, 2, 3];
            let _ = self.0.try_run(|| Ok(lent.len()));
            self.1.up();
        }
    }
    on_each(|runtime| {
        let done = Count::new();
        let captured = RunsInDrop(runtime.clone(), done.clone());
        let caller = runtime.spawn(move || {
            Request::current().unwrap().abort(CancelReason::Asked);
            drop(Request::new(move || drop(captured)));
        });
        let _ = caller.wait();
        assert_eq!(done.get(), 1);
    });
}

/// The wait of the caller closes a cycle. It cannot give up; so another wait of the cycle is told.
#[test]
fn a_run_that_closes_a_cycle_returns_when_its_request_is_over() {
    let _not = not_on(Modes::Seeded, "the caller's thread must not drive what it has not begun");
    for kind in kinds() {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let (runtime, other) = (kind.build(), self::runtime(1));
        let there = other.clone();
        let caller = runtime.spawn(move || {
            let me = Request::current().unwrap();
            let lent = [7; 10];
            there.run(|| {
                let answer = me.wait();
                (matches!(answer, Err(WaitError::CircularWait(_))), lent.len())
            })
        });
        assert_eq!(caller.take().unwrap(), (true, 10));
    }
}

/// A scope in a thread-local's destructor either works or is refused before anything is lent.
#[test]
fn a_scope_in_a_destructor_of_a_thread_local_is_refused_or_waits_for_its_jobs() {
    struct Scoped(Runtime, Count);
    impl Drop for Scoped {
        fn drop(&mut self) {
            let (lent, over) = (vec![7; 100], AtomicUsize::new(0));
            let entered = || {
                scope(|s| {
                    for _ in 0..3 {
                        s.spawn(|| {
                            dawdle();
                            over.fetch_add(lent.len(), Ordering::AcqRel);
                        });
                    }
                });
                self.0.run(|| over.fetch_add(lent.len(), Ordering::AcqRel));
            };
            let went = catch_unwind(AssertUnwindSafe(|| self.0.enter(entered)));
            assert!(went.is_err() || over.into_inner() == 400);
            self.1.up();
        }
    }
    thread_local! {
        static EARLY: RefCell<Option<Scoped>> = const { RefCell::new(None) };
        static LATE: RefCell<Option<Scoped>> = const { RefCell::new(None) };
    }
    on_each_of(&[1, 2], |runtime| {
        let done = Count::new();
        let scoped = || Some(Scoped(runtime.clone(), done.clone()));
        let thread = thread::spawn({
            let (early, late, runtime) = (scoped(), scoped(), runtime.clone());
            move || {
                // One is destroyed before what the runtime keeps for this thread, the other after it.
                EARLY.set(early);
                runtime.run(|| ());
                LATE.set(late);
            }
        });
        thread.join().unwrap();
        assert_eq!(done.get(), 2);
    });
}
