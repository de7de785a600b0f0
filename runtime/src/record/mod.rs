//! The records of a request, and those around it. These are its header, the cell of its callable and value, and its
//! side block. Around it are the fiber that it runs on, the arena of its memory, and the lists that contain it. They
//! point to each other.

pub(crate) mod above;
pub(crate) mod any;
pub(crate) mod arena;
pub(crate) mod branch_list;
pub(crate) mod call_list;
pub(crate) mod callback;
pub(crate) mod cell;
pub(crate) mod children;
pub(crate) mod counter;
pub(crate) mod dependents;
pub(crate) mod drop_queue;
pub(crate) mod dropping;
pub(crate) mod fiber;
pub(crate) mod header;
pub(crate) mod hooks;
pub(crate) mod message;
pub(crate) mod no_suspend;
pub(crate) mod no_value;
pub(crate) mod private_queue;
pub(crate) mod put_aside;
pub(crate) mod readers;
pub(crate) mod reclaim;
pub(crate) mod report;
pub(crate) mod runtime;
pub(crate) mod scope_core;
pub(crate) mod side;
