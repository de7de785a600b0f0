//! The ends of a channel of many items.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use forebear_context::context::{Label, current};
use forebear_context::shim::atomic::{AtomicUsize, Ordering};
use forebear_context::shim::{Arc, mutant};

use super::core::{Channel, UNBOUNDED};
use super::error::{RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError};
use super::sides::is_in_a_hurry;
use crate::here::with_context;

/// So many items at most are made room for before there are any.
const AT_FIRST: usize = 1 << 16;

/// A channel that holds `capacity` items at most. With 0 it holds none: a send ends when its item is received.
///
/// Its memory is taken at once, up to 65,536 items.
///
/// ```
/// use forebear::channel::{TrySendError, bounded};
///
/// let (sender, receiver) = bounded(1);
/// sender.send("here").unwrap();
/// assert_eq!(sender.try_send("too many"), Err(TrySendError::Full("too many")));
/// assert_eq!(receiver.recv(), Ok("here"));
/// ```
#[doc(alias = "mpsc")]
#[must_use]
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    bounded_by(capacity, Label::NONE)
}

/// The same as [`bounded`], with a name, which dumps and `Debug` show.
///
/// ```
/// use forebear::channel::bounded_named;
///
/// let (sender, receiver) = bounded_named::<u32>("frames", 8);
/// assert_eq!((sender.name(), receiver.name()), (Some("frames"), Some("frames")));
/// ```
#[must_use]
pub fn bounded_named<T>(name: &'static str, capacity: usize) -> (Sender<T>, Receiver<T>) {
    bounded_by(capacity, Label::new(name))
}

fn bounded_by<T>(capacity: usize, label: Label) -> (Sender<T>, Receiver<T>) {
    // A bound that memory cannot hold is none.
    ends(Channel::new(VecDeque::with_capacity(capacity.min(AT_FIRST)), capacity, label))
}

/// A channel that holds any number of items, so that a send never waits.
///
/// The memory of many items is given back when the channel has run empty.
///
/// ```
/// use forebear::channel::unbounded;
///
/// let (sender, receiver) = unbounded();
/// (0..1000).for_each(|n| sender.send(n).unwrap());
/// assert_eq!(receiver.try_iter().sum::<u32>(), 499_500);
/// ```
#[must_use]
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    ends(Channel::new(VecDeque::new(), UNBOUNDED, Label::NONE))
}

/// The same as [`unbounded`], with a name, which dumps and `Debug` show.
///
/// ```
/// use forebear::channel::unbounded_named;
///
/// let (sender, _receiver) = unbounded_named::<u32>("events");
/// assert_eq!(sender.name(), Some("events"));
/// ```
#[must_use]
pub fn unbounded_named<T>(name: &'static str) -> (Sender<T>, Receiver<T>) {
    ends(Channel::new(VecDeque::new(), UNBOUNDED, Label::new(name)))
}

fn ends<T>(channel: Channel<T>) -> (Sender<T>, Receiver<T>) {
    let shared =
        Arc::new(SharedChannel { channel, senders: AtomicUsize::new(1), receivers: AtomicUsize::new(1) });
    (Sender { shared: shared.clone() }, Receiver { shared })
}

/// Where a line of memory begins, so that what each visit touches is one.
#[repr(C, align(64))]
struct SharedChannel<T> {
    channel: Channel<T>,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

/// The sending end of a channel. Clones are ends of the same channel.
///
/// See the [module](super).
///
/// ```
/// use forebear::channel::{Sender, unbounded};
///
/// fn count(to: &Sender<u32>) {
///     (1..=3).for_each(|n| to.send(n).unwrap());
/// }
/// let (sender, receiver) = unbounded();
/// count(&sender);
/// count(&sender.clone());
/// assert_eq!((receiver.len(), receiver.try_iter().sum::<u32>()), (6, 12));
/// ```
pub struct Sender<T> {
    shared: Arc<SharedChannel<T>>,
}

/// The receiving end of a channel. Clones are ends of the same channel; each item reaches one of them.
///
/// See the [module](super).
///
/// ```
/// use forebear::channel::{Receiver, unbounded};
///
/// fn sum(from: Receiver<u32>) -> u32 {
///     from.into_iter().sum()
/// }
/// let (sender, receiver) = unbounded();
/// (1..=3).for_each(|n| sender.send(n).unwrap());
/// drop(sender); // else the iteration would wait for more
/// assert_eq!(sum(receiver), 6);
/// ```
pub struct Receiver<T> {
    shared: Arc<SharedChannel<T>>,
}

impl<T> Sender<T> {
    /// Sends `item`; waits until there is room, or for capacity 0 until it is received.
    ///
    /// Suspends. A cancellation point, also if there is room: a cancelled request sends nothing, nor do its callbacks, as
    /// `on_cancelled`. There, call [`try_send`](Self::try_send), or send inside [`shield`](https://docs.rs/forebear/latest/forebear/fn.shield.html).
    ///
    /// # Errors
    ///
    /// With the item: [`SendError::Disconnected`] if there is no receiver any more; [`SendError::Cancelled`].
    ///
    /// # Panics
    ///
    /// In a `no_suspend` region, if it would have to wait.
    ///
    /// ```
    /// use forebear::channel::{SendError, bounded};
    ///
    /// let (sender, receiver) = bounded(1);
    /// assert_eq!(sender.send("first"), Ok(()));
    /// drop(receiver);
    /// assert_eq!(sender.send("second"), Err(SendError::Disconnected("second")));
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn send(&self, item: T) -> Result<(), SendError<T>> {
        self.send_within(item, None).map_err(SendTimeoutError::untimed)
    }

