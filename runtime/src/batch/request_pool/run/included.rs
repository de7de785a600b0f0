//! Included requests: held back when the wait begins, admitted out of turn if a thread waits for one, and released by a stop.
//!
//! The bound is exceeded only where keeping it would deadlock. Either that waiter is a member with a place, or
//! descends from one; or no request that has a place can continue ([`Waited::ask`], [`Waited::unstick`]).

use std::collections::HashSet;
use std::ptr::NonNull;

use forebear_context::shim::{MutexGuard, mutant};

use super::Run;
use super::state::{Included, RunState};
use crate::api::any::AnyRequest;
use crate::batch::request_pool::member::{HeldMember, Work};
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::schedule::held_back::{self, Admission, Released, Waited};
use crate::shared::OfRuntime;
use crate::state::word::{CLAIMED, COMPLETING, QUEUED};

impl<T> Run<'_, T> {
    /// Holds back the included requests that are new, before the first lane and when the admission is open. One that was
    /// submitted already takes its place at once.
    pub(in crate::batch::request_pool) fn hold(&self, included: impl Iterator<Item = AnyRequest>) {
        let mut running = HashSet::new();
        let mut state = self.lock();
        for (kept, request) in included.enumerate() {
            let header = request.raw();
            // SAFETY: the handle's link.
            let h = unsafe { header.as_ref() };
            // Reserved before the lock is taken, so that there is no allocation under it.
            let side = h.side_or_new();
            let board = self.board.clone();
            // The pool that held it back before. Dropped after the lock is released.
            let mut before = None;
            // SAFETY: W15: called under the word's lock, while it is new.
            let held = h.word().hold(|| before = unsafe { &mut *side.held_by.get() }.replace(board));
            drop(before);
            let bits = h.word().load();
            state.included.push(Some(Included { request, held, asked: false }));
            if held {
                state.by_header.insert(header.addr().get(), kept);
            } else if matches!(bits.life(), QUEUED | CLAIMED | COMPLETING) && running.insert(header) {
                state.admit_alone(kept);
            }
        }
        state.tidy();
    }
}

/// Takes out the included requests that have not been admitted.
pub(super) fn release(included: &mut [Option<Included>]) -> Released {
    let (held, others): (Vec<_>, Vec<_>) =
        included.iter_mut().filter_map(Option::take).partition(|one| one.held);
    let requests = |included: Vec<Included>| included.into_iter().map(|one| one.request).collect();
    Released { held: requests(held), others: requests(others) }
}

impl<T> Waited for Run<'_, T> {
    fn stopped(&self) -> Released {
        let mut state = self.lock();
        let mut released = release(&mut state.included);
        released.others.extend(state.waited.iter().map(|(_, request)| request.clone()));
        mutant!("stop_wakes_nobody", drop(state), self.unlock_and_tell(state));
        released
    }

    fn ask(&self, admission: &Admission, asker: &Fiber, request: NonNull<Header>) -> Option<AnyRequest> {
        let mut state = self.lock();
        let kept = *state.by_header.get(&request.addr().get())?;
        let asked = state.included.get_mut(kept)?.as_mut()?;
        if !std::mem::replace(&mut asked.asked, true) {
            state.held.push_front(HeldMember { bytes: 0, work: Work::Included { kept } });
        }
        // Also if a lane was cancelled. The waiter will stop the pool, but may still be in the receiver of the results and wait for
        // this request.
        if self.board.is_stopped() {
            return None;
        }
        let fits = state.fits();
        if !fits && !admission.has_share(asker, &self.placed(&state)) && !self.is_stuck(admission, &state) {
            return None;
        }
        self.admit_asked(state, kept, fits)
    }

    fn unstick(&self, admission: &Admission) -> Option<AnyRequest> {
        let state = self.lock();
        let &HeldMember { work: Work::Included { kept }, .. } = state.held.front()? else { return None };
        let asked = state.included[kept].as_ref().is_some_and(|included| included.asked);
        if !asked || self.board.is_stopped() || !self.is_stuck(admission, &state) {
            return None;
        }
        let fits = state.fits();
        self.admit_asked(state, kept, fits)
    }
}

/// Counts a request that is admitted over the bound, in the metrics of its runtime.
fn count_over(request: &AnyRequest) {
    // SAFETY: the handle's link keeps the header.
    let arena = unsafe { request.raw().as_ref() }.arena.get();
    // SAFETY: M3: what is not over has an arena.
    let shared = unsafe { arena.as_ref() }.map(|arena| arena.shared());
    if let Some(shared) = shared {
        shared.totals.count_over_bound();
    }
}

impl<'env, T> Run<'env, T> {
    /// The included requests that have a place; only to be compared.
    fn placed(&self, state: &RunState<'env, T>) -> Vec<*const Header> {
        let mut placed = self.board.included();
        placed.extend(state.waited.iter().map(|(_, request)| request.raw().as_ptr().cast_const()));
        placed
    }

    /// Admits an included request out of turn, over the bound if there is no room.
    fn admit_asked(
        &self,
        mut state: MutexGuard<'_, RunState<'env, T>>,
        kept: usize,
        fits: bool,
    ) -> Option<AnyRequest> {
        let admitted = state.admit_alone(kept);
        if let Some(request) = admitted.as_ref().filter(|_| !fits) {
            count_over(request);
        }
        self.unlock_and_tell(state);
        admitted
    }

    /// Whether no request that has a place can continue.
    fn is_stuck(&self, admission: &Admission, state: &RunState<'env, T>) -> bool {
        let members = state.active - state.to_take - state.waited.len();
        self.board.standing() >= members
            && state.waited.iter().all(|(_, request)| request.is_done() || !held_back::will_end(request))
            && (state.to_take == 0 || admission.waiter_stands())
    }
}
