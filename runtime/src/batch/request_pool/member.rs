//! The members of a pool, before and after they are admitted.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebear_context::error::Error;
use forebear_context::error::internal::resume;

use crate::api::any::AnyRequest;
use crate::api::request::Request;
use crate::api::scope::Scope;
use crate::cancel::shield::is_cancelled;
use crate::record::cell::{Callable, Fallible, For, Typed};
use crate::schedule::admission;
use crate::schedule::held_back::{Board, Why};

/// A member that has not been admitted.
pub(super) struct HeldMember<'env, T> {
    /// Its declared memory, in bytes.
    pub bytes: u64,
    pub work: Work<'env, T>,
}

/// What a member is to do.
pub(super) enum Work<'env, T> {
    /// A callable of its own. `index` says which of the values it yields.
    Own { index: usize, job: Box<dyn Job<'env, T> + 'env> },
    /// A request of the user's, the pool's `kept`-th. If it was admitted out of turn, this entry is ignored.
    Included { kept: usize },
}

/// An admitted member: a lane runs it, or waits for it, to its end.
pub(super) struct Admitted<'env, T> {
    /// Its declared memory, in bytes.
    pub bytes: u64,
    pub work: Turn<'env, T>,
}

/// What a lane is to do.
pub(super) enum Turn<'env, T> {
    /// Run it; see [`Work::Own`].
    Own { index: usize, job: Box<dyn Job<'env, T> + 'env> },
    /// Wait for a request of the user's. If it was `held` back for the pool, release it first.
    Included { kept: usize, request: AnyRequest, held: bool },
}

/// A callable of any type. It is spawned where its type is known, so the request's name is that
/// type's.
pub(super) trait Job<'env, T>: Send {
    /// Runs it as a job of `scope`. A value that is not `wanted` is dropped as a part of the job.
    fn spawn<'scope, 'run>(
        self: Box<Self>,
        scope: &'scope Scope<'scope, 'run>,
        alarm: Alarm<'run>,
        wanted: bool,
    ) -> Request<Option<T>>
    where
        'env: 'run;
}

impl<'env, T: Send + 'env, C: Callable<T> + 'env> Job<'env, T> for C {
    fn spawn<'scope, 'run>(
        self: Box<Self>,
        scope: &'scope Scope<'scope, 'run>,
        alarm: Alarm<'run>,
        wanted: bool,
    ) -> Request<Option<T>>
    where
        'env: 'run,
    {
        // The value is dropped inside `watch`: its destructor may fail the member.
        let watched = Fallible(move || alarm.watch(|| (*self).call().map(|value| wanted.then_some(value))));
        scope.spawn_callable(For(watched, PhantomData::<fn(Typed<C, T>)>))
    }
}

/// Stops the pool when the member of this lane fails: at once, since its lane may wait behind other fibers on its
/// worker. When the member is over, its lane returns the failure.
pub(super) struct Alarm<'run> {
    pub board: &'run Board,
    pub lane: usize,
}

impl Alarm<'_> {
    /// Calls `f`. If it unwinds, the pool records the failure before the unwind continues. So the abort of other
    /// members, which may drop their captures, never runs inside an unwind.
    fn watch<T>(self, f: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let outcome = catch_unwind(AssertUnwindSafe(f));
        // A cancelled member may have failed because of the cancel.
        if !matches!(outcome, Ok(Ok(_))) && !is_cancelled() {
            admission::stop(self.board, Why::Member(self.lane));
        }
        outcome.unwrap_or_else(|payload| resume(payload))
    }
}

/// A typed handle of any type.
pub(super) trait MemberHandle {}

impl<U> MemberHandle for Request<U> {}
