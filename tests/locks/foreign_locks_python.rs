//! The cases of CPython's `Lib/test/lock_tests.py`, rewritten for these primitives: half of each bunch are requests, half are threads.
//!
//! `docs/foreign-suites.md` says which case is where, and which has no counterpart.

#[path = "../support/mod.rs"]
mod support;

use std::fmt::Debug;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebear::sync::{Barrier, Condvar, Event, Mutex, RawMutex, ReentrantMutex, RwLock, Semaphore};
use forebear::{Request, Runtime, TimeoutError};
use support::order::root;
use support::{Count, Joined, in_both_worlds, on_each, settle};

const N: usize = 6;

/// Requests and threads that do the same.
struct Bunch {
    requests: Vec<Request<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Bunch {
    fn new(runtime: &Runtime, n: usize, f: impl Fn() + Clone + Send + Sync + 'static) -> Bunch {
        Bunch {
            requests: (0..n / 2).map(|_| root(runtime).spawn(f.clone())).collect(),
            threads: (n / 2..n).map(|_| thread::spawn(f.clone())).collect(),
        }
    }

    fn join(self) {
        self.requests.iter().for_each(|request| request.wait().copied().unwrap());
        self.threads.into_iter().for_each(|thread| thread.joined().unwrap());
    }
}

// ---- BaseLockTests -------------------------------------------------------------------------------------------------------------

/// What the cases ask of a lock.
trait Locks: Debug + Send + Sync + 'static {
    const NEW: fn() -> Self;
    /// Calls `f` with the lock in hand.
    fn with<R>(&self, f: impl FnOnce() -> R) -> R;
    /// The same, if it is free.
    fn try_with<R>(&self, f: impl FnOnce() -> R) -> Option<R>;
    /// The same within a time.
    fn within<R>(&self, time: Duration, f: impl FnOnce() -> R) -> Result<R, TimeoutError>;
    /// Takes it for good.
    fn leak(&self);
}

macro_rules! locks {
    ($type:ty, $new:expr, $lock:ident, $try_lock:ident, $timeout:ident) => {
        impl Locks for $type {
            const NEW: fn() -> Self = || $new;

            fn with<R>(&self, f: impl FnOnce() -> R) -> R {
                let _held = self.$lock();
                f()
            }

            fn try_with<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
                let _held = self.$try_lock()?;
                Some(f())
            }

            fn within<R>(&self, time: Duration, f: impl FnOnce() -> R) -> Result<R, TimeoutError> {
                let _held = self.$timeout(time)?;
                Ok(f())
            }

            fn leak(&self) {
                mem::forget(self.$lock());
            }
        }
    };
}

locks!(Mutex<()>, Mutex::new(()), lock, try_lock, lock_timeout);
locks!(ReentrantMutex<()>, ReentrantMutex::new(()), lock, try_lock, lock_timeout);
locks!(RwLock<()>, RwLock::new(()), write, try_write, write_timeout);

/// With one permit it is a lock.
impl Locks for Semaphore {
    const NEW: fn() -> Self = || Semaphore::new(1);

    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        let _held = self.acquire().unwrap();
        f()
    }

    fn try_with<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        let _held = self.try_acquire()?;
        Some(f())
    }

    fn within<R>(&self, time: Duration, f: impl FnOnce() -> R) -> Result<R, TimeoutError> {
        let _held = self.acquire_timeout(time)?;
        Ok(f())
    }

    fn leak(&self) {
        self.acquire().unwrap().forget();
    }
}

