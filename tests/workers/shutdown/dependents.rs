//! A dependent that was submitted and is after a completion is work of its runtime, though it stands in no queue and on no stack.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use forebear::{
    CancelReason, Completer, LateEnd, Outcome, Request, Runtime, RuntimeBuilder, State, scope, shield,
};

use super::support::{Count, Flag, Joined, Kind, Watchdog, until};
use super::{LONG, SECOND, clocked, is_shut_down, while_time_passes};

const KINDS: [Kind; 4] = [Kind::Workers(1), Kind::Workers(2), Kind::Synchronous, Kind::Seeded(1)];

/// Where the hook for warnings finds what it is to complete.
type Place = Arc<Mutex<Option<Completer<u32>>>>;

/// The first warning of a runtime completes this with 20. Answers what was said.
fn completed_by_the_first_warning(builder: RuntimeBuilder) -> (Runtime, mpsc::Receiver<String>, Place) {
    let (tell, told) = mpsc::channel();
    let kept = Place::default();
    let place = kept.clone();
    let runtime = builder.name("test").on_warning(move |what| {
        let _ = tell.send(what.to_owned());
        if let Some(completer) = place.lock().unwrap().take() {
            completer.complete(20).unwrap();
        }
    });
    (runtime.build().unwrap(), told, kept)
}

/// A completion, `second` after that, and `third` after `second`, which alone is submitted.
fn chain(runtime: &Runtime) -> (Completer<u32>, [Request<u32>; 3]) {
    runtime.enter(|| {
        let (completer, first) = Request::<u32>::completer("first");
        let second = Request::builder().name("second").then(&first, |n| n + 1);
        let third = Request::builder().name("third").then(&second, |n| n * 2);
        third.submit();
        (completer, [first, second, third])
    })
}

/// The completer comes when the runtime says for whom it waits, so not before that.
#[test]
fn finish_waits_for_what_is_after_a_completion() {
    for workers in [1, 2] {
        let _dog = Watchdog::new(workers);
        let (runtime, told, kept) = completed_by_the_first_warning(Runtime::builder().workers(workers));
        let (completer, [_first, _second, third]) = chain(&runtime);
        *kept.lock().unwrap() = Some(completer);
        runtime.finish(Duration::MAX).unwrap();
        assert_eq!(third.wait().unwrap(), &42);
        let said = told.try_recv().unwrap();
        assert!(
            said.starts_with(
                "Runtime::finish of runtime 'test' waits for ever, for: request 'second' (not started, waits for request 'first'), \
                 request 'third' (not started, waits for request 'second'). "
            ),
            "{said}"
        );
        assert_eq!(told.try_iter().count(), 0);
    }
}

#[test]
fn the_last_handle_waits_for_what_is_after_a_completion() {
    for kind in KINDS {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let (runtime, told, kept) = completed_by_the_first_warning(kind.builder());
        let (completer, [_first, _second, third]) = chain(&runtime);
        *kept.lock().unwrap() = Some(completer);
        drop(runtime);
        assert_eq!(third.wait().unwrap(), &42, "{kind:?}");
        let said = told.try_recv().unwrap();
        assert!(said.contains("its end waits for: request 'second' (not started"), "{said}");
    }
}

#[test]
fn the_last_handle_aborts_what_is_after_a_completion_if_its_runtime_is_to_be_shut_down_then() {
    for kind in KINDS {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let runtime = kind.builder().late_end(LateEnd::ShutDown).on_warning(|_| ()).build().unwrap();
        let (completer, [first, second, third]) = chain(&runtime);
        drop(runtime);
        is_shut_down(third.wait());
        is_shut_down(second.wait());
        assert_eq!((first.state(), completer.complete(1)), (State::Queued, Ok(())));
    }
}

#[test]
fn finish_names_and_aborts_what_is_after_a_completion_when_its_grace_is_over() {
    for workers in [1, 2] {
        let _dog = Watchdog::new(workers);
        let (runtime, clock) = clocked(workers);
        let (_completer, [_, second, third]) = chain(&runtime);
        while_time_passes(&clock, || runtime.finish(SECOND)).unwrap();
        is_shut_down(second.wait());
        is_shut_down(third.wait());
    }
    for kind in KINDS {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let (tell, told) = mpsc::channel();
        let runtime = kind.builder().on_warning(move |what| _ = tell.send(what.to_owned())).build().unwrap();
        let (_completer, [_, second, third]) = chain(&runtime);
        // A worker needs some time to leave.
        let grace = if matches!(kind, Kind::Workers(_)) { SECOND } else { Duration::ZERO };
        runtime.finish(grace).unwrap();
        is_shut_down(second.wait());
        is_shut_down(third.wait());
        let said = told.try_recv().unwrap();
        assert!(said.contains("aborts the requests that"), "{said}");
        assert!(said.contains("request 'second' (not started, waits for request 'first')"), "{said}");
    }
}

