//! The thread that has a seat exits: what has begun on the seat is cancelled, and continues here until it has ended.
//!
//! The runtime is called before the first of the thread-locals is destroyed that a frame on the seat may use (`foreign/exit.rs`). So the frames may continue,
//! and they have to: a frame that was left inside `LocalKey::with` may have lent a reference to a thread-local on, to the job of a scope or to a
//! thread of a `std::thread::scope`. Only the frame itself waits for the borrower.
//!
//! # What the driver chooses
//!
//! * What has begun here, and destructors that were put aside.
//! * What was spawned here since, by frames that a shield keeps from the cancel, and stands in the private queue.
//! * Not what has not begun when the exit comes, nor roots. These go to the next thread that drives.
//!
//! # When it does not end
//!
//! A frame may wait for another thread in a way that no cancel ends: for a lock, or below a shield, where it may also yield for ever. The thread waits for
//! it, and says so after a second. Only the main thread does not wait longer, since its exit is that of the process: what is left is abandoned
//! (`abandon.rs`).

use std::ptr::NonNull;
use std::time::Instant;

use forebear_context::error::CancelReason;
use forebear_context::shim::{mutant, time};

use crate::cancel;
use crate::record::fiber::Fiber;
use crate::record::report;
use crate::schedule::driver::block_until_nudged;
use crate::schedule::worker::{Next, Worker, settle_stuck};
use crate::shared::driven::Seat;
use crate::shared::late_end::first_word;
use crate::stack::is_main_thread;
use crate::state::attention::MESSAGE;

/// So many are named.
const NAMED: usize = 8;

impl Seat {
    /// The calling thread exits, on its own stack, whose fiber is `fiber`: drives these seats, which are all it has, until what has begun there has ended.
    pub(crate) fn end_begun(seats: &[Seat], fiber: &Fiber) {
        let usable = |seat: &&Seat| !seat.shared.is_inherited() && !seat.worker().driver().driving.get();
        let seats: Vec<Seat> = seats.iter().filter(usable).cloned().collect();
        if fiber.context().no_suspend().get() != 0 || seats.iter().all(|seat| seat.worker().is_left()) {
            return;
        }
        seats.iter().for_each(|seat| seat.worker().begins_to_leave());
        let mut word = first_word();
        loop {
            // Something may always be ready.
            let is_late = |word: Option<Instant>| word.is_some_and(|at| at <= time::now());
            while !is_late(word) && seats.iter().filter(|seat| seat.worker().step(fiber)).count() > 0 {}
            if seats.iter().all(|seat| seat.worker().is_left()) {
                break;
            }
            // What has begun since.
            mutant!(
                "begun_since_is_not_marked",
                (),
                seats.iter().for_each(|seat| seat.worker().abort_begun())
            );
            // A wait that nothing can end may lead from one runtime to another.
            if !is_late(word) {
                let stirred = seats.iter().any(|seat| seat.worker().is_stirred() || seat.stirs(fiber, None));
                if stirred || settle_stuck(&seats, fiber, false) {
                    continue;
                }
                // SAFETY: the thread's own fiber, which is not in a wait.
                unsafe { block_until_nudged(fiber, word) };
            }
            if is_late(word) {
                // Its exit is that of the process.
                if is_main_thread() {
                    break;
                }
                word = None;
                seats.iter().for_each(|seat| seat.worker().say_what_is_left());
            }
        }
        seats.iter().for_each(|seat| seat.worker().driver().leaving.set(false));
    }
}

impl Worker {
    /// The thread exits. What has not begun goes to the next that drives; what has begun is marked.
    fn begins_to_leave(&self) {
        self.driver().leaving.set(true);
        self.abort_begun();
        self.put_back_drawn();
        self.collect_mail();
        self.give_away_unbegun();
    }

    /// The thread exits: marks what has begun here.
    pub(super) fn abort_begun(&self) {
        let mut begun = Vec::new();
        self.driver().each_begun(|fiber| {
            let mut at = fiber.request();
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

    /// Whether no frame is suspended here.
    fn is_left(&self) -> bool {
        self.suspended().is_empty() && !self.put_aside.is_any()
    }

    /// Whether there is something for [`pick_begun`](Self::pick_begun).
    fn is_stirred(&self) -> bool {
        !self.post.mailbox.is_empty() || self.post.attention.get() & MESSAGE != 0
    }

    /// What is next while the thread leaves.
    pub(super) fn pick_begun(&self) -> Option<Next> {
        self.collect_mail();
        self.attend(false);
        if let Some(end) = self.next_put_aside() {
            return Some(end);
        }
        if let Some(fiber) = self.ready().pop(true).or_else(|| self.driver().pop_drawn()) {
            return Some(self.resume(fiber));
        }
        loop {
            let header = self.pop_listed()?;
            if self.claim_private(header) {
                return Some(self.begin(header));
            }
        }
    }

    /// Says for what the exit waits.
    #[cold]
    fn say_what_is_left(&self) {
        let mut named = Vec::new();
        let suspended = self.suspended();
        for coroutine in suspended.iter().take(NAMED) {
            // SAFETY: K3: it is not dismantled.
            if let Some(request) = unsafe { coroutine.as_ref() }.fiber.request() {
                named.push(format!("'{}'", request.name()));
            }
        }
        if suspended.len() > named.len() {
            named.push(format!("and {} more", suspended.len() - named.len()));
        }
        if suspended.is_empty() {
            return;
        }
        let thread = std::thread::current(); // not modelled: its name
        report::warn(
            &self.shared().hooks,
            &format!(
                "thread '{}' exits, and waits for what it has begun of runtime '{}': {}. They are cancelled. \
                 Wait for these requests on the thread before it exits",
                thread.name().unwrap_or("unnamed"),
                self.shared().name,
                named.join(", ")
            ),
        );
    }
}
