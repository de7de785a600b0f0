//! Errors: their chains of causes, and what they hold.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use forebear::channel::{Receiver, RecvError, Sender, unbounded};
use forebear::time::ManualClock;
use forebear::{Completer, OrUnwind, Request, Runtime, WaitError, join, scope, spawn, try_spawn};

use crate::support::{Count, Kind, Probe, Watchdog, hold_workers, in_both_worlds, on_each, until};

/// Its `source` panics.
#[derive(Debug)]
struct Bottomless;

impl fmt::Display for Bottomless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bottomless")
    }
}

impl std::error::Error for Bottomless {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        panic!("`source` panics on purpose")
    }
}

#[test]
fn an_error_whose_source_panics_fails_its_request_by_that_panic() {
    in_both_worlds(|| {
        let request = try_spawn(|| -> forebear::Result<()> { Err(Bottomless.into()) });
        let Err(WaitError::Failed(failure)) = request.wait() else { panic!("it has failed") };
        assert_eq!(failure.panic_message(), Some("`source` panics on purpose"));
        assert_eq!(spawn(|| 7).take().unwrap(), 7);
    });
}

/// It is its own source.
#[derive(Debug)]
struct Endless;

impl fmt::Display for Endless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("endless")
    }
}

impl std::error::Error for Endless {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self)
    }
}

#[test]
fn an_error_that_is_its_own_source_fails_its_request_and_has_a_chain_that_ends() {
    in_both_worlds(|| {
        let request = try_spawn(|| -> forebear::Result<()> { Err(Endless.into()) });
        let Err(WaitError::Failed(failure)) = request.wait() else { panic!("it has failed") };
        assert!(failure.downcast_ref::<Endless>().is_some() && failure.downcast_ref::<WaitError>().is_none());
        assert_eq!(failure.chain().count(), 1_000);
        let line = format!("{failure:#}");
        assert!(line.contains("endless: endless"), "{line:.200}");
    });
}

/// An error that holds a request.
#[derive(Debug)]
struct Holds(#[expect(dead_code, reason = "it is dropped")] Request<()>);

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("holds")
    }
}

impl std::error::Error for Holds {}

/// What ends then is worked under a lock, and the error's destructor ends another.
#[test]
fn an_error_that_goes_when_its_runtime_is_over_may_hold_a_request_of_that_runtime() {
    for kind in [Kind::Workers(1), Kind::Workers(2)] {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let runtime = kind.builder().on_unhandled_failure(|_| ()).build().unwrap();
        let other = runtime.spawn(|| ());
        other.wait().unwrap();
        let (give, given) = mpsc::channel();
        let parent = runtime.try_spawn(move || -> forebear::Result<()> {
            give.send(spawn(|| 1)).unwrap();
            Err(Holds(other).into())
        });
        let child = given.recv().unwrap();
        assert!(parent.wait().is_err());
        let _ = child.wait();
        drop(parent);
        drop(runtime);
        drop(child);
    }
}

/// An error whose destructor makes a request and waits for it.
#[derive(Debug)]
struct Makes(mpsc::Sender<u32>);

impl fmt::Display for Makes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("makes")
    }
}

impl std::error::Error for Makes {}

impl Drop for Makes {
    fn drop(&mut self) {
        self.0.send(spawn(|| 7).take().unwrap()).unwrap();
    }
}

/// A thread gives up what it has of a runtime that is over when it deals with another for the first time. That ends the last child, which ends
/// the failed parent, whose error goes.
#[test]
fn an_error_that_goes_as_its_thread_turns_to_another_runtime_may_make_requests_and_wait() {
    let _dog = Watchdog::new("an error that goes late");
    let runtime = Kind::Workers(1).builder().on_unhandled_failure(|_| ()).build().unwrap();
    let (told, tells) = mpsc::channel();
    let (begin, begun) = mpsc::channel();
    let (go, goes) = mpsc::channel::<()>();
    let error = Makes(told);
    // It runs on this thread, so its child is counted here.
    let parent = runtime.enter(|| {
        Request::try_new(move || -> forebear::Result<()> {
            drop(spawn(move || {
                begin.send(()).unwrap();
                let _ = goes.recv();
            }));
            begun.recv().unwrap();
            Err(error.into())
        })
    });
    assert!(parent.wait().is_err());
    drop(parent);
    drop(go);
    std::thread::spawn(move || drop(runtime)).join().unwrap();
    // The runtime's threads may end a little later than that.
    let value = loop {
        let next = Kind::Workers(1).builder().build().unwrap();
        assert_eq!(next.spawn(|| 1).take().unwrap(), 1);
        if let Ok(value) = tells.try_recv() {
            break value;
        }
        std::thread::yield_now();
    };
    assert_eq!(value, 7);
}

