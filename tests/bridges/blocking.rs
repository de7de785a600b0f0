//! `blocking`: calls that block their thread, made outside of the workers.
#![cfg(feature = "blocking")]

#[path = "../support/cancelling.rs"]
mod cancelling;
#[allow(dead_code, reason = "another test program uses the rest")]
#[path = "../process/death/child.rs"]
mod child;
#[cfg(target_os = "linux")]
#[path = "../process/exits/filter.rs"]
mod filter;
#[path = "../support/mod.rs"]
mod support;

use std::sync::{Arc, mpsc};
use std::thread;

use cancelling::{asleep, ends_cancelled};
use forebear::dump::Reason;
use forebear::sync::Event;
use forebear::{BlockingError, CancelReason, Request, Runtime, WaitError, blocking, no_suspend, yield_now};
use support::order::root;
use support::{Count, Flag, fitting, hold_thread_until, in_both_worlds, on_each, on_each_of, until};

#[test]
fn the_call_is_made_outside_of_any_request() {
    in_both_worlds(|| {
        let here = thread::current().id();
        let seen = blocking(move || (thread::current().id() == here, Request::current().is_none()));
        assert_eq!(seen.unwrap(), (false, true));
    });
}

#[test]
fn the_worker_goes_on_meanwhile() {
    on_each_of(&[1], |runtime| {
        let (go, gone) = mpsc::channel::<u32>();
        let request = root(runtime).name("reads").spawn(move || blocking(move || gone.recv().unwrap()));
        asleep(&request);
        let text = runtime.dump().to_string();
        assert!(text.contains("reads") && text.contains("a blocking call"), "{text}");
        root(runtime).spawn(move || go.send(7).unwrap()).take().unwrap();
        assert_eq!(request.take().unwrap().unwrap(), 7);
    });
}

#[test]
fn ten_thousand_calls() {
    on_each(|runtime| {
        let many = fitting(10_000) / 5;
        let all: Vec<_> =
            (0..many).map(|n| root(runtime).spawn(move || blocking(move || n).unwrap())).collect();
        assert_eq!(
            all.into_iter().map(|request| request.take().unwrap()).sum::<usize>(),
            many * (many - 1) / 2
        );
    });
}

#[test]
fn ten_thousand_calls_at_once() {
    on_each_of(&[2], |runtime| {
        let many = fitting(10_000);
        let all: Vec<_> =
            (0..many).map(|n| root(runtime).spawn(move || blocking(move || n).unwrap())).collect();
        assert_eq!(
            all.into_iter().map(|request| request.take().unwrap()).sum::<usize>(),
            many * (many - 1) / 2
        );
    });
}

#[test]
fn a_panic_of_the_call_is_the_callers() {
    on_each(|runtime| {
        for _ in 0..20 {
            let request = root(runtime).spawn(|| blocking(|| -> u32 { panic!("in the call") }));
            let Err(WaitError::Failed(failure)) = request.take() else { panic!() };
            assert!(failure.is_panic() && format!("{failure:#}").contains("in the call"), "{failure:#}");
        }
        assert_eq!(root(runtime).spawn(|| blocking(|| 1)).take().unwrap().unwrap(), 1);
    });
}

#[test]
fn a_cancelled_caller_goes_on_and_the_call_runs_on() {
    on_each(|runtime| {
        let (go, gone) = mpsc::channel::<()>();
        let dropped = Count::new();
        let probe = dropped.probe();
        let request = root(runtime).spawn(move || {
            let came = blocking(move || {
                gone.recv().unwrap();
                probe
            });
            assert!(matches!(came, Err(BlockingError::Cancelled)));
        });
        asleep(&request);
        request.abort(CancelReason::Asked);
        ends_cancelled(&request);
        assert_eq!(dropped.get(), 0);
        go.send(()).unwrap();
        until(|| dropped.get() == 1);
    });
}

/// Its destructor panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a value that nobody wants");
    }
}

/// One thread makes all calls: it begins the next when it has dropped what it had of the one before.
const ONE_THREAD: &[(&str, &str)] = &[("BLOCKING_MAX_THREADS", "1")];

