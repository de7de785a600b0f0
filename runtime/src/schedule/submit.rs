//! Submitting: where a request that was only described is queued, and how its parent's list of children learns of it.
//!
//! # Where a request goes
//!
//! | the request | goes to | by |
//! |---|---|---|
//! | has a parent, was made on this worker, and has none of the flags below | the private queue of this worker | `submit_to`; `submit_locally` while its state is local to the worker |
//! | has no parent, was made elsewhere, or has the flag `OWN_STACK`, `ROOT` or `HINTED` | the injector of its runtime | `enter_roots` |
//! | has the flag `AFTER` | no queue before its edges are closed | [`dependents::begin`] |
//! | is made by a cancelled request | no queue: it is cancelled | [`cancel::cancel_orphan`] |
//! | belongs to a runtime whose injector is closed | no queue: this thread ends it with `Shutdown` | `push_or_end` |
//!
//! The last two are *refused*. A thread that submits several requests passes its [`Marked`] with each of them
//! (`refused`). So it ends the refused ones when all are submitted, since the captures of one may wait for another.
//! Without a `Marked`, a refused request ends at once.
//!
//! # Who owns which count
//!
//! The exchange that submits makes the *entry's link*. It goes with the entry to the queue, and to the thread that takes the entry out. As soon as
//! the entry is visible, another thread may run the request and end it. So the submitter has a count of its own, a handle or a link, for as long
//! as it touches the header. A push into the injector also needs the runtime's record afterwards. So the caller holds a count of the record.
//!
//! # Who learns of it
//!
//! * The owner of the parent's list of children, if the request was made on another arena than the one that the caller owns: by a message, see `tell_family`.
//!   A child in its maker's private queue needs no entry in that list ([`crate::record::children`]).
//! * Hungry workers, a driver, and a worker that is being raided, by the attention word of the worker that queues: see `entered`. A request that a waiter
//!   submits for itself is not shown to hungry workers.
//!
//! # The races
//!
//! *A submit against a cancel of the parent.* On the parent's own worker the two do not run at the same time. The fast
//! way reads no message and no mark, and a later cancel finds the request in the private queue. On another thread the
//! parent's owner links the child, and then reads whether the parent is cancelled (`cancel/spread.rs`).
//!
//! *A push against the end of the runtime.* The push and the closing are exchanges of one word (E2, E3). If the closing is first, the entry is still the
//! pusher's, which claims the request and ends it.
//!
//! *A message to an owner that goes.* The send is refused. From then on the list of children has a lock, and this thread links the child under it (N1).

use std::ptr::{self, NonNull};

use forebear_context::error::CancelReason;
use forebear_context::shim::Arc;

use crate::cancel::message::{self, Message};
use crate::cancel::unstarted;
use crate::cancel::{self, Marked};
use crate::deadlock::urgency;
use crate::record::children;
use crate::record::fiber::Fiber;
use crate::record::header::{AFTER, DETACHED, HINTED, Header, HeaderPlace, OWN_STACK, ROOT};
use crate::schedule::dependents;
use crate::schedule::driver;
use crate::schedule::worker::{OnWorker, Worker};
use crate::shared::worker::OnRecord;
use crate::shared::{OfRuntime, Shared};
use crate::state::attention::{DRIVEN, HUNGRY, MARKS, MESSAGE, RAIDED, SHUT};
use crate::state::word::{Cancel, LocalStep, NEW, PRIVATE, SUBMITTED};

/// Submits a request, unless that has been done: to the private queue of its maker's worker if called there, else to the injector.
///
/// # Safety
///
/// The caller holds a handle or a link.
#[inline(always)]
pub(crate) unsafe fn submit(header: NonNull<Header>, marks: u64) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    // The commonest case: by its maker, whom no cancel concerns: one that comes later finds it in the list.
    if let Some(fiber) = crate::record::fiber::get()
        && let Some(worker) = fiber.worker()
        && let Some(top) = fiber.request()
        && ptr::eq(h.lineage.parent(), &top.lineage)
        && worker.post.attention.get() & (MESSAGE | MARKS) == 0
    {
        // A local request is no root, and what the request on top has made as one is of this arena (H1).
        // SAFETY: hence.
        if marks == SUBMITTED && h.bare.is_local() && unsafe { submit_locally(worker, h) } {
            return;
        }
        if goes_to_own_list(worker, h) {
            _ = submit_to(worker, h, marks, None);
            return;
        }
    }
    // SAFETY: by contract.
    _ = unsafe { submit_slowly(header, marks, None) };
}

