//! One spreading: how a cancel spreads from a request to its descendants. The head of [`super`] has the steps before and after.
//!
//! # Vocabulary
//!
//! * **owned** spreading ([`Spread::on`]): by the owner of an arena. It delivers the marks of requests that run there, and walks the private queue and
//!   the lists of children.
//! * spreading **beside** an arena ([`Spread::beside`]): by another thread. It asks requests and sends messages; it walks a list only under the lock
//!   of an arena that has no owner.
//! * **to ask** a child: one exchange of its word, which marks it, claims it, or spares it.
//!
//! # Steps
//!
//! [`Spread::from`] takes one request that is cancelled, or is over and passes its parent's cancel on. It delivers the mark, then asks all children. If a shielded region
//! holds the mark back, it tells only the arms that the region does not shelter.
//! Each child's answer decides what follows ([`Spread::follow`]):
//!
//! | the child | is put into | emptied by |
//! |---|---|---|
//! | was claimed by this exchange, unstarted | `ended`, with the runner's link | [`Spread::put_aside`]: the worker's loop, a driver, or this thread outside of its wait |
//! | started on this arena, or is over | `work` | the loop of [`Spread::from`] |
//! | started on another arena | a message to its owner | the owner, in a spreading of its own |
//! | started on an arena that has no owner any more | `left` | this thread, under the lock of the lists |
//! | is an arm, or was found under the lock of a list | `held` too: a link keeps it | [`Spread::put_aside`] |
//!
//! What a message was about is `held`, too, with the message's link.
//!
//! There is no recursion, so descendants may be of any depth. No user code runs: the worker may be about to leave the stack that it is on.
//!
//! # Reasons
//!
//! A child's mark has the reason that its parent was cancelled, or the reason that a cancel of an ancestor that is over implies. The jobs of a
//! stopped scope get `reason` instead. In a runtime that is shut down, other children get `Shutdown`.
//!
//! # The race
//!
//! *Asking against a claim.* Mark and claim are exchanges of one word. If the claim is first, the claimer may not have written `ran_on` yet, so
//! the spreading thread does not know which owner has to deliver the mark. Then it sends a message to each worker. The worker that runs the request
//! finds `ran_on` written when it reads the message, since it wrote that itself; the others drop theirs.

use std::ptr::{self, NonNull};

use forebear_context::error::CancelReason;
use forebear_context::shim::atomic::Ordering;
use forebear_context::shim::mutant;

use super::{
    asks, demand, is_cancelled, is_orphaned_by_cancel, list_demand, reason_for_children, reason_of_ancestor,
    wants,
};
use crate::cancel::message::{self, Message};
use crate::record::arena::Arena;
use crate::record::children;
use crate::record::fiber;
use crate::record::header::{ARM, DELIVERED, DETACHED, Header};
use crate::record::private_queue::PrivateQueue;
use crate::record::scope_core::ScopeCore;
use crate::shared::OfRuntime;
use crate::shared::worker::WorkerRecord;
use crate::stack::prefetch;
use crate::state::ancestor_walk::Ancestry;
use crate::state::word::{Cancel, Demand, MARKED};

/// How many turns ahead a header is asked for, with what tells where its stack is.
const HEADER_AHEAD: usize = 13;
/// The same of the first line of its stack's record: mostly a walk through the page tables.
const PAGE_AHEAD: usize = 8;
/// The same of what is needed to end its wait.
const RECORD_AHEAD: usize = 3;

/// One spreading, by the owner of one arena. See the module head.
pub(super) struct Spread<'a> {
    pub(super) arena: &'a Arena,
    /// Whether this thread owns the arena. Then the spreading continues from requests that ran there.
    pub(super) owned: bool,
    /// The worker whose arena it is, if it is owned.
    pub(super) worker: Option<&'a WorkerRecord>,
    /// The reason for the requests that are asked next, if it is not that of their parent's cancel.
    pub(super) reason: Option<CancelReason>,
    /// The reason of their parent's cancel, once it is known.
    below: Option<CancelReason>,
    /// The scope whose jobs alone are to be aborted; null if there is none.
    pub(super) of_scope: *const ScopeCore,
    /// Requests that started here, or are over: the spreading continues from them.
    work: Vec<Next>,
    /// Requests that this spreading has claimed, with the runner's link: to be ended.
    pub(super) ended: Vec<NonNull<Header>>,
    /// Requests that are kept by a link until the spreading is over.
    pub(super) held: Vec<NonNull<Header>>,
    /// Kept requests that are over, on an arena without an owner: the spreading continues from them here, in a loop.
    left: Vec<NonNull<Header>>,
    /// Whether that loop runs.
    is_at_left: bool,
}

