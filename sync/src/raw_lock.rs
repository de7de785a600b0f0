//! The lock below [`Mutex`](crate::Mutex), `ReentrantMutex`, `RawMutex` and `RwLock`: a word and a queue.
//!
//! # Vocabulary
//!
//! * **holder**: the context that has the lock. The exchange that takes the lock writes the holder's address into the word; it is a hint
//!   ([`forebear_context::context::OwnerWait`]). The address is null for a thread that no runtime knows, and for the raw form
//!   ([`RawMutex`](crate::RawMutex)), which any thread may release.
//! * **to barge**: to take a lock that is free while others wait for it.
//! * **to lose**: to be woken and find the lock taken.
//! * **hand over**: to give the lock to a waiter instead of leaving it free.
//! * **to come**: to continue after a wake-up, and check whether the lock is free. From the choice until then a waiter is *on its way*.
//!
//! # The word
//!
//! ```text
//!  holder's address | COMING | RESERVED | PARKED | LOCKED
//! ```
//!
//! `PARKED`: there is a waiter in the queue. `RESERVED`: a waiter that has lost for too long is about to take the lock, and no other context
//! may. `COMING`: a waiter that was woken is on its way. All zeros: the lock is free and has no waiter; the fast path works only from there.
//!
//! # The fast path
//!
//! Without waiters a lock and a release are one exchange each: from all zeros to the holder with `LOCKED`, and back. Neither loads the word first.
//! The last store to the word is that of an exchange, and a load waits until that exchange has ended (decision 0115).
//!
//! An exchange that fails costs as much as one that succeeds. So with waiters in the queue, the fast path goes to the slow one at once. It knows of them by
//! [`has_waiters`](RawLock::has_waiters), a hint. The slow path is right for any word, and the exchange of the fast path fails for any
//! word but its own. So a hint that is out of date changes nothing but the time, and the models have none.
//!
//! # How it works
//!
//! A release wakes the most urgent waiter, and leaves the lock free. Running code may barge: a lock that is handed to a request
//! pinned behind a busy worker would stop all others. The release hands over in two cases: if all waiters belong to the releasing
//! worker, and to a thread of the system whose turn it is ([`turns`]). A waiter that loses puts itself back ([`LockQueue::push`]).
//!
//! # Bounds
//!
//! A waiter gets the lock in bounded time, however urgent the others are and however often they arrive.
//!
//! * *It is chosen.* The queue passes over a place a bounded number of times (module head of [`lock_queue`](crate::lock_queue)).
//! * *It loses a bounded number of times.* At its loss number [`LOSSES`](waiting::LOSSES), or at a loss [`PATIENCE`](waiting::PATIENCE) or more after its first, its
//!   patience ends. Then it raises `RESERVED` and polls the lock while it keeps running, for [`RESERVATION`](waiting::RESERVATION) at most; a
//!   release then leaves it the lock. It does not if the holder is of its own thread, since that holder cannot release while this waiter polls.
//! * *Then the lock is owed to it.* If it has not got the lock by then, the release that chooses it next hands the lock over (decision 0044). So the lock
//!   stays with a waiter that does not run yet only after [`LOSSES`](waiting::LOSSES) losses, and once per wait.
//! * *A polling stack gives way.* A stack may try a contended lock 64 times and wait for nothing else meanwhile. Then
//!   it yields to other fibers of its worker and to an unstarted request (`Context::try_again`). The stack may be polling for what one of them does.
//!
//! While a waiter is on its way, the next releases wake no other. A second waiter would most likely find the lock taken, and each wake-up
//! transfers several cache lines between cores. This holds for [`PASSES`] releases in a row, since the waiter on its way may be
//! pinned behind a busy worker. It does not hold if a more urgent waiter has entered the queue since (decision 0031).
//!
//! No context barges past a waiter of its own thread that has been woken and is as urgent, since that waiter runs only when the barger waits. So
//! the newcomer *gives way*: it yields, up to [`WAYS`](waiting::WAYS) times, so that the other runs first. If there is still such a waiter, it
//! enters the queue although the lock is free. For all other contexts the lock stays free. A newcomer that yields is in no queue, so the queue becomes
//! empty, and the lock returns to the fast path. If all newcomers entered the queue at once, each release would wake another (decision 0116).
//!
//! A newcomer polls a few times before it waits, but only while the queue is empty: a queue means that the lock is held for long. Nor does it poll for a
//! holder of its own thread, which cannot continue meanwhile. The raw form has the number of the thread that took it beside its word. A waiter that was
//! woken and finds the lock held on another thread polls before it loses; longer if nothing else is ready on its thread. Meanwhile it is on
//! its way, so the holder's releases wake no other. Polls become rarer, since each takes the cache line of the word from the holder (decision 0110). A
//! waiter whose thread has nothing else to do gives up its time slice between later polls: soon if a woken waiter is on its way, and once, late, to the holder
//! (decisions 0107 and 0143).
//!
//! # The races
//!
//! *Release against a newcomer.* Both change the word by exchanges. The newcomer sets `PARKED` under the queue's lock, on a word
//! that says `LOCKED`. A release that sees `PARKED` takes the queue's lock, so it finds the newcomer there.
//!
//! *Release against a leaver.* The release chooses under the queue's lock. A waiter that has left its wait refuses, and the release chooses the next.
//! The chosen waiter continues with *woken*, and takes the lock or enters the queue again: so no wake-up is lost.
//!
//! *A release that wakes nobody against the one on its way.* The release frees the lock by an exchange of a word in which `COMING` stands.
//! The waiter that arrives clears that bit by an exchange, which takes the lock if it is free. So either it arrives later, and finds the lock
//! free; or the exchange of the release fails, and the release reads the word again and goes to the queue.
//!
//! *Giving way against the end of all waiting.* A waiter may stand in the queue of a free lock only while another waiter is on its way. That
//! is so while `PARKED` is set on the free lock (R2). The waiter on its way takes the lock, or loses it to another holder, whose
//! release reads the queue. `PARKED` is cleared only under the queue's lock, so a waiter that stands in the queue beside it is found.
//!
//! *The lock's memory.* The exchange that releases the word is the last access to the lock, since the next holder may free it. The release has left
//! the queue before. It wakes the chosen waiter afterwards, by that waiter's own place, which stays until then (L3).
//!
//! *Release against release.* Only the raw form allows two at once. A release that clears `LOCKED` in its exchange, or hands
//! over a locked lock, has released it. The other finds the lock free, and has released nothing. The waiter that it has chosen in vain
//! continues as one that was woken.
//!
//! # Invariants
//!
//! * **R1** `LOCKED` is set by the acquisition of the lock and cleared by its release alone.
//! * **R2** `PARKED` is set and cleared under the queue's lock. It is set only beside `LOCKED` or `RESERVED`, and cleared when the queue is
//!   empty. So while it is set on a free lock, a waiter that was chosen or has reserved the lock is on its way.
//! * **R3** One waiter at a time has raised `RESERVED`; it alone clears it.
//! * **R4** A release sets `COMING` for a waiter that it has chosen and not woken yet. The waiter that arrives clears it, whether it gets the
//!   lock or not. So while it is set, a chosen waiter has not arrived. It may be clear although a waiter is on its way.

