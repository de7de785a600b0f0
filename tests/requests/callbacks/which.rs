//! Which callbacks are called, in which order, when, and where.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use forebear::{AnyRequest, CancelReason, Outcome, Request, is_cancelled, spawn, yield_now};

use crate::support::order::{Log, root};
use crate::support::{Come, Count, Flag, hold_thread_until, in_both_worlds, join_all, on_each, until};
use crate::{at_each_end, boo, note_all, told};

#[test]
fn exactly_one_group_is_called_and_the_done_callbacks() {
    at_each_end(|end, request, bring| {
        let log = Log::default();
        note_all(&request, &log);
        bring(request);
        log.check(&[end.group, end.done]);
    });
}

#[test]
fn a_group_is_called_in_order_of_subscription_and_then_the_done_callbacks_in_theirs() {
    at_each_end(|end, request, bring| {
        let log = Log::default();
        (0..3).for_each(|_| note_all(&request, &log));
        for n in 0..5 {
            let [a, b, c, d] = [(); 4].map(|()| log.clone());
            request
                .on_done(move |_| a.note(format!("done {n}")))
                .on_cancelled(move || b.note(format!("{n}")))
                .on_failed(move |_| c.note(format!("{n}")))
                .on_finished(move |_| d.note(format!("{n}")));
        }
        bring(request);
        let mut expected = vec![end.group; 3];
        expected.extend(["0", "1", "2", "3", "4"]);
        expected.extend([end.done; 3]);
        expected.extend(["done 0", "done 1", "done 2", "done 3", "done 4"]);
        log.check(&expected);
    });
}

#[test]
fn they_are_called_once_however_many_wait() {
    on_each(|runtime| {
        for _ in 0..20 {
            let log = Log::default();
            let request = runtime.enter(|| Request::new(|| 7));
            note_all(&request, &log);
            let waiters: Vec<_> = (0..4)
                .map(|_| {
                    let request = request.clone();
                    runtime.spawn(move || *request.wait().unwrap())
                })
                .collect();
            thread::scope(|threads| {
                join_all([(); 3].map(|()| threads.spawn(|| _ = request.wait().unwrap())))
            });
            waiters.into_iter().for_each(|waiter| assert_eq!(waiter.take().unwrap(), 7));
            log.check(&["finished 7", "done: finished 7"]);
        }
    });
}

/// Every kind of wait, of requests and foreign threads; and the looks that do not wait.
#[test]
fn they_have_all_returned_before_any_wait_does() {
    let _not = crate::support::not_on(
        crate::support::Modes::Seeded,
        "virtual time passes while its requests only poll",
    );
    const WAYS: [fn(Request<u32>); 6] = [
        |request| assert_eq!(request.wait().unwrap(), &7),
        |request| request.to_untyped().wait().unwrap(),
        |request| assert_eq!(request.wait_timeout(Duration::from_secs(3600)).unwrap(), &7),
        |request| assert_eq!(request.watch().unwrap(), &7),
        |request| _ = request.take(),
        |request| until(|| request.is_done() || request.get().is_some() || request.outcome().is_some()),
    ];
    on_each(|runtime| {
        let (waiting, called) = (Count::new(), Flag::new());
        let request = root(runtime).build(|| 7);
        let (all, up) = (waiting.clone(), called.clone());
        request.on_done(move |_| up.raise());
        request.on_finished(move |_| {
            // Whoever could be answered too early has been, by then.
            all.wait_for(2 * WAYS.len());
            (0..50).for_each(|_| yield_now().unwrap());
        });
        let waiters = WAYS.map(|way| {
            let (request, waiting, called) = (request.clone(), waiting.clone(), called.clone());
            root(runtime).spawn(move || {
                waiting.up();
                way(request);
                called.is_up()
            })
        });
        thread::scope(|threads| {
            join_all(WAYS.map(|way| {
                let (request, waiting, called) = (request.clone(), &waiting, &called);
                threads.spawn(move || {
                    waiting.up();
                    way(request);
                    assert!(called.is_up());
                })
            }));
        });
        waiters.into_iter().for_each(|waiter| assert!(waiter.take().unwrap()));
    });
}

