//! Running a claimed request, and how it ends.
//!
//! The claimer runs the callable on the strand it is on: the loop's, or a waiter's that lends its stack. While it runs
//! the request stands on top of the strand. Then it *finishes*: value or failure in place, then the one exchange that
//! makes it terminal (W1, W2), then the waiters, then, as the last touch of all, the scope's count.

use std::borrow::Cow;
use std::ptr::{self, NonNull};

use forebear_context::error::{Error, Failure, SourceLocation, StackError};
use forebear_context::shim::atomic::Ordering;

use crate::cell;
use crate::header::{Ending, Header};
use crate::home;
use crate::hooks;
use crate::scope::ScopeCore;
use crate::strand::Strand;
use crate::word::{Bits, FAILED, FINISHED, SEEN, WAITERS};

/// Runs a request from a queue, on a strand that has nothing on top.
///
/// # Safety
///
/// The request is claimed; the runner's link is the caller's.
#[inline(always)]
pub(crate) unsafe fn start(strand: &Strand, header: NonNull<Header>) {
    // SAFETY: the runner's link.
    let h = unsafe { header.as_ref() };
    if ptr::eq(h.home.get(), strand.home.get())
        && h.word.is_popped_sole()
        && h.parent().is_some_and(|parent| parent.dead.get())
    {
        // SAFETY: popped by us from our own list, and nobody else knows of it.
        unsafe { home::take_place(header) };
    }
    strand.urgency.store(h.urgency.load(Ordering::Relaxed), Ordering::Relaxed);
    // SAFETY: by contract.
    unsafe { execute(strand, header, true) };
}

/// Runs a request whose waiter lends its stack.
///
/// # Safety
///
/// The request is claimed as lent: no runner's link; the waiter holds a handle.
#[inline]
pub(crate) unsafe fn lend(strand: &Strand, header: NonNull<Header>) {
    // SAFETY: the waiter's handle.
    let key = unsafe { header.as_ref() }.urgency.load(Ordering::Relaxed);
    let before = strand.urgency.load(Ordering::Relaxed);
    if key < before {
        // The stack is as urgent as the most urgent request on it.
        strand.urgency.store(key, Ordering::Relaxed);
    }
    // SAFETY: by contract.
    unsafe { execute(strand, header, false) };
    if key < before {
        strand.urgency.store(before, Ordering::Relaxed);
    }
}

#[inline(always)]
unsafe fn execute(strand: &Strand, header: NonNull<Header>, runner_link: bool) {
    // SAFETY: claimed by the caller.
    let h = unsafe { header.as_ref() };
    h.ran_on.store(strand.home.get().cast_mut(), Ordering::Relaxed);
    // A foreign strand may be gone when this is read, so it is compared only; see `ran_on`.
    h.strand.store(ptr::from_ref(strand).cast_mut(), Ordering::Relaxed);
    let below = strand.request.replace(header.as_ptr());
    let shield = strand.context().shield().replace(0);
    // SAFETY: W1: claimed; the value's place is the callable's, which `call` has moved out by then.
    let ending = unsafe { (h.vtable.call)(header, Header::value::<()>(header).as_ptr()) };
    strand.context().shield().set(shield);
    strand.request.set(below);
    // SAFETY: W1.
    unsafe {
        match ending {
            None => {
                h.has_value.set(true);
                if runner_link && h.word.is_popped_sole() && h.children.get() == 0 {
                    end_sole(strand, header);
                } else {
                    finish(header, FINISHED, runner_link);
                }
            }
            Some(ending) => fail(header, *ending, runner_link),
        }
    }
}

/// The end of a request that was popped from this worker's own list, and that nobody ever knew of: nobody can ask how
/// it ended, so it need not go terminal.
///
/// # Safety
///
/// W1, W8; it has no children.
#[inline(always)]
unsafe fn end_sole(strand: &Strand, header: NonNull<Header>) {
    // SAFETY: by contract: no count but the runner's link, no child: value and header are ours alone.
    unsafe {
        let scope = header.as_ref().scope.get();
        cell::drop_value_contained(header);
        match (strand.worker(), strand.home.get().as_ref()) {
            (Some(worker), Some(home)) if ptr::eq(home, header.as_ref().home.get()) => {
                home::end_child(home, header);
                if !scope.is_null() {
                    worker.job_done(scope);
                }
            }
            _ => {
                home::end(header);
                if let Some(scope) = scope.as_ref() {
                    scope.jobs_done(1);
                }
            }
        }
    }
}

