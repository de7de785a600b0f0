//! Debug assertions of the library, each with a violation that is placed here.
//!
//! The violation: a wait has begun on the calling stack's context, and is not parked. A wait of user code that is called now would replace it.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use forebear::Request;
use forebear::sync::Event;
use forebear_context::context::{Reason, with_foreign};

use crate::child;

/// A waker whose methods say that they were called.
fn telling() -> Waker {
    const METHODS: RawWakerVTable = RawWakerVTable::new(
        |_| {
            println!("clone was called");
            RawWaker::new(ptr::null(), &METHODS)
        },
        |_| println!("wake was called"),
        |_| println!("wake_by_ref was called"),
        |_| println!("drop was called"),
    );
    // SAFETY: the methods touch no data.
    unsafe { Waker::from_raw(RawWaker::new(ptr::null(), &METHODS)) }
}

/// Begins a wait on the calling stack, which is never parked.
fn begin_a_wait() {
    println!("the wait begins");
    with_foreign(|context| {
        // SAFETY: C2: on the context's own stack; the ticket goes to nobody. C4: the target is null.
        let _ticket = unsafe { context.begin(Reason::None, ptr::null_mut()) };
    });
}

#[test]
fn a_waker_that_is_called_between_the_beginning_and_the_end_of_a_wait_ends_a_debug_build() {
    for method in ["clone", "clone of another", "wake", "drop"] {
        let end = child::run(method, &[], |method| {
            let (go, ends) = (Arc::new(Event::new()), method == "wake");
            let gate = go.clone();
            let request = Request::try_new(move || {
                gate.wait()?;
                if ends {
                    begin_a_wait();
                }
                Ok(())
            });
            let mut future = Box::pin((&request).into_future());
            let poll = |future: &mut Pin<Box<_>>, waker: &Waker| {
                let mut task = Context::from_waker(waker);
                assert!(matches!(Future::poll(Pin::as_mut(future), &mut task), Poll::Pending));
            };
            match method {
                "clone" => {}
                "clone of another" => poll(&mut future, Waker::noop()),
                _ => poll(&mut future, &telling()),
            }
            if ends {
                // Its end calls the waker, and perhaps ends this wait before.
                go.set();
                _ = request.wait();
                loop {
                    std::thread::park();
                }
            }
            begin_a_wait();
            match method {
                "drop" => drop(future),
                _ => poll(&mut future, &telling()),
            }
        });
        end.assert_killed_by(libc::SIGABRT);
        assert!(
            end.stderr.contains("user code is called between the beginning and the end of a wait"),
            "{end:#?}"
        );
        // Before the call.
        assert!(end.stdout.ends_with("the wait begins\n"), "{end:#?}");
    }
}