/// Whether the request, submitted on this worker, may stand in its private queue.
#[inline(always)]
fn goes_to_own_list(worker: &Worker, h: &Header) -> bool {
    // Roots never go into a private queue: it could hide them behind a request that spins for them. What wants a stack of
    // its own is nothing for its maker's waits.
    // Nor has what is after others any entry yet. What has a hint stands where all of its like do. An arm is not submitted.
    !h.is(OWN_STACK | ROOT | AFTER | HINTED) && ptr::eq(h.arena.get(), worker.arena())
}

/// Submits a request for a caller that is about to wait for it. As [`submit`], but publishes nothing for hungry
/// workers. The waiter will suspend, and its worker then knows whether it has anything better to do than the target
/// ([`pick`](Worker::pick)). False: the request was submitted before, or is cancelled.
///
/// # Safety
///
/// As [`submit`].
pub(crate) unsafe fn submit_for_waiter(header: NonNull<Header>, refused: Option<&mut Marked>) -> bool {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    match own_worker(h) {
        Some(worker) if worker.post.attention.get() & (MESSAGE | MARKS | DRIVEN | SHUT) == 0 => {
            let submitted = h.word().submit(PRIVATE);
            if submitted {
                list_privately(worker, h);
            }
            submitted
        }
        // SAFETY: by contract.
        _ => unsafe { submit_slowly(header, 0, refused) },
    }
}

/// The same for a waiter by a future: it polls and does not wait, so what it submits is shown to the hungry, as by [`submit`]. False: it was
/// submitted before, or is cancelled.
///
/// # Safety
///
/// As [`submit`].
#[cold]
pub(crate) unsafe fn submit_for_poll(header: NonNull<Header>) -> bool {
    // SAFETY: by contract.
    unsafe { submit_slowly(header, 0, None) }
}

/// The same for who only looks: in a runtime without worker threads that does not have the request run, and does not release the
/// thread.
///
/// # Safety
///
/// As [`submit_for_waiter`].
#[cold]
pub(crate) unsafe fn submit_for_check(header: NonNull<Header>) -> bool {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    // SAFETY: M3; the record may go with the header, so a count is held over the push.
    let shared = unsafe { (*h.arena.get()).shared() }.arc();
    if shared.driven.is_none() || own_worker(h).is_some() || h.is(AFTER) {
        // SAFETY: by contract.
        return unsafe { submit_for_waiter(header, None) };
    }
    let submitted = h.word().submit(0);
    if submitted {
        // SAFETY: by contract.
        unsafe { enter_family(header) };
        // SAFETY: the entry's link is this function's, and the push gives it away.
        unsafe { push_or_end(&shared, header, None) };
    }
    submitted
}

/// Submits what is a local request of this worker's. False: it has been published meanwhile.
///
/// # Safety
///
/// Its arena is the worker's.
#[inline(always)]
unsafe fn submit_locally(worker: &Worker, h: &Header) -> bool {
    let stage = h.local.stage();
    if stage.is_new() {
        // SAFETY: by contract.
        if !unsafe { h.advance_local(worker.arena(), stage, LocalStep::Listed) } {
            return false;
        }
        enter_list(worker, h, None);
    }
    true
}

#[inline]
fn submit_to(worker: &Worker, h: &Header, marks: u64, refused: Option<&mut Marked>) -> bool {
    // SAFETY: its arena is this worker's.
    if marks == SUBMITTED && h.bare.is_local() && unsafe { submit_locally(worker, h) } {
        return true;
    }
    let submitted = h.word().submit(marks | PRIVATE);
    if submitted {
        enter_list(worker, h, refused);
    }
    submitted
}