/// Goes terminal. Value or failure is in place.
///
/// # Safety
///
/// W1.
#[inline(always)]
pub(crate) unsafe fn finish(header: NonNull<Header>, life: u64, runner_link: bool) {
    // SAFETY: W1.
    let h = unsafe { header.as_ref() };
    // Read now: after the exchange the header may be gone.
    let scope = h.scope.get();
    let (before, after) = h.word.finish(runner_link, |bits| {
        if bits.handles() == 0 && h.has_value.get() {
            // SAFETY: W2: no handle is left, and none can come (W5).
            unsafe { cell::drop_value_contained(header) };
        }
        life
    });
    // SAFETY: by the exchange.
    unsafe { told(header, before, after, scope) };
}

/// After the terminal exchange, whose bits before and after these are: wakes who waits, ends the header if nobody is left,
/// and takes the job off its scope's count. The last touch of the request.
///
/// # Safety
///
/// The caller made the exchange; `scope` was read before it.
#[inline(always)]
pub(crate) unsafe fn told(header: NonNull<Header>, before: Bits, after: Bits, scope: *const ScopeCore) {
    if before.has(WAITERS) {
        // SAFETY: W3: terminal, so the list is ours. The waiters hold counts until they are woken; the head is read
        // before the first is.
        unsafe { header.as_ref().waiters.take().wake_all() };
    }
    if after.is_forgotten() {
        // SAFETY: W4.
        unsafe { home::end(header) };
    }
    // SAFETY: a scope waits until its count is down, and this is the last touch.
    if let Some(scope) = unsafe { scope.as_ref() } {
        scope.jobs_done(1);
    }
}

/// Ends a claimed request with a failure.
///
/// # Safety
///
/// W1.
#[cold]
#[inline(never)]
pub(crate) unsafe fn fail(header: NonNull<Header>, ending: Ending, runner_link: bool) {
    // SAFETY: W1.
    let h = unsafe { header.as_ref() };
    let name = match h.side().and_then(|side| side.name.clone()) {
        Some(name) => name,
        None => Cow::Owned(h.name().to_owned()),
    };
    let born_at = h.side().and_then(|side| side.location).map(SourceLocation::from);
    let failure = match ending {
        Ending::Error(error) => Failure::from_error(error, name, born_at),
        Ending::Panic(payload) => Failure::from_panic(payload, name, hooks::take_location().or(born_at)),
    };
    // SAFETY: W1: before the terminal exchange the failure is the claimer's.
    unsafe { *h.side_or_new().failure.get() = Some(failure.clone()) };
    let scope = h.scope.get();
    // If no handle is left now there will be none (W5), and perhaps nobody to tell. Otherwise nothing of the failure may
    // stay here: who waits may drop the last of it as soon as it is woken.
    let alone = h.word.load().handles() == 0 && scope.is_null();
    let untold = alone.then(|| failure.clone());
    // SAFETY: the scope waits for this job.
    if let Some(scope) = unsafe { scope.as_ref() } {
        // A link, so that the scope can ask whether anybody has looked.
        h.word.add_link();
        scope.job_failed(failure, header);
    } else {
        drop(failure);
    }
    let home = h.home.get();
    // SAFETY: W1, as in `finish`, which this is but for the look at who is there.
    unsafe {
        let (before, after) = h.word.finish(runner_link, |_| FAILED);
        // The runtime's record may go with the header's home, so the hook comes first.
        if let Some(untold) = untold
            && !before.has(WAITERS)
            && !before.has(SEEN)
            && !home.is_null()
        {
            hooks::unseen_failure(Some((*home).shared()), &untold);
        }
        told(header, before, after, scope);
    }
}

/// Ends a claimed request that could not be given a stack: its callable is dropped unrun.
///
/// # Safety
///
/// W1; the runner's link is the caller's.
#[cold]
pub(crate) unsafe fn fail_unstarted(strand: &Strand, header: NonNull<Header>, error: StackError) {
    // SAFETY: W1.
    unsafe {
        header.as_ref().ran_on.store(strand.home.get().cast_mut(), Ordering::Relaxed);
        cell::drop_callable_contained(header);
        fail(header, Ending::Error(Error::from(error)), true);
    }
}
