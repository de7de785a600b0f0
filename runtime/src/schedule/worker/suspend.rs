//! Suspending: which stack a worker enters when a fiber leaves.
//!
//! A fiber that parks switches to the most urgent ready fiber, unless something older is on this worker or in a shared queue. The
//! rule is that of [`pick`](Worker::pick), so on a tie the ready fiber goes first. Else the worker enters an idle coroutine, which continues as the
//! loop. A fiber that yields is queued behind all ready fibers; if anything is unstarted here, the loop has a turn first.
//!
//! # When there is no stack for the loop
//!
//! The runtime may have no more stacks, so nothing unstarted can begin here until one is free. Then
//!
//! * a wait for a request is refused ([`crate::schedule::wait`]), since another fiber might start its target;
//! * a scope and a join first run on this stack what they may wait for and what has not begun: the descendants of the request on
//!   top. A descendant that does not fit, or asks for a stack of its own, fails with the [`StackError`]. Nothing else runs here:
//!   it might wait for a request below it on this very stack;
//! * a yield switches to a ready fiber. If only yielders are ready, which may all poll for the same thing, the worker runs the oldest
//!   unstarted request here that fits on this stack. A request that does not fit stays where it is: a yield waits for no
//!   particular request, and must make none fail;
//! * a fiber that leaves in any other case waits for work that other threads do. The worker publishes its private requests. Its thread
//!   sleeps until a fiber of this worker is ready, which wakes it by number, or a stack is free. Nothing notifies it of a free
//!   stack: so it sleeps with a tick, if there are other workers. It does not count as asleep, since a wake-up for any worker would be lost
//!   on it.

use std::ptr::{self, NonNull};

use forebear_context::error::StackError;
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::Ordering;
use std::cmp::Ordering as Order;

use super::{Next, Worker};
use crate::record::children;
use crate::record::fiber::{Descent, Fiber, stack_pointer};
use crate::record::header::{Header, OWN_STACK};
use crate::record::no_suspend;
use crate::schedule::admission;
use crate::schedule::{finish, run};
use crate::shared::worker::is_unwinding;
use crate::stack::coroutine::Coroutine;
use crate::state::ORDERED;
use crate::state::attention::{DRIVEN, HOLDS, HUNGRY, MESSAGE, RAISED};

impl Worker {
    pub(super) fn collect_mail(&self) {
        self.look_at_time();
        if !self.post.mailbox.is_empty() {
            self.collect_mail_now();
        }
    }

    #[cold]
    pub(super) fn collect_mail_now(&self) {
        // SAFETY: K2, K3.
        let fiber = |coroutine: NonNull<Coroutine>| NonNull::from(unsafe { &coroutine.as_ref().fiber });
        let mut mail = self.post.mailbox.take_latest_first().map(fiber);
        let Some(latest) = mail.next() else { return };
        self.ready().push_arrived(latest, mail);
    }

    /// Whether the short form of [`leave_parked`](Self::leave_parked) is for this park, as far as this worker's own queues and the injector tell: nothing is to be
    /// done first, and nothing there goes before the ready fiber that stands outside of the runs, whose key this answers. It calls nothing. The caller asks
    /// whether the thread panics, which may take a call. If there are other workers, their queues decide, too ([`goes_before_others`](crate::shared::Shared::goes_before_others)). The commonest reason against it comes first.
    #[inline(always)]
    pub(crate) fn leaves_shortly(&self, fiber: &Fiber) -> Option<u64> {
        let (key, next) = self.ready().outside()?;
        if !fiber.request().is_some_and(children::is_settled) {
            return None;
        }
        let (attention, front) = (self.post.attention.get(), self.list.front());
        // One branch for all that is 0 on this way.
        let busy = fiber.context().no_suspend().get() as usize
            | self.leaving_calls.difference()
            | self.jobs.get().0.addr();
        let first = attention & (RAISED | MESSAGE | DRIVEN | HOLDS) == 0
            // A feed that has nothing to publish makes the next batch a single request.
            && (attention & HUNGRY == 0 || front.is_none() && self.batch.get() == 1)
            && busy == 0
            && fiber.branches.is_empty()
            && !self.clock_countdown.is_last()
            && self.post.mailbox.is_empty()
            && !ptr::eq(next.as_ptr(), fiber)
            && front.is_none_or(|front| front.lineage.key() >= key)
            && self.post.shared_queue.key() >= key
            && self.shared().injector.key_shortly() >= key;
        first.then_some(key)
    }

