//! Waiters of one worker: a newcomer gives way to a woken one of its own worker, and a lock is handed over within it.

use super::*;

/// The lock is held by a context of worker 7, and one of that worker and one of another wait for it. Calls `then` with the holder on that
/// worker's thread.
fn held_on_seven(then: impl FnOnce(&RawLock, &Actor, &mut Waiting<'_>, Ticket)) {
    let lock = RawLock::default();
    let (one, two, own) = (Actor::new(), Actor::new(), Actor::new());
    one.context().place().set(7);
    two.context().place().set(8);
    own.context().place().set(7);
    // SAFETY: taken back below.
    unsafe { forebear_context::context::set_current(Some(NonNull::from(own.context()))) };
    assert!(lock.try_lock());
    let (mut first, mut second) = (one.wait_for(&lock), two.wait_for(&lock));
    let (a, b) = (first.park(), second.park());
    then(&lock, &own, &mut first, a);
    assert!(second.has_it(b));
    // SAFETY: the second has it.
    unsafe { lock.unlock() };
    assert!(!lock.is_locked());
    // SAFETY: no context is always valid.
    unsafe { forebear_context::context::set_current(None) };
}

#[test]
fn a_newcomer_does_not_look_for_a_lock_that_its_own_worker_holds() {
    for (place, looks) in [(7, false), (8, true)] {
        let lock = RawLock::default();
        let (own, newcomer) = (Actor::new(), Actor::new());
        own.context().place().set(7);
        newcomer.context().place().set(place);
        // SAFETY: taken back below.
        unsafe { forebear_context::context::set_current(Some(NonNull::from(own.context()))) };
        assert!(lock.try_lock());
        let mut waiting = newcomer.wait_for(&lock);
        let ticket = waiting.park();
        assert_eq!(newcomer.asked.get() > 0, looks, "it has looked to the end, and asked whether to go on");
        // SAFETY: the test has it.
        unsafe { lock.unlock() };
        assert!(waiting.has_it(ticket));
        // SAFETY: the newcomer has it.
        unsafe { lock.unlock() };
        // SAFETY: no context is always valid.
        unsafe { forebear_context::context::set_current(None) };
    }
}

/// The word of the raw form names no holder. Both ways to take it say on which worker that was.
#[test]
fn a_newcomer_does_not_look_for_a_raw_lock_that_was_taken_on_its_worker() {
    type Take = fn(&RawLock, &Actor, &ThreadNumber) -> bool;
    let at_once: Take = |lock, _, taken_on| lock.try_lock_unnamed(taken_on);
    let waiting: Take = |lock, own, taken_on| {
        let terms = own.wait_for(lock).terms;
        matches!(lock.waiting_unnamed(own.context(), taken_on, terms).prepare(), LockStep::Taken)
    };
    for (place, looks) in [(7, false), (8, true)] {
        for take in [at_once, waiting] {
            let (lock, taken_on) = (RawLock::default(), ThreadNumber::none());
            let (own, newcomer) = (Actor::new(), Actor::new());
            own.context().place().set(7);
            newcomer.context().place().set(place);
            // SAFETY: taken back below.
            unsafe { forebear_context::context::set_current(Some(NonNull::from(own.context()))) };
            assert!(take(&lock, &own, &taken_on));
            let terms = newcomer.wait_for(&lock).terms;
            let mut waiting = lock.waiting_unnamed(newcomer.context(), &taken_on, terms);
            let ticket = waiting.park();
            assert_eq!(
                newcomer.asked.get() > 0,
                looks,
                "it has looked to the end, and asked whether to go on"
            );
            assert!(lock.unlock_unnamed());
            assert!(waiting.has_it(ticket));
            assert_eq!(taken_on.get(), place, "the next newcomer judges by this one");
            assert!(lock.unlock_unnamed());
            // SAFETY: no context is always valid.
            unsafe { forebear_context::context::set_current(None) };
        }
    }
}

#[test]
fn a_newcomer_gives_way_to_one_of_its_worker_that_was_woken() {
    held_on_seven(|lock, own, first, a| {
        // SAFETY: the test has it.
        unsafe { lock.unlock() };
        assert!(!lock.is_locked(), "others may have it");
        let mut again = own.wait_for(lock);
        let ticket = again.park();
        assert_eq!(own.ways.get(), 1, "it yields before it enters the queue");
        assert!(first.has_it(a), "that one could not have run before");
        // One that stands there goes on as any other: after those who came before.
        // SAFETY: the first has it.
        unsafe { lock.unlock() };
        // The other worker's was woken; it has been before this one, but is not there yet.
        assert!(again.context.is_waiting());
        assert!(lock.try_lock());
        pass(lock);
        // SAFETY: the test has it.
        unsafe { lock.unlock() };
        assert!(again.has_it(ticket));
        // SAFETY: as it says.
        unsafe { lock.unlock() };
    });
}

#[test]
fn a_newcomer_that_is_more_urgent_or_in_a_hurry_does_not_give_way() {
    for (deadline, urgency) in [(Some(Instant::now()), NO_KEY), (None, 1)] {
        held_on_seven(|lock, own, first, a| {
            // SAFETY: the test has it.
            unsafe { lock.unlock() };
            own.urgency.set(urgency);
            let terms = LockTerms { deadline, ..own.wait_for(lock).terms };
            assert!(matches!(lock.waiting(own.context(), terms).prepare(), LockStep::Taken));
            assert!(!first.has_it(a));
            let a = first.park_again();
            // SAFETY: taken above. The other worker's is woken now.
            unsafe { lock.unlock() };
            assert!(
                matches!(own.wait_for(lock).prepare(), LockStep::Taken),
                "that one needs no wait of this worker's"
            );
            assert_eq!(own.ways.get(), 0);
            pass(lock);
            // SAFETY: taken above.
            unsafe { lock.unlock() };
            assert!(first.has_it(a));
            // SAFETY: as it says.
            unsafe { lock.unlock() };
        });
    }
}

#[test]
fn one_that_loses_to_its_own_worker_does_not_reserve() {
    let lock = RawLock::default();
    let (own, other) = (Actor::new(), Actor::new());
    own.context().place().set(7);
    other.context().place().set(7);
    // SAFETY: taken back below.
    unsafe { forebear_context::context::set_current(Some(NonNull::from(own.context()))) };
    assert!(lock.try_lock());
    let far = Actor::new();
    far.context().place().set(8);
    let mut waiting = other.wait_for(&lock);
    let mut far = far.wait_for(&lock);
    let (mut ticket, mut elsewhere) = (waiting.park(), far.park());
    for step in [0, 600] {
        other.time.set(other.time.get() + Duration::from_micros(step));
        barge(&lock);
        assert!(!waiting.has_it(ticket));
        // It reads the clock once, when it has lost; looking for the lock it would read it again.
        let looks: *const Actor = &*other;
        other.at_look.replace(Some(Box::new(move || {
            let again = Box::new(|| panic!("it looks for a lock that cannot become free"));
            // SAFETY: the actor lives through the test; its cell is not borrowed during a call.
            unsafe { &*looks }.at_look.replace(Some(again));
        })));
        ticket = waiting.park_again();
        other.at_look.take();
        barge(&lock);
        assert!(!far.has_it(elsewhere));
        elsewhere = far.park_again();
    }
    // SAFETY: no context is always valid.
    unsafe { forebear_context::context::set_current(None) };
}

#[test]
fn it_is_handed_over_if_all_who_wait_are_of_the_worker_that_releases() {
    for (places, handed) in [([7, 7], true), ([7, 8], false)] {
        let lock = RawLock::default();
        let (one, two, own) = (Actor::new(), Actor::new(), Actor::new());
        one.context().place().set(places[0]);
        two.context().place().set(places[1]);
        own.context().place().set(7);
        // SAFETY: taken back below.
        unsafe { forebear_context::context::set_current(Some(NonNull::from(own.context()))) };
        assert!(lock.try_lock());
        assert_eq!(own.context().locks().get(), 1);
        let (mut first, mut second) = (one.wait_for(&lock), two.wait_for(&lock));
        let (a, b) = (first.park(), second.park());
        // SAFETY: the test has it.
        unsafe { lock.unlock() };
        assert_eq!(lock.is_locked(), handed);
        assert_eq!(lock.try_lock(), !handed, "what was handed over cannot be had by others");
        assert_eq!(first.has_it(a), handed);
        // SAFETY: it is locked, by one or the other.
        unsafe { lock.unlock() };
        if handed {
            assert!(second.has_it(b));
            // SAFETY: the second has it.
            unsafe { lock.unlock() };
        } else {
            assert!(second.has_it(b) || lock.try_lock());
        }
        // SAFETY: no context is always valid.
        unsafe { forebear_context::context::set_current(None) };
    }
}
