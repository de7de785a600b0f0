//! The context seam: *something that can be parked and unparked*.
//!
//! There is one [`Context`] per stack: a coroutine's lies at the top of its own stack, a foreign thread's is its
//! thread-local. What waits, waits by its context, so that everything that suspends or blocks is written once.
//!
//! # Vocabulary
//!
//! * **park**: the context stops going on. A coroutine leaves its stack, a foreign thread blocks.
//! * **unpark**: somebody lets it go on. It may be *refused*: only the first of several gets through.
//! * **ticket**: names one wait of one context. A late unpark carries an old ticket and is refused.
//! * **cause**: why it goes on.
//! * **edge**: from a context that waits without a limit to the one it waits for ([`edge`]).
//! * **choose**: to make sure of a wake-up before it is carried out ([`Context::choose`]).
//!
//! # A wait in steps
//!
//! 1. The waiter calls [`begin`](Context::begin): the slot says *waiting*, under a new ticket.
//! 2. It hands (context, ticket) to its possible wakers, by linking a node into a list under that list's lock.
//! 3. It calls [`park`](Context::park), which returns the cause once the slot says something else.
//! 4. Each waker exchanges the slot from (ticket, waiting) to (ticket, cause). The one that wins makes the context
//!    runnable, exactly once, and touches nothing of the waiter's afterwards. The others are refused, and may be
//!    holding a pointer to a node that its owner is about to take back: they say so in the node, and the owner waits
//!    for that.
//!
//! # Choosing first, waking later
//!
//! Whoever hands something on (a lock, a permit, an item) under a lock of its own wants to be sure that its waiter takes it, and
//! yet to wake it only after it has let go of everything. So it *chooses*: the slot goes from (ticket, waiting) to (ticket, chosen),
//! and from then on every other waker, time-out and cancel is refused; but the context does not go on, so its frame stays, and a
//! node in it may be linked into a list of the chosen. [`ready`] then ends the wait. Who chooses always does that.
//!
//! # The race
//!
//! A waker may win before the waiter has parked. Then a coroutine is made ready while it still runs; it stands in its own
//! worker's queue, or soon will, and that worker is the very thread that runs it. So whoever has begun a wait and linked
//! its node always parks, also if the slot is settled by then: `prepare` either finds the context at the head of the
//! queue and does not leave at all, or it leaves and is entered when its turn comes. One settled wait is one place in one
//! queue, taken once; no third state is needed. A foreign thread looks at the slot under the lock that its waker holds,
//! and does not block if it is settled.
//!
//! # Invariants
//!
//! * **C1** A context stays where it is, and its memory stays readable for every holder of a ticket: a coroutine's until
//!   its runtime's stacks are unmapped, which is after all its requests are over; a foreign thread's until its waker
//!   has given up the lock under which it won.
//! * **C2** Only the stack's own code calls `begin` and `park`, so tickets rise and the slot is *idle* or settled when
//!   `begin` stores into it.
//! * **C3** Cells that are not atomic are touched by the stack's own code only, or by its worker while it is left.
//! * **C4** What a wait is begun for is null, or what its [`Reason`] says: others follow the address while the wait goes on. So it stays
//!   until the wait is over, and who begins a wait parks or takes it back before its frame goes, on every way out.

use std::cell::Cell;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::shim::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use crate::switch::Switch;

mod caller;
pub mod edge;
mod foreign;
mod label;
mod owner;
mod reason;
mod shares;
mod table;
mod thread_number;
mod tries;
mod wait_queue;

pub use self::caller::{Caller, caller, this_thread};
pub use self::foreign::{ForeignContext, provide_foreign, with_foreign};
pub use self::label::Label;
pub use self::owner::{Lock, OwnerWait};
pub use self::reason::Reason;
pub use self::shares::Shares;
pub use self::table::{Alarm, NameFn, Table};
pub use self::thread_number::ThreadNumber;
pub use self::tries::TRIES;
use self::tries::Tries;
pub use self::wait_queue::{Listeners, Listening, WaitNode, WaitQueue};

