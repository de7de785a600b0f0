//! Waiting for several requests: for the first that is over, for all, and one after the other as they end.
//!
//! Each member of a set has a [listener](crate::state::listener). When the request is over, the listener adds its
//! number to the [*core*](crate::state::set) of the set: a list of numbers, and the waiter for the next one. So an end
//! costs the same however many members there are, and a wait costs nothing for members that are not over. A set waits
//! by itself, or as an [arm] of a `select!`.
//!
//! # Put in by a cancelled request
//!
//! A cancelled request waits for nothing, so a member that it puts in gets no listener. The set notes its place among the *late* ones. When a thread, or a request that is not cancelled, takes or
//! waits for the next, these register first.
//!
//! # From outside
//!
//! A set may have requests of several runtimes, one of which gives up. If the waiter is not a worker of the one runtime
//! of all members, it registers with the waiters from outside ([`crate::shared::parked`]). Then it checks whether a
//! runtime has given up. A runtime that gives up wakes all of them to check again.

use std::fmt;
use std::time::Duration;

use forebear_context::context::in_request;
use forebear_context::error::internal::{Each, unwind_with};
use forebear_context::error::{Cancelled, Error, TimeoutError, WaitError};
use forebear_context::shim::Arc;

use crate::api::request::Request;
use crate::cancel::Marked;
use crate::foreign;
use crate::schedule::registration::{RegisterResult, Registration};
use crate::state::listener::Notice;
use crate::state::set::{Core, SetPlace};

mod all;
mod arm;
mod runtimes;
mod waiting;

pub use self::all::{wait_all, wait_first};
use self::runtimes::MemberRuntimes;

/// The notice of a member.
struct Member {
    core: Arc<Core>,
    place: SetPlace,
}

impl Notice for Member {
    const CALLS_USER_CODE: bool = false;

    fn over(&self, _: u64) {
        self.core.tell(self.place);
    }
}

/// Requests in the order in which they end.
///
/// Each is submitted when it is put in, and counts as wanted until it comes out or the set is dropped. Dropping the set lets the requests go
/// on; [`cancel`](Self::cancel) does not. An end costs the same however many requests there are, and no thread waits.
///
/// A `&mut` of it is a source of a [`select!`](https://docs.rs/forebear/latest/forebear/macro.select.html).
///
/// As an iterator it waits, and unwinds when the request it runs in is cancelled, as a channel's does.
///
/// A wait of the set is in a cycle if every open member waits for the caller, directly or not. Then one of those waits answers
/// [`CircularWait`](crate::WaitError::CircularWait). If all of them are waits of sets, a member comes out of this set and answers so when it is waited for.
/// Not found are cycles through a set that is an arm of a `select!`, through a future, and through a member that a
/// [`RequestPool`](crate::RequestPool) holds back. A wait with a timeout is in no cycle.
///
/// ```
/// use forebear::{Cancelled, Request, RequestSet, spawn};
///
/// let mut set: RequestSet<u64> = (0..10).map(|n| spawn(move || n * n)).collect();
/// let mut sum = 0;
/// while let Some((number, square)) = set.wait_next()? {
///     let square = square.take().unwrap();
///     assert_eq!(square, (number * number) as u64);
///     sum += square;
/// }
/// assert_eq!(sum, 285);
/// # Ok::<(), Cancelled>(())
/// ```
#[doc(alias = "JoinSet")]
#[doc(alias = "FuturesUnordered")]
#[doc(alias = "as_completed")]
pub struct RequestSet<T> {
    core: Arc<Core>,
    slots: Vec<SetSlot<T>>,
    /// The first slot that is free, or `slots.len()`.
    free: usize,
    len: usize,
    /// The number of the next member.
    next: usize,
    of: MemberRuntimes,
    /// The places of members that a cancelled request has put in, and that have no listener yet. A member may have gone.
    late: Vec<SetPlace>,
}

enum SetSlot<T> {
    /// And the next that is free.
    Free(usize),
    Taken(SetEntry<T>),
}

struct SetEntry<T> {
    number: usize,
    request: Request<T>,
    registration: Registration<Member>,
    /// Its place has been told to the core by other than its listener.
    reported: bool,
}

impl<T> RequestSet<T> {
    /// An empty set.
    #[must_use]
    pub fn new() -> RequestSet<T> {
        RequestSet {
            core: Arc::default(),
            slots: Vec::new(),
            free: 0,
            len: 0,
            next: 0,
            of: MemberRuntimes::Few(Vec::new()),
            late: Vec::new(),
        }
    }

