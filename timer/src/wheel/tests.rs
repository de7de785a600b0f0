//! The promises of the module head, one by one, and all together against a sorted list.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher};
use std::hint::black_box;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::*;

const NANO: Duration = Duration::from_nanos(1);

fn nanos(n: u64) -> Duration {
    Duration::from_nanos(n)
}

/// What is due at `now`, in order.
fn due<T>(wheel: &mut Wheel<T>, now: Instant) -> Vec<T> {
    iter::from_fn(|| wheel.pop_due(now)).collect()
}

/// The invariants that can be looked at.
fn check<T>(wheel: &Wheel<T>) {
    let (mut living, mut dead) = (0, 0);
    for (at, level) in wheel.levels.iter().enumerate() {
        let Some(level) = level else {
            assert_eq!(wheel.occupied & 1 << at, 0, "W3");
            continue;
        };
        assert_eq!(level.occupied != 0, wheel.occupied & 1 << at != 0, "W3");
        for (digit, slot) in level.slots.iter().enumerate() {
            assert_eq!(!slot.items.is_empty(), level.occupied & 1 << digit != 0, "W3");
            let items = &slot.items[slot.out as usize..];
            assert_eq!(items.is_empty(), slot.items.is_empty(), "W3");
            assert!(at == 0 || slot.out == 0);
            for item in items {
                assert_eq!(wheel.place(item.moment()), (at, digit), "W1");
                assert!(item.moment() >= wheel.cursor, "W2");
                assert!(at > 0 || item.moment() == items[0].moment(), "W4");
                if item.lives(&wheel.nodes) { living += 1 } else { dead += 1 }
            }
            if at > 0 && slot.earliest != NONE && !items.is_empty() {
                let least = items.iter().map(Item::moment).min().unwrap();
                let known = &items[slot.earliest as usize];
                assert!(known.moment() == least || !known.lives(&wheel.nodes), "W4");
                let later = &items[slot.earliest as usize..];
                assert!(later.iter().all(|item| item.moment() >= known.moment()), "W4");
                let before = &items[..slot.earliest as usize];
                assert!(
                    before.iter().all(|item| item.moment() > known.moment() || !item.lives(&wheel.nodes)),
                    "W4"
                );
            }
        }
    }
    assert_eq!((living, dead), (wheel.len, wheel.dead), "W5");
    assert!(dead <= living + SLACK, "W6");
}

#[test]
fn what_is_due_comes_out_at_its_instant_and_not_a_nanosecond_earlier() {
    let start = Instant::now();
    // Around every boundary of a level, as seen from the start of a second.
    let (mut wheel, mut after) = (Wheel::new(start), Vec::new());
    wheel.advance(start);
    for level in 0..LEVELS as u32 - 1 {
        let edge = match level * DIGIT {
            bits @ 0..30 => nanos(1 << bits),
            bits => Duration::from_secs(1 << (bits - 30).min(40)),
        };
        after.extend([edge.saturating_sub(NANO), edge, edge + NANO, edge * 63, edge * 64 - NANO, edge * 64]);
    }
    after.sort();
    after.dedup();
    for after in after.iter().rev() {
        wheel.insert(start + *after, *after);
    }
    check(&wheel);
    for after in after {
        assert_eq!(wheel.earliest(), Some(start + after));
        if !after.is_zero() {
            assert_eq!(wheel.pop_due(start + after - NANO), None);
            check(&wheel);
        }
        assert_eq!(wheel.earliest(), Some(start + after));
        assert_eq!(wheel.pop_due(start + after), Some(after));
    }
    assert!(wheel.is_empty());
}

#[test]
fn what_is_for_one_instant_comes_out_in_order_of_insertion_from_whatever_distance_it_was_put_in() {
    let start = Instant::now();
    let at = start + nanos(3 << 42) + nanos(12_345_678);
    let mut wheel = Wheel::new(start);
    for name in 0..40 {
        wheel.insert(at, name);
        wheel.insert(at, 100 + name);
        // Half of what is left: from level to level.
        let now = wheel.cursor.max(moment(start, start));
        let left = at - instant(start, now);
        assert_eq!(wheel.pop_due(instant(start, now) + left / 2), None);
        check(&wheel);
    }
    let expected: Vec<_> = (0..40).flat_map(|name| [name, 100 + name]).collect();
    assert_eq!(due(&mut wheel, at), expected);
}

