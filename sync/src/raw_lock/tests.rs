//! Fairness, step by step on a clock that stands still: what the races come to is for the models in `loom-tests`.
//!
//! A waiter is driven by hand: it prepares, is woken, and finds out, all on this thread. Nobody ever blocks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Duration;

use forebear_context::context::{ForeignContext, Table, Ticket};
use forebear_context::lineage::NO_KEY;

use super::turns::TURN;
use super::waiting::{LOSSES, LockStep, PATIENCE, Waiting};
use super::*;

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
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    *BEGIN.get_or_init(Instant::now) + TIME.get()
}

static TABLE: Table = Table { now, shares_thread, urgency, give_way, is_alone, ..ForeignContext::TABLE };
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

unsafe fn urgency(context: &Context) -> u64 {
    // SAFETY: as above.
    unsafe { &*ptr::from_ref(context).cast::<Actor>() }.urgency.get()
}

unsafe fn shares_thread(context: &Context, holder: NonNull<Context>) -> bool {
    // SAFETY: the holders are actors, which live through the test.
    context.place().get() != 0 && context.place().get() == unsafe { holder.as_ref() }.place().get()
}

unsafe fn give_way(context: &Context) -> Option<NonNull<Context>> {
    // SAFETY: as above.
    let ways = unsafe { &(*ptr::from_ref(context).cast::<Actor>()).ways };
    ways.set(ways.get() + 1);
    None
}

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

#[test]
fn while_one_is_on_its_way_32_releases_wake_nobody_else() {
    let lock = RawLock::default();
    let [older, younger] = [0; 2].map(|_| Actor::new());
    assert!(lock.try_lock());
    let (mut first, mut second) = (older.wait_for(&lock), younger.wait_for(&lock));
    let (one, two) = (first.park(), second.park());
    barge(&lock);
    assert!(!first.context.is_waiting(), "it is on its way");
    assert_eq!(PASSES, 32);
    pass(&lock);
    assert!(second.context.is_waiting());
    barge(&lock);
    assert!(!second.context.is_waiting(), "the first may be pinned behind a busy worker");
    assert!(!first.has_it(one));
    // Another is on its way, and has been waited for by nobody yet; but one has come.
    let one = first.park_again();
    barge(&lock);
    assert!(!first.has_it(one) && !second.has_it(two));
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
}

#[test]
fn a_thread_that_loses_has_a_turn_each_half_millisecond() {
    let lock = RawLock::default();
    let [first, second] = [0; 2].map(|_| Actor::new());
    assert!(lock.try_lock());
    let (mut one, mut two) = (first.wait_for(&lock), second.wait_for(&lock));
    let (ticket, behind) = (one.park(), two.park());
    TIME.set(TURN);
    barge(&lock);
    assert!(!one.has_it(ticket), "the first release of all starts the clock");
    let ticket = one.park_again();
    TIME.set(2 * TURN - Duration::from_nanos(1));
    barge(&lock);
    assert!(!two.has_it(behind), "not yet");
    let _behind = two.park_again();
    TIME.set(2 * TURN);
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(!lock.try_lock() && one.has_it(ticket), "it was handed over");
    // The other has its turn as long after that one.
    TIME.set(3 * TURN - Duration::from_nanos(1));
    // SAFETY: the first has it.
    unsafe { lock.unlock() };
    assert!(lock.try_lock(), "others may barge");
}

#[test]
fn a_request_that_waits_for_its_worker_has_no_turn() {
    let lock = RawLock::default();
    let actor = Actor::new();
    actor.context().place().set(7);
    assert!(lock.try_lock());
    let mut waiting = actor.wait_for(&lock);
    let mut ticket = waiting.park();
    for turn in 1..LOSSES {
        TIME.set(10 * turn * TURN);
        barge(&lock);
        assert!(!waiting.has_it(ticket));
        ticket = waiting.park_again();
    }
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(waiting.has_it(ticket));
    // SAFETY: that one has it.
    unsafe { lock.unlock() };
}

