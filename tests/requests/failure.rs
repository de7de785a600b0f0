//! Failures: how a request fails, who is told, along which way, and that nothing else is harmed.

#[path = "../support/mod.rs"]
mod support;

use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use forebear::{
    CancelReason, Error, Failure, OrUnwind, Outcome, Request, Runtime, State, WaitError, catch, spawn,
    try_spawn, yield_now,
};
use support::{Count, Flag, Watchdog, in_both_worlds, inside_each, join_all, on_each, until};

fn failure<T>(result: Result<T, WaitError>) -> Failure {
    match result {
        Err(WaitError::Failed(failure)) => failure,
        Err(other) => panic!("not a failure: {other:?}"),
        Ok(_) => panic!("it did not fail"),
    }
}

// ---- what fails a request -------------------------------------------------------------------------------------------------

#[test]
fn a_panic_fails_the_request_with_its_message_and_place() {
    in_both_worlds(|| {
        let literal = Request::builder().name("literal").build(|| -> u32 { panic!("literal") });
        let told = failure(literal.wait());
        assert!(told.is_panic());
        assert_eq!((told.request(), told.panic_message()), ("literal", Some("literal")));
        assert!(told.location().unwrap().to_string().contains("failure.rs"));
        let formatted = spawn(|| -> u32 { panic!("{} {}", "formatted", 1) });
        assert_eq!(failure(formatted.wait()).panic_message(), Some("formatted 1"));
        assert_eq!(literal.state(), State::Failed);
    });
}

/// A panic of a literal, of a formatted text and of a value.
fn panics() -> [fn(); 3] {
    [|| panic!("literal"), || panic!("{}", "formatted"), || panic_any(3_u8)]
}

/// The line of the panic, or of the place where the request was made.
fn line(told: &Failure) -> Option<u32> {
    told.location().map(forebear::SourceLocation::line)
}

#[test]
fn a_payload_that_another_thread_panicked_with_has_no_place_of_an_earlier_panic() {
    in_both_worlds(|| {
        for panics in panics() {
            let handled = || catch_unwind(|| panic!("{}", "handled")).unwrap_err();
            let join_resume = move || -> u32 { resume_unwind(thread::spawn(panics).join().unwrap_err()) };
            // By this request, and by one before it on the same thread.
            let own = spawn(move || {
                drop(handled());
                join_resume()
            });
            assert_eq!(line(&failure(own.wait())), None);
            spawn(move || drop(handled())).wait().unwrap();
            assert_eq!(line(&failure(spawn(join_resume).wait())), None);
            // The place where it was made is not displaced.
            let made = line!() + 1;
            let named = Request::builder().name("named").build(move || {
                drop(handled());
                join_resume()
            });
            assert_eq!(line(&failure(named.wait())), Some(made));
        }
    });
}

#[test]
fn a_value_that_another_thread_panicked_with_has_no_place_of_another_requests_panic() {
    in_both_worlds(|| {
        for _ in 0..2 {
            spawn(|| drop(catch_unwind(|| panic_any(3_u8)).unwrap_err())).wait().unwrap();
            let resumes = || -> u32 { resume_unwind(thread::spawn(|| panic_any(3_u8)).join().unwrap_err()) };
            assert_eq!(line(&failure(spawn(resumes).wait())), None, "of the same type as the one before");
        }
    });
}

#[test]
fn a_payload_that_is_resumed_after_a_wait_has_no_place_of_another_requests_panic() {
    // The same payloads, of other places.
    let others: [fn(); 3] = [|| panic!("literal"), || panic!("{}", "formatted"), || panic_any(3_u8)];
    in_both_worlds(|| {
        for (panics, others) in panics().into_iter().zip(others) {
            let place = failure(spawn(panics).wait()).location().cloned();
            let request = spawn(move || -> u32 {
                let other = spawn(move || {
                    yield_now().unwrap();
                    drop(catch_unwind(others));
                });
                let first = catch_unwind(panics).unwrap_err();
                other.wait().unwrap();
                resume_unwind(first)
            });
            let told = failure(request.wait());
            // Its own, if the other one ran on another thread, or before.
            assert!(told.location().is_none() || told.location() == place.as_ref(), "{told:?}");
        }
    });
}

