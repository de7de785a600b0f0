//! The join: whom it waits for, for how long, and what it answers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebear::sync::Event;
use forebear::{Error, Runtime, channel};
use forebear_supervise::{Coordinator, EndOfInput, JoinError, JoinOptions};

use crate::support::{self, Come, Watchdog};
use crate::{Broken, MS, Unseen, broken, until_a_join_has_begun};

#[test]
fn r16_a_join_waits_for_all_who_are_registered_and_for_those_it_is_given() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    let ended = Arc::new(AtomicU32::new(0));
    let work = || {
        let ended = ended.clone();
        move || {
            ended.fetch_add(1, Ordering::Relaxed);
        }
    };
    let (one, two) = (work(), work());
    coordinator.spawn("request", move |_| Ok(one()));
    coordinator.spawn_thread("thread", move |_| Ok(two())).unwrap();
    coordinator.register("handle", std::thread::spawn(work())).unwrap();
    let shared = forebear::spawn(work());
    let extra = JoinOptions::new()
        .also("extra", std::thread::spawn(work()))
        .also("request again", shared.clone())
        .also("and once more", shared.to_untyped());
    coordinator.join_with(extra).unwrap();
    assert_eq!(ended.load(Ordering::Relaxed), 5);
    assert!(coordinator.workers().is_empty());
}

#[test]
fn r17_who_is_registered_after_a_join_has_begun_is_not_waited_for() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    let first = coordinator.enlist("first");
    let (joins, answer) = (coordinator.clone(), mpsc::channel());
    let thread = std::thread::spawn(move || answer.0.send(joins.join().is_ok()).unwrap());
    until_a_join_has_begun(&coordinator);
    let late = coordinator.enlist("late");
    drop(first);
    assert!(answer.1.come().unwrap());
    thread.join().unwrap();
    assert_eq!(coordinator.workers(), ["late"]);
    drop(late);
}

#[test]
fn r18_without_a_stop_a_join_waits_without_limit() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::builder().grace(Duration::ZERO).build().unwrap();
    let go = Arc::new(Event::new());
    let waits = go.clone();
    coordinator.spawn("worker", move |_| Ok(waits.wait()?));
    let (joins, answer) = (coordinator.clone(), mpsc::channel());
    let thread = std::thread::spawn(move || answer.0.send(joins.join().is_ok()).unwrap());
    assert!(answer.1.recv_timeout(20 * MS).is_err(), "nobody has stopped it");
    go.set();
    assert!(answer.1.come().unwrap());
    thread.join().unwrap();
}

#[test]
fn r19_the_grace_is_one_for_all() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    let members: Vec<_> = (0..1_000).map(|n| coordinator.enlist(format!("member {n}"))).collect();
    coordinator.request_stop();
    // A thousand graces one after the other would be longer than the watchdog waits.
    let error = coordinator.join_with(JoinOptions::new().grace(150 * MS)).unwrap_err();
    assert_eq!(error.stragglers().len(), 1_000);
    drop(members);
}

#[test]
fn r19_the_grace_begins_with_a_stop_that_comes_during_the_join() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::builder().grace(MS).build().unwrap();
    let stays = coordinator.enlist("stays");
    let (joins, answer) = (coordinator.clone(), mpsc::channel());
    let thread = std::thread::spawn(move || answer.0.send(joins.join()).unwrap());
    until_a_join_has_begun(&coordinator);
    assert!(answer.1.recv_timeout(10 * MS).is_err(), "no stop, no limit");
    coordinator.request_stop();
    assert_eq!(answer.1.come().unwrap().unwrap_err().stragglers().len(), 1);
    thread.join().unwrap();
    drop(stays);
}

