//! Waits in destructors that an unwind runs, on the only worker, beside work that comes meanwhile.

use std::sync::{Arc, mpsc};

use forebear::sync::Event;
use forebear::{CancelReason, OrUnwind, Request, Runtime};

use crate::child;
use crate::support::Watchdog;

/// Says that it is about to wait when it is dropped, and waits.
struct WaitsInDrop(Arc<Event>, mpsc::Sender<()>);

impl Drop for WaitsInDrop {
    fn drop(&mut self) {
        let _ = self.1.send(());
        let _ = self.0.wait();
    }
}

#[test]
fn a_wait_in_a_destructor_that_a_cancel_runs_is_woken_by_what_comes_later() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(1).on_warning(|_| ()).build().unwrap();
    let event = Arc::new(Event::new());
    let (told, waits) = mpsc::channel();
    let (began, begins) = mpsc::channel();
    let job = runtime.spawn({
        let event = event.clone();
        move || {
            let _waits = WaitsInDrop(event, told);
            began.send(()).unwrap();
            Event::new().wait().or_unwind();
        }
    });
    begins.recv().unwrap();
    job.cancel();
    waits.recv().unwrap();
    // Nothing else was there, so the worker's thread blocks, or is about to.
    runtime.spawn(move || event.set());
    assert!(job.wait().is_err());
    assert_eq!(runtime.run(|| 7), 7);
}

#[test]
fn a_wait_in_a_destructor_that_a_panic_runs_ends_the_process_by_name_if_its_worker_is_wanted() {
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let event = Arc::new(Event::new());
        let (told, waits) = mpsc::channel();
        let job = runtime.spawn({
            let event = event.clone();
            move || {
                let _waits = WaitsInDrop(event, told);
                panic!("on purpose");
            }
        });
        waits.recv().unwrap();
        runtime.spawn(move || event.set());
        let _ = job.wait();
    });
    end.assert_killed_by(libc::SIGABRT);
    assert!(end.stderr.contains("a destructor waits in request"), "{end:#?}");
}

/// Somebody else sets it, and nothing comes for the worker: it blocks, and goes on.
#[test]
fn a_wait_in_a_destructor_that_a_panic_runs_is_woken_from_outside() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let event = Arc::new(Event::new());
    let (told, waits) = mpsc::channel();
    let job = runtime.spawn({
        let event = event.clone();
        move || {
            let _waits = WaitsInDrop(event, told);
            panic!("on purpose");
        }
    });
    waits.recv().unwrap();
    event.set();
    assert!(job.wait().is_err());
}

/// What it is called with when it is dropped.
struct WorksInDrop<'a>(&'a (dyn Fn() + Sync));

impl Drop for WorksInDrop<'_> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// What a cancelled request makes is cancelled, and a scope whose job is cancelled unwinds: out of a destructor inside an unwind, that ends the process.
#[test]
fn a_scope_and_a_run_in_a_destructor_that_a_cancel_runs_come_to_their_end() {
    let end = child::run("", &[], |_| {
        for workers in [0, 1, 2] {
            let runtime = Runtime::builder().workers(workers).build().unwrap();
            let on = runtime.clone();
            let (done, ran) = mpsc::channel();
            let by_scope = done.clone();
            let scoped = move || {
                let mut halves = [0, 0];
                let (left, right) = halves.split_at_mut(1);
                forebear::scope(|s| {
                    s.spawn(|| left[0] = 1);
                    s.spawn(|| {
                        forebear::yield_now().unwrap();
                        right[0] = 2;
                    });
                });
                by_scope.send(halves.iter().sum::<i32>()).unwrap();
            };
            let run = move || done.send(on.run(|| 4)).unwrap();
            let (began, begins) = mpsc::channel();
            let job = runtime.spawn(move || {
                let (_second, _first) = (WorksInDrop(&run), WorksInDrop(&scoped));
                began.send(Request::current().unwrap()).unwrap();
                Event::new().wait().or_unwind();
            });
            let cancels = std::thread::spawn(move || begins.recv().unwrap().abort(CancelReason::Asked));
            assert!(job.wait().is_err());
            cancels.join().unwrap();
            assert_eq!(ran.try_iter().collect::<Vec<_>>(), [3, 4]);
        }
        println!("all came to their end");
    });
    assert!(end.stdout.contains("all came to their end"), "{end:#?}");
}
