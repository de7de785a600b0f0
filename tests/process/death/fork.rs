//! A forked child has none of the runtime's threads: any use of an inherited runtime is a clear panic, never a hang, and a new
//! one works.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use forebear::pool::{AffinityKey, FifoQueue, Job, Leftover, ThreadPool};
use forebear::timer::{InProcessTimer, configure, configured};
use forebear::{Request, RequestPool, Runtime, join, parallelism, scope, spawn, try_scope};

use crate::child;
use crate::forked::{ended_well, fork};

const WHY: &str = "this runtime's threads are in the parent process; build a new one after fork";

/// It panics, and says why.
#[track_caller]
fn refused<R>(what: &str, f: impl FnOnce() -> R) {
    refused_with(WHY, what, f);
}

#[track_caller]
fn refused_with<R>(why: &str, what: &str, f: impl FnOnce() -> R) {
    let Err(payload) = catch_unwind(AssertUnwindSafe(f)) else { panic!("{what}: not refused") };
    let told = payload.downcast_ref::<String>().cloned();
    let told = told.or_else(|| payload.downcast_ref::<&str>().map(|told| (*told).to_owned()));
    assert!(told.as_ref().is_some_and(|told| told.contains(why)), "{what}: {told:?}");
}

#[test]
fn any_use_of_an_inherited_runtime_is_a_clear_panic() {
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(2).build().unwrap();
        let (done, fresh) = (runtime.spawn(|| 7), runtime.enter(|| Request::new(|| 1)));
        done.wait().unwrap();
        // The child has the last handles of these, as far as it knows.
        let mut last = Some(Runtime::builder().workers(1).build().unwrap());
        let mut fresh = Some(fresh);
        let unsubmitted = runtime.enter(|| Request::new(|| 1));
        let (open, opened) = std::sync::mpsc::channel::<()>();
        let suspended = runtime.spawn(move || opened.recv());
        let mut working = Some(runtime.spawn(forebear::yield_now));
        ended_well(fork(|| {
            refused("spawn", || runtime.spawn(|| 1));
            refused("run", || runtime.run(|| 1));
            refused("try_run", || runtime.try_run(|| Ok(1)));
            refused("enter", || runtime.enter(|| spawn(|| 1)));
            refused("new", || runtime.enter(|| Request::new(|| 1)));
            refused("submit", || fresh.as_ref().unwrap().submit().state());
            refused("wait", || _ = suspended.wait());
            refused("wait_timeout", || _ = suspended.wait_timeout(Duration::from_secs(1)));
            refused("wait for an unsubmitted one", || _ = unsubmitted.wait());
            refused("scope", || runtime.enter(|| scope(|s| drop(s.spawn(|| 1)))));
            refused("join", || runtime.enter(|| join(|| 1, || 2)));
            refused("pool", || {
                runtime.enter(|| {
                    let mut pool = RequestPool::new();
                    pool.add(|| 1);
                    pool.wait()
                })
            });
            refused("shutdown", || runtime.shutdown(Duration::ZERO));
            refused("finish", || runtime.finish(Duration::ZERO));
            // What has an answer has it still.
            assert_eq!(done.wait().ok(), Some(&7));
            assert_eq!(runtime.workers(), 2);
            drop((last.take(), fresh.take(), working.take()));
        }));
        // The parent goes on as before.
        assert_eq!(runtime.spawn(|| 3).take().unwrap(), 3);
        drop(open);
        runtime.finish(Duration::MAX).unwrap();
        _ = suspended.wait();
    });
    end.assert_survived();
}

#[test]
fn any_use_of_an_inherited_thread_pool_is_a_clear_panic_and_its_drop_does_nothing() {
    let end = child::run("", &[], |_| {
        static LEFT: AtomicUsize = AtomicUsize::new(0);
        let count = |tasks: Leftover<Job>| _ = LEFT.fetch_add(tasks.len(), Ordering::Relaxed);
        let queue = FifoQueue::<Job>::new;
        let pool = ThreadPool::builder().workers(2).queue(queue()).on_leftover(count).build().unwrap();
        let ((begun, begins), (open, opened)) = (mpsc::channel(), mpsc::channel::<()>());
        let opened = Arc::new(Mutex::new(opened));
        for _ in 0..2 {
            let (begun, opened) = (begun.clone(), opened.clone());
            let holds: Job = Box::new(move || {
                begun.send(()).unwrap();
                _ = opened.lock().map(|opened| opened.recv());
            });
            pool.submit(holds).unwrap();
            begins.recv().unwrap();
        }
        let (ran, runs) = mpsc::channel();
        pool.submit(Box::new(move || ran.send(std::process::id()).unwrap())).unwrap();
        let mut last = Some(pool);
        ended_well(fork(|| {
            let why = "this thread pool's threads are in the parent process; make a new one after fork";
            let pool = last.as_ref().unwrap();
            refused_with(why, "submit", || pool.submit(Box::new(|| ())));
            refused_with(why, "stop", || pool.stop().len());
            refused_with(why, "queued", || pool.queued());
            refused_with(why, "worker_of", || pool.worker_of(&AffinityKey::new()));
            // What needs neither threads nor locks is as before.
            assert_eq!((pool.workers(), pool.states().len(), pool.current_worker()), (2, 2, None));
            assert!(format!("{pool:?}").contains("parent"));
            // A new one works, whichever stacks its threads have, and also after the old one is gone.
            let new = ThreadPool::new(2, queue()).unwrap();
            drop(last.take());
            assert_eq!(LEFT.load(Ordering::Relaxed), 0, "they are the parent's");
            let (ran, runs) = mpsc::channel();
            new.submit(Box::new(move || ran.send(7).unwrap())).unwrap();
            assert_eq!(runs.recv(), Ok(7));
            assert!(new.stop().is_empty());
        }));
        // The parent goes on as before.
        drop(open);
        assert_eq!(runs.recv(), Ok(std::process::id()));
        assert!(last.unwrap().stop().is_empty());
    });
    end.assert_survived();
}

