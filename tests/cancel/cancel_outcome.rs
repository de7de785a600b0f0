//! How a cancelled request ends: by which errors and unwinds it is cancelled, by which it has failed.

#![allow(clippy::unit_arg, reason = "the ways of handing an error on are what is tested")]

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::error::Error as StdError;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use cancelling::{Gate, asleep, ends_cancelled};
use forebear::{
    CancelReason, Cancelled, Error, OrUnwind, Outcome, Request, Runtime, State, WaitError, catch,
    check_cancelled, spawn, yield_now,
};
use support::order::root;
use support::{Count, Flag, inside_each, on_each, runtime};

/// An error of the user's that shows the one below as its own.
#[derive(Debug)]
enum Transparent {
    Wait(WaitError),
    Own,
}

impl fmt::Display for Transparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transparent::Wait(error) => error.fmt(f),
            Transparent::Own => f.write_str("of my own"),
        }
    }
}

impl StdError for Transparent {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Transparent::Wait(error) => error.source(),
            Transparent::Own => None,
        }
    }
}

impl From<WaitError> for Transparent {
    fn from(error: WaitError) -> Self {
        Transparent::Wait(error)
    }
}

/// An error of the user's that has the one below as its source.
#[derive(Debug)]
struct Context(Box<dyn StdError + Send + Sync>);

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("while reading a tile")
    }
}

impl StdError for Context {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

/// Runs `body` in a request that is cancelled while it waits in it, and answers the request when it is over.
fn cancelled_in<T: Send + 'static>(
    runtime: &Runtime,
    body: impl FnOnce(Request<()>) -> Result<T, Error> + Send + 'static,
) -> Request<T> {
    let gate = Gate::new(runtime);
    let closed = gate.request();
    let request = root(runtime).name("cancelled").try_spawn(move || body(closed));
    asleep(&request);
    request.cancel();
    let _ = request.watch();
    request
}

#[test]
fn handed_on_by_question_marks_it_ends_cancelled() {
    fn transparent(gate: &Request<()>) -> Result<(), Transparent> {
        gate.wait()?;
        Err(Transparent::Own)
    }
    fn boxed(gate: &Request<()>) -> Result<(), Box<dyn StdError + Send + Sync>> {
        Ok(*gate.wait()?)
    }
    fn with_anyhow(gate: &Request<()>) -> anyhow::Result<()> {
        use anyhow::Context as _;
        gate.wait().context("the tile").context("the picture")?;
        Ok(())
    }
    fn with_context(gate: &Request<()>) -> Result<(), Context> {
        gate.wait().copied().map_err(|error| Context(Box::new(Context(Box::new(error)))))
    }
    on_each(|runtime| {
        let ended = [
            cancelled_in(runtime, |gate| Ok(*gate.wait()?)),
            cancelled_in(runtime, |gate| Ok(gate.take()?)),
            cancelled_in(runtime, |gate| Ok(transparent(&gate)?)),
            cancelled_in(runtime, |gate| boxed(&gate).map_err(Error::other)),
            cancelled_in(runtime, |gate| with_anyhow(&gate).map_err(Error::other)),
            cancelled_in(runtime, |gate| Ok(with_context(&gate)?)),
            cancelled_in(runtime, |gate| {
                let _ = gate.wait();
                Ok(yield_now()?)
            }),
            cancelled_in(runtime, |gate| {
                let _ = gate.wait();
                Ok(check_cancelled()?)
            }),
        ];
        for request in &ended {
            assert_eq!(ends_cancelled(request), CancelReason::Asked);
        }
    });
}

