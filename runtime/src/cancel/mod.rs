//! Cancellation: who is asked, who is spared, and how a mark becomes an end.
//!
//! # Steps
//!
//! 1. A *mark* is set in the word, by [`cancel`] (which honours demand) or [`abort`] (which does not). Mark and claim are one
//!    exchange: what had not started belongs to the canceller, who *ends* it.
//! 2. What had started has the mark *delivered* on the thread that it runs on: a stack that waits in it goes on at once and
//!    is refused, whom it lent its stack to is asked in turn, and from now on what it makes is born cancelled.
//! 3. From there it *spreads*, as by `cancel`, to the request's children, by a loop. Those that started on this thread are
//!    delivered in the same loop, others by a message to theirs ([`crate::cancel::message`]).
//! 4. What a cancelled request waited for is asked when the waiter leaves: by the waiter itself ([`crate::schedule::wait`]). So is what it has
//!    submitted to wait for, and came to wait for no more.
//!
//! # Demand
//!
//! A request is spared while somebody who wants it waits: a foreign thread, or a request that is not cancelled (or is in a
//! shielded region), does not descend from it, and does not merely watch. The one that lent it a stack waits too. Who is
//! spared remembers: the last such waiter that leaves makes up for it.
//!
//! # Who is found
//!
//! The children of a request are its worker's to find: those it has in its private queue are one piece of it, before and
//! including the parent's last; others stand in the list of children ([`crate::record::children`]) or run on the stack that is current, which
//! is settled into the lists first. A request that is over passes the cancel through to its children. What was made and not
//! submitted is asked when it is submitted ([`is_orphaned_by_cancel`]).
//!
//! # What runs where
//!
//! A worker may learn of a cancel in the middle of leaving a stack, when no user code may run. So what it has claimed in
//! spreading it puts aside, and its loop ends it: drops the callable, calls back, goes terminal.

use std::ptr::{self, NonNull};

use forebear_context::context::{Context, WaitNode};
use forebear_context::error::CancelReason;
use forebear_context::shim::atomic::Ordering;

use self::message::Message;
use crate::foreign;
use crate::memory::arena::{self, Arena};
use crate::record::cell;
use crate::record::header::{ARM, BORROWS, DETACHED, Header, LIMITED};
use crate::record::prefetch;
use crate::schedule::worker::{Worker, is_unwinding};
use crate::stack::fiber::{self, Fiber};
use crate::state::ancestor_walk::{self, Ancestry, SkipLink};
use crate::state::attention::{MARKS, MESSAGE};
use crate::state::due::Due;
use crate::state::open::{self, Open};
use crate::state::word::{Cancel, Demand, INHERITED, LENT, MARKED, SHIELDED, SUBMITTED, Word};

pub(crate) mod message;
mod reach;
pub(crate) mod shield;
mod spread;
mod sweep;

pub(crate) use self::reach::{ends_with, is_told_of};
use self::spread::Spread;
pub(crate) use self::sweep::{
    Unstarted, abort_unstarted, is_in_shut, may_still, refuse, refuse_later, refused, take_unstarted,
};

/// What came of a cancel.
#[doc(alias = "CancellationToken")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cancellation {
    /// The request is cancelled: it ends as such, if it has not already.
    Marked,
    /// A request that is not cancelled, or a thread such as `main`, waits for it. It is spared, and cancelled when the last such waiter
    /// leaves. [`abort`](crate::Request::abort) spares no request.
    Vetoed,
    /// It was over, or as good as: its callbacks run.
    AlreadyDone,
}

/// Cancels, unless somebody wants it.
///
/// # Safety
///
/// The caller has a count of the request.
pub(crate) unsafe fn cancel(header: NonNull<Header>) -> Cancellation {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let came = h.word().cancel(|| demand(h));
    // SAFETY: by contract, and by the answer.
    unsafe { carry_out(header, came) }
}

/// Cancels it, whatever demand there is.
///
/// # Safety
///
/// As [`cancel`].
pub(crate) unsafe fn abort(header: NonNull<Header>, reason: CancelReason) -> Cancellation {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    // Before the lock is taken: no allocation under it.
    let side = h.side_or_new();
    let came = h.word().abort(|| side.reason.set(Some(reason)));
    // SAFETY: by contract, and by the answer.
    unsafe { carry_out(header, came) }
}

