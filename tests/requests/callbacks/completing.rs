//! From the callable's return to the end: the request is over for nobody but its callbacks, can be touched by everybody, and
//! its outcome stands.

use std::sync::mpsc::channel;
use std::time::Duration;

use forebear::{
    AnyRequest, CancelReason, Cancellation, Outcome, Request, State, WaitError, spawn, yield_now,
};

use crate::support::order::{Gate, Log, root};
use crate::support::{Come, Count, Flag, in_both_worlds, on_each, until};
use crate::{at_each_end, boo, note_all, told};

/// Whether it looks unfinished in every way that there is.
fn is_unfinished(request: &Request<u32>) -> bool {
    request.get().is_none()
        && request.outcome().is_none()
        && !request.is_done()
        && request.clone().try_take().is_err()
        && any_is_unfinished(&request.to_untyped())
}

fn any_is_unfinished(any: &AnyRequest) -> bool {
    !any.is_done() && matches!(any.state(), State::Running | State::Suspended)
}

#[test]
fn while_they_run_the_request_is_over_for_them() {
    at_each_end(|end, request, bring| {
        let (send, found) = channel();
        let ask = || {
            let (send, me) = (send.clone(), request.to_untyped());
            move || send.send((me.is_done(), me.state())).unwrap()
        };
        let [a, b, c, d] = [ask(), ask(), ask(), ask()];
        request.on_finished(move |_| a()).on_failed(move |_| b()).on_cancelled(c).on_done(move |_| d());
        let kept = request.to_untyped();
        bring(request);
        assert_eq!(found.try_iter().collect::<Vec<_>>(), [(true, kept.state()); 2], "{}", end.done);
    });
    in_both_worlds(|| {
        for fails in [false, true] {
            let (send, found) = channel();
            let request = Request::new(move || if fails { boo() } else { 7 });
            let ask = || {
                let (send, me) = (send.clone(), request.clone());
                move || {
                    let outcome = me.outcome().map(told);
                    let value = me.get().copied();
                    // The others are to be shown it yet.
                    assert!(me.try_take().is_err());
                    send.send((outcome, value)).unwrap();
                }
            };
            let [a, b, c] = [ask(), ask(), ask()];
            request.on_finished(move |_| a()).on_failed(move |_| b()).on_done(move |_| c());
            assert_eq!(request.wait().is_err(), fails);
            let expected = if fails { ("failed boo", None) } else { ("finished 7", Some(7)) };
            let expected = (Some(expected.0.to_owned()), expected.1);
            assert_eq!(found.try_iter().collect::<Vec<_>>(), [expected.clone(), expected]);
        }
    });
}

#[test]
fn while_they_run_the_request_is_not_over_for_others() {
    on_each(|runtime| {
        for fails in [false, true] {
            let (called, go) = (Count::new(), Flag::new());
            let hold = || {
                let (called, go) = (called.clone(), go.clone());
                move || {
                    called.up();
                    go.wait();
                }
            };
            let (a, b, c) = (hold(), hold(), hold());
            let request = root(runtime).build(move || if fails { boo() } else { 7 });
            request.on_finished(move |_| a()).on_failed(move |_| b()).on_done(move |_| c()).submit();
            let look = |request: &Request<u32>| {
                let soon = Duration::from_millis(1);
                is_unfinished(request)
                    && matches!(request.wait_timeout(soon), Err(WaitError::TimedOut))
                    && matches!(request.to_untyped().wait_timeout(soon), Err(WaitError::TimedOut))
            };
            called.wait_for(1);
            assert!(look(&request));
            let other = request.clone();
            assert!(runtime.run(move || look(&other)));
            go.raise();
            assert_eq!(request.wait().is_err(), fails);
            assert_eq!(called.get(), 2);
        }
    });
}

