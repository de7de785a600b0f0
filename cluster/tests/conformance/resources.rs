//! Rows 34 to 47: what each worker keeps for tasks.

use forebear_cluster::{FailureKind, FetchError};

use crate::bed::{Bed, failure_of, field};
use crate::desk::{
    BROKEN, COUNT, COUNT_GATED, COUNT_TWO, COUNTER, KNOWN_TOTAL, NOTHING, SHUFFLE, SHUFFLED, TABLE, TOTAL,
    bytes, sum_of,
};

pub(crate) fn r34_each_task_gets_the_part_of_its_worker<B: Bed>() {
    let field = field::<B>(2);
    let counter = field.cluster.per_worker(&COUNTER, field.at("counter")).unwrap();
    let values = ["a", "b"].map(|gate| {
        let args = (field.desk.clone(), gate.to_owned(), counter.clone());
        field.cluster.schedule(&COUNT_GATED, args).unwrap()
    });
    for gate in ["a", "b"] {
        field.desk.await_lines(&format!("started {gate}"), 1);
    }
    field.desk.open("a");
    field.desk.open("b");
    let mut parts = field.cluster.fetch(values).unwrap();
    parts.sort_unstable();
    assert_eq!(parts, [(0, 0, 1), (1, 1, 1)], "each has counted on its own worker's");
}

pub(crate) fn r35_two_resources_of_one_function_are_independent<B: Bed>() {
    let field = field::<B>(1);
    let counters = ["a", "b"].map(|label| field.cluster.per_worker(&COUNTER, field.at(label)).unwrap());
    for n in 1..3 {
        for counter in &counters {
            assert_eq!(field.cluster.schedule(&COUNT, counter.clone()).unwrap().fetch().unwrap().2, n);
        }
    }
}

pub(crate) fn r36_several_resources_in_one_call_keep_their_state<B: Bed>() {
    let field = field::<B>(1);
    let a = field.cluster.per_worker(&COUNTER, field.at("a")).unwrap();
    let b = field.cluster.per_worker(&COUNTER, field.at("b")).unwrap();
    field.cluster.schedule(&COUNT, b.clone()).unwrap().fetch().unwrap();
    for n in 1..4 {
        let value = field.cluster.schedule(&COUNT_TWO, (a.clone(), b.clone())).unwrap();
        assert_eq!(value.fetch().unwrap(), (n, n + 1));
    }
}

/// What is there already is an argument of the function that makes the resource: by itself, or by its token. It stays as long as the resource does, since a worker that comes later makes the resource
/// of it, too.
pub(crate) fn r38_a_resource_is_made_of_what_is_there_already<B: Bed>() {
    let field = field::<B>(1);
    let (table, large): (Vec<u8>, _) = ((0..100).collect(), bytes(1_000));
    let sum = sum_of(&table) + sum_of(&large);
    let stored = field.cluster.put(&large).unwrap();
    let made = field.cluster.per_worker(&TABLE, (table, stored)).unwrap();
    // A resource that is made of another one holds that.
    let total = field.cluster.per_worker(&TOTAL, made).unwrap();
    let check = || {
        let known = field.cluster.schedule(&KNOWN_TOTAL, total.clone()).unwrap().fetch().unwrap();
        assert_eq!(known, sum);
        field.cluster.join().unwrap();
    };
    check();
    check();
    field.kill("worker-0");
    field.add("worker-0");
    check();
}

/// However often each worker uses its part, it finds what it has made itself.
pub(crate) fn r39_what_a_resource_makes_is_its_workers_alone<B: Bed>() {
    let field = field::<B>(2);
    let counter = field.cluster.per_worker(&COUNTER, field.at("counter")).unwrap();
    for round in 1..4 {
        // Both at once, so that each worker has one.
        let gates = ["a", "b"].map(|gate| format!("{gate}{round}"));
        let values = gates.each_ref().map(|gate| {
            let args = (field.desk.clone(), gate.clone(), counter.clone());
            field.cluster.schedule(&COUNT_GATED, args).unwrap()
        });
        gates.iter().for_each(|gate| field.desk.await_lines(&format!("started {gate}"), 1));
        gates.iter().for_each(|gate| field.desk.open(gate));
        let counts = field.cluster.fetch(values).unwrap().map(|(_, _, count)| count);
        assert_eq!(counts, [round; 2]);
    }
}

/// What only another cluster has is not there for the function. The error comes out where the resource is used, and says so.
pub(crate) fn r40_a_resource_that_asks_for_what_its_worker_cannot_have_fails_at_join<B: Bed>() {
    let (mine, other) = (field::<B>(1), field::<B>(1));
    let stored = other.cluster.put(&bytes(1)).unwrap();
    let strange = other.cluster.per_worker(&TABLE, (Vec::new(), stored)).unwrap();
    let total = mine.cluster.per_worker(&TOTAL, strange).unwrap();
    let value = mine.cluster.schedule(&KNOWN_TOTAL, total).unwrap();
    let raised = failure_of(mine.cluster.join());
    let Err(FetchError::Task(fetched)) = value.fetch() else { panic!("it has failed") };
    for failure in [raised, fetched] {
        let FailureKind::Resource { resource, cause } = failure.kind() else { panic!("{failure}") };
        assert_eq!(resource, "total");
        assert!(cause.to_string().contains("another one made it"), "{cause}");
    }
}

