//! The server's end of the socket: which processes are connected, what they send, and which have ended.
//!
//! # Vocabulary
//!
//! * **source**: a descriptor in the server's epoll set: the listener, the wake-up, the alarm, each connection, each process. Each has
//!   a number that is never used again, so an event of a source that is gone finds no entry.
//! * **connection**: one of a client. It is *new* until its first message arrives; then its process is
//!   *proven*.
//! * **watched**: a process that is proven. Its pidfd is a source, which is readable when the
//!   process has ended.
//! * **ready**: requests that were read, and that the server has not taken yet.
//! * **pass**: one walk over all sources that are readable.
//! * **alarm**: a timerfd on the monotonic clock, set to the next deadline. So the server wakes exactly then, and does not poll in
//!   between.
//!
//! # Invariants
//!
//! * **Q1** A process enters `watched` only by the proof ([`admission`]). For each process id, `by_pid` names at most one process
//!   that has not ended.
//! * **Q2** No read, write, accept or wait for a process blocks. Only the wait for all sources does, and the wake-up ends
//!   it.
//! * **Q3** One pass reads at most [`PER_PASS`](reading::PER_PASS) messages of each connection. A kernel queue of
//!   the system's default size holds fewer, so a pass reads all that was sent before it.
//! * **Q4** Connections, processes and timers are bounded by [`Limits`]; `ready` is bounded by what one pass reads, since the server takes
//!   all of it after each pass.
//! * **Q5** When a process has ended, its messages enter `ready` first, then the notice that it
//!   leaves.
//! * **Q6** The `scopes` of a watched process are those that have timers once all ready messages are registered. An
//!   acquire enters a scope; a release, or the server's report that it has dropped the timer, removes it. An expired
//!   timer that is not dropped counts.

use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use std::{fmt, io};

use forebear_context::clock::deadline_after;
use forebear_context::shim::atomic::AtomicU64;
use forebear_context::shim::time;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

mod admission;
mod reading;

use super::backlog::Backlog;
use super::clock::Anchor;
use super::place::Place;
use super::reporter::{EventHook, Reporter};
use super::wakeup::WakeUp;
use super::wire::{self, Answer};
use super::{Limits, LocalEvent, LocalWorker, Refusal};
use crate::expiry::{RequestQueue, Scope, Timer, TimerError, TimerRequest};

/// Sources that one poll reports.
const AT_ONCE: usize = 256;
/// How many steps one pass takes at most: one for the listener, one for the connections that it accepted, and so on.
const ROUNDS: usize = 64;

const LISTENER: u64 = 0;
const WAKEUP: u64 = 1;
const ALARM: u64 = 2;

/// The queue of a [`LocalTimerServer`](super::LocalTimerServer). See the module head.
pub(crate) struct LocalQueue {
    sources: OwnedFd,
    /// The sources that are readable in this step.
    up: Vec<u64>,
    listener: OwnedFd,
    place: Place,
    wakeup: Arc<WakeUp>,
    alarm: OwnedFd,
    /// The instant that the alarm is set to.
    set_to: Option<u64>,
    anchor: Anchor,
    limits: Limits,
    patience: Duration,
    reporter: Reporter,
    /// The number of the next source.
    next: u64,
    /// The next serial number of a worker.
    serials: AtomicU64,
    connections: HashMap<u64, Connection>,
    watched: HashMap<u64, Watched>,
    /// Which watched process has this number now.
    by_pid: HashMap<i32, u64>,
    /// How many connections each process id has, new ones included.
    counts: HashMap<i32, usize>,
    ready: VecDeque<TimerRequest<LocalWorker>>,
    /// The processes that were sent a signal to end them, each with the end of the patience.
    ending: Vec<(Instant, u64)>,
    /// No connection is accepted before this.
    shut: Option<Instant>,
    /// The number of this pass.
    pass: u64,
}

struct Connection {
    socket: OwnedFd,
    pid: i32,
    /// The process with the pidfd of step 2 of the proof.
    worker: LocalWorker,
    /// The number of its watched process, from the proof on.
    proven: Option<u64>,
    read: Read,
    /// How many messages were received.
    received: u64,
    /// The releases that its client could not send. `None`: its client has no file.
    backlog: Option<Backlog>,
}

/// What was read of a connection in one pass.
#[derive(Clone, Copy, Default)]
struct Read {
    pass: u64,
    messages: usize,
    /// Releases from its file.
    released: usize,
}

impl Drop for Connection {
    /// Shuts the connection down. Closing the descriptor is not enough: while a forked child of this process has a copy, the
    /// client would not notice.
    fn drop(&mut self) {
        _ = shutdown(&self.socket, Shutdown::Both);
    }
}

struct Watched {
    worker: LocalWorker,
    connections: usize,
    /// The timers that the server keeps for it once it has taken all ready messages (Q6).
    scopes: HashMap<Scope, Kept>,
    /// When the signal was sent whose failure was reported last.
    survived: Option<Instant>,
}

