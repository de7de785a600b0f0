//! A closure that runs once.
//!
//! # The word
//!
//! ```text
//!  runner's address | DONE | QUEUED | RUNNING
//! ```
//!
//! `RUNNING`: the context whose address is in the word runs the closure now. It is the holder that the other callers wait for
//! ([`forebear_context::context::OwnerWait`]), as the holder of a lock is. It becomes as urgent as they are. If it waits for this word,
//! itself or through another wait, that is a cycle. `QUEUED`: the queue has waiters. `DONE` is the only bit, for good, once it is set.
//!
//! # Threads without a context
//!
//! A plain thread that has none yet gets its own from the runtime when it sets `RUNNING` ([`lasting_me`]). While the process has no runtime, and while the
//! locals of the thread are destroyed, it gets none, and the word has no address. Then the thread notes the once in a list of its
//! own (`raw_lock/unknown.rs`), so it finds the cycle when it calls again itself. If it gets its context while the closure runs, for example since the closure
//! makes a request, it writes the address into the word, and takes the note out (`runner_is_known`). A thread waits for a request only with its own
//! context, so a cycle that passes through its waits for requests is found.
//!
//! # How a call proceeds
//!
//! A caller that finds neither `RUNNING` nor `DONE` sets `RUNNING` and runs the closure. Other callers wait in the queue. At the end the runner
//! wakes them all, under the lock of the queue. If the closure failed or panicked, each of them reads the word again, and one of them runs its
//! own.
//!
//! # The races
//!
//! *The end against a newcomer.* A newcomer sets `QUEUED` under the lock of the queue, in an exchange on a word for which it has to wait.
//! A runner that finds the bit at its end takes the lock, and finds the newcomer in the queue.
//!
//! # Invariants
//!
//! * **O1** `RUNNING` is set by the caller that then runs the closure, and is cleared only at its end, also by an unwind.
//! * **O2** `DONE` is set by an end that has done it, with everything that was done before it (release), and never changes.
//! * **O3** Whenever the lock of the queue is free, `QUEUED` is set if the queue has waiters.

use std::convert::Infallible;
use std::fmt;
use std::panic::{Location, RefUnwindSafe, UnwindSafe};
use std::ptr::{self, NonNull};
use std::time::Duration;

use forebear_context::context::{Context, Lock, Reason, when_known, with_foreign};
use forebear_context::error::{Cancelled, Cycle, TimeoutError};
use forebear_context::shim::atomic::{AtomicPtr, Ordering};
use forebear_context::shim::mutant;

use crate::guarded::Guarded;
use crate::here::with_context;
use crate::lock_queue::{LockQueue, Place};
use crate::mutex::refuse;
use crate::queued_wait::{Answer, Limit, QueuedWaiter, WaitTerms, wait_in_queue};
use crate::raw_lock::unknown::{self, Note};
use crate::raw_lock::{Refused, change, gave, gave_back, lasting_me, me, took};
use crate::wait_set::everybody;

const RUNNING: usize = 1;
const QUEUED: usize = 2;
const DONE: usize = 4;
const BITS: usize = RUNNING | QUEUED | DONE;

const _: () = assert!(align_of::<Context>() > BITS);

/// A closure that runs once, called by the first caller: as [`std::sync::Once`], for requests and threads, without poisoning. The other
/// callers wait until it has returned.
///
/// If it panics, the panic reaches the caller that ran it, and the next caller tries. The running caller becomes as urgent as the most urgent
/// waiter.
///
/// # Fairness
///
/// All waiters continue at once when the closure has returned, the most urgent first.
///
/// ```
/// use forebear::sync::Once;
///
/// static START: Once = Once::new();
/// let mut started = 0;
/// START.call_once(|| started += 1);
/// START.call_once(|| started += 1);
/// assert_eq!(started, 1);
/// assert!(START.is_completed());
/// ```
pub struct Once {
    word: AtomicPtr<Context>,
    queue: Guarded<LockQueue>,
}