/// The number of its worker is the seed. So a worker that comes back under its name has its order again.
pub(crate) fn r41_workers_shuffle_differently<B: Bed>() {
    const NUMBERS: u32 = 100;
    let field = field::<B>(2);
    let shuffled = field.cluster.per_worker(&SHUFFLED, NUMBERS).unwrap();
    let orders = |round: &str| {
        let gates = ["a", "b"].map(|gate| format!("{gate} {round}"));
        let values = gates.each_ref().map(|gate| {
            let args = (field.desk.clone(), gate.clone(), shuffled.clone());
            field.cluster.schedule(&SHUFFLE, args).unwrap()
        });
        gates.iter().for_each(|gate| field.desk.await_lines(&format!("started {gate}"), 1));
        gates.iter().for_each(|gate| field.desk.open(gate));
        let mut orders = field.cluster.fetch(values).unwrap();
        orders.sort_unstable();
        orders
    };
    let first = orders("first");
    let [(0, a), (1, b)] = &first else { panic!("each worker has one: {first:?}") };
    assert_ne!(a, b);
    for order in [a, b] {
        let mut numbers = order.clone();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..NUMBERS));
    }
    field.kill("worker-1");
    field.add("worker-1");
    assert_eq!(orders("second"), first);
}

pub(crate) fn r42_a_resource_is_made_once_on_each_worker<B: Bed>() {
    let field = field::<B>(2);
    let counter = field.cluster.per_worker(&COUNTER, field.at("counter")).unwrap();
    for _ in 0..20 {
        field.cluster.schedule(&COUNT, counter.clone()).unwrap();
    }
    field.cluster.join().unwrap();
    // A worker without a task may still be making it.
    field.desk.await_lines("made counter", 2);
    field.cluster.schedule(&COUNT, counter).unwrap().fetch().unwrap();
    assert_eq!(field.desk.count("made counter"), 2);
}

pub(crate) fn r43_a_resource_that_failed_fails_the_tasks_that_ask_for_it<B: Bed>() {
    let field = field::<B>(1);
    let broken = field.cluster.per_worker(&BROKEN, "no file".into()).unwrap();
    for _ in 0..2 {
        let value = field.cluster.schedule(&COUNT, broken.clone()).unwrap();
        let Err(FetchError::Task(fetched)) = value.fetch() else { panic!("it has failed") };
        let raised = failure_of(field.cluster.join());
        for failure in [fetched, raised] {
            let FailureKind::Resource { resource, cause } = failure.kind() else { panic!("{failure}") };
            assert_eq!(resource, "broken");
            assert!(matches!(&**cause, FailureKind::Error { message, .. } if message == "no file"));
        }
    }
}

pub(crate) fn r44_a_resource_that_failed_and_is_not_used_does_no_harm<B: Bed>() {
    let field = field::<B>(1);
    let _broken = field.cluster.per_worker(&BROKEN, "no file".into()).unwrap();
    field.cluster.schedule(&NOTHING, ()).unwrap().fetch().unwrap();
    field.cluster.join().unwrap();
    // Nor to a worker that comes.
    field.add("second");
    field.cluster.join().unwrap();
}

pub(crate) fn r45_a_resource_that_nobody_holds_is_dropped_on_all_workers<B: Bed>() {
    let field = field::<B>(2);
    let counter = field.cluster.per_worker(&COUNTER, field.at("counter")).unwrap();
    field.desk.await_lines("made counter", 2);
    let args = (field.desk.clone(), "a".to_owned(), counter.clone());
    let value = field.cluster.schedule(&COUNT_GATED, args).unwrap();
    field.desk.await_lines("started a", 1);
    drop(counter);
    // The task that has the token still finds it.
    field.desk.open("a");
    assert_eq!(value.fetch().unwrap().2, 1);
    field.desk.await_lines("dropped counter", 2);
    field.add("third");
    assert_eq!(field.desk.count("made counter"), 2, "a worker that comes does not make it");
}

pub(crate) fn r46_a_resource_knows_its_worker<B: Bed>() {
    let field = field::<B>(3);
    let counter = field.cluster.per_worker(&COUNTER, field.at("counter")).unwrap();
    for _ in 0..12 {
        let (worker, part, _) = field.cluster.schedule(&COUNT, counter.clone()).unwrap().fetch().unwrap();
        assert_eq!(worker, part);
        assert!(worker < 3);
    }
}

pub(crate) fn r47_increments_spread_over_workers_add_up<B: Bed>() {
    let field = field::<B>(3);
    let counter = field.cluster.per_worker(&COUNTER, field.at("counter")).unwrap();
    let values: Vec<_> = (0..10).map(|_| field.cluster.schedule(&COUNT, counter.clone()).unwrap()).collect();
    let counts = field.cluster.fetch(values).unwrap();
    let of = |worker| counts.iter().filter(|count| count.0 == worker).map(|count| count.2).max();
    assert_eq!((0..3).filter_map(of).sum::<u32>(), 10);
}
