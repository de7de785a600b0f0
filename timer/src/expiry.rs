//! Expiration timers: who may get stuck sets a time by which it is to be ended.
//!
//! A block of code that can hang acquires a timer and releases it when it is done. If it does not, a server ends, *reaps*, the worker that it
//! runs in: it kills the process, or aborts the request, or does whatever its reaper does. The server is not in the worker, so a timer
//! works also if every thread of the worker is stuck in a computation.
//!
//! # Vocabulary
//!
//! * **worker**: who has timers and is reaped as a whole. A pair of client and server agrees on what that is, and how it is named
//!   ([`WorkerId`]).
//! * **scope**: what a timer is for ([`Scope`]). A worker has at most one timer for a scope.
//! * **acquire, release**: what a client says ([`TimerClient`]). To acquire a scope again moves its deadline, the last that was said counts,
//!   and one release ends it.
//! * **expired**: a timer whose deadline is now or past. Its worker may be reaped from then on, not exactly then.
//! * **turn**: what the server does again and again: take what was said, find what has expired, reap, forget the timers of the
//!   reaped.
//! * **hook**: who is told what happens in a server ([`TimerEvent`]).
//!
//! # Who does what
//!
//! | trait | does | supplied |
//! | --- | --- | --- |
//! | [`TimerClient`] | says what a worker acquires and releases | |
//! | [`RequestQueue`] | brings it to the server | |
//! | [`TimerServer`] | knows which timers run and which have expired | |
//! | [`Reaper`] | ends a worker | closures |
//!
//! Time is monotonic, `std::time::Instant` throughout: no change of the system's date makes a timer expire.

mod client;
mod error;
mod event;
mod queue;
mod reaper;
mod request;
mod scope;
mod server;

pub use self::client::TimerClient;
pub use self::error::TimerError;
pub use self::event::TimerEvent;
pub use self::queue::RequestQueue;
pub use self::reaper::{Overdue, Reap, Reaper};
pub use self::request::{Demand, Signal, Timer, TimerRequest, WorkerId};
pub use self::scope::Scope;
pub use self::server::{TimerServer, TimersOf};
