//! Threads, queues, sleep and wake-up: the pool below the forebear runtime, useful without it.

mod affinity;
mod engine;
mod mailbox;
mod options;
mod queue;
mod shelves;
mod signals;
mod state;
mod supply;
mod task;
mod thread_pool;
mod worker;

pub use affinity::{Affinity, Warning};
pub use engine::{Engine, MAX_WORKERS, StartError};
pub use mailbox::{Arrived, Linked, Mailbox};
pub use options::Options;
pub use queue::{FifoQueue, LifoQueue, PriorityQueue, Queue};
pub use signals::Signals;
pub use state::WorkerState;
pub use supply::Supply;
pub use task::{Home, Job, Task};
pub use thread_pool::{PoolBuilder, Stopped, TaskPanic, ThreadPool};
pub use worker::Worker;
