//! Makes requests as a [`RequestBuilder`] describes them: unsubmitted, or in one step with the submission.
//!
//! | function | makes | submitted |
//! |---|---|---|
//! | [`spawn_built`] | what is common: a name or a time-out at most, inside a request on a worker | in the same step, into the private queue |
//! | [`create`], [`create_after`] | anything else that owns what it captures | by the caller |
//! | [`spawn_in`] | a job of a scope, which may borrow | at once |
//! | [`region`], [`completion`] | a request that is never queued | never |
//!
//! # Order of a birth
//!
//! No other thread knows a request before its handle is returned, so its fields are plain stores, in this order: the header, the flags, the side
//! block. Then its parent is asked whether it is cancelled. The deadline is armed last. From that moment the timer thread knows the request by a
//! link, which is in the word from birth (T4), and may abort it at any time. `spawn_built` enters the request into the private queue after that.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use forebear_context::error::{CancelReason, Error, StackError};
use forebear_context::lineage::{self, Lineage};

use super::RequestBuilder;
use crate::api::completer::Outside;
use crate::api::origin::{self, Rank};
use crate::api::request::{Counted, Request};
use crate::api::then::dependent::{make_after, spawn_after};
use crate::cancel;
use crate::record::arena::Arena;
use crate::record::cell::{
    self, BOXED_ABOVE, Birth, Boxed, Callable, Construct, Fallible, For, Typed, Whole,
};
use crate::record::children::child_of;
use crate::record::fiber::{self, Fiber};
use crate::record::header::{AFTER, DETACHED, HINTED, Header, HeaderPlace, LIMITED, OWN_STACK, ROOT};
use crate::record::report;
use crate::record::scope_core::ScopeCore;
use crate::record::side;
use crate::schedule::worker::{OnWorker, Worker};
use crate::shared::{OfRuntime, Shared};
use crate::stack;
use crate::stack::lent::Lent;
use crate::state::attention::{DRIVEN, HUNGRY, MARKS, MESSAGE, RAIDED, SHUT};
use crate::state::due::Due;
use crate::state::estimated_clock;
use crate::state::shared_queue::{Hint, HintGroup};
use crate::state::word::{HANDLE, LINK, NEW, SPAWNED, SPAWNED_LIMITED};

/// Makes a request and submits it: in one step what is common and made in a request on a worker, as [`spawn`](crate::spawn) does.
#[inline]
pub(super) fn spawn_built<T, C: Callable<T> + 'static>(
    builder: &RequestBuilder,
    callable: C,
    location: &'static Location<'static>,
) -> Request<T> {
    if const { size_of::<C>() <= BOXED_ABOVE && align_of::<C>() <= 16 }
        && builder.is_common()
        && let Some(fiber) = fiber::get()
        && let Some(worker) = fiber.worker()
        && let Some(maker) = fiber.request()
        && worker.post.attention.get() & (MESSAGE | MARKS | DRIVEN | SHUT | RAIDED) == 0
        && fiber.context().no_suspend().get() == 0
        // SAFETY: M3.
        && let Some(arena) = unsafe { fiber.arena.get().as_ref() }
    {
        let deadlines = &worker.shared().deadlines;
        let limit = builder.timeout.and_then(|timeout| deadlines.after_on(worker, timeout));
        let birth = || Birth {
            word: if limit.is_some() { SPAWNED_LIMITED } else { SPAWNED },
            lineage: child_of(maker),
            need_pages: worker.need_pages,
            scope: ptr::null(),
            place: HeaderPlace::Private,
        };
        // SAFETY: M1: this worker's arena.
        let header = unsafe { cell::make_with(arena, birth, callable) };
        // SAFETY: M1: made here, just now.
        unsafe { list_built(worker, arena, header, builder, limit, location) };
        // SAFETY: the one handle of the word.
        return unsafe { Request::from_raw(header) };
    }
    let request = create_after(builder, callable, Some(location));
    request.submit();
    request
}

/// Puts a request that [`spawn_built`] has made into the private queue, with what its description says beside it.
///
/// # Safety
///
/// Nobody else knows the request, which was made on `arena`, this worker's, as queued; with a limit it has a link for the entry.
unsafe fn list_built(
    worker: &Worker,
    arena: &Arena,
    header: NonNull<Header>,
    builder: &RequestBuilder,
    limit: Option<Instant>,
    location: &'static Location<'static>,
) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    if builder.name.is_some() || limit.is_some() {
        let mut side = side::new_of_memory(&arena.sides);
        side.name.clone_from(&builder.name);
        side.location = Some(location);
        side.due = limit.map(Due::new);
        let side = h.put_first_side(side);
        if let Some(due) = &side.due {
            h.set_flags(LIMITED);
            // SAFETY: T4: the second link.
            unsafe { worker.shared().arm_due(header, due) };
        }
    }
    worker.list.insert_youngest(h);
    worker.note_inserted(h.lineage.key());
    if worker.post.attention.get() & (HUNGRY | MESSAGE | MARKS | DRIVEN | SHUT | RAIDED) != 0 {
        worker.attend_spawn(header);
    }
}

