//! [`InProcessTimer`]: expiration timers within the process, whose workers are requests.
//!
//! Client and server in one: what is acquired is an entry with the runtime's deadlines, in the name of the request that acquires it. If
//! it comes, the timer thread aborts the request: a mark, and a message for the thread that runs it. So there is nobody to be reached, and
//! nothing is needed of the worker threads: all of them may be stuck in computations.
//!
//! # Who knows what
//!
//! The *table* of a client has a *record* for every request that has acquired a timer by it and is not over. The record
//! has the request's timers, by scope, each with the number of its entry. A record is removed when its request ends, by
//! a callback of a kind of its own, which does not count as handling a failure. So a timer that was never released is
//! removed with its request.
//!
//! # The races
//!
//! *The timer against the release.* The entry owns a link of the request. The thread that takes the entry out gets the link: the releaser, or the timer,
//! which then aborts. A late release is no error: the request's mark says that it was aborted.
//!
//! *The arms of a join* are one request, and may acquire and release at the same time. So the table has a lock. An arm on another stack than its `join` is a
//! holder of its own, so its timers of the default scope are its own. The lock is
//! held while entries are armed and disarmed; the timer never takes it.

use std::collections::HashMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::PoisonError;
use std::time::Instant;

use forebear_context::error::CancelReason;
use forebear_context::shim::{Arc, Mutex, MutexGuard, time};
use forebear_timer::expiry::{Scope, TimerClient, TimerError};

use crate::api::any::{AnyRequest, RequestId};
use crate::api::request::Request;
use crate::record::arena;
use crate::record::header::Header;
use crate::schedule::callbacks::{self, Call, CallOn};
use crate::shared::{OfRuntime, Shared};

/// A client of expiration timers for requests: the current request acquires a timer, and is aborted with [`CancelReason::Expired`] if that
/// expires.
///
/// It needs no server: the timers run on the clock and the timer thread of the request's runtime. The abort marks the request even
/// while every worker thread is stuck in a computation. A wait of the request ends at once, and a computation learns of it by
/// [`is_cancelled`](crate::is_cancelled). A request that neither waits nor asks is not ended by this: for that there are processes.
///
/// It is an abort like any other. It spreads to the request's children, a [`shield`](fn@crate::shield) holds it back,
/// and the first of several reasons stays. The first timer of a request that expires ends the request, and drops its
/// other timers. A timer whose guard was forgotten is dropped when its request ends.
///
/// Clones are the same client. It does not take signals.
///
/// ```
/// use std::time::Duration;
/// use forebear::{CancelReason, WaitError, is_cancelled, try_spawn};
/// use forebear::timer::InProcessTimer;
/// use forebear::timer::TimerGuard;
///
/// let timers = InProcessTimer::new();
/// let client = timers.clone();
/// let stuck = try_spawn(move || {
///     let _timer = TimerGuard::builder().client(&client).expires(Duration::from_millis(2))?;
///     while !is_cancelled() {} // a computation
///     Ok(())
/// });
/// assert!(matches!(stuck.wait(), Err(WaitError::TargetCancelled(CancelReason::Expired))));
/// ```
///
/// For all of a program, in `main`:
///
/// ```
/// use std::time::Duration;
/// use forebear::try_spawn;
/// use forebear::timer::InProcessTimer;
/// use forebear::timer::{configure, expires};
///
/// configure(InProcessTimer::new());
/// let in_time = try_spawn(|| {
///     let _timer = expires(Duration::from_secs(60))?;
///     Ok(7)
/// });
/// assert_eq!(in_time.take()?, 7);
/// # Ok::<(), forebear::WaitError>(())
/// ```
#[derive(Clone, Default)]
pub struct InProcessTimer(Arc<Standing>);

type Standing = Mutex<HashMap<RequestId, Vec<(Scope, u64)>>>;

impl InProcessTimer {
    /// A client without timers.
    #[must_use]
    pub fn new() -> InProcessTimer {
        InProcessTimer::default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Vec<(Scope, u64)>>> {
        lock(&self.0)
    }
}

fn lock(table: &Standing) -> MutexGuard<'_, HashMap<RequestId, Vec<(Scope, u64)>>> {
    // No user code runs while it is held, so nothing can be left half-done.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The current request, and its runtime.
fn current() -> Result<(AnyRequest, Arc<Shared>), TimerError> {
    let request = Request::current().ok_or(TimerError::NoWorker)?;
    // SAFETY: `request` is a handle, so its header is there.
    let arena = unsafe { request.raw().as_ref() }.arena.get();
    // SAFETY: M3: the arena is there while the header is.
    let arena = unsafe { arena.as_ref() };
    let shared = arena.ok_or(TimerError::NoWorker)?.shared().arc();
    Ok((request, shared))
}

/// Takes an entry back, if it has not fired.
fn take_back(shared: &Shared, header: NonNull<Header>, entry: u64) {
    if shared.deadlines.disarm_request(entry) {
        // SAFETY: T4: the link is ours again.
        unsafe { arena::release(header) };
    }
}

impl TimerClient for InProcessTimer {
    /// Starts the timer of the current request for `scope`, or moves its deadline. One that is past has expired: the request is aborted here
    /// and now.
    ///
    /// # Errors
    ///
    /// [`TimerError::NoWorker`] outside any request.
    fn acquire(&self, scope: &Scope, deadline: Instant) -> Result<(), TimerError> {
        let (request, shared) = current()?;
        if deadline <= shared.deadlines.now() {
            request.abort(CancelReason::Expired);
            return Ok(());
        }
        let (id, header) = (request.id(), request.raw());
        // SAFETY: the handle.
        unsafe { header.as_ref() }.word().add_link();
        let mut table = self.lock();
        let is_new = !table.contains_key(&id);
        let timers = table.entry(id).or_default();
        if let Some(at) = timers.iter().position(|(known, _)| known == scope) {
            take_back(&shared, header, timers.swap_remove(at).1);
        }
        // SAFETY: T4: the link just made. The request runs.
        let entry = unsafe { shared.deadlines.arm_expiry(deadline, header) };
        timers.push((scope.clone(), entry));
        drop(table);
        shared.deadline_came();
        if is_new {
            let table = self.0.clone();
            let forget = move |header, _: callbacks::CallWith<'_>| {
                let timers = lock(&table).remove(&id);
                for (_, entry) in timers.into_iter().flatten() {
                    take_back(&shared, header, entry);
                }
            };
            // SAFETY: the handle. While its callbacks are called the request is there.
            unsafe { callbacks::subscribe(header, Call::new(CallOn::Over, forget)) };
        }
        Ok(())
    }

