//! Cycles of waits on several workers, with cancels.

use std::sync::{Arc, Mutex, OnceLock};

use forebear_loom_tests::roam;
use forebear_runtime::{Cancellation, Request, Runtime, WaitError};

use crate::support::{Ledger, finish, pause, runtime, thread};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Told {
    Cycle,
    Cancelled,
    Value,
    TargetCancelled,
}

/// What each was told.
type Tale = Arc<Mutex<Vec<(usize, Told)>>>;

/// Five requests, on stacks of their own, of which each waits for the next; and what each was told.
fn ring(runtime: &Runtime, ledger: &Ledger) -> (Vec<Request<()>>, Tale) {
    let (known, told) = (Arc::new(OnceLock::<Vec<_>>::new()), Arc::new(Mutex::new(Vec::new())));
    let requests: Vec<Request<()>> = (0..5)
        .map(|me| {
            let (known, told, probe) = (Arc::clone(&known), Arc::clone(&told), ledger.probe());
            runtime.enter(|| {
                Request::builder().own_stack().build(move || {
                    let _probe = probe;
                    let next: &forebear_runtime::AnyRequest =
                        &known.get().expect("set before they are submitted")[(me + 1) % 5];
                    let came = match next.wait() {
                        Ok(()) => Told::Value,
                        Err(WaitError::Cancelled) => Told::Cancelled,
                        Err(WaitError::CircularWait(_)) => Told::Cycle,
                        Err(WaitError::TargetCancelled(_)) => Told::TargetCancelled,
                        Err(other) => panic!("{other:?}"),
                    };
                    told.lock().unwrap().push((me, came));
                })
            })
        })
        .collect();
    known.set(requests.iter().map(Request::to_untyped).collect()).expect("once");
    (requests, told)
}

/// Nobody else would ever end them: one at least is told, and the others go on.
#[test]
fn a_cycle_of_five_that_closes_at_several_places_at_once_is_told_to_one() {
    roam(3, &["told to one"], |answers| {
        let (runtime, ledger) = (runtime(3), Ledger::default());
        let (requests, told) = ring(&runtime, &ledger);
        let submitters = [[0, 2], [1, 3]].map(|these| {
            let requests = these.map(|n| requests[n].clone());
            thread(move || {
                pause(300);
                requests.iter().for_each(|request| _ = request.submit());
            })
        });
        requests[4].submit();
        submitters.into_iter().for_each(|one| one.join().unwrap());
        for request in &requests {
            request.watch().unwrap();
        }
        let told = told.lock().unwrap();
        let cycles = told.iter().filter(|(_, told)| *told == Told::Cycle).count();
        assert_eq!((told.len(), cycles), (5, 1), "{told:?}");
        answers.note("told to one");
        drop(requests);
        finish(&runtime);
        assert_eq!(ledger.alive(), 0);
    });
}

/// The same, while two of them are aborted: whoever is not told of a cycle is told of an end.
#[test]
fn a_cycle_of_five_closes_while_two_of_them_are_cancelled() {
    roam(3, &["cycle", "no cycle"], |answers| {
        let (runtime, ledger) = (runtime(2), Ledger::default());
        let (requests, told) = ring(&runtime, &ledger);
        let cancellers = [1, 3].map(|n| {
            let request = requests[n].to_untyped();
            thread(move || {
                pause(1_500);
                request.abort(forebear_runtime::CancelReason::Other(1))
            })
        });
        for request in &requests {
            request.submit();
        }
        let came = cancellers.map(|one| one.join().unwrap());
        for (n, request) in requests.iter().enumerate() {
            let marked =
                (n == 1 && came[0] == Cancellation::Marked) || (n == 3 && came[1] == Cancellation::Marked);
            match request.watch() {
                Ok(()) => assert!(!marked, "{n} was marked, and has finished"),
                Err(WaitError::TargetCancelled(_)) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        let cycle = told.lock().unwrap().iter().any(|(_, told)| *told == Told::Cycle);
        answers.note(if cycle { "cycle" } else { "no cycle" });
        drop(requests);
        finish(&runtime);
        assert_eq!(ledger.alive(), 0);
    });
}
