//! The thread that has a seat exits from a frame on it, which never continues: what becomes of what stands on the seat. An exit from the thread's own frame has driven all
//! that had begun to its end before (`leave.rs`); the main thread may have given that up.
//!
//! Thread-locals of the thread are destroyed, and a frame that was suspended inside `LocalKey::with` holds a reference to one. So no frame that
//! had begun continues, not even to unwind. When this is called, and how often, `foreign/exit.rs` says.
//!
//! # What becomes of whom
//!
//! * A request that has begun is *abandoned*: its stack stays as it is, for good. Its wait is over for all who might end it, so that
//!   none of them gives it a permit, a notification or a lock.
//! * It ends as cancelled, with `ThreadExited`, which its waiters get; its callbacks are called here.
//! * But an abandoned request that borrows from another stack never ends. It is a job of a scope, a member of a pool,
//!   the second arm of a join, or the request of `Runtime::run`. Its frames may have passed the borrow on, for example
//!   to threads of a `thread::scope`, and would have waited for them. So a request that lent it a stack waits for ever,
//!   and a warning names what it waits for.
//! * What has not begun goes to the runtime's shared queue, for the next driver. What was to be ended goes aside, for the same.
//!
//! # Invariants
//!
//! * **AB1** An abandoned fiber is never entered again. It has left all queues of the seat; if somebody had settled its wait
//!   before and sends it only now, the driver finds [`LEFT_BEHIND`] and lets it lie.
//! * **AB2** All memory that its frames may refer to stays: its request's cell by the runner's count, which is never given back; the
//!   stacks and the record by [`Shared::keep_stacks`](crate::shared::Shared::keep_stacks).

use std::ptr::{self, NonNull};

use forebear_context::context::{self, Cause};
use forebear_context::lineage::NO_KEY;

use crate::cancel::put_aside_for_drivers;
use crate::record::fiber::{LEFT_BEHIND, LEFT_PARKED};
use crate::record::header::{ARM, BORROWS, DELIVERED, Header};
use crate::record::report;
use crate::schedule::driver;
use crate::schedule::finish;
use crate::schedule::worker::Worker;
use crate::shared::parked;
use crate::stack::coroutine::Coroutine;
use crate::state::word::{CANCELLED, COMPLETING};

/// So many are named.
const NAMED: usize = 8;

impl Worker {
    /// The thread exits. On it, on the host's own fiber; not inside the driver, unless that never continues.
    pub(crate) fn abandon_seat(&self) {
        let driver = self.driver();
        // The exit may come from a request that the thread drives: neither the driver nor that request continues.
        driver.driving.set(false);
        driver.submitters().clear();
        let _ = driver.take_order();
        if let Some(own) = context::current() {
            // SAFETY: the current context is valid.
            unsafe { own.as_ref() }.forsake();
        }
        self.abort_begun();
        self.collect_mail();
        while self.ready().pop(true).is_some() {}
        if let Some(chance) = &driver.chance {
            self.put_back_drawn();
            chance.forget_fibers();
        }
        let left = self.leave_coroutines_behind();
        self.give_away_unbegun();
        self.drop_late();
        self.warn_now();
        if !left.is_empty() {
            self.end_abandoned(&left);
        }
    }

    /// The coroutines of the seat on which something is suspended. On the host.
    pub(super) fn suspended(&self) -> Vec<NonNull<Coroutine>> {
        let driver = self.driver();
        // SAFETY: V1.
        let idle = unsafe { &*self.idle.get() }.sorted();
        let stays = |coroutine: &NonNull<Coroutine>| {
            idle.binary_search(coroutine).is_ok()
                || driver.is_door(*coroutine)
                || self.is_idle_spare(*coroutine)
        };
        driver.coroutines().iter().filter(|coroutine| !stays(coroutine)).copied().collect()
    }

