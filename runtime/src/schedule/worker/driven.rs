//! The steps of a worker that a thread of the user's drives. The head of [`crate::schedule::driver`] has the vocabulary, and invariants D1 to D4.
//!
//! All fields of [`Driver`] are touched by the thread that has the seat (D1), on any of the seat's stacks. The references that its getters give end before the
//! next call, so no two of them are there at once. Coroutines of the seat are entered in one place, `carry_out_one`, which returns when no
//! coroutine names another to be entered. `driving` is set meanwhile: a step inside a step does nothing.

use std::cell::{Cell, UnsafeCell};
use std::ptr::{self, NonNull};
use std::time::Instant;

use forebear_context::error::StackError;
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::Ordering;
use forebear_context::shim::mutant;

mod abandon;
mod leave;
mod seeded;
mod spare;
mod stuck;
mod unwinding;

pub(crate) use self::stuck::settle_stuck;

use self::seeded::Chance;
use super::{Next, Worker};
use crate::foreign;
use crate::record::arena;
use crate::record::children;
use crate::record::fiber::{self, Fiber, LEFT_BEHIND};
use crate::record::header::{BORROWS, Header};
use crate::schedule::driver::may_leave;
use crate::shared::driven::Driven;
use crate::shared::thread;
use crate::stack::coroutine::Coroutine;