#[test]
fn one_jump_brings_out_all_that_is_due_in_order_of_time() {
    let start = Instant::now();
    let mut wheel = Wheel::new(start);
    let after = [5, 70, 4096, 3, 1 << 40, 262_144, 70, 0, 1 << 33].map(nanos);
    for (name, after) in after.iter().enumerate() {
        wheel.insert(start + *after, name);
    }
    assert_eq!(due(&mut wheel, start + nanos(1 << 34)), [7, 3, 0, 1, 6, 2, 5, 8]);
    assert_eq!(wheel.earliest(), Some(start + nanos(1 << 40)));
}

#[test]
fn the_next_instant_is_exact_also_when_the_earliest_has_been_taken_back() {
    let start = Instant::now();
    let mut wheel = Wheel::new(start);
    wheel.advance(start);
    // All in one slot of a high level.
    let base = start + Duration::from_secs(3 << 20);
    let keys: Vec<_> = (0..100).map(|n| wheel.insert(base + nanos(n * 7 % 100), n * 7 % 100)).collect();
    let mut left: Vec<_> = (0..100).collect();
    for (key, n) in keys.iter().zip((0..100).map(|n| n * 7 % 100)) {
        assert_eq!(wheel.earliest(), Some(base + nanos(left[0])));
        assert_eq!(wheel.remove(*key), Some(n));
        left.retain(|other| *other != n);
        check(&wheel);
    }
    assert_eq!(wheel.earliest(), None);
}

#[test]
fn a_key_is_nobody_elses_when_its_entry_is_gone() {
    let start = Instant::now();
    let mut wheel = Wheel::new(start);
    let fired = wheel.insert(start, "fired");
    assert_eq!(wheel.pop_due(start), Some("fired"));
    let second = wheel.insert(start + NANO, "second");
    assert_eq!(second.index(), fired.index(), "in the same node");
    assert_eq!((wheel.remove(fired), wheel.len()), (None, 1));
    assert_eq!((wheel.remove(second), wheel.remove(second)), (Some("second"), None));
    assert_eq!(wheel.remove(Key::from_number(u64::MAX).unwrap()), None, "of no wheel at all");
    assert_eq!(Key::from_number(0), None);
    assert_eq!(Key::from_number(fired.number()), Some(fired));
}

#[test]
fn a_node_whose_generations_are_used_up_is_not_used_again() {
    let start = Instant::now();
    let mut wheel = Wheel::new(start);
    let first = wheel.insert(start, 1);
    assert_eq!(wheel.remove(first), Some(1));
    wheel.nodes[0].generation = u32::MAX;
    let last = wheel.insert(start, 2);
    assert_eq!((last.index(), wheel.remove(last)), (0, Some(2)));
    let next = wheel.insert(start, 3);
    assert_eq!(next.index(), 1);
    assert_eq!(wheel.remove(last), None);
    assert_eq!(wheel.remove(next), Some(3));
}

#[test]
fn what_is_late_comes_out_next_in_order_of_insertion() {
    let start = Instant::now();
    let mut wheel = Wheel::new(start);
    wheel.advance(start + nanos(1000));
    wheel.insert(start + nanos(1001), 1);
    wheel.insert(start + nanos(1000), 2);
    wheel.insert(start + nanos(900), 3);
    wheel.insert(start + nanos(100), 4);
    check(&wheel);
    assert_eq!(wheel.earliest(), Some(start + nanos(1000)));
    assert_eq!(due(&mut wheel, start + nanos(1001)), [2, 3, 4, 1]);
}

#[test]
fn it_never_advances_past_what_is_to_come_out() {
    let start = Instant::now();
    let mut wheel = Wheel::new(start);
    wheel.insert(start + nanos(100), 1);
    wheel.advance(start + Duration::from_secs(9));
    wheel.insert(start + nanos(200), 3);
    wheel.insert(start + nanos(150), 2);
    assert_eq!(due(&mut wheel, start + nanos(200)), [1, 2, 3]);
    // Nor back.
    wheel.advance(start);
    assert_eq!(wheel.cursor, moment(start, start + nanos(200)));
}

