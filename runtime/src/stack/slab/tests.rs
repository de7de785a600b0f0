//! Slots are handed out, counted, given back and trimmed.

use super::warm::TRIM_ABOVE;
use super::*;
use crate::stack::class_for;

#[test]
fn slots_are_writable_from_limit_to_top_and_found_again() {
    let slab = Slab::new(100, 0);
    let slot = slab.take(0).unwrap();
    for at in [slot.limit(), slot.top() - 8] {
        // SAFETY: S2.
        unsafe { (at as *mut u64).write(7) };
    }
    let limit = slot.limit();
    slab.give_back([slot]);
    assert_eq!(slab.live(), 0);
    assert_eq!(slab.take(0).unwrap().limit(), limit);
}

#[test]
fn what_was_trimmed_is_empty_and_guarded_and_can_be_used_again() {
    let slab = Slab::new(1000, 0);
    let slots: Vec<_> = (0..TRIM_ABOVE).map(|_| slab.take(0).unwrap()).collect();
    for slot in &slots {
        // SAFETY: S2.
        unsafe { ((slot.top() - 8) as *mut u64).write(7) };
    }
    slab.give_back(slots);
    while slab.is_to_be_trimmed() {
        assert!(slab.trim_some(usize::MAX));
    }
    for _ in 0..TRIM_ABOVE {
        let slot = slab.take(0).unwrap();
        // SAFETY: S2.
        assert_eq!(unsafe { ((slot.top() - 8) as *const u64).read() }, 0);
    }
    assert_eq!(slab.live(), TRIM_ABOVE);
}

#[test]
fn many_stacks_are_trimmed_piece_by_piece_and_the_last_used_is_handed_out_first() {
    const MANY: usize = 3 * PIECE + TRIM_ABOVE / 2;
    let slab = Slab::new(2 * MANY, 0);
    let slots: Vec<_> = (0..MANY).map(|_| slab.take(0).unwrap()).collect();
    let write = |slot: &StackSlot| {
        // SAFETY: S2.
        unsafe { ((slot.top() - 8) as *mut u64).write(7) };
    };
    // SAFETY: S2.
    let read = |slot: &StackSlot| unsafe { ((slot.top() - 8) as *const u64).read() };
    slots.iter().for_each(write);
    slab.give_back(slots);
    for _ in 0..3 {
        assert!(slab.is_to_be_trimmed(), "it does not take all at once");
        assert!(slab.trim_some(usize::MAX));
    }
    assert!(!slab.is_to_be_trimmed(), "too few are left to be worth it");
    let again: Vec<_> = (0..MANY).map(|_| slab.take(0).unwrap()).collect();
    let (used, empty) = again.split_at(TRIM_ABOVE / 2);
    assert!(used.iter().all(|slot| read(slot) == 7));
    assert!(empty.iter().all(|slot| read(slot) == 0));
    again.iter().for_each(write);
    slab.give_back(again);
    slab.trim_all();
    assert!((0..MANY).all(|_| read(&slab.take(0).unwrap()) == 0));
}

#[test]
fn a_piece_ends_after_so_many_calls_and_what_is_left_is_warm() {
    let slab = Slab::new(1000, 0);
    let slots: Vec<_> = (0..2 * TRIM_ABOVE).map(|_| slab.take(0).unwrap()).collect();
    for slot in &slots {
        // SAFETY: S2.
        unsafe { ((slot.top() - 8) as *mut u64).write(7) };
    }
    // None has a neighbour.
    let (even, odd): (Vec<_>, Vec<_>) =
        slots.into_iter().partition(|slot| (slot.low() / SLOTS[0]).is_multiple_of(2));
    slab.give_back(even);
    assert!(slab.is_to_be_trimmed());
    assert!(slab.trim_some(10));
    assert!(!slab.is_to_be_trimmed(), "ten are bare");
    let again: Vec<_> = (0..TRIM_ABOVE).map(|_| slab.take(0).unwrap()).collect();
    // SAFETY: S2.
    let warm = |slot: &&StackSlot| unsafe { ((slot.top() - 8) as *const u64).read() } == 7;
    assert_eq!(again.iter().filter(warm).count(), TRIM_ABOVE - 10);
    assert!(again[..TRIM_ABOVE - 10].iter().all(|slot| warm(&slot)), "they are handed out first");
    slab.give_back(again.into_iter().chain(odd));
    slab.trim_all();
    assert!(!slab.trim_some(1), "all are bare, and none is trimmed twice");
    assert_eq!(slab.live(), 0);
    assert!(slab.take(0).is_ok());
}

