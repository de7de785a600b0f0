//! The base of forebear: contexts, which can be parked and unparked.
//!
//! This crate knows no requests, workers or run queues. It has what all of these, and every lock and channel above, share:
//!
//! * [`context`]: the *context seam*: one record per stack, parked and unparked by tickets that may be refused; and the
//!   intrusive queue of waiters;
//! * [`switch`]: the switch from stack to stack, chosen by `cfg`;
//! * [`lineage`]: the order, oldest ancestor first;
//! * [`error`]: the errors that every waiting method shares;
//! * [`clock`]: the monotonic clock, and one that tests move by hand;
//! * [`fetch`]: prefetching of memory;
//! * [`retries`]: how often a wait retries before it costs a wake-up;
//! * `source`: the arms of a wait for several things at once;
//! * [`shim`]: the only source of atomics, cells, locks and threads, so that loom and shuttle can model what ships.
//!
//! Users add the crate `forebear`; this one is for those who write a primitive that waits.

pub mod clock;
pub mod context;
pub mod error;
pub mod fetch;
pub mod lineage;
pub mod retries;
pub mod shim;
#[doc(hidden)]
pub mod source;
pub mod switch;