/// A request to continue from, and the reason of its parent's cancel, where that is known. Requests that are over pass the same reason on to their
/// children. If each walked up its ancestors for the reason, a long chain without handles, which has no skip links
/// ([`crate::state::ancestor_walk`]), would be walked once for each of its members.
type Next = (NonNull<Header>, Option<CancelReason>);

impl<'a> Spread<'a> {
    pub(super) fn on(arena: &'a Arena) -> Spread<'a> {
        let worker = arena.shared().worker_records().get(arena.worker as usize);
        if let Some(fiber) = fiber::get() {
            children::settle(fiber, arena);
        }
        Spread { owned: true, worker, ..Spread::beside(arena) }
    }

    /// By a thread that does not own the arena.
    pub(super) fn beside(arena: &'a Arena) -> Spread<'a> {
        Spread {
            arena,
            owned: false,
            worker: None,
            reason: None,
            below: None,
            of_scope: ptr::null(),
            work: Vec::new(),
            ended: Vec::new(),
            held: Vec::new(),
            left: Vec::new(),
            is_at_left: false,
        }
    }

    /// Works off the messages of other threads.
    pub(super) fn messages(&mut self) {
        self.sweep_if_due();
        for message in self.arena.owner_mailbox.take() {
            let header = message.header();
            // SAFETY: O1.
            let h = unsafe { header.as_ref() };
            match message {
                Message::Cancelled(_) if ptr::eq(h.ran_on.load(Ordering::Relaxed), self.arena) => {
                    self.from(header)
                }
                // Every worker got this message, and the request started on another one.
                Message::Cancelled(_) => {}
                Message::Scope(_) => self.scopes(header),
                Message::End(_) => {
                    // The link is the runner's.
                    self.ended.push(header);
                    continue;
                }
                Message::NewChild(_) => {
                    children::link(h);
                    #[cfg(not(mutant = "children_without_a_recheck"))]
                    if is_orphaned_by_cancel(h) {
                        self.below = Some(reason_of_ancestor(h));
                        self.visit(h);
                        self.work_off();
                    }
                }
            }
            // O1. Not now: what it has failed with may wait for what this spreading has claimed.
            self.held.push(header);
        }
    }

    /// Spreads from a request that started here and is cancelled, or is over and has a cancelled parent. Most have no children, and cost no
    /// allocation.
    pub(super) fn from(&mut self, header: NonNull<Header>) {
        self.go_down((header, None));
    }

    fn go_down(&mut self, first: Next) {
        let mut next = Some(first);
        while let Some((header, reason)) = next {
            // SAFETY: the caller's count, or it is in a list of this thread's, from which only this thread removes it.
            let h = unsafe { header.as_ref() };
            if h.word().load().is_terminal() || h.came_late() || self.deliver(h) {
                self.children_of((header, reason));
            } else if h.identity().bare.load().has(MARKED) {
                mutant!("region_holds_arms_back", (), self.bare_arms(h));
            }
            next = self.work.pop();
            self.look_ahead();
        }
    }

    /// Prefetches the memory of requests that are soon to be visited: their stacks may have been suspended for long.
    fn look_ahead(&self) {
        let ahead = |n: usize| self.work.len().checked_sub(n).map(|at| self.work[at].0);
        // SAFETY: as in `from`.
        let fiber = |header: NonNull<Header>| unsafe { header.as_ref() }.fiber.load(Ordering::Relaxed);
        if let Some(header) = ahead(HEADER_AHEAD) {
            prefetch::header(header.as_ptr());
        }
        if let Some(fiber) = ahead(PAGE_AHEAD).map(fiber) {
            prefetch::top(fiber);
        }
        if let Some(fiber) = ahead(RECORD_AHEAD).map(fiber).and_then(NonNull::new) {
            prefetch::waiting(fiber);
        }
    }

    pub(super) fn work_off(&mut self) {
        if let Some(next) = self.work.pop() {
            self.go_down(next);
        }
    }

    /// Delivers the mark of a request that runs here: wakes its stack, or asks the request that it lent its stack to. False: it is in a shielded
    /// region, whose end delivers the mark.
    pub(super) fn deliver(&mut self, h: &Header) -> bool {
        if !is_cancelled(h) {
            return false;
        }
        if !h.has_state(DELIVERED) {
            h.add_state(DELIVERED);
            if let Some(worker) = self.worker {
                worker.count_marked(1);
            }
        }
        self.wake(h);
        true
    }

    pub(super) fn wake(&mut self, h: &Header) {
        // SAFETY: a coroutine's fiber stays (K3); a foreign one is this thread's.
        let Some(fiber) = (unsafe { h.fiber.load(Ordering::Relaxed).as_ref() }) else { return };
        let Some(top) = fiber.request() else { return };
        if ptr::eq(top, h) {
            // A foreign thread is awake: it runs this code.
            if fiber.context().cancel_wait()
                && let Some(worker) = self.worker
            {
                worker.make_ready(NonNull::from(fiber));
            }
            return;
        }
        // The stack is lent: asks the request above it.
        let mut above = top;
        // SAFETY: what is below another on a stack is not over.
        while let Some(below) = unsafe { above.lender.get().as_ref() } {
            if ptr::eq(below, h) {
                let asks = asks(Some(h), above);
                let own = above.parent().is_some_and(|parent| ptr::eq(parent.identity(), h.identity()));
                let side = (asks && own).then(|| above.side_or_new());
                let answer = above.word().lender_cancelled(asks, || {
                    if let Some(side) = side.filter(|side| side.reason.get().is_none()) {
                        side.reason.set(Some(reason_for_children(h)));
                    }
                    list_demand(above, wants)
                });
                self.follow(above, answer);
                return;
            }
            above = below;
        }
    }

    /// Asks all children of a request that ran here.
    pub(super) fn children(&mut self, header: NonNull<Header>) {
        self.children_of((header, None));
    }

    fn children_of(&mut self, (header, reason): Next) {
        // SAFETY: as in `from`.
        let parent = unsafe { header.as_ref() };
        if !parent.has_children() {
            return;
        }
        self.look_below(parent, reason);
        if self.worker.is_some() {
            self.private(parent);
        }
        if self.arena.is_foreign() {
            // Other threads may add children.
            self.family(self.arena, parent);
            return;
        }
        // SAFETY: N1: this arena's owner.
        unsafe { children::each(parent, |child| self.visit(child)) };
    }

    /// Tells the arms of a request that runs here in a shielded region which holds its mark back: those of joins that began before the region. They are part of the
    /// cancelled request, and the region does not shelter them.
    #[cold]
    fn bare_arms(&mut self, maker: &Header) {
        // A foreign thread shows no arm to others.
        if !maker.has_children() || self.arena.is_foreign() {
            return;
        }
        self.look_below(maker, None);
        // SAFETY: N1: this arena's owner.
        unsafe {
            children::each(maker, |child| {
                if child.is(ARM) && !child.is_sheltered() {
                    self.visit(child);
                }
            });
        }
    }

    /// Aborts the jobs of the stopped scopes in a request that runs here.
    pub(super) fn scopes(&mut self, owner: NonNull<Header>) {
        // SAFETY: the caller's count.
        let h = unsafe { owner.as_ref() };
        // SAFETY: as in `deliver`.
        let Some(fiber) = (unsafe { h.fiber.load(Ordering::Relaxed).as_ref() }) else { return };
        if h.word().load().is_terminal() {
            return;
        }
        // SAFETY: this arena's owner.
        unsafe {
            ScopeCore::each_stopped(fiber, h, |scope, reason| {
                self.of_scope = scope;
                self.reason = Some(reason);
                self.children(owner);
            });
        }
        (self.of_scope, self.reason) = (ptr::null(), None);
        self.work_off();
    }

    /// Asks the children in the private queue.
    pub(super) fn private(&mut self, parent: &Header) {
        let Some(worker) = self.worker else { return };
        let mut at = worker.list.last_below(parent);
        loop {
            // SAFETY: P2, P3.
            let Some(child) = (unsafe { at.as_ref() }) else { return };
            at = child.prev_listed();
            if !ptr::eq(child.lineage.parent(), &parent.lineage) {
                if !PrivateQueue::is_among(child, parent) {
                    return;
                }
                continue;
            }
            if !self.of_scope.is_null() {
                if ptr::eq(child.scope.get(), self.of_scope) {
                    self.visit(child);
                }
                continue;
            }
            match worker.cancel_listed(child, || self.ask_private(child)) {
                Cancel::Ended => self.ended.push(NonNull::from(child)),
                answer => self.follow(child, answer),
            }
        }
    }

    /// Asks one child that stands in the private queue.
    #[inline]
    fn ask_private(&self, child: &Header) -> Cancel {
        let reason = self.reason_told();
        if reason == CancelReason::Parent
            && let Some(answer) = child.word().cancel_private_inherited()
        {
            return answer;
        }
        self.ask_private_by_name(child, reason)
    }

    /// The same with a reason that has to be stored, or for a request that may have demand.
    #[cold]
    #[inline(never)]
    fn ask_private_by_name(&self, child: &Header, reason: CancelReason) -> Cancel {
        // No thread can read the reason of a request without handles and links, except the scope of a job.
        let bits = child.word().load();
        let known = bits.handles() > 0 || bits.links() > 1 || !child.scope.get().is_null();
        let side = known.then(|| child.side_or_new());
        let note = || {
            if let Some(side) = side {
                side.reason.set(Some(reason));
            }
        };
        let answer = child.word().cancel_private(|| {
            note();
            // In a runtime that is shut down no waiter counts.
            if self.is_shut() { Demand::Nobody } else { demand(child) }
        });
        if answer == Cancel::Ended {
            // The exchange may not have stored the reason: only the scope knows of a job whose handle was dropped.
            note();
        }
        answer
    }

    /// Asks one child that other threads may know of.
    pub(super) fn visit(&mut self, child: &Header) {
        if child.is(DETACHED) {
            return;
        }
        if !self.of_scope.is_null() {
            if let Some(reason) = self.reason.filter(|_| ptr::eq(child.scope.get(), self.of_scope)) {
                let side = child.side_or_new();
                let answer = child.word().abort(|| side.reason.set(Some(reason)));
                self.follow(child, answer);
            }
            return;
        }
        if child.is(ARM) {
            // An arm is part of its maker's request, so it is not asked, and both arms run. An unstarted arm reads its maker's mark when
            // it starts. Whether it has started is read after an exchange on the word by which it is claimed: either the
            // claim sees the mark, or this thread sees the claim.
            if child.word().try_add_link() {
                self.held.push(NonNull::from(child));
                self.go_on(child);
            }
            return;
        }
        if child.word().load().is_terminal() {
            self.follow(child, Cancel::TooLate);
            return;
        }
        let reason = self.reason_told();
        if reason == CancelReason::Parent
            && let Some(answer) = child.word().cancel_inherited()
        {
            self.follow(child, answer);
            return;
        }
        let side = child.side_or_new();
        let answer = if self.is_shut() {
            child.word().abort(|| side.reason.set(Some(reason)))
        } else {
            child.word().cancel_locked(|| {
                side.reason.set(Some(reason));
                demand(child)
            })
        };
        self.follow(child, answer);
    }

    /// Prepares the reason for the children of `parent`, which are asked next. `reason` is the reason that `parent` got from its own parent.
    fn look_below(&mut self, parent: &Header, reason: Option<CancelReason>) {
        if self.reason.is_none() {
            let passed_on = reason.filter(|_| parent.identity().is_passed());
            self.below = Some(passed_on.unwrap_or_else(|| reason_for_children(parent)));
        }
    }

    /// The reason that the current request passes on from its parent.
    fn reason_below(&self) -> Option<CancelReason> {
        self.below.filter(|_| self.reason.is_none())
    }

    pub(super) fn reason_told(&self) -> CancelReason {
        let below = self.below.unwrap_or(CancelReason::Parent);
        let spread = if self.is_shut() { CancelReason::Shutdown } else { below };
        self.reason.unwrap_or(spread)
    }

    /// Carries out what the answer of a child's word asks for.
    pub(super) fn follow(&mut self, child: &Header, answer: Cancel) {
        match answer {
            Cancel::Ended => self.ended.push(NonNull::from(child)),
            Cancel::Marked | Cancel::MarkedShielded => self.go_on(child),
            // The child is over, perhaps before its children are.
            Cancel::TooLate if child.word().load().is_terminal() => self.go_on(child),
            Cancel::TooLate | Cancel::AlreadyMarked | Cancel::Vetoed | Cancel::Unasked => {}
        }
    }

    /// Continues from a request that has started: here, or by a message.
    pub(super) fn go_on(&mut self, child: &Header) {
        let header = NonNull::from(child);
        // SAFETY: M3.
        match unsafe { child.ran_on.load(Ordering::Relaxed).as_ref() } {
            Some(arena) if self.owned && ptr::eq(arena, self.arena) => {
                self.work.push((header, self.reason_below()))
            }
            Some(arena) => self.pass_on(arena, header),
            None if child.word().load().is_unstarted() => {}
            #[cfg(not(mutant = "claimed_meanwhile_is_forgotten"))]
            None => {
                let workers = self.arena.shared().worker_records();
                workers.iter().for_each(|worker| self.pass_on(worker.arena(), header));
            }
            #[cfg(mutant = "claimed_meanwhile_is_forgotten")]
            None => {}
        }
    }

    /// Passes the cancel of `header` to another arena. A request without any count has no children left (H1), and gets no message.
    pub(super) fn pass_on(&mut self, arena: &Arena, header: NonNull<Header>) {
        // SAFETY: it stands in a list of the caller's, or the caller has a count.
        let h = unsafe { header.as_ref() };
        if !h.word().try_add_link() {
            return;
        }
        // SAFETY: the link just made.
        if !unsafe { message::send(arena, Message::Cancelled(header)) } {
            self.held.push(header);
            if arena.is_unattended() {
                self.left.push(header);
                self.work_off_left();
            }
        }
    }

    /// Continues from requests whose arena has no owner, in a loop: a chain of them may be of any length.
    fn work_off_left(&mut self) {
        if self.is_at_left {
            return;
        }
        self.is_at_left = true;
        while let Some(header) = self.left.pop() {
            // SAFETY: held, by `pass_on`.
            let h = unsafe { header.as_ref() };
            // A request that had just been claimed was sent to every worker: its runner reads the message, if it is still there.
            // SAFETY: M3.
            if let Some(arena) = unsafe { h.ran_on.load(Ordering::Relaxed).as_ref() }
                && arena.is_unattended()
            {
                // A request that ran on a foreign thread has walked up its ancestors, and left skip links.
                self.look_below(h, None);
                self.family(arena, h);
            }
        }
        self.is_at_left = false;
    }

    /// Asks the children of a request that is over and ran on a foreign thread, or on a worker that has left: that thread no longer
    /// reads messages for them.
    fn family(&mut self, arena: &Arena, parent: &Header) {
        let mut children = Vec::new();
        let lock = arena.lock_families();
        // SAFETY: N1: the lock.
        unsafe {
            children::each(parent, |child| {
                if child.word().try_add_link() {
                    children.push(NonNull::from(child));
                }
            });
        }
        drop(lock);
        for child in children {
            self.held.push(child);
            // SAFETY: the link just taken.
            self.visit(unsafe { child.as_ref() });
        }
    }
}
