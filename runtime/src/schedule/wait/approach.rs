//! How a waiter comes to stand in its target's list.
//!
//! It *approaches* the target. If it may lend its stack, it runs the target here ([`super::lend`]). Else it makes sure
//! that another thread will: it submits a new target, or asks the pool that holds the target back. Then it enters the
//! list of waiters. If the target's word has changed meanwhile, it approaches once more.
//!
//! # Who submits what it then does not wait for
//!
//! A target that nobody has submitted may run as soon as its waiter has, which does not stand in its list yet. If the waiter is
//! cancelled in between, it is refused without having waited; nobody would ever ask the target, which runs for it alone. So an
//! [`Approach`] remembers that, and the refused one [gives it up](Approach::give_up), as it would have on leaving the list.

use std::ptr::{self, NonNull};

use forebear_context::context::WaitNode;
use forebear_context::error::WaitError;

use super::dependencies::run_dependencies;
use super::lend::{leave_stale, may_lend, run_here};
use crate::cancel;
use crate::deadlock::cycle;
use crate::deadlock::declared;
use crate::record::fiber::Fiber;
use crate::record::header::{AFTER, Header};
use crate::schedule::driver;
use crate::schedule::submit;
use crate::schedule::worker::OnWorker;
use crate::schedule::{admission, held_back};
use crate::shared::ending::Stage;
use crate::shared::worker::is_unwinding;
use crate::shared::{OfRuntime, Shared};
use crate::state::word::{Bits, COMPLETING, Cancel, HELD, NEW, PRIVATE, QUEUED, WAITERS};

/// Claims a target that has not started and runs it on this stack, if that may be done. True: it was tried, and the target is to be looked at
/// anew.
///
/// # Safety
///
/// As [`super::until_over`]; `fiber` is the calling one, and these were the target's bits.
#[inline(always)]
pub(crate) unsafe fn try_run(fiber: &Fiber, header: NonNull<Header>, bits: Bits) -> bool {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let is_entry = bits.life() == QUEUED || bits.life() == NEW && !h.is(AFTER);
    if !is_entry || !may_lend(fiber, h) {
        return false;
    }
    if let Some(worker) = fiber.worker() {
        worker.feed_beside(h);
    }
    let own = fiber.worker().filter(|w| bits.has(PRIVATE) && ptr::eq(h.arena.get(), w.arena()));
    if h.word().claim_by_waiter(own.is_some()).is_ok() {
        if let Some(worker) = own {
            worker.take_out(h);
        }
        if bits.life() == NEW || bits.has(PRIVATE) {
            // SAFETY: the caller's count.
            unsafe { submit::tell_family(header) };
        }
        // SAFETY: just claimed as lent; the caller's count is held.
        unsafe { run_here(fiber, header) };
        if own.is_none() && bits.life() != NEW {
            leave_stale(h);
        }
    }
    true
}

/// How near a waiter has come to its target.
pub(crate) enum Near<'a> {
    /// The target is over.
    Over,
    /// The wait is refused.
    Refused(WaitError),
    /// It is to be waited for: the target's runtime, and whether the waiter is none of its workers.
    Waits(&'a Shared, bool),
}

/// Why a node was not listed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missed {
    /// The target is over.
    Over,
    /// The pool that was asked for the target has released it: the waiter comes near again, and asks anew.
    Moved,
}

/// What a waiter has done to get its target going, before it stands in its list.
#[derive(Debug)]
pub(crate) struct Approach {
    /// The pool that has been asked for what it holds back; it is only compared.
    asked: *const held_back::Board,
    /// The target was submitted by this, for this wait.
    pub submitted: bool,
    how: How,
}

/// How a waiter submits its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum How {
    /// It is about to wait.
    #[default]
    Waits,
    /// The wait has a time-out of zero: the target is submitted, and not run by that.
    Checks,
    /// It waits by a future.
    Polls,
}

impl Default for Approach {
    fn default() -> Approach {
        Approach { asked: ptr::null(), submitted: false, how: How::Waits }
    }
}

impl Approach {
    /// For a waiter that submits its target in this way.
    pub(crate) fn by(how: How) -> Approach {
        Approach { how, ..Approach::default() }
    }

