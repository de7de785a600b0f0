//! What is said of those that have not ended: by `finish` and `shutdown` while they wait, by `finish` of what it aborts, and of code that runs
//! outside of any request.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use forebear::channel;
use forebear::sync::Event;
use forebear::{Request, Runtime, RuntimeBuilder, ShutdownError, State, shield};

use super::support::{Flag, Kind, Watchdog, hold_thread_until, until};

/// What a runtime's hook for warnings is told.
fn told(builder: RuntimeBuilder) -> (Runtime, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    (builder.on_warning(move |what| _ = tell.send(what.to_owned())).build().unwrap(), told)
}

/// Two ways to end a runtime.
type End = (&'static str, fn(&Runtime) -> Result<(), ShutdownError>);

#[test]
fn an_end_that_is_waited_for_without_a_limit_says_by_name_for_whom_it_waits() {
    let ends: [End; 2] = [
        ("finish", |runtime| runtime.finish(Duration::MAX)),
        ("shutdown", |runtime| runtime.shutdown(Duration::MAX)),
    ];
    for (call, end) in ends {
        let _dog = Watchdog::new(call);
        let (runtime, told) = told(Runtime::builder().workers(1).name("slow"));
        let go = Arc::new(Event::new());
        let waits = {
            let go = go.clone();
            Request::builder()
                .name("waits")
                .on(&runtime)
                .own_stack()
                .spawn(move || shield(|| go.wait()).unwrap())
        };
        until(|| waits.state() == forebear::State::Suspended);
        thread::scope(|threads| {
            let ended = threads.spawn(|| end(&runtime));
            let said = told.recv().unwrap();
            let expected =
                format!("Runtime::{call} of runtime 'slow' waits for ever, for: request 'waits' (suspended");
            assert!(said.starts_with(&expected), "{said}");
            go.set();
            ended.join().unwrap().unwrap();
        });
        assert_eq!(told.try_iter().count(), 0, "once");
    }
}

/// Each waits for the other's message. Nothing else would ever name them.
#[test]
fn two_that_wait_for_each_others_message_are_named_by_finish_and_counted_by_shutdown() {
    for kind in [Kind::Workers(1), Kind::Workers(2), Kind::Synchronous, Kind::Seeded(1)] {
        for call in ["finish", "shutdown"] {
            let _dog = Watchdog::new(format_args!("{kind:?}, {call}"));
            let (runtime, told) = told(kind.builder());
            let ((to_left, left), (to_right, right)) =
                (channel::unbounded::<u32>(), channel::unbounded::<u32>());
            let root = |name: &'static str| Request::builder().name(name).on(&runtime).own_stack();
            let both = [
                root("left").try_spawn(move || Ok(_ = to_right.send(left.recv()?))),
                root("right").try_spawn(move || Ok(_ = to_left.send(right.recv()?))),
            ];
            // A thread that drives lets them begin as it waits.
            runtime.enter(|| until(|| both.iter().all(|one| one.state() == forebear::State::Suspended)));
            let ended = match call {
                "finish" => runtime.finish(Duration::ZERO),
                _ => runtime.shutdown(Duration::from_secs(60)),
            };
            assert!(ended.is_ok() || call == "finish", "{ended:?}");
            // The first of the two to learn that the other has ended fails by that.
            assert!(both.iter().all(|one| one.wait().is_err()));
            assert_eq!(runtime.metrics().shut_down, 2, "{kind:?}");
            let said: Vec<_> = told.try_iter().collect();
            if call == "finish" {
                assert!(
                    said.iter().any(|said| said.contains("'left'") && said.contains("'right'")),
                    "{said:?}"
                );
            }
        }
    }
}

#[test]
fn a_destructor_that_waits_outside_of_any_request_is_named_among_the_laggards() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let go = Arc::new(Event::new());
    struct Waits(Arc<Event>);
    impl Drop for Waits {
        fn drop(&mut self) {
            self.0.wait().unwrap();
        }
    }
    let parent = {
        let captured = Waits(go.clone());
        runtime.spawn(move || {
            // It stands in the private queue, and the worker's loop ends it.
            let _child = Request::builder().own_stack().spawn(move || drop(captured));
            Request::current().unwrap().cancel();
            _ = Event::new().wait();
        })
    };
    assert!(parent.watch().is_err());
    until(|| {
        let Err(error) = runtime.shutdown(Duration::ZERO) else { panic!("a destructor waits") };
        error.laggards().iter().any(|laggard| {
            laggard.name == "a destructor outside of any request"
                && laggard.worker == Some(0)
                && laggard.waits_for.as_deref().is_some_and(|what| what.to_lowercase().contains("event"))
        })
    });
    go.set();
    runtime.shutdown(Duration::from_secs(60)).unwrap();
}

/// The look sees no wait, and yet a worker has not left.
#[test]
fn a_destructor_that_keeps_its_worker_busy_outside_of_any_request_is_named_among_the_laggards() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (began, go) = (Flag::new(), Flag::new());
    struct Busy(Flag, Flag);
    impl Drop for Busy {
        fn drop(&mut self) {
            self.0.raise();
            hold_thread_until(|| self.1.is_up());
        }
    }
    let parent = {
        let captured = Busy(began.clone(), go.clone());
        runtime.spawn(move || {
            // It stands in the private queue, and the worker's loop ends it.
            let _child = Request::builder().own_stack().spawn(move || drop(captured));
            Request::current().unwrap().cancel();
            _ = Event::new().wait();
        })
    };
    assert!(parent.watch().is_err());
    until(|| began.is_up());
    let Err(error) = runtime.shutdown(Duration::ZERO) else { panic!("a destructor has the worker") };
    let [laggard] = error.laggards() else { panic!("{error}") };
    assert_eq!(laggard.name, "code outside of any request");
    assert_eq!((laggard.state, laggard.worker, &laggard.waits_for), (State::Running, Some(0), &None));
    go.raise();
    runtime.shutdown(Duration::from_secs(60)).unwrap();
}
