//! The client of the process: what [`expires`](super::expires) uses.
//!
//! # Why there is a global
//!
//! The code that acquires a timer is deep in a library, and the code that knows the server is the program's `main`. The
//! functions between them know nothing of timers. If each had to pass a client, timers would be missing in just the
//! code that gets stuck. And mostly the worker is the process itself. So the process has a client, as it has a panic
//! hook. It can be replaced at any time. Code with a client of its own passes it to the builder, which then uses that
//! one. So tests, and processes with several servers, need no global.
//!
//! A guard keeps the client by which it was acquired: what was acquired there is released there.
//!
//! # In a forked child
//!
//! it is the same client, and whether that can be used there is its own affair. The lock around it must not be one that a thread of
//! the parent's held at that moment, or the child would wait for it for ever. So the forking thread holds it over the fork
//! ([`super::fork`]).

use std::sync::{Arc, OnceLock, PoisonError};

use forebear_context::shim::{Mutex, MutexGuard};

use super::TimerClient;
#[cfg(target_os = "linux")]
use super::fork;

type Configured = Mutex<Option<Arc<dyn TimerClient>>>;

static CONFIGURED: OnceLock<Configured> = OnceLock::new();

/// Makes `client` the one that [`expires`](super::expires) uses in this process, and returns the one that was. Timers that are running stay
/// with the client that acquired them.
///
/// Meant for `main`. A library takes a client, or leaves it to its user.
///
/// ```
/// use forebear::timer::{channel, configure, expires};
/// use std::time::Duration;
///
/// let (timers, _server) = channel();
/// configure(timers.client("worker 1"));
/// let guard = expires(Duration::from_secs(60))?;
/// # drop(guard);
/// # Ok::<(), forebear::timer::TimerError>(())
/// ```
pub fn configure(client: impl TimerClient + 'static) -> Option<Arc<dyn TimerClient>> {
    replace(Some(Arc::new(client)))
}

/// Leaves the process without a client, and returns the one that it had.
///
/// ```
/// use forebear::timer::{channel, configure, configured, unconfigure};
///
/// let (timers, _server) = channel();
/// configure(timers.client("worker 1"));
/// assert!(configured().is_some());
/// assert!(unconfigure().is_some() && configured().is_none());
/// ```
pub fn unconfigure() -> Option<Arc<dyn TimerClient>> {
    replace(None)
}

/// The client of this process, if one is configured.
///
/// ```
/// use forebear::timer::{channel, configure, configured};
///
/// assert!(configured().is_none());
/// let (timers, _server) = channel();
/// configure(timers.client("worker 1"));
/// assert!(configured().is_some());
/// ```
pub fn configured() -> Option<Arc<dyn TimerClient>> {
    CONFIGURED.get().map(lock)?.clone()
}

fn replace(client: Option<Arc<dyn TimerClient>>) -> Option<Arc<dyn TimerClient>> {
    #[cfg(target_os = "linux")]
    fork::install();
    // The old one is dropped by the caller, when the lock is free.
    std::mem::replace(&mut *hold(), client)
}

/// What is held over a fork, and while the client is replaced. No user code runs meanwhile.
pub(super) fn hold() -> Held {
    lock(CONFIGURED.get_or_init(|| Mutex::new(None)))
}

pub(super) type Held = MutexGuard<'static, Option<Arc<dyn TimerClient>>>;

fn lock(configured: &'static Configured) -> Held {
    configured.lock().unwrap_or_else(PoisonError::into_inner)
}
