//! Stacks: what is guaranteed wherever a request runs, and what happens when no more can be had; and what a runtime
//! counts.

#[path = "../support/mod.rs"]
mod support;

use std::hint::black_box;

use forebear::{
    BuildError, Failure, Request, Runtime, StackError, WaitError, join, parallelism, scope, spawn,
};
use support::{
    Count, Flag, Joined, Watchdog, again_in_child, hold_thread_until, is_child, kinds, on_each, runtime,
};

const KIB: usize = 1 << 10;

fn failure<T: std::fmt::Debug>(result: Result<T, WaitError>) -> Failure {
    match result {
        Err(WaitError::Failed(failure)) => failure,
        other => panic!("not a failure: {other:?}"),
    }
}

/// Uses at least `bytes` of this stack in a chain of frames, calls `at_the_end` there, and answers what it does.
fn use_stack<R>(bytes: usize, at_the_end: impl FnOnce() -> R) -> R {
    #[inline(never)]
    fn deeper(top: usize, bytes: usize, at_the_end: &mut dyn FnMut()) {
        let frame = black_box([1_u8; KIB]);
        if top - frame.as_ptr().addr() >= bytes {
            at_the_end();
        } else {
            deeper(top, bytes, at_the_end);
        }
        // Used after the call too, so that the call is not a jump.
        black_box(&frame);
    }
    let here = black_box([0_u8; 1]);
    let (mut at_the_end, mut value) = (Some(at_the_end), None);
    deeper(here.as_ptr().addr(), bytes, &mut || value = at_the_end.take().map(|f| f()));
    value.unwrap()
}

// ---- what is refused -----------------------------------------------------------------------------------------------------------

/// Every text has the numbers, and what to ask for instead.
#[test]
fn an_error_of_the_builder_says_what_to_do() {
    let text = |error: BuildError| error.to_string();
    let told = text(Runtime::builder().workers(100_000).build().unwrap_err());
    assert!(told.contains("100000") && told.contains("ask for at most 1024"), "{told}");
    let told = text(Runtime::builder().workers(1).stack_size(1 << 30).build().unwrap_err());
    assert!(told.contains("1073741824") && told.contains("ask for at most"), "{told}");
    let told = text(Runtime::builder().workers(4).max_stacks(7).build().unwrap_err());
    assert!(told.contains("at most 7 stacks") && told.contains("need 8"), "{told}");
}

#[test]
fn waits_beyond_the_last_stack_name_the_remedy_and_the_runtime_goes_on() {
    const STACKS: usize = 8;
    for workers in [1, 2, 4] {
        let _dog = Watchdog::new(format_args!("{workers} workers"));
        let runtime = Runtime::builder().workers(workers).max_stacks(STACKS).build().unwrap();
        let (gates, go) = (support::runtime(1), Flag::new());
        let gate = {
            let go = go.clone();
            gates.spawn(move || hold_thread_until(|| go.is_up()))
        };
        let refused = Count::new();
        let waiters: Vec<_> = (0..3 * STACKS)
            .map(|_| {
                let (gate, refused) = (gate.to_untyped(), refused.clone());
                Request::builder().on(&runtime).own_stack().spawn(move || {
                    let Err(error) = gate.wait() else { return None };
                    refused.up();
                    Some(failure(Err::<(), _>(error)))
                })
            })
            .collect();
        // As many as there are stacks may be suspended at most, so these are refused whatever the order.
        hold_thread_until(|| refused.get() >= 2 * STACKS);
        assert!(runtime.metrics().live_stacks <= STACKS);
        go.raise();
        let told: Vec<_> = waiters.into_iter().filter_map(|waiter| waiter.take().unwrap()).collect();
        assert!(told.len() < 3 * STACKS, "{workers} workers: nobody was suspended");
        for failure in &told {
            let Some(StackError::Exhausted { live, limit, .. }) = failure.downcast_ref() else {
                panic!("{failure:?}")
            };
            assert!((*live, *limit) == (STACKS, STACKS), "{failure:?}");
            let text = format!("{failure:#}");
            assert!(text.contains("max_stacks") && text.contains(&STACKS.to_string()), "{text}");
        }
        // Now there is room again: for requests that are suspended, too.
        let value = runtime.run(|| {
            let seven = Request::builder().own_stack().spawn(|| 7);
            *seven.wait().unwrap()
        });
        assert_eq!(value, 7);
    }
}

