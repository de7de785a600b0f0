//! A lane: a request that runs members of a pool, one after the other. See [`super::run`].
//!
//! Each member is a request of its own. The lane makes it, and waits for it, which mostly runs it on the lane's stack.
//! The lane has no other duty meanwhile: another lane takes the next member, and any thread can stop the pool.
//!
//! If values are handed on, a lane runs one member only: the value keeps the place, and the waiter should take it soon.
//! Otherwise the lane continues, and first yields to the ready fibers of its worker: started members, and the waiter.

use std::marker::PhantomData;

use forebear_context::error::WaitError;

use super::member::{Admitted, Alarm, Turn};
use super::run::{LaneNext, MemberOutcome, Run, Values};
use crate::api::any::AnyRequest;
use crate::api::scope::Scope;
use crate::record::cell::{For, Named, Plain};
use crate::record::fiber::{self, Fiber};
use crate::schedule::admission;
use crate::schedule::held_back::{Name, Why};
use crate::schedule::worker::OnWorker;
use crate::schedule::yielding::yield_now;
use crate::state::attention::HUNGRY;

/// A spawned lane. If it never starts, its destructor reports that to the run.
pub(super) struct Lane<'scope, 'run, 'env, T> {
    run: &'run Run<'env, T>,
    scope: &'scope Scope<'scope, 'run>,
    begun: bool,
}

/// What a dump calls a lane: the type of its closure says nothing to a user.
struct LaneOfPool;

impl Named for LaneOfPool {
    fn type_name() -> &'static str {
        "lane of a pool"
    }
}

impl<'scope, 'run, 'env: 'run, T: Send + 'env> Lane<'scope, 'run, 'env, T> {
    /// Spawns a lane. [`Run::step`] has counted it as spare.
    pub(super) fn spawn(run: &'run Run<'env, T>, scope: &'scope Scope<'scope, 'run>) -> AnyRequest {
        let lane = Lane { run, scope, begun: false };
        scope.spawn_callable(For(Plain(move || lane.go()), PhantomData::<fn(LaneOfPool)>)).to_untyped()
    }

    fn go(mut self) {
        self.begun = true;
        let (number, mut next) = self.run.begin();
        while let Some(Admitted { bytes, work }) = next {
            let outcome = self.member(number, bytes, work).map_err(|error| match error {
                // This lane is cancelled, mostly because the waiter is, which then knows already.
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
                // The result does not matter: the member checks for a cancel itself.
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

/// If other workers are hungry, they should take lanes. If a worker took the member alone, its lane would wait here,
/// perhaps behind the next member.
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

/// Whether a started request is ready on this worker.
fn others_are_ready() -> bool {
    // Keys of unstarted requests are not 0.
    fiber::get().and_then(Fiber::worker).is_some_and(|worker| worker.best() == 0)
}