    /// As [`send`](Self::send), for `timeout` at most, on the clock of the runtime.
    ///
    /// Suspends. A cancellation point. A timeout of zero checks once.
    ///
    /// # Errors
    ///
    /// With the item: [`SendTimeoutError::TimedOut`], and the wait has left no trace; the others as [`send`](Self::send).
    ///
    /// # Panics
    ///
    /// As [`send`](Self::send).
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::channel::{SendTimeoutError, bounded};
    ///
    /// let (sender, _receiver) = bounded(1);
    /// sender.send("first").unwrap();
    /// let late = sender.send_timeout("second", Duration::from_millis(1));
    /// assert_eq!(late, Err(SendTimeoutError::TimedOut("second")));
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn send_timeout(&self, item: T, timeout: Duration) -> Result<(), SendTimeoutError<T>> {
        self.send_within(item, Some(timeout))
    }

    #[inline(always)]
    #[track_caller]
    fn send_within(&self, mut item: T, timeout: Option<Duration>) -> Result<(), SendTimeoutError<T>> {
        let channel = &self.shared.channel;
        if current().is_none() {
            // A thread that no runtime knows makes a context only if it must wait.
            match channel.put(item) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(item)) => return Err(SendTimeoutError::Disconnected(item)),
                Err(TrySendError::Full(back)) => item = back,
            }
        }
        with_context!(|context| channel.send(context, item, timeout))
    }

    /// Sends `item` if that can be done at once. Never waits, also not in a cancelled request.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// # Errors
    ///
    /// With the item: [`TrySendError::Full`], [`TrySendError::Disconnected`].
    ///
    /// ```
    /// use forebear::channel::{TrySendError, bounded};
    ///
    /// let (sender, _receiver) = bounded(1);
    /// assert_eq!(sender.try_send("first"), Ok(()));
    /// assert_eq!(sender.try_send("second"), Err(TrySendError::Full("second")));
    /// ```
    #[inline]
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        self.shared.channel.put(item)
    }

    /// Whether there is no receiver any more, so that every send is refused.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// ```
    /// use forebear::channel::unbounded;
    ///
    /// let (sender, receiver) = unbounded::<u32>();
    /// assert!(!sender.is_disconnected());
    /// drop(receiver);
    /// assert!(sender.is_disconnected());
    /// ```
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.shared.channel.receiving_is_over()
    }
}

