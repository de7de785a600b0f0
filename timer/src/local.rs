//! Timers of worker processes: a server that kills those that are stuck, and the client in each of them.
//!
//! Linux only: the server names processes by pidfd, and its socket has message borders (`SOCK_SEQPACKET`), which no other system
//! has together.
//!
//! The server's process makes a [`LocalTimerServer`] and starts workers with its address in their environment. A worker
//! [takes it from there](configure_from_env), and from then on [`expires`](crate::expiry::expires) gives it timers. If one expires, the
//! whole process is killed ([`KillProcess`]), whatever its threads do; a [`Ladder`] is milder at first.
//!
//! ```no_run
//! use forebear::timer::expires;
//! use forebear::timer::local::{LocalTimerServer, configure_from_env};
//! use std::process::Command;
//! use std::time::Duration;
//!
//! // In the process that starts workers:
//! let server = LocalTimerServer::bind()?.start()?;
//! let mut command = Command::new("worker");
//! server.pass_to(&mut command);
//! let mut worker = command.spawn()?;
//!
//! // In the worker:
//! configure_from_env()?;
//! let timer = expires(Duration::from_secs(60))?;
//! // ... what can hang ...
//! drop(timer);
//! # worker.wait()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds
//!
//! * A deadline holds even if every thread of the worker is stuck: the server is another process, or at least another
//!   thread. The thread that acquires the timer sends the message before the call returns.
//! * A worker that has released a timer in time is not killed for it, even if the server is stopped at that moment and
//!   its queue is full. A release does not wait for room.
//! * Only the process that acquired the timer is killed. When it has ended and its process id is used again, no process is
//!   killed.
//! * When a worker ends, the server drops its timers at once and reaps no process for them. When a worker only closes its connection,
//!   they continue.
//! * Time is the monotonic clock of the machine, the same in all processes (of one time namespace).
//! * A child that a worker forks is a worker of its own: its first call connects anew. Timers of its parent are not its own.
//! * A client without a server gets an error at once. If the server ends, the call that notices it fails
//!   ([`ServerGone`](crate::expiry::TimerError::ServerGone)): the timers it had are void. A later call tries to connect to a new server
//!   at the same path.
//! * No client can delay the server or exhaust its memory ([`Limits`]). Only processes of the same user can
//!   connect.
//! * The server does not wait for a killed process. If the process still exists after the server's patience,
//!   the hooks get an event ([`LocalEvent::Survives`]).
//!
//! Timers belong to the process. A timer keeps running while its request is suspended, and killing the process ends all its
//! requests. So run work that may get stuck in processes of its own.
//!
//! The messages on the socket are [documented][described], so that clients can be written in any
//! language.
//!
//! [described]: https://github.com/forebear-rs/forebear/blob/main/docs/timer-protocol.md

mod backlog;
mod bind_error;
mod client;
mod clock;
mod event;
mod kernel;
mod ladder;
mod limits;
mod lock_file;
mod place;
mod queue;
mod reapers;
mod reporter;
mod server;
mod wakeup;
mod wire;
mod worker;

pub use self::bind_error::BindError;
pub use self::client::{ENVIRONMENT, LocalTimerClient, configure_from_env};
pub use self::event::LocalEvent;
pub use self::ladder::Ladder;
pub use self::limits::Limits;
pub use self::reapers::{KillProcess, LogOnly};
pub use self::server::{LocalTimerHandle, LocalTimerServer};
pub use self::wire::Refusal;
pub use self::worker::{LocalWorker, Signalled};
