//! The wait for a pool: spawns lanes, hands results on, sleeps, and stops. All of it runs on the waiter's stack, inside one scope, whose jobs the
//! lanes and the members are. So no way out of the wait leaves before all of them are over.
//!
//! # Order of a stop
//!
//! 1. The board is stopped: no member starts any more. The thread that stops the board aborts the started members.
//! 2. Included requests are marked as cancelled. None is ended yet: the captures of one may wait
//!    for another.
//! 3. Lanes are aborted. Then the held members and the values that no caller receives are taken out of the run, and held-back
//!    requests are released.
//! 4. The marked requests are ended, and what was taken out of the run is dropped.
//! 5. The waiter sleeps until the started members are over.
//!
//! # Lifetimes
//!
//! The board is shared with threads that outlive the wait, and leads to the run in this frame while the admission is open. The lifetime of that pointer
//! is left out; `CloseOnDrop` closes the admission before the run goes, on every way out (HB1).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::time::Instant;

use forebear_context::context::Reason;
use forebear_context::error::internal::{drop_contained, resume};
use forebear_context::error::{CancelReason, Cycle, Error, WaitError};
use forebear_context::shim::Arc;
use forebear_context::shim::atomic::Ordering;

use super::lane::Lane;
use super::run::{GATHERS_FOR, GATHERS_FROM, Left, MemberOutcome, Run, Values, WaiterStep};
use super::{IncludedHandle, RequestPool};
use crate::api::any::State;
use crate::api::origin;
use crate::api::request::Request;
use crate::api::runtime::running::parallelism;
use crate::api::scope::{Scope, into_wait_error, try_scope};
use crate::cancel::{self, Marked};
use crate::deadlock::cycle;
use crate::deadlock::urgency;
use crate::foreign;
use crate::record::any::{AnyRequest, Lanes};
use crate::record::fiber::Fiber;
use crate::record::no_suspend;
use crate::schedule::admission;
use crate::schedule::held_back::{self, Admission, Waited};
use crate::schedule::held_back::{Board, Why};
use crate::schedule::worker::OnWorker;
use crate::shared::worker::OnRecord;

/// The receiver of the results.
type Sink<'a, T> = dyn FnMut(usize, T) -> Result<(), Error> + 'a;

/// Runs the pool to its end.
#[track_caller]
pub(super) fn run<'env, T: Send + 'env>(
    pool: RequestPool<'env, T>,
    values: Values,
    sink: &mut Sink<'_, T>,
) -> Result<(), WaitError> {
    let Some(fiber) = foreign::fiber() else { return Err(WaitError::ShutDown) };
    if cancel::refuses(fiber) {
        return Err(WaitError::Cancelled);
    }
    let RequestPool { held, kept, mut limits, board, .. } = pool;
    if held.is_empty() {
        return Ok(());
    }
    if fiber.context().no_suspend().get() > 0 {
        no_suspend::refuse(fiber, "a pool");
    }
    if let Some(cycle) = kept.iter().flatten().find_map(|kept| waits_for_itself(fiber, &kept.request)) {
        return Err(WaitError::CircularWait(cycle));
    }
    if limits.active == 0 {
        limits.active = parallelism().get();
    }
    let run = Run::new(board, values, limits, held);
    let open = CloseOnDrop(&run.board);
    // A waiter for an included request reads whether this waiter is suspended, so it must not gather. In a runtime
    // with virtual time there is no time to gather.
    let may_gather = !fiber.has_worker()
        && values == Values::HandedOn
        && limits.active >= GATHERS_FROM
        && kept.is_empty()
        && origin::current_runtime(fiber).driven.is_none();
    let mut waiter =
        PoolWaiter { fiber, run: &run, kept, lanes: Vec::new(), taken: None, may_gather, fresh: false };
    let (mut ended, mut aborted) = (Ok(()), Vec::new());
    let jobs = try_scope(|scope| {
        waiter.open(scope);
        ended = waiter.go(scope, sink);
        if let Err(end) = &ended {
            aborted = waiter.stop(end);
        }
        Ok(())
    });
    drop(open);
    // All lanes and their members are over. Now wait for the included requests, for which no lane may
    // have waited.
    for request in aborted {
        if matches!(request.wait(), Err(WaitError::Cancelled)) {
            break;
        }
    }
    let stopped = run.board.close();
    if let Err(End::Unwound(payload)) = ended {
        // Not by the unwind: what a member has failed with may wait when it is dropped.
        drop_contained((jobs, stopped));
        resume(payload);
    }
    if cancel::refuses(fiber) || ended.is_err() && cancel::is_told_of(fiber, None) {
        return Err(WaitError::Cancelled);
    }
    match (ended, stopped) {
        (Err(_), Some((_, Some(answer)))) => Err(answer),
        (Err(_), Some((Why::PoolWaiter, None))) => Err(WaitError::Cancelled),
        (Err(_), Some((why, None))) => Err(WaitError::TargetCancelled(why.reason())),
        (Err(_), None) => unreachable!("a wait that ends early has stopped its pool"),
        (Ok(()), _) => jobs,
    }
}