/// The one who lends its stack too.
#[test]
fn they_have_all_returned_before_a_direct_run_does() {
    in_both_worlds(|| {
        let log = Log::default();
        let request = Request::new(|| 7);
        note_all(&request, &log);
        assert_eq!(request.wait().unwrap(), &7);
        log.check(&["finished 7", "done: finished 7"]);
        let request = spawn(|| 8);
        note_all(&request, &log);
        assert_eq!(request.take().unwrap(), 8);
        assert_eq!(log.told().len(), 4);
    });
}

#[test]
fn they_run_on_the_worker_that_ran_the_request() {
    let _not = crate::support::not_on(crate::support::Modes::Both, "the thread that waits is the worker");
    on_each(|runtime| {
        for fails in [false, true] {
            let (send, ran_on) = channel();
            let here = move || send.send(thread::current().id()).unwrap();
            let [a, b, c] = [(); 3].map(|()| here.clone());
            let request = root(runtime).build(move || {
                here();
                yield_now().unwrap();
                if fails { boo() } else { 7 }
            });
            request.on_finished(move |_| a()).on_failed(move |_| b()).on_done(move |_| c());
            let _ = request.watch();
            let ran_on: Vec<_> = ran_on.iter().collect();
            assert_eq!((ran_on[0], ran_on[0]), (ran_on[1], ran_on[2]));
            assert_ne!(ran_on[0], thread::current().id());
            assert!(request.assigned_worker().is_some());
        }
    });
}

#[test]
fn of_a_request_that_a_foreign_thread_runs_they_run_there() {
    on_each(|runtime| {
        let (send, ran_on) = channel();
        runtime.enter(|| {
            let request = Request::new(|| 7);
            request.on_done(move |_| send.send(thread::current().id()).unwrap());
            request.wait().unwrap();
        });
        assert_eq!(ran_on.come().unwrap(), thread::current().id());
    });
}

/// What a callback finds out about where it is.
fn here() -> (Option<AnyRequest>, Option<AnyRequest>) {
    (Request::current(), Request::new(|| ()).to_untyped().parent())
}

#[test]
fn the_request_is_the_current_one_in_them_and_what_they_make_is_its_child() {
    at_each_end(|_, request, bring| {
        let (me, any) = (Request::current(), request.to_untyped());
        let (send, found) = channel();
        let [a, b, c] = [(); 3].map(|()| send.clone());
        request
            .on_finished(move |_| a.send(here()).unwrap())
            .on_failed(move |_| b.send(here()).unwrap())
            .on_cancelled(move || c.send(here()).unwrap())
            .on_done(move |_| send.send(here()).unwrap());
        bring(request);
        for _ in 0..2 {
            assert_eq!(found.come().unwrap(), (Some(any.clone()), Some(any.clone())));
        }
        assert_eq!(Request::current(), me, "and not after them");
        assert_eq!(any.parent(), me);
    });
}

/// A cancel, and the drop of a last handle, end what has not started on the spot: within whatever runs there.
#[test]
fn of_one_that_never_started_they_run_in_whom_ends_it_and_as_itself() {
    at_each_end(|end, request, bring| {
        if end.group != "cancelled" || end.done.ends_with("Other(4)") {
            return;
        }
        let (any, log, outer) = (request.to_untyped(), Log::default(), Request::new(|| unreachable!()));
        let (send, found) = channel();
        let noted = log.clone();
        request.on_cancelled(move || {
            // It ends another in turn.
            let me = Request::current();
            note_all(&outer, &noted);
            drop(outer);
            assert_eq!(Request::current(), me);
            send.send((me, thread::current().id())).unwrap();
        });
        bring(request);
        let (me, ran_on) = found.try_recv().unwrap();
        assert_eq!(me, Some(any.clone()));
        assert_eq!(ran_on, thread::current().id());
        log.check(&["cancelled", "done: cancelled Asked"]);
    });
}

