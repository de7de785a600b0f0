//! The switch: a stack that can be left in the middle and entered again.
//!
//! A [`Switch`] is one stack with a body on it. Its worker enters it ([`Switch::resume`]) and the body leaves it
//! ([`Switch::leave`]), naming the context that the worker enters next. There is no direct switch from fiber to fiber.
//! Every switch goes through the loop at the bottom of the worker's own thread. That costs one nanosecond more, and
//! gives all returns one caller.
//!
//! # Backends
//!
//! Chosen by `cfg`, never by `dyn`; each has the same four operations.
//!
//! | backend | when | why |
//! |---|---|---|
//! | `corosensei` | always, unless | 2 ns a round trip |
//! | `threads` | `--cfg forebear_threads`, `--cfg shuttle` | every fiber is an OS thread (of shuttle's), and a token is handed over: ThreadSanitizer, debuggers and shuttle see what they know. Thread-locals of the program are then per fiber |
//! | none | `--cfg loom` | a context is a loom thread, and blocks |
//!
//! # Invariants
//!
//! * **F1** A fiber is resumed only by the thread of the worker that owns it, and only while it is not running.
//! * **F2** A fiber is left only from its own stack.
//! * **F3** The stack given to [`Switch::start`] outlives the fiber and is used by nothing else. A fiber that was
//!   started never ends: its body does not return, and it is never dropped by unwinding. The caller that takes the
//!   stack back has made sure that no frame on it is needed.
//! * **F4** Between a `leave` and the next `resume` nothing of the fiber is touched but by its owner.
//!
//! # Returns and the branch predictor
//!
//! corosensei leaves by `ret`. Every call between the last resume and the next leave costs a misprediction of some 10
//! ns. So a suspending operation has three parts: *prepare* (an ordinary call, which has returned by then), the switch
//! (`leave`, inlined into the public method), and *finish*.

use std::ptr::NonNull;

use crate::context::Context;

#[cfg(not(any(loom, shuttle, forebear_threads)))]
mod corosensei;
#[cfg(loom)]
mod none;
#[cfg(all(any(forebear_threads, shuttle), not(loom)))]
mod threads;

#[cfg(not(any(loom, shuttle, forebear_threads)))]
pub use self::corosensei::Switch;
#[cfg(loom)]
pub use self::none::Switch;
#[cfg(all(any(forebear_threads, shuttle), not(loom)))]
pub use self::threads::Switch;

/// The memory of a stack: it grows down from `base` and must not reach `limit`.
///
/// `limit` is the lowest address that may be written; what lies below it is a guard that faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackMemory {
    /// One past the highest usable address; a multiple of 16.
    pub base: usize,
    /// The lowest usable address.
    pub limit: usize,
}

/// The body of a fiber. It gets its context, and never returns: it leaves for the last time instead.
pub type Body = unsafe fn(NonNull<Context>) -> !;