mod caller;
mod turns;
pub(crate) mod unknown;
mod waiting;
mod word;

use std::cell::Cell;
use std::panic::{Location, RefUnwindSafe, UnwindSafe};
use std::ptr::{self, NonNull};
use std::time::Instant;

use forebear_context::context::{Context, Label, Lock, Reason, ThreadNumber};
use forebear_context::error::Cycle;
use forebear_context::shim::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use forebear_context::shim::mutant;

pub(crate) use self::caller::{gave, gave_back, lasting_me, me, took};
use self::turns::Turns;
use self::unknown::{Note, Number};
pub(crate) use self::word::change;
use self::word::{ACQUIRE, COMING, LOCKED, NAMING, PARKED, RELEASE, RESERVED, bits, holder, with_bits};
use crate::guarded::Guarded;
use crate::lock_queue::{LockQueue, Place};

/// How many releases in a row wake no waiter, while one is on its way.
#[cfg(not(loom))]
const PASSES: usize = 32;
#[cfg(loom)]
const PASSES: usize = 1;

/// The data in a waiter's place.
#[derive(Debug)]
struct LockWaiter {
    /// The holder's address, written into the word when the waiter gets the lock.
    holder: *mut Context,
    /// Whether the lock was handed over with the wake-up. Written by the chooser before it wakes.
    handed: Cell<bool>,
    /// Its patience has ended, and it could not reserve the lock: the next release that chooses it hands over.
    is_owed: Cell<bool>,
}

