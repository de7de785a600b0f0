//! Makes dependents: handles of what a dependent is after, and what it does with its edges when they are closed.
//!
//! An edge keeps a handle of its dependency without the type of its value ([`ErasedHandle`], [`Opaque`]). The type is
//! known again in one place: the implementation of [`Get`] that was made together with the last edge. It asks for the
//! value of the edge at its `place` with the type of that edge. So the unsafe calls in it are sound if each constructor
//! makes both of one `Request<A>`, as those here and in `then.rs` do.

use std::marker::PhantomData;
use std::panic::Location;
use std::ptr::{self, NonNull};

use forebear_context::error::{Error, WaitError};

use crate::api::after::{Declared, Edges, Opaque};
use crate::api::builder::RequestBuilder;
use crate::api::builder::make::make_from;
use crate::api::request::{Outcome, Request};
use crate::record::cell::{BOXED_ABOVE, Boxed, Callable, Closure, Named, Typed};
use crate::record::header::Header;
use crate::record::scope_core::ScopeCore;
use crate::state::open;

/// A handle of a request whose value's type is not known here. It gives no access to the value.
#[derive(Clone, Debug)]
pub struct ErasedHandle(Request<Opaque>);

impl ErasedHandle {
    /// The value may go on any thread, and at any time.
    pub(super) fn of<T: Send + 'static>(request: &Request<T>) -> ErasedHandle {
        // SAFETY: `'static`.
        unsafe { ErasedHandle::lent(request.clone()) }
    }

    /// The same of one whose value may borrow.
    ///
    /// # Safety
    ///
    /// It is dropped while the borrow lasts.
    unsafe fn lent<T: Send>(request: Request<T>) -> ErasedHandle {
        // SAFETY: the request's handle; the value is not accessed, and the drop goes through the request's
        // table.
        ErasedHandle(unsafe { Request::from_raw(request.into_raw()) })
    }

    /// The header, with the handle.
    pub(crate) fn into_raw(self) -> NonNull<Header> {
        self.0.into_raw()
    }
}

/// Handles of what a description's requests are after. The first few lie in the list itself, so that a short one is a single allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandleList {
    len: usize,
    first: [Option<ErasedHandle>; 8],
    more: Vec<ErasedHandle>,
}

impl HandleList {
    const EMPTY: &HandleList = &HandleList { len: 0, first: [const { None }; 8], more: Vec::new() };

    /// Appends it.
    pub(super) fn push(&mut self, handle: ErasedHandle) {
        match self.first.get_mut(self.len) {
            Some(place) => *place = Some(handle),
            None => self.more.push(handle),
        }
        self.len += 1;
    }

    fn iter(&self) -> impl Iterator<Item = &ErasedHandle> {
        self.first.iter().map_while(Option::as_ref).chain(&self.more)
    }
}

/// How many requests a description's are after, and handles of these.
pub(super) fn described(builder: &RequestBuilder) -> (usize, impl Iterator<Item = ErasedHandle>) {
    let list = builder.dependencies().unwrap_or(HandleList::EMPTY);
    (list.len, list.iter().cloned())
}

/// Makes an unsubmitted dependent, which is after so many requests.
///
/// # Safety
///
/// What the handles lead to and the callable may borrow outlives the scope, which waits for the request; or they are `'static`.
pub(super) unsafe fn dependent<T, U: Named>(
    builder: &RequestBuilder,
    (len, handles): (usize, impl Iterator<Item = ErasedHandle>),
    call: impl FnOnce(Edges) -> Result<T, Error> + Send,
    user: PhantomData<fn(U)>,
    location: Option<&'static Location<'static>>,
    scope: *const ScopeCore,
) -> Request<T> {
    fn is_large<F>(_: &F) -> bool {
        size_of::<F>() > BOXED_ABOVE / 2 || align_of::<F>() > 16
    }
    assert!(len <= open::MOST, "a request can depend on at most {} others", open::MOST);
    if is_large(&call) {
        let call = Box::new(call);
        // SAFETY: by contract: what the closure borrows outlives the request.
        return unsafe { make_from(builder, Declared { len, handles, call, user }, location, scope) };
    }
    // SAFETY: as above.
    unsafe { make_from(builder, Declared { len, handles, call, user }, location, scope) }
}

