//! What is armed, in shards, and the timer thread's sleep. Knows no clock, no context and no request: it is told what time it is,
//! and hands out what is due.
//!
//! # Vocabulary
//!
//! * **shard**: a timing wheel behind a lock of its own, so that workers which arm do not meet.
//! * **word** of a shard: an instant before which nothing in it is due, as nanoseconds; all ones if it was empty when the word was
//!   written. Written under the shard's lock, read by anybody.
//! * **keeper**: the thread that sleeps here until something is due.
//! * **grace**: all shards but the last are looked after by others, their owners, who are nearer to what lies in them. The keeper
//!   gives them so much time from the instant on, and from when they last looked; then it does it instead. An owner that is late because
//!   it has more to do than it can is left alone: two who fire one shard only meet at its lock.
//! * **tell**: to end its sleep.
//!
//! # Words may be early, never late
//!
//! Arming lowers the word if the entry is due before; taking out what is due sets it to what is left. Taking an entry back leaves
//! it: so who arms and takes back again and again writes no word and tells nobody, and the keeper wakes at most once for what
//! was taken back, at the instant that stands there, and then writes the word anew. So does the owner of a shard, whom nobody need tell of
//! anything: the word only rises when something is taken out, and who lowers it, by arming, tells the keeper.
//!
//! # The race
//!
//! An entry is armed that is due before all others, and the keeper goes to sleep without having seen it. Whoever lowers a
//! word has the lock of the sleep afterwards; the keeper reads all words, and leaves there until when it sleeps, in one hold of that lock.
//! Whichever is first: the keeper reads the lowered word, or who lowered it reads of the sleep, and tells.
//!
//! # Order
//!
//! What is due at one instant in one shard comes out in order of arming. Between shards there is none: they are gone through one
//! after the other. Who needs an order has one shard.
//!
//! # Invariants
//!
//! * **B1** No entry in a shard is due before the shard's word, while its lock is free.
//! * **B2** While the keeper sleeps, no word, with the grace of its shard, is below what it sleeps until, or whoever wrote it has yet to
//!   take the lock of the sleep. (When an owner has looked only rises, so the keeper wakes early at worst.)
//! * **B3** A shard that is closed is empty and stays so.

#![allow(unreachable_pub, reason = "the loom models see this module")]

use std::fmt;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use forebear_context::shim::atomic::{AtomicU64, Ordering};
use forebear_context::shim::{Condvar, Mutex, MutexGuard};
use forebear_timer::{Key, Wheel};

/// How many shards there can be.
pub const MOST: usize = 1 << BITS;

/// The bits of a [`Number`] that say which shard.
const BITS: u32 = 4;

/// The word of an empty shard.
const NEVER: u64 = u64::MAX;

/// See the module head.
pub struct Shards<E> {
    /// From where words count.
    origin: Instant,
    /// In nanoseconds.
    grace: u64,
    shards: Box<[Shard<E>]>,
    sleep: Mutex<Rest>,
    told: Condvar,
}

#[repr(align(128))]
struct Shard<E> {
    word: AtomicU64,
    /// When the owner last looked.
    seen: AtomicU64,
    entries: Mutex<Entries<E>>,
}

struct Entries<E> {
    wheel: Wheel<E>,
    /// What the word says.
    soonest: Option<Instant>,
    closed: bool,
}

struct Rest {
    sleep: Sleep,
    closed: bool,
}

/// What the keeper does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// It will look before it sleeps, or there is no keeper.
    Awake,
    /// Until then: nanoseconds, as in a word.
    Until(u64),
    /// Until it is told.
    UntilTold,
}

/// The name of an entry; never 0.
pub type Number = u64;

/// Why an entry was not taken in; it is given back.
#[derive(Debug)]
pub enum Refused<E> {
    /// It is due already.
    Due(E),
    /// All is over.
    Closed(E),
}

/// Who does what is due. Called under the lock of a shard.
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

