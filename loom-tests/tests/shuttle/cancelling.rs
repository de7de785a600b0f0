//! Cancels that spread through families, while those who want something of them come and go.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebear_loom_tests::roam;
use forebear_runtime::{
    AnyRequest, CancelReason, Cancellation, Outcome, Request, WaitError, spawn, wait_all,
};
use forebear_sync::select;

use crate::support::{Ledger, draw, finish, pause, runtime, thread, until_cancelled};

/// Three generations, in which a parent waits for its children, are cancelled by the eldest's mark; the youngest wait for a
/// request outside. That is cancelled too, and spared as long as another waiter waits for it, until that waiter's time is up.
#[test]
fn a_cancel_reaches_three_generations_and_what_they_alone_wait_for() {
    roam(3, &["spared", "at once"], |answers| {
        let (runtime, ledger) = (runtime(2), Ledger::default());
        let target = runtime.enter(|| {
            let probe = ledger.probe();
            Request::new(move || {
                until_cancelled();
                drop(probe);
            })
        });
        let (of, probes) = (target.clone(), ledger.clone());
        let eldest = runtime.spawn(move || {
            let _probe = probes.probe();
            let children = [0, 1].map(|_| {
                let (of, probe) = (of.clone(), probes.probe());
                spawn(move || {
                    let _probe = probe;
                    let youngest = spawn(move || of.wait().copied());
                    _ = youngest.wait();
                })
            });
            for child in children {
                _ = child.wait();
            }
        });
        let waiter = thread({
            let target = target.clone();
            move || target.wait_timeout(Duration::from_micros(400)).copied()
        });
        let canceller = thread({
            let (eldest, target) = (eldest.to_untyped(), target.to_untyped());
            move || {
                pause(500);
                assert_eq!(eldest.cancel(), Cancellation::Marked, "nobody waits for it");
                target.cancel()
            }
        });
        let came = canceller.join().unwrap();
        // By those who want nothing.
        assert!(matches!(eldest.watch(), Err(WaitError::TargetCancelled(CancelReason::Asked))));
        assert!(matches!(target.watch(), Err(WaitError::TargetCancelled(_))));
        match (came, waiter.join().unwrap()) {
            (Cancellation::Vetoed, Err(WaitError::TimedOut | WaitError::TargetCancelled(_))) => {
                answers.note("spared")
            }
            // Or before: with the family, when the other waiter had gone.
            (
                Cancellation::Marked | Cancellation::AlreadyDone,
                Err(WaitError::TimedOut | WaitError::TargetCancelled(_)),
            ) => answers.note("at once"),
            other => panic!("{other:?}"),
        }
        drop((eldest, target));
        finish(&runtime);
        assert_eq!(ledger.alive(), 0);
    });
}

/// A request that only its waiter has submitted cancels that waiter as soon as it runs: before the waiter stands in its list, or when it
/// does. In both cases it is cancelled itself, by a waiter that waits for nothing else and by one that selects.
#[test]
fn what_a_waiter_has_submitted_is_cancelled_with_it_before_it_stands_in_line() {
    roam(3, &["waits", "selects"], |answers| {
        let (runtime, ledger) = (runtime(2), Ledger::default());
        let its_waiter = Arc::new(Mutex::new(None::<AnyRequest>));
        let target = runtime.enter(|| {
            let (probe, its_waiter) = (ledger.probe(), its_waiter.clone());
            Request::builder().own_stack().build(move || {
                let waiter = its_waiter.lock().unwrap().take().expect("it is submitted after this is told");
                assert_eq!(waiter.cancel(), Cancellation::Marked, "nobody waits for it");
                until_cancelled();
                drop(probe);
            })
        });
        let (of, how) = (target.clone(), draw(2));
        let waiter = runtime.enter(|| {
            Request::new(move || {
                let came = match how {
                    0 => of.wait().copied(),
                    _ => select! { came = &of => came.copied() },
                };
                assert!(matches!(came, Err(WaitError::Cancelled)));
            })
        });
        answers.note(["waits", "selects"][how]);
        *its_waiter.lock().unwrap() = Some(waiter.to_untyped());
        waiter.submit();
        // By those who want nothing.
        assert!(matches!(waiter.watch(), Err(WaitError::TargetCancelled(CancelReason::Asked))));
        assert!(matches!(target.watch(), Err(WaitError::TargetCancelled(CancelReason::Asked))));
        drop((waiter, target));
        finish(&runtime);
        assert_eq!(ledger.alive(), 0);
    });
}

