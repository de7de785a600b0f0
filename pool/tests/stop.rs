//! Stopping: what runs, what comes back, and who may ask for it.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;

use common::{Gate, Notes, until};
use forebear_pool::{AffinityKey, FifoQueue, Job, Leftover, Stopped, Task, ThreadPool, WorkerState};

type Jobs = FifoQueue<Job>;

/// Holds `workers` workers at a gate; returns when all of them are held.
fn hold(pool: &ThreadPool<Jobs>, gate: &Gate) {
    let held = Arc::new(Barrier::new(pool.workers() + 1));
    for _ in 0..pool.workers() {
        let (held, gate) = (Arc::clone(&held), gate.clone());
        pool.submit(Box::new(move || {
            held.wait();
            gate.wait();
        }))
        .unwrap();
    }
    held.wait();
}

#[test]
fn stop_finishes_the_current_tasks_and_hands_back_the_rest() {
    let pool = Arc::new(ThreadPool::new(2, Jobs::new()).unwrap());
    let (gate, ran) = (Gate::new(), Arc::new(AtomicUsize::new(0)));
    hold(&pool, &gate);
    for _ in 0..10 {
        let ran = Arc::clone(&ran);
        pool.submit(Box::new(move || {
            ran.fetch_add(1, SeqCst);
        }))
        .unwrap();
    }
    let stopper = {
        let pool = Arc::clone(&pool);
        thread::spawn(move || pool.stop())
    };
    // The workers are held until the stop has begun, which shows by a refusal.
    until("the pool refuses", || pool.submit(Box::new(|| ())).is_err());
    gate.open();
    let rest = stopper.join().unwrap();
    assert!(rest.len() >= 10, "the ten, and what `until` put in before the refusal");
    assert_eq!(ran.load(SeqCst), 0);
    for job in rest {
        job();
    }
    assert_eq!(ran.load(SeqCst), 10, "what comes back is what was put in");
    assert!(pool.states().iter().all(|state| *state == WorkerState::Stopped));
}

#[test]
fn stop_is_idempotent() {
    let pool = ThreadPool::new(2, Jobs::new()).unwrap();
    pool.stop();
    assert!(pool.stop().is_empty());
    assert_eq!(pool.queued(), 0);
}

#[test]
fn waking_a_task_after_stop_hands_it_back() {
    let pool = ThreadPool::new(1, Jobs::new()).unwrap();
    pool.stop();
    let ran = Arc::new(AtomicBool::new(false));
    let job: Job = {
        let ran = Arc::clone(&ran);
        Box::new(move || ran.store(true, SeqCst))
    };
    let Stopped(job) = pool.submit(job).unwrap_err();
    assert!(!ran.load(SeqCst));
    job();
    assert!(ran.load(SeqCst), "it is the task itself");
}

/// A task with a key, that comes back too.
struct Keyed(AffinityKey, Notes<usize>, usize, Option<Gate>);

impl Task for Keyed {
    fn run(self) {
        self.1.add(self.2);
        if let Some(gate) = self.3 {
            gate.wait();
        }
    }

    fn affinity_key(&self) -> Option<&AffinityKey> {
        Some(&self.0)
    }
}

