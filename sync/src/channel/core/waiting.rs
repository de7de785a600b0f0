//! A send and a receive that wait when they must.
//!
//! # Two parts
//!
//! *Preparing* is cold. Under one hold of the lock it sends or receives at once, or begins the wait and lists it, so
//! that no operation comes between the check and the listing. Parking is inlined into the public method, as the switch
//! is. Settling the item afterwards is cold again.
//!
//! # The result of a wait
//!
//! The slot has the result. The operation that serves a waiter moves the item; nothing else touches the
//! slot (N1).
//!
//! | the wait ended | a sender's slot | a receiver's slot |
//! | --- | --- | --- |
//! | woken, served | is empty: the item was taken | has the item |
//! | woken, the other side is over | still has the item, which returns to the caller | is empty |
//! | timed out, cancelled | as above, and the place is taken out of its list | the same |
//!
//! # Looking again
//!
//! To wait for a context of another worker, and to be woken by it, moves several memory lines from core to core, for
//! both. If both sides run, and one is only a little faster, that would happen for each item. A receiver would take one
//! item from a full channel and wake a sender, which finds room for one item and waits again. So an operation *retries*
//! before it waits, a few times, with pauses in between ([`Retries`](forebear_context::retries::Retries)). It does so if
//! the other side seems to be on another worker. A retry that succeeds mostly finds room, or items, for many
//! operations. Meanwhile the operation is not among the waiters, and delays no other; as soon as there is another
//! waiter, it becomes a waiter, too. The number of retries follows their recent success: where they fail they stop, but
//! for a rare attempt.

use std::cell::Cell;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::time::Duration;

use forebear_context::context::{Cause, Context, Reason};
use forebear_context::shim::mutant;

use super::short::{Held, ShortPut, ShortTake};
use super::{Channel, ChannelState, ChannelStep, Slot, Spot, Store, wake};
use crate::channel::error::{RecvTimeoutError, SendTimeoutError, TryRecvError, TrySendError};
use crate::channel::sides::{ROOM, SOMETHING, is_elsewhere, is_in_a_hurry, on_of, pause};
use crate::lock_queue::Place;

impl<T, S: Store<T>> Channel<T, S> {
    /// Sends, for so long at most. To be inlined into the public method, since the switch is.
    #[inline(always)]
    #[track_caller]
    pub(in crate::channel) fn send(
        &self,
        context: &Context,
        item: T,
        timeout: Option<Duration>,
    ) -> Result<(), SendTimeoutError<T>> {
        if timeout == Some(Duration::ZERO) {
            return self.look_for_room(context, item);
        }
        // Before the wait is begun: a thread that sees it wait then knows that its time runs.
        let deadline = timeout.and_then(|timeout| context.deadline(timeout));
        let item = ManuallyDrop::new(item);
        let held = match self.put_shortly(context, &item) {
            ShortPut::Stored => return Ok(()),
            ShortPut::Given(receiver) => {
                receiver.wake();
                return Ok(());
            }
            ShortPut::General(held) => held,
        };
        let (item, mut spot) = (ManuallyDrop::into_inner(item), MaybeUninit::uninit());
        match self.prepare_send(context, item, &mut spot, is_in_a_hurry(timeout), held) {
            ChannelStep::Done(answer) => answer,
            ChannelStep::Park(ticket) => {
                // SAFETY: on the context's own stack, after `begin`.
                let cause = unsafe { context.park_until(ticket, deadline) };
                // SAFETY: `prepare_send` has begun a wait, so it has written the place.
                let place = unsafe { spot.assume_init_ref() };
                // SAFETY: the wait is over.
                unsafe { self.sent(place, cause) }
            }
        }
    }

    /// Receives, for so long at most. To be inlined into the public method, since the switch is.
    #[inline(always)]
    #[track_caller]
    pub(in crate::channel) fn receive(
        &self,
        context: &Context,
        timeout: Option<Duration>,
    ) -> Result<T, RecvTimeoutError> {
        if timeout == Some(Duration::ZERO) {
            return self.look_for_item(context);
        }
        // Before the wait is begun: a thread that sees it wait then knows that its time runs.
        let deadline = timeout.and_then(|timeout| context.deadline(timeout));
        let (mut spot, mut item) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        let ticket = match self.take_shortly(context, &mut spot, &mut item) {
            // SAFETY: by this answer the item was written.
            ShortTake::Taken => return Ok(unsafe { item.assume_init() }),
            ShortTake::Park(ticket) => ticket,
            ShortTake::General(held) => {
                match self.prepare_receive(context, &mut spot, is_in_a_hurry(timeout), held) {
                    ChannelStep::Done(answer) => return answer,
                    ChannelStep::Park(ticket) => ticket,
                }
            }
        };
        // SAFETY: on the context's own stack, after `begin`.
        let cause = unsafe { context.park_until(ticket, deadline) };
        // SAFETY: the answer `Park` says that a wait was begun, and the place written.
        let place = unsafe { spot.assume_init_ref() };
        if cause == Cause::Woken
            && let Some(item) = place.value.take()
        {
            return Ok(item);
        }
        // SAFETY: the wait is over.
        unsafe { self.received(place, cause) }
    }

