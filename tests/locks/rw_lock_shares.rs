//! `RwLock`: which stacks the runtime takes for its readers. A stack that reads no longer is in no cycle, wherever its guard went.

#[path = "../support/mod.rs"]
mod support;

use std::cell::RefCell;
use std::mem;
use std::sync::OnceLock;

use forebear::sync::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};
use forebear::{Runtime, State, WaitError, yield_now};
use support::order::root;
use support::{Flag, Watchdog, until};

thread_local! {
    /// A guard on its way from one stack of the thread to another.
    static CARRIED: RefCell<Option<MappedRwLockReadGuard<'static, ()>>> = const { RefCell::new(None) };
}

fn carry(lock: &'static RwLock<()>) {
    CARRIED.set(Some(RwLockReadGuard::map(lock.read(), |whole| whole)));
}

fn drop_carried() {
    drop(CARRIED.take().expect("a guard was left here"));
}

fn leaked() -> &'static mut RwLock<()> {
    Box::leak(Box::new(RwLock::new(())))
}

/// A request reads a lock no longer and waits for a writer, which waits until another request has read. Nobody waits in a circle.
///
/// `stale` runs in the request first and answers the lock, of which the request has no guard. The other request is `read`, which reads from when it raises the
/// first flag until the second is raised.
fn it_waits_for_a_writer(
    stale: fn(&Runtime) -> &'static RwLock<()>,
    read: fn(&'static RwLock<()>, &Flag, &Flag),
) {
    let _dog = Watchdog::new("");
    // All on one thread, which the guards do not leave.
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let lock: &'static OnceLock<&'static RwLock<()>> = Box::leak(Box::default());
    let [has_left, reads, is_read, write, waits] = [(); 5].map(|()| Flag::new());
    let writer = {
        let write = write.clone();
        root(&runtime).name("writer").spawn(move || {
            write.wait();
            drop(lock.get().unwrap().write());
        })
    };
    let former = {
        let (here, writer) = (runtime.clone(), writer.clone());
        let (has_left, reads, waits) = (has_left.clone(), reads.clone(), waits.clone());
        root(&runtime).name("former").spawn(move || {
            let lock = *lock.get_or_init(|| stale(&here));
            has_left.raise();
            reads.wait();
            write.raise();
            // The writer waits first. So the wait here is the one that would close a cycle.
            while lock.try_read().is_some() {
                yield_now().unwrap();
            }
            waits.raise();
            writer.wait().copied()
        })
    };
    let reader = {
        let is_read = is_read.clone();
        root(&runtime).name("reader").spawn(move || {
            has_left.wait();
            read(lock.get().unwrap(), &reads, &is_read);
        })
    };
    waits.wait();
    until(|| former.state() == State::Suspended || former.is_done());
    is_read.raise();
    former.wait().unwrap().as_ref().expect("it reads no longer");
    reader.wait().unwrap();
}

/// Reads it plainly.
fn plainly(lock: &'static RwLock<()>, reads: &Flag, is_read: &Flag) {
    let _reading = lock.read();
    reads.raise();
    is_read.wait();
}

#[test]
fn a_guard_that_another_stack_of_its_thread_has_dropped() {
    it_waits_for_a_writer(
        |runtime| {
            let lock = leaked();
            carry(lock);
            root(runtime).name("dropper").spawn(drop_carried).wait().unwrap();
            lock
        },
        plainly,
    );
}

#[test]
fn a_guard_that_was_dropped_by_one_who_reads_the_same_lock() {
    it_waits_for_a_writer(
        |_| {
            let lock = leaked();
            carry(lock);
            lock
        },
        |lock, reads, is_read| {
            let _own = lock.read();
            drop_carried();
            reads.raise();
            is_read.wait();
        },
    );
}

#[test]
fn a_guard_that_was_forgotten_with_its_lock() {
    it_waits_for_a_writer(
        |_| {
            let lock = leaked();
            mem::forget(lock.read());
            *lock = RwLock::new(());
            lock
        },
        plainly,
    );
}

#[test]
fn a_guard_that_was_forgotten_before_its_lock_moved() {
    it_waits_for_a_writer(
        |_| {
            let lock = leaked();
            mem::forget(lock.read());
            let _moved = mem::take(lock);
            lock
        },
        plainly,
    );
}

#[test]
fn a_guard_that_outlived_its_request_and_stack() {
    it_waits_for_a_writer(
        |runtime| {
            let lock: &'static RwLock<()> = leaked();
            root(runtime).name("taker").spawn(move || carry(lock)).wait().unwrap();
            // Others use the taker's stack.
            let crowd: Vec<_> = (0..20).map(|_| root(runtime).spawn(|| yield_now().unwrap())).collect();
            crowd.iter().for_each(|request| _ = request.wait().unwrap());
            drop_carried();
            lock
        },
        plainly,
    );
}

#[test]
fn one_who_reads_twice_and_has_dropped_one_guard_elsewhere_is_still_found() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let lock: &'static RwLock<()> = leaked();
    let here = runtime.clone();
    let both = root(&runtime).name("both").spawn(move || {
        let _still = lock.read();
        carry(lock);
        root(&here).name("dropper").spawn(drop_carried).wait().unwrap();
        drop(lock.write());
    });
    let Err(WaitError::Failed(failure)) = both.wait() else { panic!("it still reads") };
    assert!(failure.panic_message().unwrap().contains("deadlock"), "{failure:#}");
    assert!(!lock.is_locked());
}