/// A request that waits for all of two is cancelled while the first of them runs on its stack, or both run elsewhere, and a third wants the second for a
/// while. All are reached: the second by the last who wanted it.
#[test]
fn who_waits_for_all_is_cancelled_with_all_that_it_alone_wants() {
    roam(3, &["spared", "at once"], |answers| {
        let (runtime, ledger) = (runtime(2), Ledger::default());
        let second: Arc<Mutex<Option<Request<()>>>> = Arc::default();
        let (made, probes) = (second.clone(), ledger.clone());
        let waiter = runtime.spawn(move || {
            let both = [0, 1].map(|_| {
                let probe = probes.probe();
                Request::new(move || {
                    until_cancelled();
                    drop(probe);
                })
            });
            *made.lock().unwrap() = Some(both[1].clone());
            assert!(matches!(wait_all(&both), Err(WaitError::Cancelled)));
        });
        let wants = thread(move || {
            pause(300);
            let second = second.lock().unwrap().take()?;
            Some(second.wait_timeout(Duration::from_micros(400)).copied())
        });
        pause(500);
        assert_eq!(waiter.cancel(), Cancellation::Marked, "nobody waits for it");
        // By one who wants nothing.
        assert!(matches!(waiter.watch(), Err(WaitError::TargetCancelled(CancelReason::Asked))));
        match wants.join().unwrap() {
            Some(Err(WaitError::TimedOut)) => answers.note("spared"),
            None | Some(Err(WaitError::TargetCancelled(_))) => answers.note("at once"),
            other => panic!("{other:?}"),
        }
        drop(waiter);
        finish(&runtime);
        assert_eq!(ledger.alive(), 0);
    });
}

/// Handles of one request are waited by, taken by, dropped and cancelled by. All are told the same of its end, and its value is
/// dropped when nobody can reach it.
#[test]
fn all_who_hold_a_handle_are_told_of_one_end_while_others_go() {
    roam(2, &["finished", "cancelled", "taken", "shared"], |answers| {
        let (runtime, ledger) = (runtime(2), Ledger::default());
        let (captured, probes) = (ledger.probe(), ledger.clone());
        let request = runtime.spawn(move || {
            pause(100);
            drop(captured);
            probes.probe()
        });
        let waits = [0, 1].map(|n| {
            let handle = request.clone();
            thread(move || {
                match if n == 0 { handle.wait() } else { handle.wait_timeout(Duration::from_micros(150)) } {
                    Ok(_) => Some(true),
                    Err(WaitError::TargetCancelled(_)) => Some(false),
                    Err(WaitError::TimedOut) => None,
                    Err(other) => panic!("{other:?}"),
                }
            })
        });
        let takes = thread({
            let handle = request.clone();
            move || {
                pause(300);
                handle.take().map(drop)
            }
        });
        let drops = thread({
            let handle = request.clone();
            move || drop(handle)
        });
        let cancels = thread({
            let handle = request.to_untyped();
            move || {
                pause(300);
                handle.cancel()
            }
        });
        drop(request);
        drops.join().unwrap();
        let (cancelled, taken) = (cancels.join().unwrap(), takes.join().unwrap());
        let mut told: Vec<bool> = waits.into_iter().filter_map(|waiter| waiter.join().unwrap()).collect();
        match taken {
            Ok(()) => {
                answers.note("taken");
                told.push(true);
            }
            Err(WaitError::Shared) => {
                answers.note("shared");
                told.push(true);
            }
            Err(WaitError::TargetCancelled(_)) => told.push(false),
            Err(other) => panic!("{other:?}"),
        }
        // Two wait without a limit, so at least they are told.
        assert!(told.iter().all(|&one| one == told[0]), "told different things: {told:?}");
        match cancelled {
            Cancellation::Marked => assert!(!told[0], "cancelled, and finished"),
            Cancellation::AlreadyDone => assert!(told[0], "over, and cancelled"),
            // Spared, and cancelled only if all had gone.
            Cancellation::Vetoed => {}
        }
        answers.note(if told[0] { "finished" } else { "cancelled" });
        finish(&runtime);
        assert_eq!(ledger.alive(), 0);
    });
}

