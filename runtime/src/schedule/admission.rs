//! Has pools admit what somebody wants and they hold back; [`held_back`] says when they do.

use std::ptr::NonNull;

use forebear_context::error::WaitError;

use crate::cancel::Marked;
use crate::record::any::AnyRequest;
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::schedule::held_back::{self, Board, Released, Why};
use crate::schedule::submit;

/// Admits one request.
///
/// # Safety
///
/// HB2: its admission is owed.
pub(crate) unsafe fn admit(request: &AnyRequest) {
    let mut refused = Marked::default();
    // SAFETY: by contract; the handle has a link of its own.
    unsafe { submit::admit(request.raw(), &mut refused) };
    refused.carry_out();
}

/// `asker`, which this is called on, is about to wait for a request that is held back. Answers the pool that was
/// asked, as by [`holder`](held_back::holder).
///
/// # Safety
///
/// The caller has a count of the request.
#[cold]
#[inline(never)]
pub(crate) unsafe fn want(asker: &Fiber, header: NonNull<Header>) -> *const Board {
    // SAFETY: by contract.
    let (board, admitted) = unsafe { held_back::ask_for(asker, header) };
    if let Some(request) = admitted {
        // SAFETY: HB2.
        unsafe { admit(&request) };
    }
    board
}

/// Nothing more goes on here: a worker has found nothing to do, or a foreign thread is about to block. True: something has
/// been admitted.
#[inline]
pub(crate) fn unstick() -> bool {
    held_back::is_any_asked() && unstick_all()
}

#[cold]
#[inline(never)]
fn unstick_all() -> bool {
    let (mut any, mut refused) = (false, Marked::default());
    for board in held_back::asked_pools() {
        if let Some(request) = held_back::unstick(&board) {
            any = true;
            // SAFETY: HB2; the handle has a link of its own.
            unsafe { submit::admit(request.raw(), &mut refused) };
        }
    }
    // The caller may be in the middle of a wait.
    refused.carry_out_later();
    any
}

/// Stops the pool and aborts what is listed, unless it has stopped before.
#[cold]
pub(crate) fn stop(board: &Board, why: Why) {
    if let Some((released, mut marked)) = board.begin_stop(why) {
        let_go(released, &mut marked);
        marked.carry_out();
    }
}

/// The same, and this is what the wait answers if it stops for this reason.
#[cold]
pub(crate) fn stop_with(board: &Board, why: Why, answer: WaitError) {
    stop(board, why);
    board.note_answer(why, answer);
}

/// Lets go of those that the pool held back: a waiter finds them as if they had not been included. Those that are refused are added to `marked`, which the
/// caller carries out when all are released. Until then their captures, which may wait for another of them, are not dropped on this stack.
pub(crate) fn let_go(released: Released, marked: &mut Marked) {
    for request in released.held {
        if !request.header().word().let_go() {
            // SAFETY: HB2: its admission is owed; the handle has a link of its own.
            unsafe { submit::admit(request.raw(), marked) };
        }
    }
}
