//! The context seam: *something that can be parked and unparked*.
//!
//! There is one [`Context`] per stack: a coroutine's lies at the top of its own stack, a foreign thread's is its
//! thread-local. All waits use the context, so code that suspends or blocks is written once for both.
//!
//! # Vocabulary
//!
//! * **park**: the context stops running. A coroutine leaves its stack, a foreign thread blocks.
//! * **unpark**: another thread makes it runnable. It may be *refused*: only the first of several succeeds.
//! * **ticket**: the number of one wait of one context. A late unpark has an old ticket and is refused.
//! * **cause**: why the context continues.
//! * **edge**: from a context that waits without a limit to the one that it waits for ([`edge`]).
//! * **choose**: to reserve a wake-up before it is carried out ([`Context::choose`]).
//!
//! # A wait in steps
//!
//! 1. The waiter calls [`begin`](Context::begin): the slot says *waiting*, under a new ticket.
//! 2. It hands (context, ticket) to its possible wakers, by linking a node into a list under that list's lock.
//! 3. It calls [`park`](Context::park), which returns the cause once the slot says something else.
//! 4. Each waker exchanges the slot from (ticket, waiting) to (ticket, cause). The one that wins makes the context
//!    runnable, exactly once, and touches no memory of the waiter's afterwards. The others are refused. They may still
//!    have a pointer to a node that its owner is about to remove. So they mark the node when they no longer use it, and
//!    the owner waits for that mark.
//!
//! # Choosing first, waking later
//!
//! A thread that hands something over (a lock, a permit, an item) under a lock of its own must be sure that its waiter takes it. It
//! may wake that waiter only after it has released its lock. So it *chooses*: it exchanges the slot from (ticket, waiting) to
//! (ticket, chosen). From then on every other waker, time-out and cancel is refused. The context does not continue yet, so its frame
//! stays, and a node in it may be linked into a list of the chosen. [`ready`] then ends the wait. A thread that chooses a waiter
//! always calls it.
//!
//! # The race
//!
//! A waker may win before the waiter has parked. Then a coroutine is made ready while it still runs. It is in its own
//! worker's queue, or soon will be, and that worker is the very thread that runs it. So a waiter that has begun a wait and linked
//! its node always parks, even if the slot is settled by then. `prepare` either finds the context at the head of the
//! queue and does not leave at all, or it leaves and is entered at its turn. One settled wait is one place in one
//! queue, taken once; no third state is needed. A foreign thread reads the slot under the lock that its waker holds,
//! and does not block if it is settled.
//!
//! # Invariants
//!
//! * **C1** A context does not move, and its memory stays readable for every holder of a ticket. A coroutine's stays until
//!   its runtime's stacks are unmapped, after all its requests are over; a foreign thread's stays until its waker
//!   has released the lock under which it won.
//! * **C2** Only the stack's own code calls `begin` and `park`, so tickets rise and the slot is *idle* or settled when
//!   `begin` stores into it.
//! * **C3** Only the stack's own code touches cells that are not atomic, or its worker while the stack is left.
//! * **C4** The target of a wait is null, or of the kind that its [`Reason`] says. Other threads follow the address until the wait is settled. So the
//!   target stays until the wait is over, and the code that begins a wait parks or withdraws it before it leaves its frame, on every path.

use std::cell::Cell;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::shim::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::switch::Switch;

mod call;
mod caller;
mod current;
pub mod edge;
mod foreign;
mod label;
mod owner;
mod reason;
mod shares;
mod table;
mod thread_number;
mod tries;
mod wait;
mod wait_queue;

pub use self::call::{for_another, is_for_another};
pub use self::caller::{Caller, caller, this_thread};
pub use self::current::{current, in_request, set_current, user_code};
pub use self::foreign::{
    ForeignContext, ForeignThreads, give_back_foreign, is_known_now, lasting, provide_foreign, when_known,
    with_foreign,
};
pub use self::label::Label;
pub use self::owner::{Lock, OwnerWait};
pub use self::reason::Reason;
pub use self::shares::{ShareKey, Shares};
pub use self::table::{Alarm, NameFn, Table};
pub use self::thread_number::ThreadNumber;
pub use self::tries::TRIES;
use self::tries::Tries;
pub use self::wait_queue::{ListenerMaker, Listeners, Listening, WaitNode, WaitQueue};