#[test]
fn a_few_stay_warm_unless_nobody_has_wanted_them_for_long() {
    const FEW: usize = TRIM_ABOVE / 2;
    let slab = Slab::new(1000, 0);
    let take = || (0..FEW).map(|_| slab.take(0).unwrap()).collect::<Vec<_>>();
    slab.give_back(take());
    assert!(!slab.is_to_be_trimmed());
    slab.let_none_stay_warm();
    let mut calls = 0;
    while slab.is_to_be_trimmed() {
        assert!(slab.trim_some(1));
        calls += 1;
    }
    assert!(calls > 0 && !slab.trim_some(1), "one call is enough for neighbours, and none stays: {calls}");
    slab.give_back(take());
    assert!(!slab.is_to_be_trimmed(), "that was for once");
}

/// Each worker looks at its own stacks, and trims what all have given back.
#[test]
fn none_stays_warm_that_nobody_has_wanted_whoever_else_trims() {
    const ROUNDS: usize = 2_000;
    let slab = Slab::new(1000, 0);
    let turn = std::sync::Barrier::new(2);
    std::thread::scope(|threads| {
        for each in [3, 40] {
            let (slab, turn) = (&slab, &turn);
            threads.spawn(move || {
                for _ in 0..ROUNDS {
                    let slots: Vec<_> = (0..each).map(|_| slab.take(0).unwrap()).collect();
                    slab.give_back(slots);
                    slab.let_none_stay_warm();
                    while slab.is_to_be_trimmed() {
                        slab.trim_some(1);
                    }
                    turn.wait();
                    assert_eq!((slab.warm(), slab.live()), (0, 0));
                    turn.wait();
                }
            });
        }
    });
}

#[test]
fn tops_of_neighbours_differ_in_colour() {
    let slab = Slab::new(100, 0);
    let tops: std::collections::BTreeSet<_> =
        (0..crate::stack::COLOURS).map(|_| slab.take(1).unwrap().top() % (4 << 10)).collect();
    assert_eq!(tops.len(), crate::stack::COLOURS);
}

#[test]
fn the_limit_is_a_typed_error_that_names_the_remedy() {
    let slab = Slab::new(2, 0);
    let _held = (slab.take(0).unwrap(), slab.take(0).unwrap());
    let error = slab.take(0).unwrap_err();
    assert!(matches!(error, StackError::Exhausted { live: 2, limit: 2, .. }), "{error:?}");
    assert!(error.to_string().contains("max_stacks"), "{error}");
    assert_eq!(slab.live(), 2);
}

/// One slot of two changes hands, and as many threads ask for it at the same time: a thread that gives one back may take one again at once, and no answer
/// counts more slots than there may be.
#[test]
fn who_is_refused_takes_the_place_of_nobody() {
    const ROUNDS: usize = 20_000;
    let slab = Slab::new(2, 0);
    let held = slab.take(0).unwrap();
    let full = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                for _ in 0..ROUNDS {
                    match slab.take(0) {
                        // There is room for one beside `held`: it was had.
                        Ok(slot) => {
                            assert_eq!(full.fetch_add(1, Relaxed), 0);
                            assert!(slab.live() <= 2);
                            full.fetch_sub(1, Relaxed);
                            slab.give_back([slot]);
                        }
                        Err(error) => {
                            assert!(matches!(error, StackError::Exhausted { live: 2, .. }), "{error:?}");
                        }
                    }
                    assert!(slab.live() <= 2);
                }
            });
        }
    });
    slab.give_back([held]);
    assert_eq!(slab.live(), 0);
}

#[test]
fn a_class_guarantees_what_was_asked() {
    assert_eq!(class_for(1), Some(0));
    assert_eq!(class_for(48 << 10), Some(0));
    assert_eq!(class_for((48 << 10) + 1), Some(1));
    assert_eq!(class_for(64 << 10), Some(1));
    assert_eq!(class_for(crate::stack::MAX + 1), None);
}