#[inline(always)]
fn list_privately(worker: &Worker, h: &Header) {
    h.place.set(HeaderPlace::Private);
    worker.list.insert(h);
    worker.note_inserted(h.lineage.key());
}

/// Puts a request that has just been queued into the worker's private queue. The entry's link goes with it; the caller has
/// another count.
#[inline(always)]
fn enter_list(worker: &Worker, h: &Header, refused: Option<&mut Marked>) {
    list_privately(worker, h);
    if worker.post.attention.get() & (HUNGRY | DRIVEN | SHUT | RAIDED) != 0 {
        entered(worker, h, refused);
    }
}

/// Somebody is to hear of it.
#[cold]
#[inline(never)]
fn entered(worker: &Worker, h: &Header, refused: Option<&mut Marked>) {
    let attention = worker.post.attention.get();
    if attention & RAIDED != 0 {
        worker.settle_raid();
    }
    // SAFETY: the caller has a count of the request.
    if attention & SHUT != 0 && unsafe { cancel::refuse_spawned(worker, NonNull::from(h), refused) } {
        return;
    }
    if attention & HUNGRY != 0 {
        worker.feed();
    }
    if attention & DRIVEN != 0 {
        // SAFETY: the caller has a count of the request.
        unsafe { worker.queued_here(NonNull::from(h)) };
    }
}

/// The same with a dependent that has just become ready on the thread of the worker that made it. Nobody is left for it.
pub(crate) fn list_ready(worker: &Worker, h: &Header) {
    list_privately(worker, h);
    if worker.post.attention.get() & RAIDED != 0 {
        worker.settle_raid();
    }
    worker.feed_if_hungry();
}

/// Puts a request that has just been queued in the injector, and sees to it that its family knows of it.
///
/// # Safety
///
/// The entry's link is the caller's, and goes with it; the caller has another count.
unsafe fn enter_roots(header: NonNull<Header>, refused: Option<&mut Marked>) {
    // SAFETY: by contract; the caller's other count keeps the header.
    unsafe { enter_family(header) };
    // SAFETY: the entry's link by contract, which the push gives away.
    unsafe { push_root(header, refused) };
}

/// Sees to it that the family of a request knows of it.
///
/// # Safety
///
/// The caller has a count of the request.
pub(crate) unsafe fn enter_family(header: NonNull<Header>) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    if cancel::own_arena(crate::record::fiber::get()) == h.arena.get() {
        children::link(h);
    } else {
        // SAFETY: by contract.
        unsafe { tell_family(header) };
    }
}

/// The worker whose private queue a request goes to that is queued here.
fn own_worker(h: &Header) -> Option<&'static Worker> {
    let worker = crate::record::fiber::get().and_then(Fiber::worker);
    worker.filter(|worker| goes_to_own_list(worker, h) && !h.lineage.parent().is_null())
}

/// The slow path of a submission: of an orphan of a cancel, of a dependent, or from a thread that is no worker of the runtime.
///
/// # Safety
///
/// As [`submit`].
#[cold]
#[inline(never)]
unsafe fn submit_slowly(header: NonNull<Header>, marks: u64, refused: Option<&mut Marked>) -> bool {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    if h.word().load().life() == NEW && cancel::is_orphaned_by_cancel(h) {
        // SAFETY: by contract.
        unsafe {
            match refused {
                Some(refused) => refused.cancel_orphan(header),
                None => cancel::cancel_orphan(header),
            }
        }
        return false;
    }
    match own_worker(h) {
        Some(worker) => submit_to(worker, h, marks, refused),
        // SAFETY: by contract; the flag.
        None if h.is(AFTER) => unsafe { dependents::begin(header, marks, refused) },
        None => {
            let submitted = h.word().submit(marks);
            if submitted {
                // SAFETY: by contract; the entry's link is ours.
                unsafe { enter_roots(header, refused) };
            }
            submitted
        }
    }
}

