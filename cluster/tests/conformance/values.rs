//! Rows 25 to 33: the values.

use forebear::spawn;
use forebear_cluster::{ClusterError, FailureKind, FetchError, Plain, RemoteState, Stored};

use crate::bed::{Bed, failure_of, field};
use crate::desk::{ADD, BYTES, FAIL, GATE, LOG, Logged, NOTHING, NUMBER, SHAPE, SUM, bytes};

pub(crate) fn r25_a_fetch_waits_and_keeps_the_shape<B: Bed>() {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    let shape = field.cluster.schedule(&SHAPE, 7).unwrap();
    let fetch = spawn(move || value.fetch().unwrap());
    field.desk.open("a");
    assert_eq!(fetch.take().unwrap().1, 1);
    assert_eq!(shape.fetch().unwrap(), (vec![Some(7), None], "7".into(), (1, true)));
}

pub(crate) fn r26_a_fetch_answers_the_error_of_the_task_each_time<B: Bed>() {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&FAIL, "no".into()).unwrap();
    for _ in 0..3 {
        let Err(FetchError::Task(failure)) = value.fetch() else { panic!("it has failed") };
        assert_eq!(failure.task(), "fail");
        assert_eq!(failure.worker().unwrap().name(), "worker-0");
        assert!(matches!(failure.kind(), FailureKind::Error { message, .. } if message == "no"));
    }
    failure_of(field.cluster.join());
    assert!(matches!(value.fetch(), Err(FetchError::Task(_))), "also when it was raised");
}

pub(crate) fn r27_what_was_cancelled_says_so_and_can_be_scheduled_again<B: Bed>() {
    let field = field::<B>(1);
    let gate = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    field.cluster.schedule(&FAIL, "no".into()).unwrap();
    let value = field.cluster.schedule(&GATE, field.at("b")).unwrap();
    field.desk.open("a");
    gate.fetch().unwrap();
    failure_of(field.cluster.join());
    assert!(matches!(value.fetch(), Err(FetchError::Dropped)));
    assert!(value.fetch().unwrap_err().to_string().contains("schedule it again"));
    field.desk.open("b");
    field.cluster.schedule(&GATE, field.at("b")).unwrap().fetch().unwrap();
}

pub(crate) fn r28_a_value_says_how_far_it_is<B: Bed>() {
    let field = field::<B>(1);
    let first = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    let second = field.cluster.schedule(&NOTHING, ()).unwrap();
    field.desk.await_lines("started a", 1);
    let RemoteState::Running { worker, attempt: 1, .. } = first.state() else { panic!("{first:?}") };
    assert_eq!(worker.name(), "worker-0");
    assert!(matches!(second.state(), RemoteState::Queued));
    field.kill("worker-0");
    assert!(matches!(first.state(), RemoteState::Queued));
    field.desk.open("a");
    field.add("worker-0");
    field.cluster.join().unwrap();
    assert!(matches!((first.state(), second.state()), (RemoteState::Done(_), RemoteState::Done(_))));
    let bad = field.cluster.schedule(&FAIL, "no".into()).unwrap();
    failure_of(field.cluster.join());
    assert!(matches!(bad.state(), RemoteState::Failed(_)));
}

pub(crate) fn r29_a_result_survives_its_worker<B: Bed>() {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&ADD, (1, 2)).unwrap();
    field.cluster.join().unwrap();
    field.kill("worker-0");
    assert_eq!(value.fetch().unwrap(), 3, "the first fetch comes after the death");
}

pub(crate) fn r30_a_task_whose_value_is_dropped_still_runs<B: Bed>() {
    let field = field::<B>(1);
    let first = field.cluster.schedule(&GATE, field.at("a")).unwrap();
    drop(field.cluster.schedule(&LOG, field.at("ran")).unwrap());
    field.desk.open("a");
    first.fetch().unwrap();
    field.cluster.join().unwrap();
    assert_eq!(field.desk.count("ran"), 1);
}

pub(crate) fn r31_structures_of_values_are_fetched_as_a_whole<B: Bed>() {
    let field = field::<B>(2);
    let values: Vec<_> = (0..5).map(|n| field.cluster.schedule(&ADD, (n, 1)).unwrap()).collect();
    assert_eq!(field.cluster.fetch(&values[..]).unwrap(), [1, 2, 3, 4, 5]);
    let (first, last) = (&values[0], values[4].clone());
    let fetched =
        field.cluster.fetch((first, Plain("text"), [Some(last), None], ((first, Plain(1)),))).unwrap();
    assert_eq!(fetched, (1, "text", [Some(5), None], ((1, 1),)));
    let bad = field.cluster.schedule(&FAIL, "no".into()).unwrap();
    assert!(matches!(field.cluster.fetch((&values[1], &bad)), Err(FetchError::Task(_))));
}

pub(crate) fn r33_a_task_without_a_result_is_fetched_as_nothing<B: Bed>() {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&NOTHING, ()).unwrap();
    let nothing: () = value.fetch().unwrap();
    assert_eq!(field.cluster.fetch((&value, Plain(1))).unwrap(), (nothing, 1));
}