/// The right to run the closure, and the duty to record how it ended.
#[derive(Debug)]
struct Run<'a> {
    once: &'a Once,
    done: bool,
}

/// The queue of callers that would run their own closure, and of those that only wait.
struct OnceQueue<'a> {
    once: &'a Once,
    of: &'static Lock,
    would_run: bool,
}

#[inline(always)]
fn bits(word: *mut Context) -> usize {
    word.addr() & BITS
}

impl Once {
    /// A `Once` whose closure has not run yet.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Once {
        Once { word: AtomicPtr::new(ptr::null_mut()), queue: Guarded::new(LockQueue::new()) }
    }

    /// No closure has run.
    #[cfg(loom)]
    pub fn new() -> Once {
        Once { word: AtomicPtr::new(ptr::null_mut()), queue: Guarded::new(LockQueue::new()) }
    }

    /// Calls `f`, unless an earlier call has completed. If another caller runs its closure now, waits for that. On return one has completed.
    ///
    /// Suspends. Not a cancellation point: the running closure ends.
    ///
    /// # Panics
    ///
    /// If `f` panics. If `f` calls this again, itself or through what it waits for; the message names that cycle. (On a thread that begins a wait while the
    /// process has no runtime, a cycle that passes through that wait is not found.) In a `no_suspend` region, if it would have to wait.
    #[inline(always)]
    #[track_caller]
    pub fn call_once(&self, f: impl FnOnce()) {
        let Ok(()) = self.try_call(&ONCE, || {
            f();
            Ok::<(), Infallible>(())
        });
    }

    /// Whether a call has completed. A caller that gets `true` sees everything that the closure did.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    #[inline(always)]
    pub fn is_completed(&self) -> bool {
        bits(self.word.load(mutant!("done_relaxed", Ordering::Relaxed, Ordering::Acquire))) == DONE
    }

    /// Waits until a call has completed.
    ///
    /// Suspends. A cancellation point, since there may never be a call.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    ///
    /// # Panics
    ///
    /// In a `no_suspend` region, if it would have to wait.
    ///
    /// ```
    /// use forebear::sync::Once;
    ///
    /// static START: Once = Once::new();
    /// let thread = std::thread::spawn(|| START.call_once(|| ()));
    /// START.wait()?;
    /// assert!(START.is_completed());
    /// # thread.join().unwrap();
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn wait(&self) -> Result<(), Cancelled> {
        self.done_within(&ONCE, Limit::Never, Location::caller()).untimed()
    }

    /// As [`wait`](Self::wait), for `timeout` at most, on the clock of the runtime. A timeout of zero checks once.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`], and the wait has left no trace; [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::TimeoutError;
    /// use forebear::sync::Once;
    ///
    /// let start = Once::new();
    /// assert_eq!(start.wait_timeout(Duration::from_millis(1)), Err(TimeoutError::TimedOut));
    /// start.call_once(|| ());
    /// assert_eq!(start.wait_timeout(Duration::from_millis(1)), Ok(()));
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> Result<(), TimeoutError> {
        self.done_within(&ONCE, Limit::After(timeout), Location::caller()).timed()
    }

    /// Waits until a call has completed. `of`: what its user has; see [`ONCE`].
    #[inline(always)]
    pub(crate) fn done_within(
        &self,
        of: &'static Lock,
        limit: Limit,
        caller: &'static Location<'static>,
    ) -> Result<(), Refused> {
        let terms = WaitTerms { reason: Reason::Event, what: of.what, limit, caller };
        let outside = OnceQueue { once: self, of, would_run: false };
        with_foreign(|context| {
            // Other callers may run and fail before one succeeds. The time limit does not begin anew.
            let limit = match limit {
                Limit::After(timeout) if !limit.is_zero() && !self.is_completed() => {
                    Limit::At(context.deadline(timeout))
                }
                other => other,
            };
            loop {
                wait_in_queue(&outside, context, (), WaitTerms { limit, ..terms })?;
                if self.is_completed() {
                    return Ok(());
                }
            }
        })
    }

    /// Runs `f`, unless a closure has completed. If `f` fails, the next caller runs its own. `of`: as in [`done_within`](Self::done_within).
    #[inline(always)]
    #[track_caller]
    pub(crate) fn try_call<E>(&self, of: &'static Lock, f: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if self.is_completed() {
            return Ok(());
        }
        match self.claim(of) {
            None => Ok(()),
            Some(run) => run.carry_out(f),
        }
    }

    /// Waits until a closure has completed, or the caller may run its own.
    #[inline(always)]
    #[track_caller]
    fn claim(&self, of: &'static Lock) -> Option<Run<'_>> {
        let caller = Location::caller();
        let terms = WaitTerms { reason: Reason::Once, what: of.what, limit: Limit::Never, caller };
        let outside = OnceQueue { once: self, of, would_run: true };
        loop {
            if self.is_completed() {
                return None;
            }
            if self.begin() {
                return Some(Run { once: self, done: false });
            }
            if let Some(cycle) = self.of_itself(of, caller) {
                refuse(Refused::Circular(cycle));
            }
            if let Err(refused) = with_context!(|context| wait_in_queue(&outside, context, (), terms)) {
                refuse(refused);
            }
        }
    }

    /// Sets `RUNNING`, if neither `RUNNING` nor `DONE` is set.
    fn begin(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        if bits(word) & (RUNNING | DONE) != 0 {
            return false;
        }
        let me = lasting_me();
        while bits(word) & (RUNNING | DONE) == 0 {
            let running = me.map_addr(|at| at | bits(word) | RUNNING);
            match self.word.compare_exchange_weak(word, running, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    took(me);
                    if me.is_null() {
                        static WHEN_KNOWN: fn(NonNull<Context>) = runner_is_known;
                        when_known(&WHEN_KNOWN);
                        unknown::took(Note::Runs(ptr::from_ref(self).expose_provenance()));
                    }
                    return true;
                }
                Err(seen) => word = seen,
            }
        }
        false
    }

    fn addr(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// The cycle, if this thread runs the closure, and no runtime has known the thread since it began.
    #[cold]
    fn of_itself(&self, of: &'static Lock, caller: &'static Location<'static>) -> Option<Cycle> {
        if !unknown::has(Note::Runs(self.addr())) {
            return None;
        }
        let word = self.word.load(Ordering::Relaxed);
        let has_no_runner = bits(word) & RUNNING != 0 && word.addr() & !BITS == 0;
        with_foreign(|context| {
            // On a stack of a worker the list of the thread belongs to other code.
            (has_no_runner && context.place().get() == 0).then(|| {
                let (what, file, line) = (of.what, caller.file(), caller.line());
                Cycle::new([context.name(), format!("a {what} ({file}:{line})")])
            })
        })
    }

    /// Whether a caller has to wait, by this word.
    fn is_to_be_waited_for(word: *mut Context, would_run: bool) -> bool {
        bits(word) & DONE == 0 && (bits(word) & RUNNING != 0 || !would_run)
    }
}

