//! A callback that panics: of a success, it makes the request fail; of anything else, it changes nothing. Nobody is left
//! waiting.

use std::panic::resume_unwind;
use std::sync::mpsc::channel;
use std::thread;

use forebear::{Cancellation, OrUnwind, Outcome, Request, State, WaitError, spawn, try_spawn, yield_now};

use crate::support::order::{Log, root};
use crate::support::{Count, Flag, Watchdog, hold_workers, in_both_worlds, join_all, on_each, until};
use crate::{boo, note_all, told, with_hook};

/// Panics, silently.
fn burst(text: &'static str) {
    resume_unwind(Box::new(text))
}

/// Panics, and panics once more whenever somebody drops what it panicked with.
fn burst_twice() {
    struct Payload;
    impl Drop for Payload {
        fn drop(&mut self) {
            if !thread::panicking() {
                // What carries nothing, since it is forgotten.
                resume_unwind(Box::new(()));
            }
        }
    }
    resume_unwind(Box::new(Payload))
}

/// Panics when it is dropped.
struct Fragile(Count);

impl Drop for Fragile {
    fn drop(&mut self) {
        self.0.up();
        if !thread::panicking() {
            burst("destructor");
        }
    }
}

#[test]
fn a_success_callback_that_panics_fails_the_request_and_the_rest_of_them_is_skipped() {
    in_both_worlds(|| {
        let log = Log::default();
        let request = Request::builder().name("good").build(|| 7);
        note_all(&request, &log);
        request.on_finished(|_| burst("callback"));
        note_all(&request, &log);
        let Err(WaitError::Failed(failure)) = request.wait() else { panic!("{request:?}") };
        assert_eq!((failure.panic_message(), failure.request()), (Some("callback"), "good"));
        log.check(&[
            "finished 7",
            "failed callback",
            "failed callback",
            "done: failed callback",
            "done: failed callback",
        ]);
        // For everybody, for good.
        assert_eq!((request.state(), request.get()), (State::Failed, None));
        assert!(matches!(request.outcome(), Some(Outcome::Failed(it)) if it.same_origin(&failure)));
        assert_eq!(request.cancel(), Cancellation::AlreadyDone);
        note_all(&request, &log);
        assert_eq!(log.told()[5..], ["failed callback", "done: failed callback"]);
        assert!(matches!(request.take(), Err(WaitError::Failed(it)) if it.same_origin(&failure)));
    });
}

/// Also those that subscribe later, while failure callbacks run.
#[test]
fn after_a_panic_only_a_failure_is_told() {
    in_both_worlds(|| {
        let log = Log::default();
        let request = Request::new(|| 7);
        let (me, noted) = (request.clone(), log.clone());
        request.on_failed(move |_| note_all(&me, &noted)).on_finished(|_| burst("callback"));
        assert!(request.wait().is_err());
        log.check(&["failed callback", "done: failed callback"]);
    });
}

#[test]
fn every_waiter_gets_the_panic_of_a_success_callback() {
    on_each(|runtime| {
        let waiting = Count::new();
        let request = root(runtime).build(|| 7);
        let all = waiting.clone();
        request.on_finished(move |_| {
            all.wait_for(6);
            (0..20).for_each(|_| yield_now().unwrap());
            burst("callback");
        });
        let told = |request: &Request<u32>| {
            waiting.up();
            request.wait().unwrap_err().failure().unwrap().panic_message().unwrap().to_owned()
        };
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let (request, waiting) = (request.clone(), waiting.clone());
                root(runtime).spawn(move || {
                    waiting.up();
                    request.wait().unwrap_err().failure().unwrap().panic_message().unwrap().to_owned()
                })
            })
            .collect();
        thread::scope(|threads| {
            join_all([(); 3].map(|()| threads.spawn(|| assert_eq!(told(&request), "callback"))));
        });
        waiters.into_iter().for_each(|waiter| assert_eq!(waiter.take().unwrap(), "callback"));
    });
}

/// Somebody may have been lent it by then: it goes with the last handle, as any other.
#[test]
fn the_value_lives_on_beside_the_failure_of_a_success_callback() {
    in_both_worlds(|| {
        let drops = Count::new();
        let value = drops.probe();
        let request = Request::new(move || value);
        request.on_finished(|_| burst("callback"));
        let (send, at_done) = channel();
        let dropped = drops.clone();
        request.on_done(move |_| send.send(dropped.get()).unwrap());
        assert!(request.wait().is_err());
        assert_eq!((at_done.try_recv(), drops.get()), (Ok(0), 0));
        let other = request.clone();
        drop(request);
        assert_eq!(drops.get(), 0);
        drop(other);
        assert_eq!(drops.get(), 1);
        // Nobody is left when it ends.
        let value = drops.probe();
        let request = Request::builder().own_stack().build(move || value);
        let any = request.to_untyped();
        request.on_failed(|_| ()).on_finished(|_| burst("callback")).submit();
        drop(request);
        until(|| any.is_done());
        assert_eq!(drops.get(), 2);
    });
}

