//! Loom models of the shipped code; see `tests/`.
