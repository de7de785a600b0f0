//! What the original does not promise, and forebear does.

use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use forebear::time::{sleep, timeout};
use forebear::{WaitError, spawn, try_spawn};
use forebear_cluster::engine::WorkerState;
use forebear_cluster::{
    ClusterCoordinator, ClusterError, FailureKind, FetchError, RemoteState, Stall, TaskOptions,
};

use crate::bed::{Bed, failure_of, field, field_with, text_of};
use crate::desk::{
    ADD, BYTES, COUNT, COUNTER, FAIL, GATE, LINGER, LOG, NOTHING, PANIC, POSITIVE, PROGRESS, Refused, SIGNED,
    STUCK, TIME_LEFT, bytes,
};
use crate::until;

pub(crate) fn a_task_that_kills_its_workers_is_not_tried_for_ever<B: Bed>() {
    let field = field_with::<B>(1, |builder| builder.max_attempts(3));
    let value = field.cluster.schedule(&SIGNED, field.at("never")).unwrap();
    for attempt in 1..=3 {
        field.desk.await_lines("started never", attempt);
        field.bed.lose("worker-0", field.desk.process());
    }
    let failure = failure_of(field.cluster.join());
    assert_eq!(*failure.kind(), FailureKind::Poisoned { attempts: 3 });
    assert!(matches!(value.fetch(), Err(FetchError::Task(_))));
    assert_eq!(field.desk.count("started never"), 3);
}

pub(crate) fn a_cancelled_fetch_cancels_what_only_it_wanted<B: Bed>() {
    let field = field::<B>(1);
    let (cluster, args) = (field.cluster.clone(), field.at("never"));
    let request = try_spawn(move || Ok(cluster.schedule(&GATE, args)?.fetch()?));
    field.desk.await_lines("started never", 1);
    request.cancel();
    field.desk.await_lines("cancelled never", 1);
    assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(_))));
    field.cluster.join().unwrap();
    assert_eq!(field.cluster.metrics().cancelled, 1);
}

pub(crate) fn a_cancelled_fetch_spares_what_others_want<B: Bed>() {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    let its = value.clone();
    let request = try_spawn(move || Ok(its.fetch()?));
    request.cancel();
    assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(_))));
    assert!(matches!(value.state(), RemoteState::Running { .. }));
    field.desk.open("a");
    value.fetch().unwrap();
    assert_eq!(field.desk.count("cancelled a"), 0);
}

pub(crate) fn a_schedule_that_waits_for_room_can_be_cancelled<B: Bed>() {
    let field = field_with::<B>(1, |builder| builder.queue_limit(1, 1 << 20));
    let gate = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    let queued = field.cluster.schedule(&NOTHING, ()).unwrap();
    let (cluster, args) = (field.cluster.clone(), field.at("ran"));
    let request = try_spawn(move || Ok(cluster.schedule(&LOG, args)?));
    request.cancel();
    assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(_))));
    field.desk.open("a");
    gate.fetch().unwrap();
    queued.fetch().unwrap();
    field.cluster.join().unwrap();
    assert_eq!((field.desk.count("ran"), field.cluster.metrics().scheduled), (0, 2));
}

pub(crate) fn a_join_that_is_cancelled_changes_nothing_of_others<B: Bed>() {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    let cluster = field.cluster.clone();
    let join = spawn(move || cluster.join());
    join.cancel();
    match join.take() {
        Ok(answer) => assert!(matches!(answer, Err(ClusterError::Cancelled))),
        Err(error) => assert!(matches!(error, WaitError::TargetCancelled(_)), "{error}"),
    }
    field.desk.open("a");
    field.cluster.join().unwrap();
    value.fetch().unwrap();
}

