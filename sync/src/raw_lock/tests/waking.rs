//! Which releases wake a waiter, and what a woken waiter does: it takes the lock, looks for a held lock, gives way, or waits again.

use super::*;

#[test]
fn while_one_is_on_its_way_32_releases_wake_nobody_else() {
    let lock = RawLock::default();
    let [older, younger] = [0; 2].map(|_| Actor::new());
    assert!(lock.try_lock());
    let (mut first, mut second) = (older.wait_for(&lock), younger.wait_for(&lock));
    let (one, two) = (first.park(), second.park());
    barge(&lock);
    assert!(!first.context.is_waiting(), "it is on its way");
    assert_eq!(PASSES, 32);
    pass(&lock);
    assert!(second.context.is_waiting());
    barge(&lock);
    assert!(!second.context.is_waiting(), "the first may be pinned behind a busy worker");
    assert!(!first.has_it(one));
    // Another is on its way, and has been waited for by nobody yet; but one has come.
    let one = first.park_again();
    barge(&lock);
    assert!(!first.has_it(one) && !second.has_it(two));
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
}

#[test]
fn one_that_was_woken_and_is_alone_looks_for_a_held_lock_and_others_stay_asleep_meanwhile() {
    let lock = Rc::new(RawLock::default());
    let [older, younger] = [0; 2].map(|_| Actor::new());
    assert!(lock.try_lock());
    let (mut first, mut second) = (older.wait_for(&lock), younger.wait_for(&lock));
    let (one, two) = (first.park(), second.park());
    barge(&lock);
    older.alone.set(true);
    older.asked.set(0);
    let held = lock.clone();
    let behind = ptr::from_ref(younger.context());
    *older.at_question.borrow_mut() = Some(Box::new(move || {
        // The holder goes on for a while, and then lets go.
        pass(&held);
        // SAFETY: the actor lives through the test.
        assert!(unsafe { &*behind }.is_waiting(), "one is on its way, and looks");
        // SAFETY: the test has it.
        unsafe { held.unlock() };
    }));
    assert!(first.has_it(one), "it was free when it looked again");
    assert_eq!(older.asked.get(), 1);
    // SAFETY: that one has it.
    unsafe { lock.unlock() };
    assert!(second.has_it(two));
    // SAFETY: that one has it.
    unsafe { lock.unlock() };
}

#[test]
fn one_that_was_woken_loses_if_the_lock_stays_held_whether_it_is_alone_or_not() {
    let lock = RawLock::default();
    let actor = Actor::new();
    assert!(lock.try_lock());
    let mut waiting = actor.wait_for(&lock);
    let mut ticket = waiting.park();
    for alone in [false, true] {
        actor.asked.set(0);
        actor.alone.set(alone);
        barge(&lock);
        assert!(!waiting.has_it(ticket), "it is held");
        assert_eq!(actor.asked.get(), 1, "alone: {alone}");
        actor.alone.set(false);
        ticket = waiting.park_again();
    }
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(waiting.has_it(ticket));
    // SAFETY: that one has it.
    unsafe { lock.unlock() };
}

#[test]
fn one_that_takes_or_loses_a_contended_lock_64_times_in_a_turn_gives_way() {
    let (lock, actor) = (RawLock::default(), Actor::new());
    // As `lock` does where somebody waits, so that the fast way is not to be had.
    let take = |many| {
        for _ in 0..many {
            assert!(matches!(actor.wait_for(&lock).prepare(), LockStep::Taken));
            // SAFETY: just taken.
            unsafe { lock.unlock() };
        }
    };
    take(63);
    assert_eq!(actor.ways.get(), 0);
    take(1);
    assert_eq!(actor.ways.get(), 1);
    // Another turn begins with a wait for something else, and with another lock.
    take(60);
    let context = actor.context();
    // SAFETY: the actor's own code, and nobody knows of the wait.
    unsafe { context.abandon(context.begin(Reason::None, ptr::null_mut())) };
    take(60);
    let else_where = RawLock::default();
    assert!(matches!(actor.wait_for(&else_where).prepare(), LockStep::Taken));
    take(63);
    assert_eq!(actor.ways.get(), 1);
    // A loss counts as well, and the wait for the lock itself ends no turn.
    assert!(lock.try_lock());
    let mut waiting = actor.wait_for(&lock);
    let ticket = waiting.park();
    assert_eq!(actor.ways.get(), 2);
    barge(&lock);
    assert!(!waiting.has_it(ticket));
    let _ticket = waiting.park_again();
    assert_eq!(actor.ways.get(), 2);
    // In a region that must not suspend nobody gives way.
    let region = Actor::new();
    region.context().no_suspend().set(1);
    let free = RawLock::default();
    for _ in 0..200 {
        assert!(matches!(region.wait_for(&free).prepare(), LockStep::Taken));
        // SAFETY: just taken.
        unsafe { free.unlock() };
    }
    assert_eq!(region.ways.get(), 0);
}

#[test]
fn one_that_is_more_urgent_is_woken_though_another_is_on_its_way() {
    let lock = RawLock::default();
    let [first, behind, urgent] = [0; 3].map(|_| Actor::new());
    assert!(lock.try_lock());
    let (mut older, mut younger, mut newcomer) =
        (first.wait_for(&lock), behind.wait_for(&lock), urgent.wait_for(&lock));
    let (one, two) = (older.park(), younger.park());
    barge(&lock);
    assert!(!older.context.is_waiting(), "it is on its way");
    urgent.urgency.set(1);
    let three = newcomer.park();
    barge(&lock);
    assert!(!newcomer.context.is_waiting() && younger.context.is_waiting());
    assert!(!older.has_it(one) && !newcomer.has_it(three));
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(younger.has_it(two));
    // SAFETY: that one has it.
    unsafe { lock.unlock() };
}
