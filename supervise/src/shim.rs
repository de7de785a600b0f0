//! The door to what can race, for the files that have models: here the names are std's.
//!
//! `loom-tests/tests/supervise/coordinator.rs` and `supervisor.rs` compile those files as they are, with loom's names in this place. They are
//! `coordinator/board.rs`, `coordinator/waiting.rs`, `supervisor/gate.rs`, `supervisor/seat.rs` and `supervisor/published.rs`.

pub(crate) use std::sync::atomic;
pub(crate) use std::sync::{Mutex, MutexGuard};
