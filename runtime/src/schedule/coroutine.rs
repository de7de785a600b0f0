//! A worker's loop, inside a coroutine: how a coroutine is built, what its loop does next, and how it parks and is made ready. The
//! record, and invariants K1 to K6, are in [`crate::stack::coroutine`].
//!
//! | function | thread and stack | state of the coroutine (K2), before and after |
//! |---|---|---|
//! | [`Coroutine::build`] | its worker's thread, another stack | none, idle |
//! | `body` | its own stack | current |
//! | `prepare` | its own stack | current; parked when the switch follows |
//! | `finish` | its own stack, entered again | current |
//! | `unpark`, `ready` | any thread | parked, ready |
//! | [`Coroutine::dismantle`] | its worker's thread, another stack | idle, none |
//!
//! # The race
//!
//! *A waker against a stack that has not been left yet.* A waker that settles the wait before `prepare` makes the coroutine ready while it is current.
//! The coroutine is then in the ready queue or the mailbox of its own worker, whose thread is still on this stack, so no thread enters it a second time.
//! `prepare` either finds it first in the queue and does not leave, or leaves for another stack; then the worker enters it at its turn.
//!
//! A waker touches the coroutine after its exchange, to link it into a queue. Its memory stays (K3), and no other thread links it: one settled wait is
//! one place in one queue.

use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::time::Instant;

use forebear_context::context::{Cause, Context, Ticket};
use forebear_context::lineage::LEAST_KEY;
use forebear_context::shim::atomic::AtomicPtr;
use forebear_context::switch::StackMemory;

use crate::record::fiber::{self, Fiber, LEFT_PARKED, LEFT_UNWINDING};
use crate::schedule::run;
use crate::schedule::worker::{Next, OnWorker, Worker};
use crate::shared::going::Chain;
use crate::shared::parked;
use crate::stack::coroutine::Coroutine;
use crate::stack::lent::Lent;
use crate::stack::slab::StackSlot;
use crate::state::alarms::Standing;

mod table;

use self::table::TABLE;

impl Coroutine {
    /// Builds a coroutine at the top of `slot`, its loop not yet begun.
    pub(crate) fn build(slot: StackSlot, worker: &Worker) -> NonNull<Coroutine> {
        let context = Self::context_in(slot.top());
        let (at, limit) = (context.addr().get(), slot.limit());
        let coroutine = context.as_ptr().cast::<Coroutine>();
        // SAFETY: the top of a fresh slot (S1, S2), aligned. K4 for the context and the fiber.
        unsafe {
            Context::renew(context, &TABLE);
            // The loop runs user destructors and callbacks, which may wait before the first request has begun here. A ready
            // fiber must have a key.
            Fiber::renew(Fiber::behind(context), context.as_ptr(), worker.as_ptr(), limit, LEAST_KEY);
            (&raw mut (*coroutine).link).write(AtomicPtr::new(ptr::null_mut()));
            (&raw mut (*coroutine).pending).write(Cell::new(ptr::null()));
            (&raw mut (*coroutine).slot).write(Cell::new(Some(slot)));
            (&raw mut (*coroutine).listed).write(Cell::new(0));
            (&raw mut (*coroutine).alarm).write(Standing::default());
            let this = &*coroutine;
            this.fiber.branches.init();
            this.fiber.arena.set(worker.arena());
            // From here on it is this worker's (K6).
            this.context.place().set(ptr::from_ref(worker).addr());
            // Both are there as long as the coroutine (K1, K3).
            this.context.show(worker.post.attention.word(), NonNull::from(&this.fiber.urgency));
            let memory = StackMemory { base: at, limit };
            this.context.switch().start(memory, body, NonNull::from(&this.context));
            let coroutine = NonNull::new_unchecked(coroutine);
            worker.post.list_coroutine(coroutine);
            coroutine
        }
    }

    /// Forgets its frames and hands its memory over.
    ///
    /// # Safety
    ///
    /// K3: it is idle, and is not used afterwards.
    pub(crate) unsafe fn dismantle(this: NonNull<Coroutine>) -> Option<StackSlot> {
        // SAFETY: K3: the coroutine is idle, and its memory stays; K1: its worker outlives it, whose thread this is. It is not used
        // afterwards, so its stack may be forgotten and its slot taken.
        unsafe {
            let worker = &*this.as_ref().fiber.worker.cast::<Worker>();
            worker.shared().deadlines.dismiss(worker, &this.as_ref().alarm);
            this.as_ref().context.switch().reset();
            // K6.
            this.as_ref().context.place().set(0);
            this.as_ref().slot.take()
        }
    }
}

