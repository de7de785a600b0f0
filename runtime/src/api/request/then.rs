//! The forms in which a request is declared to be after others. [`crate::api::after`] says what that means.

use std::marker::PhantomData;
use std::panic::Location;
use std::ptr::{self, NonNull};

use forebear_context::context::WaitNode;
use forebear_context::error::{Error, WaitError};

use super::{Outcome, Request};
use crate::api::after::{Dependent, Edges, Named, NodeBlock, Nodes, Opaque, Typed, node};
use crate::api::builder::{RequestBuilder, make};
use crate::api::scope::Scope;
use crate::record::cell::{BOXED_ABOVE, Boxed, Callable};
use crate::record::header::Header;
use crate::record::scope_core::ScopeCore;

/// A handle of a request whose value's type is not known here. It gives no access to the value.
#[derive(Clone, Debug)]
pub(crate) struct ErasedHandle(Request<Opaque>);

impl ErasedHandle {
    /// The value may go on any thread, and at any time.
    fn of<T: Send + 'static>(request: &Request<T>) -> ErasedHandle {
        // SAFETY: the clone's handle; nobody looks at the value, and the drop goes by the request's table.
        ErasedHandle(unsafe { Request::from_raw(request.clone().into_raw()) })
    }
}

/// Makes an unsubmitted dependent.
///
/// # Safety
///
/// What the nodes lead to and the callable may borrow outlives the scope, which waits for the request; or they are `'static`.
unsafe fn dependent<T, N: Nodes, U: Named>(
    builder: &RequestBuilder,
    nodes: N,
    call: impl FnOnce(Edges<N>) -> Result<T, Error> + Send,
    user: PhantomData<fn(U)>,
    location: Option<&'static Location<'static>>,
    scope: *const ScopeCore,
) -> Request<T> {
    fn is_large<F>(_: &F) -> bool {
        size_of::<F>() > BOXED_ABOVE / 2 || align_of::<F>() > 16
    }
    // SAFETY: by contract.
    unsafe {
        if is_large(&call) {
            let boxed = Box::new(call);
            return make(builder, Dependent::new(nodes, boxed, user), location, scope);
        }
        make(builder, Dependent::new(nodes, call, user), location, scope)
    }
}

/// The nodes of what the description says, and behind them one for `last`.
fn nodes_with(builder: &RequestBuilder, last: Option<WaitNode>) -> NodeBlock {
    NodeBlock::new(builder.dependencies().iter().map(|kept| node(kept.0.clone())).chain(last).collect())
}

/// Waits for the first so many.
fn wait_for<N: Nodes>(edges: &Edges<N>, most: usize) -> Result<(), WaitError> {
    (0..most).try_for_each(|at| edges.wait(at).map(drop))
}

/// An unsubmitted request that is after what the description says.
#[cold]
#[inline(never)]
pub(crate) fn make_after<T, C: Callable<T> + 'static>(
    builder: &RequestBuilder,
    callable: C,
    location: Option<&'static Location<'static>>,
) -> Request<T> {
    // SAFETY: the callable is `'static`, and so is what was kept.
    unsafe { after_all(builder, callable, location, ptr::null()) }
}

/// The same of one that may borrow.
///
/// # Safety
///
/// The scope waits for it, and has counted it; it is submitted at once.
#[cold]
#[inline(never)]
pub(crate) unsafe fn spawn_after<T, C: Callable<T>>(
    builder: &RequestBuilder,
    callable: C,
    scope: *const ScopeCore,
) -> Request<T> {
    // SAFETY: by contract; what was kept is `'static`.
    unsafe { after_all(builder, Boxed(Box::new(callable)), None, scope) }
}

