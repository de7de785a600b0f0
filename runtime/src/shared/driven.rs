//! What the threads share that drive a runtime without workers: its seats, its guests, and what is put aside for them. How they drive it, and
//! invariants D1 to D4, are in the head of `schedule/driver.rs`.
//!
//! # Who may touch what
//!
//! | field | who, when |
//! |---|---|
//! | `seed`, `clock` | written when the record is made |
//! | `seats` | any thread, under the lock. The context in `taken` or `waiting` is valid while it stands there (D3), so it is nudged under the same lock |
//! | `guests` | a thread that runs a request directly counts itself, by [`Guest`]; a driver reads it before it answers that nothing can continue |
//! | `aside` | any thread adds claimed requests, under the lock; a driver takes them out and ends them |
//!
//! # The race
//!
//! *A driver that is about to block against the last thread that could continue.* The driver looks whether there is another thread, and then blocks. A thread that
//! gives its seat back, or is a guest no longer, changes that first and nudges the drivers afterwards. A nudge before the sleep keeps the driver from sleeping.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::PoisonError;
use std::time::Instant;

use forebear_context::clock::{Clock, ManualClock};
use forebear_context::context::{Context, ForeignContext};
use forebear_context::shim::atomic::{AtomicUsize, Ordering};
use forebear_context::shim::{Arc, Mutex, MutexGuard};

use crate::record::header::Header;
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

    /// The clock that drivers move, if there is one.
    pub(crate) fn virtual_clock(&self) -> Option<&ManualClock> {
        self.clock.as_ref()
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

    /// Gives a seat back, and wakes the threads that wait for one.
    pub(crate) fn give_back(&self, index: usize) {
        let mut seats = self.lock();
        seats.taken[index] = None;
        for host in seats.waiting.iter().chain(seats.taken.iter().flatten()) {
            host.nudge();
        }
    }

    /// Whether a thread has the seat.
    pub(crate) fn is_taken(&self, index: usize) -> bool {
        self.lock().taken.get(index).is_some_and(Option::is_some)
    }

    /// Whether somebody has a seat.
    pub(crate) fn any_taken(&self) -> bool {
        self.lock().taken.iter().any(Option::is_some)
    }

    /// Whether another thread may do something for this runtime.
    pub(crate) fn has_others(&self, index: usize) -> bool {
        let others = self.lock().taken.iter().enumerate().any(|(at, host)| at != index && host.is_some());
        let this: *const Driven = self;
        let own = GUEST_OF.try_with(|of| of.borrow().iter().filter(|of| **of == this).count()).unwrap_or(0);
        others || self.guests.load(Ordering::Acquire) > own
    }

    /// These are claimed, with the runner's link, and are to be ended by a driver.
    pub(crate) fn leave_aside(&self, ended: Vec<NonNull<Header>>) {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner).extend(ended.into_iter().map(Aside));
        self.nudge_all();
    }

    /// One of them.
    pub(crate) fn take_aside(&self) -> Option<NonNull<Header>> {
        Some(self.aside.lock().unwrap_or_else(PoisonError::into_inner).pop()?.0)
    }

    /// Whether there are any.
    pub(crate) fn has_aside(&self) -> bool {
        !self.aside.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// There is work on the seat: notifies its driver.
    pub(crate) fn nudge(&self, index: usize) {
        if let Some(host) = self.lock().taken[index] {
            host.nudge();
        }
    }

    /// There is something for any of them.
    pub(crate) fn nudge_all(&self) {
        self.lock().taken.iter().flatten().for_each(|host| host.nudge());
    }

    /// Whether this is the end: no thread has a seat, and none will take one.
    pub(crate) fn ends(&self) -> bool {
        let mut seats = self.lock();
        let ends = !seats.ended && seats.taken.iter().all(Option::is_none);
        seats.ended |= ends;
        ends
    }

    /// Whether nobody will have a seat any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Blocks until a seat may be free, the wait of `context` is over, or it is nudged otherwise. As for [`ForeignContext::block_until_look`],
    /// whether it is over.
    ///
    /// # Safety
    ///
    /// As [`ForeignContext::block`].
    pub(crate) unsafe fn block_for_seat(
        &self,
        context: &Context,
        deadline: Option<Instant>,
        look: Option<Instant>,
    ) -> bool {
        let host = Host(NonNull::from(context));
        let mut seats = self.lock();
        if seats.taken.iter().all(Option::is_some) {
            seats.waiting.push(host);
            drop(seats);
            // SAFETY: by contract.
            let over = unsafe { ForeignContext::block_until_look(context, deadline, look) };
            self.lock().waiting.retain(|waiting| *waiting != host);
            return over;
        }
        drop(seats);
        // SAFETY: by contract. It does not block.
        !context.is_waiting() && unsafe { ForeignContext::block(context, deadline) }
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

/// A thread's seat in a runtime.
#[derive(Clone)]
pub(crate) struct Seat {
    pub shared: Arc<Shared>,
    pub index: usize,
}
