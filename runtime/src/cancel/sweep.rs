//! Aborting everything, for a runtime that is shut down. `api/runtime/finish.rs` has the protocol.
//!
//! In a *sweep* the owner of an arena aborts what it has itself. A worker aborts its private queue, its shared queue and the requests on its
//! coroutines; a foreign thread aborts the requests that it runs. Each owner sweeps once, in one go.
//!
//! A request is *sheltered* if one of its ancestors that is not over is in a shielded region. A sweep spares it, and the runtime still accepts new work
//! below it. The end of the region, or of the request that was in it, aborts them after all.

use std::ptr::{self, NonNull};

use forebear_context::error::CancelReason;
use forebear_context::shim::atomic::Ordering;

use super::{Marked, Spread, carry_out, deliver, is_orphaned_by_cancel, leave_ends, mark_orphan};
use crate::cancel::unstarted;
use crate::record::any::AnyRequest;
use crate::record::arena;
use crate::record::dependents;
use crate::record::fiber;
use crate::record::header::{ARM, Header};
use crate::shared::ending::{Stage, is_sheltered, may_still};
use crate::shared::worker::WorkerRecord;
use crate::shared::{OfRuntime, Shared};
use crate::state::attention::SHUT;
use crate::state::word::{Cancel, Demand};

/// Whether its runtime is shut.
#[inline]
pub(crate) fn is_in_shut(h: &Header) -> bool {
    // SAFETY: M3.
    unsafe { h.arena.get().as_ref() }.is_some_and(|arena| arena.shared().ending.is_shut())
}

/// Whether a request that is about to be submitted or run for the first time is refused, since its runtime is shut.
#[inline]
pub(crate) fn refused(h: &Header) -> bool {
    is_in_shut(h) && !may_still(h)
}

/// Cancels a request because its runtime is shut.
///
/// # Safety
///
/// The caller has a count of it.
#[cold]
pub(crate) unsafe fn refuse(header: NonNull<Header>) {
    // SAFETY: by contract, the caller keeps the header.
    let marked = mark(unsafe { header.as_ref() });
    // SAFETY: as above; the answer is fresh.
    unsafe { carry_out(header, marked) };
}

/// The same with several. What is claimed by it is left to a worker: no user code runs here while there is one. All are marked before one of them ends
/// or hears of its mark.
///
/// # Safety
///
/// The caller has a count of each.
#[cold]
pub(crate) unsafe fn refuse_later(headers: &[NonNull<Header>]) {
    let mut ended = Vec::new();
    let mut others = Vec::new();
    for &header in headers {
        // SAFETY: by contract, the caller keeps the header.
        match mark(unsafe { header.as_ref() }) {
            Cancel::Ended => ended.push(header),
            answer => others.push((header, answer)),
        }
    }
    for (header, answer) in others {
        // SAFETY: by contract; the answer is of the transition above, and nobody else's.
        unsafe { carry_out(header, answer) };
    }
    // SAFETY: claimed by the marks, with the runners' links.
    unsafe { leave_ends(ended) };
}

/// Marks a request that is about to be admitted, if it would be refused: its runtime is shut, or an ancestor was cancelled.
#[inline(always)]
pub(crate) fn mark_if_refused(h: &Header) -> Option<Cancel> {
    (refused(h) || is_orphaned_by_cancel(h)).then(|| mark_refused(h))
}

#[cold]
#[inline(never)]
fn mark_refused(h: &Header) -> Cancel {
    if refused(h) { mark(h) } else { mark_orphan(h) }
}

/// Sets the mark, and says why.
pub(super) fn mark(h: &Header) -> Cancel {
    let side = h.side_or_new();
    h.word().abort(|| side.reason.set(Some(CancelReason::Shutdown)))
}

/// What was taken from the shared queues of a runtime that is shut, and what is after completions: with a link of each.
#[must_use]
pub(crate) struct Unstarted(Vec<NonNull<Header>>);

/// Closes the injector, and takes out what stands there and on the workers' shared queues. Adds what is after completions, and stands in no queue.
pub(crate) fn take_unstarted(shared: &Shared) -> Unstarted {
    let mut taken = shared.injector.close(may_still);
    for worker in shared.worker_records().iter() {
        take_from_shared_queues(worker, &mut taken);
    }
    // What was put back stood nowhere for a moment.
    shared.signals.notify_any();
    add_dependents(shared, &mut taken);
    Unstarted(taken)
}

