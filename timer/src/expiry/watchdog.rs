//! The watchdog: the server's loop, which in each turn takes the requests, finds expired timers, and reaps their workers.
//!
//! # A turn
//!
//! 1. *Wait* in the queue for a first request, at most until the next turn is due.
//! 2. *Read the time*.
//! 3. *Take* all requests that are in the queue now, and register them. Workers that left are cleared.
//! 4. *Find* the workers with timers that have expired at the time that was read, and notify the hooks.
//! 5. *Reap* each of them that has a timer which wants more than a log, unless the worker is held back. Timers that only log are dropped.
//! 6. *Clear* all timers of workers that were reaped or have ended, so that one expired timer means one reap.
//!
//! # Why no worker is reaped that was in time
//!
//! Step 2 is between the two reads of the queue. A timer counts as expired in step 4 if its deadline is not after the time read in step 2.
//! If its worker had released it by its deadline, the release was in the queue before that time was read, so step 3 has taken
//! it. That holds however late the turn is, also after the server's process, or the whole machine, was stopped. It needs a queue whose
//! `size` counts all requests that were sent before the call.
//!
//! For the same reason a turn in which the queue or the table fails reaps no worker: a release may be among the requests that could not be read.
//!
//! # Held back
//!
//! A worker that could not be reaped, or whose reaper wants to proceed by steps, keeps its timers and is *held* until an instant. The
//! server tries it again then, and not in every turn, since each request causes a turn. The worker is not held any more when none of the
//! timers that had expired is left. Then it has released them itself, and the count of attempts begins anew.
//!
//! # When the next turn is due
//!
//! At the earliest deadline, at the earliest instant of a held worker, or when there is a request, whichever is first. The thread sleeps exactly
//! until then, and does not poll. On a clock that jumps it sleeps until a jump wakes it. Only with a queue that cannot be woken does it
//! poll, every `max_interval`, for a stop and for a jump of its clock.

mod handle;
mod hooks;
mod stats;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebear_context::clock::{Clock, MonotonicClock};
use forebear_context::error::Failure;

pub use self::handle::WatchdogHandle;
pub use self::stats::WatchdogStats;

use self::hooks::Hooks;
use self::stats::Counts;
use super::{
    Demand, Overdue, Reap, Reaper, RequestQueue, Signal, Timer, TimerError, TimerEvent, TimerRequest,
    TimerServer, TimerTable, TimersOf, WorkerId, instant_after,
};

/// A server of expiration timers: a queue, a table and a reaper, and the turns that make them work.
///
/// * A worker that has released its timer by the deadline is never reaped for it, however late the server looks, if the queue shows all that
///   was sent.
/// * A worker is reaped once, however many of its timers have expired, and then all its timers are forgotten.
/// * What could not be reaped is tried again after a pause, unless the timer is released by then; if the reaper panics the worker counts as
///   reaped. An error in a round is reported, no worker is reaped in that round, and the server continues.
/// * The server sleeps until the next deadline exactly. Nothing is looked at in between, unless the queue cannot be woken.
///
/// [`start`](Self::start) gives it a thread of its own. [`turn`](Self::turn) is for callers with a thread of their own, and for tests.
///
/// ```
/// use forebear::timer::{Overdue, Reap, TimerGuard, Watchdog, channel};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let (timers, queue) = channel();
/// let (tell, told) = mpsc::channel();
/// let watchdog = Watchdog::new(queue, move |overdue: &Overdue<'_, u32>| {
///     tell.send(*overdue.worker).ok();
///     Reap::Reaped
/// });
/// let watchdog = watchdog.start()?;
///
/// let client = timers.client(7);
/// let stuck = TimerGuard::builder().client(&client).expires(Duration::ZERO)?;
/// assert_eq!(told.recv()?, 7);
/// # drop(stuck);
/// watchdog.stop()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a server does nothing until it is started"]
pub struct Watchdog<W, Q, R, S = TimerTable<W>> {
    queue: Q,
    reaper: R,
    server: S,
    clock: Arc<dyn Clock>,
    max_interval: Duration,
    retry_after: Duration,
    hooks: Hooks<W>,
    counts: Arc<Counts>,
    held: HashMap<W, Held>,
    /// The time that was read in the last completed turn: timers that had expired by then were found.
    looked: Option<Instant>,
}