/// Does what a transition has left to do.
///
/// # Safety
///
/// The answer is fresh, and the caller's; the caller has a count of the request.
pub(crate) unsafe fn carry_out(header: NonNull<Header>, came: Cancel) -> Cancellation {
    match came {
        Cancel::Ended => {
            // SAFETY: claimed by the caller, with the runner's link. What may borrow is not put off.
            unsafe {
                if header.as_ref().scope.get().is_null() && !header.as_ref().is(BORROWS) {
                    cell::end_unstarted(header);
                } else {
                    cell::end_claimed(header);
                }
            }
            Cancellation::Marked
        }
        Cancel::Marked => {
            // SAFETY: by contract.
            unsafe { deliver(header) };
            Cancellation::Marked
        }
        Cancel::MarkedShielded | Cancel::AlreadyMarked => Cancellation::Marked,
        Cancel::Vetoed => Cancellation::Vetoed,
        Cancel::TooLate | Cancel::Unasked => Cancellation::AlreadyDone,
    }
}

/// The time of a request's own deadline is there: aborts it. One that is over already has left children, to whom this goes on as a
/// cancel of it would have. On any thread; runs no user code: what it ends is left to a worker.
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
    match due.comes(h.word(), || side.reason.set(Some(CancelReason::Deadline))) {
        Cancel::Ended => {
            // SAFETY: claimed here, with the runner's link.
            unsafe { leave_end(header) }
        }
        // SAFETY: by contract.
        Cancel::Marked => unsafe { deliver(header) },
        Cancel::TooLate if !h.ran_on.load(Ordering::Relaxed).is_null() => {
            // SAFETY: by contract.
            unsafe { deliver(header) }
        }
        Cancel::TooLate
        | Cancel::MarkedShielded
        | Cancel::AlreadyMarked
        | Cancel::Vetoed
        | Cancel::Unasked => {}
    }
}

/// Leaves an end to a worker, since it may run user code: see [`cell::end_put_aside`].
///
/// # Safety
///
/// As there.
pub(crate) unsafe fn leave_end(header: NonNull<Header>) {
    // SAFETY: by contract; M3.
    let Some(arena) = (unsafe { header.as_ref().arena.get().as_ref() }) else { return };
    let here = fiber::get();
    let own = ptr::eq(own_arena(here), arena) && here.and_then(Fiber::worker).is_some();
    let mut spread = if own { Spread::on(arena) } else { Spread::beside(arena) };
    spread.ended.push(header);
    spread.put_aside();
}

/// Why a request was cancelled: the reason of the first mark.
pub(crate) fn reason(h: &Header) -> CancelReason {
    if h.bare.load().has(INHERITED) {
        return CancelReason::Parent;
    }
    h.side().and_then(|side| side.reason.get()).unwrap_or(CancelReason::Asked)
}

/// Cancels a request because an ancestor was cancelled before it was submitted.
///
/// # Safety
///
/// As [`cancel`].
pub(crate) unsafe fn cancel_orphan(header: NonNull<Header>) {
    // SAFETY: by contract.
    unsafe { cancel_for_ancestor(header, wants) };
}

/// Asks on behalf of a cancelled ancestor. `wants` says whether a waiter (or a lender) wants the request.
///
/// # Safety
///
/// As [`cancel`].
unsafe fn cancel_for_ancestor(header: NonNull<Header>, wants: impl Fn(&Header, &Header) -> bool) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let (side, reason) = (h.side_or_new(), reason_of_ancestor(h));
    let lender_wants = || {
        // SAFETY: under the lock of one that is lent: a lender is below it on the stack, so it is not over.
        let lender = unsafe { h.lender.get().as_ref() };
        // None: a foreign thread, on nobody's behalf; or it has just been claimed.
        lender.is_none_or(|lender| wants(lender, h))
    };
    let came = h.word().cancel_lent(lender_wants, || {
        side.reason.set(Some(reason));
        // A lender the word knows itself.
        list_demand(h, &wants)
    });
    // SAFETY: by contract, and by the answer.
    unsafe { carry_out(header, came) };
}

