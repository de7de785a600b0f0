//! What a coordinator knows: the stop, the first failure, the members, and the joins.
//!
//! # Words
//!
//! A *member* is a worker that has been registered and has not ended. A *join* is one call of `join`: it waits for the members that
//! were there when it began, and for no later ones.
//!
//! # Which thread may touch what
//!
//! | what | thread | how |
//! | --- | --- | --- |
//! | `word` | any thread reads it; a thread that holds the lock writes it | relaxed: it orders nothing, [`Board::stopped`] does |
//! | `stopped` | any thread waits for it; a thread that holds the lock sets and resets it | an event, which wakes |
//! | [`BoardState`] | any thread, for a few steps | under the lock; no code of a user's runs there, and nothing waits |
//! | a member's [`Slot`] | the member writes it, a join reads it | atomic cells |
//!
//! # The races
//!
//! * *A stop against a member that is being registered.* Both are done under the lock. The second does the work: the stop takes
//!   the stoppers of all members along, and a member that finds the stop done is stopped by the thread that registers it.
//! * *The last end against a join that falls asleep.* An end takes the member out under the lock, and counts down the joins that are
//!   listed at it. The join that has come to zero is woken by its event. The event stays set, so a join that falls asleep after that
//!   does not.
//! * *A stop against a join that falls asleep.* The stop wakes the joins, too, by the same event. A join resets the event, then looks under
//!   the lock, then waits: what comes after the look sets the event again.
//! * *A clear against a stop or a failure.* Each is one step under the lock, with the event and the word. So the later one decides all of it: there is no failure
//!   without a stop, and no stop that a waiter misses. A stop has a number, so a delayed cancel reaches no member after a clear, not even during the next stop.
//!   The next session of a supervisor clears what a join has answered, and begins a stop anew that was requested since: in one step, too.
//!   A clear wakes no join: a join that has seen the stop wakes by itself within a 64th of its grace, and then looks.
//! * *Two failures.* The first that comes under the lock is kept. An error that comes after a join has given its answer is handed back to
//!   the caller that reports it: no other thread or request would learn of it.
//!
//! # Ticks
//!
//! A member notes where and when it has last asked whether to stop. It reads no clock: it copies the word, of which the upper bits are a
//! *tick*. A thread that holds the lock and knows the time advances the tick, and notes at what time. So an old tick says: at least so long ago.

use std::collections::{BTreeMap, VecDeque};
use std::panic::Location;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_utils::atomic::AtomicCell;
use forebear::sync::Event;
use forebear::{AnyRequest, Failure};

use super::stop::Stop;
use crate::shim::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::shim::{Mutex, MutexGuard};

/// In `word`: a stop has been requested.
const STOP: u64 = 1;
/// In `word`: one tick.
const TICK: u64 = 2;
/// So many failures are kept after the first.
const MOST_KEPT: usize = 16;
/// The times of so many ticks are kept.
const TICKS_KEPT: usize = 256;

/// What a coordinator's handles, members and joins share.
pub(super) struct Board {
    word: AtomicU64,
    pub(super) stopped: Event,
    state: Mutex<BoardState>,
}

pub(super) struct BoardState {
    next: u64,
    members: BTreeMap<u64, MemberEntry>,
    joins: Vec<Arc<Join>>,
    /// When the stop was requested.
    stop: Option<Instant>,
    /// Counts stops and what clears them, so that a delayed cancel knows whether it is still meant.
    epoch: u64,
    /// The members of this stop have been stopped where they are blocked.
    reached: bool,
    failure: Option<Failure>,
    also: Vec<Failure>,
    /// A caller was given the failure.
    heard: bool,
    joined: bool,
    /// A stop was requested after that join: it is meant for what comes next.
    again: bool,
    ticks: VecDeque<(u64, Instant)>,
}

/// What is known of a member.
struct MemberEntry {
    slot: Arc<Slot>,
    stopper: Option<Box<dyn Stop>>,
    request: Option<AnyRequest>,
    joins: Vec<Arc<Join>>,
}

/// What a member writes, and what a report on stragglers reads.
pub(super) struct Slot {
    pub(super) id: u64,
    pub(super) name: String,
    place: AtomicCell<Option<&'static Location<'static>>>,
    seen: AtomicU64,
    /// The worker's own code has returned, and what it has failed with has been reported.
    pub(super) reported: AtomicBool,
    /// A stop has cancelled the worker's request.
    pub(super) stopped: AtomicBool,
}

/// One call of `join`.
pub(super) struct Join {
    /// Changed under the board's lock.
    left: AtomicU64,
    pub(super) wake: Event,
}

