//! Direct execution: who waits for a request runs it.
//!
//! A target that has not started is claimed and run on the waiter's own stack, unless
//!
//! * it asks for a stack of its own, or more stack than is left here (then it is queued, and the waiter suspends: so a
//!   chain of a million nested waits completes);
//! * something older is ready on this worker;
//! * it belongs to another runtime;
//! * the wait has a limit, or only watches;
//! * the waiter has a deadline, of its own or inherited, and the target none that is as near.

use std::ptr::{self, NonNull};

use forebear_context::shim::atomic::Ordering;

use crate::cancel;
use crate::foreign;
use crate::foreign::driver;
use crate::record::header::{AFTER, DETACHED, Header, OWN_STACK};
use crate::schedule::run;
use crate::schedule::worker::Worker;
use crate::shared::ending::Stage;
use crate::stack::strand::Strand;
use crate::state::attention::{DRIVEN, HUNGRY, LIMITS, MARKS, NOTICE, OLDER, RAIDED, SHUT};
use crate::state::word::Confided;
/// The commonest case of a wait: the target stands in this worker's own private list, or nowhere yet and its maker waits, and
/// nothing speaks against running it here. False: it was not run, or something concerns the waiter now; the long way tells what
/// to answer.
///
/// # Safety
///
/// As [`until_over`](super::until_over).
#[inline(never)]
pub(super) unsafe fn run_own(header: NonNull<Header>) -> bool {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let Some(strand) = crate::stack::strand::get() else { return false };
    if !ptr::eq(h.home.get(), strand.home.get()) {
        return false;
    }
    let Some(worker) = strand.worker() else { return false };
    let attention = worker.post.attention.get();
    if attention & (HUNGRY | OLDER | NOTICE | MARKS | DRIVEN | LIMITS) != 0 {
        // SAFETY: by contract.
        return unsafe { run_own_attending(strand, worker, header) };
    }
    // SAFETY: by contract.
    unsafe { run_own_on(strand, worker, header, attention) }
}

/// The same where something concerns the worker: perhaps nothing but deadlines, or somebody who is hungry.
///
/// # Safety
///
/// `header` is alive, and of the home of `worker`, on whose thread `strand` is the current one.
#[cold]
#[inline(never)]
unsafe fn run_own_attending(strand: &Strand, worker: &Worker, header: NonNull<Header>) -> bool {
    // SAFETY: by contract.
    nothing_forbids(strand, unsafe { header.as_ref() })
        // SAFETY: by contract.
        && unsafe { run_own_on(strand, worker, header, worker.post.attention.get()) }
}

/// # Safety
///
/// As for [`run_own_attending`]; `attention` is what the worker's word said after that.
#[inline(always)]
unsafe fn run_own_on(strand: &Strand, worker: &Worker, header: NonNull<Header>, attention: u32) -> bool {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    // What is after others is looked at by the long way.
    if h.is(OWN_STACK | AFTER) || strand.room() < h.need() {
        return false;
    }
    if h.bare.is_secret() {
        // SAFETY: its home is this strand's, which is the worker's.
        if !unsafe { start_in_secret(strand, worker, h, attention) } {
            return false;
        }
    } else if h.bare.claim_by_waiter(true).is_ok() {
        worker.take_out(h);
    } else if attention & SHUT != 0 || !is_child_of_top(strand, h) || !h.bare.claim_new() {
        return false;
    }
    worker.direct.count();
    // SAFETY: claimed as lent; the caller's count is held.
    unsafe { run::lend(strand, header) };
    worker.post.attention.get() & (NOTICE | MARKS) == 0
}

/// Claims for its waiter what is a secret of this worker's. False: it is none to be run here, or has been revealed meanwhile.
///
/// # Safety
///
/// The request's home is the worker's.
#[inline(always)]
unsafe fn start_in_secret(strand: &Strand, worker: &Worker, h: &Header, attention: u32) -> bool {
    let listed = h.secret.is(Confided::Listed);
    let other = if listed { h.secret.is(Confided::Started) } else { !h.secret.is_new() };
    if other || !listed && (attention & SHUT != 0 || !is_child_of_top(strand, h)) {
        return false;
    }
    // SAFETY: by contract.
    if !unsafe { h.confide(worker.home(), Confided::Started) } {
        return false;
    }
    if listed {
        worker.take_out(h);
    }
    true
}

/// Something concerns this worker, which is about to run the target on this stack. Publishes other work if somebody is hungry: the
/// target may run for long. Answers whether the rest is nothing but deadlines, and none that counts for a wait for this target.
#[cold]
#[inline(never)]
pub(crate) fn nothing_forbids(strand: &Strand, h: &Header) -> bool {
    strand.worker().is_some_and(|worker| {
        if worker.post.attention.get() & RAIDED != 0 {
            // The word may not be what it was.
            worker.settle_raid();
            return false;
        }
        worker.feed_beside(h);
        worker.post.attention.get() & (OLDER | NOTICE | MARKS | DRIVEN) == 0
            && (!worker.is_among_limits() || is_child_of_top(strand, h))
    })
}