#[test]
fn a_task_that_returns_in_a_forked_child_ends_that_by_name_and_runs_nothing_else() {
    let end = child::run("", &[], |_| {
        let pool = ThreadPool::new(1, FifoQueue::<Job>::new()).unwrap();
        let ((go, goes), (tell, told)) = (mpsc::channel::<()>(), mpsc::channel());
        let forks = move || {
            goes.recv().unwrap();
            // SAFETY: the child returns from this task and does nothing else.
            match unsafe { libc::fork() } {
                // SAFETY: asks nothing of its caller.
                0 => _ = unsafe { libc::alarm(20) },
                pid => {
                    let mut status = 0;
                    // SAFETY: the child's number, and a place for the answer.
                    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                    tell.send(status).unwrap();
                }
            }
        };
        pool.submit(Box::new(forks)).unwrap();
        let (ran, runs) = mpsc::channel();
        let next = move || {
            eprintln!("the next task runs");
            ran.send(()).unwrap();
        };
        pool.submit(Box::new(next)).unwrap();
        go.send(()).unwrap();
        let status = told.recv().unwrap();
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT, "status {status:#x}");
        runs.recv().unwrap();
        assert!(pool.stop().is_empty());
    });
    end.assert_survived();
    assert_eq!(end.stderr.matches("the next task runs").count(), 1, "{end:#?}");
    assert_eq!(end.stderr.matches("has returned in a forked child").count(), 1, "{end:#?}");
}

#[test]
fn a_new_runtime_works_in_the_child_and_so_does_the_default() {
    let end = child::run("", &[], |_| {
        assert_eq!(spawn(|| 1).take().unwrap(), 1);
        let _busy = spawn(std::thread::park);
        ended_well(fork(|| {
            let runtime = Runtime::builder().workers(2).build().unwrap();
            assert_eq!(runtime.run(|| (0..10).map(|n| spawn(move || n).take().unwrap()).sum::<i32>()), 45);
            assert!(
                try_scope(|s| {
                    s.spawn(|| 1);
                    Ok(())
                })
                .is_ok(),
                "the default is made anew"
            );
            assert!(parallelism().get() >= 1);
            assert_eq!(spawn(|| spawn(|| 2).take().unwrap()).take().unwrap(), 2);
            runtime.shutdown(Duration::MAX).unwrap();
            Runtime::builder().workers(1).build_global().unwrap();
            assert_eq!(spawn(|| parallelism().get()).take().unwrap(), 1);
            // And in a child of the child.
            ended_well(fork(|| {
                refused("twice", || runtime.spawn(|| 1));
                assert_eq!(spawn(|| 2).take().unwrap(), 2);
            }));
        }));
    });
    end.assert_survived();
}

#[test]
fn forks_while_other_threads_use_runtimes_hang_nobody() {
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(2).build().unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    while !over.load(std::sync::atomic::Ordering::Acquire) {
                        _ = runtime.spawn(forebear::yield_now).wait();
                        runtime.run(|| spawn(|| 1).take()).unwrap();
                        spawn(|| 1).wait_timeout(Duration::from_secs(60)).unwrap();
                    }
                });
            }
            for _ in 0..30 {
                ended_well(fork(|| {
                    refused("spawn", || runtime.spawn(|| 1));
                    let new = Runtime::builder().workers(1).build().unwrap();
                    assert_eq!(new.spawn(|| 2).wait().ok(), Some(&2));
                    assert_eq!(spawn(|| 3).wait_timeout(Duration::from_secs(60)).ok(), Some(&3));
                }));
            }
            over.store(true, std::sync::atomic::Ordering::Release);
        });
    });
    end.assert_survived();
}

/// Other threads have the lock around it nearly all the time.
#[test]
fn forks_while_other_threads_ask_for_the_timers_of_the_process_hang_nobody() {
    let end = child::run("", &[], |_| {
        configure(InProcessTimer::new());
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    while !over.load(std::sync::atomic::Ordering::Acquire) {
                        assert!(configured().is_some());
                        configure(InProcessTimer::new());
                    }
                });
            }
            for _ in 0..200 {
                ended_well(fork(|| {
                    assert!(configured().is_some());
                    configure(InProcessTimer::new());
                    ended_well(fork(|| assert!(configured().is_some())));
                }));
            }
            over.store(true, std::sync::atomic::Ordering::Release);
        });
    });
    end.assert_survived();
}

#[test]
fn a_fork_inside_a_request_can_go_on_alone_and_dies_by_name_where_it_would_wait() {
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(2).build().unwrap();
        let (open, opened) = std::sync::mpsc::channel::<()>();
        let other = runtime.spawn(move || opened.recv());
        runtime.run(|| {
            // Its own children it can run.
            ended_well(fork(|| assert_eq!(spawn(|| spawn(|| 2).take().unwrap()).take().unwrap(), 2)));
            let status = fork(|| _ = other.wait());
            assert!(
                libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT,
                "status {status:#x}"
            );
        });
        drop(open);
        _ = other.wait();
    });
    end.assert_survived();
    assert!(end.stderr.contains("forked inside a request"), "{end:#?}");
}
