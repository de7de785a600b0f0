//! A wait for a dependent runs what that is after, on the waiter's stack.
//!
//! The edges of each dependent on the way are read once, and what they lead to is kept by links until its turn comes. Meanwhile requests run here, and
//! other threads go on: so a dependent may be ended by a cancel, which withdraws its demand. Therefore nothing is run for a dependent that is not
//! held any more.

use std::collections::HashSet;
use std::ptr::NonNull;

use forebear_context::error::Cycle;
use forebear_context::shim::mutant;

use super::approach;
use crate::cancel;
use crate::deadlock::cycle;
use crate::deadlock::declared::add_dependencies;
use crate::record::any::AnyRequest;
use crate::record::fiber::Fiber;
use crate::record::header::{AFTER, Header};
use crate::state::word::{CLAIMED, HELD};

/// A dependent on the way down.
struct Step {
    dependent: AnyRequest,
    /// Where its dependencies begin in the list of what is left. Those of later steps are behind them.
    begin: usize,
}

impl Step {
    /// The way goes on to this dependent.
    fn to(dependent: AnyRequest, left: &mut Vec<AnyRequest>) -> Step {
        let begin = left.len();
        add_dependencies(dependent.header(), usize::MAX, left);
        // The first in order of declaration is run first, and what is left is taken from the end.
        left[begin..].reverse();
        Step { dependent, begin }
    }
}

/// The fiber is about to wait for a dependent: runs what that is after, and has not started, on this stack. By a loop, depth first. Answers whether the caller is to look
/// again, since something was run, or the waiter was cancelled; or the cycle, if what runs on this very stack is among it.
///
/// # Safety
///
/// As [`until_over`](super::until_over); `fiber` is the calling one.
#[cold]
#[inline(never)]
pub(crate) unsafe fn run_dependencies(fiber: &Fiber, header: NonNull<Header>) -> Result<bool, Cycle> {
    let mut left = Vec::new();
    // SAFETY: by contract.
    let mut step = Step::to(unsafe { AnyRequest::linked(header) }, &mut left);
    // The steps before.
    let mut path = Vec::new();
    // Dependents that wait for something else: nothing is left to do for them.
    let mut stuck = HashSet::new();
    let mut any = false;
    loop {
        if cancel::refuses(fiber) {
            // The message of the cancel is read now, and wakes nobody who parks after this.
            return Ok(mutant!("a_refusal_is_forgotten", any, true));
        }
        if !is_held(&step.dependent) {
            // It is ready, or a cancel has ended it.
            left.truncate(step.begin);
        }
        if left.len() == step.begin {
            let Some(before) = path.pop() else { break };
            let over = std::mem::replace(&mut step, before).dependent;
            if is_held(&step.dependent) {
                // SAFETY: the handle's link.
                let ran = unsafe { try_run(fiber, over.raw()) };
                any |= ran;
                if !ran && is_held(&over) {
                    stuck.insert(over);
                }
            }
            continue;
        }
        let Some(dependency) = left.pop() else { break };
        let h = dependency.header();
        let bits = h.word().load();
        if bits.is_terminal() {
            continue;
        }
        if bits.life() >= CLAIMED {
            // From the second on: the first is named by the waiter's own wait.
            let steps = path.iter().chain([&step]);
            let names = steps.map(|step: &Step| step.dependent.header().name().to_owned());
            if let Some(cycle) = cycle::of_declared(fiber, h, names) {
                return Err(cycle);
            }
        } else if bits.life() == HELD {
            if h.is(AFTER) && !stuck.contains(&dependency) {
                let next = Step::to(dependency, &mut left);
                path.push(std::mem::replace(&mut step, next));
            }
        } else {
            // SAFETY: the handle's link.
            any |= unsafe { try_run(fiber, dependency.raw()) };
        }
    }
    Ok(any)
}

/// Whether the dependent still waits for what it is after.
fn is_held(dependent: &AnyRequest) -> bool {
    dependent.header().word().load().life() == HELD
}

/// Runs this dependency on the caller's stack if it can be claimed. Answers whether it ran.
///
/// # Safety
///
/// As [`run_dependencies`].
unsafe fn try_run(fiber: &Fiber, header: NonNull<Header>) -> bool {
    // SAFETY: as for [`run_dependencies`]: the caller has a count of the header.
    let bits = unsafe { header.as_ref() }.word().load();
    // SAFETY: as above, and `fiber` is the caller's own.
    unsafe { approach::try_run(fiber, header, bits) }
}