#[test]
fn stop_hands_back_tasks_with_a_key() {
    let pool = Arc::new(ThreadPool::new(2, FifoQueue::new()).unwrap());
    let (gate, notes, affinity) = (Gate::new(), Notes::new(), AffinityKey::new());
    pool.submit(Keyed(affinity.clone(), notes.clone(), 0, Some(gate.clone()))).unwrap();
    notes.wait_for(1);
    for number in 1..4 {
        pool.submit(Keyed(affinity.clone(), notes.clone(), number, None)).unwrap();
    }
    let stopper = {
        let pool = Arc::clone(&pool);
        thread::spawn(move || pool.stop())
    };
    until("the pool refuses", || pool.submit(Keyed(affinity.clone(), notes.clone(), 99, None)).is_err());
    gate.open();
    let rest = stopper.join().unwrap();
    assert_eq!(rest.iter().map(|task| task.2).filter(|number| *number != 99).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(notes.now(), [0]);
}

#[test]
fn a_task_may_stop_its_own_pool() {
    let pool = Arc::new(ThreadPool::new(3, Jobs::new()).unwrap());
    let done = Notes::new();
    {
        let (pool_of_task, done) = (Arc::clone(&pool), done.clone());
        pool.submit(Box::new(move || {
            pool_of_task.stop();
            // All others have ended; this one is in its task.
            let running =
                pool_of_task.states().iter().filter(|state| **state == WorkerState::Running).count();
            let stopped =
                pool_of_task.states().iter().filter(|state| **state == WorkerState::Stopped).count();
            done.add((running, stopped, pool_of_task.current_worker().is_some()));
        }))
        .unwrap();
    }
    assert_eq!(done.wait_for(1), [(1, 2, true)]);
    assert!(pool.stop().is_empty());
    assert_eq!(pool.states(), [WorkerState::Stopped; 3]);
}

#[test]
fn two_workers_may_stop_their_pool_at_once() {
    let pool = Arc::new(ThreadPool::new(2, Jobs::new()).unwrap());
    let (both, done) = (Arc::new(Barrier::new(2)), Notes::new());
    for _ in 0..2 {
        let (pool_of_task, both, done) = (Arc::clone(&pool), Arc::clone(&both), done.clone());
        pool.submit(Box::new(move || {
            both.wait();
            done.add(pool_of_task.stop().len());
        }))
        .unwrap();
    }
    assert_eq!(done.wait_for(2), [0, 0]);
    pool.stop();
}

#[test]
fn the_last_handle_may_go_in_a_task_of_the_pool() {
    let pool = Arc::new(ThreadPool::new(2, Jobs::new()).unwrap());
    let (gate, done) = (Gate::new(), Notes::new());
    {
        let (pool_of_task, gate, done) = (Arc::clone(&pool), gate.clone(), done.clone());
        pool.submit(Box::new(move || {
            gate.wait();
            drop(pool_of_task);
            done.add(());
        }))
        .unwrap();
    }
    drop(pool);
    gate.open();
    done.wait_for(1);
}

#[test]
fn dropping_a_pool_gives_what_was_queued_to_the_hook() {
    let left = Notes::new();
    let pool = {
        let left = left.clone();
        let hook = move |jobs: Leftover<Job>| left.add(jobs.len());
        ThreadPool::builder().workers(2).queue(Jobs::new()).on_leftover(hook).build().unwrap()
    };
    let gate = Gate::new();
    hold(&pool, &gate);
    for _ in 0..5 {
        pool.submit(Box::new(|| panic!("must not run"))).unwrap();
    }
    // Does not wait: the workers are still held.
    drop(pool);
    assert_eq!(left.now(), [5]);
    gate.open();
}

/// Everything that was ever put in is run, refused, or handed back: counted while four threads put in and one stops.
#[test]
fn nothing_is_lost_when_stop_comes_in_between() {
    for round in 0..30 {
        let pool = Arc::new(ThreadPool::new(2, Jobs::new()).unwrap());
        let ran = Arc::new(AtomicUsize::new(0));
        let start = Arc::new(Barrier::new(5));
        let putters: Vec<_> = (0..4)
            .map(|_| {
                let (pool, ran, start) = (Arc::clone(&pool), Arc::clone(&ran), Arc::clone(&start));
                thread::spawn(move || {
                    start.wait();
                    let mut refused = 0;
                    for _ in 0..500 {
                        let ran = Arc::clone(&ran);
                        let job: Job = Box::new(move || {
                            ran.fetch_add(1, SeqCst);
                        });
                        refused += usize::from(pool.submit(job).is_err());
                    }
                    refused
                })
            })
            .collect();
        start.wait();
        until("some have run", || ran.load(SeqCst) >= round * 20);
        let handed_back = pool.stop().len();
        let refused: usize = putters.into_iter().map(|putter| putter.join().unwrap()).sum();
        assert_eq!(ran.load(SeqCst) + handed_back + refused, 2000);
    }
}
