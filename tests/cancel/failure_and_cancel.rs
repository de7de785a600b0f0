//! Failures before, with and after a cancel: one outcome, whoever asks, however often; and what is told, kept and dropped.

#[path = "../support/mod.rs"]
mod support;

use std::panic::resume_unwind;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, thread};

use forebear::{
    CancelReason, Cancellation, Error, OrUnwind, Outcome, Request, Runtime, State, WaitError, is_cancelled,
    yield_now,
};
use support::order::{Gate, Log, root};
use support::{Come, Count, Flag, Probe, Watchdog, in_both_worlds, join_all, kinds, on_each, until};

// ---- all ways to end, at all times of a cancel ------------------------------------------------------------------------------

/// What the callable comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Value,
    Error,
    Panic,
    /// An error with a cancellation at its bottom.
    Cancelled,
    /// The same as an unwind.
    Unwinds,
}

/// When it is cancelled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Never,
    BeforeItStarts,
    WhileItRuns,
    WhileCallbacksRun,
    ItIsOver,
}

const HOWS: [How; 5] = [How::Value, How::Error, How::Panic, How::Cancelled, How::Unwinds];
const WHENS: [When; 5] =
    [When::Never, When::BeforeItStarts, When::WhileItRuns, When::WhileCallbacksRun, When::ItIsOver];

/// What everybody is told in the end.
fn expected(how: How, when: When) -> &'static str {
    match (how, when) {
        (_, When::BeforeItStarts) => "cancelled",
        (How::Value | How::Cancelled | How::Unwinds, When::WhileItRuns) => "cancelled",
        (How::Value, _) => "finished",
        (How::Error, _) => "failed: no disk",
        (How::Panic, _) => "failed: boo",
        (How::Cancelled | How::Unwinds, _) => "failed: the wait was cancelled",
    }
}

/// A request in the making, cancelled or not as it goes along.
struct Case {
    request: Request<Probe>,
    when: When,
    begun: Flag,
    go: Flag,
    completing: Flag,
    may_end: Flag,
    /// Drops of what it captured and had on its stack, and of its value.
    held: Count,
    values: Count,
}

impl Case {
    fn new(runtime: &Runtime, how: How, when: When) -> Case {
        let [begun, go, completing, may_end] = [(); 4].map(|()| Flag::new());
        let [held, values] = [(); 2].map(|()| Count::new());
        let (up, may, captured) = (begun.clone(), go.clone(), held.probe());
        let (local, value) = (held.clone(), values.probe());
        let request = root(runtime).name("case").try_build(move || {
            let _held = (&captured, local.probe());
            up.raise();
            may.wait();
            match how {
                How::Value => Ok(value),
                How::Error => Err(Error::other("no disk")),
                How::Panic => resume_unwind(Box::new("boo")),
                How::Cancelled => Err(WaitError::Cancelled)?,
                How::Unwinds => Err(WaitError::Cancelled).or_unwind(),
            }
        });
        if when == When::WhileCallbacksRun {
            let (up, may) = (completing.clone(), may_end.clone());
            request.on_done(move |_| {
                up.raise();
                may.wait();
            });
        }
        Case { request, when, begun, go, completing, may_end, held, values }
    }

    /// Brings it to its end; cancels it meanwhile.
    fn run(&self) {
        let Case { request, begun, go, completing, may_end, .. } = self;
        let cancel =
            || [request.cancel(), request.abort(CancelReason::Aborted), request.to_untyped().cancel()];
        if self.when == When::BeforeItStarts {
            assert_eq!(request.cancel(), Cancellation::Marked);
            assert!(request.is_done());
        } else {
            request.submit();
            begun.wait();
            if self.when == When::WhileItRuns {
                assert_eq!(cancel(), [Cancellation::Marked; 3]);
            }
            go.raise();
            if self.when == When::WhileCallbacksRun {
                completing.wait();
                assert_eq!(cancel(), [Cancellation::AlreadyDone; 3]);
                may_end.raise();
            }
        }
        until(|| request.is_done());
        if self.when != When::Never {
            assert_eq!(cancel(), [Cancellation::AlreadyDone; 3]);
        }
    }
}

fn each_case(test: impl Fn(&Runtime, How, When, &Hook)) {
    for kind in kinds() {
        for (how, when) in HOWS.into_iter().flat_map(|how| WHENS.map(|when| (how, when))) {
            let _dog = Watchdog::new(format_args!("{kind:?}, {how:?}, cancelled {when:?}"));
            let hook = Hook::default();
            let runtime = hook.runtime(kind);
            test(&runtime, how, when, &hook);
        }
    }
}