#[test]
fn b40_in_its_own_callback_a_wait_for_the_request_answers_at_once() {
    type Way = fn(&Request<u32>) -> Result<(), WaitError>;
    const WAYS: [Way; 4] = [
        |me| me.wait().map(|seven| assert_eq!(seven, &7)),
        |me| me.to_untyped().wait(),
        |me| me.wait_timeout(Duration::from_secs(3600)).map(drop),
        |me| me.watch().map(drop),
    ];
    in_both_worlds(|| {
        for fails in [false, true] {
            let (send, answers) = channel();
            let request = Request::new(move || if fails { boo() } else { 7 });
            let ask = || {
                let (send, me) = (send.clone(), request.clone());
                move || WAYS.iter().for_each(|way| send.send(way(&me)).unwrap())
            };
            let (a, b, c) = (ask(), ask(), ask());
            request.on_finished(move |_| a()).on_failed(move |_| b()).on_done(move |_| c());
            assert_eq!(request.wait().is_err(), fails);
            let answers: Vec<_> = answers.try_iter().collect();
            assert_eq!(answers.len(), 2 * WAYS.len());
            for answer in answers {
                match answer {
                    Ok(()) => assert!(!fails),
                    Err(WaitError::Failed(failure)) => assert_eq!(failure.panic_message(), Some("boo")),
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
        // A cancelled waiter gets that error first, and the outcome inside a shielded region.
        let (send, answers) = channel();
        let request = Request::new(|| 7);
        let me = request.to_untyped();
        request.on_cancelled(move || {
            send.send(me.wait()).unwrap();
            send.send(forebear::shield(|| me.wait())).unwrap();
        });
        request.abort(CancelReason::Other(3));
        assert!(matches!(answers.come().unwrap(), Err(WaitError::Cancelled)));
        assert!(matches!(answers.come().unwrap(), Err(WaitError::TargetCancelled(CancelReason::Other(3)))));
    });
}

/// After the panic it is a failure for them, too, and what they were lent of the value stays.
#[test]
fn a_success_callback_that_panics_changes_what_the_later_ones_see() {
    in_both_worlds(|| {
        let (send, seen) = channel();
        let request = Request::new(|| 7);
        let (me, then) = (request.clone(), request.clone());
        request.on_finished(move |_| {
            assert_eq!(me.get(), Some(&7));
            let seven = me.wait().unwrap();
            let _ = std::panic::catch_unwind(boo);
            assert_eq!(seven, &7);
            boo();
        });
        request.on_failed(move |_| {
            let answer = then.wait().map(drop).unwrap_err();
            send.send((then.state(), then.get().is_none(), answer.failure().is_some())).unwrap();
        });
        assert!(request.wait().is_err());
        assert_eq!(seen.come().unwrap(), (State::Failed, true, true));
    });
}

/// A `take` waits for the last of the callbacks, and so does whoever is not one.
#[test]
fn to_wait_in_a_callback_for_its_own_end_is_a_circular_wait() {
    type Way = fn(&Request<u32>) -> Result<(), WaitError>;
    const WAYS: [Way; 2] = [
        |me| me.clone().take().map(drop),
        // By a child that it runs directly.
        |me| {
            let me = me.clone();
            Request::new(move || me.wait().map(drop)).take()?
        },
    ];
    in_both_worlds(|| {
        let (send, answers) = channel();
        let request = Request::builder().name("selfish").build(|| 7);
        let ask = || {
            let (send, me) = (send.clone(), request.clone());
            move || WAYS.iter().for_each(|way| send.send(way(&me)).unwrap())
        };
        let (a, b) = (ask(), ask());
        request.on_finished(move |_| a()).on_done(move |_| b());
        request.wait().unwrap();
        let answers: Vec<_> = answers.try_iter().collect();
        assert_eq!(answers.len(), 2 * WAYS.len());
        for answer in answers {
            let Err(WaitError::CircularWait(cycle)) = answer else { panic!("{answer:?}") };
            assert!(cycle.to_string().contains("selfish"), "{cycle}");
        }
        // Of a failure there is nothing to be taken.
        let (send, answer) = channel();
        let request = Request::new(boo);
        let me = request.clone();
        request.on_failed(move |_| send.send(me.take()).unwrap());
        assert!(request.wait().is_err());
        assert!(matches!(answer.come().unwrap(), Err(WaitError::Failed(_))));
    });
}

/// It runs on the stack of the one it waits for. Where it does not, it is the last of the two waits that is told.
#[test]
fn to_wait_in_a_callback_for_the_lender_of_the_stack_is_a_circular_wait() {
    let _not = crate::support::not_on(
        crate::support::Modes::Seeded,
        "the target may be queued instead of being lent the stack",
    );
    in_both_worlds(|| {
        let (send, answer) = channel();
        let outer = Request::new(move || {
            let me = Request::current().unwrap();
            let inner = Request::new(|| 7);
            inner.on_done(move |_| send.send(me.wait()).unwrap());
            inner.take()
        });
        let is_circular = |answer: &WaitError| matches!(answer, WaitError::CircularWait(_));
        let taken = outer.wait().unwrap();
        let told = answer.come().unwrap();
        assert_ne!(taken.as_ref().is_err_and(is_circular), told.as_ref().is_err_and(is_circular));
        assert!(matches!(taken, Ok(7)) || told.is_ok(), "{taken:?}, {told:?}");
    });
}

#[test]
fn who_subscribes_in_a_callback_is_appended() {
    at_each_end(|end, request, bring| {
        let log = Log::default();
        let again = || {
            let (log, me) = (log.clone(), request.to_untyped());
            move || {
                log.note("first");
                let inner = log.clone();
                me.on_done(move |_| inner.note("inner"));
                log.note("first ends");
            }
        };
        let [a, b, c] = [again(), again(), again()];
        note_all(&request, &log);
        request.on_finished(move |_| a()).on_failed(move |_| b()).on_cancelled(c);
        note_all(&request, &log);
        bring(request);
        log.check(&[end.group, "first", "first ends", end.group, end.done, end.done, "inner"]);
    });
}

/// Also of the groups when done-callbacks have been called already; and what does not fit is not called.
#[test]
fn who_subscribes_in_a_done_callback_is_appended() {
    in_both_worlds(|| {
        for fails in [false, true] {
            let (log, drops) = (Log::default(), Count::new());
            let request = Request::new(move || if fails { boo() } else { 7 });
            let (me, noted, dropped) = (request.clone(), log.clone(), drops.clone());
            request.on_done(move |_| {
                note_all(&me, &noted);
                let [a, b, c] = [(); 3].map(|()| dropped.probe());
                me.on_finished(move |_| drop(a)).on_failed(move |_| drop(b)).on_cancelled(move || drop(c));
                noted.note("first ends");
            });
            let last = log.clone();
            request.on_done(move |_| last.note("last"));
            assert_eq!(request.wait().is_err(), fails);
            match fails {
                false => log.check(&["first ends", "last", "finished 7", "done: finished 7"]),
                true => log.check(&["first ends", "last", "failed boo", "done: failed boo"]),
            }
            assert_eq!(drops.get(), 3);
        }
    });
}

/// It is called where the others are, not by the thread that subscribes.
#[test]
fn who_subscribes_elsewhere_while_they_run_is_appended() {
    on_each(|runtime| {
        let (log, begun, go) = (Log::default(), Flag::new(), Flag::new());
        let request = root(runtime).build(|| 7);
        let (up, may, noted) = (begun.clone(), go.clone(), log.clone());
        request.on_finished(move |_| {
            up.raise();
            may.wait();
            noted.note("first");
        });
        request.submit();
        begun.wait();
        let (send, ran_in) = channel();
        let also = send.clone();
        note_all(&request, &log);
        request.on_finished(move |_| send.send(Request::current()).unwrap());
        let (other, noted) = (request.clone(), log.clone());
        runtime.run(move || {
            other.on_finished(move |_| also.send(Request::current()).unwrap());
            note_all(&other, &noted);
        });
        log.check(&[]);
        go.raise();
        assert_eq!(request.wait().unwrap(), &7);
        log.check(&["first", "finished 7", "finished 7", "done: finished 7", "done: finished 7"]);
        assert_eq!(
            ran_in.try_iter().collect::<Vec<_>>(),
            [Some(request.to_untyped()), Some(request.to_untyped())]
        );
    });
}

#[test]
fn d11_a_cancel_while_they_run_is_too_late() {
    at_each_end(|end, request, bring| {
        let (send, answers) = channel();
        let late = || {
            let (send, me) = (send.clone(), request.to_untyped());
            move || {
                let marked = me.is_cancelled();
                let answers = (me.cancel(), me.abort(CancelReason::Other(99)), me.cancel());
                let _ = send.send((answers, marked == me.is_cancelled()));
            }
        };
        let [a, b, c, d] = [late(), late(), late(), late()];
        request.on_finished(move |_| a()).on_failed(move |_| b()).on_cancelled(c).on_done(move |_| d());
        let log = Log::default();
        note_all(&request, &log);
        bring(request);
        let late = Cancellation::AlreadyDone;
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [((late, late, late), true); 2]);
        log.check(&[end.group, end.done]);
    });
}

#[test]
fn d11_a_cancel_from_elsewhere_while_they_run_is_too_late() {
    on_each(|runtime| {
        for fails in [false, true] {
            let (begun, go) = (Flag::new(), Flag::new());
            let (up, may) = (begun.clone(), go.clone());
            let log = Log::default();
            let request = root(runtime).build(move || if fails { boo() } else { 7 });
            request.on_done(move |_| {
                up.raise();
                may.wait();
            });
            request.submit();
            begun.wait();
            assert_eq!(request.cancel(), Cancellation::AlreadyDone);
            let other = request.to_untyped();
            let answer = runtime.run(move || other.abort(CancelReason::Aborted));
            assert_eq!(answer, Cancellation::AlreadyDone);
            drop(request.cancel_on_drop());
            note_all(&request, &log);
            go.raise();
            assert_eq!(request.wait().is_err(), fails);
            assert!(!request.is_cancelled());
            match fails {
                false => log.check(&["finished 7", "done: finished 7"]),
                true => log.check(&["failed boo", "done: failed boo"]),
            }
        }
    });
}

/// What waits in a callback is not woken by it either: its request is as good as over.
#[test]
fn a_cancel_of_the_parent_leaves_callbacks_alone() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (begun, log) = (Flag::new(), Log::default());
        let (target, up, noted) = (gate.request.clone(), begun.clone(), log.clone());
        let parent = root(runtime).spawn(move || {
            let child = Request::builder().own_stack().build(|| 7);
            note_all(&child, &noted);
            child.on_finished(move |_| {
                up.raise();
                noted.note(format!("{:?}", target.wait()));
            });
            child.submit();
            until(forebear::is_cancelled);
        });
        begun.wait();
        assert_eq!(parent.cancel(), Cancellation::Marked);
        assert!(matches!(parent.watch(), Err(WaitError::TargetCancelled(_))));
        gate.open();
        until(|| log.told().len() == 3);
        log.check(&["finished 7", "Ok(())", "done: finished 7"]);
    });
}