/// All workers but one are kept busy, so that nobody takes the children away from their parent's worker.
#[test]
fn of_those_that_a_cancel_reaches_before_they_started_they_run_on_the_worker() {
    let _not = crate::support::not_on(
        crate::support::Modes::Both,
        "its requests hold the thread, which alone could go on",
    );
    on_each(|runtime| {
        let (free, held) = (Flag::new(), Count::new());
        let holders: Vec<_> = (1..runtime.workers())
            .map(|_| {
                let (free, held) = (free.clone(), held.clone());
                runtime.spawn(move || {
                    held.up();
                    hold_thread_until(|| free.is_up());
                })
            })
            .collect();
        hold_thread_until(|| held.get() == holders.len());
        let (send, found) = channel();
        let made = Flag::new();
        let up = made.clone();
        let parent = root(runtime).spawn(move || {
            let children: Vec<_> = (0..5).map(|_| spawn(|| 7)).collect();
            for child in &children {
                let (send, any) = (send.clone(), child.to_untyped());
                child.on_finished(|_| unreachable!()).on_cancelled(move || {
                    send.send((thread::current().id(), Request::current() == Some(any))).unwrap();
                });
            }
            send.send((thread::current().id(), true)).unwrap();
            up.raise();
            hold_thread_until(is_cancelled);
            children
        });
        hold_thread_until(|| made.is_up());
        parent.cancel();
        let found: Vec<_> = found.iter().collect();
        assert_eq!(found, [found[0]; 6]);
        free.raise();
        assert!(found[0].1 && found[0].0 != thread::current().id());
        assert!(parent.watch().is_err());
        holders.iter().for_each(|holder| holder.wait().copied().unwrap());
    });
}

#[test]
fn an_untyped_handle_subscribes_to_any_end() {
    at_each_end(|end, request, bring| {
        let log = Log::default();
        let [a, b, c] = [(); 3].map(|()| log.clone());
        request.to_untyped().on_done(move |how| a.note(told(how))).on_done(move |how| b.note(told(how)));
        let any = request.to_untyped();
        bring(request);
        any.on_done(move |how| c.note(told(how)));
        // It says how, and not the value.
        let how = end.done.trim_start_matches("done: ").replace("finished 7", "finished ()");
        log.check(&[how.as_str(); 3]);
    });
}

/// The value has been dropped, if there was one.
#[test]
fn an_untyped_handle_subscribes_when_no_other_is_left() {
    on_each(|runtime| {
        let (go, log, drops) = (Flag::new(), Log::default(), Count::new());
        let (may, value) = (go.clone(), drops.probe());
        let request = root(runtime).spawn(move || {
            may.wait();
            value
        });
        let any = request.to_untyped();
        drop(request);
        let [a, b] = [(); 2].map(|()| log.clone());
        any.on_done(move |how| a.note(told(how)));
        go.raise();
        any.wait().unwrap();
        assert_eq!(drops.get(), 1);
        any.on_done(move |how| b.note(told(how)));
        log.check(&["finished ()"; 2]);
    });
}

#[test]
fn a_ready_value_calls_at_once() {
    in_both_worlds(|| {
        let log = Log::default();
        note_all(&Request::ready(7), &log);
        log.check(&["finished 7", "done: finished 7"]);
    });
}

/// Jobs of a scope, with values that borrow.
#[test]
fn those_of_a_scopes_jobs_have_returned_before_the_scope_does() {
    in_both_worlds(|| {
        let (log, text) = (Log::default(), String::from("lent"));
        let subscribed = Flag::new();
        forebear::scope(|scope| {
            let jobs: Vec<_> = (0..10)
                .map(|_| {
                    scope.spawn(|| {
                        subscribed.wait();
                        text.as_str()
                    })
                })
                .collect();
            for job in &jobs {
                let (a, b) = (log.clone(), log.clone());
                job.on_finished(move |value| a.note(*value))
                    .on_done(move |how| b.note(told(how)))
                    .on_cancelled(|| unreachable!());
            }
            subscribed.raise();
        });
        let mut told = log.told();
        told.sort();
        assert_eq!(told[..10], ["finished \"lent\""; 10]);
        assert_eq!(told[10..], ["lent"; 10]);
    });
}

#[test]
fn a_reason_is_told_to_callbacks_as_to_waiters() {
    in_both_worlds(|| {
        let (send, told) = channel();
        let request = Request::new(|| ());
        request.on_done(move |how| {
            let Outcome::Cancelled(reason) = how else { panic!("{how:?}") };
            send.send(reason).unwrap();
        });
        request.abort(CancelReason::Other(7));
        assert_eq!(told.try_recv(), Ok(CancelReason::Other(7)));
        assert!(matches!(request.outcome(), Some(Outcome::Cancelled(CancelReason::Other(7)))));
    });
}
