//! What the waiter and the lanes of one wait share, under one lock: the held members, the admitted ones, and the results.
//!
//! # Lanes
//!
//! A lane is a request that runs members, one at a time: a job of the waiter's scope. It is *spare* until it has asked
//! for its first member. Lanes ask in any order and at any time. A lane gets a member if there is room for the first that is held. So
//! members start in the order in which they were added, whatever happens to lanes. A superfluous lane ends. When the last spare lane
//! is gone and there is still room, the waiter spawns more: lanes are its children, which only it can make. A member that ends lets
//! the next start on its own lane, although the waiter may have to wait for its turn on its worker.
//!
//! A lane has a number from its start to its end, under which the board knows its member.
//!
//! # Room
//!
//! A member takes its place when it is taken out of the queue, and keeps it until it is over. If the waiter has to hand on the value, or to drop
//! the handle of an included request with its value, the member keeps the place until that is done.
//!
//! # The race
//!
//! A lane may leave work for the waiter between the waiter's last check and its sleep. Both sides decide under the lock:
//! the waiter leaves its ticket only if there is no work, and the thread that adds work takes the ticket. The thread that stops the pool
//! wakes the waiter itself. Each admitted member leaves work when it is over, but perhaps not soon. A member in a shielded region may wait for
//! an event that only the waiter causes, when it drops the held callables.
//!
//! # Gathering
//!
//! To wake a thread costs more than a small member. So a thread that has received values since it last slept sleeps *gathering*, for
//! at most [`GATHERS_FOR`]. Values alone wake it only when they hold half of the places, or when no more are to come. Any other work
//! wakes it at once, and so does the first value after a sleep in which no value arrived. A gathered value keeps its place, as
//! any value does.
//!
//! # Invariants
//!
//! * **G1** `waiting` is a wait of the fiber that has opened the scope in which all lanes are jobs, begun inside that scope.
//!   So a lane that has taken it may wake it without the lock: the fiber does not leave the scope before the lane is
//!   over. A wait that has ended otherwise stays in the field; its ticket is refused. The thread that stops the pool wakes the fiber under the
//!   admission's lock (HB1).

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::PoisonError;
use std::time::Duration;

use forebear_context::context::{Cause, Context, Ticket, unpark};
use forebear_context::error::internal::Each;
use forebear_context::shim::{Arc, Mutex, MutexGuard};

mod included;
mod state;

use self::included::release;
use self::state::RunState;
use super::Limits;
use super::member::{Admitted, HeldMember, Turn};
use crate::schedule::held_back::{Board, Released};

/// At most so many lanes are spawned at a time.
const LANES_AT_ONCE: usize = 64;

/// How long a thread gathers values, at most.
pub(super) const GATHERS_FOR: Duration = Duration::from_micros(50);
/// The smallest bound with which a thread gathers: half of a smaller bound is one member at most.
pub(super) const GATHERS_FROM: usize = 4;

/// What happens to the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Values {
    /// Each member drops its own.
    Dropped,
    /// They are kept until the end.
    IncludedHandle,
    /// The waiter hands them on one by one. A value keeps its member's place until then.
    HandedOn,
}

/// What an ended member leaves to the waiter.
pub(super) enum MemberOutcome<T> {
    /// A value, of the `index`-th member that yields one, with the member's declared memory.
    Value { index: usize, value: T, bytes: u64 },
    /// An included request is over: the waiter drops the pool's `kept`-th handle. It has no
    /// declared memory.
    Included { kept: usize },
}

/// What the waiter is to do next.
pub(super) enum WaiterStep<T> {
    /// Spawn so many lanes.
    Spawn(usize),
    /// Take this.
    MemberOutcome(MemberOutcome<T>),
    /// Nothing: all members have ended with success, and the waiter has taken all values.
    Over,
    /// Nothing: the pool has stopped.
    Stopped,
    /// Stop the pool: a lane was cancelled.
    Lost,
    /// Wait.
    Wait,
}

