//! What is armed, in shards, and the timer thread's sleep. Knows no clock, no context and no request: it is given the time,
//! and hands out what is due.
//!
//! # Vocabulary
//!
//! * **shard**: a timing wheel behind a lock of its own, so that workers which arm do not meet. All but the last may have an **owner**, who alone
//!   arms and takes back there, and whom the lock costs next to nothing ([`crate::state::biased`]).
//! * **word** of a shard: an instant before which nothing in it is due, as nanoseconds; all ones if it was empty when the word was
//!   written. Written under the shard's lock, read by anybody.
//! * **timer thread**: the thread that sleeps here until something is due.
//! * **prompt** shard: one with an owner that does not look after it: what is due there the timer thread does at once.
//! * **grace**: owners look after their other shards, being nearer to what lies in them. The timer thread
//!   gives them so much time from the instant on, and from when they last looked; then it does it instead. An owner that is late because
//!   it has more to do than it can is left alone: two who fire one shard only meet at its lock.
//! * **tell**: to end its sleep.
//!
//! # Words may be early, never late
//!
//! Arming lowers the word if the entry is due before. Taking out what is due sets the word to the earliest entry that
//! is left. Disarming does not change the word. So a waiter that arms and disarms again and again writes no word and
//! notifies no thread. The timer thread wakes at most once for disarmed entries, at the instant in the word, and then
//! writes the word anew. The owner of a shard does the same, and notifies no thread. The word rises only when entries
//! are taken out, and a thread that lowers it, by arming, notifies the timer thread.
//!
//! An owner's entry may stay in the wheel when it is taken back ([`staying`]). If no other entry is armed, a resting entry causes no
//! wake-up: the word then says that the shard is empty, and the thread that arms again lowers it.
//!
//! That a word is lowered while the timer thread goes to sleep is the race that [`sleep`] tells of.
//!
//! # Order
//!
//! What is due at one instant in one shard without an owner comes out in order of arming. Where there is one, what has stayed comes behind what was
//! filed for that instant meanwhile. Shards are read one after the other, so there is no order between them. A runtime that needs an order has one shard.
//!
//! # Invariants
//!
//! * **B1** No entry in a shard is due before the shard's word, while its lock is free, but for what rests.
//! * **B3** A shard that is closed is empty and stays so.

use std::fmt;
use std::time::{Duration, Instant};

use forebear_context::shim::atomic::{AtomicU64, Ordering};
use forebear_context::shim::mutant;

use crate::state::biased::Biased;

mod sleep;
mod staying;

use self::sleep::Bed;
pub use self::sleep::Sleep;
use self::staying::Filed;
pub use self::staying::{DueWhen, Number, Standing, TimerEntry};

/// The word of an empty shard.
const NEVER: u64 = u64::MAX;

/// See the module head.
pub struct Shards<E> {
    /// From where words count.
    origin: Instant,
    /// In nanoseconds.
    grace: u64,
    /// The first prompt shard, and whatever comes behind it.
    prompt: usize,
    shards: Box<[Shard<E>]>,
    bed: Bed,
}

#[repr(align(128))]
struct Shard<E> {
    word: AtomicU64,
    /// When the owner last looked.
    seen: AtomicU64,
    entries: Biased<Entries<E>>,
}

struct Entries<E> {
    filed: Filed<E>,
    /// What the word says.
    soonest: Option<Instant>,
    closed: bool,
}

/// Why an entry was not taken in; it is given back.
#[derive(Debug)]
pub enum Refused<E> {
    /// It is due already.
    Due(E),
    /// All is over.
    Closed(E),
}

/// The receiver of due entries. Called under the lock of a shard.
pub trait Fire<E> {
    /// An entry is due. Gives it back if that is too much to do under a lock.
    fn fire(&mut self, entry: E) -> Option<E>;

    /// The lock is about to be given up: whatever was put off is done now.
    fn done(&mut self) {}
}

/// What [`Shards::fire`] has done.
#[derive(Debug)]
pub enum Fired<E> {
    /// All that was due.
    All,
    /// Perhaps not all.
    Some,
    /// Perhaps not all, and this one is the caller's to do, without a lock.
    But(E),
}

/// What came of arming.
#[derive(Debug)]
pub struct Armed {
    /// For [`Shards::remove`].
    pub number: Number,
    /// It is due before all others of its shard: the caller calls [`Shards::tell`].
    pub first: bool,
}

