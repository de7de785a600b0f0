//! [`Completer`]: the other end of a request that has no code of its own.
//!
//! Such a request is *held back* from its birth, like a pool's member that is not admitted, but by no pool. Only its
//! completer and a canceller may claim it. The completer has the link that a queue entry would have. To complete, it
//! claims the request, writes the value, and makes the word terminal. The claim is one exchange, which decides between
//! the completer and a cancel.
//!
//! # States
//!
//! ```text
//!   held ──claim by the completer──▶ completing ──▶ finished, failed
//!     └────claim by a canceller────▶ claimed ────▶ cancelled
//! ```
//!
//! # Invariants
//!
//! * **CO1** A completer has a link of its request, which becomes the runner's when it claims, and which it releases if a canceller was first.
//! * **CO2** The request of a `Completer<T>` has a value of type `T`, and a callable that is never run.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr::NonNull;

use forebear_context::error::Error;
use forebear_context::error::internal::drop_contained;

use crate::api::builder::make;
use crate::api::request::Request;
use crate::cancel;
use crate::record::arena;
use crate::record::cell::{self, Callable};
use crate::record::header::Header;
use crate::record::no_value::NoValue;
use crate::schedule::callbacks::{self, Call, CallOn};
use crate::schedule::finish;
use crate::schedule::submit;
use crate::shared::OfRuntime;
use crate::state::word::{FINISHED, MARKED, SUBMITTED};

/// What a completion runs: nothing.
pub(crate) struct Outside;

impl<T> Callable<T> for Outside {
    const IS_COMPLETION: bool = true;

    fn call(self) -> Result<T, Error> {
        unreachable!("CO2: nobody claims it who would run it")
    }
}

/// The other end of a request that has no code: some thread, callback or C library completes it. Made by [`Request::completer`].
///
/// It is not `Clone`, and completing takes it, so a request is completed once. A completer that is dropped fails its request with
/// [`Abandoned`]; if a completer is forgotten, waits for its request never end. To hand it to a C library, box it: `Box::into_raw(Box::new(completer))`.
///
/// ```compile_fail,E0382
/// use forebear::Request;
///
/// let (completer, _answer) = Request::completer("once");
/// completer.complete(1).ok();
/// completer.complete(2).ok(); // it is gone
/// ```
///
/// ```
/// use forebear::{Completer, Request};
///
/// /// What a library calls when the data is there.
/// fn on_data(completer: Completer<Vec<u8>>) {
///     completer.complete(vec![1, 2, 3]).ok();
/// }
/// let (completer, answer) = Request::completer("network 7");
/// std::thread::spawn(move || on_data(completer));
/// assert_eq!(answer.take()?, [1, 2, 3]);
/// # Ok::<(), forebear::WaitError>(())
/// ```
#[must_use = "a completer that is dropped fails its request"]
pub struct Completer<T> {
    header: NonNull<Header>,
    value: PhantomData<fn(T)>,
}

// SAFETY: it gives a `T` to a request, whose handles bound what they do with it; of the header it touches what any link may.
unsafe impl<T: Send> Send for Completer<T> {}
// SAFETY: as above; through a reference no `T` goes anywhere.
unsafe impl<T: Send> Sync for Completer<T> {}