/// A worker with expired timers that has not ended yet.
struct Held {
    attempt: u32,
    again_at: Instant,
    /// The expired timers of which hooks were notified.
    reported: HashSet<Timer>,
}

impl<W: WorkerId, Q: RequestQueue<W>, R: Reaper<W>> Watchdog<W, Q, R> {
    /// A server that reads `queue` and ends workers by `reaper`, with its timers in memory.
    pub fn new(queue: Q, reaper: R) -> Self {
        Watchdog {
            queue,
            reaper,
            server: TimerTable::new(),
            clock: Arc::new(MonotonicClock),
            max_interval: Duration::from_secs(60),
            retry_after: Duration::from_millis(100),
            hooks: Hooks::default(),
            counts: Arc::default(),
            held: HashMap::new(),
            looked: None,
        }
    }
}

impl<W: WorkerId, Q: RequestQueue<W>, R: Reaper<W>, S: TimerServer<W>> Watchdog<W, Q, R, S> {
    /// Keeps the timers in `server`, and not in memory.
    pub fn server<T: TimerServer<W>>(self, server: T) -> Watchdog<W, Q, R, T> {
        let Watchdog { queue, reaper, clock, max_interval, retry_after, hooks, counts, held, looked, .. } =
            self;
        Watchdog { queue, reaper, server, clock, max_interval, retry_after, hooks, counts, held, looked }
    }