/// What became of a failure that was reported.
pub(super) enum Reported {
    /// It is recorded, or it follows from the stop.
    Taken,
    /// There was a stop before, or too many are kept: it is recorded nowhere.
    Late(Failure),
    /// A join has given its answer.
    AfterJoin(Failure),
}

/// What a joiner finds.
pub(super) struct JoinView {
    pub(super) left: u64,
    pub(super) stop: Option<Instant>,
}

/// A member that a join has waited for in vain.
pub(super) struct Left {
    pub(super) slot: Arc<Slot>,
    pub(super) request: Option<AnyRequest>,
    pub(super) stopper: Option<Box<dyn Stop>>,
    /// Since when at least it has not asked whether to stop, and where it did so last.
    pub(super) last: Option<(&'static Location<'static>, Instant)>,
}

/// How an error counts that is reported after a stop without one.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) late_errors_count: bool,
}

impl Board {
    pub(super) fn new() -> Board {
        let state = BoardState {
            next: 0,
            members: BTreeMap::new(),
            joins: Vec::new(),
            stop: None,
            epoch: 0,
            reached: false,
            failure: None,
            also: Vec::new(),
            heard: true,
            joined: false,
            again: false,
            ticks: VecDeque::from([(0, Instant::now())]),
        };
        Board { word: AtomicU64::new(0), stopped: Event::new(), state: Mutex::new(state) }
    }

    /// Nothing that is done under the lock can leave it half done, so a panic there changes nothing.
    fn lock(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline(always)]
    pub(super) fn should_stop(&self) -> bool {
        self.word.load(Ordering::Relaxed) & STOP != 0
    }