/// On one worker nothing else could run if it held on to it.
#[test]
fn a_callback_that_waits_suspends_and_its_waiters_wait_on() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (begun, slow) = (Flag::new(), gate.request.clone());
        let (up, log) = (begun.clone(), Log::default());
        let request = root(runtime).name("slow").build(|| 7);
        let noted = log.clone();
        request.on_finished(move |_| {
            up.raise();
            slow.wait().unwrap();
            noted.note("called");
        });
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let (request, log) = (request.clone(), log.clone());
                root(runtime).spawn(move || {
                    assert_eq!(request.wait().unwrap(), &7);
                    log.note("told");
                })
            })
            .collect();
        begun.wait();
        until(|| request.state() == State::Suspended);
        for n in 0..20 {
            assert_eq!(runtime.run(move || spawn(move || n).take().unwrap()), n);
        }
        assert!(waiters.iter().all(|waiter| !waiter.is_done()));
        log.check(&[]);
        gate.open();
        waiters.into_iter().for_each(|waiter| waiter.take().unwrap());
        log.check(&["called", "told", "told", "told"]);
    });
}

/// Once in each kind of callback: nothing of ours is locked while they run.
#[test]
fn d9_callbacks_may_touch_their_own_request() {
    at_each_end(|end, request, bring| {
        let log = Log::default();
        let touch = || {
            let (log, me) = (log.clone(), request.to_untyped());
            move || {
                let copies = [me.clone(), me.clone()];
                let _ = (me.cancel(), me.abort(CancelReason::Aborted));
                me.on_done(|_| ()).on_done(|_| ());
                let text = format!("{me:?} {} {} {:?}", me.name(), me.id(), me.assigned_worker());
                assert!(!text.is_empty() && me.parent() != Some(me.clone()) && copies[0] == me);
                log.note(format!("touched {}", me.is_done()));
            }
        };
        let [a, b, c, d] = [touch(), touch(), touch(), touch()];
        request.on_finished(move |_| a()).on_failed(move |_| b()).on_cancelled(c).on_done(move |_| d());
        note_all(&request, &log);
        bring(request);
        log.check(&["touched true", end.group, "touched true", end.done]);
    });
}

