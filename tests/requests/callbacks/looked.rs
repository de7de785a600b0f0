//! A failure that nobody looked at is told to the hook, once; who has it told to a callback has looked.

use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use forebear::{Request, WaitError};

use crate::support::order::root;
use crate::support::{Count, Flag, join_all, until};
use crate::{boo, with_hook};

fn over(request: Request<u32>) {
    let any = request.submit().to_untyped();
    drop(request);
    until(|| any.is_done());
}

#[test]
fn who_is_told_a_failure_by_a_callback_has_looked_at_it() {
    with_hook(|runtime, hook| {
        let each = || {
            let made = || Request::builder().own_stack().build(boo);
            let request = made();
            request.on_failed(|_| ());
            over(request);
            let request = made();
            request.on_done(|_| ());
            over(request);
            let request = made();
            request.to_untyped().on_done(|_| ());
            over(request);
            // Late ones too.
            let request = made();
            request.submit();
            until(|| request.is_done());
            request.on_failed(|_| ());
            drop(request);
            let request = made();
            request.submit();
            until(|| request.is_done());
            request.on_done(|_| ());
            drop(request);
        };
        runtime.enter(each);
        runtime.run(each);
        hook.check(&[]);
    });
}

#[test]
fn who_subscribes_to_another_end_has_not_looked_at_the_failure() {
    with_hook(|runtime, hook| {
        let each = || {
            let request = Request::builder().own_stack().build(boo);
            request.on_finished(|_| ()).on_cancelled(|| ());
            over(request);
            let request = Request::builder().own_stack().build(boo);
            request.submit();
            until(|| request.is_done());
            request.on_finished(|_| ()).on_cancelled(|| ());
            drop(request);
        };
        runtime.enter(each);
        runtime.run(each);
        hook.wait_for(4);
        hook.check(&["boo"; 4]);
    });
}

#[test]
fn a_failure_is_told_to_the_hook_if_its_last_handle_goes_with_a_callback() {
    with_hook(|runtime, hook| {
        let each = || {
            let request = Request::builder().own_stack().build(boo);
            let held = request.clone();
            request.on_finished(move |_| drop(held));
            over(request);
            hook.wait_for(1);
            hook.check(&["boo"]);
            // It was called, and is not the group's.
            let request = Request::builder().own_stack().build(|| 7);
            let held = request.clone();
            request.on_finished(move |_| {
                drop(held);
                resume_unwind(Box::new("callback"));
            });
            over(request);
            hook.wait_for(1);
            hook.check(&["callback"]);
        };
        runtime.enter(each);
        runtime.run(each);
    });
}

#[test]
fn a_success_callback_that_panics_is_a_failure_that_somebody_should_look_at() {
    with_hook(|runtime, hook| {
        let each = || {
            let made = || {
                let request = Request::builder().own_stack().build(|| 7);
                request.on_finished(|_| resume_unwind(Box::new("callback")));
                request
            };
            over(made());
            // By the last handle.
            let request = made();
            request.submit();
            until(|| request.is_done());
            drop(request);
            hook.wait_for(2);
            hook.check(&["callback"; 2]);
            assert!(made().wait().is_err());
            let request = made();
            request.on_failed(|_| ());
            over(request);
            hook.check(&[]);
        };
        runtime.enter(each);
        runtime.run(each);
    });
}

/// A panic of the callback that was to look at it is told; the failure was looked at.
#[test]
fn a_failure_callback_that_panics_is_told_and_the_failure_is_not() {
    with_hook(|runtime, hook| {
        let each = || {
            let request = Request::builder().own_stack().build(boo);
            request.on_failed(|_| resume_unwind(Box::new("callback")));
            over(request);
        };
        runtime.enter(each);
        runtime.run(each);
        hook.check(&["callback"; 2]);
    });
}

/// The original reported it although a thread was waiting for it.
#[test]
fn d23_a_failure_that_somebody_waits_for_is_told_to_them_alone() {
    with_hook(|runtime, hook| {
        for _ in 0..20 {
            let begun = Count::new();
            let all = begun.clone();
            let request = root(runtime).build(move || {
                all.wait_for(3);
                boo()
            });
            request.submit();
            let waits = || {
                begun.up();
                assert!(request.wait().is_err());
            };
            thread::scope(|threads| {
                join_all([threads.spawn(waits), threads.spawn(waits), threads.spawn(|| runtime.run(waits))])
            });
        }
        hook.check(&[]);
    });
}

#[test]
fn d23_who_stopped_waiting_has_not_looked() {
    with_hook(|runtime, hook| {
        for within in [false, true] {
            let go = Flag::new();
            let may = go.clone();
            let request = root(runtime).spawn(move || {
                may.wait();
                boo()
            });
            let waits = || {
                let answer = request.wait_timeout(Duration::from_millis(1));
                assert!(matches!(answer, Err(WaitError::TimedOut)));
            };
            if within {
                runtime.run(waits)
            } else {
                waits()
            }
            let any = request.to_untyped();
            drop(request);
            go.raise();
            until(|| any.is_done());
            hook.wait_for(1);
            hook.check(&["boo"]);
        }
    });
}

/// The end and the drop of the last handle, at once: one of the two tells it.
#[test]
fn d23_a_failure_is_told_once_when_the_last_handle_goes_as_it_ends() {
    let _not = crate::support::not_on(
        crate::support::Modes::Both,
        "its requests hold the thread, which alone could go on",
    );
    with_hook(|runtime, hook| {
        let rounds = 300;
        for round in 0..rounds {
            let (go, begun) = (Flag::new(), Flag::new());
            let (may, up) = (go.clone(), begun.clone());
            let request = root(runtime).build(move || {
                up.raise();
                while !may.is_up() {
                    std::hint::spin_loop();
                }
                boo()
            });
            if round % 2 == 0 {
                request.on_finished(|_| ());
            }
            request.submit();
            begun.wait();
            let any = request.to_untyped();
            go.raise();
            (0..round % 50).for_each(|_| std::hint::spin_loop());
            drop(request);
            until(|| any.is_done());
        }
        hook.wait_for(rounds);
        hook.check(&vec!["boo"; rounds]);
    });
}
