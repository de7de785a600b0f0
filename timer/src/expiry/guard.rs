//! A block of code with a timer: acquired when it is entered, released when it is left, in whatever way.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::nesting::{self, Inside};
use super::{Scope, Signal, TimerClient, TimerError, configured, instant_after};

/// Gives the caller `after` from now to drop the guard that this returns. If it has not by then, its worker may be reaped.
///
/// The scope is the caller's file and line, held by the calling request, or outside of any by the thread
/// ([`Scope::here`]). So two requests that execute this line at once have a timer each, and so have two branches of a `join` in parallel. The client is that of the
/// process ([`configure`](super::configure)). For others there is
/// [`TimerGuard::builder`].
///
/// Bind the guard to a name: `let _timer = expires(..)?`. With `let _ = expires(..)?` it is dropped at once, and nothing is guarded; Rust has no warning for
/// that. [`within`] runs a closure under the timer, and leaves no guard to drop.
///
/// `Ok` says that the client has taken the timer, and not always that the server watches it. The client of a local server waits for no answer. A server that refuses a timer, as beyond
/// `local::Limits::timers_of_one`, calls its hooks, and a later call that acquires a timer returns the refusal. So a program that comes near the limit gives its server a higher one.
///
/// "May be reaped": not exactly then, but as soon as the server has seen it. What reaping is depends on the pair of client and
/// server. Where it kills a process, everything in that process ends.
///
/// # Errors
///
/// [`TimerError::NotConfigured`] if the process has no client; else what the client answers. There is no timer then.
///
/// ```
/// use forebear::timer::{TimerError, expires};
/// use std::time::Duration;
///
/// fn decode(bytes: &[u8]) -> Result<usize, TimerError> {
///     let _timer = expires(Duration::from_secs(60))?;
///     Ok(bytes.len()) // what can hang
/// }
/// assert!(matches!(decode(b"..."), Err(TimerError::NotConfigured)));
/// ```
#[track_caller]
pub fn expires(after: Duration) -> Result<TimerGuard<'static>, TimerError> {
    TimerGuard::builder().expires(after)
}

/// Calls `work`, which has `after` from now to return. If it has not by then, its worker may be reaped. Says what `work` has returned.
///
/// It is [`expires`] with the block as a closure: the timer is released when the closure returns or panics, and cannot be released early by
/// mistake. The scope is the caller's file and line, as there. What the same request or thread acquires by the same line inside `work`, as a function that
/// calls itself does, is a timer of its own: its scope's name has its depth behind it, as in `src/load.rs#7 nested 1`. So a recursion has as many timers as it is
/// deep, and a server may bound them. Where the builder is given a [scope](TimerBuilder::scope), the name is one timer's, also inside itself.
///
/// # Errors
///
/// As for [`expires`]; `work` is not called then. The release is tried, and its result is not reported.
///
/// ```
/// use forebear::timer::{channel, configure, unconfigure, within};
/// use std::time::Duration;
///
/// let (timers, _server) = channel();
/// configure(timers.client("worker 1"));
/// let sum: u32 = within(Duration::from_secs(60), || (1..=4).sum())?;
/// assert_eq!(sum, 10);
/// # unconfigure();
/// # Ok::<(), forebear::timer::TimerError>(())
/// ```
#[track_caller]
pub fn within<T>(after: Duration, work: impl FnOnce() -> T) -> Result<T, TimerError> {
    TimerGuard::builder().within(after, work)
}

/// A timer that is running. Dropping it releases the timer, also when the block is left by an error or a panic.
///
/// Acquiring the same scope again, as a recursive function does (but not by [`within`]), moves the deadline of the one timer. A branch of a `join` on another stack has its
/// own. The first guard
/// that is dropped releases it, and the others then release nothing.
///
/// It stays with the thread that acquired it, since clients may know their worker by the thread.
///
/// ```
/// use std::time::Duration;
/// use forebear::timer::{TimerError, TimerGuard, channel, configure, expires, unconfigure};
///
/// let (timers, _server) = channel();
/// configure(timers.client("worker 1"));
/// let mut timer: TimerGuard<'_> = expires(Duration::from_secs(5))?;
/// timer.extend(Duration::from_secs(60))?; // more time from now on
/// assert!(timer.scope().holder().is_some()); // this thread
/// timer.release()?;
/// # unconfigure();
/// # Ok::<(), TimerError>(())
/// ```
#[must_use = "the timer is released when the guard is dropped"]
pub struct TimerGuard<'c> {
    client: Client<'c>,
    scope: Scope,
    signal: Signal,
    released: bool,
    /// Not `Send`.
    stays: PhantomData<*const ()>,
}

/// Says for which scope, by which client and with which signal a timer is acquired. Made by [`TimerGuard::builder`].
///
/// ```
/// use std::time::Duration;
/// use forebear::timer::{TimerError, TimerGuard, channel};
///
/// let (timers, _server) = channel();
/// let client = timers.client("worker 1");
/// let builder = TimerGuard::builder().client(&client).scope("load").signal(15);
/// let sum: u32 = builder.within(Duration::from_secs(60), || (1..=4).sum())?;
/// assert_eq!(sum, 10);
/// let timer = TimerGuard::builder().client(&client).expires(Duration::from_secs(60))?;
/// timer.release()?;
/// # Ok::<(), TimerError>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder acquires nothing until `expires` is called"]
pub struct TimerBuilder<'c> {
    client: Option<&'c dyn TimerClient>,
    scope: Option<Scope>,
    signal: Signal,
}