#[test]
fn an_error_that_unwinds_out_of_a_success_callback_is_the_failure() {
    in_both_worlds(|| {
        let request = Request::builder().name("outer").build(|| 7);
        request.on_finished(|_| _ = try_spawn(|| Ok("x".parse::<u32>()?)).wait().or_unwind());
        let error = request.wait().unwrap_err();
        let failure = error.failure().unwrap();
        assert!(!failure.is_panic() && failure.downcast_ref::<std::num::ParseIntError>().is_some());
        assert_eq!((failure.path().len(), failure.path().next_back()), (2, Some("outer")));
    });
}

/// What the request made goes with it, as if its callable had failed.
#[test]
fn d26_a_success_callback_that_panics_cancels_the_children() {
    on_each(|runtime| {
        for from_callback in [false, true] {
            let (send, children) = channel();
            let also = send.clone();
            let child = || Request::builder().own_stack().spawn(|| while yield_now().is_ok() {});
            let request = root(runtime).build(move || {
                send.send(child()).unwrap();
            });
            request.on_finished(move |()| {
                if from_callback {
                    also.send(child()).unwrap();
                }
                burst("callback");
            });
            assert!(request.wait().is_err());
            for child in children {
                let answer = child.watch();
                let parents =
                    matches!(answer, Err(WaitError::TargetCancelled(forebear::CancelReason::ParentFailed)));
                assert!(parents, "{answer:?}");
            }
        }
    });
}

#[test]
fn a_panic_in_any_other_callback_goes_to_the_hook_and_changes_nothing() {
    with_hook(|runtime, hook| {
        let each = || {
            for (make, group, done) in [
                ((|| Request::new(|| 7)) as fn() -> Request<u32>, "finished 7", "done: finished 7"),
                (|| Request::new(boo), "failed boo", "done: failed boo"),
                (|| Request::new(|| crate::aborts_itself(7)), "cancelled", "done: cancelled Other(4)"),
            ] {
                let (log, request) = (Log::default(), make());
                let burst_all = || {
                    request
                        .on_failed(|_| burst("failed"))
                        .on_cancelled(|| burst("cancelled"))
                        .on_done(|_| burst("done"));
                };
                burst_all();
                note_all(&request, &log);
                burst_all();
                note_all(&request, &log);
                let answer = request.wait().map_err(|error| error.to_string());
                log.check(&[group, group, done, done]);
                assert_eq!(request.wait().map_err(|error| error.to_string()), answer);
                match group {
                    "finished 7" => hook.check(&["done"; 2]),
                    "failed boo" => hook.check(&["failed", "failed", "done", "done"]),
                    _ => hook.check(&["cancelled", "cancelled", "done", "done"]),
                }
                drop(request);
                hook.check(&[]);
            }
        };
        runtime.enter(each);
        runtime.run(each);
    });
}

/// The canceller, or whoever drops the last handle, is not to suffer for it.
#[test]
fn a_panic_in_a_callback_of_an_unstarted_request_does_not_reach_whom_ends_it() {
    let _not = crate::support::not_on(crate::support::Modes::Both, "it holds its workers");
    with_hook(|runtime, hook| {
        let each = || {
            let make = || {
                let request = Request::new(|| 7);
                request.on_cancelled(|| burst("cancelled")).on_done(|_| burst("done"));
                request
            };
            assert_eq!(make().cancel(), Cancellation::Marked);
            drop(make());
            hook.check(&["cancelled", "done", "cancelled", "done"]);
        };
        runtime.enter(each);
        runtime.run(each);
        let held = hold_workers(runtime);
        let queued = runtime.spawn(|| 7);
        queued.on_cancelled(|| burst("cancelled"));
        assert_eq!(queued.cancel(), Cancellation::Marked);
        hook.check(&["cancelled"]);
        held.release();
    });
}

/// Once done-callbacks have been told that it is a success it is one.
#[test]
fn a_success_callback_that_panics_when_the_end_was_told_changes_nothing() {
    with_hook(|runtime, hook| {
        let each = || {
            let (log, request) = (Log::default(), Request::new(|| 7));
            let (me, noted) = (request.clone(), log.clone());
            request.on_done(move |how| {
                noted.note(told(how));
                me.on_finished(|_| burst("too late"));
                note_all(&me, &noted);
            });
            assert_eq!(request.wait().unwrap(), &7);
            log.check(&["finished 7", "finished 7", "done: finished 7"]);
            hook.check(&["too late"]);
        };
        runtime.enter(each);
        runtime.run(each);
    });
}

