//! Direct execution: who waits for what has not started runs it on its own stack.

#[path = "../support/mod.rs"]
mod support;

use std::sync::Mutex;
use std::thread;

use forebear::sync::Event;
use forebear::{Request, Runtime, State, WaitError, scope, spawn};
use support::{Count, Flag, Watchdog, hold_workers, inside_each, on_each, runtime};

fn direct(runtime: &Runtime) -> u64 {
    runtime.metrics().direct
}

/// The address of a local variable: tells stacks apart.
fn here() -> usize {
    let local = 0_u8;
    (&raw const local).addr()
}

#[test]
fn an_unsubmitted_target_runs_on_its_waiters_stack() {
    on_each(|runtime| {
        let before = direct(runtime);
        runtime.run(|| {
            let waiter = here();
            let target = Request::new(here);
            assert!(waiter.abs_diff(*target.wait().unwrap()) < 64 << 10);
        });
        assert_eq!(direct(runtime), before + 1);
    });
}

#[test]
fn a_queued_target_runs_on_its_waiters_stack() {
    let _dog = Watchdog::new("");
    let runtime = runtime(1);
    runtime.run(|| {
        let (spawned, taken) = (spawn(here), spawn(here));
        assert_eq!(spawned.state(), State::Queued);
        assert!(here().abs_diff(*spawned.wait().unwrap()) < 64 << 10);
        assert!(here().abs_diff(taken.take().unwrap()) < 64 << 10);
    });
    assert_eq!(direct(&runtime), 2);
}

#[test]
fn a_queued_root_is_taken_from_the_injector_by_its_waiter() {
    let _not = support::not_on(support::Modes::Both, "it holds its workers");
    on_each(|runtime| {
        let held = hold_workers(runtime);
        let me = thread::current().id();
        let root = runtime.spawn(move || thread::current().id() == me);
        let ran = Count::new();
        let stale: Vec<_> = (0..100)
            .map(|_| {
                let ran = ran.clone();
                runtime.spawn(move || ran.up())
            })
            .collect();
        assert!(*root.wait().unwrap(), "all workers were busy, so it can only have run here");
        for stale in stale {
            stale.wait().unwrap();
        }
        assert_eq!(ran.get(), 100, "once each, though entries are left in the shared queue");
        held.release();
        assert_eq!(runtime.run(|| 1), 1, "what is left of them harms nobody");
        assert_eq!(ran.get(), 100);
    });
}

#[test]
fn a_request_that_asks_for_its_own_stack_gets_it() {
    on_each(|runtime| {
        let before = direct(runtime);
        runtime.run(|| {
            let waiter = here();
            for _ in 0..10 {
                let own = Request::builder().own_stack().build(here);
                assert!(waiter.abs_diff(*own.wait().unwrap()) > 32 << 10);
                let own = Request::builder().own_stack().spawn(here);
                assert!(waiter.abs_diff(own.take().unwrap()) > 32 << 10);
            }
        });
        assert_eq!(direct(runtime), before);
    });
}

#[test]
fn a_stack_size_is_a_guarantee_wherever_it_runs() {
    /// Uses up about so much stack, for real.
    #[inline(never)]
    fn dig(bytes: usize) -> usize {
        let ballast = std::hint::black_box([1_u8; 1 << 10]);
        let below = if bytes > 2 << 10 { dig(bytes - size_of_val(&ballast) - 256) } else { 0 };
        std::hint::black_box(&ballast);
        below + usize::from(ballast[0])
    }
    // Frames are larger without optimisation than what is counted here.
    let share = if cfg!(debug_assertions) { 2 } else { 1 };
    inside_each(|| {
        for kib in [16, 64, 200, 900, 3_000, 12_000] {
            let described = Request::builder().stack_size(kib << 10);
            let dug = described.build(move || dig((kib << 10) / 2 / share));
            assert!(*dug.wait().unwrap() > 0);
            // And deep down on somebody else's stack.
            let nested = described.build(move || {
                let inner =
                    Request::builder().stack_size(kib << 10).build(move || dig((kib << 10) / 2 / share));
                dig((kib << 10) / 4 / share) + *inner.wait().unwrap()
            });
            assert!(*nested.wait().unwrap() > 0);
        }
    });
}

