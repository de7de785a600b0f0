//! Waits in the destructors of what requests have captured that never start: for what the same destructor has dropped or
//! cancelled, and for the request itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use forebear::sync::Event;
use forebear::{CancelReason, Request, Runtime, State, WaitError, is_cancelled};

use crate::support::{Kind, Watchdog, on_each, until};

/// Calls its closure when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A request of this runtime that is not submitted, and calls `f` when its captures are dropped.
fn unstarted(runtime: &Runtime, f: impl FnMut() + Send + 'static) -> Request<()> {
    let captured = OnDrop(f);
    Request::builder().on(runtime).name("unstarted").build(move || drop(captured))
}

/// Drops what waits for the effect of a drop that is put off.
fn drop_and_wait(runtime: &Runtime) {
    let (over, within) = (Arc::new(Event::new()), runtime.clone());
    let outer = unstarted(runtime, {
        let over = over.clone();
        move || {
            let inner = unstarted(&within, || ());
            let over2 = over.clone();
            inner.on_done(move |_| over2.set());
            drop(inner);
            over.wait().unwrap();
        }
    });
    drop(outer);
    assert!(over.is_set());
}

/// Cancels what waits for a request whose cancel is put off.
fn cancel_and_wait(runtime: &Runtime) {
    let inner = unstarted(runtime, || ());
    let waited = Arc::new(Event::new());
    let outer = unstarted(runtime, {
        let (inner, waited) = (inner.clone(), waited.clone());
        move || {
            let _ = inner.cancel();
            assert!(matches!(inner.wait(), Err(WaitError::TargetCancelled(_))));
            waited.set();
        }
    });
    let _ = outer.cancel();
    assert!(waited.is_set());
}

/// Cancels a request whose captures wait for it.
fn wait_for_itself(runtime: &Runtime) {
    let this: Arc<Mutex<Option<Request<()>>>> = Arc::default();
    let found: Arc<Mutex<Option<String>>> = Arc::default();
    let request = unstarted(runtime, {
        let (this, found) = (this.clone(), found.clone());
        move || {
            let own = this.lock().unwrap().clone().unwrap();
            if let Err(WaitError::CircularWait(cycle)) = own.wait() {
                *found.lock().unwrap() = Some(cycle.to_string());
            }
        }
    });
    *this.lock().unwrap() = Some(request.clone());
    let _ = request.cancel();
    assert!(found.lock().unwrap().take().expect("a cycle was found").contains("unstarted"));
    drop(this.lock().unwrap().take());
}

/// In a request, on a thread that runs none, and when the runtime has been shut down.
fn everywhere(f: fn(&Runtime)) {
    on_each(|runtime| {
        runtime.run(|| f(runtime));
        f(runtime);
        runtime.shutdown(std::time::Duration::from_secs(60)).unwrap();
        f(runtime);
    });
}

#[test]
fn a_destructor_may_wait_for_what_comes_of_a_drop_that_is_put_off() {
    everywhere(drop_and_wait);
}

#[test]
fn a_destructor_may_wait_for_a_request_whose_end_is_put_off() {
    everywhere(cancel_and_wait);
}

#[test]
fn a_destructor_that_waits_for_the_request_it_belongs_to_is_answered_with_the_cycle() {
    everywhere(wait_for_itself);
}

/// Cancelled while it stands in a worker's list, so the worker's loop drops the captures, on a stack on which no request runs.
#[test]
fn a_destructor_that_the_loop_runs_and_that_waits_for_its_request_is_answered_with_the_cycle() {
    let _dog = Watchdog::new("");
    let runtime = Kind::Workers(1).build();
    let (told, tells) = mpsc::channel();
    let (give, given) = mpsc::channel();
    let parent = runtime.spawn(move || {
        let this: Arc<Mutex<Option<Request<()>>>> = Arc::default();
        let own = this.clone();
        let captured = OnDrop(move || {
            let own = own.lock().unwrap().take().expect("it was put there before the cancel");
            told.send((own.wait().err(), Request::current().is_none())).unwrap();
        });
        let child = Request::builder().name("unstarted").spawn(move || drop(captured));
        *this.lock().unwrap() = Some(child);
        give.send(()).unwrap();
        while !is_cancelled() {
            std::hint::spin_loop();
        }
    });
    given.recv().unwrap();
    parent.abort(CancelReason::Aborted);
    let (answer, outside) = tells.recv().unwrap();
    let Some(WaitError::CircularWait(cycle)) = &answer else { panic!("{answer:?}") };
    assert!(cycle.to_string().contains("unstarted") && outside, "{cycle}");
    drop(parent);
}

