//! Every waiter gets a lock in bounded time, whatever its age.
//!
//! The *ordered appenders*: each appends its number to a list under one lock when the number before it stands there, and polls until then. The
//! youngest comes first, so those that could not go on are older than the one that could. No clock is read but the watchdog's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use forebear::Runtime;
use forebear::sync::{Condvar, Mutex, RawMutex, ReentrantMutex, RwLock, Semaphore};

/// Aborts the process if `f` takes absurdly long.
fn watched<R>(f: impl FnOnce() -> R) -> R {
    let (done, over) = mpsc::channel::<()>();
    let dog = std::thread::spawn(move || {
        if over.recv_timeout(Duration::from_secs(120)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("somebody has waited for two minutes");
            std::process::abort();
        }
    });
    let result = f();
    drop(done);
    dog.join().unwrap();
    result
}

/// `appends` answers whether the number was appended.
fn ordered_appenders(
    workers: usize,
    many: u32,
    is_thread: impl Fn(u32) -> bool,
    appends: impl Fn(u32) -> bool + Clone + Send + 'static,
) {
    watched(|| {
        let runtime = Runtime::builder().workers(workers).build().unwrap();
        let (mut threads, mut requests) = (Vec::new(), Vec::new());
        for n in (1..=many).rev() {
            let appends = appends.clone();
            let poll = move || while !appends(n) {};
            if is_thread(n) {
                threads.push(std::thread::spawn(poll));
            } else {
                requests.push(runtime.spawn(poll));
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        requests.into_iter().for_each(|request| request.take().unwrap());
    });
}

fn append(list: &mut Vec<u32>, n: u32) -> bool {
    let is_next = list.last() == Some(&(n - 1));
    if is_next {
        list.push(n);
    }
    is_next
}

fn under_a_mutex() -> impl Fn(u32) -> bool + Clone + Send {
    let list = Arc::new(Mutex::new(vec![0]));
    move |n| append(&mut list.lock(), n)
}

#[test]
fn requests_that_poll_under_a_mutex_do_not_keep_each_other_from_it() {
    for workers in [2, 4] {
        ordered_appenders(workers, 29, |_| false, under_a_mutex());
    }
}

#[test]
fn threads_that_poll_under_a_mutex_do_not_keep_each_other_from_it() {
    ordered_appenders(1, 29, |_| true, under_a_mutex());
}

#[test]
fn requests_and_threads_that_poll_under_a_mutex_do_not_keep_each_other_from_it() {
    for workers in [1, 2, 4] {
        ordered_appenders(workers, 29, |n| n % 2 == 0, under_a_mutex());
    }
}

#[test]
fn writers_of_a_rw_lock_do_not_keep_each_other_from_it() {
    let list = Arc::new(RwLock::new(vec![0]));
    ordered_appenders(2, 19, |n| n % 2 == 0, move |n| append(&mut list.write(), n));
}

#[test]
fn holders_of_a_reentrant_mutex_do_not_keep_each_other_from_it() {
    let list = Arc::new(ReentrantMutex::new(std::cell::RefCell::new(vec![0])));
    ordered_appenders(2, 19, |n| n % 2 == 0, move |n| append(&mut list.lock().borrow_mut(), n));
}

fn under_a_raw_mutex() -> impl Fn(u32) -> bool + Clone + Send {
    let list = Arc::new((RawMutex::new(), std::sync::Mutex::new(vec![0])));
    move |n| {
        list.0.lock();
        let appended = append(&mut list.1.lock().unwrap(), n);
        list.0.unlock().unwrap();
        appended
    }
}

#[test]
fn holders_of_a_raw_mutex_do_not_keep_each_other_from_it() {
    ordered_appenders(2, 19, |n| n % 2 == 0, under_a_raw_mutex());
}

/// Has the calling thread, and those that it starts, stay on one of its processors.
#[cfg(target_os = "linux")]
fn stay_on_one_processor() {
    // SAFETY: a set of processors is bits, and zeros are one.
    let (mut may, mut one) = unsafe { std::mem::zeroed::<(libc::cpu_set_t, libc::cpu_set_t)>() };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: the sets are there, and the calls write to their own set only.
    unsafe {
        assert_eq!(libc::sched_getaffinity(0, size, &raw mut may), 0);
        let first = (0..libc::CPU_SETSIZE as usize).find(|&n| libc::CPU_ISSET(n, &may));
        libc::CPU_SET(first.expect("it runs on one"), &mut one);
        assert_eq!(libc::sched_setaffinity(0, size, &raw const one), 0);
    }
}

/// A waiter that looks for a held lock keeps its holder from the processor; so do the eight threads, which never wait.
#[cfg(target_os = "linux")]
#[test]
fn on_one_busy_processor_they_do_not_keep_each_other_from_it() {
    /// Lets the threads go, also if the test fails.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let _over = Over(&over);
            stay_on_one_processor();
            for _ in 0..8 {
                s.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop()
                    }
                });
            }
            for workers in [1, 2] {
                ordered_appenders(workers, 9, |n| n % 2 == 0, under_a_mutex());
                ordered_appenders(workers, 9, |n| n % 2 == 0, under_a_raw_mutex());
            }
        });
    });
}

#[test]
fn holders_of_a_permit_do_not_keep_each_other_from_it() {
    let list = Arc::new((Semaphore::new(1), std::sync::Mutex::new(vec![0])));
    let appends = move |n| {
        let _permit = list.0.acquire().unwrap();
        append(&mut list.1.lock().unwrap(), n)
    };
    ordered_appenders(2, 19, |n| n % 2 == 0, appends);
}

#[test]
fn each_that_waits_for_a_condition_is_notified_in_the_end() {
    let list = Arc::new((Mutex::new(vec![0]), Condvar::new()));
    let appends = move |n| {
        let mut held = list.0.lock();
        if append(&mut held, n) {
            // The last wakes whoever is left.
            list.1.notify_all();
            return true;
        }
        // One notification for each look, so it goes round among those that wait.
        list.1.notify_one();
        list.1.wait_timeout(&mut held, Duration::from_millis(1)).ok();
        false
    };
    ordered_appenders(2, 19, |n| n % 2 == 0, appends);
}
