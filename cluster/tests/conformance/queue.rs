//! Rows 1 to 24: the queue, and the error that is raised once.

use std::time::Duration;

use forebear::{Request, Runtime, spawn, time::sleep};
use forebear_cluster::{ClusterCoordinator, ClusterError, FetchError, RemoteState, TaskFn};

use crate::bed::{Bed, Field, failure_of, field, field_with, text_of};
use crate::desk::{ADD, COUNT, COUNTER, FAIL, GATE, GATED_COUNTER, LINGER, LOG, NOTHING};
use crate::until;

pub(crate) fn r01_schedule_returns_at_once<B: Bed>() {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    field.desk.open("a");
    assert_eq!(value.fetch().unwrap(), ("worker-0".into(), 1));
}

pub(crate) fn r02_what_is_not_registered_is_refused<B: Bed>() {
    let field = field::<B>(1);
    let unknown: TaskFn<u32, u32> = TaskFn::new("unknown", |_, n| Ok(n));
    assert!(
        matches!(field.cluster.schedule(&unknown, 1), Err(ClusterError::NotRegistered { task, .. }) if task == "unknown")
    );
    let other: TaskFn<u32, u32> = TaskFn::new("add", |_, n| Ok(n));
    assert!(
        matches!(field.cluster.schedule(&other, 1), Err(ClusterError::NameTaken { task, .. }) if task == "add")
    );
    let (_bed, engine) = B::engine(1);
    let builder = forebear_cluster::ClusterCoordinator::builder(engine);
    let twice = builder.tasks(forebear_cluster::tasks![ADD, other]).start();
    assert!(matches!(twice, Err(ClusterError::NameTaken { task, .. }) if task == "add"));
}

pub(crate) fn r03_any_worker_may_run_it<B: Bed>() {
    let field = field::<B>(2);
    let values = ["a", "b"].map(|gate| field.cluster.schedule(&GATE, field.at(gate)).unwrap());
    // Both run at once, so two workers run them.
    field.desk.await_lines("started a", 1);
    field.desk.await_lines("started b", 1);
    field.desk.open("a");
    field.desk.open("b");
    let mut workers = field.cluster.fetch(values).unwrap().map(|(worker, _)| worker);
    workers.sort();
    assert_eq!(workers, ["worker-0", "worker-1"]);
}

/// A task whose only worker is killed while it runs, and that a second worker then runs to its end.
fn run_again_after_a_death<B: Bed>() -> Field<B> {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    field.kill("worker-0");
    field.add("second");
    field.desk.await_lines("started a", 2);
    field.desk.open("a");
    assert_eq!(value.fetch().unwrap(), ("second".into(), 2));
    field.cluster.join().unwrap();
    field
}

pub(crate) fn r04_a_task_whose_worker_dies_is_run_by_another_one<B: Bed>() {
    _ = run_again_after_a_death::<B>();
}

pub(crate) fn r05_without_failures_each_task_runs_exactly_once<B: Bed>() {
    let field = field::<B>(3);
    for n in 0..60 {
        field.cluster.schedule(&LOG, field.at(&format!("ran {n}"))).unwrap();
    }
    field.cluster.join().unwrap();
    assert!((0..60).all(|n| field.desk.count(&format!("ran {n}")) == 1));
    assert_eq!(field.desk.lines().len(), 60);
}

pub(crate) fn r06_a_task_that_comes_back_goes_to_the_end<B: Bed>() {
    let field = field::<B>(1);
    field.cluster.schedule(&GATE, field.at("first")).unwrap();
    field.desk.await_lines("started first", 1);
    for line in ["second", "third"] {
        field.cluster.schedule(&LOG, field.at(line)).unwrap();
    }
    field.kill("worker-0");
    field.desk.open("first");
    field.add("worker-0");
    field.cluster.join().unwrap();
    let lines = field.desk.lines();
    let ended = lines.iter().rposition(|line| line == "started first").unwrap();
    let third = lines.iter().position(|line| line == "third").unwrap();
    assert!(third < ended, "{lines:?}");
}

