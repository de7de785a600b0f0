//! From submitted to queued: how the edges of a dependent are set up, closed one by one, and what happens when none is open.
//!
//! The states, and who does what, stand in the head of [`crate::api::after`]; the count that decides who queues the dependent in that of [`open`].
//!
//! A submitter works by a loop: to set up the edges of one dependent may be to submit what it is after, which may be a dependent in its turn. So a
//! chain of any length needs no stack.

use std::ptr::{self, NonNull};

use forebear_context::context::{Listeners, WaitNode};
use forebear_context::shim::mutant;

use crate::cancel::{self, Marked};
use crate::deadlock::urgency;
use crate::foreign;
use crate::record::any::AnyRequest;
use crate::record::arena;
use crate::record::children;
use crate::record::dependents::DependentRecord;
use crate::record::fiber::{self, Fiber};
use crate::record::header::{AFTER, HINTED, Header, HeaderPlace, OWN_STACK, ROOT};
use crate::schedule::held_back;
use crate::schedule::submit;
use crate::schedule::worker::OnWorker;
use crate::shared::thread;
use crate::shared::worker::OnRecord;
use crate::shared::{OfRuntime, Shared};
use crate::state::attention::SHUT;
use crate::state::open;
use crate::state::word::{Bits, HELD, NEW, PRIVATE, SUBMITTED};

/// A dependent is submitted, or about to be waited for. False: it was before, or is cancelled, or a pool holds it back. `refused` is as in
/// [`submit`].
///
/// # Safety
///
/// AF1; the caller has a count of it.
#[cold]
pub(crate) unsafe fn begin(header: NonNull<Header>, marks: u64, refused: Option<&mut Marked>) -> bool {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    // SAFETY: AF2: the thread that finds it new under its lock is its submitter.
    let held = h.word().hold(|| {
        // SAFETY: AF1, by contract.
        let record = unsafe { DependentRecord::of(header) };
        record.open.begin(record.len())
    });
    if marks & SUBMITTED != 0 {
        // Held, by this or before: that somebody has submitted it is remembered.
        h.word().submit(SUBMITTED);
    }
    if held {
        // SAFETY: AF1 and a count, by contract; this call has moved it to `HELD`, so its thread is the submitter (AF2).
        unsafe {
            submit::enter_family(header);
            set_up_all(header, refused);
        }
    }
    held
}

/// A pool admits a dependent that it has held back. The pool's link becomes the edges'. The caller carries `refused` out.
///
/// # Safety
///
/// AF1; the pool's link is the caller's, and goes with this; the caller has another count.
#[cold]
pub(crate) unsafe fn begin_admitted(header: NonNull<Header>, refused: &mut Marked) {
    let mut work = Vec::new();
    // SAFETY: AF1 and the pool's link by contract, for what sets the edges up; the caller's other count outlasts the work that this puts
    // off.
    unsafe {
        set_up_admitted(header, &mut work, refused);
        work_off(work, refused);
    }
}

/// Sets up the edges of a held dependent that was admitted, and notes its dependencies in `work`.
///
/// # Safety
///
/// As [`begin_admitted`].
unsafe fn set_up_admitted(header: NonNull<Header>, work: &mut Vec<SetUpNext>, refused: &mut Marked) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let (mut held, mut board) = (false, None);
    if let Ok(bits) = h.word().lock() {
        if bits.life() == HELD {
            // SAFETY: AF2: it is held, and nobody else admits it.
            let record = unsafe { DependentRecord::of(header) };
            record.open.begin(record.len());
            // SAFETY: W15: the lock is ours.
            board = unsafe { held_back::forget_holder(h) };
            held = true;
        }
        h.word().unlock(|bits| bits);
    }
    drop(board);
    // SAFETY: the pool's link by contract, which the edges take over if it is held, and which is released otherwise; the caller has another
    // count.
    unsafe {
        if held {
            submit::enter_family(header);
            set_up(header, work, refused);
        } else {
            arena::release(header);
        }
    }
}

/// What is left to do when edges have been set up.
enum SetUpNext {
    /// Nobody has submitted this dependency, or a pool holds it back.
    Unsubmitted(AnyRequest),
    /// A pool has admitted this one, and its link is to continue.
    Admitted(AnyRequest),
}

/// Sets up the edges of a dependent, and then submits what nobody has submitted of its dependencies, and of theirs. What is refused ends when all are
/// submitted.
///
/// # Safety
///
/// As [`begin`]; it has just been held.
unsafe fn set_up_all(header: NonNull<Header>, refused: Option<&mut Marked>) {
    let (mut work, mut ours) = (Vec::new(), Marked::default());
    let refused = refused.unwrap_or(&mut ours);
    // SAFETY: AF1 and the link by contract, for what sets the edges up; what is put off there has counts of its own.
    unsafe {
        set_up(header, &mut work, refused);
        work_off(work, refused);
    }
    ours.carry_out();
}

