//! The plain thread pool of `forebear-pool`, as it ships: engine, shelves, signals, stop.
#![cfg(loom)]

use forebear_context::shim::atomic::{AtomicUsize, Ordering::SeqCst};
use forebear_context::shim::thread;
use forebear_context::shim::{Arc, Condvar, Mutex};
use forebear_pool::{FifoQueue, Task, ThreadPool};

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
        pool.wake_up(Ring(Arc::clone(&bell))).unwrap();
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

/// Stop against `wake_up`: the task is run, or handed back by one of the two, and never lost.
#[test]
fn a_task_woken_during_stop_is_run_or_handed_back() {
    loom::model(|| {
        let pool = Arc::new(ThreadPool::new(1, FifoQueue::new()).unwrap());
        let ran = Arc::new(AtomicUsize::new(0));
        let waker = {
            let (pool, ran) = (Arc::clone(&pool), Arc::clone(&ran));
            thread::spawn(move || usize::from(pool.wake_up(Count(ran)).is_err()))
        };
        let handed_back = pool.stop().len();
        let refused = waker.join().unwrap();
        let late = pool.stop().len();
        assert_eq!(late, 0);
        assert_eq!(ran.load(SeqCst) + handed_back + refused, 1);
    });
}
