//! The forms in which a request is declared to be after others. [`crate::api::after`] says what that means.

use std::marker::PhantomData;
use std::panic::Location;
use std::ptr;

use forebear_context::error::Error;
#[cfg(doc)]
use forebear_context::error::WaitError;

use self::dependent::{
    ErasedHandle, OfAll, OfOutcome, OfValue, call_or_drop, closure, dependent, described, plain, then_one,
    wait_for,
};
pub use self::several::Dependencies;
use crate::api::after::Edges;
use crate::api::builder::RequestBuilder;
use crate::api::request::{Outcome, Request};
use crate::api::scope::Scope;
use crate::record::header::Header;

pub(crate) mod dependent;
mod several;

impl<T: Send + Sync + 'static> Request<T> {
    /// A request for what `f` makes of this one's value. It is not started before this one is over.
    ///
    /// It behaves as a request whose first statement waits for this one with `?`. But until this one is over it is an entry in a list: it holds no stack
    /// and no worker, and whichever worker is free runs it then. So many consumers of one input use all cores. Nothing happens before it is submitted or
    /// waited for; that submits this one too.
    ///
    /// * If this one fails, or is cancelled by others, it fails with the [`WaitError`], and `f` is not called.
    /// * Urgency goes from it to this one; a deadline does not. One that expires ends unstarted, and this one continues if there is other demand for it.
    /// * It holds a handle of this one until `f` has returned, so a [`take`](Request::take) of this one answers [`Shared`](WaitError::Shared) until then.
    /// * Once submitted it is work of its runtime. [`Runtime::finish`](crate::Runtime::finish) waits for it, and
    ///   [`Runtime::shutdown`](crate::Runtime::shutdown) aborts it, also if this one is up to a [`Completer`](crate::Completer).
    /// * Across runtimes nothing is declared: it starts, and waits on a stack of its own.
    ///
    /// Does not suspend.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let image = Request::new(|| vec![3, 1, 2]);
    /// let (least, most) = (image.then(|i| *i.iter().min().unwrap()), image.then(|i| *i.iter().max().unwrap()));
    /// most.submit();
    /// assert_eq!((*least.wait()?, *most.wait()?), (1, 3));
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use = "a request does nothing until it is submitted or waited for"]
    #[track_caller]
    pub fn then<U: Send + 'static>(&self, f: impl FnOnce(&T) -> U + Send + 'static) -> Request<U> {
        RequestBuilder::default().then(self, f)
    }

    /// As [`then`](Self::then), for a callable that may return an error.
    ///
    /// ```
    /// use forebear::Request;
    /// let text = Request::new(|| String::from("12"));
    /// let number = text.try_then(|text| Ok(text.parse::<u32>()?));
    /// assert_eq!(number.wait()?, &12);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use = "a request does nothing until it is submitted or waited for"]
    #[track_caller]
    pub fn try_then<U: Send + 'static>(
        &self,
        f: impl FnOnce(&T) -> Result<U, Error> + Send + 'static,
    ) -> Request<U> {
        RequestBuilder::default().try_then(self, f)
    }

    /// As [`then`](Self::then), for a callable that gets this one's outcome, whatever it is. That counts as looking at a failure.
    ///
    /// ```
    /// use forebear::{Outcome, Request};
    /// let bad = Request::try_new(|| Ok("x".parse::<u32>()?));
    /// let number = bad.then_with(|outcome| match outcome {
    ///     Outcome::Finished(number) => *number,
    ///     Outcome::Failed(_) | Outcome::Cancelled(_) => 0,
    /// });
    /// assert_eq!(number.wait()?, &0);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use = "a request does nothing until it is submitted or waited for"]
    #[track_caller]
    pub fn then_with<U: Send + 'static>(
        &self,
        f: impl FnOnce(Outcome<'_, T>) -> U + Send + 'static,
    ) -> Request<U> {
        RequestBuilder::default().then_with(self, f)
    }
}

impl<T: Send + 'static> Request<T> {
    /// As [`then`](Self::then), for the last handle: `f` gets the value itself, which need not be `Sync`. If there is another handle when this request
    /// has ended, the new one fails with [`WaitError::Shared`].
    ///
    /// ```
    /// use forebear::Request;
    /// let name = Request::new(|| String::from("forebear"));
    /// let bytes = name.into_then(String::into_bytes);
    /// assert_eq!(bytes.take()?.len(), 8);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use = "a request does nothing until it is submitted or waited for"]
    #[track_caller]
    pub fn into_then<U: Send + 'static>(self, f: impl FnOnce(T) -> U + Send + 'static) -> Request<U> {
        RequestBuilder::default().into_then(self, f)
    }
}

