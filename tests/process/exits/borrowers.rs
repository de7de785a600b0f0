//! A thread exits while a frame of its seat is suspended inside a thread-local, and has lent a reference to it on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use forebear::sync::Event;
use forebear::{CancelReason, Request, Runtime, State, WaitError, scope};

use crate::child;

/// Says when it is destroyed.
struct Lent(Arc<AtomicBool>);

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

thread_local! {
    static LENT: std::cell::OnceCell<Lent> = const { std::cell::OnceCell::new() };
}

#[test]
fn a_job_that_borrows_a_thread_local_never_begins_after_the_exit_of_its_thread() {
    let end = child::run("", &[], |_| {
        let runtime = crate::warned(Runtime::builder().workers(0)).build().unwrap();
        let destroyed = Arc::new(AtomicBool::new(false));
        let began_late = Arc::new(AtomicBool::new(false));
        let (input, from_input) = runtime.enter(|| Request::<()>::completer("the input of the job"));
        let (tell, told) = mpsc::channel();
        let exits = {
            let (runtime, destroyed, began_late) = (runtime.clone(), destroyed.clone(), began_late.clone());
            thread::spawn(move || {
                let (completer, may_exit) = runtime.enter(|| Request::<()>::completer("may exit"));
                let _left = runtime.spawn(move || {
                    LENT.with(|lent| {
                        let lent = &lent.get_or_init(|| Lent(destroyed.clone())).0;
                        scope(|s| {
                            let job = s.then(&from_input, |()| {
                                // Not asked of `lent`, which may be destroyed.
                                began_late.store(destroyed.load(Ordering::Relaxed), Ordering::Relaxed);
                                let _ = lent;
                            });
                            tell.send(job).unwrap();
                            completer.complete(()).unwrap();
                            let _ = Event::new().wait();
                        });
                    });
                });
                may_exit.wait().unwrap();
            })
        };
        exits.join().unwrap();
        assert!(destroyed.load(Ordering::Relaxed));
        input.complete(()).unwrap();
        // Wanted here, so the cancel of the request that opened the scope spares it.
        let _ = told.recv().unwrap().wait();
        assert!(!began_late.load(Ordering::Relaxed), "the job ran");
    });
    end.assert_survived();
}

#[test]
fn a_thread_that_borrows_a_thread_local_from_a_request_ends_before_the_exit_of_its_thread() {
    let end = child::run("", &[], |_| {
        let runtime = crate::warned(Runtime::builder().workers(0)).build().unwrap();
        let (tell, has_exited) = mpsc::channel();
        let destroyed = Arc::new(AtomicBool::new(false));
        let (go, goes) = mpsc::channel();
        let exits = {
            let (runtime, destroyed) = (runtime.clone(), destroyed.clone());
            let exits = thread::spawn(move || {
                let request = runtime.spawn(move || {
                    LENT.with(|lent| {
                        let lent = &lent.get_or_init(|| Lent(destroyed.clone())).0;
                        thread::scope(|threads| {
                            threads.spawn(move || {
                                goes.recv().unwrap();
                                // Not asked of `lent`, which may be destroyed.
                                assert!(!destroyed.load(Ordering::Relaxed), "the thread-local is gone");
                                let _ = lent;
                            });
                            let _ = Event::new().wait();
                        });
                    });
                });
                assert_eq!(request.state(), State::Suspended);
                request
            });
            thread::spawn(move || tell.send(exits.join().unwrap()).unwrap())
        };
        assert!(has_exited.recv_timeout(Duration::from_millis(300)).is_err(), "it has exited");
        go.send(()).unwrap();
        let request = has_exited.recv().unwrap();
        exits.join().unwrap();
        assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(CancelReason::ThreadExited))));
        assert!(destroyed.load(Ordering::Relaxed));
    });
    end.assert_survived();
}
