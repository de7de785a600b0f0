//! The seeded mode: one thread, an order that the seed decides, a virtual clock.

#[path = "../support/mod.rs"]
mod support;

use std::cell::Cell;
use std::collections::HashSet;
use std::error::Error as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use forebear::time::{ManualClock, sleep};
use forebear::{
    BuildError, Request, RequestPool, Runtime, State, WaitError, join, scope, shield, spawn, try_spawn,
    yield_now,
};
use support::{Count, Flag, Watchdog, hold_thread_until};

const HOUR: Duration = Duration::from_secs(3600);

fn seeded(seed: u64) -> Runtime {
    Runtime::builder().seeded(seed).name("seeded").build().expect("nothing to be refused")
}

/// What happened, in order.
#[derive(Default)]
struct Trace(Mutex<Vec<String>>);

impl Trace {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }
}

/// A program in which everything happens at once: its trace.
fn trace(seed: u64) -> Vec<String> {
    let trace = Trace::default();
    let runtime = seeded(seed);
    runtime.run(|| {
        scope(|s| {
            for n in 0..4 {
                let trace = &trace;
                s.spawn(move || {
                    trace.note(format!("{n} begins"));
                    let child = spawn(move || n * 2);
                    let (a, b) = join(
                        || {
                            yield_now().unwrap();
                            trace.note(format!("{n} first"));
                            1
                        },
                        || {
                            trace.note(format!("{n} second"));
                            2
                        },
                    );
                    let slow = Request::builder().own_stack().spawn(|| shield(|| yield_now().is_ok()));
                    let _ = slow.wait_timeout(Duration::from_millis(n));
                    trace.note(format!("{n} ends with {}", child.take().unwrap() + a + b));
                });
            }
        });
        let mut pool = RequestPool::new().max_active(2);
        for n in 0..4 {
            let trace = &trace;
            pool.add(move || {
                yield_now().unwrap();
                trace.note(format!("member {n}"));
            });
        }
        pool.wait().unwrap();
    });
    trace.0.into_inner().unwrap()
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let _dog = Watchdog::new("");
    for seed in 0..20 {
        let first = trace(seed);
        assert_eq!(first.len(), 20);
        for _ in 0..3 {
            assert_eq!(trace(seed), first, "seed {seed}");
        }
    }
    // On whatever thread.
    let here = trace(7);
    assert_eq!(thread::spawn(|| trace(7)).join().unwrap(), here);
}

#[test]
fn fifty_seeds_give_many_traces() {
    let _dog = Watchdog::new("");
    let traces: HashSet<_> = (0..50).map(trace).collect();
    assert!(traces.len() > 25, "{} of 50", traces.len());
}

#[test]
fn it_has_no_workers_and_runs_on_the_thread_that_waits() {
    let runtime = seeded(1);
    assert_eq!(runtime.workers(), 0);
    let here = thread::current().id();
    let request = runtime.spawn(move || thread::current().id());
    assert_eq!(request.take().unwrap(), here);
}

/// Two read, modify and write: right if nobody comes in between.
#[test]
fn a_lost_update_is_found_within_a_few_seeds() {
    let _dog = Watchdog::new("");
    let lost = |seed| {
        let counter = AtomicU64::new(0);
        seeded(seed).run(|| {
            scope(|s| {
                for _ in 0..2 {
                    s.spawn(|| {
                        let seen = counter.load(Ordering::Relaxed);
                        // Any scheduling point will do; this is one.
                        spawn(|| ()).take().unwrap();
                        counter.store(seen + 1, Ordering::Relaxed);
                    });
                }
            });
        });
        counter.into_inner() != 2
    };
    let found: Vec<_> = (0..50).filter(|seed| lost(*seed)).collect();
    let Some(&first) = found.first() else { panic!("fifty seeds have not found it") };
    assert!(found.len() < 50, "and not because it always happens");
    assert!((0..5).all(|_| lost(first)), "seed {first} finds it again");
}

#[test]
fn the_same_seed_ends_at_the_same_step_though_something_is_always_ready() {
    let _dog = Watchdog::new("");
    let steps = |seed| {
        let runtime = Runtime::builder().seeded(seed).on_warning(|_| ()).build().unwrap();
        let yields = || {
            let count = Count::new();
            let counts = count.clone();
            runtime.spawn(move || {
                while yield_now().is_ok() {
                    counts.up();
                }
            });
            count
        };
        let counts = [(); 3].map(|()| yields());
        runtime.finish(Duration::from_millis(3)).unwrap();
        counts.map(|count| count.get())
    };
    for seed in 0..10 {
        let counts = steps(seed);
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        assert_eq!(counts, steps(seed), "seed {seed}");
    }
}