#[test]
fn r20_stragglers_are_named_with_where_they_looked_last_and_what_they_wait_for() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let coordinator = Coordinator::builder().runtime(&runtime).cancel_after(Duration::MAX).build().unwrap();
    let looks = coordinator.enlist("looks");
    let line = line!() + 1;
    assert!(!looks.should_stop());
    let never = coordinator.enlist("never looks");
    let (queue, empty) = channel::bounded::<u32>(1);
    coordinator.spawn("waits", move |_| empty.recv().map(|_| ()).map_err(Error::from));
    support::until(|| runtime.dump().find("waits").is_some_and(|request| request.waits_for.is_some()));
    coordinator.request_stop();
    let error = coordinator.join_with(JoinOptions::new().grace(5 * MS)).unwrap_err();
    let JoinError::Stragglers { stragglers, grace, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*grace, 5 * MS);
    let names: Vec<_> = stragglers.iter().map(|straggler| straggler.name.as_str()).collect();
    assert_eq!(names, ["looks", "never looks", "waits"]);
    let check = stragglers[0].last_check.unwrap();
    assert_eq!((check.place.file(), check.place.line()), (file!(), line));
    assert!(check.ago >= 5 * MS, "it has not asked since the stop");
    assert!(stragglers[1].last_check.is_none());
    assert!(stragglers[2].waits_for.as_ref().unwrap().contains("channel"), "{:?}", stragglers[2]);
    let text = error.to_string();
    assert!(
        text.contains("`looks` (has last asked at ") && text.contains("`never looks` (has never asked"),
        "{text}"
    );
    queue.send(1).unwrap();
    drop((looks, never));
}

#[test]
fn r21_with_a_tiny_grace_who_has_ended_is_no_straggler() {
    let _dog = Watchdog::new("");
    for grace in [Duration::ZERO, Duration::from_nanos(1), 2 * MS, Duration::from_secs(1), Duration::MAX] {
        let coordinator = Coordinator::builder().grace(grace).build().unwrap();
        drop(coordinator.enlist("has ended"));
        coordinator.request_stop();
        coordinator.join().unwrap();
        if grace < Duration::from_secs(1) {
            coordinator.clear_stop();
            let stays = coordinator.enlist("stays");
            coordinator.request_stop();
            assert_eq!(coordinator.join().unwrap_err().stragglers().len(), 1);
            drop(stays);
        }
    }
}

#[test]
fn r22_an_error_comes_before_stragglers() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::builder().grace(MS).build().unwrap();
    let stays = coordinator.enlist("stays");
    coordinator.report(Broken(22)).unwrap();
    let error = coordinator.join().unwrap_err();
    assert_eq!(error.stragglers().len(), 1);
    assert!(error.to_string().contains("still running: `stays`"), "{error}");
    assert_eq!(broken(Err(error)), 22);
    drop(stays);
}

#[test]
fn r23_stragglers_that_are_ignored_are_told_and_an_error_still_is_one() {
    let _dog = Watchdog::new("");
    let warned = Arc::new(Mutex::new(Vec::new()));
    let hook = warned.clone();
    let coordinator = Coordinator::builder()
        .grace(MS)
        .on_warning(move |text| hook.lock().unwrap().push(text.to_owned()))
        .build()
        .unwrap();
    let stays = coordinator.enlist("stays");
    coordinator.request_stop();
    coordinator.join_with(JoinOptions::new().ignore_stragglers()).unwrap();
    assert!(warned.lock().unwrap()[0].contains("`stays`"));
    coordinator.clear_stop();
    let again = coordinator.enlist("again");
    coordinator.report(Broken(23)).unwrap();
    assert_eq!(broken(coordinator.join_with(JoinOptions::new().ignore_stragglers())), 23);
    drop((stays, again));
}

#[test]
fn r24_a_join_of_nobody_returns_at_once() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    coordinator.join().unwrap();
    assert!(coordinator.joined() && !coordinator.should_stop());
}

#[test]
fn r25_after_any_join_it_is_joined_and_nobody_is_registered() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::builder().grace(MS).build().unwrap();
    let stays = coordinator.enlist("stays");
    coordinator.report(Broken(25)).unwrap();
    coordinator.join().unwrap_err();
    assert!(coordinator.joined() && coordinator.workers().is_empty());
    let error = coordinator.join().unwrap_err();
    assert!(error.stragglers().is_empty(), "forgotten");
    drop(stays);
}

#[test]
fn r25_of_two_joins_at_once_the_longer_one_still_waits() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    let member = coordinator.enlist("member");
    coordinator.request_stop();
    let (longer, answer) = (coordinator.clone(), mpsc::channel());
    let thread = std::thread::spawn(move || answer.0.send(longer.join().is_ok()).unwrap());
    until_a_join_has_begun(&coordinator);
    coordinator.join_with(JoinOptions::new().grace(Duration::ZERO)).unwrap_err();
    assert!(answer.1.recv_timeout(20 * MS).is_err());
    drop(member);
    assert!(answer.1.come().unwrap());
    thread.join().unwrap();
}

