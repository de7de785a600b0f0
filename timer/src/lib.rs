//! What is due when: a hierarchical timing wheel, which is passive. It has no thread, looks at no clock and calls nobody: its owner says
//! what time it is, and does what is due.
//!
//! And [`expiry`]: timers by which a worker that is stuck is ended from outside.

#![forbid(unsafe_code)]

pub mod expiry;
mod moment;
mod wheel;

pub use self::wheel::{Key, Wheel};