/// What a wait answered.
fn answer<T>(answer: Result<T, WaitError>) -> String {
    match answer {
        Ok(_) => "finished".to_owned(),
        Err(WaitError::Failed(failure)) => format!("failed: {}", failure.error()),
        Err(WaitError::TargetCancelled(_)) => "cancelled".to_owned(),
        Err(other) => panic!("{other:?}"),
    }
}

fn outcome<T>(outcome: Outcome<'_, T>) -> String {
    match outcome {
        Outcome::Finished(_) => "finished".to_owned(),
        Outcome::Failed(failure) => format!("failed: {}", failure.error()),
        Outcome::Cancelled(_) => "cancelled".to_owned(),
    }
}

/// Has every callback note what it is told.
fn note_all(request: &Request<Probe>, log: &Log) {
    let [a, b, c, d, e] = [(); 5].map(|()| log.clone());
    request
        .on_finished(move |_| a.note("finished"))
        .on_failed(move |failure| b.note(format!("failed: {}", failure.error())))
        .on_cancelled(move || c.note("cancelled"))
        .on_done(move |how| d.note(outcome(how)));
    request.to_untyped().on_done(move |how| e.note(outcome(how)));
}

/// In the original callbacks were told one thing and waiters another, and what was over could become something else.
#[test]
fn d11_callbacks_waiters_and_looks_are_told_one_outcome_for_good() {
    each_case(|runtime, how, when, hook| {
        let case = Case::new(runtime, how, when);
        let (log, told) = (Log::default(), expected(how, when));
        note_all(&case.request, &log);
        // They watch, so as not to keep a cancel off.
        let watchers: Vec<_> = (0..2)
            .map(|_| {
                let request = case.request.clone();
                root(runtime).build(move || answer(request.watch()))
            })
            .collect();
        thread::scope(|threads| {
            let watching = if when == When::BeforeItStarts {
                Vec::new()
            } else {
                watchers.iter().for_each(|watcher| _ = watcher.submit());
                [(); 2].map(|()| threads.spawn(|| assert_eq!(answer(case.request.watch()), told))).into()
            };
            case.run();
            join_all(watching);
        });
        watchers.iter().for_each(|watcher| assert_eq!(watcher.wait().unwrap(), told));
        log.check(&[told; 3]);
        let look = || {
            let request = &case.request;
            for _ in 0..2 {
                assert_eq!(answer(request.wait()), told);
                assert_eq!(answer(request.to_untyped().wait()), told);
                assert_eq!(answer(request.wait_timeout(Duration::ZERO)), told);
                assert_eq!(answer(request.to_untyped().watch()), told);
                assert_eq!(outcome(request.outcome().unwrap()), told);
                let _ = request.cancel();
            }
            let state = match told {
                "finished" => State::Finished,
                "cancelled" => State::Cancelled,
                _ => State::Failed,
            };
            assert_eq!((request.state(), request.to_untyped().state()), (state, state));
            assert_eq!((request.get().is_some(), request.is_done()), (state == State::Finished, true));
            assert!(request.is_cancelled() || state != State::Cancelled);
            assert!(!request.is_cancelled() || state != State::Finished);
            let late = Log::default();
            note_all(request, &late);
            late.check(&[told; 3]);
        };
        look();
        runtime.run(look);
        drop(watchers);
        assert_eq!(answer(case.request.take()), told);
        hook.check(&[]);
    });
}

#[test]
fn d24_what_it_held_is_dropped_by_its_end_though_handles_are_kept() {
    each_case(|runtime, how, when, _| {
        let case = Case::new(runtime, how, when);
        // When the first callback runs, too.
        let (send, at_done) = channel();
        let held = case.held.clone();
        case.request.to_untyped().on_done(move |_| send.send(held.get()).unwrap());
        case.run();
        let held = if when == When::BeforeItStarts { 1 } else { 2 };
        assert_eq!((at_done.try_recv(), case.held.get()), (Ok(held), held));
        // The value is kept for those who may have it.
        let finished = expected(how, when) == "finished";
        assert_eq!(case.values.get(), usize::from(!finished));
        let _ = case.request.outcome();
        let Case { request, values, .. } = case;
        drop(request.into_untyped());
        assert_eq!(values.get(), 1);
    });
}