// ---- what is guaranteed --------------------------------------------------------------------------------------------------------

#[test]
fn a_stack_size_is_a_guarantee_also_when_the_waiters_stack_is_nearly_full() {
    for kind in kinds() {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        // Without optimisation the frames around these are large.
        let default = 256 * KIB;
        let runtime = kind.builder().stack_size(default).build().unwrap();
        for used in [0, 64, 128, 200, 220] {
            let deep = runtime.run(|| {
                use_stack(used * KIB, || {
                    let large = Request::builder().stack_size(KIB * KIB).build(|| {
                        use_stack(900 * KIB, || {
                            // And there once more, for one that asks for the default.
                            let usual = Request::new(|| use_stack(200 * KIB, || 1));
                            *usual.wait().unwrap() + 1
                        })
                    });
                    *large.wait().unwrap() + 1
                })
            });
            assert_eq!(deep, 3);
        }
    }
}

#[test]
fn a_stack_size_is_a_guarantee_in_a_chain_of_waits() {
    let _dog = Watchdog::new("");
    fn chain(left: usize) -> usize {
        if left == 0 {
            return 0;
        }
        let next =
            Request::builder().stack_size(128 * KIB).build(move || use_stack(100 * KIB, || chain(left - 1)));
        *next.wait().unwrap() + 1
    }
    for kind in kinds() {
        assert_eq!(kind.build().run(|| chain(200)), 200);
    }
    // In a thread too small for even one of them, all run on the workers.
    let small = std::thread::Builder::new().stack_size(100 * KIB);
    let runtime = runtime(1);
    assert_eq!(small.spawn(move || runtime.enter(|| chain(20))).unwrap().joined().unwrap(), 20);
}

#[test]
fn a_request_with_a_stack_of_its_own_never_runs_on_its_waiters() {
    on_each(|runtime| {
        let direct = || runtime.metrics().direct;
        runtime.run(|| {
            let before = direct();
            assert_eq!(*Request::new(|| 1).wait().unwrap(), 1);
            assert_eq!(direct(), before + 1, "without it, it does");
            let own = || Request::builder().own_stack();
            assert_eq!(*own().build(|| 1).wait().unwrap(), 1);
            assert_eq!(*own().spawn(|| 1).wait().unwrap(), 1);
            assert_eq!(own().build(|| 1).take().unwrap(), 1);
            assert_eq!(own().spawn(|| 1).take().unwrap(), 1);
            own().spawn(|| 1).to_untyped().wait().unwrap();
            assert_eq!(direct(), before + 1);
        });
        let before = direct();
        runtime.enter(|| Request::builder().own_stack().build(|| 1).wait().copied().unwrap());
        assert_eq!(direct(), before, "nor on a foreign thread's");
    });
}

// ---- what a runtime is told and tells ------------------------------------------------------------------------------------------

