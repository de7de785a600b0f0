//! Cycles through the destructor of a value or an error that nobody gets. The end of the request calls it, so the request is not over before it returns.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use forebear::{
    CancelReason, Completer, Cycle, Error, Request, RequestSet, Scope, State, WaitError, join, scope, shield,
    yield_now,
};

use super::support::{Flag, on_each_of, until};
use super::{Known, WORKERS, assert_goes_round, cycle, make};

/// Calls its function when it is dropped.
struct OnDrop(Box<dyn FnMut() + Send + Sync>);

impl OnDrop {
    fn new(f: impl FnMut() + Send + Sync + 'static) -> OnDrop {
        OnDrop(Box::new(f))
    }
}

impl std::fmt::Debug for OnDrop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnDrop")
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn asleep(request: &Request<()>) {
    until(|| request.state() == State::Suspended);
}

/// What makes a job of a scope and drops its handle. The job raises the flag as it begins, and is to wait for the first of the known from user code that its
/// end calls; it sends what that wait answers.
type MakesJob = for<'scope> fn(&'scope Scope<'scope, '_>, Flag, Known, Sender<Option<Cycle>>);

/// A scope waits for a job, whose end waits for the request of the scope.
fn of_a_job(make_job: MakesJob) {
    on_each_of(&WORKERS, |runtime| {
        let (known, (tell, cycles)) = (Known::new(), channel());
        let opener = {
            let known = known.clone();
            make(runtime, "opener", move || {
                let began = Flag::new();
                scope(|s| {
                    make_job(s, began.clone(), known, tell);
                    began.wait();
                });
            })
        };
        known.set(std::slice::from_ref(&opener));
        opener.submit();
        let told = cycles.recv().unwrap().expect("the wait answers with the cycle");
        assert_goes_round(&told, &["opener", "job"]);
        opener.wait().unwrap();
    });
}

#[test]
fn a_cycle_through_the_value_of_a_job_is_found() {
    of_a_job(|s, began, known, tell| {
        drop(Request::builder().name("job").own_stack().spawn_in(s, move || {
            began.raise();
            asleep(known.get(0));
            OnDrop::new(move || tell.send(cycle(known.get(0).wait())).unwrap())
        }));
    });
}

/// An error of the user's with a destructor, which a cancel has caused.
#[derive(Debug)]
struct OfCancel(WaitError, #[expect(dead_code, reason = "for its destructor")] OnDrop);

impl std::fmt::Display for OfCancel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("given up")
    }
}