/// Calls the user's code with the values that it waited for. If the wait has failed, the captures of that code are
/// dropped before there is a result. Otherwise a panic of a destructor would leave the function with a result, which
/// rustc leaks, and with it the failure and all that it holds.
#[inline(always)]
pub(super) fn call_or_drop<F, V, T>(
    f: F,
    waited: Result<V, WaitError>,
    call: impl FnOnce(F, V) -> Result<T, Error>,
) -> Result<T, Error> {
    match waited {
        Ok(value) => call(f, value),
        Err(error) => {
            drop(f);
            Err(error.into())
        }
    }
}

/// Waits for the first so many.
pub(super) fn wait_for(edges: &Edges, most: usize) -> Result<(), WaitError> {
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

/// Makes a dependent that starts only if all its dependencies have values.
///
/// # Safety
///
/// As [`dependent`].
unsafe fn after_all<T, C: Callable<T>>(
    builder: &RequestBuilder,
    callable: C,
    location: Option<&'static Location<'static>>,
    scope: *const ScopeCore,
) -> Request<T> {
    let call = |edges: Edges| {
        let waited = wait_for(&edges, edges.len());
        call_or_drop(callable, waited, |callable, ()| {
            // The callable may take what it was after.
            drop(edges);
            callable.call()
        })
    };
    // SAFETY: by contract.
    unsafe { dependent(builder, described(builder), call, PhantomData::<fn(Typed<C, T>)>, location, scope) }
}

/// A dependent whose callable gets the last edge's outcome or value, when all others are over and have
/// values.
///
/// # Safety
///
/// As [`dependent`].
pub(super) unsafe fn then_one<A: Send, T, U>(
    builder: &RequestBuilder,
    dependency: Request<A>,
    get: impl Get<T> + Send,
    user: PhantomData<fn(Closure<U>)>,
    location: Option<&'static Location<'static>>,
    scope: *const ScopeCore,
) -> Request<T> {
    // SAFETY: by contract: the edges go before the scope ends.
    let last = unsafe { ErasedHandle::lent(dependency) };
    let (others, handles) = described(builder);
    let call = |edges: Edges| {
        let place = edges.len() - 1;
        let waited = wait_for(&edges, place);
        call_or_drop(get, waited, |get, ()| get.get(edges, place))
    };
    // SAFETY: by contract.
    unsafe { dependent(builder, (others + 1, handles.chain(Some(last))), call, user, location, scope) }
}

/// What a dependent does with the edge at a place.
pub(super) trait Get<T> {
    fn get(self, edges: Edges, place: usize) -> Result<T, Error>;
}

/// Calls with the value.
pub(super) struct OfValue<A, F>(pub(super) F, pub(super) PhantomData<fn(A)>);

impl<A, T, F: FnOnce(&A) -> Result<T, Error>> Get<T> for OfValue<A, F> {
    fn get(self, edges: Edges, place: usize) -> Result<T, Error> {
        // SAFETY: made with a request for an `A`.
        let value = unsafe { edges.value::<A>(place) };
        call_or_drop(self.0, value, |f, value| f(value))
    }
}

/// Calls with the outcome.
pub(super) struct OfOutcome<A, F>(pub(super) F, pub(super) PhantomData<fn(A)>);

impl<A, T, F: FnOnce(Outcome<'_, A>) -> T> Get<T> for OfOutcome<A, F> {
    fn get(self, edges: Edges, place: usize) -> Result<T, Error> {
        // SAFETY: made with a request for an `A`.
        let request = unsafe { edges.over::<A>(place) };
        call_or_drop(self.0, request, |f, request| match request.outcome() {
            Some(outcome) => Ok(f(outcome)),
            None => unreachable!("it was waited for"),
        })
    }
}

/// Calls with the value itself.
pub(super) struct OfAll<A, F>(pub(super) F, pub(super) PhantomData<fn(A)>);

impl<A, T, F: FnOnce(A) -> T> Get<T> for OfAll<A, F> {
    fn get(self, edges: Edges, place: usize) -> Result<T, Error> {
        // SAFETY: made with a request for an `A`.
        let value = unsafe { edges.take::<A>(place) };
        call_or_drop(self.0, value, |f, value| {
            drop(edges);
            Ok(f(value))
        })
    }
}

pub(super) fn plain<A, T>(f: impl FnOnce(&A) -> T) -> impl FnOnce(&A) -> Result<T, Error> {
    move |value: &A| Ok(f(value))
}

pub(super) fn closure<F>(_: &F) -> PhantomData<fn(Closure<F>)> {
    PhantomData
}
