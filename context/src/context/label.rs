//! The name of something that contexts wait for.
//!
//! A primitive in which a context waits keeps a [`Label`]. A wait whose [`Reason`] says so ([`Reason::has_label`]) has the label's address for
//! its target. A wait for what one context holds has an [`OwnerWait`](super::OwnerWait) for its target, which asks the lock for its name.
//! So a message and a dump can name what is waited for, whatever type of value it guards.

use std::fmt;

use super::{Context, Reason};

/// The name that a user gave to a lock or a channel, or none.
///
/// ```
/// use forebear_context::context::Label;
///
/// static CACHE: Label = Label::new("cache");
/// assert_eq!(CACHE.name(), Some("cache"));
/// assert_eq!(CACHE.to_string(), " \"cache\"");
/// assert_eq!(Label::NONE.to_string(), "");
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Label(Option<&'static str>);

impl Label {
    /// No name.
    pub const NONE: Label = Label(None);

    /// This name.
    #[must_use]
    pub const fn new(name: &'static str) -> Label {
        Label(Some(name))
    }

    /// The name, if there is one.
    #[must_use]
    pub const fn name(&self) -> Option<&'static str> {
        self.0
    }
}

/// As it stands behind the kind of thing in a message: ` "cache"`, or nothing.
impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, " {name:?}"),
            None => Ok(()),
        }
    }
}

impl Context {
    /// The name of the lock, channel or semaphore that this context waits for, if it waits for one and a user has named it.
    ///
    /// # Safety
    ///
    /// The caller may read the target of the wait. It is the context's own stack, or the thread that the context waits
    /// on while the stack is left. Or the wait is [held](Context::hold).
    pub unsafe fn awaited_name(&self) -> Option<&'static str> {
        let (reason, target) = self.waits_for();
        if reason.has_label() {
            // SAFETY: by contract; a wait for such a reason has a label for its target, which stays as long as the wait.
            return unsafe { target.cast::<Label>().as_ref() }?.name();
        }
        // SAFETY: by contract.
        unsafe { self.owner_wait() }?.name()
    }
}

impl Reason {
    /// Whether the target of such a wait is a [`Label`]. For the crates of this workspace.
    #[doc(hidden)]
    #[must_use]
    pub fn has_label(self) -> bool {
        use Reason::*;
        matches!(self, Condition | Permits | Barrier | Event | Receive | Send)
    }
}
