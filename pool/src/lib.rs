//! Threads, queues, sleep and wake-up: the pool below the forebear runtime, and useful without it.
//!
//! This crate knows *tasks*, which run to their end on the thread that took them; the runtime above it makes *requests*
//! of them, which can wait. It has two layers:
//!
//! - [`ThreadPool`]: a fixed number of threads over a queue whose discipline is a type parameter ([`PriorityQueue`],
//!   [`FifoQueue`], [`LifoQueue`], any [`Queue`]). Tasks are closures or types of your own ([`Task`]); those that share a
//!   [`AffinityKey`] all run on one worker. Stopping hands back what was queued.
//! - [`Engine`]: the threads themselves, for a scheduler of your own. It borrows a [`Supply`] of tasks, and does the
//!   rest: names, cores, hooks, states, sleep and wake-up ([`Signals`]), stop. A [`Mailbox`] passes items to one of its
//!   workers.
//!
//! ```
//! use std::sync::mpsc;
//! use forebear::pool::{Job, PriorityQueue, ThreadPool};
//!
//! let pool: ThreadPool<PriorityQueue<u32, Job>> = ThreadPool::new(2, PriorityQueue::new())?;
//! let (send, receive) = mpsc::channel();
//! for tile in [30, 10, 20] {
//!     let send = send.clone();
//!     pool.submit((tile, Box::new(move || send.send(tile * 2).unwrap())))?;
//! }
//! drop(send);
//! assert_eq!(receive.iter().sum::<u32>(), 120);
//!
//! let not_begun = pool.stop();
//! assert!(not_begun.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A worker without work searches for about as long as a sleep costs, then sleeps. A new task wakes at most one worker,
//! and none while one searches. `src/signals/README.md` describes the protocol, and why no wake-up is lost.

mod affinity;
mod engine;
mod generation;
mod leftover;
mod mailbox;
mod options;
mod queue;
mod signals;
mod start_error;
mod state;
mod supply;
mod task;
mod task_queues;
mod thread_pool;
mod worker;

pub use affinity::{Affinity, Warning};
pub use engine::Engine;
pub use generation::Generation;
pub use leftover::{IntoIter, Leftover};
pub use mailbox::{Arrived, Linked, Mailbox};
pub use options::Options;
pub use queue::{FifoQueue, LifoQueue, PriorityQueue, Queue};
pub use signals::Signals;
pub use start_error::{MAX_WORKERS, StartError};
pub use state::WorkerState;
pub use supply::Supply;
pub use task::{AffinityKey, Job, Task};
pub use thread_pool::{Stopped, TaskPanic, ThreadPool, ThreadPoolBuilder};
pub use worker::Worker;
