//! Which waiter is chosen, step by step on one thread.

use std::ptr;

use forebear_context::context::{ForeignContext, Reason, Table};

use super::*;

static TABLES: [Table; 3] = [
    Table { urgency: |_| 1, ..ForeignContext::TABLE },
    Table { urgency: |_| 2, ..ForeignContext::TABLE },
    Table { urgency: |_| 3, ..ForeignContext::TABLE },
];

/// A context that waits in the queue.
struct Waiter {
    foreign: Box<ForeignContext>,
    place: Box<Place>,
}

impl Waiter {
    /// The smaller the `class`, the more urgent.
    fn enter(queue: &LockQueue, class: usize) -> Waiter {
        // SAFETY: the table asks for nothing but what foreign contexts have.
        let foreign = Box::new(unsafe { ForeignContext::with_table(&TABLES[class]) });
        // SAFETY: one thread; nobody follows the target.
        let ticket = unsafe { foreign.context().begin(Reason::None, ptr::null_mut()) };
        // SAFETY: the context stays as long as the place.
        let place = Box::new(unsafe { Place::new(foreign.context(), ticket, ()) });
        // SAFETY: one thread; the box stays until the test is over.
        unsafe { queue.enter(&place) };
        Waiter { foreign, place }
    }

    fn is_chosen(&self) -> bool {
        !self.foreign.context().is_waiting()
    }
}

fn choose(queue: &LockQueue) -> NonNull<Place> {
    // SAFETY: one thread.
    let chosen = unsafe { queue.choose() }.expect("somebody stands here");
    let place = NonNull::from(chosen.place());
    chosen.wake();
    place
}

impl Waiter {
    fn is(&self, place: NonNull<Place>) -> bool {
        ptr::eq(&raw const *self.place, place.as_ptr())
    }
}

#[test]
fn one_that_waits_is_passed_over_32_times_at_most() {
    let queue = LockQueue::new();
    let young = Waiter::enter(&queue, 1);
    let mut old = Vec::new();
    for passed in 0..NEWCOMERS {
        old.push(Waiter::enter(&queue, 0));
        assert!(!young.is_chosen(), "passed over {passed} times");
        choose(&queue);
    }
    assert_eq!(NEWCOMERS, 32);
    old.push(Waiter::enter(&queue, 0));
    assert!(!young.is_chosen());
    choose(&queue);
    assert!(young.is_chosen());
}

#[test]
fn of_a_heap_that_is_closed_each_second_choice_takes_one() {
    let queue = LockQueue::new();
    let young: Vec<_> = (0..5).map(|_| Waiter::enter(&queue, 1)).collect();
    let mut old: Vec<_> = (5..NEWCOMERS).map(|_| Waiter::enter(&queue, 0)).collect();
    assert!(queue.is_closed());
    (5..NEWCOMERS).for_each(|_| _ = choose(&queue));
    assert!(old.iter().all(Waiter::is_chosen) && !young.iter().any(Waiter::is_chosen));
    for (n, next) in young.iter().enumerate() {
        old.extend([Waiter::enter(&queue, 0), Waiter::enter(&queue, 0)]);
        // SAFETY: one thread; nothing else has the place.
        let first = NonNull::from(unsafe { queue.first() }.unwrap());
        let by_urgency = choose(&queue);
        assert_eq!(first, by_urgency);
        assert!(old.iter().any(|old| old.is(by_urgency)));
        assert!(next.is(choose(&queue)), "{n}");
    }
    // The heaps are swapped, and among equals the older goes first.
    old.iter().filter(|old| !old.is_chosen()).for_each(|next| assert!(next.is(choose(&queue))));
    assert!(queue.is_empty());
}

#[test]
fn newcomers_that_are_not_more_urgent_wait_for_all_of_a_closed_heap() {
    let queue = LockQueue::new();
    let waiters: Vec<_> = (0..3 * NEWCOMERS).map(|_| Waiter::enter(&queue, 1)).collect();
    for next in &waiters {
        assert!(next.is(choose(&queue)));
    }
    assert!(queue.is_empty());
}

#[test]
fn one_that_becomes_urgent_passes_a_closed_heap() {
    let queue = LockQueue::new();
    let waiters: Vec<_> = (0..NEWCOMERS + 2).map(|_| Waiter::enter(&queue, 2)).collect();
    let (before, behind) = (&waiters[0], &waiters[waiters.len() - 1]);
    // SAFETY: one thread; it stands there.
    unsafe { queue.promote(&behind.place, 1) };
    assert!(behind.is(choose(&queue)));
    assert!(before.is(choose(&queue)));
}

#[test]
fn one_that_has_lost_is_passed_over_by_the_newcomers_of_two_heaps_at_most() {
    let queue = LockQueue::new();
    let loser = Waiter::enter(&queue, 1);
    choose(&queue);
    // SAFETY: one thread; nobody follows the target.
    let ticket = unsafe { loser.foreign.context().begin(Reason::None, ptr::null_mut()) };
    loser.place.renew(ticket);
    let mut old = vec![Waiter::enter(&queue, 0)];
    // SAFETY: one thread; it stands nowhere.
    unsafe { queue.push(&loser.place) };
    let mut passed = 0;
    while !loser.is_chosen() {
        old.push(Waiter::enter(&queue, 0));
        choose(&queue);
        passed += 1;
    }
    // By the newcomers of two heaps, and by each second choice of those that have been closed.
    assert!(passed <= 2 * NEWCOMERS + 4, "{passed}");
}

#[test]
fn a_newcomer_that_needs_no_place_counts() {
    let queue = LockQueue::new();
    assert!(!queue.is_closed());
    let waiter = Waiter::enter(&queue, 1);
    (1..NEWCOMERS).for_each(|_| queue.count_passing());
    assert!(queue.is_closed());
    assert!(waiter.is(choose(&queue)));
    assert!(!queue.is_closed());
    let again = Waiter::enter(&queue, 1);
    assert!(!queue.is_closed());
    assert!(again.is(choose(&queue)));
}

#[test]
fn a_leaver_is_not_chosen() {
    let queue = LockQueue::new();
    let waiters: Vec<_> = (0..6).map(|_| Waiter::enter(&queue, 1)).collect();
    // The first, the last, and one between.
    for n in [0, 5, 2] {
        // SAFETY: one thread; it stands there, and then nowhere.
        assert!(unsafe { queue.remove(&waiters[n].place) && !queue.remove(&waiters[n].place) });
    }
    assert_eq!(queue.len(), 3);
    [1, 3, 4].iter().for_each(|&n: &usize| assert!(waiters[n].is(choose(&queue))));
    assert!(queue.is_empty());
}