/// An error whose destructor waits in several ways.
#[derive(Debug)]
struct Waits;

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("waits")
    }
}

impl std::error::Error for Waits {}

impl Drop for Waits {
    fn drop(&mut self) {
        let queued = Request::builder().own_stack().spawn(|| 7);
        let _ = queued.wait_timeout(std::time::Duration::from_secs(60));
        let _ = forebear::yield_now();
    }
}

/// A thread that drives a runtime chooses what runs next inside a wait of its own. Values that this choice releases are dropped elsewhere.
#[test]
fn an_error_that_goes_while_its_thread_drives_a_runtime_may_wait() {
    on_each(|runtime| {
        for _ in 0..40 {
            let fails = || try_spawn(|| -> forebear::Result<()> { Err(Waits.into()) });
            let outcome = runtime.run(move || {
                for _ in 0..10 {
                    let (one, two) = (fails(), fails());
                    let _ = (one.wait(), two.wait());
                    drop((one, two));
                    let _ = forebear::yield_now();
                }
                7
            });
            assert_eq!(outcome, 7);
        }
    });
}

/// Nested joins, each of which has one arm to show. Every so often `now` is called, deep inside.
fn joins(depth: u32, now: &mut dyn FnMut()) {
    if depth > 0 {
        join(
            || {
                if depth.is_multiple_of(100) {
                    now();
                }
                joins(depth - 1, now);
            },
            || (),
        );
    }
}

/// A request that waits shows its arms first. The memory for these releases the last child of a request that has failed.
#[test]
fn an_error_that_goes_while_a_request_leaves_its_worker_may_wait() {
    let _dog = Watchdog::new("an error that goes while arms are shown");
    let runtime = Kind::Workers(1).builder().on_unhandled_failure(|_| ()).build().unwrap();
    let (give, given) = mpsc::channel();
    let (gone, goes) = mpsc::channel();
    let request = Request::builder().on(&runtime).own_stack().stack_size(15 << 20).spawn(move || {
        joins(4_000, &mut || {
            let parent = try_spawn({
                let give = give.clone();
                move || -> forebear::Result<()> {
                    let child = spawn(|| ());
                    child.wait()?;
                    give.send(child).unwrap();
                    Err(Waits.into())
                }
            });
            assert!(parent.wait().is_err());
            drop(parent);
            goes.recv().unwrap();
            forebear::time::sleep(std::time::Duration::from_micros(10)).unwrap();
        });
    });
    for child in given {
        drop(child);
        gone.send(()).unwrap();
    }
    request.wait().unwrap();
    assert_eq!(runtime.run(|| 7), 7);
}

/// An error whose destructor panics.
#[derive(Debug)]
struct Falls(Count);

impl fmt::Display for Falls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("falls")
    }
}

impl std::error::Error for Falls {}

impl Drop for Falls {
    fn drop(&mut self) {
        self.0.up();
        panic!("the destructor of an error panics on purpose");
    }
}

/// The last reference is the scope's, or the user's own.
#[test]
fn the_panic_of_the_destructor_of_an_error_ends_where_the_last_reference_goes() {
    in_both_worlds(|| {
        let gone = Count::new();
        let falls = || {
            let error = Falls(gone.clone());
            move || -> forebear::Result<()> { Err(error.into()) }
        };
        let value = scope(|s| {
            let job = s.try_spawn(falls());
            assert!(job.wait().is_err());
            7
        });
        assert_eq!(value, 7);
        until(|| gone.get() == 1);
        let request = try_spawn(falls());
        let Err(WaitError::Failed(failure)) = request.take() else { panic!("it has failed") };
        drop(failure);
        until(|| gone.get() == 2);
    });
}

