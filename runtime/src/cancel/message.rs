//! Messages: what is left for the owner of an arena to do about requests that ran, or were made, there.
//!
//! Families belong to one thread (N1), so a cancel that comes from elsewhere is carried on by a message to the thread that
//! has them. A worker learns of one by its attention word, and is woken if it sleeps. A foreign thread that runs a request looks
//! before it blocks, and is nudged if it blocks already: it looks, and blocks again if its wait goes on. It looks for the
//! last time when the request is over; a later canceller finds nobody, and goes on from the request itself
//! ([`crate::record::children`], N1). So it is with a worker that has gone because the runtime ends: others may still have requests
//! whose families are its. The hand-over itself is in [`crate::state::owner_mailbox`].
//!
//! # Invariants
//!
//! * **O1** A message has a link of its request, or is the only one that still knows its header: then both counts are 0, and its
//!   receiver, the worker or (if no thread reads it) its maker, ends the header. It touches nothing of the header before by the count of another.
//! * **O2** `runs` names the context of the thread that owns the arena, while that runs a request there. Its owner takes it
//!   back under the lock.
//! * **O3** A worker goes with no message left, and from then on none is taken; what came before the runtime was over and is
//!   found when it is closed is worked off by the closing thread.

use crate::record::arena::Arena;
use crate::record::header::Header;
use crate::record::message;
use crate::shared::OfRuntime;
use crate::state::attention::MESSAGE;

/// What the owner of an arena is to do.
pub(crate) type Message = message::Message<Header>;

/// Sends a message with the owner of `arena`. Answers whether somebody will read it: a foreign thread that runs nothing there
/// will not, nor will a worker that has gone, and then what ran there is over.
///
/// # Safety
///
/// O1: the message's link is given away, or left with the caller if the answer is false. M3 for the arena.
#[must_use]
pub(crate) unsafe fn send(arena: &Arena, message: Message) -> bool {
    let shared = arena.shared().arc();
    if shared.is_over() {
        // Everything is over; there is nothing to go on to.
        return false;
    }
    if shared
        .driven
        .as_ref()
        .is_some_and(|driven| !arena.is_foreign() && !driven.is_taken(arena.worker as usize))
    {
        // Nothing runs on a seat that nobody has.
        return false;
    }
    if arena.owner_mailbox.send(message, arena.is_foreign()).is_err() {
        return false;
    }
    if let Some(worker) = shared.worker_records().get(arena.worker as usize) {
        worker.post.attention.insist(MESSAGE);
        shared.wake(worker.index);
    }
    true
}