pub(crate) fn a_cancelled_join_cancels_what_only_it_wanted<B: Bed>() {
    let field = field::<B>(2);
    let (cluster, never, kept) = (field.cluster.clone(), field.at("never"), field.at("kept"));
    let (send, receive) = std::sync::mpsc::channel();
    let request = try_spawn(move || {
        let its_own = cluster.schedule(&GATE, never)?;
        let kept = cluster.schedule(&GATE, kept)?;
        send.send(kept.clone())?;
        cluster.join()?;
        drop((its_own, kept));
        Ok(())
    });
    let kept = receive.recv().unwrap();
    field.desk.await_lines("started never", 1);
    field.desk.await_lines("started kept", 1);
    request.cancel();
    field.desk.await_lines("cancelled never", 1);
    assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(_))));
    field.desk.open("kept");
    kept.fetch().unwrap();
    field.cluster.join().unwrap();
    assert_eq!(field.desk.count("cancelled kept"), 0);
}

pub(crate) fn a_deadline_travels_with_the_task<B: Bed>() {
    let field = field::<B>(1);
    let (limit, own) = (Duration::from_secs(5_000), TaskOptions::new().timeout(Duration::from_secs(1_000)));
    let left = || field.cluster.schedule(&TIME_LEFT, ()).unwrap().fetch().unwrap();
    let left_of_own = || field.cluster.schedule_with(&own, &TIME_LEFT, ()).unwrap().fetch().unwrap();
    assert_eq!(left(), None);
    let inherited = timeout(limit, left).unwrap().unwrap();
    assert!(inherited <= limit && inherited > Duration::from_secs(1_000), "{inherited:?}");
    for left in [left_of_own(), timeout(limit, left_of_own).unwrap()] {
        assert!(
            left.is_some_and(|left| left <= Duration::from_secs(1_000)),
            "the nearer one counts: {left:?}"
        );
    }
}

pub(crate) fn a_deadline_that_is_over_ends_the_task_and_is_no_error_of_the_job<B: Bed>() {
    let field = field::<B>(1);
    let short = Duration::from_millis(20);
    // Nobody waits for the first one; the second one is waited for.
    let _ = timeout(short, || field.cluster.schedule(&GATE, field.at("never")).map(drop));
    let late = timeout(short, || field.cluster.schedule(&GATE, field.at("never")).unwrap().fetch());
    assert!(!matches!(late, Ok(Ok(_))));
    field.cluster.join().unwrap();
    // A limit of the task's own is its failure.
    let own = TaskOptions::new().timeout(short);
    field.cluster.schedule_with(&own, &GATE, field.at("never")).unwrap();
    assert_eq!(*failure_of(field.cluster.join()).kind(), FailureKind::TimedOut);
}

pub(crate) fn an_error_keeps_its_type<B: Bed>() {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&POSITIVE, -3).unwrap();
    let Err(FetchError::Task(fetched)) = value.fetch() else { panic!("it has failed") };
    let raised = failure_of(field.cluster.join());
    for failure in [fetched, raised] {
        assert_eq!(failure.downcast(), Some(Refused::Negative { number: -3 }));
        assert_eq!(failure.downcast::<(u8, u8)>(), None);
        assert_eq!(text_of(&failure), "it is negative");
    }
    let untyped = field.cluster.schedule(&FAIL, "no".into()).unwrap();
    assert!(untyped.fetch().is_err());
    assert_eq!(failure_of(field.cluster.join()).downcast::<Refused>(), None);
}

pub(crate) fn a_worker_that_drains_ends_what_it_has<B: Bed>() {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    field.bed.drain("worker-0");
    field.await_state("worker-0", WorkerState::Draining);
    let later = field.cluster.schedule(&GATE, field.at("b")).unwrap();
    field.desk.open("a");
    assert_eq!(value.fetch().unwrap(), ("worker-0".into(), 1));
    field.await_state("worker-0", WorkerState::Gone);
    assert!(matches!(later.state(), RemoteState::Queued));
    field.desk.open("b");
    field.add("second");
    assert_eq!(later.fetch().unwrap(), ("second".into(), 1));
}

pub(crate) fn a_worker_that_drains_ends_what_it_has_however_often_it_is_told<B: Bed>() {
    let field = field_with::<B>(1, |builder| builder.max_attempts(1));
    let value = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    field.bed.drain("worker-0");
    field.await_state("worker-0", WorkerState::Draining);
    field.bed.drain("worker-0");
    // It heeds what it was told before it answers this.
    field.cluster.dump(Duration::from_secs(10)).unwrap();
    field.bed.drain("worker-0");
    field.desk.open("a");
    assert_eq!(value.fetch().unwrap(), ("worker-0".into(), 1));
    field.await_state("worker-0", WorkerState::Gone);
    field.cluster.join().unwrap();
}

