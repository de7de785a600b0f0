//! A thread exits that drives a runtime without workers.

use std::sync::Arc;

use forebear_loom_tests::roam;
use forebear_runtime::model::thread_exits;
use forebear_runtime::{CancelReason, Request, Runtime, State, WaitError, no_suspend, shield, spawn};
use forebear_sync::Event;

use crate::support::{Count, LONG, Ledger, draw, pause, thread};

/// A thread begins two requests and exits. One can be cancelled. The other one stands below a shield until a second thread lets it go, and then begins a child
/// that nothing but the exit ends. Meanwhile others cancel the first, submit roots, and drive. What has begun ends at the exit, in whatever order the threads act, and roots go to
/// others.
#[test]
fn what_has_begun_ends_at_the_exit_of_its_thread_while_others_cancel_submit_and_drive() {
    roam(3, &["by the exit", "by the canceller", "drives", "looks"], |answers| {
        let (runtime, ledger) = (Runtime::builder().workers(0).build().unwrap(), Ledger::default());
        let (go, sheltered) = (Arc::new(Event::new()), Count::default());
        let (first, second) = runtime.enter(|| {
            let probe = ledger.probe();
            let first = Request::new(move || {
                let _probe = probe;
                _ = Event::new().wait();
            });
            let (go, probes, sheltered) = (go.clone(), ledger.clone(), sheltered.clone());
            let second = Request::new(move || {
                let _probe = probes.probe();
                shield(|| {
                    go.wait().unwrap();
                    sheltered.up();
                    let probe = probes.probe();
                    let child = spawn(move || {
                        let _probe = probe;
                        _ = Event::new().wait();
                    });
                    assert!(child.wait().is_err());
                });
            });
            (first, second)
        });
        let exits = thread({
            let (first, second) = (first.clone(), second.clone());
            move || {
                first.submit();
                second.submit();
                pause(100);
                drop((first, second));
                thread_exits();
            }
        });
        let cancels = thread({
            let first = first.to_untyped();
            move || {
                pause(400);
                first.abort(CancelReason::Asked);
            }
        });
        let submits = thread({
            let (runtime, go, ledger) = (runtime.clone(), go.clone(), ledger.clone());
            move || {
                pause(400);
                let roots = no_suspend("queues", || {
                    [(); 2].map(|()| {
                        let probe = ledger.probe();
                        runtime.spawn(move || drop(probe))
                    })
                });
                go.set();
                thread_exits();
                roots
            }
        });
        let drives = (draw(2) == 0).then(|| {
            let runtime = runtime.clone();
            thread(move || {
                runtime.run(|| pause(100));
                thread_exits();
            })
        });
        exits.join().unwrap();
        assert_eq!(sheltered.get(), 1);
        assert!(second.is_done(), "the thread has gone before what it had begun");
        // It may have claimed the first before that began, and ends it.
        cancels.join().unwrap();
        assert!(first.is_done(), "the thread has gone before what it had begun");
        let roots = submits.join().unwrap();
        answers.note(match &drives {
            Some(_) => "drives",
            None => {
                assert!(roots.iter().all(|root| root.state() == State::Queued), "nobody drives");
                "looks"
            }
        });
        for root in &roots {
            root.wait().unwrap();
        }
        answers.note(match first.wait() {
            Err(WaitError::TargetCancelled(CancelReason::ThreadExited)) => "by the exit",
            Err(WaitError::TargetCancelled(CancelReason::Asked)) => "by the canceller",
            other => panic!("{other:?}"),
        });
        assert!(matches!(second.wait(), Err(WaitError::TargetCancelled(CancelReason::ThreadExited))));
        drives.into_iter().for_each(|drives| drives.join().unwrap());
        drop((first, second, roots));
        runtime.finish(LONG).expect("nothing goes on");
        drop(runtime);
        thread_exits();
        assert_eq!(ledger.alive(), 0);
    });
}
