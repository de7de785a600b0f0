//! The lock below [`RwLock`](crate::RwLock): a writers' lock and a count of readers.
//!
//! # Vocabulary
//!
//! * **writers' lock**: a [`RawLock`]. A writer holds it, and so does an upgradable reader.
//! * **to shut**: to admit no reader. The holder of the writers' lock shuts before it writes, and **opens** afterwards.
//! * **to drain**: to wait, holding the writers' lock and shut, until the last reader has left.
//!
//! # The word
//!
//! ```text
//!  number of readers | WAITED | DRAINING | SHUT
//! ```
//!
//! `SHUT`: the holder of the writers' lock writes, or is about to. `DRAINING`: it waits for the last reader. `WAITED`: readers wait for it to open.
//!
//! # How it works
//!
//! A reader that finds the lock open enters by one exchange; else it waits in the readers' queue. A writer takes the writers' lock, shuts, and drains.
//! Opening admits all waiting readers, and counts each of them before it wakes it. If the writers' lock is handed to a waiter that
//! is pinned behind a busy worker, readers are not delayed by it, and writers by one section each.
//!
//! So neither kind starves the other. A reader waits for one writer at most, and a writer that holds the writers' lock waits for finitely many
//! readers. The writers' lock decides the order among writers, their patience, and which holder they make urgent (`raw_lock.rs`). Readers wait for
//! the same holder.
//!
//! # The races
//!
//! *The last reader against a draining writer.* The writer raises `DRAINING` under the lock of the drain queue, in an exchange on a word with readers
//! in it. A reader that leaves such a word as the last takes that lock. It may be late, when that writer has
//! left and another drains. So it checks again under the lock, and wakes no writer before the last reader has left.
//!
//! *Opening against a reader that arrives or leaves.* A reader raises `WAITED` under the lock of the readers' queue, in an exchange on a word that
//! says `SHUT`. Opening is an exchange on a word without `WAITED`, or happens under that lock, where it counts the readers that it chooses. A
//! reader that has left its wait refuses the choice, and is not counted.
//!
//! *A writer against its time limit.* A writer that is refused clears `DRAINING`, and opens, before it releases the writers' lock.
//!
//! # Invariants
//!
//! * **W1** The holder of the writers' lock changes `SHUT` and `DRAINING`. One exception: the last reader clears `DRAINING` as it wakes the writer.
//! * **W2** Readers enter only while it is open, or are admitted as it opens.
//! * **W3** A writer holds the writers' lock, has shut, and has seen the count at zero since (acquire, of what readers release).
//! * **W4** Whenever the lock of the readers' queue is free, `WAITED` is set if and only if a reader is in the queue; and it is set only beside `SHUT`.

mod queues;

use std::mem;
use std::panic::Location;
use std::ptr::NonNull;
use std::time::Instant;

use forebear_context::context::{Context, Label, Lock, Reason, ShareKey, current, with_foreign};
use forebear_context::shim::atomic::{AtomicUsize, Ordering};
use forebear_context::shim::mutant;

use self::queues::ReadersQueue;
use crate::guarded::Guarded;
use crate::lock_queue::{ChosenList, LockQueue};
use crate::queued_wait::{Limit, WaitTerms, wait_in_queue};
use crate::raw_lock::{LockTerms, RawLock, Refused, called, gave_back, me};

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
    /// What stands for it in the lists of its readers.
    share: ShareKey,
    /// The writer that drains.
    drain: Guarded<LockQueue>,
    /// The readers that wait.
    readers: Guarded<LockQueue>,
}

