//! [`block_on`]: a future awaited by code in blocking style.
//!
//! The caller polls the future on its own stack. While it is pending the caller waits for a flag that the waker sets, in a list as for an
//! event. The flag is taken back before each poll, so a waker that is called during the poll, or after it, is not missed.

use std::future::{Future, IntoFuture};
use std::panic::Location;
use std::pin::pin;
use std::sync::Arc; // not modelled: what races is the flag and the wait set
use std::task::{Context, Poll, Wake, Waker};

use forebear_context::context::Reason;
use forebear_context::error::Cancelled;
use forebear_context::shim::atomic::{AtomicBool, Ordering};

use crate::here::with_context;
use crate::queued_wait::{Answer, Limit};
use crate::wait_set::WaitSet;

/// What a waker of ours sets.
pub(crate) struct Signal {
    is_set: AtomicBool,
    wait_set: WaitSet,
}

impl Signal {
    pub(crate) fn new() -> Signal {
        Signal { is_set: AtomicBool::new(false), wait_set: WaitSet::new() }
    }

    /// Wakes the waiter. Never waits.
    pub(crate) fn set(&self) {
        if !self.is_set.swap(true, Ordering::AcqRel) {
            self.wait_set.let_go();
        }
    }

    /// Resets the signal. To be called before the future is polled: a wake-up after that sets it
    /// again.
    pub(crate) fn reset(&self) {
        self.is_set.swap(false, Ordering::AcqRel);
    }

    /// Waits until it is set. To be inlined, as [`WaitSet::wait`].
    #[inline(always)]
    #[track_caller]
    pub(crate) fn wait(
        &self,
        reason: Reason,
        what: &'static str,
        caller: &'static Location<'static>,
    ) -> Result<(), Cancelled> {
        let is_set = || self.is_set.load(Ordering::Acquire);
        self.wait_set.wait(reason, what, Limit::Never, caller, is_set).untimed()
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.set();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.set();
    }
}

/// Awaits a future, and answers its output.
///
/// In a request this suspends the request while the future is pending, and its worker continues with other work; on a plain thread it blocks
/// the thread. The future is polled here, on the caller's stack: it may borrow and need not be `Send`. What drives it (a reactor, another
/// executor, a thread with a callback) is its own affair: for what needs tokio's reactor there is
/// [`tokio::block_on`](https://docs.rs/forebear/latest/forebear/tokio/fn.block_on.html).
///
/// Suspends. A cancellation point: if the caller is cancelled before the future is ready, the future is dropped, on the caller's stack, and
/// the answer is `Cancelled`. So what has to end with the request is ended by the future's destructor: `kill_on_drop` of a child process, for
/// one. In a request that is cancelled already the future is dropped unpolled. An output that is ready is never thrown away.
///
/// The waits inside the poll of a future, if it has any, are the caller's own waits. A cycle of waits that leads through a future is not found; a dump shows
/// which request awaits one.
///
/// # Errors
///
/// [`Cancelled`].
///
/// # Panics
///
/// With the panic of the future. In a `no_suspend` region, if it would have to wait.
///
/// ```
/// use std::future::poll_fn;
/// use std::task::Poll;
/// use forebear::{block_on, spawn};
///
/// let mut polls = 0; // borrowed
/// let answer = block_on(poll_fn(|task| {
///     polls += 1;
///     task.waker().wake_by_ref();
///     if polls < 3 { Poll::Pending } else { Poll::Ready("ready") }
/// }))?;
/// assert_eq!((answer, polls), ("ready", 3));
///
/// let request = spawn(|| block_on(async { 6 * 7 })); // suspends the request
/// assert_eq!(request.take().unwrap()?, 42);
/// # Ok::<(), forebear::Cancelled>(())
/// ```
#[doc(alias = "await")]
#[doc(alias = "async")]
#[track_caller]
pub fn block_on<F: IntoFuture>(future: F) -> Result<F::Output, Cancelled> {
    let caller = Location::caller();
    if with_context!(|context| context.is_cancelled()) {
        return Err(Cancelled::new());
    }
    let mut future = pin!(future.into_future());
    let signal = Arc::new(Signal::new());
    let waker = Waker::from(Arc::clone(&signal));
    let mut task = Context::from_waker(&waker);
    loop {
        signal.reset();
        if let Poll::Ready(output) = future.as_mut().poll(&mut task) {
            return Ok(output);
        }
        signal.wait(Reason::Future, "a future", caller)?;
    }
}