    /// Stops the timer of the current request for `scope`, if there is one.
    ///
    /// # Errors
    ///
    /// [`TimerError::NoWorker`] outside any request.
    fn release(&self, scope: &Scope) -> Result<(), TimerError> {
        let (request, shared) = current()?;
        let mut table = self.lock();
        if let Some(timers) = table.get_mut(&request.id())
            && let Some(at) = timers.iter().position(|(known, _)| known == scope)
        {
            take_back(&shared, request.raw(), timers.swap_remove(at).1);
        }
        Ok(())
    }

    fn now(&self) -> Instant {
        current().map_or_else(|_| time::now(), |(_, shared)| shared.deadlines.now())
    }
}

impl fmt::Debug for InProcessTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, timers) = {
            let table = self.lock();
            (table.len(), table.values().map(Vec::len).sum::<usize>())
        };
        f.debug_struct("InProcessTimer").field("requests", &requests).field("timers", &timers).finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::mpsc; // not modelled: a test
    use std::time::Duration;

    use super::*;
    use crate::{Runtime, spawn};

    const LONG: Duration = Duration::from_secs(3_600);

    /// What the runtime and the client hold for the request that calls: links of its header, and timers in its record.
    fn held(timers: &InProcessTimer) -> (u64, usize) {
        let request = Request::current().expect("a request calls");
        // SAFETY: the handle.
        let links = unsafe { request.raw().as_ref() }.word().load().links();
        let record = timers.lock().get(&request.id()).map_or(0, Vec::len);
        (links, record)
    }

    /// Calls `body` in a request of a runtime of its own, and then asks for what is left.
    fn in_a_request(body: impl FnOnce(&InProcessTimer, Instant) + Send + 'static) {
        // Run by the worker: where this thread takes it from the shared queue and runs it, its entry there has a link for a while.
        let runtime = Runtime::builder().workers(1).run_on_caller(false).build().unwrap();
        let timers = InProcessTimer::new();
        let client = timers.clone();
        runtime.spawn(move || body(&client, client.now() + LONG)).take().unwrap();
        assert!(timers.lock().is_empty(), "a record goes with its request: {timers:?}");
        assert_eq!(runtime.metrics().armed, 0, "and so do its entries");
    }

    #[test]
    fn an_entry_has_a_link_and_a_release_gives_it_back() {
        in_a_request(|timers, later| {
            let scope = Scope::from("block");
            timers.acquire(&scope, later).unwrap();
            let (links, _) = held(timers);
            timers.release(&scope).unwrap();
            assert_eq!(held(timers), (links - 1, 0));
            // What is not there any more is released as often as anybody likes.
            timers.release(&scope).unwrap();
            assert_eq!(held(timers), (links - 1, 0));
        });
    }

    #[test]
    fn one_that_is_moved_is_one_entry_still() {
        in_a_request(|timers, later| {
            let scope = Scope::from("block");
            timers.acquire(&scope, later).unwrap();
            let before = held(timers);
            (1..10).for_each(|n| timers.acquire(&scope, later + LONG * n).unwrap());
            assert_eq!(held(timers), before);
        });
    }

    #[test]
    fn scopes_have_entries_of_their_own_and_go_by_themselves() {
        in_a_request(|timers, later| {
            let scopes = ["a", "b", "c"].map(Scope::from);
            scopes.iter().for_each(|scope| timers.acquire(scope, later).unwrap());
            let (links, record) = held(timers);
            assert_eq!(record, 3);
            timers.release(&scopes[1]).unwrap();
            assert_eq!(held(timers), (links - 1, 2));
            // Nobody releases the others: see `in_a_request`.
        });
    }

    #[test]
    fn a_deadline_that_is_past_makes_no_entry() {
        in_a_request(|timers, later| {
            timers.acquire(&Scope::from("late"), later).unwrap();
            let before = held(timers);
            let (client, (tell, told)) = (timers.clone(), mpsc::channel());
            let late = spawn(move || {
                client.acquire(&Scope::from("late"), client.now()).unwrap();
                tell.send(held(&client).1).unwrap();
            });
            assert!(late.wait().is_err(), "it is cancelled at once");
            assert_eq!(told.recv(), Ok(0));
            assert_eq!(held(timers), before, "nor does it touch another's");
        });
    }

    /// Its callback is subscribed with the record, not with each timer: a request that acquires and releases for ever does not grow.
    #[test]
    fn a_request_subscribes_once_however_often_it_acquires() {
        in_a_request(|timers, later| {
            let scope = Scope::from("block");
            let again = || {
                timers.acquire(&scope, later).unwrap();
                timers.release(&scope).unwrap();
            };
            again();
            // Who else holds the table: the client's clones, and one callback.
            let holders = Arc::strong_count(&timers.0);
            (0..100).for_each(|_| again());
            assert_eq!(Arc::strong_count(&timers.0), holders);
        });
    }
}
