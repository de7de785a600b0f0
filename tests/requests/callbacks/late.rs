//! A subscriber of a request that is over is called at once, on its own thread and in its own request, if it subscribed to that outcome.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::mpsc::channel;
use std::thread;

use forebear::{Request, spawn};

use crate::support::order::{Log, root};
use crate::support::{Count, in_both_worlds, join_all, on_each};
use crate::{aborts_itself, boo, note_all, with_hook};

#[test]
fn late_subscribers_are_called_at_once_if_theirs_is_the_outcome() {
    in_both_worlds(|| {
        let ready = Request::ready(7);
        let finished = Request::builder().own_stack().spawn(|| 7);
        let failed = Request::new(boo);
        let never = Request::new(|| unreachable!());
        let aborted = Request::new(|| aborts_itself(7));
        never.cancel();
        let over = [
            (&ready, "finished 7", "done: finished 7"),
            (&finished, "finished 7", "done: finished 7"),
            (&failed, "failed boo", "done: failed boo"),
            (&never, "cancelled", "done: cancelled Asked"),
            (&aborted, "cancelled", "done: cancelled Other(4)"),
        ];
        for (request, group, done) in over {
            let _ = request.wait();
            for _ in 0..2 {
                let log = Log::default();
                note_all(request, &log);
                log.check(&[group, done]);
            }
        }
    });
}

#[test]
fn d10_a_late_success_callback_is_never_called_for_another_outcome() {
    in_both_worlds(|| {
        let drops = Count::new();
        let (failed, cancelled) = (Request::new(boo), Request::new(|| 7));
        assert!(failed.wait().is_err());
        cancelled.cancel();
        for request in [&failed, &cancelled] {
            for _ in 0..2 {
                let probe = drops.probe();
                request.on_finished(move |_| {
                    drop(probe);
                    unreachable!()
                });
            }
        }
        assert_eq!(drops.get(), 4, "and dropped at once");
        let probe = drops.probe();
        cancelled.on_failed(move |_| {
            drop(probe);
            unreachable!()
        });
        let probe = drops.probe();
        failed.on_cancelled(move || {
            drop(probe);
            unreachable!()
        });
        assert_eq!(drops.get(), 6);
    });
}

#[test]
fn late_subscribers_are_called_on_their_own_thread_as_what_they_are() {
    on_each(|runtime| {
        let request = root(runtime).spawn(|| 7);
        request.wait().unwrap();
        let (send, found) = channel();
        let subscribe = |request: &Request<u32>| {
            let [a, b] = [(); 2].map(|()| send.clone());
            let found = || (thread::current().id(), Request::current());
            request.on_finished(move |_| a.send(found()).unwrap()).on_done(move |_| b.send(found()).unwrap());
            found()
        };
        assert_eq!(subscribe(&request).1, None);
        let here = found.try_iter().collect::<Vec<_>>();
        assert_eq!(here, [(thread::current().id(), None), (thread::current().id(), None)]);
        let expected = runtime.run(|| {
            spawn({
                let (request, send) = (request.clone(), send.clone());
                move || {
                    let found = || (thread::current().id(), Request::current());
                    request.on_finished(move |_| send.send(found()).unwrap());
                    found()
                }
            })
            .take()
            .unwrap()
        });
        assert!(expected.1.is_some());
        assert_eq!(found.try_iter().collect::<Vec<_>>(), [expected]);
        thread::scope(|threads| {
            join_all([threads.spawn(|| {
                let expected = subscribe(&request);
                assert_eq!(expected, (thread::current().id(), None));
            })]);
        });
        assert_eq!(found.try_iter().count(), 2);
    });
}

#[test]
fn late_subscribers_may_do_anything() {
    in_both_worlds(|| {
        let request = Request::new(|| 7);
        request.wait().unwrap();
        let (send, found) = channel();
        let me = request.clone();
        request.on_finished(move |seven| {
            let sum = seven + spawn(|| 1).take().unwrap() + *me.wait().unwrap() + *me.get().unwrap();
            let inner = send.clone();
            me.on_done(move |_| inner.send(100).unwrap());
            let _ = me.cancel();
            send.send(sum).unwrap();
        });
        assert_eq!(found.try_iter().collect::<Vec<_>>(), [100, 22]);
        assert_eq!(request.take().unwrap(), 7);
    });
}

/// And changes nothing: the outcome stands, and no hook is told.
#[test]
fn a_panic_in_a_late_callback_reaches_who_subscribes() {
    with_hook(|runtime, hook| {
        let good = runtime.spawn(|| 7);
        good.wait().unwrap();
        let bad = runtime.spawn(boo);
        assert!(bad.wait().is_err());
        let gone = runtime.enter(|| Request::new(|| 7));
        gone.cancel();
        let subscribe: [&(dyn Fn() + Sync); 5] = [
            &|| _ = good.on_finished(|_| panic_any(1)),
            &|| _ = good.on_done(|_| panic_any(1)),
            &|| _ = bad.on_failed(|_| panic_any(1)),
            &|| _ = gone.on_cancelled(|| panic_any(1)),
            &|| _ = good.to_untyped().on_done(|_| panic_any(1)),
        ];
        for subscribe in subscribe {
            let caught = || catch_unwind(AssertUnwindSafe(subscribe)).unwrap_err().downcast::<i32>().is_ok();
            assert!(caught());
            assert!(runtime.run(caught));
        }
        assert_eq!(good.wait().unwrap(), &7);
        assert!(bad.wait().is_err() && gone.wait().is_err());
        drop((good, bad, gone));
        hook.check(&[]);
    });
}