/// The calling thread has got its own context: what it runs is named by that. No exchange is lost: the thread alone changes the address while it runs
/// the closure. That closes no cycle, since the thread runs, as a thread that has just taken a lock.
#[cold]
fn runner_is_known(context: NonNull<Context>) {
    unknown::take_runs(|at| {
        // SAFETY: the `Run` in a frame of this thread borrows the once, and takes the note out before it goes.
        let once = unsafe { &*ptr::with_exposed_provenance::<Once>(at) };
        change(&once.word, |word| context.as_ptr().map_addr(|at| at | bits(word)));
        took(context.as_ptr());
    });
}

impl Run<'_> {
    fn carry_out<E>(mut self, f: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        f()?;
        self.done = true;
        Ok(())
    }
}

/// The end, also by an unwind.
impl Drop for Run<'_> {
    fn drop(&mut self) {
        let (once, me) = (self.once, me());
        gave(me);
        let word = once.word.load(Ordering::Relaxed);
        // A thread that has got no context of its own since it began is not named in the word.
        if word.addr() & !BITS == 0 {
            unknown::gave(Note::Runs(once.addr()));
        }
        #[cfg(mutant = "once_stays_running")]
        if !self.done {
            return;
        }
        let end = ptr::without_provenance_mut(if self.done { DONE } else { 0 });
        let ended = mutant!(
            "once_ends_by_store",
            bits(word) & QUEUED == 0 && {
                once.word.store(end, Ordering::Release);
                true
            },
            bits(word) & QUEUED == 0
                && once.word.compare_exchange(word, end, Ordering::Release, Ordering::Relaxed).is_ok()
        );
        if ended {
            return;
        }
        // A waiter has entered.
        let chosen = once.queue.with(|queue| {
            once.word.swap(end, Ordering::AcqRel);
            everybody(queue)
        });
        // SAFETY: the calling context.
        gave_back(unsafe { me.as_ref() });
        chosen.wake();
    }
}

