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