#[test]
fn r26_an_error_after_the_join_is_handed_back() {
    let _dog = Watchdog::new("");
    let unseen = Unseen::default();
    let coordinator = unseen.coordinator();
    coordinator.join().unwrap();
    let back = coordinator.report(Broken(26)).unwrap_err();
    assert_eq!(back.downcast_ref::<Broken>(), Some(&Broken(26)));
    assert_eq!(coordinator.guard(|| Err::<(), _>(Broken(27).into())), None);
    assert_eq!(unseen.count(), 1, "nobody could be handed that of the guard");
    coordinator.spawn("late", |_| Err(Broken(28).into()));
    support::until(|| unseen.count() == 2);
    coordinator.report(EndOfInput).unwrap();
    coordinator.request_stop();
}

#[test]
fn r27_a_cleared_coordinator_runs_again() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    for n in 0..3 {
        coordinator.spawn("fails", move |_| Err(Broken(n).into()));
        assert_eq!(broken(coordinator.join()), n);
        coordinator.clear_stop();
        assert!(!coordinator.should_stop() && !coordinator.joined());
        assert!(coordinator.requested_error().is_none());
        assert!(!coordinator.wait_for_stop_timeout(Duration::ZERO).unwrap());
    }
    coordinator.join().unwrap();
}

#[test]
fn r28_the_recorded_error_can_be_asked_for_without_a_join_again_and_again() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    assert!(coordinator.requested_error().is_none());
    coordinator.report(Broken(28)).unwrap();
    let (one, two) = (coordinator.requested_error().unwrap(), coordinator.requested_error().unwrap());
    assert!(one.same_origin(&two) && !coordinator.joined());
}

#[test]
fn a_request_that_joins_its_own_coordinator_is_named_and_does_not_wait_for_itself() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    let (own, (joined, comes)) = (coordinator.clone(), mpsc::channel());
    coordinator.spawn("joins", move |_| {
        let before = own.join();
        own.request_stop();
        joined.send((before, own.join()))?;
        Ok(())
    });
    let (before, after) = comes.come().unwrap();
    assert!(matches!(&before, Err(JoinError::OwnWorker { worker, .. }) if worker == "joins"), "{before:?}");
    assert!(before.unwrap_err().to_string().contains("the worker `joins` joins its own coordinator"));
    assert!(matches!(after, Err(JoinError::Cancelled)), "{after:?}");
    coordinator.join().unwrap();
}

#[test]
fn r29_a_worker_may_register_itself() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    let (worker, (registered, comes)) = (coordinator.clone(), mpsc::channel());
    let thread = std::thread::spawn(move || {
        let me = worker.enlist("myself");
        registered.send(()).unwrap();
        me.wait_for_stop().unwrap();
    });
    comes.come().unwrap();
    assert_eq!(coordinator.workers(), ["myself"]);
    coordinator.request_stop();
    coordinator.join().unwrap();
    thread.join().unwrap();
}

#[test]
fn a_straggler_that_computes_without_a_scheduling_point_comes_before_those_that_stand_on_its_thread() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let coordinator = Coordinator::builder().runtime(&runtime).build().unwrap();
    let (waits, begun) = (Arc::new(Event::new()), Arc::new(Event::new()));
    let (told, asked) = (waits.clone(), waits.clone());
    coordinator.spawn("waits", move |me| {
        told.set();
        Ok(me.wait_for_stop()?)
    });
    let (tell, (ends, over)) = (begun.clone(), mpsc::channel::<()>());
    coordinator.spawn("computes", move |_| {
        asked.wait()?;
        tell.set();
        let _ = over.recv(); // blocks the only worker
        Ok(())
    });
    begun.wait().unwrap();
    coordinator.request_stop();
    let error = coordinator.join_with(JoinOptions::new().grace(MS)).unwrap_err();
    let names: Vec<_> = error.stragglers().iter().map(|one| (one.name.as_str(), one.holds_thread)).collect();
    assert_eq!(names, [("computes", true), ("waits", false)]);
    let text = error.to_string();
    assert!(
        text.contains("`computes` (computes, or blocks its thread, without a scheduling point), `waits`"),
        "{text}"
    );
    drop(ends);
}