/// A parent makes children that foreign threads submit while it is cancelled: all of them are reached, by the cancel, or by
/// their submission.
#[test]
fn children_that_others_submit_while_their_parent_is_cancelled_are_reached() {
    roam(2, &["born so", "reached"], |answers| {
        let (runtime, ledger) = (runtime(2), Ledger::default());
        let unsubmitted: Arc<Mutex<Vec<Request<bool>>>> = Arc::default();
        let (made, probes) = (Arc::clone(&unsubmitted), ledger.clone());
        let parent = runtime.spawn(move || {
            for _ in 0..3 {
                let probe = probes.probe();
                let child = Request::new(move || {
                    let _probe = probe;
                    until_cancelled();
                    true
                });
                made.lock().unwrap().push(child);
                pause(30);
            }
            until_cancelled();
        });
        let submitters = [0, 1].map(|_| {
            let unsubmitted = Arc::clone(&unsubmitted);
            thread(move || {
                let mut taken = Vec::new();
                for _ in 0..4 {
                    pause(60);
                    let child = unsubmitted.lock().unwrap().pop();
                    if let Some(child) = child {
                        child.submit();
                        taken.push(child);
                    }
                }
                taken
            })
        });
        pause(500);
        assert_eq!(parent.cancel(), Cancellation::Marked);
        assert!(parent.watch().is_err());
        let mut children: Vec<_> = submitters.into_iter().flat_map(|one| one.join().unwrap()).collect();
        for child in &children {
            assert!(matches!(child.watch(), Err(WaitError::TargetCancelled(CancelReason::Parent))));
            answers.note("reached");
        }
        let rest = std::mem::take(&mut *unsubmitted.lock().unwrap());
        for child in rest {
            child.submit();
            assert!(matches!(child.outcome(), Some(Outcome::Cancelled(CancelReason::Parent))));
            answers.note("born so");
            children.push(child);
        }
        drop((children, parent));
        finish(&runtime);
        assert_eq!(ledger.alive(), 0);
    });
}

/// A foreign thread runs a request itself, whose children run on workers, and which ends by itself or not. It is aborted from
/// another thread, which finds the family where it is, or goes on with it when nobody is there any more.
#[test]
fn a_family_of_a_request_that_a_foreign_thread_runs_is_reached() {
    roam(2, &["run there", "run elsewhere", "never run", "over before"], |answers| {
        let (runtime, ledger) = (runtime(2), Ledger::default());
        let ran: Arc<Mutex<Option<bool>>> = Arc::default();
        let family: Arc<Mutex<Vec<AnyRequest>>> = Arc::default();
        let (note, made, probes) = (Arc::clone(&ran), Arc::clone(&family), ledger.clone());
        let parent = runtime.enter(|| {
            Request::new(move || {
                let here = Request::current().and_then(|me| me.assigned_worker()).is_none();
                *note.lock().unwrap() = Some(here);
                let ends = draw(2) == 0;
                let children = [ends, false].map(|ends| {
                    let probe = probes.probe();
                    spawn(move || {
                        let _probe = probe;
                        if ends { pause(200) } else { until_cancelled() }
                    })
                });
                made.lock().unwrap().extend(children.iter().map(Request::to_untyped));
                // By this thread, or it runs it.
                _ = children[0].wait();
            })
        });
        let runs = thread({
            let parent = parent.clone();
            move || parent.wait().copied()
        });
        let submits = thread({
            let parent = parent.clone();
            move || {
                pause(300);
                parent.submit();
            }
        });
        let aborts = thread({
            let parent = parent.to_untyped();
            move || {
                pause(800);
                parent.abort(CancelReason::Other(7))
            }
        });
        let (came, told) = (aborts.join().unwrap(), runs.join().unwrap());
        submits.join().unwrap();
        let family = std::mem::take(&mut *family.lock().unwrap());
        match (came, told) {
            (Cancellation::Marked, Err(WaitError::TargetCancelled(CancelReason::Other(7)))) => {
                answers.note(match *ran.lock().unwrap() {
                    Some(true) => "run there",
                    Some(false) => "run elsewhere",
                    None => "never run",
                });
            }
            (Cancellation::AlreadyDone, Ok(())) => {
                answers.note("over before");
                family.iter().for_each(|child| _ = child.cancel());
            }
            other => panic!("{other:?}"),
        }
        for child in &family {
            _ = child.watch();
        }
        drop((family, parent));
        finish(&runtime);
        assert_eq!(ledger.alive(), 0);
    });
}

/// A request makes others with deadlines that come while these are made, queued, raided, run and ended, and takes each or lets it go. Each ends once,
/// and its captures are dropped.
#[test]
fn deadlines_that_come_as_their_requests_are_made_end_them_once() {
    roam(2, &["finished", "expired"], |answers| {
        let (runtime, ledger) = (runtime(2), Ledger::default());
        let probes = ledger.clone();
        let maker = runtime.spawn(move || {
            let made: Vec<_> = (0..3)
                .map(|_| {
                    let captured = probes.probe();
                    let limit = Duration::from_micros(100 + draw(30) as u64);
                    Request::builder().timeout(limit).spawn(move || {
                        pause(100);
                        drop(captured);
                    })
                })
                .collect();
            let taken = made.into_iter().filter_map(|request| (draw(3) > 0).then(|| request.take()));
            taken.collect::<Vec<_>>()
        });
        for came in maker.take().expect("it has no deadline") {
            match came {
                Ok(()) => answers.note("finished"),
                Err(WaitError::TargetCancelled(CancelReason::Deadline)) => answers.note("expired"),
                Err(other) => panic!("{other:?}"),
            }
        }
        finish(&runtime);
        assert_eq!(ledger.alive(), 0);
    });
}
