//! Receiving and sending as arms of a `select!`.
//!
//! An arm may find on entering that it need not wait. It reports that, and tries again when the select has taken its wait back. It
//! must not count the select itself as a partner then: the select may be listed on both sides of one channel, and cannot hand an item
//! to itself ([`LockQueue::has_others`](crate::primitive::LockQueue)).

use std::borrow::BorrowMut;
use std::collections::VecDeque;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc as Counted;

use forebear_context::context::{Cause, Context, Ticket};
use forebear_context::source::{Arm, LeaveResult, Output, ReportsCancel, Source};

use super::core::{Channel, Spot, Store};
use super::error::{RecvError, SendError, TryRecvError, TrySendError};
use super::{Receiver, Sender, oneshot, watch};
use crate::lock_queue::Place;

// ---- receiving -------------------------------------------------------------------------------------------------------------------

/// The arm of a receive.
pub struct ReceiveArm<'a, T, S = VecDeque<T>> {
    channel: &'a Channel<T, S>,
    spot: Spot<T>,
    listed: bool,
    output: Option<Result<T, RecvError>>,
}

impl<'a, T, S> ReceiveArm<'a, T, S> {
    fn new(channel: &'a Channel<T, S>) -> Self {
        ReceiveArm { channel, spot: MaybeUninit::uninit(), listed: false, output: None }
    }
}

impl<'a, T> Source for &'a Receiver<T> {
    type Output = Result<T, RecvError>;
    type Arm = ReceiveArm<'a, T>;

    fn into_arm(self) -> Self::Arm {
        ReceiveArm::new(self.channel())
    }
}

impl<'a, T> Source for &'a oneshot::Receiver<T> {
    type Output = Result<T, RecvError>;
    type Arm = ReceiveArm<'a, T, Option<T>>;

    fn into_arm(self) -> Self::Arm {
        ReceiveArm::new(self.channel())
    }
}

// SAFETY: the place is out of its list when `leave` returns; items are handed over by a choice.
unsafe impl<T, S: Store<T>> Arm for ReceiveArm<'_, T, S> {
    fn try_complete(&mut self, _: &Context) -> bool {
        self.output = match self.channel.take() {
            Ok(item) => Some(Ok(item)),
            Err(TryRecvError::Disconnected) => Some(Err(RecvError::Disconnected)),
            Err(TryRecvError::Empty) => None,
        };
        self.output.is_some()
    }

    unsafe fn enter(&mut self, context: &Context, ticket: Ticket) -> bool {
        // SAFETY: by contract.
        self.listed = unsafe { self.channel.enter_receivers(context, ticket, &mut self.spot) };
        self.listed
    }

    unsafe fn leave(&mut self, _: &Context, _: Cause) -> LeaveResult {
        if std::mem::take(&mut self.listed) {
            // SAFETY: it was listed, and its wait is over.
            self.output = unsafe { self.channel.leave_receivers(self.spot.assume_init_ref()) }.map(Ok);
        }
        left(self.output.is_some())
    }

    fn reports_cancel(&self) -> ReportsCancel {
        ReportsCancel::Output
    }

    fn cancel(&mut self) {
        self.output = Some(Err(RecvError::Cancelled));
    }
}

impl<T, S: Store<T>> Output for ReceiveArm<'_, T, S> {
    type Output = Result<T, RecvError>;

    fn output(&mut self) -> Self::Output {
        had(&mut self.output)
    }
}

// ---- sending ---------------------------------------------------------------------------------------------------------------------

/// A send that has not begun, as a source of a [`select!`](macro@crate::select). Made by [`Sender::send_arm`].
///
/// ```
/// use forebear::channel::{Sending, bounded};
/// use forebear::select;
///
/// let (sender, receiver) = bounded(1);
/// let mut sending: Sending<'_, _> = sender.send_arm("here");
/// select! { sent = &mut sending => sent.unwrap() }
/// assert_eq!(sending.into_inner(), None);
/// assert_eq!(receiver.recv(), Ok("here"));
/// ```
#[must_use = "nothing is sent but in a `select!`"]
pub struct Sending<'a, T> {
    sender: &'a Sender<T>,
    item: Option<T>,
}

impl<T> Sender<T> {
    /// A send as a source of a [`select!`](macro@crate::select); its output is what [`send`](Self::send) would answer.
    ///
    /// Where another arm is taken the item is dropped. To keep it, lend the source, and get it back
    /// [afterwards](Sending::into_inner):
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::channel::bounded;
    /// use forebear::select;
    /// use forebear::time::after;
    ///
    /// let (sender, _receiver) = bounded(0);
    /// let mut sending = sender.send_arm("precious");
    /// select! {
    ///     sent = &mut sending => sent.unwrap(),
    ///     () = after(Duration::from_millis(1)) => (),
    /// }
    /// assert_eq!(sending.into_inner(), Some("precious"));
    /// ```
    pub fn send_arm(&self, item: T) -> Sending<'_, T> {
        Sending { sender: self, item: Some(item) }
    }
}

impl<T> Sending<'_, T> {
    /// The item, unless it was sent, or came back in an error.
    pub fn into_inner(self) -> Option<T> {
        self.item
    }
}

/// The arm of a send.
pub struct SendArm<'a, T, I> {
    sender: &'a Sender<T>,
    /// While it is not listed.
    item: I,
    spot: Spot<T>,
    listed: bool,
    output: Option<Result<(), SendError<T>>>,
}

impl<'a, T, I> SendArm<'a, T, I> {
    fn new(sender: &'a Sender<T>, item: I) -> Self {
        SendArm { sender, item, spot: MaybeUninit::uninit(), listed: false, output: None }
    }
}