pub(crate) fn r07_a_join_waits_for_all_and_may_be_repeated<B: Bed>() {
    let field = field::<B>(2);
    field.cluster.join().unwrap();
    for round in 1..4 {
        for _ in 0..10 {
            field.cluster.schedule(&LOG, field.at("ran")).unwrap();
        }
        field.cluster.join().unwrap();
        assert_eq!(field.desk.count("ran"), 10 * round);
        field.cluster.join().unwrap();
    }
}

pub(crate) fn r08_a_task_that_ended_before_the_join_does_not_hold_it_up<B: Bed>() {
    let field = field::<B>(1);
    field.cluster.schedule(&NOTHING, ()).unwrap().fetch().unwrap();
    field.cluster.join().unwrap();
}

pub(crate) fn r09_done_does_not_wait_and_raises<B: Bed>() {
    let field = field::<B>(1);
    assert!(field.cluster.done().unwrap());
    let value = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    assert!(!field.cluster.done().unwrap());
    field.desk.open("a");
    value.fetch().unwrap();
    until(|| field.cluster.done().unwrap());
    let bad = field.cluster.schedule(&FAIL, "no".into()).unwrap();
    assert!(bad.fetch().is_err());
    let mut raised = None;
    until(|| match field.cluster.done() {
        Ok(done) => {
            assert!(!done, "it is not done before the error is raised");
            false
        }
        Err(error) => raised.replace(error).is_none(),
    });
    assert_eq!(text_of(&failure_of(Err::<(), _>(raised.unwrap()))), "no");
    assert!(field.cluster.done().unwrap());
}

pub(crate) fn r10_the_first_error_is_raised_once_by_schedule_join_or_done<B: Bed>() {
    let field = field::<B>(2);
    let fail = || drop(field.cluster.schedule(&FAIL, "no".into()).unwrap().fetch());
    fail();
    assert_eq!(text_of(&failure_of(field.cluster.join())), "no");
    field.cluster.join().unwrap();
    fail();
    assert_eq!(text_of(&failure_of(field.cluster.schedule(&ADD, (1, 2)))), "no");
    field.cluster.join().unwrap();
    fail();
    until(|| field.cluster.done().is_err());
    assert!(field.cluster.done().unwrap());
    assert_eq!(field.cluster.schedule(&ADD, (1, 2)).unwrap().fetch().unwrap(), 3);
}

