//! The start of a local request by its waiter: in which order the owner touches the entry and takes the step.
//!
//! The waiter runs on the worker that made the request, and runs it at once, on its own stack. A listed request stands in that worker's private queue, which
//! another worker may [raid](crate::state::raid). Its state is a byte beside its word ([`crate::state::word`], `local.rs`), which another thread may have published.
//!
//! # Order
//!
//! 1. The owner touches the entry. If a raid concerns it, nothing was done.
//! 2. The owner takes the step to *started*. If another thread has published the state meanwhile, the step may not hold. Then the entry stands as before.
//! 3. The caller takes the entry out. The touch lasts until then.
//!
//! If the step came first, a raid could concern an entry that has started: the owner could not undo the step, and the raider would read a header that may end.
//!
//! A new request stands in no list, so there is no entry to touch.

use super::raid::Placed;
use super::word::{LocalOwner, LocalStage, LocalState, LocalStep, Word};

/// Starts a local request at once, which the owner has found to be local and at this `stage`. True: it has started, and the caller takes its entry out if it is
/// listed. False: it has not, and an entry stands as before.
///
/// `may_touch` is as in [`Placed::touch`]; `may_start` says whether a request that is not listed may start. Each is called at one place, so it is inlined.
#[inline(always)]
pub fn start_at_once(
    (word, local, local_owner): (&Word, &LocalState, &LocalOwner),
    stage: LocalStage,
    place: &Placed,
    may_touch: impl FnOnce() -> bool,
    may_start: impl FnOnce() -> bool,
) -> bool {
    let listed = stage.is_listed();
    #[cfg(mutant = "started_before_the_touch")]
    if listed {
        return word.advance_local(local, local_owner, stage, LocalStep::Started) && place.touch(may_touch);
    }
    #[cfg(mutant = "started_untouched")]
    if listed {
        return word.advance_local(local, local_owner, stage, LocalStep::Started);
    }
    if !(if listed { place.touch(may_touch) } else { may_start() }) {
        return false;
    }
    let started = word.advance_local(local, local_owner, stage, LocalStep::Started);
    if !started && listed {
        place.restore();
    }
    started
}
