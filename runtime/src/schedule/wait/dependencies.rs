//! A wait for a dependent runs what that is after, on the waiter's stack.

use std::collections::HashSet;
use std::ptr::NonNull;

use forebear_context::error::Cycle;

use super::approach;
use crate::cancel;
use crate::deadlock::cycle;
use crate::deadlock::declared::next;
use crate::record::any::AnyRequest;
use crate::record::fiber::Fiber;
use crate::record::header::{AFTER, Header};
use crate::state::word::{CLAIMED, HELD};

/// The fiber is about to wait for a dependent: runs what that is after, and has not started, on this stack. By a loop, depth first. Answers whether
/// anything was run; or the cycle, if what runs on this very stack is among it.
///
/// # Safety
///
/// As [`until_over`](super::until_over); `fiber` is the calling one.
#[cold]
#[inline(never)]
pub(crate) unsafe fn run_dependencies(fiber: &Fiber, header: NonNull<Header>) -> Result<bool, Cycle> {
    // SAFETY: by contract.
    let mut path = vec![(unsafe { AnyRequest::linked(header) }, 0)];
    let mut seen = HashSet::new();
    let mut any = false;
    while let Some((at, place)) = path.last_mut() {
        if cancel::refuses(fiber) {
            break;
        }
        // SAFETY: the handle's link.
        let Some((dependency, behind)) = next(unsafe { at.raw().as_ref() }, *place) else {
            let over = path.pop();
            if let Some((at, _)) = over.filter(|_| !path.is_empty()) {
                // SAFETY: the handle's link.
                any |= unsafe { try_run(fiber, at.raw()) };
            }
            continue;
        };
        *place = behind;
        // SAFETY: the handle's link.
        let h = unsafe { dependency.raw().as_ref() };
        let bits = h.word().load();
        if bits.life() >= CLAIMED {
            // From the second on: the first is named by the waiter's own wait.
            // SAFETY: the handles' links.
            let names = || path.iter().map(|(at, _)| unsafe { at.raw().as_ref() }.name().to_owned());
            if let Some(cycle) = cycle::of_declared(fiber, h, names()) {
                return Err(cycle);
            }
        } else if bits.life() == HELD {
            if h.is(AFTER) && seen.insert(dependency.raw()) {
                path.push((dependency, 0));
            }
        } else {
            // SAFETY: the handle's link.
            any |= unsafe { try_run(fiber, dependency.raw()) };
        }
    }
    Ok(any)
}

/// # Safety
///
/// As [`run_dependencies`].
unsafe fn try_run(fiber: &Fiber, header: NonNull<Header>) -> bool {
    // SAFETY: as for [`run_dependencies`]: the caller has a count of the header.
    let bits = unsafe { header.as_ref() }.word().load();
    // SAFETY: as above, and `fiber` is the caller's own.
    unsafe { approach::try_run(fiber, header, bits) }
}