#[test]
fn with_too_little_stack_left_the_target_is_queued_and_the_waiter_suspends() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(1).stack_size(100 << 10).build().unwrap();
    runtime.run(|| {
        let waiter = here();
        let large = Request::builder().stack_size(4 << 20).build(here);
        assert!(waiter.abs_diff(*large.wait().unwrap()) > 64 << 10, "it does not fit here");
        let small = Request::builder().stack_size(16 << 10).build(here);
        assert!(waiter.abs_diff(*small.wait().unwrap()) < 64 << 10);
    });
    assert_eq!(direct(&runtime), 1);
}

#[test]
fn a_foreign_thread_runs_what_it_waits_for() {
    on_each(|runtime| {
        let before = direct(runtime);
        let me = thread::current().id();
        runtime.enter(|| {
            let target = Request::new(move || {
                let current = Request::current().unwrap();
                assert_eq!((current.state(), current.assigned_worker()), (State::Running, None));
                let child =
                    Request::new(move || (Request::current().unwrap().parent(), thread::current().id()));
                let (parent, there) = child.take().unwrap();
                assert_eq!((parent, there), (Some(current), thread::current().id()));
                thread::current().id()
            });
            assert_eq!(*target.wait().unwrap(), me);
        });
        assert_eq!(direct(runtime), before + 2);
    });
}

#[test]
fn foreign_direct_off_keeps_work_away_from_foreign_threads() {
    let _not = support::not_on(support::Modes::Both, "the thread that waits is the worker");
    for kind in support::kinds() {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let runtime = kind.builder().run_on_caller(false).build().unwrap();
        let me = thread::current().id();
        runtime.enter(|| {
            for _ in 0..10 {
                let unsubmitted = Request::new(move || thread::current().id());
                assert_ne!(*unsubmitted.wait().unwrap(), me);
                assert_ne!(spawn(move || thread::current().id()).take().unwrap(), me);
                let any = Request::new(move || assert_ne!(thread::current().id(), me));
                any.to_untyped().wait().unwrap();
                assert!(any.assigned_worker().is_some());
            }
        });
        // Requests lend each other their stacks all the same.
        let before = direct(&runtime);
        runtime.run(|| Request::new(|| ()).wait().map(|_| ()).unwrap());
        assert_eq!(direct(&runtime), before + 1);
    }
}

#[test]
fn what_runs_directly_may_suspend() {
    inside_each(|| {
        let flag = Flag::new();
        let (up, wait) = (flag.clone(), flag.clone());
        let other = Request::builder().own_stack().spawn(move || wait.wait());
        let target = Request::new(move || {
            let helper = spawn(move || up.raise());
            other.wait().unwrap();
            helper.take().unwrap();
            7
        });
        assert_eq!(*target.wait().unwrap(), 7);
    });
}

/// Others wait for what is being run on a lent stack.
#[test]
fn a_target_on_a_lent_stack_wakes_its_other_waiters() {
    on_each(|runtime| {
        runtime.run(|| {
            let free = Flag::new();
            let target = {
                let free = free.clone();
                Request::new(move || {
                    free.wait();
                    5
                })
            };
            let waiters: Vec<_> = (0..4)
                .map(|_| {
                    let target = target.clone();
                    spawn(move || *target.wait().unwrap())
                })
                .collect();
            let up = free.clone();
            let last = spawn(move || up.raise());
            assert_eq!(*target.wait().unwrap(), 5);
            for waiter in waiters {
                assert_eq!(waiter.take().unwrap(), 5);
            }
            last.take().unwrap();
        });
    });
}

#[test]
fn metrics_count_what_was_started() {
    on_each(|runtime| {
        let before = runtime.metrics().started;
        let requests: Vec<_> =
            (0..10).map(|_| Request::builder().on(runtime).own_stack().spawn(|| ())).collect();
        for request in requests {
            request.take().unwrap();
        }
        runtime.enter(|| Request::new(|| ()).wait().map(|_| ()).unwrap());
        assert_eq!(runtime.metrics().started, before + 11);
    });
}

