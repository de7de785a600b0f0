//! Turns: threads that have lost for long get the lock handed over now and then; requests do not.

use super::*;

#[test]
fn a_thread_that_loses_has_a_turn_each_half_millisecond() {
    let lock = RawLock::default();
    let [first, second] = [0; 2].map(|_| Actor::new());
    assert!(lock.try_lock());
    let (mut one, mut two) = (first.wait_for(&lock), second.wait_for(&lock));
    let (ticket, behind) = (one.park(), two.park());
    TIME.set(TURN);
    barge(&lock);
    assert!(!one.has_it(ticket), "the first release of all starts the clock");
    let ticket = one.park_again();
    TIME.set(2 * TURN - Duration::from_nanos(1));
    barge(&lock);
    assert!(!two.has_it(behind), "not yet");
    let _behind = two.park_again();
    TIME.set(2 * TURN);
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(!lock.try_lock() && one.has_it(ticket), "it was handed over");
    // The other has its turn as long after that one.
    TIME.set(3 * TURN - Duration::from_nanos(1));
    // SAFETY: the first has it.
    unsafe { lock.unlock() };
    assert!(lock.try_lock(), "others may barge");
}

#[test]
fn a_request_that_waits_for_its_worker_has_no_turn() {
    let lock = RawLock::default();
    let actor = Actor::new();
    actor.context().place().set(7);
    assert!(lock.try_lock());
    let mut waiting = actor.wait_for(&lock);
    let mut ticket = waiting.park();
    for turn in 1..LOSSES {
        TIME.set(10 * turn * TURN);
        barge(&lock);
        assert!(!waiting.has_it(ticket));
        ticket = waiting.park_again();
    }
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(waiting.has_it(ticket));
    // SAFETY: that one has it.
    unsafe { lock.unlock() };
}