/// The lock without the value that it guards.
///
/// The word is last, so that it is beside the value that the lock guards, mostly on the same cache line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RawLock {
    line: Guarded<Line>,
    label: Label,
    /// The worker of the waiter that was woken last. Written under the queue's lock; a hint without it.
    woken_on: AtomicUsize,
    /// The root key of that waiter, likewise.
    woken_key: AtomicU64,
    /// How many releases have woken no waiter since the last that did. Written by the releasing thread.
    passed: AtomicUsize,
    /// Whether there is a waiter in the queue: a hint (module head). Written under the queue's lock.
    has_waiters: AtomicBool,
    /// See [`unknown`].
    number: Number,
    word: AtomicPtr<Context>,
}

// A lock at a multiple of 16, as in a `Box` or an `Arc`, has its word and the first eight bytes of its value on one line.
#[cfg(all(target_pointer_width = "64", not(any(loom, shuttle))))]
const _: () = assert!(size_of::<RawLock>() % 16 == 8);

/// The waiters.
#[derive(Debug)]
struct Line {
    queue: LockQueue<LockWaiter>,
    turns: Turns,
}

impl Line {
    const fn new() -> Line {
        Line { queue: LockQueue::new(), turns: Turns::new() }
    }

    /// Whether it is the turn of this waiter, which a release has chosen. In a model no waiter has a turn: a turn has the
    /// same effect as a lock that is owed.
    fn gives_turn(&self, to: &Place<LockWaiter>) -> bool {
        let is_thread = to.on() == 0;
        cfg!(not(any(loom, shuttle))) && is_thread && self.turns.give(clock())
    }
}

/// The system's clock, by which threads have their turns. A context's clock may be the user's code. This function is
/// called where no user code may run: under the queue's lock, and between the beginning and the end of a wait that
/// releases the lock.
#[cfg(not(all(test, not(loom))))]
fn clock() -> Instant {
    Instant::now()
}
#[cfg(all(test, not(loom)))]
use self::tests::clock;

/// The word holds an address, and nothing that a panic could leave half done.
impl UnwindSafe for RawLock {}
impl RefUnwindSafe for RawLock {}

impl Default for RawLock {
    fn default() -> Self {
        RawLock::new(Label::NONE)
    }
}

/// How to wait for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockTerms {
    /// The reason of the wait.
    pub reason: Reason,
    /// The time until which to wait at most.
    pub deadline: Option<Instant>,
    /// The caller's place in the source.
    pub caller: &'static Location<'static>,
    /// The description of the lock, made by [`called`].
    pub of: &'static Lock,
}

/// Why a wait for a lock ended without it.
#[derive(Debug)]
pub(crate) enum Refused {
    TimedOut,
    Cancelled,
    Circular(Cycle),
    /// In a region that must not suspend, with this message. Boxed, so that the answer of a wait stays two registers.
    #[allow(clippy::box_collection, reason = "one pointer, where a String has three words")]
    MustNotSuspend(Box<String>),
}

impl RawLock {
    #[cfg(not(loom))]
    pub(crate) const fn new(label: Label) -> RawLock {
        RawLock {
            line: Guarded::new(Line::new()),
            label,
            woken_on: AtomicUsize::new(0),
            woken_key: AtomicU64::new(0),
            passed: AtomicUsize::new(0),
            has_waiters: AtomicBool::new(false),
            number: Number::new(),
            word: AtomicPtr::new(ptr::null_mut()),
        }
    }