#[test]
fn the_panic_of_the_destructor_of_an_error_that_comes_too_late_ends_at_its_completer() {
    in_both_worlds(|| {
        let gone = Count::new();
        let (completer, answer) = Request::<()>::completer("answer");
        answer.cancel();
        completer.fail(Falls(gone.clone()));
        assert_eq!(gone.get(), 1);
    });
}

#[test]
fn an_error_whose_destructor_panics_unwinds_a_plain_thread_as_a_panic_with_its_text() {
    let gone = Count::new();
    let error = Falls(gone.clone());
    let unwound = catch_unwind(AssertUnwindSafe(|| Err::<(), _>(error).or_unwind()));
    let payload = unwound.unwrap_err();
    assert_eq!(payload.downcast_ref::<String>().map(String::as_str), Some("falls"));
    assert_eq!(gone.get(), 1);
}

/// An error whose destructor waits for a request of which it finds the handle.
#[derive(Debug)]
struct WaitsFor(Arc<Mutex<Option<Request<()>>>>, Count);

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("waits for one")
    }
}

impl std::error::Error for WaitsFor {}

impl Drop for WaitsFor {
    fn drop(&mut self) {
        let wanted = self.0.lock().unwrap().clone().unwrap();
        wanted.wait().unwrap();
        self.1.up();
    }
}

/// A thread runs what it waits for. That leaves stale entries in the queue, which the thread takes out now and then. With such an entry goes what its
/// request has failed with.
#[test]
fn an_error_that_goes_with_a_stale_entry_may_wait_for_what_its_thread_waits_for() {
    for workers in [1, 2] {
        let _dog = Watchdog::new(format_args!("{workers} workers"));
        let runtime = Kind::Workers(workers).builder().on_unhandled_failure(|_| ()).build().unwrap();
        let held = hold_workers(&runtime);
        let (next, gone) = (Arc::new(Mutex::new(None)), Count::new());
        let error = WaitsFor(next.clone(), gone.clone());
        let fails = runtime.enter(|| Request::try_new(move || -> forebear::Result<()> { Err(error.into()) }));
        fails.submit();
        assert!(fails.wait().is_err());
        drop(fails);
        for _ in 0..1_000 {
            let request = runtime.enter(|| Request::new(|| ()));
            request.submit();
            *next.lock().unwrap() = Some(request.clone());
            request.wait().unwrap();
        }
        assert_eq!(gone.get(), 1);
        drop(held);
    }
}

/// An error that owns a runtime.
#[derive(Debug)]
struct Owns(
    #[expect(dead_code, reason = "it is dropped")] Runtime,
    #[expect(dead_code, reason = "it is dropped")] Probe,
);

impl fmt::Display for Owns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("owns")
    }
}

impl std::error::Error for Owns {}

/// A thread that is no worker runs a request, and in it another one, which fails and leaves a child. The deadline of that one is the child's too. When it comes,
/// the thread gets a message about the one that has failed, and attends to it when the request is over. By then only the message keeps the error. The end of
/// the runtime waits for threads that run its requests.
#[test]
fn an_error_that_goes_as_its_thread_attends_to_messages_may_own_the_last_handle_of_its_runtime() {
    for workers in [1, 2] {
        let _dog = Watchdog::new(format_args!("{workers} workers"));
        let (clock, gone) = (ManualClock::new(), Count::new());
        let builder = Kind::Workers(workers).builder().clock(clock.clone());
        let runtime = builder.on_unhandled_failure(|_| ()).build().unwrap();
        let entered = runtime.clone();
        let error = Owns(runtime, gone.probe());
        let parent = entered.enter(|| {
            Request::new(move || {
                let (give, given) = mpsc::channel();
                let timed = Request::builder().timeout(Duration::from_secs(1));
                let fails = timed.try_build(move || -> forebear::Result<()> {
                    give.send(Request::new(|| ())).unwrap();
                    Err(error.into())
                });
                assert!(fails.wait().is_err());
                let child = given.recv().unwrap();
                std::thread::spawn(move || clock.advance(Duration::from_secs(2))).join().unwrap();
                drop(fails);
                drop(child);
                7
            })
        });
        drop(entered);
        assert_eq!(parent.wait().unwrap(), &7);
        assert_eq!(gone.get(), 1);
    }
}

/// An error whose destructor shuts a runtime down, and has another thread do so and waits for that.
#[derive(Debug)]
struct ShutsDown(Runtime, Count);

