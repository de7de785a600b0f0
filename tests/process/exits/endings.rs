//! A runtime or the process ends: by the last handle, by a return from `main`, by `exit` or `abort`, by a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use forebear::sync::Event;
use forebear::time::sleep;
use forebear::{LateEnd, Request, Runtime, spawn, yield_now};

use crate::child;

fn built(workers: &str, late_end: LateEnd) -> Runtime {
    let builder = Runtime::builder().name("late").workers(workers.parse().unwrap()).late_end(late_end);
    crate::warned(builder).build().unwrap()
}

/// One that waits for ever, unless somebody cancels it.
fn endless(runtime: &Runtime) -> Request<()> {
    let request = Request::builder().name("endless").on(runtime).try_spawn(|| Ok(Event::new().wait()?));
    while request.state() != forebear::State::Suspended {
        std::thread::yield_now();
    }
    request
}

const NAMED: [&str; 3] =
    ["the last handle of runtime 'late' has gone, and its end waits for: ", "'endless'", "late_end"];

#[test]
fn a_runtime_whose_end_takes_longer_than_a_second_says_who_is_waited_for_and_goes_on_waiting() {
    for workers in ["0", "2"] {
        let end = child::run(workers, &[], |workers| {
            let (tell, told) = mpsc::channel();
            let go = Arc::new(Event::new());
            let hook = move |what: &str| _ = tell.send(what.to_owned());
            let runtime = Runtime::builder().name("late").workers(workers.parse().unwrap());
            let runtime = runtime.on_warning(hook).build().unwrap();
            let request = {
                let go = go.clone();
                Request::builder().name("endless").on(&runtime).try_spawn(move || Ok(go.wait()?))
            };
            std::thread::scope(|threads| {
                threads.spawn(move || {
                    let told = told.recv().unwrap();
                    assert!(NAMED.iter().all(|part| told.contains(part)), "{told}");
                    go.set();
                });
                drop(runtime);
            });
            request.wait().unwrap();
        });
        end.assert_survived();
    }
}

#[test]
fn a_runtime_that_is_to_be_shut_down_when_its_end_is_late_is() {
    for workers in ["0", "2"] {
        let end = child::run(workers, &[], |workers| {
            let runtime = built(workers, LateEnd::ShutDown);
            let request = endless(&runtime);
            drop(runtime);
            assert!(request.wait().is_err());
        });
        end.assert_survived();
        assert!(NAMED.iter().all(|part| end.stderr.contains(part)), "{end:#?}");
    }
}

#[test]
fn without_workers_a_late_end_is_told_and_shuts_down_though_something_is_always_ready() {
    for mode in ["synchronous", "seeded"] {
        let end = child::run(mode, &[], |mode| {
            let builder = Runtime::builder().name("late").late_end(LateEnd::ShutDown);
            let builder = if mode == "seeded" { builder.seeded(1) } else { builder.workers(0) };
            let runtime = crate::warned(builder).build().unwrap();
            let endless = Request::builder().name("endless").on(&runtime).own_stack();
            let request = endless.spawn(|| while yield_now().is_ok() {});
            drop(runtime);
            assert!(request.wait().is_err());
        });
        end.assert_survived();
        assert!(NAMED.iter().all(|part| end.stderr.contains(part)), "{end:#?}");
    }
}

/// A request that waits below a shield, where no cancel comes.
fn sheltered(runtime: &Runtime, until: Arc<Event>) -> Request<()> {
    let request = Request::builder().name("endless").on(runtime);
    let request = request.try_spawn(move || Ok(forebear::shield(|| until.wait())?));
    while request.state() != forebear::State::Suspended {
        std::thread::yield_now();
    }
    request
}

#[test]
fn who_does_not_end_though_its_runtime_was_shut_down_late_is_named_again_and_left() {
    let end = child::run("", &[], |_| {
        let runtime = built("2", LateEnd::ShutDown);
        let request = sheltered(&runtime, Arc::default());
        drop(runtime);
        assert!(request.wait().is_err());
    });
    end.assert_survived();
    assert!(end.stderr.matches("'endless'").count() >= 2, "{end:#?}");
}