#[test]
fn a_panic_has_its_place_also_after_one_that_was_handled() {
    in_both_worlds(|| {
        for panics in panics() {
            for _ in 0..2 {
                let request = spawn(move || -> u32 {
                    drop(catch_unwind(|| panic!("handled")));
                    panics();
                    7
                });
                let told = failure(request.wait());
                assert!(told.location().unwrap().file().ends_with("failure.rs"));
                let resumes = spawn(move || -> u32 { resume_unwind(catch_unwind(panics).unwrap_err()) });
                assert_eq!(failure(resumes.wait()).location(), told.location(), "its own, resumed at once");
            }
        }
    });
}

#[test]
fn a_panic_may_carry_anything() {
    #[derive(PartialEq, Debug)]
    struct Anything(u8);
    in_both_worlds(|| {
        let request = spawn(|| -> u32 { panic_any(Anything(3)) });
        let told = failure(request.wait());
        assert_eq!(told.panic_message(), Some("(non-string payload)"));
        assert_eq!(told.panic_payload::<String>(), None);
        assert_eq!(told.panic_payload::<Anything>(), Some(&Anything(3)));
        let request = spawn(|| -> u32 { panic_any(std::cell::Cell::new(4)) });
        let payload = failure(request.wait()).take_panic_payload().unwrap();
        assert_eq!(payload.downcast::<std::cell::Cell<i32>>().unwrap().get(), 4);
        assert!(failure(request.wait()).take_panic_payload().is_none(), "the first who asks gets it");
    });
}

#[derive(Debug)]
struct Outer(std::io::Error);

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("outer")
    }
}

