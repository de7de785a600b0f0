//! The ground that forebear stands on: what can be parked and unparked.
//!
//! Nothing here knows requests, workers or queues. What is here is what all of them, and every lock and channel on top,
//! have to agree on:
//!
//! * [`context`]: the *context seam*: one record per stack, parked and unparked by tickets that may be refused; and the
//!   intrusive queue of those who wait;
//! * [`switch`]: the switch from stack to stack, chosen by `cfg`;
//! * [`lineage`]: the order, oldest ancestor first;
//! * [`error`]: the errors that every waiting method shares;
//! * [`clock`]: monotonic, and by hand for tests;
//! * [`fetch`]: what is asked for from memory before it is needed;
//! * `source`: what one wait of several can wait for;
//! * [`shim`]: the one door to atomics, cells, locks and threads, so that loom and shuttle can model what ships.
//!
//! Users add the crate `forebear`; this one is for those who write a primitive that waits.

pub mod clock;
pub mod context;
pub mod error;
pub mod fetch;
pub mod lineage;
pub mod shim;
#[doc(hidden)]
pub mod source;
pub mod switch;