/// Submits a request that a pool has held back; once, by who admits it, with the pool's link. What is refused is added to `refused`, which the caller
/// carries out when nothing is left that it is to admit.
///
/// # Safety
///
/// The pool's link is the caller's, and goes with this; the caller has another count.
#[cold]
pub(crate) unsafe fn admit(header: NonNull<Header>, refused: &mut Marked) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    if let Some(answer) = cancel::mark_if_refused(h) {
        // SAFETY: by contract.
        unsafe { refused.add(header, answer) };
    }
    if h.is(AFTER) {
        // SAFETY: by contract; the flag.
        return unsafe { dependents::begin_admitted(header, refused) };
    }
    let own = own_worker(h);
    if !h.word().admit(if own.is_some() { PRIVATE } else { 0 }) {
        // Cancelled meanwhile.
        h.word().release_link();
        return;
    }
    match own {
        Some(worker) => enter_list(worker, h, Some(refused)),
        // SAFETY: by contract; the entry's link is ours.
        None => unsafe { enter_roots(header, Some(refused)) },
    }
    let (key, here) = (h.urgency(), crate::record::fiber::get().and_then(Fiber::worker_record));
    if key < h.lineage.key() {
        // Those who waited meanwhile raised it, which nobody could see.
        // SAFETY: U2: the caller's count.
        unsafe { urgency::follow(here, header, key) };
    }
}

/// Puts a queued request in the injector; if its runtime is over it ends here and now.
///
/// # Safety
///
/// The entry's link is the caller's.
pub(crate) unsafe fn push_root(header: NonNull<Header>, refused: Option<&mut Marked>) {
    // SAFETY: the link.
    let h = unsafe { header.as_ref() };
    // SAFETY: M3; the record may go with the header, so a count is held over the push.
    let shared = unsafe { (*h.arena.get()).shared() }.arc();
    // SAFETY: by contract.
    unsafe { push_root_of(&shared, header, refused) };
}

/// The same, of this runtime, which the caller sees to being kept meanwhile.
///
/// # Safety
///
/// As [`push_root`].
#[inline]
pub(crate) unsafe fn push_root_of(
    shared: &Arc<Shared>,
    header: NonNull<Header>,
    refused: Option<&mut Marked>,
) {
    if crate::record::fiber::get().is_none_or(|fiber| !fiber.has_worker()) {
        shared.check_process();
    }
    if shared.driven.is_some() {
        // SAFETY: the link.
        if unsafe { driver::root_comes(shared, header) } {
            return;
        }
    }
    // SAFETY: by contract.
    unsafe { push_or_end(shared, header, refused) };
}

/// The same, and nobody runs it meanwhile.
///
/// # Safety
///
/// As [`push_root`].
#[inline]
unsafe fn push_or_end(shared: &Arc<Shared>, header: NonNull<Header>, refused: Option<&mut Marked>) {
    // SAFETY: the link.
    let h = unsafe { header.as_ref() };
    if !shared.push_root(header) {
        if h.word().claim_by_queue() {
            h.side_or_new().reason.set(Some(CancelReason::Shutdown));
            // SAFETY: W1. Its callable may borrow, hence is not put off.
            unsafe {
                match refused {
                    Some(refused) => refused.add(header, Cancel::Ended),
                    None => unstarted::end_claimed(header),
                }
            }
        } else if h.word().release_link() {
            // SAFETY: W4.
            unsafe { crate::record::arena::end(header) };
        }
    }
}

/// A request made elsewhere is claimed or submitted here, for the first time: the owner of its family learns of it.
///
/// # Safety
///
/// The caller has a count of the request.
pub(crate) unsafe fn tell_family(header: NonNull<Header>) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    if h.lineage.parent().is_null() || h.is(DETACHED) {
        return;
    }
    // SAFETY: M3.
    let Some(arena) = (unsafe { h.arena.get().as_ref() }) else { return };
    if cancel::own_arena(crate::record::fiber::get()) == h.arena.get() {
        return;
    }
    if !arena.is_unattended() {
        h.word().add_link();
        // SAFETY: the link just made.
        if unsafe { message::send(arena, Message::NewChild(header)) } {
            return;
        }
        // SAFETY: as above.
        unsafe { crate::record::arena::release(header) };
    }
    if arena.is_unattended() {
        // Its owner may be gone; but the list has a lock.
        children::link(h);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
