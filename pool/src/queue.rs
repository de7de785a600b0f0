//! Queue disciplines: which of the waiting tasks is next.
//!
//! A discipline is a type parameter of [`ThreadPool`](crate::ThreadPool): three are here, and any type with push, pop
//! and len is another. The pool calls it under a lock, one call at a time.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;

/// What holds the tasks that wait, and decides which is next.
///
/// Called by the pool under its lock: short, and without calling the pool. A panic in [`push`](Queue::push) comes out
/// of the `submit` that pushed; one in [`pop`](Queue::pop) goes to the pool's panic hook, as one
/// [of the queue](crate::TaskPanic::is_of_queue), and the worker continues.
///
/// ```
/// use forebear::pool::{Job, Queue};
///
/// /// Serves both ends by turns.
/// #[derive(Default)]
/// struct Alternating { jobs: std::collections::VecDeque<Job>, back: bool }
///
/// impl Queue for Alternating {
///     type Item = Job;
///     fn push(&mut self, job: Job) {
///         self.jobs.push_back(job);
///     }
///     fn pop(&mut self) -> Option<Job> {
///         self.back = !self.back;
///         if self.back { self.jobs.pop_back() } else { self.jobs.pop_front() }
///     }
///     fn len(&self) -> usize {
///         self.jobs.len()
///     }
/// }
///
/// let pool = forebear::pool::ThreadPool::new(2, Alternating::default())?;
/// # pool.stop();
/// # Ok::<(), forebear::pool::StartError>(())
/// ```
pub trait Queue: Send {
    /// What it holds.
    type Item: Send;

    /// Takes an item in.
    fn push(&mut self, item: Self::Item);

    /// The next item; `None` only if there is none.
    fn pop(&mut self) -> Option<Self::Item>;

    /// How many items there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An empty queue of the same discipline, in which a worker keeps the tasks whose key names it. `None`, the default,
    /// keeps them first in, first out.
    fn sibling(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}

/// The smallest key first; of equal keys the one that came first. Payloads are never compared.
///
/// Holds pairs of key and payload:
///
/// ```
/// use forebear::pool::{PriorityQueue, Queue};
///
/// let mut queue = PriorityQueue::new();
/// queue.push((2, "second"));
/// queue.push((1, "first"));
/// queue.push((2, "third"));
/// let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, name)| name).collect();
/// assert_eq!(order, ["first", "second", "third"]);
/// ```
pub struct PriorityQueue<K, T> {
    heap: BinaryHeap<Entry<K, T>>,
    /// The number of the next arrival; 2⁶⁴ of them do not come.
    arrivals: u64,
}

struct Entry<K, T> {
    key: K,
    arrival: u64,
    payload: T,
}

impl<K: Ord, T> PriorityQueue<K, T> {
    /// An empty queue.
    #[must_use]
    pub fn new() -> PriorityQueue<K, T> {
        PriorityQueue { heap: BinaryHeap::new(), arrivals: 0 }
    }
}

impl<K: Ord + Send, T: Send> Queue for PriorityQueue<K, T> {
    type Item = (K, T);

    fn push(&mut self, (key, payload): (K, T)) {
        self.heap.push(Entry { key, arrival: self.arrivals, payload });
        self.arrivals += 1;
    }

    fn pop(&mut self) -> Option<(K, T)> {
        self.heap.pop().map(|entry| (entry.key, entry.payload))
    }

    fn len(&self) -> usize {
        self.heap.len()
    }

    fn sibling(&self) -> Option<Self> {
        Some(PriorityQueue::new())
    }
}

impl<K: Ord, T> Default for PriorityQueue<K, T> {
    fn default() -> Self {
        PriorityQueue::new()
    }
}

impl<K, T> fmt::Debug for PriorityQueue<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PriorityQueue").field("len", &self.heap.len()).finish_non_exhaustive()
    }
}

// `BinaryHeap` hands out its greatest: greater is the smaller key, then the earlier arrival.
impl<K: Ord, T> Ord for Entry<K, T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key).then_with(|| other.arrival.cmp(&self.arrival))
    }
}

impl<K: Ord, T> PartialOrd for Entry<K, T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: Ord, T> PartialEq for Entry<K, T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<K: Ord, T> Eq for Entry<K, T> {}

/// First in, first out.
///
/// ```
/// use forebear::pool::{FifoQueue, Queue};
///
/// let mut queue = FifoQueue::new();
/// queue.push("first");
/// queue.push("second");
/// assert_eq!((queue.len(), queue.pop()), (2, Some("first")));
/// ```
pub struct FifoQueue<T>(VecDeque<T>);

/// Last in, first out.
///
/// ```
/// use forebear::pool::{LifoQueue, Queue};
///
/// let mut queue = LifoQueue::new();
/// queue.push("first");
/// queue.push("second");
/// assert_eq!((queue.len(), queue.pop()), (2, Some("second")));
/// ```
pub struct LifoQueue<T>(Vec<T>);

/// Both plain queues are one container, pushed at its end; they differ in the end that they pop.
macro_rules! plain_queue {
    ($queue:ident, $container:ident, $push:ident, $pop:ident) => {
        impl<T> $queue<T> {
            /// An empty queue.
            #[must_use]
            pub fn new() -> $queue<T> {
                $queue($container::new())
            }
        }

        impl<T: Send> Queue for $queue<T> {
            type Item = T;

            fn push(&mut self, item: T) {
                self.0.$push(item);
            }

            fn pop(&mut self) -> Option<T> {
                self.0.$pop()
            }

            fn len(&self) -> usize {
                self.0.len()
            }

            fn sibling(&self) -> Option<Self> {
                Some($queue::new())
            }
        }

        impl<T> Default for $queue<T> {
            fn default() -> Self {
                $queue::new()
            }
        }

        impl<T> fmt::Debug for $queue<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($queue)).field("len", &self.0.len()).finish_non_exhaustive()
            }
        }
    };
}

plain_queue!(FifoQueue, VecDeque, push_back, pop_front);
plain_queue!(LifoQueue, Vec, push, pop);
