//! How a dependent ends that does not run: failures, cancels, deadlines, shutdown, cycles.

use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use forebear::{
    CancelReason, Cancellation, Outcome, Request, Runtime, State, WaitError, check_cancelled, is_cancelled,
    scope, shield, spawn, then_all, try_scope, yield_now,
};

use crate::cancelling::{Gate, asleep, ends_cancelled, on_each_clocked};
use crate::support::{Count, Flag, in_both_worlds, inside_each, on_each, on_each_of, until};

/// Calls its closure when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn it_fails_with_what_its_dependency_has_failed_with_and_the_path() {
    in_both_worlds(|| {
        let ran = Count::new();
        let up = ran.clone();
        let bad = Request::builder().name("bad").try_build(|| Ok("x".parse::<u32>()?));
        let next = Request::builder().name("next").then(&bad, move |_| up.up());
        let last = Request::builder().name("last").then(&next, |n| *n);
        let Err(WaitError::Failed(failure)) = last.wait() else { panic!("{last:?}") };
        assert!(failure.downcast_ref::<std::num::ParseIntError>().is_some());
        let path: Vec<_> = failure.path().map(|link| link.to_owned()).collect();
        let awaited = {
            let bad = Request::builder().name("bad").try_build(|| Ok("x".parse::<u32>()?));
            let next = Request::builder().name("next").try_build(move || Ok(*bad.wait()?));
            let last = Request::builder().name("last").try_build(move || Ok(*next.wait()?));
            let Err(WaitError::Failed(failure)) = last.wait() else { panic!("{last:?}") };
            failure.path().map(|link| link.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(path, awaited, "as one that waits");
        assert_eq!(ran.get(), 0);
        let told = bad.then_with(|outcome| matches!(outcome, Outcome::Failed(_)));
        assert_eq!(told.wait().unwrap(), &true);
    });
}

#[test]
fn it_fails_with_target_cancelled_if_its_dependency_was_cancelled() {
    on_each(|runtime| {
        runtime.enter(|| {
            let gate = Gate::new(runtime);
            let never = gate.request().then(|()| ());
            let next = never.then(|()| ());
            let told =
                never.then_with(|outcome| matches!(outcome, Outcome::Cancelled(CancelReason::Aborted)));
            next.submit();
            told.submit();
            assert_eq!(never.cancel(), Cancellation::Vetoed, "a dependent that was submitted is demand");
            assert_eq!(never.abort(CancelReason::Aborted), Cancellation::Marked);
            ends_cancelled(&never);
            let Err(WaitError::Failed(failure)) = next.wait() else { panic!("{next:?}") };
            let cause = failure.downcast_ref::<WaitError>();
            assert!(matches!(cause, Some(WaitError::TargetCancelled(CancelReason::Aborted))), "{failure:?}");
            assert_eq!(told.wait().unwrap(), &true);
        });
    });
}

#[test]
fn one_that_is_built_is_no_demand_and_one_that_is_dropped_asks_for_nothing() {
    on_each(|runtime| {
        runtime.enter(|| {
            let gate = Gate::new(runtime);
            let a = gate.request().then(|()| ());
            a.submit();
            let built = a.then(|()| ());
            assert_eq!(a.cancel(), Cancellation::Marked, "nobody has submitted what is after it");
            ends_cancelled(&a);
            drop(built);
            let b = gate.request().then(|()| ());
            b.submit();
            drop(b.then(|()| ()));
            assert!(!b.is_cancelled());
        });
    });
}

#[test]
fn a_cancel_of_the_dependent_ends_it_at_once_and_spares_what_others_want() {
    on_each(|runtime| {
        runtime.enter(|| {
            let mut gate = Gate::new(runtime);
            let shared = gate.request().then(|()| 1);
            let (one, other) = (shared.then(|n| n + 1), shared.then(|n| n + 2));
            one.submit();
            other.submit();
            assert_eq!(one.cancel(), Cancellation::Marked);
            assert_eq!(one.state(), State::Cancelled);
            assert!(!shared.is_cancelled());
            gate.open();
            assert_eq!(other.wait().unwrap(), &3);
            // What nobody else wants goes with it.
            let gate = Gate::new(runtime);
            let alone = gate.request().then(|()| 1);
            let last = then_all((&alone, &gate.request()), |_| ());
            last.submit();
            assert_eq!(last.cancel(), Cancellation::Marked);
            ends_cancelled(&alone);
        });
    });
}

/// The waiter runs one dependency after the other, and another thread cancels the dependent meanwhile.
#[test]
fn a_waiter_runs_nothing_more_for_a_dependent_that_was_cancelled_meanwhile() {
    // The only worker is the waiter's, so nobody else runs what the waiter leaves.
    on_each_of(&[1], |runtime| {
        for is_deep in [false, true] {
            runtime.run(|| {
                let known = Arc::new(OnceLock::<Request<()>>::new());
                let (later, ran) = (known.clone(), Count::new());
                let up = ran.clone();
                let first = Request::new(move || {
                    let dependent = later.get().unwrap();
                    thread::scope(|s| {
                        s.spawn(|| assert_eq!(dependent.abort(CancelReason::Aborted), Cancellation::Marked));
                    });
                });
                let second = Request::new(move || up.up());
                let cancelled = then_all((&first, &second), |_| ());
                known.set(cancelled.clone()).unwrap();
                // It wants both, so the cancel spares them.
                let other = then_all((&first, &second), |_| ());
                other.submit();
                if is_deep {
                    let last = cancelled.then(|()| ());
                    assert!(matches!(last.wait(), Err(WaitError::Failed(_))), "{last:?}");
                } else {
                    let answer = cancelled.wait();
                    assert!(matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Aborted))));
                }
                assert_eq!(ran.get(), 0, "nobody waits for the second");
                other.wait().unwrap();
                assert_eq!(ran.get(), 1);
            });
        }
    });
}