/// A timer that the server keeps.
struct Kept {
    deadline: Instant,
    /// The connection and the number of the message that acquired it.
    by: (u64, u64),
}

impl LocalQueue {
    pub(crate) fn new(
        (place, listener): (Place, OwnedFd),
        limits: Limits,
        patience: Duration,
        name: String,
        hooks: Vec<EventHook>,
    ) -> io::Result<LocalQueue> {
        let sources = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wakeup = Arc::new(WakeUp::new()?);
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let alarm = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&sources, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&sources, &*wakeup, EventData::new_u64(WAKEUP), EventFlags::IN)?;
        epoll::add(&sources, &alarm, EventData::new_u64(ALARM), EventFlags::IN)?;
        Ok(LocalQueue {
            sources,
            up: Vec::new(),
            listener,
            place,
            wakeup,
            alarm,
            set_to: None,
            anchor: Anchor::new(),
            limits,
            patience,
            reporter: Reporter::new(name, hooks),
            next: ALARM + 1,
            serials: AtomicU64::new(0),
            connections: HashMap::new(),
            watched: HashMap::new(),
            by_pid: HashMap::new(),
            counts: HashMap::new(),
            ready: VecDeque::new(),
            ending: Vec::new(),
            shut: None,
            pass: 0,
        })
    }

    /// Waits until a source is readable or until `until`, and handles the readable sources. Answers whether
    /// there was any.
    fn step(&mut self, until: Option<Instant>) -> io::Result<bool> {
        let now = time::now();
        self.overdue(now);
        let own = self.ending.iter().map(|(at, _)| *at).chain(self.shut).min();
        let wait = match until.into_iter().chain(own).min() {
            Some(at) if at <= now => Some(Timespec { tv_sec: 0, tv_nsec: 0 }),
            at => {
                self.set_alarm(at)?;
                None
            }
        };
        let mut up = [MaybeUninit::uninit(); AT_ONCE];
        let up = match epoll::wait(&self.sources, &mut up, wait.as_ref()) {
            Err(Errno::INTR) => return Ok(true),
            up => up?.0,
        };
        // A full array: more sources may be readable.
        let mut any = up.len() == AT_ONCE;
        self.up.clear();
        self.up.extend(up.iter().map(|event| event.data.u64()));
        for place in 0..self.up.len() {
            any |= match self.up[place] {
                LISTENER => self.accept(),
                WAKEUP => {
                    self.wakeup.drain();
                    true
                }
                ALARM => {
                    // Reading it resets it. It was set for this wait only.
                    self.set_to = None;
                    _ = rustix::io::read(&self.alarm, &mut [0; 8]);
                    false
                }
                number if self.connections.contains_key(&number) => self.read(number),
                number => self.ended(number),
            };
        }
        if self.wakeup.take_signalled() {
            self.see_ending();
        }
        Ok(any)
    }

    fn set_alarm(&mut self, at: Option<Instant>) -> io::Result<()> {
        let at = at.map(|at| self.anchor.nanos(at).max(1));
        if self.set_to == at {
            return Ok(());
        }
        // All zeros: never.
        let nanos = at.unwrap_or(0);
        let second = 1_000_000_000;
        let value = Timespec { tv_sec: (nanos / second) as _, tv_nsec: (nanos % second) as _ };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.alarm, TimerfdTimerFlags::ABSTIME, &once)?;
        self.set_to = at;
        Ok(())
    }

    /// Does what is due at `now`: accepts connections again, and reports processes that outlive the
    /// patience.
    fn overdue(&mut self, now: Instant) {
        if self.shut.is_some_and(|until| until <= now) {
            self.shut = None;
            let listener = EventData::new_u64(LISTENER);
            if epoll::add(&self.sources, &self.listener, listener, EventFlags::IN).is_err() {
                self.shut = deadline_after(now, admission::PAUSE);
            }
        }
        let (over, rest) = self.ending.drain(..).partition(|(at, _)| *at <= now);
        self.ending = rest;
        let over: Vec<(Instant, u64)> = over;
        for (_, number) in over {
            let Some(watched) = self.watched.get_mut(&number) else { continue };
            let Some(ending) = watched.worker.ending() else { continue };
            if watched.survived == Some(ending.since) || watched.worker.has_ended() {
                continue;
            }
            watched.survived = Some(ending.since);
            let (signal, after) = (ending.signal, now.saturating_duration_since(ending.since));
            self.reporter.report(&LocalEvent::Survives { worker: &watched.worker, signal, after });
        }
    }

    /// Notes the processes that were sent a signal to end them, and when each will have outlasted the patience.
    fn see_ending(&mut self) {
        let sent = self.watched.iter().filter_map(|(number, watched)| {
            let ending = watched.worker.ending().filter(|one| watched.survived != Some(one.since))?;
            Some((deadline_after(ending.since, self.patience)?, *number))
        });
        self.ending = sent.collect();
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Forgets one live process without timers and connections. Answers whether there was one.
    fn make_room(&mut self) -> bool {
        let idle = |watched: &Watched| {
            watched.connections == 0 && watched.scopes.is_empty() && watched.worker.ending().is_none()
        };
        let found = self.watched.iter().find(|(_, watched)| idle(watched)).map(|(number, _)| *number);
        found.and_then(|number| self.forget_watched(number)).is_some()
    }

    fn refuse(&mut self, number: u64, why: Refusal) {
        if let Some(connection) = self.connections.get(&number) {
            send_refusal(&connection.socket, why);
            self.reporter.refused(Some(connection.pid), why);
        }
        self.close(number);
    }

    /// Forgets a connection. Its process stays watched: it may have timers, connect again, or be about to
    /// end.
    fn close(&mut self, number: u64) {
        // A malformed release no longer matters.
        _ = self.take_releases(number, u64::MAX);
        let Some(number) = self.forget_connection(number) else { return };
        // A process that ends closes its connections a moment before its end is seen.
        if self.ended(number) {
            return;
        }
        if let Some(watched) = self.watched.get(&number).filter(|watched| watched.connections == 0) {
            self.reporter.report(&LocalEvent::Closed { worker: &watched.worker });
        }
    }

    /// Forgets a connection, and answers the number of its watched process.
    fn forget_connection(&mut self, number: u64) -> Option<u64> {
        let connection = self.connections.remove(&number)?;
        // A forked child may have a copy of the descriptor, which would keep the source.
        _ = epoll::delete(&self.sources, &connection.socket);
        if let Some(count) = self.counts.get_mut(&connection.pid) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&connection.pid);
            }
        }
        let watched = connection.proven?;
        if let Some(watched) = self.watched.get_mut(&watched) {
            watched.connections -= 1;
        }
        Some(watched)
    }

    fn forget_watched(&mut self, number: u64) -> Option<Watched> {
        let watched = self.watched.remove(&number)?;
        _ = epoll::delete(&self.sources, &watched.worker);
        self.by_pid.retain(|_, of| *of != number);
        Some(watched)
    }

    /// Forgets a watched process if it has ended, and queues that it leaves. Answers whether it has
    /// ended.
    fn ended(&mut self, number: u64) -> bool {
        let worker = match self.watched.get(&number) {
            Some(watched) if watched.worker.has_ended() => watched.worker.clone(),
            _ => return false,
        };
        // New connections of the process, too.
        let of_it = |(key, connection): (&u64, &Connection)| {
            (connection.proven == Some(number) || connection.worker == worker).then_some(*key)
        };
        let connections: Vec<u64> = self.connections.iter().filter_map(of_it).collect();
        for connection in connections {
            self.read_all(connection);
            self.forget_connection(connection);
        }
        self.forget_watched(number);
        let after = worker.ending().map(|ending| time::now().saturating_duration_since(ending.since));
        self.reporter.report(&LocalEvent::Ended { worker: &worker, after });
        self.ready.push_back(TimerRequest::leave(worker));
        true
    }
}