    /// How many requests are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no request is in it.
    ///
    /// ```
    /// use forebear::{Request, RequestSet};
    ///
    /// let mut set = RequestSet::new();
    /// assert!(set.is_empty());
    /// set.insert(Request::ready(7));
    /// assert!(!set.is_empty());
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a request in, and submits it. Answers the number by which it comes out: 0 for the first, then 1, and so on. Does not suspend.
    ///
    /// If the calling request is cancelled, the new member is not submitted before a thread, or a request that is not cancelled, takes or waits for the next.
    ///
    /// ```
    /// use forebear::{Request, RequestSet};
    ///
    /// let mut set = RequestSet::new();
    /// assert_eq!(set.insert(Request::ready("first")), 0);
    /// assert_eq!(set.insert(Request::ready("second")), 1);
    /// assert_eq!(set.len(), 2);
    /// ```
    pub fn insert(&mut self, request: Request<T>) -> usize {
        let number = self.next;
        self.next += 1;
        self.len += 1;
        let slot = self.free;
        let place = SetPlace { slot, number };
        let mut entry = SetEntry { number, request, registration: Registration::default(), reported: false };
        self.enter(&mut entry, place);
        match self.slots.get_mut(slot) {
            Some(free) => {
                let SetSlot::Free(next) = *free else { unreachable!("the slot is free") };
                self.free = next;
                *free = SetSlot::Taken(entry);
            }
            None => {
                self.free = slot + 1;
                self.slots.push(SetSlot::Taken(entry));
            }
        }
        number
    }

    /// Registers a listener with the request of the entry. If there is nothing to wait for, tells the core; if the caller is cancelled, notes the place as late.
    fn enter(&mut self, entry: &mut SetEntry<T>, place: SetPlace) {
        let core = &self.core;
        let notice = || Member { core: Arc::clone(core), place };
        let header = entry.request.header_ptr();
        // SAFETY: RG1: the handle.
        let entered =
            foreign::fiber().map(|fiber| unsafe { entry.registration.enter(fiber, header, notice) });
        match entered {
            Some(RegisterResult::Entered(shared, _) | RegisterResult::Stands(shared)) => {
                self.of.note(shared);
            }
            Some(RegisterResult::Refused(WaitError::Cancelled)) if !entry.request.is_done() => {
                self.late.push(place);
            }
            // The request itself answers why, when it is asked.
            Some(RegisterResult::Over | RegisterResult::Refused(_)) | None => {
                entry.reported = true;
                core.tell(place);
            }
        }
    }

    /// Registers the late members, unless the caller is cancelled.
    #[cold]
    fn enter_late(&mut self) {
        for place in std::mem::take(&mut self.late) {
            let Some(slot) = self.slots.get_mut(place.slot) else { continue };
            let kept = std::mem::replace(slot, SetSlot::Free(0));
            let kept = match kept {
                SetSlot::Taken(mut entry) if entry.number == place.number => {
                    self.enter(&mut entry, place);
                    SetSlot::Taken(entry)
                }
                other => other,
            };
            self.slots[place.slot] = kept;
        }
    }

    /// Takes out what has ended first, if anything has. Does not wait.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](crate::yield_now).
    ///
    /// ```
    /// use forebear::{Request, RequestSet};
    ///
    /// let (completer, answer) = Request::completer("network 7");
    /// let mut set = RequestSet::from_iter([answer]);
    /// assert!(set.try_next().is_none());
    /// completer.complete(7).unwrap();
    /// let (number, answer) = set.try_next().unwrap();
    /// assert_eq!((number, answer.take().unwrap()), (0, 7));
    /// ```
    pub fn try_next(&mut self) -> Option<(usize, Request<T>)> {
        if !self.late.is_empty() {
            self.enter_late();
        }
        loop {
            let place = self.core.pop()?;
            let current = matches!(self.slots.get(place.slot), Some(SetSlot::Taken(entry)) if entry.number == place.number);
            if current {
                return self.remove(place.slot).map(|request| (place.number, request));
            }
        }
    }

    fn remove(&mut self, slot: usize) -> Option<Request<T>> {
        let mut marked = Marked::default();
        let request = self.withdraw(slot, &mut marked);
        marked.carry_out();
        request
    }