/// What is after completions, directly or not. A thread that submits such a dependent later finds the runtime shut, or over ([`crate::shared::completions`]).
fn add_dependents(shared: &Shared, taken: &mut Vec<NonNull<Header>>) {
    for completion in shared.awaited_completions() {
        dependents::each_blocked(completion.header(), |dependent| {
            if !may_still(dependent) {
                // SAFETY: `each_blocked` has a link of it meanwhile.
                taken.push(unsafe { AnyRequest::linked(NonNull::from(dependent)) }.into_raw());
            }
            false
        });
    }
}

/// Aborts what is after completions, and ends it here: the runtime is over.
pub(crate) fn abort_dependents(shared: &Shared) {
    let mut taken = Vec::new();
    add_dependents(shared, &mut taken);
    abort_unstarted(Unstarted(taken));
}

fn take_from_shared_queues(worker: &WorkerRecord, taken: &mut Vec<NonNull<Header>>) {
    for shared_queue in [&worker.post.shared_queue, &worker.post.held] {
        let mut stays = Vec::new();
        while let Some(entry) = shared_queue.pop(u64::MAX) {
            // SAFETY: E1.
            if may_still(unsafe { entry.as_ref() }) { stays.push(entry) } else { taken.push(entry) }
        }
        for entry in stays {
            // SAFETY: E1.
            let key = unsafe { entry.as_ref() }.lineage.key();
            shared_queue.push(key, entry);
        }
    }
}

/// Aborts them and ends them here: callables are dropped, callbacks called.
pub(crate) fn abort_unstarted(unstarted: Unstarted) {
    // All are marked before the first of them ends or hears of its mark: what one drops, calls or does finds the others cancelled.
    let mut claimed = Vec::new();
    let mut marked = Vec::new();
    for &header in &unstarted.0 {
        // SAFETY: E1.
        match mark(unsafe { header.as_ref() }) {
            Cancel::Ended => claimed.push(header),
            // It was claimed by a waiter, and its entry is stale.
            Cancel::Marked | Cancel::MarkedShielded => marked.push(header),
            _ => {}
        }
    }
    for header in marked {
        // SAFETY: E1.
        unsafe { deliver(header) };
    }
    // SAFETY: claimed by us, with the runner's links.
    unsafe { unstarted::end_all(&claimed) };
    for header in unstarted.0 {
        // SAFETY: E1: the entry's link.
        unsafe { arena::release(header) };
    }
}

impl Spread<'_> {
    /// Whether the runtime is shut.
    pub(super) fn is_shut(&self) -> bool {
        self.arena.shared().ending.is_shut()
    }

    /// Sweeps if it is time. By the owner.
    pub(super) fn sweep_if_due(&mut self) {
        if !self.arena.shared().ending.is(Stage::Swept) {
            return;
        }
        match self.worker {
            Some(worker) if worker.begins_sweep() => self.sweep_worker(worker),
            Some(_) => {}
            None => {
                if let Some(fiber) = fiber::get() {
                    self.sweep_stack(fiber);
                }
            }
        }
        self.work_off();
    }

    fn sweep_worker(&mut self, worker: &WorkerRecord) {
        worker.post.each_coroutine(|coroutine| {
            // SAFETY: K5; by their worker.
            self.sweep_stack(unsafe { &coroutine.as_ref().fiber });
        });
        let mut at = worker.list.front();
        while let Some(listed) = at {
            // SAFETY: P2.
            at = unsafe { listed.next_listed().as_ref() };
            if !is_sheltered(listed) {
                self.refuse_private(worker, listed);
            }
        }
        let mut taken = Vec::new();
        (worker.shared().calls.put_back_drawn)(worker);
        take_from_shared_queues(worker, &mut taken);
        taken.into_iter().for_each(|entry| self.refuse_entry(entry));
    }

    /// Aborts one that stands in the private queue.
    fn refuse_private(&mut self, worker: &WorkerRecord, listed: &Header) {
        let bits = listed.word().load();
        let known = bits.handles() > 0 || bits.links() > 1 || !listed.scope.get().is_null();
        let side = known.then(|| listed.side_or_new());
        let note = || {
            if let Some(side) = side {
                side.reason.set(Some(CancelReason::Shutdown));
            }
        };
        let ask = || {
            listed.word().cancel_private(|| {
                note();
                Demand::Nobody
            })
        };
        match worker.cancel_listed(listed, ask) {
            Cancel::Ended => {
                // Only the scope knows of a job whose handle was dropped.
                note();
                self.ended.push(NonNull::from(listed));
            }
            answer => self.follow(listed, answer),
        }
    }

    /// Aborts one that was taken from a shared queue, whose link is the caller's.
    fn refuse_entry(&mut self, entry: NonNull<Header>) {
        // SAFETY: E1.
        let h = unsafe { entry.as_ref() };
        self.held.push(entry);
        let answer = mark(h);
        self.follow(h, answer);
    }

    /// Aborts one that is after another which runs here.
    fn refuse_dependent(&mut self, dependent: AnyRequest) {
        // SAFETY: the handle's link.
        let answer = mark(unsafe { dependent.raw().as_ref() });
        let header = dependent.into_raw();
        self.held.push(header);
        // SAFETY: held by that link.
        self.follow(unsafe { header.as_ref() }, answer);
    }

    /// Aborts what stands on one stack.
    fn sweep_stack(&mut self, fiber: &fiber::Fiber) {
        let mut at = fiber.request();
        while let Some(frame) = at {
            // An arm goes with its maker, and what belongs to another runtime is none of this one's business.
            let ours = ptr::eq(frame.ran_on.load(Ordering::Relaxed), self.arena);
            if ours && !frame.is(ARM) && !is_sheltered(frame) {
                let answer = mark(frame);
                self.follow(frame, answer);
                // It may not end for long; what is after it ends now.
                for dependent in dependents::dependents(frame) {
                    // SAFETY: the handle's link.
                    let h = unsafe { dependent.raw().as_ref() };
                    if !is_sheltered(h) {
                        self.refuse_dependent(dependent);
                    }
                }
            }
            // SAFETY: what is below another on a stack is not over.
            at = unsafe { frame.lender.get().as_ref() };
        }
    }
}