const STATE: u64 = 0b111;
const WAITING: u64 = 1;
/// Waiting; the thread that has chosen it will wake it.
const CHOSEN: u64 = 6;
/// Waiting, and held by somebody who looks at it; see [`edge`].
const HELD: u64 = 7;

/// Why a parked context goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// What it waited for has happened.
    Woken = 2,
    /// Its deadline has passed.
    TimedOut = 3,
    /// The request on it was cancelled.
    Cancelled = 4,
    /// It was one of a cycle of waits, which nothing else would have ended.
    Circular = 5,
}

/// Names one wait of one context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// One stack's record. See the module head. Aligned so that a lock's word has room for four bits beside its holder's address.
#[repr(C, align(16))]
pub struct Context {
    /// Ticket in the upper bits, state in the lower three.
    slot: AtomicU64,
    table: &'static Table,
    switch: Switch,
    /// How many `no_suspend` regions are open; the stack's, not the request's.
    no_suspend: Cell<u32>,
    /// An error travels on this stack as an unwind, and nobody has caught it.
    unwinding: Cell<bool>,
    /// How many locks were taken on this stack and not given back; who holds one may be waited for.
    locks: Cell<u32>,
    /// What it holds together with others.
    shares: Shares,
    /// The lock that it has tried to take most recently, and how often in a turn.
    tries: Tries,
    /// The same for all contexts of one worker; 0 for a thread of its own.
    place: ThreadNumber,
    /// What this context waits for.
    reason: AtomicU8,
    /// The wait that was begun last has been handed to the threads that may end it.
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

    /// Makes a context in a place where contexts have always been made, or that is filled with zeros. What others may read
    /// there at any time, since they have come by it before, is left as it is, so that tickets go on.
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
            (&raw mut (*at).switch).write(Switch::none());
            (&raw mut (*at).no_suspend).write(Cell::new(0));
            (&raw mut (*at).unwinding).write(Cell::new(false));
            (&raw mut (*at).locks).write(Cell::new(0));
            (&raw mut (*at).shares).write(Shares::new());
            (&raw mut (*at).tries).write(Tries::default());
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

    /// Which thread this stack is on: the same number, not 0, for all contexts of one worker; 0 for a thread of its own, and for one that
    /// nothing can run on. The owner sets it before anything runs on the stack; other threads read it at any time.
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

    /// The root key of the most urgent that runs here, or waits for it; smaller goes first.
    #[inline]
    pub fn urgency(&self) -> u64 {
        // SAFETY: the table is this context's.
        unsafe { (self.table.urgency)(self) }
    }

