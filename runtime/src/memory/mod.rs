//! Where headers and values lie: each thread's own memory, and when what others may still read is freed.

pub(crate) mod graves;
pub(crate) mod home;
