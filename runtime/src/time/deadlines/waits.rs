//! Entries of waits: arming one and taking it back. The head of [`super`] says who keeps the time of which wait, and has the races.

use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use forebear_context::clock::deadline_after;
use forebear_context::context::{Alarm, Cause, Context, Ticket};
use forebear_context::shim::{Arc, time};

use super::firing::refuse;
use crate::record::fiber::{self, Fiber};
use crate::shared::deadlines::{Deadlines, DeadlinesRecord, FiredEntry};
use crate::shared::driven::Driven;
use crate::shared::worker::{OnRecord, WorkerRecord};
use crate::stack::coroutine;
use crate::state::alarms::Standing;
use crate::state::estimated_clock;

impl Deadlines {
    /// The instant `timeout` from now, or very soon after that; `None` if it is too far off to be told, which means never.
    pub(crate) fn after(&self, timeout: Duration) -> Option<Instant> {
        match fiber::get().and_then(Fiber::worker_record) {
            Some(worker) if ptr::eq(&worker.shared().deadlines, self) => self.after_on(worker, timeout),
            _ => deadline_after(self.now(), timeout),
        }
    }

    /// The same on a worker of its runtime.
    pub(crate) fn after_on(&self, worker: &WorkerRecord, timeout: Duration) -> Option<Instant> {
        let now = match timeout < estimated_clock::SHORT {
            // None, perhaps: then it is over when it begins.
            true => self.now(),
            false => worker.estimated_clock.now(estimated_clock::ticks, || self.now()),
        };
        deadline_after(now, timeout)
    }

    /// Arms a time limit: at `at`, or before this returns if that is past, settles the wait under `ticket` with [`Cause::TimedOut`], unless it
    /// is already settled.
    ///
    /// # Safety
    ///
    /// T2: the context stays valid until the returned alarm was passed to [`disarm`](Self::disarm) and that call has returned.
    #[inline]
    pub(crate) unsafe fn arm(&self, at: Instant, context: NonNull<Context>, ticket: Ticket) -> Alarm {
        // SAFETY: by contract.
        let waits = unsafe { context.as_ref() };
        if let Some(worker) = self.record().own(waits) {
            return self.record().arm_own(worker, at, context, ticket);
        }
        let stays = coroutine::is_coroutines(waits);
        self.record().arm(
            at,
            if stays { FiredEntry::Coroutine(context, ticket) } else { FiredEntry::Wait(context, ticket) },
            || (),
        )
    }

    /// The same for a wait of a coroutine of that worker, if the worker keeps its time. Its alarm may have stayed from an earlier one, and do
    /// for this.
    ///
    /// # Safety
    ///
    /// As [`arm`](Self::arm); on the worker's thread, and this is the worker's runtime.
    #[inline(always)]
    pub(crate) unsafe fn arm_own(
        &self,
        worker: &WorkerRecord,
        at: Instant,
        context: &Context,
        ticket: Ticket,
    ) -> Option<Alarm> {
        if !self.record().is_kept_by_workers() {
            return None;
        }
        let context = NonNull::from(context);
        // SAFETY: by contract. The entry is as in `arm`.
        let again = unsafe {
            let standing = coroutine::alarm_of(context);
            self.record()
                .shards()
                .arm_again(worker.index, standing.as_ref(), at, || FiredEntry::Own(context, ticket, at))
        };
        Some(match again {
            Some(number) => {
                worker.note_alarm();
                Alarm { number, own: None }
            }
            None => self.record().arm_own(worker, at, context, ticket),
        })
    }

    /// Takes back the alarm of a coroutine of that worker: it stays, for the coroutine's next wait. Answers whether it had not fired.
    ///
    /// # Safety
    ///
    /// On the worker's thread, and this is the worker's runtime.
    #[inline(always)]
    pub(crate) unsafe fn put_to_rest(&self, worker: &WorkerRecord, context: &Context, alarm: Alarm) -> bool {
        if !self.record().is_kept_by_workers() || alarm.number == 0 {
            return self.disarm(context, alarm);
        }
        // SAFETY: by contract: this is the worker's thread and runtime, and the context a coroutine's of that worker, whose alarm lies
        // beside it.
        unsafe {
            let standing = coroutine::alarm_of(NonNull::from(context));
            self.record().shards().put_to_rest(worker.index, standing.as_ref(), alarm.number)
        }
    }

    /// A coroutine of that worker goes, and its alarm with it.
    ///
    /// # Safety
    ///
    /// On the worker's thread, and this is the worker's runtime.
    #[inline]
    pub(crate) unsafe fn dismiss(&self, worker: &WorkerRecord, standing: &Standing) {
        if standing.is_some() {
            // SAFETY: by contract.
            unsafe { self.record().shards().dismiss(worker.index, standing) };
        }
    }

