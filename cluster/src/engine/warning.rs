//! [`WarningHook`]: where an engine says what no call can answer.

use std::fmt;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

/// The hook of an engine for warnings, as text for a human reader. The default writes them to standard error.
///
/// For authors of engines. An event on a thread of the engine's own, such as a worker that cannot be started again, has
/// no caller to which an error could be returned.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use forebear_cluster::engine::WarningHook;
///
/// let heard = Arc::new(Mutex::new(Vec::new()));
/// let list = heard.clone();
/// let hook = WarningHook::new(move |text| list.lock().unwrap().push(text.to_owned()));
/// hook.warn(format_args!("the worker `{}` cannot be started again", "worker-3"));
/// assert_eq!(heard.lock().unwrap()[0], "the worker `worker-3` cannot be started again");
/// ```
#[derive(Clone)]
pub struct WarningHook(Arc<dyn Fn(&str) + Send + Sync>);

impl WarningHook {
    /// Calls this closure with each warning, on a thread of the engine. The closure must not wait for the cluster. If it panics, the panic ends there.
    pub fn new(hook: impl Fn(&str) + Send + Sync + 'static) -> WarningHook {
        WarningHook(Arc::new(hook))
    }

    /// Calls the hook. It is called with no lock of the engine held. A panic of the hook ends there: the engine goes on.
    pub fn warn(&self, text: impl fmt::Display) {
        let text = text.to_string();
        // The panic hook has reported it.
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| (self.0)(&text))) {
            // Its destructor may panic, too.
            let _ = panic::catch_unwind(AssertUnwindSafe(|| drop(payload)));
        }
    }
}

impl Default for WarningHook {
    fn default() -> WarningHook {
        // Standard error may be closed.
        WarningHook::new(|text| _ = writeln!(io::stderr(), "forebear-cluster: {text}"))
    }
}

impl fmt::Debug for WarningHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WarningHook").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_hook_ends_there() {
        let hook = WarningHook::new(|text| panic!("{text} on purpose"));
        hook.warn("a hook panics");
        hook.warn("and is called again");
    }
}