impl<T: Send + 'static> Request<T> {
    /// A request that has no code, and the [`Completer`] that ends it, from any thread.
    ///
    /// The request is waited for, awaited, cancelled and dumped like any other, under this name. It is submitted from the beginning, a child of
    /// the current request, and belongs to the current runtime. A [`cancel`](Request::cancel) ends it at once, if there is no demand for it;
    /// the completer then comes too late. Its callbacks run on the thread that completes it.
    ///
    /// The end of the runtime concerns it only if it is made afterwards, since it has no code that a worker would run: [`Runtime::finish`](crate::Runtime::finish)
    /// does not wait for it, and [`Runtime::shutdown`](crate::Runtime::shutdown) does not cancel it. A wait for it from outside continues until the completer
    /// has ended it. Requests that wait for it, or are declared to be after it, are work of the runtime.
    ///
    /// A wait for it closes no cycle, since the runtime does not know which thread completes it. A dump shows a wait that never ends, by this name.
    ///
    /// ```
    /// use forebear::{Request, WaitError};
    ///
    /// let (completer, answer) = Request::completer("network 7");
    /// std::thread::spawn(move || completer.complete(vec![1, 2, 3])); // or a callback of a library
    /// assert_eq!(answer.take()?, [1, 2, 3]);
    /// # Ok::<(), WaitError>(())
    /// ```
    #[doc(alias = "promise")]
    #[track_caller]
    pub fn completer(name: impl Into<Cow<'static, str>>) -> (Completer<T>, Request<T>) {
        let request = make::completion(name.into(), Location::caller());
        let h = request.header();
        if cancel::refused(h) {
            // SAFETY: the handle.
            unsafe { cancel::refuse(request.header_ptr()) };
        }
        if h.word().hold(|| ()) {
            // No pool holds it back, whatever the word says: so no pool admits it or releases it.
            h.word().submit(SUBMITTED);
            // SAFETY: the handle.
            unsafe { submit::enter_family(request.header_ptr()) };
        } else {
            // It is over: its maker is cancelled, or the runtime is shut down.
            h.word().add_link();
        }
        (Completer { header: request.header_ptr(), value: PhantomData }, request)
    }
}

impl<T> Completer<T> {
    fn header(&self) -> &Header {
        // SAFETY: CO1.
        unsafe { self.header.as_ref() }
    }

    /// Claims the request, or gives the link back: then it was cancelled.
    fn claim(self) -> Option<NonNull<Header>> {
        let header = ManuallyDrop::new(self).header;
        // SAFETY: CO1.
        if !unsafe { header.as_ref() }.word().claim_by_completer() {
            // SAFETY: CO1: it is not used any more.
            unsafe { arena::release(header) };
            return None;
        }
        // SAFETY: W1: just claimed.
        unsafe { cell::drop_callable_contained(header) };
        Some(header)
    }

    /// Calls `end`, which ends the claimed request. Threads that drive a runtime without workers then check again whether anything there can
    /// continue: a dependent that has lost this edge, and stays, wakes none of them.
    fn end(header: NonNull<Header>, end: impl FnOnce()) {
        // SAFETY: W1: claimed, so it is not over.
        let arena = unsafe { header.as_ref() }.arena.get();
        // SAFETY: M3: what is not over has an arena.
        let shared = unsafe { &*arena }.shared();
        let driven = shared.driven.is_some().then(|| shared.arc());
        end();
        if let Some(driven) = driven.as_ref().and_then(|shared| shared.driven.as_ref()) {
            driven.nudge_all();
        }
    }

    /// Finishes the request with `value`. Does not wait; its callbacks run here and now, and they may.
    ///
    /// # Errors
    ///
    /// The value, if the request was cancelled meanwhile.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let (completer, answer) = Request::completer("too late");
    /// answer.cancel();
    /// assert_eq!(completer.complete(7), Err(7));
    /// ```
    pub fn complete(self, value: T) -> Result<(), T> {
        let Some(header) = self.claim() else { return Err(value) };
        Self::end(header, || {
            let place = Header::value::<T>(header);
            // SAFETY: CO2: the record has a place for a `T`; W1: claimed above, so no other thread writes it, and none reads it before the
            // end.
            unsafe { place.write(value) };
            // SAFETY: the runner's link, which is the completer's, keeps the header.
            unsafe { header.as_ref() }.has_value.set(true);
            // SAFETY: W1: claimed above; the runner's link is the completer's.
            unsafe { finish::conclude(header, FINISHED, false, true) };
        });
        Ok(())
    }

