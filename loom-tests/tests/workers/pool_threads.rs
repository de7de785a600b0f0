//! The plain thread pool of `forebear-pool`, as it ships: engine, queues, signals, stop.
#![cfg(loom)]

use forebear_context::shim::atomic::{AtomicUsize, Ordering::SeqCst};
use forebear_context::shim::thread;
use forebear_context::shim::{Arc, Condvar, Mutex};
use forebear_pool::{AffinityKey, FifoQueue, Queue, Task, ThreadPool};

/// A bell that rings once.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    moved: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.moved.notify_all();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.moved.wait(rung).unwrap();
        }
    }
}

struct Ring(Arc<Bell>);

impl Task for Ring {
    fn run(self) {
        self.0.ring();
    }
}

#[test]
fn a_task_that_is_woken_runs() {
    loom::model(|| {
        let pool = ThreadPool::new(1, FifoQueue::new()).unwrap();
        let bell = Arc::new(Bell::default());
        pool.submit(Ring(Arc::clone(&bell))).unwrap();
        bell.wait();
        assert!(pool.stop().is_empty());
    });
}

struct Count(Arc<AtomicUsize>);

impl Task for Count {
    fn run(self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Stop against `submit`: the task is run, or handed back by one of the two, and never lost.
#[test]
fn a_task_woken_during_stop_is_run_or_handed_back() {
    loom::model(|| {
        let pool = Arc::new(ThreadPool::new(1, FifoQueue::new()).unwrap());
        let ran = Arc::new(AtomicUsize::new(0));
        let waker = {
            let (pool, ran) = (Arc::clone(&pool), Arc::clone(&ran));
            thread::spawn(move || usize::from(pool.submit(Count(ran)).is_err()))
        };
        let handed_back = pool.stop().len();
        let refused = waker.join().unwrap();
        let late = pool.stop().len();
        assert_eq!(late, 0);
        assert_eq!(ran.load(SeqCst) + handed_back + refused, 1);
    });
}

/// A task with a key; notes how many workers' threads have run one.
struct Keyed {
    affinity: AffinityKey,
    places: Arc<Mutex<Vec<thread::Thread>>>,
}

impl Task for Keyed {
    fn run(self) {
        self.places.lock().unwrap().push(thread::current());
    }

    fn affinity_key(&self) -> Option<&AffinityKey> {
        Some(&self.affinity)
    }
}

/// Two clones, two workers, and a stop that comes at any moment: both run on one thread, and what does not run comes back.
#[test]
fn clones_taken_at_once_agree_on_one_worker_and_none_is_lost() {
    loom::model(|| {
        let mut queue = FifoQueue::new();
        let (affinity, places) = (AffinityKey::new(), Arc::new(Mutex::new(Vec::new())));
        for _ in 0..2 {
            queue.push(Keyed { affinity: affinity.clone(), places: Arc::clone(&places) });
        }
        let pool = ThreadPool::new(2, queue).unwrap();
        let handed_back = pool.stop().len();
        let places = places.lock().unwrap();
        assert_eq!(places.len() + handed_back, 2);
        assert!(places.iter().all(|place| place.id() == places[0].id()));
    });
}

/// A task that meets its like on the other worker; then both stop their pool.
struct StopHere {
    pool: Arc<ThreadPool<FifoQueue<StopHere>>>,
    met: Arc<(Mutex<u32>, Condvar)>,
}

impl Task for StopHere {
    fn run(self) {
        let (met, moved) = &*self.met;
        let mut count = met.lock().unwrap();
        *count += 1;
        moved.notify_all();
        while *count < 2 {
            count = moved.wait(count).unwrap();
        }
        drop(count);
        assert!(self.pool.stop().is_empty());
    }
}

#[test]
fn two_workers_that_stop_their_pool_do_not_wait_for_each_other() {
    loom::model(|| {
        let pool = Arc::new(ThreadPool::new(2, FifoQueue::new()).unwrap());
        let met = Arc::new((Mutex::new(0), Condvar::new()));
        for _ in 0..2 {
            let task = StopHere { pool: Arc::clone(&pool), met: Arc::clone(&met) };
            assert!(pool.submit(task).is_ok());
        }
        // Waits for the meeting, so that this stop takes no task away.
        let (count, moved) = &*met;
        let mut count = count.lock().unwrap();
        while *count < 2 {
            count = moved.wait(count).unwrap();
        }
        drop(count);
        assert!(pool.stop().is_empty());
    });
}
