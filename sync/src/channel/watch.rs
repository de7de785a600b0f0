//! A channel of the newest value only: for settings, positions and states, of which older ones are of
//! no use.
//!
//! There is always a value. A receiver knows which value it has seen, and waits for a newer one; it misses the values in between.
//! All receivers share the value by a reference count.
//!
//! ```
//! use forebear::channel::watch;
//!
//! let (sender, mut receiver) = watch::channel("cold");
//! assert_eq!(*receiver.get(), "cold");
//! sender.send("warm").unwrap();
//! sender.send("hot").unwrap();
//! assert_eq!(*receiver.recv().unwrap(), "hot");
//! assert!(receiver.try_recv().is_err());
//! ```

use std::fmt;
use std::mem::MaybeUninit;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc as Counted;
use std::time::Duration;

use forebear_context::context::{Cause, Context, Label, Reason};
use forebear_context::shim::Arc;
use forebear_context::shim::atomic::{AtomicUsize, Ordering};

use super::core::ChannelStep;
use super::error::{RecvError, RecvTimeoutError, TryRecvError};
use crate::guarded::Guarded;
use crate::here::with_context;
use crate::lock_queue::{ChosenList, LockQueue, Place};

/// A channel that holds `initial`, which the first receiver has seen.
///
/// ```
/// use forebear::channel::watch;
///
/// let (sender, mut receiver) = watch::channel(1);
/// assert!(!receiver.has_changed());
/// sender.send(2).unwrap();
/// assert_eq!(*receiver.recv().unwrap(), 2);
/// ```
pub fn channel<T>(initial: T) -> (Sender<T>, Receiver<T>) {
    labelled(initial, Label::NONE)
}

/// The same as [`channel`], with a name, which dumps and `Debug` show.
///
/// ```
/// use forebear::channel::watch;
///
/// let (sender, receiver) = watch::named("volume", 7);
/// assert_eq!((sender.name(), receiver.name()), (Some("volume"), Some("volume")));
/// ```
pub fn named<T>(name: &'static str, initial: T) -> (Sender<T>, Receiver<T>) {
    labelled(initial, Label::new(name))
}

fn labelled<T>(initial: T, label: Label) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(SharedWatch {
        state: Guarded::new(WatchState {
            value: Counted::new(initial),
            version: 0,
            waiting: LockQueue::new(),
            is_over: false,
        }),
        label,
        senders: AtomicUsize::new(1),
        receivers: AtomicUsize::new(1),
    });
    (Sender { shared: shared.clone() }, Receiver { shared, seen: 0 })
}

struct WatchState<T> {
    value: Counted<T>,
    /// How many values there have been before this one.
    version: u64,
    waiting: LockQueue,
    /// All senders are dropped.
    is_over: bool,
}

struct SharedWatch<T> {
    state: Guarded<WatchState<T>>,
    label: Label,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

// SAFETY: the value is touched under the lock, and lent and dropped by several threads, as by an `Arc`.
unsafe impl<T: Send + Sync> Send for Sender<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Sender<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Receiver<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Receiver<T> {}

/// The sending end. Clones are ends of the same channel.
///
/// ```
/// use forebear::channel::watch;
///
/// let (volume, _receiver): (watch::Sender<u32>, _) = watch::channel(7);
/// let louder = *volume.get() + 1;
/// volume.send(louder).unwrap();
/// assert_eq!(*volume.get(), 8);
/// ```
pub struct Sender<T> {
    shared: Arc<SharedWatch<T>>,
}

/// A receiving end, which sees the newest value. A clone has seen what its original has.
///
/// ```
/// use forebear::channel::watch;
///
/// let (volume, mut receiver): (_, watch::Receiver<u32>) = watch::channel(7);
/// volume.send(8).unwrap();
/// assert_eq!(*receiver.recv().unwrap(), 8);
/// assert!(!receiver.clone().has_changed());
/// ```
pub struct Receiver<T> {
    shared: Arc<SharedWatch<T>>,
    /// The version it has seen.
    seen: u64,
}

impl<T> WatchState<T> {
    /// The value, if it is newer than `seen`.
    fn newer(&self, seen: &mut u64) -> Result<Counted<T>, TryRecvError> {
        if self.version != *seen {
            *seen = self.version;
            return Ok(self.value.clone());
        }
        Err(if self.is_over { TryRecvError::Disconnected } else { TryRecvError::Empty })
    }

    /// All waits, to be woken.
    fn everybody(&self) -> ChosenList {
        let mut all = ChosenList::new();
        // SAFETY: L1: by the callers, who wake them.
        while let Some(waiter) = unsafe { self.waiting.choose() } {
            all.push(waiter);
        }
        all
    }
}

impl<T> Sender<T> {
    /// The name that was given to the channel.
    ///
    /// ```
    /// use forebear::channel::watch;
    ///
    /// let (volume, _receiver) = watch::named("volume", 7);
    /// assert_eq!(volume.name(), Some("volume"));
    /// ```
    #[must_use]
    pub fn name(&self) -> Option<&'static str> {
        self.shared.label.name()
    }