pub(crate) fn r11_an_error_is_raised_when_the_rest_is_cancelled_and_nothing_runs<B: Bed>() {
    let field = field::<B>(2);
    let lingers = field.cluster.schedule(&LINGER, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    field.cluster.schedule(&FAIL, "no".into()).unwrap();
    let queued: Vec<_> =
        (0..10).filter_map(|_| field.cluster.try_schedule(&LOG, field.at("late")).ok()).collect();
    // It has been told to cancel, and still runs.
    field.desk.await_lines("cancelled a", 1);
    assert!(!field.cluster.done().unwrap());
    let (cluster, desk) = (field.cluster.clone(), field.desk.clone());
    let join = spawn(move || {
        let answer = cluster.join();
        assert_eq!(desk.count("ended a"), 1, "it is raised when nothing runs any more");
        answer
    });
    field.desk.open("a");
    assert_eq!(text_of(&failure_of(join.take().unwrap())), "no");
    let logged = field.desk.count("late");
    for value in &queued {
        // One may have run before the error.
        assert!(matches!(value.fetch(), Ok(()) | Err(FetchError::Dropped)));
    }
    assert!(lingers.fetch().is_err());
    field.cluster.schedule(&NOTHING, ()).unwrap().fetch().unwrap();
    assert_eq!(field.desk.count("late"), logged, "what was cancelled never runs");
}

/// The same by each of the three calls: none hears of the error while something runs.
pub(crate) fn r11_each_call_raises_an_error_when_nothing_runs<B: Bed>() {
    type Call = fn(&ClusterCoordinator) -> Result<(), ClusterError>;
    let calls: [Call; 3] = [
        |cluster| cluster.schedule(&NOTHING, ()).map(drop),
        ClusterCoordinator::join,
        |cluster| {
            while !cluster.done()? {
                sleep(Duration::from_millis(1))?;
            }
            Ok(())
        },
    ];
    let field = field::<B>(2);
    for (gate, call) in ["schedule", "join", "done"].into_iter().zip(calls) {
        field.cluster.schedule(&LINGER, field.at(gate)).unwrap();
        field.desk.await_lines(&format!("started {gate}"), 1);
        field.cluster.schedule(&FAIL, gate.into()).unwrap();
        field.desk.await_lines(&format!("cancelled {gate}"), 1);
        let (cluster, desk) = (field.cluster.clone(), field.desk.clone());
        let raised = spawn(move || (call(&cluster), desk.count(&format!("ended {gate}"))));
        // It has had the time to be wrong.
        assert!(!field.cluster.done().unwrap());
        assert!(!field.cluster.join_timeout(Duration::from_millis(20)).unwrap());
        field.desk.open(gate);
        let (answer, ended) = raised.take().unwrap();
        assert_eq!((text_of(&failure_of(answer)), ended), (gate.to_owned(), 1));
        // Once, and by one of them.
        field.cluster.join().unwrap();
        assert!(field.cluster.done().unwrap());
    }
}

/// One worker takes one task after the other: the engine hears of a failure before that worker can have the next one.
pub(crate) fn r11_what_waits_behind_a_failure_never_begins<B: Bed>() {
    let field = field::<B>(1);
    for round in ["a", "b", "c"] {
        let first = field.cluster.schedule(&GATE, field.at(round)).unwrap();
        field.desk.await_lines(&format!("started {round}"), 1);
        field.cluster.schedule(&FAIL, format!("first of {round}")).unwrap();
        let behind = [(); 3].map(|()| field.cluster.schedule(&LOG, field.at("behind")).unwrap());
        let second = field.cluster.schedule(&FAIL, "second".into()).unwrap();
        field.desk.open(round);
        assert_eq!(text_of(&failure_of(field.cluster.join())), format!("first of {round}"));
        // What had ended before has its result.
        first.fetch().unwrap();
        assert!(behind.iter().all(|value| matches!(value.fetch(), Err(FetchError::Dropped))));
        assert!(matches!(second.fetch(), Err(FetchError::Dropped)));
        field.cluster.schedule(&NOTHING, ()).unwrap().fetch().unwrap();
        assert_eq!(field.desk.count("behind"), 0);
    }
}

pub(crate) fn r12_a_cancellation_does_not_mask_its_cause<B: Bed>() {
    for _ in 0..5 {
        let field = field::<B>(3);
        field.cluster.schedule(&LINGER, field.at("a")).unwrap();
        let gated = field.cluster.schedule(&GATE, field.at("never")).unwrap();
        field.desk.await_lines("started a", 1);
        field.desk.await_lines("started never", 1);
        field.desk.open("a");
        field.cluster.schedule(&FAIL, "the cause".into()).unwrap();
        assert_eq!(text_of(&failure_of(field.cluster.join())), "the cause");
        assert!(matches!(gated.fetch(), Err(FetchError::Dropped)));
        field.cluster.join().unwrap();
    }
}

pub(crate) fn r13_a_schedule_that_raises_schedules_nothing<B: Bed>() {
    let field = field::<B>(1);
    field.cluster.schedule(&FAIL, "no".into()).unwrap().fetch().unwrap_err();
    failure_of(field.cluster.schedule(&LOG, field.at("ran")));
    field.cluster.schedule(&NOTHING, ()).unwrap().fetch().unwrap();
    field.cluster.join().unwrap();
    assert_eq!(field.desk.count("ran"), 0);
}

pub(crate) fn r14_of_several_errors_one_is_raised<B: Bed>() {
    let field = field::<B>(3);
    let gates = [(); 3].map(|()| field.cluster.schedule(&GATE, field.at("a")).unwrap());
    for _ in 0..10 {
        field.cluster.schedule(&FAIL, "no".into()).unwrap();
    }
    field.desk.open("a");
    for gate in gates {
        assert!(matches!(gate.fetch(), Ok(_) | Err(FetchError::Dropped)));
    }
    assert_eq!(text_of(&failure_of(field.cluster.join())), "no");
    field.cluster.join().unwrap();
    assert!(field.cluster.done().unwrap());
}

pub(crate) fn r15_after_an_error_everything_goes_on_with_the_same_resources<B: Bed>() {
    let field = field::<B>(1);
    let counter = field.cluster.per_worker(&COUNTER, field.at("counter")).unwrap();
    let count = || field.cluster.schedule(&COUNT, counter.clone()).unwrap().fetch().unwrap().2;
    assert_eq!(count(), 1);
    for n in 2..5 {
        field.cluster.schedule(&FAIL, "no".into()).unwrap();
        failure_of(field.cluster.join());
        assert_eq!(count(), n);
    }
    assert_eq!(field.desk.count("made counter"), 1);
}

pub(crate) fn r16_a_task_that_would_come_back_while_an_error_is_pending_is_cancelled<B: Bed>() {
    let field = field::<B>(2);
    let lingers = field.cluster.schedule(&LINGER, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    let workers = field.cluster.workers();
    let its = workers.iter().find(|worker| worker.running == 1).unwrap().id.name().to_owned();
    field.cluster.schedule(&FAIL, "no".into()).unwrap();
    field.desk.await_lines("cancelled a", 1);
    field.kill(&its);
    field.desk.open("a");
    assert_eq!(text_of(&failure_of(field.cluster.join())), "no");
    assert!(matches!(lingers.fetch(), Err(FetchError::Dropped)));
    field.cluster.schedule(&NOTHING, ()).unwrap().fetch().unwrap();
    assert_eq!(field.desk.count("started a"), 1);
}

pub(crate) fn r17_a_full_queue_makes_schedule_wait_and_never_blocks_workers<B: Bed>() {
    let field = field_with::<B>(5, |builder| builder.queue_limit(2, 1 << 20));
    for n in 0..200 {
        field.cluster.schedule(&LOG, field.at(&format!("ran {n}"))).unwrap();
    }
    field.cluster.join().unwrap();
    assert_eq!(field.desk.lines().len(), 200);
    // All workers die at once, with a full queue and a schedule that waits.
    let gates: Vec<_> = (0..5).map(|_| field.cluster.schedule(&GATE, field.at("a")).unwrap()).collect();
    field.desk.await_lines("started a", 5);
    let queued = [(); 2].map(|()| field.cluster.schedule(&NOTHING, ()).unwrap());
    assert!(field.cluster.try_schedule(&NOTHING, ()).is_err());
    let cluster = field.cluster.clone();
    let waits = spawn(move || cluster.schedule(&NOTHING, ()).map(|value| value.fetch()));
    (0..5).for_each(|n| field.kill(&format!("worker-{n}")));
    assert_eq!(field.cluster.metrics().queued, 7, "what comes back needs no room");
    field.desk.open("a");
    (0..5).for_each(|n| field.bed.add(&format!("worker-{n}")));
    field.cluster.fetch(gates).unwrap();
    field.cluster.fetch(queued).unwrap();
    waits.take().unwrap().unwrap().unwrap();
    // An error reaches a schedule that waits for room.
    let gates: Vec<_> = (0..4).map(|_| field.cluster.schedule(&GATE, field.at("b")).unwrap()).collect();
    field.desk.await_lines("started b", 4);
    field.cluster.schedule(&FAIL, "no".into()).unwrap();
    let raised = (0..1_000).find_map(|_| field.cluster.schedule(&NOTHING, ()).err());
    assert_eq!(text_of(&failure_of(Err::<(), _>(raised.unwrap()))), "no");
    assert!(gates.iter().all(|gate| matches!(gate.fetch(), Err(FetchError::Dropped))));
}

pub(crate) fn r18_a_join_waits_for_what_was_scheduled_before<B: Bed>() {
    let field = field::<B>(2);
    let before = field.cluster.schedule(&GATE, field.at("before")).unwrap();
    field.desk.await_lines("started before", 1);
    // On one thread: when the other request runs again, the join waits.
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (begun, never) = (forebear::sync::Event::new(), field.at("never"));
    let never = runtime.run(|| {
        forebear::scope(|scope| {
            let join = scope.spawn(|| {
                begun.set();
                field.cluster.join()
            });
            begun.wait().unwrap();
            // A join that waits does not hold up a schedule.
            field.cluster.schedule(&NOTHING, ()).unwrap().fetch().unwrap();
            // It does not wait for what is scheduled now: this one never ends.
            let never = field.cluster.schedule(&GATE, never).unwrap();
            field.desk.await_lines("started never", 1);
            field.desk.open("before");
            join.take().unwrap().unwrap();
            never
        })
    });
    before.fetch().unwrap();
    assert!(matches!(never.state(), RemoteState::Running { .. }));
    assert!(!field.cluster.join_timeout(Duration::from_millis(1)).unwrap());
}

pub(crate) fn r19_any_number_of_threads_may_schedule_and_join<B: Bed>() {
    let field = field::<B>(3);
    std::thread::scope(|scope| {
        for thread in 0..10_u32 {
            let field = &field;
            scope.spawn(move || {
                for n in 0..20 {
                    match n % 4 {
                        0 => field.cluster.join().unwrap(),
                        1 => drop(field.cluster.done().unwrap()),
                        2 => drop(field.cluster.schedule(&LOG, field.at("ran")).unwrap()),
                        _ => {
                            let value = field.cluster.schedule(&ADD, (thread, n)).unwrap();
                            assert_eq!(value.fetch().unwrap(), thread + n);
                        }
                    }
                }
            });
        }
    });
    field.cluster.join().unwrap();
    assert!(field.cluster.done().unwrap());
    assert_eq!(field.desk.count("ran"), 50);
    // All that wait hear of the end.
    let held = field.cluster.schedule(&GATE, field.at("held")).unwrap();
    let begun = std::sync::Barrier::new(6);
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                begun.wait();
                field.cluster.join().unwrap();
            });
        }
        begun.wait();
        field.cluster.schedule(&NOTHING, ()).unwrap().fetch().unwrap();
        field.desk.open("held");
    });
    held.fetch().unwrap();
}

