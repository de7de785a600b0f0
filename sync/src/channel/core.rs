//! What lies between the ends: the items that are on their way, and those who wait on either side.
//!
//! # Vocabulary
//!
//! * **to put**, **to take**: a send and a receive that do not wait.
//! * **slot**: what a waiter's place in a list holds: the item that a sender brings, or that a receiver is given.
//! * **to serve** a waiter: to choose it, and take what is in its slot or put what it waits for there.
//! * **over**: there is nobody left on that side.
//!
//! # How it goes
//!
//! Everything is decided under one lock that is held for a few instructions. Who finds that it must wait begins its wait and lists
//! itself in the same breath. Whoever provides what a waiter waits for serves it: a put gives its item to the most urgent receiver that
//! waits; a take that makes room lets the most urgent sender's item in, and one that finds no room at all takes it straight from
//! there, which is the whole of a channel of capacity 0. The waiter is woken when the lock has been let go of.
//!
//! # Looking again
//!
//! To wait for a context of another worker, and to be woken by it, costs several lines that go from core to core, for both. Where both
//! sides are under way, and one is only a little faster, that would be so for each item: a receiver takes one from a full channel and
//! wakes a sender, which finds room for one, and waits again. So who would have to wait, while the other side is on another worker, as far as is known, *looks again* first, a few times, with pauses in between ([`Looks`]): when it then finds room, or items, it is for
//! many. It does not stand among the waiters meanwhile, and nobody is kept from anything for its sake; as soon as another stands there, it
//! stands there, too. How often it looks goes by what came of it the last times, so where it is in vain it is done no more, but for a try.
//!
//! # The races
//!
//! *A waiter that leaves* against one that serves it. Both are decided by the waiter's ticket: a waiter that was chosen goes on with
//! *woken*, and has been served, also if it has been cancelled meanwhile; one that left otherwise refuses to be chosen, and the next
//! is tried. So an item is in one place at any time, and nobody is served who does not come for it.
//!
//! *The last of one side goes* against one of the other side that is about to wait. Both are under the lock: the latter finds the
//! side over, or is found listed, and is chosen and told so by its slot being as it was.
//!
//! # Invariants
//!
//! * **N1** The state is touched under its lock, and a waiter's slot under that lock or by its owner after the wait.
//! * **N2** While a receiver waits there is no item; while a sender waits there is no room. Listed waiters that have left their wait
//!   do not count.
//! * **N3** No item is dropped, and nobody is woken, under the lock.

use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::time::Duration;

use forebear_context::context::{Cause, Context, Reason, Ticket};

use super::error::{RecvTimeoutError, SendTimeoutError, TryRecvError, TrySendError};
use super::looks::{Looks, NOBODY, ROOM, SOMETHING, is_in_a_hurry, pause};
use crate::guarded::Guarded;
use crate::lock_queue::{Chosen, ChosenList, LockQueue, Place};

/// No bound on the items.
pub(super) const UNBOUNDED: usize = usize::MAX;

/// An emptied store with more room than this gives its memory back.
const KEPT: usize = 1024;

/// Items on their way, first in, first out. Nothing here knows how many there may be.
pub(crate) trait Store<T>: Default {
    fn len(&self) -> usize;
    fn push(&mut self, item: T);
    fn pop(&mut self) -> Option<T>;
    /// What is to be freed when the lock has been let go of, if it is worth it.
    fn spare(&mut self) -> Option<Self> {
        None
    }
}

impl<T> Store<T> for VecDeque<T> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn push(&mut self, item: T) {
        self.push_back(item);
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<T> {
        self.pop_front()
    }

    #[inline(always)]
    fn spare(&mut self) -> Option<Self> {
        (self.is_empty() && self.capacity() > KEPT).then(|| std::mem::take(self))
    }
}

/// One item, in place.
impl<T> Store<T> for Option<T> {
    fn len(&self) -> usize {
        usize::from(self.is_some())
    }