enum Client<'c> {
    Given(&'c dyn TimerClient),
    Configured(Arc<dyn TimerClient>),
}

impl TimerGuard<'static> {
    /// To acquire a timer for a scope with a name, or by a client of one's own.
    ///
    /// ```
    /// use forebear::timer::{TimerGuard, channel};
    /// use std::time::Duration;
    ///
    /// let (timers, _server) = channel();
    /// let client = timers.client("worker 1");
    /// let guard = TimerGuard::builder().scope("load").client(&client).expires(Duration::from_secs(5))?;
    /// assert_eq!(guard.scope().name(), "load");
    /// guard.release()?;
    /// # Ok::<(), forebear::timer::TimerError>(())
    /// ```
    pub fn builder() -> TimerBuilder<'static> {
        TimerBuilder { client: None, scope: None, signal: Signal::Default }
    }
}

impl<'c> TimerBuilder<'c> {
    /// The scope, in place of the default: the file and line of the call of [`expires`](Self::expires), and its caller. One with a name is the
    /// whole worker's: it has one timer by that name, whichever code acquires it.
    pub fn scope(self, scope: impl Into<Scope>) -> Self {
        TimerBuilder { scope: Some(scope.into()), ..self }
    }

    /// The client, which beats the one that is configured for the process.
    pub fn client<'d>(self, client: &'d dyn TimerClient) -> TimerBuilder<'d> {
        TimerBuilder { client: Some(client), scope: self.scope, signal: self.signal }
    }

    /// The signal for the worker if this timer expires.
    pub fn signal(self, signal: impl Into<Signal>) -> Self {
        TimerBuilder { signal: signal.into(), ..self }
    }

    /// Acquires the timer. It expires `after` from now; more than a hundred years are a hundred years.
    ///
    /// # Errors
    ///
    /// [`TimerError::NotConfigured`] if no client was given and the process has none; [`TimerError::SignalUnsupported`] if the client cannot
    /// tell the signal; else what the client answers. There is no timer then.
    #[track_caller]
    pub fn expires(self, after: Duration) -> Result<TimerGuard<'c>, TimerError> {
        // Not by a closure, whose caller location would be another.
        let scope = match self.scope {
            Some(scope) => scope,
            None => nesting::of_guard(Scope::here()),
        };
        let client = match self.client {
            Some(client) => Client::Given(client),
            None => Client::Configured(configured().ok_or(TimerError::NotConfigured)?),
        };
        let mut guard = TimerGuard { client, scope, signal: self.signal, released: true, stays: PhantomData };
        guard.extend(after)?;
        guard.released = false;
        Ok(guard)
    }

    /// Acquires the timer, calls `work`, and releases the timer when that returns or panics. Says what `work` has returned.
    ///
    /// Inside `work`, what the same caller acquires by the same line has a scope of its own, as for [`within`]. A [scope](Self::scope) that was given is one
    /// timer, also inside itself: there the inner one moves its deadline, and releases it.
    ///
    /// # Errors
    ///
    /// As for [`expires`](Self::expires); `work` is not called then.
    #[track_caller]
    pub fn within<T>(mut self, after: Duration, work: impl FnOnce() -> T) -> Result<T, TimerError> {
        // Left after the timer is released. Not by a closure, as above.
        let _inside = match self.scope {
            Some(_) => None,
            None => {
                let (inside, scope) = Inside::enter(Scope::here());
                self.scope = Some(scope);
                Some(inside)
            }
        };
        let _timer = self.expires(after)?;
        Ok(work())
    }
}

impl TimerGuard<'_> {
    /// What the timer is for.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Gives the block `after` from now, instead of what it had left. To acquire the scope again would do the same.
    ///
    /// # Errors
    ///
    /// What the client answers. The timer is then as it was.
    pub fn extend(&mut self, after: Duration) -> Result<(), TimerError> {
        let client = self.client();
        client.acquire_with(&self.scope, instant_after(client.now(), after), self.signal)
    }

    /// Releases the timer as dropping the guard does, and says what came of it.
    ///
    /// # Errors
    ///
    /// What the client answers. If the server is gone, no worker is reaped any more.
    pub fn release(mut self) -> Result<(), TimerError> {
        self.released = true;
        self.client().release(&self.scope)
    }

    fn client(&self) -> &dyn TimerClient {
        match &self.client {
            Client::Given(client) => *client,
            Client::Configured(client) => client,
        }
    }
}

impl Drop for TimerGuard<'_> {
    fn drop(&mut self) {
        if !self.released {
            // A drop has no result. A caller that needs one calls `release`.
            let _ = self.client().release(&self.scope);
        }
    }
}

impl fmt::Debug for TimerGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerGuard")
            .field("scope", &self.scope)
            .field("signal", &self.signal)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TimerBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerBuilder")
            .field("scope", &self.scope)
            .field("signal", &self.signal)
            .field("client", &self.client.map(|_| "given"))
            .finish()
    }
}
