//! The server's end of the socket: which processes are connected, what they send, and which have ended.
//!
//! # Vocabulary
//!
//! * **source**: what the kernel is asked to watch (an epoll set): the door, the bell, the alarm, each connection, each process.
//!   Each has a number of its own that is never used again, so what the kernel has told of a source that is gone meets nobody.
//! * **connection**: one of a client. It is *new* until a message has come, then its process is *proven*.
//! * **watched**: a process that is proven: its pidfd is a source, and says when it has ended.
//! * **ready**: requests that were read, and that the server has not taken yet.
//! * **look**: one walk over all sources in which something is up.
//! * **alarm**: a timerfd on the monotonic clock, set to the next instant at which something is to be done. So the wait is exact, and
//!   nothing is done in between.
//!
//! # Invariants
//!
//! * **Q1** `watched` has a process only by the proof ([`door`]), and at most one that has not ended for each number (`by_pid`).
//! * **Q2** No read, write, accept or wait for a process blocks. Only the wait for all sources does, and the bell ends it.
//! * **Q3** In one round at most [`PER_LOOK`](reading::PER_LOOK) messages of each connection are read. That is more
//!   than its kernel queue holds at the system's size, so a round reads all that was sent before it.
//! * **Q4** Connections, processes and timers are bounded by [`Limits`]; `ready` by what one look may give, since the server takes all of it
//!   after each.
//! * **Q5** When a process has ended, what it had said before is ready first, then that it leaves.
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

mod door;
mod reading;

use super::backlog::Backlog;
use super::bell::Bell;
use super::clock::Anchor;
use super::place::Place;
use super::teller::{Tell, Teller};
use super::wire::{self, Answer};
use super::{Limits, LocalEvent, LocalWorker, Refusal};
use crate::expiry::{RequestQueue, Scope, Timer, TimerError, TimerRequest};

/// Sources that one poll reports.
const AT_ONCE: usize = 256;
/// How often one look walks over what is up: once for the door, once for what has connected through it, and so on.
const ROUNDS: usize = 64;

const DOOR: u64 = 0;
const BELL: u64 = 1;
const ALARM: u64 = 2;

/// The queue of a [`LocalTimerServer`](super::LocalTimerServer). See the module head.
pub(crate) struct LocalQueue {
    sources: OwnedFd,
    /// The sources in which something is up, in this step.
    up: Vec<u64>,
    door: OwnedFd,
    place: Place,
    bell: Arc<Bell>,
    alarm: OwnedFd,
    /// What the alarm is set to.
    set_to: Option<u64>,
    anchor: Anchor,
    limits: Limits,
    patience: Duration,
    tell: Teller,
    /// The number of the next source.
    next: u64,
    /// Numbers of workers.
    serials: AtomicU64,
    connections: HashMap<u64, Connection>,
    watched: HashMap<u64, Watched>,
    /// Which watched process has this number now.
    by_pid: HashMap<i32, u64>,
    /// Connections by number of process, new ones too.
    counts: HashMap<i32, usize>,
    ready: VecDeque<TimerRequest<LocalWorker>>,
    /// The processes that are to end, each with the time by which it must.
    ending: Vec<(Instant, u64)>,
    /// Nobody is let in before this.
    shut: Option<Instant>,
    /// Which look this is.
    look: u64,
}

struct Connection {
    socket: OwnedFd,
    pid: i32,
    /// P's holder, as of step 2.
    worker: LocalWorker,
    /// The watched process, from the proof on.
    proven: Option<u64>,
    read: Read,
    /// How many messages were heard.
    heard: u64,
    /// What its client could not send. `None`: its client has no file.
    backlog: Option<Backlog>,
}

/// What was read of a connection in one look.
#[derive(Clone, Copy, Default)]
struct Read {
    look: u64,
    messages: usize,
    /// Releases out of its file.
    unheard: usize,
}

impl Drop for Connection {
    /// Not left to the end of the descriptor: while a child of ours has a copy the client would not be told, and speak to nobody.
    fn drop(&mut self) {
        _ = shutdown(&self.socket, Shutdown::Both);
    }
}

struct Watched {
    worker: LocalWorker,
    connections: usize,
    /// The timers that the server keeps for it, when it has taken what is ready (Q6).
    scopes: HashMap<Scope, Kept>,
    /// The signal last told to have done nothing, by when it was sent.
    survived: Option<Instant>,
}

/// A timer that the server keeps.
struct Kept {
    deadline: Instant,
    /// By which message of which connection it was acquired.
    by: (u64, u64),
}

