//! Pools of requests: many of a kind, at most so many at a time.

pub(crate) mod request_pool;