#[test]
fn one_that_expires_ends_unstarted_and_its_dependency_goes_on() {
    on_each_clocked(|runtime, clock| {
        runtime.enter(|| {
            let mut gate = Gate::new(runtime);
            let input = gate.request().then(|()| 1);
            input.submit();
            let ran = Count::new();
            let up = ran.clone();
            let late = Request::builder().timeout(Duration::from_secs(1)).then(&input, move |_| up.up());
            let other = input.then(|n| n + 1);
            late.submit();
            other.submit();
            clock.advance(Duration::from_secs(2));
            assert_eq!(ends_cancelled(&late), CancelReason::Deadline);
            assert!(!input.is_cancelled());
            gate.open();
            assert_eq!(other.wait().unwrap(), &2);
            assert_eq!(ran.get(), 0);
        });
    });
}

#[test]
fn a_cancel_of_its_parent_finds_one_that_waits() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let input = gate.request();
        let made = Arc::new(OnceLock::new());
        let child = made.clone();
        let parent = runtime.spawn(move || {
            let dependent = input.then(|()| ());
            dependent.submit();
            child.set(dependent).unwrap();
            while yield_now().is_ok() {}
        });
        until(|| made.get().is_some());
        parent.cancel();
        let child = made.get().unwrap();
        assert_eq!(ends_cancelled(child), CancelReason::Parent);
    });
}

#[test]
fn what_waits_for_something_that_does_not_end_ends_with_its_runtime() {
    on_each_of(&[1, 2], |runtime| {
        let mut gate = Gate::new(runtime);
        let opened = gate.request();
        // Its shield ends when the test says so, and not before.
        let input = runtime.spawn(move || shield(|| _ = opened.wait()));
        asleep(&input);
        let dependents: Vec<_> = (0..10).map(|_| runtime.enter(|| input.then(|()| ()))).collect();
        let last = runtime.enter(|| dependents[0].then(|()| ()));
        last.submit();
        dependents.iter().for_each(|dependent| _ = dependent.submit());
        std::thread::scope(|s| {
            s.spawn(|| runtime.shutdown(Duration::from_secs(60)));
            // While it runs on.
            for dependent in &dependents {
                until(|| dependent.is_done());
            }
            gate.open();
        });
        for dependent in dependents.iter().chain([&last]) {
            assert_eq!(ends_cancelled(dependent), CancelReason::Shutdown);
        }
    });
}

#[test]
fn a_wait_for_what_is_after_the_waiter_is_told_of_the_cycle() {
    inside_each(|| {
        let known = Arc::new(OnceLock::<Request<()>>::new());
        let later = known.clone();
        let a = Request::builder().name("a").own_stack().try_build(move || {
            until(|| later.get().is_some());
            match later.get().unwrap().wait() {
                Err(WaitError::CircularWait(cycle)) => {
                    Ok(cycle.names().map(str::to_owned).collect::<Vec<_>>())
                }
                answer => panic!("{answer:?}"),
            }
        });
        let b = Request::builder().name("b").then(&a, |_| ());
        let c = Request::builder().name("c").then(&b, |()| ());
        known.set(c.clone()).unwrap();
        c.submit();
        assert_eq!(a.wait().unwrap(), &["a", "c", "b", "a"]);
        c.wait().unwrap();
    });
}