impl std::error::Error for OfCancel {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[test]
fn a_cycle_through_the_error_of_a_cancelled_job_is_found() {
    of_a_job(|s, began, known, tell| {
        let running = began.clone();
        drop(Request::builder().name("job").own_stack().try_spawn_in(s, move || -> Result<(), Error> {
            began.raise();
            until(forebear::is_cancelled);
            shield(|| asleep(known.get(0)));
            let waits = OnDrop::new(move || tell.send(cycle(known.get(0).wait())).unwrap());
            Err(Error::other(OfCancel(WaitError::Cancelled, waits)))
        }));
        running.wait();
        s.cancel();
    });
}

/// A request waits for one that is cancelled while it runs, whose value waits for the waiter. Who waits first: `value_last`.
fn of_a_cancelled_request(value_last: bool) {
    on_each_of(&WORKERS, |runtime| {
        let (known, (tell, cycles)) = (Known::new(), channel());
        let (began, dropping) = (Flag::new(), Flag::new());
        let cancelled = {
            let (known, up, dropping, tell) = (known.clone(), began.clone(), dropping.clone(), tell.clone());
            runtime.enter(|| {
                Request::builder().name("cancelled").own_stack().build(move || {
                    up.raise();
                    until(forebear::is_cancelled);
                    OnDrop::new(move || {
                        dropping.raise();
                        if value_last {
                            asleep(known.get(0));
                        }
                        tell.send(cycle(known.get(0).wait())).unwrap();
                    })
                })
            })
        };
        let waiter = {
            let cancelled = cancelled.clone();
            make(runtime, "waiter", move || {
                dropping.wait();
                let answer = cancelled.wait().map(|_| ());
                tell.send(cycle(answer)).unwrap();
            })
        };
        known.set(std::slice::from_ref(&waiter));
        cancelled.submit();
        began.wait();
        cancelled.abort(CancelReason::Aborted);
        waiter.submit();
        // The wait that comes last closes the cycle, and answers with it.
        let both = [cycles.recv().unwrap(), cycles.recv().unwrap()];
        let told: Vec<_> = both.into_iter().flatten().collect();
        assert_eq!(told.len(), 1);
        assert_goes_round(&told[0], &["waiter", "cancelled"]);
        waiter.wait().unwrap();
        until(|| cancelled.is_done());
    });
}

#[test]
fn a_cycle_through_the_value_of_a_cancelled_request_is_found_if_the_value_waits_last() {
    of_a_cancelled_request(true);
}

#[test]
fn a_cycle_through_the_value_of_a_cancelled_request_is_found_if_the_waiter_is_last() {
    of_a_cancelled_request(false);
}

/// A value's destructor joins; the second closure, on a stack of its own, waits by a set for the request whose value it is.
#[test]
fn a_cycle_through_a_join_of_a_value_and_a_set_is_found() {
    on_each_of(&WORKERS, |runtime| {
        let (began, place) = (Flag::new(), std::sync::Arc::new(std::sync::OnceLock::new()));
        let (tell, answers): (Sender<bool>, _) = channel();
        let request: Request<OnDrop> = {
            let (up, place) = (began.clone(), place.clone());
            runtime.enter(|| {
                Request::builder().name("cancelled").own_stack().build(move || {
                    up.raise();
                    until(forebear::is_cancelled);
                    OnDrop::new(move || {
                        let reached = Flag::new();
                        let first = || {
                            // Its suspension shows the second closure to the worker.
                            until(|| reached.is_up() || yield_now().is_err());
                            _ = yield_now();
                        };
                        let second = || {
                            let itself: &Request<OnDrop> = place.get().unwrap();
                            reached.raise();
                            let answer = RequestSet::from_iter([itself.clone()]).wait_next();
                            tell.send(answer.is_ok()).unwrap();
                        };
                        join(first, second);
                    })
                })
            })
        };
        assert!(place.set(request.clone()).is_ok());
        request.submit();
        began.wait();
        request.abort(CancelReason::Aborted);
        answers.recv().unwrap();
        until(|| request.is_done());
    });
}

/// An error that drops what it holds when it is asked for its source.
#[derive(Debug)]
struct DropsWhenAsked(Mutex<Option<OnDrop>>);

impl std::fmt::Display for DropsWhenAsked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("asked")
    }
}

impl std::error::Error for DropsWhenAsked {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let held = self.0.lock().unwrap().take();
        drop(held);
        None
    }
}

/// A request waits for a completion. A thread that no runtime has met ends the completion, and user code that this end calls waits for that request.
fn of_a_completion(end: fn(Completer<OnDrop>, OnDrop)) {
    on_each_of(&WORKERS, |runtime| {
        let (known, (tell, cycles)) = (Known::new(), channel());
        let (completer, answer) = runtime.enter(|| Request::completer("answer"));
        let waiter = {
            let (answer, tell) = (answer.to_untyped(), tell.clone());
            make(runtime, "waiter", move || tell.send(cycle(answer.wait())).unwrap())
        };
        // No handle is left that could have the value.
        drop(answer);
        known.set(std::slice::from_ref(&waiter));
        waiter.submit();
        asleep(&waiter);
        let waits = OnDrop::new(move || tell.send(cycle(known.get(0).wait())).unwrap());
        thread::spawn(move || end(completer, waits)).join().unwrap();
        let both = [cycles.recv().unwrap(), cycles.recv().unwrap()];
        let told: Vec<_> = both.into_iter().flatten().collect();
        assert_eq!(told.len(), 1);
        assert_goes_round(&told[0], &["waiter", "answer"]);
        waiter.wait().unwrap();
    });
}

#[test]
fn a_cycle_through_the_value_of_a_completion_is_found() {
    of_a_completion(|completer, waits| assert!(completer.complete(waits).is_ok()));
}

#[test]
fn a_cycle_through_the_error_of_a_completion_is_found() {
    of_a_completion(|completer, waits| completer.fail(DropsWhenAsked(Mutex::new(Some(waits)))));
}
