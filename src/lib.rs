//! Stackful requests on a fixed set of threads: the oldest ancestor runs first.
//!
//! forebear runs **requests**: blocking-style functions, each on a stack of its own. A request that waits is suspended,
//! and its thread continues with other work. Requests know who created them and who waits for them, and whatever has the
//! oldest ancestor runs first.
//!
//! ```
//! use forebear::prelude::*;
//!
//! fn sum(tree: &[u64]) -> u64 {
//!     if tree.len() < 2 {
//!         return tree.iter().sum();
//!     }
//!     let (left, right) = tree.split_at(tree.len() / 2);
//!     let (a, b) = join(|| sum(left), || sum(right)); // borrowed, perhaps in parallel
//!     a + b
//! }
//!
//! let numbers = Request::new(|| (0..1_000).collect::<Vec<u64>>()); // nothing runs yet
//! let (a, b) = (numbers.clone(), numbers.clone());
//! let total = Request::try_new(move || Ok(sum(a.wait()?)));
//! let count = Request::try_new(move || Ok(b.wait()?.len()));
//! count.submit(); // elsewhere, if anybody is idle
//! println!("{} of {}", total.wait()?, count.wait()?); // `total` runs right here
//! # Ok::<(), WaitError>(())
//! ```
//!
//! # When to use it, and when not
//!
//! For CPU-heavy, dependency-shaped programs in blocking style: image and volume viewers, block-wise pipelines,
//! simulation, build and game tools, and libraries below such programs. For pure data parallelism rayon is as fast and
//! simpler; for tens of thousands of sockets take tokio.
//! [From rayon or tokio](https://github.com/forebear-rs/forebear/blob/main/docs/migration.md) says what to write here for what such a program has.
//!
//! # The pieces
//!
//! * [`Request`]: one computation and, later, its value. [`spawn`], [`Request::new`], [`Request::wait`],
//!   [`Request::take`], [`Request::builder`].
//! * [`Request::then`], [`then_all`](fn@then_all) and [`RequestBuilder::after`]: what a request needs is declared. Until that is over, the request holds no
//!   stack and no worker.
//! * [`wait_all`], [`wait_first`] and [`RequestSet`]: several requests, all of them, the first, or in the order in which they end.
//! * [`Request::completer`]: a request without code, which a thread or a callback completes.
//! * [`join`] and [`scope`]: structure, with borrowed data.
//! * [`Runtime`]: workers; several in one process, or the default one. Without workers it is for debugging: everything on
//!   the calling thread ([`workers(0)`](RuntimeBuilder::workers)), or in an order that a seed replays
//!   ([`seeded`](RuntimeBuilder::seeded)).
//! * [`Priority`]: a root's place in the order, before its age.
//! * [`sync`]: [`Mutex`](sync::Mutex), [`RwLock`](sync::RwLock), [`Condvar`](sync::Condvar), [`Semaphore`](sync::Semaphore) and
//!   more, for requests and threads alike. A request that waits for a lock is suspended, and may hold one across any wait; with the locks
//!   of std it would stop its worker.
//! * [`channel`] and [`select!`]: handing something to somebody else; waiting for the first of several.
//! * [`time`]: the clock of a runtime, which in a test can be moved by hand.
//! * [`timer`]: expiration timers, for what may get stuck: if it is not done in time, its worker is ended from outside.
//! * [`block_on`](fn@block_on), [`WaitFuture`], `blocking` and `tokio::block_on`: to and from futures, and calls that block their thread. The
//!   last two are features of their names: what they stand on comes with them.
//! * [`pool`]: plain worker threads with a queue discipline of your choice, without requests.
//!
//! # A table of shared requests
//!
//! Memoised queries, blocks, thumbnails: the table has a [`Request`] for each key, and who needs a value waits for it. Two obvious forms are wrong:
//!
//! * An entry that is a child of the request that asked first is cancelled with it, or if it fails, unless another waits for the entry at that moment.
//!   Later readers find it in the table, and their waits answer [`WaitError::TargetCancelled`]. So make entries
//!   [`detached()`](RequestBuilder::detached), and replace an entry that was cancelled.
//! * A job that submits its entries and waits for them one by one wants one of them at a time. If it is cancelled, the others go on, since a detached
//!   request has no parent. Prefetch by [`wait_all`], [`RequestSet`] or [`then_all`](fn@then_all): they want all entries until they are over.
//!
//! ```
//! use std::collections::HashMap;
//! use std::sync::Arc;
//! use forebear::sync::Mutex;
//! use forebear::{CancelReason, Request, WaitError, wait_all};
//!
//! #[derive(Default)]
//! struct Table(Mutex<HashMap<u64, Request<u64>>>);
//!
//! impl Table {
//!     fn entry(self: &Arc<Table>, n: u64) -> Request<u64> {
//!         let new = || {
//!             let table = Arc::clone(self);
//!             Request::builder().name(format!("fibonacci {n}")).detached().try_build(move || Ok(match n {
//!                 0 | 1 => n,
//!                 _ => table.get(&[n - 2, n - 1])?.iter().sum(),
//!             }))
//!         };
//!         let mut entries = self.0.lock();
//!         let entry = entries.entry(n).or_insert_with(new);
//!         if entry.is_cancelled() {
//!             *entry = new();
//!         }
//!         entry.clone()
//!     }
//!
//!     fn get(self: &Arc<Table>, numbers: &[u64]) -> Result<Vec<u64>, WaitError> {
//!         loop {
//!             let entries: Vec<_> = numbers.iter().map(|n| self.entry(*n)).collect();
//!             match wait_all(&entries) {
//!                 // With a job that wanted it: the next round has another entry.
//!                 Err(WaitError::TargetCancelled(CancelReason::Asked)) => {}
//!                 values => return Ok(values?.into_iter().copied().collect()),
//!             }
//!         }
//!     }
//! }
//!
//! let table = Arc::<Table>::default();
//! assert_eq!(table.get(&[50, 10])?, [12_586_269_025, 55]);
//! # Ok::<(), WaitError>(())
//! ```
//!
//! Entries that need each other answer [`WaitError::CircularWait`], with their names. The example
//! [`memo_table`](https://github.com/forebear-rs/forebear/blob/main/examples/memo_table.rs) shows a cancelled job and a cycle.
//!
//! # What pinning cannot make sound
//!
//! A started request stays on one worker for its life, so `Rc`, `RefCell` guards and other `!Send` values may live
//! across a wait. But the requests of one worker interleave. An API that stores a *borrow* in a thread-local for the
//! length of a closure (`scoped_tls::ScopedKey::set` and its like) assumes that closures on one thread end in the
//! reverse order of their beginning. Two requests that wait inside such closures break that, in safe code: the second
//! to leave restores a pointer into a released frame. Do not wait inside such a closure; [`no_suspend`] makes a wait in
//! it panic, with the name you give the region.
//!
//! Known to be affected: `scoped-tls`, `scoped-tls-hkt`, `better_scoped_tls`, `environmental`, `salsa` (`attach`),
//! `swc_common` (`GLOBALS.set`), `solar-interface`. To find others, search your dependencies for thread-locals that
//! hold a pointer and are set for the length of a closure. And run your tests on one worker, under AddressSanitizer.
//! [docs/pinning.md](https://github.com/forebear-rs/forebear/blob/main/docs/pinning.md) has the commands. It also lists
//! what is sound and still goes wrong: a thread-local's `RefCell` or a mutex guard held across a wait, locks that count by
//! thread, entered tracing spans.
//!
//! # Panic hooks
//!
//! A backtrace needs more stack than a small request has, so the first runtime wraps the panic hook it finds and calls it
//! on the thread's own stack. Set your hook before that; one that is set later replaces the wrapper, runs on the
//! request's stack, and [`Failure::location`] then knows no panics.
//!
//! # `panic = "abort"`
//!
//! Supported. What can only unwind does not exist then: [`Request::force`], [`OrUnwind`], [`catch`], and the iteration over a channel's
//! receiver that waits ([`Receiver::iter`](channel::Receiver::iter), `for item in &receiver`); write
//! `while let Ok(item) = receiver.recv()`. Other forms exist, and where they would unwind they end the process, in a request with a line that
//! says so: [`scope`], [`Runtime::run`], [`time::timeout`], the iteration over a [`RequestSet`], and a `select!` without an arm that can answer a
//! cancel. To cancel a request inside one of them is such a case, and so is a job's failure in a `scope`. [`try_scope`], [`Runtime::try_run`],
//! [`time::try_timeout`], [`RequestSet::wait_next`] and an arm of `cancelled()` answer an error instead.
#![cfg_attr(all(feature = "blocking", feature = "tokio"), doc = "")]
#![cfg_attr(all(feature = "blocking", feature = "tokio"), doc = include_str!("bridges.md"))]

