//! The lock below [`Mutex`](crate::Mutex) and its kin: a word and a queue.
//!
//! # Vocabulary
//!
//! * **holder**: the context that has the lock. Its address stands in the word, in the same exchange that takes the lock; it is a hint
//!   ([`forebear_context::context::OwnerWait`]). None stands there for a thread that no runtime knows, and for the raw form
//!   ([`RawMutex`](crate::RawMutex)), which anybody may release.
//! * **to barge**: to take a lock that is free while others wait for it.
//! * **to lose**: to be woken and find the lock taken.
//! * **hand over**: to give the lock to a waiter instead of leaving it free.
//! * **to come**: to go on, having been woken, and find out whether the lock is free. From being chosen until then a waiter is *on its way*.
//!
//! # The word
//!
//! ```text
//!  holder's address | COMING | RESERVED | PARKED | LOCKED
//! ```
//!
//! `PARKED`: somebody stands in the queue. `RESERVED`: a waiter that has lost for too long is about to take the lock, and nobody else
//! may. `COMING`: one that was woken is on its way. All zeros: free, and nobody waits; only from there is the fast way taken.
//!
//! # How it goes
//!
//! A release wakes the most urgent waiter, and leaves the lock free: running code may barge, since to give the lock to a request that is
//! pinned behind a busy worker would stop everybody. It hands over where that can stop nobody: all who wait are of the very worker
//! that releases; and to a thread of the system whose turn it is ([`turns`]). A waiter that loses puts itself back ([`LockQueue::push`]).
//!
//! # Bounds
//!
//! A waiter gets the lock in bounded time, however urgent the others are and however often they come.
//!
//! * *It is chosen.* The queue passes a place over a bounded number of times (module head of [`lock_queue`](crate::lock_queue)).
//! * *It loses a bounded number of times.* At its loss number [`LOSSES`](waiting::LOSSES), or at a loss [`PATIENCE`](waiting::PATIENCE) or more after its first, its
//!   patience is at an end. Then it raises `RESERVED` and looks for the lock while it keeps running, for [`RESERVATION`](waiting::RESERVATION) at most; a
//!   release leaves it the lock then. It does not if the holder is of its own thread, which cannot let go while this one looks.
//! * *Then the lock is owed to it.* If it has not got the lock by then, the release that chooses it next hands the lock over (decision 0044). So the lock
//!   stays with a waiter that does not run yet only after [`LOSSES`](waiting::LOSSES) losses, and once per wait.
//! * *Those who poll give way.* A stack that has come to a contended lock 64 times, and has waited for nothing else meanwhile, lets others of its
//!   worker go first, and something unstarted (`Context::try_again`). They may be what the stack polls for.
//!
//! While one is on its way, the next releases wake nobody: one that is woken before the first has come finds the lock taken, most likely, and each of them
//! costs both sides several lines that go from core to core. That holds for [`PASSES`] releases in a row, since the one on its way may be
//! pinned behind a busy worker; and not if somebody more urgent has come into the queue since (decision 0031).
//!
//! Nor does anybody barge past a waiter of its own thread that has been woken and is as urgent: that one can only run when the barger waits. So
//! the newcomer *gives way*: it stands in the queue although the lock is free. For everybody else it stays free.
//!
//! A newcomer looks a few times before it waits, but only while nobody is queued: with others there already the lock is held for long. One that was
//! woken and finds the lock held on another thread looks before it loses; longer if nothing else is ready on its thread. Meanwhile it is on
//! its way, so the holder's releases wake nobody. Looks become rarer, since each takes the line of the word from the holder (decision 0110). One whose
//! thread has nothing else to do gives up its time slice between the later looks, to the holder or to one that was woken (decision 0107).
//!
//! # The races
//!
//! *Release against a newcomer.* Both change the word by exchanges. The newcomer sets `PARKED` under the lock of the queue, on a word
//! that says `LOCKED`; a release that finds it goes through the queue's lock, so it finds the newcomer there.
//!
//! *Release against a leaver.* The release chooses under the queue's lock; a waiter that has left its wait refuses, and the next is chosen. The
//! chosen waiter goes on with *woken*, and takes the lock or stands in the queue again: so a wake-up is never lost.
//!
//! *A release that wakes nobody against the one on its way.* The release frees the lock by an exchange of a word in which `COMING` stands.
//! The waiter that arrives clears that bit by an exchange, which takes the lock if it is free. So either it arrives later, and finds the lock
//! free; or the exchange of the release fails, and the release reads the word again and goes to the queue.
//!
//! *Giving way against the end of all waiting.* One may stand in the queue of a free lock only while somebody is on the way who sees to it. That
//! is so as long as `PARKED` stands on the free lock (R2): the chosen waiter takes it, or loses it to another holder, whose
//! release comes by the queue. `PARKED` goes only under the queue's lock, so a waiter that stands there beside it is found.
//!
//! *The lock's memory.* The release touches the lock last when it releases the word: the next holder may free the lock. The queue has
//! been left before, and the chosen waiter is woken after, by its own place, which stays until then (L3).
//!
//! *Release against release.* Only of the raw form can there be two at once. Each of them that clears `LOCKED` in an exchange, or hands
//! over a lock that is locked, has released it; another finds it free, and has released nothing. Whom that one has chosen in vain
//! goes on as one that was woken.
//!
//! # Invariants
//!
//! * **R1** `LOCKED` is set by the acquisition of the lock and cleared by its release alone.
//! * **R2** `PARKED` is set and cleared under the queue's lock; set only beside `LOCKED` or `RESERVED`, and cleared when nobody stands in
//!   the queue. So while it stands on a free lock, somebody who was chosen or has reserved it is on the way.
//! * **R3** One waiter at a time has raised `RESERVED`; it alone clears it.
//! * **R4** `COMING` is set by a release for one that it has chosen and not woken yet, and is taken down by the waiter that arrives, whether it gets the
//!   lock or not. So while it stands, somebody has been chosen and not come. It may be down although somebody is on its way.

