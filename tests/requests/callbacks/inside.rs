//! What callbacks may do: wait, create, cancel, subscribe; to their own request, its children and anybody else.

use std::sync::mpsc::channel;

use forebear::channel::{SendError, bounded, oneshot, unbounded, watch};
use forebear::{
    CancelReason, Cancellation, Request, WaitError, is_cancelled, join, scope, shield, spawn, try_spawn,
    yield_now,
};

use crate::support::order::{Gate, Log, root};
use crate::support::{Count, Flag, Joined, in_both_worlds, on_each, until};
use crate::{at_each_end, boo, note_all};

/// Waits in every way that there is.
fn waits() -> u32 {
    let made = Request::new(|| 1);
    let spawned = (spawn(|| 2), spawn(|| 3));
    let own = Request::builder().own_stack().spawn(|| 4);
    let (a, b) = join(|| spawn(|| 5).take().unwrap(), || 6);
    let in_scope = scope(|scope| scope.spawn(|| 7).take().unwrap());
    yield_now().unwrap();
    let failed = spawn(boo).wait().map_or(8, |_| 0);
    spawned.1.take().unwrap()
        + spawned.0.take().unwrap()
        + made.wait().unwrap()
        + own.take().unwrap()
        + a
        + b
        + in_scope
        + failed
}

#[test]
fn callbacks_may_wait_and_create() {
    at_each_end(|end, request, bring| {
        let (send, sums) = channel();
        // A cancelled request's waits are refused, outside of a shielded region.
        let wait = || {
            let send = send.clone();
            move || send.send(shield(waits)).unwrap()
        };
        let [a, b, c, d] = [wait(), wait(), wait(), wait()];
        let log = Log::default();
        request.on_finished(move |_| a()).on_failed(move |_| b()).on_cancelled(c).on_done(move |_| d());
        note_all(&request, &log);
        bring(request);
        assert_eq!(sums.try_iter().collect::<Vec<_>>(), [36, 36]);
        log.check(&[end.group, end.done]);
    });
}

/// Deep down, too.
#[test]
fn callbacks_of_requests_made_in_callbacks_may_wait() {
    fn nested(depth: u32) -> u32 {
        let request = spawn(move || depth);
        let (send, sum) = channel();
        request.on_finished(move |n| send.send(if *n == 0 { 0 } else { n + nested(n - 1) }).unwrap());
        request.wait().unwrap();
        sum.try_recv().unwrap()
    }
    in_both_worlds(|| assert_eq!(nested(12), 78));
}

#[test]
fn what_a_callback_made_and_left_runs_all_the_same() {
    on_each(|runtime| {
        let ran = Count::new();
        let request = root(runtime).build(|| 7);
        let [a, b] = [ran.clone(), ran.clone()];
        request.on_finished(move |_| drop(spawn(move || a.up()))).on_done(move |_| {
            Request::builder().detached().spawn(move || b.up());
        });
        assert_eq!(request.take().unwrap(), 7);
        ran.wait_for(2);
    });
}

/// It is a cancelled request like any other: only a shielded region waits.
#[test]
fn in_callbacks_of_a_cancelled_request_waits_answer_cancelled_unless_shielded() {
    at_each_end(|end, request, bring| {
        if end.group != "cancelled" {
            return;
        }
        let done = Request::ready(1);
        let (send, found) = channel();
        let ask = || {
            let (send, done) = (send.clone(), done.clone());
            move || {
                let refused = |answer: Result<(), WaitError>| matches!(answer, Err(WaitError::Cancelled));
                let answers = [
                    is_cancelled(),
                    refused(Request::new(|| 1).wait().map(drop)),
                    refused(spawn(|| 1).wait().map(drop)),
                    refused(spawn(|| 1).take().map(drop)),
                    refused(done.wait().map(drop)),
                    yield_now().is_err(),
                    shield(|| spawn(|| 1).take()).is_ok(),
                    is_cancelled(),
                ];
                send.send(answers).unwrap();
            }
        };
        let (a, b) = (ask(), ask());
        request.on_cancelled(a).on_done(move |_| b());
        bring(request);
        for answers in [found.try_recv().unwrap(), found.try_recv().unwrap()] {
            assert_eq!(answers, [true; 8]);
        }
    });
}

