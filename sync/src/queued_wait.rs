//! A wait in a queue, written once for every primitive except the lock below [`Mutex`](crate::Mutex), whose waiters return to their queue.
//!
//! # How it works
//!
//! 1. *Prepare*, a cold call, begins the wait. [`QueuedWaiter::enter`] enters the place into the primitive's queue; under the queue's lock, it first
//!    checks again whether there is anything to wait for.
//! 2. The *switch* is inlined into the public method that waits.
//! 3. *Settled*, a cold call again, returns how the wait ended. A waiter that was woken has been chosen: what was handed over belongs to it, even
//!    if it was cancelled since. A waiter that ended otherwise is taken out by [`QueuedWaiter::leave`].

use std::mem::MaybeUninit;
use std::panic::Location;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use forebear_context::context::{Cause, Context, Label, Lock, OwnerWait, Reason, Ticket, current};
use forebear_context::error::{Cancelled, Cycle, TimeoutError};

use crate::lock_queue::Place;
use crate::mutex::refuse;
use crate::raw_lock::Refused;

/// How long to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// Without a limit.
    Never,
    /// For this duration from the beginning of the wait.
    After(Duration),
    /// Until this instant; `None` is never.
    At(Option<Instant>),
}

impl Limit {
    /// Whether the caller only polls: it succeeds at once, or its wait times out. It enters no queue.
    #[inline]
    pub(crate) fn is_zero(self) -> bool {
        matches!(self, Limit::After(Duration::ZERO))
    }

    /// The instant until which to wait. Called by the stack's own code.
    #[inline]
    pub(crate) fn deadline(self, context: &Context) -> Option<Instant> {
        match self {
            Limit::Never => None,
            Limit::After(timeout) => context.deadline(timeout),
            Limit::At(deadline) => deadline,
        }
    }
}

/// How to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitTerms {
    /// The reason of the wait.
    pub reason: Reason,
    /// The name of the primitive.
    pub what: &'static str,
    /// The time limit.
    pub limit: Limit,
    /// The caller's place in the source.
    pub caller: &'static Location<'static>,
}

/// A primitive, as a place to wait.
pub(crate) trait QueuedWaiter<V> {
    /// Takes what the caller waits for, if it is available and no waiter is passed over by that.
    fn at_once(&self, value: &V) -> bool;

    /// Tries to succeed without entering the queue, by the data in the waiter's place. [`at_once`](Self::at_once) has returned false.
    fn try_unqueued(&self, _place: &Place<V>) -> bool {
        false
    }

    /// Enters the place into the queue, under its lock (L2). False: there is nothing to wait for any more, and the place was not entered.
    fn enter(&self, place: &Place<V>) -> bool;

    /// Takes the place of a waiter that was not chosen out of the queue. False: the waiter leaves too late, and has what it waited for.
    fn leave(&self, place: &Place<V>) -> bool;

    /// The name of the primitive, for a wait whose target is a label.
    fn label(&self) -> &Label {
        static NONE: Label = Label::NONE;
        &NONE
    }

    /// The description and the address of the primitive, if one context at a time holds it.
    fn lock(&self) -> Option<(&'static Lock, NonNull<()>)> {
        None
    }

    /// Whether the calling thread itself holds what it would wait for, and took it before a runtime knew the thread. A hint.
    fn is_held_by_thread(&self) -> bool {
        false
    }
}

/// The part of a wait that lies in the waiter's frame.
struct Frame<V> {
    place: MaybeUninit<Place<V>>,
    wait: MaybeUninit<OwnerWait>,
}

enum QueueStep {
    AtOnce,
    Park(Ticket, Option<Instant>),
    Refused(Refused),
}

/// Waits at `waiter`. To be inlined into the public method that waits, since the switch is (see [`forebear_context::switch`]).
#[inline(always)]
pub(crate) fn wait_in_queue<V, S: QueuedWaiter<V>>(
    waiter: &S,
    context: &Context,
    value: V,
    terms: WaitTerms,
) -> Result<(), Refused> {
    let mut frame = Frame { place: MaybeUninit::uninit(), wait: MaybeUninit::uninit() };
    let (ticket, deadline) = match prepare(waiter, context, value, terms, &mut frame) {
        QueueStep::AtOnce => return Ok(()),
        QueueStep::Refused(refused) => return Err(refused),
        QueueStep::Park(ticket, deadline) => (ticket, deadline),
    };
    // SAFETY: on the context's own stack, after `begin`.
    let cause = unsafe { context.park_until(ticket, deadline) };
    // SAFETY: the place was in the queue.
    settled(waiter, context, ticket, cause, unsafe { frame.place.assume_init_ref() })
}