mod turns;
pub(crate) mod unknown;
mod waiting;
mod word;

use std::cell::Cell;
use std::panic::{Location, RefUnwindSafe, UnwindSafe};
use std::ptr::{self, NonNull};
use std::time::Instant;

use forebear_context::context::{Context, Label, Lock, Reason, current};
use forebear_context::error::Cycle;
use forebear_context::shim::atomic::{AtomicPtr, AtomicUsize, Ordering};
use forebear_context::shim::mutant;

use self::turns::Turns;
pub(crate) use self::word::change;
use self::word::{ACQUIRE, COMING, LOCKED, NAMING, PARKED, RELEASE, RESERVED, bits, holder, with_bits};
use crate::guarded::Guarded;
use crate::lock_queue::{LockQueue, Place};

/// So many releases in a row wake nobody, while one is on its way.
#[cfg(not(loom))]
const PASSES: usize = 32;
#[cfg(loom)]
const PASSES: usize = 1;

/// What a waiter's place says beside who it is.
#[derive(Debug)]
struct LockWaiter {
    /// What is to stand in the word when the waiter has the lock.
    holder: *mut Context,
    /// Whether the lock was handed over with the wake-up. Written by the chooser before it wakes.
    handed: Cell<bool>,
    /// Its patience is at an end, and it could not reserve the lock: it is to be handed over.
    is_owed: Cell<bool>,
}

/// A lock that says nothing of what it guards.
#[derive(Debug)]
pub(crate) struct RawLock {
    word: AtomicPtr<Context>,
    /// [`Line::woken`]'s place once more, for a look without the line's lock: a hint.
    woken_on: AtomicUsize,
    /// How many releases have woken nobody since the last that did. By the releasing thread.
    passed: AtomicUsize,
    label: Label,
    line: Guarded<Line>,
}

/// The waiters.
#[derive(Debug)]
struct Line {
    queue: LockQueue<LockWaiter>,
    /// The place and the root key of the waiter that was woken last.
    woken: Cell<(usize, u64)>,
    turns: Turns,
}

impl Line {
    const fn new() -> Line {
        Line { queue: LockQueue::new(), woken: Cell::new((0, 0)), turns: Turns::new() }
    }

    /// Whether it is the turn of this waiter, which a release has chosen. In a model nobody has a turn: what follows from one is the same as for
    /// a waiter to which the lock is owed.
    fn gives_turn(&self, to: &Place<LockWaiter>) -> bool {
        let is_thread = to.on() == 0;
        cfg!(not(any(loom, shuttle))) && is_thread && self.turns.give(clock())
    }
}

