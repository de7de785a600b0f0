//! Where a wait is called: on a stack that has a context, or on a thread that no runtime knows.
//!
//! The switch must be inlined into the public method that waits (see [`forebear_context::switch`]). A call between it
//! and the caller's own frame would be a return that the processor predicts wrongly, which costs ten nanoseconds each
//! time. A closure that is called in two places is not inlined into either: once for a context that exists, and once
//! for one that is made. So the waiting code is written into the method for the first, and passed to
//! [`with_foreign`](forebear_context::context::with_foreign) for the second.

/// Evaluates the expression with the calling context, or with one made for it.
macro_rules! with_context {
    (|$context:ident| $wait:expr) => {
        match forebear_context::context::current() {
            Some(here) => {
                // SAFETY: the current context is valid for as long as it is current, and this is its own stack.
                let $context: &forebear_context::context::Context = unsafe { here.as_ref() };
                $wait
            }
            None => forebear_context::context::with_foreign(|$context| $wait),
        }
    };
}

pub(crate) use with_context;