    #[cfg(loom)]
    pub(crate) fn new(label: Label) -> RawLock {
        RawLock {
            line: Guarded::new(Line::new()),
            label,
            woken_on: AtomicUsize::new(0),
            woken_key: AtomicU64::new(0),
            passed: AtomicUsize::new(0),
            has_waiters: AtomicBool::new(false),
            number: Number::new(),
            word: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Whether to take the way of a lock that others wait for: a hint (module head).
    #[inline(always)]
    fn has_waiters(&self) -> bool {
        cfg!(not(any(loom, shuttle))) && self.has_waiters.load(Ordering::Relaxed)
    }

    /// The queue has changed. Under its lock.
    #[inline(always)]
    fn note_waiters(&self, queue: &LockQueue<LockWaiter>) {
        if cfg!(not(any(loom, shuttle))) {
            self.has_waiters.store(!queue.is_empty(), Ordering::Relaxed);
        }
    }

    /// The user's name for the lock.
    pub(crate) const fn label(&self) -> Label {
        self.label
    }

    pub(crate) fn is_locked(&self) -> bool {
        bits(self.word.load(Ordering::Relaxed)) & LOCKED != 0
    }

    /// The context that has it, if it is known: a hint.
    pub(crate) fn holder(&self) -> *const Context {
        // A stale answer does no harm: see the argument in `forebear_context::context::OwnerWait`'s module, also for the order.
        holder(self.word.load(Ordering::Acquire))
    }

    /// Takes the lock if it is free and has no waiter.
    #[inline(always)]
    pub(crate) fn try_fast(&self) -> bool {
        let me = me();
        let taken = !self.has_waiters()
            && self
                .word
                .compare_exchange(ptr::null_mut(), with_bits(me, LOCKED), NAMING, Ordering::Relaxed)
                .is_ok();
        if taken {
            took(me);
            if me.is_null() {
                self.note_held();
            }
        }
        taken
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        if self.try_fast() {
            return true;
        }
        let me = me();
        let taken = self.barge(me);
        if taken && me.is_null() {
            self.note_held();
        }
        taken
    }

    /// The calling thread, which no runtime knows, has taken the lock.
    #[cold]
    fn note_held(&self) {
        self.number.draw().map(Note::Holds).into_iter().for_each(unknown::took);
    }

    /// It has released the lock, which it may have taken as such a thread.
    #[cold]
    fn forget_held(&self) {
        self.number.known().map(Note::Holds).into_iter().for_each(unknown::gave);
    }

    /// Whether it holds the lock, and took it as such a thread.
    #[cold]
    pub(crate) fn is_held_unknown(&self) -> bool {
        self.number.known().is_some_and(|number| unknown::has(Note::Holds(number)))
    }

    /// The calling thread, which no runtime knows, reads the lock whose writers' lock this is.
    #[cold]
    pub(crate) fn note_read(&self) {
        self.number.draw().map(Note::Reads).into_iter().for_each(unknown::took);
    }

    /// It has ended a read, which it may have begun as such a thread.
    #[cold]
    pub(crate) fn forget_read(&self) {
        self.number.known().map(Note::Reads).into_iter().for_each(unknown::gave);
    }

    /// Whether it reads that lock, and began to as such a thread.
    #[cold]
    pub(crate) fn is_read_unknown(&self) -> bool {
        self.number.known().is_some_and(|number| unknown::has(Note::Reads(number)))
    }

    /// Takes the lock for `me` if it is free, even if others wait.
    fn barge(&self, me: *mut Context) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while bits(word) & (LOCKED | RESERVED) == 0 {
            let taken = with_bits(me, LOCKED | bits(word));
            match self.word.compare_exchange_weak(word, taken, NAMING, Ordering::Relaxed) {
                Ok(_) => {
                    took(me);
                    return true;
                }
                Err(seen) => word = seen,
            }
        }
        false
    }

    /// A woken waiter arrives: takes the lock for `me` if it is free.
    fn take_as_woken(&self, me: *mut Context) -> bool {
        let was = self.change(|word| match bits(word) & (LOCKED | RESERVED) {
            0 => with_bits(me, LOCKED | mutant!("taker_leaves_its_mark", bits(word), bits(word) & PARKED)),
            _ => mutant!("loser_leaves_its_mark", word, word.map_addr(|at| at & !COMING)),
        });
        let taken = bits(was) & (LOCKED | RESERVED) == 0;
        if taken {
            took(me);
        }
        taken
    }

    /// A waiter with this key is in the queue. If the waiter on its way is less urgent, clears `COMING`, so that the next release wakes again. Under the
    /// queue's lock.
    fn does_not_pass(&self, key: u64) {
        if key < self.woken_key.load(Ordering::Relaxed)
            && bits(self.word.load(Ordering::Relaxed)) & COMING != 0
        {
            self.change(|word| word.map_addr(|at| at & !COMING));
        }
    }

    /// Takes the raw form, whose word names no holder, if it is free. `taken_on` is as in [`waiting_unnamed`](Self::waiting_unnamed).
    #[inline]
    pub(crate) fn try_lock_unnamed(&self, taken_on: &ThreadNumber) -> bool {
        let nobody = ptr::null_mut();
        let taken =
            self.word.compare_exchange(nobody, with_bits(nobody, LOCKED), ACQUIRE, Ordering::Relaxed).is_ok()
                || self.barge(nobody);
        if taken {
            // SAFETY: the calling context.
            taken_on.set(unsafe { me().as_ref() }.map_or(0, |me| me.place().get()));
        }
        taken
    }

    /// Releases the lock.
    ///
    /// # Safety
    ///
    /// The lock was taken, and not released since.
    #[inline(always)]
    pub(crate) unsafe fn unlock(&self) {
        let me = me();
        if me.is_null() {
            return self.unlock_unknown();
        }
        let mine = with_bits(me, LOCKED);
        if self.has_waiters()
            || self.word.compare_exchange(mine, ptr::null_mut(), RELEASE, Ordering::Relaxed).is_err()
        {
            let released = self.unlock_slowly(true);
            debug_assert!(released, "R1");
        } else {
            // Last: an exchange waits for all stores before it.
            gave(me);
        }
    }

    /// Releases it on a thread that no runtime knows.
    #[cold]
    #[inline(never)]
    fn unlock_unknown(&self) {
        self.forget_held();
        let released = self.unlock_slowly(true);
        debug_assert!(released, "R1");
    }

    /// Releases the raw form; false if it is free.
    #[inline]
    pub(crate) fn unlock_unnamed(&self) -> bool {
        let nobody = ptr::null_mut();
        self.word.compare_exchange(with_bits(nobody, LOCKED), nobody, RELEASE, Ordering::Relaxed).is_ok()
            || self.unlock_slowly(false)
    }

    /// Returns whether the lock was locked. `named`: a handover writes the new holder into the word.
    #[cold]
    #[inline(never)]
    fn unlock_slowly(&self, named: bool) -> bool {
        // SAFETY: the calling context.
        let here = unsafe { me().as_ref() };
        if named {
            gave(me());
        }
        let mut word = self.word.load(Ordering::Relaxed);
        // A thread that took the lock before a runtime knew it left no holder in the word.
        if named && here.is_some() && holder(word).is_null() {
            self.forget_held();
        }
        let place = here.map_or(0, |here| here.place().get());
        loop {
            if bits(word) & LOCKED == 0 {
                return false;
            }
            let passes = bits(word) & COMING != 0 && self.passed.load(Ordering::Relaxed) < PASSES;
            if passes || bits(word) & (PARKED | RESERVED) != PARKED {
                // There is no waiter to wake; or the lock is left to the waiter that has reserved it and polls, or to the one on its way (R4).
                if passes {
                    self.passed.store(self.passed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                }
                let free = ptr::without_provenance_mut(bits(word) & !LOCKED);
                #[cfg(mutant = "passes_on_an_old_look")]
                if passes {
                    self.change(|word| ptr::without_provenance_mut(bits(word) & !LOCKED));
                    break;
                }
                match self.word.compare_exchange(word, free, RELEASE, Ordering::Relaxed) {
                    Ok(_) => break,
                    Err(seen) => {
                        word = seen;
                        continue;
                    }
                }
            }
            let chosen = self.line.with(|line| {
                let queue = &line.queue;
                let local = queue.is_all_of(place);
                // SAFETY: L1; it is woken below.
                let chosen = unsafe { queue.choose() };
                self.note_waiters(queue);
                // R2.
                let stay = mutant!(
                    "release_forgets_the_rest",
                    !(PARKED | COMING),
                    if queue.is_empty() { !(PARKED | COMING) } else { !0 }
                );
                match chosen {
                    Some(chosen)
                        if local || chosen.place().value.is_owed.get() || line.gives_turn(chosen.place()) =>
                    {
                        let handed = self.hand_over(chosen.place().value.holder, stay);
                        Some((chosen, Some(handed)))
                    }
                    chosen => {
                        if stay != !0 {
                            self.change(|word| word.map_addr(|at| at & stay));
                        }
                        chosen.map(|chosen| {
                            self.woken_on.store(chosen.place().on(), Ordering::Relaxed);
                            self.woken_key.store(chosen.place().key(), Ordering::Relaxed);
                            (chosen, None)
                        })
                    }
                }
            });
            let Some((chosen, handed)) = chosen else {
                word = self.word.load(Ordering::Relaxed);
                continue;
            };
            let was_locked = match handed {
                Some(handed) => {
                    let handed =
                        mutant!("owed_is_not_told", handed && !chosen.place().value.is_owed.get(), handed);
                    chosen.place().value.handed.set(handed);
                    handed
                }
                None => {
                    self.passed.store(0, Ordering::Relaxed);
                    let free = |word| match bits(word) & PARKED {
                        0 => bits(word) & !LOCKED,
                        // R4: it is woken below.
                        _ => bits(word) & !LOCKED | COMING,
                    };
                    bits(self.change(|word| ptr::without_provenance_mut(free(word)))) & LOCKED != 0
                }
            };
            gave_back(here);
            chosen.wake();
            return was_locked;
        }
        gave_back(here);
        true
    }

    /// Writes another holder into the word, which stays locked (R1), and clears the bits outside `stay`. Under the queue's lock. The
    /// new holder keeps the lock's memory until it is woken. False: the lock was free, which only the raw form can be here.
    fn hand_over(&self, to: *mut Context, stay: usize) -> bool {
        let was = self.change(|word| {
            let left = bits(word) & stay;
            let left = mutant!("handed_over_free", left & !LOCKED, left);
            match left & LOCKED {
                0 => ptr::without_provenance_mut(left),
                _ => with_bits(to, left),
            }
        });
        bits(was) & LOCKED != 0
    }

    fn change(&self, with: impl Fn(*mut Context) -> *mut Context) -> *mut Context {
        change(&self.word, with)
    }
}

/// The description by which waits name a lock, its holder and its queue. `what` is the name of the primitive.
pub(crate) const fn called(what: &'static str) -> Lock {
    Lock { what, name, owner, share: None, promote }
}

/// # Safety
///
/// As [`Lock::name`].
unsafe fn name(lock: NonNull<()>) -> Option<&'static str> {
    // SAFETY: by the contract of `OwnerWait`.
    unsafe { lock.cast::<RawLock>().as_ref() }.label.name()
}

/// # Safety
///
/// As [`Lock::owner`].
unsafe fn owner(lock: NonNull<()>) -> *const Context {
    // SAFETY: by the contract of `OwnerWait`.
    unsafe { lock.cast::<RawLock>().as_ref() }.holder()
}

/// # Safety
///
/// As [`Lock::promote`].
unsafe fn promote(lock: NonNull<()>, node: NonNull<()>, key: u64) {
    // SAFETY: by the contract of `OwnerWait`: the lock is a `RawLock`, and the node a `Place` of its queue, both alive while the wait
    // lasts.
    let lock = unsafe { lock.cast::<RawLock>().as_ref() };
    // SAFETY: as above.
    let place = unsafe { node.cast::<Place<LockWaiter>>().as_ref() };
    lock.line.with(|line| {
        // SAFETY: L1.
        unsafe { line.queue.promote(place, key) };
        lock.does_not_pass(key);
    });
}

#[cfg(all(test, not(loom)))]
mod tests;