    /// The name in messages, and of the thread: that of the run, or of the job. By default `timers`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.hooks.name = name.into();
        self
    }

    /// The clock that deadlines are measured by, which must be that of the clients. By default the system's.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// How long a [stop](WatchdogHandle::stop) waits for the server's turn to end, and how long the server waits in a queue that cannot be
    /// woken. By default a minute.
    pub fn max_interval(mut self, interval: Duration) -> Self {
        self.max_interval = interval;
        self
    }

    /// The pause after which a worker that could not be reaped is tried again, or a turn that failed is followed by another. By default 100 ms.
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.retry_after = pause;
        self
    }

    /// Calls `hook` with each event, on the server's thread. There may be several hooks. They are called in the order in
    /// which they were given, and a panic in one changes nothing.
    ///
    /// Without a hook the server writes each event to standard error as one line, except the start, the stop and orphans.
    pub fn on_event(mut self, hook: impl FnMut(&TimerEvent<'_, W>) + Send + 'static) -> Self {
        self.hooks.add(hook);
        self
    }

    /// Gives the server a thread of its own.
    ///
    /// The thread does not keep the process alive.
    ///
    /// # Errors
    ///
    /// The system refuses a thread.
    pub fn start(self) -> io::Result<WatchdogHandle> {
        WatchdogHandle::start(self)
    }

    /// The counts so far.
    pub fn stats(&self) -> WatchdogStats {
        self.counts.read()
    }

    /// When the next turn is due, if no request arrives before; now, if there was none yet. `None`: no turn is due until a
    /// request arrives.
    pub fn next_turn(&mut self) -> Option<Instant> {
        let Some(looked) = self.looked else { return Some(self.clock.now()) };
        // Earlier timers were found in the last turn; their workers are held, or have ended.
        let deadline = self.server.next_deadline(looked).filter(|deadline| *deadline > looked);
        let held = self.held.values().map(|held| held.again_at).min();
        held.into_iter().chain(deadline).min()
    }

    /// Takes one turn: waits for at most `wait` for a request, takes all requests, and reaps the workers whose timers have expired.
    ///
    /// # Errors
    ///
    /// The queue or the table has failed, or panicked. No worker was reaped, the hooks were notified, and the next turn can be taken.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::time::{Clock, ManualClock};
    /// use forebear::timer::{Overdue, Reap, TimerError, TimerGuard, TimerTable, Watchdog, channel};
    ///
    /// let clock = ManualClock::new();
    /// let (timers, queue) = channel();
    /// let mut watchdog = Watchdog::new(queue, |_: &Overdue<'_, u32>| Reap::Reaped)
    ///     .name("tiles")
    ///     .clock(clock.clone())
    ///     .server(TimerTable::new()) // the default
    ///     .max_interval(Duration::from_secs(10))
    ///     .retry_after(Duration::from_secs(1))
    ///     .on_event(|event| println!("{event}"));
    /// let client = timers.client(7).with_clock(clock.clone());
    /// let stuck = TimerGuard::builder().client(&client).expires(Duration::from_secs(5))?;
    /// watchdog.turn(Duration::ZERO)?;
    /// assert_eq!(watchdog.next_turn(), Some(clock.now() + Duration::from_secs(5)));
    /// clock.advance(Duration::from_secs(5));
    /// watchdog.turn(Duration::ZERO)?;
    /// assert_eq!(watchdog.stats().reaped, 1);
    /// # drop(stuck);
    /// # Ok::<(), TimerError>(())
    /// ```
    pub fn turn(&mut self, wait: Duration) -> Result<(), TimerError> {
        self.try_turn(|_| wait)
    }

    /// Takes one turn when it is due: time either passes by itself or `jumps`, and the queue can be woken or not.
    fn turn_when_due(&mut self, jumps: bool, can_be_woken: bool) -> Result<(), TimerError> {
        self.try_turn(|watchdog| {
            let wait = watchdog.next_turn().map_or(Duration::MAX, |due| {
                match due.saturating_duration_since(watchdog.clock.now()) {
                    left if left > Duration::ZERO && jumps => Duration::MAX,
                    left => left,
                }
            });
            if can_be_woken { wait } else { wait.min(watchdog.max_interval) }
        })
    }

    fn try_turn(&mut self, wait: impl FnOnce(&mut Self) -> Duration) -> Result<(), TimerError> {
        // Whatever unwinds out of the queue or the table is theirs; the watchdog's own state is whole between any two of its steps.
        let turn = catch_unwind(AssertUnwindSafe(|| {
            let wait = wait(self);
            self.take_turn(wait)
        }));
        let turn = turn.unwrap_or_else(|payload| Err(TimerError::Panicked(self.failure(payload))));
        self.counts.add(|stats| {
            stats.turns += 1;
            stats.failed_turns += u64::from(turn.is_err());
        });
        if let Err(error) = &turn {
            // A timer that has expired long ago may have been registered: the next turn is due at once.
            self.looked = None;
            self.hooks.tell(&TimerEvent::TurnFailed { error });
        }
        turn
    }

    fn take_turn(&mut self, wait: Duration) -> Result<(), TimerError> {
        let first = self.queue.get(1, wait)?;
        let now = self.clock.now();
        let rest = match self.queue.size() {
            0 => Ok(Vec::new()),
            there => self.queue.get(there, Duration::ZERO),
        };
        // The requests that could be read are registered even if others could not.
        self.register(first)?;
        self.register(rest?)?;
        let expired = self.server.expired(now)?;
        self.deal_with(expired, now)?;
        self.looked = Some(now);
        Ok(())
    }

    /// Registers requests in their order. A worker that leaves is cleared after its earlier requests, and before later ones under its name.
    fn register(&mut self, requests: Vec<TimerRequest<W>>) -> Result<(), TimerError> {
        self.counts.add(|stats| stats.requests += requests.len() as u64);
        let mut batch = Vec::with_capacity(requests.len());
        for request in requests {
            match request.demand {
                Demand::Leave => {
                    self.server.register(std::mem::take(&mut batch))?;
                    for (worker, timers) in self.server.clear(&[request.worker])? {
                        self.counts.add(|stats| stats.orphaned += timers.len() as u64);
                        self.hooks.tell(&TimerEvent::Orphaned { worker: &worker, timers: &timers });
                    }
                }
                _ => batch.push(request),
            }
        }
        if batch.is_empty() { Ok(()) } else { self.server.register(batch) }
    }

    fn deal_with(&mut self, expired: TimersOf<W>, now: Instant) -> Result<(), TimerError> {
        let mut before = std::mem::take(&mut self.held);
        let (mut over, mut spared) = (Vec::new(), Vec::new());
        for (worker, mut timers) in expired {
            timers.sort_by_key(|timer| timer.deadline);
            let held = before.remove(&worker).filter(|held| held.concerns(&timers));
            let is_news = |timer: &&Timer| held.as_ref().is_none_or(|held| !held.reported.contains(*timer));
            self.tell_expired(&worker, timers.iter().filter(is_news), now);
            let logged: Vec<Timer> = timers.extract_if(.., |timer| timer.signal == Signal::LogOnly).collect();
            if !logged.is_empty() {
                spared.push((worker.clone(), logged));
            }
            let attempt = match held {
                Some(held) if held.again_at > now => {
                    self.held.insert(worker, Held { reported: timers.into_iter().collect(), ..held });
                    continue;
                }
                Some(held) => held.attempt.saturating_add(1),
                None => 0,
            };
            let Some(overdue) = Overdue::new(&worker, &timers, attempt, now) else { continue };
            match self.reap(&overdue) {
                Next::Over => over.push(worker),
                Next::Spared => spared.push((worker, timers)),
                Next::Held(pause) => {
                    let again_at = instant_after(now, pause);
                    let reported = timers.into_iter().collect();
                    self.held.insert(worker, Held { attempt, again_at, reported });
                }
            }
        }
        if !over.is_empty() {
            let cleared = self.server.clear(&over)?;
            self.tell_dropped(&cleared);
        }
        if !spared.is_empty() {
            let releases = spared.iter().flat_map(|(worker, timers)| {
                timers.iter().map(|timer| TimerRequest::release(worker.clone(), &timer.scope))
            });
            self.server.register(releases.collect())?;
            self.tell_dropped(&spared);
        }
        Ok(())
    }

    /// Notifies the queue of timers that the server has dropped.
    fn tell_dropped(&mut self, dropped: &TimersOf<W>) {
        for (worker, timers) in dropped {
            self.queue.dropped(worker, timers);
        }
    }

    fn tell_expired<'t>(&mut self, worker: &W, timers: impl Iterator<Item = &'t Timer>, now: Instant) {
        for timer in timers {
            let late = now.saturating_duration_since(timer.deadline);
            self.counts.add(|stats| stats.expired += 1);
            self.hooks.tell(&TimerEvent::Expired { worker, timer, late });
        }
    }

    /// Calls the reaper; returns what becomes of the worker.
    fn reap(&mut self, overdue: &Overdue<'_, W>) -> Next {
        let Overdue { worker, timer, attempt, .. } = *overdue;
        match catch_unwind(AssertUnwindSafe(|| self.reaper.reap(overdue))) {
            Ok(Reap::Reaped) => {
                self.counts.add(|stats| stats.reaped += 1);
                self.hooks.tell(&TimerEvent::Reaped { worker, timer, late: overdue.late() });
                Next::Over
            }
            Ok(Reap::Gone) => {
                self.counts.add(|stats| stats.gone += 1);
                self.hooks.tell(&TimerEvent::Gone { worker });
                Next::Over
            }
            Ok(Reap::Retry(error)) => {
                let again_in = self.retry_after;
                self.counts.add(|stats| stats.failed_reaps += 1);
                self.hooks.tell(&TimerEvent::ReapFailed { worker, error: &error, attempt, again_in });
                Next::Held(again_in)
            }
            Ok(Reap::Spared) => Next::Spared,
            Ok(Reap::Again(again_in)) => {
                self.hooks.tell(&TimerEvent::Warned { worker, attempt, again_in });
                Next::Held(again_in)
            }
            Err(payload) => {
                let failure = self.failure(payload);
                self.counts.add(|stats| stats.panicked_reaps += 1);
                self.hooks.tell(&TimerEvent::ReaperPanicked { worker, failure: &failure });
                Next::Over
            }
        }
    }

    fn failure(&self, payload: Box<dyn std::any::Any + Send>) -> Failure {
        Failure::from_panic(payload, self.hooks.name.clone(), None)
    }
}

/// What becomes of a worker for which the reaper was called.
enum Next {
    /// All its timers are dropped.
    Over,
    /// Its expired timers are dropped.
    Spared,
    /// The reaper is called again after this time.
    Held(Duration),
}

impl Held {
    /// Whether a timer for which the worker was held is still among these.
    fn concerns(&self, expired: &[Timer]) -> bool {
        expired.iter().any(|timer| self.reported.contains(timer))
    }
}

impl<W, Q, R, S> fmt::Debug for Watchdog<W, Q, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog")
            .field("name", &self.hooks.name)
            .field("max_interval", &self.max_interval)
            .field("retry_after", &self.retry_after)
            .field("held", &self.held.len())
            .field("stats", &self.counts.read())
            .finish_non_exhaustive()
    }
}
