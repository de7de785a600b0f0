//! The names of the shim as shuttle has them.
//!
//! Shuttle takes every order for a sequentially consistent one: what only a weaker order breaks is loom's to find. Time is
//! counted in steps, so an execution is the same whenever its schedule is, time-outs and all.

use ::std::any::Any;
use ::std::cell::{self, Cell, RefCell};
use ::std::marker::PhantomData;
use ::std::ops::{Deref, DerefMut};
use ::std::rc::Rc;
use ::std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};
use ::std::time::Duration;

use ::shuttle::current;

pub use ::shuttle::sync::Arc;

pub use crate::__shuttle_thread_local as thread_local;

/// Atomic types and orders.
pub mod atomic {
    pub use ::shuttle::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
        fence,
    };
}

/// Hints to the processor. A spinning thread lets the others continue.
pub mod hint {
    pub use ::shuttle::hint::spin_loop;
}

/// Threads. A park with a time-out is a yield: who parks looks again anyhow.
pub mod thread {
    pub use ::shuttle::thread::{Builder, JoinHandle, Thread, current, park, spawn, yield_now};

    /// It may end for no reason, and does.
    pub fn park_timeout(_: ::std::time::Duration) {
        yield_now();
    }
}

/// Time: a microsecond a step.
pub mod time {
    use ::std::sync::OnceLock;
    use ::std::time::{Duration, Instant};

    /// What time it is.
    pub fn now() -> Instant {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        let steps = ::shuttle::current::context_switches();
        *BEGIN.get_or_init(Instant::now) + Duration::from_micros(steps as u64)
    }
}

/// Shuttle's, with guards that know their lock.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(::shuttle::sync::Mutex<T>);

/// The lock is its holder's.
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized> {
    of: &'a Mutex<T>,
    guard: ::shuttle::sync::MutexGuard<'a, T>,
}

impl<T> Mutex<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(::shuttle::sync::Mutex::new(value))
    }

    /// The value, out of the lock.
    ///
    /// # Errors
    ///
    /// A thread panicked while it held the lock.
    pub fn into_inner(self) -> LockResult<T> {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Blocks until the lock is the caller's.
    ///
    /// # Errors
    ///
    /// A thread panicked while it held the lock.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        self.with_guard(self.0.lock())
    }

    /// The lock, if it is free.
    ///
    /// # Errors
    ///
    /// It is locked, or a thread panicked while it held the lock.
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Ok(MutexGuard { of: self, guard }),
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
            Err(TryLockError::Poisoned(poisoned)) => Ok(self.with_guard(Err(poisoned))?),
        }
    }

    /// The value, by the only reference.
    ///
    /// # Errors
    ///
    /// A thread panicked while it held the lock.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.0.get_mut()
    }

    fn with_guard<'a>(
        &'a self,
        locked: LockResult<::shuttle::sync::MutexGuard<'a, T>>,
    ) -> LockResult<MutexGuard<'a, T>> {
        match locked {
            Ok(guard) => Ok(MutexGuard { of: self, guard }),
            Err(poisoned) => Err(PoisonError::new(MutexGuard { of: self, guard: poisoned.into_inner() })),
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Shuttle's, but that a wait with a time-out ends at once, as for no reason: the waiter checks its condition again anyhow.
#[derive(Debug, Default)]
pub struct Condvar(::shuttle::sync::Condvar);

/// Whether a wait came to its time-out: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(());

impl Condvar {
    /// A condition that nobody waits for.
    pub const fn new() -> Self {
        Self(::shuttle::sync::Condvar::new())
    }

    /// Unlocks, blocks until notified, and locks again.
    ///
    /// # Errors
    ///
    /// A thread panicked while it held the lock.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        guard.of.with_guard(self.0.wait(guard.guard))
    }

    /// Unlocks, lets others continue, and locks again.
    ///
    /// # Errors
    ///
    /// A thread panicked while it held the lock.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        _: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let of = guard.of;
        drop(guard);
        thread::yield_now();
        match of.lock() {
            Ok(guard) => Ok((guard, WaitTimeoutResult(()))),
            Err(poisoned) => Err(PoisonError::new((poisoned.into_inner(), WaitTimeoutResult(())))),
        }
    }

    /// Wakes one that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Declares thread-locals, as std's does.
