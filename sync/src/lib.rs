//! Locks, channels, sleeps and `select!` for requests and for threads, written once on the context seam.
//!
//! A request that waits here is suspended, and its worker continues with other work; a thread that waits blocks. Both stand in the same
//! queues. Nothing here knows requests: what waits is a [context](forebear_context::context).
//!
//! Programs use this crate through [`forebear`](https://docs.rs/forebear), which has it in four modules: `sync`, `channel`, `select` and
//! `time`. This crate itself is for authors of a primitive of their own; see [`primitive`].

mod barrier;
mod block_on;
#[cfg(all(feature = "blocking", not(any(loom, shuttle))))]
mod blocking;
pub mod channel;
mod condvar;
mod event;
mod guarded;
mod heap;
mod here;
mod interval;
mod latch;
mod lazy_lock;
mod lock_queue;
mod mutex;
mod once;
mod once_lock;
mod queued_wait;
mod raw_lock;
mod raw_mutex;
mod raw_rw_lock;
mod reentrant_mutex;
mod rw_lock;
mod select;
mod semaphore;
mod sleep;
mod wait_set;

pub use self::barrier::{Barrier, BarrierWaitResult};
pub use self::block_on::block_on;
#[cfg(all(feature = "blocking", not(any(loom, shuttle))))]
pub use self::blocking::{BlockingError, blocking};
pub use self::condvar::Condvar;
pub use self::event::Event;
pub use self::interval::{Interval, MissedTickBehavior, interval, interval_at};
pub use self::latch::Latch;
pub use self::lazy_lock::LazyLock;
pub use self::mutex::{MappedMutexGuard, Mutex, MutexGuard};
pub use self::once::Once;
pub use self::once_lock::OnceLock;
pub use self::raw_mutex::{RawMutex, UnlockError};
pub use self::reentrant_mutex::{MappedReentrantMutexGuard, ReentrantMutex, ReentrantMutexGuard};
pub use self::rw_lock::{
    MappedRwLockReadGuard, MappedRwLockWriteGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard,
    RwLockWriteGuard,
};
pub use self::select::{After, CancelledSource, after, cancelled};
pub use self::semaphore::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
pub use self::sleep::{now, sleep, sleep_until};
pub use forebear_context::source::Source;

/// For authors of a primitive of their own: the queue below a lock, in which the most urgent waiter is first.
pub mod primitive {
    pub use crate::lock_queue::{Chosen, ChosenList, LockQueue, Place};
}

/// What `select!` expands to.
#[doc(hidden)]
pub mod __select {
    pub use crate::select::{End, Picked, Row, SelectTerms, arm, first};
}
