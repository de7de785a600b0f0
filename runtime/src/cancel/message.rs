//! Messages: work for the owner of an arena, about requests that ran or were made there.
//!
//! Lists of children belong to one thread (N1). So a canceller on another thread sends a message to the owner, which carries the cancel on. A
//! worker learns of a message by its attention word, and is woken if it sleeps. A foreign thread that runs a request reads its messages before it
//! blocks. If it blocks already, it is woken, reads them, and blocks again if its wait is not settled. It reads them for the
//! last time when the request is over. A later canceller finds the arena without an owner, and carries the cancel on itself
//! ([`crate::record::children`], N1). The same holds for a worker that has left because the runtime ends: other threads may still have requests
//! whose children are listed with it. [`crate::state::owner_mailbox`] has the hand-over itself.
//!
//! # Invariants
//!
//! * **O1** A message has a link of its request, or is the only one that still knows its header. In the second case both counts are 0, and the
//!   receiver ends the header: the worker, or the sender if no thread reads the message. Until then the receiver touches only what another count protects.
//! * **O2** `runs` names the context of the thread that owns the arena, while that thread runs a request there. The owner clears it
//!   under the lock.
//! * **O3** A worker leaves when its mailbox is empty, and the mailbox takes no message from then on. The thread that closes the arena works off the
//!   messages that came before the runtime was over.

use crate::record::arena::Arena;
use crate::record::header::Header;
use crate::record::message;
use crate::shared::OfRuntime;
use crate::state::attention::MESSAGE;

/// What the owner of an arena is to do.
pub(crate) type Message = message::Message<Header>;

/// Sends a message to the owner of `arena`. Answers whether a thread will read it: a foreign thread that runs nothing there
/// will not, nor will a worker that has gone, and then what ran there is over.
///
/// # Safety
///
/// O1: the message's link is given away, or left with the caller if the answer is false. M3 for the arena.
#[must_use]
pub(crate) unsafe fn send(arena: &Arena, message: Message) -> bool {
    let shared = arena.shared().arc();
    if shared.is_over() {
        // Everything is over; there is nothing to continue with.
        return false;
    }
    if shared
        .driven
        .as_ref()
        .is_some_and(|driven| !arena.is_foreign() && !driven.is_taken(arena.worker as usize))
    {
        // Nothing runs on a seat that no thread has.
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
