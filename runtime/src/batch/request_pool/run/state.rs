//! The state of one wait, under its lock: the queue of what is held, the places that are taken, and the rules of both. It wakes nobody and
//! calls nothing; [`super`] does.

use std::collections::{HashMap, VecDeque};

use forebear_context::error::internal::Each;

use super::{MemberOutcome, Waiting};
use crate::api::any::AnyRequest;
use crate::batch::request_pool::Limits;
use crate::batch::request_pool::member::{Admitted, HeldMember, Turn, Work};

/// So many are gathered at most.
const GATHERED_AT_MOST: usize = 64;

pub(super) struct RunState<'env, T> {
    pub(super) limits: Limits,
    /// Its first is no included request that has been admitted out of its turn.
    pub(super) held: Each<VecDeque<HeldMember<'env, T>>>,
    /// The included requests that are not admitted, by number.
    pub(super) included: Vec<Option<Included>>,
    /// The numbers of those that are held back, by address.
    pub(super) by_header: HashMap<usize, usize>,
    /// Admitted, and no lane has come to them yet.
    pub(super) waited: VecDeque<(usize, AnyRequest)>,
    /// How many have come to something that the waiter has not done with.
    pub(super) to_take: usize,
    /// How many are admitted, and what they have declared together.
    pub(super) active: usize,
    pub(super) bytes: u128,
    /// Lanes that have been spawned, or are about to be, or pause.
    pub(super) spare: usize,
    /// Numbers that no lane has now, and the first that none has had.
    pub(super) free: Vec<usize>,
    pub(super) numbers: usize,
    pub(super) outcomes: Each<VecDeque<MemberOutcome<T>>>,
    pub(super) kept: Each<VecDeque<(usize, T)>>,
    /// A member has not come to what it should, or a lane was cancelled.
    pub(super) failed: bool,
    /// The waiter has given up: it waits for the members that are left.
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
    /// Somebody has asked for it, and it stands in front.
    pub(super) asked: bool,
}

impl<'env, T> RunState<'env, T> {
    /// All of it held, and nothing begun.
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

    /// Whether there is room for the first that is held. There is if nobody is admitted.
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

    /// Whether a lane is to be spawned for those that run without one. Not for all: a lane costs a stack, and each that ends
    /// lets the next one be looked at.
    fn may_wait_for_more(&self) -> bool {
        !self.waited.is_empty() && self.lanes() < self.limits.active
    }

    /// How many lanes have a number.
    pub(super) fn lanes(&self) -> usize {
        self.numbers - self.free.len()
    }

    /// Takes out of the order what has been admitted out of its turn, if it stands in front.
    pub(super) fn tidy(&mut self) {
        while let Some(HeldMember { work: Work::Included { kept }, .. }) = self.held.front()
            && self.included.get(*kept).is_some_and(Option::is_none)
        {
            self.held.pop_front();
        }
    }

    /// Admits the first that is held.
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

    /// Whether what has come may wait for more: few values, while others run or are about to.
    pub(super) fn may_gather(&self) -> bool {
        let many = (self.limits.active / 2).min(GATHERED_AT_MOST);
        self.gathers && self.outcomes.len() < many && (self.spare > 0 || self.active > self.to_take)
    }

    pub(super) fn is_over(&self) -> bool {
        self.active == 0 && self.held.is_empty() && self.outcomes.is_empty() && !self.failed
    }
}