#[test]
fn unwound_by_it_ends_cancelled_and_no_panic_hook_runs() {
    // A hook of this very test's: other tests do not panic on purpose under the name of these requests.
    static HOOKED: AtomicUsize = AtomicUsize::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if Request::current().is_some_and(|request| request.name() == "cancelled") {
            HOOKED.fetch_add(1, Ordering::Relaxed);
        }
        before(info);
    }));
    on_each(|runtime| {
        let drops = Count::new();
        let [a, b, c] = [(); 3].map(|()| drops.probe());
        let ended = [
            cancelled_in(runtime, move |gate| {
                let _on_the_stack = a;
                gate.force();
                Ok(())
            }),
            cancelled_in(runtime, move |gate| {
                let _on_the_stack = b;
                gate.wait().or_unwind();
                Ok(())
            }),
            cancelled_in(runtime, move |gate| {
                let _on_the_stack = c;
                let error = catch(|| gate.force()).copied().expect_err("it unwound");
                assert!(error.is_cancelled() && error.downcast_ref::<Cancelled>().is_some());
                Err(error)
            }),
        ];
        for request in &ended {
            ends_cancelled(request);
        }
        assert_eq!(drops.get(), 3, "destructors have run");
    });
    assert_eq!(HOOKED.load(Ordering::Relaxed), 0);
}

/// A handler of failures is no handler of cancels: they are told apart by type, in both styles.
#[test]
fn who_handles_failures_does_not_swallow_a_cancel() {
    on_each(|runtime| {
        let rounds = Count::new();
        let counts = rounds.clone();
        let by_results = cancelled_in(runtime, move |gate| {
            for _ in 0..50 {
                match gate.wait() {
                    Ok(()) | Err(WaitError::Failed(_) | WaitError::TargetCancelled(_)) => _ = counts.up(),
                    Err(other) => return Err(other.into()),
                }
            }
            Ok(())
        });
        assert_eq!((ends_cancelled(&by_results), rounds.get()), (CancelReason::Asked, 0));
        let counts = rounds.clone();
        let by_unwinding = cancelled_in(runtime, move |gate| {
            for _ in 0..50 {
                match catch(|| *gate.force()) {
                    Err(error) if error.is_cancelled() => return Err(error),
                    _ => _ = counts.up(),
                }
            }
            Ok(())
        });
        assert_eq!((ends_cancelled(&by_unwinding), rounds.get()), (CancelReason::Asked, 0));
    });
}

#[test]
fn whatever_it_returns_otherwise_it_is_cancelled() {
    on_each(|runtime| {
        let drops = Count::new();
        for round in 1..=3 {
            let probe = drops.probe();
            let request = cancelled_in(runtime, move |gate| {
                assert!(matches!(gate.wait(), Err(WaitError::Cancelled)));
                Ok(probe)
            });
            ends_cancelled(&request);
            assert_eq!(drops.get(), round, "the value is dropped before anybody is told");
            assert!(request.try_take().is_err());
        }
    });
}

/// One outcome, for callbacks and waiters alike.
#[test]
fn any_other_error_or_panic_after_a_cancel_is_a_failure() {
    on_each(|runtime| {
        let ways: [fn() -> Result<(), Error>; 4] = [
            || Err(Error::other("no disk")),
            || Err(Error::from(Transparent::Own)),
            || panic!("no disk"),
            || resume_unwind(Box::new(7)),
        ];
        for way in ways {
            let gate = Gate::new(runtime);
            let closed = gate.request();
            let (tell, told) = mpsc::channel();
            let [a, b, c, d] = [(); 4].map(|()| tell.clone());
            let request = root(runtime).try_build(move || {
                assert!(matches!(closed.wait(), Err(WaitError::Cancelled)));
                way()
            });
            request
                .on_cancelled(move || a.send("cancelled").unwrap())
                .on_finished(move |()| b.send("finished").unwrap())
                .on_failed(move |_| c.send("failed").unwrap())
                .on_done(move |how| {
                    d.send(if matches!(how, Outcome::Failed(_)) { "done" } else { "done otherwise" })
                        .unwrap();
                });
            request.submit();
            asleep(&request);
            request.cancel();
            for _ in 0..2 {
                let answer = request.watch();
                assert!(matches!(answer, Err(WaitError::Failed(_))), "{answer:?}");
            }
            assert_eq!(told.try_iter().collect::<Vec<_>>(), ["failed", "done"]);
            assert_eq!(request.state(), State::Failed);
            assert!(matches!(request.outcome(), Some(Outcome::Failed(_))));
            assert!(request.is_cancelled(), "which says that it was marked");
        }
    });
}