#[test]
fn a_dump_tells_a_call_that_no_thread_begins_from_one_that_runs() {
    let end = child::run("", ONE_THREAD, |_| {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let reason =
            |name: &str| runtime.dump().find(name).unwrap().waits_for.clone().map(|wait| wait.reason);
        let (go, gone) = mpsc::channel::<()>();
        let runs = root(&runtime).name("runs").spawn(move || blocking(move || gone.recv().unwrap()));
        until(|| reason("runs") == Some(Reason::Blocking));
        let (next, nexts) = mpsc::channel::<()>();
        let queued = root(&runtime).name("queued").spawn(move || blocking(move || nexts.recv().unwrap()));
        let given_up = root(&runtime).name("given up").spawn(|| blocking(|| ()));
        until(|| ["queued", "given up"].iter().all(|name| reason(name) == Some(Reason::BlockingThread)));
        let text = runtime.dump().to_string();
        assert!(text.contains("a thread for a blocking call, as all are in calls"), "{text}");
        assert_eq!(reason("runs"), Some(Reason::Blocking));
        given_up.abort(CancelReason::Asked);
        ends_cancelled(&given_up);
        go.send(()).unwrap();
        runs.wait().unwrap().as_ref().unwrap();
        until(|| reason("queued") == Some(Reason::Blocking));
        next.send(()).unwrap();
        queued.wait().unwrap().as_ref().unwrap();
    });
    end.assert_survived();
}

/// The caller is cancelled, and does not go on before the call is over. So the caller drops the value.
#[test]
fn a_cancelled_caller_drops_the_value_of_a_call_that_is_over_and_its_panic_ends_there() {
    let end = child::run("", ONE_THREAD, |_| {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let (go, gone) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let caller = root(&runtime).spawn(move || {
            let answer = blocking(move || {
                gone.recv().unwrap();
                Bomb
            });
            tell.send(answer.map(std::mem::forget)).unwrap();
        });
        asleep(&caller);
        let (cancelled, free) = (Flag::new(), Flag::new());
        let holder = root(&runtime).spawn({
            let (caller, up, free) = (caller.clone(), cancelled.clone(), free.clone());
            move || {
                caller.abort(CancelReason::Asked);
                up.raise();
                hold_thread_until(|| free.is_up());
            }
        });
        cancelled.wait();
        go.send(()).unwrap();
        blocking(|| ()).unwrap();
        free.raise();
        assert!(matches!(told.recv().unwrap(), Err(BlockingError::Cancelled)));
        holder.wait().unwrap();
        ends_cancelled(&caller);
    });
    end.assert_survived();
}

/// The end of the runtime waits for a request that makes a call.
#[test]
fn the_value_of_a_call_that_is_dropped_may_own_the_last_handle_of_a_runtime() {
    let end = child::run("", ONE_THREAD, |_| {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let (go, gone) = mpsc::channel::<()>();
        let last = runtime.clone();
        let caller = root(&runtime).spawn(move || {
            let answer = blocking(move || {
                gone.recv().unwrap();
                last
            });
            assert!(answer.is_err());
        });
        let event = Arc::new(Event::new());
        let other = root(&runtime).spawn({
            let event = event.clone();
            move || {
                event.wait().unwrap();
                blocking(|| 7)
            }
        });
        asleep(&caller);
        asleep(&other);
        caller.abort(CancelReason::Asked);
        ends_cancelled(&caller);
        drop((runtime, caller));
        go.send(()).unwrap();
        event.set();
        assert_eq!(other.take().unwrap().unwrap(), 7);
    });
    end.assert_survived();
}

#[test]
fn a_call_that_panics_for_nobody_harms_nobody() {
    on_each(|runtime| {
        for drops in [false, true] {
            let (go, gone) = mpsc::channel::<()>();
            let done = Flag::new();
            let up = done.clone();
            let request = root(runtime).spawn(move || {
                let _ = blocking(move || {
                    gone.recv().unwrap();
                    up.raise();
                    assert!(drops, "for nobody");
                    Bomb
                })
                .map(std::mem::forget);
            });
            asleep(&request);
            request.abort(CancelReason::Asked);
            ends_cancelled(&request);
            go.send(()).unwrap();
            done.wait();
        }
        assert_eq!(root(runtime).spawn(|| blocking(|| 1)).take().unwrap().unwrap(), 1);
    });
}