#[test]
fn instants_before_the_origin_and_a_thousand_years_off_are_as_any_other() {
    let now = Instant::now() + Duration::from_secs(1 << 20);
    let (origin, age) = (now + Duration::from_secs(1 << 21), Duration::from_secs(1 << 35));
    let mut wheel = Wheel::new(origin);
    wheel.advance(now);
    let instants =
        [now, now + NANO, origin - NANO, origin, origin + age, origin + age + NANO, now + age * 999];
    for at in instants.iter().rev() {
        wheel.insert(*at, *at);
    }
    check(&wheel);
    for at in instants {
        assert_eq!(wheel.earliest(), Some(at));
        assert_eq!((wheel.pop_due(at), wheel.pop_due(at)), (Some(at), None));
    }
}

#[test]
fn all_that_is_left_is_taken_out_in_order() {
    let start = Instant::now();
    let mut wheel = Wheel::new(start);
    wheel.advance(start);
    let after = [5, 1 << 40, 70, 4096, 3, (1 << 40) - 5, 262_144, 70].map(nanos);
    for (name, after) in after.iter().enumerate() {
        wheel.insert(start + *after, name);
    }
    assert_eq!(wheel.take_all(), [4, 0, 2, 7, 3, 6, 5, 1]);
    check(&wheel);
    assert_eq!((wheel.len(), wheel.earliest()), (0, None));
    // No time has passed by that.
    wheel.insert(start + nanos(1), 8);
    assert_eq!(wheel.earliest(), Some(start + nanos(1)));
}

#[test]
fn a_warm_wheel_takes_no_more_memory() {
    let start = Instant::now();
    let mut wheel = Wheel::new(start);
    for round in 0..100 {
        let keys: Vec<_> = (0..50).map(|n| wheel.insert(start + nanos(n << (round % 40)), n)).collect();
        assert!(keys.into_iter().all(|key| wheel.remove(key).is_some()));
        assert_eq!(wheel.nodes.len(), 50);
        check(&wheel);
    }
}

#[test]
fn what_was_taken_back_takes_no_room_for_long() {
    let start = Instant::now();
    let mut wheel = Wheel::new(start);
    let stays = wheel.insert(start + Duration::from_secs(60), 0);
    for n in 0..100_000 {
        let key = wheel.insert(start + nanos(n << 20), 1);
        assert_eq!(wheel.remove(key), Some(1));
    }
    check(&wheel);
    let room: usize =
        wheel.levels.iter().flatten().flat_map(|level| &level.slots).map(|slot| slot.items.capacity()).sum();
    assert!(room < 10_000, "room for {room} items");
    assert_eq!(wheel.remove(stays), Some(0));
    assert_eq!(wheel.earliest(), None);
    check(&wheel);
    assert_eq!(wheel.dead, 0, "who asks what is next drops the dead that stand before it");
}

/// The wheel's promises in their plainest form.
#[derive(Default)]
struct Model {
    sorted: BTreeSet<(Instant, u32)>,
    passed: Option<Instant>,
}

impl Model {
    fn pass(&mut self, to: Instant) {
        self.passed = self.passed.max(Some(to));
    }

    fn first(&self) -> Option<(Instant, u32)> {
        self.sorted.first().copied()
    }

    fn pop_due(&mut self, now: Instant) -> Option<u32> {
        match self.first().filter(|(at, _)| *at <= now) {
            Some((at, name)) => {
                self.sorted.remove(&(at, name));
                self.pass(at);
                Some(name)
            }
            None => {
                self.pass(now);
                None
            }
        }
    }
}

/// What an operation is made from: which, and what else it wants to know. Numbers, since trees of strategies take longer than the test.
type Drawn = (u8, u8, u64);

