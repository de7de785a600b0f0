//! A lane: a request that runs members of a pool, one after the other. See [`super::run`].
//!
//! Each member is a request of its own, made by the lane and run on the lane's stack if nothing speaks against it. The
//! lane has nothing else to do meanwhile: the next member is another lane's, and to stop the pool is nobody's in
//! particular.
//!
//! A lane whose members' values are handed on runs one member only: the value keeps the place, and the waiter is to
//! come to it soon. Otherwise it continues, and lets go first what is ready on its worker: members that have begun, and
//! the waiter.

use forebear_context::error::WaitError;

use super::member::{Admitted, Alarm, Turn};
use super::run::{LaneNext, MemberOutcome, Run, Values};
use crate::api::any::AnyRequest;
use crate::api::scope::Scope;
use crate::record::fiber::{self, Fiber};
use crate::schedule::admission;
use crate::schedule::held_back::{Name, Why};
use crate::schedule::worker::OnWorker;
use crate::schedule::yielding::yield_now;
use crate::state::attention::HUNGRY;

/// A lane that has been spawned. If it never begins, it tells when it is dropped.
pub(super) struct Lane<'scope, 'run, 'env, T> {
    run: &'run Run<'env, T>,
    scope: &'scope Scope<'scope, 'run>,
    begun: bool,
}

impl<'scope, 'run, 'env: 'run, T: Send + 'env> Lane<'scope, 'run, 'env, T> {
    /// Spawns one. [`Run::step`] has counted it as spare.
    pub(super) fn spawn(run: &'run Run<'env, T>, scope: &'scope Scope<'scope, 'run>) -> AnyRequest {
        let lane = Lane { run, scope, begun: false };
        scope.spawn(move || lane.go()).to_untyped()
    }

    fn go(mut self) {
        self.begun = true;
        let (number, mut next) = self.run.begin();
        while let Some(Admitted { bytes, work }) = next {
            let outcome = self.member(number, bytes, work).map_err(|error| match error {
                // This lane is cancelled, most likely because the waiter is, who knows.
                WaitError::Cancelled => {}
                error => admission::stop_with(&self.run.board, Why::Member(number), error),
            });
            let after = match self.run.values {
                Values::HandedOn => LaneNext::End,
                _ if others_are_ready() => LaneNext::Pause,
                _ => LaneNext::GoOn,
            };
            next = self.run.member_over(number, bytes, outcome, after);
            if after == LaneNext::Pause {
                // The result does not matter: the member finds a cancel itself.
                let _ = yield_now();
                next = self.run.after_pause(number);
            }
        }
    }

    /// Runs a member to its end.
    fn member(
        &self,
        number: usize,
        bytes: u64,
        work: Turn<'env, T>,
    ) -> Result<Option<MemberOutcome<T>>, WaitError> {
        let board = &*self.run.board;
        let alarm = Alarm { board, lane: number };
        share_lanes();
        match work {
            Turn::Own { index, job } => {
                let request = job.spawn(self.scope, alarm, self.run.values != Values::Dropped);
                board.list(number, Name::Own(request.to_untyped()));
                let value = request.take()?;
                Ok(value.map(|value| MemberOutcome::Value { index, value, bytes }))
            }
            Turn::Included { kept, request, held } => {
                board.list(number, Name::Included(request.clone()));
                if held {
                    // SAFETY: HB2: it was taken out of the run by this lane.
                    unsafe { admission::admit(&request) };
                }
                request.wait().map(|()| Some(MemberOutcome::Included { kept }))
            }
        }
    }
}

/// If other workers are hungry they get lanes: if they took the member, it would be run there and its lane would wait
/// here, perhaps behind the next.
fn share_lanes() {
    if let Some(worker) = fiber::get().and_then(Fiber::worker)
        && worker.post.attention.get() & HUNGRY != 0
    {
        worker.feed();
    }
}

impl<T> Drop for Lane<'_, '_, '_, T> {
    fn drop(&mut self) {
        if !self.begun {
            self.run.lost();
        }
    }
}

/// Whether something that has begun could continue on this worker.
fn others_are_ready() -> bool {
    // Keys of what has not begun are not 0.
    fiber::get().and_then(Fiber::worker).is_some_and(|worker| worker.best() == 0)
}