/// # Safety
///
/// As [`dependent`].
unsafe fn after_all<T, C: Callable<T>>(
    builder: &RequestBuilder,
    callable: C,
    location: Option<&'static Location<'static>>,
    scope: *const ScopeCore,
) -> Request<T> {
    fn call<T, N: Nodes>(edges: Edges<N>, callable: impl Callable<T>) -> Result<T, Error> {
        wait_for(&edges, edges.len())?;
        // The callable may take what it was after.
        drop(edges);
        callable.call()
    }
    let user = PhantomData::<fn(Typed<C, T>)>;
    // SAFETY: by contract.
    unsafe {
        match builder.dependencies() {
            [one] => {
                let nodes = [node(one.0.clone())];
                dependent(builder, nodes, |edges| call(edges, callable), user, location, scope)
            }
            // The usual in a grid or a join: no block of memory of their own.
            [one, other] => {
                let nodes = [node(one.0.clone()), node(other.0.clone())];
                dependent(builder, nodes, |edges| call(edges, callable), user, location, scope)
            }
            _ => {
                let nodes = nodes_with(builder, None);
                dependent(builder, nodes, |edges| call(edges, callable), user, location, scope)
            }
        }
    }
}

/// A dependent that gets something out of its last edge, when all others are over and have come to values.
///
/// # Safety
///
/// As [`dependent`].
unsafe fn then_one<A: Send, T, U>(
    builder: &RequestBuilder,
    dependency: Request<A>,
    get: impl Get<T> + Send,
    user: PhantomData<fn(crate::api::after::Closure<U>)>,
    location: Option<&'static Location<'static>>,
    scope: *const ScopeCore,
) -> Request<T> {
    let last = node(dependency);
    // SAFETY: by contract.
    unsafe {
        if builder.dependencies().is_empty() {
            return dependent(builder, [last], |edges| get.get(edges, 0), user, location, scope);
        }
        let nodes = nodes_with(builder, Some(last));
        let call = |edges: Edges<NodeBlock>| {
            let place = edges.len() - 1;
            wait_for(&edges, place)?;
            get.get(edges, place)
        };
        dependent(builder, nodes, call, user, location, scope)
    }
}

/// What a dependent does with the edge at a place, wherever its nodes lie.
trait Get<T> {
    fn get<N: Nodes>(self, edges: Edges<N>, place: usize) -> Result<T, Error>;
}

/// Calls with the value.
struct OfValue<A, F>(F, PhantomData<fn(A)>);

impl<A, T, F: FnOnce(&A) -> Result<T, Error>> Get<T> for OfValue<A, F> {
    fn get<N: Nodes>(self, edges: Edges<N>, place: usize) -> Result<T, Error> {
        // SAFETY: made with a request for an `A`.
        (self.0)(unsafe { edges.value::<A>(place)? })
    }
}

/// Calls with the outcome.
struct OfOutcome<A, F>(F, PhantomData<fn(A)>);

impl<A, T, F: FnOnce(Outcome<'_, A>) -> T> Get<T> for OfOutcome<A, F> {
    fn get<N: Nodes>(self, edges: Edges<N>, place: usize) -> Result<T, Error> {
        // SAFETY: made with a request for an `A`.
        let request = unsafe { edges.over::<A>(place)? };
        match request.outcome() {
            Some(outcome) => Ok((self.0)(outcome)),
            None => unreachable!("it was waited for"),
        }
    }
}

/// Calls with the value itself.
struct OfAll<A, F>(F, PhantomData<fn(A)>);

impl<A, T, F: FnOnce(A) -> T> Get<T> for OfAll<A, F> {
    fn get<N: Nodes>(self, edges: Edges<N>, place: usize) -> Result<T, Error> {
        // SAFETY: made with a request for an `A`.
        let value = unsafe { edges.take::<A>(place)? };
        drop(edges);
        Ok((self.0)(value))
    }
}

fn plain<A, T>(f: impl FnOnce(&A) -> T) -> impl FnOnce(&A) -> Result<T, Error> {
    move |value: &A| Ok(f(value))
}

fn closure<F>(_: &F) -> PhantomData<fn(crate::api::after::Closure<F>)> {
    PhantomData
}