#[test]
fn without_workers_who_does_not_end_though_its_runtime_was_shut_down_late_is_waited_for() {
    let end = child::run("", &[], |_| {
        let (tell, told) = mpsc::channel();
        let hook = move |what: &str| _ = tell.send(what.to_owned());
        let runtime = Runtime::builder().name("late").workers(0).late_end(LateEnd::ShutDown);
        let runtime = runtime.on_warning(hook).build().unwrap();
        let go = Arc::new(Event::new());
        let request = sheltered(&runtime, go.clone());
        let (left, returned) = mpsc::channel();
        std::thread::scope(|threads| {
            threads.spawn(move || {
                for _ in 0..2 {
                    let told = told.recv().unwrap();
                    assert!(NAMED.iter().all(|part| told.contains(part)), "{told}");
                }
                let returned = returned.recv_timeout(Duration::from_secs(1));
                go.set();
                assert!(returned.is_err(), "the frame was left on a thread that lives on");
            });
            drop(runtime);
            _ = left.send(());
        });
        assert!(request.is_done());
    });
    end.assert_survived();
}

#[test]
fn a_runtime_that_is_to_abort_when_its_end_is_late_does() {
    for workers in ["0", "2"] {
        let end = child::run(workers, &[], |workers| {
            let runtime = built(workers, LateEnd::Abort);
            let _request = endless(&runtime);
            drop(runtime);
        });
        end.assert_killed_by(libc::SIGABRT);
        assert!(NAMED.iter().all(|part| end.stderr.contains(part)), "{end:#?}");
    }
}

/// Every failed assertion of a test does this.
#[test]
fn a_panic_in_main_with_requests_that_wait_for_ever_says_who_is_waited_for() {
    for (workers, policy) in [("0", "shut"), ("2", "shut"), ("2", "abort")] {
        let end = child::run(&format!("{workers} {policy}"), &[], |how| {
            let (workers, policy) = how.split_once(' ').unwrap();
            let late_end = if policy == "shut" { LateEnd::ShutDown } else { LateEnd::Abort };
            let caught = catch_unwind(|| {
                let runtime = built(workers, late_end);
                let _request = endless(&runtime);
                panic!("an assertion has failed");
            });
            assert!(caught.is_err());
        });
        match policy {
            "shut" => _ = end.assert_survived(),
            _ => _ = end.assert_killed_by(libc::SIGABRT),
        }
        assert!(end.stderr.contains("an assertion has failed"), "{end:#?}");
        assert!(NAMED.iter().all(|part| end.stderr.contains(part)), "{end:#?}");
    }
}

#[test]
fn the_last_handle_that_goes_in_a_request_of_another_runtime_holds_up_nobody() {
    for workers in ["0", "2"] {
        let end = child::run(workers, &[], |workers| {
            let lives = Runtime::builder().workers(1).build().unwrap();
            let ends = Runtime::builder().workers(workers.parse().unwrap()).build().unwrap();
            let go = Arc::new(Event::new());
            let request = {
                let go = go.clone();
                ends.try_spawn(move || Ok(go.wait()?))
            };
            // The only worker there goes on, and lets the other one end.
            lives.spawn(move || drop(ends)).wait().unwrap();
            lives.spawn(move || go.set()).wait().unwrap();
            request.wait().unwrap();
        });
        end.assert_survived();
    }
}

#[test]
fn the_last_handle_that_goes_among_the_captures_of_a_request_holds_up_nobody() {
    let end = child::run("", &[], |_| {
        let lives = Runtime::builder().workers(1).build().unwrap();
        let ends = Runtime::builder().workers(1).build().unwrap();
        let go = Arc::new(Event::new());
        let request = {
            let go = go.clone();
            ends.try_spawn(move || Ok(go.wait()?))
        };
        // Never submitted: its captures go with it.
        lives.spawn(move || drop(Request::new(move || drop(ends)))).wait().unwrap();
        lives.spawn(move || go.set()).wait().unwrap();
        request.wait().unwrap();
    });
    end.assert_survived();
}

#[test]
fn the_process_ends_though_the_default_runtime_has_work() {
    for what in ["suspended", "running", "queued"] {
        let end = child::run(what, &[("FOREBEAR_THREADS", "1")], |what| {
            let begun = Arc::new(AtomicBool::new(false));
            let there = begun.clone();
            let request = match what {
                "suspended" => spawn(move || {
                    there.store(true, Ordering::Release);
                    _ = sleep(Duration::MAX);
                }),
                _ => spawn(move || {
                    there.store(true, Ordering::Release);
                    std::thread::park();
                }),
            };
            while !begun.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            drop(request);
            if what == "queued" {
                drop(spawn(|| ()));
            }
        });
        end.assert_survived();
    }
}

