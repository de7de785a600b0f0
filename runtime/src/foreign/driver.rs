//! Runtimes without worker threads: the synchronous and the seeded mode.
//!
//! # Vocabulary
//!
//! * **seat**: a worker's record that no thread of the runtime's belongs to. A thread of the user's *takes* it when it first
//!   deals with the runtime, and gives it back when it exits. Coroutines never change their thread, so every thread has a seat
//!   of its own; in the seeded mode there is one.
//! * **driver**: the thread that has a seat, while it lets what stands on the seat run: inside a wait, a yield or a submit,
//!   on the frame of that call. It is the loop at the bottom of the seat's coroutines, as `Worker::drive` is elsewhere.
//! * **host**: the driver's own fiber, on which its code goes on afterwards.
//! * **door**: a coroutine that is always at hand, whose loop does nothing but leave to the driver.
//! * **submitter**: a fiber that has submitted and waits until what it has submitted ends or suspends.
//! * **guest**: a thread that runs a request directly, on its own stack; with a seat or without.
//!
//! # How it goes
//!
//! Coroutines do not choose. A request that parks or yields leaves by the door; a request that has ended leaves its coroutine's loop,
//! which finds no order and leaves, too. So every scheduling point is in one place, [`Worker::step`](crate::schedule::worker): the
//! driver chooses, enters a coroutine, and is back when that leaves. What the two modes differ in is the choice
//! (`worker/driven/`): the synchronous one takes what a worker would, the seeded one draws.
//!
//! In the synchronous mode what is submitted runs at once. A fiber that submits stands in a last in, first out list of
//! submitters and leaves for a coroutine with the order to run it; the list goes before all choice. A host that submits is its
//! bottom: it goes on when the list is empty.
//!
//! # When nothing can go on
//!
//! A driver blocks if somebody else may still end a wait: the timer, a thread with another seat, a guest, another runtime.
//! On a virtual clock it moves the clock to the next deadline instead. If there is nobody, the innermost wait for a request
//! is answered with its cycle ([`stuck`](crate::schedule::worker)).
//!
//! # The race to prevent
//!
//! Something is made ready by another thread between the driver's look and its sleep. The driver sleeps in its own context's
//! `block`, and a thread that leaves something on a seat *nudges* that context afterwards; a nudge that comes before the sleep
//! keeps it from sleeping.
//!
//! # Invariants
//!
//! * **D1** What stands on a seat is touched by the thread that has the seat. Taking and giving back goes through the lock of
//!   the seats, which orders one owner's doings before the next one's.
//! * **D2** A seat that is given back has no coroutine: idle ones and the door are dismantled, since their frames may have
//!   cached what belongs to the thread.
//! * **D3** The context that a seat names is there while it does: a thread gives its seats back before its fiber goes.
//! * **D4** While user code runs on the host the list of submitters is empty and no order is left.

mod seat;

pub(crate) use self::seat::{Seat, end_refused, handle_gone, put_aside};

use std::cell::RefCell;
use std::ptr;
use std::ptr::NonNull;
use std::sync::PoisonError;
use std::time::Instant;

use forebear_context::clock::{Clock, ManualClock, deadline_after};
use forebear_context::context::{Context, ForeignContext};
use forebear_context::shim::atomic::{AtomicUsize, Ordering};
use forebear_context::shim::{Arc, Mutex, MutexGuard, time};

use crate::batch::request_pool;
use crate::cancel;
use crate::foreign;
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::record::no_suspend;
use crate::shared::Shared;

/// How many threads can use a synchronous runtime at a time; more wait for a seat.
pub(crate) const SEATS: usize = 32;

/// What a runtime without threads shares.
pub(crate) struct Driven {
    /// The seed of the seeded mode.
    pub seed: Option<u64>,
    /// The clock that drivers move.
    clock: Option<ManualClock>,
    seats: Mutex<Seats>,
    guests: AtomicUsize,
    /// Claimed by threads that must not run user code where they stand; for any driver to end.
    aside: Mutex<Vec<Aside>>,
}