/// The loop. See `pool/src/worker.rs` for the steps it drives.
///
/// # Safety
///
/// The context is of a coroutine that [`Coroutine::build`] has written, and this is the first code on its stack.
unsafe fn body(context: NonNull<Context>) -> ! {
    // SAFETY: `build` gives a coroutine's context.
    let coroutine = unsafe { Coroutine::of(context).as_ref() };
    // Only the OS-thread backend needs this: it has its own thread-locals.
    #[cfg(any(forebear_threads, shuttle))]
    // SAFETY: K3.
    unsafe {
        fiber::enter(&coroutine.fiber);
        coroutine.fiber.limit.set(crate::stack::thread_limit());
    }
    // SAFETY: K1: the worker outlives its coroutines.
    let worker = unsafe { &*coroutine.fiber.worker.cast::<Worker>() };
    loop {
        if let Some(header) = NonNull::new(coroutine.pending.replace(ptr::null()).cast_mut()) {
            coroutine.begins_anew();
            // SAFETY: claimed by the code that left it here, with the runner's link.
            unsafe { run::start(&coroutine.fiber, header) };
            continue;
        }
        let to = match worker.next() {
            Some(Next::Start(header)) => {
                // SAFETY: claimed, with the runner's link.
                match unsafe { worker.start(header, coroutine) } {
                    None => continue,
                    Some(larger) => Some(larger),
                }
            }
            Some(Next::End(header)) => {
                coroutine.begins_anew();
                // SAFETY: what was put aside is the taker's to end, and this fiber has nothing on top.
                unsafe { worker.end_put_aside(&coroutine.fiber, header) };
                continue;
            }
            Some(Next::Fail(header)) => {
                coroutine.begins_anew();
                // SAFETY: claimed, with the runner's link.
                match unsafe { worker.start_elsewhere(header, coroutine) } {
                    None => continue,
                    Some(other) => Some(other),
                }
            }
            Some(Next::Late) => {
                coroutine.begins_anew();
                worker.drop_late();
                continue;
            }
            Some(Next::Warn) => {
                coroutine.begins_anew();
                worker.warn_now();
                continue;
            }
            // SAFETY: a ready fiber of a worker is a coroutine's.
            Some(Next::Resume(fiber)) => Some(unsafe { Coroutine::of_fiber(fiber) }),
            None => None,
        };
        worker.put_idle(NonNull::from(coroutine));
        // SAFETY: K2: this coroutine is idle now, and the one that it switches to is no longer ready.
        unsafe { coroutine.context.switch().leave(to.map(|to| to.as_ref().context())) };
    }
}

/// # Safety
///
/// As [`Table::prepare`](forebear_context::context::Table::prepare).
unsafe fn prepare(context: &Context, _deadline: Option<Instant>) -> Option<NonNull<Context>> {
    // SAFETY: this table is given to coroutines only.
    let coroutine = unsafe { Coroutine::of(NonNull::from(context)).as_ref() };
    // SAFETY: K1.
    let worker = unsafe { &*coroutine.fiber.worker.cast::<Worker>() };
    match worker.leaves_shortly(&coroutine.fiber) {
        Some(key) => prepare_shortly(coroutine, worker, key),
        None => prepare_fully(coroutine, worker),
    }
}

/// The same for the ready fiber that this worker's queues let go first. A function of its own, since it calls one.
#[inline(never)]
fn prepare_shortly(coroutine: &Coroutine, worker: &Worker, key: u64) -> Option<NonNull<Context>> {
    if std::thread::panicking() {
        return prepare_fully(coroutine, worker);
    }
    if !worker.shared().is_of_one() {
        return prepare_beside_others(coroutine, worker, key);
    }
    context_of(worker.leave_shortly(&coroutine.fiber))
}

/// The same if the queues of other workers decide.
#[inline(never)]
fn prepare_beside_others(coroutine: &Coroutine, worker: &Worker, key: u64) -> Option<NonNull<Context>> {
    if !worker.shared().goes_before_others(worker.index, key) {
        return prepare_fully(coroutine, worker);
    }
    context_of(worker.leave_shortly(&coroutine.fiber))
}

