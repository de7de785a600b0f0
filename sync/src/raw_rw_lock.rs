//! The lock below [`RwLock`](crate::RwLock): a writers' lock and a count.
//!
//! # Vocabulary
//!
//! * **writers' lock**: a [`RawLock`]. A writer has it, and so has an upgradable reader.
//! * **to shut**: to admit no reader. The holder of the writers' lock shuts before it writes, and **opens** afterwards.
//! * **to drain**: to wait, with the writers' lock in hand and shut, until the last reader has gone.
//!
//! # The word
//!
//! ```text
//!  how many read | WAITED | DRAINING | SHUT
//! ```
//!
//! `SHUT`: the holder of the writers' lock writes, or is about to. `DRAINING`: it waits for the last reader. `WAITED`: readers stand and wait until
//! it opens.
//!
//! # How it goes
//!
//! A reader that finds it open comes in by one exchange; else it stands in a list of its own. A writer takes the writers' lock, shuts, and drains.
//! Opening admits all readers that wait: each of them is counted before it is woken. That a lock is handed to somebody who
//! may be pinned behind a busy worker stops no reader here, and writers for one section of each.
//!
//! So neither kind starves the other: a reader stands there for one writer at most, and a writer that has the writers' lock waits for finitely many
//! readers. The order among writers, their patience and the holder whom they make urgent are those of the writers' lock, and are told in
//! `raw_lock.rs`; and the writers' lock's holder is whom readers wait for, too.
//!
//! # The races
//!
//! *The last reader against the draining.* The writer raises `DRAINING` under the lock of the list, in an exchange on a word with readers
//! in it; the reader that counts itself out of such a word as the last goes through that lock. It may come late, when that writer has
//! left and another drains: so it looks again under the lock, and lets nobody in before the last has gone.
//!
//! *Opening against a reader that comes or leaves.* A reader raises `WAITED` under the lock of its list, in an exchange on a word that
//! says `SHUT`. Opening is an exchange on a word without `WAITED`, or is done under that lock, where it counts those it has chosen; who
//! has left its wait refuses, and is not counted.
//!
//! *A writer against its limit.* One that is refused takes `DRAINING` back, and opens, before it lets go of the writers' lock.
//!
//! # Invariants
//!
//! * **W1** `SHUT` and `DRAINING` are changed by the holder of the writers' lock, but for the last reader, which clears `DRAINING` as it wakes the writer.
//! * **W2** Readers come in only where it is open, or are let in as it opens.
//! * **W3** Who writes has the writers' lock, has shut, and has seen the count at zero since (acquire, of what readers release).
//! * **W4** `WAITED` is raised if and only if a reader stands in the list, whenever its lock is free; and only beside `SHUT`.

mod queues;

use std::mem;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::time::Instant;

use forebear_context::context::{Context, Label, Lock, Reason, current, with_foreign};
use forebear_context::shim::atomic::{AtomicUsize, Ordering};
use forebear_context::shim::mutant;

use self::queues::ReadersQueue;
use crate::guarded::Guarded;
use crate::lock_queue::{ChosenList, LockQueue};
use crate::queued_wait::{Limit, WaitTerms, wait_in_queue};
use crate::raw_lock::{LockTerms, RawLock, Refused, called, gave_back, me, unknown};

const SHUT: usize = 1;
const DRAINING: usize = 2;
const WAITED: usize = 4;
const READER: usize = 8;
const MAX_READERS: usize = usize::MAX / READER / 2;

const WHAT: &str = "RwLock";
static GATE: Lock = called(WHAT);

/// See the module head.
#[derive(Debug)]
pub(crate) struct RawRwLock {
    writer_lock: RawLock,
    word: AtomicUsize,
    /// Who drains.
    drain: Guarded<LockQueue>,
    /// Those that wait to read.
    readers: Guarded<LockQueue>,
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
    fn terms(self) -> WaitTerms {
        WaitTerms { reason: self.reason, what: WHAT, limit: self.limit, caller: self.caller }
    }

    fn deadline(self, context: &Context) -> Option<Instant> {
        self.limit.deadline(context)
    }
}

impl RawRwLock {
    #[cfg(not(loom))]
    pub(crate) const fn new(label: Label) -> RawRwLock {
        RawRwLock {
            writer_lock: RawLock::new(label),
            word: AtomicUsize::new(0),
            drain: Guarded::new(LockQueue::new()),
            readers: Guarded::new(LockQueue::new()),
        }
    }