/// What the driver of a seat keeps. By the thread that has the seat (D1).
pub(crate) struct Driver {
    /// What the next loop is to run.
    order: Cell<Option<Next>>,
    /// Those that have submitted, and continue when that has ended or suspended. The last goes first.
    submitters: UnsafeCell<Vec<NonNull<Fiber>>>,
    /// The coroutine by which everybody leaves.
    door: Cell<*const Coroutine>,
    /// Idle, for what ends when no stack is free.
    spares: UnsafeCell<Vec<NonNull<Coroutine>>>,
    /// All coroutines of the seat.
    coroutines: UnsafeCell<Vec<NonNull<Coroutine>>>,
    /// This is inside the driver: not in user code of the host's.
    driving: Cell<bool>,
    /// The thread exits, and drives what has begun here to its end. It begins nothing else.
    leaving: Cell<bool>,
    /// The runtime ends on this thread, which gives up what does not end in time.
    ending: Cell<bool>,
    /// Meanwhile no virtual time passes beyond this.
    until: Cell<Option<Instant>>,
    /// The host has submitted what it waits for next.
    awaits: Cell<bool>,
    /// A fiber that waits in an unwind, alone on the seat: the thread blocks until it may continue (`driven/unwinding.rs`).
    unwinds: Cell<Option<NonNull<Fiber>>>,
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
            coroutines: UnsafeCell::default(),
            driving: Cell::new(false),
            leaving: Cell::new(false),
            ending: Cell::new(false),
            until: Cell::new(None),
            awaits: Cell::new(false),
            unwinds: Cell::new(None),
            waits: Cell::new(0),
            chance: driven.seed.map(Chance::new),
        }
    }

    /// What the loop that asks is to run; if nothing, it leaves.
    pub(crate) fn take_order(&self) -> Option<Next> {
        self.order.take()
    }

    /// A coroutine was built.
    pub(super) fn built(&self, coroutine: NonNull<Coroutine>) {
        self.coroutines().push(coroutine);
    }

    /// These are about to be dismantled.
    pub(super) fn retired(&self, gone: impl Iterator<Item = NonNull<Coroutine>>) {
        let mut gone: Vec<_> = gone.collect();
        gone.sort_unstable();
        self.coroutines().retain(|coroutine| gone.binary_search(coroutine).is_err());
    }

    /// Whether this coroutine is never idle.
    pub(super) fn is_door(&self, coroutine: NonNull<Coroutine>) -> bool {
        ptr::eq(self.door.get(), coroutine.as_ptr())
    }

    /// Whether fibers stand ready that the worker's own queue does not hold.
    pub(super) fn has_ready(&self) -> bool {
        self.chance.as_ref().is_some_and(Chance::has_fibers)
    }

    /// At this wait: whether the target is to be queued instead of run here.
    pub(crate) fn would_rather_queue(&self) -> bool {
        self.chance.as_ref().is_some_and(|chance| chance.one_in(3))
    }

    /// Whether the thread is inside the driver.
    pub(crate) fn is_driving(&self) -> bool {
        self.driving.get()
    }

    /// A fiber that stands ready and that the worker's own queue does not hold.
    fn pop_drawn(&self) -> Option<NonNull<Fiber>> {
        self.chance.as_ref().and_then(Chance::draw_fiber)
    }

    #[allow(clippy::mut_from_ref, reason = "D1, and no caller keeps it over another call")]
    fn coroutines(&self) -> &mut Vec<NonNull<Coroutine>> {
        // SAFETY: D1; every use ends before the next begins.
        unsafe { &mut *self.coroutines.get() }
    }

    #[allow(clippy::mut_from_ref, reason = "as above")]
    fn spares(&self) -> &mut Vec<NonNull<Coroutine>> {
        // SAFETY: as above.
        unsafe { &mut *self.spares.get() }
    }

    #[allow(clippy::mut_from_ref, reason = "as above")]
    fn submitters(&self) -> &mut Vec<NonNull<Fiber>> {
        // SAFETY: as above.
        unsafe { &mut *self.submitters.get() }
    }

    fn door(&self) -> Option<NonNull<Coroutine>> {
        NonNull::new(self.door.get().cast_mut())
    }

    /// Calls `with` for each fiber of the seat that a request runs on.
    fn each_begun(&self, mut with: impl FnMut(&Fiber)) {
        for coroutine in self.coroutines().iter() {
            // SAFETY: K3: coroutines that are not dismantled.
            let fiber = unsafe { &coroutine.as_ref().fiber };
            if fiber.request().is_some() {
                with(fiber);
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
        driver.spares().push(self.coroutine_beyond()?);
        match self.coroutine(self.shared().default_class) {
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

    /// Whether nothing of this seat, no root, and nothing that is after a completion, is left to be run.
    pub(crate) fn is_done(&self) -> bool {
        let driver = self.driver();
        self.is_drained()
            && self.post.shared_queue.key() == NO_KEY
            && self.shared().injector.key() == NO_KEY
            && self.post.mailbox.is_empty()
            && driver.chance.as_ref().is_none_or(Chance::is_empty)
            && !self.shared().driven.as_ref().is_some_and(Driven::has_aside)
            && !self.shared().awaits_completions()
    }

    /// How many stacks of this seat have a request.
    pub(crate) fn begun(&self) -> usize {
        let mut begun = 0;
        self.driver().each_begun(|_| begun += 1);
        begun
    }

    /// About how much could continue.
    pub(crate) fn ready_now(&self) -> usize {
        self.ready().len() + self.driver().chance.as_ref().map_or(0, Chance::len)
    }

    /// One step of the driver, whose own fiber is `host`: chooses, and runs that until it ends or suspends, and all that it
    /// has submitted. False: there is nothing.
    pub(crate) fn step(&self, host: &Fiber) -> bool {
        let driver = self.driver();
        if driver.driving.get() {
            return false;
        }
        driver.driving.set(true);
        let mut next = self.choose();
        // AB1: on its way since before the seat's last owner left it behind.
        // SAFETY: K3.
        while matches!(next, Some(Next::Resume(fiber)) if unsafe { fiber.as_ref() }.left.get() & LEFT_BEHIND != 0)
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

    /// As [`step`](Self::step), by a thread that ends the runtime: a wait in an unwind does not block it, since it looks at the time itself. No virtual time
    /// passes beyond `until`.
    pub(crate) fn step_at_end(&self, host: &Fiber, until: Option<Instant>) -> bool {
        let driver = self.driver();
        let was = (driver.ending.replace(true), driver.until.replace(until));
        let chosen = self.step(host);
        driver.ending.set(was.0);
        driver.until.set(was.1);
        chosen
    }

    /// Drops what the choices have left to be dropped on another stack than the driver's. False: there is nothing.
    pub(crate) fn step_late(&self, host: &Fiber) -> bool {
        let driver = self.driver();
        let drops = !driver.driving.get() && self.takes_over_late();
        if drops {
            driver.driving.set(true);
            self.carry_out(host, Next::Late);
            driver.driving.set(false);
        }
        drops
    }

    /// Takes over what the thread's own stack has kept ([`thread::keep_for_later`]): the loop that drops it looks there. It cannot look in the
    /// thread's locals, since a fiber on a thread of its own has others. Whether there is anything to drop.
    fn takes_over_late(&self) -> bool {
        std::iter::from_fn(thread::take_late).for_each(|side| self.drop_later(side));
        self.put_aside.has_late()
    }

    fn choose(&self) -> Option<Next> {
        self.settle_jobs();
        self.arena().drain_returns();
        if let Some(header) = self.shared().driven.as_ref().and_then(Driven::take_aside) {
            return Some(Next::End(header));
        }
        let late = || self.takes_over_late().then_some(Next::Late);
        if let Some(late) = late() {
            return Some(late);
        }
        let next = match &self.driver().chance {
            _ if self.driver().leaving.get() => mutant!("exit_begins_roots", self.pick(), self.pick_begun()),
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

    fn carry_out(&self, host: &Fiber, next: Next) {
        // What runs may end the process. Then a destructor of a thread-local must not let the host continue.
        foreign::watch();
        let driver = self.driver();
        // Whatever runs meanwhile is not what panics.
        let unwinds = std::thread::panicking();
        self.add_left_unwinding(usize::from(unwinds));
        let mut next = Some(next);
        loop {
            match next.take() {
                Some(chosen) => {
                    self.carry_out_one(host, chosen);
                    next = driver.unwinds.take().and_then(|fiber| self.block_alone(host, fiber));
                }
                // An order that a fiber has left goes first (it has left the seat for that), then who left it.
                None => match driver.submitters().pop() {
                    Some(fiber) => next = Some(self.resume(fiber)),
                    None => break,
                },
            }
        }
        self.sub_left_unwinding(usize::from(unwinds));
    }

    fn carry_out_one(&self, host: &Fiber, next: Next) {
        let coroutine = match next {
            // SAFETY: a ready fiber of a worker is a coroutine's.
            Next::Resume(fiber) => unsafe { Coroutine::of_fiber(fiber) },
            next => {
                // The host's own stack is in the middle of a wait: nothing of the user's runs there.
                let (coroutine, order) = match (self.coroutine_for_loop(), next) {
                    (Ok(coroutine), next) => (coroutine, next),
                    (Err(_), Next::Start(header)) => (self.spare_coroutine(), Next::Fail(header)),
                    (Err(_), next) => (self.spare_coroutine(), next),
                };
                self.driver().order.set(Some(order));
                coroutine
            }
        };
        let mut at = Some(coroutine);
        while let Some(coroutine) = at {
            // SAFETY: K1 to K3: this thread has the seat; it is current from here on.
            unsafe {
                fiber::enter(&coroutine.as_ref().fiber);
                at = coroutine
                    .as_ref()
                    .context()
                    .as_ref()
                    .switch()
                    .resume()
                    .map(|context| Coroutine::of(context));
            }
        }
        // SAFETY: the thread's own fiber.
        unsafe { fiber::enter(host) };
    }

    /// Whom to enter when a fiber that waits leaves.
    #[cold]
    pub(super) fn leave_to_driver(&self, fiber: &Fiber) -> Option<NonNull<Coroutine>> {
        foreign::watch();
        let driver = self.driver();
        driver.waits.set(driver.waits.get() + 1);
        self.note_time();
        fiber.since.store(self.tick.get(), Ordering::Relaxed);
        fiber.due.set((driver.waits.get(), 0));
        driver.door()
    }

    /// Whom to enter when a fiber that yields leaves.
    #[cold]
    pub(super) fn yield_to_driver(&self, fiber: &Fiber) -> Option<NonNull<Coroutine>> {
        foreign::watch();
        match &self.driver().chance {
            Some(chance) => chance.put_yielded(NonNull::from(fiber)),
            None => {
                let unstarted = self.list.key() != NO_KEY
                    || self.post.shared_queue.key() != NO_KEY
                    || self.shared().injector.key() != NO_KEY;
                self.ready().push_yielded(NonNull::from(fiber), unstarted);
            }
        }
        self.driver().door()
    }

    /// A request was submitted on the current fiber, and stands in the private queue.
    ///
    /// # Safety
    ///
    /// The caller has a count of the request.
    #[cold]
    pub(crate) unsafe fn queued_here(&self, header: NonNull<Header>) {
        let Some(fiber) = fiber::get().filter(|fiber| self.owns(fiber)) else { return };
        if self.driver().chance.is_some() {
            return self.pause_after_submit(fiber);
        }
        if fiber.request().is_none() || !may_leave(fiber) {
            return;
        }
        let Ok(coroutine) = self.coroutine_for_loop() else { return };
        // SAFETY: by contract.
        let h = unsafe { header.as_ref() };
        if h.place.get() != crate::record::header::HeaderPlace::Private {
            return self.put_idle(coroutine);
        }
        self.take_out(h);
        self.note_private();
        if !self.claim_private(header) {
            return self.put_idle(coroutine);
        }
        let next = self.begin(header);
        self.leave_for(fiber, coroutine, next);
    }

    /// A root was submitted on `fiber`, on the thread that has the seat. False: it is to be queued.
    ///
    /// # Safety
    ///
    /// The entry's link is given away if the answer is true.
    pub(crate) unsafe fn root_comes(&self, fiber: &Fiber, header: NonNull<Header>) -> bool {
        let (driver, host) = (self.driver(), !fiber.has_worker());
        // On a coroutine without a request, or inside the driver, this is a destructor's doing.
        let beside = if host { driver.driving.get() } else { fiber.request().is_none() };
        if beside || driver.leaving.get() || !may_leave(fiber) {
            return false;
        }
        let coroutine = match (host, self.coroutine_for_loop()) {
            (_, Err(_)) => return false,
            (true, Ok(coroutine)) => {
                self.put_idle(coroutine);
                None
            }
            (false, Ok(coroutine)) => Some(coroutine),
        };
        // SAFETY: by contract.
        if !unsafe { header.as_ref() }.word().claim_by_queue() {
            if let Some(coroutine) = coroutine {
                self.put_idle(coroutine);
            }
            // SAFETY: the link; W4.
            unsafe { arena::release(header) };
            return true;
        }
        let running = self.running();
        // SAFETY: claimed, with the entry's link for the runner's.
        let awaited = unsafe { header.as_ref() }.is(BORROWS);
        let next = self.begin(header);
        match coroutine {
            Some(coroutine) => self.leave_for(fiber, coroutine, next),
            None => {
                driver.driving.set(true);
                driver.awaits.set(awaited);
                self.carry_out(fiber, next);
                driver.awaits.set(false);
                driver.driving.set(false);
            }
        }
        self.set_running(running);
        true
    }

    /// Leaves `fiber` for a coroutine that runs `next`, and comes back when that has ended or suspended.
    fn leave_for(&self, fiber: &Fiber, coroutine: NonNull<Coroutine>, next: Next) {
        foreign::watch();
        self.settle_jobs();
        children::settle(fiber, self.arena());
        let driver = self.driver();
        driver.order.set(Some(next));
        driver.submitters().push(NonNull::from(fiber));
        // SAFETY: K3; F2: on the fiber's own stack.
        unsafe { fiber.context().switch().leave(Some(coroutine.as_ref().context())) };
        self.set_running(fiber.urgency.load(Ordering::Relaxed));
    }

    /// After the submit of a root in the seeded mode: perhaps others go first. `awaited`: the submitter waits for it next.
    pub(crate) fn pause_after_root(&self, fiber: &Fiber, awaited: bool) {
        let was = self.driver().awaits.replace(awaited && !fiber.has_worker());
        self.pause_after_submit(fiber);
        self.driver().awaits.set(was);
    }

    /// After a submit in the seeded mode: perhaps others go first.
    pub(crate) fn pause_after_submit(&self, fiber: &Fiber) {
        let driver = self.driver();
        let Some(chance) = driver.chance.as_ref().filter(|chance| may_leave(fiber) && chance.one_in(4))
        else {
            return;
        };
        if !fiber.has_worker() {
            while self.step(fiber) && chance.one_in(2) {}
            return;
        }
        let Some(door) = driver.door().filter(|_| fiber.request().is_some()) else { return };
        foreign::watch();
        self.settle_jobs();
        children::settle(fiber, self.arena());
        chance.put(NonNull::from(fiber));
        // SAFETY: K3; F2: on the fiber's own stack.
        unsafe { fiber.context().switch().leave(Some(door.as_ref().context())) };
    }
}