fn base<L: Locks>() {
    // test_constructor, test_repr, test_locked_repr
    in_both_worlds(|| {
        let lock = L::NEW();
        let free = format!("{lock:?}");
        assert!(!free.is_empty());
        lock.with(|| assert!(!format!("{lock:?}").is_empty()));
        assert_eq!(format!("{lock:?}"), free);
    });
    // test_acquire_destroy, test_acquire_release, test_try_acquire
    in_both_worlds(|| {
        let lock = L::NEW();
        lock.leak();
        drop(lock);
        let lock = L::NEW();
        lock.with(|| ());
        lock.with(|| ());
        assert!(lock.try_with(|| ()).is_some() && lock.try_with(|| ()).is_some());
    });
    // test_try_acquire_contended
    on_each(|runtime| {
        let lock = Arc::new(L::NEW());
        lock.with(|| {
            let theirs = lock.clone();
            Bunch::new(runtime, 2, move || assert!(theirs.try_with(|| ()).is_none())).join();
        });
    });
    // test_acquire_contended, test_thread_leak
    on_each(|runtime| {
        let (lock, done) = (Arc::new(L::NEW()), Count::new());
        let bunch = lock.with(|| {
            let (theirs, theirs_done) = (lock.clone(), done.clone());
            let bunch = Bunch::new(runtime, N, move || {
                theirs.with(|| ());
                theirs_done.up();
            });
            settle(runtime);
            assert_eq!(done.get(), 0);
            bunch
        });
        bunch.join();
        assert_eq!(done.get(), N);
    });
    // test_with
    on_each(|runtime| {
        let lock = Arc::new(L::NEW());
        let theirs = lock.clone();
        assert!(catch_unwind(AssertUnwindSafe(|| lock.with(|| panic!("with it")))).is_err());
        Bunch::new(runtime, 2, move || theirs.with(|| ())).join();
    });
    // test_timeout
    on_each(|runtime| {
        let lock = Arc::new(L::NEW());
        lock.within(Duration::MAX, || ()).unwrap();
        lock.within(Duration::from_secs(5), || ()).unwrap();
        lock.with(|| {
            let theirs = lock.clone();
            let time = Duration::from_millis(2);
            Bunch::new(runtime, 2, move || {
                assert_eq!(theirs.within(time, || ()), Err(TimeoutError::TimedOut));
            })
            .join();
        });
        // test_state_after_timeout
        assert!(lock.try_with(|| ()).is_some());
    });
}

#[test]
fn the_base_cases_of_a_mutex() {
    base::<Mutex<()>>();
}

#[test]
fn the_base_cases_of_a_reentrant_mutex() {
    base::<ReentrantMutex<()>>();
}

#[test]
fn the_base_cases_of_one_who_writes() {
    base::<RwLock<()>>();
}

#[test]
fn the_base_cases_of_a_single_permit() {
    base::<Semaphore>();
}

/// LockTests: test_reacquire. (test_different_thread is in `tests/locks/raw_mutex.rs`.)
#[test]
fn a_lock_is_to_be_released_before_it_is_taken_again() {
    on_each(|runtime| {
        let (lock, phase) = (Arc::new(RawMutex::new()), Count::new());
        let (theirs, theirs_phase) = (lock.clone(), phase.clone());
        let bunch = Bunch::new(runtime, 1, move || {
            theirs.lock();
            theirs_phase.up();
            theirs.lock();
            theirs_phase.up();
        });
        phase.wait_for(1);
        settle(runtime);
        assert_eq!(phase.get(), 1);
        lock.unlock().unwrap();
        phase.wait_for(2);
        bunch.join();
        assert!(lock.is_locked());
    });
}

// ---- EventTests ----------------------------------------------------------------------------------------------------------------

/// RLockTests: test_locked, test_locked_with_2threads
#[test]
fn a_reentrant_mutex_is_locked_until_its_last_guard_goes_whoever_asks() {
    on_each(|runtime| {
        let lock = Arc::new(ReentrantMutex::new(()));
        let (go, held) = (Arc::new(Event::new()), Count::new());
        let bunch = {
            let (lock, go, held) = (lock.clone(), go.clone(), held.clone());
            // One at a time has it, twice.
            Bunch::new(runtime, 2, move || {
                let first = lock.lock();
                assert!(lock.is_locked() && lock.is_owned());
                let second = lock.lock();
                drop(first);
                assert!(lock.is_locked() && lock.is_owned());
                held.up();
                go.wait().unwrap();
                drop(second);
                assert!(!lock.is_owned());
            })
        };
        held.wait_for(1);
        assert!(lock.is_locked() && !lock.is_owned());
        go.set();
        bunch.join();
        assert!(!lock.is_locked());
    });
}

