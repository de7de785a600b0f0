//! Expiration timers: code that may get stuck sets a time by which a server ends its worker.
//!
//! A block of code that can hang acquires a timer and releases it when it is done. If it does not, a server ends, *reaps*, the worker that it
//! runs in: it kills the process, or aborts the request, or does whatever its reaper does. The server is not in the worker, so a timer
//! works also if every thread of the worker is stuck in a computation.
//!
//! # Vocabulary
//!
//! * **worker**: the owner of timers, which is reaped as a whole: a process, a thread, a request. A client and its server agree on what
//!   a worker is and on its name ([`WorkerId`]).
//! * **scope**: what a timer is for ([`Scope`]). A worker has at most one timer for a scope.
//! * **acquire, release**: the messages of a client ([`TimerClient`]). To acquire a scope again moves its deadline; the last message counts,
//!   and one release ends the timer.
//! * **expired**: a timer whose deadline is now or past. Its worker may be reaped from then on, not exactly then.
//! * **turn**: the server's cycle: it takes the messages, finds the expired timers, reaps, and drops the timers of the reaped workers.
//! * **hook**: a closure that gets the events of a server ([`TimerEvent`]).
//!
//! # The parts
//!
//! | trait | does | supplied |
//! | --- | --- | --- |
//! | [`TimerClient`] | sends what a worker acquires and releases | [`ChannelClient`], within a process |
//! | [`RequestQueue`] | delivers the messages to the server | [`TimerReceiver`], the other end of a [`channel`] |
//! | [`TimerServer`] | knows which timers run and which have expired | [`TimerTable`], in memory |
//! | [`Reaper`] | ends a worker | any closure |
//!
//! A [`Watchdog`] puts a queue, a table and a reaper together and gives them a thread. Clients are used through [`expires`], which
//! returns a guard.
//!
//! # The simplest pair
//!
//! Workers are threads of one process here, and to reap one is to ask it to stop.
//!
//! ```
//! use forebear::timer::{Overdue, Reap, TimerGuard, Watchdog, channel};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicBool, Ordering};
//! use std::thread;
//! use std::time::Duration;
//!
//! let (timers, queue) = channel::<&str>();
//! let stop = Arc::new(AtomicBool::new(false));
//! let reaper = {
//!     let stop = stop.clone();
//!     move |overdue: &Overdue<'_, &str>| {
//!         assert_eq!((*overdue.worker, overdue.timer.scope.name()), ("stuck", "loop"));
//!         stop.store(true, Ordering::Relaxed);
//!         Reap::Reaped
//!     }
//! };
//! let server = Watchdog::new(queue, reaper).name("example").start()?;
//!
//! let client = timers.client("stuck");
//! let timer = TimerGuard::builder().client(&client).scope("loop").expires(Duration::from_millis(1))?;
//! while !stop.load(Ordering::Relaxed) {
//!     thread::yield_now();
//! }
//! drop(timer);
//! server.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A pair of one's own
//!
//! What a client and its queue share is up to them: a channel of std here, with numbers for workers. This queue cannot be woken, so
//! its server looks every `max_interval` whether it is to stop.
//!
//! ```
//! use forebear::timer::*;
//! use std::sync::mpsc::{self, Receiver, Sender};
//! use std::time::{Duration, Instant};
//!
//! struct Client {
//!     worker: u32,
//!     to_server: Sender<TimerRequest<u32>>,
//! }
//!
//! impl Client {
//!     fn say(&self, request: TimerRequest<u32>) -> Result<(), TimerError> {
//!         self.to_server.send(request).map_err(|_| TimerError::ServerGone)
//!     }
//! }
//!
//! impl TimerClient for Client {
//!     fn acquire(&self, scope: &Scope, deadline: Instant) -> Result<(), TimerError> {
//!         self.say(TimerRequest::acquire(self.worker, Timer::new(scope, deadline)))
//!     }
//!     fn release(&self, scope: &Scope) -> Result<(), TimerError> {
//!         self.say(TimerRequest::release(self.worker, scope))
//!     }
//! }
//!
//! struct Queue {
//!     from_clients: Receiver<TimerRequest<u32>>,
//!     there: Vec<TimerRequest<u32>>,
//! }
//!
//! impl RequestQueue<u32> for Queue {
//!     fn get(&mut self, n: usize, timeout: Duration) -> Result<Vec<TimerRequest<u32>>, TimerError> {
//!         let until = Instant::now() + timeout.min(Duration::from_secs(3600)); // it may be for ever
//!         while self.size() < n {
//!             match self.from_clients.recv_timeout(until.saturating_duration_since(Instant::now())) {
//!                 Ok(request) => self.there.push(request),
//!                 Err(_) => break,
//!             }
//!         }
//!         let n = n.min(self.there.len());
//!         Ok(self.there.drain(..n).collect())
//!     }
//!     fn size(&mut self) -> usize {
//!         self.there.extend(self.from_clients.try_iter());
//!         self.there.len()
//!     }
//! }
//!
//! let (to_server, from_clients) = mpsc::channel();
//! let client = Client { worker: 1, to_server };
//! let reaper = |_: &Overdue<'_, u32>| Reap::Reaped;
//! let mut server = Watchdog::new(Queue { from_clients, there: Vec::new() }, reaper);
//!
//! let in_time = TimerGuard::builder().client(&client).scope("in time").expires(Duration::from_secs(60))?;
//! let late = TimerGuard::builder().client(&client).scope("late").expires(Duration::ZERO)?;
//! server.turn(Duration::ZERO)?;
//! assert_eq!(server.stats().reaped, 1);
//! # drop((in_time, late));
//! # Ok::<(), TimerError>(())
//! ```
//!
//! # Time
//!
//! It is monotonic, `std::time::Instant` throughout: no change of the system's date makes a timer expire.

mod client;
mod error;
mod event;
#[cfg(target_os = "linux")]
mod fork;
mod guard;
mod memory;
mod nesting;
mod process;
mod queue;
mod reaper;
mod request;
mod scope;
mod server;
mod table;
mod watchdog;

use std::time::{Duration, Instant};

use forebear_context::clock::deadline_after;

#[cfg(all(target_os = "linux", feature = "local"))]
pub use crate::local;

pub use self::client::TimerClient;
pub use self::error::TimerError;
pub use self::event::TimerEvent;
pub use self::guard::{TimerBuilder, TimerGuard, expires, within};
pub use self::memory::{ChannelClient, TimerReceiver, TimerSender, channel};
pub use self::process::{configure, configured, unconfigure};
pub use self::queue::RequestQueue;
pub use self::reaper::{Overdue, Reap, Reaper};
pub use self::request::{Demand, Signal, Timer, TimerRequest, WorkerId};
pub use self::scope::{Holder, Scope};
pub use self::server::{TimerServer, TimersOf};
pub use self::table::TimerTable;
pub use self::watchdog::{Watchdog, WatchdogHandle, WatchdogStats};

/// As good as never, and still an instant that every clock and every message can express.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The instant `after` from `now`, or a hundred years from it if that is earlier.
fn instant_after(now: Instant, after: Duration) -> Instant {
    // A clock that stands within a century of the last instant there is has no later one to offer.
    deadline_after(now, after.min(FAR)).unwrap_or(now)
}
