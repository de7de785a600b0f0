//! The errors of channels.
//!
//! An item that was not sent is in the error. An error for a cancel has [`Cancelled`] as its source, so that `?` ends a
//! cancelled request as cancelled.

use std::error::Error as StdError;
use std::fmt;

use forebear_context::error::Cancelled;

const DISCONNECTED_TO_SEND: &str = "sending on a channel without receivers";
const DISCONNECTED_TO_RECEIVE: &str = "receiving on an empty channel without senders";

/// The source of an error that means a cancellation.
fn cancelled() -> Option<&'static (dyn StdError + 'static)> {
    const CANCELLED: &Cancelled = &Cancelled::new();
    Some(CANCELLED)
}

/// The item was not sent.
///
/// For `?` into a [`forebear_context::error::Error`] the item must be `Send + Sync + 'static`;
/// [`without_item`](Self::without_item) serves where it is not.
///
/// ```
/// use forebear::channel::{SendError, bounded};
///
/// let (sender, receiver) = bounded(1);
/// drop(receiver);
/// let refused = sender.send("lost").unwrap_err();
/// assert_eq!(refused, SendError::Disconnected("lost"));
/// assert_eq!(refused.without_item(), SendError::Disconnected(()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SendError<T> {
    /// There is no receiver any more.
    Disconnected(T),
    /// You were cancelled: clean up and return.
    Cancelled(T),
}

/// The item was not sent in time.
///
/// ```
/// use std::time::Duration;
/// use forebear::channel::{SendTimeoutError, bounded};
///
/// let (sender, _receiver) = bounded(0); // nobody receives now
/// let refused = sender.send_timeout("late", Duration::from_millis(1)).unwrap_err();
/// assert_eq!(refused.without_item(), SendTimeoutError::TimedOut(()));
/// assert_eq!(refused.into_inner(), "late");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SendTimeoutError<T> {
    /// Time is up, and there was no room.
    TimedOut(T),
    /// There is no receiver any more.
    Disconnected(T),
    /// You were cancelled: clean up and return.
    Cancelled(T),
}

/// The item was not sent at once.
///
/// ```
/// use forebear::channel::{TrySendError, bounded};
///
/// let (sender, _receiver) = bounded(0); // nobody receives now
/// let refused = sender.try_send("early").unwrap_err();
/// assert!(refused.is_full());
/// assert_eq!(refused.without_item(), TrySendError::Full(()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TrySendError<T> {
    /// There is no room. In a channel of capacity 0: no receiver waits for an item.
    Full(T),
    /// There is no receiver any more.
    Disconnected(T),
}

/// No item was received.
///
/// ```
/// use forebear::channel::{RecvError, unbounded};
///
/// let (sender, receiver) = unbounded::<u32>();
/// drop(sender);
/// match receiver.recv() {
///     Ok(_) => unreachable!("nothing was sent"),
///     Err(RecvError::Cancelled) => unreachable!("this is no request"),
///     Err(RecvError::Disconnected) => (),
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvError {
    /// There is no sender any more, and everything that was sent has been received.
    Disconnected,
    /// You were cancelled: clean up and return.
    Cancelled,
}

/// No item was received in time.
///
/// ```
/// use std::time::Duration;
/// use forebear::channel::{RecvTimeoutError, unbounded};
///
/// let (sender, receiver) = unbounded::<u32>();
/// assert_eq!(receiver.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::TimedOut));
/// drop(sender);
/// assert_eq!(receiver.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Disconnected));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvTimeoutError {
    /// Time is up, and nothing came.
    TimedOut,
    /// There is no sender any more, and everything that was sent has been received.
    Disconnected,
    /// You were cancelled: clean up and return.
    Cancelled,
}

/// There was no item to be received at once.
///
/// ```
/// use forebear::channel::{TryRecvError, unbounded};
///
/// let (sender, receiver) = unbounded::<u32>();
/// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
/// drop(sender);
/// assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryRecvError {
    /// Nothing is there yet.
    Empty,
    /// There is no sender any more, and everything that was sent has been received.
    Disconnected,
}

impl<T> SendError<T> {
    /// The item that was not sent.
    ///
    /// ```
    /// use forebear::channel::SendError;
    ///
    /// assert_eq!(SendError::Disconnected("lost").into_inner(), "lost");
    /// ```
    pub fn into_inner(self) -> T {
        match self {
            SendError::Disconnected(item) | SendError::Cancelled(item) => item,
        }
    }

    /// The same error without the item, which is dropped.
    pub fn without_item(self) -> SendError<()> {
        match self {
            SendError::Disconnected(_) => SendError::Disconnected(()),
            SendError::Cancelled(_) => SendError::Cancelled(()),
        }
    }
}

impl<T> SendTimeoutError<T> {
    /// The item that was not sent.
    pub fn into_inner(self) -> T {
        match self {
            SendTimeoutError::TimedOut(item)
            | SendTimeoutError::Disconnected(item)
            | SendTimeoutError::Cancelled(item) => item,
        }
    }

