//! Makes dependents: a dependent's nodes, and what it does with its edges when they are closed.
//!
//! A node keeps a handle of its dependency without the type of its value ([`ErasedHandle`], [`Opaque`]). The type is
//! known again in one place: the implementation of [`Get`] that was made together with the last node. It takes the
//! value of the edge at its `place` with the type of that node. So the unsafe calls in it are sound if each constructor
//! makes both of one `Request<A>`, as those here and in `then.rs` do.

use std::marker::PhantomData;
use std::panic::Location;
use std::ptr;

use forebear_context::context::WaitNode;
use forebear_context::error::{Error, WaitError};

use crate::api::after::{Dependent, Edges, Named, NodeBlock, Nodes, Opaque, Typed, node};
use crate::api::builder::RequestBuilder;
use crate::api::builder::make::make;
use crate::api::request::{Outcome, Request};
use crate::record::cell::{BOXED_ABOVE, Boxed, Callable};
use crate::record::scope_core::ScopeCore;

/// A handle of a request whose value's type is not known here. It gives no access to the value.
#[derive(Clone, Debug)]
pub(crate) struct ErasedHandle(pub(super) Request<Opaque>);

impl ErasedHandle {
    /// The value may go on any thread, and at any time.
    pub(super) fn of<T: Send + 'static>(request: &Request<T>) -> ErasedHandle {
        // SAFETY: the clone's handle; nobody looks at the value, and the drop goes by the request's table.
        ErasedHandle(unsafe { Request::from_raw(request.clone().into_raw()) })
    }
}

/// Makes an unsubmitted dependent.
///
/// # Safety
///
/// What the nodes lead to and the callable may borrow outlives the scope, which waits for the request; or they are `'static`.
pub(super) unsafe fn dependent<T, N: Nodes, U: Named>(
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
    if is_large(&call) {
        let boxed = Box::new(call);
        // SAFETY: by contract: what the closure borrows outlives the request.
        return unsafe { make(builder, Dependent::new(nodes, boxed, user), location, scope) };
    }
    // SAFETY: as above.
    unsafe { make(builder, Dependent::new(nodes, call, user), location, scope) }
}

/// The nodes of what the description says, and behind them one for `last`.
fn nodes_with(builder: &RequestBuilder, last: Option<WaitNode>) -> NodeBlock {
    NodeBlock::new(builder.dependencies().iter().map(|kept| node(kept.0.clone())).chain(last).collect())
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
pub(super) fn wait_for<N: Nodes>(edges: &Edges<N>, most: usize) -> Result<(), WaitError> {
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
        let waited = wait_for(&edges, edges.len());
        call_or_drop(callable, waited, |callable, ()| {
            // The callable may take what it was after.
            drop(edges);
            callable.call()
        })
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
pub(super) unsafe fn then_one<A: Send, T, U>(
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
            let waited = wait_for(&edges, place);
            call_or_drop(get, waited, |get, ()| get.get(edges, place))
        };
        dependent(builder, nodes, call, user, location, scope)
    }
}

/// What a dependent does with the edge at a place, wherever its nodes lie.
pub(super) trait Get<T> {
    fn get<N: Nodes>(self, edges: Edges<N>, place: usize) -> Result<T, Error>;
}

/// Calls with the value.
pub(super) struct OfValue<A, F>(pub(super) F, pub(super) PhantomData<fn(A)>);

impl<A, T, F: FnOnce(&A) -> Result<T, Error>> Get<T> for OfValue<A, F> {
    fn get<N: Nodes>(self, edges: Edges<N>, place: usize) -> Result<T, Error> {
        // SAFETY: made with a request for an `A`.
        let value = unsafe { edges.value::<A>(place) };
        call_or_drop(self.0, value, |f, value| f(value))
    }
}

/// Calls with the outcome.
pub(super) struct OfOutcome<A, F>(pub(super) F, pub(super) PhantomData<fn(A)>);

impl<A, T, F: FnOnce(Outcome<'_, A>) -> T> Get<T> for OfOutcome<A, F> {
    fn get<N: Nodes>(self, edges: Edges<N>, place: usize) -> Result<T, Error> {
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
    fn get<N: Nodes>(self, edges: Edges<N>, place: usize) -> Result<T, Error> {
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

pub(super) fn closure<F>(_: &F) -> PhantomData<fn(crate::api::after::Closure<F>)> {
    PhantomData
}
