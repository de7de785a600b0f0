//! The threads: exactly-once under load, names, states, hooks, panics, cores, several pools.

mod common;

use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use common::{Gate, Notes, until};
use forebear_pool::{Affinity, FifoQueue, Job, Queue, StartError, ThreadPool, Warning, WorkerState};

type Jobs = FifoQueue<Job>;

#[test]
fn a_hundred_thousand_tasks_from_four_threads_run_exactly_once() {
    const EACH: usize = 25_000;
    for workers in [1, 2, 4] {
        let pool = Arc::new(ThreadPool::new(workers, Jobs::new()).unwrap());
        let runs: Arc<Vec<AtomicUsize>> = Arc::new((0..4 * EACH).map(|_| AtomicUsize::new(0)).collect());
        let (left, done) = (Arc::new(AtomicUsize::new(4 * EACH)), Gate::new());
        let putters: Vec<_> = (0..4)
            .map(|putter| {
                let (pool, runs, left, done) =
                    (Arc::clone(&pool), Arc::clone(&runs), Arc::clone(&left), done.clone());
                thread::spawn(move || {
                    for number in putter * EACH..(putter + 1) * EACH {
                        let (runs, left, done) = (Arc::clone(&runs), Arc::clone(&left), done.clone());
                        let job: Job = Box::new(move || {
                            runs[number].fetch_add(1, SeqCst);
                            if left.fetch_sub(1, SeqCst) == 1 {
                                done.open();
                            }
                        });
                        pool.submit(job).unwrap();
                    }
                })
            })
            .collect();
        for putter in putters {
            putter.join().unwrap();
        }
        done.wait();
        assert!(pool.stop().is_empty());
        assert!(runs.iter().all(|runs| runs.load(SeqCst) == 1));
    }
}

/// One at a time: each task finds the worker asleep or on its way there, so a lost wake-up hangs this.
#[test]
fn a_task_that_finds_all_asleep_wakes_one() {
    for workers in [1, 2, 3] {
        let pool = ThreadPool::new(workers, Jobs::new()).unwrap();
        for round in 0..2_000 {
            if round % 4 == 0 {
                until("all sleep", || pool.states().iter().all(|state| *state == WorkerState::Sleeping));
            }
            let done = Gate::new();
            let open = done.clone();
            pool.submit(Box::new(move || open.open())).unwrap();
            done.wait();
        }
        pool.stop();
    }
}

/// As many tasks as workers, each of which waits for all the others: they run only if every worker was woken.
#[test]
fn enough_work_for_all_wakes_all() {
    for _ in 0..200 {
        let pool = ThreadPool::new(4, Jobs::new()).unwrap();
        let all = Arc::new(Barrier::new(5));
        for _ in 0..4 {
            let all = Arc::clone(&all);
            pool.submit(Box::new(move || {
                all.wait();
            }))
            .unwrap();
        }
        all.wait();
        pool.stop();
    }
}

#[test]
fn workers_are_named_worker_and_their_number() {
    let names = names_of(ThreadPool::builder().workers(3));
    assert_eq!(names, ["Worker #0", "Worker #1", "Worker #2"]);
}

#[test]
fn the_prefix_of_the_names_can_be_chosen() {
    assert_eq!(names_of(ThreadPool::builder().workers(2).name_prefix("tile-")), ["tile-0", "tile-1"]);
}

fn names_of<Q: Queue + 'static>(builder: forebear_pool::ThreadPoolBuilder<Q>) -> Vec<String> {
    let names = Notes::new();
    let hook = names.clone();
    let builder =
        builder.queue(Jobs::new()).on_start(move |_| hook.add(thread::current().name().unwrap().to_owned()));
    let pool = builder.build().unwrap();
    let mut all = names.wait_for(pool.workers());
    pool.stop();
    all.sort();
    all
}

/// What a task holds is dropped before its worker takes the next, or sleeps, also if the task panicked.
#[test]
fn a_worker_lets_go_of_a_task_before_it_looks_for_the_next() {
    let pool = ThreadPool::builder().workers(1).queue(Jobs::new()).on_panic(|_| ()).build().unwrap();
    let (held, seen) = (Arc::new(()), Notes::new());
    let gate = Gate::new();
    let closed = gate.clone();
    pool.submit(Box::new(move || closed.wait())).unwrap();
    for panics in [false, true] {
        let (holds, looks, notes) = (Arc::clone(&held), Arc::downgrade(&held), seen.clone());
        pool.submit(Box::new(move || {
            let _holds = &holds;
            assert!(!panics, "on purpose");
        }))
        .unwrap();
        pool.submit(Box::new(move || notes.add(looks.strong_count()))).unwrap();
    }
    gate.open();
    assert_eq!(seen.wait_for(2), [2, 1], "those that have not run yet hold it, and this test");
    let (holds, notes) = (Arc::clone(&held), seen.clone());
    pool.submit(Box::new(move || notes.add(Arc::strong_count(&holds)))).unwrap();
    // It slept before, too.
    assert_eq!(seen.wait_for(3)[2], 2);
    until("it sleeps", || pool.states() == [WorkerState::Sleeping]);
    assert_eq!(Arc::strong_count(&held), 1);
    pool.stop();
}

