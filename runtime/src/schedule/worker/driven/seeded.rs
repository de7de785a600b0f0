//! The choice of the seeded mode: a generator that begins with the seed draws from all fibers and requests that could continue or start.
//!
//! The order of requests is not kept here: any order that a busy machine might produce is allowed, so that a program
//! that depends on one fails. The promises that do not depend on speed are kept. What is drawn:
//!
//! * at every wait, yield and end: which of the ready fibers and unstarted requests runs next;
//! * at a submit, one time in four: others run first;
//! * at a wait, one time in three: the target is queued, and not run inline;
//! * at a fork, one time in two: the arms and children that are private to its fiber are published.
//!
//! No fiber or request is passed over for ever: now and then the one that has waited longest is taken. Requests that poll by yielding
//! might stop the virtual clock. So if nothing but yields has happened for a while, time passes.

use std::cell::{Cell, UnsafeCell};
use std::ptr::{self, NonNull};

use forebear_context::lineage::NO_KEY;

use super::{Next, Worker};
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::state::attention::HUNGRY;
use crate::time::deadlines::pass_time;

/// So often the one that has stood longest is taken.
const FAIR: u64 = 32;
/// So many yields more than there are who could continue, and time passes.
const POLLS: usize = 100;

#[derive(Clone, Copy)]
enum Candidate {
    /// It was woken, or let others go first at a submit.
    Fiber(NonNull<Fiber>),
    /// It yielded.
    Yielded(NonNull<Fiber>),
    /// An entry with its link; perhaps a stale entry.
    Request(NonNull<Header>),
}

/// See the module head. By the thread that has the seat.
pub(super) struct Chance {
    state: Cell<u64>,
    /// With the number of the draw at which each came.
    pool: UnsafeCell<Vec<(Candidate, u64)>>,
    fibers: Cell<usize>,
    draws: Cell<u64>,
    /// Yields since anything else happened.
    polls: Cell<usize>,
}

impl Chance {
    pub(super) fn new(seed: u64) -> Chance {
        Chance {
            state: Cell::new(seed),
            pool: UnsafeCell::default(),
            fibers: Cell::new(0),
            draws: Cell::new(0),
            polls: Cell::new(0),
        }
    }

    /// The next number: SplitMix64.
    fn number(&self) -> u64 {
        let state = self.state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.state.set(state);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&self, n: usize) -> usize {
        (self.number() % n as u64) as usize
    }

    pub(super) fn one_in(&self, n: usize) -> bool {
        self.below(n) == 0
    }

    #[allow(clippy::mut_from_ref, reason = "D1, and no caller keeps it over another call")]
    fn pool(&self) -> &mut Vec<(Candidate, u64)> {
        // SAFETY: D1; every use ends before the next begins.
        unsafe { &mut *self.pool.get() }
    }

    pub(super) fn len(&self) -> usize {
        self.pool().len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pool().is_empty()
    }

    /// Whether any of them can continue or start.
    pub(super) fn has_work(&self) -> bool {
        self.pool().iter().any(|(candidate, _)| match candidate {
            // SAFETY: the entry's link.
            Candidate::Request(header) => unsafe { header.as_ref() }.word().load().is_unstarted(),
            Candidate::Fiber(_) | Candidate::Yielded(_) => true,
        })
    }

    /// Takes out a request that nobody has begun and that is `wanted`, with its link.
    pub(super) fn take_where(&self, wanted: impl Fn(&Header) -> bool) -> Option<NonNull<Header>> {
        let at = self.pool().iter().position(|(candidate, _)| match candidate {
            // SAFETY: the entry's link.
            Candidate::Request(header) => wanted(unsafe { header.as_ref() }),
            Candidate::Fiber(_) | Candidate::Yielded(_) => false,
        })?;
        match self.pool().remove(at).0 {
            Candidate::Request(header) => Some(header),
            Candidate::Fiber(_) | Candidate::Yielded(_) => unreachable!("a request was found there"),
        }
    }

    pub(super) fn has_fibers(&self) -> bool {
        self.fibers.get() != 0
    }

    fn add(&self, candidate: Candidate) {
        if !matches!(candidate, Candidate::Request(_)) {
            self.fibers.set(self.fibers.get() + 1);
        }
        self.pool().push((candidate, self.draws.get()));
    }

