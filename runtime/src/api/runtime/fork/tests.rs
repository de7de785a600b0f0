//! What a child finds of what the process has once. How it gets on with runtimes is tested by `tests/process/death/fork.rs`.

use std::alloc::{Layout, alloc};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use forebear_context::context::{Context, current};

use super::*;
use crate::deadlock::foreign_stacks;
use crate::{Request, Runtime, scope};

/// A child that hangs is killed by this.
const SECONDS: u32 = 60;
/// How long a lock is held while another thread forks. If that thread is later than this, nothing is tested, and nothing fails.
const HELD: Duration = Duration::from_millis(100);

/// Forks. Whether `child`, which runs in the new process, has answered true; and not if it hangs.
pub(crate) fn in_a_child(child: impl FnOnce() -> bool) -> bool {
    install();
    // SAFETY: the child does what is tested here, and ends.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork"),
        0 => {
            // SAFETY: asks nothing of its caller.
            unsafe { libc::alarm(SECONDS) };
            let well = catch_unwind(AssertUnwindSafe(child)).unwrap_or(false);
            // SAFETY: ends the child without running what the parent has registered.
            unsafe { libc::_exit(i32::from(!well)) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: the child's number, and a place for the answer.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

fn eventually(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never came to that");
        thread::yield_now();
    }
}

#[test]
fn a_lock_of_the_process_that_another_thread_has_at_the_fork_is_free_in_the_child() {
    type Hold = fn() -> Box<dyn Any>;
    let locks: [(&str, Hold); 5] = [
        ("default", || Box::new(default::hold())),
        ("pools", || Box::new(held_back::hold())),
        ("cycle", || Box::new(cycle::hold())),
        ("parked", || Box::new(parked::hold())),
        ("memory that is to be freed later", || Box::new(reclaim::hold())),
    ];
    for (name, hold) in locks {
        let (has_it, it_has) = mpsc::channel();
        let other = thread::spawn(move || {
            let held = hold();
            has_it.send(()).unwrap();
            // The fork begins meanwhile, and waits for this.
            let start = Instant::now();
            while start.elapsed() < HELD {
                thread::yield_now();
            }
            drop(held);
        });
        it_has.recv().unwrap();
        let free = in_a_child(|| {
            drop(hold());
            true
        });
        assert!(free, "{name}");
        other.join().unwrap();
    }
}

#[test]
fn a_child_gives_memory_back_at_once_whoever_looked_at_the_fork() {
    /// Whether memory that is given back is deferred.
    fn buries() -> bool {
        let layout = Layout::new::<[u64; 8]>();
        // SAFETY: its size is not zero.
        let cell = NonNull::new(unsafe { alloc(layout) }).unwrap();
        let before = reclaim::cells();
        // SAFETY: allocated with this layout.
        unsafe { reclaim::free_cell(cell, layout) };
        reclaim::cells() != before
    }
    reclaim::read_section(|| {
        assert!(buries(), "somebody looks");
        assert!(in_a_child(|| !buries()));
    });
}

#[test]
fn a_child_waits_whoever_has_the_memory_of_a_runtime_of_the_parent() {
    let runtime = || Runtime::builder().workers(1).run_on_caller(false).build().unwrap();
    let parents = runtime();
    // More than this thread keeps when it waits.
    drop((0..20_000).map(|n| parents.enter(|| Request::new(move || n))).collect::<Vec<_>>());
    let (has_it, it_has) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let there = parents.clone();
    let other = thread::spawn(move || {
        let held = there.shared().depot.stock.hold();
        has_it.send(()).unwrap();
        _ = ended.recv();
        drop(held);
    });
    it_has.recv().unwrap();
    assert!(in_a_child(|| matches!(runtime().spawn(|| 7).wait(), Ok(7))));
    drop(end);
    other.join().unwrap();
}

#[test]
fn a_child_names_no_scope_that_a_thread_of_the_parent_waits_for() {
    const NAME: &str = "has a scope over a fork";
    fn is_named() -> bool {
        let mut named = false;
        parked::each_scope(|thread, _| named |= thread == NAME);
        named
    }
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (end, ended) = mpsc::channel::<()>();
    let there = runtime.clone();
    let waits = thread::Builder::new().name(NAME.to_owned()).spawn(move || {
        there.enter(|| {
            scope(|s| {
                let (begins, begun) = mpsc::channel();
                // On the worker, so that this thread has to wait for it.
                s.spawn(move || {
                    begins.send(()).unwrap();
                    _ = ended.recv();
                });
                begun.recv().unwrap();
            });
        });
    });
    eventually(is_named);
    assert!(in_a_child(|| !is_named()));
    drop(end);
    waits.unwrap().join().unwrap();
}

#[test]
fn a_child_follows_no_wait_to_a_thread_or_a_runtime_of_the_parent() {
    fn is_there(context: usize) -> bool {
        let mut there = false;
        let context = NonNull::new(ptr::with_exposed_provenance_mut::<Context>(context)).unwrap();
        foreign_stacks::with_holder(None, context, |_| there = true);
        there
    }
    fn address(context: Option<NonNull<Context>>) -> usize {
        context.unwrap().as_ptr().expose_provenance()
    }
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (tells, told) = mpsc::channel();
    let tells_too = tells.clone();
    let request = runtime.spawn(move || _ = tells_too.send(address(current())));
    // It is not waited for, so it is the worker that runs it.
    let coroutines = told.recv().unwrap();
    request.wait().unwrap();
    let (end, ended) = mpsc::channel::<()>();
    let other = thread::spawn(move || {
        crate::foreign::fiber();
        tells.send(address(crate::shared::thread::context())).unwrap();
        _ = ended.recv();
    });
    let others = told.recv().unwrap();
    crate::foreign::fiber();
    let own = address(crate::shared::thread::context());
    assert!([own, others, coroutines].into_iter().all(is_there));
    assert!(in_a_child(|| is_there(own) && !is_there(others) && !is_there(coroutines)));
    drop(end);
    other.join().unwrap();
}
