//! Direct execution: the waiter for a request runs it.
//!
//! A target that has not started is claimed and run on the waiter's own stack, unless
//!
//! * it needs a stack of its own, or more stack than is left here. Then it is queued, and the waiter suspends, so a
//!   chain of a million nested waits completes;
//! * something older is ready on this worker;
//! * it belongs to another runtime;
//! * the wait has a limit, or only watches;
//! * the waiter has a deadline, of its own or inherited, and the target none that is as near;
//! * a set or a future that a request on this stack has made wants the target. Its demand goes when it is dropped, which is not before the wait returns; and a
//!   wait that lends its stack returns when the target is over. So a cancel of the waiter would reach neither.

use std::ptr::{self, NonNull};

use forebear_context::context::WaitNode;
use forebear_context::shim::atomic::Ordering;

use crate::cancel;
use crate::foreign;
use crate::record::arena::Arena;
use crate::record::fiber::Fiber;
use crate::record::header::{AFTER, DELIVERED, DETACHED, Header, OWN_STACK};
use crate::record::no_value::NoValue;
use crate::schedule::finish;
use crate::schedule::run;
use crate::schedule::worker::{OnWorker, Worker};
use crate::shared::OfRuntime;
use crate::shared::driven::Guest;
use crate::shared::ending::Stage;
use crate::shared::thread;
use crate::shared::worker::is_unwinding;
use crate::state::attention::{DRIVEN, HUNGRY, LIMITS, MARKS, MESSAGE, OLDER, RAIDED, SHUT};
use crate::state::start::start_at_once;
use crate::state::word::{FINISHED, LocalStep, NEW, QUEUED, WAITERS};

/// Runs a local request of this worker's for its waiter, in the commonest case of all. Where something is less common, the caller takes the way of
/// [`run_own`]. So little must be kept over the run, in each frame of a recursion. True: it is over with a value, and nothing concerns the waiter.
///
/// # Safety
///
/// As [`until_over`](super::until_over).
#[inline(never)]
pub(super) unsafe fn run_local(header: NonNull<Header>) -> bool {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let Some(fiber) = crate::record::fiber::get() else { return false };
    let stage = h.local.stage();
    if !ptr::eq(h.arena.get(), fiber.arena.get())
        || h.is(OWN_STACK | AFTER)
        || fiber.room() < h.need()
        || h.urgency() < fiber.urgency.load(Ordering::Relaxed)
    {
        return false;
    }
    // SAFETY: local requests are of workers' arenas.
    let worker = unsafe { fiber.worker_of_arena() };
    let forbidden = HUNGRY | OLDER | MESSAGE | MARKS | DRIVEN | LIMITS;
    let starts = start_at_once!(
        listed: stage.is_listed(),
        touch: h.place.touch(|| worker.post.attention.get() & (forbidden | RAIDED) == 0),
        may_start: stage.is_new()
            && worker.post.attention.get() & (forbidden | SHUT) == 0
            && is_child_of_top(fiber, h),
        // SAFETY: its arena is this fiber's, which is the worker's.
        step: unsafe { h.advance_local(worker.arena(), stage, LocalStep::Started) },
        restore: h.place.restore()
    );
    if !starts {
        return false;
    }
    if stage.is_listed() {
        worker.list.unlink(h);
    }
    worker.count_direct();
    #[cfg(all(test, not(any(loom, shuttle))))]
    crate::schedule::worker::after_the_claim(h);
    // SAFETY: W1: started by us.
    let below = unsafe { run::put_on_top(fiber, header) };
    // SAFETY: W1; the value's place is the callable's, which `call` has moved out by then.
    let ending = unsafe { (h.vtable.call)(header, Header::value::<()>(header).as_ptr()) };
    // Looked up again, as in `take`.
    // SAFETY: a fiber never changes its thread, a request never its fiber, nor a fiber its worker.
    let (fiber, worker) = unsafe {
        let fiber = &*crate::record::fiber::current();
        (fiber, fiber.worker_of_arena())
    };
    fiber.request.set(below);
    if ending.is_none() {
        h.has_value.set(true);
        if !h.has_children()
            && !h.has_state(DELIVERED)
            && h.bare.is_local()
            // SAFETY: as above.
            && unsafe { h.advance_local(worker.arena(), h.local.stage(), LocalStep::Done) }
        {
            return worker.post.attention.get() & (MESSAGE | MARKS) == 0;
        }
    }
    // SAFETY: W1: claimed as lent; the caller's count is held.
    unsafe { end_lent(header, ending) }
}

