//! The door to what can race, for the files that have models: here the names are std's.
//!
//! `loom-tests/tests/cluster/` compiles those files as they are, with loom's names in this place. They are `dispatch.rs`, `coordinator/board.rs` and `coordinator/board/state.rs`.

pub(crate) use std::sync::atomic;
pub(crate) use std::sync::{Mutex, MutexGuard};