#[test]
fn a_cancelled_request_makes_no_call() {
    on_each(|runtime| {
        let (calls, started) = (Count::new(), Flag::new());
        let (counted, up) = (calls.clone(), started.clone());
        let request = root(runtime).spawn(move || {
            up.raise();
            while yield_now().is_ok() {}
            let _ = blocking(move || counted.up());
        });
        started.wait();
        request.abort(CancelReason::Asked);
        ends_cancelled(&request);
        assert_eq!(calls.get(), 0);
    });
}

#[test]
fn it_is_refused_by_name_where_it_must_not_suspend() {
    on_each(|runtime| {
        let calls = Count::new();
        let counted = calls.clone();
        let request = root(runtime).spawn(move || no_suspend("a region", || blocking(move || counted.up())));
        let Err(WaitError::Failed(failure)) = request.take() else { panic!() };
        assert!(format!("{failure:#}").contains("a region"), "{failure:#}");
        assert_eq!(calls.get(), 0);
    });
}

#[test]
fn files_and_child_processes_are_read_by_a_blocking_call() {
    on_each_of(&[1], |runtime| {
        let request = root(runtime).try_build(|| {
            let listed = blocking(|| std::process::Command::new("echo").arg("made").output())??;
            let text = blocking(|| std::fs::read_to_string("Cargo.toml"))??;
            Ok((String::from_utf8(listed.stdout)?, text.contains("forebear")))
        });
        assert_eq!(request.take().unwrap(), ("made\n".to_owned(), true));
    });
}

/// The drop of the last handle waits for the requests of the runtime, and the caller is one of them.
#[test]
fn a_call_may_drop_the_last_handle_of_the_callers_runtime() {
    for workers in [1, 2] {
        let runtime = Runtime::builder().workers(workers).build().unwrap();
        let last = runtime.clone();
        let (go, gone) = mpsc::channel::<()>();
        let request = runtime.spawn(move || {
            blocking(move || {
                gone.recv().unwrap();
                drop(last);
                7
            })
        });
        drop(runtime);
        go.send(()).unwrap();
        assert_eq!(request.take().unwrap().unwrap(), 7);
    }
}

#[test]
fn an_idle_blocking_thread_keeps_no_error_of_a_runtime_that_is_over() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let dropped = Count::new();
    let (probe, within) = (dropped.probe(), runtime.clone());
    let child = blocking(move || {
        let (give, given) = mpsc::channel();
        let parent = within.enter(|| {
            Request::try_new(move || -> Result<(), forebear::Error> {
                give.send(Request::new(|| ())).unwrap();
                std::panic::panic_any(probe)
            })
        });
        assert!(matches!(parent.take(), Err(WaitError::Failed(_))));
        given.recv().unwrap()
    })
    .unwrap();
    drop(runtime);
    assert_eq!(dropped.get(), 0, "the child has a parent, which failed with it");
    drop(child);
    dropped.wait_for(1);
}

/// There is none yet. A request and a plain thread are told, and may try again.
#[cfg(target_os = "linux")]
#[test]
fn a_call_for_which_no_thread_can_be_started_is_refused() {
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        filter::refuse(&[libc::SYS_clone, libc::SYS_clone3]);
        for _ in 0..2 {
            let calls = Count::new();
            let (here, there) = (calls.clone(), calls.clone());
            let answers = [blocking(move || here.up()), runtime.run(move || blocking(move || there.up()))];
            for answer in answers {
                let refused = answer.unwrap_err();
                let BlockingError::NoThread(error) = &refused else { panic!("{refused:?}") };
                assert_eq!(error.raw_os_error(), Some(libc::EPERM));
                let text = refused.to_string();
                assert!(text.contains("no thread") && text.contains(&error.to_string()), "{text}");
            }
            assert_eq!(calls.get(), 0);
        }
    });
    end.assert_survived();
}

/// The second call begins when the first has ended.
#[cfg(target_os = "linux")]
#[test]
fn a_call_for_which_no_thread_can_be_started_is_made_by_one_that_is_there() {
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let (go, gone) = mpsc::channel::<u32>();
        let first = root(&runtime).spawn(move || blocking(move || gone.recv().unwrap()).unwrap());
        asleep(&first);
        filter::refuse(&[libc::SYS_clone, libc::SYS_clone3]);
        let second = root(&runtime).spawn(|| blocking(|| 8).unwrap());
        asleep(&second);
        go.send(7).unwrap();
        assert_eq!((first.take().unwrap(), second.take().unwrap()), (7, 8));
    });
    end.assert_survived();
}
