//! Building runtimes: numbers that cannot be, limits that are reached, and the default runtime.

#[path = "../support/mod.rs"]
mod support;

use std::error::Error as _;

use forebear::{
    BuildError, CancelReason, Failure, Request, Runtime, StackError, WaitError, parallelism, spawn,
};
use support::{Flag, Watchdog, again_in_child, inside_each, is_child, spawn_running, until};

fn failure<T>(result: Result<T, WaitError>) -> Failure {
    match result {
        Err(WaitError::Failed(failure)) => failure,
        Err(other) => panic!("not a failure: {other:?}"),
        Ok(_) => panic!("it did not fail"),
    }
}

#[test]
fn a_number_of_workers_that_cannot_be_is_refused_with_the_number() {
    for asked in [1_025, usize::MAX] {
        match Runtime::builder().workers(asked).build() {
            Err(BuildError::Workers { asked: told, max, .. }) => assert_eq!((told, max), (asked, 1_024)),
            other => panic!("{other:?}"),
        }
    }
    let error = Runtime::builder().workers(2_000).build().unwrap_err();
    assert!(error.to_string().contains("2000 workers") && error.to_string().contains("1024"), "{error}");
    assert!(error.source().is_none());
}

#[test]
fn a_stack_size_beyond_the_largest_class_is_refused_with_both_numbers() {
    for asked in [16 << 20, usize::MAX] {
        match Runtime::builder().workers(1).stack_size(asked).build() {
            Err(BuildError::StackSize { asked: told, max, .. }) => {
                assert_eq!(told, asked);
                assert!(max < asked && max > 15 << 20);
                let largest = Runtime::builder().workers(1).stack_size(max).build().unwrap();
                assert_eq!(largest.run(|| 1), 1, "the largest itself can be had");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn fewer_stacks_than_the_workers_need_are_refused_with_both_numbers() {
    for asked in [0, 1, 3] {
        match Runtime::builder().workers(2).max_stacks(asked).build() {
            Err(BuildError::Stacks { asked: told, min, .. }) => assert_eq!((told, min), (asked, 4)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn every_allowed_stack_size_works() {
    let _dog = Watchdog::new("");
    for size in [0, 1, 4 << 10, 48 << 10, 64 << 10, 300 << 10, 1 << 20, 5 << 20] {
        // As much as code without optimisation needs to start at all.
        let size = if cfg!(debug_assertions) { size.max(48 << 10) } else { size };
        let runtime = Runtime::builder().workers(1).stack_size(size).build().unwrap();
        let sum = runtime.run(|| (0..10_u64).map(|n| spawn(move || n).take().unwrap()).sum::<u64>());
        assert_eq!(sum, 45);
    }
}

#[test]
fn names_and_numbers_are_those_asked_for() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(3).name("tiles").build().unwrap();
    assert_eq!((runtime.workers(), runtime.states().len()), (3, 3));
    let name = runtime.run(|| std::thread::current().name().map(str::to_owned)).unwrap();
    assert!(name.starts_with("tiles #"), "{name}");
    let usual = Runtime::new().unwrap();
    assert_eq!(usual.workers(), std::thread::available_parallelism().unwrap().get());
}

#[test]
fn a_request_that_asks_for_too_large_a_stack_fails_and_says_so() {
    inside_each(|| {
        for asked in [16 << 20, 1 << 40, usize::MAX] {
            let drops = support::Count::new();
            let captured = drops.probe();
            let request = Request::builder().name("greedy").stack_size(asked).build(move || drop(captured));
            let told = failure(request.wait());
            assert_eq!(told.request(), "greedy");
            match told.downcast_ref::<StackError>() {
                Some(StackError::TooLarge { asked: told, max, .. }) => {
                    assert_eq!(*told, asked);
                    assert!(*max < asked);
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(drops.get(), 1, "the callable is dropped unrun");
        }
        assert_eq!(Request::builder().stack_size(15 << 20).build(|| 1).take().unwrap(), 1);
    });
}

/// More are to be suspended at once than there may be stacks: the waits that would need one more are refused, and all
/// else goes on.
#[test]
fn when_stacks_run_out_the_waits_that_need_one_fail_and_the_runtime_goes_on() {
    for workers in [1, 2] {
        let _dog = Watchdog::new(workers);
        let runtime = Runtime::builder().workers(workers).max_stacks(10).build().unwrap();
        for _ in 0..3 {
            let flag = Flag::new();
            let gate = {
                let flag = flag.clone();
                Request::builder().on(&runtime).own_stack().spawn(move || flag.wait())
            };
            let waiters: Vec<_> = (0..40)
                .map(|_| {
                    let gate = gate.clone();
                    Request::builder().on(&runtime).own_stack().try_spawn(move || {
                        gate.wait()?;
                        Ok(())
                    })
                })
                .collect();
            until(|| waiters.iter().filter(|waiter| waiter.is_done()).count() >= 30);
            flag.raise();
            let mut refused = 0;
            for waiter in waiters {
                if let Err(error) = waiter.take() {
                    let told = failure(Err::<(), _>(error));
                    match told.downcast_ref::<StackError>() {
                        Some(StackError::Exhausted { live, limit, remedy, .. }) => {
                            assert!((*live, *limit) == (10, 10) && !remedy.is_empty());
                        }
                        other => panic!("{other:?} in {told:?}"),
                    }
                    refused += 1;
                }
            }
            assert!((30..40).contains(&refused), "{refused} were refused");
            gate.wait().unwrap();
            assert!(runtime.metrics().live_stacks <= 10);
            assert_eq!(runtime.run(|| spawn(|| 7).take().unwrap()), 7);
        }
    }
}

/// A larger stack cannot be had either: then it is the request that fails.
#[test]
fn a_request_that_cannot_be_given_its_larger_stack_fails() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(1).max_stacks(2).build().unwrap();
    runtime.run(|| {
        let large = Request::builder().name("large").stack_size(8 << 20).build(|| 1);
        // The waiter needs a stack to go on with, and the target one of its own: one of the two is told.
        let told = failure(large.wait());
        assert!(matches!(told.downcast_ref::<StackError>(), Some(StackError::Exhausted { .. })), "{told:?}");
    });
    assert_eq!(runtime.run(|| 1), 1);
}

#[test]
fn scopes_joins_and_yields_come_to_an_end_without_another_stack() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(1).max_stacks(2).build().unwrap();
    for _ in 0..3 {
        runtime.run(|| {
            let mut parts = [0; 4];
            forebear::scope(|s| {
                for (n, part) in parts.iter_mut().enumerate() {
                    s.spawn(move || {
                        forebear::scope(|inner| drop(inner.spawn(|| *part = n)));
                    });
                }
            });
            assert_eq!(parts, [0, 1, 2, 3]);
            let (a, b) =
                forebear::join(|| forebear::yield_now().map(|()| 1), || forebear::yield_now().map(|()| 2));
            assert_eq!((a.unwrap(), b.unwrap()), (1, 2));
        });
    }
}

// ---- the default runtime ---------------------------------------------------------------------------------------------------

#[test]
fn the_environment_says_how_many_workers_the_default_runtime_has() {
    const NAME: &str = "the_environment_says_how_many_workers_the_default_runtime_has";
    let _dog = Watchdog::new("");
    if is_child(NAME) {
        let expected: usize = std::env::var("EXPECTED").unwrap().parse().unwrap();
        assert_eq!(parallelism().get(), expected);
        assert_eq!(spawn(|| parallelism().get()).take().unwrap(), expected);
        return;
    }
    for (threads, expected) in [("3", "3"), (" 2 ", "2"), ("1", "1")] {
        // The shell sets the one, `again_in_child` the other.
        let set = format!("export FOREBEAR_THREADS='{threads}';");
        let (ok, told) = again_in_child(NAME, ("EXPECTED", expected), &set);
        assert!(ok, "FOREBEAR_THREADS={threads:?}: {told}");
    }
    for threads in ["-1", "1025", "many"] {
        let set = format!("export FOREBEAR_THREADS='{threads}';");
        let (ok, told) = again_in_child(NAME, ("EXPECTED", "1"), &set);
        assert!(!ok && told.contains("FOREBEAR_THREADS"), "what cannot be is refused by name: {told}");
    }
}

#[test]
fn the_default_runtime_is_replaced_unless_it_has_work() {
    const NAME: &str = "the_default_runtime_is_replaced_unless_it_has_work";
    let _dog = Watchdog::new("");
    if !is_child(NAME) {
        for first in ["build", "use"] {
            let (ok, told) = again_in_child(NAME, ("FIRST", first), "");
            assert!(ok, "{told}");
        }
        return;
    }
    if std::env::var("FIRST").unwrap() == "build" {
        let global = Runtime::builder().workers(3).build_global().unwrap();
        assert_eq!((global.workers(), parallelism().get()), (3, 3));
        assert_eq!(spawn(|| 1).take().unwrap(), 1);
    } else {
        assert!(parallelism().get() >= 1);
    }
    let before = Runtime::current();
    let (unsubmitted, free) = (Request::new(|| 1), Flag::new());
    let running = spawn_running(&free);
    let error = Runtime::builder().workers(1).build_global().unwrap_err();
    assert!(matches!(error, BuildError::DefaultBusy), "{error:?}");
    assert_eq!(Runtime::current().workers(), before.workers(), "it is still the same");
    free.raise();
    running.wait().unwrap();
    for workers in [2, 1] {
        Runtime::builder().workers(workers).build_global().unwrap();
        assert_eq!(parallelism().get(), workers);
        assert_eq!(spawn(|| 2).take().unwrap(), 2);
    }
    for late in [unsubmitted, before.spawn(|| 1)] {
        assert!(matches!(late.wait(), Err(WaitError::TargetCancelled(CancelReason::Shutdown))), "{late:?}");
    }
    assert!(error.to_string().contains("default"));
}