    /// The short form of [`leave_parked`](Self::leave_parked), where [`leaves_shortly`](Self::leaves_shortly) says so. It calls nothing.
    #[inline(always)]
    pub(crate) fn leave_shortly(&self, fiber: &Fiber) -> Option<NonNull<Coroutine>> {
        let next = self.ready().take_outside()?;
        self.clock_countdown.step_on();
        fiber.low.set(stack_pointer());
        fiber.since.store(self.tick.get(), Ordering::Relaxed);
        fiber.descent.set(Descent::of_top(fiber.request()));
        self.resume(next);
        // SAFETY: ready fibers of a worker are coroutines'.
        Some(unsafe { Coroutine::of_fiber(next) })
    }

    /// The context to enter when the calling fiber parks. `None`: the fiber itself continues, since it is ready and first.
    #[inline(never)]
    pub(crate) fn leave_parked(&self, fiber: &Fiber) -> Option<NonNull<Coroutine>> {
        if fiber.context().no_suspend().get() != 0 {
            // Waits have checked this before they began; see the head of `no_suspend`.
            no_suspend::die(fiber, "what others do in its scope or join");
        }
        if !self.leaving_calls.are_first() {
            self.watch_exit();
        }
        self.settle_jobs();
        fiber.low.set(stack_pointer());
        fiber.since.store(self.tick.get(), Ordering::Relaxed);
        fiber.descent.set(Descent::of_top(fiber.request()));
        if !fiber.branches.is_empty() {
            self.publish_arms(fiber);
        }
        self.collect_mail();
        children::settle(fiber, self.arena());
        let bits = self.post.attention.get() & (RAISED | MESSAGE | DRIVEN);
        if bits & (RAISED | MESSAGE) != 0 {
            self.attend(true);
        }
        if std::thread::panicking()
            && is_unwinding(fiber)
            && let Ok(next) = self.leave_unwinding(fiber)
        {
            return next;
        }
        if bits & DRIVEN != 0 {
            return self.leave_to_driver(fiber);
        }
        let (ready, shared) = (self.ready().key(), self.shared());
        let attention = self.post.attention.get();
        debug_assert!(attention & MESSAGE != 0 || !self.put_aside.is_any());
        if ready != NO_KEY
            && (attention & MESSAGE == 0 || !self.put_aside.is_any())
            && attention & HOLDS == 0
            && ready <= self.list.key()
            && ready <= self.post.shared_queue.key()
            && (ORDERED || ready <= shared.injector.key())
            && ready <= shared.best_published(self.index, &self.scan_turns, ready)
        {
            if attention & HUNGRY != 0 {
                // Its target may be alone in the queue ([`submit_for_waiter`](crate::schedule::submit)), and is not published.
                self.feed();
            }
            let next = self.ready().pop(false);
            if let Some(next) = next {
                if ptr::eq(next.as_ptr(), fiber) {
                    return None;
                }
                self.resume(next);
                // SAFETY: ready fibers of a worker are coroutines'.
                return Some(unsafe { Coroutine::of_fiber(next) });
            }
        }
        match self.coroutine_for_loop() {
            Ok(coroutine) => Some(coroutine),
            Err(_) => self.wait_for_ready(fiber),
        }
    }

    /// A coroutine to continue as the loop.
    #[inline]
    pub(super) fn coroutine_for_loop(&self) -> Result<NonNull<Coroutine>, StackError> {
        let class = self.shared().default_class;
        self.coroutine(class).or_else(|_| {
            // Idle coroutines of other classes hold stacks, too.
            self.retire(usize::MAX);
            self.coroutine(class)
        })
    }

    /// Makes sure that `fiber` can leave, before it waits for something that unstarted requests may have to do; see the
    /// module head.
    #[inline]
    pub(crate) fn make_room_to_leave(&self, fiber: &Fiber) {
        if self.reserve_coroutine().is_err() {
            self.run_descendants_here(fiber);
        }
    }

    #[cold]
    fn run_descendants_here(&self, fiber: &Fiber) {
        loop {
            let error = match self.coroutine_for_loop() {
                Ok(coroutine) => return self.put_idle(coroutine),
                Err(error) => error,
            };
            let Some(header) = fiber.request().and_then(|top| self.claim_descendant(top)) else { return };
            // SAFETY: claimed, with the runner's link, which keeps the header.
            if has_room(fiber, unsafe { header.as_ref() }) {
                // SAFETY: claimed, with the runner's link.
                self.on_fiber(fiber, || unsafe { self.run_here(fiber, header) });
            } else {
                // SAFETY: claimed, with the runner's link.
                self.on_fiber(fiber, || unsafe { finish::fail_unstarted(fiber, header, error) });
            }
        }
    }

