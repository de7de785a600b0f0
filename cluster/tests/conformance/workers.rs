//! Rows 48 to 68: workers that die, come back, join and leave.

use std::time::{Duration, Instant};

use forebear_cluster::engine::WorkerState;
use forebear_cluster::{FailureKind, FetchError, RemoteState, TaskOptions};

use crate::bed::{Bed, failure_of, field, text_of};
use crate::desk::{ADD, COUNT, COUNTER, FAIL, GATE, GATED_COUNTER, LOG};
use crate::until;

pub(crate) fn r48_others_go_on_when_a_worker_dies<B: Bed>() {
    let field = field::<B>(2);
    field.cluster.schedule(&GATE, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    let workers = field.cluster.workers();
    let its = workers.iter().find(|worker| worker.running == 1).unwrap();
    field.kill(its.id.name());
    field.desk.open("a");
    for _ in 0..10 {
        field.cluster.schedule(&LOG, field.at("ran")).unwrap();
    }
    field.cluster.join().unwrap();
    assert_eq!(field.desk.count("ran"), 10);
    // The task on the dead worker may have had its effect as well.
    assert!(field.desk.count("ended a") >= 1);
}

pub(crate) fn r49_a_worker_that_comes_back_makes_its_resources_first<B: Bed>() {
    let field = field::<B>(1);
    let counter = field.cluster.per_worker(&GATED_COUNTER, field.at("counter")).unwrap();
    field.desk.open("counter");
    field.cluster.schedule(&COUNT, counter.clone()).unwrap().fetch().unwrap();
    field.desk.shut("counter");
    field.kill("worker-0");
    // This one does not need the resource, and still comes after it.
    let value = field.cluster.schedule(&LOG, field.at("ran")).unwrap();
    field.bed.add("worker-0");
    field.desk.await_lines("making counter", 2);
    assert_eq!(field.state("worker-0"), Some(WorkerState::Starting));
    field.desk.open("counter");
    value.fetch().unwrap();
    let lines = field.desk.lines();
    let made = lines.iter().rposition(|line| line == "made counter").unwrap();
    assert!(made < lines.iter().position(|line| line == "ran").unwrap(), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| *line == "made counter").count(), 2);
    assert_eq!(field.cluster.schedule(&COUNT, counter).unwrap().fetch().unwrap().2, 1, "it was made anew");
}

pub(crate) fn r50_a_resource_is_made_later_on_a_worker_that_is_down<B: Bed>() {
    let field = field::<B>(1);
    field.kill("worker-0");
    let counter = field.cluster.per_worker(&COUNTER, field.at("counter")).unwrap();
    let value = field.cluster.schedule(&COUNT, counter).unwrap();
    assert_eq!(field.desk.count("made counter"), 0);
    field.add("worker-0");
    assert_eq!(value.fetch().unwrap().2, 1);
}

pub(crate) fn r51_a_worker_that_dies_while_it_makes_a_resource_makes_all_anew<B: Bed>() {
    let field = field::<B>(1);
    let first = field.cluster.per_worker(&COUNTER, field.at("first")).unwrap();
    let second = field.cluster.per_worker(&GATED_COUNTER, field.at("second")).unwrap();
    field.desk.await_lines("making second", 1);
    field.desk.await_lines("made first", 1);
    field.kill("worker-0");
    field.desk.open("second");
    field.add("worker-0");
    for counter in [first, second] {
        assert_eq!(field.cluster.schedule(&COUNT, counter).unwrap().fetch().unwrap().2, 1);
    }
    assert_eq!(field.desk.count("made first"), 2);
}

