//! The end of a runtime, with work that comes from everywhere meanwhile.

use std::sync::{Arc, OnceLock};

use forebear_loom_tests::roam;
use forebear_runtime::{CancelReason, Outcome, Request, WaitError, spawn};

use crate::support::{Count, LONG, Ledger, Wants, draw, pause, runtime, thread, until_cancelled};

/// Three threads submit roots in three ways, and roots make children, while it is shut down: each runs, or ends as cancelled by
/// the shutdown, and whoever waits is told. Half of them go on until they are aborted, so all must be found.
#[test]
fn roots_and_children_that_come_during_a_shutdown_run_or_are_ended() {
    roam(3, &["run", "ended"], |answers| {
        let (runtime, ledger, ran) = (runtime(2), Ledger::default(), Count::default());
        let submitters = [0, 1, 2].map(|way| {
            let (runtime, ledger, ran) = (runtime.clone(), ledger.clone(), ran.clone());
            thread(move || {
                let mut made: Vec<Request<()>> = Vec::new();
                for _ in 0..3 {
                    let (probe, probes, ran) = (ledger.probe(), ledger.clone(), ran.clone());
                    let body = move || {
                        let _probe = probe;
                        let inner = probes.probe();
                        // Waited for by nobody.
                        spawn(move || {
                            let _inner = inner;
                            if draw(2) == 0 {
                                until_cancelled();
                            }
                        });
                        ran.up();
                        if draw(2) == 0 {
                            until_cancelled();
                        }
                    };
                    made.push(match way {
                        0 => runtime.spawn(body),
                        1 => {
                            let request = runtime.enter(|| Request::new(body));
                            request.submit();
                            request
                        }
                        _ => {
                            let request = runtime.enter(|| Request::builder().own_stack().build(body));
                            _ = request.wait();
                            request
                        }
                    });
                }
                let told = made.iter().map(|request| match request.wait() {
                    Ok(()) => true,
                    Err(WaitError::TargetCancelled(CancelReason::Shutdown)) => false,
                    Err(other) => panic!("{other:?}"),
                });
                told.collect::<Vec<_>>()
            })
        });
        pause(2_000);
        runtime.shutdown(LONG).expect("nothing is left");
        let told: Vec<bool> = submitters.into_iter().flat_map(|one| one.join().unwrap()).collect();
        let finished = told.iter().filter(|&&finished| finished).count();
        assert!(finished <= ran.get(), "{finished} finished, {} ran", ran.get());
        for finished in told {
            answers.note(if finished { "run" } else { "ended" });
        }
        assert_eq!(ledger.alive(), 0);
    });
}

/// It is finished while work goes on that makes more: all of it runs first. Then it is shut down a second time, by two at once.
#[test]
fn what_is_there_when_it_is_finished_runs_with_all_that_it_makes() {
    roam(2, &["in time", "refused"], |answers| {
        let (runtime, ledger, ran) = (runtime(2), Ledger::default(), Count::default());
        let root = |depth: usize| {
            let (probes, ran) = (ledger.clone(), ran.clone());
            move || {
                fn goes_on(depth: usize, probes: Ledger, ran: Count) {
                    let _probe = probes.probe();
                    ran.up();
                    if depth > 0 {
                        let (p, r) = (probes.clone(), ran.clone());
                        spawn(move || goes_on(depth - 1, p, r));
                    }
                }
                goes_on(depth, probes, ran);
            }
        };
        let first = runtime.spawn(root(3));
        let late = thread({
            let (runtime, late) = (runtime.clone(), root(2));
            move || {
                pause(600);
                let request = runtime.spawn(late);
                _ = request.watch();
                matches!(request.outcome(), Some(Outcome::Finished(())))
            }
        });
        runtime.finish(LONG).expect("it ends by itself");
        first.watch().unwrap();
        let late = late.join().unwrap();
        assert_eq!(ran.get(), if late { 7 } else { 4 });
        answers.note(if late { "in time" } else { "refused" });
        let again = [0, 1].map(|_| {
            let runtime = runtime.clone();
            thread(move || runtime.shutdown(LONG).unwrap())
        });
        again.into_iter().for_each(|one| one.join().unwrap());
        drop(first);
        assert_eq!(ledger.alive(), 0);
    });
}

