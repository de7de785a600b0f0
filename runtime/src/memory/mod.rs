//! Where headers and values lie: each thread's own memory, and when what others may still read is freed.

pub(crate) mod arena;
pub(crate) mod reclaim;
