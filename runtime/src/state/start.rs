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
//!
//! # Why a macro
//!
//! The runtime and the model of the raid both expand it, so the model has the order that ships. As a function that takes closures it was not inlined like
//! the code written out: a request by reference cost 13 instructions more, of 330.

/// Starts a local request at once. `touch`, `may_start`, `step` and `restore` are expressions: the touch of a listed entry, whether a request that is not listed may
/// start, the step to *started*, and the end of a touch that changed nothing. True: it has started, and the caller takes its entry out if it is listed. False: it
/// has not, and an entry stands as before.
#[cfg_attr(loom, macro_export)]
macro_rules! start_at_once {
    (listed: $listed:expr, touch: $touch:expr, may_start: $may_start:expr, step: $step:expr, restore: $restore:expr) => {{
        let listed = $listed;
        let begins = if listed {
            if cfg!(mutant = "started_untouched") {
                true
            } else if cfg!(mutant = "started_before_the_touch") {
                let started = $step;
                started && $touch
            } else {
                $touch
            }
        } else {
            $may_start
        };
        if !begins {
            false
        } else if listed && cfg!(mutant = "started_before_the_touch") {
            true
        } else if $step {
            true
        } else {
            if listed {
                $restore;
            }
            false
        }
    }};
}

#[cfg(not(loom))]
pub(crate) use start_at_once;