pub(crate) fn r52_all_tasks_end_however_workers_die<B: Bed>() {
    let field = field::<B>(2);
    let counter = field.cluster.per_worker(&COUNTER, field.at("counter")).unwrap();
    for round in 0..3_u32 {
        // Between tasks.
        field.kill("worker-0");
        field.add("worker-0");
        // All at once, in the middle of tasks.
        let gate = format!("gate {round}");
        let gates = [(); 2].map(|()| field.cluster.schedule(&GATE, field.at(&gate)).unwrap());
        field.desk.await_lines(&format!("started {gate}"), 2);
        let sums: Vec<_> = (0..10).map(|n| field.cluster.schedule(&ADD, (n, round)).unwrap()).collect();
        let counts: Vec<_> =
            (0..10).map(|_| field.cluster.schedule(&COUNT, counter.clone()).unwrap()).collect();
        field.kill("worker-0");
        field.kill("worker-1");
        // One of them again, as soon as it is back.
        field.add("worker-0");
        field.kill("worker-0");
        field.desk.open(&gate);
        field.bed.add("worker-1");
        field.bed.add("worker-0");
        field.cluster.join().unwrap();
        field.cluster.fetch(gates).unwrap();
        field.cluster.fetch(counts).unwrap();
        assert_eq!(field.cluster.fetch(sums).unwrap(), (0..10).map(|n| n + round).collect::<Vec<_>>());
    }
}

pub(crate) fn r53_an_error_comes_out_while_a_worker_recovers<B: Bed>() {
    let field = field::<B>(2);
    let counter = field.cluster.per_worker(&GATED_COUNTER, field.at("counter")).unwrap();
    field.desk.open("counter");
    field.desk.await_lines("made counter", 2);
    field.desk.shut("counter");
    field.kill("worker-0");
    field.bed.add("worker-0");
    field.desk.await_lines("making counter", 3);
    field.cluster.schedule(&FAIL, "no".into()).unwrap();
    assert_eq!(text_of(&failure_of(field.cluster.join())), "no");
    assert_eq!(field.state("worker-0"), Some(WorkerState::Starting), "it still recovers");
    field.desk.open("counter");
    field.await_state("worker-0", WorkerState::Ready);
    field.cluster.schedule(&COUNT, counter).unwrap().fetch().unwrap();
}

/// The time of a task passes while it waits for a worker.
pub(crate) fn r54_a_task_waits_for_a_worker_as_long_as_it_has_time<B: Bed>() {
    /// Enough for a task that does nothing, if it were counted from when a worker takes it.
    const TIME: Duration = Duration::from_millis(500);
    let field = field::<B>(1);
    field.kill("worker-0");
    let waits = field.cluster.schedule(&ADD, (1, 2)).unwrap();
    let late = TaskOptions::new().timeout(TIME).raise(false);
    let late = field.cluster.schedule_with(&late, &LOG, field.at("late")).unwrap();
    // When this one has ended, the engine has taken those before it: their time runs.
    let last = field.cluster.schedule(&ADD, (3, 4)).unwrap();
    last.cancel();
    assert!(matches!(last.fetch(), Err(FetchError::Dropped)));
    let taken = Instant::now();
    until(|| taken.elapsed() > TIME);
    assert!(!field.cluster.done().unwrap());
    field.add("worker-0");
    assert_eq!(waits.fetch().unwrap(), 3);
    assert!(
        matches!(late.fetch(), Err(FetchError::Task(failure)) if *failure.kind() == FailureKind::TimedOut)
    );
    field.cluster.join().unwrap();
    assert_eq!(field.desk.count("late"), 0);
}

pub(crate) fn r55_a_worker_that_comes_back_is_another_incarnation<B: Bed>() {
    let field = field::<B>(1);
    let before = field.cluster.workers()[0].id.clone();
    let value = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    // It comes back, and nobody has seen that it was gone.
    field.bed.add("worker-0");
    field.desk.await_lines("started a", 2);
    field.desk.open("a");
    assert_eq!(value.fetch().unwrap(), ("worker-0".into(), 2));
    let after = field.cluster.workers()[0].id.clone();
    assert_eq!(before.name(), after.name());
    assert!(before.incarnation() < after.incarnation());
}