    /// Takes a wait's entry back. When this returns the timer has done with the context and never touches it again. True: it had
    /// not fired.
    #[cold]
    #[inline(never)]
    pub(crate) fn disarm(&self, context: &Context, alarm: Alarm) -> bool {
        match self.record().own(context) {
            // SAFETY: a coroutine's alarm is taken back on its worker's thread.
            Some(worker) if alarm.number != 0 => unsafe {
                let standing = coroutine::alarm_of(NonNull::from(context));
                self.record().shards().put_to_rest(worker.index, standing.as_ref(), alarm.number)
            },
            _ => self.record().disarm(alarm.number),
        }
    }

    /// How the waiter on this thread is to wait until `at`: with an entry, or by itself until the system's time answered.
    ///
    /// # Safety
    ///
    /// As [`arm`](Self::arm); on the context's own stack.
    #[inline(always)]
    unsafe fn keep_for(&self, at: Instant, context: &Context, ticket: Ticket) -> Alarm {
        let foreign = fiber::get().is_none_or(|fiber| !fiber.has_worker());
        if foreign && self.record().clock().is_none() {
            let left = at.saturating_duration_since(time::now());
            Alarm { number: 0, own: deadline_after(time::now(), left) }
        } else {
            // SAFETY: by contract.
            unsafe { self.arm(at, NonNull::from(context), ticket) }
        }
    }
}

impl DeadlinesRecord {
    /// The worker that keeps the time of this context's waits, in a shard of its own.
    #[inline]
    pub(super) fn own<'a>(&self, context: &'a Context) -> Option<&'a WorkerRecord> {
        if !self.is_kept_by_workers() || !coroutine::is_coroutines(context) {
            return None;
        }
        // SAFETY: it is a coroutine's.
        let worker = unsafe { coroutine::fiber_of(context) }.worker_record()?;
        // It may wait by another runtime's clock.
        ptr::eq(Arc::as_ptr(worker.shared().deadlines.record()), self).then_some(worker)
    }

    /// A wait of a coroutine of that worker, on the worker's thread.
    #[inline(never)]
    pub(super) fn arm_own(
        self: &Arc<Self>,
        worker: &WorkerRecord,
        at: Instant,
        context: NonNull<Context>,
        ticket: Ticket,
    ) -> Alarm {
        worker.note_alarm();
        let entry = FiredEntry::Own(context, ticket, at);
        // SAFETY: by contract the owner of the shard is the caller.
        match unsafe { self.shards().insert(worker.index, at, entry, || self.at_least(), || ()) } {
            Ok(armed) => {
                if armed.first {
                    self.limit_timer_sleep(worker.index, at);
                }
                Alarm { number: armed.number, own: None }
            }
            Err(refused) => {
                refuse(refused);
                Alarm { number: 0, own: None }
            }
        }
    }
}

/// Sees to it that the wait ends at `at`, by an entry or by the thread itself, and that a runtime without threads has its time pass.
///
/// # Safety
///
/// As [`Deadlines::arm`]; on the context's own stack.
#[cold]
pub(crate) unsafe fn keep(
    deadlines: &Deadlines,
    driven: Option<&Driven>,
    at: Instant,
    context: &Context,
    ticket: Ticket,
) -> Alarm {
    // SAFETY: by contract.
    let kept = unsafe { deadlines.keep_for(at, context, ticket) };
    if let Some(driven) = driven {
        driven.deadline_came();
    }
    kept
}

/// Parks the context until the wait that `ticket` names is settled, at the latest at `at` on the clock of `deadlines`, and
/// answers why it continues. When it returns no timer knows of the wait. `driven` is the runtime's record of its drivers, if it
/// has no threads.
///
/// The one way to wait with a time-out, for requests and for foreign threads. To be inlined into the public method that
/// waits, as [`Context::park`] is; without `at` it is that and nothing more.
///
/// # Safety
///
/// As [`Context::park`]. The record of the runtime stays until this returns.
#[inline(always)]
pub(crate) unsafe fn park_until(
    deadlines: &Deadlines,
    driven: Option<&Driven>,
    context: &Context,
    ticket: Ticket,
    at: Option<Instant>,
) -> Cause {
    // SAFETY: T2: this context is here at least until `disarm` has returned, below; nothing in between unwinds.
    let kept = at.map(|at| unsafe { keep(deadlines, driven, at, context, ticket) });
    // SAFETY: by contract.
    let cause = unsafe { context.park(kept.as_ref().and_then(|alarm| alarm.own)) };
    if let Some(alarm) = kept {
        deadlines.disarm(context, alarm);
    }
    cause
}