/// Sends the reason before the connection is closed, if the client's queue has room.
fn send_refusal(socket: &OwnedFd, why: Refusal) {
    let words = wire::encode_answer(Answer::Refused(why));
    _ = send(socket, &words, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

impl RequestQueue<LocalWorker> for LocalQueue {
    fn get(&mut self, n: usize, timeout: Duration) -> Result<Vec<TimerRequest<LocalWorker>>, TimerError> {
        let until = deadline_after(time::now(), timeout);
        while self.ready.len() < n && !self.wakeup.take_woken() {
            let over = until.is_some_and(|until| until <= time::now());
            self.pass += 1;
            if !self.step(until)? && over {
                break;
            }
        }
        let n = n.min(self.ready.len());
        Ok(self.ready.drain(..n).collect())
    }

    fn size(&mut self) -> usize {
        self.pass += 1;
        let now = time::now();
        // The next `get` reports a descriptor that cannot be read.
        for _ in 0..ROUNDS {
            if !self.step(Some(now)).unwrap_or(false) {
                break;
            }
        }
        self.ready.len()
    }

    fn waker(&self) -> Option<Waker> {
        Some(self.wakeup.clone().into())
    }

    fn dropped(&mut self, worker: &LocalWorker, timers: &[Timer]) {
        let number = self.by_pid.get(&worker.raw_pid());
        let watched = number.and_then(|number| self.watched.get_mut(number));
        let Some(watched) = watched.filter(|watched| watched.worker == *worker) else { return };
        for timer in timers {
            // A timer of this scope that was acquired since has another deadline, or is equal.
            if watched.scopes.get(&timer.scope).is_some_and(|kept| kept.deadline == timer.deadline) {
                watched.scopes.remove(&timer.scope);
            }
        }
    }
}

impl fmt::Debug for LocalQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut s = f.debug_struct("LocalQueue");
        s.field("place", &self.place).field("connections", &self.connections.len());
        s.field("watched", &self.watched.len()).field("ready", &self.ready.len()).finish_non_exhaustive()
    }
}