/// A plain thread pool, for tasks of any kind and with a queue of any discipline; it knows no requests.
///
/// ```
/// use forebear::pool::{FifoQueue, Job, ThreadPool};
/// use std::sync::mpsc;
///
/// let pool = ThreadPool::new(2, FifoQueue::<Job>::new())?;
/// let (send, receive) = mpsc::channel();
/// pool.submit(Box::new(move || send.send(6 * 7).unwrap()))?;
/// assert_eq!(receive.recv()?, 42);
/// assert!(pool.stop().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod pool {
    #[doc(inline)]
    pub use forebear_pool::{
        Affinity, AffinityKey, FifoQueue, IntoIter, Job, Leftover, LifoQueue, MAX_WORKERS, PriorityQueue,
        Queue, StartError, Stopped, Task, TaskPanic, ThreadPool, ThreadPoolBuilder, Warning, WorkerState,
    };

    /// For authors of a pool of their own: the engine below [`ThreadPool`], which knows threads and no tasks.
    pub mod engine {
        #[doc(inline)]
        pub use forebear_pool::{
            Arrived, Engine, Generation, Linked, Mailbox, Options, Signals, Supply, Worker,
        };
    }
}

pub use forebear_runtime::{
    Abandoned, AnyRequest, BuildError, CancelOnDrop, CancelReason, Cancellation, Cancelled, Canceller, Chain,
    Completer, Cycle, Dependencies, DoneFuture, Error, Failure, Laggard, LateEnd, Metrics, Outcome, Priority,
    Request, RequestBuilder, RequestId, RequestPool, RequestSet, Result, Runtime, RuntimeBuilder, Scope,
    ShutdownError, SourceLocation, StackError, State, TakeFuture, TimeoutError, WaitError, WaitFuture,
    cancel_reason, check_cancelled, is_cancelled, join, no_suspend, parallelism, scope, shield, spawn,
    then_all, try_join, try_scope, try_spawn, wait_all, wait_first, yield_now,
};
#[cfg(panic = "unwind")]
pub use forebear_runtime::{OrUnwind, catch};