impl StdError for Outer {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

#[test]
fn an_error_of_a_try_form_fails_the_request_with_its_whole_chain() {
    in_both_worlds(|| {
        let make = || Request::<u32>::try_new(|| Err(Outer(std::io::Error::other("inner")))?);
        let told = failure(make().wait());
        assert!(!told.is_panic() && told.panic_message().is_none());
        assert_eq!(told.error().to_string(), "outer");
        assert_eq!(told.chain().map(ToString::to_string).collect::<Vec<_>>(), ["outer", "inner"]);
        assert!(told.downcast_ref::<Outer>().is_some());
        assert_eq!(told.downcast_ref::<std::io::Error>().unwrap().kind(), std::io::ErrorKind::Other);
        let error = make().wait().unwrap_err();
        assert!(error.downcast_ref::<Outer>().is_some());
        assert!(StdError::source(&error).unwrap().is::<Outer>());
    });
}

#[test]
fn a_result_as_a_value_is_not_a_failure() {
    in_both_worlds(|| {
        let request = Request::new(|| "x".parse::<u32>());
        assert!(request.wait().unwrap().is_err());
        assert_eq!(request.state(), State::Finished);
    });
}

// ---- how it travels -------------------------------------------------------------------------------------------------------

#[test]
fn a_failure_names_the_requests_it_came_through() {
    in_both_worlds(|| {
        let named = |name: &'static str| Request::builder().name(name);
        let first = named("first").try_build(|| Ok("x".parse::<u32>()?));
        let second = named("second").try_build(move || Ok(*first.wait()?));
        let third = named("third").try_build(move || Ok(*second.wait()?));
        let told = failure(third.wait());
        assert_eq!(told.request(), "first");
        assert_eq!(told.path().collect::<Vec<_>>(), ["first", "second", "third"]);
        assert!(told.downcast_ref::<std::num::ParseIntError>().is_some());
    });
}

#[test]
fn a_panics_way_is_told_too_also_through_the_unwinding_form() {
    in_both_worlds(|| {
        let named = |name: &'static str| Request::builder().name(name);
        let first = named("first").build(|| -> u32 { resume_unwind(Box::new("boo")) });
        let second = named("second").build(move || *first.force());
        let third = named("third").build(move || *second.wait().or_unwind());
        let told = failure(third.wait());
        assert_eq!(told.path().collect::<Vec<_>>(), ["first", "second", "third"]);
        assert_eq!(told.panic_message(), Some("boo"));
    });
}

#[test]
fn every_waiter_gets_the_same_failure_every_time() {
    on_each(|runtime| {
        let go = Flag::new();
        let bad = {
            let go = go.clone();
            Request::builder().on(runtime).own_stack().build(move || -> u32 {
                go.wait();
                resume_unwind(Box::new("boo"))
            })
        };
        let waiters: Vec<_> = (0..5)
            .map(|_| {
                let bad = bad.clone();
                runtime.spawn(move || failure(bad.wait()))
            })
            .collect();
        let here = failure_in_threads(&bad, &go);
        for waiter in waiters {
            assert!(waiter.take().unwrap().same_origin(&here));
        }
        assert!(
            failure(bad.wait()).same_origin(&here) && failure(bad.to_untyped().wait()).same_origin(&here)
        );
        let Some(Outcome::Failed(told)) = bad.outcome() else { panic!("{bad:?}") };
        assert!(told.same_origin(&here));
        assert!(failure(bad.take()).same_origin(&here));
    });
}

fn failure_in_threads(bad: &Request<u32>, go: &Flag) -> Failure {
    let told = Mutex::new(Vec::new());
    thread::scope(|threads| {
        let waiters = [(); 3].map(|()| threads.spawn(|| told.lock().unwrap().push(failure(bad.wait()))));
        go.raise();
        join_all(waiters);
    });
    let told = told.into_inner().unwrap();
    assert!(told.iter().all(|one| one.same_origin(&told[0])));
    told.into_iter().next().unwrap()
}

#[test]
fn a_waiter_may_handle_the_error_and_succeed() {
    in_both_worlds(|| {
        let request = spawn(|| {
            let bad = spawn(|| -> u32 { resume_unwind(Box::new("boo")) });
            bad.take().unwrap_or(7)
        });
        assert_eq!(request.take().unwrap(), 7);
    });
}

#[test]
fn a_failure_cancels_the_children_that_nobody_else_waits_for() {
    inside_each(|| {
        let (go, begun) = (Flag::new(), Flag::new());
        let may = go.clone();
        let (give, given) = mpsc::channel();
        let bad = try_spawn(move || -> Result<(), Error> {
            // Neither can go on before this request has failed.
            let never = Request::builder().name("never").build(|| {
                loop {
                    yield_now().or_unwind();
                }
            });
            never.submit();
            let up = begun.clone();
            let wanted = spawn(move || {
                up.raise();
                may.wait();
            });
            // It runs elsewhere, so that who waits for it sleeps.
            begun.wait();
            let waiter = Request::builder().detached().spawn(move || wanted.wait().copied());
            until(|| waiter.state() == State::Suspended);
            give.send((never, waiter)).unwrap();
            Err(Error::other("failed on purpose"))
        });
        assert!(matches!(bad.wait(), Err(WaitError::Failed(_))));
        let (never, waiter) = given.recv().unwrap();
        let told = never.wait().unwrap_err();
        assert!(matches!(told, WaitError::TargetCancelled(CancelReason::ParentFailed)), "{told:?}");
        go.raise();
        assert!(waiter.wait().unwrap().is_ok(), "somebody waits for it");
    });
}

// ---- unwinding and catching -------------------------------------------------------------------------------------------------

/// The hook of the process; so these promises are tested in one test, which owns it.
#[test]
fn the_panic_hook_sees_panics_in_requests_and_no_travelling_errors() {
    let _dog = Watchdog::new("");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let before = std::panic::take_hook();
    {
        let seen = seen.clone();
        std::panic::set_hook(Box::new(move |info| {
            if let Some(text) = info.payload().downcast_ref::<&str>()
                && text.starts_with("hooked")
            {
                seen.lock().unwrap().push(*text);
            } else if info.payload().is::<String>() || !info.payload().is::<&str>() {
                before(info);
            }
        }));
    }
    let count = || std::mem::take(&mut *seen.lock().unwrap()).len();
    for kind in support::kinds() {
        // Built after the hook was set, and before: the runtime calls whichever there is.
        let runtime = kind.build();
        runtime.run(|| {
            let bad = spawn(|| -> u32 { panic!("hooked") });
            let through = Request::new(move || *bad.force());
            let further = Request::new(move || *through.force() + 1);
            let stopped = catch(|| *further.force());
            assert!(stopped.unwrap_err().downcast_ref::<WaitError>().is_some());
        });
        assert_eq!(count(), 1, "one panic, however far its error travels");
        let error = runtime.run(|| catch(|| "x".parse::<u32>().or_unwind()).map(|_| ()));
        assert!(error.unwrap_err().downcast_ref::<std::num::ParseIntError>().is_some());
        assert_eq!(count(), 0);
    }
}

#[test]
fn catch_gives_travelling_errors_back_and_lets_panics_pass() {
    inside_each(|| {
        assert_eq!(catch(|| 1).unwrap(), 1);
        let error = catch(|| -> u32 { Err::<u32, _>(Error::other("travels")).or_unwind() }).unwrap_err();
        assert_eq!(error.to_string(), "travels");
        let passed = catch_unwind(AssertUnwindSafe(|| catch(|| -> u32 { resume_unwind(Box::new("panic")) })));
        assert_eq!(*passed.err().unwrap().downcast::<&str>().unwrap(), "panic");
    });
}

#[test]
fn in_a_foreign_thread_the_unwinding_form_is_a_panic_with_the_whole_story() {
    on_each(|runtime| {
        let bad = runtime.spawn(|| -> u32 { resume_unwind(Box::new("boo")) });
        let unwound = catch_unwind(AssertUnwindSafe(|| *bad.force()));
        let text = unwound.unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("boo"), "{text}");
    });
}

