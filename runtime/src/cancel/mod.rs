//! Cancellation: which requests a cancel reaches, which it spares, and how a mark becomes an end.
//!
//! # Steps
//!
//! 1. *Mark.* [`cancel`], which honours demand, or [`abort`], which does not, sets a *mark* in the request's word. One exchange both marks and
//!    claims: an unstarted request then belongs to the canceller, which *ends* it.
//! 2. *Deliver.* If the request is running, its own thread *delivers* the mark. A pending wait returns `Cancelled` at once. The request that runs on
//!    a lent stack is asked to cancel too. Children that are made from now on start out cancelled. If a shielded region holds the mark back, its end delivers it,
//!    and only the arms of joins that the region does not shelter are told at once ([`shield`]).
//! 3. *Spread.* That thread then asks the request's children, as `cancel` does, in a loop. It delivers the marks of those that started on the same
//!    thread in the same loop. For the others it sends messages to their threads ([`crate::cancel::message`]).
//! 4. *Leave.* A cancelled waiter, as it leaves its wait, asks its target to cancel ([`crate::schedule::wait`]). It also asks a request that it has
//!    submitted and had not yet begun to wait for.
//!
//! # Demand
//!
//! A request is spared while it has *demand*: a waiter that is a foreign thread, or a request that is not cancelled or is in a shielded region.
//! A waiter does not count if it descends from the target, or only watches. A set or a future wants until it is dropped, whichever request has it; what `wait_all` has
//! registered wants what its caller wants ([`crate::state::listener`]). A request that lends its stack to the target waits too. The target remembers a
//! cancel that was vetoed; when the last waiter that counts leaves, the request is cancelled.
//!
//! # Where children are found
//!
//! The worker of a request finds its children. Those in its private queue are found from the back, mostly side by side
//! ([`last_below`](crate::record::private_queue::PrivateQueue::last_below)). The others stand in the list of children ([`crate::record::children`]), or run on the current stack, which
//! is first settled into the lists. A request that is over passes the cancel on to its children. A request that was made and not
//! submitted is asked when it is submitted ([`is_orphaned_by_cancel`]).
//!
//! # What runs where
//!
//! A worker may receive a cancel while it leaves a stack, when no user code may run. So it puts aside the requests that it claims while it
//! spreads. Its loop ends them later: it drops the callable, runs the callbacks, and makes the word terminal.

use std::ptr::{self, NonNull};

use forebear_context::error::CancelReason;
use forebear_context::shim::atomic::Ordering;

use self::message::Message;
use crate::record::arena::{self, Arena};
use crate::record::fiber::{self, Fiber};
use crate::record::header::{ARM, Header, REGION};
use crate::shared::OfRuntime;
use crate::shared::thread;
use crate::shared::worker::OnRecord;
use crate::stack::prefetch;
use crate::state::word::{Cancel, INHERITED, NEW};

mod ancestors;
mod aside;
mod demand;
mod leaving;
pub(crate) mod message;
mod reach;
mod refusal;
mod scope;
pub(crate) mod shield;
mod spread;
mod sweep;
pub(crate) mod unstarted;

use self::ancestors::reason_for_children;
pub(crate) use self::ancestors::{is_orphaned_by_cancel, reason_of_ancestor};
pub(crate) use self::aside::{attend_messages, end_aside, put_aside_for_drivers};
use self::demand::{demand, list_demand, wants};
pub(crate) use self::leaving::{asks, forget_edge, leave, leave_declared, mark_for_waiter, withdraw};
pub(crate) use self::reach::{ends_with, is_told_of};
pub(crate) use self::refusal::{
    concerns, concerns_worker, is_cancelled, is_cancelled_by_messages, is_cancelled_here, is_outlasted,
    read_messages, refuses, refuses_here,
};
use self::spread::Spread;
pub(crate) use self::sweep::{
    Unstarted, abort_dependents, abort_unstarted, cancel_spawned, is_in_shut, mark_if_refused, refuse,
    refuse_later, refuse_spawned, refuse_stolen, refused, take_unstarted,
};
pub(crate) use self::unstarted::Marked;

/// The result of a cancel.
///
/// ```
/// use forebear::{CancelReason, Cancellation, Request};
///
/// let never = Request::new(|| 7);
/// assert_eq!(never.cancel(), Cancellation::Marked);
/// assert_eq!(never.abort(CancelReason::Aborted), Cancellation::AlreadyDone);
/// ```
#[doc(alias = "CancellationToken")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cancellation {
    /// The request is cancelled: it ends as cancelled.
    Marked,
    /// A request that is not cancelled, or a thread such as `main`, waits for it. It is spared, and cancelled when the last such waiter
    /// leaves. [`abort`](crate::Request::abort) spares no request.
    Vetoed,
    /// The request was over, or its callbacks were running.
    AlreadyDone,
}