impl<T> Receiver<T> {
    /// Receives an item; waits until there is one.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`RecvError::Disconnected`] if the channel is empty and there is no sender any more; [`RecvError::Cancelled`].
    ///
    /// # Panics
    ///
    /// In a `no_suspend` region, if it would have to wait.
    ///
    /// ```
    /// use forebear::channel::{RecvError, unbounded};
    ///
    /// let (sender, receiver) = unbounded();
    /// sender.send(7).unwrap();
    /// drop(sender);
    /// assert_eq!(receiver.recv(), Ok(7));
    /// assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn recv(&self) -> Result<T, RecvError> {
        self.receive_within(None).map_err(RecvTimeoutError::untimed)
    }

    /// As [`recv`](Self::recv), for `timeout` at most, on the clock of the runtime.
    ///
    /// Suspends. A cancellation point. A timeout of zero checks once.
    ///
    /// # Errors
    ///
    /// [`RecvTimeoutError::TimedOut`], and the wait has left no trace; the others as [`recv`](Self::recv).
    ///
    /// # Panics
    ///
    /// As [`recv`](Self::recv).
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::channel::{RecvTimeoutError, unbounded};
    ///
    /// let (_sender, receiver) = unbounded::<u32>();
    /// let late = receiver.recv_timeout(Duration::from_millis(1));
    /// assert_eq!(late, Err(RecvTimeoutError::TimedOut));
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.receive_within(Some(timeout))
    }

    #[inline(always)]
    #[track_caller]
    fn receive_within(&self, timeout: Option<Duration>) -> Result<T, RecvTimeoutError> {
        let channel = &self.shared.channel;
        if current().is_none() {
            // A thread that no runtime knows makes a context only if it must wait.
            match channel.take_outside(is_in_a_hurry(timeout)) {
                Ok(item) => return Ok(item),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
        }
        with_context!(|context| channel.receive(context, timeout))
    }

    /// An item, if there is one. Never waits, also not in a cancelled request.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// # Errors
    ///
    /// [`TryRecvError::Empty`], [`TryRecvError::Disconnected`].
    ///
    /// ```
    /// use forebear::channel::{TryRecvError, unbounded};
    ///
    /// let (sender, receiver) = unbounded();
    /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    /// sender.send(7).unwrap();
    /// assert_eq!(receiver.try_recv(), Ok(7));
    /// drop(sender);
    /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
    /// ```
    #[inline]
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.shared.channel.take()
    }
}

impl<T> Sender<T> {
    pub(super) fn channel(&self) -> &Channel<T> {
        &self.shared.channel
    }
}

impl<T> Receiver<T> {
    pub(super) fn channel(&self) -> &Channel<T> {
        &self.shared.channel
    }
}

/// What either end knows.
macro_rules! getters {
    ($End:ident) => {
        impl<T> $End<T> {
            /// How many items are in the channel. Those that senders wait to send do not count.
            ///
            /// ```
            /// use forebear::channel::bounded;
            ///
            /// let (sender, receiver) = bounded(2);
            /// sender.send(7).unwrap();
            /// assert_eq!((sender.len(), receiver.len()), (1, 1));
            /// assert!(!receiver.is_empty() && !sender.is_full());
            /// assert_eq!((sender.capacity(), receiver.name()), (Some(2), None));
            /// assert!(sender.same_channel(&sender.clone()) && receiver.same_channel(&receiver.clone()));
            /// ```
            pub fn len(&self) -> usize {
                self.shared.channel.len()
            }

            /// Whether no item is in the channel; of a channel of capacity 0, always.
            ///
            /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
            /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Whether there is no room for another; of a channel of capacity 0, always.
            ///
            /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
            /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
            pub fn is_full(&self) -> bool {
                self.len() >= self.shared.channel.capacity()
            }

            /// How many items it holds at most; `None`: any number, as of a channel that was made with `usize::MAX`.
            pub fn capacity(&self) -> Option<usize> {
                Some(self.shared.channel.capacity()).filter(|&capacity| capacity != UNBOUNDED)
            }

            /// The name that was given to the channel.
            pub fn name(&self) -> Option<&'static str> {
                self.shared.channel.label().name()
            }

            /// Whether `other` is an end of the same channel.
            pub fn same_channel(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.shared, &other.shared)
            }
        }

        impl<T> UnwindSafe for $End<T> {}
        impl<T> RefUnwindSafe for $End<T> {}

        impl<T> fmt::Debug for $End<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut shown = f.debug_struct(stringify!($End));
                if let Some(name) = self.name() {
                    shown.field("name", &name);
                }
                shown.field("len", &self.len()).field("capacity", &self.capacity()).finish_non_exhaustive()
            }
        }
    };
}

getters!(Sender);
getters!(Receiver);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.senders.fetch_add(1, Ordering::Relaxed);
        Sender { shared: self.shared.clone() }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Ordering::Relaxed);
        Receiver { shared: self.shared.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // What the others did here they did under the lock, which is taken below.
        let before = mutant!(
            "last_sender_by_store",
            {
                let before = self.shared.senders.load(Ordering::Acquire);
                self.shared.senders.store(before - 1, Ordering::Release);
                before
            },
            self.shared.senders.fetch_sub(1, Ordering::AcqRel)
        );
        if before == 1 {
            self.shared.channel.end_sending();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        if self.shared.receivers.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: this was the last receiver.
            unsafe { self.shared.channel.end_receiving() };
        }
    }
}