// ---- failures nobody looked at ----------------------------------------------------------------------------------------------

/// Runs the test with a runtime that counts what its hook is told, for every size.
#[track_caller]
fn with_hook(test: impl Fn(&Runtime, &Arc<Mutex<Vec<String>>>)) {
    for kind in support::kinds() {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let told = Arc::new(Mutex::new(Vec::new()));
        let hook = told.clone();
        let runtime = kind
            .builder()
            .on_unhandled_failure(move |failure| {
                // The text of a panic, or that of an error.
                hook.lock().unwrap().push(failure.error().to_string());
            })
            .build()
            .unwrap();
        test(&runtime, &told);
        drop(runtime);
    }
}

fn boo() -> u32 {
    resume_unwind(Box::new("boo"))
}

#[test]
fn a_failure_nobody_looked_at_is_told_to_the_hook_once() {
    with_hook(|runtime, told| {
        // The last handle goes after the end ...
        let request = runtime.spawn(boo);
        until(|| request.is_done());
        let other = request.clone();
        drop(request);
        assert!(told.lock().unwrap().is_empty(), "somebody may still look");
        drop(other);
        assert_eq!(*told.lock().unwrap(), ["boo"]);
        // ... before it ...
        told.lock().unwrap().clear();
        let go = Flag::new();
        let may = go.clone();
        let request = Request::builder().on(runtime).own_stack().spawn(move || {
            may.wait();
            boo()
        });
        let any = request.to_untyped();
        drop(request);
        go.raise();
        until(|| any.is_done() && !told.lock().unwrap().is_empty());
        drop(any);
        assert_eq!(*told.lock().unwrap(), ["boo"]);
        // ... or inside a request.
        told.lock().unwrap().clear();
        runtime.run(|| {
            let request = try_spawn(|| Ok("x".parse::<u32>()?));
            until(|| request.is_done());
        });
        assert_eq!(told.lock().unwrap().len(), 1);
    });
}

#[test]
fn a_failure_somebody_looked_at_is_not_told_to_the_hook() {
    with_hook(|runtime, told| {
        let bad = || runtime.spawn(boo);
        assert!(bad().wait().is_err());
        assert!(bad().take().is_err());
        let request = bad();
        assert!(request.to_untyped().wait().is_err(), "by an untyped handle");
        drop(request);
        let request = bad();
        until(|| request.is_done());
        assert!(matches!(request.outcome(), Some(Outcome::Failed(_))));
        drop(request);
        // The waiter suspends or blocks before the end, and holds no handle of its own but a borrow.
        let request = Request::builder().on(runtime).own_stack().build(boo);
        runtime.run(|| assert!(request.wait().is_err()));
        drop(request);
        runtime.run(|| {
            assert!(spawn(boo).take().is_err());
            assert!(spawn(boo).wait().is_err());
            let (one, two) = (spawn(boo), spawn(boo));
            assert!(two.take().is_err());
            assert!(one.take().is_err());
        });
        assert_eq!(*told.lock().unwrap(), [""; 0]);
    });
}

/// A panic in the hook itself is contained.
#[test]
fn a_hook_that_panics_harms_nobody() {
    for kind in support::kinds() {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let runtime =
            kind.builder().on_unhandled_failure(|_| resume_unwind(Box::new("hook"))).build().unwrap();
        for _ in 0..5 {
            drop(runtime.spawn(boo));
        }
        runtime.run(|| drop(spawn(boo)));
        assert_eq!(runtime.run(|| spawn(|| 1).take().unwrap()), 1);
    }
}

