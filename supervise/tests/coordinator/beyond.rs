//! What stands in no row: blocked workers, workers that come after the stop, hooks, many workers.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebear::sync::Event;
use forebear::{CancelReason, Request, Runtime, channel};
use forebear_supervise::{Coordinator, JoinError, JoinOptions};

use crate::support::{self, Come, Watchdog};
use crate::{Broken, MS, Unseen};

#[test]
fn a_stop_wakes_workers_that_are_blocked() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    let (sender, receiver) = channel::bounded::<u32>(1);
    let keeps = sender.clone();
    coordinator.spawn("receives", move |_| {
        loop {
            receiver.recv()?;
        }
    });
    coordinator.spawn("sleeps", |_| Ok(forebear::time::sleep(Duration::MAX)?));
    let never: Request<()> = Request::try_new(|| Ok(Event::new().wait()?));
    coordinator.spawn("waits for a request", move |_| Ok(*never.wait()?));
    let other = forebear::try_spawn(|| Ok(Event::new().wait()?));
    coordinator.register("registered", other).unwrap();
    coordinator.request_stop();
    coordinator.join().unwrap();
    drop((sender, keeps));
}

#[test]
fn who_is_spawned_after_a_stop_is_stopped_too() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    coordinator.request_stop();
    coordinator.spawn("late", |_| Ok(Event::new().wait()?));
    coordinator.join().unwrap();
}

#[test]
fn a_delayed_cancel_comes_and_one_that_was_cleared_does_not() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::builder().cancel_after(10 * MS).build().unwrap();
    let asleep = || {
        let event = Arc::new(Event::new());
        let wait = event.clone();
        (event, move || wait.wait())
    };
    let (_kept, wait) = asleep();
    coordinator.spawn("blocked", move |_| Ok(wait()?));
    coordinator.request_stop();
    coordinator.join().unwrap();

    coordinator.clear_stop();
    let (event, wait) = asleep();
    let (told, answer) = mpsc::channel();
    coordinator.spawn("goes on", move |_| Ok(told.send(wait().is_ok())?));
    coordinator.request_stop();
    coordinator.clear_stop();
    assert!(answer.recv_timeout(30 * MS).is_err(), "the stop was taken back before the delay was over");
    event.set();
    assert!(answer.come().unwrap());
    coordinator.join().unwrap();
}

#[test]
fn a_wait_for_the_stop_is_ok_for_who_is_cancelled_by_it() {
    let _dog = Watchdog::new("");
    for _ in 0..200 {
        let coordinator = Coordinator::new();
        let (told, answer) = mpsc::channel();
        coordinator.spawn("waits", move |me| {
            told.send(
                (0..2).all(|_| me.wait_for_stop().is_ok()) && me.wait_for_stop_timeout(Duration::MAX).is_ok(),
            )
            .unwrap();
            Ok(())
        });
        coordinator.request_stop();
        // Nothing comes if the stop has come before the worker had begun.
        if let Ok(was_ok) = answer.come() {
            assert!(was_ok);
        }
        coordinator.join().unwrap();
    }
}

#[test]
fn a_worker_that_is_cancelled_by_the_stop_has_not_failed() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    coordinator
        .spawn_thread("passes it on", |me| {
            me.wait_for_stop()?;
            Ok(me.check_stop()?)
        })
        .unwrap();
    coordinator.spawn("passes it on, too", |_| Ok(Event::new().wait()?));
    coordinator.report(Broken(1)).unwrap();
    let error = coordinator.join().unwrap_err();
    assert!(matches!(&error, JoinError::Failed { also, .. } if also.is_empty()), "{error:?}");
}

#[test]
fn a_panic_of_a_worker_is_a_failure_by_its_name() {
    let _dog = Watchdog::new("");
    type Way = fn(&Coordinator);
    let ways: [Way; 4] = [
        |c| drop(c.spawn("worker", |_| std::panic::resume_unwind(Box::new("gone")))),
        |c| c.spawn_thread("worker", |_| std::panic::resume_unwind(Box::new("gone"))).unwrap(),
        |c| {
            c.register("worker", std::thread::spawn(|| -> () { std::panic::resume_unwind(Box::new("gone")) }))
                .unwrap()
        },
        |c| {
            let member = c.enlist("worker");
            let holds = std::thread::spawn(move || {
                let _member = member;
                std::panic::resume_unwind(Box::new("gone"))
            });
            let _: Result<(), _> = holds.join();
        },
    ];
    for (n, way) in ways.into_iter().enumerate() {
        let coordinator = Coordinator::new();
        way(&coordinator);
        let error = coordinator.join().unwrap_err();
        let failure = error.failure().unwrap();
        assert_eq!(failure.request(), "worker", "way {n}");
        assert!(failure.is_panic() || n == 3, "way {n}: {failure:#}");
    }
}

#[test]
fn an_error_that_nobody_asks_for_goes_to_the_hook_when_the_coordinator_goes() {
    let _dog = Watchdog::new("");
    let unseen = Unseen::default();
    let coordinator = unseen.coordinator();
    coordinator.report(Broken(1)).unwrap();
    assert_eq!(unseen.count(), 0);
    drop(coordinator);
    assert_eq!(unseen.count(), 1);
    let coordinator = unseen.coordinator();
    coordinator.report(Broken(2)).unwrap();
    coordinator.join().unwrap_err();
    drop(coordinator);
    assert_eq!(unseen.count(), 1, "a join has returned it");
}