const STATE: u64 = 0b111;
const WAITING: u64 = 1;
/// Waiting, and chosen: the thread that has chosen it will wake it.
const CHOSEN: u64 = 6;
/// Waiting, and held by a thread that reads it; see [`edge`].
const HELD: u64 = 7;

/// The bits of the word that [`Context::show`] names: while they are all down, no cancel concerns the stack.
pub const CANCEL_BITS: u32 = 0b11000;

/// Why a parked context continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// The event that it waited for has happened.
    Woken = 2,
    /// Its deadline has passed.
    TimedOut = 3,
    /// The request on it was cancelled.
    Cancelled = 4,
    /// It was part of a cycle of waits, which nothing else would have ended.
    Circular = 5,
}

/// The number of one wait of one context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// One stack's record. See the module head. Aligned so that a lock's word has room for four bits beside its holder's address.
#[repr(C, align(16))]
pub struct Context {
    /// Ticket in the upper bits, state in the lower three.
    slot: AtomicU64,
    table: &'static Table,
    /// Words of the owner's that answer a question without a call; see [`show`](Context::show). The owner writes them before code runs on the
    /// stack. None: the table is asked.
    attention: Cell<Option<NonNull<AtomicU32>>>,
    urgency: Cell<Option<NonNull<AtomicU64>>>,
    switch: Switch,
    /// How many `no_suspend` regions are open; the stack's, not the request's.
    no_suspend: Cell<u32>,
    /// An error travels on this stack as an unwind, and is not caught yet.
    unwinding: Cell<bool>,
    /// How many locks were taken on this stack and not released. While there is one, other contexts may wait for this one.
    locks: Cell<u32>,
    /// What it holds together with other contexts.
    shares: Shares,
    /// The lock that it tried to take most recently, and how often in a row.
    tries: Tries,
    /// The same for all contexts of one worker; 0 for a thread of its own.
    place: ThreadNumber,
    /// What this context waits for.
    reason: AtomicU8,
    /// All threads that may end the last wait know of it.
    parked: AtomicBool,
    target: AtomicPtr<()>,
    /// The ticket that was bound last, and where that wait leads; see [`edge`].
    edge: AtomicU64,
    ahead: AtomicPtr<()>,
}

