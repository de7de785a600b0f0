//! Making requests: the fast ways inside a request, and the slow one everywhere else.
//!
//! | function | where | word at birth | first visible to others |
//! |---|---|---|---|
//! | `spawn_small` | in a request on a worker | `SPAWNED`: queued, private, one handle, one link | when it stands in the private queue, to a raider |
//! | `new_with` | in a request on a worker, which has no message and no mark to read | as the arena says: local to its owner, or `NEW` | when a handle is shared, or it is queued |
//! | `spawn_outside` | anywhere else, or for another runtime | a root's: queued, one handle, one link; a child's: `NEW` | when it is pushed, or submitted |
//!
//! Before that moment its fields are plain stores (W8): no other thread has a count, or can find it by a list. `spawn_outside` is in
//! three parts: only the one that writes the cell is compiled for each callable.

use std::ptr::{self, NonNull};

use forebear_context::error::Error;
use forebear_context::shim::Arc;

use super::Request;
use crate::api::builder::RequestBuilder;
use crate::api::builder::make::create;
use crate::api::origin::{self, Origin, Rank};
use crate::record::cell::{self, BOXED_ABOVE, Birth, Boxed, Callable, Fallible, Plain};
use crate::record::children;
use crate::record::fiber;
use crate::record::header::{Header, HeaderPlace};
use crate::schedule::submit;
use crate::schedule::worker::OnWorker;
use crate::shared::Shared;
use crate::shared::worker::OnRecord;
use crate::state::attention::{DRIVEN, HUNGRY, MARKS, MESSAGE, RAIDED, SHUT};
use crate::state::word::{self, HANDLE, SPAWNED};

/// Makes a request and submits it. Faster than the two steps, since no other thread has it yet. The handle may be
/// dropped.
///
/// Inside a request, what was spawned stays private to the worker until another worker has no work.
///
/// ```
/// use forebear::spawn;
///
/// fn fib(n: u64) -> u64 {
///     if n < 2 {
///         return n;
///     }
///     let a = spawn(move || fib(n - 1));
///     fib(n - 2) + a.take().unwrap()
/// }
/// assert_eq!(spawn(|| fib(15)).take().ok(), Some(610));
/// ```
#[doc(alias = "goroutine")]
#[doc(alias = "fiber")]
#[doc(alias = "coroutine")]
#[inline(always)]
pub fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Request<T> {
    // SAFETY: the callable is `'static`.
    unsafe { spawn_with(Plain(f), ptr::null()) }
}

/// As [`spawn`], for a callable that may return an error.
///
/// The error lives as long as a handle, a waiter or a descendant can ask for it. One that holds a handle of its own
/// request or of a descendant keeps both for ever, as a cycle of `Arc`s would.
///
/// ```
/// use forebear::try_spawn;
/// let parsed = try_spawn(|| Ok("12".parse::<u32>()?));
/// assert_eq!(parsed.take().ok(), Some(12));
/// ```
#[inline(always)]
pub fn try_spawn<T: Send + 'static>(f: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Request<T> {
    // SAFETY: the callable is `'static`.
    unsafe { spawn_with(Fallible(f), ptr::null()) }
}

/// The common way of all that spawns.
///
/// # Safety
///
/// The callable may borrow only what outlives its run or drop: the caller waits.
#[inline(always)]
pub(crate) unsafe fn spawn_with<T, C: Callable<T>>(
    callable: C,
    scope: *const crate::record::scope_core::ScopeCore,
) -> Request<T> {
    if const { size_of::<C>() > BOXED_ABOVE || align_of::<C>() > 16 } {
        // SAFETY: by contract.
        return unsafe { spawn_small(Boxed(Box::new(callable)), scope) };
    }
    // SAFETY: by contract.
    unsafe { spawn_small(callable, scope) }
}

/// The common way of all that makes a request without submitting it.
///
/// # Safety
///
/// The callable is `'static`.
#[inline]
pub(super) unsafe fn new_with<T, C: Callable<T> + 'static>(callable: C) -> Request<T> {
    while const { size_of::<C>() <= BOXED_ABOVE && align_of::<C>() <= 16 }
        && let Some(fiber) = fiber::get()
        && let Some(worker) = fiber.worker()
        && let Some(maker) = fiber.request()
        && worker.post.attention.get() & (MESSAGE | MARKS) == 0
        // SAFETY: M3.
        && let Some(arena) = unsafe { fiber.arena.get().as_ref() }
    {
        let Some(at) = cell::take_free::<C, T>(arena) else {
            cell::fill_here::<C, T>();
            continue;
        };
        let birth = Birth {
            word: arena.local_owner.birth(),
            lineage: children::child_of(maker),
            need_pages: worker.need_pages,
            scope: ptr::null(),
            place: HeaderPlace::Nowhere,
        };
        // SAFETY: M1: this worker's arena, which has given the cell; the one handle of the word.
        return unsafe { Request::from_raw(cell::write(at, arena, birth, callable)) };
    }
    new_slowly(callable)
}

#[cold]
#[inline(never)]
fn new_slowly<T, C: Callable<T> + 'static>(callable: C) -> Request<T> {
    create(&RequestBuilder::default(), callable, None)
}