    /// Replaces the value. Never waits, also not in a cancelled request.
    ///
    /// # Errors
    ///
    /// The value, if there is no receiver: the one before stays.
    pub fn send(&self, value: T) -> Result<(), T> {
        if self.is_disconnected() {
            return Err(value);
        }
        let value = Counted::new(value);
        let (old, waiting) = self.shared.state.with_mut(|state| {
            state.version += 1;
            (std::mem::replace(&mut state.value, value), state.everybody())
        });
        waiting.wake();
        drop(old);
        Ok(())
    }

    /// The current value.
    #[doc(alias = "borrow")]
    #[must_use]
    pub fn get(&self) -> Counted<T> {
        self.shared.state.with(|state| state.value.clone())
    }

    /// Another receiver, which has seen the current value.
    ///
    /// ```
    /// use forebear::channel::watch;
    ///
    /// let (volume, first) = watch::channel(7);
    /// volume.send(8).unwrap();
    /// let second = volume.receiver();
    /// assert!(first.has_changed() && !second.has_changed());
    /// ```
    #[must_use]
    pub fn receiver(&self) -> Receiver<T> {
        self.shared.receivers.fetch_add(1, Ordering::Relaxed);
        let seen = self.shared.state.with(|state| state.version);
        Receiver { shared: self.shared.clone(), seen }
    }

    /// Whether there is no receiver at the moment.
    ///
    /// ```
    /// use forebear::channel::watch;
    ///
    /// let (volume, receiver) = watch::channel(7);
    /// drop(receiver);
    /// assert!(volume.is_disconnected());
    /// assert_eq!(volume.send(8), Err(8));
    /// ```
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.shared.receivers.load(Ordering::Relaxed) == 0
    }
}