#[test]
fn one_that_was_woken_and_is_alone_looks_for_a_held_lock_and_others_stay_asleep_meanwhile() {
    let lock = Rc::new(RawLock::default());
    let [older, younger] = [0; 2].map(|_| Actor::new());
    assert!(lock.try_lock());
    let (mut first, mut second) = (older.wait_for(&lock), younger.wait_for(&lock));
    let (one, two) = (first.park(), second.park());
    barge(&lock);
    older.alone.set(true);
    older.asked.set(0);
    let held = lock.clone();
    let behind = ptr::from_ref(younger.context());
    *older.at_question.borrow_mut() = Some(Box::new(move || {
        // The holder goes on for a while, and then lets go.
        pass(&held);
        // SAFETY: the actor lives through the test.
        assert!(unsafe { &*behind }.is_waiting(), "one is on its way, and looks");
        // SAFETY: the test has it.
        unsafe { held.unlock() };
    }));
    assert!(first.has_it(one), "it was free when it looked again");
    assert_eq!(older.asked.get(), 1);
    // SAFETY: that one has it.
    unsafe { lock.unlock() };
    assert!(second.has_it(two));
    // SAFETY: that one has it.
    unsafe { lock.unlock() };
}

#[test]
fn one_that_was_woken_loses_if_the_lock_stays_held_whether_it_is_alone_or_not() {
    let lock = RawLock::default();
    let actor = Actor::new();
    assert!(lock.try_lock());
    let mut waiting = actor.wait_for(&lock);
    let mut ticket = waiting.park();
    for alone in [false, true] {
        actor.asked.set(0);
        actor.alone.set(alone);
        barge(&lock);
        assert!(!waiting.has_it(ticket), "it is held");
        assert_eq!(actor.asked.get(), 1, "alone: {alone}");
        actor.alone.set(false);
        ticket = waiting.park_again();
    }
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(waiting.has_it(ticket));
    // SAFETY: that one has it.
    unsafe { lock.unlock() };
}

#[test]
fn one_that_takes_or_loses_a_contended_lock_64_times_in_a_turn_gives_way() {
    let (lock, actor) = (RawLock::default(), Actor::new());
    // As `lock` does where somebody waits, so that the fast way is not to be had.
    let take = |many| {
        for _ in 0..many {
            assert!(matches!(actor.wait_for(&lock).prepare(), LockStep::Taken));
            // SAFETY: just taken.
            unsafe { lock.unlock() };
        }
    };
    take(63);
    assert_eq!(actor.ways.get(), 0);
    take(1);
    assert_eq!(actor.ways.get(), 1);
    // Another turn begins with a wait for something else, and with another lock.
    take(60);
    let context = actor.context();
    // SAFETY: the actor's own code, and nobody knows of the wait.
    unsafe { context.abandon(context.begin(Reason::None, ptr::null_mut())) };
    take(60);
    let else_where = RawLock::default();
    assert!(matches!(actor.wait_for(&else_where).prepare(), LockStep::Taken));
    take(63);
    assert_eq!(actor.ways.get(), 1);
    // A loss counts as well, and the wait for the lock itself ends no turn.
    assert!(lock.try_lock());
    let mut waiting = actor.wait_for(&lock);
    let ticket = waiting.park();
    assert_eq!(actor.ways.get(), 2);
    barge(&lock);
    assert!(!waiting.has_it(ticket));
    let _ticket = waiting.park_again();
    assert_eq!(actor.ways.get(), 2);
    // In a region that must not suspend nobody gives way.
    let region = Actor::new();
    region.context().no_suspend().set(1);
    let free = RawLock::default();
    for _ in 0..200 {
        assert!(matches!(region.wait_for(&free).prepare(), LockStep::Taken));
        // SAFETY: just taken.
        unsafe { free.unlock() };
    }
    assert_eq!(region.ways.get(), 0);
}

#[test]
fn one_that_is_more_urgent_is_woken_though_another_is_on_its_way() {
    let lock = RawLock::default();
    let [first, behind, urgent] = [0; 3].map(|_| Actor::new());
    assert!(lock.try_lock());
    let (mut older, mut younger, mut newcomer) =
        (first.wait_for(&lock), behind.wait_for(&lock), urgent.wait_for(&lock));
    let (one, two) = (older.park(), younger.park());
    barge(&lock);
    assert!(!older.context.is_waiting(), "it is on its way");
    urgent.urgency.set(1);
    let three = newcomer.park();
    barge(&lock);
    assert!(!newcomer.context.is_waiting() && younger.context.is_waiting());
    assert!(!older.has_it(one) && !newcomer.has_it(three));
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(younger.has_it(two));
    // SAFETY: that one has it.
    unsafe { lock.unlock() };
}