    /// The same error without the item, which is dropped.
    pub fn without_item(self) -> SendTimeoutError<()> {
        match self {
            SendTimeoutError::TimedOut(_) => SendTimeoutError::TimedOut(()),
            SendTimeoutError::Disconnected(_) => SendTimeoutError::Disconnected(()),
            SendTimeoutError::Cancelled(_) => SendTimeoutError::Cancelled(()),
        }
    }

    /// Of a wait that had no limit.
    pub(super) fn untimed(self) -> SendError<T> {
        match self {
            SendTimeoutError::Cancelled(item) => SendError::Cancelled(item),
            SendTimeoutError::Disconnected(item) => SendError::Disconnected(item),
            SendTimeoutError::TimedOut(_) => unreachable!("the wait had no limit"),
        }
    }
}

impl<T> TrySendError<T> {
    /// The item that was not sent.
    ///
    /// ```
    /// use forebear::channel::TrySendError;
    ///
    /// assert_eq!(TrySendError::Full("early").into_inner(), "early");
    /// ```
    pub fn into_inner(self) -> T {
        match self {
            TrySendError::Full(item) | TrySendError::Disconnected(item) => item,
        }
    }

    /// The same error without the item, which is dropped.
    pub fn without_item(self) -> TrySendError<()> {
        match self {
            TrySendError::Full(_) => TrySendError::Full(()),
            TrySendError::Disconnected(_) => TrySendError::Disconnected(()),
        }
    }

    /// Whether there was no room.
    pub fn is_full(&self) -> bool {
        matches!(self, TrySendError::Full(_))
    }
}

impl RecvTimeoutError {
    /// Of a wait that had no limit.
    pub(super) fn untimed(self) -> RecvError {
        match self {
            RecvTimeoutError::Cancelled => RecvError::Cancelled,
            RecvTimeoutError::Disconnected => RecvError::Disconnected,
            RecvTimeoutError::TimedOut => unreachable!("the wait had no limit"),
        }
    }
}

impl<T> From<SendError<T>> for SendTimeoutError<T> {
    fn from(error: SendError<T>) -> Self {
        match error {
            SendError::Disconnected(item) => SendTimeoutError::Disconnected(item),
            SendError::Cancelled(item) => SendTimeoutError::Cancelled(item),
        }
    }
}

impl From<RecvError> for RecvTimeoutError {
    fn from(error: RecvError) -> Self {
        match error {
            RecvError::Disconnected => RecvTimeoutError::Disconnected,
            RecvError::Cancelled => RecvTimeoutError::Cancelled,
        }
    }
}

// An item need not be `Debug` to stand in an error.

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendError::Disconnected(_) => "Disconnected(..)",
            SendError::Cancelled(_) => "Cancelled(..)",
        })
    }
}

impl<T> fmt::Debug for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendTimeoutError::TimedOut(_) => "TimedOut(..)",
            SendTimeoutError::Disconnected(_) => "Disconnected(..)",
            SendTimeoutError::Cancelled(_) => "Cancelled(..)",
        })
    }
}

impl<T> fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrySendError::Full(_) => "Full(..)",
            TrySendError::Disconnected(_) => "Disconnected(..)",
        })
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            SendError::Disconnected(_) => DISCONNECTED_TO_SEND,
            SendError::Cancelled(_) => "the send was cut short",
        })
    }
}

impl<T> fmt::Display for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            SendTimeoutError::TimedOut(_) => "the send timed out",
            SendTimeoutError::Disconnected(_) => DISCONNECTED_TO_SEND,
            SendTimeoutError::Cancelled(_) => "the send was cut short",
        })
    }
}

impl<T> fmt::Display for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TrySendError::Full(_) => "sending on a full channel",
            TrySendError::Disconnected(_) => DISCONNECTED_TO_SEND,
        })
    }
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            RecvError::Disconnected => DISCONNECTED_TO_RECEIVE,
            RecvError::Cancelled => "the receive was cut short",
        })
    }
}

impl fmt::Display for RecvTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            RecvTimeoutError::TimedOut => "the receive timed out",
            RecvTimeoutError::Disconnected => DISCONNECTED_TO_RECEIVE,
            RecvTimeoutError::Cancelled => "the receive was cut short",
        })
    }
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TryRecvError::Empty => "receiving on an empty channel",
            TryRecvError::Disconnected => DISCONNECTED_TO_RECEIVE,
        })
    }
}

impl<T> StdError for SendError<T> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        matches!(self, SendError::Cancelled(_)).then(cancelled).flatten()
    }
}

impl<T> StdError for SendTimeoutError<T> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        matches!(self, SendTimeoutError::Cancelled(_)).then(cancelled).flatten()
    }
}

impl<T> StdError for TrySendError<T> {}

impl StdError for RecvError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        matches!(self, RecvError::Cancelled).then(cancelled).flatten()
    }
}

impl StdError for RecvTimeoutError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        matches!(self, RecvTimeoutError::Cancelled).then(cancelled).flatten()
    }
}

impl StdError for TryRecvError {}