/// Cancels the request, unless it has demand.
///
/// # Safety
///
/// The caller has a count of the request.
pub(crate) unsafe fn cancel(header: NonNull<Header>) -> Cancellation {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let answer = h.word().cancel(|| demand(h));
    // SAFETY: by contract, and by the answer.
    unsafe { carry_out(header, answer) }
}

/// Cancels the request, whatever demand it has.
///
/// # Safety
///
/// As [`cancel`].
pub(crate) unsafe fn abort(header: NonNull<Header>, reason: CancelReason) -> Cancellation {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    // Before the lock is taken: no allocation under it.
    let side = h.side_or_new();
    let answer = h.word().abort(|| side.reason.set(Some(reason)));
    // SAFETY: by contract, and by the answer.
    unsafe { carry_out(header, answer) }
}

/// Carries out what a transition of the word has left to its caller.
///
/// # Safety
///
/// `answer` is the answer of a transition that the caller has just made; the caller has a count of the request.
pub(crate) unsafe fn carry_out(header: NonNull<Header>, answer: Cancel) -> Cancellation {
    match answer {
        Cancel::Ended => {
            // SAFETY: claimed by the caller, with the runner's link. What may borrow is not put off.
            unsafe {
                if unstarted::may_borrow(header.as_ref()) {
                    unstarted::end_claimed(header);
                } else {
                    unstarted::end_unstarted(header);
                }
            }
            Cancellation::Marked
        }
        Cancel::Marked | Cancel::MarkedShielded => {
            // SAFETY: the caller has a count of the request, for both calls.
            unsafe {
                deliver(header);
                deliver_to_own_arm(header);
            }
            Cancellation::Marked
        }
        Cancel::AlreadyMarked => Cancellation::Marked,
        Cancel::Vetoed => Cancellation::Vetoed,
        Cancel::TooLate | Cancel::Unasked => Cancellation::AlreadyDone,
    }
}

/// The same where no user code may run, or where user code could wait for what the caller does next: a worker ends the request.
///
/// # Safety
///
/// As [`carry_out`].
pub(crate) unsafe fn carry_out_later(header: NonNull<Header>, answer: Cancel) {
    // SAFETY: by contract: an unstarted request was claimed with the runner's link, and of any other the caller has a count.
    unsafe {
        match answer {
            Cancel::Ended => leave_end(header),
            answer => _ = carry_out(header, answer),
        }
    }
}

/// If the caller is an arm of the request, delivers the mark to the arm as well. So children that the arm makes from now on start out cancelled, although
/// the worker of the request has not read the message yet.
///
/// # Safety
///
/// As [`deliver`].
unsafe fn deliver_to_own_arm(header: NonNull<Header>) {
    let top = fiber::get().and_then(Fiber::request);
    if let Some(arm) = top.filter(|top| top.is(ARM) && ptr::eq(top.identity(), header.as_ptr())) {
        // SAFETY: the request on top of the calling stack is not over.
        unsafe { deliver(NonNull::from(arm)) };
    }
}

/// A request's own deadline has passed: aborts the request. If it is over, the cancel goes on to the children that it has left, as a
/// cancel of the request would have. For any thread. Runs no user code: a worker ends what this claims.
///
/// # Safety
///
/// The caller has a count of the request.
#[cold]
pub(crate) unsafe fn limit_comes(header: NonNull<Header>) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let Some(due) = h.due() else { return };
    let side = h.side_or_new();
    match due.fire(h.word(), || side.reason.set(Some(CancelReason::Deadline))) {
        Cancel::Ended => {
            // SAFETY: claimed here, with the runner's link.
            unsafe { leave_end(header) }
        }
        // SAFETY: by contract.
        Cancel::Marked | Cancel::MarkedShielded => unsafe { deliver(header) },
        Cancel::TooLate if !h.ran_on.load(Ordering::Relaxed).is_null() => {
            // SAFETY: by contract.
            unsafe { deliver(header) }
        }
        Cancel::TooLate | Cancel::AlreadyMarked | Cancel::Vetoed | Cancel::Unasked => {}
    }
}

/// Leaves the end of a request to a worker, since it may run user code: see [`unstarted::end_all`].
///
/// # Safety
///
/// As there.
pub(crate) unsafe fn leave_end(header: NonNull<Header>) {
    // SAFETY: by contract.
    unsafe { leave_ends(vec![header]) };
}

