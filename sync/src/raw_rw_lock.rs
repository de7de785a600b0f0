//! The lock below [`RwLock`](crate::RwLock): a gate and a count.
//!
//! # Vocabulary
//!
//! * **gate**: a [`RawLock`]. Whoever writes has it, and so has an upgradable reader; a plain reader passes through it at most.
//! * **to drain**: to wait, with the gate in hand and nobody let in any more, until the last reader has gone.
//!
//! # The word
//!
//! ```text
//!  how many read | DRAINING | WRITER
//! ```
//!
//! `WRITER`: whoever has the gate writes, or is about to; no reader comes in. `DRAINING`: it waits for the last reader.
//!
//! # How it goes
//!
//! A reader that finds no `WRITER` comes in by one exchange. If it finds one it stands at the gate, with the writers; when it has the gate
//! it comes in, and lets go of the gate. A writer takes the gate, raises `WRITER`, and drains. So the order among those who wait, their
//! patience, their limits, and the holder whom they make urgent, are those of the gate, and are told in `raw_lock.rs`.
//!
//! No kind starves the other. From when a writer has the gate no reader comes in, and those who are in are finitely many. And readers
//! stand at the gate like writers do.
//!
//! # The races
//!
//! *The last reader against the draining.* The writer raises `DRAINING` under the lock of the list, in an exchange on a word with readers
//! in it; the reader that counts itself out of such a word as the last goes through that lock. It may come late, when that writer has
//! left and another drains: so it looks again under the lock, and lets nobody in before the last has gone.
//!
//! *The draining against a limit.* A writer that leaves takes both bits back before it lets go of the gate.
//!
//! # Invariants
//!
//! * **W1** `WRITER` and `DRAINING` are changed by whoever has the gate, but for the last reader, which takes `DRAINING` away as it wakes.
//! * **W2** Readers come in only where `WRITER` is not raised.
//! * **W3** Who writes has the gate, has raised `WRITER`, and has seen the count at zero since (acquire, of what readers release).

use std::mem;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::time::Instant;

use forebear_context::context::{Context, Lock, Reason, with_foreign};
use forebear_context::shim::atomic::{AtomicUsize, Ordering};

use crate::guarded::Guarded;
use crate::lock_queue::{LockQueue, Place};
use crate::raw_lock::{RawLock, Refused, Terms as LockTerms, called};
use crate::stay::{Limit, Seat, Terms, stay};

const WRITER: usize = 1;
const DRAINING: usize = 2;
const READER: usize = 4;
const MAX_READERS: usize = usize::MAX / READER / 2;

const WHAT: &str = "RwLock";
static GATE: Lock = called(WHAT);

/// See the module head.
#[derive(Debug)]
pub(crate) struct RawRwLock {
    gate: RawLock,
    word: AtomicUsize,
    /// Who drains.
    drain: Guarded<LockQueue>,
}

/// How to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// [`Reason::Lock`], or [`Reason::LockOrCancelled`].
    pub reason: Reason,
    pub limit: Limit,
    pub caller: &'static Location<'static>,
}

impl How {
    fn deadline(self, context: &Context) -> Option<Instant> {
        match self.limit {
            Limit::Never => None,
            Limit::After(timeout) => context.deadline(timeout),
            Limit::At(deadline) => deadline,
        }
    }
}

impl RawRwLock {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> RawRwLock {
        RawRwLock { gate: RawLock::new(), word: AtomicUsize::new(0), drain: Guarded::new(LockQueue::new()) }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> RawRwLock {
        RawRwLock { gate: RawLock::new(), word: AtomicUsize::new(0), drain: Guarded::new(LockQueue::new()) }
    }

    /// Whether anybody reads, or has the gate.
    pub(crate) fn is_locked(&self) -> bool {
        self.word.load(Ordering::Relaxed) != 0 || self.gate.is_locked()
    }

    // ---- reading ---------------------------------------------------------------------------------------------------------------

