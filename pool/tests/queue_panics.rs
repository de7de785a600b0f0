//! What is told of a panic in the user's queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use forebear_pool::{AffinityKey, Job, Queue, Task, ThreadPool};

/// A queue whose methods panic once each, when they are told to.
struct Panics {
    jobs: Vec<Stay>,
    pop: Arc<AtomicBool>,
    push: Arc<AtomicBool>,
}

/// A task with a key.
struct Stay(Option<AffinityKey>, Job);

impl Task for Stay {
    fn run(self) {
        (self.1)();
    }

    fn affinity_key(&self) -> Option<&AffinityKey> {
        self.0.as_ref()
    }
}

impl Queue for Panics {
    type Item = Stay;

    fn push(&mut self, job: Stay) {
        assert!(!self.push.swap(false, Ordering::Relaxed), "no room");
        self.jobs.push(job);
    }

    fn pop(&mut self) -> Option<Stay> {
        assert!(!self.pop.swap(false, Ordering::Relaxed), "lost");
        self.jobs.pop()
    }

    fn len(&self) -> usize {
        self.jobs.len()
    }

    fn sibling(&self) -> Option<Self> {
        Some(Panics { jobs: Vec::new(), pop: self.pop.clone(), push: self.push.clone() })
    }
}

#[test]
fn a_panic_of_the_users_queue_is_told_as_that_and_not_as_a_tasks() {
    let (pop, push) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let queue = Panics { jobs: Vec::new(), pop: pop.clone(), push: push.clone() };
    let (send, told) = mpsc::channel();
    let pool = ThreadPool::builder().workers(2).queue(queue);
    let pool = pool.on_panic(move |panic| send.send((panic.worker(), panic.to_string())).unwrap());
    let pool = pool.build().unwrap();
    pop.store(true, Ordering::Relaxed);
    // It wakes a worker, which pops; what the queue keeps it runs afterwards.
    pool.submit(Stay(None, Box::new(|| ()))).unwrap();
    let (worker, message) = told.recv().unwrap();
    assert_eq!(message, format!("the queue panicked on worker {worker}: lost"));
    pool.submit(Stay(None, Box::new(|| panic!("no licence")))).unwrap();
    let (worker, message) = told.recv().unwrap();
    assert_eq!(message, format!("a task panicked on worker {worker}: no licence"));
    // Both workers hold tasks of one key, which neither is bound to yet when they are queued: the second to take one sends it on.
    let key = AffinityKey::new();
    let ((first, begun), (open, opened)) = (mpsc::channel(), mpsc::channel::<()>());
    let holds = move || {
        first.send(()).unwrap();
        _ = opened.recv();
    };
    let ((busy, is_busy), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
    let holds_other = move || {
        busy.send(()).unwrap();
        _ = released.recv();
    };
    pool.submit(Stay(None, Box::new(holds_other))).unwrap();
    is_busy.recv().unwrap();
    pool.submit(Stay(None, Box::new(holds))).unwrap();
    begun.recv().unwrap();
    pool.submit(Stay(Some(key.clone()), Box::new(|| ()))).unwrap();
    let (held, holding) = mpsc::channel::<()>();
    let (bound, is_bound) = mpsc::channel();
    let binds = move || {
        bound.send(()).unwrap();
        _ = holding.recv();
    };
    pool.submit(Stay(Some(key), Box::new(binds))).unwrap();
    // The last in is the first out: a worker takes the one that stays, and then the other takes the one that has to be sent.
    drop(open);
    is_bound.recv().unwrap();
    push.store(true, Ordering::Relaxed);
    drop(release);
    let (worker, message) = told.recv().unwrap();
    assert_eq!(message, format!("the queue panicked on worker {worker}: no room"));
    drop(held);
    pool.stop();
}
