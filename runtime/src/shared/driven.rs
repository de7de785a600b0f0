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
use std::time::{Duration, Instant};

use forebear_context::clock::{Clock, ManualClock, deadline_after};
use forebear_context::context::{Context, ForeignContext};
use forebear_context::error::StackError;
use forebear_context::shim::atomic::{AtomicUsize, Ordering};
use forebear_context::shim::{Arc, Mutex, MutexGuard, time};

use crate::record::header::Header;
use crate::shared::Shared;
use crate::shared::late_end::QUIET;

/// How many threads can use a synchronous runtime at a time; more wait for a seat.
pub(crate) const SEATS: usize = 32;

/// How long a thread sleeps that could have no stack for a seat. Nobody tells it that there is memory again, so it tries again then.
const RETRY: Duration = Duration::from_millis(10);

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
    /// Threads that block because they have no seat.
    waiting: Vec<Host>,
    shortage: Option<Shortage>,
    ended: bool,
}

/// The last thread that took a seat could have no stack for it.
struct Shortage {
    since: Instant,
    error: StackError,
    is_told: bool,
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
            seats: Mutex::new(Seats {
                taken: vec![None; seats],
                waiting: Vec::new(),
                shortage: None,
                ended: false,
            }),
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

    /// The thread that has taken this seat has the stacks for it, or could have none and gives it back.
    pub(crate) fn sat_down(&self, index: usize, answer: &Result<(), StackError>) {
        let mut seats = self.lock();
        let Err(error) = answer else {
            seats.shortage = None;
            return;
        };
        seats.taken[index] = None;
        // It counted among those who may do something.
        seats.taken.iter().flatten().for_each(Host::nudge);
        if seats.shortage.is_none() {
            // Who found all seats taken meanwhile did not learn of the shortage. Who has learnt of it is not nudged: two such threads would wake each
            // other without end.
            seats.waiting.iter().for_each(Host::nudge);
            seats.shortage = Some(Shortage { since: time::now(), error: error.clone(), is_told: false });
        }
    }

    /// Why no seat can be had, once in each shortage, when that has lasted.
    pub(crate) fn lasting_shortage(&self) -> Option<StackError> {
        let mut seats = self.lock();
        let shortage = seats.shortage.as_mut()?;
        let lasts = !shortage.is_told && time::now().saturating_duration_since(shortage.since) >= QUIET;
        shortage.is_told |= lasts;
        lasts.then(|| shortage.error.clone())
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

    /// Blocks until a seat may be had, the wait of `context` is over, or it is nudged otherwise. As for [`ForeignContext::block_until_look`],
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
        let again = match seats.shortage {
            Some(_) => deadline_after(time::now(), RETRY),
            None if seats.taken.iter().all(Option::is_some) => None,
            // One came free since. The wait may be over all the same, also by its deadline.
            None => Some(time::now()),
        };
        seats.waiting.push(host);
        drop(seats);
        let look = look.into_iter().chain(again).min();
        // SAFETY: by contract.
        let over = unsafe { ForeignContext::block_until_look(context, deadline, look) };
        self.lock().waiting.retain(|waiting| *waiting != host);
        over
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