impl Context {
    /// A context that is not waiting, for the owner that `table` speaks for.
    ///
    /// # Safety
    ///
    /// Every function of `table` does what its field says, for this context in the place where it comes to lie. The safe methods of the
    /// context call these functions.
    #[must_use]
    pub unsafe fn new(table: &'static Table) -> Context {
        Context {
            slot: AtomicU64::new(0),
            table,
            attention: Cell::new(None),
            urgency: Cell::new(None),
            switch: Switch::none(),
            no_suspend: Cell::new(0),
            unwinding: Cell::new(false),
            locks: Cell::new(0),
            shares: Shares::new(),
            tries: Tries::default(),
            place: ThreadNumber::default(),
            reason: AtomicU8::new(Reason::None as u8),
            parked: AtomicBool::new(false),
            target: AtomicPtr::new(std::ptr::null_mut()),
            edge: AtomicU64::new(0),
            ahead: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Makes a context in a place that held a context before, or is filled with zeros. Other threads may still read fields
    /// there by an old pointer. Those fields are left as they are, so that tickets continue.
    ///
    /// # Safety
    ///
    /// The place is valid, aligned, and the caller's, but for such readers; it has been filled as said.
    pub unsafe fn renew(at: NonNull<Context>, table: &'static Table) {
        let at = at.as_ptr();
        // SAFETY: by contract; all zeros are a context that does not wait. Nobody reads these fields of a context that does not
        // wait but its owner.
        unsafe {
            (&raw mut (*at).table).write(table);
            (&raw mut (*at).attention).write(Cell::new(None));
            (&raw mut (*at).urgency).write(Cell::new(None));
            (&raw mut (*at).switch).write(Switch::none());
            (&raw mut (*at).no_suspend).write(Cell::new(0));
            (&raw mut (*at).unwinding).write(Cell::new(false));
            (&raw mut (*at).locks).write(Cell::new(0));
            (&raw mut (*at).tries).write(Tries::default());
            (*at).shares.clear();
            (*at).place.set(0);
        }
    }

    /// The stack, for the owner that switches to it.
    #[inline(always)]
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    /// The owner's table.
    #[inline(always)]
    pub fn table(&self) -> &'static Table {
        self.table
    }

    /// How many `no_suspend` regions are open on this stack.
    pub fn no_suspend(&self) -> &Cell<u32> {
        &self.no_suspend
    }

    /// Whether an error travels on this stack as an unwind ([`crate::error::internal::unwind_with`]).
    pub fn unwinding(&self) -> &Cell<bool> {
        &self.unwinding
    }

    /// How many locks were taken on this stack and not given back. A hint: a guard can be carried to another stack of its thread.
    #[inline(always)]
    pub fn locks(&self) -> &Cell<u32> {
        &self.locks
    }

    /// What was taken on this stack together with others, and not given back.
    #[inline(always)]
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The number of the thread that this stack is on. All contexts of one worker have the same number, which is not 0. It is 0 for a foreign thread, and
    /// for a thread that runs no other context. The owner sets it before code runs on the stack; other threads read it at any time.
    #[inline(always)]
    pub fn place(&self) -> &ThreadNumber {
        &self.place
    }

    /// The name of what runs here.
    pub fn name(&self) -> String {
        let mut name = String::new();
        // SAFETY: the table is this context's.
        unsafe { (self.table.name)(self, &mut |of| name = of.to_owned()) };
        name
    }

    /// Names the words in which [`is_undisturbed`](Self::is_undisturbed) and [`urgency`](Self::urgency) find their answers without a call. `attention` has
    /// one of [`CANCEL_BITS`] up while the table might answer that a request here is cancelled. `urgency` holds what the table would answer.
    ///
    /// # Safety
    ///
    /// Before code runs on the stack. The words stay as long as the context has this table.
    pub unsafe fn show(&self, attention: NonNull<AtomicU32>, urgency: NonNull<AtomicU64>) {
        self.attention.set(Some(attention));
        self.urgency.set(Some(urgency));
    }

    /// Whether it [shows](Self::show) words.
    #[inline]
    pub fn shows_words(&self) -> bool {
        self.attention.get().is_some()
    }

    /// The root key of the most urgent that runs here, or waits for it; smaller goes first.
    #[inline]
    pub fn urgency(&self) -> u64 {
        match self.urgency.get() {
            // SAFETY: by the contract of `show`.
            Some(word) => unsafe { word.as_ref() }.load(Ordering::Relaxed),
            // SAFETY: the table is this context's.
            None => unsafe { (self.table.urgency)(self) },
        }
    }

    /// The same, if it is known without a call.
    #[inline(always)]
    pub fn shown_urgency(&self) -> Option<u64> {
        // SAFETY: by the contract of `show`.
        self.urgency.get().map(|word| unsafe { word.as_ref() }.load(Ordering::Relaxed))
    }

    /// Whether it is known without a call that no cancel concerns this stack. Called by the stack's own code.
    #[inline(always)]
    pub fn is_undisturbed(&self) -> bool {
        // SAFETY: by the contract of `show`.
        self.attention
            .get()
            .is_some_and(|word| unsafe { word.as_ref() }.load(Ordering::Relaxed) & CANCEL_BITS == 0)
    }

    /// Calls `f`, in which [`is_undisturbed`](Self::is_undisturbed) is true. Of a context that shows no words, and was asked by a call just before. `f` does not suspend.
    pub fn as_undisturbed<R>(&self, f: impl FnOnce() -> R) -> R {
        /// Takes the word back, also if `f` unwinds.
        struct Shown<'a>(&'a Context);
        impl Drop for Shown<'_> {
            fn drop(&mut self) {
                self.0.attention.set(None);
            }
        }
        let calm = AtomicU32::new(0);
        let _shown = Shown(self);
        self.attention.set(Some(NonNull::from(&calm)));
        f()
    }

    /// Whether the request on top was cancelled, so that a wait that a cancel can end is to be refused. Called by the stack's own code.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        // SAFETY: the table is this context's, and we are on its stack.
        !self.is_undisturbed() && unsafe { (self.table.is_cancelled)(self) }
    }

    /// The time on the clock that measures time limits here. Called by the stack's own code.
    pub fn now(&self) -> Instant {
        // SAFETY: the table is this context's, and we are on its stack.
        unsafe { (self.table.now)(self) }
    }

    /// The instant `timeout` from now, or some microseconds after that; `None` if an `Instant` cannot express it, which means never. Called
    /// by the stack's own code.
    #[cold]
    #[inline(never)]
    pub fn deadline(&self, timeout: Duration) -> Option<Instant> {
        // SAFETY: the table is this context's, and we are on its stack.
        unsafe { (self.table.deadline)(self, timeout) }
    }

    /// A number that differs from one call to the next, to vary arbitrary choices. Called by the stack's own code.
    pub fn turn(&self) -> u64 {
        // SAFETY: the table is this context's, and we are on its stack.
        unsafe { (self.table.turn)(self) }
    }

    /// Checks that the stack may wait for `what`, before the wait begins. Called by the stack's own code.
    ///
    /// # Panics
    ///
    /// In a region that must not suspend.
    #[inline]
    #[track_caller]
    pub fn about_to_wait(&self, what: &str) {
        if let Some(why) = self.refusal(what) {
            refuse(&why)
        }
    }

    /// The same, for a caller that has the panic where its own caller is: the message, if the stack is in such a region.
    #[inline]
    pub fn refusal(&self, what: &str) -> Option<String> {
        if self.no_suspend.get() == 0 {
            return None;
        }
        // SAFETY: the table is this context's, and we are on its stack.
        unsafe { (self.table.refuse_wait)(self, what) }
    }

    /// What this context waits for, for dumps: the reason and the address of the target.
    pub fn waits_for(&self) -> (Reason, *mut ()) {
        (Reason::from_u8(self.reason.load(Ordering::Relaxed)), self.target.load(Ordering::Relaxed))
    }
}

