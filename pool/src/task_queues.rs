//! The supply of a plain thread pool: one shared queue, and one for each worker, behind one lock.
//!
//! **Where an item is.** It is in one of four places. These are the *shared* queue, for any worker; a worker's *own*
//! queue, because its key names that worker; *taken* by a worker; the *misplaced*. A worker runs an item that it has
//! taken, or puts it on another worker's own queue. An item is misplaced if its key names another worker and the pool
//! has been closed meanwhile. Nothing else moves it, so each item is run, handed back, or given to the hook for
//! leftovers.
//!
//! **Phases.** *Open*: items go in and out. *Closed* (by `stop`): none goes in and no worker takes one; `stop` takes
//! them all when the workers have ended. *Abandoned* (by drop): as closed, but no `stop` will take misplaced items, so
//! they go to the hook at once. A phase changes under the lock that every put and take holds: after it has changed, there
//! is no put or take of the old phase to come.
//!
//! **One lock** and not one for each queue: an item with a key and its order relative to close would otherwise need
//! two at a time. User code runs under it only in `push`, `pop` and `len` of a user's queue; `affinity` and `run` are
//! called with nothing held.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

use forebear_context::shim::atomic::{AtomicUsize, Ordering::Relaxed};
use forebear_context::shim::{Mutex, MutexGuard, mutant};

use crate::engine::{contain, discard};
use crate::task::PoolMark;
use crate::thread_pool::Origin;
use crate::{Leftover, Queue, Signals, Stopped, Supply, Task, TaskPanic};

/// A worker takes from its own queue first, but one time in so many from the shared one. Otherwise tasks with a key
/// that wake each other could keep all others waiting for ever.
const SHARED_FIRST_ONE_IN: u32 = 16;