#[test]
fn a_cycle_through_declared_edges_and_waits_is_found_by_an_idle_worker() {
    on_each_of(&[1, 2, 4], |runtime| {
        runtime.enter(|| {
            let known = Arc::new(OnceLock::<Request<bool>>::new());
            let later = known.clone();
            let go = Flag::new();
            let on = go.clone();
            let told = |answer: Result<&(), WaitError>| matches!(answer, Err(WaitError::CircularWait(_)));
            // `a` waits for `w`, which waits for `d`, which is after `a`.
            let a = Request::builder().name("a").own_stack().build(move || {
                on.wait();
                matches!(later.get().unwrap().wait(), Err(WaitError::CircularWait(_)))
            });
            let d = Request::builder().name("d").then(&a, |_| ());
            let dd = d.clone();
            let w = Request::builder().name("w").own_stack().build(move || told(dd.wait()));
            known.set(w.clone()).unwrap();
            a.submit();
            w.submit();
            asleep(&w);
            go.raise();
            let (a, w) = (*a.wait().unwrap(), *w.wait().unwrap());
            assert!(a != w, "one of them is told: {a} {w}");
            d.wait().unwrap();
        });
    });
}

#[test]
fn a_cycle_through_the_end_of_a_scope_is_found() {
    on_each_of(&[1, 2, 4], |runtime| {
        runtime.enter(|| {
            let known = Arc::new(OnceLock::<Request<()>>::new());
            let later = known.clone();
            let a = Request::builder().name("a").own_stack().build(move || {
                until(|| later.get().is_some());
                matches!(later.get().unwrap().wait(), Err(WaitError::CircularWait(_)))
            });
            let input = a.clone();
            // `holder` ends when its scope does, whose job is after `a`, which waits for `holder`.
            let holder = Request::builder().name("holder").own_stack().build(move || {
                scope(|s| {
                    Request::builder().name("job").after(&input).spawn_in(s, || ());
                });
            });
            known.set(holder.clone()).unwrap();
            holder.submit();
            assert_eq!(a.wait().unwrap(), &true);
            holder.wait().unwrap();
        });
    });
}

/// The child of a cancelled request that has not been submitted. `submits`: what is after it is submitted before it is waited for.
fn after_an_orphan(runtime: &Runtime, submits: bool) {
    let made = Arc::new(OnceLock::new());
    let child = made.clone();
    let ran = Count::new();
    let up = ran.clone();
    let parent = runtime.spawn(move || {
        child.set(Request::new(move || _ = up.up())).unwrap();
        until(is_cancelled);
    });
    until(|| made.get().is_some());
    parent.cancel();
    until(|| parent.is_done());
    let child = made.get().unwrap();
    let dependents = [child.then(|()| ()), Request::builder().own_stack().after(child).build(|| ())];
    for dependent in dependents {
        if submits {
            dependent.submit();
        }
        let Err(WaitError::Failed(failure)) = dependent.wait() else { panic!("{dependent:?}") };
        let cause = failure.downcast_ref::<WaitError>();
        assert!(matches!(cause, Some(WaitError::TargetCancelled(CancelReason::Parent))), "{failure:?}");
    }
    assert_eq!(ran.get(), 0);
}

#[test]
fn what_is_after_the_unsubmitted_child_of_a_cancelled_request_fails() {
    on_each(|runtime| {
        for submits in [false, true] {
            runtime.enter(|| after_an_orphan(runtime, submits));
            runtime.run(|| after_an_orphan(runtime, submits));
        }
    });
}

/// What a scope has answered at its end, if it is a cycle: its names.
fn cycle_of(answer: Result<(), WaitError>) -> Vec<String> {
    let Err(WaitError::Failed(failure)) = answer else { panic!("{answer:?}") };
    match failure.downcast_ref::<WaitError>() {
        Some(WaitError::CircularWait(cycle)) => cycle.names().map(str::to_owned).collect(),
        _ => panic!("{failure:?}"),
    }
}

/// No request waits in the cycle: only the scope does.
#[test]
fn the_end_of_a_scope_answers_the_cycle_that_its_declared_jobs_close() {
    on_each(|runtime| {
        // How many requests stand between the job and what has opened the scope.
        for between in 0..3 {
            let known = Arc::new(OnceLock::<Request<Vec<String>>>::new());
            let later = known.clone();
            let a = Request::builder().name("a").own_stack().on(runtime).build(move || {
                let mut last = later.get().unwrap().then(|_| ());
                for _ in 1..between {
                    last = last.then(|()| ());
                }
                cycle_of(try_scope(|s| {
                    let builder = Request::builder().name("job");
                    match between {
                        0 => builder.after(later.get().unwrap()),
                        _ => builder.after(&last),
                    }
                    .spawn_in(s, || panic!("it has no input"));
                    Ok(())
                }))
            });
            known.set(a.clone()).unwrap();
            let names = a.wait().unwrap();
            assert!(names.iter().any(|name| name == "a"), "{names:?}");
            assert_eq!(names.first(), names.last());
        }
    });
}