#[inline(always)]
fn context_of(coroutine: Option<NonNull<Coroutine>>) -> Option<NonNull<Context>> {
    // SAFETY: K3.
    coroutine.map(|coroutine| unsafe { coroutine.as_ref() }.context())
}

/// The same by a pick.
#[inline(never)]
fn prepare_fully(coroutine: &Coroutine, worker: &Worker) -> Option<NonNull<Context>> {
    // The wait has begun: its record in this stack's frames may stand in a list.
    let lent = Lent::to(|| "those who may end its wait");
    let next = worker.leave_parked(&coroutine.fiber);
    lent.given_back();
    if next.is_none() && coroutine.fiber.left.get() != 0 {
        back(&coroutine.fiber);
    }
    context_of(next)
}

/// # Safety
///
/// As [`Table::finish`](forebear_context::context::Table::finish).
unsafe fn finish(context: &Context) {
    // SAFETY: this table is given to coroutines only, so the context lies in one; this is its own stack.
    let fiber = unsafe { &Coroutine::of(NonNull::from(context)).as_ref().fiber };
    if fiber.left.get() != 0 {
        back(fiber);
    }
}

/// A fiber is entered again, and the leave has left something to undo.
#[cold]
#[inline(never)]
fn back(fiber: &Fiber) {
    if fiber.left.get() & LEFT_UNWINDING != 0
        && let Some(worker) = fiber.worker()
    {
        worker.back_unwinding(fiber);
    }
    if fiber.left.get() & LEFT_PARKED != 0 {
        fiber.left.set(fiber.left.get() & !LEFT_PARKED);
        parked::leave(fiber.context());
    }
}

/// # Safety
///
/// As [`Table::unpark`](forebear_context::context::Table::unpark).
unsafe fn unpark(context: NonNull<Context>, ticket: Ticket, cause: Cause) -> bool {
    // SAFETY: this table is given to coroutines only. K3: coroutines' memory stays, so even a late ticket may look.
    let coroutine = unsafe { Coroutine::of(context) };
    // SAFETY: as above.
    if !unsafe { coroutine.as_ref() }.context.settle(ticket, cause) {
        return false;
    }
    // SAFETY: this thread has settled the wait.
    unsafe { let_go_on(coroutine) };
    true
}

/// # Safety
///
/// As [`Table::ready`](forebear_context::context::Table::ready).
unsafe fn ready(context: NonNull<Context>, ticket: Ticket) {
    // SAFETY: this table is given to coroutines only.
    let coroutine = unsafe { Coroutine::of(context) };
    // SAFETY: K3; chosen by the caller.
    unsafe { coroutine.as_ref().context.settle_chosen(ticket) };
    // SAFETY: K3; this thread has just settled the wait.
    unsafe { let_go_on(coroutine) };
}

/// Puts a coroutine into its worker's ready queue or mailbox, to be entered again.
///
/// # Safety
///
/// The caller has just settled its wait.
#[inline]
unsafe fn let_go_on(coroutine: NonNull<Coroutine>) {
    // SAFETY: K3.
    let this = unsafe { coroutine.as_ref() };
    // SAFETY: K1.
    let worker = unsafe { &*this.fiber.worker.cast::<Worker>() };
    if fiber::get().is_some_and(|here| worker.owns(here)) {
        worker.make_ready(NonNull::from(&this.fiber));
    } else {
        send_alone(coroutine, worker);
    }
}

/// Hands a coroutine over to another worker.
#[inline(never)]
fn send_alone(coroutine: NonNull<Coroutine>, worker: &Worker) {
    Chain::of(coroutine, worker).send();
}

#[cfg(all(test, not(forebear_threads)))]
mod tests {
    use crate::record::fiber;
    use crate::{Runtime, spawn};

    /// So that a parked request's stack stays within one page, colour included.
    #[test]
    #[cfg_attr(debug_assertions, ignore = "frames are larger without optimisation")]
    fn the_frames_below_a_parked_request_fit_two_kibibytes() {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let used = runtime.run(|| {
            let parked = spawn(|| {
                let fiber = fiber::get().unwrap();
                let coroutine = std::ptr::from_ref(fiber) as usize;
                (coroutine - fiber::stack_pointer(), crate::yield_now()).0
            });
            crate::yield_now().unwrap();
            parked.take().unwrap()
        });
        assert!(used + size_of::<super::Coroutine>() < 2048, "{used} bytes of frames");
        println!("{used} bytes of frames, {} of control block", size_of::<super::Coroutine>());
    }
}