/// The sum, on the worker that takes the task.
fn sum<B: Bed>(
    field: &crate::bed::Field<B>,
    gate: &str,
    stored: &Stored<Vec<u8>>,
) -> forebear_cluster::RemoteValue<(String, u64)> {
    let args = (field.desk.clone(), gate.to_owned(), stored.clone());
    field.cluster.schedule(&SUM, args).unwrap()
}

fn sum_of(n: u32) -> u64 {
    bytes(n).iter().map(|byte| u64::from(*byte)).sum()
}

pub(crate) fn r61_the_store_can_be_read_while_all_workers_are_down<B: Bed>() {
    let field = field::<B>(1);
    let put = field.cluster.put(&bytes(1)).unwrap();
    let value = field.cluster.schedule(&BYTES, 600).unwrap();
    field.cluster.join().unwrap();
    field.kill("worker-0");
    assert_eq!(value.fetch().unwrap(), bytes(600), "it survives its worker");
    assert_eq!(field.cluster.fetch((&put, &value.stored().unwrap())).unwrap(), (bytes(1), bytes(600)));
    let other = field.cluster.put(&bytes(2)).unwrap();
    assert_eq!(field.cluster.fetch(&other).unwrap(), bytes(2));
    field.desk.open("a");
    let later = sum(&field, "a", &value.stored().unwrap());
    field.add("worker-0");
    assert_eq!(later.fetch().unwrap().1, sum_of(600));
}

pub(crate) fn a_large_result_passes_from_worker_to_worker_and_not_through_the_coordinator<B: Bed>() {
    let field = field::<B>(2);
    let value = field.cluster.schedule(&BYTES, 600).unwrap();
    let stored = value.stored().unwrap();
    assert!(stored.size() >= 600_000);
    assert!(matches!(value.state(), RemoteState::Stored { bytes, .. } if bytes == stored.size()));
    // The handle of the task is not needed any more.
    drop(value);
    let sums = ["a", "b"].map(|gate| sum(&field, gate, &stored));
    field.desk.await_lines("started a", 1);
    field.desk.await_lines("started b", 1);
    // Nor the token, now that the tasks are scheduled.
    drop(stored);
    field.desk.open("a");
    field.desk.open("b");
    let mut sums = field.cluster.fetch(sums).unwrap();
    sums.sort();
    assert_eq!(sums, [("worker-0".into(), sum_of(600)), ("worker-1".into(), sum_of(600))]);
    assert_eq!(field.cluster.metrics().read, 0);
}

pub(crate) fn a_small_result_is_put_into_the_store_when_that_is_asked_for<B: Bed>() {
    let field = field::<B>(1);
    let value = field.cluster.schedule(&BYTES, 1).unwrap();
    let (first, second) = (value.stored().unwrap(), value.stored().unwrap());
    assert!(matches!(value.state(), RemoteState::Done(_)));
    field.desk.open("a");
    for stored in [&first, &second] {
        assert_eq!(sum(&field, "a", stored).fetch().unwrap().1, sum_of(1));
    }
    assert_eq!(value.fetch().unwrap(), bytes(1));
    let failed = field.cluster.schedule(&FAIL, "no".into()).unwrap();
    assert!(matches!(failed.stored(), Err(FetchError::Task(_))));
    failure_of(field.cluster.join());
}

pub(crate) fn a_worker_reads_a_stored_value_once<B: Bed>() {
    let field = field::<B>(1);
    let stored = field.cluster.put(&Logged(field.desk.clone(), 7)).unwrap();
    for _ in 0..10 {
        assert_eq!(field.cluster.schedule(&NUMBER, stored.clone()).unwrap().fetch().unwrap(), 7);
    }
    assert_eq!(field.desk.count("decoded"), 1);
    // A worker that comes back has nothing of what it had.
    field.kill("worker-0");
    field.add("worker-0");
    assert_eq!(field.cluster.schedule(&NUMBER, stored).unwrap().fetch().unwrap(), 7);
    assert_eq!(field.desk.count("decoded"), 2);
}

pub(crate) fn a_stored_value_of_another_cluster_is_refused<B: Bed>() {
    let (mine, other) = (field::<B>(1), field::<B>(1));
    let _mine = mine.cluster.put(&bytes(1)).unwrap();
    let strange = other.cluster.put(&bytes(1)).unwrap();
    mine.desk.open("a");
    let value = sum(&mine, "a", &strange);
    let failure = failure_of(mine.cluster.join());
    assert!(matches!(failure.kind(), FailureKind::Store { .. }), "{failure}");
    assert!(value.fetch().is_err());
    other.cluster.shutdown().unwrap();
    assert!(matches!(other.cluster.put(&1), Err(ClusterError::Closed)));
    assert!(matches!(other.cluster.fetch(&strange), Err(FetchError::Closed)));
}
