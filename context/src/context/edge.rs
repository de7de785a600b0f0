//! Edges of the wait-for graph, so that the wait that closes a cycle finds it.
//!
//! A wait without a limit is an *edge* from the waiter's context to the one whose stack it waits for. It is made in steps:
//!
//! 1. After [`begin`](Context::begin), and before its node is put into a list, the waiter *leads* the edge nowhere
//!    ([`Ahead::Unknown`]). When the node is in the list, it leads the edge to the stack on which the target runs, if that has started
//!    ([`Context::lead`]).
//! 2. It *binds* the wait ([`Context::bind`]): from now on a walk sees the edge.
//! 3. It *looks* whether any waiter waits for a request or a lock of its own stack. If there is none, it is done: a chain that is built from its far end
//!    is never walked.
//! 4. It *walks* from edge to edge ([`walk`]). If the walk returns to the waiter, there is a cycle.
//!
//! A wait for what another context holds (a lock) leads to its holder at the moment of the walk ([`OwnerWait`]).
//!
//! A stack that starts an unstarted target *completes* the edges to it ([`Context::complete`]). It does so under the
//! lock of the list that has the waiters' nodes, before it checks and walks itself.
//!
//! # Why the last to close a cycle finds it
//!
//! The word `edge` of a context holds the ticket that was bound last. It is changed by read-modify-writes only. A walk
//! ends at a context that does not wait, or whose edge leads nowhere, and ends with a read-modify-write of that context's word. So a walk that
//! ends at a context and a bind or a completion there are ordered. If the bind (or completion) is first, the walk sees it and
//! continues. If the walk's end is first, the binder acquires all that the walker knew: that a waiter waits for its stack, and every
//! edge that led there. The binder walks after that. So no two walks of a cycle can each have ended at the other's context. Among the waits that
//! close a cycle at once there is one that no other walk has ended before, and it sees the whole cycle.
//!
//! A look is a read-modify-write of the word in which a waiter announces itself by another. If the waiter is first, the look sees it. If the look
//! is first, the waiter acquires the edge that was bound before, and all that was known there; the waiter binds and looks after that.
//!
//! # What a walk reads
//!
//! A walk reads contexts only, never a target. One exception: it reads the holder of a lock from the lock, while it holds the wait for it. A context
//! may begin its next wait at any time. So the walk reads the slot before and after `ahead`, and tickets are never used again. The walk does not show
//! that all edges of a cycle existed *at one moment*. So the thread that finds a cycle confirms it by *holding* each wait ([`Context::hold`]). A held
//! wait cannot end: the waiter's stack does not change, and its target is not freed. Wakers of a held wait spin. A thread that holds a wait may not
//! wait itself, and only one thread at a time holds more than one. (A walk holds a single wait, while it reads a lock's holder, and so does a dump.)
//! So a wait that another thread holds is not over, and a thread that must not miss it retries until it can hold it ([`Context::hold_in_turn`]).
//!
//! # Invariants
//!
//! * **X1** A context that an edge leads to stays readable until the wait of that edge is settled. For the walker its
//!   memory stays a context: the walker's owner ensures that (`runtime/src/deadlock/cycle.rs`).
//! * **X2** `edge` is changed by read-modify-writes only.
//! * **X3** The context's own stack writes `ahead` between `begin` and `bind`. After that it is written once, from unknown to known, under the
//!   lock of the list that the waiter's node is in, or while the wait is held.
//! * **X4** Only an unsettled wait is held, and only its holder changes a held slot.

use std::ptr::NonNull;

use super::{Cause, Context, HELD, OwnerWait, Reason, STATE, Ticket, WAITING};
use crate::shim::atomic::Ordering;
use crate::shim::{hint, mutant};

/// In `ahead`: the context is a foreign stack.
const FOREIGN: usize = 1;
/// In `ahead`: no context, but the address of what is waited for all parts of.
const ALL: usize = 2;
/// In `ahead`: no context, but the record of a wait for what another context holds.
const OWNER: usize = FOREIGN | ALL;

