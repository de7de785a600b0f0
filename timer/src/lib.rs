//! A hierarchical timing wheel. It is passive: it has no thread, reads no clock and makes no calls. Its owner says what time it is, and
//! does what is due.
//!
//! And [`expiry`]: timers by which a worker that is stuck is ended from outside; with the feature `local`, those of worker processes.

// `local/kernel.rs` and `expiry/fork.rs` alone have any.
#![deny(unsafe_code)]

pub mod expiry;
#[cfg(all(target_os = "linux", feature = "local"))]
pub mod local;
mod moment;
mod wheel;

pub use self::wheel::{Key, Wheel};