/// Its captures are dropped, its callbacks are called, and all who wait are told. What was not submitted stays as it is, and the completion is its
/// completer's.
#[test]
fn shutdown_aborts_what_is_after_a_completion() {
    for kind in KINDS {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let runtime = kind.build();
        let (completer, [first, second, third]) = chain(&runtime);
        let gone = Count::new();
        let probe = gone.probe();
        let fourth = runtime.enter(|| first.then(move |_| drop(probe)));
        fourth.submit();
        let unsubmitted = runtime.enter(|| first.then(|n| n + 1));
        let told = Count::new();
        let up = told.clone();
        third.on_done(move |how| {
            assert!(matches!(how, Outcome::Cancelled(CancelReason::Shutdown)));
            up.up();
        });
        thread::scope(|threads| {
            let waits = threads.spawn(|| third.wait().copied());
            runtime.shutdown(LONG).unwrap();
            is_shut_down(waits.joined().unwrap());
        });
        is_shut_down(third.wait());
        is_shut_down(second.wait_timeout(LONG).copied());
        is_shut_down(fourth.wait());
        assert_eq!((gone.get(), told.get()), (1, 1), "{kind:?}");
        assert_eq!((first.state(), unsubmitted.state()), (State::Queued, State::New));
        drop(runtime);
        completer.complete(20).unwrap();
        assert_eq!(first.wait().unwrap(), &20);
        is_shut_down(unsubmitted.wait());
    }
}

#[test]
fn what_is_after_a_completion_and_comes_too_late_is_refused() {
    for kind in KINDS {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        for dropped in [false, true] {
            let runtime = kind.build();
            let (_completer, first) = runtime.enter(|| Request::<u32>::completer("first"));
            let submitted = runtime.enter(|| first.then(|n| n + 1));
            let waited_for = runtime.enter(|| submitted.then(|n| n + 1));
            let after = runtime.enter(|| waited_for.then(|n| n + 1));
            if dropped {
                drop(runtime);
            } else {
                runtime.shutdown(LONG).unwrap();
            }
            submitted.submit();
            is_shut_down(after.wait());
            is_shut_down(waited_for.wait());
            is_shut_down(submitted.wait());
        }
    }
}

/// A scope waits for it, and it borrows.
#[test]
fn a_job_of_a_scope_that_is_after_a_completion_is_aborted_and_the_scope_returns() {
    for workers in [1, 2] {
        let _dog = Watchdog::new(workers);
        let runtime = Runtime::builder().workers(workers).build().unwrap();
        let (completer, first) = runtime.enter(|| Request::<u32>::completer("first"));
        let ran = Count::new();
        let (entered, runs) = (Flag::new(), &ran);
        thread::scope(|threads| {
            let waits = threads.spawn(|| {
                runtime.enter(|| {
                    scope(|jobs| {
                        _ = Request::builder().after(&first).spawn_in(jobs, move || runs.up());
                        entered.raise();
                    })
                })
            });
            entered.wait();
            runtime.shutdown(LONG).unwrap();
            assert!(waits.joined().is_ok() || ran.get() == 0);
        });
        assert_eq!(ran.get(), 0);
        drop(completer);
    }
}

/// What a shielded region has submitted is spared while that lasts, and runs though the runtime is shut.
#[test]
fn what_a_shielded_region_has_submitted_after_a_completion_is_spared() {
    for workers in [1, 2] {
        let _dog = Watchdog::new(workers);
        let runtime = Runtime::builder().workers(workers).build().unwrap();
        let (completer, first) = runtime.enter(|| Request::<u32>::completer("first"));
        let (entered, up) = (Flag::new(), Flag::new());
        let (inside, waits) = (entered.clone(), up.clone());
        let (tell, told) = mpsc::channel();
        let shielded = runtime.spawn(move || {
            shield(|| {
                let dependent = first.then(|n| n + 1);
                dependent.submit();
                inside.raise();
                until(|| waits.is_up());
                tell.send(dependent.wait().copied().unwrap()).unwrap();
            });
        });
        entered.wait();
        thread::scope(|threads| {
            let ends = threads.spawn(|| runtime.shutdown(LONG));
            until(|| shielded.is_cancelled());
            up.raise();
            completer.complete(1).unwrap();
            ends.joined().unwrap().unwrap();
        });
        assert_eq!(told.recv(), Ok(2));
    }
}
