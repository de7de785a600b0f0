//! The engine of [`forebear_cluster`] over [NATS JetStream](https://docs.nats.io/nats-concepts/jetstream): a `nats-server` carries tasks to workers on any machine.
//!
//! ```no_run
//! use forebear_cluster::{ClusterCoordinator, ClusterError, TaskFn, Tasks, tasks};
//! use forebear_cluster_nats::{Nats, worker};
//!
//! const PRIMES: TaskFn<(u32, u32), usize> = TaskFn::new("primes", |_, (from, to)| {
//!     let is_prime = |n: &u32| *n > 1 && (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0);
//!     Ok((from..to).filter(is_prime).count())
//! });
//!
//! fn known() -> Tasks {
//!     tasks![PRIMES]
//! }
//!
//! fn main() -> Result<(), ClusterError> {
//!     worker::entry(known()); // does not return in a worker
//!     let engine = Nats::new("nats://127.0.0.1:4222", "primes").workers(2);
//!     let cluster = ClusterCoordinator::builder(engine).tasks(known()).start()?;
//!     for count in cluster.map(&PRIMES, (0..10).map(|part| (part * 100, (part + 1) * 100))) {
//!         println!("{}", count?);
//!     }
//!     cluster.join()
//! }
//! ```
//!
//! # The parts
//!
//! * [`Nats`]: the engine. It connects, and can start worker processes of its own program.
//! * [`worker`]: what makes a program a worker of a job.
//! * [`group`]: agents on several machines that form a group. It needs no job.
//! * `ledger`: who runs what, decided by the coordinator alone. `engine` and `worker` carry for it. `wire`: their messages. `store`: the streams. `launch`: worker processes on
//!   the coordinator's machine. `access`: which server, and as whom. `complaints`: what the server has complained of.
//!
//! # What is on the server
//!
//! For a job `J`: the stream `FB_J_TASKS` is the queue, with subjects `fb.J.task.GENERATION` and one consumer that all
//! workers share. `FB_J_RESULTS` is a stream, too (`fb.J.result`). The bucket of objects `FB_J_BLOBS` is for what is
//! larger than 256 KiB, and `FB_J_META` says which coordinator runs. For a group `G`: the bucket `FB_G_GROUP`, in
//! `$KV.FB_G_GROUP.>`. Without a stream: `fb.J.hello`, `fb.J.up`, `fb.J.pulse`, `fb.J.down.>`. A worker's account has
//! to publish to `fb.J.>`, `$JS.>` and `$O.>`, and to subscribe to `fb.J.>` and `_INBOX.>`. A job whose coordinator
//! was shut down or dropped leaves nothing, unless the server was away then. The next coordinator of a job removes what
//! one has left that was killed, or whose process has ended by `std::process::exit`.
//!
//! Linux only, and tested with version 2.9 of the server.

#![forbid(unsafe_code)]

mod access;
mod complaints;
mod engine;
pub mod group;
mod launch;
mod ledger;
mod nats;
mod objects;
mod store;
mod wire;
pub mod worker;

pub use nats::{Nats, NatsControl};