#[test]
fn forebear_threads_says_how_many_workers_the_default_runtime_has_or_panics_by_name() {
    const NAME: &str = "forebear_threads_says_how_many_workers_the_default_runtime_has_or_panics_by_name";
    let _dog = Watchdog::new("");
    if is_child(NAME) {
        let expected = std::env::var("EXPECTED").unwrap();
        let workers = std::panic::catch_unwind(|| parallelism().get());
        match (expected.parse::<usize>(), workers) {
            (Ok(expected), Ok(workers)) => assert_eq!(workers, expected),
            (Err(_), Err(payload)) => {
                let told = payload.downcast_ref::<String>().unwrap();
                assert!(told.contains(&expected) && told.contains("from 0 to 1024"), "{told}");
            }
            other => panic!("{other:?}"),
        }
        return;
    }
    let cores = std::thread::available_parallelism().unwrap().to_string();
    for (set, expected) in [
        ("export FOREBEAR_THREADS=3;", "3"),
        ("unset FOREBEAR_THREADS;", &*cores),
        // The synchronous mode: one thing at a time.
        ("export FOREBEAR_THREADS=0;", "1"),
        ("export FOREBEAR_THREADS=-1;", "FOREBEAR_THREADS is '-1'"),
        ("export FOREBEAR_THREADS=abc;", "FOREBEAR_THREADS is 'abc'"),
    ] {
        let (ok, told) = again_in_child(NAME, ("EXPECTED", expected), set);
        assert!(ok, "{set} {told}");
    }
}

#[test]
fn several_runtimes_live_side_by_side() {
    let _dog = Watchdog::new("");
    let runtimes: Vec<_> =
        [1, 2, 3].map(|n| Runtime::builder().workers(n).name(format!("rt{n}")).build().unwrap()).into();
    let met = std::sync::Barrier::new(runtimes.len());
    std::thread::scope(|threads| {
        let handles = runtimes.iter().enumerate().map(|(at, runtime)| {
            let (met, next) = (&met, &runtimes[(at + 1) % runtimes.len()]);
            threads.spawn(move || {
                let name = format!("rt{} #", at + 1);
                runtime.run(|| {
                    // All of them are in a request at this moment.
                    met.wait();
                    assert!(std::thread::current().name().is_some_and(|thread| thread.starts_with(&name)));
                    assert_eq!(parallelism().get(), at + 1);
                    assert!(Request::current().unwrap().assigned_worker().unwrap() <= at);
                    // Work for another of them, waited for here.
                    let there =
                        next.spawn(|| (parallelism().get(), spawn(|| parallelism().get()).take().unwrap()));
                    assert_eq!(there.take().unwrap(), (next.workers(), next.workers()));
                });
            })
        });
        support::join_all(handles.collect::<Vec<_>>());
    });
}

#[test]
fn the_metrics_add_up() {
    let _not =
        support::not_on(support::Modes::Seeded, "the target may be queued instead of being lent the stack");
    on_each(|runtime| {
        let fresh = runtime.metrics();
        assert_eq!((fresh.started, fresh.direct), (0, 0));
        runtime.run(|| (0..100).for_each(|n| assert_eq!(spawn(move || n).take().unwrap(), n)));
        let taken = runtime.metrics();
        assert_eq!(taken.started, 101, "each once, whoever ran it");
        runtime.run(|| (0..100).for_each(|_| Request::new(|| ()).wait().copied().unwrap()));
        let waited = runtime.metrics();
        assert_eq!(waited.started, 202);
        assert_eq!(waited.direct - taken.direct, 100, "nobody else knew of them");
        let dropped = Count::new();
        runtime.run(|| {
            scope(|s| {
                for _ in 0..100 {
                    s.spawn(|| dropped.up());
                }
            });
        });
        assert_eq!((dropped.get(), runtime.metrics().started), (100, 303));
        let before = runtime.metrics();
        runtime.enter(|| (0..10).for_each(|_| Request::new(|| ()).wait().copied().unwrap()));
        let after = runtime.metrics();
        assert_eq!(
            (after.started - before.started, after.direct - before.direct),
            (10, 10),
            "foreign threads too"
        );
        drop(runtime.enter(|| Request::new(|| ())));
        let later = runtime.metrics();
        assert_eq!(
            (later.started, later.direct),
            (after.started, after.direct),
            "what never runs is not counted"
        );
        assert_eq!(runtime.run(|| join(|| 1, || 2)), (1, 2));
        assert!(after.direct <= after.started && after.live_stacks >= runtime.workers());
    });
}
