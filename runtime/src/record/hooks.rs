//! A runtime's hooks. `record/report.rs` calls them.

use forebear_context::error::Failure;

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
