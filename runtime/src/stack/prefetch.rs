//! What of a request and its coroutine is asked for from memory before it is needed.
//!
//! A request that waits leaves its stack cold. What it takes to go on lies in two places: its header, and the top of its slot,
//!
//! ```text
//!  low addresses  | ... | BELOW | frames, from where it was left | context ... fiber ... rest |  high addresses
//!                                                                |<------- control block ----->|
//! ```
//!
//! where all is in one page, mostly. The first access to that page walks through the page tables, and whatever else is asked for
//! meanwhile walks as well. So a large set of them is prefetched in two steps: one line of each early, the [`page`] or the [`top`] of its
//! fiber. The rest follows a few turns before its own, when the first line has arrived. Too early is as bad as too late: what was fetched
//! is gone again. How far ahead stands with those who ask, as measured in `docs/decisions/0023`:
//!
//! | who | early | later |
//! | --- | --- | --- |
//! | the ready queue, for the next that it gives out ([`crate::stack::ready`]) | `top` | [`whole`] |
//! | a thread that ends the waits of many coroutines ([`Going`](crate::shared::going::Going)) | `page` | [`control`], and `whole` for its own |
//! | a cancel that spreads to many (`cancel/spread.rs`) | [`header`], `top` | [`waiting`] |
//! | a cancel of one request that is its worker's own | | [`left`] |
//! | a worker that gives coroutines back | | `control` |
//!
//! To ask for an address needs no right to read it ([`forebear_context::fetch`]). But `whole` reads the fiber to know how much there is.

use std::mem;
use std::ptr::NonNull;

use forebear_context::context::Context;
use forebear_context::fetch::{line, lines, lines_below};

use crate::record::fiber::{BEHIND_CONTEXT, Fiber};
use crate::record::header::Header;
use crate::stack::coroutine::Coroutine;

/// How many lines a parked coroutine has in use below its control block, at least: more at once were worse, where it had fewer.
const PARKED_LINES: usize = 12;
/// So many lines below where a fiber was left it needs at once for its first calls.
const BELOW: usize = 3;
/// No more lines of one fiber are fetched.
const MOST_LINES: usize = 32;

/// Of a coroutine that is entered soon: its control block, what it was left with on its stack, and the request on top. Its [`top`] is
/// there.
#[inline(always)]
pub(crate) fn whole(fiber: NonNull<Fiber>) {
    // SAFETY: a ready fiber's memory is mapped, and its first line was fetched a few picks ago.
    let fiber = unsafe { fiber.as_ref() };
    let last = last_byte(fiber);
    lines_below(last, (last.addr().wrapping_sub(fiber.low.get()) / 64 + BELOW).min(MOST_LINES));
    header(fiber.request.get());
}

/// The same, without the request, of one of which nothing is there yet, so not even how much that is.
#[inline(always)]
pub(crate) fn left(fiber: *const Fiber) {
    lines_below(last_byte(fiber), size_of::<Coroutine>().div_ceil(64) + PARKED_LINES);
}

/// The last byte of a coroutine's control block, from which its stack goes down.
#[inline(always)]
fn last_byte(fiber: *const Fiber) -> *const u8 {
    fiber.cast::<u8>().wrapping_add(size_of::<Coroutine>() - mem::offset_of!(Coroutine, fiber) - 1)
}

/// A header.
#[inline(always)]
pub(crate) fn header(header: *const Header) {
    lines(header.cast(), size_of::<Header>().div_ceil(64));
}

/// What is needed to end the wait of a fiber whose worker does it: from its context up to what decides its place.
#[inline(always)]
pub(crate) fn waiting(fiber: NonNull<Fiber>) {
    let context = Fiber::context_at(fiber).as_ptr().cast();
    lines(context, (BEHIND_CONTEXT + mem::offset_of!(Fiber, next_ready)).div_ceil(64));
}

/// What is needed to end a coroutine's wait and to bring it to its worker.
#[inline(always)]
pub(crate) fn control(context: NonNull<Context>) {
    lines(context.as_ptr().cast(), size_of::<Coroutine>().div_ceil(64));
}

/// The address of a coroutine's page, by its first line.
#[inline(always)]
pub(crate) fn page(context: NonNull<Context>) {
    line(context.as_ptr().cast());
}

/// Of a fiber what the ready queue asks it, and [`whole`]; and with that what tells where its page is.
#[inline(always)]
pub(crate) fn top(fiber: *const Fiber) {
    line(fiber.cast());
    line(fiber.cast::<u8>().wrapping_add(mem::offset_of!(Fiber, descent)));
}