/// A request for what `f` makes of the values of all these. It is not started before they are all over; for the rest see [`Request::then`].
///
/// `f` gets a tuple of references for a tuple of requests, and a vector of references for a slice. If several of them have come to no value, the
/// first in this order says with what it fails.
///
/// ```
/// use forebear::{Request, then_all};
///
/// let (a, b) = (Request::new(|| 6), Request::new(|| String::from("7")));
/// let product = then_all((&a, &b), |(a, b)| a * b.parse::<i32>().unwrap());
/// let squares: Vec<_> = (1..4).map(|n| Request::new(move || n * n)).collect();
/// let sum = then_all(&squares[..], |squares| squares.into_iter().sum::<i32>());
/// assert_eq!((*product.wait()?, *sum.wait()?), (42, 14));
/// # Ok::<(), forebear::WaitError>(())
/// ```
#[must_use = "a request does nothing until it is submitted or waited for"]
#[track_caller]
pub fn then_all<D: Dependencies, U: Send + 'static>(
    dependencies: D,
    f: impl for<'a> FnOnce(D::Values<'a>) -> U + Send + 'static,
) -> Request<U> {
    RequestBuilder::default().then_all(dependencies, f)
}

impl RequestBuilder {
    /// It is not started before `dependency` is over, too. If that has no value, the request fails, as if its first statement were
    /// `dependency.wait()?`. See [`Request::then`].
    ///
    /// ```
    /// use forebear::Request;
    /// let (a, b) = (Request::new(|| ()), Request::new(|| ()));
    /// let both = Request::builder().name("both").after(&a).after(&b).spawn(|| 7);
    /// assert_eq!(both.wait()?, &7);
    /// assert!(a.is_done() && b.is_done());
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    pub fn after<T: Send + 'static>(mut self, dependency: &Request<T>) -> Self {
        self.dependencies_mut().push(ErasedHandle::of(dependency));
        self
    }

    /// As [`after`](Self::after), for each of these.
    ///
    /// ```
    /// use forebear::Request;
    /// let parts: Vec<_> = (0..3).map(|n| Request::new(move || n)).collect();
    /// let done = Request::builder().after_all(&parts).spawn(|| ());
    /// done.wait()?;
    /// assert!(parts.iter().all(Request::is_done));
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    pub fn after_all<'a, T: Send + 'static>(
        mut self,
        dependencies: impl IntoIterator<Item = &'a Request<T>>,
    ) -> Self {
        let list = self.dependencies_mut();
        dependencies.into_iter().for_each(|dependency| list.push(ErasedHandle::of(dependency)));
        self
    }

    /// As [`Request::then`] of `dependency`.
    ///
    /// ```
    /// use forebear::Request;
    /// let two = Request::new(|| 2);
    /// let four = Request::builder().name("four").then(&two, |two| two + two);
    /// assert_eq!((four.name(), four.wait()?), ("four", &4));
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use = "a request does nothing until it is submitted or waited for"]
    #[track_caller]
    pub fn then<T: Send + Sync + 'static, U: Send + 'static>(
        &self,
        dependency: &Request<T>,
        f: impl FnOnce(&T) -> U + Send + 'static,
    ) -> Request<U> {
        let (user, get) = (closure(&f), OfValue(plain(f), PhantomData));
        // SAFETY: all is `'static`.
        unsafe { then_one(self, dependency.clone(), get, user, Some(Location::caller()), ptr::null()) }
    }

    /// As [`Request::try_then`] of `dependency`.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let text = Request::new(|| String::from("12"));
    /// let number = Request::builder().name("parse").try_then(&text, |text| Ok(text.parse::<u32>()?));
    /// assert_eq!(number.take()?, 12);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use = "a request does nothing until it is submitted or waited for"]
    #[track_caller]
    pub fn try_then<T: Send + Sync + 'static, U: Send + 'static>(
        &self,
        dependency: &Request<T>,
        f: impl FnOnce(&T) -> Result<U, Error> + Send + 'static,
    ) -> Request<U> {
        let (user, get) = (closure(&f), OfValue(f, PhantomData));
        // SAFETY: all is `'static`.
        unsafe { then_one(self, dependency.clone(), get, user, Some(Location::caller()), ptr::null()) }
    }

    /// As [`Request::then_with`] of `dependency`.
    ///
    /// ```
    /// use forebear::{Outcome, Request};
    ///
    /// let text = Request::try_new(|| Ok("x".parse::<u32>()?));
    /// let worked = Request::builder().then_with(&text, |outcome| matches!(outcome, Outcome::Finished(_)));
    /// assert!(!worked.take()?);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use = "a request does nothing until it is submitted or waited for"]
    #[track_caller]
    pub fn then_with<T: Send + Sync + 'static, U: Send + 'static>(
        &self,
        dependency: &Request<T>,
        f: impl FnOnce(Outcome<'_, T>) -> U + Send + 'static,
    ) -> Request<U> {
        let (user, get) = (closure(&f), OfOutcome(f, PhantomData));
        // SAFETY: all is `'static`.
        unsafe { then_one(self, dependency.clone(), get, user, Some(Location::caller()), ptr::null()) }
    }

    /// As [`Request::into_then`] of `dependency`.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let text = Request::new(|| String::from("seven"));
    /// let bytes = Request::builder().name("bytes").into_then(text, String::into_bytes);
    /// assert_eq!(bytes.take()?, b"seven");
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use = "a request does nothing until it is submitted or waited for"]
    #[track_caller]
    pub fn into_then<T: Send + 'static, U: Send + 'static>(
        &self,
        dependency: Request<T>,
        f: impl FnOnce(T) -> U + Send + 'static,
    ) -> Request<U> {
        let (user, get) = (closure(&f), OfAll(f, PhantomData));
        // SAFETY: all is `'static`.
        unsafe { then_one(self, dependency, get, user, Some(Location::caller()), ptr::null()) }
    }

    /// As [`then_all`](fn@crate::then_all).
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let (six, seven) = (Request::new(|| 6), Request::new(|| 7));
    /// let product = Request::builder().name("product").then_all((&six, &seven), |(six, seven)| six * seven);
    /// assert_eq!(product.take()?, 42);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use = "a request does nothing until it is submitted or waited for"]
    #[track_caller]
    pub fn then_all<D: Dependencies, U: Send + 'static>(
        &self,
        dependencies: D,
        f: impl for<'a> FnOnce(D::Values<'a>) -> U + Send + 'static,
    ) -> Request<U> {
        let user = closure(&f);
        let len = dependencies.count();
        let (more, described) = described(self);
        let handles = (0..len).map_while(|at| dependencies.handle(at)).chain(described);
        let call = move |edges: Edges| {
            // SAFETY: the first edges are those of `D`, and stay until the values have been used.
            let values = wait_for(&edges, edges.len())
                .and_then(|()| unsafe { D::values(len, &|at| edges.wait(at).map(Header::value)) });
            call_or_drop(f, values, |f, values| Ok(f(values)))
        };
        // SAFETY: all is `'static`.
        unsafe { dependent(self, (len + more, handles), call, user, Some(Location::caller()), ptr::null()) }
    }

    /// As [`Scope::then`].
    ///
    /// ```
    /// use forebear::{Request, scope};
    ///
    /// let words = ["a", "bb", "ccc"];
    /// let letters = scope(|s| {
    ///     let count = s.spawn(|| words.len());
    ///     Request::builder().name("letters").then_in(s, &count, |count| words[count - 1].len())
    /// });
    /// assert_eq!(letters.take()?, 3);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    pub fn then_in<'scope, T: Send + Sync + 'scope, U: Send + 'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        dependency: &Request<T>,
        f: impl FnOnce(&T) -> U + Send + 'scope,
    ) -> Request<U> {
        let (user, get) = (closure(&f), OfValue(plain(f), PhantomData));
        // SAFETY: the scope waits for the job; all outlives it.
        scope.spawn_by(|core| unsafe { then_one(self, dependency.clone(), get, user, None, core) })
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Spawns a job that is not started before `dependency` is over, and gets its value. Both may borrow what outlives the scope. For the rest see
    /// [`Request::then`].
    ///
    /// ```
    /// use forebear::scope;
    /// let words = ["a", "bb", "ccc"];
    /// let letters = scope(|s| {
    ///     let longest = s.spawn(|| words.iter().max_by_key(|w| w.len()).unwrap());
    ///     s.then(&longest, |longest| longest.len() * words.len())
    /// });
    /// assert_eq!(letters.take()?, 9);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    pub fn then<T: Send + Sync + 'scope, U: Send + 'scope>(
        &'scope self,
        dependency: &Request<T>,
        f: impl FnOnce(&T) -> U + Send + 'scope,
    ) -> Request<U> {
        RequestBuilder::default().then_in(self, dependency, f)
    }
}
