//! A request is cancelled while one arm of its join is in a region.

use forebear_loom_tests::roam;
use forebear_runtime::{CancelReason, WaitError, is_cancelled, join, shield, spawn, yield_now};
use forebear_sync::Event;

use crate::support::{Count, LONG, Ledger, draw, finish, pause, runtime, thread, until_cancelled};

/// Suspends until it is refused.
fn wait_until_cancelled() {
    assert!(Event::new().wait().is_err(), "nobody sets it");
}

/// The region ends when the other arm has ended, which only the cancel brings. A join in the region is sheltered, too. The cancel comes before the join, before the
/// region, in it, or when one of the arms has not begun.
#[test]
fn a_region_in_one_arm_of_a_join_does_not_shelter_the_other() {
    roam(3, &["first", "second", "region came first", "mark came first"], |answers| {
        let (runtime, ledger) = (runtime(2), Ledger::default());
        let is_first = draw(2) == 0;
        answers.note(if is_first { "first" } else { "second" });
        let marked_before = Count::default();
        let counts = marked_before.clone();
        let probe = ledger.probe();
        let request = runtime.spawn(move || {
            let _probe = probe;
            let over = Event::new();
            let inner = || (0..draw(3)).for_each(|_| yield_now().expect("it is sheltered"));
            let shelters = || {
                if is_cancelled() {
                    counts.up();
                }
                shield(|| {
                    join(inner, inner);
                    over.wait().expect("it is sheltered");
                });
                wait_until_cancelled();
            };
            let other = || {
                until_cancelled();
                over.set();
            };
            if is_first {
                join(shelters, other);
            } else {
                join(other, shelters);
            }
        });
        let canceller = thread({
            let request = request.clone();
            move || {
                pause(400);
                request.abort(CancelReason::Asked);
            }
        });
        // With a limit, so that this thread does not run it: it would show no arm to others.
        let ended = request.wait_timeout(LONG);
        assert!(matches!(ended, Err(WaitError::TargetCancelled(CancelReason::Asked))));
        canceller.join().unwrap();
        answers.note(if marked_before.get() > 0 { "mark came first" } else { "region came first" });
        drop(request);
        finish(&runtime);
        assert_eq!(ledger.alive(), 0);
    });
}

/// The cancel comes while one arm is in a region, and a child of that arm waits for what nobody brings: the end of the region tells the child.
#[test]
fn the_end_of_a_region_in_one_arm_tells_the_children() {
    roam(3, &["first", "second"], |answers| {
        let (runtime, ledger) = (runtime(2), Ledger::default());
        let is_first = draw(2) == 0;
        answers.note(if is_first { "first" } else { "second" });
        let probes = ledger.clone();
        let request = runtime.spawn(move || {
            let _probe = probes.probe();
            let probe = probes.probe();
            let shelters = || {
                let child = spawn(move || {
                    let _probe = probe;
                    wait_until_cancelled();
                });
                shield(|| {
                    pause(200);
                    yield_now().expect("it is sheltered");
                });
                assert!(child.wait().is_err());
            };
            if is_first {
                join(shelters, wait_until_cancelled);
            } else {
                join(wait_until_cancelled, shelters);
            }
        });
        let canceller = thread({
            let request = request.clone();
            move || {
                pause(600);
                request.abort(CancelReason::Asked);
            }
        });
        assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(CancelReason::Asked))));
        canceller.join().unwrap();
        drop(request);
        finish(&runtime);
        assert_eq!(ledger.alive(), 0);
    });
}