    /// Does all that can be done without a wait. Runs the target here if the waiter may lend its stack, else makes sure
    /// that another thread will run it.
    ///
    /// # Safety
    ///
    /// As [`super::until_over`]; `fiber` is the calling one.
    #[inline(always)]
    pub(crate) unsafe fn come_near<'a>(
        &mut self,
        fiber: &Fiber,
        header: NonNull<Header>,
        lends: bool,
    ) -> Near<'a> {
        // SAFETY: by contract.
        let h: &'a Header = unsafe { header.as_ref() };
        loop {
            if cancel::refuses(fiber) {
                return Near::Refused(WaitError::Cancelled);
            }
            let bits = h.word().load();
            if bits.is_terminal() || bits.life() == COMPLETING && h.life_here() != COMPLETING {
                // Or this is one of its own callbacks.
                return Near::Over;
            }
            if let Some(cycle) = cycle::of_itself(fiber, h) {
                return Near::Refused(WaitError::CircularWait(cycle));
            }
            if bits.life() == NEW && cancel::is_orphaned_by_cancel(h) {
                // Its maker, or the ancestor that has taken the maker's place, was cancelled before it was submitted: nobody runs it.
                // SAFETY: the caller's count.
                unsafe { cancel::cancel_orphan(header) };
                continue;
            }
            // SAFETY: M3: what is not over has an arena, and the caller's count keeps it.
            let shared = unsafe { (*h.arena.get()).shared() };
            if bits.life() == NEW && cancel::refused(h) {
                // SAFETY: the caller's count.
                unsafe { cancel::refuse(header) };
                continue;
            }
            let outside = fiber.worker().is_none_or(|worker| !ptr::eq(worker.shared(), shared));
            if outside {
                shared.check_process();
                if shared.ending.is(Stage::GivenUp) {
                    return Near::Refused(WaitError::ShutDown);
                }
            }
            if !fiber.has_worker() {
                // SAFETY: the caller's count.
                unsafe { driver::meet(h) };
            }
            if h.is(AFTER) && bits.life() == HELD && declared::is_waiting(h) {
                if lends {
                    // SAFETY: the caller's count.
                    match unsafe { run_dependencies(fiber, header) } {
                        Ok(true) => continue,
                        Ok(false) => {}
                        Err(cycle) => return Near::Refused(WaitError::CircularWait(cycle)),
                    }
                }
                // No pool holds it back, or holds it back any more.
                self.asked = held_back::NO_POOL;
                return Near::Waits(shared, outside);
            }
            if bits.life() == HELD && self.asked.is_null() {
                // A pool holds it back, and may let it run now.
                // SAFETY: the caller's count.
                self.asked = unsafe { admission::want(fiber, header) };
                continue;
            }
            // SAFETY: the caller's count.
            if lends && unsafe { try_run(fiber, header, bits) } {
                continue;
            }
            if bits.life() == NEW {
                self.submitted |= match self.how {
                    // SAFETY: the caller's count.
                    How::Waits => unsafe { submit::submit_for_waiter(header, None) },
                    // SAFETY: the caller's count.
                    How::Checks => unsafe { submit::submit_for_check(header) },
                    // SAFETY: the caller's count.
                    How::Polls => unsafe { submit::submit_for_poll(header) },
                };
                continue;
            }
            return Near::Waits(shared, outside);
        }
    }

    /// Puts a waiter's node into its target's list.
    ///
    /// # Safety
    ///
    /// W3: the node stays until it has left, or its wait is over; the caller has a count of the target.
    #[inline(always)]
    pub(crate) unsafe fn list(&mut self, h: &Header, node: &WaitNode) -> Result<Bits, Missed> {
        let locked = h.word().lock().map_err(|_| Missed::Over)?;
        // SAFETY: W15: the lock is ours.
        if locked.life() == NEW || locked.life() == HELD && unsafe { held_back::holder(h) } != self.asked {
            h.word().unlock(|bits| bits);
            self.asked = ptr::null();
            return Err(Missed::Moved);
        }
        // SAFETY: W3: the lock is ours; by contract.
        unsafe { h.waiters.push(node) };
        Ok(h.word().unlock(|bits| Bits(bits.0 | WAITERS)))
    }

    /// The waiter is not in the target's list, and will not enter it. If that is because the waiter is cancelled, and
    /// the target runs for it alone, the target is cancelled, too.
    ///
    /// # Safety
    ///
    /// As [`super::until_over`]; `fiber` is the calling one.
    pub(crate) unsafe fn give_up(&mut self, fiber: &Fiber, header: NonNull<Header>) {
        // SAFETY: by contract: the caller has a count of the header, and `fiber` is its own.
        let marked = unsafe { self.mark_given_up(fiber, header) };
        // SAFETY: as above; the answer is fresh.
        unsafe { cancel::carry_out(header, marked) };
    }

    /// The same for one of several that the waiter gives up: an end is left to a worker, since its captures may wait for another of them.
    ///
    /// # Safety
    ///
    /// As [`give_up`](Self::give_up).
    pub(crate) unsafe fn give_up_later(&mut self, fiber: &Fiber, header: NonNull<Header>) {
        // SAFETY: by contract: the caller has a count of the header, and `fiber` is its own.
        let marked = unsafe { self.mark_given_up(fiber, header) };
        // SAFETY: as above; the answer is fresh.
        unsafe { cancel::carry_out_later(header, marked) };
    }

    /// Asks a target that is given up. What the answer leaves to do is the caller's.
    ///
    /// # Safety
    ///
    /// As [`give_up`](Self::give_up).
    pub(crate) unsafe fn mark_given_up(&mut self, fiber: &Fiber, header: NonNull<Header>) -> Cancel {
        let submitted = std::mem::take(&mut self.submitted);
        #[cfg(mutant = "submitted_and_forgotten")]
        let submitted = false;
        // SAFETY: by contract.
        let h = unsafe { header.as_ref() };
        let asks = submitted
            && cancel::is_cancelled_here(fiber)
            && !is_unwinding(fiber)
            && cancel::asks(fiber.request(), h);
        if asks { cancel::mark_for_waiter(fiber, h) } else { Cancel::Unasked }
    }
}