/// Succeeds at once, or begins the wait and enters the queue.
#[cold]
#[inline(never)]
fn prepare<V, S: QueuedWaiter<V>>(
    waiter: &S,
    context: &Context,
    value: V,
    terms: WaitTerms,
    frame: &mut Frame<V>,
) -> QueueStep {
    if terms.reason.is_cancellable() && context.is_cancelled() {
        return QueueStep::Refused(Refused::Cancelled);
    }
    if waiter.at_once(&value) {
        return QueueStep::AtOnce;
    }
    if terms.limit.is_zero() {
        // SAFETY: C2: this is the context's own stack; C4: for nothing that is followed, and it is taken back below.
        let ticket = unsafe { context.begin(terms.reason, std::ptr::null_mut()) };
        // SAFETY: L4: the frame is on the context's own stack.
        let had = waiter.try_unqueued(frame.place.write(unsafe { Place::new(context, ticket, value) }));
        // SAFETY: C2: begun just now, and not parked; the place is in no queue.
        unsafe { context.abandon(ticket) };
        return if had { QueueStep::AtOnce } else { QueueStep::Refused(Refused::TimedOut) };
    }
    if let Some(why) = context.refusal(terms.what) {
        return QueueStep::Refused(Refused::MustNotSuspend(why.into()));
    }
    let deadline = terms.limit.deadline(context);
    let Some((of, lock)) = waiter.lock() else {
        // SAFETY: C2: this is the context's own stack; C4: the caller has the seat borrowed until the wait is over, and nothing unwinds
        // before it is parked or taken back.
        let ticket =
            unsafe { context.begin(terms.reason, std::ptr::from_ref(waiter.label()).cast_mut().cast()) };
        // SAFETY: L4: the frame is on the context's own stack.
        if waiter.enter(frame.place.write(unsafe { Place::new(context, ticket, value) })) {
            return QueueStep::Park(ticket, deadline);
        }
        // SAFETY: C2: begun just now, and not parked; the place is in no queue.
        unsafe { context.abandon(ticket) };
        return QueueStep::AtOnce;
    };
    let node = NonNull::from(&mut frame.place).cast();
    // SAFETY: `waiter` and `frame` outlive the record and the wait.
    let wait = frame.wait.write(unsafe { OwnerWait::new(lock, node, of, terms.caller) });
    // On a worker's stack, or one that a test simulates, the thread's list belongs to another context.
    let is_of_thread = context.place().get() == 0 && current() == Some(NonNull::from(context));
    if deadline.is_none() && is_of_thread && waiter.is_held_by_thread() {
        return QueueStep::Refused(Refused::Circular(Cycle::new([context.name(), wait.to_string()])));
    }
    // SAFETY: C2: this is the context's own stack; C4: `frame` outlives the wait where it is, and nothing unwinds before it is parked or
    // taken back.
    let ticket = unsafe { context.begin_owned(terms.reason, wait) };
    // SAFETY: L4: the frame is on the context's own stack.
    let place = frame.place.write(unsafe { Place::new(context, ticket, value) });
    if !waiter.enter(place) {
        // SAFETY: C2: begun just now, and not parked; the place is in no queue.
        unsafe { context.abandon(ticket) };
        return QueueStep::AtOnce;
    }
    // SAFETY: its own table, on its own stack, before it parks.
    match unsafe { (context.table().wait_for_owner)(context, ticket, wait, deadline.is_some()) } {
        Some(cycle) => {
            waiter.leave(place);
            QueueStep::Refused(Refused::Circular(cycle))
        }
        None => QueueStep::Park(ticket, deadline),
    }
}

/// The wait is over.
#[cold]
#[inline(never)]
fn settled<V, S: QueuedWaiter<V>>(
    waiter: &S,
    context: &Context,
    ticket: Ticket,
    cause: Cause,
    place: &Place<V>,
) -> Result<(), Refused> {
    let refused = match cause {
        Cause::Woken => return Ok(()),
        Cause::TimedOut => Refused::TimedOut,
        Cause::Cancelled => Refused::Cancelled,
        Cause::Circular => {
            // SAFETY: its own table, on its own stack.
            let cycle = unsafe { (context.table().take_cycle)(context, ticket) };
            Refused::Circular(cycle.unwrap_or_else(|| Cycle::new([context.name()])))
        }
    };
    if waiter.leave(place) { Err(refused) } else { Ok(()) }
}

/// The answer of a public method, which is where its caller called it: `map_err` would forget that.
pub(crate) trait Answer<T> {
    /// That of a wait with a time limit.
    fn timed(self) -> Result<T, TimeoutError>;
    /// That of a wait without a time limit.
    fn untimed(self) -> Result<T, Cancelled>;
}

impl<T> Answer<T> for Result<T, Refused> {
    #[inline(always)]
    #[track_caller]
    fn timed(self) -> Result<T, TimeoutError> {
        match self {
            Ok(value) => Ok(value),
            Err(Refused::TimedOut) => Err(TimeoutError::TimedOut),
            Err(Refused::Cancelled) => Err(TimeoutError::Cancelled),
            Err(refused) => refuse(refused),
        }
    }

    #[inline(always)]
    #[track_caller]
    fn untimed(self) -> Result<T, Cancelled> {
        match self {
            Ok(value) => Ok(value),
            Err(Refused::Cancelled) => Err(Cancelled::new()),
            Err(refused) => refuse(refused),
        }
    }
}