impl<T> Receiver<T> {
    /// The name that was given to the channel.
    ///
    /// ```
    /// use forebear::channel::watch;
    ///
    /// let (_volume, receiver) = watch::named("volume", 7);
    /// assert_eq!(receiver.name(), Some("volume"));
    /// ```
    #[must_use]
    pub fn name(&self) -> Option<&'static str> {
        self.shared.label.name()
    }

    /// The current value. It does not count as seen by this.
    ///
    /// ```
    /// use forebear::channel::watch;
    ///
    /// let (volume, receiver) = watch::channel(7);
    /// volume.send(8).unwrap();
    /// assert_eq!(*receiver.get(), 8);
    /// assert!(receiver.has_changed());
    /// ```
    #[doc(alias = "borrow")]
    #[must_use]
    pub fn get(&self) -> Counted<T> {
        self.shared.state.with(|state| state.value.clone())
    }

    /// Waits for a value newer than the one that this receiver has seen last.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`RecvError::Disconnected`] if this receiver has seen the newest value, and there is no sender any more; [`RecvError::Cancelled`].
    ///
    /// # Panics
    ///
    /// In a `no_suspend` region, if it would have to wait.
    #[doc(alias = "changed")]
    #[inline(always)]
    #[track_caller]
    pub fn recv(&mut self) -> Result<Counted<T>, RecvError> {
        self.receive(None).map_err(RecvTimeoutError::untimed)
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
    /// use forebear::channel::{RecvTimeoutError, watch};
    ///
    /// let (_volume, mut receiver) = watch::channel(7);
    /// let late = receiver.recv_timeout(Duration::from_millis(1));
    /// assert_eq!(late, Err(RecvTimeoutError::TimedOut));
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Counted<T>, RecvTimeoutError> {
        self.receive(Some(timeout))
    }

    /// The value, if it is newer than the one that was seen last. Never waits, also not in a cancelled request.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// # Errors
    ///
    /// [`TryRecvError::Empty`], [`TryRecvError::Disconnected`].
    ///
    /// ```
    /// use forebear::channel::{TryRecvError, watch};
    ///
    /// let (volume, mut receiver) = watch::channel(7);
    /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    /// volume.send(8).unwrap();
    /// assert_eq!(receiver.try_recv().map(|volume| *volume), Ok(8));
    /// ```
    pub fn try_recv(&mut self) -> Result<Counted<T>, TryRecvError> {
        let seen = &mut self.seen;
        self.shared.state.with(|state| state.newer(seen))
    }

    /// Whether there is a newer value than the one that was seen last.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.shared.state.with(|state| state.version != self.seen)
    }

    #[inline(always)]
    #[track_caller]
    fn receive(&mut self, timeout: Option<Duration>) -> Result<Counted<T>, RecvTimeoutError> {
        with_context!(|context| {
            if timeout == Some(Duration::ZERO) {
                if context.is_cancelled() {
                    return Err(RecvTimeoutError::Cancelled);
                }
                return self.try_recv().map_err(|refused| match refused {
                    TryRecvError::Empty => RecvTimeoutError::TimedOut,
                    TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                });
            }
            let deadline = timeout.and_then(|timeout| context.deadline(timeout));
            let mut place = MaybeUninit::uninit();
            match self.prepare(context, &mut place) {
                ChannelStep::Done(answer) => answer,
                ChannelStep::Park(ticket) => {
                    // SAFETY: on the context's own stack, after `begin`.
                    let cause = unsafe { context.park_until(ticket, deadline) };
                    // SAFETY: it was listed.
                    self.woken(unsafe { place.assume_init_ref() }, cause)
                }
            }
        })
    }

    /// Enters the list, unless there is a newer value, or the sender is gone. For an arm of a `select!`.
    ///
    /// # Safety
    ///
    /// L2: the place stays until it has left; it is of a wait that has been begun by the calling context.
    pub(super) unsafe fn enter(&self, place: &Place) -> bool {
        self.shared.state.with(|state| {
            let waits = state.version == self.seen && !state.is_over;
            if waits {
                // SAFETY: L1, L2.
                unsafe { state.waiting.enter(place) };
            }
            waits
        })
    }

    /// Leaves it.
    ///
    /// # Safety
    ///
    /// It was listed here.
    pub(super) unsafe fn leave(&self, place: &Place) {
        // SAFETY: L1.
        self.shared.state.with(|state| unsafe { state.waiting.remove(place) });
    }

    /// Finds something newer, or stands in the list.
    #[inline(never)]
    #[track_caller]
    fn prepare(
        &mut self,
        context: &Context,
        place: &mut MaybeUninit<Place>,
    ) -> ChannelStep<Result<Counted<T>, RecvTimeoutError>> {
        if context.is_cancelled() {
            return ChannelStep::Done(Err(RecvTimeoutError::Cancelled));
        }
        let (seen, shared) = (&mut self.seen, &*self.shared);
        let mut may_wait = context.no_suspend().get() == 0;
        loop {
            let found = shared.state.with(|state| match state.newer(seen) {
                Err(TryRecvError::Empty) if may_wait => {
                    let target = std::ptr::from_ref(&shared.label).cast_mut().cast();
                    // SAFETY: C2: this is the context's own stack; C4: the receiver keeps what is shared, and nothing unwinds before the
                    // wait is parked.
                    let ticket = unsafe { context.begin(Reason::Receive, target) };
                    // SAFETY: L4: the place lies on the context's own stack.
                    let place = place.write(unsafe { Place::new(context, ticket, ()) });
                    // SAFETY: L1, L2: the place stays in its frame until it is out.
                    unsafe { state.waiting.enter(place) };
                    Ok(ChannelStep::Park(ticket))
                }
                found => found.map(|value| ChannelStep::Done(Ok(value))),
            });
            match found {
                Ok(step) => return step,
                Err(TryRecvError::Disconnected) => {
                    return ChannelStep::Done(Err(RecvTimeoutError::Disconnected));
                }
                Err(TryRecvError::Empty) => {
                    context.about_to_wait("an item from a channel");
                    may_wait = true;
                }
            }
        }
    }

    #[inline(never)]
    fn woken(&mut self, place: &Place, cause: Cause) -> Result<Counted<T>, RecvTimeoutError> {
        let seen = &mut self.seen;
        let found = self.shared.state.with(|state| {
            if cause != Cause::Woken {
                // SAFETY: L1.
                unsafe { state.waiting.remove(place) };
            }
            match cause {
                Cause::Cancelled | Cause::Circular => Err(RecvTimeoutError::Cancelled),
                Cause::Woken | Cause::TimedOut => state.newer(seen).map_err(|none| match none {
                    TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                    TryRecvError::Empty => RecvTimeoutError::TimedOut,
                }),
            }
        });
        debug_assert!(
            cause != Cause::Woken || !matches!(found, Err(RecvTimeoutError::TimedOut)),
            "who is woken finds something newer, or the end"
        );
        found
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.senders.fetch_add(1, Ordering::Relaxed);
        Sender { shared: self.shared.clone() }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Ordering::Relaxed);
        Receiver { shared: self.shared.clone(), seen: self.seen }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.shared.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            let waiting = self.shared.state.with_mut(|state| {
                state.is_over = true;
                state.everybody()
            });
            waiting.wake();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T> UnwindSafe for Sender<T> {}
impl<T> RefUnwindSafe for Sender<T> {}
impl<T> UnwindSafe for Receiver<T> {}
impl<T> RefUnwindSafe for Receiver<T> {}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Sender");
        if let Some(name) = self.name() {
            shown.field("name", &name);
        }
        shown.field("value", &self.get()).finish_non_exhaustive()
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Receiver");
        if let Some(name) = self.name() {
            shown.field("name", &name);
        }
        shown.field("value", &self.get()).field("has_changed", &self.has_changed()).finish_non_exhaustive()
    }
}