    /// Claims an unstarted descendant of `top`, in whichever queue it is.
    fn claim_descendant(&self, top: &Header) -> Option<NonNull<Header>> {
        let (shared, wanted) = (self.shared(), |header: &Header| descends(header, top));
        // While a descendant has a header, so has the child of `top` from which it descends.
        self.claim_of(
            || top.has_children().then(|| self.private_descendant(top)).flatten(),
            || {
                if !top.has_children() {
                    return None;
                }
                let workers = shared.worker_records().iter_from(self.index);
                workers
                    .flat_map(|worker| [&worker.post.shared_queue, &worker.post.held])
                    .find_map(|shared_queue| shared_queue.take_where(wanted))
                    // Requests that ask for a stack of their own are there.
                    .or_else(|| shared.injector.take_of(top.lineage.key(), wanted))
            },
        )
    }

    /// The oldest descendant of `top` in the private queue, which is sorted.
    fn private_descendant(&self, top: &Header) -> Option<&Header> {
        let mut at = self.list.front();
        while let Some(listed) = at {
            if descends(listed, top) {
                return Some(listed);
            }
            if listed.lineage.compare(&top.lineage) == Order::Greater {
                break;
            }
            // SAFETY: P2.
            at = unsafe { listed.next_listed().as_ref() };
        }
        // SAFETY: P2, P3.
        unsafe { top.last_child().as_ref() }
    }

    /// Calls `f`, which runs or ends a request of this runtime on top of the requests of `fiber`.
    pub(super) fn on_fiber(&self, fiber: &Fiber, f: impl FnOnce()) {
        let (arena, entered) = (fiber.arena.replace(self.arena()), fiber.entered.replace(ptr::null()));
        f();
        fiber.arena.set(arena);
        fiber.entered.set(entered);
    }

    /// Runs a request on top of the requests of `fiber`.
    ///
    /// # Safety
    ///
    /// The request is claimed, and the runner's link is the caller's.
    pub(super) unsafe fn run_here(&self, fiber: &Fiber, header: NonNull<Header>) {
        let (before, running) = (fiber.urgency.load(Ordering::Relaxed), self.running());
        let Next::Start(header) = self.begin(header) else { unreachable!("what begins is started") };
        // SAFETY: by contract.
        unsafe { run::start(fiber, header) };
        // The requests below may have become more urgent meanwhile.
        let below = fiber.request().map_or(NO_KEY, Header::urgency);
        fiber.urgency.store(before.min(below), Ordering::Relaxed);
        self.set_running(running);
    }

    /// There is no stack for the loop: the thread sleeps until a started fiber may continue, or a stack is free.
    #[cold]
    fn wait_for_ready(&self, fiber: &Fiber) -> Option<NonNull<Coroutine>> {
        let shared = self.shared();
        let alone = shared.worker_records().len() == 1;
        if !alone && self.list.front().is_some() {
            self.publish_private(u32::MAX, ptr::null());
            shared.signals.notify_any();
        }
        let next = self.engine().wait_for_wake(
            || {
                admission::unstick();
                let tick = self.before_sleep_in((!alone).then(|| self.patience.tick()));
                self.keep_time(tick)
            },
            || {
                self.collect_mail();
                if self.post.attention.get() & (RAISED | MESSAGE) != 0 {
                    self.attend(true);
                }
                let Some(ready) = self.ready().pop(true) else {
                    return self.coroutine_for_loop().ok().map(Some);
                };
                self.resume(ready);
                // SAFETY: as in `leave_parked`.
                Some((!ptr::eq(ready.as_ptr(), fiber)).then(|| unsafe { Coroutine::of_fiber(ready) }))
            },
        );
        self.found();
        next
    }

    /// The context to enter when the calling fiber yields. `None`: nothing else is ready to run.
    #[inline(never)]
    pub(crate) fn leave_yielding(&self, fiber: &Fiber) -> Option<NonNull<Coroutine>> {
        if !self.leaving_calls.are_first() {
            self.watch_exit();
        }
        self.settle_jobs();
        if !fiber.branches.is_empty() {
            self.publish_arms(fiber);
        }
        self.collect_mail();
        children::settle(fiber, self.arena());
        if self.post.attention.get() & DRIVEN != 0 {
            return self.yield_to_driver(fiber);
        }
        let unstarted = self.list.key() != NO_KEY
            || self.post.shared_queue.key() != NO_KEY
            || self.shared().injector.key() != NO_KEY
            || self.is_hold_due()
            || self.post.attention.get() & MESSAGE != 0 && self.put_aside.is_any();
        if !unstarted && self.ready().len() == 0 {
            return None;
        }
        if unstarted {
            if let Ok(coroutine) = self.coroutine_for_loop() {
                self.ready().push_yielded(NonNull::from(fiber), true);
                return Some(coroutine);
            }
            if self.ready().only_yielded() && self.run_oldest_here(fiber) {
                return None;
            }
        }
        self.ready().push_yielded(NonNull::from(fiber), false);
        let next = self.ready().pop(true)?;
        if ptr::eq(next.as_ptr(), fiber) {
            return None;
        }
        self.resume(next);
        // SAFETY: as in `leave_parked`.
        Some(unsafe { Coroutine::of_fiber(next) })
    }

