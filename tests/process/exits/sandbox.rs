//! A program that puts up a filter of system calls, before it starts a runtime or after.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebear::pool::WorkerState;
use forebear::sync::Event;
use forebear::time::sleep;
use forebear::{BuildError, CancelReason, Request, RequestPool, Runtime, ShutdownError, WaitError, spawn};

use crate::child;
use crate::filter::refuse;

/// Something of everything: secrets asked for, timers of other threads, thieves, pools, a look at all stacks.
fn use_it(runtime: &Runtime) {
    let jobs: Vec<_> = (0..200_u64)
        .map(|n| {
            runtime.spawn(move || {
                let shared = Request::new(move || n);
                let borrower = std::sync::Arc::new(shared);
                let other = borrower.clone();
                let job = spawn(move || *other.wait().unwrap());
                sleep(Duration::from_micros(100)).unwrap();
                job.take().unwrap() + *borrower.wait().unwrap()
            })
        })
        .collect();
    for (n, job) in jobs.iter().enumerate() {
        _ = job.wait_timeout(Duration::from_micros(50));
        assert_eq!(job.wait().ok(), Some(&(2 * n as u64)));
    }
    runtime.enter(|| {
        let mut pool = RequestPool::new();
        for n in 0..50 {
            pool.add(move || drop(vec![n]));
        }
        pool.wait().unwrap();
    });
    assert!(runtime.active() < 300);
}

/// What it wants to see is what a runtime tells that was shut down too early.
fn leave_a_laggard(runtime: &Runtime) {
    let (open, opened) = std::sync::mpsc::channel::<()>();
    let laggard = Request::builder().name("laggard").on(runtime).spawn(move || opened.recv());
    while laggard.state() != forebear::State::Running {
        std::thread::yield_now();
    }
    let Err(ShutdownError::Laggards { laggards, .. }) = runtime.shutdown(Duration::ZERO) else {
        panic!("nobody was left")
    };
    assert_eq!(laggards.iter().map(|laggard| &*laggard.name).collect::<Vec<_>>(), ["laggard"]);
    drop(open);
    runtime.shutdown(Duration::MAX).unwrap();
    assert!(laggard.is_done());
}

#[test]
fn a_filter_that_refuses_membarrier_breaks_nothing_whenever_it_comes() {
    for when in ["before", "between", "after"] {
        let end = child::run(when, &[], |when| {
            if when == "before" {
                refuse(&[libc::SYS_membarrier]);
            }
            let runtime = Runtime::builder().workers(2).build().unwrap();
            if when == "after" {
                use_it(&runtime);
            }
            refuse(&[libc::SYS_membarrier]);
            use_it(&runtime);
            let other = Runtime::builder().workers(2).build().unwrap();
            use_it(&other);
            leave_a_laggard(&runtime);
            leave_a_laggard(&other);
        });
        end.assert_survived();
    }
}

#[test]
fn a_filter_that_comes_late_and_leaves_no_way_to_a_fence_ends_the_process_by_name() {
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(2).build().unwrap();
        refuse(&[libc::SYS_membarrier, libc::SYS_sched_setaffinity]);
        use_it(&runtime);
    });
    end.assert_killed_by(libc::SIGABRT);
    for part in ["membarrier", "sched_setaffinity", "before the first runtime"] {
        assert!(end.stderr.contains(part), "no `{part}` in {end:#?}");
    }
}

#[test]
fn a_filter_that_comes_early_may_refuse_both_ways_to_a_fence() {
    let end = child::run("", &[], |_| {
        refuse(&[libc::SYS_membarrier, libc::SYS_sched_setaffinity, libc::SYS_sched_getaffinity]);
        let runtime = Runtime::builder().workers(2).build().unwrap();
        use_it(&runtime);
        leave_a_laggard(&runtime);
    });
    end.assert_survived();
}