    /// Takes every coroutine in use out of the seat, and keeps its memory. Answers them.
    fn leave_coroutines_behind(&self) -> Vec<NonNull<Coroutine>> {
        let driver = self.driver();
        let mut left = self.suspended();
        left.sort_unstable();
        driver.coroutines().retain(|coroutine| left.binary_search(coroutine).is_err());
        self.busy_coroutines.set(self.busy_coroutines.get() - left.len());
        self.clear_left_unwinding();
        for coroutine in &left {
            // SAFETY: K3: it is not dismantled, and never will be.
            let fiber = unsafe { &coroutine.as_ref().fiber };
            let context = fiber.context();
            context.settle(context.ticket(), Cause::Cancelled);
            if fiber.left.get() & LEFT_PARKED != 0 {
                parked::leave(context);
            }
            fiber.left.set(LEFT_BEHIND);
        }
        if !left.is_empty() {
            // AB2.
            self.shared().keep_stacks(left.len());
        }
        left
    }

    /// Unstarted requests are left to the next driver.
    pub(super) fn give_away_unbegun(&self) {
        let aside = self.put_aside.take_all();
        self.publish_private(u32::MAX, ptr::null());
        let mut refused = Vec::new();
        while let Some(header) = self.post.shared_queue.pop(NO_KEY) {
            if !self.shared().push_unbegun(header) {
                refused.push(header);
            }
        }
        put_aside_for_drivers(self.shared(), aside);
        // SAFETY: E1: the entries' links.
        unsafe { driver::end_refused(refused) };
    }

    /// Ends those that borrow from nobody, and says what is left behind.
    fn end_abandoned(&self, left: &[NonNull<Coroutine>]) {
        let mut frames = Vec::new();
        for coroutine in left {
            // SAFETY: K3, as above.
            let mut at = unsafe { coroutine.as_ref() }.fiber.request();
            while let Some(h) = at {
                frames.push(NonNull::from(h));
                // SAFETY: what is below another on a stack is not over.
                at = unsafe { h.lender.get().as_ref() };
            }
        }
        let mut named = Vec::new();
        for header in &frames {
            // SAFETY: AB2: the runner's count is never given back.
            let h = unsafe { header.as_ref() };
            let borrows = !h.scope.get().is_null() || h.is(ARM) || h.is(BORROWS);
            if named.len() < NAMED {
                named.push(format!(
                    "'{}'{}",
                    h.name(),
                    if borrows { " (the requests that lent it their stacks wait for ever)" } else { "" }
                ));
            }
        }
        if frames.len() > named.len() {
            named.push(format!("and {} more", frames.len() - named.len()));
        }
        let thread = std::thread::current(); // not modelled: its name
        report::warn(
            &self.shared().hooks,
            &format!(
                "thread '{}' exits and leaves {} suspended stacks behind, which stay in memory; on them: {}. \
                 Wait for these requests on the thread before it exits",
                thread.name().unwrap_or("unnamed"),
                left.len(),
                named.join(", ")
            ),
        );
        for header in frames {
            // SAFETY: on the thread it began on.
            unsafe { self.end_one_abandoned(header) };
        }
    }

    /// Ends a request whose stack will not continue.
    ///
    /// # Safety
    ///
    /// The request stands on an abandoned stack of this seat.
    unsafe fn end_one_abandoned(&self, header: NonNull<Header>) {
        // SAFETY: AB2.
        let h = unsafe { header.as_ref() };
        if !h.scope.get().is_null() || h.is(ARM) || h.is(BORROWS) {
            return;
        }
        let bits = h.word().load();
        if bits.is_terminal() || bits.life() == COMPLETING {
            // The rest is up to the frames that call its callbacks.
            return;
        }
        if h.take_state(DELIVERED) {
            self.count_marked(-1);
        }
        // SAFETY: W1: its claimer's frames never go on (AB1), and this is their thread. The runner's count stays.
        unsafe { finish::conclude(header, CANCELLED, true, false) };
    }
}