    /// The same, and notes in the slot where and when it was asked.
    #[inline(always)]
    pub(super) fn should_stop_at(&self, slot: &Slot, place: &'static Location<'static>) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        slot.place.store(Some(place));
        slot.seen.store(word, Ordering::Relaxed);
        word & STOP != 0
    }

    /// Advances the tick. Returns when it was advanced.
    fn tick(&self, state: &mut BoardState) -> Instant {
        let now = Instant::now();
        let word = self.word.load(Ordering::Relaxed) + TICK;
        self.word.store(word, Ordering::Relaxed);
        if state.ticks.len() == TICKS_KEPT {
            state.ticks.pop_front();
        }
        state.ticks.push_back((word / TICK, now));
        now
    }

    /// The same, for a join that waits for stragglers.
    pub(super) fn advance(&self) {
        self.tick(&mut self.lock());
    }

    /// Requests a stop. Answers its number if it is the first; that caller then stops the members by [`reach`](Board::reach).
    pub(super) fn request_stop(&self) -> Option<u64> {
        let mut state = self.lock();
        state.again |= state.joined;
        self.begin_stop(&mut state)
    }

    fn begin_stop(&self, state: &mut BoardState) -> Option<u64> {
        if state.stop.is_some() {
            return None;
        }
        state.stop = Some(self.tick(state));
        #[cfg(mutant = "stop_told_before_it_is_set")]
        self.stopped.set();
        self.word.fetch_or(STOP, Ordering::Relaxed);
        #[cfg(not(mutant = "stop_told_before_it_is_set"))]
        self.stopped.set();
        #[cfg(not(mutant = "stop_wakes_no_join"))]
        for join in &state.joins {
            join.wake.set();
        }
        state.epoch += 1;
        Some(state.epoch)
    }

    /// Whether the stop of this number has not been cleared.
    pub(super) fn stands(&self, epoch: u64) -> bool {
        let state = self.lock();
        state.epoch == epoch && state.stop.is_some()
    }

    /// The stoppers of all members, if the stop of this number still stands. The caller calls them, without the lock, and gives them back.
    pub(super) fn reach(&self, epoch: u64) -> Vec<(Arc<Slot>, Box<dyn Stop>)> {
        let mut state = self.lock();
        #[cfg(not(mutant = "reached_by_an_old_stop"))]
        if state.epoch != epoch {
            return Vec::new();
        }
        if state.stop.is_none() {
            return Vec::new();
        }
        #[cfg(not(mutant = "reached_after_the_look"))]
        {
            state.reached = true;
        }
        let members = state.members.values_mut();
        let reached = members.filter_map(|entry| Some((entry.slot.clone(), entry.stopper.take()?))).collect();
        #[cfg(mutant = "reached_after_the_look")]
        {
            drop(state);
            self.lock().reached = true;
        }
        reached
    }

    /// Gives a stopper back that has been called, for the kill that may follow.
    pub(super) fn give_back(&self, id: u64, stopper: Box<dyn Stop>) {
        let mut state = self.lock();
        let too_late = match state.members.get_mut(&id) {
            Some(entry) => entry.stopper.replace(stopper),
            None => Some(stopper),
        };
        drop(state);
        drop(too_late);
    }

    /// Takes the stop back, and what was recorded.
    pub(super) fn clear(&self) {
        let mut state = self.lock();
        self.take_back_stop(&mut state);
        #[cfg(mutant = "clear_in_two_steps")]
        {
            drop(state);
            state = self.lock();
        }
        let old = (state.failure.take(), std::mem::take(&mut state.also));
        drop(state);
        #[cfg(mutant = "clear_resets_late")]
        self.stopped.reset();
        drop(old);
    }

    /// The same, if a join has answered it all. A stop that was requested since that answer is begun anew: its number.
    pub(super) fn renew(&self) -> Option<u64> {
        let mut state = self.lock();
        if !state.joined {
            return None;
        }
        let again = state.again;
        #[cfg(mutant = "renewed_by_an_earlier_look")]
        {
            drop(state);
            state = self.lock();
        }
        self.take_back_stop(&mut state);
        let old = (state.failure.take(), std::mem::take(&mut state.also));
        let begun = if again { self.begin_stop(&mut state) } else { None };
        drop(state);
        drop(old);
        begun
    }

    fn take_back_stop(&self, state: &mut BoardState) {
        state.stop = None;
        state.reached = false;
        state.epoch += 1;
        self.word.fetch_and(!STOP, Ordering::Relaxed);
        #[cfg(not(mutant = "clear_resets_late"))]
        self.stopped.reset();
        state.joined = false;
        state.again = false;
        state.heard = true;
    }

    /// Records a failure, and stops. `follows`: it is a cancellation, which follows from a stop if there was one. `clean`: it only stops.
    pub(super) fn report(
        &self,
        failure: Failure,
        follows: bool,
        clean: bool,
        rules: Rules,
    ) -> (Reported, Option<u64>) {
        #[cfg(mutant = "first_by_an_earlier_look")]
        let is_first = self.lock().failure.is_none();
        let mut state = self.lock();
        #[cfg(not(mutant = "first_by_an_earlier_look"))]
        let is_first = state.failure.is_none();
        if clean {
            return (Reported::Taken, self.begin_stop(&mut state));
        }
        if state.joined {
            return (Reported::AfterJoin(failure), None);
        }
        if is_first {
            if state.stop.is_some() && (follows || !rules.late_errors_count) {
                return (if follows { Reported::Taken } else { Reported::Late(failure) }, None);
            }
            state.failure = Some(failure);
            state.heard = false;
            return (Reported::Taken, self.begin_stop(&mut state));
        }
        let is_known = state.failure.iter().chain(&state.also).any(|known| known.same_origin(&failure));
        if follows || is_known {
            return (Reported::Taken, None);
        }
        if state.also.len() == MOST_KEPT {
            return (Reported::Late(failure), None);
        }
        state.also.push(failure);
        (Reported::Taken, None)
    }

    /// The first failure. It counts as heard.
    pub(super) fn failure(&self) -> Option<Failure> {
        let mut state = self.lock();
        state.heard = true;
        state.failure.clone()
    }

    /// The same, with the later ones.
    pub(super) fn failures(&self) -> Option<(Failure, Vec<Failure>)> {
        let mut state = self.lock();
        state.heard = true;
        state.failure.clone().map(|failure| (failure, state.also.clone()))
    }

    /// A failure that no caller was given.
    pub(super) fn unheard(&self) -> Option<Failure> {
        let state = self.lock();
        if state.heard { None } else { state.failure.clone() }
    }

    pub(super) fn joined(&self) -> bool {
        self.lock().joined
    }

    /// How many joins are under way.
    pub(super) fn joins(&self) -> usize {
        self.lock().joins.len()
    }

    /// The names of the members, in the order in which they were registered.
    pub(super) fn names(&self) -> Vec<String> {
        self.lock().members.values().map(|entry| entry.slot.name.clone()).collect()
    }

    /// Registers a member.
    pub(super) fn enlist(&self, name: String) -> Arc<Slot> {
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        let seen = AtomicU64::new(self.word.load(Ordering::Relaxed));
        let (reported, stopped) = (AtomicBool::new(false), AtomicBool::new(false));
        let slot = Arc::new(Slot { id, name, place: AtomicCell::new(None), seen, reported, stopped });
        let entry = MemberEntry { slot: slot.clone(), stopper: None, request: None, joins: Vec::new() };
        state.members.insert(id, entry);
        slot
    }

    /// Says how a member is stopped where it is blocked. `Some`: there is a stop that has reached the others, and the caller stops it.
    #[must_use]
    pub(super) fn attach(
        &self,
        id: u64,
        stopper: Box<dyn Stop>,
        request: Option<AnyRequest>,
    ) -> Option<Box<dyn Stop>> {
        let mut state = self.lock();
        let reached = state.reached;
        match state.members.get_mut(&id) {
            Some(entry) => {
                entry.request = request;
                if reached {
                    return Some(stopper);
                }
                entry.stopper = Some(stopper);
                None
            }
            // It has ended already. What it was is dropped without the lock.
            None => {
                drop(state);
                drop((stopper, request));
                None
            }
        }
    }

    /// A member has ended.
    pub(super) fn end(&self, id: u64) {
        let mut state = self.lock();
        let entry = state.members.remove(&id);
        for join in entry.iter().flat_map(|entry| &entry.joins) {
            if join.left.fetch_sub(1, Ordering::Relaxed) == 1 {
                join.wake.set();
            }
        }
        drop(state);
        drop(entry);
    }

    /// The name of the member that this request is.
    pub(super) fn worker_of(&self, request: &AnyRequest) -> Option<String> {
        let state = self.lock();
        let is_it = |entry: &&MemberEntry| entry.request.as_ref().is_some_and(|its| its.id() == request.id());
        state.members.values().find(is_it).map(|entry| entry.slot.name.clone())
    }

    /// Begins a join of all present members.
    pub(super) fn begin_join(&self) -> Arc<Join> {
        let mut state = self.lock();
        let left = AtomicU64::new(state.members.len() as u64);
        let join = Arc::new(Join { left, wake: Event::new() });
        #[cfg(mutant = "join_listed_after_the_count")]
        {
            drop(state);
            state = self.lock();
        }
        for entry in state.members.values_mut() {
            entry.joins.push(join.clone());
        }
        state.joins.push(join.clone());
        join
    }

    /// What a join goes by. It has reset its event before.
    pub(super) fn look(&self, join: &Join) -> JoinView {
        let state = self.lock();
        JoinView { left: join.left.load(Ordering::Relaxed), stop: state.stop }
    }

    /// The members that a join still waits for. Their stoppers are taken along.
    pub(super) fn left(&self, join: &Arc<Join>) -> Vec<Left> {
        let mut state = self.lock();
        let BoardState { members, ticks, .. } = &mut *state;
        let listed =
            members.values_mut().filter(|entry| entry.joins.iter().any(|known| Arc::ptr_eq(known, join)));
        let is_left = |entry: &mut MemberEntry| Left {
            slot: entry.slot.clone(),
            request: entry.request.clone(),
            stopper: entry.stopper.take(),
            last: entry.slot.place.load().map(|place| {
                let tick = entry.slot.seen.load(Ordering::Relaxed) / TICK;
                // A tick that is forgotten is older than all that are known.
                let known = ticks.iter().find(|(known, _)| *known >= tick).or(ticks.front());
                (place, known.map_or_else(Instant::now, |(_, at)| *at))
            }),
        };
        listed.map(is_left).collect()
    }

    /// Ends a join: by its answer, or since the request that joins was cancelled.
    pub(super) fn end_join(&self, join: &Arc<Join>, answered: bool) -> Option<(Failure, Vec<Failure>)> {
        let mut state = self.lock();
        state.joins.retain(|known| !Arc::ptr_eq(known, join));
        let mut gone = Vec::new();
        let listed: Vec<u64> = (state.members.iter_mut())
            .filter_map(|(id, entry)| {
                let before = entry.joins.len();
                entry.joins.retain(|known| !Arc::ptr_eq(known, join));
                (entry.joins.len() < before).then_some(*id)
            })
            .collect();
        if !answered {
            return None;
        }
        // A straggler that no other join waits for is no member any more.
        for id in listed {
            if state.members.get(&id).is_some_and(|entry| entry.joins.is_empty()) {
                gone.extend(state.members.remove(&id));
            }
        }
        #[cfg(not(mutant = "joined_after_the_answer"))]
        {
            state.joined = true;
        }
        let answer = state.failure.clone().map(|failure| (failure, state.also.clone()));
        #[cfg(mutant = "joined_after_the_answer")]
        {
            drop(state);
            state = self.lock();
            state.joined = true;
        }
        state.heard = true;
        drop(state);
        drop(gone);
        answer
    }
}

/// How long ago that was at most.
pub(super) fn since(at: Instant) -> Duration {
    Instant::now().saturating_duration_since(at)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_delayed_cancel_of_a_stop_that_was_taken_back_reaches_nobody() {
        let board = Board::new();
        let slot = board.enlist("member".into());
        assert!(board.attach(slot.id, Box::new(|| ()), None).is_none());
        let first = board.request_stop().unwrap();
        assert!(board.request_stop().is_none());
        board.clear();
        assert!(board.reach(first).is_empty());
        let second = board.request_stop().unwrap();
        assert!(board.reach(first).is_empty(), "the second stop has a delay of its own");
        assert_eq!(board.reach(second).len(), 1);
    }
}