impl QueuedWaiter<()> for OnceQueue<'_> {
    fn at_once(&self, (): &()) -> bool {
        !Once::is_to_be_waited_for(self.once.word.load(Ordering::Acquire), self.would_run)
    }

    fn enter(&self, place: &Place) -> bool {
        self.once.queue.with(|queue| {
            let was = change(&self.once.word, |word| match Once::is_to_be_waited_for(word, self.would_run) {
                true => word.map_addr(|at| at | QUEUED),
                false => word,
            });
            let waits = Once::is_to_be_waited_for(was, self.would_run);
            if waits {
                // SAFETY: L1; L2: the place stays in its frame until it is out.
                unsafe { queue.enter(place) };
            }
            waits
        })
    }

    fn leave(&self, place: &Place) -> bool {
        self.once.queue.with(|queue| {
            // SAFETY: L1.
            unsafe { queue.remove(place) };
            if queue.is_empty() {
                change(&self.once.word, |word| word.map_addr(|at| at & !QUEUED));
            }
        });
        true
    }

    fn lock(&self) -> Option<(&'static Lock, NonNull<()>)> {
        self.would_run.then(|| (self.of, NonNull::from(self.once).cast()))
    }
}

/// What may be asked of one that is waited for, and what it is called: its user may have it in something else.
static ONCE: Lock = named("Once");
pub(crate) static ONCE_LOCK: Lock = named("OnceLock");
pub(crate) static LAZY_LOCK: Lock = named("LazyLock");

const fn named(what: &'static str) -> Lock {
    Lock { what, ..ASKED }
}

const ASKED: Lock = Lock {
    what: "Once",
    name: |_| None,
    owner: |once| {
        // SAFETY: by the contract of `OwnerWait`.
        let once = unsafe { once.cast::<Once>().as_ref() };
        // Old news does no harm: see the argument in `forebear_context::context::OwnerWait`'s module, also for the order.
        once.word.load(Ordering::Acquire).map_addr(|at| at & !BITS)
    },
    share: None,
    promote: |once, node, key| {
        // SAFETY: by the contract of `OwnerWait`: the lock is a `Once`, and the node a `Place` of its queue, both alive while the wait
        // lasts.
        let once = unsafe { once.cast::<Once>().as_ref() };
        // SAFETY: as above.
        let place = unsafe { node.cast::<Place>().as_ref() };
        // SAFETY: L1.
        once.queue.with(|queue| unsafe { queue.promote(place, key) });
    },
};

/// A panic leaves it undone, or done.
impl UnwindSafe for Once {}
impl RefUnwindSafe for Once {}

impl Default for Once {
    fn default() -> Self {
        Once::new()
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").field("is_completed", &self.is_completed()).finish_non_exhaustive()
    }
}