/// A resource is what a worker has in a queue of its own.
pub(crate) fn r20_what_a_worker_makes_for_itself_comes_first_and_no_join_waits_for_it<B: Bed>() {
    let field = field::<B>(1);
    let _counter = field.cluster.per_worker(&GATED_COUNTER, field.at("counter")).unwrap();
    field.desk.await_lines("making counter", 1);
    assert!(field.cluster.done().unwrap());
    field.cluster.join().unwrap();
    // This one does not need it, and still comes after it.
    let value = field.cluster.schedule(&LOG, field.at("ran")).unwrap();
    until(|| !matches!(value.state(), RemoteState::Queued));
    field.desk.open("counter");
    value.fetch().unwrap();
    let lines = field.desk.lines();
    assert_eq!(lines, ["making counter", "made counter", "ran"]);
}

pub(crate) fn r21_a_join_with_a_time_limit_answers_false<B: Bed>() {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    assert!(!field.cluster.join_timeout(Duration::from_millis(2)).unwrap());
    assert!(matches!(value.fetch_timeout(Duration::from_millis(2)), Err(FetchError::TimedOut)));
    field.desk.open("a");
    assert!(field.cluster.join_timeout(Duration::from_secs(250)).unwrap());
    value.fetch_timeout(Duration::ZERO).unwrap();
}

pub(crate) fn r24_five_thousand_tasks_run_on_one_worker<B: Bed>() {
    let field = field::<B>(1);
    let cluster = field.cluster.clone();
    // From a request, which is suspended where it waits.
    let sum = Request::try_new(move || {
        let values = (0..5_000).map(|n| cluster.schedule(&ADD, (n, 1))).collect::<Result<Vec<_>, _>>()?;
        cluster.join()?;
        sleep(Duration::ZERO)?;
        Ok(cluster.fetch(values)?.iter().sum::<u32>())
    });
    assert_eq!(sum.take().unwrap(), (1..=5_000).sum::<u32>());
}

/// A worker that is gone has cancelled what it had. That follows from its end, and answers nothing.
pub(crate) fn r59_a_cancel_that_follows_from_a_failure_is_not_reported<B: Bed>() {
    let field = run_again_after_a_death::<B>();
    let metrics = field.cluster.metrics();
    assert_eq!((metrics.cancelled, metrics.failed, metrics.returned), (0, 0, 1));
}
