//! The steps of a worker that a thread of the user's drives; see [`crate::foreign::driver`].

use std::cell::{Cell, UnsafeCell};
use std::ptr::{self, NonNull};

use forebear_context::error::{CancelReason, StackError};
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::Ordering;

mod abandon;
mod seeded;
mod spare;
mod stuck;

pub(crate) use self::stuck::settle_stuck;

use self::seeded::Chance;
use super::{Next, Worker};
use crate::cancel;
use crate::foreign;
use crate::foreign::driver::{Driven, may_leave};
use crate::memory::home;
use crate::record::header::Header;
use crate::record::kin;
use crate::stack::carrier::Carrier;
use crate::stack::strand::{self, LEFT_BEHIND, Strand};

/// What the driver of a seat keeps. By the thread that has the seat (D1).
pub(crate) struct Driver {
    /// What the next loop is to run.
    order: Cell<Option<Next>>,
    /// Those that have submitted, and go on when that has ended or suspended. The last goes first.
    submitters: UnsafeCell<Vec<NonNull<Strand>>>,
    /// The carrier by which everybody leaves.
    door: Cell<*const Carrier>,
    /// Idle, for what ends when no stack is free.
    spares: UnsafeCell<Vec<NonNull<Carrier>>>,
    /// All carriers of the seat.
    carriers: UnsafeCell<Vec<NonNull<Carrier>>>,
    /// This is inside the driver: not in user code of the host's.
    driving: Cell<bool>,
    /// Counts the waits, so that the innermost can be told.
    waits: Cell<u64>,
    /// The seeded mode's.
    chance: Option<Chance>,
}

impl Driver {
    /// For one seat of the runtime.
    pub(crate) fn new(driven: &Driven) -> Driver {
        Driver {
            order: Cell::new(None),
            submitters: UnsafeCell::default(),
            door: Cell::new(ptr::null()),
            spares: UnsafeCell::default(),
            carriers: UnsafeCell::default(),
            driving: Cell::new(false),
            waits: Cell::new(0),
            chance: driven.seed.map(Chance::new),
        }
    }

    /// What the loop that asks is to run; if nothing, it leaves.
    pub(crate) fn take_order(&self) -> Option<Next> {
        self.order.take()
    }

    /// A carrier was built.
    pub(super) fn built(&self, carrier: NonNull<Carrier>) {
        self.carriers().push(carrier);
    }

    /// These are about to be dismantled.
    pub(super) fn retired(&self, gone: impl Iterator<Item = NonNull<Carrier>>) {
        let mut gone: Vec<_> = gone.collect();
        gone.sort_unstable();
        self.carriers().retain(|carrier| gone.binary_search(carrier).is_err());
    }

    /// Whether this carrier is never idle.
    pub(super) fn is_door(&self, carrier: NonNull<Carrier>) -> bool {
        ptr::eq(self.door.get(), carrier.as_ptr())
    }

    /// Whether strands stand ready that the worker's own queue does not hold.
    pub(super) fn has_ready(&self) -> bool {
        self.chance.as_ref().is_some_and(Chance::has_strands)
    }

    /// At this wait: whether the target is to be queued instead of run here.
    pub(crate) fn would_rather_queue(&self) -> bool {
        self.chance.as_ref().is_some_and(|chance| chance.one_in(3))
    }

    /// Whether the thread is inside the driver.
    pub(crate) fn is_driving(&self) -> bool {
        self.driving.get()
    }

    #[allow(clippy::mut_from_ref, reason = "D1, and no caller keeps it over another call")]
    fn carriers(&self) -> &mut Vec<NonNull<Carrier>> {
        // SAFETY: D1; every use ends before the next begins.
        unsafe { &mut *self.carriers.get() }
    }

    #[allow(clippy::mut_from_ref, reason = "as above")]
    fn spares(&self) -> &mut Vec<NonNull<Carrier>> {
        // SAFETY: as above.
        unsafe { &mut *self.spares.get() }
    }

