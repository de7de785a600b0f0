//! Which task is next: the queue disciplines, on one worker that is held while the tasks are queued.

mod common;

use common::{Gate, Notes};
use forebear_pool::{FifoQueue, Job, LifoQueue, PriorityQueue, Queue, Task, ThreadPool};

/// Queues the items behind a task that holds the only worker, then lets it go; what ran, in order.
fn order_of<Q>(
    queue: Q,
    item: impl Fn(usize, Box<dyn FnOnce() + Send>) -> Q::Item,
    count: usize,
) -> Vec<usize>
where
    Q: Queue + 'static,
    Q::Item: Task,
{
    let pool = ThreadPool::new(1, queue).unwrap();
    let (held, gate, notes) = (Gate::new(), Gate::new(), Notes::new());
    let holder = {
        let (held, gate) = (held.clone(), gate.clone());
        Box::new(move || {
            held.open();
            gate.wait();
        })
    };
    pool.submit(item(usize::MAX, holder)).map_err(|_| "stopped").unwrap();
    held.wait();
    for number in 0..count {
        let notes = notes.clone();
        pool.submit(item(number, Box::new(move || notes.add(number)))).map_err(|_| "stopped").unwrap();
    }
    assert_eq!(pool.queued(), count);
    gate.open();
    let ran = notes.wait_for(count);
    assert!(pool.stop().is_empty());
    ran
}

#[test]
fn fifo_runs_the_first_queued_first() {
    assert_eq!(order_of(FifoQueue::<Job>::new(), |_, job| job, 5), [0, 1, 2, 3, 4]);
}

#[test]
fn lifo_runs_the_last_queued_first() {
    assert_eq!(order_of(LifoQueue::<Job>::new(), |_, job| job, 5), [4, 3, 2, 1, 0]);
}

#[test]
fn priority_runs_the_smallest_key_first() {
    let key = |number: usize| [3, 1, 4, 0, 5, 2].get(number).copied().unwrap_or(-1);
    assert_eq!(
        order_of(PriorityQueue::<i32, Job>::new(), |number, job| (key(number), job), 6),
        [3, 1, 5, 0, 2, 4]
    );
}

#[test]
fn equal_keys_run_in_order_of_arrival() {
    // Enough of them that a heap without a tie-break would show it.
    let order = order_of(PriorityQueue::<u8, Job>::new(), |number, job| ((number % 2) as u8, job), 100);
    let expected: Vec<usize> = (0..100).step_by(2).chain((1..100).step_by(2)).collect();
    assert_eq!(order, expected);
}

/// A payload without any comparison, and one whose comparison would be noticed.
#[test]
fn payloads_are_never_compared() {
    struct Incomparable(Box<dyn FnOnce() + Send>);
    impl PartialEq for Incomparable {
        fn eq(&self, _: &Self) -> bool {
            panic!("payloads were compared")
        }
    }
    impl PartialOrd for Incomparable {
        fn partial_cmp(&self, _: &Self) -> Option<std::cmp::Ordering> {
            panic!("payloads were compared")
        }
    }
    impl Task for Incomparable {
        fn run(self) {
            (self.0)();
        }
    }
    let order = order_of(PriorityQueue::<u8, _>::new(), |_, job| (7, Incomparable(job)), 20);
    assert_eq!(order, (0..20).collect::<Vec<_>>());
}

/// A discipline that nobody provided for: the middle first.
#[derive(Default)]
struct MiddleOut(Vec<Job>);

impl Queue for MiddleOut {
    type Item = Job;

    fn push(&mut self, job: Job) {
        self.0.push(job);
    }

    fn pop(&mut self) -> Option<Job> {
        let middle = self.0.len().checked_sub(1)? / 2;
        Some(self.0.remove(middle))
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

#[test]
fn a_queue_of_the_users_own_decides_the_order() {
    assert_eq!(order_of(MiddleOut::default(), |_, job| job, 5), [2, 1, 3, 0, 4]);
}

#[test]
fn what_is_in_the_queue_before_the_start_is_run() {
    let notes = Notes::new();
    let mut queue = FifoQueue::<Job>::new();
    for number in 0..3 {
        let notes = notes.clone();
        queue.push(Box::new(move || notes.add(number)));
    }
    let pool = ThreadPool::new(1, queue).unwrap();
    assert_eq!(notes.wait_for(3), [0, 1, 2]);
    pool.stop();
}