/// Where an edge leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// To what has not started, or so it seemed.
    Unknown,
    /// To the stack that what is waited for stands on.
    Stack {
        /// Its context.
        context: NonNull<Context>,
        /// Whether it may be freed while others of the waiter's runtime walk; to be kept from that before it is read.
        foreign: bool,
    },
    /// To many: to all that belong to what has this address.
    All(NonNull<()>),
    /// To the holder of the lock that is waited for.
    Owner(NonNull<OwnerWait>),
}

/// What a walk asks of the owner of the contexts.
///
/// # Safety
///
/// A walk reads what the guide admits. After `keep_foreign_stacks` has returned, no foreign stack is freed before the
/// guide is dropped. A context for which `admits` returned true stays readable until then.
pub unsafe trait Guide {
    /// From when this has returned no foreign stack that an edge leads to is freed. Answers whether that is new, and what the walk has seen
    /// so far to be looked at again.
    fn keep_foreign_stacks(&mut self) -> bool;

    /// Whether the holder that a lock has named is a context that may be read now. A foreign stack may be read only if
    /// foreign stacks were kept before this was called.
    fn admits(&mut self, holder: NonNull<Context>) -> bool;
}

/// For walks that meet no locks.
// SAFETY: it admits nobody; that a closure keeps the foreign stacks is asked of the caller of [`walk`].
unsafe impl<F: FnMut() -> bool> Guide for F {
    fn keep_foreign_stacks(&mut self) -> bool {
        self()
    }

    fn admits(&mut self, _: NonNull<Context>) -> bool {
        false
    }
}

/// An edge, as a walk sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The wait that it stands for.
    pub ticket: Ticket,
    /// Where it leads.
    pub ahead: Ahead,
}

impl Context {
    /// Says where the wait leads that was begun last, or is about to be.
    ///
    /// # Safety
    ///
    /// X1 for what `ahead` names, X3: on the context's own stack, before the wait is bound.
    #[inline]
    pub unsafe fn lead(&self, ahead: Ahead) {
        let raw = match ahead {
            Ahead::Unknown => std::ptr::null_mut(),
            Ahead::Stack { context, foreign } => {
                context.as_ptr().cast::<()>().map_addr(|at| at | if foreign { FOREIGN } else { 0 })
            }
            Ahead::All(whole) => whole.as_ptr().map_addr(|at| at | ALL),
            Ahead::Owner(wait) => wait.as_ptr().cast::<()>().map_addr(|at| at | OWNER),
        };
        // Release: who reads it sees that the wait before is over.
        self.ahead.store(raw, Ordering::Release);
    }

    /// Makes the wait that `ticket` names an edge.
    ///
    /// # Safety
    ///
    /// On the context's own stack, before it parks; the ticket is of the wait that was begun last, which was led somewhere, or nowhere,
    /// since: a walk follows it.
    #[inline]
    pub unsafe fn bind(&self, ticket: Ticket) {
        mutant!("edge_by_store", return self.edge.store(ticket.0, Ordering::Release));
        self.edge.swap(ticket.0, Ordering::AcqRel);
    }

    /// Binds the wait. If `is_waited_for` answers that this stack has a waiter then, walks.
    ///
    /// # Safety
    ///
    /// As [`walk`]; as [`bind`](Self::bind).
    #[inline]
    pub unsafe fn bind_and_walk(
        &self,
        ticket: Ticket,
        is_waited_for: impl FnOnce() -> bool,
        limit: u32,
        guide: &mut dyn Guide,
    ) -> Way {
        #[cfg(mutant = "look_before_edge")]
        let waited = is_waited_for();
        #[cfg(mutant = "walk_before_edge")]
        let way = match self.ahead() {
            // SAFETY: by contract.
            Ahead::Stack { context, .. } => unsafe { walk_to(context, self.into(), limit, guide) },
            _ => Way::End,
        };
        // SAFETY: by contract.
        unsafe { self.bind(ticket) };
        #[cfg(not(mutant = "look_before_edge"))]
        let waited = is_waited_for();
        if !waited {
            return Way::End;
        }
        #[cfg(mutant = "walk_before_edge")]
        return way;
        #[cfg(not(mutant = "walk_before_edge"))]
        // SAFETY: by contract.
        unsafe {
            walk(NonNull::from(self), limit, guide)
        }
    }