struct Seats {
    taken: Vec<Option<Host>>,
    /// Threads that block because no seat is free.
    waiting: Vec<Host>,
    ended: bool,
}

/// The context of a driver's thread.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Host(NonNull<Context>);

// SAFETY: it is nudged only, under the lock (D3).
unsafe impl Send for Host {}

/// A claimed request, with the runner's link.
struct Aside(NonNull<Header>);

// SAFETY: a claim and its link may be carried out by any thread.
unsafe impl Send for Aside {}

forebear_context::shim::thread_local! {
    /// The runtimes whose requests this thread runs directly, once for each.
    static GUEST_OF: RefCell<Vec<*const Driven>> = const { RefCell::new(Vec::new()) };
}

impl Driven {
    /// For the synchronous mode, or for a seed and the clock that goes with it.
    pub(crate) fn new(seeded: Option<(u64, ManualClock)>) -> Driven {
        let seats = if seeded.is_some() { 1 } else { SEATS };
        let (seed, clock) = seeded.unzip();
        Driven {
            seed,
            clock,
            seats: Mutex::new(Seats { taken: vec![None; seats], waiting: Vec::new(), ended: false }),
            guests: AtomicUsize::new(0),
            aside: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What time it is on the clock that drivers move, if there is one.
    pub(crate) fn virtual_now(&self) -> Option<Instant> {
        self.clock.as_ref().map(Clock::now)
    }

    /// How many seats there are.
    pub(crate) fn seats(&self) -> usize {
        self.lock().taken.len()
    }

    /// Takes a free seat for the thread whose context this is.
    ///
    /// # Safety
    ///
    /// D3: it is a `ForeignContext`'s, and the seat is given back before it goes.
    pub(crate) unsafe fn take(&self, context: NonNull<Context>) -> Option<usize> {
        let mut seats = self.lock();
        if seats.ended {
            return None;
        }
        let free = seats.taken.iter().position(Option::is_none)?;
        seats.taken[free] = Some(Host(context));
        Some(free)
    }

    /// Gives a seat back, and lets those know who wait for one.
    pub(crate) fn give_back(&self, index: usize) {
        let mut seats = self.lock();
        seats.taken[index] = None;
        for host in seats.waiting.iter().chain(seats.taken.iter().flatten()) {
            host.nudge();
        }
    }

    /// Whether somebody has the seat.
    pub(crate) fn is_taken(&self, index: usize) -> bool {
        self.lock().taken.get(index).is_some_and(Option::is_some)
    }

    /// Whether somebody has a seat.
    fn any_taken(&self) -> bool {
        self.lock().taken.iter().any(Option::is_some)
    }

    /// Whether another thread may do something for this runtime.
    pub(crate) fn has_others(&self, index: usize) -> bool {
        let others = self.lock().taken.iter().enumerate().any(|(at, host)| at != index && host.is_some());
        let this: *const Driven = self;
        let own = GUEST_OF.try_with(|of| of.borrow().iter().filter(|of| **of == this).count()).unwrap_or(0);
        others || self.guests.load(Ordering::Acquire) > own
    }

    /// One of them.
    pub(crate) fn take_aside(&self) -> Option<NonNull<Header>> {
        Some(self.aside.lock().unwrap_or_else(PoisonError::into_inner).pop()?.0)
    }

    /// Whether there are any.
    pub(crate) fn has_aside(&self) -> bool {
        !self.aside.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// There is something on the seat: its driver is to look again.
    pub(crate) fn nudge(&self, index: usize) {
        if let Some(host) = self.lock().taken[index] {
            host.nudge();
        }
    }

    /// There is something for any of them.
    pub(crate) fn nudge_all(&self) {
        self.lock().taken.iter().flatten().for_each(|host| host.nudge());
    }

    /// Whether this is the end: nobody has a seat, and nobody will.
    fn ends(&self) -> bool {
        let mut seats = self.lock();
        let ends = !seats.ended && seats.taken.iter().all(Option::is_none);
        seats.ended |= ends;
        ends
    }

    /// Whether nobody will have a seat any more.
    fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Blocks until a seat may be free, the wait of `context` is over, or it is nudged otherwise. As for [`ForeignContext::block`],
    /// whether it is over.
    ///
    /// # Safety
    ///
    /// As [`ForeignContext::block`].
    unsafe fn block_for_seat(&self, context: &Context, deadline: Option<Instant>) -> bool {
        let host = Host(NonNull::from(context));
        let mut seats = self.lock();
        if seats.taken.iter().all(Option::is_some) {
            seats.waiting.push(host);
            drop(seats);
            // SAFETY: by contract.
            let over = unsafe { ForeignContext::block(context, deadline) };
            self.lock().waiting.retain(|waiting| *waiting != host);
            return over;
        }
        drop(seats);
        // SAFETY: by contract. It does not block.
        !context.is_waiting() && unsafe { ForeignContext::block(context, deadline) }
    }

    /// Moves a virtual clock to the next deadline; false if there is neither.
    pub(crate) fn pass_time(&self, shared: &Shared) -> bool {
        let (Some(clock), Some(at)) = (&self.clock, shared.deadlines.next()) else { return false };
        clock.set(at);
        true
    }

    /// A deadline is there that was not before. A virtual clock is moved by the driver, which may be asleep.
    #[cold]
    pub(crate) fn deadline_came(&self) {
        if self.clock.is_some() {
            self.nudge_all();
        }
    }
}

impl Host {
    fn nudge(&self) {
        // SAFETY: D3, under the lock of the seats.
        unsafe { ForeignContext::nudge(self.0) };
    }
}

/// Counts a thread that runs a request directly.
pub(crate) struct Guest<'a>(Option<&'a Driven>);

impl<'a> Guest<'a> {
    /// For as long as it is held, on this thread.
    pub(crate) fn of(shared: &'a Shared) -> Guest<'a> {
        let guest = shared.driven.as_ref();
        if let Some(driven) = guest {
            let _ = GUEST_OF.try_with(|of| of.borrow_mut().push(driven));
            driven.guests.fetch_add(1, Ordering::AcqRel);
        }
        Guest(guest)
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        if let Some(driven) = self.0 {
            let _ = GUEST_OF.try_with(|of| of.borrow_mut().pop());
            driven.guests.fetch_sub(1, Ordering::AcqRel);
            // Who relied on it looks again.
            driven.nudge_all();
        }
    }
}

/// A foreign thread is about to deal with the request: if its runtime has no threads of its own, the thread will drive it.
///
/// # Safety
///
/// The caller has a count of the request.
pub(crate) unsafe fn meet(h: &Header) {
    // SAFETY: M3.
    if let Some(shared) = unsafe { h.arena.get().as_ref() }.map(crate::record::arena::Arena::shared)
        && shared.driven.is_some()
        && !shared.is_over()
    {
        foreign::arena_for(shared);
    }
}

/// A foreign thread enters the runtime.
pub(crate) fn enter(shared: &Arc<Shared>, fiber: &Fiber) {
    if shared.driven.is_some() && fiber.worker().is_none() {
        foreign::arena_for(shared);
        foreign::seat(shared);
    }
}

/// A root is about to be pushed, with the entry's link. True: that is done, or it has run.
///
/// # Safety
///
/// The link is given away if the answer is true.
pub(crate) unsafe fn root_comes(shared: &Arc<Shared>, header: NonNull<Header>) -> bool {
    let Some(fiber) = foreign::fiber() else { return false };
    // SAFETY: the link. The shared queue refuses it, too.
    if cancel::refused(unsafe { header.as_ref() }) {
        return false;
    }
    let seeded = shared.driven.as_ref().is_some_and(|driven| driven.seed.is_some());
    let worker = match fiber.worker() {
        Some(worker) => Some(worker).filter(|worker| ptr::eq(worker.shared(), &**shared)),
        None => foreign::seat(shared).map(|index| &shared.workers()[index]),
    };
    let Some(worker) = worker.filter(|_| !shared.is_over()) else { return false };
    if seeded {
        if !shared.push_root(header) {
            return false;
        }
        worker.pause_after_submit(fiber);
        return true;
    }
    // SAFETY: by contract.
    unsafe { worker.root_comes(fiber, header) }
}

/// Whether the thread may be used for other requests now, on top of what stands on `fiber`.
pub(crate) fn may_leave(fiber: &Fiber) -> bool {
    fiber.context().no_suspend().get() == 0 && !std::thread::panicking()
}

/// The wait of a foreign thread: drives until it is over or, as any block, perhaps earlier. Whether it is over.
///
/// # Safety
///
/// As [`ForeignContext::block`]; `fiber` is the thread's, and the context its.
pub(crate) unsafe fn wait(fiber: &Fiber, deadline: Option<Instant>) -> bool {
    let context = fiber.context();
    if context.no_suspend().get() != 0 {
        // What waits has refused before it began; see the head of `no_suspend`.
        no_suspend::refuse(fiber, "what others do in its scope or join", false);
    }
    let (seats, lacking) = foreign::seats();
    // Also after a nudge: this is called until the wait is over.
    cancel::attend(fiber);
    if !seats.is_empty() {
        loop {
            cancel::attend(fiber);
            let over = !context.is_waiting() || deadline.is_some_and(|at| at <= time::now());
            if seats[0].worker().step_late(fiber) {
                continue;
            }
            // A stack that stands still in an unwind makes this thread look as if it panicked.
            if over && !seats.iter().any(|seat| seat.worker().has_left_unwinding()) {
                break;
            }
            // A step of each, by turns.
            if seats.iter().filter(|seat| seat.worker().step(fiber)).count() > 0
                || request_pool::unstick()
                || seats.iter().any(Seat::pass_time)
            {
                continue;
            }
            if over {
                break;
            }
            if lacking.is_none() && crate::schedule::worker::settle_stuck(&seats, fiber) {
                continue;
            }
            let quiet = seats.iter().filter_map(|seat| seat.worker().trim_if_quiet()).min();
            let looks = quiet.and_then(|left| deadline_after(time::now(), left));
            // SAFETY: by contract.
            let _ = unsafe { ForeignContext::block(context, deadline.into_iter().chain(looks).min()) };
        }
    } else {
        request_pool::unstick();
        if let Some(driven) = lacking.as_ref().and_then(|shared| shared.driven.as_ref()) {
            // SAFETY: by contract.
            return unsafe { driven.block_for_seat(context, deadline) };
        }
    }
    // Also if it is settled: its waker may still hold the lock (C1).
    // SAFETY: by contract.
    let over = unsafe { ForeignContext::block(context, deadline) };
    for seat in &seats {
        if seat.shared.signals.is_stopping() {
            while seat.worker().step(fiber) {}
            if seat.worker().is_done() {
                foreign::forget_seat(&seat.shared);
                seat.give_back();
            }
        }
    }
    over
}

/// A yield of a foreign thread: lets what is ready run once. False: there is nothing.
pub(crate) fn drive_some(fiber: &Fiber) -> bool {
    if !may_leave(fiber) {
        return false;
    }
    let (seats, _) = foreign::seats();
    let mut ran = false;
    for seat in &seats {
        let some = seat.worker().ready_now() + 16;
        ran |= (0..some).take_while(|_| seat.worker().step(fiber)).count() > 0;
    }
    ran || seats.iter().any(Seat::pass_time)
}