#[test]
fn a_cancelled_join_changes_nothing_and_can_be_repeated() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    let member = coordinator.enlist("member");
    let joins = coordinator.clone();
    let request =
        Request::builder().own_stack().spawn(move || matches!(joins.join(), Err(JoinError::Cancelled)));
    support::until(|| request.state() == forebear::State::Suspended);
    request.abort(forebear::CancelReason::Asked);
    let _ = request.wait();
    assert!(!coordinator.joined());
    assert_eq!(coordinator.workers(), ["member"]);
    drop(member);
    coordinator.join().unwrap();
}

#[test]
fn ten_thousand_workers_end_and_are_joined() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    let count = Arc::new(AtomicU32::new(0));
    for n in 0..10_000 {
        let count = count.clone();
        coordinator.spawn(format!("worker {n}"), move |me| {
            me.wait_for_stop()?;
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
    }
    let stops = coordinator.clone();
    std::thread::spawn(move || stops.request_stop());
    coordinator.join().unwrap();
    assert!(count.load(Ordering::Relaxed) <= 10_000);
}

/// A stopper, a hook and a test for clean stops that come back to the coordinator do not block: no lock is held.
#[test]
fn what_the_user_gives_may_come_back_to_the_coordinator() {
    let _dog = Watchdog::new("");
    static COORDINATOR: Mutex<Option<Coordinator>> = Mutex::new(None);
    fn comes_back() {
        let coordinator = COORDINATOR.lock().unwrap().clone().unwrap();
        coordinator.request_stop();
        let _ = coordinator.workers();
        drop(coordinator.enlist("from inside"));
        let _ = coordinator.requested_error();
    }
    let built = Coordinator::builder()
        .clean_stop_if(|_| {
            comes_back();
            false
        })
        .on_unhandled_failure(|_| comes_back())
        .on_warning(|_| comes_back())
        .grace(MS)
        .build()
        .unwrap();
    *COORDINATOR.lock().unwrap() = Some(built.clone());
    let member = built.enlist("member");
    let was_called = Arc::new(AtomicBool::new(false));
    let called = was_called.clone();
    member.stop_by(move || {
        called.store(true, Ordering::Relaxed);
        comes_back();
    });
    built.report(Broken(1)).unwrap();
    assert!(was_called.load(Ordering::Relaxed));
    // The test for clean stops has requested a plain one before the error was recorded.
    built.join_with(JoinOptions::new().ignore_stragglers()).unwrap();
    drop(member);
    COORDINATOR.lock().unwrap().take();
}

#[test]
fn a_worker_that_did_not_run_is_an_error_of_its_job_unless_a_stop_has_cancelled_it() {
    let _dog = Watchdog::new("");
    let cancelled = |answer: Result<(), JoinError>, reason: CancelReason| {
        let error = answer.expect_err("the worker did not run");
        let failure = error.failure().unwrap();
        assert_eq!(failure.request(), "writer");
        let text = format!("{failure:#}");
        assert!(text.contains(&reason.to_string()), "{text}");
    };
    // Its runtime was shut down before.
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let coordinator = Coordinator::builder().runtime(&runtime).build().unwrap();
    runtime.shutdown(MS).unwrap();
    coordinator.spawn("writer", |_| panic!("it runs"));
    assert!(coordinator.should_stop(), "the others do not go on without it");
    cancelled(coordinator.join(), CancelReason::Shutdown);

    // It is aborted before it begins: the only worker does something else.
    for (stops, registers) in [(false, false), (false, true), (true, false), (true, true)] {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let coordinator = Coordinator::builder().runtime(&runtime).build().unwrap();
        let ((begun, has_begun), (go, goes)) = (mpsc::channel(), mpsc::channel::<()>());
        coordinator.spawn("busy", move |_| {
            begun.send(())?;
            let _ = goes.recv();
            Ok(())
        });
        has_begun.come().unwrap();
        let request = if registers {
            let request = Request::builder().on(&runtime).build(|| panic!("it runs"));
            coordinator.register("writer", request.clone()).unwrap();
            request
        } else {
            coordinator.spawn("writer", |_| panic!("it runs"))
        };
        if stops {
            coordinator.request_stop();
        } else {
            request.to_untyped().abort(CancelReason::Other(7));
        }
        drop(go);
        if stops {
            coordinator.join().unwrap();
        } else {
            cancelled(coordinator.join(), CancelReason::Other(7));
        }
    }
}

/// What a worker returns counts, also if its request was cancelled meanwhile.
#[test]
fn a_worker_that_returns_ok_after_a_cancel_has_not_failed() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    let (begun, has_begun) = mpsc::channel();
    let request = coordinator.spawn("worker", move |_| {
        begun.send(())?;
        Event::new().wait().unwrap_err();
        Ok(())
    });
    has_begun.come().unwrap();
    request.to_untyped().abort(CancelReason::Asked);
    coordinator.join().unwrap();
}

/// The threads of this process with this beginning of a name.
#[cfg(target_os = "linux")]
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|found| found.starts_with(name)).count()
}

#[cfg(target_os = "linux")]
#[test]
fn a_delayed_cancel_keeps_no_thread_after_its_stop_was_taken_back() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::builder().cancel_after(Duration::from_secs(3600)).build().unwrap();
    for _ in 0..200 {
        coordinator.request_stop();
        coordinator.join().unwrap();
        coordinator.clear_stop();
    }
    // Each of them ends by itself once it is woken. Another test of this program may have one of its own.
    support::until(|| threads("coordinator: ca") <= 2);
    coordinator.request_stop();
    drop(coordinator);
    support::until(|| threads("coordinator: ca") <= 2);
}
