//! The calling context, as one that takes and releases locks.

use std::ptr::{self, NonNull};

use forebear_context::context::{Context, current, lasting};

/// The calling context, if it has one, for the word.
#[inline(always)]
pub(crate) fn me() -> *mut Context {
    current().map_or(ptr::null_mut(), NonNull::as_ptr)
}

/// The same; a thread that has none gets its own if there is a runtime.
#[cold]
pub(crate) fn lasting_me() -> *mut Context {
    lasting().map_or(ptr::null_mut(), NonNull::as_ptr)
}

/// Counts the locks of a context, so that it is known to be worth waiting for.
#[inline(always)]
pub(crate) fn took(context: *mut Context) {
    // SAFETY: the calling context.
    if let Some(context) = unsafe { context.as_ref() } {
        context.locks().set(context.locks().get() + 1);
    }
}

/// The same for a release. The count may be zero: the guard may have moved here from another stack.
#[inline(always)]
pub(crate) fn gave(context: *mut Context) {
    // SAFETY: as above.
    if let Some(context) = unsafe { context.as_ref() } {
        context.locks().set(context.locks().get().saturating_sub(1));
    }
}

/// The calling context has released what others wait for.
pub(crate) fn gave_back(here: Option<&Context>) {
    if let Some(here) = here {
        // SAFETY: its own table, on its own stack.
        unsafe { (here.table().gave_back)(here) };
    }
}