    /// Fails the request with `error`, which is dropped if the request was cancelled meanwhile. Does not wait; its callbacks run here and now.
    ///
    /// ```
    /// use forebear::{Request, WaitError};
    ///
    /// let (completer, answer) = Request::<u32>::completer("network 7");
    /// completer.fail(std::io::Error::other("unplugged"));
    /// let Err(WaitError::Failed(failure)) = answer.wait() else { panic!() };
    /// assert_eq!(failure.request(), "network 7");
    /// assert!(failure.downcast_ref::<std::io::Error>().is_some());
    /// ```
    pub fn fail(self, error: impl Into<Error>) {
        let error = error.into();
        match self.claim() {
            Some(header) => Self::end(header, || {
                // SAFETY: W1: claimed above; the runner's link is the completer's.
                unsafe { finish::fail(header, NoValue::Error(error), true) }
            }),
            // A panic of its destructor ends here, as where a request drops an error.
            None => drop_contained(error),
        }
    }

    /// Whether the request was cancelled, so that no wait needs a value any more. Does not wait.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let (completer, answer) = Request::<u32>::completer("network 7");
    /// answer.cancel();
    /// assert!(completer.is_cancelled());
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.header().bare.load().has(MARKED)
    }

    /// Has `f` called when the request is cancelled, as [`Request::on_cancelled`] does: to pass it on to the library.
    ///
    /// # Panics
    ///
    /// If `f` panics in this call, because the request is over already. The outcome stands.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let (send, told) = std::sync::mpsc::channel();
    /// let (completer, answer) = Request::<u32>::completer("network 7");
    /// completer.on_cancelled(move || send.send("stop it").unwrap());
    /// answer.cancel();
    /// assert_eq!(told.recv(), Ok("stop it"));
    /// ```
    pub fn on_cancelled(&self, f: impl FnOnce() + Send + 'static) -> &Self {
        // SAFETY: CO1.
        unsafe { callbacks::subscribe(self.header, Call::new(CallOn::Cancelled, |_, _| f())) };
        self
    }

    /// The name that the request was given.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let (completer, _answer) = Request::<u32>::completer("network 7");
    /// assert_eq!(completer.name(), "network 7");
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.header().name()
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        let this: Completer<T> = Completer { header: self.header, value: PhantomData };
        this.fail(Abandoned(()));
    }
}

impl<T> fmt::Debug for Completer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completer").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// A [`Completer`] was dropped, and its request failed with this.
///
/// ```
/// use forebear::{Abandoned, Request, WaitError};
///
/// let (completer, answer) = Request::<u32>::completer("network 7");
/// drop(completer);
/// let Err(WaitError::Failed(failure)) = answer.wait() else { panic!() };
/// assert!(failure.downcast_ref::<Abandoned>().is_some());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned(());

impl fmt::Display for Abandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its completer was dropped without completing it")
    }
}

impl std::error::Error for Abandoned {}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::api::runtime::Runtime;
    use crate::state::word::WAITERS;

    #[test]
    fn a_wait_while_the_completer_is_at_it_is_no_cycle() {
        let runtime = Runtime::builder().workers(0).build().unwrap();
        let (completer, answer) = runtime.enter(|| Request::completer("answer"));
        let first = runtime.enter(|| answer.then(|n: &u32| n + 1));
        let second = runtime.enter(|| first.then(|n| n * 2));
        second.submit();
        // From here on the completion is neither held back nor over.
        let header = completer.claim().unwrap();
        let claimed = ManuallyDrop::new(Completer { header, value: PhantomData::<fn(u32)> });
        let seen = second.to_untyped();
        thread::scope(|threads| {
            threads.spawn(move || {
                // Until it waits, or was refused.
                for _ in 0..10_000 {
                    // SAFETY: the handle's link.
                    if unsafe { seen.raw().as_ref() }.word().load().has(WAITERS) {
                        break;
                    }
                    thread::yield_now();
                }
                // Time for the waiter to find that nothing can continue. Less of it hides a fault, and makes none.
                for _ in 0..10_000 {
                    thread::yield_now();
                }
                let header = claimed.header;
                // SAFETY: W1: claimed above; CO2; the runner's link is the completer's.
                unsafe {
                    Header::value::<u32>(header).write(20);
                    header.as_ref().has_value.set(true);
                    finish::conclude(header, FINISHED, false, true);
                }
            });
            assert_eq!(second.wait().unwrap(), &42);
        });
    }
}