#[test]
fn states_show_who_runs_and_who_sleeps() {
    let pool = ThreadPool::new(2, Jobs::new()).unwrap();
    until("both sleep", || pool.states() == [WorkerState::Sleeping; 2]);
    let (running, gate) = (Notes::new(), Gate::new());
    let pool = Arc::new(pool);
    {
        let (me, running, gate) = (Arc::clone(&pool), running.clone(), gate.clone());
        pool.submit(Box::new(move || {
            running.add(me.current_worker().unwrap());
            gate.wait();
        }))
        .unwrap();
    }
    let worker = running.wait_for(1)[0];
    assert_eq!(pool.states()[worker], WorkerState::Running);
    until("the other sleeps", || pool.states()[1 - worker] == WorkerState::Sleeping);
    gate.open();
    until("both sleep", || pool.states() == [WorkerState::Sleeping; 2]);
    pool.stop();
    assert_eq!(pool.states(), [WorkerState::Stopped; 2]);
    assert_eq!(pool.current_worker(), None);
}

#[test]
fn hooks_run_on_each_worker_first_and_last() {
    let notes = Notes::new();
    let note = |what: &'static str| {
        let notes = notes.clone();
        move |worker: usize| notes.add((worker, what, thread::current().id()))
    };
    let builder = ThreadPool::builder().workers(2).queue(Jobs::new());
    let pool = builder.on_start(note("start")).on_stop(note("stop")).build().unwrap();
    let both = Arc::new(Barrier::new(2));
    for _ in 0..2 {
        let (both, notes) = (Arc::clone(&both), notes.clone());
        pool.submit(Box::new(move || {
            both.wait();
            notes.add((9, "task", thread::current().id()));
        }))
        .unwrap();
    }
    notes.wait_for(4);
    pool.stop();
    let notes = notes.now();
    for worker in 0..2 {
        let thread = notes.iter().find(|note| note.0 == worker).unwrap().2;
        let mine: Vec<_> = notes.iter().filter(|note| note.2 == thread).map(|note| note.1).collect();
        assert_eq!(mine, ["start", "task", "stop"]);
    }
}

#[test]
fn a_panicking_hook_does_not_cost_the_worker() {
    let builder = ThreadPool::builder().workers(2).queue(Jobs::new());
    let pool = builder.on_start(|_| panic!("start hook")).on_stop(|_| panic!("stop hook")).build().unwrap();
    let done = Gate::new();
    let open = done.clone();
    pool.submit(Box::new(move || open.open())).unwrap();
    done.wait();
    assert!(pool.stop().is_empty());
}

#[test]
fn a_panicking_task_does_not_cost_the_worker() {
    let panics = Notes::new();
    let pool = {
        let panics = panics.clone();
        let builder = ThreadPool::builder().workers(1).queue(Jobs::new());
        builder
            .on_panic(move |panic| panics.add((panic.worker(), panic.message().map(str::to_owned))))
            .build()
            .unwrap()
    };
    let threads = Notes::new();
    for number in 0..3 {
        let threads = threads.clone();
        pool.submit(Box::new(move || {
            threads.add(thread::current().id());
            match number {
                0 => panic!("number {number}"),
                1 => panic::panic_any(17),
                _ => (),
            }
        }))
        .unwrap();
    }
    let threads = threads.wait_for(3);
    pool.stop();
    assert!(threads.iter().all(|thread| *thread == threads[0]), "the same thread went on");
    assert_eq!(panics.now(), [(0, Some("number 0".to_owned())), (0, None)]);
}

/// A payload that panics when it is dropped, and a hook that panics when it is told.
#[test]
fn neither_a_hostile_payload_nor_a_panicking_hook_costs_the_worker() {
    struct Hostile;
    impl Drop for Hostile {
        fn drop(&mut self) {
            if !thread::panicking() {
                panic!("in the payload's destructor");
            }
        }
    }
    let builder = ThreadPool::builder().workers(1).queue(Jobs::new()).on_panic(|_| panic!("in the hook"));
    let pool = builder.build().unwrap();
    pool.submit(Box::new(|| panic::panic_any(Hostile))).unwrap();
    let done = Gate::new();
    let open = done.clone();
    pool.submit(Box::new(move || open.open())).unwrap();
    done.wait();
    pool.stop();
}