impl<'a, T> Source for Sending<'a, T> {
    type Output = Result<(), SendError<T>>;
    type Arm = SendArm<'a, T, Option<T>>;

    fn into_arm(self) -> Self::Arm {
        SendArm::new(self.sender, self.item)
    }
}

/// An item that is gone is not sent again: the arm is never ready.
impl<'s, 'a: 's, T> Source for &'s mut Sending<'a, T> {
    type Output = Result<(), SendError<T>>;
    type Arm = SendArm<'a, T, &'s mut Option<T>>;

    fn into_arm(self) -> Self::Arm {
        SendArm::new(self.sender, &mut self.item)
    }
}

// SAFETY: the place is out of its list when `leave` returns; items are taken by a choice.
unsafe impl<T, I: BorrowMut<Option<T>>> Arm for SendArm<'_, T, I> {
    fn try_complete(&mut self, _: &Context) -> bool {
        let Some(item) = self.item.borrow_mut().take() else { return false };
        match self.sender.channel().put(item) {
            Ok(()) => self.output = Some(Ok(())),
            Err(TrySendError::Disconnected(item)) => {
                self.output = Some(Err(SendError::Disconnected(item)));
            }
            Err(TrySendError::Full(item)) => *self.item.borrow_mut() = Some(item),
        }
        self.output.is_some()
    }

    unsafe fn enter(&mut self, context: &Context, ticket: Ticket) -> bool {
        let item = self.item.borrow_mut();
        if item.is_none() {
            return true;
        }
        // SAFETY: by contract.
        self.listed = unsafe { self.sender.channel().enter_senders(context, ticket, &mut self.spot, item) };
        self.listed
    }

    unsafe fn leave(&mut self, _: &Context, _: Cause) -> LeaveResult {
        if std::mem::take(&mut self.listed) {
            // SAFETY: it was listed, and its wait is over.
            let back = unsafe { self.sender.channel().leave_senders(self.spot.assume_init_ref()) };
            if back.is_none() {
                self.output = Some(Ok(()));
            }
            *self.item.borrow_mut() = back;
        }
        left(self.output.is_some())
    }

    fn reports_cancel(&self) -> ReportsCancel {
        if self.item.borrow().is_some() { ReportsCancel::Output } else { ReportsCancel::No }
    }

    fn cancel(&mut self) {
        self.output = self.item.borrow_mut().take().map(|item| Err(SendError::Cancelled(item)));
    }
}

impl<T, I: BorrowMut<Option<T>>> Output for SendArm<'_, T, I> {
    type Output = Result<(), SendError<T>>;

    fn output(&mut self) -> Self::Output {
        had(&mut self.output)
    }
}

// ---- the newest value ------------------------------------------------------------------------------------------------------------

/// The arm of a wait for a newer value.
pub struct WatchArm<'a, T> {
    receiver: &'a mut watch::Receiver<T>,
    place: MaybeUninit<Place>,
    listed: bool,
    output: Option<Result<Counted<T>, RecvError>>,
}

impl<'a, T> Source for &'a mut watch::Receiver<T> {
    type Output = Result<Counted<T>, RecvError>;
    type Arm = WatchArm<'a, T>;

    fn into_arm(self) -> Self::Arm {
        WatchArm { receiver: self, place: MaybeUninit::uninit(), listed: false, output: None }
    }
}

// SAFETY: the place is out of its list when `leave` returns; nothing is handed over.
unsafe impl<T> Arm for WatchArm<'_, T> {
    fn try_complete(&mut self, _: &Context) -> bool {
        self.output = match self.receiver.try_recv() {
            Ok(value) => Some(Ok(value)),
            Err(TryRecvError::Disconnected) => Some(Err(RecvError::Disconnected)),
            Err(TryRecvError::Empty) => None,
        };
        self.output.is_some()
    }

    unsafe fn enter(&mut self, context: &Context, ticket: Ticket) -> bool {
        // SAFETY: L4: by contract it is the calling context, and the arm leaves before its frame goes (A1).
        let place = self.place.write(unsafe { Place::new(context, ticket, ()) });
        // SAFETY: by contract.
        self.listed = unsafe { self.receiver.enter(place) };
        self.listed
    }

    unsafe fn leave(&mut self, _: &Context, _: Cause) -> LeaveResult {
        if std::mem::take(&mut self.listed) {
            // SAFETY: `listed`, so `enter` has written the place and put it into the receiver's queue, and it is taken out once.
            unsafe { self.receiver.leave(self.place.assume_init_ref()) };
        }
        LeaveResult::Nothing
    }

    fn reports_cancel(&self) -> ReportsCancel {
        ReportsCancel::Output
    }

    fn cancel(&mut self) {
        self.output = Some(Err(RecvError::Cancelled));
    }
}

impl<T> Output for WatchArm<'_, T> {
    type Output = Result<Counted<T>, RecvError>;

    fn output(&mut self) -> Self::Output {
        had(&mut self.output)
    }
}

fn left(chosen: bool) -> LeaveResult {
    if chosen { LeaveResult::Chosen } else { LeaveResult::Nothing }
}

fn had<O>(output: &mut Option<O>) -> O {
    match output.take() {
        Some(output) => output,
        None => unreachable!("A3"),
    }
}

impl<T, S> fmt::Debug for ReceiveArm<'_, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveArm").field("listed", &self.listed).finish_non_exhaustive()
    }
}

impl<T, I> fmt::Debug for SendArm<'_, T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendArm").field("listed", &self.listed).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for WatchArm<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchArm").field("listed", &self.listed).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Sending<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending").field("sender", self.sender).finish_non_exhaustive()
    }
}
