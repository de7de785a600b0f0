//! Subscribers that come from everywhere while a request ends.

use std::sync::{Arc, Mutex};

use forebear_loom_tests::roam;
use forebear_runtime::{Outcome, WaitError};

use crate::support::{Ledger, finish, pause, runtime, thread};

/// Three threads subscribe, and a callback does, while the request ends and is cancelled: each callback is called once, of one
/// outcome, before any waiter goes on if it was there in time.
#[test]
fn subscribers_that_come_while_it_ends_are_each_called_once_of_one_outcome() {
    roam(2, &["finished", "cancelled"], |answers| {
        let (runtime, ledger) = (runtime(2), Ledger::default());
        let told: Arc<Mutex<Vec<bool>>> = Arc::default();
        let request = runtime.spawn(|| {
            pause(100);
            7
        });
        let subscribers = [0, 1, 2].map(|n| {
            let (request, told, probe) = (request.clone(), Arc::clone(&told), ledger.probe());
            thread(move || {
                pause(300);
                let (inner, more) = (request.to_untyped(), Arc::clone(&told));
                request.on_done(move |outcome| {
                    drop(probe);
                    told.lock().unwrap().push(matches!(outcome, Outcome::Finished(7)));
                    if n == 0 {
                        inner.on_done(move |outcome| {
                            more.lock().unwrap().push(matches!(outcome, Outcome::Finished(())));
                        });
                    }
                });
            })
        });
        let cancels = thread({
            let request = request.to_untyped();
            move || {
                pause(300);
                request.cancel();
            }
        });
        let came = match request.watch() {
            Ok(7) => true,
            Err(WaitError::TargetCancelled(_)) => false,
            other => panic!("{other:?}"),
        };
        subscribers.into_iter().for_each(|one| one.join().unwrap());
        cancels.join().unwrap();
        answers.note(if came { "finished" } else { "cancelled" });
        drop(request);
        finish(&runtime);
        assert_eq!(*told.lock().unwrap(), [came; 4]);
        assert_eq!(ledger.alive(), 0);
    });
}