impl fmt::Display for ShutsDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("shuts down")
    }
}

impl std::error::Error for ShutsDown {}

impl Drop for ShutsDown {
    fn drop(&mut self) {
        self.0.shutdown(Duration::MAX).unwrap();
        let runtime = self.0.clone();
        std::thread::spawn(move || runtime.shutdown(Duration::MAX).unwrap()).join().unwrap();
        self.1.up();
    }
}

/// The last child goes when the thread has exited that owns its memory, and with it what the parent has failed with: before the runtime ends, or after.
#[test]
fn an_error_that_goes_with_the_last_child_may_shut_its_runtime_down() {
    for (workers, is_over) in [(1, false), (1, true), (2, false), (2, true)] {
        let _dog = Watchdog::new(format_args!("{workers} workers, over: {is_over}"));
        let runtime = Kind::Workers(workers).builder().on_unhandled_failure(|_| ()).build().unwrap();
        assert_eq!(runtime.run(|| 7), 7);
        let (gone, maker) = (Count::new(), runtime.clone());
        let error = ShutsDown(runtime.clone(), gone.clone());
        let child = std::thread::spawn(move || {
            let (give, given) = mpsc::channel();
            let parent = maker.enter(|| {
                Request::try_new(move || -> forebear::Result<()> {
                    give.send(Request::new(|| ())).unwrap();
                    Err(error.into())
                })
            });
            assert!(parent.wait().is_err());
            given.recv().unwrap()
        });
        let child = child.join().unwrap();
        if is_over {
            runtime.shutdown(Duration::MAX).unwrap();
        }
        assert_eq!(gone.get(), 0);
        drop(child);
        assert_eq!(gone.get(), 1);
        runtime.shutdown(Duration::MAX).unwrap();
    }
}

/// An error that has the only sender of a channel and the completer of an answer, and whose destructor waits.
#[derive(Debug)]
#[allow(dead_code, reason = "its drop is what counts")]
struct Sends(Sender<()>, Completer<()>, Waits);

impl fmt::Display for Sends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sends")
    }
}

impl std::error::Error for Sends {}

/// Has the calling thread run a request that fails and leaves a child, and drops its handle. Answers the child, which alone keeps the error from then on, and
/// the channel and the answer that end with the error.
fn fails_and_leaves_a_child(runtime: &Runtime) -> (Request<()>, Receiver<()>, Request<()>) {
    let (sender, receiver) = unbounded();
    let (completer, answer) = runtime.enter(|| Request::completer("answer"));
    let (give, given) = mpsc::channel();
    let error = Sends(sender, completer, Waits);
    let parent = runtime.enter(|| {
        Request::try_new(move || -> forebear::Result<()> {
            give.send(Request::new(|| ())).unwrap();
            Err(error.into())
        })
    });
    assert!(parent.wait().is_err());
    drop(parent);
    (given.recv().unwrap(), receiver, answer)
}

/// The memory of the child belongs to the thread that has run its parent. No request of that thread follows which would take it in.
#[test]
fn a_plain_thread_that_waits_for_the_end_of_an_error_is_woken_by_it_if_the_last_child_went_before() {
    on_each(|runtime| {
        let (child, receiver, _) = fails_and_leaves_a_child(runtime);
        std::thread::spawn(move || drop(child)).join().unwrap();
        assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
    });
}

#[test]
fn a_plain_thread_that_waits_for_the_end_of_an_error_is_woken_by_it_if_the_last_child_goes_meanwhile() {
    on_each(|runtime| {
        let (child, _, answer) = fails_and_leaves_a_child(runtime);
        let watched = runtime.clone();
        let dropper = std::thread::spawn(move || {
            while !watched.dump().to_string().contains("waits for request `answer`") {
                std::thread::yield_now();
            }
            drop(child);
        });
        assert!(answer.wait().is_err());
        dropper.join().unwrap();
    });
}

/// Nobody owns the memory of the child then, until another thread takes it over.
#[test]
fn an_error_goes_with_the_last_child_though_the_thread_has_exited_that_ran_the_failed_request() {
    on_each(|runtime| {
        let maker = runtime.clone();
        let thread = std::thread::spawn(move || fails_and_leaves_a_child(&maker));
        let (child, receiver, _) = thread.join().unwrap();
        drop(child);
        assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
    });
}
