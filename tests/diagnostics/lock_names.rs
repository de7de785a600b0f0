//! Names of locks and channels: in `Debug`, and in the message about a cycle of waits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forebear::Runtime;
use forebear::channel::{bounded_named, oneshot, unbounded_named, watch};
use forebear::sync::{Condvar, Mutex, RawMutex, ReentrantMutex, RwLock, Semaphore};

static NAMED: Mutex<u32> = Mutex::named("cache", 7);
static UNNAMED: Mutex<u32> = Mutex::new(7);

#[test]
fn a_lock_shows_the_name_it_was_given() {
    assert_eq!(format!("{NAMED:?}"), "Mutex { name: \"cache\", value: 7, .. }");
    assert_eq!(format!("{UNNAMED:?}"), "Mutex { value: 7, .. }");
    assert_eq!(format!("{:?}", RwLock::named("plan", 7)), "RwLock { name: \"plan\", value: 7, .. }");
    let log = ReentrantMutex::named("log", 7);
    assert_eq!(format!("{log:?}"), "ReentrantMutex { name: \"log\", value: 7, .. }");
    assert!(format!("{:?}", RawMutex::named("turn")).starts_with("RawMutex { name: \"turn\""));
    assert!(format!("{:?}", Semaphore::named("slots", 2)).starts_with("Semaphore { name: \"slots\""));
    assert!(format!("{:?}", Condvar::named("changed")).starts_with("Condvar { name: \"changed\""));
    assert_eq!([NAMED.name(), UNNAMED.name()], [Some("cache"), None]);
}

#[test]
fn both_ends_of_a_channel_show_the_name_it_was_given() {
    let (sender, receiver) = bounded_named::<u32>("frames", 8);
    assert!(format!("{sender:?}").starts_with("Sender { name: \"frames\""));
    assert!(format!("{receiver:?}").starts_with("Receiver { name: \"frames\""));
    assert_eq!(unbounded_named::<u32>("events").1.name(), Some("events"));
    assert_eq!(oneshot::named::<u32>("answer").1.name(), Some("answer"));
    assert_eq!(watch::named("state", 1).1.name(), Some("state"));
}

/// What a thread is told that takes the lock a second time. No runtime is to know the thread.
fn told_when_it_locks_twice<G>(lock: impl Fn() -> G) -> String {
    let _held = lock();
    let refused = catch_unwind(AssertUnwindSafe(|| drop(lock())));
    refused.map(|()| String::new()).unwrap_or_else(|told| *told.downcast::<String>().unwrap())
}

#[test]
fn a_thread_that_no_runtime_knows_is_told_that_it_waits_for_itself() {
    let thread = std::thread::Builder::new().name("unknown".to_owned());
    let work = || {
        let (mutex, rw_lock) = (Mutex::named("mine", 0), RwLock::named("plan", 0));
        for _ in 0..20 {
            let told = told_when_it_locks_twice(|| mutex.lock());
            assert!(told.contains("`unknown` waits for `a Mutex \"mine\" ("), "{told}");
            let told = told_when_it_locks_twice(|| mutex.lock_or_cancelled().unwrap());
            assert!(told.contains("a Mutex \"mine\""), "{told}");
            let told = told_when_it_locks_twice(|| mutex.try_lock().unwrap_or_else(|| mutex.lock()));
            assert!(told.contains("a Mutex \"mine\""), "{told}");
            let told = told_when_it_locks_twice(|| {
                mutex.lock_timeout(std::time::Duration::ZERO).unwrap_or_else(|_| mutex.lock())
            });
            assert!(told.contains("a Mutex \"mine\""), "{told}");
            let told = told_when_it_locks_twice(|| rw_lock.write());
            assert!(told.contains("an RwLock \"plan\""), "{told}");
        }
        // A wait with a limit ends by that, and what was given back is free.
        let held = mutex.lock();
        assert!(mutex.lock_timeout(std::time::Duration::ZERO).is_err());
        drop(held);
        // A condition gives the lock back while it waits, and others may have it then.
        let changed = Condvar::new();
        std::thread::scope(|scope| {
            let mut held = mutex.lock();
            scope.spawn(|| {
                let mut held = mutex.lock();
                *held = 1;
                changed.notify_one();
                // The other waits for the mutex now, or soon, and not for itself.
                (0..1000).for_each(|_| std::thread::yield_now());
            });
            while *held == 0 {
                changed.wait(&mut held).unwrap();
            }
        });
        drop(mutex.lock());
    };
    thread.spawn(work).unwrap().join().unwrap();
}

#[test]
fn a_thread_that_gets_to_know_a_runtime_is_told_that_it_waits_for_itself() {
    let work = || {
        let (mutex, other) = (Mutex::named("mine", 0), Mutex::new(0));
        let (held, kept) = (mutex.lock(), other.lock());
        let runtime = Runtime::builder().workers(1).build().unwrap();
        assert_eq!(runtime.spawn(|| 7).take().unwrap(), 7);
        let refused = catch_unwind(AssertUnwindSafe(|| drop(mutex.lock())));
        assert!(refused.unwrap_err().downcast::<String>().unwrap().contains("a Mutex \"mine\""));
        drop(held);
        drop(kept);
        // What was given back is nobody's: others may have it, and this thread waits for them.
        let taken = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let (theirs, taken) = (&other, &taken);
            scope.spawn(move || {
                let _held = theirs.lock();
                taken.wait();
                (0..1000).for_each(|_| std::thread::yield_now());
            });
            taken.wait();
            drop(other.lock());
        });
    };
    std::thread::spawn(work).join().unwrap();
}

#[test]
fn a_cycle_of_waits_names_the_locks_on_its_way() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let twice = |lock: &Mutex<u32>| {
        let _held = lock.lock();
        let refused = catch_unwind(AssertUnwindSafe(|| drop(lock.lock())));
        refused.unwrap_err().downcast::<String>().map_or_else(|_| String::new(), |message| *message)
    };
    let lock = Arc::new(Mutex::named("table of blocks", 0));
    let message = runtime.spawn(move || twice(&lock)).take().unwrap();
    assert!(message.contains("a Mutex \"table of blocks\" ("), "{message}");
    let message = runtime.spawn(move || twice(&Mutex::new(0))).take().unwrap();
    assert!(message.contains("a Mutex ("), "{message}");
}