/// The end of what [`run_local`] has run that is no local one any more, has children, or came to no value. Answers for [`run_local`].
///
/// # Safety
///
/// W1: claimed as lent, and the caller has a handle; without an ending the value is in place.
#[cold]
#[inline(never)]
unsafe fn end_lent(header: NonNull<Header>, ending: Option<Box<NoValue>>) -> bool {
    // SAFETY: W1 by contract, for whichever call ends it; the waiter's handle keeps the header after the end.
    unsafe {
        match ending {
            None => finish::finish(header, false),
            Some(ending) => finish::fail(header, *ending, false),
        }
        let worker = crate::record::fiber::get().and_then(Fiber::worker);
        header.as_ref().life_here() == FINISHED
            && worker.is_some_and(|worker| worker.post.attention.get() & (MESSAGE | MARKS) == 0)
    }
}

/// The commonest case of a wait: the target stands in this worker's own private queue, or nowhere yet and its maker waits, and
/// nothing speaks against running it here. False: it was not run, or something concerns the waiter now; the long way tells what
/// to answer.
///
/// # Safety
///
/// As [`until_over`](super::until_over).
#[inline(never)]
pub(super) unsafe fn run_own(header: NonNull<Header>) -> bool {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let Some(fiber) = crate::record::fiber::get() else { return false };
    if !ptr::eq(h.arena.get(), fiber.arena.get()) {
        // SAFETY: by contract.
        return unsafe { run_own_outside(fiber, header) };
    }
    let Some(worker) = fiber.worker() else { return false };
    let attention = worker.post.attention.get();
    if attention & (HUNGRY | OLDER | MESSAGE | MARKS | DRIVEN | LIMITS) != 0 {
        // SAFETY: by contract.
        return unsafe { run_own_attending(fiber, worker, header) };
    }
    // SAFETY: by contract.
    unsafe { run_own_on(fiber, worker, header, attention) }
}

/// The same on a thread that is no worker and runs nothing, for a root that it has made.
///
/// # Safety
///
/// As [`run_own`]; `fiber` is the calling one.
#[cold]
#[inline(never)]
unsafe fn run_own_outside(fiber: &Fiber, header: NonNull<Header>) -> bool {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let runs_nothing = fiber.worker().is_none() && fiber.request().is_none();
    if !runs_nothing || !thread::owns(h.arena.get()) || !h.lineage.parent().is_null() {
        return false;
    }
    // SAFETY: M3: this thread's, and it is not null.
    let arena = unsafe { &*h.arena.get() };
    let (shared, life) = (arena.shared(), h.bare.load().life());
    if life != QUEUED && life != NEW
        || h.is(AFTER)
        || shared.driven.is_some()
        || shared.is_inherited()
        || fiber.context().no_suspend().get() != 0
        || !may_lend(fiber, h)
    {
        return false;
    }
    let Ok(before) = h.bare.claim_by_waiter(false) else { return false };
    // SAFETY: just claimed as lent; the caller's count is held.
    unsafe { run_on_thread(fiber, header, arena) };
    if before.life() == QUEUED {
        leave_stale(h);
    }
    true
}

/// The same where something concerns the worker: perhaps nothing but deadlines, or somebody who is hungry.
///
/// # Safety
///
/// `header` is alive, and of the arena of `worker`, on whose thread `fiber` is the current one.
#[cold]
#[inline(never)]
unsafe fn run_own_attending(fiber: &Fiber, worker: &Worker, header: NonNull<Header>) -> bool {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let attention = worker.post.attention.get();
    let other = attention & (HUNGRY | OLDER | MESSAGE | MARKS | DRIVEN | RAIDED) != 0;
    // Nothing but deadlines, which are none of the target's if the waiter has made it: what the waiter has the target inherits.
    let allowed = !other && is_child_of_top(fiber, h) && worker.passes_limits() || nothing_forbids(fiber, h);
    // SAFETY: by contract.
    allowed && unsafe { run_own_on(fiber, worker, header, worker.post.attention.get()) }
}