/// And nothing else is: neither a success nor a cancellation, nor an error that means one.
#[test]
fn d23_a_failure_that_nobody_looked_at_is_told_to_the_hook_once_cancelled_or_not() {
    each_case(|runtime, how, when, hook| {
        if when == When::WhileCallbacksRun {
            return; // Its callback looks.
        }
        for handle_goes_first in [false, true] {
            let case = Case::new(runtime, how, when);
            let any = case.request.to_untyped();
            if handle_goes_first && when == When::WhileItRuns {
                case.request.submit();
                case.begun.wait();
                assert_eq!(any.cancel(), Cancellation::Marked);
                let go = case.go.clone();
                drop(case);
                go.raise();
                until(|| any.is_done());
            } else {
                case.run();
                drop(case);
            }
            let told = expected(how, when).strip_prefix("failed: ");
            hook.wait_for(usize::from(told.is_some()));
            hook.check(told.as_slice());
        }
    });
}

// ---- some of these once more, in words --------------------------------------------------------------------------------------

#[test]
fn a_failure_after_a_veto_is_an_ordinary_failure() {
    on_each(|runtime| {
        let case = Case::new(runtime, How::Error, When::Never);
        let other = case.request.clone();
        let waiter = root(runtime).spawn(move || answer(other.wait()));
        until(|| waiter.state() == State::Suspended);
        case.begun.wait();
        assert_eq!(case.request.cancel(), Cancellation::Vetoed);
        case.go.raise();
        assert_eq!(waiter.take().unwrap(), "failed: no disk");
        assert!(!case.request.is_cancelled());
        assert_eq!(case.request.cancel(), Cancellation::AlreadyDone);
    });
}

#[test]
fn an_abort_does_not_hide_a_failure_from_those_who_wait() {
    on_each(|runtime| {
        for (how, told) in
            [(How::Error, "failed: no disk"), (How::Panic, "failed: boo"), (How::Cancelled, "cancelled")]
        {
            let case = Case::new(runtime, how, When::WhileItRuns);
            let other = case.request.clone();
            let waiter = root(runtime).spawn(move || answer(other.wait()));
            until(|| waiter.state() == State::Suspended);
            case.begun.wait();
            assert_eq!(case.request.abort(CancelReason::Other(1)), Cancellation::Marked);
            case.go.raise();
            assert_eq!(waiter.take().unwrap(), told);
        }
    });
}

#[test]
fn a_request_that_cancels_itself_may_still_fail() {
    in_both_worlds(|| {
        let cancels = || {
            Request::current().unwrap().abort(CancelReason::Aborted);
            assert!(is_cancelled());
        };
        let bad = Request::<()>::try_new(move || {
            cancels();
            "x".parse::<u32>()?;
            Ok(())
        });
        assert!(bad.wait().unwrap_err().downcast_ref::<std::num::ParseIntError>().is_some());
        let gone = Request::<()>::try_new(move || {
            cancels();
            Ok(yield_now()?)
        });
        assert!(matches!(gone.wait(), Err(WaitError::TargetCancelled(CancelReason::Aborted))));
    });
}

/// The parent is cancelled, and its child with it; the child has something else to say.
#[test]
fn the_failure_of_a_child_is_not_hidden_by_the_cancel_that_reached_it() {
    for kind in kinds() {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let hook = Hook::default();
        let runtime = hook.runtime(kind);
        let gate = Gate::new(&runtime);
        let (send, child) = channel();
        let closed = gate.request.clone();
        let parent = root(&runtime).try_spawn(move || {
            let child = Request::builder().own_stack().try_spawn(move || {
                let stopped = closed.wait().is_err();
                if stopped { Err(Error::other("could not clean up")) } else { Ok(()) }
            });
            until(|| child.state() == State::Suspended);
            send.send(child.to_untyped()).unwrap();
            child.wait()?;
            Ok(())
        });
        let child = child.come().unwrap();
        until(|| parent.state() == State::Suspended);
        parent.cancel();
        assert!(matches!(parent.watch(), Err(WaitError::TargetCancelled(CancelReason::Asked))));
        until(|| child.is_done());
        assert_eq!(child.state(), State::Failed);
        hook.wait_for(1);
        hook.check(&["could not clean up"]);
        gate.open();
    }
}