/// Nobody raids then, so children wait for that point, however long their maker computes.
#[test]
fn without_membarrier_children_are_run_elsewhere_from_the_next_scheduling_point_of_their_maker() {
    for when in ["before", "later"] {
        let end = child::run(when, &[], |when| {
            if when == "before" {
                refuse(&[libc::SYS_membarrier]);
            }
            let runtime = Runtime::builder().workers(2).build().unwrap();
            if when == "later" {
                use_it(&runtime);
                refuse(&[libc::SYS_membarrier]);
                use_it(&runtime);
            }
            let maker = Request::builder().on(&runtime).own_stack().spawn(|| {
                let elsewhere = Arc::new(AtomicUsize::new(0));
                let here = std::thread::current().id();
                let children = [(); 4].map(|()| {
                    let elsewhere = elsewhere.clone();
                    spawn(move || {
                        assert_ne!(std::thread::current().id(), here);
                        elsewhere.fetch_add(1, Ordering::Release);
                    })
                });
                while elsewhere.load(Ordering::Acquire) < children.len() {
                    // A scheduling point at which the maker itself runs nothing.
                    drop(spawn(|| ()));
                    std::thread::yield_now();
                }
            });
            maker.wait().unwrap();
        });
        end.assert_survived();
    }
}

/// Whether each other thread of this process sleeps, and so has come through its start.
fn all_others_sleep() -> bool {
    // SAFETY: it only answers.
    let me = unsafe { libc::syscall(libc::SYS_gettid) }.to_string();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(Result::ok).filter(|task| task.file_name().to_str() != Some(&me)).all(|task| {
        // A thread that has ended meanwhile has no file.
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('S'))
    })
}

/// What stacks there are is used; a request that would need another one may fail, and says so.
#[test]
fn a_filter_that_refuses_memory_fails_requests_that_need_new_stacks_and_hangs_nobody() {
    const CROWD: usize = 3_000;
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(2).build().unwrap();
        // Enough for what the second half needs.
        use_it(&runtime);
        // std asks for memory as a thread starts, before the first line of ours: workers, and the thread that keeps the time.
        while runtime.states().contains(&WorkerState::Starting) || !(0..3).all(|_| all_others_sleep()) {
            std::thread::yield_now();
        }
        refuse(&[libc::SYS_madvise, libc::SYS_mprotect]);
        let (go, begun) = (Arc::new(Event::new()), Arc::new(AtomicUsize::new(0)));
        let crowd: Vec<_> = (0..CROWD)
            .map(|_| {
                let (go, begun) = (go.clone(), begun.clone());
                runtime.try_spawn(move || {
                    begun.fetch_add(1, Ordering::Relaxed);
                    Ok(go.wait()?)
                })
            })
            .collect();
        // With no stack left a worker waits on the last one it has, and begins nothing new meanwhile.
        while begun.load(Ordering::Relaxed) < 16 {
            std::thread::yield_now();
        }
        go.set();
        for one in crowd {
            match one.wait() {
                Ok(()) => {}
                Err(WaitError::Failed(failure)) => {
                    let text = format!("{failure:#}");
                    assert!(text.contains("stack"), "{text}");
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(runtime.run(|| spawn(|| 7).take().unwrap()), 7);
        leave_a_laggard(&runtime);
        drop(runtime);
    });
    end.assert_survived();
}

/// What has its threads goes on. What would start one is refused, or does without.
#[test]
fn a_filter_that_refuses_clone_lets_no_runtime_start_and_leaks_one_whose_last_handle_goes_in_a_request() {
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(2).build().unwrap();
        let other = crate::warned(Runtime::builder().name("other").workers(1)).build().unwrap();
        let request = other.spawn(|| 7);
        refuse(&[libc::SYS_clone, libc::SYS_clone3]);
        assert!(matches!(Runtime::builder().workers(1).build(), Err(BuildError::Start(_))));
        // Its thread for time-outs was not there yet: the workers keep the time.
        use_it(&runtime);
        runtime.spawn(move || drop(other)).wait().unwrap();
        assert_eq!(request.wait().ok(), Some(&7));
        let synchronous = Runtime::builder().workers(0).build().unwrap();
        assert_eq!(synchronous.run(|| spawn(|| 7).take().unwrap()), 7);
        leave_a_laggard(&runtime);
    });
    end.assert_survived();
    let named = "the last handle of runtime 'other' went inside a request, and no thread could be started";
    assert!(end.stderr.contains(named), "{end:#?}");
}