/// Each of two scopes has a job that is after what has opened the other.
#[test]
fn a_cycle_through_the_ends_of_two_scopes_is_answered() {
    type Known = Arc<OnceLock<Request<Result<(), WaitError>>>>;
    on_each_of(&[1, 2, 4], |runtime| {
        let known: [Known; 2] = Default::default();
        let both: Vec<_> = [0, 1]
            .map(|me| {
                let known = known.clone();
                Request::builder().name(["a", "b"][me]).own_stack().on(runtime).build(move || {
                    let other = known[1 - me].get().unwrap();
                    try_scope(|s| {
                        Request::builder().name(["c", "d"][me]).after(other).spawn_in(s, || ());
                        Ok(())
                    })
                })
            })
            .into();
        known.iter().zip(&both).for_each(|(place, request)| place.set(request.clone()).unwrap());
        both.iter().for_each(|request| _ = request.submit());
        let answers: Vec<_> = both.iter().map(|request| request.wait().unwrap().clone()).collect();
        assert!(answers.iter().any(Result::is_err), "{answers:?}");
        for answer in answers.into_iter().filter(Result::is_err) {
            assert!(!cycle_of(answer).is_empty());
        }
    });
}

#[test]
fn a_mark_that_comes_while_it_runs_is_seen() {
    inside_each(|| {
        let (started, input) = (Flag::new(), Request::new(|| ()));
        let up = started.clone();
        let dependent = input.then(move |()| {
            up.raise();
            until(is_cancelled);
            check_cancelled().is_err()
        });
        dependent.submit();
        started.wait();
        dependent.cancel();
        ends_cancelled(&dependent);
    });
}

#[test]
fn a_dependent_of_another_runtime_waits_on_its_own_stack() {
    on_each_of(&[1, 2], |runtime| {
        let other = crate::support::runtime(1);
        let mut gate = Gate::new(runtime);
        let dependent = other.enter(|| gate.request().then(|()| 7));
        dependent.submit();
        asleep(&dependent);
        gate.open();
        assert_eq!(dependent.wait().unwrap(), &7);
    });
}

#[test]
fn a_time_out_of_a_wait_for_one_that_waits_leaves_it_as_it_is() {
    in_both_worlds(|| {
        let open = Flag::new();
        let opened = open.clone();
        let input = Request::builder().own_stack().build(move || opened.wait());
        let dependent = input.then(|()| 7);
        assert!(matches!(dependent.wait_timeout(Duration::ZERO), Err(WaitError::TimedOut)));
        assert!(matches!(dependent.wait_timeout(Duration::from_micros(10)), Err(WaitError::TimedOut)));
        open.raise();
        assert_eq!(dependent.wait().unwrap(), &7);
        let watcher = dependent.clone();
        assert_eq!(spawn(move || watcher.watch().copied()).take().unwrap().unwrap(), 7);
    });
}

/// The first that runs cancels and waits for the other, whose edge the same end closes.
#[test]
fn of_two_that_become_ready_at_once_one_may_cancel_the_other_and_wait_for_it() {
    on_each(|runtime| {
        for inside in [false, true] {
            runtime.enter(|| {
                let (completer, answer) = Request::<()>::completer("answer");
                let input = if inside { answer.then(|()| ()) } else { answer };
                let others: [Arc<OnceLock<Request<()>>>; 2] = Default::default();
                let dependents: Vec<_> = (0..2)
                    .map(|me| {
                        let other = others[1 - me].clone();
                        input.then(move |()| {
                            let other = other.get().unwrap();
                            other.cancel();
                            assert!(!matches!(other.wait(), Err(WaitError::Failed(_))));
                        })
                    })
                    .collect();
                others.iter().zip(&dependents).for_each(|(place, it)| place.set(it.clone()).unwrap());
                dependents.iter().for_each(|it| _ = it.submit());
                completer.complete(()).unwrap();
                dependents.iter().for_each(|it| until(|| it.is_done()));
                others.iter().for_each(|place| assert!(place.get().is_some()));
            });
        }
    });
}