/// What is taken out of a stopped pool, to be dropped.
pub(super) struct Left<'env, T> {
    pub held: Each<VecDeque<HeldMember<'env, T>>>,
    pub included: Released,
    pub outcomes: Each<VecDeque<MemberOutcome<T>>>,
    pub kept: Each<VecDeque<(usize, T)>>,
}

/// What a lane does after a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneNext {
    /// Takes the next, if there is room.
    GoOn,
    /// Yields to other fibers first. It is spare meanwhile.
    Pause,
    /// Ends.
    End,
}

/// See the module head.
pub(super) struct Run<'env, T> {
    pub board: Arc<Board>,
    pub values: Values,
    state: Mutex<RunState<'env, T>>,
}

struct Waiting(NonNull<Context>, Ticket);

// SAFETY: G1: any thread may wake it.
unsafe impl Send for Waiting {}

impl<T> MemberOutcome<T> {
    /// The member's declared memory.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            MemberOutcome::Value { bytes, .. } => *bytes,
            MemberOutcome::Included { .. } => 0,
        }
    }
}

impl<'env, T> Run<'env, T> {
    pub(super) fn new(
        board: Arc<Board>,
        values: Values,
        limits: Limits,
        held: Each<VecDeque<HeldMember<'env, T>>>,
    ) -> Self {
        Run { board, values, state: Mutex::new(RunState::new(limits, held)) }
    }

    fn lock(&self) -> MutexGuard<'_, RunState<'env, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is work for the waiter.
    fn has_news(&self, state: &RunState<'env, T>) -> bool {
        if state.given_up {
            return state.active == 0;
        }
        !(state.outcomes.is_empty() || state.may_gather())
            || state.lacks_lanes()
            || state.is_over()
            || state.failed
            || self.board.is_stopped()
    }

    /// Unlocks, and wakes the waiter if it waits and there is work. Called by a lane, or under the admission's lock.
    fn unlock_and_tell(&self, mut state: MutexGuard<'_, RunState<'env, T>>) {
        let waiting = match state.waiting {
            Some(_) if self.has_news(&state) => state.waiting.take(),
            _ => None,
        };
        drop(state);
        if let Some(Waiting(context, ticket)) = waiting {
            // SAFETY: G1.
            unsafe { unpark(context, ticket, Cause::Woken) };
        }
    }

    /// Takes the first held member, if there is room for it and the pool has not stopped. Otherwise lane `number`
    /// ends.
    fn admit(&self, state: &mut RunState<'env, T>, number: usize) -> Option<Admitted<'env, T>> {
        if !(self.board.is_stopped() || state.failed) {
            if let Some((kept, request)) = state.waited.pop_front() {
                return Some(Admitted { bytes: 0, work: Turn::Included { kept, request, held: false } });
            }
            if state.fits() {
                return state.admit_first();
            }
        }
        state.free.push(number);
        None
    }

    /// A spare lane starts. Answers its number and its first member.
    pub(super) fn begin(&self) -> (usize, Option<Admitted<'env, T>>) {
        let mut state = self.lock();
        state.spare -= 1;
        let number = state.free.pop().unwrap_or_else(|| {
            state.numbers += 1;
            state.numbers - 1
        });
        let first = self.admit(&mut state, number);
        self.unlock_and_tell(state);
        (number, first)
    }

    /// A spare lane will never start.
    pub(super) fn lost(&self) {
        let mut state = self.lock();
        state.spare -= 1;
        state.failed = true;
        self.unlock_and_tell(state);
    }

    /// The member of lane `number`, with `bytes` of declared memory, is over. `Err`: it ended without a value. Answers
    /// what the lane does next.
    pub(super) fn member_over(
        &self,
        number: usize,
        bytes: u64,
        outcome: Result<Option<MemberOutcome<T>>, ()>,
        after: LaneNext,
    ) -> Option<Admitted<'env, T>> {
        let mut state = self.lock();
        // A value that no caller receives is dropped after the lock is released.
        let mut unwanted = None;
        match outcome {
            Err(()) => {
                state.failed = true;
                state.release(bytes);
            }
            Ok(outcome) if state.given_up => {
                unwanted = outcome;
                state.release(bytes);
            }
            Ok(Some(MemberOutcome::Value { index, value, .. })) if self.values == Values::IncludedHandle => {
                state.kept.push_back((index, value));
                state.release(bytes);
            }
            Ok(Some(outcome)) => {
                state.to_take += 1;
                state.outcomes.push_back(outcome);
            }
            Ok(None) => state.release(bytes),
        }
        let next = match after {
            LaneNext::GoOn => self.admit(&mut state, number),
            LaneNext::Pause => {
                state.spare += 1;
                None
            }
            LaneNext::End => {
                state.free.push(number);
                None
            }
        };
        self.unlock_and_tell(state);
        drop(unwanted);
        next
    }

