//! A thread that cannot be made. Alone in its program: it takes the program's address space away.
#![cfg(target_os = "linux")]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use forebear_pool::{FifoQueue, Job, StartError, ThreadPool};

const STACK: usize = 256 << 20;

#[test]
fn a_thread_that_cannot_start_is_an_error_and_leaves_none_behind() {
    // Room for two such stacks, not for eight.
    let used = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = used.split(' ').next().unwrap().parse().unwrap();
    let limit = pages * 4096 + 2 * STACK as u64 + (STACK as u64) / 2;
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: a limit of ours, read by the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);

    let before = threads();
    let hooks = Arc::new(AtomicUsize::new(0));
    let count = || {
        let hooks = Arc::clone(&hooks);
        move |_| {
            hooks.fetch_add(1, SeqCst);
        }
    };
    let builder = ThreadPool::builder().workers(8).queue(FifoQueue::<Job>::new()).stack_size(STACK);
    let error = builder.on_start(count()).on_stop(count()).build().unwrap_err();
    let StartError::Thread { index, .. } = &error else { panic!("{error}") };
    assert!((1..8).contains(index), "some had been made: {index}");
    assert!(error.source().is_some());
    assert_eq!(threads(), before, "those that had been made are gone");
    assert_eq!(hooks.load(SeqCst), 0, "no hook ran");

    // And the same program can have a pool of a size that fits.
    let pool =
        ThreadPool::builder().workers(2).queue(FifoQueue::<Job>::new()).stack_size(1 << 20).build().unwrap();
    pool.stop();
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}