// ---- time ---------------------------------------------------------------------------------------------------------------

#[test]
fn an_hours_time_out_passes_at_once() {
    let _dog = Watchdog::new("");
    let runtime = seeded(3);
    let before = runtime.now();
    let free = Flag::new();
    let target = {
        let free = free.clone();
        runtime.spawn(move || free.wait())
    };
    let waits = target.clone();
    let waiter = runtime.spawn(move || waits.wait_timeout(HOUR).copied());
    assert!(matches!(waiter.wait().unwrap(), Err(WaitError::TimedOut)));
    assert_eq!(runtime.now() - before, HOUR);
    assert!(matches!(target.wait_timeout(2 * HOUR), Err(WaitError::TimedOut)), "of the driver's thread, too");
    assert_eq!(runtime.now() - before, 3 * HOUR);
    free.raise();
    target.wait().unwrap();
}

#[test]
fn time_stands_still_while_anything_can_go_on() {
    let _dog = Watchdog::new("");
    for seed in 0..20 {
        let runtime = seeded(seed);
        let before = runtime.now();
        let slow = runtime.spawn(|| {
            for _ in 0..50 {
                spawn(yield_now).take().unwrap().unwrap();
            }
        });
        let waits = slow.clone();
        let waiter = runtime.spawn(move || waits.wait_timeout(Duration::from_nanos(1)).is_ok());
        assert!(waiter.take().unwrap(), "seed {seed}");
        assert_eq!(runtime.now(), before);
    }
}

#[test]
fn deadlines_come_in_their_order_whatever_the_seed() {
    let _dog = Watchdog::new("");
    for seed in 0..20 {
        let runtime = seeded(seed);
        let trace = Trace::default();
        runtime.run(|| {
            let free = Flag::new();
            let up = free.clone();
            let never = spawn(move || up.wait());
            scope(|s| {
                for n in [3, 1, 2] {
                    let (trace, never) = (&trace, never.clone());
                    s.spawn(move || {
                        assert!(never.wait_timeout(n * HOUR).is_err());
                        trace.note(n.to_string());
                    });
                }
            });
            free.raise();
        });
        assert_eq!(trace.0.into_inner().unwrap(), ["1", "2", "3"], "seed {seed}");
    }
}

// ---- nobody is passed over ----------------------------------------------------------------------------------------------

#[test]
fn those_that_poll_let_everything_else_run() {
    let _dog = Watchdog::new("");
    for seed in 0..50 {
        let over = Count::new();
        seeded(seed).run(|| {
            scope(|s| {
                for n in 0..8 {
                    let over = over.clone();
                    s.spawn(move || {
                        over.wait_for(n);
                        over.up();
                    });
                }
            });
        });
        assert_eq!(over.get(), 8);
    }
}

#[test]
fn a_wait_that_nothing_can_end_is_told_with_every_seed() {
    let _dog = Watchdog::new("");
    for seed in 0..20 {
        let told = seeded(seed).run(|| {
            let (send, sent) = std::sync::mpsc::channel::<Request<bool>>();
            let a = Request::builder().name("a").build(move || {
                let circular = |answer| matches!(answer, Err(WaitError::CircularWait(_)));
                circular(sent.recv().unwrap().wait().copied())
            });
            let first = a.clone();
            let b = Request::builder()
                .name("b")
                .build(move || matches!(first.wait(), Err(WaitError::CircularWait(_))));
            send.send(b.clone()).unwrap();
            [a, b].map(|one| *one.submit().wait().unwrap())
        });
        assert!(told[0] != told[1], "seed {seed}: one of them is told: {told:?}");
    }
}