/// A `send` is a cancellation point, also where there is room, and would lose the event that the callback is for.
#[test]
fn callbacks_of_a_cancelled_request_report_by_try_send() {
    at_each_end(|end, request, bring| {
        if end.group != "cancelled" {
            return;
        }
        let (events, told) = unbounded();
        let (narrow, room) = bounded(2);
        let (latest, seen) = watch::channel(0);
        let report = |who| {
            let (events, narrow, latest) = (events.clone(), narrow.clone(), latest.clone());
            let (once, heard) = oneshot::channel();
            let report = move || {
                assert_eq!(events.send(0), Err(SendError::Cancelled(0)));
                assert_eq!(narrow.send(0), Err(SendError::Cancelled(0)));
                events.try_send(who).unwrap();
                shield(|| narrow.send(who)).unwrap();
                once.send(who).unwrap();
                latest.send(who).unwrap();
            };
            (report, heard)
        };
        let ((a, first), (b, second)) = (report(1), report(2));
        request.on_cancelled(a).on_done(move |_| b());
        bring(request);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(room.try_iter().collect::<Vec<_>>(), [1, 2]);
        assert_eq!((first.try_recv(), second.try_recv(), *seen.get()), (Ok(1), Ok(2), 2));
    });
}

#[test]
fn what_callbacks_of_a_cancelled_request_make_is_born_cancelled() {
    at_each_end(|end, request, bring| {
        if end.group != "cancelled" {
            return;
        }
        let (ran, (send, made)) = (Count::new(), channel());
        let make = || {
            let (ran, send) = (ran.clone(), send.clone());
            move || {
                let (a, b, c) = (ran.clone(), ran.clone(), ran);
                for child in [
                    spawn(move || a.up()),
                    Request::new(move || b.up()),
                    Request::builder().own_stack().spawn(move || c.up()),
                ] {
                    send.send(child).unwrap();
                }
            }
        };
        let (a, b) = (make(), make());
        request.on_cancelled(a).on_done(move |_| b());
        bring(request);
        let children: Vec<_> = made.try_iter().collect();
        assert_eq!(children.len(), 6);
        for child in children {
            let answer = child.watch();
            assert!(matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Parent))), "{answer:?}");
        }
        assert_eq!(ran.get(), 0);
    });
}

#[test]
fn callbacks_may_cancel_others() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let sleeper = || {
            let target = gate.request.clone();
            root(runtime).spawn(move || target.wait().copied())
        };
        let (other, another) = (sleeper(), sleeper());
        let (a, b) = (other.clone(), another.to_untyped());
        let (send, answers) = channel();
        let also = send.clone();
        let request = root(runtime).build(|| 7);
        request
            .on_finished(move |_| send.send(a.cancel()).unwrap())
            .on_done(move |_| also.send(b.abort(CancelReason::Other(1))).unwrap());
        assert_eq!(request.wait().unwrap(), &7);
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [Cancellation::Marked; 2]);
        assert!(matches!(other.watch(), Err(WaitError::TargetCancelled(CancelReason::Asked))));
        assert!(matches!(another.watch(), Err(WaitError::TargetCancelled(CancelReason::Other(1)))));
        gate.open();
    });
}