    /// Whether the request on top was cancelled, so that a wait that a cancel can end is to be refused. By the stack's own code.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        // SAFETY: the table is this context's, and we are on its stack.
        unsafe { (self.table.is_cancelled)(self) }
    }

    /// The time on the clock that limits here go by. By the stack's own code.
    pub fn now(&self) -> Instant {
        // SAFETY: the table is this context's, and we are on its stack.
        unsafe { (self.table.now)(self) }
    }

    /// The instant `timeout` from now, or some microseconds after that; `None` if it is too far off to be told, which means never. By
    /// the stack's own code.
    #[cold]
    #[inline(never)]
    pub fn deadline(&self, timeout: Duration) -> Option<Instant> {
        // SAFETY: the table is this context's, and we are on its stack.
        unsafe { (self.table.deadline)(self, timeout) }
    }

    /// A number that differs from one call to the next, for choices that should not always fall out the same. By the stack's own code.
    pub fn turn(&self) -> u64 {
        // SAFETY: the table is this context's, and we are on its stack.
        unsafe { (self.table.turn)(self) }
    }

    /// The stack is about to wait for `what`, and nothing has been begun. By the stack's own code.
    ///
    /// # Panics
    ///
    /// In a region that must not suspend.
    #[inline]
    pub fn about_to_wait(&self, what: &str) {
        if self.no_suspend.get() != 0 {
            // SAFETY: the table is this context's, and we are on its stack.
            unsafe { (self.table.refuse_wait)(self, what) }
        }
    }

    /// What this context waits for, for dumps: the reason and the address of the target.
    pub fn waits_for(&self) -> (Reason, *mut ()) {
        (Reason::from_u8(self.reason.load(Ordering::Relaxed)), self.target.load(Ordering::Relaxed))
    }

    /// Begins a wait: from here on the ticket can be used to wake this context.
    ///
    /// # Safety
    ///
    /// C2, C4.
    #[inline(always)]
    pub unsafe fn begin(&self, reason: Reason, target: *mut ()) -> Ticket {
        // C2: nobody else stores here while the slot is settled.
        let ticket = (self.slot.load(Ordering::Relaxed) | STATE) + 1;
        self.reason.store(reason as u8, Ordering::Relaxed);
        self.target.store(target, Ordering::Relaxed);
        self.parked.store(cfg!(mutant = "parked_as_begun"), Ordering::Relaxed);
        #[cfg(not(mutant = "begun_relaxed"))]
        let order = Ordering::Release;
        #[cfg(mutant = "begun_relaxed")]
        let order = Ordering::Relaxed;
        // The waker gets the ticket through a lock, which orders this store before its exchange. Who only looks finds it not parked.
        self.slot.store(ticket | WAITING, order);
        Ticket(ticket)
    }

    /// Takes back a wait whose ticket was given to nobody, or is out of every list again.
    ///
    /// # Safety
    ///
    /// C2: on the context's own stack, instead of [`park`](Self::park), and `ticket` is of the wait that was begun last: an older one
    /// would come a second time.
    #[inline]
    pub unsafe fn abandon(&self, ticket: Ticket) {
        self.reason.store(Reason::None as u8, Ordering::Relaxed);
        self.slot.store(ticket.0 | Cause::Woken as u64, Ordering::Relaxed);
    }

    /// Takes back a wait whose ticket was given away, unless somebody has ended it, or made sure of it. True: it is over, and is not
    /// to be parked. By the stack's own code.
    pub fn withdraw(&self, ticket: Ticket) -> bool {
        let withdrawn = self.settle(ticket, Cause::Woken);
        if withdrawn {
            self.reason.store(Reason::None as u8, Ordering::Relaxed);
        }
        withdrawn
    }

    /// Ends the wait that goes on here, if it is one that a cancel may end. On the thread of this stack's owner, by its
    /// owner, while the stack is left or about to be: nobody begins another wait here meanwhile. True: the owner makes the
    /// context runnable.
    pub fn cancel_wait(&self) -> bool {
        let (reason, _) = self.waits_for();
        if !reason.is_cancellable() {
            return false;
        }
        let slot = self.slot.load(Ordering::Relaxed);
        matches!(slot & STATE, WAITING | HELD) && self.settle(Ticket(slot & !STATE), Cause::Cancelled)
    }

    /// Ends the wait that goes on here, whatever it is for, because nothing else can. By the thread that this context waits
    /// on. True: the owner makes the context runnable.
    pub fn end_circular_wait(&self) -> bool {
        let slot = self.slot.load(Ordering::Relaxed);
        matches!(slot & STATE, WAITING | HELD) && self.settle(Ticket(slot & !STATE), Cause::Circular)
    }

    /// The ticket of the wait that was begun last. By anybody else it may be of one before, or after.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.slot.load(Ordering::Relaxed) & !STATE)
    }

    /// Whether the wait that was begun is not settled yet.
    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        matches!(self.slot.load(Ordering::Acquire) & STATE, WAITING | HELD | CHOSEN)
    }

    /// Whether it waits, and whoever may end the wait knows of it: a snapshot. Who is told so, and then looks there, finds it, if the wait is
    /// not over by then.
    pub fn is_parked(&self) -> bool {
        self.is_waiting() && self.parked.load(Ordering::Acquire)
    }

    /// Why the last wait ended. Meaningful only when it has.
    #[inline(always)]
    pub fn cause(&self) -> Cause {
        match self.slot.load(Ordering::Acquire) & STATE {
            3 => Cause::TimedOut,
            4 => Cause::Cancelled,
            5 => Cause::Circular,
            _ => Cause::Woken,
        }
    }

    /// Settles the wait that `ticket` names; false if it was settled before. The owner's `unpark` calls this, and makes
    /// the context runnable if it won.
    #[inline(always)]
    pub fn settle(&self, ticket: Ticket, cause: Cause) -> bool {
        #[cfg(mutant = "settle_by_store")]
        {
            let open = self.slot.load(Ordering::Acquire) == ticket.0 | WAITING;
            self.slot.store(ticket.0 | cause as u64, Ordering::Release);
            return open;
        }
        #[cfg(not(mutant = "settle_relaxed"))]
        let order = Ordering::AcqRel;
        #[cfg(mutant = "settle_relaxed")]
        let order = Ordering::Relaxed;
        #[cfg(not(mutant = "settle_by_store"))]
        match self.slot.compare_exchange(
            ticket.0 | WAITING,
            ticket.0 | cause as u64,
            order,
            Ordering::Relaxed,
        ) {
            Ok(_) => true,
            #[cfg(mutant = "settle_ignores_hold")]
            Err(_) => false,
            #[cfg(not(mutant = "settle_ignores_hold"))]
            Err(seen) => seen == ticket.0 | HELD && self.settle_held(ticket, cause as u64),
        }
    }

    /// Makes sure of the wait that `ticket` names: nobody else ends it any more, and its frame stays until the caller says
    /// [`ready`]. False: it is over, or somebody else's to end.
    #[inline]
    pub fn choose(&self, ticket: Ticket) -> bool {
        #[cfg(mutant = "choose_by_store")]
        {
            let open = self.slot.load(Ordering::Acquire) == ticket.0 | WAITING;
            self.slot.store(ticket.0 | CHOSEN, Ordering::Release);
            return open;
        }
        #[cfg(not(mutant = "choose_by_store"))]
        match self.slot.compare_exchange(
            ticket.0 | WAITING,
            ticket.0 | CHOSEN,
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            Ok(_) => true,
            Err(seen) => seen == ticket.0 | HELD && self.settle_held(ticket, CHOSEN),
        }
    }

    /// Ends a wait that was chosen. The owner's `ready` calls this, and makes the context runnable.
    ///
    /// # Safety
    ///
    /// As [`ready`]: the caller has chosen the wait that `ticket` names, and says so once.
    #[inline(always)]
    pub unsafe fn settle_chosen(&self, ticket: Ticket) {
        debug_assert_eq!(
            self.slot.load(Ordering::Relaxed),
            ticket.0 | CHOSEN,
            "only what was chosen is made ready"
        );
        // Nobody else changes a slot that says so.
        self.slot.store(ticket.0 | Cause::Woken as u64, Ordering::Release);
    }

    /// Stops going on until the wait begun last is settled, and answers why. To be called exactly once for every wait whose
    /// ticket was given away, unless the waiter has settled it itself; and never for one whose ticket was not.
    ///
    /// The switch is inlined here, and this into the public method that waits (see [`crate::switch`] for the reason).
    ///
    /// # Safety
    ///
    /// Called on the context's own stack, after [`begin`](Self::begin).
    #[inline(always)]
    pub unsafe fn park(&self, deadline: Option<Instant>) -> Cause {
        #[cfg(not(mutant = "parked_relaxed"))]
        let order = Ordering::Release;
        #[cfg(mutant = "parked_relaxed")]
        let order = Ordering::Relaxed;
        // Release: who sees this finds it where it waits.
        self.parked.store(true, order);
        loop {
            #[cfg(mutant = "settled_skips_prepare")]
            if !self.is_waiting() {
                break;
            }
            // Also if the wait is settled already: a coroutine then stands in a queue, or is about to, and must come out of
            // it by being found there, or by being entered.
            // SAFETY: we are on this context's stack, by this function's contract.
            let next = unsafe { (self.table.prepare)(self, deadline) };
            if let Some(next) = next {
                // SAFETY: F2 by this function's contract.
                unsafe { self.switch.leave(Some(next)) };
                // SAFETY: as above; the stack was entered again.
                unsafe { (self.table.finish)(self) };
            }
            if !self.is_waiting() {
                break;
            }
        }
        self.reason.store(Reason::None as u8, Ordering::Relaxed);
        // For `user_code`.
        #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
        self.parked.store(false, Ordering::Relaxed);
        self.cause()
    }

    /// The wait that was begun last never goes on: its thread exits inside it. By the stack's own code, whatever stack that runs on now.
    pub fn forsake(&self) {
        self.settle(self.ticket(), Cause::Cancelled);
        self.parked.store(false, Ordering::Relaxed);
    }

    /// The same, but the wait ends with [`Cause::TimedOut`] at `at` on the clock of this context, if nothing else has ended it
    /// before. When it returns no timer knows of the wait. Without `at` it is [`park`](Self::park).
    ///
    /// # Safety
    ///
    /// As [`park`](Self::park); the ticket is of the wait that was begun.
    #[inline(always)]
    pub unsafe fn park_until(&self, ticket: Ticket, at: Option<Instant>) -> Cause {
        // SAFETY: we are on this context's stack, and it is here until the alarm was taken back, below; nothing in between
        // unwinds.
        let alarm = at.map(|at| unsafe { (self.table.arm)(self, ticket, at) });
        // SAFETY: by contract.
        let cause = unsafe { self.park(alarm.as_ref().and_then(|alarm| alarm.own)) };
        if let Some(alarm) = alarm {
            // SAFETY: as above.
            unsafe { (self.table.disarm)(self, alarm) };
        }
        cause
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (reason, _) = self.waits_for();
        f.debug_struct("Context").field("waits_for", &reason).finish_non_exhaustive()
    }
}