#[test]
fn a_waiter_that_loses_for_half_a_millisecond_reserves_the_lock() {
    let lock = Rc::new(RawLock::default());
    let actor = Actor::new();
    let mut waiting = actor.wait_for(&lock);
    assert!(lock.try_lock());
    let mut ticket = waiting.park();
    for step in [0, 200, 299] {
        // Too early: others may go on barging.
        actor.time.set(actor.time.get() + Duration::from_micros(step));
        barge(&lock);
        assert!(!waiting.has_it(ticket));
        ticket = waiting.park_again();
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
    assert!(matches!(waiting.prepare_again(), LockStep::Taken));
    assert!(seen.get() && lock.is_locked());
    // SAFETY: the waiter has it.
    unsafe { lock.unlock() };
    assert!(lock.try_lock());
}

#[test]
fn a_reservation_is_over_after_fifty_microseconds() {
    let lock = RawLock::default();
    let actor = Actor::new();
    let mut waiting = actor.wait_for(&lock);
    assert!(lock.try_lock());
    let ticket = waiting.park();
    barge(&lock);
    assert!(!waiting.has_it(ticket));
    let ticket = waiting.park_again();
    actor.time.set(PATIENCE);
    barge(&lock);
    assert!(!waiting.has_it(ticket));
    // Nobody lets go meanwhile: it waits again. The next release that chooses it hands the lock over.
    let ticket = waiting.park_again();
    assert!(lock.is_locked() && !waiting.has_been_told());
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(!lock.try_lock(), "it was handed over");
    assert!(waiting.has_it(ticket));
}

#[test]
fn a_waiter_loses_four_times_at_most_however_fast_others_barge() {
    let lock = RawLock::default();
    let (holder, actor, far) = (Actor::new(), Actor::new(), Actor::new());
    holder.context().place().set(7);
    actor.context().place().set(7);
    far.context().place().set(8);
    // SAFETY: taken back below.
    unsafe { forebear_context::context::set_current(Some(NonNull::from(holder.context()))) };
    assert!(lock.try_lock());
    // Another of a far worker waits too, so that this is not a hand-over within one worker.
    let (mut waiting, mut other) = (actor.wait_for(&lock), far.wait_for(&lock));
    let (mut ticket, mut elsewhere) = (waiting.park(), other.park());
    // The clock stands still. The holder shares the waiter's worker, so the waiter cannot reserve the lock.
    for loss in 1..=LOSSES {
        barge(&lock);
        assert!(!waiting.has_it(ticket), "it loses for the {loss}. time");
        ticket = waiting.park_again();
        if loss < LOSSES {
            barge(&lock);
            assert!(!other.has_it(elsewhere));
            elsewhere = other.park_again();
        }
    }
    assert_eq!(LOSSES, 4);
    // SAFETY: the test has it. The far one is woken, and has not come.
    unsafe { lock.unlock() };
    assert!(lock.try_lock());
    assert!(!other.has_it(elsewhere));
    let _elsewhere = other.park_again();
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(!lock.try_lock(), "it was handed over");
    assert!(waiting.has_it(ticket));
    // SAFETY: no context is always valid.
    unsafe { forebear_context::context::set_current(None) };
}

#[test]
fn one_that_lost_stands_behind_those_that_have_not_been_woken() {
    let lock = RawLock::default();
    let (eager, patient) = (Actor::new(), Actor::new());
    assert!(lock.try_lock());
    let (mut first, mut second) = (eager.wait_for(&lock), patient.wait_for(&lock));
    let (one, two) = (first.park(), second.park());
    barge(&lock);
    assert!(!first.has_it(one), "the older was woken, and lost");
    let one = first.park_again();
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
fn newcomers_do_not_pass_those_that_have_lost() {
    let lock = RawLock::default();
    let [loser, third, fourth] = [0; 3].map(|_| Actor::new());
    assert!(lock.try_lock());
    let (mut first, mut other) = (loser.wait_for(&lock), third.wait_for(&lock));
    let (one, two) = (first.park(), other.park());
    barge(&lock);
    assert!(!first.has_it(one), "the older was woken, and lost");
    let one = first.park_again();
    // It comes while one stands there still that has not been woken, and would be popped before the loser.
    let mut newcomer = fourth.wait_for(&lock);
    let three = newcomer.park();
    barge(&lock);
    assert!(!other.has_it(two));
    // SAFETY: the test has it.
    unsafe { lock.unlock() };
    assert!(first.has_it(one), "each has been woken once that came before it");
    assert!(newcomer.context.is_waiting());
    // SAFETY: the first has it.
    unsafe { lock.unlock() };
    assert!(newcomer.has_it(three));
    // SAFETY: the newcomer has it.
    unsafe { lock.unlock() };
}

/// The lock is held by a context of worker 7, and one of that worker and one of another wait for it. Calls `then` with the holder on that
/// worker's thread.
fn held_on_seven(then: impl FnOnce(&RawLock, &Actor, &mut Waiting<'_>, Ticket)) {
    let lock = RawLock::default();
    let (one, two, own) = (Actor::new(), Actor::new(), Actor::new());
    one.context().place().set(7);
    two.context().place().set(8);
    own.context().place().set(7);
    // SAFETY: taken back below.
    unsafe { forebear_context::context::set_current(Some(NonNull::from(own.context()))) };
    assert!(lock.try_lock());
    let (mut first, mut second) = (one.wait_for(&lock), two.wait_for(&lock));
    let (a, b) = (first.park(), second.park());
    then(&lock, &own, &mut first, a);
    assert!(second.has_it(b));
    // SAFETY: the second has it.
    unsafe { lock.unlock() };
    assert!(!lock.is_locked());
    // SAFETY: no context is always valid.
    unsafe { forebear_context::context::set_current(None) };
}

#[test]
fn a_newcomer_gives_way_to_one_of_its_worker_that_was_woken() {
    held_on_seven(|lock, own, first, a| {
        // SAFETY: the test has it.
        unsafe { lock.unlock() };
        assert!(!lock.is_locked(), "others may have it");
        let mut again = own.wait_for(lock);
        let ticket = again.park();
        assert!(first.has_it(a), "that one could not have run before");
        // One that stands there goes on as any other: after those who came before.
        // SAFETY: the first has it.
        unsafe { lock.unlock() };
        // The other worker's was woken; it has been before this one, but is not there yet.
        assert!(again.context.is_waiting());
        assert!(lock.try_lock());
        pass(lock);
        // SAFETY: the test has it.
        unsafe { lock.unlock() };
        assert!(again.has_it(ticket));
        // SAFETY: as it says.
        unsafe { lock.unlock() };
    });
}

#[test]
fn a_newcomer_that_is_more_urgent_or_in_a_hurry_does_not_give_way() {
    held_on_seven(|lock, own, first, a| {
        // SAFETY: the test has it.
        unsafe { lock.unlock() };
        let terms = LockTerms { deadline: Some(Instant::now()), ..own.wait_for(lock).terms };
        assert!(matches!(lock.waiting(own.context(), terms).prepare(), LockStep::Taken));
        assert!(!first.has_it(a));
        let a = first.park_again();
        // SAFETY: taken above. The other worker's is woken now.
        unsafe { lock.unlock() };
        assert!(
            matches!(own.wait_for(lock).prepare(), LockStep::Taken),
            "that one needs no wait of this worker's"
        );
        pass(lock);
        // SAFETY: taken above.
        unsafe { lock.unlock() };
        assert!(first.has_it(a));
        // SAFETY: as it says.
        unsafe { lock.unlock() };
    });
}

#[test]
fn one_that_loses_to_its_own_worker_does_not_reserve() {
    let lock = RawLock::default();
    let (own, other) = (Actor::new(), Actor::new());
    own.context().place().set(7);
    other.context().place().set(7);
    // SAFETY: taken back below.
    unsafe { forebear_context::context::set_current(Some(NonNull::from(own.context()))) };
    assert!(lock.try_lock());
    let far = Actor::new();
    far.context().place().set(8);
    let mut waiting = other.wait_for(&lock);
    let mut far = far.wait_for(&lock);
    let (mut ticket, mut elsewhere) = (waiting.park(), far.park());
    for step in [0, 600] {
        other.time.set(other.time.get() + Duration::from_micros(step));
        barge(&lock);
        assert!(!waiting.has_it(ticket));
        // It reads the clock once, when it has lost; looking for the lock it would read it again.
        let looks: *const Actor = &*other;
        other.at_look.replace(Some(Box::new(move || {
            let again = Box::new(|| panic!("it looks for a lock that cannot become free"));
            // SAFETY: the actor lives through the test; its cell is not borrowed during a call.
            unsafe { &*looks }.at_look.replace(Some(again));
        })));
        ticket = waiting.park_again();
        other.at_look.take();
        barge(&lock);
        assert!(!far.has_it(elsewhere));
        elsewhere = far.park_again();
    }
    // SAFETY: no context is always valid.
    unsafe { forebear_context::context::set_current(None) };
}

#[test]
fn it_is_handed_over_if_all_who_wait_are_of_the_worker_that_releases() {
    for (places, handed) in [([7, 7], true), ([7, 8], false)] {
        let lock = RawLock::default();
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