#[test]
fn the_answer_that_a_target_was_cancelled_is_an_error_like_any_other() {
    on_each(|runtime| {
        let gone = runtime.enter(|| Request::new(|| ()));
        gone.cancel();
        let other = gone.clone();
        // Not cancelled itself.
        let request = root(runtime).try_spawn(move || Ok(*other.wait()?));
        let answer = request.watch();
        let Err(WaitError::Failed(failure)) = answer else { panic!("{answer:?}") };
        let told = failure.downcast_ref::<WaitError>();
        assert!(matches!(told, Some(WaitError::TargetCancelled(CancelReason::Asked))), "{failure:?}");
        // And cancelled too: errors are never hidden.
        let request = cancelled_in(runtime, move |gate| {
            let _ = gate.wait();
            Err::<(), _>(Error::from(WaitError::TargetCancelled(CancelReason::Asked)))
        });
        assert_eq!(request.state(), State::Failed);
    });
}

/// In the original this was a success, with an empty value.
#[test]
fn cancelled_out_of_a_request_that_was_not_is_a_failure() {
    inside_each(|| {
        // From a request that was cancelled, as a keepsake.
        let kept = Arc::new(Mutex::new(None::<Cancelled>));
        let keep = kept.clone();
        let source = Request::builder().own_stack().spawn(move || {
            Request::current().unwrap().abort(CancelReason::Asked);
            *keep.lock().unwrap() = check_cancelled().err();
        });
        ends_cancelled(&source);
        let keepsake = kept.lock().unwrap().take().expect("it was cancelled");
        let ways = [
            Request::<()>::try_new(move || Err(keepsake)?),
            Request::<()>::try_new(move || Err(WaitError::from(keepsake))?),
            Request::new(move || Err::<(), _>(keepsake).or_unwind()),
        ];
        for request in ways {
            let answer = request.wait();
            let Err(WaitError::Failed(failure)) = answer else { panic!("{answer:?}") };
            assert!(failure.downcast_ref::<Cancelled>().is_some());
            assert_eq!((request.state(), request.is_cancelled()), (State::Failed, false));
        }
    });
}

/// A failure that has a cancelled request's error for its cause does not make who passes it on a cancelled one.
#[test]
fn a_childs_failure_by_cancelled_is_its_parents_failure() {
    inside_each(|| {
        let parent = Request::builder().own_stack().try_spawn(|| {
            let child = Request::<()>::try_new(|| Err(WaitError::Cancelled)?);
            Ok(*child.wait()?)
        });
        let answer = parent.wait();
        let Err(WaitError::Failed(failure)) = answer else { panic!("{answer:?}") };
        assert_eq!(failure.path().len(), 2);
        assert_eq!(parent.state(), State::Failed);
    });
}

/// A handler for all errors that goes on with the next round gets through its rounds; but it can tell a cancel from them.
#[test]
fn cancelled_is_told_apart_from_what_targets_answer() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let failures = Arc::new(Mutex::new(Vec::<WaitError>::new()));
        let (notes, first) = (failures.clone(), Flag::new());
        let past = first.clone();
        let rounds = root(runtime).spawn(move || {
            for _ in 0..10 {
                let bad = spawn(|| -> () { panic!("bad") });
                let told = bad.wait().copied();
                past.raise();
                let answers = [told, closed.wait().copied()];
                for error in answers.into_iter().filter_map(Result::err) {
                    if error.is_cancelled() {
                        return;
                    }
                    notes.lock().unwrap().push(error);
                }
            }
        });
        // Not asleep in front of the first, which another worker may run.
        first.wait();
        asleep(&rounds);
        rounds.cancel();
        ends_cancelled(&rounds);
        let failures = std::mem::take(&mut *failures.lock().unwrap());
        assert!(matches!(&failures[..], [WaitError::Failed(failure)] if failure.is_panic()), "{failures:?}");
    });
}

#[test]
fn a_cancelled_requests_failure_to_get_a_stack_is_no_panic() {
    let runtime = runtime(1);
    let gate = Gate::new(&runtime);
    let request = cancelled_in(&runtime, |gate| {
        let _ = gate.wait();
        let huge = Request::builder().stack_size(1 << 30).build(|| ());
        assert!(matches!(huge.wait(), Err(WaitError::Cancelled)));
        assert!(huge.is_done(), "born cancelled");
        Ok(())
    });
    ends_cancelled(&request);
    drop(gate);
}