impl<T: Send + Sync + 'static> Request<T> {
    /// A request for what `f` makes of this one's value. It is not started before this one is over.
    ///
    /// It behaves as a request whose first statement waits for this one with `?`. But until this one is over it is an entry in a list: it holds no stack
    /// and no worker, and whichever worker is free runs it then. So many consumers of one input use all cores. Nothing happens before it is submitted or
    /// waited for; that submits this one too.
    ///
    /// * If this one fails, or is cancelled by others, it fails with the [`WaitError`], and `f` is not called.
    /// * Urgency goes from it to this one; a deadline does not. One that expires ends unstarted, and this one goes on if anybody else wants it.
    /// * It holds a handle of this one until `f` has returned, so a [`take`](Request::take) of this one answers [`Shared`](WaitError::Shared) until then.
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

/// Several requests that another one follows: a tuple of up to six references, or a slice. See [`then_all`].
///
/// ```
/// use forebear::{Dependencies, Request, then_all};
///
/// /// A request that is over when all these are.
/// fn after<D: Dependencies>(dependencies: D) -> Request<()> {
///     then_all(dependencies, |_| ())
/// }
/// let (one, two) = (Request::new(|| 1), Request::new(|| 2));
/// after((&one, &two)).wait()?;
/// assert!(one.is_done() && two.is_done());
/// # Ok::<(), forebear::WaitError>(())
/// ```
pub trait Dependencies: sealed::Sealed {
    /// What the dependent gets.
    type Values<'a>;

    /// # Safety
    ///
    /// `value` answers where the value of the dependency with this number lies, for which the node of this number stands.
    #[doc(hidden)]
    unsafe fn values<'a>(
        len: usize,
        value: &dyn Fn(usize) -> Result<NonNull<()>, WaitError>,
    ) -> Result<Self::Values<'a>, WaitError>;
}

mod sealed {
    /// Only the types here are dependencies.
    pub trait Sealed {
        /// A node for each.
        fn nodes(&self) -> Vec<super::WaitNode>;
    }
}

impl<T: Send + Sync + 'static> sealed::Sealed for &[Request<T>] {
    fn nodes(&self) -> Vec<WaitNode> {
        self.iter().map(|request| node(request.clone())).collect()
    }
}

impl<T: Send + Sync + 'static> Dependencies for &[Request<T>] {
    type Values<'a> = Vec<&'a T>;

    unsafe fn values<'a>(
        len: usize,
        value: &dyn Fn(usize) -> Result<NonNull<()>, WaitError>,
    ) -> Result<Vec<&'a T>, WaitError> {
        // SAFETY: by contract.
        (0..len).map(|at| Ok(unsafe { value(at)?.cast::<T>().as_ref() })).collect()
    }
}

macro_rules! tuples {
    ($($($T:ident $at:tt),+;)+) => {$(
        impl<$($T: Send + Sync + 'static),+> sealed::Sealed for ($(&Request<$T>,)+) {
                    fn nodes(&self) -> Vec<WaitNode> {
                vec![$(node(self.$at.clone())),+]
            }
        }
        impl<$($T: Send + Sync + 'static),+> Dependencies for ($(&Request<$T>,)+) {
            type Values<'a> = ($(&'a $T,)+);

            unsafe fn values<'a>(
                _: usize,
                value: &dyn Fn(usize) -> Result<NonNull<()>, WaitError>,
            ) -> Result<($(&'a $T,)+), WaitError> {
                // SAFETY: by contract.
                Ok(($(unsafe { value($at)?.cast::<$T>().as_ref() },)+))
            }
        }
    )+};
}

tuples! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
}

impl RequestBuilder {
    /// It is not started before `dependency` is over, too. If that has come to no value, the request fails, as if its first statement were
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
        self.dependencies_mut().extend(dependencies.into_iter().map(ErasedHandle::of));
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
        let mut nodes = dependencies.nodes();
        let len = nodes.len();
        nodes.extend(self.dependencies().iter().map(|kept| node(kept.0.clone())));
        let call = move |edges: Edges<NodeBlock>| {
            wait_for(&edges, edges.len())?;
            // SAFETY: the first nodes are those of `D`, and stay until the values have been used.
            Ok(f(unsafe { D::values(len, &|at| edges.wait(at).map(Header::value))? }))
        };
        // SAFETY: all is `'static`.
        unsafe { dependent(self, NodeBlock::new(nodes), call, user, Some(Location::caller()), ptr::null()) }
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