impl<E: TimerEntry> Shards<E> {
    /// So many shards, with nothing in them. With a grace all but the last have owners, who are given that.
    pub fn new(shards: usize, origin: Instant, grace: Option<Duration>) -> Shards<E> {
        let shard = |at| {
            let entries = Entries { filed: Filed::new(origin), soonest: None, closed: false };
            Shard {
                word: AtomicU64::new(NEVER),
                seen: AtomicU64::new(0),
                entries: Biased::new(entries, grace.is_some() && at + 1 < shards),
            }
        };
        Shards {
            origin,
            grace: grace.unwrap_or_default().as_nanos() as u64,
            prompt: shards.saturating_sub(1),
            shards: (0..shards.max(1)).map(shard).collect(),
            bed: Bed::new(),
        }
    }

    /// The same, of which those from number `prompt` on are prompt.
    #[must_use]
    pub fn prompt_from(self, prompt: usize) -> Shards<E> {
        Shards { prompt, ..self }
    }

    /// How many there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.shards.len()
    }

    /// An instant as a word has it. What lies before the origin is 0, and what is too far off waits for ever: centuries.
    pub fn nanos(&self, at: Instant) -> u64 {
        let after = at.saturating_duration_since(self.origin);
        u64::try_from(after.as_nanos()).unwrap_or(NEVER).min(NEVER - 1)
    }

    /// Puts an entry into a shard. If it is due before all others there, `now` is asked, under the lock, and what is due already is
    /// not taken in. What is taken in is `counted`, before it is seen and before another is taken in.
    ///
    /// # Safety
    ///
    /// If the shard has an owner, it is the caller.
    #[inline]
    pub unsafe fn insert(
        &self,
        shard: usize,
        at: Instant,
        entry: E,
        now: impl FnOnce() -> Instant,
        counted: impl FnOnce(),
    ) -> Result<Armed, Refused<E>> {
        let place = &self.shards[shard];
        let insert = |entries: &mut Entries<E>| {
            if entries.closed {
                return Err(Refused::Closed(entry));
            }
            let first = entries.soonest.is_none_or(|soonest| at < soonest);
            if first {
                let now = now();
                if at <= now {
                    return Err(Refused::Due(entry));
                }
                entries.filed.advance(now);
                entries.soonest = Some(at);
                place.word.store(self.nanos(at), Ordering::Relaxed);
            }
            counted();
            Ok(Armed { number: entries.filed.file(at, entry), first })
        };
        // SAFETY: by contract.
        unsafe { place.entries.own(insert) }
    }

    /// Arms the entry that stands there and rests, if it need not be filed anew for it: it is filed for no later, and something
    /// else is due before. Answers its number.
    ///
    /// # Safety
    ///
    /// The caller owns the shard and the entry.
    #[inline(always)]
    pub unsafe fn arm_again(
        &self,
        shard: usize,
        standing: &Standing,
        at: Instant,
        entry: impl FnOnce() -> E,
    ) -> Option<Number> {
        if standing.may_be_armed() {
            return None;
        }
        // SAFETY: by contract.
        unsafe { self.arm_in_place(shard, standing, at, entry) }
    }

    /// The same where several share a place to stand.
    ///
    /// # Safety
    ///
    /// The caller owns the shard.
    #[inline(always)]
    pub unsafe fn arm_in_place(
        &self,
        shard: usize,
        standing: &Standing,
        at: Instant,
        entry: impl FnOnce() -> E,
    ) -> Option<Number> {
        let again = |entries: &mut Entries<E>| {
            let (key, filed) = standing.filed()?;
            let known = entries.soonest.is_some_and(|soonest| at >= soonest);
            if at < filed || !known && !cfg!(mutant = "armed_again_untold") {
                return None;
            }
            entries.filed.arm_again(key, standing, entry)
        };
        // SAFETY: by contract.
        unsafe { self.shards[shard].entries.own(again) }
    }

    /// Takes an entry back; `None` if it has been taken out, and then [`Fire::fire`] has returned that was called with it.
    ///
    /// # Safety
    ///
    /// If the shard has an owner, it is the caller.
    #[inline]
    pub unsafe fn remove(&self, shard: usize, number: Number) -> Option<E> {
        // SAFETY: by contract.
        unsafe { self.shards[shard].entries.own(|entries| entries.filed.remove(number)) }
    }

    /// The same for one that may be armed again: if it is the one that stands there, it stays and rests. Answers whether it was armed.
    ///
    /// # Safety
    ///
    /// The caller owns the shard and the entry.
    #[inline(always)]
    pub unsafe fn put_to_rest(&self, shard: usize, standing: &Standing, number: Number) -> bool {
        // SAFETY: by contract.
        unsafe { self.shards[shard].entries.own(|entries| entries.filed.put_to_rest(standing, number)) }
    }

    /// The same where several share a place to stand: if what has that number there is the entry that `is_it` is true of. By anybody.
    ///
    /// # Safety
    ///
    /// If `owns`, the caller owns the shard, and else is not in it. What stands there is the shard's owner's.
    #[inline(always)]
    pub unsafe fn take_back(
        &self,
        shard: usize,
        owns: bool,
        standing: &Standing,
        number: Number,
        is_it: impl FnOnce(&E) -> bool,
    ) -> bool {
        let take_back = |entries: &mut Entries<E>| entries.filed.take_back(standing, number, is_it);
        if owns {
            // SAFETY: by contract.
            unsafe { self.shards[shard].entries.own(take_back) }
        } else {
            self.shards[shard].entries.visit(take_back)
        }
    }

    /// Calls `f` if nothing is armed in the shard; nothing is meanwhile.
    ///
    /// # Safety
    ///
    /// If `owns`, the caller owns the shard, and else is not in it.
    pub unsafe fn when_none_is_armed(&self, shard: usize, owns: bool, f: impl FnOnce()) {
        let look = |entries: &mut Entries<E>| {
            if entries.filed.armed() == 0 {
                f();
            }
        };
        if owns {
            // SAFETY: by contract.
            unsafe { self.shards[shard].entries.own(look) }
        } else {
            self.shards[shard].entries.visit(look)
        }
    }

    /// Takes out the entry, which rests if it is in at all: its waiter is about to be freed.
    ///
    /// # Safety
    ///
    /// The caller owns the shard and the entry.
    #[inline]
    pub unsafe fn dismiss(&self, shard: usize, standing: &Standing) {
        if standing.is_some() {
            // SAFETY: by contract.
            unsafe { self.shards[shard].entries.own(|entries| entries.filed.dismiss(standing)) };
        }
    }

    /// Sees to it that the timer thread does not sleep beyond `at`, and the grace of that shard. True: it did, and was told.
    pub fn tell(&self, shard: usize, at: Instant) -> bool {
        self.bed.tell(self.with_grace(shard, self.nanos(at)))
    }

    /// The timer thread's sleep: returns when something may be due, or it was told. False: all is over. `now` is asked right before, under the
    /// lock of the sleep, which lasts as long as it says.
    pub fn rest(&self, now: impl FnOnce() -> Instant) -> bool {
        self.bed.rest(|| self.next_word(), || self.nanos(now()))
    }

    /// Whether anything in the shard may be due at `now`. A thread that lowers the word meanwhile notifies the timer thread.
    pub fn may_be_due(&self, shard: usize, now: Instant) -> bool {
        let word = self.shards[shard].word.load(Ordering::Relaxed);
        word != NEVER && word <= self.nanos(now)
    }

    /// The same for the timer thread, which leaves to an owner what has only just come due.
    pub fn is_neglected(&self, shard: usize, now: Instant) -> bool {
        let word = self.with_grace(shard, self.shards[shard].word.load(Ordering::Relaxed));
        word != NEVER && word <= self.nanos(now)
    }

    /// The owner of the shard looks: from now on it has the grace again.
    #[inline]
    pub fn sees(&self, shard: usize, now: Instant) {
        self.shards[shard].seen.store(self.nanos(now), Ordering::Relaxed);
    }

    /// How long after `now` something in the shard may be due; `None`: it was empty. For its owner, who alone arms there.
    pub fn left(&self, shard: usize, now: Instant) -> Option<Duration> {
        let word = self.shards[shard].word.load(Ordering::Relaxed);
        (word != NEVER).then(|| Duration::from_nanos(word.saturating_sub(self.nanos(now))))
    }

    /// Whether something may be in the shard. For its owner.
    #[inline]
    pub fn has_some(&self, shard: usize) -> bool {
        self.shards[shard].word.load(Ordering::Relaxed) != NEVER
    }

    /// Takes out what is due at `now` in a shard, at most so many, in order, and has it done under the lock.
    pub fn fire(&self, shard: usize, now: Instant, most: usize, by: &mut impl Fire<E>) -> Fired<E> {
        let place = &self.shards[shard];
        mutant!("fired_after_the_lock", {
            let due = place.entries.visit(|entries| entries.filed.pop(now));
            forebear_context::shim::thread::yield_now();
            if due.and_then(|entry| by.fire(entry)).is_some() {
                return Fired::Some;
            }
        });
        let fired = place.entries.visit(|entries| self.fire_in(shard, entries, now, most, by));
        mutant!("word_written_after_the_lock", place.word.store(NEVER, Ordering::Relaxed));
        fired
    }

    /// The same by the owner of the shard.
    ///
    /// # Safety
    ///
    /// The shard has an owner, which is the caller.
    pub unsafe fn fire_own(
        &self,
        shard: usize,
        now: Instant,
        most: usize,
        by: &mut impl Fire<E>,
    ) -> Fired<E> {
        // SAFETY: by contract.
        unsafe { self.shards[shard].entries.own(|entries| self.fire_in(shard, entries, now, most, by)) }
    }

    fn fire_in(
        &self,
        shard: usize,
        entries: &mut Entries<E>,
        now: Instant,
        most: usize,
        by: &mut impl Fire<E>,
    ) -> Fired<E> {
        for _ in 0..most {
            let Some(entry) = entries.filed.pop(now) else {
                // What rests may come first; but where nothing else is, nobody need look.
                let soonest = if entries.filed.armed() == 0 { None } else { entries.filed.earliest() };
                entries.soonest = soonest;
                let word = soonest.map_or(NEVER, |at| self.nanos(at));
                mutant!(
                    "word_written_after_the_lock",
                    (),
                    self.shards[shard].word.store(word, Ordering::Relaxed)
                );
                by.done();
                return Fired::All;
            };
            if let Some(entry) = entries.filed.due(entry, now)
                && let Some(entry) = by.fire(entry)
            {
                by.done();
                return Fired::But(entry);
            }
        }
        mutant!("a_batch_is_taken_for_all", self.shards[shard].word.store(NEVER, Ordering::Relaxed));
        by.done();
        Fired::Some
    }

    /// When the earliest entry is due: exactly.
    pub fn earliest(&self) -> Option<Instant> {
        self.shards.iter().filter_map(|shard| shard.entries.visit(|entries| entries.filed.earliest())).min()
    }

    /// How many are armed.
    pub fn armed(&self) -> usize {
        self.shards.iter().map(|shard| shard.entries.visit(|entries| entries.filed.armed())).sum()
    }

    /// How many stay in a shard and rest.
    #[cfg(test)]
    pub fn resting(&self, shard: usize) -> usize {
        self.shards[shard].entries.visit(|entries| entries.filed.resting())
    }

    /// What the timer thread does.
    pub fn sleep(&self) -> Sleep {
        self.bed.sleep()
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.bed.is_closed()
    }

    /// The end: the timer thread is notified, and each entry is given to `with`, under the lock of its shard. Idempotent.
    pub fn close(&self, mut with: impl FnMut(E)) {
        self.bed.close();
        for shard in &self.shards {
            shard.entries.visit(|entries| {
                entries.closed = true;
                entries.filed.take_all().for_each(&mut with);
            });
        }
    }

    /// When the timer thread is to look.
    fn next_word(&self) -> u64 {
        let words = self.shards.iter().map(|shard| shard.word.load(Ordering::Relaxed));
        words.enumerate().map(|(shard, word)| self.with_grace(shard, word)).min().unwrap_or(NEVER)
    }

    fn with_grace(&self, shard: usize, word: u64) -> u64 {
        if shard >= self.prompt || word == NEVER {
            word
        } else if cfg!(mutant = "what_has_an_owner_is_not_looked_after") {
            NEVER
        } else {
            let seen = self.shards[shard].seen.load(Ordering::Relaxed);
            word.max(seen).saturating_add(self.grace).min(NEVER - 1)
        }
    }
}

impl<E: TimerEntry> fmt::Debug for Shards<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards")
            .field("count", &self.count())
            .field("sleep", &self.sleep())
            .finish_non_exhaustive()
    }
}