/// The same with several of one runtime. If the runtime has no worker any more, they end together.
///
/// # Safety
///
/// As there, for each.
unsafe fn leave_ends(headers: Vec<NonNull<Header>>) {
    let Some(first) = headers.first() else { return };
    // SAFETY: W1: the caller has claimed the request, so the header is there; M3: so is its arena.
    let Some(arena) = (unsafe { first.as_ref().arena.get().as_ref() }) else { return };
    let here = fiber::get();
    let own = ptr::eq(own_arena(here), arena) && here.is_some_and(Fiber::has_worker);
    let mut spread = if own { Spread::on(arena) } else { Spread::beside(arena) };
    spread.ended = headers;
    spread.put_aside();
}

/// The same with several of any runtimes.
///
/// # Safety
///
/// As there, for each.
pub(crate) unsafe fn leave_all_ends(mut headers: Vec<NonNull<Header>>) {
    let runtime = |header: NonNull<Header>| {
        // SAFETY: W1: the caller has claimed it, so it is there.
        let arena = unsafe { header.as_ref() }.arena.get();
        // SAFETY: M3.
        ptr::from_ref(unsafe { &*arena }.shared())
    };
    while let Some(first) = headers.first() {
        let of = runtime(*first);
        let (these, others) = headers.into_iter().partition(|header| ptr::eq(runtime(*header), of));
        headers = others;
        // SAFETY: by contract; all are of one runtime.
        unsafe { leave_ends(these) };
    }
}

/// Why a request was cancelled: the reason of the first mark.
pub(crate) fn reason(h: &Header) -> CancelReason {
    if h.bare.load().has(INHERITED) {
        return CancelReason::Parent;
    }
    h.side().and_then(|side| side.reason.get()).unwrap_or(CancelReason::Asked)
}

/// Why what runs on top of a stack is cancelled, by the request or region that was cancelled itself. On that stack, which is cancelled.
#[cold]
pub(crate) fn reason_of_caller(top: &Header) -> CancelReason {
    let mut at = top.identity();
    loop {
        let why = reason(at);
        if why != CancelReason::Parent || !at.has_state(REGION) {
            return why;
        }
        // SAFETY: a region runs on its caller's stack: what is below it there is not over.
        let Some(below) = (unsafe { at.lender.get().as_ref() }) else { return why };
        at = below.identity();
    }
}

/// Cancels a request because an ancestor was cancelled before it was submitted. Its list may already have edges of dependents. They are no demand
/// before the submission: a wait that began then would find the request cancelled.
///
/// # Safety
///
/// As [`cancel`].
pub(crate) unsafe fn cancel_orphan(header: NonNull<Header>) {
    // SAFETY: by contract.
    let answer = mark_orphan(unsafe { header.as_ref() });
    // SAFETY: by contract, and by the answer.
    unsafe { carry_out(header, answer) };
}

/// The mark of [`cancel_orphan`]. The caller carries out the rest.
fn mark_orphan(h: &Header) -> Cancel {
    mark_for_ancestor(h, |waiter, h| h.word().load().life() != NEW && wants(waiter, h))
}

/// Cancels a request on behalf of a cancelled ancestor. `wants` decides whether a waiter, or a lender, is demand.
///
/// # Safety
///
/// As [`cancel`].
unsafe fn cancel_for_ancestor(header: NonNull<Header>, wants: impl Fn(&Header, &Header) -> bool) {
    // SAFETY: by contract.
    let answer = mark_for_ancestor(unsafe { header.as_ref() }, wants);
    // SAFETY: by contract, and by the answer.
    unsafe { carry_out(header, answer) };
}

fn mark_for_ancestor(h: &Header, wants: impl Fn(&Header, &Header) -> bool) -> Cancel {
    let (side, reason) = (h.side_or_new(), reason_of_ancestor(h));
    let lender_wants = || {
        // SAFETY: under the lock of one that is lent: a lender is below it on the stack, so it is not over.
        let lender = unsafe { h.lender.get().as_ref() };
        // None: a foreign thread outside any request; or the request has just been claimed.
        lender.is_none_or(|lender| wants(lender, h))
    };
    h.word().cancel_lent(lender_wants, || {
        side.reason.set(Some(reason));
        // The word itself knows of a lender.
        list_demand(h, &wants)
    })
}