/// The system's clock, by which threads have their turns. Not that of a context: it may be a user's, and this is called under the queue's lock, and between
/// the beginning and the end of a wait that lets go of the lock.
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
    /// What for.
    pub reason: Reason,
    /// Until then at most.
    pub deadline: Option<Instant>,
    /// By whom.
    pub caller: &'static Location<'static>,
    /// What the lock is called: one that [`called`] has made.
    pub of: &'static Lock,
}

/// Why a lock was not had.
#[derive(Debug)]
pub(crate) enum Refused {
    TimedOut,
    Cancelled,
    Circular(Cycle),
}

/// The calling context, if it has one, for the word.
#[inline(always)]
pub(crate) fn me() -> *mut Context {
    current().map_or(ptr::null_mut(), NonNull::as_ptr)
}

/// Counts the locks of a context, so that it is known to be worth waiting for.
#[inline(always)]
pub(crate) fn took(context: *mut Context) {
    // SAFETY: the calling context.
    if let Some(context) = unsafe { context.as_ref() } {
        context.locks().set(context.locks().get() + 1);
    }
}

/// A guard may have been carried here from another stack.
#[inline(always)]
pub(crate) fn gave(context: *mut Context) {
    // SAFETY: as above.
    if let Some(context) = unsafe { context.as_ref() } {
        context.locks().set(context.locks().get().saturating_sub(1));
    }
}

/// The calling context has given back what others wait for.
pub(crate) fn gave_back(here: Option<&Context>) {
    if let Some(here) = here {
        // SAFETY: its own table, on its own stack.
        unsafe { (here.table().gave_back)(here) };
    }
}

impl RawLock {
    #[cfg(not(loom))]
    pub(crate) const fn new(label: Label) -> RawLock {
        RawLock {
            word: AtomicPtr::new(ptr::null_mut()),
            woken_on: AtomicUsize::new(0),
            passed: AtomicUsize::new(0),
            label,
            line: Guarded::new(Line::new()),
        }
    }

    #[cfg(loom)]
    pub(crate) fn new(label: Label) -> RawLock {
        RawLock {
            word: AtomicPtr::new(ptr::null_mut()),
            woken_on: AtomicUsize::new(0),
            passed: AtomicUsize::new(0),
            label,
            line: Guarded::new(Line::new()),
        }
    }

    /// The name that a user gave to it.
    pub(crate) const fn label(&self) -> Label {
        self.label
    }

    pub(crate) fn is_locked(&self) -> bool {
        bits(self.word.load(Ordering::Relaxed)) & LOCKED != 0
    }

    /// The context that has it, if it is known: a hint.
    pub(crate) fn holder(&self) -> *const Context {
        // Old news does no harm: see the argument in `forebear_context::context::OwnerWait`'s module, also for the order.
        holder(self.word.load(Ordering::Acquire))
    }

    /// Takes it if it is free and nobody waits.
    #[inline(always)]
    pub(crate) fn try_fast(&self) -> bool {
        let me = me();
        // A look first: an exchange that fails costs as much as one that does not.
        let taken = self.word.load(Ordering::Relaxed).is_null()
            && self
                .word
                .compare_exchange(ptr::null_mut(), with_bits(me, LOCKED), NAMING, Ordering::Relaxed)
                .is_ok();
        if taken {
            took(me);
            if me.is_null() {
                unknown::took(self.addr());
            }
        }
        taken
    }

