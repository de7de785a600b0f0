//! A runtime's hooks. `record/report.rs` calls them.

use forebear_context::error::Failure;
use forebear_context::error::internal::drop_contained;

/// What is called for a failure that nobody looked at.
pub(crate) type UnseenHook = Box<dyn Fn(&Failure) + Send + Sync>;

/// What is called with what a user ought to know, and no error carries.
pub(crate) type WarningHook = Box<dyn Fn(&str) + Send + Sync>;

/// A runtime's hooks.
#[derive(Default)]
pub(crate) struct Hooks {
    pub on_unhandled_failure: Option<UnseenHook>,
    pub on_warning: Option<WarningHook>,
}

/// The last of a runtime may go anywhere: with the last header of a request, or as a thread exits.
impl Drop for Hooks {
    fn drop(&mut self) {
        drop_contained(self.on_unhandled_failure.take());
        drop_contained(self.on_warning.take());
    }
}
