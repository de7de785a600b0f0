//! Fairness, step by step on a clock that stands still: what the races come to is for the models in `loom-tests`.
//!
//! A waiter is driven by hand: it prepares, is woken, and finds out, all on this thread. Nobody ever blocks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::OnceLock;

use forebear_context::context::{ForeignContext, Table};

use super::*;

/// A context whose clock is moved by hand, and calls back when it is read.
#[repr(C)]
struct Actor {
    foreign: ForeignContext,
    time: Cell<Duration>,
    at_look: RefCell<Option<Box<dyn FnOnce()>>>,
}

static TABLE: Table = Table { now, ..ForeignContext::TABLE };
static LOCK: Lock = called("Mutex");

unsafe fn now(context: &Context) -> Instant {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    // SAFETY: this table is given to actors only, which begin with their context.
    let actor = unsafe { &*ptr::from_ref(context).cast::<Actor>() };
    let call = actor.at_look.borrow_mut().take();
    if let Some(call) = call {
        call();
    }
    *BEGIN.get_or_init(Instant::now) + actor.time.get()
}

impl Actor {
    fn new() -> Box<Actor> {
        Box::new(Actor {
            foreign: ForeignContext::with_table(&TABLE),
            time: Cell::default(),
            at_look: RefCell::default(),
        })
    }

    fn context(&self) -> &Context {
        self.foreign.context()
    }

    fn wait_for<'a>(&'a self, lock: &'a RawLock) -> Waiting<'a> {
        let terms = Terms { reason: Reason::Lock, deadline: None, caller: Location::caller(), of: &LOCK };
        lock.waiting(self.context(), terms)
    }
}

impl Waiting<'_> {
    fn park(&mut self) -> Ticket {
        match self.prepare() {
            Step::Park(ticket) => ticket,
            Step::Taken => panic!("it was free"),
            Step::Refused(refused) => panic!("{refused:?}"),
        }
    }

    /// Whether it has been woken, and has the lock then.
    fn has_it(&mut self, ticket: Ticket) -> bool {
        assert!(!self.context.is_waiting(), "it was woken");
        matches!(self.woken(ticket, self.context.cause()), Some(Ok(())))
    }
}

/// Lets go of the lock and takes it again before anybody else can.
fn barge(lock: &RawLock) {
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(lock.try_lock(), "nobody has reserved it");
}

#[test]
fn a_waiter_that_loses_for_half_a_millisecond_reserves_the_lock() {
    let lock = Rc::new(RawLock::new());
    let actor = Actor::new();
    let mut waiting = actor.wait_for(&lock);
    assert!(lock.try_lock());
    let mut ticket = waiting.park();
    for step in [0, 200, 299] {
        // Too early: others may go on barging.
        actor.time.set(actor.time.get() + Duration::from_micros(step));
        barge(&lock);
        assert!(!waiting.has_it(ticket));
        ticket = waiting.park();
    }
    actor.time.set(PATIENCE);
    barge(&lock);
    assert!(!waiting.has_it(ticket));
    // It reads the clock when it has lost; then it has reserved the lock, and looks for it.
    let seen = Rc::new(Cell::new(false));
    let (saw, held) = (seen.clone(), lock.clone());
    let holder = &*actor;
    actor.at_look.replace(Some(Box::new({
        let looks: *const Actor = holder;
        move || {
            let release = Box::new(move || {
                // SAFETY: the test has it.
                unsafe { held.unlock() };
                assert!(!held.is_locked() && !held.try_lock(), "it is kept for the waiter");
                saw.set(true);
            });
            // SAFETY: the actor lives through the test; its cell is not borrowed during a call.
            unsafe { &*looks }.at_look.replace(Some(release));
        }
    })));
    assert!(matches!(waiting.prepare(), Step::Taken));
    assert!(seen.get() && lock.is_locked());
    // SAFETY: the waiter has it.
    unsafe { lock.unlock() };
    assert!(lock.try_lock());
}

#[test]
fn a_reservation_is_over_after_fifty_microseconds() {
    let lock = RawLock::new();
    let actor = Actor::new();
    let mut waiting = actor.wait_for(&lock);
    assert!(lock.try_lock());
    let ticket = waiting.park();
    barge(&lock);
    assert!(!waiting.has_it(ticket));
    let ticket = waiting.park();
    actor.time.set(PATIENCE);
    barge(&lock);
    assert!(!waiting.has_it(ticket));
    // Nobody lets go meanwhile: it waits again, and others may barge again.
    let ticket = waiting.park();
    barge(&lock);
    assert!(!waiting.has_it(ticket));
}

#[test]
fn one_that_lost_stands_behind_those_that_have_not_been_woken() {
    let lock = RawLock::new();
    let (eager, patient) = (Actor::new(), Actor::new());
    assert!(lock.try_lock());
    let (mut first, mut second) = (eager.wait_for(&lock), patient.wait_for(&lock));
    let (one, two) = (first.park(), second.park());
    barge(&lock);
    assert!(!first.has_it(one), "the older was woken, and lost");
    let one = first.park();
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(second.has_it(two), "now it is the other's turn");
    assert!(first.context.is_waiting());
    // SAFETY: the second has it.
    unsafe { lock.unlock() };
    assert!(first.has_it(one));
    // SAFETY: the first has it.
    unsafe { lock.unlock() };
}

#[test]
fn it_is_handed_over_if_all_who_wait_are_of_the_worker_that_releases() {
    for (places, handed) in [([7, 7], true), ([7, 8], false)] {
        let lock = RawLock::new();
        let (one, two, own) = (Actor::new(), Actor::new(), Actor::new());
        one.context().place().set(places[0]);
        two.context().place().set(places[1]);
        own.context().place().set(7);
        // SAFETY: taken back below.
        unsafe { forebear_context::context::set_current(Some(NonNull::from(own.context()))) };
        assert!(lock.try_lock());
        assert_eq!(own.context().locks().get(), 1);
        let (mut first, mut second) = (one.wait_for(&lock), two.wait_for(&lock));
        let (a, b) = (first.park(), second.park());
        // SAFETY: the test has it.
        unsafe { lock.unlock() };
        assert_eq!(lock.is_locked(), handed);
        assert_eq!(lock.try_lock(), !handed, "what was handed over cannot be had by others");
        assert_eq!(first.has_it(a), handed);
        // SAFETY: it is locked, by one or the other.
        unsafe { lock.unlock() };
        if handed {
            assert!(second.has_it(b));
            // SAFETY: the second has it.
            unsafe { lock.unlock() };
        } else {
            assert!(second.has_it(b) || lock.try_lock());
        }
        // SAFETY: no context is always valid.
        unsafe { forebear_context::context::set_current(None) };
    }
}
