//! Where requests go that a spreading has claimed and may not end on the spot.
//!
//! | the runtime has | the claimed requests go to |
//! |---|---|
//! | workers, and the spreading runs on one of them | the loop of that worker (`schedule/worker/marks.rs`) |
//! | workers, and another thread spreads | the worker that accepts them as messages |
//! | no threads of its own | the next thread that drives the runtime |
//! | neither any more | this thread, once it is outside its wait |

use std::ptr::NonNull;

use super::spread::Spread;
use super::sweep::is_to_sweep;
use crate::cancel::message::{self, Message};
use crate::cancel::unstarted;
use crate::record::arena;
use crate::record::header::Header;
use crate::shared::driven::Driven;
use crate::shared::thread;
use crate::shared::worker::WorkerRecord;
use crate::shared::{OfRuntime, Shared};
use crate::state::attention::MESSAGE;

impl Spread<'_> {
    /// Leaves what was claimed to a worker's loop: this thread may be about to leave its stack.
    pub(super) fn put_aside(mut self) {
        match self.worker {
            Some(worker) => worker.put_aside(self.ended),
            None => {
                let shared = self.arena.shared();
                if shared.driven.is_some() {
                    put_aside_for_drivers(shared, std::mem::take(&mut self.ended));
                }
                // SAFETY: it is ours to end.
                let is_read = |header: &NonNull<Header>| unsafe {
                    shared
                        .worker_records()
                        .iter()
                        .any(|worker| message::send(worker.arena(), Message::End(*header)))
                };
                let unread: Vec<_> =
                    std::mem::take(&mut self.ended).into_iter().filter(|header| !is_read(header)).collect();
                if !unread.is_empty() {
                    // Nobody reads it any more. While a foreign thread runs requests somebody does.
                    let unread = Unread(unread);
                    thread::outside_a_wait(move || unread.end());
                }
            }
        }
        for header in self.held {
            // SAFETY: the link taken in `family`.
            unsafe { arena::release(header) };
        }
    }
}

/// Does what others have left with `worker`, whose thread this is, and answers a thread that asks what is on it. Runs no user code.
#[cold]
pub(crate) fn attend_messages(worker: &WorkerRecord) {
    if !worker.arena().owner_mailbox.is_cleared(&worker.post.attention) || is_to_sweep(worker) {
        worker.put_aside.hold_back(|| {
            let mut spread = Spread::on(worker.arena());
            spread.messages();
            spread.put_aside();
        });
    }
    if worker.put_aside.is_any() {
        // The loop has not reached them yet.
        worker.post.attention.raise(MESSAGE);
    }
    worker.answer_dumps();
}

/// Claimed requests, with the runners' links, of a runtime whose workers have gone.
struct Unread(Vec<NonNull<Header>>);

// SAFETY: a claim and its link may be carried out by any thread.
unsafe impl Send for Unread {}

impl Unread {
    /// Ends them. Together: the captures of one may wait for another.
    fn end(self) {
        // SAFETY: they were ours to end.
        unsafe { unstarted::end_all(&self.0) };
    }
}

/// These are claimed, with the runner's link, and are to be ended by a thread that drives the runtime.
pub(crate) fn put_aside_for_drivers(shared: &Shared, ended: Vec<NonNull<Header>>) {
    let Some(driven) = shared.driven.as_ref().filter(|_| !ended.is_empty()) else { return };
    driven.leave_aside(ended);
    if shared.is_over() || driven.has_ended() {
        let shared = shared.arc();
        thread::outside_a_wait(move || end_aside(&shared));
    }
}

/// Ends what others have put aside for the threads that drive the runtime, here.
pub(crate) fn end_aside(shared: &Shared) {
    let take = || shared.driven.as_ref().and_then(Driven::take_aside);
    let aside: Vec<_> = std::iter::from_fn(take).collect();
    // SAFETY: what was put aside is the taker's to end.
    unsafe { unstarted::end_all(&aside) };
}