pub(crate) fn a_shutdown_waits_until_nothing_runs<B: Bed>() {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&LINGER, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    let (cluster, desk) = (field.cluster.clone(), field.desk.clone());
    let shutdown = spawn(move || {
        cluster.shutdown().unwrap();
        assert_eq!(desk.count("ended a"), 1);
    });
    field.desk.await_lines("cancelled a", 1);
    field.desk.open("a");
    shutdown.take().unwrap();
    value.fetch().unwrap_err();
    assert!(matches!(field.cluster.schedule(&NOTHING, ()), Err(ClusterError::Closed)));
    assert!(matches!(field.cluster.join(), Err(ClusterError::Closed)));
    assert!(matches!(field.cluster.done(), Err(ClusterError::Closed)));
    assert!(matches!(field.cluster.per_worker(&COUNTER, field.at("b")), Err(ClusterError::Closed)));
    field.cluster.shutdown().unwrap();
}

pub(crate) fn a_start_waits_for_so_many_workers<B: Bed>() {
    let field = field_with::<B>(0, |builder| builder.min_workers(0));
    let value = field.cluster.schedule(&ADD, (1, 2)).unwrap();
    assert!(matches!(value.state(), RemoteState::Queued));
    field.add("late");
    assert_eq!(value.fetch().unwrap(), 3);
    let of_three = crate::bed::field_with::<B>(3, |builder| builder.min_workers(2));
    let ready = of_three.cluster.workers().iter().filter(|worker| worker.state == WorkerState::Ready).count();
    assert!(ready >= 2);
}

pub(crate) fn a_map_takes_its_arguments_as_there_is_room<B: Bed>() {
    let field = field::<B>(2);
    let taken = std::cell::Cell::new(0);
    let args = (0..100).inspect(|_| taken.set(taken.get() + 1)).map(|n| (n, 1));
    let mut map = field.cluster.map(&ADD, args).window(5);
    for n in 0..100 {
        assert_eq!(map.next().unwrap().unwrap(), n + 1);
        assert!(taken.get() <= n + 5, "no more than the window");
    }
    assert!(map.next().is_none() && map.next().is_none());
    let all: Result<Vec<u32>, ClusterError> = field.cluster.map(&ADD, (0..50).map(|n| (n, n))).collect();
    assert_eq!(all.unwrap(), (0..50).map(|n| 2 * n).collect::<Vec<_>>());
}

pub(crate) fn a_map_names_the_cause_and_raises_it_once<B: Bed>() {
    let field = field::<B>(2);
    // The first one is cancelled, since the second one fails.
    field.cluster.schedule(&GATE, field.at("never")).unwrap();
    let mut map = field.cluster.map(&FAIL, ["no".into(), "nor".into()]).window(2);
    let text = text_of(&failure_of(map.next().unwrap()));
    assert_eq!(text, "no");
    assert!(map.next().is_none());
    field.cluster.join().unwrap();
}

pub(crate) fn a_map_that_is_dropped_cancels_the_rest<B: Bed>() {
    let field = field::<B>(1);
    let args = [field.at("a"), field.at("never"), field.at("late")];
    let mut map = field.cluster.map(&GATE, args).window(3);
    field.desk.open("a");
    map.next().unwrap().unwrap();
    field.desk.await_lines("started never", 1);
    drop(map);
    field.cluster.join().unwrap();
    assert_eq!((field.desk.count("cancelled never"), field.desk.count("started late")), (1, 0));
}

pub(crate) fn a_map_that_is_cancelled_cancels_the_rest<B: Bed>() {
    let field = field::<B>(1);
    for ordered in [true, false] {
        let (cluster, args) = (field.cluster.clone(), [field.at("never"), field.at("late")]);
        let request = try_spawn(move || {
            let map = cluster.map(&GATE, args).window(2);
            let first = if ordered {
                { map }.next().map(|one| one.map(drop))
            } else {
                map.unordered().next().map(|one| one.map(drop))
            };
            Ok(first.transpose()?)
        });
        let times = if ordered { 1 } else { 2 };
        field.desk.await_lines("started never", times);
        until(|| field.cluster.metrics().queued == 1);
        request.cancel();
        field.desk.await_lines("cancelled never", times);
        assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(_))));
        field.cluster.join().unwrap();
    }
    assert_eq!(field.desk.count("started late"), 0);
}