/// Whether the request on top has made it. Then no other ancestor can have been cancelled that it would have to hear of but by
/// the one on top.
#[inline(always)]
fn is_child_of_top(strand: &Strand, h: &Header) -> bool {
    !h.is(DETACHED) && strand.request().is_some_and(|top| ptr::eq(h.lineage.parent(), &top.lineage))
}

/// The target was queued somewhere, and is a shell there now.
#[cold]
pub(super) fn leave_shell(h: &Header) {
    // SAFETY: M3.
    if let Some(home) = unsafe { h.home.get().as_ref() } {
        home.shared().roots.note_shell(
            |entry| !entry.word().load().is_unstarted(),
            |shell| {
                // SAFETY: E1: the entry's link; W4.
                unsafe {
                    if shell.as_ref().word().release_link() {
                        crate::memory::home::end(shell);
                    }
                }
            },
        );
    }
}

/// Whether the strand may run the target itself.
#[inline(always)]
pub(super) fn may_lend(strand: &Strand, h: &Header) -> bool {
    if h.is(OWN_STACK) || strand.room() < h.need() {
        return false;
    }
    // SAFETY: the target's home and record live as long as it (M3).
    let Some(home) = (unsafe { h.home.get().as_ref() }) else { return false };
    match strand.worker() {
        Some(worker) => {
            ptr::eq(worker.shared(), home.shared())
                && !worker.driver.as_ref().is_some_and(|driver| driver.would_rather_queue())
                && (worker.post.attention.get() & OLDER == 0 || !worker.older_is_ready())
                && !(worker.is_among_limits() && may_outlast(strand, h))
        }
        // While the thread's locals are being destroyed it has no home to count children on (M1).
        None => {
            let shared = home.shared();
            shared.foreign_direct
                && !shared.ending.is_shut()
                && !shared.is_over()
                && foreign::home_for(&shared.arc()).is_some()
                && !(shared.deadlines.has_requests() && may_outlast(strand, h))
        }
    }
}

/// Whether the request on top has a deadline, of its own or inherited, and the target may still run when that comes.
#[cold]
fn may_outlast(strand: &Strand, h: &Header) -> bool {
    let Some(waiter) = strand.request() else { return false };
    // Most wait for what they have made, which has inherited all that they have.
    if h.lineage.descends_from(&waiter.lineage) {
        return false;
    }
    let limit = waiter.deadline();
    limit.is_some() && h.deadline().is_none_or(|at| Some(at) > limit)
}

/// Runs a request claimed as lent, with the home and the runtime it needs.
///
/// # Safety
///
/// As [`run::lend`]; `strand` is the calling one.
pub(crate) unsafe fn run_here(strand: &Strand, header: NonNull<Header>) {
    match strand.worker() {
        Some(worker) => {
            worker.direct.count();
            let (home, entered) = (strand.home.replace(worker.home()), strand.entered.replace(ptr::null()));
            // SAFETY: by contract.
            unsafe { run::lend(strand, header) };
            strand.home.set(home);
            strand.entered.set(entered);
        }
        None => {
            // SAFETY: the waiter's count keeps header, home and record.
            let shared = unsafe { (*header.as_ref().home.get()).shared() }.arc();
            let Some(home) = foreign::home_for(&shared) else { unreachable!("asked by `may_lend`") };
            shared.foreign_direct_count.fetch_add(1, Ordering::Relaxed);
            let _guest = driver::Guest::of(&shared);
            let own = home.as_ptr();
            shared.ending.foreign_begins();
            // SAFETY: M3; O2: taken back below.
            let (desk, before) = unsafe {
                let desk = &home.as_ref().desk;
                (desk, desk.runs(Some(NonNull::from(strand.context()))))
            };
            if shared.ending.is(Stage::Swept) {
                // It may have been stirred before it was known that something runs here.
                desk.stir();
            }
            let home = strand.home.replace(home.as_ptr());
            let entered = strand.entered.replace(&*shared);
            // SAFETY: by contract.
            unsafe { run::lend(strand, header) };
            loop {
                if !desk.is_empty() {
                    // SAFETY: M3.
                    cancel::attend_home(unsafe { &*own });
                }
                // SAFETY: O2: as it was.
                if unsafe { desk.rests(before) } {
                    break;
                }
            }
            if shared.ending.foreign_ends() {
                shared.workers().iter().for_each(|worker| shared.wake(worker.index));
            }
            strand.home.set(home);
            strand.entered.set(entered);
            if home.is_null() {
                foreign::settle_homes();
            }
        }
    }
}