    /// What this context waits for has started: completes its edge, if the wait is one, now or when it is bound.
    ///
    /// # Safety
    ///
    /// X1 for what `ahead` names, X3: under the lock of the list that the waiter's node stands in, or while its wait is held.
    pub unsafe fn complete(&self, ahead: Ahead) {
        // SAFETY: by contract.
        unsafe { self.lead(ahead) };
        // A walk that ended here before has left what it knew.
        mutant!("edge_completed_by_store", (), self.edge.fetch_or(0, Ordering::AcqRel));
    }

    /// The edge from here, if the wait goes on and has been bound. `None` is certain: a wait that is bound later is bound by
    /// somebody who knows all that the caller knows; and so is [`Ahead::Unknown`].
    pub fn edge(&self) -> Option<Edge> {
        let mut ticket = Ticket(self.edge.load(Ordering::Acquire));
        loop {
            if let Some(edge) = self.edge_of(ticket).filter(|edge| edge.ahead != Ahead::Unknown) {
                return Some(edge);
            }
            let now = mutant!(
                "walk_ends_by_load",
                Ticket(self.edge.load(Ordering::Acquire)),
                Ticket(self.edge.fetch_or(0, Ordering::AcqRel))
            );
            if now == ticket {
                return self.edge_of(ticket);
            }
            ticket = now;
        }
    }

    fn edge_of(&self, ticket: Ticket) -> Option<Edge> {
        if !self.goes_on(ticket) {
            return None;
        }
        let ahead = self.ahead();
        mutant!(
            "edge_without_second_look",
            Some(Edge { ticket, ahead }),
            self.goes_on(ticket).then_some(Edge { ticket, ahead })
        )
    }

    fn ahead(&self) -> Ahead {
        let raw = self.ahead.load(Ordering::Acquire);
        let bits = raw.addr() & OWNER;
        match NonNull::new(raw.map_addr(|at| at & !OWNER)) {
            None => Ahead::Unknown,
            Some(wait) if bits == OWNER => Ahead::Owner(wait.cast()),
            Some(whole) if bits & ALL != 0 => Ahead::All(whole),
            Some(context) => Ahead::Stack { context: context.cast(), foreign: bits & FOREIGN != 0 },
        }
    }

    fn goes_on(&self, ticket: Ticket) -> bool {
        let slot = self.slot.load(Ordering::Acquire);
        slot == ticket.0 | WAITING || slot == ticket.0 | HELD
    }

    /// Holds the wait, so that it does not end; `None` if it has, or is held. See the module head for what is not to be done meanwhile.
    pub fn hold(&self, ticket: Ticket) -> Option<Held<'_>> {
        let (from, to) = (ticket.0 | WAITING, ticket.0 | HELD);
        match self.slot.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Some(Held { context: self, ticket }),
            Err(_) => None,
        }
    }

    /// The same, but if another thread holds the wait, this retries until that thread releases it: a wait that a dump reads has not ended. The caller
    /// does not hold this wait itself.
    pub fn hold_in_turn(&self, ticket: Ticket) -> Option<Held<'_>> {
        loop {
            let held = self.hold(ticket);
            if held.is_some() || mutant!("held_wait_is_over", true, !self.goes_on(ticket)) {
                return held;
            }
            hint::spin_loop();
            #[cfg(not(any(loom, shuttle)))]
            std::thread::yield_now();
        }
    }

    /// [`settle`](Context::settle), or [`choose`](Context::choose), of a wait that was held just now.
    #[cold]
    #[inline(never)]
    pub(super) fn settle_held(&self, ticket: Ticket, state: u64) -> bool {
        loop {
            let (from, to) = (ticket.0 | WAITING, ticket.0 | state);
            match self.slot.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) if seen != ticket.0 | HELD => return false,
                Err(_) => {
                    hint::spin_loop();
                    #[cfg(not(any(loom, shuttle)))]
                    std::thread::yield_now();
                }
            }
        }
    }
}

/// A held wait, which is released when this is dropped.
#[derive(Debug)]
pub struct Held<'a> {
    context: &'a Context,
    ticket: Ticket,
}