/// Whose list has the entry of a read: the context's that acquired it, or that of a thread that had none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader(Option<NonNull<Context>>);

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
            share: ShareKey::new(),
            drain: Guarded::new(LockQueue::new()),
            readers: Guarded::new(LockQueue::new()),
        }
    }

    #[cfg(loom)]
    pub(crate) fn new(label: Label) -> RawRwLock {
        RawRwLock {
            writer_lock: RawLock::new(label),
            word: AtomicUsize::new(0),
            share: ShareKey::new(),
            drain: Guarded::new(LockQueue::new()),
            readers: Guarded::new(LockQueue::new()),
        }
    }

    /// Whether there is a reader, or a holder of the writers' lock.
    pub(crate) fn is_locked(&self) -> bool {
        self.word.load(Ordering::Relaxed) != 0 || self.writer_lock.is_locked()
    }

    // ---- reading ---------------------------------------------------------------------------------------------------------------

    /// Enters as a reader if the lock is open (W2).
    ///
    /// # Panics
    ///
    /// If there are too many readers.
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

    /// Records that the calling context reads. Answers which context has the record.
    #[inline(always)]
    pub(crate) fn is_read_here(&self) -> Reader {
        let here = current();
        if let Some(here) = here {
            // SAFETY: the calling context.
            unsafe { here.as_ref() }.shares().took(self.share.get());
        } else {
            self.writer_lock.note_read();
        }
        Reader(here)
    }

    /// Removes that record.
    #[inline(always)]
    fn is_no_longer_read(&self, Reader(reader): Reader) {
        let Some(reader) = reader else { return self.writer_lock.forget_read() };
        let here = current();
        if here == Some(reader) {
            // SAFETY: the calling context.
            unsafe { reader.as_ref() }.shares().gave(self.share.get());
        } else if let Some(here) = here {
            self.is_no_longer_read_there(here, reader);
        }
        // A thread whose stacks are gone has no context, and they had the records.
    }

    /// The same on another stack than the reader's.
    #[cold]
    #[inline(never)]
    fn is_no_longer_read_there(&self, here: NonNull<Context>, reader: NonNull<Context>) {
        // SAFETY: the calling context.
        let here = unsafe { here.as_ref() };
        // SAFETY: on its own stack, with its own table.
        unsafe { (here.table().lost_share)(here, reader, self.share.get()) };
    }

    /// Ends a read.
    ///
    /// # Safety
    ///
    /// The caller has entered as a reader, and leaves once. `reader` is what [`is_read_here`](Self::is_read_here) has answered since.
    #[inline(always)]
    pub(crate) unsafe fn unlock_read(&self, reader: Reader) {
        self.is_no_longer_read(reader);
        let was = mutant!(
            "reader_goes_relaxed",
            self.word.fetch_sub(READER, Ordering::Relaxed),
            self.word.fetch_sub(READER, Ordering::Release)
        );
        if was & DRAINING != 0 && was / READER == 1 {
            self.drained();
        }
    }

    /// The last reader has left a word with `DRAINING`: wakes the writer.
    #[cold]
    #[inline(never)]
    fn drained(&self) {
        let chosen = self.drain.with(|queue| {
            // Acquire: the wake-up passes on what all readers did (W3).
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
        if how.limit.is_zero() { waiting.try_once() } else { waiting.wait() }
    }

    /// Takes the writers' lock, and admits readers.
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

    /// Releases the lock of an upgradable reader.
    ///
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
        let limit = if how.limit.is_zero() { how.limit } else { Limit::At(deadline) };
        // SAFETY: it was just taken.
        unsafe { self.upgrade(How { limit, ..how })? };
        mem::forget(taken);
        Ok(())
    }

    /// Shuts, and waits until the last reader has left. The caller keeps the writers' lock if the wait is refused.
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
        // SAFETY: the writer lock was just taken.
        let writes = unsafe { self.try_upgrade() };
        if !writes {
            // SAFETY: the writer lock was just taken, and the upgrade has left it as it was.
            unsafe { self.writer_lock.unlock() };
        }
        writes
    }

    /// Shuts the lock if it has no reader. Answers whether the caller writes now.
    ///
    /// # Safety
    ///
    /// As [`upgrade`](Self::upgrade).
    pub(crate) unsafe fn try_upgrade(&self) -> bool {
        self.word.compare_exchange(0, SHUT, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Ends a write: opens the lock, and releases the writers' lock.
    ///
    /// # Safety
    ///
    /// The caller writes, and leaves once.
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

    /// Opens, with `more` readers besides, and releases the writers' lock.
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
            // Readers waited, of which the writers' lock knows nothing.
            // SAFETY: the calling context.
            gave_back(unsafe { me().as_ref() });
        }
    }

    /// Opens, with `more` readers besides. Called by the holder of the writers' lock, which has shut. Returns whether readers waited.
    #[inline(always)]
    fn open(&self, more: usize) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & WAITED == 0 {
            let open = (word & !SHUT) + more * READER;
            // Release: the next reader sees what this writer has done, or seen.
            match self.word.compare_exchange_weak(word, open, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return false,
                Err(seen) => word = seen,
            }
        }
        self.let_in(more);
        true
    }

    /// The same where readers wait: admits all of them.
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
            // Besides this thread only leaving readers change the word.
            self.word.fetch_add(count * READER, Ordering::Relaxed);
            self.word.fetch_and(!(SHUT | WAITED), Ordering::Release);
            chosen
        });
        chosen.wake();
    }
}

/// The writers' lock of a writer that does not write yet: released if the writer is refused, or unwinds.
struct Taken<'a>(&'a RawRwLock);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // SAFETY: the caller has just taken it.
        unsafe { self.0.writer_lock.unlock() };
    }
}

/// A lock that a writer has shut and does not write yet: opened in the same cases, while the writer holds the writers' lock (W1).
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
