//! Batches: what is deterministic about them. Their races are models in `loom-tests/tests/sync/sync_batch.rs`.

use std::collections::VecDeque;
use std::rc::Rc;

use forebear_context::context::{Label, with_foreign};

use super::{Channel, UNBOUNDED};
use crate::channel::error::{TryRecvError, TrySendError};

/// A channel that workers use: this thread is one after the other.
struct Workers<T>(Channel<T>);

impl<T> Workers<T> {
    fn new(capacity: usize) -> Workers<T> {
        let memory = if capacity == UNBOUNDED { 0 } else { capacity };
        Workers(Channel::new(VecDeque::with_capacity(memory), capacity, Label::NONE))
    }

    fn send(&self, on: usize, item: T) {
        with_foreign(|context| {
            context.place().set(on);
            assert!(self.0.send(context, item, None).is_ok());
            context.place().set(0);
        });
    }

    fn receive(&self, on: usize) -> T {
        with_foreign(|context| {
            context.place().set(on);
            let Ok(item) = self.0.receive(context, None) else { unreachable!("it has items") };
            context.place().set(0);
            item
        })
    }

    fn in_batch(&self) -> usize {
        self.0.batch.len()
    }
}

impl<T> Drop for Workers<T> {
    fn drop(&mut self) {
        // SAFETY: nobody else has the channel.
        unsafe { self.0.end_receiving() };
    }
}

/// One with the items `2..=end` in it, all but the last in the batch.
fn with_a_batch(capacity: usize, end: u32) -> Workers<u32> {
    let workers = Workers::new(capacity);
    (0..2).for_each(|n| workers.send(1, n));
    assert_eq!(workers.receive(2), 0);
    (2..end).for_each(|n| workers.send(1, n));
    assert_eq!((workers.receive(2), workers.in_batch()), (1, end as usize - 2));
    workers.send(1, end);
    workers
}

#[test]
fn items_in_a_batch_count_for_length_and_capacity_and_come_first() {
    let workers = with_a_batch(8, 8);
    assert_eq!((workers.0.len(), workers.in_batch()), (7, 6));
    assert_eq!(workers.0.put(9), Ok(()));
    assert_eq!(workers.0.put(10), Err(TrySendError::Full(10)));
    assert_eq!((workers.0.take(), workers.0.put(10)), (Ok(2), Ok(())));
    assert_eq!(workers.0.put(11), Err(TrySendError::Full(11)));
    assert_eq!((3..=10).map(|_| workers.receive(2)).collect::<Vec<_>>(), (3..=10).collect::<Vec<_>>());
    assert_eq!((workers.0.take(), workers.0.len()), (Err(TryRecvError::Empty), 0));
}

#[test]
fn a_batch_is_made_only_of_what_another_worker_has_put() {
    let workers = Workers::new(8);
    (0..8).for_each(|n| workers.send(1, n));
    assert_eq!((0..4).map(|_| workers.receive(1)).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(workers.in_batch(), 0);
    assert_eq!((workers.receive(2), workers.receive(2)), (4, 5));
    assert_eq!(workers.in_batch(), 2);
}

#[test]
fn a_single_item_is_no_batch() {
    let workers = Workers::new(8);
    for n in 0..8 {
        workers.send(1, n);
        assert_eq!((workers.receive(2), workers.in_batch()), (n, 0));
    }
}

/// A channel of many or large items moves a few of them in one visit, and its memory stays where it is.
#[test]
fn a_visit_to_a_large_channel_moves_a_few_items() {
    for capacity in [5000, UNBOUNDED] {
        let workers = with_a_batch(capacity, 6);
        (7..5000).for_each(|n| workers.send(1, n));
        assert_eq!((2..5000).map(|_| workers.receive(2)).collect::<Vec<_>>(), (2..5000).collect::<Vec<_>>());
        (0..5000).for_each(|n| workers.send(1, n));
        assert_eq!(workers.receive(2), 0);
        assert_eq!((workers.in_batch(), workers.0.len()), (48, 4999));
    }
    let workers = Workers::new(64);
    (0..64).for_each(|n| workers.send(1, [n; 2048]));
    assert_eq!([workers.receive(2)[0], workers.receive(2)[0]], [0, 1]);
    assert_eq!((workers.in_batch(), workers.0.len()), (1, 62));
    assert_eq!((2..64).map(|_| workers.receive(2)[7]).collect::<Vec<_>>(), (2..64).collect::<Vec<_>>());
}

#[test]
fn items_without_a_size_go_through_a_batch() {
    let workers = Workers::new(64);
    (0..64).for_each(|_| workers.send(1, ()));
    (0..2).for_each(|_| workers.receive(2));
    assert_eq!((workers.in_batch(), workers.0.len()), (48, 62));
    (0..62).for_each(|_| workers.receive(2));
    assert_eq!(workers.0.take(), Err(TryRecvError::Empty));
}

#[test]
fn items_in_a_batch_are_dropped_with_the_last_receiver() {
    let item = Rc::new(());
    let workers = Workers::new(8);
    (0..8).for_each(|_| workers.send(1, item.clone()));
    (0..2).for_each(|_| drop(workers.receive(2)));
    workers.send(1, item.clone());
    assert_eq!((workers.in_batch(), Rc::strong_count(&item)), (6, 8));
    // SAFETY: nobody else has the channel, and nothing is received below.
    unsafe { workers.0.end_receiving() };
    assert_eq!((workers.0.len(), Rc::strong_count(&item)), (0, 1));
    assert!(matches!(workers.0.put(item), Err(TrySendError::Disconnected(_))));
}

/// A thread of no runtime takes batches of what workers have put.
#[test]
fn a_thread_outside_takes_a_batch() {
    let workers = Workers::new(8);
    (0..8).for_each(|n| workers.send(1, n));
    assert_eq!([workers.0.take_outside(false), workers.0.take_outside(false)], [Ok(0), Ok(1)]);
    assert_eq!((workers.in_batch(), workers.0.len()), (6, 6));
    assert_eq!(
        (2..8).map(|_| workers.0.take_outside(false)).collect::<Vec<_>>(),
        (2..8).map(Ok).collect::<Vec<_>>()
    );
    assert_eq!(workers.0.take_outside(true), Err(TryRecvError::Empty));
}