/// Whether the worker has yet to sweep.
pub(super) fn is_to_sweep(worker: &WorkerRecord) -> bool {
    !worker.has_swept() && worker.shared().ending.is(Stage::Swept)
}

/// Aborts what `worker`, whose thread this is, has stolen after its sweep. Answers what may be kept.
#[cold]
pub(crate) fn refuse_stolen(worker: &WorkerRecord, stolen: Vec<NonNull<Header>>) -> Vec<NonNull<Header>> {
    let mut spread = Spread::on(worker.arena());
    let mut kept = Vec::new();
    for entry in stolen {
        // SAFETY: E1.
        if may_still(unsafe { entry.as_ref() }) { kept.push(entry) } else { spread.refuse_entry(entry) }
    }
    spread.work_off();
    spread.put_aside();
    kept
}

/// A request was spawned or submitted on `worker`, whose thread this is, stands in its private queue, and is refused. Answers whether it has been
/// ended.
///
/// # Safety
///
/// The caller has a count of the request.
pub(crate) unsafe fn refuse_spawned(
    worker: &WorkerRecord,
    header: NonNull<Header>,
    refused: Option<&mut Marked>,
) -> bool {
    // SAFETY: by contract.
    if worker.post.attention.get() & SHUT == 0 || is_sheltered(unsafe { header.as_ref() }) {
        return false;
    }
    // SAFETY: by contract.
    unsafe { cancel_spawned(worker, header, CancelReason::Shutdown, refused) }
}

/// Cancels a request that was spawned or submitted on `worker`, whose thread this is, for `reason`. No waiter exists yet. Answers whether it has
/// been ended, or added to `refused`, which the caller carries out later.
///
/// The messages that were attended since it was put into the private queue may have ended it already. A raider may have shown it to
/// another worker, which runs it: then the mark is delivered there, as any other.
///
/// # Safety
///
/// The caller has a count of the request.
#[cold]
pub(crate) unsafe fn cancel_spawned(
    worker: &WorkerRecord,
    header: NonNull<Header>,
    reason: CancelReason,
    refused: Option<&mut Marked>,
) -> bool {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let side = h.side_or_new();
    let ask = || {
        h.word().cancel_private(|| {
            side.reason.set(Some(reason));
            Demand::Nobody
        })
    };
    match worker.cancel_listed(h, ask) {
        Cancel::Ended => {
            // SAFETY: claimed by us, with the entry's link for the runner's.
            unsafe {
                match refused {
                    Some(refused) => refused.add(header, Cancel::Ended),
                    None => unstarted::end_claimed(header),
                }
            }
            true
        }
        Cancel::Marked | Cancel::MarkedShielded => {
            // SAFETY: by contract.
            unsafe { deliver(header) };
            false
        }
        _ => false,
    }
}