/// Ends a request unstarted. The destructor of its captures waits for what is after it: for that itself, or for a request that waits for it.
fn wait_for_what_is_after(runtime: &Runtime, through_another: bool, end: impl FnOnce(&Request<()>)) {
    let (completer, never) = runtime.enter(|| Request::<()>::completer("never"));
    let known = Arc::new(OnceLock::<Request<()>>::new());
    let (told, tells) = mpsc::channel();
    let (later, tell) = (known.clone(), told.clone());
    let captured = OnDrop(move || tell.send(later.get().unwrap().wait().err()).unwrap());
    // It is after what nobody completes, so its waiter does not run it.
    let ended =
        runtime.enter(|| Request::builder().name("ended").after(&never).build(move || drop(captured)));
    let middle = runtime.enter(|| Request::builder().name("middle").after(&ended).build(|| ()));
    let last = runtime.enter(|| Request::builder().name("last").after(&middle).build(|| ()));
    let waiter = through_another.then(|| {
        let waited = last.clone();
        let build = || {
            let waits = move || told.send(waited.wait().err()).unwrap();
            Request::builder().name("waiter").own_stack().build(waits)
        };
        runtime.enter(build)
    });
    known.set(waiter.as_ref().unwrap_or(&last).clone()).unwrap();
    [Some(&ended), Some(&middle), Some(&last), waiter.as_ref()].into_iter().flatten().for_each(|request| {
        request.submit();
    });
    waiter.iter().for_each(asleep);
    end(&ended);
    waiter.iter().for_each(|waiter| _ = waiter.wait());
    let told: Vec<_> = tells.iter().take(1 + usize::from(through_another)).collect();
    let is_cycle = |told: &&Option<WaitError>| matches!(told, Some(WaitError::CircularWait(_)));
    let cycles: Vec<_> = told.iter().filter(is_cycle).flatten().collect();
    let [WaitError::CircularWait(cycle)] = cycles[..] else { panic!("one wait returns the cycle: {told:?}") };
    for name in ["ended", "last"].into_iter().chain(waiter.as_ref().map(|_| "waiter")) {
        assert!(cycle.names().any(|one| one == name), "{cycle}");
    }
    drop(completer);
}

#[test]
fn a_destructor_of_captures_that_waits_for_what_is_after_their_request_is_told_of_the_cycle() {
    on_each(|runtime| {
        for through_another in [false, true] {
            // On this thread, which runs no request; and in a request.
            wait_for_what_is_after(runtime, through_another, |ended| {
                ended.abort(CancelReason::Aborted);
            });
            wait_for_what_is_after(runtime, through_another, |ended| {
                runtime.run(|| ended.abort(CancelReason::Aborted));
            });
        }
    });
}

/// A scope has a job that has not started, whose captures wait in their destructor for the request that opened the scope. `end` ends that one.
fn captures_wait_for_what_opened_the_scope(
    runtime: &Runtime,
    is_nested: bool,
    end: impl FnOnce(&Request<()>),
) {
    let (completer, never) = runtime.enter(|| Request::<()>::completer("never"));
    let known = Arc::new(OnceLock::<Request<()>>::new());
    let (told, tells) = mpsc::channel();
    let later = known.clone();
    let opener = Request::builder().name("opener").own_stack().on(runtime).build(move || {
        let captured = OnDrop(move || told.send(later.get().unwrap().wait().err()).unwrap());
        let builder = Request::builder().name("job");
        scope(|s| {
            if is_nested {
                // The job has the last handle of the one whose captures wait.
                let inner = Request::builder().name("inner").after(&never).build(move || drop(captured));
                builder.after(&inner).spawn_in(s, || ());
            } else {
                builder.after(&never).spawn_in(s, move || drop(captured));
            }
        });
    });
    known.set(opener.clone()).unwrap();
    opener.submit();
    asleep(&opener);
    end(&opener);
    assert!(matches!(opener.wait(), Err(WaitError::TargetCancelled(_))), "{opener:?}");
    let answer = tells.recv().unwrap();
    let Some(WaitError::CircularWait(cycle)) = &answer else { panic!("{answer:?}") };
    assert!(cycle.names().any(|name| name == "opener"), "{cycle}");
    drop(completer);
}

#[test]
fn a_destructor_of_a_jobs_captures_that_waits_for_what_opened_the_scope_is_told_of_the_cycle() {
    on_each(|runtime| {
        for is_nested in [false, true] {
            captures_wait_for_what_opened_the_scope(runtime, is_nested, |opener| {
                opener.abort(CancelReason::Aborted);
            });
            captures_wait_for_what_opened_the_scope(runtime, is_nested, |opener| {
                runtime.run(|| opener.abort(CancelReason::Aborted));
            });
        }
    });
}