pub use forebear_runtime::dump;

/// Locks, and what else requests and threads wait for together. A request that waits is suspended, and its worker continues with other work; a
/// thread that waits blocks. Both stand in the same queues.
///
/// | to | use |
/// | --- | --- |
/// | change a value one at a time | [`Mutex`](sync::Mutex); [`ReentrantMutex`](sync::ReentrantMutex) where the holder may lock it again; [`RawMutex`](sync::RawMutex) without a value and a guard |
/// | read a value together, and change it one at a time | [`RwLock`](sync::RwLock) |
/// | wait until a value meets a condition | [`Condvar`](sync::Condvar) |
/// | limit how many do something at a time | [`Semaphore`](sync::Semaphore) |
/// | wait until something has happened | [`Event`](sync::Event); [`Latch`](sync::Latch) if several have to do their part |
/// | wait for each other | [`Barrier`](sync::Barrier) |
/// | do or make something once | [`Once`](sync::Once); [`OnceLock`](sync::OnceLock), [`LazyLock`](sync::LazyLock) |
///
/// Items from one to another go through a [`channel`]; [`select!`] waits for the first of several; [`time`] has sleeps and ticks.
///
/// Waiters stand in a [`LockQueue`](sync::primitive::LockQueue), keyed by urgency: the most urgent goes first, and among equals the earliest.
/// A waiter's place in it lies in the waiter's own frame, so a wait allocates nothing.
///
/// ```
/// use forebear::spawn;
/// use forebear::sync::Mutex;
///
/// static TOTAL: Mutex<u32> = Mutex::new(0);
/// let adds: Vec<_> = (1..=4).map(|n| spawn(move || *TOTAL.lock() += n)).collect();
/// for add in adds {
///     add.wait()?;
/// }
/// assert_eq!(*TOTAL.lock(), 10);
/// # Ok::<(), forebear::WaitError>(())
/// ```
pub mod sync {
    // Inlined, so that a search in this crate's pages finds `Mutex`.
    #[doc(inline)]
    pub use forebear_sync::{
        Barrier, BarrierWaitResult, Condvar, Event, Latch, LazyLock, MappedMutexGuard,
        MappedReentrantMutexGuard, MappedRwLockReadGuard, MappedRwLockWriteGuard, Mutex, MutexGuard, Once,
        OnceLock, OwnedSemaphorePermit, RawMutex, ReentrantMutex, ReentrantMutexGuard, RwLock,
        RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard, Semaphore, SemaphorePermit,
        UnlockError, primitive,
    };
}