/// Whether the request that runs on `fiber` has been cancelled, and is in no shielded region.
#[inline]
pub(crate) fn is_cancelled_here(fiber: &Fiber) -> bool {
    fiber.request().is_some_and(is_cancelled)
}

/// Whether the request (an arm's: its maker) is cancelled, and neither is in a shielded region.
#[inline]
pub(crate) fn is_cancelled(h: &Header) -> bool {
    if h.is(ARM) {
        return arm_is_cancelled(h);
    }
    let bits = h.bare.load();
    bits.has(MARKED) && !bits.has(SHIELDED)
}

#[cold]
fn arm_is_cancelled(h: &Header) -> bool {
    let identity = h.identity();
    let bits = identity.bare.load();
    // A region of the maker's that was open before the join shelters both arms, one that an arm opens only that arm.
    bits.has(MARKED) && !(h.is_sheltered() && bits.has(SHIELDED)) && !h.bare.load().has(SHIELDED)
}

/// Whether a wait or yield on this fiber is to be refused. The fast part: nothing of the sort concerns its worker.
#[inline(always)]
pub(crate) fn refuses(fiber: &Fiber) -> bool {
    concerns(fiber) && refuses_slowly(fiber)
}

/// Whether a cancel may concern what runs on this fiber.
#[inline(always)]
pub(crate) fn concerns(fiber: &Fiber) -> bool {
    match fiber.worker() {
        Some(worker) => concerns_worker(worker),
        None => !fiber.request.get().is_null(),
    }
}

/// The same of any fiber of a worker.
#[inline(always)]
pub(crate) fn concerns_worker(worker: &Worker) -> bool {
    worker.post.attention.get() & (MESSAGE | MARKS) != 0
}

/// Attends, and looks whether the request on top is cancelled.
#[cold]
#[inline(never)]
pub(crate) fn looks(fiber: &Fiber) -> bool {
    attend(fiber);
    is_cancelled_here(fiber)
}

#[cold]
#[inline(never)]
fn refuses_slowly(fiber: &Fiber) -> bool {
    attend(fiber);
    // What a destructor waits for while an unwind runs it, it waits for to clean up.
    is_cancelled_here(fiber) && !is_unwinding(fiber)
}

/// Whether a wait or yield on the fiber that this is called on is to be refused, which a cancel may concern.
#[cold]
#[inline(never)]
pub(crate) fn refuses_here() -> bool {
    fiber::get().is_some_and(refuses_slowly)
}

/// Does what others have left for this thread. Runs no user code.
pub(crate) fn attend(fiber: &Fiber) {
    match fiber.worker() {
        Some(worker) => worker.attend_messages(),
        // What runs on this stack has one of the thread's arenas: they are few, and the stack may be deep.
        None if foreign::each_arena(|arena| {
            if !arena.owner_mailbox.is_empty() {
                attend_arena(arena);
            }
        }) => {}
        // The thread's locals are being destroyed.
        None => {
            let mut at = fiber.request();
            while let Some(frame) = at {
                // SAFETY: arenas stay while headers of them do (M3).
                if let Some(arena) = unsafe { frame.ran_on.load(Ordering::Relaxed).as_ref() }
                    && !arena.owner_mailbox.is_empty()
                {
                    attend_arena(arena);
                }
                // SAFETY: what is below another on a stack is not over.
                at = unsafe { frame.lender.get().as_ref() };
            }
        }
    }
}

/// Whether a request that is about to be submitted or started has been reached by a cancel of an ancestor meanwhile, and so is
/// cancelled itself. Its ancestors that are over pass it through.
#[inline]
pub(crate) fn is_orphaned_by_cancel(h: &Header) -> bool {
    h.above().is_some_and(|parent| !rules_out_a_cancel(parent) && has_cancelled_ancestor(h))
}