/// Makes an unsubmitted request.
#[inline]
pub(super) fn create_after<T, C: Callable<T> + 'static>(
    builder: &RequestBuilder,
    callable: C,
    location: Option<&'static Location<'static>>,
) -> Request<T> {
    match builder.after.is_any() {
        false => create(builder, callable, location),
        true => make_after(builder, callable, location),
    }
}

/// The same, whatever it says of others that the request is after.
pub(crate) fn create<T, C: Callable<T> + 'static>(
    builder: &RequestBuilder,
    callable: C,
    location: Option<&'static Location<'static>>,
) -> Request<T> {
    if size_of::<C>() > BOXED_ABOVE || align_of::<C>() > 16 {
        // SAFETY: the callable is `'static`, so the request borrows nothing.
        return unsafe { make(builder, Boxed(Box::new(callable)), location, ptr::null()) };
    }
    // SAFETY: as above.
    unsafe { make(builder, callable, location, ptr::null()) }
}

/// Makes and submits a request that may borrow.
///
/// # Safety
///
/// The scope waits for it, and has counted it.
pub(crate) unsafe fn spawn_in<T, C: Callable<T>>(
    builder: &RequestBuilder,
    callable: C,
    scope: *const ScopeCore,
) -> Request<T> {
    // SAFETY: by contract; submitted at once, so it never exists unsubmitted outside this function.
    unsafe {
        let counted = Counted(scope);
        let request = match builder.after.is_any() {
            false => make(builder, Boxed(Box::new(callable)), None, scope),
            true => spawn_after(builder, callable, scope),
        };
        std::mem::forget(counted);
        let lent = Lent::to(|| "a job of its scope");
        request.submit();
        lent.given_back();
        request
    }
}

/// Makes the request of a region on `fiber` that has a limit ([`crate::api::region`]), of the runtime that the request on top is of.
///
/// # Safety
///
/// A thread that drops the callable unrun must not touch what it borrows. The caller claims the request, or leaves it to its claimer.
pub(crate) unsafe fn region<C: Callable<()>>(
    limit: Duration,
    fiber: &Fiber,
    callable: C,
    location: &'static Location<'static>,
) -> Request<()> {
    // SAFETY: M3.
    let arena = fiber.request().and_then(|top| unsafe { top.arena.get().as_ref() });
    let builder = RequestBuilder {
        name: Some(Cow::Borrowed("timeout")),
        timeout: Some(limit),
        on: arena.map(|arena| arena.shared().arc()),
        ..RequestBuilder::default()
    };
    // SAFETY: by contract.
    unsafe { make(&builder, callable, Some(location), ptr::null()) }
}

/// A request without code, which no thread runs ([`crate::api::completer`]).
pub(crate) fn completion<T: Send + 'static>(
    name: Cow<'static, str>,
    location: &'static Location<'static>,
) -> Request<T> {
    let builder = RequestBuilder { name: Some(name), ..RequestBuilder::default() };
    // SAFETY: the callable is `'static`.
    unsafe { make(&builder, Outside, Some(location), ptr::null()) }
}

/// Makes a request by this builder, without submitting it.
///
/// # Safety
///
/// If `callable` or `T` borrows, `scope` is the scope that waits for the request, with this job counted (Z1,
/// Z2); else null.
pub(crate) unsafe fn make<T, C: Callable<T>>(
    builder: &RequestBuilder,
    callable: C,
    location: Option<&'static Location<'static>>,
    scope: *const ScopeCore,
) -> Request<T> {
    // SAFETY: by contract.
    unsafe { make_from(builder, Whole(callable), location, scope) }
}