pub(crate) fn an_unordered_map_yields_what_is_there<B: Bed>() {
    let field = field::<B>(2);
    let args = ["slow", "quick", "last"].map(|gate| field.at(gate));
    field.desk.open("quick");
    let mut map = field.cluster.map(&GATE, args).window(2).unordered();
    assert_eq!(map.next().unwrap().unwrap().0, 1);
    field.desk.open("last");
    assert_eq!(map.next().unwrap().unwrap().0, 2);
    field.desk.open("slow");
    assert_eq!(map.next().unwrap().unwrap().0, 0);
    assert!(map.next().is_none());
    // It ends at the first error, as an ordered one.
    let mut map = field.cluster.map(&POSITIVE, [-1]).unordered();
    assert_eq!(failure_of(map.next().unwrap()).downcast(), Some(Refused::Negative { number: -1 }));
    assert!(map.next().is_none());
    field.cluster.join().unwrap();
}

pub(crate) fn a_map_of_each_yields_failures_and_goes_on<B: Bed>() {
    let field = field::<B>(2);
    let other = field.cluster.schedule(&GATE, field.at("other")).unwrap();
    let numbers = || (-20..20).map(|n| if n % 2 == 0 { n } else { -1 });
    let expected = |n: usize| match numbers().nth(n) {
        Some(number @ 0..) => Ok(number as u32),
        number => Err(Refused::Negative { number: number.unwrap() }),
    };
    let ordered = field.cluster.map(&POSITIVE, numbers()).each();
    for (at, one) in ordered.enumerate() {
        let (number, answer) = one.unwrap();
        assert_eq!(number, at);
        assert_eq!(answer.map_err(|failure| failure.downcast().unwrap()), expected(at));
    }
    let mut unordered: Vec<_> = (field.cluster.map(&POSITIVE, numbers()).unordered().each())
        .map(|one| {
            one.map(|(number, answer)| (number, answer.map_err(|failure| failure.downcast().unwrap())))
        })
        .collect::<Result<_, _>>()
        .unwrap();
    unordered.sort_by_key(|(number, _)| *number);
    assert_eq!(unordered, (0..40).map(|n| (n, expected(n))).collect::<Vec<_>>());
    field.desk.open("other");
    other.fetch().unwrap();
    field.cluster.join().unwrap();
}

pub(crate) fn r67_a_watchdog_reports_while_no_task_ends<B: Bed>() {
    let (send, stalls) = std::sync::mpsc::channel();
    let period = Duration::from_millis(5);
    let field =
        field_with::<B>(1, |builder| builder.watchdog(period, move |stall| _ = send.send(stall.clone())));
    // Where nothing is scheduled nothing is reported.
    sleep(20 * period).unwrap();
    assert!(stalls.try_recv().is_err());
    let value = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    field.cluster.schedule(&NOTHING, ()).unwrap();
    field.desk.await_lines("started a", 1);
    let report = |holds: &dyn Fn(&Stall) -> bool| {
        let mut found = None;
        until(|| {
            found = stalls.try_iter().find(holds);
            found.is_some()
        });
        found.unwrap()
    };
    // One that follows another one, and has seen the task run.
    let stall = report(&|stall| stall.periods > 1 && !stall.running.is_empty());
    assert_eq!((stall.queued, stall.running.len(), stall.workers.len()), (1, 1, 1));
    assert_eq!(
        (&*stall.running[0].name, stall.running[0].worker.name(), stall.running[0].attempt),
        ("gate", "worker-0", 1)
    );
    assert!(stall.to_string().contains("`gate` on worker-0 (1), attempt 1"), "{stall}");
    // What the worker's requests do, and what they wait for.
    let stall = report(&|stall| stall.to_string().contains("`task gate` suspended"));
    assert_eq!(stall.dumps[0].worker.name(), "worker-0");
    assert!(stall.to_string().contains("1 tasks, 0 resources are being made"), "{stall}");
    field.desk.open("a");
    value.fetch().unwrap();
    field.cluster.join().unwrap();
    // The thread ends with the cluster, and drops the hook.
    drop(value);
    drop(field.close());
    until(|| match stalls.try_recv() {
        Ok(stall) => {
            assert!(stall.periods > 0);
            false
        }
        Err(why) => why == TryRecvError::Disconnected,
    });
}