pub(crate) fn r56_the_death_of_a_worker_is_no_error_and_a_task_s_error_is_not_retried<B: Bed>() {
    let field = field::<B>(1);
    field.cluster.schedule(&GATE, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    field.kill("worker-0");
    assert!(!field.cluster.done().unwrap(), "a death is no error");
    field.desk.open("a");
    field.add("worker-0");
    field.cluster.join().unwrap();
    let bad = field.cluster.schedule(&FAIL, "no".into()).unwrap();
    let Err(FetchError::Task(failure)) = bad.fetch() else { panic!("it has failed") };
    assert_eq!(failure.attempt(), 1);
    failure_of(field.cluster.join());
    assert_eq!(field.cluster.metrics().returned, 1);
}

pub(crate) fn r63_the_state_of_each_worker_is_known<B: Bed>() {
    let field = field::<B>(2);
    let ready = |state| field.cluster.workers().iter().filter(|worker| worker.state == state).count();
    assert_eq!(ready(WorkerState::Ready), 2);
    field.kill("worker-1");
    assert_eq!((ready(WorkerState::Ready), ready(WorkerState::Gone)), (1, 1));
    field.add("worker-1");
    assert_eq!((ready(WorkerState::Ready), ready(WorkerState::Gone)), (2, 0));
    let value = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    assert_eq!(field.cluster.workers().iter().map(|worker| worker.running).sum::<usize>(), 1);
    field.desk.open("a");
    value.fetch().unwrap();
    assert!(field.cluster.workers().iter().all(|worker| worker.running == 0 && worker.slots == 1));
}

pub(crate) fn r64_workers_come_and_leave_at_any_time<B: Bed>() {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    field.add("second");
    assert_eq!(field.cluster.schedule(&ADD, (1, 2)).unwrap().fetch().unwrap(), 3);
    field.kill("second");
    field.add("the same under another name");
    assert_eq!(field.cluster.schedule(&ADD, (3, 4)).unwrap().fetch().unwrap(), 7);
    field.desk.open("a");
    value.fetch().unwrap();
    field.kill("worker-0");
    assert_eq!(field.cluster.schedule(&ADD, (5, 6)).unwrap().fetch().unwrap(), 11);
    field.cluster.join().unwrap();
}

pub(crate) fn r65_with_the_last_handle_everything_is_cancelled<B: Bed>() {
    let field = field::<B>(1);
    let running = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    let queued = field.cluster.schedule(&LOG, field.at("ran")).unwrap();
    field.desk.await_lines("started a", 1);
    let (desk, second) = (field.desk.clone(), field.cluster.clone());
    let _dir = field.close();
    assert!(matches!(running.state(), RemoteState::Running { .. }), "another handle keeps it");
    drop(second);
    desk.await_lines("cancelled a", 1);
    assert!(matches!(running.fetch(), Err(FetchError::Closed)));
    assert!(matches!(queued.fetch(), Err(FetchError::Closed)));
    assert_eq!(desk.count("ran"), 0);
}

pub(crate) fn r68_what_happened_is_counted<B: Bed>() {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    field.desk.await_lines("started a", 1);
    let queued = field.cluster.schedule(&ADD, (1, 2)).unwrap();
    let now = field.cluster.metrics();
    assert_eq!((now.scheduled, now.queued, now.running), (2, 1, 1));
    field.kill("worker-0");
    field.desk.open("a");
    field.add("worker-0");
    value.fetch().unwrap();
    queued.fetch().unwrap();
    field.cluster.schedule(&FAIL, "no".into()).unwrap();
    failure_of(field.cluster.join());
    let now = field.cluster.metrics();
    assert_eq!((now.scheduled, now.done, now.failed, now.returned), (3, 2, 1, 1));
    assert_eq!((now.queued, now.running, now.cancelled), (0, 0, 0));
    until(|| !field.cluster.metrics().ran.is_zero());
    assert_eq!(now.fetched, 2);
    assert!(!now.fetching.is_zero());
}
