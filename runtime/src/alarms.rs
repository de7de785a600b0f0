//! What is armed, in shards, and the timer thread's sleep. Knows no clock, no context and no request: it is told what time it is,
//! and hands out what is due.
//!
//! # Vocabulary
//!
//! * **shard**: a timing wheel behind a lock of its own, so that workers which arm do not meet. All but the last may have an **owner**, who alone
//!   arms and takes back there, and whom the lock costs next to nothing ([`crate::biased`]).
//! * **word** of a shard: an instant before which nothing in it is due, as nanoseconds; all ones if it was empty when the word was
//!   written. Written under the shard's lock, read by anybody.
//! * **keeper**: the thread that sleeps here until something is due.
//! * **grace**: owners look after their shards, being nearer to what lies in them. The keeper
//!   gives them so much time from the instant on, and from when they last looked; then it does it instead. An owner that is late because
//!   it has more to do than it can is left alone: two who fire one shard only meet at its lock.
//! * **tell**: to end its sleep.
//! * **stay**: an owner's entry that is taken back may stay where it is filed. It **rests** there until the same waiter arms again, and is due
//!   when *that* wait is.
//! * **standing**: where a waiter's entry that stays is, and for when it is filed.
//!
//! # What stays
//!
//! Nearly every time-out is taken back, and the next of the same waiter is nearly always later. So to take back is to write that it rests, and
//! to arm again is to write when it is due, as long as it is filed for no later than that. When the wheel comes to it sooner it is filed anew, for when it
//! is due; or dropped, if it rests. A waiter has one that stays; what it arms beside it is filed and taken out as ever. A waiter that
//! goes away [dismisses](Shards::dismiss) its own.
//!
//! What rests costs nobody a wake-up where nothing is armed beside it: the word then says that the shard is empty, and who arms again lowers it.
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
//! What is due at one instant in one shard without an owner comes out in order of arming. Where there is one, what has stayed comes behind what was
//! filed for that instant meanwhile. Between shards there is no order: they are gone through one after the other. Who needs one has one shard.
//!
//! # Invariants
//!
//! * **B1** No entry in a shard is due before the shard's word, while its lock is free, but for what rests.
//! * **B2** While the keeper sleeps, no word, with the grace of its shard, is below what it sleeps until, or whoever wrote it has yet to
//!   take the lock of the sleep. (When an owner has looked only rises, so the keeper wakes early at worst.)
//! * **B3** A shard that is closed is empty and stays so.
//! * **B4** What stands is filed for no later than it is due. A standing that names what is no longer in the wheel names nothing: no
//!   two entries ever have the same number.
//! * **B5** A standing is touched by its waiter's owner, and by whoever has the lock of the shard while the entry is armed.

#![allow(unreachable_pub, reason = "the loom models see this module")]

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use forebear_context::shim::atomic::{AtomicU64, Ordering};
use forebear_context::shim::{Condvar, Mutex, MutexGuard};
use forebear_timer::{Key, Wheel};

use crate::biased::Biased;

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
    entries: Biased<Entries<E>>,
}

struct Entries<E> {
    wheel: Wheel<E>,
    /// How many of these rest.
    resting: usize,
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

/// The name of an entry, which is its key's; never 0.
pub type Number = u64;

/// The name of what stands, by which key ever: it gets another when it is filed anew. No key has this number.
const STANDS: Number = Number::MAX;

/// What is armed.
///
/// # Safety
///
/// See [`standing`](Self::standing).
pub unsafe trait Entry {
    /// When it is due, if it is one that stays.
    #[inline]
    fn when(&self) -> When {
        When::AsFiled
    }

    /// It rests from now on.
    fn rest(&mut self) {}

    /// Where it says where it stands, if it is one that stays. Under the lock of its shard.
    ///
    /// What is answered stays as long as the entry is in, and is the entry's and its owner's.
    fn standing(&self) -> Option<NonNull<Standing>> {
        None
    }
}

/// When an entry is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At the instant for which it is in the wheel.
    AsFiled,
    /// Then, which is not before that.
    At(Instant),
    /// It is not armed.
    Rests,
}

/// Where the entry of one who arms again and again stands (B4, B5).
#[derive(Debug, Default)]
pub struct Standing {
    at: Cell<Option<(Key, Instant)>>,
    /// What stands there may be armed; if not, it rests or there is none.
    armed: Cell<bool>,
}

impl Standing {
    /// Whether anything may stand there. To its owner.
    #[inline]
    pub fn is_some(&self) -> bool {
        self.at.get().is_some()
    }
}

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