/// From nothing to a million years, at boundaries of levels and beside them.
fn distance((_, form, n): Drawn) -> Duration {
    match form % 8 {
        0 => Duration::ZERO,
        1 => nanos(n % 200),
        2 | 3 => nanos((1 << (n % 60)) - 1 + n / 64 % 3),
        4 => Duration::from_secs(1 << (n % 45)),
        _ => nanos(n >> (form / 4)),
    }
}

fn run(operations: Vec<Drawn>) {
    // In between, so that there are instants before the origin and after it.
    let mut now = Instant::now();
    let mut wheel = Wheel::new(now + Duration::from_secs(40));
    let mut model = Model::default();
    let mut all: Vec<(Instant, Key, (Instant, u32))> = Vec::new();
    for (step, drawn) in operations.into_iter().enumerate() {
        let earlier = (!all.is_empty()).then(|| all[drawn.2 as usize % all.len()]);
        match (drawn.0 % 19, earlier) {
            (kind @ 0..8, earlier) => {
                let at = match (kind, earlier) {
                    // Again for the same instant.
                    (0 | 1, Some((at, ..))) => at,
                    (2, _) if drawn.2 % 8 == 0 => now.checked_sub(distance(drawn)).unwrap_or(now),
                    _ => now.checked_add(distance(drawn)).unwrap_or(now),
                };
                let entry = (model.passed.map_or(at, |passed| at.max(passed)), all.len() as u32);
                model.sorted.insert(entry);
                all.push((at, wheel.insert(at, entry.1), entry));
            }
            (8..11, Some((_, key, entry))) => {
                assert_eq!(wheel.remove(key), model.sorted.remove(&entry).then_some(entry.1));
            }
            // The very one that is next.
            (11, _) => {
                if let Some(entry) = model.sorted.pop_first() {
                    assert_eq!(wheel.remove(all[entry.1 as usize].1), Some(entry.1));
                }
            }
            (12..15, _) => {
                for _ in 0..=drawn.1 % 4 {
                    assert_eq!(wheel.pop_due(now), model.pop_due(now));
                }
            }
            (15, _) => {
                now += nanos(drawn.2 >> (28 + drawn.1 % 36));
                while let Some(name) = model.pop_due(now) {
                    assert_eq!(wheel.pop_due(now), Some(name));
                }
                assert_eq!(wheel.pop_due(now), None);
            }
            (16, _) => now += nanos(drawn.2 >> (28 + drawn.1 % 36)),
            (17, _) => {
                wheel.advance(now);
                model.pass(model.first().map_or(now, |(at, _)| at.min(now)));
            }
            // To the very instant of the next, but not to the end of time.
            _ => {
                let soon = now + Duration::from_secs(1 << 30);
                now = model.first().map_or(now, |(at, _)| if at < soon { at.max(now) } else { now });
            }
        }
        if step % 7 == 0 {
            assert_eq!(wheel.earliest(), model.first().map(|(at, _)| at));
        }
        if step % 251 == 0 {
            check(&wheel);
        }
        assert_eq!(wheel.len(), model.sorted.len());
    }
    check(&wheel);
    assert!(wheel.take_all().into_iter().eq(model.sorted.into_iter().map(|(_, name)| name)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// A million operations and more over all cases.
    #[test]
    fn it_does_what_a_sorted_list_does(operations in prop::collection::vec(any::<Drawn>(), 1990..2050)) {
        run(operations);
    }

    /// Short ones, which are easier to read when they fail.
    #[test]
    fn it_does_what_a_sorted_list_does_in_few_steps(operations in prop::collection::vec(any::<Drawn>(), 0..40)) {
        run(operations);
    }
}

/// As many operations as fit into `FOREBEAR_FUZZ_SECONDS`, 2 if it is not set, from `FOREBEAR_FUZZ_SEED`, or another one each time. The seed
/// of each round is the one before it and one, so that a failure is had again at once by the seed that stands last; what failed is
/// made as short as can be.
#[test]
fn it_does_what_a_sorted_list_does_for_as_long_as_is_asked_for() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (start, seconds) = (Instant::now(), number("FOREBEAR_FUZZ_SECONDS").unwrap_or(2));
    let drawn = || RandomState::new().build_hasher().finish();
    let mut seed = number("FOREBEAR_FUZZ_SEED").unwrap_or_else(drawn);
    println!("from seed {seed}, for {seconds} s");
    let steps = Cell::new(0);
    let rounds = iter::repeat_with(|| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
        let operations = prop::collection::vec(any::<Drawn>(), 0..4000);
        let done = TestRunner::new_with_rng(config, rng).run(&operations, |operations| {
            steps.set(steps.get() + operations.len());
            run(operations);
            Ok(())
        });
        if let Err(failure) = done {
            panic!("FOREBEAR_FUZZ_SEED={seed}: {failure}");
        }
        seed = seed.wrapping_add(1);
    });
    let rounds = rounds.take_while(|()| start.elapsed() < Duration::from_secs(seconds)).count();
    println!("{rounds} rounds, {} operations, the next seed is {seed}", steps.get());
}