    fn push(&mut self, item: T) {
        *self = Some(item);
    }

    fn pop(&mut self) -> Option<T> {
        self.take()
    }
}

/// See the module head.
pub(crate) type Slot<T> = Cell<Option<T>>;

/// A waiter's place, in its frame.
pub(crate) type Spot<T> = MaybeUninit<Place<Slot<T>>>;

/// What lies between the ends.
#[repr(C)]
pub(crate) struct Channel<T, S = VecDeque<T>> {
    state: Guarded<State<T, S>>,
    capacity: usize,
    /// The guard is of no type in particular; what goes through it must be `Send`.
    _items: PhantomData<*mut T>,
}

// SAFETY: items go from thread to thread, hence `Send`; one thread at a time has any of them (N1).
unsafe impl<T: Send, S> Send for Channel<T, S> {}
// SAFETY: as above: no item is lent.
unsafe impl<T: Send, S> Sync for Channel<T, S> {}

/// What each visit touches stands in front, beside the lock: where channels are between cores, it is one line.
#[repr(C)]
struct State<T, S> {
    sending_is_over: bool,
    receiving_is_over: bool,
    /// Somebody may stand among them. False: nobody does.
    senders_wait: bool,
    receivers_wait: bool,
    /// Of those who wait for room, and for an item.
    sends: Looks,
    receives: Looks,
    /// On which thread the last sender and the last receiver were that would have had to wait, or served somebody; nowhere if by a method that
    /// never waits. Most visits leave it alone.
    put_on: usize,
    took_on: usize,
    items: S,
    senders: LockQueue<Slot<T>>,
    receivers: LockQueue<Slot<T>>,
}

/// What is left to do after the cold part of an operation.
pub(crate) enum Step<R> {
    Done(R),
    Park(Ticket),
}

/// Somebody who was served, to be woken.
type Served<T> = Option<Chosen<Slot<T>>>;

#[inline(always)]
fn wake<T>(served: Served<T>) {
    if let Some(served) = served {
        served.wake();
    }
}

impl<T, S: Store<T>> State<T, S> {
    #[inline]
    fn put(
        &mut self,
        item: T,
        capacity: usize,
        on: impl FnOnce() -> usize,
    ) -> Result<Served<T>, TrySendError<T>> {
        if self.receiving_is_over {
            return Err(TrySendError::Disconnected(item));
        }
        if self.receivers_wait {
            // SAFETY: L1; whoever is chosen is woken by the caller.
            let chosen = unsafe { self.receivers.choose() };
            self.receivers_wait = !self.receivers.is_empty();
            if let Some(receiver) = chosen {
                receiver.place().value.set(Some(item));
                self.put_on = on();
                return Ok(Some(receiver));
            }
        }
        if self.items.len() < capacity {
            self.items.push(item);
            return Ok(None);
        }
        Err(TrySendError::Full(item))
    }

    #[inline]
    fn take(&mut self, on: impl FnOnce() -> usize) -> Result<(T, Served<T>), TryRecvError> {
        let item = self.items.pop();
        let mut served = None;
        if self.senders_wait {
            // SAFETY: as above.
            served = unsafe { self.senders.choose() };
            self.senders_wait = !self.senders.is_empty();
            self.took_on = on();
        }
        let brought = served.as_ref().and_then(|sender| sender.place().value.take());
        match (item, brought) {
            (Some(item), brought) => {
                if let Some(brought) = brought {
                    self.items.push(brought);
                }
                Ok((item, served))
            }
            (None, Some(brought)) => Ok((brought, served)),
            (None, None) if self.sending_is_over => Err(TryRecvError::Disconnected),
            (None, None) => Err(TryRecvError::Empty),
        }
    }
}