#[doc(hidden)]
#[macro_export]
macro_rules! __shuttle_thread_local {
    ($($(#[$attr:meta])* $vis:vis static $name:ident: $t:ty = const $init:block;)*) => {$(
        $(#[$attr])* $vis static $name: $crate::shim::LocalKey<$t> = $crate::shim::LocalKey::new(|| $init);
    )*};
}

/// The key of a thread-local. A value without a destructor stays for as long as its thread is known, as std's do: the
/// destructors of other thread-locals use it. Shuttle's own keys, which the others are, take them from each other.
pub struct LocalKey<T: 'static> {
    falls: ::shuttle::thread::LocalKey<T>,
}

/// A thread's values without destructors, by key. A label of its thread; threads inherit their labels, hence the first.
#[derive(Clone, Debug)]
struct Lasting(current::TaskId, Rc<RefCell<Values>>);

type Values = Vec<(usize, Rc<dyn Any>)>;

impl<T: 'static> LocalKey<T> {
    #[doc(hidden)]
    pub const fn new(init: fn() -> T) -> LocalKey<T> {
        LocalKey { falls: ::shuttle::thread::LocalKey { init, _p: PhantomData } }
    }

    fn lasting(&'static self) -> Rc<T> {
        let me = current::me();
        let known = current::get_label_for_task::<Lasting>(me).filter(|lasting| lasting.0 == me);
        let values = known.unwrap_or_else(|| {
            let new = Lasting(me, Rc::default());
            current::set_label_for_task(me, new.clone());
            new
        });
        let key = ::std::ptr::from_ref(self).addr();
        let found = values.1.borrow().iter().find(|value| value.0 == key).map(|value| Rc::clone(&value.1));
        let value = found.unwrap_or_else(|| {
            let new: Rc<dyn Any> = Rc::new((self.falls.init)());
            values.1.borrow_mut().push((key, Rc::clone(&new)));
            new
        });
        value.downcast().expect("a key has one type")
    }

    /// Calls `f` with the value, which is made if need be.
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.try_with(f).expect("a thread-local that has been destroyed")
    }

    /// The same.
    ///
    /// # Errors
    ///
    /// The value has been destroyed.
    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, ::shuttle::thread::AccessError> {
        if ::std::mem::needs_drop::<T>() { self.falls.try_with(f) } else { Ok(f(&self.lasting())) }
    }
}

impl<T> ::std::fmt::Debug for LocalKey<T> {
    fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
        f.debug_struct("LocalKey").finish_non_exhaustive()
    }
}

/// A cell whose accesses take a while, in which others come to their turn. It fails if one of them meets another, and one of
/// the two writes.
///
/// Loom's knows which accesses *could* meet, by their orders; this one knows which did.
#[derive(Debug, Default)]
pub struct UnsafeCell<T: ?Sized> {
    readers: Cell<u32>,
    writes: Cell<bool>,
    /// Read to let others come to their turn.
    meanwhile: atomic::AtomicBool,
    value: cell::UnsafeCell<T>,
}

impl<T> UnsafeCell<T> {
    /// A cell that holds `value`.
    pub const fn new(value: T) -> Self {
        Self {
            readers: Cell::new(0),
            writes: Cell::new(false),
            meanwhile: atomic::AtomicBool::new(false),
            value: cell::UnsafeCell::new(value),
        }
    }

    /// The value, out of the cell.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> UnsafeCell<T> {
    /// Calls `f` with a pointer that may be read from during the call.
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        assert!(!self.writes.get(), "a cell is read while it is written");
        self.readers.set(self.readers.get() + 1);
        let _leaves = Leaves(|| self.readers.set(self.readers.get() - 1));
        self.meanwhile.load(atomic::Ordering::SeqCst);
        f(self.value.get())
    }

    /// Calls `f` with a pointer that may be written to during the call.
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        assert!(!self.writes.get(), "a cell is written while it is written");
        assert_eq!(self.readers.get(), 0, "a cell is written while it is read");
        self.writes.set(true);
        let _leaves = Leaves(|| self.writes.set(false));
        self.meanwhile.load(atomic::Ordering::SeqCst);
        f(self.value.get())
    }
}

/// Calls it when dropped.
struct Leaves<F: Fn()>(F);

impl<F: Fn()> Drop for Leaves<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
