//! Tasks that have a key run on one worker, and nowhere else.

mod common;

use std::sync::Arc;
use std::thread::{self, ThreadId};

use common::{Gate, Notes};
use forebear_pool::{AffinityKey, FifoQueue, PriorityQueue, Task, ThreadPool};

/// A task with a key, or without.
struct Step {
    affinity: Option<AffinityKey>,
    body: Box<dyn FnOnce() + Send>,
}

impl Step {
    fn at(affinity: &AffinityKey, body: impl FnOnce() + Send + 'static) -> Step {
        Step { affinity: Some(affinity.clone()), body: Box::new(body) }
    }

    fn anywhere(body: impl FnOnce() + Send + 'static) -> Step {
        Step { affinity: None, body: Box::new(body) }
    }
}

impl Task for Step {
    fn run(self) {
        (self.body)();
    }

    fn affinity_key(&self) -> Option<&AffinityKey> {
        self.affinity.as_ref()
    }
}

/// Holds the key's worker, queues more for it while the three others are free, and sees where they ran.
#[test]
fn a_task_with_a_key_waits_for_its_worker_while_others_are_free() {
    let pool = ThreadPool::new(4, FifoQueue::new()).unwrap();
    let (affinity, gate) = (AffinityKey::new(), Gate::new());
    let places: Notes<ThreadId> = Notes::new();
    {
        let (places, gate) = (places.clone(), gate.clone());
        pool.submit(Step::at(&affinity, move || {
            places.add(thread::current().id());
            gate.wait();
        }))
        .unwrap();
    }
    let first = places.wait_for(1)[0];
    for _ in 0..20 {
        let places = places.clone();
        pool.submit(Step::at(&affinity, move || places.add(thread::current().id()))).unwrap();
    }
    // The others are free: they run what has no key, all the while.
    let others: Notes<ThreadId> = Notes::new();
    for _ in 0..20 {
        let others = others.clone();
        pool.submit(Step::anywhere(move || others.add(thread::current().id()))).unwrap();
    }
    assert!(others.wait_for(20).iter().all(|place| *place != first));
    assert_eq!(places.now().len(), 1, "none of them ran elsewhere meanwhile");
    gate.open();
    assert!(places.wait_for(21).iter().all(|place| *place == first));
    assert!(pool.worker_of(&affinity).is_some());
    assert!(pool.stop().is_empty());
}

/// Many clones are queued before any of them has run, so several workers take one at the same time.
#[test]
fn clones_taken_at_once_agree_on_one_worker() {
    for _ in 0..50 {
        let pool = ThreadPool::new(4, FifoQueue::new()).unwrap();
        let (affinity, places) = (AffinityKey::new(), Notes::new());
        for _ in 0..16 {
            let places = places.clone();
            pool.submit(Step::at(&affinity, move || places.add(thread::current().id()))).unwrap();
        }
        let places = places.wait_for(16);
        assert!(places.iter().all(|place| *place == places[0]), "{places:?}");
        pool.stop();
    }
}

/// A computation of many steps, each of which wakes the next.
struct Stepped {
    step: usize,
    last: usize,
    affinity: AffinityKey,
    pool: Arc<ThreadPool<FifoQueue<Stepped>>>,
    notes: Notes<(usize, ThreadId)>,
}

impl Task for Stepped {
    fn run(mut self) {
        self.notes.add((self.step, thread::current().id()));
        if self.step < self.last {
            self.step += 1;
            let pool = Arc::clone(&self.pool);
            assert!(pool.submit(self).is_ok());
        }
    }

    fn affinity_key(&self) -> Option<&AffinityKey> {
        Some(&self.affinity)
    }
}

#[test]
fn a_stepped_task_stays_on_one_thread() {
    let pool = Arc::new(ThreadPool::new(4, FifoQueue::new()).unwrap());
    let lines: Vec<Notes<(usize, ThreadId)>> = (0..8).map(|_| Notes::new()).collect();
    for notes in &lines {
        let (pool_of_task, notes) = (Arc::clone(&pool), notes.clone());
        let stepped = Stepped { step: 0, last: 99, affinity: AffinityKey::new(), pool: pool_of_task, notes };
        assert!(pool.submit(stepped).is_ok());
    }
    for notes in &lines {
        let steps = notes.wait_for(100);
        let thread = steps[0].1;
        assert!(steps.iter().enumerate().all(|(number, step)| *step == (number, thread)));
    }
    pool.stop();
}

/// One worker, and a line of tasks that always has a next one on its worker: what has no key still gets its turn.
#[test]
fn tasks_with_a_key_do_not_starve_the_others() {
    let pool = Arc::new(ThreadPool::new(1, FifoQueue::new()).unwrap());
    let others = Notes::new();
    struct Endless {
        affinity: AffinityKey,
        pool: Arc<ThreadPool<FifoQueue<Box<Endless>>>>,
        others: Option<Notes<()>>,
    }
    impl Task for Box<Endless> {
        fn run(self) {
            match &self.others {
                Some(others) => others.add(()),
                None => {
                    let pool = Arc::clone(&self.pool);
                    let _ = pool.submit(self);
                }
            }
        }
        fn affinity_key(&self) -> Option<&AffinityKey> {
            self.others.is_none().then_some(&self.affinity)
        }
    }
    let task = |others| Box::new(Endless { affinity: AffinityKey::new(), pool: Arc::clone(&pool), others });
    assert!(pool.submit(task(None)).is_ok());
    assert!(pool.submit(task(None)).is_ok());
    for _ in 0..10 {
        assert!(pool.submit(task(Some(others.clone()))).is_ok());
    }
    others.wait_for(10);
    // Both are handed back, or one is refused by its own `submit`, being in its run at that moment.
    assert!((1..=2).contains(&pool.stop().len()));
}

#[test]
fn tasks_with_a_key_keep_the_discipline() {
    let pool = ThreadPool::new(2, PriorityQueue::new()).unwrap();
    let (affinity, gate, held, notes) = (AffinityKey::new(), Gate::new(), Gate::new(), Notes::new());
    {
        let (gate, held) = (gate.clone(), held.clone());
        let hold = move || {
            held.open();
            gate.wait();
        };
        pool.submit((0, Step::at(&affinity, hold))).unwrap();
    }
    held.wait();
    for key in [3, 1, 2] {
        let notes = notes.clone();
        pool.submit((key, Step::at(&affinity, move || notes.add(key)))).unwrap();
    }
    gate.open();
    assert_eq!(notes.wait_for(3), [1, 2, 3]);
    pool.stop();
}

/// In a second pool the same affinity key names a worker of that pool; the first keeps its own.
#[test]
fn an_affinity_key_names_one_worker_in_each_pool() {
    let pools = [4, 1].map(|workers| ThreadPool::new(workers, FifoQueue::new()).unwrap());
    let affinity = AffinityKey::new();
    let places = pools.each_ref().map(|pool| {
        let places = Notes::new();
        for _ in 0..10 {
            let places = places.clone();
            pool.submit(Step::at(&affinity, move || places.add(thread::current().id()))).unwrap();
        }
        let places = places.wait_for(10);
        assert!(places.iter().all(|place| *place == places[0]));
        places[0]
    });
    assert_ne!(places[0], places[1]);
    assert_eq!(pools[1].worker_of(&affinity), Some(0));
    for pool in &pools {
        pool.stop();
    }
}
