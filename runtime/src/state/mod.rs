//! Words, queues and lists that several threads change: the lowest layer, which knows no request. Each module is generic over
//! what it holds or leads to, so that the models of `loom-tests` compile exactly what ships (`crate::model`).
//!
//! It is a module and not a crate: in a crate of its own, safe functions that follow raw pointers would be public.

#![allow(unreachable_pub, reason = "the models see these modules")]

pub mod alarms;
pub mod ancestor_walk;
pub mod asymmetric;
pub mod attention;
pub mod biased;
pub mod due;
pub mod end_calls;
#[cfg(not(loom))]
pub(crate) mod estimated_clock;
pub mod inquiry;
pub mod jobs;
pub mod listener;
pub mod open;
pub mod owner_mailbox;
pub mod raid;
pub mod raises;
pub mod set;
pub mod shared_queue;
pub mod slot;
pub mod stack_registry;
pub(crate) mod start;
pub mod trim_watch;
pub mod visits;
pub mod word;

/// Whether work is chosen by order. The bench `order` alone builds without, to show what order costs.
pub(crate) const ORDERED: bool = !cfg!(forebear_unordered);