    /// Answers the next member of a lane that has yielded.
    pub(super) fn after_pause(&self, number: usize) -> Option<Admitted<'env, T>> {
        let mut state = self.lock();
        state.spare -= 1;
        let next = self.admit(&mut state, number);
        self.unlock_and_tell(state);
        next
    }

    /// Answers what the waiter does next. `done` is the declared memory of the member whose value the waiter took
    /// before: the place is free now.
    pub(super) fn step(&self, done: Option<u64>) -> WaiterStep<T> {
        let mut state = self.lock();
        if let Some(bytes) = done {
            state.to_take -= 1;
            state.release(bytes);
        }
        if state.is_over() {
            return WaiterStep::Over;
        }
        if self.board.is_stopped() {
            return WaiterStep::Stopped;
        }
        if state.failed {
            return WaiterStep::Lost;
        }
        if state.lacks_lanes() {
            let room = if state.fits() { state.limits.active.saturating_sub(state.active).max(1) } else { 0 };
            let more = state.limits.active.saturating_sub(state.lanes()).min(state.waited.len());
            state.spare = (room.min(state.held.len()) + more).min(LANES_AT_ONCE);
            return WaiterStep::Spawn(state.spare);
        }
        state.outcomes.pop_front().map_or(WaiterStep::Wait, WaiterStep::MemberOutcome)
    }

    /// The waiter is about to sleep: from now on a lane that has work for it wakes it. False: there is work already. With
    /// `gathers` the waiter sleeps for [`GATHERS_FOR`] at most.
    ///
    /// # Safety
    ///
    /// G1.
    pub(super) unsafe fn wait(&self, context: &Context, ticket: Ticket, gathers: bool) -> bool {
        let mut state = self.lock();
        state.gathers = false;
        if self.has_news(&state) {
            return false;
        }
        state.gathers = gathers;
        state.waiting = Some(Waiting(NonNull::from(context), ticket));
        true
    }

    /// The pool has stopped: takes out the held members, and the values that no caller receives. `done` is as in
    /// [`step`](Self::step). From now on the waiter is woken when the started members are over.
    pub(super) fn give_up(&self, done: Option<u64>) -> Left<'env, T> {
        let mut state = self.lock();
        state.given_up = true;
        let outcomes = std::mem::take(&mut state.outcomes);
        state.to_take = 0;
        done.into_iter()
            .chain(outcomes.iter().map(MemberOutcome::bytes))
            .for_each(|bytes| state.release(bytes));
        // They run or will run. No lane waits for their end any more.
        let waited = std::mem::take(&mut state.waited);
        state.active -= waited.len();
        let included = release(&mut state.included);
        Left {
            held: std::mem::take(&mut state.held),
            included,
            outcomes,
            kept: std::mem::take(&mut state.kept),
        }
    }

    /// Whether the started members are over, after the pool has stopped.
    pub(super) fn is_quiet(&self) -> bool {
        self.lock().active == 0
    }

    /// Takes the values that were kept, with their numbers.
    pub(super) fn take_kept(&self) -> Each<VecDeque<(usize, T)>> {
        std::mem::take(&mut self.lock().kept)
    }
}
