//! Requests: blocking-style functions, each on a stack of its own, the oldest ancestor first.
//!
//! This is the crate that the face `forebear` re-exports; its docs are the place to begin. The walk of a request through
//! these modules is in `docs/architecture.md`.

#![cfg_attr(loom, allow(dead_code, reason = "a model compiles the words and queues only"))]

#[cfg(not(unix))]
compile_error!("forebear runs on Unix only so far: its stacks are made with mmap");

#[cfg(not(loom))]
mod api;
#[cfg(not(loom))]
mod batch;
#[cfg(not(loom))]
mod cancel;
#[cfg(not(loom))]
mod deadlock;
#[cfg(not(loom))]
mod foreign;
#[cfg(not(loom))]
mod record;
#[cfg(not(loom))]
mod schedule;
#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
mod stack;
mod state;
#[cfg(not(loom))]
mod time;

#[cfg(not(loom))]
pub use self::{
    api::any::{AnyRequest, RequestId, State},
    api::builder::RequestBuilder,
    api::completer::{Abandoned, Completer},
    api::dump,
    api::expiry::InProcessTimer,
    api::future::{DoneFuture, TakeFuture, WaitFuture},
    api::join::{join, try_join},
    api::no_suspend::no_suspend,
    api::region::{timeout, try_timeout},
    api::request::{CancelOnDrop, Outcome, Request, spawn, try_spawn},
    api::runtime::running::parallelism,
    api::runtime::{BuildError, Laggard, LateEnd, Metrics, Runtime, RuntimeBuilder, ShutdownError},
    api::scope::{Scope, scope, try_scope},
    api::several::{RequestSet, wait_all, wait_first},
    api::then::{Dependencies, then_all},
    batch::request_pool::{Canceller, RequestPool},
    cancel::Cancellation,
    cancel::shield::{cancel_reason, check_cancelled, is_cancelled, shield},
    schedule::yielding::yield_now,
};
pub use forebear_context::error::{
    CancelReason, Cancelled, Chain, Cycle, Error, Failure, Result, SourceLocation, StackError, TimeoutError,
    WaitError,
};
#[cfg(panic = "unwind")]
pub use forebear_context::error::{OrUnwind, catch};
pub use forebear_context::lineage::Priority;

/// The words and queues as models see them.
#[cfg(any(loom, shuttle))]
pub mod model {
    #[cfg(shuttle)]
    pub use crate::foreign::thread_exits;
    pub use crate::state::{
        alarms, ancestor_walk, asymmetric, attention, biased, due, end_calls, inquiry, jobs, listener, open,
        owner_mailbox, raid, raises, set, shared_queue, slot, stack_registry, trim_watch, visits, word,
    };
}