/// Is called for every task that panicked.
pub(crate) type PanicHook = Box<dyn Fn(TaskPanic<'_>) + Send + Sync>;
/// Given what was queued when the pool was dropped; never an empty list.
pub(crate) type LeftoverHook<I> = Box<dyn Fn(Leftover<I>) + Send + Sync>;

/// The queues of one pool, and their state.
pub(crate) struct TaskQueues<Q: Queue> {
    signals: Signals,
    pub(crate) mark: PoolMark,
    inner: Mutex<Inner<Q>>,
    /// How many items there are on all queues: a hint for searchers, written under the lock.
    queued: AtomicUsize,
    on_panic: PanicHook,
    on_leftover: LeftoverHook<Q::Item>,
}

struct Inner<Q: Queue> {
    phase: Phase,
    shared: Q,
    own: Vec<Own<Q>>,
    misplaced: Vec<Q::Item>,
    /// How many items lie on the shared queue, and on all queues: counted here, since this is asked at every step, and
    /// a user's `len` may be slow.
    shared_count: usize,
    total_count: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Closed,
    Abandoned,
}

/// One worker's queue.
struct Own<Q: Queue> {
    items: OwnItems<Q>,
    /// Takes by this worker, to let the shared queue have its turn.
    takes: u32,
}

enum OwnItems<Q: Queue> {
    Sibling(Q),
    Fifo(VecDeque<Q::Item>),
}

impl<Q: Queue> OwnItems<Q> {
    fn push(&mut self, item: Q::Item) {
        match self {
            OwnItems::Sibling(queue) => queue.push(item),
            OwnItems::Fifo(items) => items.push_back(item),
        }
    }

    fn pop(&mut self) -> Option<Q::Item> {
        match self {
            OwnItems::Sibling(queue) => queue.pop(),
            OwnItems::Fifo(items) => items.pop_front(),
        }
    }

    fn len(&self) -> usize {
        match self {
            OwnItems::Sibling(queue) => queue.len(),
            OwnItems::Fifo(items) => items.len(),
        }
    }
}

impl<Q: Queue> Inner<Q> {
    fn put(&mut self, affinity: Option<usize>, item: Q::Item) {
        match affinity {
            Some(worker) => self.own[worker].items.push(item),
            None => {
                self.shared.push(item);
                self.shared_count += 1;
            }
        }
        self.total_count += 1;
    }

    fn take(&mut self, worker: usize) -> Option<Q::Item> {
        if self.phase != Phase::Open {
            return None;
        }
        let takes = &mut self.own[worker].takes;
        *takes = takes.wrapping_add(1);
        let item = if takes.is_multiple_of(SHARED_FIRST_ONE_IN) {
            self.take_shared().or_else(|| self.own[worker].items.pop())
        } else {
            self.own[worker].items.pop().or_else(|| self.take_shared())
        }?;
        self.total_count = self.total_count.saturating_sub(1);
        Some(item)
    }

    fn take_shared(&mut self) -> Option<Q::Item> {
        let item = self.shared.pop()?;
        self.shared_count = self.shared_count.saturating_sub(1);
        Some(item)
    }

    fn take_all(&mut self) -> Vec<Q::Item> {
        let mut items = std::mem::take(&mut self.misplaced);
        for own in &mut self.own {
            items.extend(std::iter::from_fn(|| own.items.pop()));
        }
        items.extend(std::iter::from_fn(|| self.shared.pop()));
        (self.shared_count, self.total_count) = (0, 0);
        items
    }

    fn len(&self) -> usize {
        self.shared.len() + self.own.iter().map(|own| own.items.len()).sum::<usize>() + self.misplaced.len()
    }
}

impl<Q> TaskQueues<Q>
where
    Q: Queue,
    Q::Item: Task,
{
    pub(crate) fn new(
        workers: usize,
        shared: Q,
        on_panic: PanicHook,
        on_leftover: LeftoverHook<Q::Item>,
    ) -> TaskQueues<Q> {
        let own = |_| {
            let items = shared.sibling().map_or_else(|| OwnItems::Fifo(VecDeque::new()), OwnItems::Sibling);
            Own { items, takes: 0 }
        };
        let own = (0..workers).map(own).collect();
        let count = shared.len();
        let inner = Inner {
            phase: Phase::Open,
            shared,
            own,
            misplaced: Vec::new(),
            shared_count: count,
            total_count: count,
        };
        let (inner, queued) = (Mutex::new(inner), AtomicUsize::new(count));
        TaskQueues {
            signals: Signals::new(workers),
            mark: PoolMark::new(),
            inner,
            queued,
            on_panic,
            on_leftover,
        }
    }

    /// Puts an item in the queue of its key's worker, or on the shared one, and wakes who may take it.
    pub(crate) fn put(&self, item: Q::Item) -> Result<(), Stopped<Q::Item>> {
        let affinity = item.affinity_key().and_then(|affinity| affinity.worker(&self.mark));
        mutant!("wake_before_push", self.wake_for(affinity));
        let mut inner = self.lock();
        if inner.phase != Phase::Open {
            return Err(Stopped(item));
        }
        inner.put(affinity, item);
        self.unlock(inner);
        mutant!("wake_before_push", (), self.wake_for(affinity));
        Ok(())
    }

    fn wake_for(&self, affinity: Option<usize>) {
        match affinity {
            Some(worker) => self.signals.wake(worker),
            None => {
                self.signals.notify_any();
            }
        }
    }

    /// Runs an item that worker `index` has in its hands, or sends it to its worker.
    pub(crate) fn run(&self, index: usize, item: Q::Item) {
        let mut origin = Origin::Task;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            match item.affinity_key().map(|affinity| affinity.claim(&self.mark, index)) {
                Some(affinity) if affinity != index => self.send_to_its_worker(affinity, item, &mut origin),
                _ => item.run(),
            }
        }));
        if let Err(payload) = outcome {
            self.report(index, origin, payload);
        }
    }

    /// Puts an item that was taken into the queue of its key's worker, even if the pool has been closed since: no other thread gets the item back.
    /// Says by `origin` who runs.
    fn send_to_its_worker(&self, affinity: usize, item: Q::Item, origin: &mut Origin) {
        let mut inner = self.lock();
        match inner.phase {
            Phase::Open => {
                *origin = Origin::Queue;
                inner.put(Some(affinity), item);
                *origin = Origin::Task;
                self.unlock(inner);
                self.signals.wake(affinity);
            }
            Phase::Closed if cfg!(mutant = "misplaced_dropped") => drop(item),
            Phase::Closed => inner.misplaced.push(item),
            Phase::Abandoned => {
                drop(inner);
                (self.on_leftover)(Leftover::new(vec![item]));
            }
        }
    }

    /// No item goes in and none is taken from now on.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        if inner.phase == Phase::Open {
            inner.phase = Phase::Closed;
        }
    }

    /// As `close`, but no caller takes what is left: it goes to the hook.
    pub(crate) fn abandon(&self) {
        self.lock().phase = Phase::Abandoned;
        contain(|| {
            let items = self.empty();
            if !items.is_empty() {
                (self.on_leftover)(Leftover::new(items));
            }
        });
    }

    /// All items there are: misplaced, then each worker's own, then the shared ones, each in the order of their queue.
    pub(crate) fn empty(&self) -> Vec<Q::Item> {
        let mut inner = self.lock();
        let items = inner.take_all();
        self.unlock(inner);
        items
    }

    /// How many items there are on all queues.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn report(&self, worker: usize, origin: Origin, payload: Box<dyn Any + Send>) {
        contain(|| (self.on_panic)(TaskPanic { worker, origin, payload: &*payload }));
        discard(payload);
    }

    fn lock(&self) -> MutexGuard<'_, Inner<Q>> {
        // The user's queue may have panicked under the lock; what it holds then is its own affair, all else is whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unlocks after a change.
    fn unlock(&self, inner: MutexGuard<'_, Inner<Q>>) {
        self.queued.store(inner.total_count, Relaxed);
    }
}

impl<Q> Supply for TaskQueues<Q>
where
    Q: Queue + 'static,
    Q::Item: Task,
{
    type Task = Q::Item;

    fn signals(&self) -> &Signals {
        &self.signals
    }

    fn take(&self, worker: usize) -> Option<Q::Item> {
        let taken = catch_unwind(AssertUnwindSafe(|| {
            let mut inner = self.lock();
            let item = inner.take(worker);
            self.unlock(inner);
            item
        }));
        taken.unwrap_or_else(|payload| {
            self.report(worker, Origin::Queue, payload);
            None
        })
    }

    fn steal(&self, _: usize) -> Option<Q::Item> {
        None
    }

    fn best(&self, _: usize) -> u64 {
        if self.queued.load(Relaxed) == 0 { u64::MAX } else { 0 }
    }

    fn more(&self, _: usize) -> bool {
        self.lock().shared_count > 0
    }
}