    #[allow(clippy::mut_from_ref, reason = "as above")]
    fn submitters(&self) -> &mut Vec<NonNull<Strand>> {
        // SAFETY: as above.
        unsafe { &mut *self.submitters.get() }
    }

    fn door(&self) -> Option<NonNull<Carrier>> {
        NonNull::new(self.door.get().cast_mut())
    }

    /// Calls `with` for each strand of the seat that a request runs on.
    fn each_begun(&self, mut with: impl FnMut(&Strand)) {
        for carrier in self.carriers().iter() {
            // SAFETY: K3: carriers that are not dismantled.
            let strand = unsafe { &carrier.as_ref().strand };
            if strand.request().is_some() {
                with(strand);
            }
        }
    }
}

/// Only with a driver.
impl Worker {
    fn driver(&self) -> &Driver {
        match &self.driver {
            Some(driver) => driver,
            None => unreachable!("asked of a worker that has a thread"),
        }
    }

    /// The calling thread has taken the seat.
    pub(crate) fn sit_down(&self) -> Result<(), StackError> {
        let driver = self.driver();
        driver.spares().push(self.carrier_beyond()?);
        match self.carrier(self.shared().default_class) {
            Ok(door) => driver.door.set(door.as_ptr()),
            Err(error) => {
                self.stand_up();
                return Err(error);
            }
        }
        Ok(())
    }

    /// The calling thread is about to give the seat back: nothing of it may be left (D2).
    pub(crate) fn stand_up(&self) {
        let driver = self.driver();
        if let Some(door) = driver.door() {
            driver.door.set(ptr::null());
            self.put_idle(door);
        }
        self.retire_spares();
        self.retire(usize::MAX);
    }

    /// Whether nothing of this seat, and no root, is left to be run.
    pub(crate) fn is_done(&self) -> bool {
        let driver = self.driver();
        self.is_drained()
            && self.post.shelf.key() == NO_KEY
            && self.shared().roots.key() == NO_KEY
            && self.post.mailbox.is_empty()
            && driver.chance.as_ref().is_none_or(Chance::is_empty)
            && !self.shared().driven.as_ref().is_some_and(Driven::has_aside)
    }

    /// Whether a stack of this seat stands still in an unwind.
    pub(crate) fn has_left_unwinding(&self) -> bool {
        self.left_unwinding.get() != 0
    }

    /// About how much could go on.
    pub(crate) fn ready_now(&self) -> usize {
        self.ready().len() + self.driver().chance.as_ref().map_or(0, Chance::len)
    }

    /// The thread exits: marks what has begun here.
    fn abort_begun(&self) {
        let mut begun = Vec::new();
        self.driver().each_begun(|strand| {
            let mut at = strand.request();
            while let Some(h) = at {
                begun.push(NonNull::from(h));
                // SAFETY: what is below another on a stack is not over.
                at = unsafe { h.lender.get().as_ref() };
            }
        });
        for header in begun {
            // SAFETY: it runs on this thread, which does nothing else meanwhile.
            unsafe { cancel::abort(header, CancelReason::ThreadExited) };
        }
    }

    /// One step of the driver, whose own strand is `host`: chooses, and runs that until it ends or suspends, and all that it
    /// has submitted. False: there is nothing.
    pub(crate) fn step(&self, host: &Strand) -> bool {
        let driver = self.driver();
        if driver.driving.get() {
            return false;
        }
        driver.driving.set(true);
        let mut next = self.choose();
        // AB1: on its way since before the seat's last owner left it behind.
        // SAFETY: K3.
        while matches!(next, Some(Next::Resume(strand)) if unsafe { strand.as_ref() }.left.get() & LEFT_BEHIND != 0)
        {
            next = self.choose();
        }
        let chosen = next.is_some();
        if let Some(next) = next {
            self.carry_out(host, next);
        }
        driver.driving.set(false);
        chosen
    }

