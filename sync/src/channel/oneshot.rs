//! A channel of one item: for a result that is made once and awaited elsewhere.
//!
//! Several may wait by one `&Receiver`. One of them gets the item, and the others [`RecvError::Disconnected`] at the same time.
//!
//! ```
//! use forebear::channel::oneshot;
//!
//! let (sender, receiver) = oneshot::channel();
//! std::thread::spawn(move || sender.send(6 * 7));
//! assert_eq!(receiver.recv(), Ok(42));
//! ```

use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr;
use std::time::Duration;

use forebear_context::context::Label;
use forebear_context::shim::Arc;

use super::core::Channel;
use super::error::{RecvError, RecvTimeoutError, TryRecvError, TrySendError};
use crate::here::with_context;

/// A channel of one item.
///
/// ```
/// use forebear::channel::oneshot;
///
/// let (sender, receiver) = oneshot::channel();
/// std::thread::spawn(move || sender.send(7));
/// assert_eq!(receiver.recv(), Ok(7));
/// ```
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    labelled(Label::NONE)
}

/// The same as [`channel`], with a name, which dumps and `Debug` show.
///
/// ```
/// use forebear::channel::oneshot;
///
/// let (sender, receiver) = oneshot::named::<u32>("answer");
/// assert_eq!((sender.name(), receiver.name()), (Some("answer"), Some("answer")));
/// ```
pub fn named<T>(name: &'static str) -> (Sender<T>, Receiver<T>) {
    labelled(Label::new(name))
}

fn labelled<T>(label: Label) -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel::new(None, 1, label));
    (Sender { channel: channel.clone() }, Receiver { channel })
}

type One<T> = Channel<T, Option<T>>;

/// The sending end. If it is dropped, the receiver gets [`RecvError::Disconnected`].
///
/// ```
/// use forebear::channel::{RecvError, oneshot};
///
/// let (sender, receiver): (oneshot::Sender<u32>, _) = oneshot::channel();
/// assert!(!sender.is_disconnected());
/// drop(sender);
/// assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
/// ```
#[must_use = "the receiver gets an error as soon as this is dropped"]
pub struct Sender<T> {
    channel: Arc<One<T>>,
}

/// The receiving end.
///
/// ```
/// use forebear::channel::oneshot;
///
/// let (sender, receiver): (_, oneshot::Receiver<u32>) = oneshot::channel();
/// drop(receiver);
/// assert_eq!(sender.send(7), Err(7));
/// ```
pub struct Receiver<T> {
    channel: Arc<One<T>>,
}

impl<T> Sender<T> {
    /// Sends the item. Never waits, also not in a cancelled request.
    ///
    /// # Errors
    ///
    /// The item, if there is no receiver any more.
    ///
    /// ```
    /// use forebear::channel::oneshot;
    ///
    /// let (sender, receiver) = oneshot::channel();
    /// assert_eq!(sender.send(7), Ok(()));
    /// assert_eq!(receiver.recv(), Ok(7));
    /// ```
    pub fn send(self, item: T) -> Result<(), T> {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so the count is this one's.
        let channel = unsafe { ptr::read(&raw const this.channel) };
        // Says in the same breath that nothing else comes, which is all that the drop would have done.
        channel.put_last(item).map_err(TrySendError::into_inner)
    }

    /// The name that was given to the channel.
    ///
    /// ```
    /// use forebear::channel::oneshot;
    ///
    /// let (sender, _receiver) = oneshot::named::<u32>("answer");
    /// assert_eq!(sender.name(), Some("answer"));
    /// ```
    #[must_use]
    pub fn name(&self) -> Option<&'static str> {
        self.channel.label().name()
    }

    /// Whether there is no receiver any more, so that there is no use in computing the item.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.channel.receiving_is_over()
    }
}

impl<T> Receiver<T> {
    /// Receives the item; waits until it is there.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`RecvError::Disconnected`] if there is no item, and no sender any more; [`RecvError::Cancelled`].
    ///
    /// # Panics
    ///
    /// In a `no_suspend` region, if it would have to wait.
    ///
    /// ```
    /// use forebear::channel::oneshot;
    ///
    /// let (sender, receiver) = oneshot::channel();
    /// sender.send(7).unwrap();
    /// assert_eq!(receiver.recv(), Ok(7));
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn recv(self) -> Result<T, RecvError> {
        with_context!(|context| self.channel.receive(context, None)).map_err(RecvTimeoutError::untimed)
    }

    /// As [`recv`](Self::recv), for `timeout` at most, on the clock of the runtime. After the item has been received, every further call returns
    /// [`RecvTimeoutError::Disconnected`].
    ///
    /// Suspends. A cancellation point. A timeout of zero checks once.
    ///
    /// # Errors
    ///
    /// [`RecvTimeoutError::TimedOut`]; the others as [`recv`](Self::recv).
    ///
    /// # Panics
    ///
    /// As [`recv`](Self::recv).
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::channel::{RecvTimeoutError, oneshot};
    ///
    /// let (sender, receiver) = oneshot::channel();
    /// let late = receiver.recv_timeout(Duration::from_millis(1));
    /// assert_eq!(late, Err(RecvTimeoutError::TimedOut));
    /// sender.send(7).unwrap();
    /// assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Ok(7));
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        with_context!(|context| self.channel.receive(context, Some(timeout)))
    }

    /// The item, if it is there. Never waits, also not in a cancelled request.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// # Errors
    ///
    /// [`TryRecvError::Empty`], [`TryRecvError::Disconnected`].
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.channel.take()
    }

    /// The name that was given to the channel.
    ///
    /// ```
    /// use forebear::channel::oneshot;
    ///
    /// let (_sender, receiver) = oneshot::named::<u32>("answer");
    /// assert_eq!(receiver.name(), Some("answer"));
    /// ```
    #[must_use]
    pub fn name(&self) -> Option<&'static str> {
        self.channel.label().name()
    }

    pub(super) fn channel(&self) -> &One<T> {
        &self.channel
    }

    /// Whether the item is there.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// ```
    /// use forebear::channel::oneshot;
    ///
    /// let (sender, receiver) = oneshot::channel();
    /// assert!(!receiver.is_ready());
    /// sender.send(7).unwrap();
    /// assert!(receiver.is_ready());
    /// assert_eq!(receiver.try_recv(), Ok(7));
    /// ```
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.channel.len() != 0
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.channel.end_sending();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // SAFETY: this was the last receiver.
        unsafe { self.channel.end_receiving() };
    }
}

impl<T> UnwindSafe for Sender<T> {}
impl<T> RefUnwindSafe for Sender<T> {}
impl<T> UnwindSafe for Receiver<T> {}
impl<T> RefUnwindSafe for Receiver<T> {}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Sender");
        if let Some(name) = self.name() {
            shown.field("name", &name);
        }
        shown.field("is_disconnected", &self.is_disconnected()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Receiver");
        if let Some(name) = self.name() {
            shown.field("name", &name);
        }
        shown.field("is_ready", &self.is_ready()).finish_non_exhaustive()
    }
}