/// test_notify
#[test]
fn an_event_reaches_all_and_again_after_a_reset() {
    on_each(|runtime| {
        let event = Arc::new(Event::new());
        for _ in 0..2 {
            let (theirs, first, second) = (event.clone(), Count::new(), Count::new());
            let (one, two) = (first.clone(), second.clone());
            let bunch = Bunch::new(runtime, N, move || {
                theirs.wait().unwrap();
                one.up();
                theirs.wait().unwrap();
                two.up();
            });
            settle(runtime);
            assert_eq!(first.get(), 0);
            event.set();
            bunch.join();
            assert_eq!((first.get(), second.get()), (N, N));
            event.reset();
        }
    });
}

/// test_timeout
#[test]
fn waits_for_an_event_time_out_until_it_is_set() {
    on_each(|runtime| {
        let event = Arc::new(Event::new());
        for expected in [Err(TimeoutError::TimedOut), Ok(())] {
            let theirs = event.clone();
            Bunch::new(runtime, N, move || {
                for time in [Duration::ZERO, Duration::from_millis(2)] {
                    assert_eq!(theirs.wait_timeout(time), expected);
                }
            })
            .join();
            event.set();
        }
    });
}

// ---- ConditionTests ------------------------------------------------------------------------------------------------------------

/// test_notify: three of all in their first wait, then five in either, then whoever is left.
#[test]
fn a_condition_notifies_as_many_as_are_asked_for_in_two_phases() {
    on_each(|runtime| {
        let shared = Arc::new((Mutex::new(0_usize), Condvar::new()));
        for _ in 0..2 {
            let (waiting, first, second) = (Count::new(), Count::new(), Count::new());
            let (theirs, came, one, two) = (shared.clone(), waiting.clone(), first.clone(), second.clone());
            let bunch = Bunch::new(runtime, 5, move || {
                let mut phase = theirs.0.lock();
                for count in [&one, &two] {
                    came.up();
                    theirs.1.wait(&mut phase).unwrap();
                    count.up();
                }
            });
            // They count themselves with the mutex in hand, and give it back when they wait.
            let all_wait = |n: usize| {
                waiting.wait_for(n);
                drop(shared.0.lock());
            };
            all_wait(5);
            assert_eq!(shared.1.notify(3), 3);
            first.wait_for(3);
            all_wait(8);
            assert_eq!((first.get(), second.get()), (3, 0));
            // The two that came first are first; three more of the second phase.
            assert_eq!(shared.1.notify(5), 5);
            first.wait_for(5);
            second.wait_for(3);
            all_wait(10);
            assert_eq!((first.get(), second.get()), (5, 3));
            assert_eq!(shared.1.notify_all(), 2);
            bunch.join();
            assert_eq!(second.get(), 5);
        }
    });
}

/// test_timeout, test_waitfor, test_waitfor_timeout
#[test]
fn waits_for_a_condition_end_by_it_or_by_time() {
    on_each(|runtime| {
        let shared = Arc::new((Mutex::new(0_usize), Condvar::new()));
        let theirs = shared.clone();
        let short = Duration::from_millis(2);
        Bunch::new(runtime, N, move || {
            let mut state = theirs.0.lock();
            assert_eq!(theirs.1.wait_timeout(&mut state, short), Err(TimeoutError::TimedOut));
        })
        .join();
        let theirs = shared.clone();
        let met = Bunch::new(runtime, 2, move || {
            let mut state = theirs.0.lock();
            theirs.1.wait_while(&mut state, |state| *state < 4).unwrap();
            assert_eq!(*state, 4);
        });
        let theirs = shared.clone();
        let unmet = Bunch::new(runtime, 2, move || {
            let mut state = theirs.0.lock();
            let answer = theirs.1.wait_timeout_while(&mut state, short, |state| *state < 5);
            assert_eq!(answer, Err(TimeoutError::TimedOut));
        });
        for _ in 0..4 {
            settle(runtime);
            *shared.0.lock() += 1;
            shared.1.notify_all();
        }
        met.join();
        unmet.join();
    });
}