/// The parent waits for it, on another stack or its own.
#[test]
fn a_callback_may_cancel_the_parent() {
    on_each(|runtime| {
        for own_stack in [false, true] {
            let log = Log::default();
            let noted = log.clone();
            let parent = root(runtime).try_build(move || {
                let me = Request::current().unwrap();
                let child = Request::builder();
                let child = if own_stack { child.own_stack() } else { child };
                let child = child.build(|| 7);
                let inner = noted.clone();
                child.on_finished(move |_| {
                    inner.note(format!("{:?} {}", me.cancel(), is_cancelled()));
                    // The child is not cancelled: it is as good as over.
                    inner.note(format!("{:?}", spawn(|| 1).take().ok()));
                });
                let answer = child.wait();
                noted.note(format!("{}", is_cancelled()));
                answer?;
                Ok(forebear::check_cancelled()?)
            });
            parent.submit();
            assert!(matches!(parent.watch(), Err(WaitError::TargetCancelled(CancelReason::Asked))));
            // On its own stack the parent goes on at once.
            until(|| log.told().len() == 3);
            let mut told = log.told();
            told.sort();
            assert_eq!(told, ["Marked false", "Some(1)", "true"]);
        }
    });
}

#[test]
fn callbacks_may_cancel_what_their_request_made() {
    on_each(|runtime| {
        let (send, answer) = channel();
        let request = root(runtime).build(|| spawn(|| while yield_now().is_ok() {}));
        request.on_finished(move |child| send.send(child.cancel()).unwrap());
        let child = request.take().unwrap();
        assert_eq!(answer.try_recv(), Ok(Cancellation::Marked));
        assert!(matches!(child.watch(), Err(WaitError::TargetCancelled(CancelReason::Asked))));
    });
}

/// Each subscribes to the other, cancels it, and waits for what the other has not got.
#[test]
fn two_requests_may_touch_each_other_in_their_callbacks() {
    on_each(|runtime| {
        for _ in 0..30 {
            let log = Log::default();
            let make = || runtime.enter(|| Request::builder().own_stack().build(|| 7));
            let pair = [make(), make()];
            for (one, other) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
                let (other, log) = (other.to_untyped(), log.clone());
                one.on_done(move |_| {
                    let _ = other.cancel();
                    let log = log.clone();
                    other.on_done(move |_| log.note("told"));
                });
            }
            pair[0].submit();
            pair[1].submit();
            until(|| pair.iter().all(Request::is_done));
            until(|| log.told().len() == 2);
        }
    });
}

/// A chain over requests, each begun by the end of the one before.
#[test]
fn a_callback_may_start_the_next() {
    fn next(left: u32, last: Flag) {
        let request = Request::builder().own_stack().detached().build(move || left);
        request.on_finished(move |&left| if left == 0 { last.raise() } else { next(left - 1, last) });
        request.submit();
    }
    on_each(|runtime| {
        let last = Flag::new();
        runtime.enter(|| next(200, last.clone()));
        last.wait();
    });
}

/// Also from another runtime's worker or a thread that belongs to none.
#[test]
fn what_is_ended_from_another_runtime_calls_there_as_itself() {
    on_each(|runtime| {
        let other = crate::support::runtime(2);
        let make = || {
            let request = runtime.enter(|| Request::new(|| 7));
            let (send, found) = channel();
            let me = request.to_untyped();
            request.on_cancelled(move || {
                let sum = shield(waits);
                send.send((Request::current() == Some(me), sum)).unwrap();
            });
            (request, found)
        };
        let (request, found) = make();
        other.run(|| {
            assert_eq!(request.cancel(), Cancellation::Marked);
            assert!(Request::current().is_some() && spawn(|| 1).take().unwrap() == 1);
        });
        assert_eq!(found.try_recv().unwrap(), (true, 36));
        let (request, found) = make();
        std::thread::spawn(move || request.cancel()).joined().unwrap();
        assert_eq!(found.try_recv().unwrap(), (true, 36));
    });
}

/// An error in a wait of a callback is handled there or fails the request, as in the callable.
#[test]
fn callbacks_may_handle_failures() {
    in_both_worlds(|| {
        let (send, told) = channel();
        let request = Request::new(|| 7);
        request.on_finished(move |_| {
            let bad = try_spawn(|| Ok("x".parse::<u32>()?));
            send.send(bad.wait().unwrap_err().downcast_ref::<std::num::ParseIntError>().is_some()).unwrap();
        });
        assert_eq!(request.wait().unwrap(), &7);
        assert_eq!(told.try_recv(), Ok(true));
    });
}
