//! Fairness, step by step on a clock that stands still. The races are for the models in `loom-tests`.
//!
//! A waiter is driven by hand: it prepares, is woken, and reads the result, all on this thread. No thread
//! blocks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebear_context::context::{ForeignContext, Table, Ticket};
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::AtomicPtr;
use forebear_context::shim::atomic::Ordering::{AcqRel, Acquire};

use super::turns::TURN;
use super::waiting::{LOSSES, LockStep, PATIENCE, Waiting};
use super::*;

mod contended;
mod fairness;
mod same_worker;
mod turns;
mod waking;

/// A context whose clock is moved by hand, and calls back when it is read.
#[repr(C)]
struct Actor {
    foreign: ForeignContext,
    time: Cell<Duration>,
    at_look: RefCell<Option<Box<dyn FnOnce()>>>,
    urgency: Cell<u64>,
    /// How often it has given way.
    ways: Cell<u32>,
    /// Whether nothing else could run on its thread, and how often that was asked.
    alone: Cell<bool>,
    asked: Cell<u32>,
    at_question: RefCell<Option<Box<dyn FnOnce()>>>,
}

thread_local! {
    /// The time of the clock by which threads have turns.
    static TIME: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

pub(super) fn clock() -> Instant {
    begin() + TIME.get()
}

/// When the first test asked. Published by an atomic: the order of std's `OnceLock` is not seen by a sanitizer.
fn begin() -> Instant {
    static BEGIN: AtomicPtr<Instant> = AtomicPtr::new(ptr::null_mut());
    if BEGIN.load(Acquire).is_null() {
        let now = Box::into_raw(Box::new(Instant::now()));
        if BEGIN.compare_exchange(ptr::null_mut(), now, AcqRel, Acquire).is_err() {
            // SAFETY: it was made above, and not published.
            drop(unsafe { Box::from_raw(now) });
        }
    }
    // SAFETY: what is published stays.
    unsafe { *BEGIN.load(Acquire) }
}

static TABLE: Table = Table { now, shares_thread, urgency, give_way, is_alone, ..ForeignContext::TABLE };
static LOCK: Lock = called("Mutex");

/// # Safety
///
/// As [`Table::now`].
unsafe fn now(context: &Context) -> Instant {
    // SAFETY: this table is given to actors only, which begin with their context.
    let actor = unsafe { &*ptr::from_ref(context).cast::<Actor>() };
    let call = actor.at_look.borrow_mut().take();
    if let Some(call) = call {
        call();
    }
    begin() + actor.time.get()
}

/// # Safety
///
/// As [`Table::urgency`].
unsafe fn urgency(context: &Context) -> u64 {
    // SAFETY: as above.
    unsafe { &*ptr::from_ref(context).cast::<Actor>() }.urgency.get()
}

/// # Safety
///
/// As [`Table::shares_thread`].
unsafe fn shares_thread(context: &Context, holder: NonNull<Context>) -> bool {
    // SAFETY: the holders are actors, which live through the test.
    context.place().get() != 0 && context.place().get() == unsafe { holder.as_ref() }.place().get()
}

/// # Safety
///
/// As [`Table::give_way`].
unsafe fn give_way(context: &Context) -> Option<NonNull<Context>> {
    // SAFETY: as above.
    let ways = unsafe { &(*ptr::from_ref(context).cast::<Actor>()).ways };
    ways.set(ways.get() + 1);
    None
}

/// # Safety
///
/// As [`Table::is_alone`].
unsafe fn is_alone(context: &Context) -> bool {
    // SAFETY: as above.
    let actor = unsafe { &*ptr::from_ref(context).cast::<Actor>() };
    actor.asked.set(actor.asked.get() + 1);
    let call = actor.at_question.borrow_mut().take();
    if let Some(call) = call {
        call();
    }
    actor.alone.get()
}

impl Actor {
    fn new() -> Box<Actor> {
        Box::new(Actor {
            // SAFETY: the table is for actors, whose first field this is.
            foreign: unsafe { ForeignContext::with_table(&TABLE) },
            time: Cell::default(),
            at_look: RefCell::default(),
            urgency: Cell::new(NO_KEY),
            ways: Cell::new(0),
            alone: Cell::new(false),
            asked: Cell::new(0),
            at_question: RefCell::default(),
        })
    }

    fn context(&self) -> &Context {
        self.foreign.context()
    }

    fn wait_for<'a>(&'a self, lock: &'a RawLock) -> Waiting<'a> {
        let terms = LockTerms { reason: Reason::Lock, deadline: None, caller: Location::caller(), of: &LOCK };
        lock.waiting(self.context(), terms)
    }
}

impl Waiting<'_> {
    fn park(&mut self) -> Ticket {
        self.prepare().ticket()
    }

    /// It has lost.
    fn park_again(&mut self) -> Ticket {
        self.prepare_again().ticket()
    }

    fn has_been_told(&self) -> bool {
        !self.context.is_waiting()
    }

    /// Whether it has been woken, and has the lock then.
    fn has_it(&mut self, ticket: Ticket) -> bool {
        assert!(!self.context.is_waiting(), "it was woken");
        matches!(self.woken(ticket, self.context.cause()), Some(Ok(())))
    }
}

impl LockStep {
    fn ticket(self) -> Ticket {
        match self {
            LockStep::Park(ticket) => ticket,
            LockStep::Taken => panic!("it was free"),
            LockStep::Refused(refused) => panic!("{refused:?}"),
        }
    }
}

/// Lets go of the lock and takes it again before anybody else can.
fn barge(lock: &RawLock) {
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(lock.try_lock(), "nobody has reserved it");
}

/// Barges as often as releases may wake nobody.
fn pass(lock: &RawLock) {
    (0..PASSES).for_each(|_| barge(lock));
}