impl LocalQueue {
    pub(crate) fn new(
        (place, door): (Place, OwnedFd),
        limits: Limits,
        patience: Duration,
        name: String,
        hooks: Vec<Tell>,
    ) -> io::Result<LocalQueue> {
        let sources = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = Arc::new(Bell::new()?);
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let alarm = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&sources, &door, EventData::new_u64(DOOR), EventFlags::IN)?;
        epoll::add(&sources, &*bell, EventData::new_u64(BELL), EventFlags::IN)?;
        epoll::add(&sources, &alarm, EventData::new_u64(ALARM), EventFlags::IN)?;
        Ok(LocalQueue {
            sources,
            up: Vec::new(),
            door,
            place,
            bell,
            alarm,
            set_to: None,
            anchor: Anchor::new(),
            limits,
            patience,
            tell: Teller::new(name, hooks),
            next: ALARM + 1,
            serials: AtomicU64::new(0),
            connections: HashMap::new(),
            watched: HashMap::new(),
            by_pid: HashMap::new(),
            counts: HashMap::new(),
            ready: VecDeque::new(),
            ending: Vec::new(),
            shut: None,
            look: 0,
        })
    }

    /// Waits until something is up or until `until`, and does what there is to do. Whether there was anything.
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
        // There may be more than can be told at once.
        let mut any = up.len() == AT_ONCE;
        self.up.clear();
        self.up.extend(up.iter().map(|event| event.data.u64()));
        for place in 0..self.up.len() {
            any |= match self.up[place] {
                DOOR => self.accept(),
                BELL => {
                    self.bell.quieten();
                    true
                }
                ALARM => {
                    // Read, so that it is not up any more; it was set for nobody but this wait.
                    self.set_to = None;
                    _ = rustix::io::read(&self.alarm, &mut [0; 8]);
                    false
                }
                number if self.connections.contains_key(&number) => self.read(number),
                number => self.ended(number),
            };
        }
        if self.bell.take_ending() {
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

    /// What is to be done by the clock.
    fn overdue(&mut self, now: Instant) {
        if self.shut.is_some_and(|until| until <= now) {
            self.shut = None;
            let door = EventData::new_u64(DOOR);
            if epoll::add(&self.sources, &self.door, door, EventFlags::IN).is_err() {
                self.shut = deadline_after(now, door::PAUSE);
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
            self.tell.tell(&LocalEvent::Survives { worker: &watched.worker, signal, after });
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

    /// Forgets one process that lives, but has neither timers nor a connection. Whether there was one.
    fn make_room(&mut self) -> bool {
        let idle = |watched: &Watched| {
            watched.connections == 0 && watched.scopes.is_empty() && watched.worker.ending().is_none()
        };
        let found = self.watched.iter().find(|(_, watched)| idle(watched)).map(|(number, _)| *number);
        found.and_then(|number| self.forget_watched(number)).is_some()
    }

    fn refuse(&mut self, number: u64, why: Refusal) {
        if let Some(connection) = self.connections.get(&number) {
            last_words(&connection.socket, why);
            self.tell.refused(Some(connection.pid), why);
        }
        self.close(number);
    }

    /// Forgets a connection. Its process is watched on: it may have timers, come back, or be about to end.
    fn close(&mut self, number: u64) {
        // What is no release of it changes nothing any more.
        _ = self.take_unheard(number, u64::MAX);
        let Some(number) = self.forget_connection(number) else { return };
        // A process that ends closes its connections a moment before its end is seen.
        if self.ended(number) {
            return;
        }
        if let Some(watched) = self.watched.get(&number).filter(|watched| watched.connections == 0) {
            self.tell.tell(&LocalEvent::Closed { worker: &watched.worker });
        }
    }

    /// The watched process it was of.
    fn forget_connection(&mut self, number: u64) -> Option<u64> {
        let connection = self.connections.remove(&number)?;
        // For the same reason as in its drop.
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

    /// Takes leave of a watched process, if it has ended.
    fn ended(&mut self, number: u64) -> bool {
        let worker = match self.watched.get(&number) {
            Some(watched) if watched.worker.has_ended() => watched.worker.clone(),
            _ => return false,
        };
        // Those that have not said anything yet, too.
        let of_it = |(key, connection): (&u64, &Connection)| {
            (connection.proven == Some(number) || connection.worker == worker).then_some(*key)
        };
        let connections: Vec<u64> = self.connections.iter().filter_map(of_it).collect();
        for connection in connections {
            self.hear_all(connection);
            self.forget_connection(connection);
        }
        self.forget_watched(number);
        let after = worker.ending().map(|ending| time::now().saturating_duration_since(ending.since));
        self.tell.tell(&LocalEvent::Ended { worker: &worker, after });
        self.ready.push_back(TimerRequest::leave(worker));
        true
    }
}

/// Says why, if the other side has room for it, before the connection is closed.
fn last_words(socket: &OwnedFd, why: Refusal) {
    let words = wire::answer(Answer::Refused(why));
    _ = send(socket, &words, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

impl RequestQueue<LocalWorker> for LocalQueue {
    fn get(&mut self, n: usize, timeout: Duration) -> Result<Vec<TimerRequest<LocalWorker>>, TimerError> {
        let until = deadline_after(time::now(), timeout);
        while self.ready.len() < n && !self.bell.take_woken() {
            let over = until.is_some_and(|until| until <= time::now());
            self.look += 1;
            if !self.step(until)? && over {
                break;
            }
        }
        let n = n.min(self.ready.len());
        Ok(self.ready.drain(..n).collect())
    }

    fn size(&mut self) -> usize {
        self.look += 1;
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
        Some(self.bell.clone().into())
    }

    fn dropped(&mut self, worker: &LocalWorker, timers: &[Timer]) {
        let number = self.by_pid.get(&worker.raw_pid());
        let watched = number.and_then(|number| self.watched.get_mut(number));
        let Some(watched) = watched.filter(|watched| watched.worker == *worker) else { return };
        for timer in timers {
            // A timer of this scope that was acquired since has another deadline, or is the same.
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
