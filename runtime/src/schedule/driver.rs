//! Runtimes without worker threads: the synchronous and the seeded mode.
//!
//! # Vocabulary
//!
//! * **seat**: a worker's record that no thread of the runtime's belongs to. A thread of the user's *takes* it when it first
//!   deals with the runtime, and gives it back when it exits. Coroutines never change their thread, so every thread has a seat
//!   of its own; in the seeded mode there is one.
//! * **driver**: the thread that has a seat, while it lets what stands on the seat run: inside a wait, a yield or a submit,
//!   on the frame of that call. It is the loop at the bottom of the seat's coroutines, as `Worker::drive` is elsewhere.
//! * **host**: the driver's own fiber, on which its code continues afterwards.
//! * **door**: a coroutine that is always at hand, whose loop does nothing but leave to the driver.
//! * **submitter**: a fiber that has submitted and waits until what it has submitted ends or suspends.
//! * **guest**: a thread that runs a request directly, on its own stack; with a seat or without.
//!
//! # How it goes
//!
//! Coroutines do not choose. A request that parks or yields leaves by the door; a request that has ended leaves its coroutine's loop,
//! which finds no order and leaves, too. So every scheduling point is in one place, [`Worker::step`](crate::schedule::worker): the
//! driver chooses, enters a coroutine, and is back when that leaves. What the two modes differ in is the choice
//! (`worker/driven/`): the synchronous one takes what a worker would, the seeded one draws.
//!
//! In the synchronous mode what is submitted runs at once. A fiber that submits enters a last in, first out list of
//! submitters, and switches to a coroutine that has the order to run the new request. The list precedes all choice. A
//! host that submits is below all of the list: it continues when the list is empty.
//!
//! # Runtimes whose last handle has gone
//!
//! Such a runtime stays while something stands on a seat there. A thread that waits, and that deals with it and has no seat there, takes one only if it finds
//! something that any seat could run ([`foreign::seats`]). What stands on other threads' seats is theirs to drive: in their waits, or at their exits. The thread
//! looks again at intervals ([`unseated::TURN`]), since nobody notifies a thread without a seat.
//!
//! # When nothing can go on
//!
//! A driver blocks if somebody else may still end a wait: the timer, a thread with another seat, a guest, another runtime.
//! On a virtual clock it moves the clock to the next deadline instead. If there is nobody, the innermost wait for a request
//! is answered with its cycle ([`stuck`](crate::schedule::worker)).
//!
//! # The race to prevent
//!
//! Another thread makes something ready between the driver's last poll and its sleep. The driver sleeps in its own
//! context's `block`. A thread that leaves something on a seat *nudges* that context afterwards, and a nudge before the
//! sleep prevents it.
//!
//! # Invariants
//!
//! * **D1** What stands on a seat is touched by the thread that has the seat. Taking and giving back goes through the lock of
//!   the seats, which orders one owner's doings before the next one's.
//! * **D2** A seat that is given back has no coroutine: idle ones and the door are dismantled, since their frames may have
//!   cached what belongs to the thread.
//! * **D3** The context that a seat names is there while it does: a thread gives its seats back before its fiber goes.
//! * **D4** While user code runs on the host the list of submitters is empty and no order is left.

mod limit;
mod seat;
mod unseated;

pub(crate) use self::limit::Limit;
pub(crate) use self::seat::{block_until_nudged, end_refused, handle_gone};

use std::mem;
use std::ptr;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use forebear_context::clock::deadline_after;
use forebear_context::context::{Cause, ForeignContext};
use forebear_context::shim::{Arc, time};

use crate::cancel;
use crate::foreign::{self, Seats};
use crate::record::fiber::Fiber;
use crate::record::header::{BORROWS, Header};
use crate::record::no_suspend;
use crate::schedule::admission;
use crate::schedule::worker::{HasWorkers, OnWorker};
use crate::shared::driven::Seat;
use crate::shared::{OfRuntime, Shared};

/// So long a wait drives, when it is over, what is left of a runtime whose last handle has gone.
const LEFT: Duration = Duration::from_millis(20);

/// A foreign thread is about to deal with the request: if its runtime has no threads of its own, the thread will drive it.
///
/// # Safety
///
/// The caller has a count of the request.
pub(crate) unsafe fn meet(h: &Header) {
    // SAFETY: M3.
    if let Some(shared) = unsafe { h.arena.get().as_ref() }.map(OfRuntime::shared)
        && shared.driven.is_some()
        && !shared.is_over()
    {
        foreign::arena_for(shared);
    }
}

/// A foreign thread enters the runtime.
pub(crate) fn enter(shared: &Arc<Shared>, fiber: &Fiber) {
    if shared.driven.is_some() && !fiber.has_worker() {
        foreign::arena_for(shared);
        foreign::seat(shared);
    }
}

