//! Callbacks: which are called, in which order, when and where; what they may do; and that whatever they do, their request
//! ends as one thing and everybody is told.
//!
//! What a callback finds it sends out to be looked at here: a panic in most of them would go to the hook, and fail no test.

#[path = "../../support/mod.rs"]
mod support;

mod completing;
mod freed;
mod inside;
mod late;
mod looked;
mod panics;
mod races;
mod which;

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};

use forebear::{CancelReason, Error, Outcome, Request, Runtime};
use support::order::Log;
use support::{Watchdog, in_both_worlds, until};

/// Panics as programs do, without a word from the panic hook.
fn boo() -> u32 {
    resume_unwind(Box::new("boo"))
}

/// A way in which a request ends.
#[derive(Clone, Copy)]
struct End {
    make: fn() -> Request<u32>,
    bring: fn(Request<u32>),
    /// What the callbacks of its group note, and the done-callbacks.
    group: &'static str,
    done: &'static str,
}

/// Every way in which a request ends.
const ENDS: [End; 12] = [
    End {
        make: || Request::new(|| 7),
        bring: |request| assert_eq!(request.wait().unwrap(), &7),
        group: "finished 7",
        done: "done: finished 7",
    },
    End {
        make: || Request::try_new(|| Ok(7)),
        bring: |request| request.submit().to_untyped().wait().unwrap(),
        group: "finished 7",
        done: "done: finished 7",
    },
    End {
        make: || Request::builder().own_stack().build(|| 7),
        bring: |request| drop(request.submit().to_untyped()),
        group: "finished 7",
        done: "done: finished 7",
    },
    End {
        make: || Request::new(boo),
        bring: |request| drop(request.wait().unwrap_err()),
        group: "failed boo",
        done: "done: failed boo",
    },
    End {
        make: || Request::builder().own_stack().try_build(|| Err(Error::other("no disk"))),
        bring: |request| drop(request.take().unwrap_err()),
        group: "failed no disk",
        done: "done: failed no disk",
    },
    // Cancelled before it starts: by the handle, by the last handle, and where it might be running by now.
    End {
        make: || Request::new(|| unreachable!()),
        bring: |request| _ = request.cancel(),
        group: "cancelled",
        done: "done: cancelled Asked",
    },
    End {
        make: || Request::new(|| unreachable!()),
        bring: drop,
        group: "cancelled",
        done: "done: cancelled Asked",
    },
    End {
        make: || Request::new(|| unreachable!()),
        bring: |request| _ = request.abort(CancelReason::Other(3)),
        group: "cancelled",
        done: "done: cancelled Other(3)",
    },
    // While it runs.
    End {
        make: || Request::new(|| aborts_itself(7)),
        bring: |request| drop(request.wait().unwrap_err()),
        group: "cancelled",
        done: "done: cancelled Other(4)",
    },
    End {
        make: || Request::builder().own_stack().build(|| aborts_itself(7)),
        bring: |request| drop(request.watch().unwrap_err()),
        group: "cancelled",
        done: "done: cancelled Other(4)",
    },
    End {
        make: || Request::try_new(|| Err(Error::other(format!("no disk {}", aborts_itself(7))))),
        bring: |request| drop(request.wait().unwrap_err()),
        group: "failed no disk 7",
        done: "done: failed no disk 7",
    },
    End {
        make: || Request::builder().own_stack().build(|| aborts_itself(boo as fn() -> u32)()),
        bring: |request| drop(request.wait().unwrap_err()),
        group: "failed boo",
        done: "done: failed boo",
    },
];

fn aborts_itself<T>(value: T) -> T {
    Request::current().unwrap().abort(CancelReason::Other(4));
    value
}

/// Runs the test with each way to end, in both worlds, on runtimes of every size. It subscribes, brings the end about by
/// what it is given, and looks.
#[track_caller]
fn at_each_end(test: impl Fn(&End, Request<u32>, &dyn Fn(Request<u32>)) + Sync) {
    in_both_worlds(|| {
        for end in &ENDS {
            let request = (end.make)();
            test(end, request, &|request| {
                let any = request.to_untyped();
                (end.bring)(request);
                until(|| any.is_done());
            });
        }
    });
}

/// Has every kind of callback of the request note that it was called.
fn note_all(request: &Request<u32>, log: &Log) {
    let [a, b, c, d] = [(); 4].map(|()| log.clone());
    request
        .on_finished(move |value| a.note(format!("finished {value}")))
        .on_failed(move |failure| b.note(format!("failed {}", failure.error())))
        .on_cancelled(move || c.note("cancelled"))
        .on_done(move |how| d.note(format!("done: {}", told(how))));
}

/// What a done-callback was told.
fn told<T: std::fmt::Debug>(how: Outcome<'_, T>) -> String {
    match how {
        Outcome::Finished(value) => format!("finished {value:?}"),
        Outcome::Failed(failure) => format!("failed {}", failure.error()),
        Outcome::Cancelled(reason) => format!("cancelled {reason:?}"),
    }
}

/// Runs the test against runtimes of every size that put down what their hook is told.
#[track_caller]
fn with_hook(test: impl Fn(&Runtime, &Hook)) {
    for kind in support::kinds() {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let told = Hook::default();
        let hook = told.clone();
        let runtime = kind
            .builder()
            .on_unhandled_failure(move |failure| hook.0.lock().unwrap().push(failure.error().to_string()))
            .build()
            .unwrap();
        test(&runtime, &told);
    }
}

/// What the hook for failures that nobody looked at was told.
#[derive(Clone, Default)]
struct Hook(Arc<Mutex<Vec<String>>>);

impl Hook {
    /// Checks that it was told this, and nothing else, since the last check.
    #[track_caller]
    fn check(&self, expected: &[&str]) {
        assert_eq!(std::mem::take(&mut *self.0.lock().unwrap()), expected);
    }

    /// Yields until it has been told so much.
    fn wait_for(&self, n: usize) {
        until(|| self.0.lock().unwrap().len() >= n);
    }
}