/// By a loop.
///
/// # Safety
///
/// Each request of `work` is kept by the handle there; what is `Admitted` is owed its admission (HB2).
unsafe fn work_off(mut work: Vec<SetUpNext>, refused: &mut Marked) {
    while let Some(next) = work.pop() {
        // SAFETY: a handle of it is in `next`; what was admitted is owed (HB2).
        unsafe {
            match &next {
                SetUpNext::Unsubmitted(request) => submit_next(request.raw(), &mut work, refused),
                SetUpNext::Admitted(request) if request.raw().as_ref().is(AFTER) => {
                    set_up_admitted(request.raw(), &mut work, refused);
                }
                SetUpNext::Admitted(request) => submit::admit(request.raw(), refused),
            }
        }
    }
}

/// Submits a dependency, or sets up its edges if it is a dependent itself.
///
/// # Safety
///
/// The caller has a count.
unsafe fn submit_next(header: NonNull<Header>, work: &mut Vec<SetUpNext>, refused: &mut Marked) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    // SAFETY: by contract; AF2, as in `begin`.
    unsafe {
        let life = h.word().load().life();
        if life == NEW
            && let Some(came) = cancel::mark_if_refused(h)
        {
            // As for a wait: nobody runs it.
            refused.add(header, came);
        } else if life == NEW && h.is(AFTER) {
            if h.word().hold(|| DependentRecord::of(header).open.begin(DependentRecord::of(header).len())) {
                submit::enter_family(header);
                set_up(header, work, refused);
                return;
            }
        } else if life == NEW {
            submit::submit_for_waiter(header, Some(refused));
            if let Some(worker) = fiber::get().and_then(Fiber::worker) {
                worker.feed_if_hungry();
            }
        }
        // Also if a pool has come to hold it back just now: else it would not know that it was asked for.
        if h.word().load().life() == HELD
            && let Some(fiber) = foreign::fiber()
        {
            let (_, admitted) = held_back::ask_for(fiber, header);
            work.extend(admitted.map(SetUpNext::Admitted));
        }
    }
}

/// Enters the nodes of a dependent that has just been held into the lists of its dependencies. Runs no user code.
///
/// # Safety
///
/// As [`set_up_all`].
unsafe fn set_up(header: NonNull<Header>, work: &mut Vec<SetUpNext>, refused: &mut Marked) {
    // SAFETY: by contract: the caller has a count.
    let h = unsafe { header.as_ref() };
    // SAFETY: M3: it is not over.
    let shared = unsafe { (*h.arena.get()).shared() };
    shared.survey.note_declared();
    // SAFETY: Z2: a scope stays until its jobs are over.
    if let Some(scope) = unsafe { h.scope.get().as_ref() } {
        scope.note_dependent();
    }
    let here = fiber::get().and_then(Fiber::worker_record);
    // SAFETY: AF2: by the submitter.
    let record = unsafe { DependentRecord::of(header) };
    let mut is_noted = false;
    for place in (0..).map_while(|at| record.node_at(at)) {
        // SAFETY: AF2: by the submitter.
        let node = unsafe { &mut *place };
        let Some(target) = node.target() else { continue };
        let dependency = target.cast::<Header>();
        // SAFETY: AF3.
        let t = unsafe { dependency.as_ref() };
        // SAFETY: M3. A ready value has no runtime, and is over.
        let is_ours = unsafe { t.arena.get().as_ref() }.is_none_or(|arena| ptr::eq(arena.shared(), shared));
        if !is_ours {
            let last = record.open.down();
            debug_assert!(!last, "it is being set up");
            continue;
        }
        // SAFETY: Q5, by AF4: the record is kept until the edge is closed.
        *node = unsafe { WaitNode::of_record(header.cast(), target) };
        // A dependent that is held, or a completion, stays what it is until its edges are closed, or it is completed: nobody is to be asked for it.
        let is_idle = |bits: Bits| match bits.life() {
            // SAFETY: W15: the lock is this thread's.
            HELD => !ptr::eq(unsafe { held_back::holder(t) }, held_back::NO_POOL),
            life => life == NEW,
        };
        // SAFETY: Q2, Q5.
        let entered = unsafe { open::enter(&record.open, t.word(), &t.waiters, node, is_idle) };
        let Some(is_idle) = entered else { continue };
        if t.vtable.is_completion {
            // SAFETY: AF3, and the edge was entered just now.
            unsafe { note(shared, dependency) };
            is_noted = true;
        }
        if is_idle {
            if work.capacity() == 0 {
                *work = Vec::with_capacity(record.len() as usize);
            }
            // SAFETY: AF3.
            work.push(SetUpNext::Unsubmitted(unsafe { AnyRequest::linked(dependency) }));
        }
        // SAFETY: U2: AF3.
        unsafe { urgency::raise(here, dependency, h.urgency()) };
    }
    if record.open.set_up() {
        // SAFETY: OE1: the edges' link, which is released after the refusal.
        unsafe {
            if !try_admit(header) {
                refused.refuse(header);
                arena::release(header);
            }
        }
    } else if is_noted && (shared.is_over() || cancel::refused(h)) {
        // Nobody who ends the runtime will find it, and no worker is left for it.
        // SAFETY: by contract: the caller has a count.
        #[cfg(not(mutant = "held_without_a_look"))]
        unsafe {
            refused.refuse(header);
        }
    }
}