    /// Takes a member out. A cancel of it that takes effect by this is added to `marked`.
    fn withdraw(&mut self, slot: usize, marked: &mut Marked) -> Option<Request<T>> {
        let SetSlot::Taken(mut entry) = std::mem::replace(&mut self.slots[slot], SetSlot::Free(self.free))
        else {
            return None;
        };
        self.free = slot;
        self.len -= 1;
        // SAFETY: RG1: the handle.
        drop(unsafe { entry.registration.leave(entry.request.header_ptr(), marked) });
        Some(entry.request)
    }

    /// Waits until a request has ended, however, and takes it out. `None`: the set is empty.
    ///
    /// Ask the request how it ended: its [`take`](Request::take) and [`wait`](Request::wait) return at once. A request
    /// that cannot be waited for is returned like one that has ended, and its wait returns the reason. The reason is
    /// that it is the caller itself, that it closes a cycle of sets, or that its runtime was shut down.
    ///
    /// In a request this suspends; in a foreign thread it blocks. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    ///
    /// # Panics
    ///
    /// In a `no_suspend` region, if it would have to wait.
    #[doc(alias = "join_next")]
    #[track_caller]
    pub fn wait_next(&mut self) -> Result<Option<(usize, Request<T>)>, Cancelled> {
        self.next_within(None).map_err(|_| Cancelled::new())
    }

    /// As [`wait_next`](Self::wait_next), for `timeout` at most, on the clock of the runtime. A timeout of zero checks once.
    ///
    /// In a request this suspends; in a foreign thread it blocks. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`], and the set is as before; [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`wait_next`](Self::wait_next).
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::{Request, RequestSet, TimeoutError};
    ///
    /// let (completer, answer) = Request::completer("late");
    /// let mut set = RequestSet::from_iter([answer]);
    /// assert!(matches!(set.wait_next_timeout(Duration::from_millis(1)), Err(TimeoutError::TimedOut)));
    /// completer.complete(7).unwrap();
    /// assert!(set.wait_next_timeout(Duration::from_secs(60)).unwrap().is_some());
    /// ```
    #[track_caller]
    pub fn wait_next_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<(usize, Request<T>)>, TimeoutError> {
        self.next_within(Some(timeout))
    }

    /// Cancels all that are left, each as by [`Request::cancel`], which spares what others want.
    ///
    /// ```
    /// use forebear::{Request, RequestSet};
    ///
    /// let (completer, answer) = Request::<u32>::completer("never");
    /// RequestSet::from_iter([answer]).cancel();
    /// assert!(completer.is_cancelled());
    /// ```
    pub fn cancel(mut self) {
        self.clear(|request, marked| marked.cancel(request.to_untyped()));
    }

    /// Takes all members out, does `with` each, and then carries out the cancels that have come of it: the captures of one may wait for another
    /// when they are dropped.
    fn clear(&mut self, mut with: impl FnMut(&Request<T>, &mut Marked)) {
        let mut marked = Marked::default();
        let mut left = Each(Vec::with_capacity(self.len));
        for slot in 0..self.slots.len() {
            if let Some(request) = self.withdraw(slot, &mut marked) {
                with(&request, &mut marked);
                left.push(request);
            }
        }
        marked.carry_out();
    }
}

impl<T> Default for RequestSet<T> {
    fn default() -> RequestSet<T> {
        RequestSet::new()
    }
}

impl<T> Drop for RequestSet<T> {
    fn drop(&mut self) {
        self.clear(|_, _| ());
    }
}

impl<T> Extend<Request<T>> for RequestSet<T> {
    fn extend<I: IntoIterator<Item = Request<T>>>(&mut self, requests: I) {
        for request in requests {
            self.insert(request);
        }
    }
}

impl<T> FromIterator<Request<T>> for RequestSet<T> {
    fn from_iter<I: IntoIterator<Item = Request<T>>>(requests: I) -> RequestSet<T> {
        let mut set = RequestSet::new();
        set.extend(requests);
        set
    }
}

impl<T> Iterator for RequestSet<T> {
    type Item = (usize, Request<T>);

    #[track_caller]
    fn next(&mut self) -> Option<(usize, Request<T>)> {
        match self.wait_next() {
            Ok(next) => next,
            Err(cancelled) => unwind_with(Error::from(cancelled), in_request()),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len, Some(self.len))
    }
}

impl<T> fmt::Debug for RequestSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestSet").field("len", &self.len).finish_non_exhaustive()
    }
}