/// Runs a request of this worker's arena on the waiter's stack, if it can be claimed and may be lent the stack. False: it did not run, or a message or mark
/// is to be read now.
///
/// # Safety
///
/// As for [`run_own_attending`]; `attention` is what the worker's word said after that.
#[inline(always)]
unsafe fn run_own_on(fiber: &Fiber, worker: &Worker, header: NonNull<Header>, attention: u32) -> bool {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    // What is after others is looked at by the long way.
    if h.is(OWN_STACK | AFTER) || fiber.room() < h.need() {
        return false;
    }
    if h.bare.is_local() {
        // SAFETY: its arena is this fiber's, which is the worker's.
        if !unsafe { start_locally(fiber, worker, h, attention) } {
            return false;
        }
    } else if is_kept_from_here(fiber, h) {
        return false;
    } else if h.bare.claim_by_waiter(true).is_ok() {
        worker.take_out(h);
    } else if attention & SHUT != 0 || !is_child_of_top(fiber, h) || !h.bare.claim_new() {
        return false;
    }
    worker.count_direct();
    // SAFETY: claimed as lent; the caller's count is held.
    unsafe { run::lend(fiber, header) };
    worker.post.attention.get() & (MESSAGE | MARKS) == 0
}

/// Claims for its waiter what is a local request of this worker's. False: it is none to be run here, or has been published meanwhile.
///
/// # Safety
///
/// The request's arena is the worker's.
#[inline(always)]
unsafe fn start_locally(fiber: &Fiber, worker: &Worker, h: &Header, attention: u32) -> bool {
    let stage = h.local.stage();
    let listed = stage.is_listed();
    if !listed && (!stage.is_new() || attention & SHUT != 0 || !is_child_of_top(fiber, h)) {
        return false;
    }
    // SAFETY: by contract.
    if !unsafe { h.advance_local(worker.arena(), stage, LocalStep::Started) } {
        return false;
    }
    if listed {
        worker.take_out(h);
    }
    true
}

/// Something concerns this worker, which is about to run the target on this stack. Publishes other work if somebody is hungry: the
/// target may run for long. Answers whether the rest is nothing but deadlines, and none that counts for a wait for this target.
#[cold]
#[inline(never)]
pub(crate) fn nothing_forbids(fiber: &Fiber, h: &Header) -> bool {
    fiber.worker().is_some_and(|worker| {
        if worker.post.attention.get() & RAIDED != 0 {
            // The word may not be what it was.
            worker.settle_raid();
            return false;
        }
        worker.feed_beside(h);
        worker.post.attention.get() & (OLDER | MESSAGE | MARKS | DRIVEN) == 0
            && (!worker.is_among_limits() || is_child_of_top(fiber, h))
    })
}

/// Whether the request on top has made it. Then no other ancestor can have been cancelled that it would have to hear of but by
/// the one on top.
#[inline(always)]
fn is_child_of_top(fiber: &Fiber, h: &Header) -> bool {
    !h.is(DETACHED) && fiber.request().is_some_and(|top| ptr::eq(h.lineage.parent(), &top.lineage))
}

/// The target was queued somewhere, and is stale there now. It is over: other stale entries go here, and what their requests have failed with. That may wait
/// for the target.
pub(super) fn leave_stale(h: &Header) {
    // SAFETY: M3.
    if let Some(arena) = unsafe { h.arena.get().as_ref() } {
        arena.shared().injector.note_stale(
            |entry| !entry.word().load().is_unstarted(),
            |stale| {
                // SAFETY: E1: the entry's link; W4.
                unsafe {
                    if stale.as_ref().word().release_link() {
                        crate::record::arena::end(stale);
                    }
                }
            },
        );
    }
}

/// Whether the fiber may run the target itself.
#[inline(always)]
pub(super) fn may_lend(fiber: &Fiber, h: &Header) -> bool {
    if h.is(OWN_STACK) || fiber.room() < h.need() || is_kept_from_here(fiber, h) {
        return false;
    }
    // SAFETY: the target's arena and record live as long as it (M3).
    let Some(arena) = (unsafe { h.arena.get().as_ref() }) else { return false };
    match fiber.worker() {
        Some(worker) => {
            ptr::eq(worker.shared(), arena.shared())
                && (!worker.driven_by().is_some_and(|driver| driver.would_rather_queue())
                    && (worker.post.attention.get() & OLDER == 0 || !worker.older_is_ready())
                    // Queued, it would be other work while an unwind waits for it (`schedule/worker/unwinding.rs`).
                    || is_unwinding(fiber))
                && !(worker.is_among_limits() && may_outlast(fiber, h))
        }
        // While the thread's locals are being destroyed it has no arena to count children on (M1).
        None => {
            let shared = arena.shared();
            shared.foreign_direct
                && !shared.ending.is_shut()
                && !shared.is_over()
                && foreign::arena_for(shared).is_some()
                && !(shared.deadlines.has_requests() && may_outlast(fiber, h))
        }
    }
}

/// Whether a set or a future that a request on this stack has made, and here, wants the target, as far as is known: it may be another's by now, or have been
/// another's before.
#[inline(always)]
fn is_kept_from_here(fiber: &Fiber, h: &Header) -> bool {
    fiber.has_loose.get() && h.bare.load().has(WAITERS) && is_kept_by_loose(fiber, h)
}