/// Whether one look at the parent says that no cancel reaches its children: it runs, is not marked, and has no deadline of its own. It
/// does so for nearly all parents. What goes by its maker, as an arm does, is looked at more closely.
#[inline]
fn rules_out_a_cancel(parent: &Header) -> bool {
    let bits = parent.bare.load();
    !parent.is(ARM | LIMITED) && !bits.is_terminal() && !bits.has(MARKED)
}

#[inline(never)]
fn has_cancelled_ancestor(h: &Header) -> bool {
    cancelled_ancestor(h).is_some()
}

/// The ancestor by whose cancel, or deadline, this one is reached.
fn cancelled_ancestor(h: &Header) -> Option<&Header> {
    let mut at = h;
    loop {
        let above = ancestor_walk::first_above(at)?;
        if Ancestry::is_cancelled(above) {
            return Some(above);
        }
        // One that is over, and not passed since its deadline is kept.
        if !above.passes_on() {
            return None;
        }
        at = above;
    }
}

/// What one is told that such an ancestor reaches.
pub(crate) fn reason_of_ancestor(h: &Header) -> CancelReason {
    cancelled_ancestor(h).map_or(CancelReason::Parent, reason_for_children)
}

/// What the children of a request are told that is cancelled, or over and passes a cancel through: a deadline is theirs, too.
fn reason_for_children(parent: &Header) -> CancelReason {
    let parent = parent.identity();
    if parent.bare.load().has(MARKED) {
        match reason(parent) {
            CancelReason::Deadline => CancelReason::Deadline,
            _ => CancelReason::Parent,
        }
    } else if parent.came_late() {
        CancelReason::Deadline
    } else {
        reason_of_ancestor(parent)
    }
}

impl Ancestry for Header {
    fn is_cancelled(&self) -> bool {
        is_cancelled(self) || self.came_late()
    }

    fn passes_on(&self) -> bool {
        self.bare.load().is_terminal()
    }

    fn above(&self) -> Option<&Header> {
        self.parent().filter(|_| !self.is(DETACHED))
    }

    fn is_passed(&self) -> bool {
        // W10: a mark that has not come by the end does not come any more.
        let bits = self.identity().bare.load();
        bits.is_terminal() && !bits.has(MARKED) && !self.due().is_some_and(Due::is_kept)
    }

    fn skip(&self) -> Option<&SkipLink<Header>> {
        self.side().map(|side| &side.skip)
    }

    fn skip_or_new(&self) -> Option<&SkipLink<Header>> {
        // An arm goes by its maker, which comes next. What its family alone keeps is forgotten at the next start (decision
        // 0005), or few; a block for it would outweigh it.
        (!self.is(ARM) && !self.bare.load().is_family_only()).then(|| &self.side_or_new().skip)
    }
}

/// Who in the list of waiters wants `h`. Under its word's lock. A lender the word knows itself.
fn demand(h: &Header) -> Demand {
    if h.word().load().has(LENT) {
        // The word knows that itself.
        return Demand::Live;
    }
    list_demand(h, wants)
}

/// The same, lenders included. `wants` says whether a waiter is demand.
fn list_demand(h: &Header, wants: impl Fn(&Header, &Header) -> bool) -> Demand {
    // The waiter that is found comes first in the next scan: of many that leave, each would have to pass the rest.
    // SAFETY: Q1: the lock.
    match unsafe { h.waiters.find_to_front(|node| node_wants(node, h, &wants)) } {
        true => Demand::Live,
        false if h.waiters.is_empty() => Demand::Nobody,
        false => Demand::Idle,
    }
}

fn node_wants(node: &WaitNode, h: &Header, wants: impl Fn(&Header, &Header) -> bool) -> bool {
    if node.watches() {
        return false;
    }
    if let Some(dependent) = node.record() {
        // SAFETY: AF4: an edge that is listed is open, and its list's lock is held.
        return wants(unsafe { dependent.cast().as_ref() }, h);
    }
    // SAFETY: the node is listed, and its list's lock is held.
    match unsafe { node.context() }.and_then(waiter) {
        Some(waiter) => wants(waiter, h),
        // A foreign thread or a listener, on nobody's behalf.
        None => true,
    }
}