/// By its key, a result is there for the next coordinator, also if nobody has fetched it from the first one.
pub(crate) fn r62_results_that_nobody_has_fetched_are_kept_for_the_next_coordinator<B: Bed>() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("journal");
    let first = field_with::<B>(2, |builder| builder.journal(&file));
    let key = |n: u32| TaskOptions::new().key(format!("sum {n}"));
    for n in 0..20 {
        first.cluster.schedule_with(&key(n), &ADD, (n, 1)).unwrap();
    }
    // These are not kept.
    let failed = first.cluster.schedule_with(&key(20).raise(false), &FAIL, "no".into()).unwrap();
    first.cluster.schedule_with(&key(21), &BYTES, 1_000).unwrap();
    first.cluster.schedule(&ADD, (1, 1)).unwrap();
    first.cluster.join().unwrap();
    assert!(failed.fetch().is_err());
    assert_eq!(first.cluster.metrics().kept, 0);
    // One coordinator at a time has it.
    let (_bed, engine) = B::engine(0);
    let taken = ClusterCoordinator::builder(engine).min_workers(0).journal(&file).start();
    assert!(cfg!(not(target_os = "linux")) || matches!(taken, Err(ClusterError::Start { .. })));
    drop((taken, failed));
    drop(first.close());
    let next = field_with::<B>(1, |builder| builder.journal(&file));
    for n in 0..20 {
        let value = next.cluster.schedule_with(&key(n), &ADD, (n, 1)).unwrap();
        assert!(matches!(value.state(), RemoteState::Done(_)));
        assert_eq!(value.fetch().unwrap(), n + 1);
    }
    assert_eq!((next.cluster.metrics().kept, next.cluster.metrics().scheduled), (20, 0));
    // Other arguments, another function, or what was not kept: it runs.
    assert_eq!(next.cluster.schedule_with(&key(0), &ADD, (5, 5)).unwrap().fetch().unwrap(), 10);
    assert_eq!(next.cluster.schedule_with(&key(1), &POSITIVE, 3).unwrap().fetch().unwrap(), 3);
    assert_eq!(next.cluster.schedule_with(&key(20), &ADD, (1, 2)).unwrap().fetch().unwrap(), 3);
    assert_eq!(next.cluster.schedule_with(&key(21), &BYTES, 1_000).unwrap().fetch().unwrap(), bytes(1_000));
    assert_eq!((next.cluster.metrics().kept, next.cluster.metrics().scheduled), (20, 4));
    // The newest result of a key counts.
    assert_eq!(next.cluster.schedule_with(&key(0), &ADD, (5, 5)).unwrap().fetch().unwrap(), 10);
    assert_eq!(next.cluster.metrics().kept, 21);
    // An error that is due comes first.
    next.cluster.schedule(&FAIL, "no".into()).unwrap();
    until(|| next.cluster.metrics().failed == 1);
    assert!(
        failure_of(next.cluster.schedule_with(&key(2), &ADD, (2, 1)).map(drop)).to_string().contains("no")
    );
    assert_eq!(next.cluster.schedule_with(&key(2), &ADD, (2, 1)).unwrap().fetch().unwrap(), 3);
}

pub(crate) fn r67_the_periods_are_counted_anew_when_a_task_has_ended<B: Bed>() {
    let (send, stalls) = std::sync::mpsc::channel();
    let hook = move |stall: &Stall| _ = send.send(stall.periods);
    let field = field_with::<B>(2, |builder| builder.watchdog(Duration::from_millis(5), hook));
    let _held = field.cluster.schedule(&GATE, field.at("held")).unwrap();
    field.desk.await_lines("started held", 1);
    let reaches = |holds: &dyn Fn(u32) -> bool| until(|| stalls.try_iter().any(holds));
    for _ in 0..3 {
        reaches(&|periods| periods > 3);
        field.cluster.schedule(&NOTHING, ()).unwrap().fetch().unwrap();
        reaches(&|periods| periods == 1);
    }
}