/// Closes the admission, if it is open, before the run is dropped (HB1).
struct CloseOnDrop<'a>(&'a Arc<Board>);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        held_back::close(self.0);
    }
}

/// The cycle, if an included request is the waiter, or runs below it on the same stack.
fn waits_for_itself(fiber: &Fiber, request: &AnyRequest) -> Option<Cycle> {
    // SAFETY: the handle's link.
    let h = unsafe { request.raw().as_ref() };
    let current = Request::current();
    let here = ptr::eq(h.fiber.load(Ordering::Relaxed), fiber) || current.as_ref() == Some(request);
    if h.word().load().is_terminal() || !here {
        return None;
    }
    let current = current.filter(|current| current != request).map(|current| current.name().to_owned());
    Some(Cycle::new(current.into_iter().chain([h.name().to_owned()])))
}

/// Why a wait stops early.
enum End {
    /// The board was stopped.
    Stopped,
    /// A lane is cancelled.
    Lost,
    /// The waiter is cancelled.
    Cancelled,
    /// The receiver of the results has failed with this.
    Failed(WaitError),
    /// The receiver of the results has unwound.
    Unwound(Box<dyn std::any::Any + Send>),
}

struct PoolWaiter<'a, 'env, T> {
    fiber: &'a Fiber,
    run: &'a Run<'env, T>,
    /// The included requests that are not over.
    kept: Vec<Option<IncludedHandle<'env>>>,
    /// The lanes, perhaps with some that are over.
    lanes: Lanes,
    /// The declared memory of the member whose value was taken last, if that member still has its
    /// place.
    taken: Option<u64>,
    /// Whether the waiter may gather values, and whether it has received one since it last slept.
    may_gather: bool,
    fresh: bool,
}