    /// Drops what the choices have left to be dropped on another stack than the driver's. False: there is nothing.
    pub(crate) fn step_late(&self, host: &Strand) -> bool {
        let driver = self.driver();
        let drops = foreign::has_late() && !driver.driving.get();
        if drops {
            driver.driving.set(true);
            self.carry_out(host, Next::Late);
            driver.driving.set(false);
        }
        drops
    }

    fn choose(&self) -> Option<Next> {
        self.settle_jobs();
        self.home().drain_returns();
        if let Some(header) = self.shared().driven.as_ref().and_then(Driven::take_aside) {
            return Some(Next::End(header));
        }
        let late = || foreign::has_late().then_some(Next::Late);
        if let Some(late) = late() {
            return Some(late);
        }
        let next = match &self.driver().chance {
            Some(chance) => self.draw(chance),
            None => self.pick(),
        };
        // What this choice has ended, too.
        let next = next.or_else(late);
        if next.is_none() {
            self.set_running(NO_KEY);
        }
        next
    }

    fn carry_out(&self, host: &Strand, next: Next) {
        let driver = self.driver();
        // Whatever runs meanwhile is not what panics.
        let unwinds = std::thread::panicking();
        self.left_unwinding.set(self.left_unwinding.get() + usize::from(unwinds));
        let mut next = Some(next);
        loop {
            match next.take() {
                Some(next) => self.carry_out_one(host, next),
                // An order that a strand has left goes first (it has left the seat for that), then who left it.
                None => match driver.submitters().pop() {
                    Some(strand) => next = Some(self.resume(strand)),
                    None => break,
                },
            }
        }
        self.left_unwinding.set(self.left_unwinding.get() - usize::from(unwinds));
    }

    fn carry_out_one(&self, host: &Strand, next: Next) {
        let carrier = match next {
            // SAFETY: a ready strand of a worker is a carrier's.
            Next::Resume(strand) => unsafe { Carrier::of_strand(strand) },
            next => {
                // The host's own stack is in the middle of a wait: nothing of the user's runs there.
                let (carrier, order) = match (self.carrier_for_loop(), next) {
                    (Ok(carrier), next) => (carrier, next),
                    (Err(_), Next::Start(header)) => (self.spare_carrier(), Next::Fail(header)),
                    (Err(_), next) => (self.spare_carrier(), next),
                };
                self.driver().order.set(Some(order));
                carrier
            }
        };
        let mut at = Some(carrier);
        while let Some(carrier) = at {
            // SAFETY: K1 to K3: this thread has the seat; it is current from here on.
            unsafe {
                strand::enter(&carrier.as_ref().strand);
                at = carrier.as_ref().context().as_ref().fiber().resume().map(|context| Carrier::of(context));
            }
        }
        // SAFETY: the thread's own strand.
        unsafe { strand::enter(host) };
    }

    /// Whom to enter when a strand that waits leaves.
    #[cold]
    pub(super) fn leave_to_driver(&self, strand: &Strand) -> Option<NonNull<Carrier>> {
        foreign::watch();
        let driver = self.driver();
        driver.waits.set(driver.waits.get() + 1);
        self.note_time();
        strand.since.store(self.tick.get(), Ordering::Relaxed);
        strand.due.set((driver.waits.get(), 0));
        driver.door()
    }

    /// Whom to enter when a strand that yields leaves.
    #[cold]
    pub(super) fn yield_to_driver(&self, strand: &Strand) -> Option<NonNull<Carrier>> {
        foreign::watch();
        match &self.driver().chance {
            Some(chance) => chance.put_yielded(NonNull::from(strand)),
            None => {
                let unstarted = self.list.key() != NO_KEY
                    || self.post.shelf.key() != NO_KEY
                    || self.shared().roots.key() != NO_KEY;
                self.ready().push_yielded(NonNull::from(strand), unstarted);
            }
        }
        self.driver().door()
    }

