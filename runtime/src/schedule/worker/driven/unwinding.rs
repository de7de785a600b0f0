//! A wait in a destructor that an unwind runs, on a seat. The head of `schedule/worker/unwinding.rs` has the rules.
//!
//! A fiber on a seat does not block the thread by itself: what wakes it nudges the driver, and on a virtual clock the driver lets time pass. So
//! a fiber that is alone on the seat leaves by the door. The driver blocks for it, and resumes it and no other.
//!
//! The driver's own code is other work, too, if it would continue meanwhile: it has submitted, or its wait is over. (What [`Runtime::run`](crate::Runtime::run)
//! submits it waits for next.) So is work on the thread's
//! other seats. For these the thread blocks no longer than for work that arrives.
//!
//! A thread that exits or ends the runtime does not block here. It waits in its own way, and gives up in time.

use std::ptr::{self, NonNull};

use forebear_context::clock::deadline_after;
use forebear_context::context::{ForeignContext, Reason};
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::time;

use super::{Next, Worker, settle_stuck};
use crate::foreign::{self, Seats};
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::schedule::admission;
use crate::schedule::worker::unwinding::{LOOK, PATIENCE};
use crate::shared::driven::{Driven, Seat};
use crate::stack::coroutine::Coroutine;
use crate::state::attention::{MESSAGE, RAISED};
use crate::time::deadlines::pass_time;

impl Worker {
    /// Whether no coroutine of the worker is in use but the calling one. The door of a seat runs nothing.
    pub(in crate::schedule::worker) fn has_one_stack(&self) -> bool {
        let doors = self.driver.as_ref().map_or(0, |driver| usize::from(driver.door().is_some()));
        self.busy_coroutines.get() <= 1 + doors
    }

    /// Whether a fiber or request that the seed may draw could continue or start.
    pub(in crate::schedule::worker) fn has_drawable(&self) -> bool {
        let Some(chance) = self.driver.as_ref().and_then(|driver| driver.chance.as_ref()) else {
            return false;
        };
        self.gather_unstarted(chance);
        chance.has_work()
    }

    /// Takes a request that the seed may draw, with its entry's link.
    pub(in crate::schedule::worker) fn take_drawable(
        &self,
        wanted: impl Fn(&Header) -> bool,
    ) -> Option<NonNull<Header>> {
        self.driver.as_ref()?.chance.as_ref()?.take_where(wanted)
    }

    /// Whether the thread that has the seat exits, or ends the runtime.
    pub(in crate::schedule::worker) fn is_given_up(&self) -> bool {
        self.driver.as_ref().is_some_and(|driver| driver.leaving.get() || driver.ending.get())
    }

    /// Whom to enter when a fiber leaves for which the driver is to block.
    pub(in crate::schedule::worker) fn leave_alone(&self, fiber: &Fiber) -> Option<NonNull<Coroutine>> {
        self.driver().unwinds.set(Some(NonNull::from(fiber)));
        self.leave_to_driver(fiber)
    }

    /// Blocks the thread, whose own fiber is `host`, until `fiber` may continue: that is next. `None`: other work is next, and `fiber` is
    /// suspended as any other.
    #[cold]
    pub(super) fn block_alone(&self, host: &Fiber, fiber: NonNull<Fiber>) -> Option<Next> {
        // SAFETY: K3: it stands in the middle of its wait.
        let waiting = unsafe { fiber.as_ref() };
        let mut since = None;
        loop {
            self.collect_mail();
            if self.post.attention.get() & (RAISED | MESSAGE) != 0 {
                self.attend(true);
            }
            if let Some(ready) = self.ready().pop(true) {
                debug_assert_eq!(ready, fiber, "nothing else has begun here");
                return Some(self.resume(ready));
            }
            let Seats { seats, others, .. } = foreign::seats();
            if waiting.context().waits_for().0 != Reason::Sleep && self.is_wanted(host, &seats) {
                let since = *since.get_or_insert_with(time::now);
                if waiting.context().unwinding().get() || since.elapsed() > PATIENCE {
                    self.leave_among_others(waiting);
                    return None;
                }
            } else {
                since = None;
            }
            if admission::unstick()
                || seats.iter().any(|seat| pass_time(&seat.shared, None))
                || settle_stuck(&seats, host, others)
            {
                continue;
            }
            if let Some(until) = deadline_after(time::now(), LOOK) {
                // SAFETY: the thread's own fiber is foreign, and this is its thread.
                unsafe { ForeignContext::block_for_nudge(host.context(), until) };
            }
        }
    }

    /// Whether there is work that this thread alone would do, and does not do while it blocks.
    fn is_wanted(&self, host: &Fiber, seats: &[Seat]) -> bool {
        let has_work = |seat: &Seat| {
            let worker = seat.worker();
            // What is ready here, or comes, is the fiber that is waited for.
            let resumes =
                !ptr::eq(worker, self) && (!worker.post.mailbox.is_empty() || worker.ready().key() != NO_KEY);
            resumes || worker.has_drawable() || worker.has_unstarted()
        };
        !host.context().is_waiting() && !self.driver().awaits.get()
            || self.shared().driven.as_ref().is_some_and(Driven::has_aside)
            || seats.iter().any(has_work)
    }
}
