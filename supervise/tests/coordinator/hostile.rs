//! What is given to a coordinator panics: the stop and the join go on.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebear::sync::Event;
use forebear::{Error, Failure, Runtime};
use forebear_supervise::{Coordinator, Every, JoinError, JoinOptions, Looper, Stop};

use crate::support::{self, Watchdog};
use crate::{Broken, MS, Unseen};

/// Panics, and is no panic of a test.
fn panics<T>() -> T {
    std::panic::resume_unwind(Box::new("hostile"))
}

/// Each worker ends and is counted out, though the hook panics for what it fails with.
#[test]
fn hooks_that_panic_keep_no_join_from_its_end() {
    let _dog = Watchdog::new("");
    let called = Arc::new(AtomicU32::new(0));
    let counts = called.clone();
    let coordinator = Coordinator::builder()
        .on_unhandled_failure(move |_| {
            counts.fetch_add(1, Ordering::SeqCst);
            panics()
        })
        .on_warning(|_| panics())
        .build()
        .unwrap();
    let begun = support::Count::new();
    for name in ["errs late", "panics late"] {
        let begun = begun.probe();
        coordinator.spawn(name, move |me| {
            drop(begun);
            me.wait_for_stop()?;
            if name == "panics late" { panics() } else { Err(Broken(1).into()) }
        });
    }
    begun.wait_for(2);
    coordinator.request_stop();
    coordinator.spawn_thread("thread", |_| Err(Broken(2).into())).unwrap();
    let me = coordinator.enlist("vanishes");
    std::thread::spawn(move || {
        let _me = me;
        panics::<()>()
    })
    .join()
    .unwrap_err();
    coordinator.join().unwrap();
    assert!(coordinator.workers().is_empty());
    assert_eq!(called.load(Ordering::SeqCst), 4);

    let _lingers = coordinator.enlist("lingers");
    coordinator.join_with(JoinOptions::new().grace(Duration::ZERO).ignore_stragglers()).unwrap();
    assert!(coordinator.joined());
    assert!(coordinator.guard(|| Err::<(), _>(Broken(3).into())).is_none(), "after the join, to the hook");
    coordinator.clear_stop();
    coordinator.report(Broken(4)).unwrap();
    drop(coordinator);
}

#[test]
fn a_test_for_clean_stops_that_panics_lets_the_failure_count() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::builder().clean_stop_if(|_| panics()).build().unwrap();
    coordinator.spawn("fails", |_| Err(Broken(1).into()));
    assert_eq!(crate::broken(coordinator.join()), 1);
}

struct Hostile;

impl Stop for Hostile {
    fn stop(&mut self) {
        panics()
    }

    fn kill(&mut self) -> bool {
        panics()
    }
}

/// The stoppers are called in the order of registration: that of the first one panics.
#[test]
fn a_stopper_that_panics_keeps_the_stop_from_nobody_and_is_reported() {
    let _dog = Watchdog::new("");
    let unseen = Unseen::default();
    let coordinator = unseen.coordinator();
    let first = coordinator.enlist("hostile");
    first.stop_by(Hostile);
    let event = Arc::new(Event::new());
    coordinator.spawn("blocked", move |_| Ok(event.wait()?));
    coordinator.request_stop();
    let late = coordinator.enlist("late");
    late.stop_by(Hostile);
    let answer = coordinator.join_with(JoinOptions::new().grace(50 * MS));
    let names: Vec<_> = answer.as_ref().unwrap_err().stragglers().iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["hostile", "late"], "the blocked one was woken: {answer:?}");
    assert!(answer.unwrap_err().stragglers().iter().all(|one| !one.killed));
    assert_eq!(unseen.names(), ["hostile", "late"]);
    drop((first, late));
}

/// Of two failures of one looper the first decides, and the second is not lost.
#[test]
fn a_hook_at_the_end_that_fails_too_does_not_hide_the_failure_of_the_turn() {
    struct Twice {
        panics: bool,
    }
    impl Looper for Twice {
        fn turn(&mut self) -> Result<(), Error> {
            Err(Broken(1).into())
        }
        fn stop(&mut self, failure: Option<&Failure>) -> Result<(), Error> {
            assert_eq!(failure.unwrap().downcast_ref(), Some(&Broken(1)));
            if self.panics { panics() } else { Err(Broken(2).into()) }
        }
    }
    let _dog = Watchdog::new("");
    for (panics, in_thread) in [(false, false), (false, true), (true, false), (true, true)] {
        let coordinator = Coordinator::new();
        if in_thread {
            coordinator.every_on_thread("twice", Every::BackToBack, Twice { panics }).unwrap();
        } else {
            coordinator.every("twice", Every::BackToBack, Twice { panics });
        }
        let JoinError::Failed { failure, also, .. } = coordinator.join().unwrap_err() else { panic!() };
        assert_eq!(failure.downcast_ref(), Some(&Broken(1)), "panics: {panics}, in a thread: {in_thread}");
        let [second] = &also[..] else { panic!("panics: {panics}, in a thread: {in_thread}: {also:?}") };
        assert_eq!((second.is_panic(), second.downcast_ref() == Some(&Broken(2))), (panics, !panics));
    }
}

/// Each turn is over after the next one was due.
#[test]
fn a_looper_that_is_always_late_leaves_its_worker_to_others_and_to_a_cancel() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let coordinator = Coordinator::builder().runtime(&runtime).build().unwrap();
    let (begun, goes) = (support::Flag::new(), Arc::new(Event::new()));
    let begins = begun.clone();
    coordinator.every("late", Every::CatchUp(Duration::from_nanos(1)), move || Ok(begins.raise()));
    begun.wait();
    let sets = goes.clone();
    coordinator.spawn("other", move |_| Ok(sets.set()));
    goes.wait().unwrap();
    coordinator.request_stop();
    coordinator.join().unwrap();
}

/// The coordinator says that it passes such a failure on to standard error, and goes on.
#[test]
fn a_hook_that_reports_what_it_receives_is_called_once_for_it() {
    let _dog = Watchdog::new("");
    let called = Arc::new(AtomicU32::new(0));
    let (own, counts) = (Arc::new(OnceLock::<Coordinator>::new()), called.clone());
    let inside = own.clone();
    let hook = move |failure: &Failure| {
        counts.fetch_add(1, Ordering::SeqCst);
        inside.get().unwrap().report(Error::other(failure.to_string())).unwrap();
    };
    let coordinator = Coordinator::builder().on_unhandled_failure(hook).build().unwrap();
    own.set(coordinator.clone()).unwrap();
    coordinator.request_stop();
    for n in 1..3 {
        coordinator.report(Broken(n)).unwrap();
        assert_eq!(called.load(Ordering::SeqCst), n, "the next failure goes to the hook again");
    }
    coordinator.join().unwrap();
}