impl<T, S: Store<T>> Channel<T, S> {
    pub(super) fn new(items: S, capacity: usize) -> Channel<T, S> {
        let state = State {
            sending_is_over: false,
            receiving_is_over: false,
            senders_wait: false,
            receivers_wait: false,
            sends: Looks::new(),
            receives: Looks::new(),
            put_on: NOBODY,
            took_on: NOBODY,
            items,
            senders: LockQueue::new(),
            receivers: LockQueue::new(),
        };
        Channel { state: Guarded::new(state), capacity, _items: PhantomData }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn len(&self) -> usize {
        self.state.with(|state| state.items.len())
    }

    /// Whether nobody receives any more.
    pub(super) fn receiving_is_over(&self) -> bool {
        self.state.with(|state| state.receiving_is_over)
    }

    // ---- without waiting ---------------------------------------------------------------------------------------------------------

    #[inline]
    pub(super) fn put(&self, item: T) -> Result<(), TrySendError<T>> {
        let served = self.state.with_mut(|state| state.put(item, self.capacity, || NOBODY))?;
        wake(served);
        Ok(())
    }

    /// The same, and there is no other sender.
    #[inline]
    pub(super) fn put_last(&self, item: T) -> Result<(), TrySendError<T>> {
        let put = self.state.with_mut(|state| {
            #[cfg(not(mutant = "over_after_the_last"))]
            {
                state.sending_is_over = true;
            }
            state.put(item, self.capacity, || NOBODY)
        });
        #[cfg(mutant = "over_after_the_last")]
        self.state.with_mut(|state| state.sending_is_over = true);
        wake(put?);
        Ok(())
    }

    #[inline]
    pub(super) fn take(&self) -> Result<T, TryRecvError> {
        let (taken, spare) = self.state.with_mut(|state| (state.take(|| NOBODY), state.items.spare()));
        drop(spare);
        let (item, served) = taken?;
        wake(served);
        Ok(item)
    }

    // ---- with -------------------------------------------------------------------------------------------------------------------

    /// Sends, for so long at most. To be inlined into the public method, since the switch is.
    #[inline(always)]
    pub(super) fn send(
        &self,
        context: &Context,
        item: T,
        timeout: Option<Duration>,
    ) -> Result<(), SendTimeoutError<T>> {
        // Before the wait is begun, so that whoever sees it waiting knows that its time runs.
        let deadline = timeout.and_then(|timeout| context.deadline(timeout));
        let mut spot = MaybeUninit::uninit();
        match self.prepare_send(context, item, &mut spot, is_in_a_hurry(timeout)) {
            Step::Done(answer) => answer,
            Step::Park(ticket) => {
                // SAFETY: on the context's own stack, after `begin`.
                let cause = unsafe { context.park_until(ticket, deadline) };
                // SAFETY: it was listed.
                unsafe { self.sent(spot.assume_init_ref(), cause) }
            }
        }
    }

    /// Receives, for so long at most. To be inlined into the public method, since the switch is.
    #[inline(always)]
    pub(super) fn receive(
        &self,
        context: &Context,
        timeout: Option<Duration>,
    ) -> Result<T, RecvTimeoutError> {
        // Before the wait is begun, so that whoever sees it waiting knows that its time runs.
        let deadline = timeout.and_then(|timeout| context.deadline(timeout));
        let mut spot = MaybeUninit::uninit();
        match self.prepare_receive(context, &mut spot, is_in_a_hurry(timeout)) {
            Step::Done(answer) => answer,
            Step::Park(ticket) => {
                // SAFETY: on the context's own stack, after `begin`.
                let cause = unsafe { context.park_until(ticket, deadline) };
                // SAFETY: it was listed.
                unsafe { self.received(spot.assume_init_ref(), cause) }
            }
        }
    }

    /// Puts, or stands among the senders.
    #[inline(never)]
    fn prepare_send(
        &self,
        context: &Context,
        mut item: T,
        spot: &mut Spot<T>,
        hurries: bool,
    ) -> Step<Result<(), SendTimeoutError<T>>> {
        if context.is_cancelled() {
            return Step::Done(Err(SendTimeoutError::Cancelled(item)));
        }
        let mut may_wait = context.no_suspend().get() == 0;
        let mut looked = 0;
        loop {
            let put =
                self.state.with_mut(|state| match state.put(item, self.capacity, || context.place().get()) {
                    Err(TrySendError::Full(item)) if may_wait => {
                        state.put_on = context.place().get();
                        if !hurries
                            && state.senders.is_empty()
                            && state.sends.again(state.put_on, state.took_on, looked)
                        {
                            return Err(TrySendError::Full(item));
                        }
                        let ticket = context.begin(Reason::Send, self.target());
                        let place = spot.write(Place::new(context, ticket, Cell::new(Some(item))));
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
                    return Step::Done(Ok(()));
                }
                Ok(Err(ticket)) => return Step::Park(ticket),
                Err(TrySendError::Disconnected(item)) => {
                    return Step::Done(Err(SendTimeoutError::Disconnected(item)));
                }
                Err(TrySendError::Full(back)) if may_wait => {
                    item = back;
                    looked += 1;
                    pause(ROOM);
                }
                Err(TrySendError::Full(back)) => {
                    context.about_to_wait("channel with room");
                    (item, may_wait) = (back, true);
                }
            }
        }
    }

    /// Takes, or stands among the receivers.
    #[inline(never)]
    fn prepare_receive(
        &self,
        context: &Context,
        spot: &mut Spot<T>,
        hurries: bool,
    ) -> Step<Result<T, RecvTimeoutError>> {
        if context.is_cancelled() {
            return Step::Done(Err(RecvTimeoutError::Cancelled));
        }
        let mut may_wait = context.no_suspend().get() == 0;
        let mut looked = 0;
        loop {
            #[cfg(mutant = "receiver_is_listed_without_a_look")]
            let seen = self.state.with_mut(|state| state.take(|| NOBODY));
            let take = |state: &mut State<T, S>| {
                #[cfg(mutant = "receiver_is_listed_without_a_look")]
                return (seen, state).0;
                #[cfg(not(mutant = "receiver_is_listed_without_a_look"))]
                state.take(|| context.place().get())
            };
            let (taken, spare) = self.state.with_mut(|state| match take(state) {
                Err(TryRecvError::Empty) if may_wait => {
                    state.took_on = context.place().get();
                    if !hurries
                        && state.receivers.is_empty()
                        && state.receives.again(state.took_on, state.put_on, looked)
                    {
                        return (Err(TryRecvError::Empty), None);
                    }
                    let ticket = context.begin(Reason::Receive, self.target());
                    let place = spot.write(Place::new(context, ticket, Cell::new(None)));
                    // SAFETY: L1, L2: the place stays in its frame until it is out.
                    unsafe { state.receivers.enter(place) };
                    state.receivers_wait = true;
                    (Ok(Err(ticket)), None)
                }
                taken => (taken.map(Ok), state.items.spare()),
            });
            drop(spare);
            match taken {
                Ok(Ok((item, served))) => {
                    wake(served);
                    if looked > 0 {
                        self.state.with_mut(|state| state.receives.found());
                    }
                    return Step::Done(Ok(item));
                }
                Ok(Err(ticket)) => return Step::Park(ticket),
                Err(TryRecvError::Disconnected) => {
                    return Step::Done(Err(RecvTimeoutError::Disconnected));
                }
                Err(TryRecvError::Empty) if may_wait => {
                    looked += 1;
                    pause(SOMETHING);
                }
                Err(TryRecvError::Empty) => {
                    context.about_to_wait("channel with an item");
                    may_wait = true;
                }
            }
        }
    }

    /// What those are told to wait for who show it: the address.
    fn target(&self) -> *mut () {
        std::ptr::from_ref(self).cast_mut().cast()
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
            // No circle leads through a channel: anybody may come and receive.
            (Some(item), Cause::Cancelled | Cause::Circular) => Err(SendTimeoutError::Cancelled(item)),
        }
    }

    /// The wait of a receiver is over.
    ///
    /// # Safety
    ///
    /// Its place was listed here for that wait.
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
            // No circle leads through a channel: anybody may come and send.
            (None, Cause::Cancelled | Cause::Circular) => Err(RecvTimeoutError::Cancelled),
        }
    }

    // ---- as one of several ------------------------------------------------------------------------------------------------------

    /// Stands among the receivers, unless there may be something to take.
    ///
    /// # Safety
    ///
    /// The wait of the ticket has been begun by the context, which is the calling one; the spot stays until it has left.
    pub(super) unsafe fn enter_receivers(
        &self,
        context: &Context,
        ticket: Ticket,
        spot: &mut Spot<T>,
    ) -> bool {
        self.state.with_mut(|state| {
            // SAFETY: L1.
            let waits = state.items.len() == 0
                && !state.sending_is_over
                && !unsafe { state.senders.has_others(context) };
            #[cfg(mutant = "arm_enters_without_a_look")]
            let waits = {
                _ = waits;
                true
            };
            if waits {
                let place = spot.write(Place::new(context, ticket, Cell::new(None)));
                // SAFETY: L1, L2: by contract.
                unsafe { state.receivers.enter(place) };
                state.receivers_wait = true;
            }
            waits
        })
    }

    /// Leaves the receivers. Answers what it was given.
    ///
    /// # Safety
    ///
    /// The place was listed here, and its wait is over.
    pub(super) unsafe fn leave_receivers(&self, place: &Place<Slot<T>>) -> Option<T> {
        // SAFETY: L1.
        self.state.with(|state| unsafe { state.receivers.remove(place) });
        place.value.take()
    }

    /// Stands among the senders with the item, unless there may be room for it, or nobody to want it.
    ///
    /// # Safety
    ///
    /// As [`enter_receivers`](Self::enter_receivers).
    pub(super) unsafe fn enter_senders(
        &self,
        context: &Context,
        ticket: Ticket,
        spot: &mut Spot<T>,
        item: &mut Option<T>,
    ) -> bool {
        self.state.with_mut(|state| {
            // SAFETY: L1.
            let waits = state.items.len() >= self.capacity
                && !state.receiving_is_over
                && !unsafe { state.receivers.has_others(context) };
            if waits {
                let place = spot.write(Place::new(context, ticket, Cell::new(item.take())));
                // SAFETY: L1, L2: by contract.
                unsafe { state.senders.enter(place) };
                state.senders_wait = true;
            }
            waits
        })
    }

    /// Leaves the senders. Answers the item, if nobody has taken it.
    ///
    /// # Safety
    ///
    /// As [`leave_receivers`](Self::leave_receivers).
    pub(super) unsafe fn leave_senders(&self, place: &Place<Slot<T>>) -> Option<T> {
        // SAFETY: L1.
        self.state.with(|state| unsafe { state.senders.remove(place) });
        place.value.take()
    }

    // ---- the ends ---------------------------------------------------------------------------------------------------------------

    /// The last sender goes.
    pub(super) fn end_sending(&self) {
        let told = self.state.with_mut(|state| {
            state.sending_is_over = true;
            all_of(&state.receivers)
        });
        told.wake();
    }

    /// The last receiver goes. What nobody has received is dropped; what waits to be let in goes back.
    pub(super) fn end_receiving(&self) {
        let (told, dropped) = self.state.with_mut(|state| {
            state.receiving_is_over = true;
            (all_of(&state.senders), std::mem::take(&mut state.items))
        });
        told.wake();
        drop(dropped);
    }
}

/// All who wait there, chosen, their slots as they were.
fn all_of<T>(waiters: &LockQueue<Slot<T>>) -> ChosenList<Slot<T>> {
    let mut all = ChosenList::new();
    // SAFETY: L1: by the callers, who wake them.
    while let Some(waiter) = unsafe { waiters.choose() } {
        all.push(waiter);
    }
    all
}
