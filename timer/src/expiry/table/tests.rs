//! The table against a plain list of timers, with its invariants.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// What happens to a table; times in seconds from its beginning.
#[derive(Clone, Debug)]
enum Step {
    Acquire(u8, u8, u64),
    Release(u8, u8),
    Clear(Vec<u8>),
    /// Time passes.
    Look(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (worker, scope) = (0..4_u8, 0..3_u8);
    let step = prop_oneof![
        4 => (worker.clone(), scope.clone(), 0..40_u64).prop_map(|(w, s, at)| Step::Acquire(w, s, at)),
        2 => (worker.clone(), scope).prop_map(|(w, s)| Step::Release(w, s)),
        1 => prop::collection::vec(worker, 0..3).prop_map(Step::Clear),
        2 => (0..4_u64).prop_map(Step::Look),
    ];
    prop::collection::vec(step, 0..200)
}

fn check(table: &mut TimerTable<u8>) {
    let mut keys = 0;
    for (worker, known) in &table.workers {
        assert!(!known.timers.is_empty(), "E3");
        let told = known.timers.values().any(|running| running.key.is_none());
        assert!(!told || known.listed, "E2");
        assert!(!known.listed || table.overdue.contains(worker), "E2");
        keys += known.timers.values().filter(|running| running.key.is_some()).count();
    }
    assert_eq!(table.wheel.len(), keys, "E1");
}

/// By worker, then by deadline and scope.
fn in_order(mut timers: TimersOf<u8>) -> TimersOf<u8> {
    timers.sort_by_key(|(worker, _)| *worker);
    timers
}

/// Those of a list for which `so`, as a table answers.
fn of(list: &[(u8, Timer)], so: impl Fn(&(u8, Timer)) -> bool) -> TimersOf<u8> {
    let timers = (0..4_u8).map(|worker| {
        let its = list.iter().filter(|entry| entry.0 == worker && so(entry));
        (worker, sorted(its.map(|(_, timer)| timer.clone())))
    });
    timers.filter(|(_, timers)| !timers.is_empty()).collect()
}

proptest! {
    #[test]
    fn a_table_answers_as_a_plain_list_would(steps in steps()) {
        let start = Instant::now();
        let (mut table, mut list, mut now) = (TimerTable::new(), Vec::<(u8, Timer)>::new(), start);
        for step in steps {
            match step {
                Step::Acquire(worker, scope, at) => {
                    let timer = Timer::new(format!("{scope}"), start + Duration::from_secs(at));
                    list.retain(|(of, other)| (*of, &other.scope) != (worker, &timer.scope));
                    list.push((worker, timer.clone()));
                    table.register(vec![TimerRequest::acquire(worker, timer)]).unwrap();
                }
                Step::Release(worker, scope) => {
                    let scope = Scope::named(format!("{scope}"));
                    list.retain(|(of, timer)| (*of, &timer.scope) != (worker, &scope));
                    table.register(vec![TimerRequest::release(worker, scope)]).unwrap();
                }
                Step::Clear(workers) => {
                    let cleared = of(&list, |(worker, _)| workers.contains(worker));
                    list.retain(|(worker, _)| !workers.contains(worker));
                    prop_assert_eq!(in_order(table.clear(&workers).unwrap()), cleared);
                }
                Step::Look(seconds) => {
                    now += Duration::from_secs(seconds);
                    let expired = of(&list, |(_, timer)| timer.deadline <= now);
                    prop_assert_eq!(in_order(table.expired(now).unwrap()), expired);
                    let next = list.iter().map(|(_, timer)| timer.deadline).filter(|at| *at > now).min();
                    prop_assert_eq!(table.next_deadline(now), next);
                }
            }
            check(&mut table);
            prop_assert_eq!((table.len(), table.is_empty()), (list.len(), list.is_empty()));
        }
    }
}

#[test]
fn those_that_expired_first_are_told_first() {
    let start = Instant::now();
    let mut table = TimerTable::new();
    for (worker, after) in [(1, 3), (2, 1), (3, 2)] {
        let timer = Timer::new("scope", start + Duration::from_secs(after));
        table.register(vec![TimerRequest::acquire(worker, timer)]).unwrap();
    }
    let told = table.expired(start + Duration::from_secs(5)).unwrap();
    assert_eq!(told.iter().map(|(worker, _)| *worker).collect::<Vec<_>>(), [2, 3, 1]);
}