/// Delivers the mark of a started request on the thread that it runs on: here, or by a message.
///
/// # Safety
///
/// The caller has a count of the request.
pub(crate) unsafe fn deliver(header: NonNull<Header>) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let here = fiber::get();
    let own = own_arena(here);
    let ran_on = h.ran_on.load(Ordering::Relaxed).cast_const();
    // SAFETY: M3: arenas stay while headers of them do.
    match unsafe { ran_on.as_ref() } {
        Some(arena) if ptr::eq(arena, own) => {
            // It continues here soon, and may have been suspended for long: prefetches all its cache lines at once.
            prefetch::left(h.fiber.load(Ordering::Relaxed));
            let mut spread = Spread::on(arena);
            spread.from(header);
            spread.put_aside();
        }
        Some(arena) => {
            let mut spread = Spread::beside(arena);
            spread.pass_on(arena, header);
            spread.work_off();
            spread.put_aside();
        }
        None => {
            // It has just been claimed, and its thread is not known yet: the claimer delivers the mark when it reads the message.
            // SAFETY: M3.
            let Some(arena) = (unsafe { h.arena.get().as_ref() }) else { return };
            let mut spread = Spread::beside(arena);
            arena.shared().worker_records().iter().for_each(|worker| spread.pass_on(worker.arena(), header));
            spread.put_aside();
        }
    }
}

/// Works off the messages of a foreign thread's arena. Called by its owner. Runs no user code.
pub(crate) fn attend_arena(arena: &Arena) {
    thread::hold_back(|| {
        let mut spread = Spread::on(arena);
        spread.messages();
        spread.put_aside();
    });
}

/// Works off the messages that these workers' arenas got after the workers had left. All requests that ran there are over, so only ends
/// are left to do. Called by the thread that closes the arenas.
pub(crate) fn close_owner_mailboxes<'a>(arenas: impl Iterator<Item = &'a Arena>) {
    let (mut ended, mut others) = (Vec::new(), Vec::new());
    for message in arenas.flat_map(|arena| arena.owner_mailbox.close()) {
        match message {
            Message::End(header) => ended.push(header),
            message => others.push(message.header()),
        }
    }
    // SAFETY: O1: a message owns the request that it asks to end.
    unsafe { unstarted::end_all(&ended) };
    // Only now: what one of them has failed with may wait for what has just ended.
    // SAFETY: O1.
    others.into_iter().for_each(|header| unsafe { arena::release(header) });
}

/// An arm that another thread made begins on this fiber: delivers a mark that its maker already has.
pub(crate) fn arm_begins() {
    if let Some(node) = fiber::get().and_then(Fiber::request)
        && is_cancelled(node)
    {
        // SAFETY: it runs here.
        unsafe { deliver(NonNull::from(node)) };
    }
}

/// Spreads to the children of a request that ends failed, or cancelled with a mark that is not delivered yet. Called by the thread that it ran on.
///
/// # Safety
///
/// The caller is the owner of `ran_on`, and has a count of the request.
pub(crate) unsafe fn spread_at_end(header: NonNull<Header>, reason: Option<CancelReason>) {
    // SAFETY: the caller has a count of the request, so the header is there; M3: so is the arena that it ran on.
    let Some(arena) = (unsafe { header.as_ref().ran_on.load(Ordering::Relaxed).as_ref() }) else { return };
    let mut spread = Spread::on(arena);
    spread.reason = reason;
    spread.children(header);
    spread.reason = None;
    spread.work_off();
    spread.put_aside();
}

/// Aborts the jobs of the stopped scopes in `owner`: here, or by a message to the thread that `owner` runs on.
///
/// # Safety
///
/// The request runs, and is not over before this returns.
pub(crate) unsafe fn stop_scopes(owner: NonNull<Header>) {
    // SAFETY: by contract.
    let ran_on = unsafe { owner.as_ref() }.ran_on.load(Ordering::Relaxed);
    let here = fiber::get();
    // SAFETY: M3; what runs has an arena.
    let Some(arena) = (unsafe { ran_on.as_ref() }) else { return };
    if ptr::eq(arena, own_arena(here)) {
        let mut spread = Spread::on(arena);
        spread.scopes(owner);
        spread.put_aside();
    } else {
        // SAFETY: by contract.
        unsafe { owner.as_ref() }.word().add_link();
        // SAFETY: the link just made.
        if !unsafe { message::send(arena, Message::Scope(owner)) } {
            // SAFETY: as above.
            unsafe { arena::release(owner) };
        }
    }
}

/// The arena that this thread owns and that the request on top of its stack runs on; null if there is none.
pub(crate) fn own_arena(here: Option<&Fiber>) -> *const Arena {
    match here {
        Some(fiber) => {
            fiber.worker_record().map_or(fiber.arena.get(), |worker| ptr::from_ref(worker.arena()))
        }
        None => ptr::null(),
    }
}