    /// The same for a fiber that polls a lock. It did not call a yield, so no request runs on its stack, and it does not leave
    /// while a panic unwinds it.
    #[cold]
    pub(crate) fn leave_to_others(&self, fiber: &Fiber) -> Option<NonNull<Coroutine>> {
        if std::thread::panicking() || self.reserve_coroutine().is_err() {
            return None;
        }
        self.leave_yielding(fiber)
    }

    /// Whether no suspended fiber of this worker could continue, as far as it knows.
    pub(crate) fn has_nothing_ready(&self) -> bool {
        self.post.mailbox.is_empty() && self.ready().len() == 0
    }

    /// Runs the oldest unstarted request of this worker or of the injector that fits on this fiber. False: none fits.
    #[cold]
    fn run_oldest_here(&self, fiber: &Fiber) -> bool {
        let shared = self.shared();
        // A stale entry is taken in any case: else it would block the entries behind it.
        let wanted = |header: &Header| !header.bare.load().is_unstarted() || has_room(fiber, header);
        let mut keys = [(self.list.key(), 0), (self.post.shared_queue.key(), 1), (shared.injector.key(), 2)];
        keys.sort_unstable();
        for (key, place) in keys.into_iter().filter(|&(key, _)| key != NO_KEY) {
            let taken = match place {
                0 => self.list.front().filter(|front| has_room(fiber, front)).map(|front| {
                    self.take_out(front);
                    NonNull::from(front)
                }),
                1 => self.post.shared_queue.pop_if(key, wanted),
                _ => shared.injector.pop_if(key, wanted),
            };
            let Some(header) = taken else { continue };
            if if place == 0 { self.claim_private(header) } else { self.claim(header, false) } {
                // SAFETY: claimed, with the runner's link.
                self.on_fiber(fiber, || unsafe { self.run_here(fiber, header) });
            }
            return true;
        }
        false
    }

    /// The fast path of a yield: only yielders are ready on this worker. `Err`: take the slow path.
    #[inline(always)]
    pub(crate) fn rotate(&self, fiber: &Fiber) -> Result<Option<NonNull<Coroutine>>, ()> {
        let ran = self.running();
        // Before the checks below, which are the look that is due when something younger begins.
        if let Some(next) = self.ready().first_yielded() {
            // SAFETY: K3.
            self.will_run(unsafe { next.as_ref() }.urgency.load(Ordering::Relaxed));
        }
        // One branch for all that is 0 on this way.
        let busy = self.post.attention.get() as usize
            | self.leaving_calls.difference()
            | self.list.first().load(Ordering::Relaxed).addr()
            | self.ready().woken()
            | self.jobs.get().0.addr();
        let quiet = busy == 0
            && self.post.mailbox.is_empty()
            && self.post.shared_queue.key() == NO_KEY
            && self.shared().injector.key() == NO_KEY
            && fiber.branches.is_empty();
        if !quiet {
            // Without a look, which would cost each switch: a push that fell between is missed if this fiber is all that the slow path finds.
            self.set_running(ran);
            return Err(());
        }
        Ok(self.ready().rotate_yielded(NonNull::from(fiber)).map(|next| {
            children::settle(fiber, self.arena());
            // SAFETY: as in `leave_parked`.
            unsafe { Coroutine::of_fiber(next) }
        }))
    }
}

/// Whether `header` may run on top of the requests of `fiber`.
fn has_room(fiber: &Fiber, header: &Header) -> bool {
    !header.is(OWN_STACK) && header.need() <= fiber.room()
}

/// Whether `header` descends from `top`.
fn descends(header: &Header, top: &Header) -> bool {
    let mut at = header.parent();
    while let Some(ancestor) = at
        && ancestor.lineage.depth() >= top.lineage.depth()
    {
        if ptr::eq(ancestor, top) {
            return true;
        }
        at = ancestor.parent();
    }
    false
}