/// Wakes `context` from the wait that `ticket` names. False: that wait was over already, and the caller has no claim on
/// anything of the waiter's but the node it is still holding.
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

/// Ends a wait that was [chosen](Context::choose), and makes its context runnable. The last touch of anything of the waiter's.
///
/// # Safety
///
/// The caller has chosen it, and says so once.
#[inline(always)]
pub unsafe fn ready(context: NonNull<Context>, ticket: Ticket) {
    // SAFETY: a context that was chosen does not go on before this.
    let table = unsafe { context.as_ref() }.table;
    // SAFETY: as above.
    unsafe { (table.ready)(context, ticket) }
}

#[cfg(not(loom))]
crate::shim::thread_local! {
    static CURRENT: Cell<Option<NonNull<Context>>> = const { Cell::new(None) };
}
#[cfg(loom)]
crate::shim::thread_local! {
    static CURRENT: Cell<Option<NonNull<Context>>> = Cell::new(None);
}

/// The context of the stack this is called on, if it has one already.
#[inline(always)]
pub fn current() -> Option<NonNull<Context>> {
    CURRENT.with(Cell::get)
}

/// Says which context's stack this thread is on. The owner calls it before it enters one.
///
/// # Safety
///
/// The context stays valid for as long as it is current.
#[inline(always)]
pub unsafe fn set_current(context: Option<NonNull<Context>>) {
    CURRENT.with(|c| c.set(context));
}