/// What is there is used: stacks, and the memory of the C library. A new runtime gets neither. Without workers it is built, and cannot run what needs another stack
/// than the caller's.
#[test]
fn a_filter_that_refuses_mmap_lets_what_is_there_go_on_and_ends_what_is_new() {
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(2).build().unwrap();
        use_it(&runtime);
        while runtime.states().contains(&WorkerState::Starting) || !(0..3).all(|_| all_others_sleep()) {
            std::thread::yield_now();
        }
        refuse(&[libc::SYS_mmap]);
        use_it(&runtime);
        let refused = Runtime::builder().workers(1).build().err();
        assert!(matches!(refused, Some(BuildError::Stack(_) | BuildError::Start(_))), "{refused:?}");
        let synchronous = crate::warned(Runtime::builder().name("synchronous").workers(0)).build().unwrap();
        let queued = synchronous.spawn(|| 7);
        drop(synchronous);
        assert!(matches!(queued.wait(), Err(WaitError::TargetCancelled(CancelReason::Shutdown))));
        leave_a_laggard(&runtime);
        drop(runtime);
    });
    end.assert_survived();
    let named = "the last handle of runtime 'synchronous' was dropped, and no thread can run what is queued";
    assert!(end.stderr.contains(named), "{end:#?}");
}

/// The processor time that this thread has used.
fn used_by_this_thread() -> Duration {
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the record is valid for the call.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut used) }, 0);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// With a seat in another runtime or without one: the thread sleeps, and is named.
#[test]
fn a_thread_that_can_have_no_stack_to_drive_with_waits_without_processor_time_and_is_named() {
    for seats in ["none", "another"] {
        let end = child::run(seats, &[], |seats| {
            let other = Runtime::builder().workers(0).build().unwrap();
            if seats == "another" {
                assert_eq!(other.run(|| spawn(|| 7).take().unwrap()), 7);
            }
            refuse(&[libc::SYS_mmap]);
            let runtime = crate::warned(Runtime::builder().name("starved").workers(0)).build().unwrap();
            let queued = runtime.spawn(|| 7);
            let before = used_by_this_thread();
            let answer = queued.wait_timeout(Duration::from_secs(2));
            assert!(matches!(answer, Err(WaitError::TimedOut)), "{answer:?}");
            let used = used_by_this_thread() - before;
            assert!(used < Duration::from_millis(500), "{used:?}");
            drop((runtime, other));
        });
        end.assert_survived();
        let named =
            "waits in runtime 'starved', which has no workers, and can have no stack to run its requests on";
        assert_eq!(end.stderr.matches(named).count(), 1, "{end:#?}");
    }
}

/// No other thread gives anything back, so nobody wakes the one that waits.
#[test]
fn a_thread_that_could_have_no_stack_to_drive_with_drives_when_there_is_memory() {
    for seats in ["none", "another"] {
        let end = child::run(seats, &[], |seats| {
            let other = Runtime::builder().workers(0).build().unwrap();
            if seats == "another" {
                assert_eq!(other.run(|| spawn(|| 7).take().unwrap()), 7);
            }
            let limit = |bytes: u64| {
                let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
                // SAFETY: the record is valid for the call.
                assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
            };
            let (starved, is_starved) = std::sync::mpsc::channel();
            let (start, started) = std::sync::mpsc::channel();
            let lifts = std::thread::spawn(move || {
                start.send(()).unwrap();
                is_starved.recv().unwrap();
                limit(libc::RLIM_INFINITY);
            });
            started.recv().unwrap();
            // The heap may grow, and the first stacks find no place.
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
            limit(pages * 4096 + (8 << 20));
            let runtime = Runtime::builder().workers(0).build().unwrap();
            let queued = runtime.spawn(|| 7);
            let early = queued.wait_timeout(Duration::from_millis(20));
            starved.send(()).unwrap();
            let late = queued.wait_timeout(Duration::from_secs(50));
            lifts.join().unwrap();
            assert!(matches!(early, Err(WaitError::TimedOut)), "{early:?}");
            assert!(matches!(late, Ok(7)), "{late:?}");
        });
        end.assert_survived();
    }
}