    /// Takes it if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        if self.try_fast() {
            return true;
        }
        let me = me();
        let taken = self.barge(me);
        if taken && me.is_null() {
            unknown::took(self.addr());
        }
        taken
    }

    /// Under which address a thread that no runtime knows notes it.
    pub(crate) fn addr(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Takes it for `me` if it is free, even if others wait.
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

    /// One that was woken comes: takes it for `me` if it is free.
    fn come(&self, me: *mut Context) -> bool {
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

    /// A waiter as urgent as that stands in the queue: a less urgent one that is on its way keeps no release from waking. Under the queue's
    /// lock.
    fn does_not_pass(&self, line: &Line, key: u64) {
        if key < line.woken.get().1 && bits(self.word.load(Ordering::Relaxed)) & COMING != 0 {
            self.change(|word| word.map_addr(|at| at & !COMING));
        }
    }

    /// Takes the raw form, in which nobody's name stands, if it is free.
    #[inline]
    pub(crate) fn try_lock_unnamed(&self) -> bool {
        let nobody = ptr::null_mut();
        self.word.compare_exchange(nobody, with_bits(nobody, LOCKED), ACQUIRE, Ordering::Relaxed).is_ok()
            || self.barge(nobody)
    }

    /// Lets go of it.
    ///
    /// # Safety
    ///
    /// It was taken, and not let go of since.
    #[inline(always)]
    pub(crate) unsafe fn unlock(&self) {
        let me = me();
        gave(me);
        if me.is_null() {
            unknown::gave(self.addr());
        }
        let mine = with_bits(me, LOCKED);
        // As above.
        if self.word.load(Ordering::Relaxed) != mine
            || self.word.compare_exchange(mine, ptr::null_mut(), RELEASE, Ordering::Relaxed).is_err()
        {
            let released = self.unlock_slowly(true);
            debug_assert!(released, "R1");
        }
    }

    /// Lets go of the raw form; false if it is free.
    #[inline]
    pub(crate) fn unlock_unnamed(&self) -> bool {
        let nobody = ptr::null_mut();
        self.word.compare_exchange(with_bits(nobody, LOCKED), nobody, RELEASE, Ordering::Relaxed).is_ok()
            || self.unlock_slowly(false)
    }

    /// Answers whether it was locked. `named`: whom it is handed over to is to stand in the word.
    #[cold]
    #[inline(never)]
    fn unlock_slowly(&self, named: bool) -> bool {
        // SAFETY: the calling context.
        let here = unsafe { me().as_ref() };
        let mut word = self.word.load(Ordering::Relaxed);
        // What a thread took before a runtime knew it has no holder in its word.
        if named && here.is_some() && holder(word).is_null() {
            unknown::gave(self.addr());
        }
        let place = here.map_or(0, |here| here.place().get());
        loop {
            if bits(word) & LOCKED == 0 {
                return false;
            }
            let passes = bits(word) & COMING != 0 && self.passed.load(Ordering::Relaxed) < PASSES;
            if passes || bits(word) & (PARKED | RESERVED) != PARKED {
                // Nobody to wake; or the lock is left to the one that has reserved it, and is looking, or to the one on its way (R4).
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
                            let on = chosen.place().on();
                            line.woken.set((on, chosen.place().key()));
                            self.woken_on.store(on, Ordering::Relaxed);
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
                    #[cfg(mutant = "owed_is_not_told")]
                    let handed = handed && !chosen.place().value.is_owed.get();
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

    /// Puts another holder into the word, which stays locked (R1), and takes the bits out that are not to stay. Under the queue's lock;
    /// the one who gets it keeps the lock's memory until it is woken. False: it was free, as only the raw form can be by now.
    fn hand_over(&self, to: *mut Context, stay: usize) -> bool {
        let was = self.change(|word| {
            let left = bits(word) & stay;
            #[cfg(mutant = "handed_over_free")]
            let left = left & !LOCKED;
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

/// What may be asked of a lock that is waited for, which has this name.
pub(crate) const fn called(what: &'static str) -> Lock {
    Lock { what, name, owner, shared: false, promote }
}

unsafe fn name(lock: NonNull<()>) -> Option<&'static str> {
    // SAFETY: by the contract of `OwnerWait`.
    unsafe { lock.cast::<RawLock>().as_ref() }.label.name()
}

unsafe fn owner(lock: NonNull<()>) -> *const Context {
    // SAFETY: by the contract of `OwnerWait`.
    unsafe { lock.cast::<RawLock>().as_ref() }.holder()
}

unsafe fn promote(lock: NonNull<()>, node: NonNull<()>, key: u64) {
    // SAFETY: as above.
    let (lock, place) =
        unsafe { (lock.cast::<RawLock>().as_ref(), node.cast::<Place<LockWaiter>>().as_ref()) };
    lock.line.with(|line| {
        // SAFETY: L1.
        unsafe { line.queue.promote(place, key) };
        lock.does_not_pass(line, key);
    });
}

#[cfg(all(test, not(loom)))]
mod tests;