/// The request on whose behalf a context waits.
fn waiter(context: &Context) -> Option<&Header> {
    // SAFETY: a context in a list of waiters is valid; its stack is left, or about to be, so the answer stays true.
    let word = unsafe { (context.table().word)(context) }.cast::<Word>();
    const { assert!(std::mem::offset_of!(Header, bare) == 0) };
    // SAFETY: words of contexts are those of headers, at their beginning; a request that waits is not over.
    unsafe { word.cast::<Header>().as_ref() }
}

fn wants(waiter: &Header, target: &Header) -> bool {
    !is_cancelled(waiter) && !waiter.lineage.descends_from(&target.lineage)
}

/// Whether a cancelled `waiter` that leaves `target` asks for its cancellation: not if that is another's affair, whose
/// creator lives and which somebody has submitted who did not wait.
pub(crate) fn asks(waiter: Option<&Header>, target: &Header) -> bool {
    let creator = target.parent().filter(|_| !target.is(DETACHED)).map(Header::identity);
    if let (Some(waiter), Some(creator)) = (waiter, creator)
        && ptr::eq(waiter.identity(), creator)
    {
        return true;
    }
    // One that is shielded lives on: its region's end asks this target, as its child.
    let lives = creator.is_none_or(|creator| !creator.bare.load().is_terminal() && !is_cancelled(creator));
    !(lives && target.word().load().has(SUBMITTED))
}

/// What a target is told that is cancelled because its waiter is.
fn reason_of_waiter(fiber: Option<&Fiber>, target: &Header) -> CancelReason {
    let waiter = fiber.and_then(Fiber::request).map(Header::identity);
    match (waiter, target.parent().map(Header::identity)) {
        (Some(waiter), Some(parent)) if ptr::eq(waiter, parent) => reason_for_children(parent),
        _ => CancelReason::Asked,
    }
}

/// Leaves the target's list for another reason than its end: a time-out, or (`asks`) the waiter's own cancel. `Err`: the
/// target is over, and its finisher has let go of the node.
///
/// # Safety
///
/// The node stands in the target's list, and its wait is settled by another cause; the caller has a count of the target.
pub(crate) unsafe fn leave(header: NonNull<Header>, node: &WaitNode, asks: bool) -> Result<(), ()> {
    // SAFETY: by contract.
    let left = unsafe { withdraw(header, node, asks) };
    if left.is_err() {
        node.await_release();
    }
    left
}

/// The same for a listener: it is out of the list then, and the list's count is the caller's. `Err`: the target is over, and its finisher has
/// that count.
///
/// # Safety
///
/// The node stands in the target's list, or its finisher has taken it out; the caller has a count of both.
pub(crate) unsafe fn withdraw(header: NonNull<Header>, node: &WaitNode, asks: bool) -> Result<(), ()> {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let reason = asks.then(|| (h.side_or_new(), reason_of_waiter(fiber::get(), h)));
    let left = h.word().leave(asks, |scan| {
        // SAFETY: Q1, Q2: under the lock; the node stands here.
        unsafe { h.waiters.unlink(node) };
        match scan {
            true => {
                if let Some((side, reason)) = reason
                    && side.reason.get().is_none()
                {
                    // A cancel that is remembered has its own.
                    side.reason.set(Some(reason));
                }
                demand(h)
            }
            false if h.waiters.is_empty() => Demand::Nobody,
            false => Demand::Idle,
        }
    });
    match left {
        Ok(came) => {
            // SAFETY: by contract, and by the answer.
            unsafe { carry_out(header, came) };
            Ok(())
        }
        Err(_) => Err(()),
    }
}

