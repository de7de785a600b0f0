//! What a pool's members are before they are admitted.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use forebear_context::error::Error;

use crate::api::any::AnyRequest;
use crate::api::request::Request;
use crate::api::scope::Scope;
use crate::cancel::shield::is_cancelled;
use crate::record::cell::Callable;
use crate::schedule::admission;
use crate::schedule::held_back::{Board, Why};

/// A member that has not been admitted.
pub(super) struct HeldMember<'env, T> {
    /// What it has declared.
    pub bytes: u64,
    pub work: Work<'env, T>,
}

/// What a member is to do.
pub(super) enum Work<'env, T> {
    /// A callable of its own. `index` says which of the values it yields.
    Own { index: usize, job: Box<dyn Job<'env, T> + 'env> },
    /// A request of the user's, the pool's `kept`-th. It may have been admitted out of its turn; then this means nothing.
    Included { kept: usize },
}

/// A member that is admitted: a lane is to see it to its end.
pub(super) struct Admitted<'env, T> {
    /// What it has declared.
    pub bytes: u64,
    pub work: Turn<'env, T>,
}

/// What a lane is to do.
pub(super) enum Turn<'env, T> {
    /// Run it; see [`Work::Own`].
    Own { index: usize, job: Box<dyn Job<'env, T> + 'env> },
    /// Wait for a request of the user's; first let it run, if it was `held` back for the pool.
    Included { kept: usize, request: AnyRequest, held: bool },
}

/// A callable of any type. It is spawned where its type is known, so that the request has its name.
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
        // Dropped under the alarm: its destructor may fail the member.
        scope.try_spawn(move || alarm.watch(|| (*self).call().map(|value| wanted.then_some(value))))
    }
}

/// Stops the pool when the member of this lane fails: at once, since its lane may be stuck behind others on its worker.
/// The lane has the failure, when the member is over.
pub(super) struct Alarm<'run> {
    pub board: &'run Board,
    pub lane: usize,
}

impl Alarm<'_> {
    /// Calls `f`. If it unwinds, the pool learns of the failure before the unwind continues. So the abort of other
    /// members, which may drop their captures, never happens in the middle of an unwind.
    fn watch<T>(self, f: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let outcome = catch_unwind(AssertUnwindSafe(f));
        // One that is cancelled may have failed of that.
        if !matches!(outcome, Ok(Ok(_))) && !is_cancelled() {
            admission::stop(self.board, Why::Member(self.lane));
        }
        outcome.unwrap_or_else(|payload| resume_unwind(payload))
    }
}

/// A typed handle of any type.
pub(super) trait MemberHandle {}

impl<U> MemberHandle for Request<U> {}