// ---- nothing else is harmed -------------------------------------------------------------------------------------------------

#[test]
fn workers_survive_failures() {
    on_each(|runtime| {
        for round in 0..50 {
            assert!(runtime.spawn(boo).take().is_err());
            assert_eq!(runtime.spawn(move || round).take().unwrap(), round);
        }
        let states = runtime.states();
        assert_eq!(states.len(), runtime.workers());
    });
}

struct Bad(Count);

impl Drop for Bad {
    fn drop(&mut self) {
        self.0.up();
        if !thread::panicking() {
            resume_unwind(Box::new("destructor"));
        }
    }
}

#[test]
fn a_destructor_of_a_value_that_panics_is_contained_and_told() {
    with_hook(|runtime, told| {
        let drops = Count::new();
        let value = || {
            let bad = Bad(drops.clone());
            move || bad
        };
        // With the last handle, here and in a request.
        let request = runtime.spawn(value());
        request.wait().unwrap();
        drop(request);
        runtime.run(|| {
            let request = spawn(value());
            request.wait().unwrap();
            drop(request);
        });
        // By the runner, nobody being left.
        let (go, done) = (Flag::new(), value());
        let may = go.clone();
        let request = Request::builder().on(runtime).own_stack().spawn(move || {
            may.wait();
            done()
        });
        let any = request.to_untyped();
        drop(request);
        go.raise();
        any.wait().unwrap();
        until(|| told.lock().unwrap().len() == 3);
        assert_eq!(*told.lock().unwrap(), ["destructor"; 3]);
        assert_eq!(drops.get(), 3);
        assert_eq!(runtime.run(|| 1), 1);
    });
}

#[test]
fn a_destructor_of_an_unsubmitted_callable_that_panics_is_contained_and_told() {
    with_hook(|runtime, told| {
        let drops = Count::new();
        let request = || {
            let bad = Bad(drops.clone());
            Request::new(move || drop(bad))
        };
        runtime.enter(|| drop(request()));
        runtime.run(|| drop(request()));
        assert_eq!((told.lock().unwrap().len(), drops.get()), (2, 2));
    });
}

#[test]
fn a_capture_whose_destructor_panics_fails_the_request() {
    with_hook(|runtime, _| {
        let drops = Count::new();
        let bad = Bad(drops.clone());
        let request = runtime.spawn(move || {
            let _bad = bad;
            1
        });
        assert_eq!(failure(request.wait()).panic_message(), Some("destructor"));
        assert_eq!(drops.get(), 1);
    });
}

/// The payload is dropped with the last failure that tells of it; a destructor of that may panic, too.
#[test]
fn a_payload_whose_destructor_panics_is_contained() {
    with_hook(|runtime, _| {
        let drops = Count::new();
        let bad = Bad(drops.clone());
        let request = runtime.spawn(move || -> u32 { resume_unwind(Box::new(bad)) });
        let told = failure(request.wait());
        drop(request);
        assert_eq!(drops.get(), 0);
        drop(told);
        // A queue entry that was overtaken by the waiter may keep the record a moment longer.
        drops.wait_for(1);
        assert_eq!(runtime.run(|| 1), 1);
    });
}

#[test]
fn what_the_panic_of_a_payloads_destructor_carries_is_dropped() {
    struct Throws(Option<support::Probe>);
    impl Drop for Throws {
        fn drop(&mut self) {
            panic_any(self.0.take());
        }
    }
    with_hook(|runtime, _| {
        let drops = Count::new();
        let throws = Throws(Some(drops.probe()));
        let request = runtime.spawn(move || -> u32 { resume_unwind(Box::new(throws)) });
        drop(failure(request.wait()));
        drop(request);
        drops.wait_for(1);
    });
}

#[test]
fn an_error_that_ends_a_request_is_dropped_with_the_last_who_can_tell_of_it() {
    #[derive(Debug)]
    struct Counted(#[allow(dead_code, reason = "its drop is counted")] support::Probe);
    impl fmt::Display for Counted {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("counted")
        }
    }
    impl StdError for Counted {}
    in_both_worlds(|| {
        let drops = Count::new();
        let probe = drops.probe();
        let request = Request::<u32>::try_new(move || Err(Counted(probe))?);
        let told = failure(request.wait());
        drop(request);
        assert_eq!(drops.get(), 0);
        drop(told);
        assert_eq!(drops.get(), 1);
    });
}