/// The same of an edge of `dependent`, which was claimed unstarted, as cancelled: asks the dependency as a cancelled waiter does that leaves. Answers
/// what is left to do, and whether the edge was the last that was open; `None` if the dependency is over, and its finisher closes the edge.
///
/// # Safety
///
/// The edge's node is listed, and the dependent set up; the caller has a count of the dependency.
pub(crate) unsafe fn leave_declared(
    header: NonNull<Header>,
    node: &WaitNode,
    open: &Open,
    dependent: &Header,
) -> Option<(Cancel, bool)> {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let asks = asks(Some(dependent), h);
    let side = asks.then(|| h.side_or_new());
    let leave = |scan| {
        // SAFETY: Q1, Q2: under the lock; the node stands here.
        unsafe { h.waiters.unlink(node) };
        match scan {
            true => {
                if let Some(side) = side.filter(|side| side.reason.get().is_none()) {
                    // A cancel that is remembered has its own.
                    side.reason.set(Some(CancelReason::Asked));
                }
                demand(h)
            }
            false if h.waiters.is_empty() => Demand::Nobody,
            false => Demand::Idle,
        }
    };
    // SAFETY: by contract.
    unsafe { open::leave(open, h.word(), asks, leave) }
}

/// The waiter on `fiber` is cancelled, and has submitted for itself what it now will not wait for: asks for its cancellation.
///
/// # Safety
///
/// As [`cancel`].
#[cold]
pub(crate) unsafe fn cancel_for_waiter(fiber: &Fiber, header: NonNull<Header>) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let (side, reason) = (h.side_or_new(), reason_of_waiter(Some(fiber), h));
    let came = h.word().cancel_locked(|| {
        if side.reason.get().is_none() {
            // A cancel that is remembered has its own.
            side.reason.set(Some(reason));
        }
        demand(h)
    });
    // SAFETY: by contract, and by the answer.
    unsafe { carry_out(header, came) };
}

/// The mark of a started request goes to the thread it runs on.
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
            // It goes on here before long, and was perhaps left long ago: all its lines at once, not one after the other.
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
            // It has just been claimed, and where is not known yet: its claimer will find out when it reads the message.
            // SAFETY: M3.
            let Some(arena) = (unsafe { h.arena.get().as_ref() }) else { return };
            let mut spread = Spread::beside(arena);
            arena.shared().workers().iter().for_each(|worker| spread.pass_on(worker.arena(), header));
            spread.put_aside();
        }
    }
}

/// Does what has been left at a foreign thread's arena, whose owner this is. Runs no user code.
pub(crate) fn attend_arena(arena: &Arena) {
    let mut spread = Spread::on(arena);
    spread.messages();
    spread.put_aside();
}

/// Works off what a worker's arena was left when nobody was there to read it: all that ran is over, so only what is to be ended
/// is left to do. By the thread that closes the arena.
pub(crate) fn close_owner_mailbox(arena: &Arena) {
    let mut ended = Vec::new();
    for message in arena.owner_mailbox.close() {
        match message {
            Message::End(header) => ended.push(header),
            // SAFETY: O1.
            told => unsafe { arena::release(told.header()) },
        }
    }
    // SAFETY: O1: what is to be ended is the message's.
    unsafe { cell::end_all(&ended) };
}

/// An arm that was taken elsewhere begins on this fiber: its maker may have been cancelled before.
pub(crate) fn arm_begins() {
    if let Some(node) = fiber::get().and_then(Fiber::request)
        && is_cancelled(node)
    {
        // SAFETY: it runs here.
        unsafe { deliver(NonNull::from(node)) };
    }
}

/// The children of a request that ends: failed, or cancelled and not delivered yet. By the thread it ran on.
///
/// # Safety
///
/// The caller is the owner of `ran_on`, and has a count of the request.
pub(crate) unsafe fn spread_at_end(header: NonNull<Header>, reason: Option<CancelReason>) {
    // SAFETY: by contract.
    let Some(arena) = (unsafe { header.as_ref().ran_on.load(Ordering::Relaxed).as_ref() }) else { return };
    let mut spread = Spread::on(arena);
    spread.reason = reason;
    spread.children(header);
    spread.reason = None;
    spread.work_off();
    spread.put_aside();
}

/// Aborts the jobs of the stopped scopes in `owner`: here, or by a message to the thread that it runs on.
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

/// The arena whose owner this thread is, as far as what runs on top of it goes.
pub(crate) fn own_arena(here: Option<&Fiber>) -> *const Arena {
    match here {
        Some(fiber) => fiber.worker().map_or(fiber.arena.get(), |worker| ptr::from_ref(worker.arena())),
        None => ptr::null(),
    }
}