#[doc(inline)]
pub use forebear_sync::channel;
// The macro; the module of that name is below.
pub use forebear_sync::block_on;
pub use forebear_sync::select;
#[cfg(feature = "blocking")]
pub use forebear_sync::{BlockingError, blocking};

#[cfg(feature = "tokio")]
pub mod tokio;

/// Sources of a [`select!`] that have no module of their own.
///
/// ```
/// use forebear::select;
/// use forebear::select::{Source, cancelled};
///
/// /// Whether `source` is ready now.
/// fn is_ready(source: impl Source) -> bool {
///     select! {
///         _ = source => true,
///         else => false,
///     }
/// }
/// assert!(!is_ready(cancelled())); // this is no request
/// ```
pub mod select {
    pub use forebear_sync::{CancelledSource, Source, cancelled};
}

/// Time on a runtime's clock: sleeps, ticks and limits, and the clocks that a runtime can have (see [`RuntimeBuilder::clock`]).
///
/// ```
/// use forebear::Runtime;
/// use forebear::time::{now, sleep};
/// use std::time::Duration;
///
/// let runtime = Runtime::builder().seeded(1).build()?; // its time is virtual
/// let passed = runtime.run(|| {
///     let start = now();
///     sleep(Duration::from_secs(3600)).map(|()| now() - start)
/// })?;
/// assert_eq!(passed, Duration::from_secs(3600));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod time {
    pub use forebear_context::clock::{Clock, ManualClock, MonotonicClock, Subscription};
    pub use forebear_runtime::{timeout, try_timeout};
    pub use forebear_sync::{
        After, Interval, MissedTickBehavior, after, interval, interval_at, now, sleep, sleep_until,
    };
}

/// Expiration timers: code that may get stuck sets a time by which a server ends its worker. [`InProcessTimer`](timer::InProcessTimer) is the
/// client for requests of this process. The rest is for workers that are processes, and for clients and servers of your own. The module `local`, with
/// the client and server of processes on one Linux machine, is the feature `local-timers`.
///
/// ```
/// use forebear::timer::{channel, configure, within};
/// use std::time::Duration;
///
/// let (timers, _server) = channel();
/// configure(timers.client("worker 1"));
/// let sum: u32 = within(Duration::from_secs(60), || (1..=4).sum())?;
/// assert_eq!(sum, 10);
/// # Ok::<(), forebear::timer::TimerError>(())
/// ```
pub mod timer {
    pub use forebear_runtime::InProcessTimer;
    pub use forebear_timer::expiry::*;
    #[cfg(all(target_os = "linux", feature = "local-timers"))]
    pub use forebear_timer::local;
}

/// What most programs need. It shadows nothing of std's.
///
/// ```
/// use forebear::prelude::*;
///
/// let seven = spawn(|| 3 + 4);
/// assert_eq!(seven.wait()?, &7);
/// # Ok::<(), WaitError>(())
/// ```
pub mod prelude {
    #[cfg(panic = "unwind")]
    pub use crate::OrUnwind;
    pub use crate::{
        AnyRequest, Cancelled, Outcome, Request, RequestPool, Runtime, WaitError, join, scope, spawn,
        try_join, try_scope, try_spawn,
    };
    pub use forebear_sync::select;
}

/// The program on the first page of the repository, run as a test.
#[cfg(all(doctest, feature = "blocking"))]
#[doc = include_str!("../README.md")]
#[derive(Debug)]
pub struct Readme;

/// The programs of the page for those who come from rayon or tokio, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/migration.md")]
#[derive(Debug)]
pub struct Migration;