#[test]
fn d9_callbacks_may_use_a_handle_of_their_own_request() {
    in_both_worlds(|| {
        let log = Log::default();
        let request = Request::new(|| 7);
        let (me, noted) = (request.clone(), log.clone());
        request.on_done(move |how| {
            let copy = me.clone();
            me.submit().submit();
            drop(copy.cancel_on_drop());
            note_all(&copy, &noted);
            assert!(copy.try_take().is_err());
            noted.note(told(how));
        });
        assert_eq!(request.wait().unwrap(), &7);
        log.check(&["finished 7", "finished 7", "done: finished 7"]);
        assert_eq!(request.take().unwrap(), 7, "it was the only one left");
    });
}

#[test]
fn a_callback_may_hold_the_last_handle_of_its_request() {
    on_each(|runtime| {
        for (fails, world) in [(false, 0), (true, 0), (false, 1), (true, 1)] {
            let (drops, log) = (Count::new(), Log::default());
            let value = drops.probe();
            let make = || {
                Request::builder().own_stack().build(move || {
                    if fails {
                        boo();
                    }
                    value
                })
            };
            let test = |request: Request<_>| {
                let [a, b] = [(); 2].map(|()| log.clone());
                let (dropped, noted) = (drops.clone(), log.clone());
                let any = request.to_untyped();
                let held = request.clone();
                request.on_failed(move |_| b.note("failed")).on_finished(move |_| a.note("finished"));
                request.on_done(move |how| {
                    drop(held);
                    // `how` still lends the value.
                    noted.note(format!("{} {}", matches!(how, Outcome::Finished(_)), dropped.get()));
                });
                request.submit();
                drop(request);
                until(|| any.is_done());
                any
            };
            let any = if world == 0 { runtime.enter(|| test(make())) } else { runtime.run(|| test(make())) };
            assert_eq!(drops.get(), 1);
            log.check(if fails { &["failed", "false 1"] } else { &["finished", "true 0"] });
            assert_eq!(any.wait().is_err(), fails);
        }
    });
}

/// A wait that gave up while callbacks run has left nothing behind that they could trip over.
#[test]
fn waiters_may_give_up_while_they_run() {
    on_each(|runtime| {
        let (begun, go) = (Flag::new(), Flag::new());
        let (up, may) = (begun.clone(), go.clone());
        let request = root(runtime).build(|| 7);
        request.on_finished(move |_| {
            up.raise();
            may.wait();
        });
        request.submit();
        begun.wait();
        for _ in 0..10 {
            let other = request.clone();
            assert!(matches!(request.wait_timeout(Duration::from_millis(1)), Err(WaitError::TimedOut)));
            let quits = root(runtime).spawn(move || {
                let answer = other.wait_timeout(Duration::from_millis(1)).map(drop);
                yield_now().unwrap();
                answer
            });
            assert!(matches!(quits.take().unwrap(), Err(WaitError::TimedOut)));
        }
        go.raise();
        assert_eq!(request.take().unwrap(), 7);
    });
}