/// The captures of a request that has not begun wait for another such request when they are dropped. The thread that shuts the runtime down ends the first, and
/// leaves the end of the second to a worker, which may be about to leave.
#[test]
fn captures_that_a_shutdown_drops_wait_for_what_it_has_left_to_a_worker() {
    roam(3, &["cancelled", "ran"], |answers| {
        let (runtime, ledger) = (runtime(1 + draw(2)), Ledger::default());
        let place = Arc::new(OnceLock::new());
        let busy = runtime.spawn(|| pause(400));
        let (captured, wants) = (ledger.probe(), Wants(place.clone()));
        let (first, second) = runtime.enter(|| {
            let first = Request::new(move || drop((captured, wants)));
            (first, Request::new(|| ()))
        });
        place.set(second.clone()).unwrap();
        first.submit();
        second.submit();
        runtime.shutdown(LONG).expect("nothing is left");
        answers.note(match second.wait() {
            Ok(()) => "ran",
            Err(WaitError::TargetCancelled(CancelReason::Shutdown)) => "cancelled",
            other => panic!("{other:?}"),
        });
        drop((busy, first, second, place));
        assert_eq!(ledger.alive(), 0);
    });
}

/// What is after a completion is submitted, and the runtime is finished. Another thread completes it before, or meanwhile: its dependent runs, and what is after
/// that.
#[test]
fn what_is_after_a_completion_runs_before_its_runtime_is_finished() {
    roam(2, &["before", "meanwhile"], |answers| {
        let (runtime, ledger) = (runtime(1 + draw(2)), Ledger::default());
        let probe = ledger.probe();
        let (completer, third) = runtime.enter(|| {
            let (completer, first) = Request::<usize>::completer("first");
            let second = first.then(|n| n + 1);
            let third = second.then(move |n| (*n, probe).0);
            third.submit();
            (completer, third)
        });
        let done = Count::default();
        let completes = thread({
            let done = done.clone();
            move || {
                pause(600);
                completer.complete(1).unwrap();
                done.up();
            }
        });
        pause(600);
        answers.note(if done.get() == 1 { "before" } else { "meanwhile" });
        runtime.finish(LONG).expect("it ends by itself");
        assert_eq!(third.wait().unwrap(), &2);
        completes.join().unwrap();
        drop(third);
        assert_eq!(ledger.alive(), 0);
    });
}

/// Two threads submit what is after a completion while the runtime is shut down. One completion is completed meanwhile, and one when all is over: each
/// waiter gets an answer, and nothing waits for the second.
#[test]
fn what_is_after_a_completion_and_comes_during_a_shutdown_runs_or_is_ended() {
    roam(3, &["run", "ended"], |answers| {
        let (runtime, ledger) = (runtime(1 + draw(2)), Ledger::default());
        let (soon, first) = runtime.enter(|| Request::<usize>::completer("soon"));
        let (late, other) = runtime.enter(|| Request::<usize>::completer("late"));
        let submitters = [0, 1].map(|way| {
            let (runtime, ledger) = (runtime.clone(), ledger.clone());
            let (first, other) = (first.clone(), other.clone());
            thread(move || {
                pause(400);
                let made: Vec<Request<usize>> = runtime.enter(|| {
                    let probes = [ledger.probe(), ledger.probe(), ledger.probe()];
                    let [a, b, c] = probes;
                    let soon = first.then(move |n| (*n, a).0);
                    let never = other.then(move |n| (*n, b).0);
                    let after = never.then(move |n| (*n, c).0);
                    vec![soon, never, after]
                });
                // The last one submits the one before it.
                made.iter().rev().step_by(1 + way).for_each(|request| _ = request.submit());
                let told = made.iter().map(|request| match request.wait() {
                    Ok(_) => true,
                    Err(WaitError::TargetCancelled(CancelReason::Shutdown)) => false,
                    Err(other) => panic!("{other:?}"),
                });
                told.collect::<Vec<_>>()
            })
        });
        let completes = thread(move || {
            pause(600);
            soon.complete(1).unwrap();
        });
        pause(1_000);
        runtime.shutdown(LONG).expect("nothing is left");
        for told in submitters {
            let told = told.join().unwrap();
            assert_eq!(told[1..], [false, false]);
            answers.note(if told[0] { "run" } else { "ended" });
        }
        completes.join().unwrap();
        late.complete(1).unwrap();
        drop((first, other));
        assert_eq!(ledger.alive(), 0);
    });
}
