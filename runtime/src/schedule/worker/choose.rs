//! How a worker chooses what to run next, and claims it.
//!
//! [`pick`](Worker::pick) compares root keys, one word each, and takes the smallest. Among equal keys the order is: ready fibers, the private
//! queue, the worker's own shared queue, roots, the shared queues of other workers. So within one root a worker resumes fibers first, and leaves
//! unstarted requests to idle workers. If requests of an older root are private to another worker, the pick asks that worker to publish
//! them. With many workers a pick compares with some of them only; [`shared::scan`](crate::shared) says with which, and what a pick may miss.
//!
//! Two fast paths skip the comparison if no queue has anything older. The loop takes the front of the private queue (`pop_private`), and a
//! fiber that suspends switches to a ready one (`schedule/worker/suspend.rs`).

use std::ptr::{self, NonNull};

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::{Ordering, fence};
use forebear_pool::WorkerState;

use super::{Next, Worker};
use crate::deadlock::urgency;
use crate::record::arena;
use crate::record::children;
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::schedule::admission;
use crate::shared::Best;
use crate::state::attention::{HOLDS, HUNGRY};

impl Worker {
    /// What to do next; sleeps while there is nothing. `None`: the runtime is over.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<Next> {
        if let Some(header) = self.pop_private() {
            return Some(Next::Start(header));
        }
        self.next_of_all()
    }

    /// The fast way of the loop: nothing asks for attention, nothing is ready, and nobody has anything older than the
    /// front of the private queue.
    #[inline(always)]
    fn pop_private(&self) -> Option<NonNull<Header>> {
        let front = self.list.front()?;
        let key = front.lineage.key();
        let scope = front.scope.get();
        if !self.post.mailbox.is_empty()
            || self.ready().len() != 0
            || self.running() != key
            || self.shared().best_published(self.index, &self.scan_turns, key) < key
            || !(self.jobs.get().0.is_null() || ptr::eq(self.jobs.get().0, scope))
            || !front.place.touch(|| self.post.attention.get() == 0)
        {
            return None;
        }
        self.list.unlink(front);
        let header = NonNull::from(front);
        // SAFETY: P2: the list's link.
        if unsafe { header.as_ref() }.claim_popped() {
            self.started.count();
            return Some(header);
        }
        self.claim(header, true);
        None
    }

    #[inline(never)]
    fn next_of_all(&self) -> Option<Next> {
        if let Some(driver) = &self.driver {
            // The driver has chosen; if not, it is to come back.
            return driver.take_order();
        }
        self.settle_jobs();
        // Others return what they end; a worker that makes nothing itself would never come to fetch it.
        self.arena().drain_returns();
        if let Some(next) = self.pick() {
            return Some(next);
        }
        self.post.set_coroutines_in_use(self.busy_coroutines.get());
        self.note_private();
        fence(Ordering::Release);
        self.set_running(NO_KEY);
        admission::unstick();
        let engine = self.engine();
        let next = engine.idle();
        engine.set_state(WorkerState::Running);
        next
    }

    /// The best there is for this worker, claimed; see the module head.
    pub(crate) fn pick(&self) -> Option<Next> {
        loop {
            self.collect_mail();
            // A single request that this pick will take is not shown first, to be raced for.
            let spared = self.post.attention.get() & HUNGRY != 0 && self.list.is_single();
            if self.post.attention.get() != 0 {
                self.attend(!spared);
                if let Some(end) = self.next_put_aside() {
                    if spared {
                        self.feed();
                    }
                    return Some(end);
                }
                if self.post.attention.get() & HOLDS != 0
                    && let Some(held) = self.attend_hold()
                {
                    if spared {
                        self.feed();
                    }
                    return Some(held);
                }
            }
            let shared = self.shared();
            let (ready, private) = (self.ready().key(), self.list.key());
            let (shared_queue, roots) = (self.post.shared_queue.key(), shared.injector.key());
            let mine = ready.min(private).min(shared_queue);
            let mut best = Best { key: mine.min(roots), victim: None, next: NO_KEY };
            if self.driver.is_none() {
                // What a thread submits is run by that thread.
                shared.scan(self.index, &self.scan_turns, &mut best);
            }
            let Best { key: best, victim, next } = best;
            if best == NO_KEY {
                if self.fire_before_idling() {
                    continue;
                }
                let fiber = self.ready().pop(true)?;
                return Some(self.resume(fiber));
            }
            if spared && (victim.is_some() || ready == best || private != best) {
                // Something else goes first.
                self.feed();
                continue;
            }
            let from_shared_queue =
                victim.is_some() || ready != best && private != best && shared_queue == best;
            let taken = if let Some(victim) = victim {
                self.rob(victim, best)
            } else if ready == best {
                match self.ready().pop(false) {
                    Some(fiber) => return Some(self.resume(fiber)),
                    None => continue,
                }
            } else if private == best {
                if self.post.attention.get() & HOLDS != 0 && self.delay_listed() {
                    continue;
                }
                match self.pop_listed() {
                    // SAFETY: P2: the list's link.
                    Some(header) if unsafe { header.as_ref() }.claim_popped() => {
                        self.note_private();
                        return Some(self.begin(header));
                    }
                    popped => popped,
                }
            } else if shared_queue == best {
                self.post.shared_queue.pop(best)
            } else {
                // Others may have taken the one that was seen; the next will do if nothing that was seen goes before it. If each had
                // to look again, many workers would come one after the other to find out that one of them has it.
                let root = shared.injector.pop(next.min(mine - 1).max(best));
                if (best + 1..NO_KEY).contains(&self.running()) {
                    shared.tell_of_next_root(self.running());
                }
                root
            };
            if let Some(header) = taken.filter(|_| from_shared_queue)
                && urgency::is_outdated(header, best)
            {
                // SAFETY: E1: the entry's link, which goes with it.
                self.post.shared_queue.push(unsafe { header.as_ref() }.urgency(), header);
                continue;
            }
            if private != best
                && let Some(header) = taken
                && self.is_delayed(header)
            {
                continue;
            }
            if let Some(header) = taken
                && self.claim(header, private == best)
            {
                return Some(self.begin(header));
            }
        }
    }

    /// Claims what was taken out of the private queue.
    pub(super) fn claim_private(&self, header: NonNull<Header>) -> bool {
        // SAFETY: P2: the list's link.
        unsafe { header.as_ref() }.claim_popped() || self.claim(header, true)
    }

    /// Claims what was taken from a shared queue (or, with `tried`, was found to be a stale entry already).
    pub(super) fn claim(&self, header: NonNull<Header>, tried: bool) -> bool {
        // SAFETY: E1, P2: the entry's link is ours.
        let word = unsafe { header.as_ref().word() };
        if !tried && word.claim_by_queue() {
            return true;
        }
        // SAFETY: as above.
        let h = unsafe { header.as_ref() };
        if std::ptr::eq(h.arena.get(), self.arena()) {
            // Claimed elsewhere while it was private here: now it can stand among its parent's children.
            children::link(h);
        }
        if word.release_link() {
            // SAFETY: W4.
            unsafe { arena::end(header) };
        }
        false
    }

    /// Claims a request that `private` finds in the private queue, or else one that `take` has taken out of another queue, until one is claimed or there is none.
    pub(super) fn claim_of<'a>(
        &self,
        private: impl Fn() -> Option<&'a Header>,
        take: impl Fn() -> Option<NonNull<Header>>,
    ) -> Option<NonNull<Header>> {
        loop {
            if let Some(listed) = private() {
                let header = NonNull::from(listed);
                self.take_out(listed);
                if self.claim_private(header) {
                    return Some(header);
                }
            } else {
                let header = take()?;
                if self.claim(header, false) {
                    return Some(header);
                }
            }
        }
    }

    #[inline(always)]
    pub(super) fn begin(&self, header: NonNull<Header>) -> Next {
        // Its own: what was taken may be older than what was judged.
        // SAFETY: the taker's link.
        self.begin_running(unsafe { header.as_ref() }.urgency());
        self.ready().count_start();
        self.started.count();
        Next::Start(header)
    }

    #[inline(always)]
    pub(super) fn resume(&self, fiber: NonNull<Fiber>) -> Next {
        // SAFETY: K3.
        self.begin_running(unsafe { fiber.as_ref() }.urgency.load(Ordering::Relaxed));
        Next::Resume(fiber)
    }
}