#[test]
fn who_waits_for_what_sleeps_for_ever_is_told_with_every_seed() {
    let _dog = Watchdog::new("");
    for seed in 0..20 {
        let runtime = seeded(seed);
        let sleeper = runtime
            .enter(|| Request::builder().name("sleeper").own_stack().build(|| sleep(Duration::MAX).is_err()));
        let target = sleeper.clone();
        let told = runtime.enter(|| Request::builder().name("waiter").build(move || target.wait().err()));
        let Some(WaitError::CircularWait(cycle)) = told.take().unwrap() else {
            panic!("seed {seed}: not told")
        };
        assert!(cycle.names().any(|name| name == "sleeper"), "seed {seed}: {cycle:?}");
        // It sleeps on, and a cancel ends it.
        sleeper.cancel();
        assert!(matches!(sleeper.wait(), Err(WaitError::TargetCancelled(_))), "seed {seed}");
    }
}

// ---- its thread, and others ---------------------------------------------------------------------------------------------

#[test]
fn other_threads_may_submit_and_wait_while_its_own_drives() {
    let _dog = Watchdog::new("");
    let runtime = seeded(5);
    runtime.enter(|| ());
    let here = thread::current().id();
    thread::scope(|threads| {
        let other = threads.spawn(|| {
            let request = Request::builder().own_stack().on(&runtime).spawn(|| thread::current().id());
            assert_eq!(request.take().unwrap(), here);
        });
        while !other.is_finished() {
            runtime.enter(yield_now).unwrap();
        }
        other.join().unwrap();
    });
}

/// Its own thread sleeps in a wait that nothing here ends, and nothing goes on.
#[test]
fn time_passes_for_another_threads_time_out_while_its_own_sleeps() {
    let _dog = Watchdog::new("");
    let runtime = seeded(5);
    runtime.enter(|| ());
    let (elsewhere, free) = (support::runtime(1), Flag::new());
    let waits = Request::builder().own_stack().on(&elsewhere).spawn({
        let free = free.clone();
        move || free.wait()
    });
    let stands = Request::builder().own_stack().on(&runtime).spawn({
        let waits = waits.clone();
        move || _ = waits.watch()
    });
    thread::scope(|threads| {
        let other = threads.spawn(|| {
            hold_thread_until(|| stands.state() == State::Suspended);
            let came = stands.wait_timeout(HOUR).copied();
            free.raise();
            came
        });
        waits.watch().unwrap();
        assert!(matches!(other.join().unwrap(), Err(WaitError::TimedOut)));
    });
    stands.wait().unwrap();
}

#[test]
fn the_seat_passes_on_when_its_thread_exits() {
    let _dog = Watchdog::new("");
    let runtime = seeded(5);
    for _ in 0..3 {
        let theirs = runtime.clone();
        let ran_on = thread::spawn(move || (theirs.run(|| thread::current().id()), thread::current().id()));
        let (ran_on, thread) = ran_on.join().unwrap();
        assert_eq!(ran_on, thread);
    }
    assert_eq!(runtime.run(|| thread::current().id()), thread::current().id());
}

#[test]
fn what_was_submitted_is_run_when_the_last_handle_goes() {
    let _dog = Watchdog::new("");
    for seed in 0..10 {
        let ran = Count::new();
        let runtime = seeded(seed);
        for _ in 0..10 {
            let ran = ran.clone();
            drop(runtime.spawn(move || {
                yield_now().unwrap();
                ran.up();
            }));
        }
        drop(runtime);
        assert_eq!(ran.get(), 10);
    }
}

#[test]
fn what_lives_on_a_stack_need_not_be_send() {
    let runtime = seeded(5);
    let sum = runtime.run(|| {
        let local = std::rc::Rc::new(Cell::new(0));
        for n in 0..10 {
            local.set(local.get() + spawn(move || n).take().unwrap());
        }
        local.get()
    });
    assert_eq!(sum, 45);
    assert!(runtime.run(|| try_spawn(|| Ok("x".parse::<u32>()?)).take().is_err()));
}

// ---- what is refused ----------------------------------------------------------------------------------------------------

#[test]
fn what_does_not_go_with_a_seed_is_refused_by_name() {
    let told = |error: BuildError| {
        assert!(matches!(error, BuildError::Seeded { .. }) && error.source().is_none());
        error.to_string()
    };
    let many = Runtime::builder().seeded(1).workers(2).build().unwrap_err();
    assert!(told(many).contains("leave `workers` out"));
    let clocked = Runtime::builder().clock(ManualClock::new()).seeded(1).build().unwrap_err();
    assert!(told(clocked).contains("leave `clock` out"));
    for one in [0, 1] {
        assert_eq!(Runtime::builder().workers(one).seeded(1).build().unwrap().workers(), 0);
    }
}