#[test]
fn exit_inside_a_request_ends_the_process() {
    for workers in ["0", "1", "2"] {
        let end = child::run(workers, &[], |workers| {
            let runtime = Runtime::builder().workers(workers.parse().unwrap()).build().unwrap();
            let _other = endless(&runtime);
            runtime.run(|| {
                yield_now().unwrap();
                println!("survived");
                std::process::exit(0)
            });
        });
        end.assert_survived();
    }
}

/// An atexit handler, which runs after the thread-locals of its thread have gone.
static AT_EXIT: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

extern "C" fn at_exit() {
    AT_EXIT.get().expect("it is set before it is registered")();
}

fn call_at_exit(f: impl Fn() + Send + Sync + 'static) {
    assert!(AT_EXIT.set(Box::new(f)).is_ok(), "once in a process");
    // SAFETY: it asks nothing of its caller.
    assert_eq!(unsafe { libc::atexit(at_exit) }, 0);
}

/// Memory of the size that a thread's record may have had is in use again.
fn use_freed_memory() -> Vec<Vec<u8>> {
    (1..4096).map(|size| vec![0xaa; size]).collect()
}

/// The place that a plain thread has left, in a request or inside a scope, by the end of the process.
#[test]
fn what_stood_on_a_plain_thread_that_has_ended_the_process_is_still_seen_whole() {
    for place in ["request", "nested", "scope", "callback", "enter"] {
        let end = child::run(place, &[], |place| {
            let runtime = Runtime::builder().workers(1).build().unwrap();
            let (seen, place) = (runtime.clone(), place.to_owned());
            let named = |name: &'static str| Request::builder().name(name);
            let shown = match &*place {
                "request" | "enter" => "`ends`",
                "nested" => "`ends`, on the same stack",
                _ => "",
            };
            let stays = place != "scope";
            call_at_exit(move || {
                let used = use_freed_memory();
                let look = || {
                    let dump = seen.dump().to_string();
                    assert!(dump.contains(shown), "{dump}");
                    assert!(shown.is_empty() || dump.contains("thread `plain`"), "{dump}");
                    assert_eq!(seen.spawn(|| 7).take().ok(), Some(7));
                    // Cancels what stands there, which nudges its thread.
                    let ended = seen.shutdown(Duration::ZERO);
                    assert_eq!(ended.is_ok(), !stays, "{ended:?}");
                };
                std::thread::scope(|threads| threads.spawn(look).join().unwrap());
                drop(used);
                println!("survived");
            });
            let on_this_thread = move || {
                let request = match &*place {
                    "request" => named("ends").on(&runtime).build(|| std::process::exit(0)),
                    "nested" => named("outer").on(&runtime).build(|| {
                        let inner = Request::builder().name("ends").build(|| std::process::exit(0));
                        *inner.wait().unwrap()
                    }),
                    "enter" => {
                        let entered = runtime.clone();
                        let ends = move || entered.enter(|| std::process::exit(0));
                        named("ends").on(&runtime).build(ends)
                    }
                    "callback" => {
                        let request = named("ends").on(&runtime).build(|| ());
                        request.on_done(|_| std::process::exit(0));
                        request
                    }
                    _ => forebear::scope(|s| {
                        named("job").on(&runtime).spawn_in(s, || ());
                        std::process::exit(0)
                    }),
                };
                _ = request.wait();
            };
            _ = std::thread::Builder::new().name("plain".into()).spawn(on_this_thread).unwrap().join();
        });
        end.assert_survived();
    }
}

#[test]
fn abort_inside_a_request_ends_the_process_without_a_word() {
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        runtime.run(|| std::process::abort());
    });
    end.assert_killed_by(libc::SIGABRT);
    assert_eq!(end.stderr, "");
}

/// Held by requests and waited for by a plain thread, when their runtime is shut down.
#[test]
fn locks_held_by_requests_that_are_aborted_are_free_again() {
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(2).build().unwrap();
        let lock = Arc::new(forebear::sync::Mutex::new(0));
        let held = Arc::new(Event::new());
        let request = {
            let (lock, held) = (lock.clone(), held.clone());
            runtime.try_spawn(move || {
                let _guard = lock.lock();
                held.set();
                Ok(Event::new().wait()?)
            })
        };
        held.wait().unwrap();
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| *lock.lock() += 1);
            runtime.shutdown(Duration::MAX).unwrap();
            waits.join().unwrap();
        });
        assert_eq!(*lock.lock(), 1);
        assert!(request.wait().is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| drop(runtime))).is_ok());
    });
    end.assert_survived();
}
