//! No waiter is passed over without end: reservations, the number of losses, and the order of the queue.

use super::*;

#[test]
fn a_waiter_that_loses_for_half_a_millisecond_reserves_the_lock() {
    let lock = Rc::new(RawLock::default());
    let actor = Actor::new();
    let mut waiting = actor.wait_for(&lock);
    assert!(lock.try_lock());
    let mut ticket = waiting.park();
    for step in [0, 200, 299] {
        // Too early: others may go on barging.
        actor.time.set(actor.time.get() + Duration::from_micros(step));
        barge(&lock);
        assert!(!waiting.has_it(ticket));
        ticket = waiting.park_again();
    }
    actor.time.set(PATIENCE);
    barge(&lock);
    assert!(!waiting.has_it(ticket));
    // It reads the clock when it has lost; then it has reserved the lock, and looks for it.
    let seen = Rc::new(Cell::new(false));
    let (saw, held) = (seen.clone(), lock.clone());
    let holder = &*actor;
    actor.at_look.replace(Some(Box::new({
        let looks: *const Actor = holder;
        move || {
            let release = Box::new(move || {
                // SAFETY: the test has it.
                unsafe { held.unlock() };
                assert!(!held.is_locked() && !held.try_lock(), "it is kept for the waiter");
                saw.set(true);
            });
            // SAFETY: the actor lives through the test; its cell is not borrowed during a call.
            unsafe { &*looks }.at_look.replace(Some(release));
        }
    })));
    assert!(matches!(waiting.prepare_again(), LockStep::Taken));
    assert!(seen.get() && lock.is_locked());
    // SAFETY: the waiter has it.
    unsafe { lock.unlock() };
    assert!(lock.try_lock());
}

#[test]
fn a_reservation_is_over_after_fifty_microseconds() {
    let lock = RawLock::default();
    let actor = Actor::new();
    let mut waiting = actor.wait_for(&lock);
    assert!(lock.try_lock());
    let ticket = waiting.park();
    barge(&lock);
    assert!(!waiting.has_it(ticket));
    let ticket = waiting.park_again();
    actor.time.set(PATIENCE);
    barge(&lock);
    assert!(!waiting.has_it(ticket));
    // Nobody lets go meanwhile: it waits again. The next release that chooses it hands the lock over.
    let ticket = waiting.park_again();
    assert!(lock.is_locked() && !waiting.has_been_told());
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(!lock.try_lock(), "it was handed over");
    assert!(waiting.has_it(ticket));
}

#[test]
fn a_waiter_loses_four_times_at_most_however_fast_others_barge() {
    let lock = RawLock::default();
    let (holder, actor, far) = (Actor::new(), Actor::new(), Actor::new());
    holder.context().place().set(7);
    actor.context().place().set(7);
    far.context().place().set(8);
    // SAFETY: taken back below.
    unsafe { forebear_context::context::set_current(Some(NonNull::from(holder.context()))) };
    assert!(lock.try_lock());
    // Another of a far worker waits too, so that this is not a hand-over within one worker.
    let (mut waiting, mut other) = (actor.wait_for(&lock), far.wait_for(&lock));
    let (mut ticket, mut elsewhere) = (waiting.park(), other.park());
    // The clock stands still. The holder shares the waiter's worker, so the waiter cannot reserve the lock.
    for loss in 1..=LOSSES {
        barge(&lock);
        assert!(!waiting.has_it(ticket), "it loses for the {loss}. time");
        ticket = waiting.park_again();
        if loss < LOSSES {
            barge(&lock);
            assert!(!other.has_it(elsewhere));
            elsewhere = other.park_again();
        }
    }
    assert_eq!(LOSSES, 4);
    // SAFETY: the test has it. The far one is woken, and has not come.
    unsafe { lock.unlock() };
    assert!(lock.try_lock());
    assert!(!other.has_it(elsewhere));
    let _elsewhere = other.park_again();
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(!lock.try_lock(), "it was handed over");
    assert!(waiting.has_it(ticket));
    // SAFETY: no context is always valid.
    unsafe { forebear_context::context::set_current(None) };
}

#[test]
fn one_that_lost_stands_behind_those_that_have_not_been_woken() {
    let lock = RawLock::default();
    let (eager, patient) = (Actor::new(), Actor::new());
    assert!(lock.try_lock());
    let (mut first, mut second) = (eager.wait_for(&lock), patient.wait_for(&lock));
    let (one, two) = (first.park(), second.park());
    barge(&lock);
    assert!(!first.has_it(one), "the older was woken, and lost");
    let one = first.park_again();
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(second.has_it(two), "now it is the other's turn");
    assert!(first.context.is_waiting());
    // SAFETY: the second has it.
    unsafe { lock.unlock() };
    assert!(first.has_it(one));
    // SAFETY: the first has it.
    unsafe { lock.unlock() };
}

#[test]
fn newcomers_do_not_pass_those_that_have_lost() {
    let lock = RawLock::default();
    let [loser, third, fourth] = [0; 3].map(|_| Actor::new());
    assert!(lock.try_lock());
    let (mut first, mut other) = (loser.wait_for(&lock), third.wait_for(&lock));
    let (one, two) = (first.park(), other.park());
    barge(&lock);
    assert!(!first.has_it(one), "the older was woken, and lost");
    let one = first.park_again();
    // It comes while one stands there still that has not been woken, and would be popped before the loser.
    let mut newcomer = fourth.wait_for(&lock);
    let three = newcomer.park();
    barge(&lock);
    assert!(!other.has_it(two));
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(first.has_it(one), "each has been woken once that came before it");
    assert!(newcomer.context.is_waiting());
    // SAFETY: the first has it.
    unsafe { lock.unlock() };
    assert!(newcomer.has_it(three));
    // SAFETY: the newcomer has it.
    unsafe { lock.unlock() };
}