#[cold]
#[track_caller]
fn refuse(why: &str) -> ! {
    panic!("{why}")
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (reason, _) = self.waits_for();
        f.debug_struct("Context").field("waits_for", &reason).finish_non_exhaustive()
    }
}

/// Wakes `context` from the wait that `ticket` names. False: that wait was already over, and the caller may touch no memory
/// of the waiter's except the node that it still holds.
///
/// # Safety
///
/// C1: `context` came with the ticket out of a list that its owner has not left.
#[inline(always)]
pub unsafe fn unpark(context: NonNull<Context>, ticket: Ticket, cause: Cause) -> bool {
    // SAFETY: C1.
    let table = unsafe { context.as_ref() }.table;
    // SAFETY: C1.
    unsafe { (table.unpark)(context, ticket, cause) }
}

/// Ends a wait that was [chosen](Context::choose), and makes its context runnable. This is the caller's last access to memory of the waiter's.
///
/// # Safety
///
/// The caller has chosen the wait, and calls this once.
#[inline(always)]
pub unsafe fn ready(context: NonNull<Context>, ticket: Ticket) {
    // SAFETY: a chosen context does not continue before this call.
    let table = unsafe { context.as_ref() }.table;
    // SAFETY: as above.
    unsafe { (table.ready)(context, ticket) }
}