/// Waiters on both sides of the end, of every kind of callback, whatever it panics with.
#[test]
fn d9_a_callback_that_panics_leaves_no_waiter_hanging() {
    let bursts: [fn(); 3] = [|| burst("callback"), burst_twice, || drop(Fragile(Count::new()))];
    for kind in crate::support::kinds() {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        // The hook does no better.
        let runtime = kind.builder().on_unhandled_failure(|_| burst_twice()).build().unwrap();
        for (round, burst) in (0..3).flat_map(|round| bursts.map(|burst| (round, burst))) {
            let begun = Count::new();
            let all = begun.clone();
            let request = root(&runtime).build(move || {
                all.wait_for(4);
                if round == 1 { boo() } else { 7 }
            });
            if round == 2 {
                request.on_finished(move |_| burst());
            }
            request
                .on_failed(move |_| burst())
                .on_cancelled(burst)
                .on_done(move |_| burst())
                .on_done(move |_| burst());
            let waiters: Vec<_> = (0..2)
                .map(|_| {
                    let (request, begun) = (request.clone(), begun.clone());
                    root(&runtime).spawn(move || {
                        begun.up();
                        request.wait().is_err()
                    })
                })
                .collect();
            thread::scope(|threads| {
                join_all([(); 2].map(|()| {
                    threads.spawn(|| {
                        begun.up();
                        assert_eq!(request.to_untyped().wait().is_err(), round > 0);
                    })
                }));
            });
            for waiter in waiters {
                assert_eq!(waiter.take().unwrap(), round > 0);
            }
        }
        assert_eq!(runtime.run(|| spawn(|| 7).take().unwrap()), 7, "and the workers live");
    }
}

#[test]
fn captures_whose_destructor_panics_do_no_harm() {
    with_hook(|runtime, hook| {
        let each = || {
            let drops = Count::new();
            let fragile = || Fragile(drops.clone());
            let request = Request::new(|| 7);
            // Dropped uncalled ...
            let (a, b) = (fragile(), fragile());
            request.on_failed(move |_| drop(a)).on_cancelled(move || drop(b));
            // ... with the callback that was called ...
            let c = fragile();
            request.on_done(move |_| _ = &c);
            assert_eq!(request.wait().unwrap(), &7);
            assert_eq!(drops.get(), 3);
            // ... or by who comes too late.
            let d = fragile();
            request.on_failed(move |_| drop(d));
            assert_eq!((drops.get(), request.take().unwrap()), (4, 7));
            hook.check(&["destructor"; 4]);
            // What a success callback drops is a part of it.
            let e = fragile();
            let request = Request::new(|| 7);
            request.on_finished(move |_| _ = &e);
            assert_eq!(request.wait().unwrap_err().failure().unwrap().panic_message(), Some("destructor"));
            hook.check(&[]);
        };
        runtime.enter(each);
        runtime.run(each);
    });
}

/// A job of a scope that its callback made fail has failed, for the scope too.
#[test]
fn a_success_callback_that_panics_fails_the_scope_of_its_job() {
    in_both_worlds(|| {
        for looked in [false, true] {
            let subscribed = Flag::new();
            let result = forebear::try_scope(|scope| {
                let job = scope.spawn(|| subscribed.wait());
                job.on_finished(|()| burst("callback"));
                if looked {
                    job.on_failed(|_| ());
                }
                subscribed.raise();
                Ok(())
            });
            assert_eq!(result.is_ok(), looked, "unless somebody looked");
            assert!(looked || format!("{:#}", result.unwrap_err()).contains("callback"));
        }
    });
}

#[test]
fn a_callback_may_panic_after_it_has_waited() {
    on_each(|runtime| {
        for fails in [false, true] {
            let (log, go) = (Log::default(), Flag::new());
            let request = root(runtime).build(move || if fails { boo() } else { 7 });
            let wait = || {
                let go = go.clone();
                move || {
                    let up = go.clone();
                    Request::builder().own_stack().detached().spawn(move || up.raise());
                    go.wait();
                    burst("callback");
                }
            };
            let (a, b, c) = (wait(), wait(), wait());
            request.on_finished(move |_| a()).on_failed(move |_| b()).on_done(move |_| c());
            note_all(&request, &log);
            assert!(request.wait().is_err());
            match fails {
                false => log.check(&["failed callback", "done: failed callback"]),
                true => log.check(&["failed boo", "done: failed boo"]),
            }
        }
    });
}
