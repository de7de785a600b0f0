//! The client's side: how a worker tells its server about its timers.

use std::sync::Arc;
use std::time::Instant;

use forebear_context::shim::time;

use super::{Scope, Signal, TimerError};

/// Acquires and releases timers for one worker, or for the caller, by messages to a server.
///
/// Clients and servers come in pairs, since they share a way to talk. To write a pair of your own, implement this and
/// [`RequestQueue`](super::RequestQueue); the page of [this module](super) has an example.
///
/// A client does not wait for an answer: when a call returns, its message is sent, or the call returns an error. If the
/// channel to the server is bounded, a client may wait for room, for a limited time. A release should not wait: it is
/// called when a guard is dropped, and its timer may expire meanwhile. A message of one thread arrives before the next
/// one of that thread.
///
/// ```
/// use std::sync::Mutex;
/// use std::time::{Duration, Instant};
/// use forebear::timer::{Scope, TimerClient, TimerError, TimerGuard};
///
/// /// Only notes what a server would receive.
/// #[derive(Default)]
/// struct Noted(Mutex<Vec<String>>);
///
/// impl TimerClient for Noted {
///     fn acquire(&self, scope: &Scope, _deadline: Instant) -> Result<(), TimerError> {
///         self.0.lock().unwrap().push(format!("acquire {}", scope.name()));
///         Ok(())
///     }
///     fn release(&self, scope: &Scope) -> Result<(), TimerError> {
///         self.0.lock().unwrap().push(format!("release {}", scope.name()));
///         Ok(())
///     }
/// }
///
/// let client = Noted::default();
/// drop(TimerGuard::builder().client(&client).scope("load").expires(Duration::from_secs(5))?);
/// assert_eq!(*client.0.lock().unwrap(), ["acquire load", "release load"]);
/// # Ok::<(), TimerError>(())
/// ```
pub trait TimerClient: Send + Sync {
    /// Starts the timer of `scope`, or moves its deadline if it is running.
    ///
    /// # Errors
    ///
    /// The server is gone, or the message cannot be sent: then nothing has changed.
    fn acquire(&self, scope: &Scope, deadline: Instant) -> Result<(), TimerError>;

    /// Stops the timer of `scope`, if there is one.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire).
    fn release(&self, scope: &Scope) -> Result<(), TimerError>;

    /// As [`acquire`](Self::acquire), and says what is to be done to the worker if the timer expires.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire); and [`TimerError::SignalUnsupported`] if the client cannot tell its server, which is so unless
    /// this is implemented.
    fn acquire_with(&self, scope: &Scope, deadline: Instant, signal: Signal) -> Result<(), TimerError> {
        match signal {
            Signal::Default => self.acquire(scope, deadline),
            _ => Err(TimerError::SignalUnsupported),
        }
    }

    /// What time it is on the clock that deadlines are measured by. The system's, unless the server goes by another.
    fn now(&self) -> Instant {
        time::now()
    }
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<C: TimerClient + ?Sized> TimerClient for $pointer {
            fn acquire(&self, scope: &Scope, deadline: Instant) -> Result<(), TimerError> {
                (**self).acquire(scope, deadline)
            }

            fn release(&self, scope: &Scope) -> Result<(), TimerError> {
                (**self).release(scope)
            }

            fn acquire_with(&self, scope: &Scope, deadline: Instant, signal: Signal) -> Result<(), TimerError> {
                (**self).acquire_with(scope, deadline, signal)
            }

            fn now(&self) -> Instant {
                (**self).now()
            }
        }
    )*};
}

forward!(&C, Box<C>, Arc<C>);