    /// Comes in if nobody writes, or is about to (W2).
    #[inline(always)]
    pub(crate) fn try_read(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & WRITER == 0 {
            assert!(word / READER < MAX_READERS, "forebear: too many read at once");
            match self.word.compare_exchange_weak(word, word + READER, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
        false
    }

    #[inline(always)]
    pub(crate) fn read(&self, how: How) -> Result<(), Refused> {
        with_foreign(|context| {
            if how.reason.is_cancellable() && context.is_cancelled() {
                return Err(Refused::Cancelled);
            }
            if self.try_read() {
                return Ok(());
            }
            self.enter(context, how, how.deadline(context))?;
            // W1: nobody raises it meanwhile. They are too many only if they all came since the look above.
            self.word.fetch_add(READER, Ordering::Acquire);
            // SAFETY: it was taken above.
            unsafe { self.gate.unlock() };
            Ok(())
        })
    }

    /// # Safety
    ///
    /// The caller has come in as a reader, and goes once.
    #[inline(always)]
    pub(crate) unsafe fn unlock_read(&self) {
        #[cfg(mutant = "reader_goes_relaxed")]
        let was = self.word.fetch_sub(READER, Ordering::Relaxed);
        #[cfg(not(mutant = "reader_goes_relaxed"))]
        let was = self.word.fetch_sub(READER, Ordering::Release);
        if was & DRAINING != 0 && was / READER == 1 {
            self.drained();
        }
    }

    /// The last reader has gone from a word that said that somebody drains.
    #[cold]
    #[inline(never)]
    fn drained(&self) {
        let chosen = self.drain.with(|queue| {
            // Acquire: what all the readers did is handed on with the wake-up (W3).
            let word = self.word.load(Ordering::Acquire);
            #[cfg(not(mutant = "drained_without_a_look"))]
            if word & DRAINING == 0 || word / READER != 0 {
                return None;
            }
            let _ = word;
            self.word.fetch_and(!DRAINING, Ordering::Relaxed);
            // SAFETY: L1; it is woken below.
            unsafe { queue.choose() }
        });
        if let Some(chosen) = chosen {
            chosen.wake();
        }
    }

    // ---- the gate --------------------------------------------------------------------------------------------------------------

    /// Takes the gate.
    #[inline(always)]
    fn enter(&self, context: &Context, how: How, deadline: Option<Instant>) -> Result<(), Refused> {
        let terms = LockTerms { reason: how.reason, deadline, caller: how.caller, of: &GATE };
        self.gate.waiting(context, terms).wait()
    }

    /// Takes the gate, and lets readers come in.
    #[inline(always)]
    pub(crate) fn read_upgradably(&self, how: How) -> Result<(), Refused> {
        if how.reason == Reason::Lock && self.gate.try_fast() {
            return Ok(());
        }
        with_foreign(|context| self.enter(context, how, how.deadline(context)))
    }

    pub(crate) fn try_read_upgradably(&self) -> bool {
        self.gate.try_lock()
    }

    /// # Safety
    ///
    /// The caller has the gate, and does not write.
    #[inline(always)]
    pub(crate) unsafe fn unlock_upgradable(&self) {
        // SAFETY: by contract.
        unsafe { self.gate.unlock() };
    }

    /// From upgradable to plain reading.
    ///
    /// # Safety
    ///
    /// As [`unlock_upgradable`](Self::unlock_upgradable).
    pub(crate) unsafe fn upgradable_to_read(&self) {
        self.word.fetch_add(READER, Ordering::Acquire);
        // SAFETY: by contract.
        unsafe { self.gate.unlock() };
    }

    // ---- writing ---------------------------------------------------------------------------------------------------------------

    #[inline(always)]
    pub(crate) fn write(&self, how: How) -> Result<(), Refused> {
        let deadline = if how.reason == Reason::Lock && self.gate.try_fast() {
            None
        } else {
            with_foreign(|context| {
                let deadline = how.deadline(context);
                self.enter(context, how, deadline).map(|()| deadline)
            })?
        };
        let taken = Taken(self);
        // SAFETY: it was just taken.
        unsafe { self.upgrade(How { limit: Limit::At(deadline), ..how })? };
        mem::forget(taken);
        Ok(())
    }

    /// Has nobody come in, and waits for the last reader to go. The caller keeps the gate if it is refused.
    ///
    /// # Safety
    ///
    /// The caller has the gate, and does not write.
    #[inline(always)]
    pub(crate) unsafe fn upgrade(&self, how: How) -> Result<(), Refused> {
        if self.word.fetch_or(WRITER, Ordering::Acquire) / READER == 0 && how.reason == Reason::Lock {
            return Ok(());
        }
        let raised = Raised(self);
        let terms = Terms { reason: how.reason, what: WHAT, limit: how.limit, caller: how.caller };
        with_foreign(|context| stay(self, context, (), terms))?;
        mem::forget(raised);
        Ok(())
    }

    pub(crate) fn try_write(&self) -> bool {
        if !self.gate.try_lock() {
            return false;
        }
        // SAFETY: it was just taken.
        unsafe {
            let writes = self.try_upgrade();
            if !writes {
                self.gate.unlock();
            }
            writes
        }
    }

    /// # Safety
    ///
    /// As [`upgrade`](Self::upgrade).
    pub(crate) unsafe fn try_upgrade(&self) -> bool {
        self.word.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// # Safety
    ///
    /// The caller writes, and goes once.
    #[inline(always)]
    pub(crate) unsafe fn unlock_write(&self) {
        // SAFETY: by contract.
        unsafe {
            self.write_to_upgradable();
            self.gate.unlock();
        }
    }

    /// From writing to plain reading, with no writer in between.
    ///
    /// # Safety
    ///
    /// The caller writes.
    pub(crate) unsafe fn write_to_read(&self) {
        // One exchange: there is no moment without it.
        self.word.fetch_add(READER - WRITER, Ordering::Release);
        // SAFETY: by contract.
        unsafe { self.gate.unlock() };
    }

    /// From writing to upgradable reading.
    ///
    /// # Safety
    ///
    /// The caller writes.
    #[inline(always)]
    pub(crate) unsafe fn write_to_upgradable(&self) {
        self.word.fetch_and(!WRITER, Ordering::Release);
    }
}

/// The gate of a writer that has not come to write: let go of when it is refused, or unwinds.
struct Taken<'a>(&'a RawRwLock);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // SAFETY: whoever makes it has just taken it.
        unsafe { self.0.gate.unlock() };
    }
}

/// `WRITER`, raised by one that has not come to write: taken down likewise, while it has the gate (W1).
struct Raised<'a>(&'a RawRwLock);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        // Release: who reads next sees what this one has seen.
        self.0.word.fetch_and(!WRITER, Ordering::Release);
    }
}