// ---- SemaphoreTests ------------------------------------------------------------------------------------------------------------

/// test_acquire_contended
#[test]
fn permits_are_had_as_they_come_free() {
    permits_come_free(|semaphore, more| (0..more).for_each(|_| semaphore.add_permits(1)));
}

/// test_multirelease
#[test]
fn permits_are_had_as_several_come_free_at_once() {
    permits_come_free(|semaphore, more| semaphore.add_permits(more));
}

fn permits_come_free(free: impl Fn(&Semaphore, usize)) {
    on_each(|runtime| {
        let (semaphore, had) = (Arc::new(Semaphore::new(7)), Count::new());
        semaphore.acquire().unwrap().forget();
        let (theirs, theirs_had) = (semaphore.clone(), had.clone());
        let bunch = Bunch::new(runtime, 10, move || {
            for _ in 0..2 {
                theirs.acquire().unwrap().forget();
                theirs_had.up();
            }
        });
        let mut expected = 6;
        for more in [0, 7, 6] {
            expected += more;
            free(&semaphore, more);
            had.wait_for(expected);
            settle(runtime);
            assert_eq!(had.get(), expected);
        }
        assert!(semaphore.try_acquire().is_none());
        semaphore.add_permits(1);
        bunch.join();
        assert_eq!(had.get(), 20);
    });
}

/// test_try_acquire_contended
#[test]
fn of_many_who_try_as_many_succeed_as_there_are_permits() {
    on_each(|runtime| {
        let (semaphore, had) = (Arc::new(Semaphore::new(4)), Count::new());
        semaphore.acquire().unwrap().forget();
        let (theirs, theirs_had) = (semaphore.clone(), had.clone());
        Bunch::new(runtime, 5, move || {
            for _ in 0..2 {
                if let Some(permit) = theirs.try_acquire() {
                    permit.forget();
                    theirs_had.up();
                }
            }
        })
        .join();
        assert_eq!(had.get(), 3);
    });
}

/// test_acquire_timeout, test_with, test_release_unacquired
#[test]
fn permits_come_back_from_a_panic_and_more_may_be_put_in() {
    in_both_worlds(|| {
        let semaphore = Semaphore::new(2);
        let short = Duration::from_millis(2);
        let (one, two) =
            (semaphore.acquire_timeout(short).unwrap(), semaphore.acquire_timeout(short).unwrap());
        assert_eq!(semaphore.acquire_timeout(short).err(), Some(TimeoutError::TimedOut));
        drop(one);
        let one = semaphore.acquire_timeout(short).unwrap();
        drop((one, two));
        let told = catch_unwind(AssertUnwindSafe(|| {
            let _one = semaphore.acquire().unwrap();
            let _two = semaphore.acquire().unwrap();
            assert!(semaphore.try_acquire().is_none());
            panic!("with both");
        }));
        assert!(told.is_err());
        assert_eq!(semaphore.available(), 2);
        semaphore.add_permits(1);
        assert!(semaphore.try_acquire_many(3).is_some());
    });
}

// ---- BarrierTests --------------------------------------------------------------------------------------------------------------

/// test_barrier, test_barrier_10, test_wait_return
#[test]
fn a_barrier_is_passed_in_lockstep() {
    on_each(|runtime| {
        const PASSES: usize = 10;
        let barrier = Arc::new(Barrier::new(N));
        let (before, after, led) = (Count::new(), Count::new(), Count::new());
        let (b, a, l) = (before.clone(), after.clone(), led.clone());
        Bunch::new(runtime, N, move || {
            for pass in 0..PASSES {
                b.up();
                assert_eq!(a.get(), pass * N);
                let first = barrier.wait().unwrap();
                a.up();
                assert_eq!(b.get(), (pass + 1) * N);
                let second = barrier.wait().unwrap();
                (0..usize::from(first.is_leader()) + usize::from(second.is_leader()))
                    .for_each(|_| _ = l.up());
            }
        })
        .join();
        assert_eq!((before.get(), after.get(), led.get()), (PASSES * N, PASSES * N, 2 * PASSES));
    });
}
