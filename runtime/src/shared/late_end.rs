//! What the drop of a runtime's last handle does if the end takes long: the setting. `api/runtime/late.rs` follows it.

use std::time::{Duration, Instant};

/// So long the end is waited for without a word.
pub(crate) const QUIET: Duration = Duration::from_secs(1);
/// What the drop of the last handle of a runtime does after it has waited for a second; see
/// [`RuntimeBuilder::late_end`](crate::RuntimeBuilder::late_end).
///
/// ```
/// use forebear::{LateEnd, Runtime};
///
/// assert_eq!(LateEnd::default(), LateEnd::Wait);
/// let runtime = Runtime::builder().workers(1).late_end(LateEnd::Abort).build()?;
/// drop(runtime); // nothing is left to wait for
/// # Ok::<(), forebear::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LateEnd {
    /// It continues to wait.
    #[default]
    Wait,
    /// It [shuts the runtime down](crate::Runtime::shutdown), with a grace of another second. A request that has not ended by then is named, and stays with
    /// its thread and its stack. A runtime without workers has no other thread than the one that drops the handle: there the drop waits for such a request, however
    /// long that takes.
    ShutDown,
    /// It aborts the process.
    Abort,
}

/// What is left to do for the thread that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateStep {
    /// It waits until the end.
    Endless,
    /// Everything was aborted: it waits for another second.
    OneMore,
}

/// When who drives towards the end of a runtime without workers says for whom. Never in a model: there a wait that nothing ends is a fault.
pub(crate) fn first_word() -> Option<Instant> {
    if cfg!(shuttle) {
        return None;
    }
    Instant::now().checked_add(QUIET)
}