impl<'a, 'env: 'a, T: Send + 'env> PoolWaiter<'a, 'env, T> {
    /// Opens the admission, through which a stop wakes the waiter, and holds back the included
    /// requests.
    fn open<'scope>(&mut self, scope: &'scope Scope<'scope, 'a>) {
        let run: NonNull<dyn Waited + '_> = NonNull::from(self.run);
        // SAFETY: only the lifetime is left out; HB1 stands for it.
        let run: NonNull<dyn Waited> = unsafe { std::mem::transmute(run) };
        let waiter = NonNull::from(self.fiber.context());
        self.run.board.set_admission(Some(Admission { run, scope: scope.core(), waiter }));
        if self.kept.is_empty() {
            return;
        }
        self.run.hold(self.kept.iter().flatten().map(|kept| kept.request.clone()));
    }

    /// Runs until the last member is over.
    fn go<'scope>(&mut self, scope: &'scope Scope<'scope, 'a>, sink: &mut Sink<'_, T>) -> Result<(), End> {
        loop {
            if cancel::refuses(self.fiber) {
                return Err(End::Cancelled);
            }
            match self.run.step(self.taken.take()) {
                WaiterStep::Over => break,
                WaiterStep::Stopped => return Err(End::Stopped),
                WaiterStep::Lost => return Err(End::Lost),
                WaiterStep::Spawn(lanes) => (0..lanes).for_each(|_| self.spawn_lane(scope)),
                WaiterStep::MemberOutcome(outcome) => {
                    self.taken = Some(outcome.bytes());
                    self.fresh = self.may_gather;
                    match outcome {
                        MemberOutcome::Value { index, value, .. } => hand_on(sink, index, value)?,
                        MemberOutcome::Included { kept } => self.kept[kept] = None,
                    }
                }
                WaiterStep::Wait => {
                    let gathers = std::mem::take(&mut self.fresh);
                    self.sleep(gathers, false);
                }
            }
        }
        let mut kept = self.run.take_kept();
        while let Some((index, value)) = kept.pop_front() {
            hand_on(sink, index, value)?;
        }
        Ok(())
    }

    fn spawn_lane<'scope>(&mut self, scope: &'scope Scope<'scope, 'a>) {
        // Drops the handles of lanes that are over, now and then, so that a long pool does not keep
        // all of them.
        if self.lanes.len() >= 64 && self.lanes.len().is_power_of_two() {
            self.lanes.retain(|lane| !lane.is_done());
        }
        let lane = Lane::spawn(self.run, scope);
        // SAFETY: U2: the handle's link.
        unsafe {
            urgency::raise(self.fiber.worker_record(), lane.raw(), self.fiber.urgency.load(Ordering::Relaxed))
        };
        self.lanes.push(lane);
    }

    /// Stops the pool, if it has not stopped by itself. Held members never start. Answers the included requests,
    /// aborted.
    fn stop(&mut self, end: &End) -> Vec<AnyRequest> {
        let board = &self.run.board;
        match end {
            End::Stopped => {}
            End::Lost => admission::stop(board, Why::Lane(self.why_lost())),
            End::Cancelled => admission::stop(board, Why::PoolWaiter),
            End::Failed(error) => admission::stop_with(board, Why::Failed, error.clone()),
            End::Unwound(_) => admission::stop(board, Why::Unwound),
        }
        let Some(why) = board.why() else { return Vec::new() };
        let mut included: Vec<_> = self.kept.iter().flatten().map(|kept| kept.request.clone()).collect();
        let mut marked = Marked::default();
        match why.concerns_included() {
            true => included.iter().for_each(|request| marked.abort(request.clone(), why.reason())),
            false => included.clear(),
        }
        // Their members are aborted already. If a member of a lane has failed, only unstarted lanes are aborted, so
        // that the failure is returned. Otherwise lanes that wait for an included request, which continues, are
        // aborted too.
        for lane in &self.lanes {
            if !matches!(why, Why::Member(_)) || matches!(lane.state(), State::Queued) {
                lane.abort(why.reason());
            }
        }
        // Dropped now, since started members may wait for what these captures hold.
        let Left { held, included: back, outcomes, kept } = self.run.give_up(self.taken.take());
        admission::let_go(back, &mut marked);
        // Only after all are marked and none is held back: the captures of one may wait for another.
        marked.carry_out();
        // The pool was stopped for another reason, which is the result.
        drop_contained(held);
        drop_contained(outcomes);
        // Dropped here: a function's return value is leaked if the destructor of a local panics.
        drop_contained(kept);
        self.kept.clear();
        // Waits here, so that the failure is the result: the scope's own wait would abort the lane that has the failure.
        while !self.run.is_quiet() {
            self.sleep(false, true);
        }
        included
    }

    /// Sleeps until a lane has work for the waiter, or the waiter is cancelled; or gathers for a moment. With `stopped`, a cancelled waiter sleeps
    /// too, until all started members are over.
    fn sleep(&self, gathers: bool, stopped: bool) {
        if let Some(worker) = self.fiber.worker() {
            worker.make_room_to_leave(self.fiber);
        }
        let context = self.fiber.context();
        // The wait is for the lanes; see `urgency`.
        let lanes: *const Lanes = &self.lanes;
        // SAFETY: C2: this is the fiber's own stack; C4: the lanes are `self`'s, which outlives the wait, and nothing unwinds before it
        // is parked or taken back.
        let ticket = unsafe { context.begin(Reason::Pool, lanes.cast_mut().cast()) };
        // SAFETY: G1: this fiber has opened the scope.
        if !unsafe { self.run.wait(context, ticket, gathers) } {
            // SAFETY: C2: the wait was begun just now, and is not parked.
            unsafe { context.abandon(ticket) };
            return;
        }
        let until = gathers.then(|| Instant::now() + GATHERS_FOR);
        // A wait with a limit is no edge of the wait-for graph.
        if let (Some(scope), None) = (NonNull::new(self.fiber.scopes.get().cast_mut()), until) {
            // SAFETY: on the fiber's own stack, after `begin`. The innermost scope is the pool's.
            unsafe { cycle::bind_to_all(self.fiber, ticket, scope, stopped) };
        }
        // SAFETY: on the fiber's own stack, after `begin`.
        unsafe { context.park(until) };
    }

    /// Why a lane was cancelled, before the pool has stopped.
    fn why_lost(&self) -> CancelReason {
        let lost = self.lanes.iter().find(|lane| lane.is_cancelled());
        // SAFETY: the handle's link.
        lost.map_or(CancelReason::Aborted, |lane| cancel::reason(unsafe { lane.raw().as_ref() }))
    }
}

/// Hands a result on.
fn hand_on<T>(sink: &mut Sink<'_, T>, index: usize, value: T) -> Result<(), End> {
    match catch_unwind(AssertUnwindSafe(|| sink(index, value))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(End::Failed(into_wait_error(error))),
        Err(payload) => Err(End::Unwound(payload)),
    }
}