    /// Sends with a time-out of zero: now, or not.
    #[cold]
    fn look_for_room(&self, context: &Context, item: T) -> Result<(), SendTimeoutError<T>> {
        if context.is_cancelled() {
            return Err(SendTimeoutError::Cancelled(item));
        }
        self.put(item).map_err(|refused| match refused {
            TrySendError::Full(item) => SendTimeoutError::TimedOut(item),
            TrySendError::Disconnected(item) => SendTimeoutError::Disconnected(item),
        })
    }

    /// Receives with a time-out of zero: what is there.
    #[cold]
    fn look_for_item(&self, context: &Context) -> Result<T, RecvTimeoutError> {
        if context.is_cancelled() {
            return Err(RecvTimeoutError::Cancelled);
        }
        self.take().map_err(|refused| match refused {
            TryRecvError::Empty => RecvTimeoutError::TimedOut,
            TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
        })
    }

    /// Puts, or stands among the senders.
    #[inline(never)]
    #[track_caller]
    fn prepare_send<'a>(
        &'a self,
        context: &Context,
        mut item: T,
        spot: &mut Spot<T>,
        hurries: bool,
        mut held: Option<Held<'a, T, S>>,
    ) -> ChannelStep<Result<(), SendTimeoutError<T>>> {
        if held.is_none() && !context.shows_words() {
            let kept = ManuallyDrop::new(item);
            match self.put_after_a_call(context, &kept) {
                ShortPut::Stored => return ChannelStep::Done(Ok(())),
                ShortPut::Given(receiver) => {
                    receiver.wake();
                    return ChannelStep::Done(Ok(()));
                }
                ShortPut::General(hold) => (held, item) = (hold, ManuallyDrop::into_inner(kept)),
            }
        }
        // Under the lock nothing is asked: it was asked before.
        if held.is_none() && context.is_cancelled() {
            return ChannelStep::Done(Err(SendTimeoutError::Cancelled(item)));
        }
        let mut may_wait = context.no_suspend().get() == 0;
        let mut looked = 0;
        loop {
            let hold = held.take().unwrap_or_else(|| self.state.hold());
            let put =
                hold.with_mut(|state| match state.put(item, self.capacity, &self.batch, || on_of(context)) {
                    Err(TrySendError::Full(mut item)) if may_wait => {
                        state.put_on = on_of(context);
                        if !hurries
                            && state.senders.is_empty()
                            && is_elsewhere(state.put_on, state.took_on)
                            && state.sends.again(looked)
                        {
                            return Err(TrySendError::Full(item));
                        }
                        if mutant!("sender_waits_beside_a_batch", false, state.in_batch > 0) {
                            state.give_back(&self.batch);
                            match state.put(item, self.capacity, &self.batch, || on_of(context)) {
                                Err(TrySendError::Full(back)) => item = back,
                                put => return put.map(Ok),
                            }
                        }
                        // SAFETY: C2: this is the context's own stack; C4: the caller's end keeps the channel, and nothing unwinds
                        // before the wait is parked.
                        let ticket = unsafe { context.begin(Reason::Send, self.target()) };
                        // SAFETY: L4: the place lies on the context's own stack.
                        let place = spot.write(unsafe { Place::new(context, ticket, Cell::new(Some(item))) });
                        // SAFETY: L1, L2: the place stays in its frame until it is out.
                        unsafe { state.senders.enter(place) };
                        state.senders_wait = true;
                        Ok(Err(ticket))
                    }
                    put => put.map(Ok),
                });
            match put {
                Ok(Ok(served)) => {
                    wake(served);
                    if looked > 0 {
                        self.state.with_mut(|state| state.sends.found());
                    }
                    return ChannelStep::Done(Ok(()));
                }
                Ok(Err(ticket)) => return ChannelStep::Park(ticket),
                Err(TrySendError::Disconnected(item)) => {
                    return ChannelStep::Done(Err(SendTimeoutError::Disconnected(item)));
                }
                Err(TrySendError::Full(back)) if may_wait => {
                    item = back;
                    looked += 1;
                    pause(ROOM);
                }
                Err(TrySendError::Full(back)) => {
                    context.about_to_wait("room in a channel");
                    (item, may_wait) = (back, true);
                }
            }
        }
    }

    /// Takes, or stands among the receivers.
    #[inline(never)]
    #[track_caller]
    fn prepare_receive<'a>(
        &'a self,
        context: &Context,
        spot: &mut Spot<T>,
        hurries: bool,
        mut held: Option<Held<'a, T, S>>,
    ) -> ChannelStep<Result<T, RecvTimeoutError>> {
        if held.is_none() && !context.shows_words() {
            let mut item = MaybeUninit::uninit();
            match self.take_after_a_call(context, spot, &mut item) {
                // SAFETY: by this answer the item was written.
                ShortTake::Taken => return ChannelStep::Done(Ok(unsafe { item.assume_init() })),
                ShortTake::Park(ticket) => return ChannelStep::Park(ticket),
                ShortTake::General(hold) => held = hold,
            }
        }
        // Under the lock nothing is asked: it was asked before.
        if held.is_none() && context.is_cancelled() {
            return ChannelStep::Done(Err(RecvTimeoutError::Cancelled));
        }
        let mut may_wait = context.no_suspend().get() == 0;
        let mut looked = 0;
        if S::HAS_BATCHES && held.is_none() && !hurries {
            pause(self.batch.pauses());
        }
        loop {
            #[cfg(mutant = "receiver_is_listed_without_a_look")]
            let seen = self.state.with_mut(|state| state.take(&self.batch, || crate::channel::sides::NOBODY));
            let take = |state: &mut ChannelState<T, S>| {
                #[cfg(mutant = "receiver_is_listed_without_a_look")]
                return (seen, state).0;
                #[cfg(not(mutant = "receiver_is_listed_without_a_look"))]
                state.take(&self.batch, || on_of(context))
            };
            let hold = held.take().unwrap_or_else(|| self.state.hold());
            let (taken, lacks_memory, spare) = hold.with_mut(|state| match take(state) {
                Err(TryRecvError::Empty) if may_wait => {
                    state.took_on = on_of(context);
                    if !hurries
                        && state.receivers.is_empty()
                        && is_elsewhere(state.took_on, state.put_on)
                        && state.receives.again(looked)
                    {
                        return (Err(TryRecvError::Empty), false, None);
                    }
                    // SAFETY: C2: this is the context's own stack; C4: the caller's end keeps the channel, and nothing unwinds before
                    // the wait is parked.
                    let ticket = unsafe { context.begin(Reason::Receive, self.target()) };
                    // SAFETY: L4: the place lies on the context's own stack.
                    let place = spot.write(unsafe { Place::new(context, ticket, Cell::new(None)) });
                    // SAFETY: L1, L2: the place stays in its frame until it is out.
                    unsafe { state.receivers.enter(place) };
                    state.receivers_wait = true;
                    (Ok(Err(ticket)), false, None)
                }
                taken => {
                    let lacks_memory =
                        taken.is_ok() && state.fill(&self.batch, self.capacity, on_of(context));
                    (taken.map(Ok), lacks_memory, state.items.spare())
                }
            });
            drop(spare);
            if lacks_memory {
                self.batch.reserve(self.capacity);
            }
            match taken {
                Ok(Ok((item, served))) => {
                    wake(served);
                    if looked > 0 {
                        self.state.with_mut(|state| state.receives.found());
                    }
                    return ChannelStep::Done(Ok(item));
                }
                Ok(Err(ticket)) => return ChannelStep::Park(ticket),
                Err(TryRecvError::Disconnected) => {
                    return ChannelStep::Done(Err(RecvTimeoutError::Disconnected));
                }
                Err(TryRecvError::Empty) if may_wait => {
                    looked += 1;
                    pause(SOMETHING);
                }
                Err(TryRecvError::Empty) => {
                    context.about_to_wait("an item from a channel");
                    may_wait = true;
                }
            }
        }
    }

    /// The target of a wait here: the label.
    #[inline(always)]
    pub(super) fn target(&self) -> *mut () {
        std::ptr::from_ref(&self.label).cast_mut().cast()
    }

    /// The wait of a sender is over.
    ///
    /// # Safety
    ///
    /// Its place was listed here for that wait.
    #[inline(never)]
    unsafe fn sent(&self, place: &Place<Slot<T>>, cause: Cause) -> Result<(), SendTimeoutError<T>> {
        if cause != Cause::Woken {
            // SAFETY: L1.
            self.state.with(|state| unsafe { state.senders.remove(place) });
        }
        match (place.value.take(), cause) {
            (None, _) => Ok(()),
            (Some(item), Cause::TimedOut) => Err(SendTimeoutError::TimedOut(item)),
            (Some(item), Cause::Woken) => Err(SendTimeoutError::Disconnected(item)),
            // No cycle leads through a channel: any context may receive.
            (Some(item), Cause::Cancelled | Cause::Circular) => Err(SendTimeoutError::Cancelled(item)),
        }
    }

    /// The wait of a receiver is over.
    ///
    /// # Safety
    ///
    /// Its place was listed here for that wait.
    #[cold]
    #[inline(never)]
    unsafe fn received(&self, place: &Place<Slot<T>>, cause: Cause) -> Result<T, RecvTimeoutError> {
        if cause != Cause::Woken {
            // SAFETY: L1.
            self.state.with(|state| unsafe { state.receivers.remove(place) });
        }
        match (place.value.take(), cause) {
            (Some(item), _) => Ok(item),
            (None, Cause::TimedOut) => Err(RecvTimeoutError::TimedOut),
            (None, Cause::Woken) => Err(RecvTimeoutError::Disconnected),
            // No cycle leads through a channel: any context may send.
            (None, Cause::Cancelled | Cause::Circular) => Err(RecvTimeoutError::Cancelled),
        }
    }
}