pub(crate) fn r67_workers_say_what_they_do_also_if_their_tasks_are_stuck<B: Bed>() {
    let field = field::<B>(2);
    let waits = field.cluster.schedule(&GATE, field.at("b")).unwrap();
    field.desk.await_lines("started b", 1);
    let stuck = field.cluster.schedule(&STUCK, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    // A message may be lost, and the other task looks at its gate now and then.
    until(|| {
        let dumps = field.cluster.dump(Duration::from_secs(1)).unwrap();
        let dumps: Vec<String> = dumps.iter().map(ToString::to_string).collect();
        let says = |what: &str| dumps.iter().any(|dump| dump.contains(what));
        says("worker-0 (1):\n  1 tasks, 0 resources are being made\n  runtime")
            && says("worker-1 (1):\n  1 tasks, 0 resources are being made\n  runtime")
            && says("`task gate`")
            && dumps.iter().flat_map(|dump| dump.lines()).any(|line| {
                line.contains("no scheduling point for 10 ms, runs") && line.contains("`task stuck`")
            })
    });
    field.desk.open("a");
    field.desk.open("b");
    stuck.fetch().unwrap();
    waits.fetch().unwrap();
    // One that is gone is not asked.
    field.kill("worker-0");
    let dumps = field.cluster.dump(Duration::from_secs(60)).unwrap();
    assert!(dumps.iter().all(|dump| dump.worker.to_string() != "worker-0 (1)"), "{dumps:?}");
    field.cluster.shutdown().unwrap();
    assert!(matches!(field.cluster.dump(Duration::ZERO), Err(ClusterError::Closed)));
}

pub(crate) fn a_panic_is_a_failure_with_its_text<B: Bed>() {
    let field = field::<B>(1);
    field.cluster.schedule(&PANIC, "out of luck".into()).unwrap();
    let failure = failure_of(field.cluster.join());
    assert_eq!(*failure.kind(), FailureKind::Panic { message: "out of luck".into() });
    assert_eq!(failure.to_string(), "task `panic` on worker-0 (1): panicked: out of luck");
    field.cluster.schedule(&NOTHING, ()).unwrap().fetch().unwrap();
}

pub(crate) fn a_task_that_is_cancelled_by_hand_is_no_error<B: Bed>() {
    let field = field::<B>(1);
    let running = field.cluster.schedule(&LINGER, field.at("a")).unwrap();
    let queued = field.cluster.schedule(&LOG, field.at("ran")).unwrap();
    field.desk.await_lines("started a", 1);
    field.desk.open("a");
    queued.cancel();
    running.cancel();
    // What fails since it was cancelled says so where it is fetched, and nowhere else.
    assert!(running.fetch().is_err());
    assert!(matches!(queued.fetch(), Err(FetchError::Dropped)));
    field.cluster.join().unwrap();
    running.cancel();
    assert_eq!(field.desk.count("ran"), 0);
}

pub(crate) fn progress_is_seen_in_the_value<B: Bed>() {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&PROGRESS, (field.desk.clone(), 0.25)).unwrap();
    until(|| matches!(value.state(), RemoteState::Running { progress: 0.25, .. }));
    field.desk.open("progress");
    value.fetch_timeout(Duration::from_secs(250)).unwrap();
}

pub(crate) fn a_token_of_another_cluster_is_refused<B: Bed>() {
    let (mine, other) = (field::<B>(1), field::<B>(1));
    let _mine = mine.cluster.per_worker(&COUNTER, mine.at("mine")).unwrap();
    let strange = other.cluster.per_worker(&COUNTER, other.at("other")).unwrap();
    mine.cluster.schedule(&COUNT, strange).unwrap();
    assert!(text_of(&failure_of(mine.cluster.join())).contains("another one made it"));
}
