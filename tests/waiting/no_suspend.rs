//! Regions that must not be left, and destructors that wait while an unwind runs them.

#[path = "../support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use forebear::{CancelReason, Request, Runtime, WaitError, join, no_suspend, scope, spawn, yield_now};
use support::{Count, Flag, Watchdog, hold_thread_until, in_both_worlds, inside_each, until};

/// What a body that panics says.
fn said(f: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(f)).expect_err("it panics");
    payload.downcast_ref::<String>().expect("a message").clone()
}

/// A request that is never run on its waiter's stack, and not over before the flag is up.
fn apart(go: &Flag) -> Request<u32> {
    let go = go.clone();
    Request::builder().name("the target").own_stack().build(move || {
        go.wait();
        7
    })
}

#[test]
fn a_wait_inside_that_would_suspend_panics_by_name() {
    in_both_worlds(|| {
        let go = Flag::new();
        let target = apart(&go);
        let text = said(|| no_suspend("the region", || drop(target.wait())));
        assert!(text.contains("the region") && text.contains("the target"), "{text}");
        let (other, any) = (apart(&go), target.to_untyped());
        said(|| no_suspend("by value", || drop(other.take())));
        said(|| no_suspend("untyped", || drop(any.wait())));
        go.raise();
        assert_eq!(target.take().unwrap(), 7);
    });
}

#[test]
fn a_take_that_is_refused_gives_its_handle_back() {
    in_both_worlds(|| {
        let (go, drops) = (Flag::new(), Count::new());
        let (free, probe) = (go.clone(), drops.probe());
        let target = Request::builder().own_stack().build(move || {
            free.wait();
            probe
        });
        let over = target.to_untyped();
        said(|| no_suspend("by value", || drop(target.take())));
        go.raise();
        over.wait().unwrap();
        drops.wait_for(1);
    });
}

#[test]
fn a_target_that_is_run_right_here_must_not_suspend_either() {
    inside_each(|| {
        let go = Flag::new();
        let fine = Request::new(|| 7);
        assert_eq!(no_suspend("region", || fine.take()).unwrap(), 7);
        let inner = apart(&go);
        let outer = Request::new(move || *inner.force());
        let error = no_suspend("region", || outer.take()).unwrap_err();
        assert!(error.failure().unwrap().panic_message().unwrap().contains("region"), "{error:?}");
        go.raise();
    });
}

#[test]
fn what_is_over_is_no_wait_and_what_need_not_wait_goes_on() {
    in_both_worlds(|| {
        let over = spawn(|| 7);
        over.wait().unwrap();
        let sum = no_suspend("region", || {
            let (a, b) = join(|| 1, || 2);
            *over.wait().unwrap() + a + b
        });
        assert_eq!(sum, 10);
    });
}

#[test]
fn a_yield_inside_panics_in_a_request() {
    inside_each(|| {
        let text = said(|| no_suspend("region", || _ = yield_now()));
        assert!(text.contains("region"), "{text}");
        yield_now().unwrap();
    });
}

#[test]
fn regions_nest_and_end_also_when_they_unwind() {
    in_both_worlds(|| {
        let go = Flag::new();
        let target = apart(&go);
        no_suspend("outer", || {
            let text = said(|| no_suspend("inner", || drop(target.wait())));
            assert!(text.contains("inner"), "{text}");
            let text = said(|| drop(target.wait()));
            assert!(text.contains("outer"), "{text}");
        });
        go.raise();
        assert_eq!(*target.wait().unwrap(), 7);
    });
}

/// Waits for its request when it is dropped, and keeps what came of it.
struct WaitsInDrop(Request<u32>, Arc<Mutex<Option<Result<u32, WaitError>>>>);

impl Drop for WaitsInDrop {
    fn drop(&mut self) {
        *self.1.lock().unwrap() = Some(self.0.wait().copied());
    }
}

#[test]
fn a_destructor_that_an_error_unwinds_may_wait_and_the_runtime_warns_once() {
    for kind in support::kinds() {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let told = warnings.clone();
        let runtime = kind
            .builder()
            .on_warning(move |what| told.lock().unwrap().push(what.to_owned()))
            .build()
            .unwrap();
        runtime.run(|| {
            for _ in 0..3 {
                let kept = Arc::new(Mutex::new(None));
                let (keep, go) = (kept.clone(), Flag::new());
                let may = go.clone();
                let request = spawn(move || {
                    // Suspended, so that the destructor has to suspend as well.
                    let slow = Request::builder().own_stack().spawn(move || {
                        may.wait();
                        7
                    });
                    let _cleans_up = WaitsInDrop(slow, keep);
                    Request::current().unwrap().abort(CancelReason::Asked);
                    // Unwinds with the cancellation.
                    Request::new(|| ()).force();
                });
                request.submit();
                go.raise();
                assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(_))));
                let came = kept.lock().unwrap().take().expect("it has waited");
                // The child itself may have been cancelled with its parent; the wait was not refused.
                assert!(!matches!(came, Err(WaitError::Cancelled)), "{came:?}");
            }
        });
        assert!(warnings.lock().unwrap().len() <= 1);
    }
}

#[test]
fn a_destructor_that_a_panic_unwinds_blocks_the_thread_if_nothing_else_is_there() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let (begun, go) = (Flag::new(), Flag::new());
    let (up, may) = (begun.clone(), go.clone());
    let slow = runtime.spawn(move || {
        up.raise();
        hold_thread_until(|| may.is_up());
        7
    });
    until(|| begun.is_up());
    let kept = Arc::new(Mutex::new(None));
    let (keep, waits) = (kept.clone(), Flag::new());
    let there = waits.clone();
    let bad = Request::builder().on(&runtime).own_stack().spawn(move || {
        let _cleans_up = WaitsInDrop(slow, keep);
        there.raise();
        resume_unwind(Box::new("on purpose"));
    });
    until(|| waits.is_up());
    go.raise();
    assert!(bad.wait().is_err());
    assert_eq!(kept.lock().unwrap().take().unwrap().unwrap(), 7);
}

#[test]
fn scope_and_join_wait_outside_of_the_unwind() {
    inside_each(|| {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            scope(|s| {
                s.spawn(|| while yield_now().is_ok() {});
                yield_now().unwrap();
                resume_unwind(Box::new("on purpose"))
            })
        }));
        assert!(caught.is_err());
        assert!(!std::thread::panicking());
    });
}