    #[cfg(loom)]
    pub(crate) fn new(label: Label) -> RawRwLock {
        RawRwLock {
            writer_lock: RawLock::new(label),
            word: AtomicUsize::new(0),
            drain: Guarded::new(LockQueue::new()),
            readers: Guarded::new(LockQueue::new()),
        }
    }

    /// Whether anybody reads, or has the writers' lock.
    pub(crate) fn is_locked(&self) -> bool {
        self.word.load(Ordering::Relaxed) != 0 || self.writer_lock.is_locked()
    }

    // ---- reading ---------------------------------------------------------------------------------------------------------------

    /// Comes in if it is open (W2).
    ///
    /// # Panics
    ///
    /// If there are too many.
    #[inline(always)]
    pub(crate) fn try_read(&self) -> bool {
        assert!(
            self.word.load(Ordering::Relaxed) / READER < MAX_READERS,
            "forebear: too many readers at once"
        );
        self.come_in()
    }

    #[inline(always)]
    fn come_in(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & SHUT == 0 {
            match self.word.compare_exchange_weak(word, word + READER, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
        false
    }

    #[inline(always)]
    pub(crate) fn read(&self, how: How) -> Result<(), Refused> {
        with_foreign(|context| wait_in_queue(&ReadersQueue(self), context, (), how.terms()))
    }

    /// The calling context has come in, and is to be known for one that reads.
    #[inline(always)]
    pub(crate) fn is_read_here(&self) {
        if let Some(here) = current() {
            // SAFETY: the calling context.
            unsafe { here.as_ref() }.shares().took(NonNull::from(self).cast());
        } else {
            unknown::took(self.as_read());
        }
    }

    /// Under which address a thread that no runtime knows notes that it reads. The writers' lock is noted under its own.
    fn as_read(&self) -> usize {
        ptr::from_ref(&self.word).addr()
    }

    /// # Safety
    ///
    /// The caller has come in as a reader, and goes once.
    #[inline(always)]
    pub(crate) unsafe fn unlock_read(&self) {
        // SAFETY: the calling context.
        let here = current().map(|here| unsafe { here.as_ref() });
        // What a thread took before a runtime knew it stands in the thread's own list.
        if !here.is_some_and(|here| here.shares().gave(NonNull::from(self).cast())) {
            unknown::gave(self.as_read());
        }
        let was = mutant!(
            "reader_goes_relaxed",
            self.word.fetch_sub(READER, Ordering::Relaxed),
            self.word.fetch_sub(READER, Ordering::Release)
        );
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

    // ---- the writers' lock --------------------------------------------------------------------------------------------------------------

    /// Takes the writers' lock.
    #[inline(always)]
    fn enter(&self, context: &Context, how: How, deadline: Option<Instant>) -> Result<(), Refused> {
        let terms = LockTerms { reason: how.reason, deadline, caller: how.caller, of: &GATE };
        let mut waiting = self.writer_lock.waiting(context, terms);
        if how.limit.is_look() { waiting.look() } else { waiting.wait() }
    }

    /// Takes the writers' lock, and lets readers come in.
    #[inline(always)]
    pub(crate) fn read_upgradably(&self, how: How) -> Result<(), Refused> {
        if how.reason == Reason::Lock && self.writer_lock.try_fast() {
            return Ok(());
        }
        with_foreign(|context| self.enter(context, how, how.deadline(context)))
    }

    pub(crate) fn try_read_upgradably(&self) -> bool {
        self.writer_lock.try_lock()
    }

    /// # Safety
    ///
    /// The caller has the writers' lock, and does not write.
    #[inline(always)]
    pub(crate) unsafe fn unlock_upgradable(&self) {
        // SAFETY: by contract.
        unsafe { self.writer_lock.unlock() };
    }

    /// From upgradable to plain reading.
    ///
    /// # Safety
    ///
    /// As [`unlock_upgradable`](Self::unlock_upgradable).
    pub(crate) unsafe fn upgradable_to_read(&self) {
        self.word.fetch_add(READER, Ordering::Acquire);
        // SAFETY: by contract.
        unsafe { self.writer_lock.unlock() };
    }

    // ---- writing ---------------------------------------------------------------------------------------------------------------

    #[inline(always)]
    pub(crate) fn write(&self, how: How) -> Result<(), Refused> {
        let deadline = if how.reason == Reason::Lock && self.writer_lock.try_fast() {
            None
        } else {
            with_foreign(|context| {
                let deadline = how.deadline(context);
                self.enter(context, how, deadline).map(|()| deadline)
            })?
        };
        let taken = Taken(self);
        let limit = if how.limit.is_look() { how.limit } else { Limit::At(deadline) };
        // SAFETY: it was just taken.
        unsafe { self.upgrade(How { limit, ..how })? };
        mem::forget(taken);
        Ok(())
    }

    /// Shuts, and waits for the last reader to go. The caller keeps the writers' lock if it is refused.
    ///
    /// # Safety
    ///
    /// The caller has the writers' lock, and does not write.
    #[inline(always)]
    pub(crate) unsafe fn upgrade(&self, how: How) -> Result<(), Refused> {
        if self.word.fetch_or(SHUT, Ordering::Acquire) / READER == 0 && how.reason == Reason::Lock {
            return Ok(());
        }
        let shut = Shut(self);
        with_foreign(|context| wait_in_queue(self, context, (), how.terms()))?;
        mem::forget(shut);
        Ok(())
    }

    pub(crate) fn try_write(&self) -> bool {
        if !self.writer_lock.try_lock() {
            return false;
        }
        // SAFETY: it was just taken.
        unsafe {
            let writes = self.try_upgrade();
            if !writes {
                self.writer_lock.unlock();
            }
            writes
        }
    }

    /// # Safety
    ///
    /// As [`upgrade`](Self::upgrade).
    pub(crate) unsafe fn try_upgrade(&self) -> bool {
        self.word.compare_exchange(0, SHUT, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// # Safety
    ///
    /// The caller writes, and goes once.
    #[inline(always)]
    pub(crate) unsafe fn unlock_write(&self) {
        // SAFETY: by contract.
        unsafe { self.open_and_unlock(0) };
    }

    /// From writing to plain reading, with no writer in between.
    ///
    /// # Safety
    ///
    /// The caller writes.
    pub(crate) unsafe fn write_to_read(&self) {
        // SAFETY: by contract.
        unsafe { self.open_and_unlock(1) };
    }

    /// From writing to upgradable reading.
    ///
    /// # Safety
    ///
    /// The caller writes.
    pub(crate) unsafe fn write_to_upgradable(&self) {
        self.open(0);
    }

    /// Opens, with so many readers more, and lets go of the writers' lock.
    ///
    /// # Safety
    ///
    /// The caller writes.
    #[inline(always)]
    unsafe fn open_and_unlock(&self, more: usize) {
        let was_waited_for = self.open(more);
        // SAFETY: by contract.
        unsafe { self.writer_lock.unlock() };
        if was_waited_for {
            // By readers, of whom the writers' lock knows nothing.
            // SAFETY: the calling context.
            gave_back(unsafe { me().as_ref() });
        }
    }

    /// Opens, with so many readers more. By the holder of the writers' lock, which has shut. Answers whether readers waited for it.
    #[inline(always)]
    fn open(&self, more: usize) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & WAITED == 0 {
            let open = (word & !SHUT) + more * READER;
            // Release: who reads next sees what this one has done, or seen.
            match self.word.compare_exchange_weak(word, open, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return false,
                Err(seen) => word = seen,
            }
        }
        self.let_in(more);
        true
    }

    /// The same where readers wait: lets all of them in.
    #[cold]
    #[inline(never)]
    fn let_in(&self, more: usize) {
        let chosen = self.readers.with(|queue| {
            let mut chosen = ChosenList::new();
            let mut count = more;
            // SAFETY: L1; they are woken below.
            while let Some(one) = unsafe { queue.choose() } {
                chosen.push(one);
                count += 1;
            }
            #[cfg(mutant = "readers_let_in_uncounted")]
            let count = more;
            // Beside it only readers that go change the word.
            self.word.fetch_add(count * READER, Ordering::Relaxed);
            self.word.fetch_and(!(SHUT | WAITED), Ordering::Release);
            chosen
        });
        chosen.wake();
    }
}

/// The writers' lock of a writer that has not come to write: let go of when it is refused, or unwinds.
struct Taken<'a>(&'a RawRwLock);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // SAFETY: the caller has just taken it.
        unsafe { self.0.writer_lock.unlock() };
    }
}

/// What one has shut that has not come to write: opened likewise, while it has the writers' lock (W1).
struct Shut<'a>(&'a RawRwLock);

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        self.0.open(0);
    }
}

impl RawRwLock {
    /// The name that a user gave to it.
    pub(crate) const fn label(&self) -> Label {
        self.writer_lock.label()
    }
}

impl Default for RawRwLock {
    fn default() -> Self {
        RawRwLock::new(Label::NONE)
    }
}