impl<E> Shards<E> {
    /// So many shards, [`MOST`] at most, with nothing in them. All but the last have owners, who are given that grace.
    pub fn new(shards: usize, origin: Instant, grace: Duration) -> Shards<E> {
        let shard = |_| Shard {
            word: AtomicU64::new(NEVER),
            seen: AtomicU64::new(0),
            entries: Mutex::new(Entries { wheel: Wheel::new(origin), soonest: None, closed: false }),
        };
        Shards {
            origin,
            grace: grace.as_nanos() as u64,
            shards: (0..shards.clamp(1, MOST)).map(shard).collect(),
            sleep: Mutex::new(Rest { sleep: Sleep::Awake, closed: false }),
            told: Condvar::new(),
        }
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
    #[inline]
    pub fn insert(
        &self,
        shard: usize,
        at: Instant,
        entry: E,
        now: impl FnOnce() -> Instant,
        counted: impl FnOnce(),
    ) -> Result<Armed, Refused<E>> {
        let place = &self.shards[shard];
        let mut entries = place.lock();
        if entries.closed {
            return Err(Refused::Closed(entry));
        }
        let first = entries.soonest.is_none_or(|soonest| at < soonest);
        if first {
            let now = now();
            if at <= now {
                return Err(Refused::Due(entry));
            }
            // So that it lies as low as can be.
            entries.wheel.advance(now);
            entries.soonest = Some(at);
            place.word.store(self.nanos(at), Ordering::Relaxed);
        }
        counted();
        let number = entries.wheel.insert(at, entry).number() << BITS | shard as u64;
        Ok(Armed { number, first })
    }

    /// Takes an entry back; `None` if it has been taken out, and then [`Fire::fire`] has returned that was called with it.
    #[inline]
    pub fn remove(&self, number: Number) -> Option<E> {
        let key = Key::from_number(number >> BITS)?;
        self.shards.get(number as usize % MOST)?.lock().wheel.remove(key)
    }

    /// Sees to it that the keeper does not sleep beyond `at`, and the grace of that shard. True: it did, and was told.
    pub fn tell(&self, shard: usize, at: Instant) -> bool {
        let at = self.with_grace(shard, self.nanos(at));
        let mut rest = self.lock_sleep();
        let oversleeps = match rest.sleep {
            Sleep::Awake => false,
            Sleep::Until(wakes) => at < wakes && !cfg!(mutant = "only_who_sleeps_for_ever_is_told"),
            Sleep::UntilTold => true,
        };
        if oversleeps {
            // Told once; whoever arms before it has looked need not tell it again.
            rest.sleep = Sleep::Awake;
            self.told.notify_one();
        }
        oversleeps
    }

    /// The keeper's sleep: returns when something may be due, or it was told. False: all is over. `now` is asked right before, under the
    /// lock of the sleep, which lasts as long as it says.
    pub fn rest(&self, now: impl FnOnce() -> Instant) -> bool {
        #[cfg(mutant = "words_read_before_the_lock")]
        let next = self.next_word();
        let mut rest = self.lock_sleep();
        if rest.closed {
            return false;
        }
        #[cfg(not(mutant = "words_read_before_the_lock"))]
        let next = self.next_word();
        let now = self.nanos(now());
        if next <= now {
            return true;
        }
        rest = if next == NEVER {
            rest.sleep = Sleep::UntilTold;
            self.told.wait(rest).unwrap_or_else(PoisonError::into_inner)
        } else {
            rest.sleep = Sleep::Until(next);
            let left = Duration::from_nanos(next - now);
            self.told.wait_timeout(rest, left).unwrap_or_else(PoisonError::into_inner).0
        };
        rest.sleep = Sleep::Awake;
        !rest.closed
    }

    /// Whether anything in the shard may be due at `now`. Whoever lowers the word meanwhile tells the keeper.
    pub fn may_be_due(&self, shard: usize, now: Instant) -> bool {
        let word = self.shards[shard].word.load(Ordering::Relaxed);
        word != NEVER && word <= self.nanos(now)
    }

    /// The same for the keeper, which leaves to an owner what has only just come due.
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
        let mut entries = place.lock();
        for _ in 0..most {
            let Some(entry) = entries.wheel.pop_due(now) else {
                let soonest = entries.wheel.earliest();
                let word = soonest.map_or(NEVER, |at| self.nanos(at));
                entries.soonest = soonest;
                #[cfg(not(mutant = "word_written_after_the_lock"))]
                place.word.store(word, Ordering::Relaxed);
                by.done();
                drop(entries);
                #[cfg(mutant = "word_written_after_the_lock")]
                place.word.store(word, Ordering::Relaxed);
                return Fired::All;
            };
            #[cfg(mutant = "fired_after_the_lock")]
            {
                drop(entries);
                forebear_context::shim::thread::yield_now();
                by.fire(entry);
                entries = place.lock();
            }
            #[cfg(not(mutant = "fired_after_the_lock"))]
            if let Some(entry) = by.fire(entry) {
                by.done();
                return Fired::But(entry);
            }
        }
        by.done();
        Fired::Some
    }

    /// When the earliest entry is due: exactly.
    pub fn earliest(&self) -> Option<Instant> {
        self.shards.iter().filter_map(|shard| shard.lock().wheel.earliest()).min()
    }

    /// How many are armed.
    pub fn armed(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().wheel.len()).sum()
    }

    /// What the keeper does.
    pub fn sleep(&self) -> Sleep {
        self.lock_sleep().sleep
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.lock_sleep().closed
    }

    /// The end: the keeper is told, and each entry is given to `with`, under the lock of its shard. Idempotent.
    pub fn close(&self, mut with: impl FnMut(E)) {
        #[cfg(mutant = "closed_after_it_is_told")]
        self.told.notify_one();
        self.lock_sleep().closed = true;
        #[cfg(not(mutant = "closed_after_it_is_told"))]
        self.told.notify_one();
        for shard in &self.shards {
            let mut entries = shard.lock();
            entries.closed = true;
            entries.wheel.take_all().into_iter().for_each(&mut with);
        }
    }

    /// When the keeper is to look.
    fn next_word(&self) -> u64 {
        let words = self.shards.iter().map(|shard| shard.word.load(Ordering::Relaxed));
        words.enumerate().map(|(shard, word)| self.with_grace(shard, word)).min().unwrap_or(NEVER)
    }

    fn with_grace(&self, shard: usize, word: u64) -> u64 {
        if shard + 1 == self.count() || word == NEVER {
            word
        } else if cfg!(mutant = "what_has_an_owner_is_not_looked_after") {
            NEVER
        } else {
            let seen = self.shards[shard].seen.load(Ordering::Relaxed);
            word.max(seen).saturating_add(self.grace).min(NEVER - 1)
        }
    }

    fn lock_sleep(&self) -> MutexGuard<'_, Rest> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E> Shard<E> {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, Entries<E>> {
        // No user code runs while it is held, so nothing can be left half-done.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E> fmt::Debug for Shards<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards")
            .field("count", &self.count())
            .field("sleep", &self.sleep())
            .finish_non_exhaustive()
    }
}