    /// A request was submitted on the current strand, and stands in the private list.
    ///
    /// # Safety
    ///
    /// The caller has a count of the request.
    #[cold]
    pub(crate) unsafe fn queued_here(&self, header: NonNull<Header>) {
        let Some(strand) = strand::get().filter(|strand| ptr::eq(strand.worker, self)) else { return };
        if self.driver().chance.is_some() {
            return self.pause_after_submit(strand);
        }
        if strand.request().is_none() || !may_leave(strand) {
            return;
        }
        let Ok(carrier) = self.carrier_for_loop() else { return };
        // SAFETY: by contract.
        let h = unsafe { header.as_ref() };
        if h.place.get() != crate::record::header::Place::Private {
            return self.put_idle(carrier);
        }
        self.take_out(h);
        self.note_private();
        if !self.claim_private(header) {
            return self.put_idle(carrier);
        }
        let next = self.begin(header);
        self.leave_for(strand, carrier, next);
    }

    /// A root was submitted on `strand`, on the thread that has the seat. False: it is to be queued.
    ///
    /// # Safety
    ///
    /// The entry's link is given away if the answer is true.
    pub(crate) unsafe fn root_comes(&self, strand: &Strand, header: NonNull<Header>) -> bool {
        let (driver, host) = (self.driver(), strand.worker().is_none());
        // On a carrier without a request, or inside the driver, this is a destructor's doing.
        let beside = if host { driver.driving.get() } else { strand.request().is_none() };
        if beside || !may_leave(strand) {
            return false;
        }
        let carrier = match (host, self.carrier_for_loop()) {
            (_, Err(_)) => return false,
            (true, Ok(carrier)) => {
                self.put_idle(carrier);
                None
            }
            (false, Ok(carrier)) => Some(carrier),
        };
        // SAFETY: by contract.
        if !unsafe { header.as_ref() }.word().claim_by_queue() {
            if let Some(carrier) = carrier {
                self.put_idle(carrier);
            }
            // SAFETY: the link; W4.
            unsafe { home::release(header) };
            return true;
        }
        let running = self.running.get();
        let next = self.begin(header);
        match carrier {
            Some(carrier) => self.leave_for(strand, carrier, next),
            None => {
                driver.driving.set(true);
                self.carry_out(strand, next);
                driver.driving.set(false);
            }
        }
        self.set_running(running);
        true
    }

    /// Leaves `strand` for a carrier that runs `next`, and comes back when that has ended or suspended.
    fn leave_for(&self, strand: &Strand, carrier: NonNull<Carrier>, next: Next) {
        foreign::watch();
        self.settle_jobs();
        kin::settle(strand, self.home());
        let driver = self.driver();
        driver.order.set(Some(next));
        driver.submitters().push(NonNull::from(strand));
        // SAFETY: K3; F2: on the strand's own stack.
        unsafe { strand.context().fiber().leave(Some(carrier.as_ref().context())) };
        self.set_running(strand.urgency.load(Ordering::Relaxed));
    }

    /// After a submit in the seeded mode: perhaps others go first.
    pub(crate) fn pause_after_submit(&self, strand: &Strand) {
        let driver = self.driver();
        let Some(chance) = driver.chance.as_ref().filter(|chance| may_leave(strand) && chance.one_in(4))
        else {
            return;
        };
        if strand.worker().is_none() {
            while self.step(strand) && chance.one_in(2) {}
            return;
        }
        let Some(door) = driver.door().filter(|_| strand.request().is_some()) else { return };
        foreign::watch();
        self.settle_jobs();
        kin::settle(strand, self.home());
        chance.put(NonNull::from(strand));
        // SAFETY: K3; F2: on the strand's own stack.
        unsafe { strand.context().fiber().leave(Some(door.as_ref().context())) };
    }
}