impl Default for RawRwLock {
    fn default() -> Self {
        RawRwLock::new()
    }
}

/// Where a writer drains.
impl Seat<()> for RawRwLock {
    fn at_once(&self, (): &()) -> bool {
        self.word.load(Ordering::Acquire) / READER == 0
    }

    fn enter(&self, place: &Place) -> bool {
        self.drain.with(|queue| {
            let mut word = self.word.load(Ordering::Acquire);
            #[cfg(mutant = "draining_by_look")]
            if word / READER != 0 {
                self.word.fetch_or(DRAINING, Ordering::AcqRel);
                // SAFETY: L1; L2.
                unsafe { queue.enter(place) };
                return true;
            }
            while word / READER != 0 {
                match self.word.compare_exchange_weak(
                    word,
                    word | DRAINING,
                    Ordering::Relaxed,
                    Ordering::Acquire,
                ) {
                    Ok(_) => {
                        // SAFETY: L1; L2: the place stays in its frame until it is out.
                        unsafe { queue.enter(place) };
                        return true;
                    }
                    Err(seen) => word = seen,
                }
            }
            false
        })
    }

    fn leave(&self, place: &Place) -> bool {
        self.drain.with(|queue| {
            // SAFETY: L1.
            unsafe { queue.remove(place) };
            self.word.fetch_and(!DRAINING, Ordering::Relaxed);
        });
        true
    }

    fn lock(&self) -> Option<(&'static Lock, NonNull<()>)> {
        Some((&DRAIN, NonNull::from(self).cast()))
    }
}

/// What may be asked where a writer drains: nothing. Who reads is counted, and not known; and nobody else stands there.
static DRAIN: Lock = Lock { what: WHAT, owner: |_| ptr::null(), promote: |_, _, _| () };
