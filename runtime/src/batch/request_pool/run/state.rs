//! The state of one wait, under its lock: the queue of held members, the places that are taken, and the rules of both. Code here wakes no
//! thread and calls nothing; [`super`] does.

use std::collections::{HashMap, VecDeque};

use forebear_context::error::internal::Each;

use super::{MemberOutcome, Waiting};
use crate::api::any::AnyRequest;
use crate::batch::request_pool::Limits;
use crate::batch::request_pool::member::{Admitted, HeldMember, Turn, Work};

/// At most so many values are gathered.
const GATHERED_AT_MOST: usize = 64;

pub(super) struct RunState<'env, T> {
    pub(super) limits: Limits,
    /// The held members. The first is never an included request that was admitted out of turn.
    pub(super) held: Each<VecDeque<HeldMember<'env, T>>>,
    /// The included requests that are not admitted, by number.
    pub(super) included: Vec<Option<Included>>,
    /// The numbers of those that are held back, by address.
    pub(super) by_header: HashMap<usize, usize>,
    /// Admitted requests that no lane waits for yet.
    pub(super) waited: VecDeque<(usize, AnyRequest)>,
    /// How many ended members have left something that the waiter has not handled.
    pub(super) to_take: usize,
    /// How many are admitted, and the sum of their declared memory.
    pub(super) active: usize,
    pub(super) bytes: u128,
    /// Lanes that were spawned and have not started, are about to be spawned, or have yielded.
    pub(super) spare: usize,
    /// The free lane numbers, and the first number that no lane has had.
    pub(super) free: Vec<usize>,
    pub(super) numbers: usize,
    pub(super) outcomes: Each<VecDeque<MemberOutcome<T>>>,
    pub(super) kept: Each<VecDeque<(usize, T)>>,
    /// A member has ended without a value, or a lane was cancelled.
    pub(super) failed: bool,
    /// The pool has stopped: the waiter waits for the started members.
    pub(super) given_up: bool,
    pub(super) waiting: Option<Waiting>,
    /// The waiter gathers values while it sleeps.
    pub(super) gathers: bool,
}

/// An included request that is not admitted.
pub(super) struct Included {
    pub request: AnyRequest,
    /// It is held back, for this run: HB2.
    pub held: bool,
    /// A thread waits for it, so it stands in front.
    pub(super) asked: bool,
}

impl<'env, T> RunState<'env, T> {
    /// All members are held, and none has started.
    pub(super) fn new(limits: Limits, held: Each<VecDeque<HeldMember<'env, T>>>) -> Self {
        RunState {
            limits,
            held,
            included: Vec::new(),
            by_header: HashMap::new(),
            waited: VecDeque::new(),
            to_take: 0,
            active: 0,
            bytes: 0,
            spare: 0,
            free: Vec::new(),
            numbers: 0,
            outcomes: Each::default(),
            kept: Each::default(),
            failed: false,
            given_up: false,
            waiting: None,
            gathers: false,
        }
    }

    /// Whether there is room for the first held member. There always is if none is admitted.
    pub(super) fn fits(&self) -> bool {
        self.held.front().is_some_and(|first| {
            let sum = self.bytes + u128::from(first.bytes);
            let within = self.limits.memory.is_none_or(|most| sum <= u128::from(most));
            self.active == 0 || self.active < self.limits.active && within
        })
    }

    /// Whether lanes are to be spawned.
    pub(super) fn lacks_lanes(&self) -> bool {
        self.spare == 0 && (self.fits() || self.may_wait_for_more())
    }

    /// Whether to spawn a lane for the admitted requests without one. Not one for each: a lane costs a stack, and takes the
    /// next request when one ends.
    fn may_wait_for_more(&self) -> bool {
        !self.waited.is_empty() && self.lanes() < self.limits.active
    }

    /// How many lanes have a number.
    pub(super) fn lanes(&self) -> usize {
        self.numbers - self.free.len()
    }

    /// Removes requests from the front of the queue that were admitted out of turn.
    pub(super) fn tidy(&mut self) {
        while let Some(HeldMember { work: Work::Included { kept }, .. }) = self.held.front()
            && self.included.get(*kept).is_some_and(Option::is_none)
        {
            self.held.pop_front();
        }
    }

    /// Admits the first held member.
    pub(super) fn admit_first(&mut self) -> Option<Admitted<'env, T>> {
        let HeldMember { bytes, work } = self.held.pop_front()?;
        self.active += 1;
        self.bytes += u128::from(bytes);
        let work = match work {
            Work::Own { index, job } => Turn::Own { index, job },
            Work::Included { kept } => {
                let Some(Included { request, held, .. }) = self.included[kept].take() else {
                    unreachable!("the first that is held has not been admitted")
                };
                Turn::Included { kept, request, held }
            }
        };
        self.tidy();
        Some(Admitted { bytes, work })
    }

    /// Admits an included request without a lane.
    pub(super) fn admit_alone(&mut self, kept: usize) -> Option<AnyRequest> {
        let Included { request, .. } = self.included[kept].take()?;
        self.active += 1;
        self.waited.push_back((kept, request.clone()));
        self.tidy();
        Some(request)
    }

    pub(super) fn release(&mut self, bytes: u64) {
        self.active -= 1;
        self.bytes -= u128::from(bytes);
    }

    /// Whether the waiter may wait for more values: there are few, and other members run or are
    /// about to.
    pub(super) fn may_gather(&self) -> bool {
        let many = (self.limits.active / 2).min(GATHERED_AT_MOST);
        self.gathers && self.outcomes.len() < many && (self.spare > 0 || self.active > self.to_take)
    }

    pub(super) fn is_over(&self) -> bool {
        self.active == 0 && self.held.is_empty() && self.outcomes.is_empty() && !self.failed
    }
}