/// Code of the user's is about to be called on this stack, whatever it may do: wait, too. Debug builds end the process if this is in the middle
/// of a wait, after [`begin`](Context::begin) and before [`park`](Context::park) has returned: that code would begin another, and the
/// ticket and the cause of the first would be lost.
#[inline(always)]
pub fn user_code() {
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    if let Some(context) = CURRENT.try_with(Cell::get).ok().flatten() {
        // SAFETY: the current context is valid, by the contract of `set_current`.
        let context = unsafe { context.as_ref() };
        if context.is_waiting() || context.parked.load(Ordering::Relaxed) {
            in_a_wait();
        }
    }
}

/// It does not panic: the panic would be caught where that of the user's code is.
#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
#[cold]
fn in_a_wait() -> ! {
    // Not `eprintln!`, which a test's harness would capture and lose.
    let _ = std::io::Write::write_fmt(
        &mut std::io::stderr(),
        format_args!(
            "forebear: user code is called between the beginning and the end of a wait, at\n{}\n",
            std::backtrace::Backtrace::force_capture()
        ),
    );
    std::process::abort()
}

/// Whether the calling code runs inside a request.
#[must_use]
pub fn in_request() -> bool {
    current().is_some_and(|context| {
        // SAFETY: the current context is valid, by the contract of `set_current`, and we are on its stack.
        unsafe { (context.as_ref().table.in_request)(context.as_ref()) }
    })
}
