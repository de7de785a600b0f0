//! Waits in destructors that an unwind runs, on the only worker, beside work that comes meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebear::sync::Event;
use forebear::{CancelReason, OrUnwind, Request, Runtime, channel, time};

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

/// The second closure runs on another stack than the join, and its error goes on on that of the join. There it is an error still: std's locks may be poisoned, but the process goes on.
#[test]
fn an_error_out_of_a_join_is_told_from_a_panic_where_a_destructor_waits() {
    let end = child::run("", &[], |_| {
        let builder = Runtime::builder().workers(1).run_on_caller(false);
        let runtime = builder.on_warning(|text| println!("warning: {text}")).build().unwrap();
        let job = runtime.spawn(|| {
            let waits = || {
                let event = Arc::new(Event::new());
                let other = event.clone();
                let sets = forebear::spawn(move || other.set());
                event.wait().unwrap();
                sets.wait().unwrap();
            };
            let _waits = WorksInDrop(&waits);
            let (sender, receiver) = channel::bounded(1);
            forebear::join(
                || receiver.recv().unwrap(),
                || {
                    sender.send(()).unwrap();
                    "x".parse::<u32>().or_unwind();
                },
            );
        });
        let error = job.wait().unwrap_err();
        runtime.shutdown(Duration::from_secs(60)).unwrap();
        println!("came to its end: {error:#}");
    });
    assert!(end.stdout.contains("came to its end"), "{end:#?}");
    assert!(end.stdout.contains("while an error unwinds it"), "{end:#?}");
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

/// Builds the runtimes of every mode in which one thread runs all requests; with their names. None of them may warn.
fn of_one_thread() -> impl Iterator<Item = (String, Runtime)> {
    let workers = [0, 1].map(|n| (format!("workers({n})"), Runtime::builder().workers(n)));
    let seeds = (0..16).map(|n| (format!("seeded({n})"), Runtime::builder().seeded(n)));
    let abort = |warning: &str| {
        eprintln!("a warning: {warning}");
        std::process::abort();
    };
    workers
        .into_iter()
        .chain(seeds)
        .map(move |(mode, builder)| (mode, builder.on_warning(abort).build().unwrap()))
}

/// A wait of a destructor, with its name. Answers whether it has ended well.
type Wait = (&'static str, fn() -> bool);

/// Each way to wait in a destructor, with its name; it answers whether the wait has come to its end.
fn waits() -> Vec<Wait> {
    vec![
        ("sleep", || time::sleep(MS).is_ok()),
        ("recv", || {
            let (sends, receives) = channel::bounded(0);
            // Once the receiver is about to wait.
            let sender = std::thread::spawn(move || sends.send(3).is_ok());
            receives.recv() == Ok(3) && sender.join().unwrap()
        }),
        ("scope", || {
            let mut halves = [0, 0];
            let (left, right) = halves.split_at_mut(1);
            forebear::scope(|s| {
                s.spawn(|| left[0] = 1);
                s.spawn(|| right[0] = 2);
            });
            halves == [1, 2]
        }),
        ("scope with a job that waits", || {
            let mut slept = false;
            forebear::scope(|s| {
                s.spawn(|| slept = time::sleep(MS).is_ok());
            });
            slept
        }),
        ("child", || forebear::shield(|| forebear::spawn(|| time::sleep(MS).is_ok()).take().unwrap())),
        ("run of another runtime", || {
            let other = Runtime::builder().workers(1).build().unwrap();
            other.run(|| time::sleep(MS).is_ok())
        }),
    ]
}

const MS: Duration = Duration::from_millis(1);

/// Says what its wait has answered, and whether it is in an unwind.
struct Waits(fn() -> bool, mpsc::Sender<(bool, bool)>);

impl Drop for Waits {
    fn drop(&mut self) {
        let ended = (self.0)();
        self.1.send((ended, std::thread::panicking())).unwrap();
    }
}

/// Every wait in every mode, in the destructor of what `unwinds_by` is given.
fn each_wait_in_each_mode(unwinds_by: fn(&Runtime, Waits)) {
    for (mode, runtime) in of_one_thread() {
        for (wait, with) in waits() {
            println!("{mode}, {wait}");
            let (told, ended) = mpsc::channel();
            unwinds_by(&runtime, Waits(with, told));
            assert_eq!(ended.recv(), Ok((true, true)), "{mode}, {wait}");
            assert!(!std::thread::panicking());
            assert_eq!(runtime.run(|| 7), 7);
        }
    }
}

#[test]
fn a_wait_in_a_destructor_that_a_panic_runs_blocks_the_only_thread_of_a_run() {
    let end = child::run("", &[], |_| {
        each_wait_in_each_mode(|runtime, waits| {
            let run = || {
                runtime.run(move || {
                    let _waits = waits;
                    panic!("on purpose");
                })
            };
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        });
    });
    end.assert_survived();
}

#[test]
fn a_wait_in_a_destructor_that_a_panic_runs_blocks_the_only_thread_of_a_spawn() {
    let end = child::run("", &[], |_| {
        each_wait_in_each_mode(|runtime, waits| {
            let job = runtime.spawn(move || {
                let _waits = waits;
                panic!("on purpose");
            });
            assert!(job.wait().is_err());
        });
    });
    end.assert_survived();
}

#[test]
fn a_wait_in_a_destructor_that_a_panic_runs_blocks_the_only_thread_of_a_scope() {
    let end = child::run("", &[], |_| {
        each_wait_in_each_mode(|runtime, waits| {
            let scope = || {
                runtime.enter(|| {
                    forebear::scope(|s| {
                        s.spawn(move || {
                            let _waits = waits;
                            panic!("on purpose");
                        });
                    });
                });
            };
            assert!(catch_unwind(AssertUnwindSafe(scope)).is_err());
        });
    });
    end.assert_survived();
}

/// A cancel unwinds it, and nothing else of the thread could run: nobody is warned.
#[test]
fn a_wait_in_a_destructor_that_a_cancel_runs_blocks_the_only_thread_without_a_warning() {
    let end = child::run("", &[], |_| {
        each_wait_in_each_mode(|runtime, waits| {
            let cancelled = || {
                runtime.run(move || {
                    let _waits = waits;
                    Request::current().unwrap().abort(CancelReason::Asked);
                    forebear::check_cancelled().or_unwind();
                })
            };
            assert!(catch_unwind(AssertUnwindSafe(cancelled)).is_err());
        });
    });
    end.assert_survived();
}

/// Another request of the thread has begun: whoever drives it must not run it with a panic on the thread.
#[test]
fn a_wait_in_a_destructor_that_a_panic_runs_ends_the_process_if_another_request_of_its_thread_has_begun() {
    for mode in ["workers(0)", "workers(1)", "seeded(1)"] {
        let end = child::run(mode, &[], |mode| {
            let builder = match mode {
                "workers(0)" => Runtime::builder().workers(0),
                "workers(1)" => Runtime::builder().workers(1),
                _ => Runtime::builder().seeded(1),
            };
            let runtime = builder.build().unwrap();
            runtime.run(|| {
                let (event, begun) = (Arc::new(Event::new()), Arc::new(Event::new()));
                let other = Request::builder().own_stack().spawn({
                    let (event, begun) = (event.clone(), begun.clone());
                    move || {
                        begun.set();
                        let _ = event.wait();
                    }
                });
                begun.wait().unwrap();
                let _ends = WorksInDrop(&|| _ = time::sleep(MS));
                let _other = other;
                panic!("on purpose");
            });
        });
        end.assert_killed_by(libc::SIGABRT);
        assert!(end.stderr.contains("a destructor waits in request"), "{end:#?}");
    }
}

/// What the thread itself does next is what the wait is for.
#[test]
fn a_wait_in_a_destructor_that_a_panic_runs_ends_the_process_if_the_submitter_would_end_it() {
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(0).build().unwrap();
        let event = Arc::new(Event::new());
        let (told, _waits) = mpsc::channel();
        let waits = WaitsInDrop(event.clone(), told);
        let _job = runtime.spawn(move || {
            let _waits = waits;
            panic!("on purpose");
        });
        event.set();
    });
    end.assert_killed_by(libc::SIGABRT);
    assert!(end.stderr.contains("a destructor waits in request"), "{end:#?}");
}