impl<E: Entry> Shards<E> {
    /// So many shards, with nothing in them. With a grace all but the last have owners, who are given that.
    pub fn new(shards: usize, origin: Instant, grace: Option<Duration>) -> Shards<E> {
        let shard = |at| {
            let entries = Entries { wheel: Wheel::new(origin), resting: 0, soonest: None, closed: false };
            Shard {
                word: AtomicU64::new(NEVER),
                seen: AtomicU64::new(0),
                entries: Biased::new(entries, grace.is_some() && at + 1 < shards),
            }
        };
        Shards {
            origin,
            grace: grace.unwrap_or_default().as_nanos() as u64,
            shards: (0..shards.max(1)).map(shard).collect(),
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
                // So that it lies as low as can be.
                entries.wheel.advance(now);
                entries.soonest = Some(at);
                place.word.store(self.nanos(at), Ordering::Relaxed);
            }
            counted();
            Ok(Armed { number: entries.file(at, entry), first })
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
        if standing.armed.get() {
            return None;
        }
        let again = |entries: &mut Entries<E>| {
            let (key, filed) = standing.at.get()?;
            let told = entries.soonest.is_some_and(|soonest| at >= soonest);
            if at < filed || !told && !cfg!(mutant = "armed_again_untold") {
                return None;
            }
            let resting = entries.wheel.get_mut(key)?;
            if resting.when() != When::Rests {
                return None;
            }
            *resting = entry();
            entries.resting -= 1;
            standing.armed.set(true);
            Some(STANDS)
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
        let key = Key::from_number(number)?;
        // SAFETY: by contract.
        unsafe { self.shards[shard].entries.own(|entries| entries.remove(key)) }
    }

    /// The same for one that may be armed again: if it is the one that stands there, it stays and rests. Answers whether it was armed.
    ///
    /// # Safety
    ///
    /// The caller owns the shard and the entry.
    #[inline(always)]
    pub unsafe fn put_to_rest(&self, shard: usize, standing: &Standing, number: Number) -> bool {
        let rest = |entries: &mut Entries<E>| {
            if number != STANDS {
                return Key::from_number(number).is_some_and(|key| entries.remove(key).is_some());
            }
            let key = standing.at.get().map(|(key, _)| key);
            let Some(entry) = key.and_then(|key| entries.wheel.get_mut(key)) else { return false };
            entry.rest();
            entries.resting += 1;
            standing.armed.set(false);
            true
        };
        // SAFETY: by contract.
        unsafe { self.shards[shard].entries.own(rest) }
    }

    /// Takes out what stands there, which rests if it is in at all: whoever it is for goes.
    ///
    /// # Safety
    ///
    /// The caller owns the shard and the entry.
    #[inline]
    pub unsafe fn dismiss(&self, shard: usize, standing: &Standing) {
        if let Some((key, _)) = standing.at.take() {
            // SAFETY: by contract.
            unsafe { self.shards[shard].entries.own(|entries| entries.remove(key)) };
        }
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
        #[cfg(mutant = "fired_after_the_lock")]
        {
            let due = place.entries.visit(|entries| entries.wheel.pop_due(now));
            forebear_context::shim::thread::yield_now();
            if due.and_then(|entry| by.fire(entry)).is_some() {
                return Fired::Some;
            }
        }
        let fired = place.entries.visit(|entries| self.fire_in(shard, entries, now, most, by));
        #[cfg(mutant = "word_written_after_the_lock")]
        place.word.store(NEVER, Ordering::Relaxed);
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
            let Some(entry) = entries.wheel.pop_due(now) else {
                // What rests may come first; but where nothing else is, nobody need look.
                let soonest = if entries.armed() == 0 { None } else { entries.wheel.earliest() };
                entries.soonest = soonest;
                let word = soonest.map_or(NEVER, |at| self.nanos(at));
                #[cfg(not(mutant = "word_written_after_the_lock"))]
                self.shards[shard].word.store(word, Ordering::Relaxed);
                by.done();
                return Fired::All;
            };
            match entry.when() {
                When::Rests => entries.resting -= 1,
                When::At(at) if at > now && !cfg!(mutant = "what_stays_fires_as_filed") => {
                    #[cfg(not(mutant = "filed_anew_elsewhere"))]
                    entries.file(at, entry);
                    #[cfg(mutant = "filed_anew_elsewhere")]
                    entries.wheel.insert(at, entry);
                }
                _ => {
                    if let Some(entry) = by.fire(entry) {
                        by.done();
                        return Fired::But(entry);
                    }
                }
            }
        }
        #[cfg(mutant = "a_batch_is_taken_for_all")]
        self.shards[shard].word.store(NEVER, Ordering::Relaxed);
        by.done();
        Fired::Some
    }

    /// When the earliest entry is due: exactly.
    pub fn earliest(&self) -> Option<Instant> {
        self.shards.iter().filter_map(|shard| shard.entries.visit(|entries| entries.wheel.earliest())).min()
    }

    /// How many are armed.
    pub fn armed(&self) -> usize {
        self.shards.iter().map(|shard| shard.entries.visit(|entries| entries.armed())).sum()
    }

    /// How many stay in a shard and rest.
    #[cfg(test)]
    pub fn resting(&self, shard: usize) -> usize {
        self.shards[shard].entries.visit(|entries| entries.resting)
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
            shard.entries.visit(|entries| {
                entries.closed = true;
                let all = entries.wheel.take_all().into_iter();
                all.filter(|entry| entry.when() != When::Rests).for_each(&mut with);
                entries.resting = 0;
            });
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

impl<E: Entry> Entries<E> {
    /// How many are armed.
    fn armed(&self) -> usize {
        self.wheel.len() - self.resting
    }

    /// Files an entry for `at`. If it is one that stays, it takes the place of what rests where it is to stand. (If another is armed there,
    /// it stands nowhere.)
    #[inline]
    fn file(&mut self, at: Instant, entry: E) -> Number {
        let Some(standing) = entry.standing() else { return self.wheel.insert(at, entry).number() };
        // SAFETY: an entry stands beside whom it is for, who stays while it is in.
        let standing = unsafe { standing.as_ref() };
        if let Some((there, _)) = standing.at.get() {
            match self.wheel.get_mut(there).map(|entry| entry.when()) {
                Some(When::Rests) => _ = self.remove(there),
                Some(_) => return self.wheel.insert(at, entry).number(),
                None => {}
            }
        }
        let key = self.wheel.insert(at, entry);
        standing.at.set(Some((key, at)));
        standing.armed.set(true);
        STANDS
    }

    #[inline]
    fn remove(&mut self, key: Key) -> Option<E> {
        let entry = self.wheel.remove(key)?;
        if entry.when() == When::Rests {
            self.resting -= 1;
        }
        Some(entry)
    }
}

impl<E: Entry> fmt::Debug for Shards<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards")
            .field("count", &self.count())
            .field("sleep", &self.sleep())
            .finish_non_exhaustive()
    }
}