    /// A fiber may continue.
    pub(super) fn put(&self, fiber: NonNull<Fiber>) {
        self.add(Candidate::Fiber(fiber));
    }

    /// A fiber has yielded.
    pub(super) fn put_yielded(&self, fiber: NonNull<Fiber>) {
        self.polls.set(self.polls.get() + 1);
        self.add(Candidate::Yielded(fiber));
    }

    /// Takes out those that nobody has begun.
    fn take_requests(&self) -> Vec<NonNull<Header>> {
        let mut requests = Vec::new();
        self.pool().retain(|(candidate, _)| match candidate {
            Candidate::Request(header) => {
                requests.push(*header);
                false
            }
            _ => true,
        });
        requests
    }

    /// None of the fibers that could go on does.
    pub(super) fn forget_fibers(&self) {
        self.pool().retain(|(candidate, _)| matches!(candidate, Candidate::Request(_)));
        self.fibers.set(0);
        self.polls.set(0);
    }

    /// A fiber that may continue, if only such are left.
    pub(super) fn draw_fiber(&self) -> Option<NonNull<Fiber>> {
        match self.draw()? {
            Candidate::Fiber(fiber) | Candidate::Yielded(fiber) => Some(fiber),
            request => {
                self.add(request);
                None
            }
        }
    }

    fn draw(&self) -> Option<Candidate> {
        let pool = self.pool();
        if pool.is_empty() {
            return None;
        }
        self.draws.set(self.draws.get() + 1);
        let at = if self.draws.get().is_multiple_of(FAIR) {
            pool.iter().enumerate().min_by_key(|(_, entry)| entry.1).map_or(0, |(at, _)| at)
        } else {
            self.below(pool.len())
        };
        let (candidate, _) = pool.swap_remove(at);
        if !matches!(candidate, Candidate::Request(_)) {
            self.fibers.set(self.fibers.get() - 1);
        }
        if !matches!(candidate, Candidate::Yielded(_)) {
            self.polls.set(0);
        }
        Some(candidate)
    }
}

impl Worker {
    /// Moves all that has not begun into the pool.
    pub(super) fn gather_unstarted(&self, chance: &Chance) {
        self.publish_private(u32::MAX, ptr::null());
        while let Some(header) = self.post.shared_queue.pop(NO_KEY) {
            chance.add(Candidate::Request(header));
        }
        let roots = &self.shared().injector;
        while roots.key() != NO_KEY {
            let Some(header) = roots.pop(NO_KEY) else { break };
            chance.add(Candidate::Request(header));
        }
    }

    /// Draws what is next.
    pub(super) fn draw(&self, chance: &Chance) -> Option<Next> {
        self.collect_mail();
        self.attend(true);
        if let Some(end) = self.next_put_aside() {
            return Some(end);
        }
        while let Some(fiber) = self.ready().pop(true) {
            chance.put(fiber);
        }
        self.gather_unstarted(chance);
        if chance.polls.get() > 2 * chance.len() + POLLS {
            chance.polls.set(0);
            if self.shared().driven.is_some() {
                pass_time(self.shared(), self.driver().until.get());
                self.collect_mail();
            }
        }
        while let Some(candidate) = chance.draw() {
            match candidate {
                Candidate::Fiber(fiber) | Candidate::Yielded(fiber) => {
                    self.stir(chance);
                    return Some(self.resume(fiber));
                }
                Candidate::Request(header) => {
                    if self.claim(header, false) {
                        self.stir(chance);
                        return Some(self.begin(header));
                    }
                }
            }
        }
        None
    }

    /// What nobody has begun stands in the shared queue again, where a sweep finds it.
    pub(crate) fn put_back_drawn(&self) {
        let Some(chance) = self.driver.as_ref().and_then(|driver| driver.chance.as_ref()) else { return };
        for header in chance.take_requests() {
            // SAFETY: E1: the entry's link, which goes with it.
            self.post.shared_queue.push(unsafe { header.as_ref() }.lineage.key(), header);
        }
    }

    /// Perhaps the next fork shows what its fiber keeps to itself.
    fn stir(&self, chance: &Chance) {
        if chance.one_in(2) {
            self.post.attention.raise(HUNGRY);
        } else {
            self.post.attention.clear(HUNGRY);
        }
    }
}