/// Removals make the wheel drop the dead items of all slots. A slot that is being popped must go on where it was.
#[test]
fn a_slot_that_is_half_popped_loses_nothing_when_dead_items_are_dropped() {
    let start = Instant::now();
    let mut wheel = Wheel::new(start);
    let due = start + nanos(5);
    for n in 0..10 {
        wheel.insert(due, n);
    }
    let mut popped: Vec<_> = (0..3).map(|_| wheel.pop_due(due).unwrap()).collect();
    for _ in 0..20_000 {
        let key = wheel.insert(start + nanos(9_000_000_000), -1);
        wheel.remove(key);
    }
    popped.extend(std::iter::from_fn(|| wheel.pop_due(due)));
    assert_eq!(popped, (0..10).collect::<Vec<_>>());
}

/// How long a million take, beside a sorted map; for `--nocapture`. Nothing is asserted of the time.
#[test]
fn a_million_are_put_in_and_taken_back() {
    const MANY: u64 = 1_000_000;
    let start = Instant::now();
    // Time-outs from ten milliseconds to a minute, in no order.
    let instants: Vec<_> = (1..=MANY)
        .map(|n| start + nanos(10_000_000 + n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 60_000_000_000))
        .collect();
    let tell = |what: &str, since: Instant| {
        println!("{what}: {:.1} ns each", since.elapsed().as_nanos() as f64 / MANY as f64);
    };

    let mut wheel = Wheel::new(start);
    wheel.advance(start);
    for round in ["cold", "warm"] {
        let since = Instant::now();
        let keys: Vec<_> = instants.iter().map(|at| wheel.insert(*at, [0_u64; 3])).collect();
        assert_eq!(wheel.earliest(), instants.iter().min().copied());
        assert!(keys.into_iter().all(|key| wheel.remove(key).is_some()));
        tell(&format!("wheel, {round}: insert all, remove all"), since);
    }
    let since = Instant::now();
    for at in &instants {
        let key = black_box(wheel.insert(*at, [0_u64; 3]));
        wheel.remove(key);
    }
    tell("wheel: insert and remove at once", since);
    for at in &instants {
        wheel.insert(*at, [0; 3]);
    }
    let since = Instant::now();
    let mut out = 0;
    while let Some(at) = wheel.earliest() {
        wheel.pop_due(at);
        out += 1;
    }
    tell("wheel: take all out as they come due", since);
    assert_eq!((out, wheel.len()), (MANY, 0));

    let mut map = BTreeMap::new();
    let since = Instant::now();
    for (n, at) in instants.iter().enumerate() {
        map.insert((*at, n), [0_u64; 3]);
    }
    assert!(instants.iter().enumerate().all(|(n, at)| map.remove(&(*at, n)).is_some()));
    tell("sorted map: insert all, remove all", since);
    let since = Instant::now();
    for (n, at) in instants.iter().enumerate() {
        map.insert((*at, n), [0; 3]);
        black_box(map.remove(&(*at, n)));
    }
    tell("sorted map: insert and remove at once", since);
    map.extend(instants.iter().enumerate().map(|(n, at)| ((*at, n), [0; 3])));
    let since = Instant::now();
    while map.pop_first().is_some() {}
    tell("sorted map: take all out in order", since);
}