/// A queue whose `pop` panics once: the worker lives, and the task behind is run.
#[test]
fn a_queue_that_panics_does_not_cost_the_worker() {
    struct Once(Vec<Job>, bool);
    impl Queue for Once {
        type Item = Job;
        fn push(&mut self, job: Job) {
            self.0.push(job);
        }
        fn pop(&mut self) -> Option<Job> {
            if self.0.is_empty() {
                return None;
            }
            if !std::mem::replace(&mut self.1, true) {
                panic!("in pop");
            }
            self.0.pop()
        }
        fn len(&self) -> usize {
            self.0.len()
        }
    }
    let panics = Notes::new();
    let noted = panics.clone();
    let builder = ThreadPool::builder().workers(1).queue(Once(Vec::new(), false));
    let pool = builder.on_panic(move |panic| noted.add(panic.message().map(str::to_owned))).build().unwrap();
    let done = Gate::new();
    let open = done.clone();
    pool.submit(Box::new(move || open.open())).unwrap();
    done.wait();
    pool.stop();
    assert_eq!(panics.now(), [Some("in pop".to_owned())]);
}

#[test]
fn a_core_that_does_not_exist_is_one_warning_and_no_pinning() {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let pool = {
        let warnings = Arc::clone(&warnings);
        let hook = move |warning: &Warning| warnings.lock().unwrap().push(warning.to_string());
        let builder = ThreadPool::builder().workers(4).queue(Jobs::new());
        builder.affinity(Affinity::Cores(vec![100_000])).on_warning(hook).build().unwrap()
    };
    let all = Arc::new(Barrier::new(5));
    for _ in 0..4 {
        let all = Arc::clone(&all);
        pool.submit(Box::new(move || {
            all.wait();
        }))
        .unwrap();
    }
    all.wait();
    pool.stop();
    let warnings = warnings.lock().unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("core 100000"), "{warnings:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn pinned_workers_run_on_their_core_only() {
    let allowed = allowed_cores();
    let cores = Notes::new();
    let hook = cores.clone();
    let builder = ThreadPool::builder().workers(2).queue(Jobs::new()).affinity(Affinity::OneEach);
    let pool = builder.on_start(move |worker| hook.add((worker, allowed_cores()))).build().unwrap();
    let mut cores = cores.wait_for(2);
    pool.stop();
    cores.sort();
    let expected = [0, 1].map(|worker| (worker, vec![allowed[worker % allowed.len()]]));
    assert_eq!(cores, expected);
    assert_eq!(allowed_cores(), allowed, "the caller is not pinned");
}

/// The cores the calling thread may run on, from the kernel's own account of it.
#[cfg(target_os = "linux")]
fn allowed_cores() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        from.parse::<usize>().unwrap()..=to.parse::<usize>().unwrap()
    };
    list.trim().split(',').flat_map(range).collect()
}

#[test]
fn two_pools_at_once_know_their_own_workers() {
    let pools = [2, 3].map(|workers| Arc::new(ThreadPool::new(workers, Jobs::new()).unwrap()));
    let notes = Notes::new();
    for (number, pool) in pools.iter().enumerate() {
        let (other, mine, notes) = (Arc::clone(&pools[1 - number]), Arc::clone(pool), notes.clone());
        pool.submit(Box::new(move || {
            let (there, here) = (other.current_worker(), mine.current_worker());
            // A task of one pool puts a task into the other, and waits for it.
            let done = Gate::new();
            let open = done.clone();
            other.submit(Box::new(move || open.open())).unwrap();
            done.wait();
            notes.add((there.is_some(), here.is_some()));
        }))
        .unwrap();
    }
    assert_eq!(notes.wait_for(2), [(false, true); 2]);
    pools[0].stop();
    let done = Gate::new();
    let open = done.clone();
    pools[1].submit(Box::new(move || open.open())).unwrap();
    done.wait();
    pools[1].stop();
}

#[test]
fn absurd_numbers_of_workers_are_errors() {
    assert!(matches!(ThreadPool::new(0, Jobs::new()), Err(StartError::NoWorkers)));
    assert!(
        matches!(ThreadPool::new(1 << 40, Jobs::new()), Err(StartError::TooManyWorkers { asked }) if asked == 1 << 40)
    );
    let name = ThreadPool::builder().workers(1).name_prefix("a\0b").build();
    assert!(matches!(name, Err(StartError::Name { .. })));
}