#[test]
fn what_a_scope_leaves_unstarted_runs_on_its_stack_when_its_body_is_over() {
    let _dog = Watchdog::new("");
    let runtime = runtime(1);
    runtime.run(|| {
        let mut places = [0; 20];
        scope(|s| {
            for place in &mut places {
                s.spawn(move || *place = here());
            }
        });
        assert!(places.iter().all(|place| here().abs_diff(*place) < 64 << 10), "{places:?}");
    });
    assert_eq!(direct(&runtime), 20);
}

#[test]
fn what_is_older_goes_on_between_the_jobs_of_a_scope_that_ends() {
    let _dog = Watchdog::new("");
    let runtime = runtime(1);
    let (waits, come, order) = (Event::new(), Event::new(), Mutex::new(Vec::new()));
    let note = |name| order.lock().unwrap().push(name);
    thread::scope(|threads| {
        let older = threads.spawn(|| {
            runtime.run(|| {
                waits.set();
                come.wait().unwrap();
                note("older");
            });
        });
        // It has suspended before another root can begin on the only worker.
        waits.wait().unwrap();
        runtime.run(|| {
            scope(|s| {
                s.spawn(|| {
                    come.set();
                    note("first");
                });
                s.spawn(|| note("second"));
            });
        });
        older.join().unwrap();
    });
    assert_eq!(*order.lock().unwrap(), ["first", "older", "second"]);
}

#[test]
fn what_is_resumed_in_one_root_goes_on_between_the_jobs_of_a_scope_that_ends() {
    let _dog = Watchdog::new("");
    let (waits, come, order) = (Event::new(), Event::new(), Mutex::new(Vec::new()));
    let note = |name| order.lock().unwrap().push(name);
    runtime(1).run(|| {
        scope(|outer| {
            outer.spawn(|| {
                waits.set();
                come.wait().unwrap();
                note("resumed");
            });
            // The other has suspended when this returns.
            waits.wait().unwrap();
            scope(|s| {
                s.spawn(|| {
                    come.set();
                    note("first");
                });
                s.spawn(|| note("second"));
            });
        });
    });
    assert_eq!(*order.lock().unwrap(), ["first", "resumed", "second"]);
}

#[test]
fn a_job_that_suspends_on_the_stack_of_its_scope_leaves_the_others_to_the_worker() {
    let _dog = Watchdog::new("");
    runtime(1).run(|| {
        let (come, mut seen) = (Event::new(), false);
        scope(|s| {
            s.spawn(|| {
                come.wait().unwrap();
                seen = true;
            });
            s.spawn(|| come.set());
        });
        assert!(seen);
    });
}

#[test]
fn a_job_that_does_not_fit_on_the_stack_of_its_scope_gets_another() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(1).stack_size(100 << 10).build().unwrap();
    runtime.run(|| {
        let mut large = 0;
        scope(|s| _ = Request::builder().stack_size(4 << 20).spawn_in(s, || large = here()));
        assert!(here().abs_diff(large) > 64 << 10, "it does not fit here");
    });
}

#[test]
fn a_scope_in_a_destructor_that_a_panic_unwinds_runs_its_jobs() {
    /// Opens a scope when it is dropped.
    struct Opens<'a>(&'a Event);

    impl Drop for Opens<'_> {
        fn drop(&mut self) {
            assert!(thread::panicking());
            scope(|s| _ = s.spawn(|| self.0.set()));
        }
    }

    let _dog = Watchdog::new("");
    let (runtime, ran) = (runtime(1), Event::new());
    runtime.run(|| {
        let failed = scope(|s| {
            s.spawn(|| {
                let _opens = Opens(&ran);
                panic!("as it should");
            })
            .take()
        });
        assert!(matches!(failed, Err(WaitError::Failed(_))));
    });
    assert!(ran.is_set());
}