/// The same of what may have edges.
///
/// # Safety
///
/// As [`make`], also for what the edges lead to.
pub(crate) unsafe fn make_from<T, K: Construct<T>>(
    builder: &RequestBuilder,
    what: K,
    location: Option<&'static Location<'static>>,
    scope: *const ScopeCore,
) -> Request<T> {
    let too_large = builder.stack_size.map(NonZero::get).filter(|&bytes| bytes > stack::MAX);
    // It never runs, so it is dropped. Before anything is made and counted: its destructor may wait, or panic.
    let what = match too_large {
        None => Ok(what),
        Some(asked) => Err((asked, catch_unwind(AssertUnwindSafe(|| drop(what))).err())),
    };
    let origin = origin::here(builder.on.as_ref());
    let need_pages = match builder.stack_size {
        None => origin.shared.default_need,
        Some(bytes) => u16::try_from(bytes.get().div_ceil(4 << 10)).unwrap_or(u16::MAX),
    };
    let limit = limit(builder, &origin.shared);
    let rank = Rank { deadline: limit, ..builder.rank };
    // The link is the entry's of the deadline. With it the end cannot be one of those that only read the word.
    let word = NEW | HANDLE | if limit.is_some() { LINK } else { 0 };
    let birth = Birth { word, lineage: origin.lineage(rank), need_pages, scope, place: HeaderPlace::Nowhere };
    let (header, panicked) = match what {
        // SAFETY: M1: the arena is this thread's.
        Ok(what) => (unsafe { cell::make_from(origin.arena, birth, what) }, None),
        Err((asked, panicked)) => {
            let refuse = move || Err(Error::from(StackError::too_large(asked, stack::MAX)));
            let birth = Birth { need_pages: 0, ..birth };
            let refuse = For(Fallible(refuse), PhantomData::<fn(Typed<K::Callable, T>)>);
            // SAFETY: as above.
            (unsafe { cell::make::<_, T>(origin.arena, birth, refuse) }, panicked)
        }
    };
    // SAFETY: just made.
    let h = unsafe { header.as_ref() };
    let mut flags = 0;
    if builder.own_stack {
        flags |= OWN_STACK;
    }
    if builder.rank.detached {
        flags |= DETACHED;
    }
    if builder.rank.priority.is_some() {
        flags |= ROOT;
    }
    if limit.is_some() {
        flags |= LIMITED;
    }
    if K::Callable::IS_DEPENDENT && too_large.is_none() {
        flags |= AFTER;
    }
    if builder.hint.is_some() {
        flags |= HINTED;
    }
    h.set_flags(flags);
    if builder.name.is_some() || limit.is_some() || builder.hint.is_some() {
        let mut side = side::new();
        side.name.clone_from(&builder.name);
        side.location = location;
        side.due = limit.map(Due::new);
        if let Some(hint) = builder.hint {
            side.hint = Hint::new(hint.draw(), group_of(&h.lineage, flags));
        }
        h.put_side(side);
    }
    if let Some(payload) = panicked {
        report::aside_panicked(h, payload);
    }
    if cancel::is_orphaned_by_cancel(h) {
        // Made by a cancelled request.
        if limit.is_some() {
            h.word().release_link();
        }
        // SAFETY: the one handle of the word.
        unsafe { cancel::cancel_orphan(header) };
    } else if let Some(due) = h.due() {
        // Then it is not past.
        let is_ahead = builder.rank.deadline.is_none()
            && builder.timeout.is_some_and(|timeout| timeout >= estimated_clock::SHORT);
        // SAFETY: the one handle of the word, and the link.
        unsafe { arm(header, due, &origin.shared, is_ahead) };
    }
    // SAFETY: the one handle of the word.
    unsafe { Request::from_raw(header) }
}

/// Those that the hint of a request with this lineage and these flags is compared with.
#[cold]
fn group_of(lineage: &Lineage, flags: u8) -> HintGroup {
    if lineage.parent().is_null() || flags & ROOT != 0 {
        return HintGroup::Roots(lineage::but_for_number(lineage.key()));
    }
    HintGroup::Siblings(lineage.parent().addr())
}

/// By when a request made now has to be over.
fn limit(builder: &RequestBuilder, shared: &Shared) -> Option<Instant> {
    let after = builder.timeout.and_then(|timeout| shared.deadlines.after(timeout));
    after.into_iter().chain(builder.rank.deadline).min()
}

/// Arms the deadline of a request that no other thread knows yet. If it is past, it fires at once; with `is_ahead` it is known not to
/// be past.
///
/// # Safety
///
/// The caller has the one handle, and a link which it gives away.
unsafe fn arm(header: NonNull<Header>, due: &Due, shared: &Shared, is_ahead: bool) {
    if !is_ahead && due.at() <= shared.deadlines.now() {
        // SAFETY: by contract. The link is not the last count.
        unsafe {
            header.as_ref().word().release_link();
            cancel::abort(header, CancelReason::Deadline);
        }
        return;
    }
    // SAFETY: T4: by contract.
    unsafe { shared.arm_due(header, due) };
}

const _: () = {
    // A stack size in pages fits the header's field, the largest class included.
    assert!(stack::MAX / (4 << 10) < u16::MAX as usize);
};