/// The fast path of a spawn: inside a request, on a worker, with a small callable.
///
/// # Safety
///
/// As for [`make`](crate::api::builder::make::make).
#[inline(always)]
unsafe fn spawn_small<T, C: Callable<T>>(
    callable: C,
    scope: *const crate::record::scope_core::ScopeCore,
) -> Request<T> {
    while let Some(fiber) = fiber::get()
        && let Some(worker) = fiber.worker()
        && let Some(maker) = fiber.request()
        // SAFETY: M3.
        && let Some(arena) = unsafe { fiber.arena.get().as_ref() }
    {
        let Some(at) = cell::take_free::<C, T>(arena) else {
            cell::fill_here::<C, T>();
            continue;
        };
        let birth = Birth {
            word: SPAWNED,
            lineage: children::child_of(maker),
            need_pages: worker.need_pages,
            scope,
            place: HeaderPlace::Private,
        };
        // SAFETY: M1: this worker's arena, which has given the cell.
        let header = unsafe { cell::write(at, arena, birth, callable) };
        // SAFETY: just made.
        let h = unsafe { header.as_ref() };
        worker.list.insert_youngest(h);
        worker.note_inserted(h.lineage.key());
        if worker.post.attention.get() & (HUNGRY | MESSAGE | MARKS | DRIVEN | SHUT | RAIDED) != 0 {
            worker.attend_spawn(header);
        }
        // SAFETY: the one handle of `SPAWNED`.
        return unsafe { Request::from_raw(header) };
    }
    // SAFETY: by contract.
    unsafe { spawn_outside(None, callable, scope) }
}

/// The way of [`Runtime::spawn`](crate::Runtime::spawn): of this runtime, whichever is current.
///
/// # Safety
///
/// The callable is `'static`.
pub(crate) unsafe fn spawn_of<T, C: Callable<T>>(shared: &Arc<Shared>, callable: C) -> Request<T> {
    if const { size_of::<C>() > BOXED_ABOVE || align_of::<C>() > 16 } {
        // SAFETY: by contract.
        return unsafe { spawn_small_of(shared, Boxed(Box::new(callable))) };
    }
    // SAFETY: by contract.
    unsafe { spawn_small_of(shared, callable) }
}

/// As [`spawn_small`] if the caller runs on a worker of this runtime; otherwise by the slow path.
///
/// # Safety
///
/// As for [`spawn_of`].
#[inline(always)]
unsafe fn spawn_small_of<T, C: Callable<T>>(shared: &Arc<Shared>, callable: C) -> Request<T> {
    // A fiber without an arena has entered another runtime.
    let inside = fiber::get().is_some_and(|fiber| {
        !fiber.arena.get().is_null()
            && fiber.worker_record().is_some_and(|worker| ptr::eq(worker.shared(), &**shared))
    });
    if inside {
        // SAFETY: by contract.
        return unsafe { spawn_small(callable, ptr::null()) };
    }
    // SAFETY: by contract.
    unsafe { spawn_outside(Some(shared), callable, ptr::null()) }
}

/// The slow path of a spawn: outside any request, or for another runtime.
///
/// # Safety
///
/// As for [`make`](crate::api::builder::make::make).
#[cold]
#[inline(never)]
unsafe fn spawn_outside<T, C: Callable<T>>(
    of: Option<&Arc<Shared>>,
    callable: C,
    scope: *const crate::record::scope_core::ScopeCore,
) -> Request<T> {
    let (origin, birth) = birth_outside(of, scope);
    // SAFETY: M1: the arena is this thread's.
    let header = unsafe { cell::make(origin.arena, birth, callable) };
    // SAFETY: just made; the handle of the word.
    unsafe {
        submit_outside(&origin, header);
        Request::from_raw(header)
    }
}

/// What [`spawn_outside`] makes; apart, since it is the same for all callables.
#[inline(never)]
fn birth_outside(
    of: Option<&Arc<Shared>>,
    scope: *const crate::record::scope_core::ScopeCore,
) -> (Origin<'_>, Birth) {
    let counted = Counted(scope);
    let origin = origin::here(of);
    std::mem::forget(counted);
    let lineage = origin.lineage(Rank::default());
    let root = lineage.parent().is_null();
    let word = if root { word::QUEUED | word::SUBMITTED | HANDLE | word::LINK } else { word::NEW | HANDLE };
    let need_pages = origin.shared.default_need;
    (origin, Birth { word, lineage, need_pages, scope, place: HeaderPlace::Nowhere })
}

/// Submits it; apart for the same reason.
///
/// # Safety
///
/// It was just made, as [`birth_outside`] says.
#[inline(never)]
unsafe fn submit_outside(origin: &Origin<'_>, header: NonNull<Header>) {
    // SAFETY: by contract; the entry's link is in the word of a root.
    unsafe {
        if header.as_ref().lineage.parent().is_null() {
            submit::push_root_of(&origin.shared, header, None);
        } else {
            // It has a family to be put into, which may be cancelled.
            submit::submit(header, word::SUBMITTED);
        }
    }
}

/// A job that its scope has counted: taken back if there is nowhere to make it, which is a panic.
pub(crate) struct Counted(pub *const crate::record::scope_core::ScopeCore);

impl Drop for Counted {
    fn drop(&mut self) {
        // SAFETY: the caller's scope is in a frame below this one.
        if let Some(scope) = unsafe { self.0.as_ref() } {
            scope.job_taken();
        }
    }
}