#[cold]
#[inline(never)]
fn is_kept_by_loose(fiber: &Fiber, h: &Header) -> bool {
    let finds = |wanted: &dyn Fn(*const Header) -> bool| {
        if h.word().lock().is_err() {
            return false;
        }
        let is_wanted = |node: &WaitNode| {
            // SAFETY: Q1: the lock.
            let maker = unsafe { node.listener_maker() }.filter(|maker| !maker.is_framed);
            maker.is_some_and(|maker| !maker.request.is_null() && wanted(maker.request.cast()))
        };
        // SAFETY: Q1: the lock.
        let found = unsafe { h.waiters.find_to_front(is_wanted) };
        h.word().unlock(|bits| bits);
        found
    };
    if fiber.request().is_none() || !finds(&|_| true) {
        return false;
    }
    // Before the lock is taken: no allocation under it, and no walk down the stack for each node.
    // SAFETY: what is below another on a stack is not over.
    let below = std::iter::successors(fiber.request(), |frame| unsafe { frame.lender.get().as_ref() });
    let mut stack: Vec<*const Header> = below.map(|frame| ptr::from_ref(frame.identity())).collect();
    stack.sort_unstable();
    finds(&|maker| stack.binary_search(&maker).is_ok())
}

/// Whether the request on top has a deadline, of its own or inherited, and the target may still run when that comes.
#[cold]
fn may_outlast(fiber: &Fiber, h: &Header) -> bool {
    let Some(waiter) = fiber.request() else { return false };
    // Most wait for what they have made, which has inherited all that they have.
    if h.lineage.descends_from(&waiter.lineage) {
        return false;
    }
    let limit = waiter.deadline();
    limit.is_some() && h.deadline().is_none_or(|at| Some(at) > limit)
}

/// Runs a request claimed as lent, with the arena and the runtime it needs.
///
/// # Safety
///
/// As [`run::lend`]; `fiber` is the calling one.
pub(crate) unsafe fn run_here(fiber: &Fiber, header: NonNull<Header>) {
    match fiber.worker() {
        Some(worker) => {
            worker.count_direct();
            let (arena, entered) = (fiber.arena.replace(worker.arena()), fiber.entered.replace(ptr::null()));
            // SAFETY: by contract.
            unsafe { run::lend(fiber, header) };
            fiber.arena.set(arena);
            fiber.entered.set(entered);
        }
        None => {
            // SAFETY: M3: the waiter's count keeps header, arena and record, until this returns.
            let shared = unsafe { (*header.as_ref().arena.get()).shared() };
            let Some(own) = foreign::arena_for(shared) else { unreachable!("asked by `may_lend`") };
            // SAFETY: W1 by contract: claimed as lent; M3: an arena of this thread's stays while its runtime's record does, which the
            // header keeps.
            unsafe { run_on_thread(fiber, header, own.as_ref()) };
        }
    }
}

/// The same on a thread that is no worker.
///
/// # Safety
///
/// As [`run::lend`]; `fiber` is the calling one, and `own` the thread's arena in the request's runtime.
#[inline]
unsafe fn run_on_thread(fiber: &Fiber, header: NonNull<Header>, own: &Arena) {
    let (shared, owner_mailbox) = (own.shared(), &own.owner_mailbox);
    own.direct.count();
    let _guest = Guest::of(shared);
    shared.ending.foreign_begins();
    // SAFETY: O2: taken back below.
    let before = unsafe { owner_mailbox.begin_run(Some(NonNull::from(fiber.context()))) };
    if shared.ending.is(Stage::Swept) {
        // It may have been stirred before it was known that something runs here.
        owner_mailbox.stir();
    }
    let arena = fiber.arena.replace(own);
    let entered = fiber.entered.replace(shared.record_ptr().as_ptr());
    // SAFETY: by contract.
    unsafe { run::lend(fiber, header) };
    loop {
        if !owner_mailbox.is_empty() {
            cancel::attend_arena(own);
        }
        // SAFETY: O2: as it was.
        if unsafe { owner_mailbox.end_run(before) } {
            break;
        }
    }
    if shared.ending.foreign_ends() {
        shared.worker_records().iter().for_each(|worker| shared.wake(worker.index));
    }
    fiber.arena.set(arena);
    fiber.entered.set(entered);
    if arena.is_null() {
        // SAFETY: the waiter's count.
        foreign::settle_arenas_after(unsafe { header.as_ref() }, own);
    }
}
