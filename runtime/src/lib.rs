//! Requests: blocking-style functions, each on a stack of its own, the oldest ancestor first.
//!
//! This is the crate that the face `forebear` re-exports; its docs are the place to begin. The walk of a request through
//! these modules is told in `docs/architecture.md`.

#![cfg_attr(loom, allow(dead_code, reason = "a model compiles the words and queues only"))]

#[cfg(not(unix))]
compile_error!("forebear runs on Unix only so far: its stacks are made with mmap");

mod alarms;
#[cfg(not(loom))]
mod any;
#[cfg(not(loom))]
mod arms;
mod asymmetric;
mod attention;
mod biased;
#[cfg(not(loom))]
mod builder;
#[cfg(not(loom))]
mod callbacks;
#[cfg(not(loom))]
mod cancel;
#[cfg(not(loom))]
mod carrier;
#[cfg(not(loom))]
mod cell;
#[cfg(not(loom))]
mod chosen;
mod climb;
#[cfg(not(loom))]
mod cycle;
#[cfg(not(loom))]
mod deadlines;
mod desk;
#[cfg(not(loom))]
mod driver;
mod due;
#[cfg(not(loom))]
mod ending;
#[cfg(not(loom))]
mod expiry;
#[cfg(not(loom))]
mod foreign;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod graves;
#[cfg(not(loom))]
mod header;
#[cfg(not(loom))]
mod home;
#[cfg(not(loom))]
mod hooks;
#[cfg(not(loom))]
mod join;
#[cfg(not(loom))]
mod kin;
#[cfg(not(loom))]
mod list;
#[cfg(not(loom))]
mod no_suspend;
#[cfg(not(loom))]
mod notice;
#[cfg(not(loom))]
mod origin;
#[cfg(not(loom))]
mod owner;
#[cfg(not(loom))]
mod parked;
#[cfg(not(loom))]
mod prefetch;
#[cfg(not(loom))]
mod ready;
#[cfg(not(loom))]
mod reckoning;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod request;
#[cfg(not(loom))]
mod request_pool;
#[cfg(not(loom))]
mod run;
#[cfg(not(loom))]
mod runtime;
#[cfg(not(loom))]
mod scope;
#[cfg(not(loom))]
mod shared;
mod shelf;
#[cfg(not(loom))]
mod shield;
#[cfg(not(loom))]
mod side;
mod slot;
#[cfg(not(loom))]
mod stack;
#[cfg(not(loom))]
mod strand;
#[cfg(not(loom))]
mod submit;
#[cfg(not(loom))]
mod urgency;
#[cfg(not(loom))]
mod wait;
mod watch;
mod word;
#[cfg(not(loom))]
mod worker;
#[cfg(not(loom))]
mod yielding;

#[cfg(not(loom))]
pub use self::{
    any::{AnyRequest, RequestId, State},
    builder::RequestBuilder,
    cancel::Cancellation,
    expiry::InProcessTimer,
    join::{join, try_join},
    no_suspend::no_suspend,
    region::{timeout, try_timeout},
    request::{CancelOnDrop, Outcome, Request, spawn, try_spawn},
    request_pool::{Canceller, RequestPool},
    runtime::{BuildError, Laggard, Metrics, Runtime, RuntimeBuilder, ShutdownError, parallelism},
    scope::{Scope, scope, try_scope},
    shield::{check_cancelled, is_cancelled, shield},
    yielding::yield_now,
};
pub use forebear_context::error::{
    CancelReason, Cancelled, Cycle, Error, Failure, Result, StackError, TimeoutError, WaitError,
};
#[cfg(panic = "unwind")]
pub use forebear_context::error::{OrUnwind, catch};
pub use forebear_context::lineage::Priority;

/// The words and queues as models see them.
#[cfg(any(loom, shuttle))]
pub mod model {
    /// What is armed, and the timer thread's sleep.
    pub mod alarms {
        pub use crate::alarms::*;
    }
    /// A lock that has an owner.
    pub mod biased {
        pub use crate::biased::*;
    }
    /// The attention word.
    pub mod attention {
        pub use crate::attention::*;
    }
    /// The way up a line of ancestors.
    pub mod climb {
        pub use crate::climb::*;
    }
    /// A request's own deadline.
    pub mod due {
        pub use crate::due::*;
    }
    /// Where notices lie.
    pub mod desk {
        pub use crate::desk::*;
    }
    /// The shelves.
    pub mod shelf {
        pub use crate::shelf::*;
    }
    /// The word that leads to a side block.
    pub mod slot {
        pub use crate::slot::*;
    }
    /// Who will look what memory lies free.
    pub mod watch {
        pub use crate::watch::*;
    }
    /// The request word.
    pub mod word {
        pub use crate::word::*;
    }
}