/// A root is about to be pushed, with the entry's link. True: that is done, or it has run.
///
/// # Safety
///
/// The link is given away if the answer is true.
pub(crate) unsafe fn root_comes(shared: &Arc<Shared>, header: NonNull<Header>) -> bool {
    let Some(fiber) = foreign::fiber() else { return false };
    // SAFETY: the link. The shared queue refuses it, too.
    if cancel::refused(unsafe { header.as_ref() }) {
        return false;
    }
    let seeded = shared.driven.as_ref().is_some_and(|driven| driven.seed.is_some());
    let worker = match fiber.worker() {
        Some(worker) => Some(worker).filter(|worker| ptr::eq(worker.shared(), &**shared)),
        None => foreign::seat(shared).map(|index| &shared.workers()[index]),
    };
    let Some(worker) = worker.filter(|_| !shared.is_over()) else { return false };
    if seeded {
        // SAFETY: the link.
        let awaited = unsafe { header.as_ref() }.is(BORROWS);
        if !shared.push_root(header) {
            return false;
        }
        worker.pause_after_root(fiber, awaited);
        return true;
    }
    // SAFETY: by contract.
    unsafe { worker.root_comes(fiber, header) }
}

/// Whether the thread may be used for other requests now, on top of what stands on `fiber`.
pub(crate) fn may_leave(fiber: &Fiber) -> bool {
    fiber.context().no_suspend().get() == 0 && !std::thread::panicking()
}

/// The wait of a foreign thread: drives until it is over or, as any block, perhaps earlier. Whether it is over. It returns at `look`, too. Each seat gets a
/// step before the wait's time is up, however short that is.
///
/// # Safety
///
/// As [`ForeignContext::block`]; `fiber` is the thread's, and the context its.
pub(crate) unsafe fn wait(fiber: &Fiber, deadline: Option<Instant>, look: Option<Instant>) -> bool {
    let context = fiber.context();
    if context.no_suspend().get() != 0 {
        // What waits has refused before it began; see the head of `no_suspend`.
        no_suspend::die(fiber, "what others do in its scope or join");
    }
    let Seats { seats, lacking, others } = foreign::seats();
    // Where others have seats something may come that needs this thread.
    let turn = if others { deadline_after(time::now(), unseated::TURN) } else { None };
    let is_turn = || turn.is_some_and(|at| at <= time::now());
    let look = look.into_iter().chain(turn).min();
    // Also after a nudge: this is called until the wait is over.
    cancel::read_messages(fiber);
    if !seats.is_empty() {
        let mut has_stepped = false;
        loop {
            cancel::read_messages(fiber);
            foreign::take_returns();
            let is_settled = !context.is_waiting();
            let is_late = match is_settled {
                true => context.cause() == Cause::TimedOut,
                false => deadline.is_some_and(|at| at <= time::now()),
            };
            let over = is_settled || is_late;
            if seats[0].worker().step_late(fiber) {
                continue;
            }
            // A time-out that is over by now: what is ready gets a step all the same, or a loop of such waits would never let it run.
            let must_step = !mem::replace(&mut has_stepped, true) && is_late;
            // A stack that stands still in an unwind makes this thread look as if it panicked.
            let has_unwinding = || seats.iter().any(|seat| seat.worker().has_left_unwinding());
            if over && !must_step && !has_unwinding() {
                break;
            }
            // A step of each, by turns.
            if seats.iter().filter(|seat| seat.worker().step(fiber)).count() > 0 || admission::unstick() {
                if !over && is_turn() {
                    return false;
                }
                continue;
            }
            if over && !has_unwinding() {
                break;
            }
            if seats.iter().any(Seat::pass_time) {
                continue;
            }
            if over {
                break;
            }
            if lacking.is_empty() && crate::schedule::worker::settle_stuck(&seats, fiber, others) {
                continue;
            }
            if look.is_some_and(|at| at <= time::now()) {
                return false;
            }
            let quiet = seats.iter().filter_map(|seat| seat.worker().trim_if_quiet()).min();
            let trims = quiet.and_then(|left| deadline_after(time::now(), left));
            let look = look.into_iter().chain(trims).min();
            if lacking.is_empty() {
                // SAFETY: by contract.
                let _ = unsafe { ForeignContext::block_until_look(context, deadline, look) };
                continue;
            }
            // SAFETY: by contract.
            if !unsafe { unseated::block(context, &lacking, deadline, look) } {
                // The next call looks for a seat again.
                return false;
            }
        }
    } else {
        admission::unstick();
        foreign::take_returns();
        foreign::drop_late_elsewhere();
        if !lacking.is_empty() {
            // SAFETY: by contract.
            return unsafe { unseated::block(context, &lacking, deadline, look) };
        }
    }
    // Also if it is settled: its waker may still hold the lock (C1).
    // SAFETY: by contract.
    let over = unsafe { ForeignContext::block_until_look(context, deadline, look) };
    for seat in &seats {
        if seat.shared.signals.is_stopping() {
            // Something may always be ready.
            seat.step_within(fiber, Limit::of_call(LEFT));
            if seat.worker().is_done() {
                foreign::forget_seat(&seat.shared);
                seat.give_back();
            }
        }
    }
    over
}

/// A yield of a foreign thread: lets what is ready run once. False: there is nothing.
pub(crate) fn drive_some(fiber: &Fiber) -> bool {
    if !may_leave(fiber) {
        return false;
    }
    let Seats { seats, .. } = foreign::seats();
    let mut ran = false;
    for seat in &seats {
        let some = seat.worker().ready_now() + 16;
        ran |= (0..some).take_while(|_| seat.worker().step(fiber)).count() > 0;
    }
    ran || seats.iter().any(Seat::pass_time)
}
