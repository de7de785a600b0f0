//! A worker's thread exits, and the destructor of a thread-local deals with its runtime.

use std::cell::RefCell;
use std::sync::mpsc;
use std::time::Duration;

use forebear::{LateEnd, Request, Runtime, ShutdownError, State};

use super::LONG;
use super::support::{Flag, Watchdog, hold_thread_until, runtime, until};

/// What a thread-local of a worker does with its runtime as the worker's thread exits.
struct AtExit(Option<Box<dyn FnOnce()>>);

impl Drop for AtExit {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|f| f());
    }
}

thread_local!(static AT_EXIT: RefCell<AtExit> = const { RefCell::new(AtExit(None)) });

/// Has the thread of a worker call `f` as it exits.
fn at_exit_of_a_worker(runtime: &Runtime, f: impl FnOnce() + Send + 'static) {
    let leaves = Request::builder().on(runtime).own_stack().spawn(move || {
        AT_EXIT.with_borrow_mut(|at_exit| at_exit.0 = Some(Box::new(f)));
    });
    // A thread that waited would run it.
    until(|| leaves.is_done());
}

/// Has the thread of a worker stay in the destructor of a thread-local until the answer is raised.
fn stays_at_exit(runtime: &Runtime) -> Flag {
    let free = Flag::new();
    let theirs = free.clone();
    at_exit_of_a_worker(runtime, move || hold_thread_until(|| theirs.is_up()));
    free
}

fn is_named(error: &ShutdownError) {
    let [laggard] = error.laggards() else { panic!("{error}") };
    assert_eq!(laggard.name, "the destructor of a thread-local");
    assert_eq!((laggard.state, laggard.worker, &laggard.waits_for), (State::Running, Some(0), &None));
}

#[test]
fn a_thread_local_of_a_worker_that_stays_is_waited_for_as_long_as_the_grace_and_is_named() {
    let _dog = Watchdog::new("");
    for end in [Runtime::shutdown, Runtime::finish] {
        let runtime = runtime(1);
        let free = stays_at_exit(&runtime);
        for grace in [Duration::from_millis(10), Duration::ZERO] {
            is_named(&end(&runtime, grace).unwrap_err());
        }
        free.raise();
        end(&runtime, Duration::MAX).unwrap();
        assert_eq!(runtime.metrics().live_stacks, 0);
    }
}

#[test]
fn the_last_handle_does_not_wait_for_a_thread_local_that_a_shutdown_has_given_up() {
    let _dog = Watchdog::new("");
    let runtime = runtime(1);
    let free = stays_at_exit(&runtime);
    is_named(&runtime.shutdown(Duration::ZERO).unwrap_err());
    drop(runtime);
    free.raise();
}

#[test]
fn a_thread_local_of_a_worker_that_stays_is_named_when_the_last_handle_goes() {
    let _dog = Watchdog::new("");
    let (tell, told) = mpsc::channel();
    let builder = Runtime::builder().workers(1).late_end(LateEnd::ShutDown);
    let runtime = builder.on_warning(move |what| _ = tell.send(what.to_owned())).build().unwrap();
    let free = stays_at_exit(&runtime);
    drop(runtime);
    for _ in 0..2 {
        let what = told.recv().unwrap();
        assert!(what.contains("'the destructor of a thread-local' (running on worker 0)"), "{what}");
    }
    free.raise();
}

/// The thread that ends the runtime joins that thread, so it would wait for itself.
#[test]
fn a_thread_local_of_a_worker_is_refused_to_end_the_runtime_as_the_thread_exits() {
    let _dog = Watchdog::new("");
    let runtime = runtime(1);
    let (tell, told) = mpsc::channel();
    let theirs = runtime.clone();
    at_exit_of_a_worker(&runtime, move || _ = tell.send([theirs.shutdown(LONG), theirs.finish(LONG)]));
    runtime.shutdown(LONG).unwrap();
    for answer in told.recv().unwrap() {
        assert!(matches!(answer, Err(ShutdownError::Inside)), "{answer:?}");
    }
}