/// Failure callbacks of who fails get the original error, and those of who fails by waiting get it with the way it came.
#[test]
fn callbacks_along_a_way_of_failures_get_the_error_and_its_way() {
    in_both_worlds(|| {
        let (send, told) = channel();
        let named = |name: &'static str| {
            let send = send.clone();
            move |request: &Request<u32>| {
                request.on_failed(move |failure| {
                    let parsed = failure.downcast_ref::<std::num::ParseIntError>().is_some();
                    let path: Vec<_> = failure.path().map(str::to_owned).collect();
                    send.send((name, parsed, path)).unwrap();
                });
            }
        };
        let first = Request::builder().name("first").try_build(|| Ok("x".parse::<u32>()?));
        named("first")(&first);
        let second = Request::builder().name("second").try_build(move || Ok(*first.wait()?));
        named("second")(&second);
        assert!(second.wait().is_err());
        let told: Vec<_> = told.try_iter().collect();
        assert_eq!(told[0], ("first", true, vec!["first".to_owned()]));
        assert_eq!(told[1], ("second", true, vec!["first".to_owned(), "second".to_owned()]));
        assert_eq!(told.len(), 2);
    });
}

// ---- what is kept -----------------------------------------------------------------------------------------------------------

/// An error that says something, or means a cancellation, and counts its drop.
#[derive(Debug)]
struct Counted(#[allow(dead_code, reason = "its drop is counted")] Probe, Option<WaitError>, bool);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("counted")
    }
}

impl std::error::Error for Counted {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.1.as_ref().map(|error| error as _)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.2 && !thread::panicking() {
            // What carries nothing, since it is forgotten.
            resume_unwind(Box::new(()));
        }
    }
}

#[test]
fn a_request_that_ends_cancelled_keeps_no_error() {
    in_both_worlds(|| {
        for (unwinds, fragile) in [(false, false), (true, false), (false, true), (true, true)] {
            let drops = Count::new();
            let probe = drops.probe();
            let request = Request::<()>::try_new(move || {
                Request::current().unwrap().abort(CancelReason::Aborted);
                let error = Counted(probe, Some(WaitError::Cancelled), fragile);
                if unwinds { Err(error).or_unwind() } else { Err(error)? }
            });
            let (send, at_end) = channel();
            let dropped = drops.clone();
            request.on_cancelled(move || send.send(dropped.get()).unwrap());
            assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(CancelReason::Aborted))));
            assert_eq!((at_end.try_recv(), drops.get()), (Ok(1), 1));
        }
    });
}

#[test]
fn an_error_after_a_cancel_is_kept_for_those_who_can_ask() {
    in_both_worlds(|| {
        let drops = Count::new();
        let probe = drops.probe();
        let request = Request::<()>::try_new(move || {
            Request::current().unwrap().abort(CancelReason::Aborted);
            Err(Counted(probe, None, false))?
        });
        let kept = Arc::new(Mutex::new(None));
        let keep = kept.clone();
        request.on_failed(move |failure| *keep.lock().unwrap() = Some(failure.clone()));
        assert!(matches!(request.wait(), Err(WaitError::Failed(_))));
        drop(request);
        assert_eq!(drops.get(), 0, "a callback has kept it");
        drop(kept.lock().unwrap().take());
        // A queue's entry may keep the record, and with it the failure, a moment longer.
        drops.wait_for(1);
    });
}

/// What was made and never submitted goes with its last handle, not with its maker.
#[test]
fn d24_a_child_that_was_never_submitted_is_dropped_with_its_handle() {
    in_both_worlds(|| {
        let (drops, called) = (Count::new(), Count::new());
        let parent = Request::new({
            let (drops, called) = (drops.clone(), called.clone());
            move || {
                for n in 1..=10 {
                    let probe = drops.probe();
                    let child = Request::new(move || drop(probe));
                    let up = called.clone();
                    child.on_cancelled(move || _ = up.up());
                    drop(child);
                    if (drops.get(), called.get()) != (n, n) {
                        return false;
                    }
                }
                true
            }
        });
        assert!(parent.take().unwrap());
    });
}

// ---- the hook -----------------------------------------------------------------------------------------------------------------

/// What the hook for failures that nobody looked at was told.
#[derive(Clone, Default)]
struct Hook(Arc<Mutex<Vec<String>>>);

impl Hook {
    fn runtime(&self, kind: support::Kind) -> Runtime {
        let hook = self.clone();
        kind.builder()
            .on_unhandled_failure(move |failure| hook.0.lock().unwrap().push(failure.error().to_string()))
            .build()
            .unwrap()
    }

    /// Yields until it has been told so much.
    fn wait_for(&self, n: usize) {
        until(|| self.0.lock().unwrap().len() >= n);
    }

    /// Checks that it was told this, and nothing else, since the last check.
    #[track_caller]
    fn check(&self, expected: &[&str]) {
        assert_eq!(std::mem::take(&mut *self.0.lock().unwrap()), expected);
    }
}
