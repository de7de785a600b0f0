//! Where a wait is called: on a stack that has a context, or on a thread that no runtime knows.
//!
//! The switch is to be inlined into the public method that waits (see [`forebear_context::switch`]): a call between it and the caller's
//! own frame is a return that the processor guesses wrong, ten nanoseconds each time. A closure that is called in two places, for a
//! context that is there and for one that is made, is not inlined into either. So what waits is written into the method for the one,
//! and handed to [`with_foreign`](forebear_context::context::with_foreign) for the other.

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