/// A dependency is over, and these nodes stood in its list. No user code runs before all edges are closed: it could cancel one of these dependents, and wait
/// for this. None of those that are refused ends before all are marked: the captures of one may wait for another. If listeners are left to be notified,
/// none ends on this stack: the captures may wait for what comes of a notice. Nor does the notice of a listener wait for them here.
///
/// # Safety
///
/// Q5: by the finisher of `dependency`.
#[cold]
#[inline(never)]
pub(crate) unsafe fn ended(dependency: NonNull<Header>, listeners: &mut Listeners) {
    let mut refused = Vec::new();
    let mut completion = None;
    // SAFETY: Q5: the caller is the finisher, which reports each record once. The link of one whose last edge was closed here is this
    // thread's (OE1), for its refusal too.
    unsafe {
        listeners.report(|dependent| {
            let header = dependent.cast::<Header>();
            // AF3: this edge is open, and its handle keeps the dependency.
            if dependency.as_ref().vtable.is_completion && completion.is_none() {
                completion = Some(AnyRequest::linked(dependency));
                mutant!("forgotten_before_it_is_queued", forget(dependency), ());
            }
            // SAFETY: AF2, AF4: its edge is open.
            if DependentRecord::of(header).open.down() && !try_admit(header) {
                refused.push(header);
            }
        });
        // Not before what was after it is queued: until then it is work that no worker sees.
        if completion.is_some() {
            forget(dependency);
        }
        match refused.is_empty() {
            true => {}
            false if listeners.is_empty() => refuse(&refused),
            false => thread::hold_back(|| refuse(&refused)),
        }
    }
}

/// An edge to a completion has been entered: its runtime notes that, unless the completion is over.
///
/// # Safety
///
/// The edge has a handle of the completion, and is set up by the caller.
#[cold]
#[inline(never)]
unsafe fn note(shared: &Shared, completion: NonNull<Header>) {
    // SAFETY: CN1: by contract; the note is taken back here.
    unsafe { shared.note_edge(completion) };
    // SAFETY: by contract.
    if unsafe { completion.as_ref() }.word().load().is_terminal() {
        shared.forget_edge(completion);
    }
}

/// A completion is over, and its edges are closed.
///
/// # Safety
///
/// The caller has a link of it.
#[cold]
#[inline(never)]
unsafe fn forget(completion: NonNull<Header>) {
    // SAFETY: by contract.
    let arena = unsafe { completion.as_ref() }.arena.get();
    // SAFETY: M3: by the caller's link.
    unsafe { &*arena }.shared().forget_completion(completion);
}

/// Queues a dependent of which no edge is open any more, or ends it if its runtime is shut.
///
/// # Safety
///
/// OE1: the edges' link is the caller's, and goes with this.
pub(crate) unsafe fn admit(header: NonNull<Header>) {
    // SAFETY: OE1: the edges' link, which one of the two calls gives away.
    unsafe {
        if !try_admit(header) {
            refuse(&[header]);
        }
    }
}

/// The runtime of these dependents is shut: ends them.
///
/// # Safety
///
/// The edges' link of each is the caller's, and goes with this.
unsafe fn refuse(headers: &[NonNull<Header>]) {
    // SAFETY: the edges' links by contract: they keep the headers for the refusal, and are released after it.
    unsafe {
        cancel::refuse_later(headers);
        headers.iter().for_each(|header| arena::release(*header));
    }
}

/// Queues a dependent of which no edge is open any more. False: its runtime is shut, and the link stays with the caller.
///
/// # Safety
///
/// OE1: the edges' link is the caller's, and goes with this.
unsafe fn try_admit(header: NonNull<Header>) -> bool {
    // SAFETY: the edges' link.
    let h = unsafe { header.as_ref() };
    if cancel::refused(h) {
        return false;
    }
    // SAFETY: M3.
    let shared = unsafe { (*h.arena.get()).shared() };
    let worker = fiber::get().and_then(Fiber::worker).filter(|worker| ptr::eq(worker.shared(), shared));
    let own = worker.filter(|worker| {
        !h.is(OWN_STACK | ROOT | HINTED)
            && !h.lineage.parent().is_null()
            && ptr::eq(h.arena.get(), worker.arena())
            && worker.post.attention.get() & SHUT == 0
    });
    if !h.word().admit(if own.is_some() { PRIVATE } else { 0 }) {
        // Cancelled meanwhile.
        // SAFETY: the edges' link.
        unsafe { arena::release(header) };
        return true;
    }
    match (own, worker) {
        (Some(worker), _) => {
            if h.place.get() == HeaderPlace::Child {
                // SAFETY: N1, N2: this arena's owner.
                unsafe { children::unlink(h) };
            }
            submit::list_ready(worker, h);
        }
        (None, Some(worker)) if shared.driven.is_none() && !h.is(HINTED) => {
            worker.post.shared_queue.push(h.urgency(), header);
            shared.signals.notify_any();
        }
        _ => return shared.arc().push_root(header),
    }
    true
}