/// The captures' destructor waits for a request that waits for the one to which the captures belong.
fn wait_for_itself_through_another(runtime: &Runtime, other_first: bool, ends: impl FnOnce(&Request<()>)) {
    let (completer, never) = runtime.enter(|| Request::<()>::completer("never"));
    let this: Arc<OnceLock<Request<()>>> = Arc::default();
    let dropping = Arc::new(Event::new());
    let (told, tells) = mpsc::channel();
    let other = runtime.enter(|| {
        let (this, dropping, told) = (this.clone(), dropping.clone(), told.clone());
        Request::builder().name("other").own_stack().build(move || {
            if !other_first {
                dropping.wait().unwrap();
            }
            told.send(this.get().unwrap().wait().err()).unwrap();
        })
    });
    let captured = {
        let (other, dropping) = (other.clone(), dropping.clone());
        OnDrop(move || {
            dropping.set();
            told.send(other.wait().err()).unwrap();
        })
    };
    // It is after what nobody completes, so its waiter does not run it.
    let request =
        runtime.enter(|| Request::builder().name("unstarted").after(&never).build(move || drop(captured)));
    this.set(request.clone()).unwrap();
    request.submit();
    other.submit();
    let is_there = |state| state == State::Suspended;
    until(|| is_there(other.state()));
    ends(&request);
    let _ = other.wait();
    let told: Vec<_> = tells.iter().take(2).flatten().collect();
    let cycles: Vec<_> = told
        .iter()
        .filter_map(|told| if let WaitError::CircularWait(cycle) = told { Some(cycle) } else { None })
        .collect();
    let [cycle] = &cycles[..] else { panic!("one of them is told: {told:?}") };
    assert_eq!(cycle.names().count(), 3, "{cycle}");
    assert!(["unstarted", "other"].iter().all(|name| cycle.names().any(|one| one == *name)), "{cycle}");
    drop(completer);
}

#[test]
fn a_destructor_that_waits_for_its_request_through_another_is_answered_with_the_cycle() {
    on_each(|runtime| {
        for other_first in [true, false] {
            // On this thread, which runs no request; and in a request.
            wait_for_itself_through_another(runtime, other_first, |request| {
                request.abort(CancelReason::Aborted);
            });
            wait_for_itself_through_another(runtime, other_first, |request| {
                runtime.run(|| request.abort(CancelReason::Aborted));
            });
        }
    });
}

/// A shutdown takes both from the queue, and ends one after the other. The captures of one wait for the other.
#[test]
fn a_destructor_may_wait_for_a_request_that_the_same_shutdown_ends() {
    for kind in [Kind::Workers(1), Kind::Workers(2), Kind::Workers(4)] {
        for older_waits in [true, false] {
            let _dog = Watchdog::new(format_args!("{kind:?}"));
            let runtime = kind.build();
            let started = Arc::new(AtomicUsize::new(0));
            let workers = runtime.workers();
            let holders: Vec<_> = (0..workers)
                .map(|_| {
                    let started = started.clone();
                    runtime.spawn(move || {
                        started.fetch_add(1, Ordering::AcqRel);
                        while !is_cancelled() {
                            std::hint::spin_loop();
                        }
                    })
                })
                .collect();
            until(|| started.load(Ordering::Acquire) == workers);
            let other: Arc<OnceLock<Request<()>>> = Arc::default();
            let (told, tells) = mpsc::channel();
            let waits = || {
                let other = other.clone();
                let told = told.clone();
                let captured = OnDrop(move || told.send(other.get().unwrap().wait().err()).unwrap());
                runtime.spawn(move || drop(captured))
            };
            let older = older_waits.then(waits);
            other.set(runtime.spawn(|| ())).unwrap();
            let younger = (!older_waits).then(waits);
            runtime.shutdown(Duration::from_secs(100)).unwrap();
            let answer = tells.recv().unwrap();
            assert!(
                matches!(answer, Some(WaitError::TargetCancelled(CancelReason::Shutdown))),
                "{kind:?}, {older_waits}: {answer:?}"
            );
            drop((holders, older, younger));
        }
    }
}