impl<'a> Held<'a> {
    /// The context that waits.
    #[must_use]
    pub fn context(&self) -> &'a Context {
        self.context
    }

    /// Which wait it is.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Where it leads; nowhere if it is no edge.
    #[must_use]
    pub fn ahead(&self) -> Ahead {
        // While it is held nobody else is bound here.
        match self.context.edge.load(Ordering::Acquire) == self.ticket.0 {
            true => self.context.ahead(),
            false => Ahead::Unknown,
        }
    }

    /// What it waits for, and why. While it is held that is there.
    #[must_use]
    pub fn waits_for(&self) -> (Reason, *mut ()) {
        self.context.waits_for()
    }

    /// Ends the wait. By the context's own stack, which does not park then: nobody is to make it ready.
    pub fn end(self, cause: Cause) {
        self.context.reason.store(Reason::None as u8, Ordering::Relaxed);
        self.context.slot.store(self.ticket.0 | cause as u64, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        debug_assert_eq!(self.context.slot.load(Ordering::Relaxed) & STATE, HELD, "X4");
        let order = mutant!("held_released_relaxed", Ordering::Relaxed, Ordering::Release);
        self.context.slot.store(self.ticket.0 | WAITING, order);
    }
}

/// Where a walk has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To an end: what stands there does not wait, or for what has not started, or with a limit.
    End,
    /// Round.
    Round,
    /// To a context that waits for all parts of something.
    All(NonNull<Context>),
    /// To the limit.
    Cut,
}

/// Walks from `start` from edge to edge, `limit` of them at most, until it is back or cannot continue. It allocates nothing.
///
/// # Safety
///
/// X1 holds for `start`, and for every context that an edge leads to, unless it is a foreign stack. For foreign stacks
/// it holds while they are kept: after the closure that is the guide has returned.
pub unsafe fn walk(start: NonNull<Context>, limit: u32, guide: &mut dyn Guide) -> Way {
    // SAFETY: by contract.
    unsafe { walk_to(start, start, limit, guide) }
}

/// Walks from `at` along the edges until it reaches `goal`, the walk ends, or the limit is exceeded.
///
/// # Safety
///
/// As for [`walk`], with `at` in the place of `start`.
unsafe fn walk_to(
    mut at: NonNull<Context>,
    goal: NonNull<Context>,
    limit: u32,
    guide: &mut dyn Guide,
) -> Way {
    for hops in 0..limit {
        // SAFETY: by contract.
        let context = unsafe { at.as_ref() };
        let Some(edge) = context.edge() else { return Way::End };
        let next = match edge.ahead {
            Ahead::Unknown => return Way::End,
            Ahead::All(_) => return Way::All(at),
            Ahead::Stack { foreign: true, .. }
                if guide.keep_foreign_stacks() && context.edge() != Some(edge) =>
            {
                continue;
            }
            Ahead::Stack { context: next, .. } => next,
            Ahead::Owner(wait) => {
                // SAFETY: by contract; only the first hop is from the walker's own stack.
                match unsafe { holder(context, edge.ticket, wait, hops == 0 && at == goal, guide) } {
                    Some(next) => next,
                    // No thread holds it, or the wait is over; then there may be another wait.
                    None if context.edge() == Some(edge) => return Way::End,
                    None => continue,
                }
            }
        };
        if next == goal {
            return Way::Round;
        }
        at = next;
    }
    Way::Cut
}

/// The holder of what `context` waits for. `None` if there is no holder that may be read, or the wait is over.
///
/// # Safety
///
/// The wait was `context`'s under that ticket; `own`: this is its stack, before it parks.
unsafe fn holder(
    context: &Context,
    ticket: Ticket,
    wait: NonNull<OwnerWait>,
    own: bool,
    guide: &mut dyn Guide,
) -> Option<NonNull<Context>> {
    let ask = |guide: &mut dyn Guide| {
        let held = if own { None } else { Some(context.hold_in_turn(ticket)?) };
        // SAFETY: the wait is the caller's own, or held, so its record stays.
        let wait = unsafe { wait.as_ref() };
        // SAFETY: as above, so the lock of the wait stays too.
        let holder = unsafe { wait.owner() };
        drop(held);
        holder.map(|holder| (holder, guide.admits(holder)))
    };
    match ask(guide)? {
        (holder, true) => Some(holder),
        (_, false) => {
            guide.keep_foreign_stacks();
            ask(guide).and_then(|(holder, admitted)| admitted.then_some(holder))
        }
    }
}
