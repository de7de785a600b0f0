//! A server's timers, in memory.
//!
//! Every timer is in the table of its worker, by scope. Until it is found to have expired it is also in a
//! [wheel](crate::Wheel), which knows the earliest deadline. A timer that was reported as expired is only in the table,
//! until it is stopped, moved or cleared.
//!
//! # Invariants
//!
//! * **E1** A timer has a key if and only if an entry of the wheel with that key has its worker and scope.
//! * **E2** A worker with a timer that has no key is in `overdue`, and marked as listed there. Others that have released since may be, too, or one
//!   that left and came again twice: `expired` tidies up.
//! * **E3** No worker is in the table without a timer.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Instant;

use forebear_context::shim::time;

use super::{Demand, Scope, Timer, TimerError, TimerRequest, TimerServer, TimersOf, WorkerId};
use crate::{Key, Wheel};

#[cfg(test)]
mod tests;

/// The timers of all workers, in memory: what a [`Watchdog`](super::Watchdog) has unless it is given another server.
///
/// Starting, moving and stopping a timer takes the same time however many there are.
///
/// ```
/// use forebear::timer::{Timer, TimerRequest, TimerServer, TimerTable};
/// use std::time::{Duration, Instant};
///
/// let now = Instant::now();
/// let timer = Timer::new("load", now + Duration::from_secs(5));
/// let mut table = TimerTable::new();
/// table.register(vec![TimerRequest::acquire("worker 1", timer.clone())])?;
/// assert_eq!(table.expired(now)?, []);
/// assert_eq!(table.next_deadline(now), Some(timer.deadline));
/// assert_eq!(table.expired(timer.deadline)?, [("worker 1", vec![timer])]);
/// # Ok::<(), forebear::timer::TimerError>(())
/// ```
pub struct TimerTable<W> {
    workers: HashMap<W, Worker>,
    wheel: Wheel<(W, Scope)>,
    /// In the order in which their first timers expired (E2).
    overdue: Vec<W>,
}

#[derive(Default)]
struct Worker {
    timers: HashMap<Scope, Running>,
    /// Whether it is listed as overdue.
    listed: bool,
}

struct Running {
    timer: Timer,
    /// E1. `None`: it has expired.
    key: Option<Key>,
}

impl<W: WorkerId> TimerTable<W> {
    /// No timers.
    #[must_use]
    pub fn new() -> TimerTable<W> {
        TimerTable { workers: HashMap::new(), wheel: Wheel::new(time::now()), overdue: Vec::new() }
    }

    /// How many timers there are, expired ones included.
    ///
    /// ```
    /// use std::time::Instant;
    /// use forebear::timer::{Timer, TimerError, TimerRequest, TimerServer, TimerTable};
    ///
    /// let mut table = TimerTable::new();
    /// assert!(table.is_empty());
    /// table.register(vec![TimerRequest::acquire(7, Timer::new("load", Instant::now()))])?;
    /// assert_eq!(table.len(), 1);
    /// # Ok::<(), TimerError>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.workers.values().map(|worker| worker.timers.len()).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    fn start(&mut self, worker: W, timer: Timer) {
        let key = self.wheel.insert(timer.deadline, (worker.clone(), timer.scope.clone()));
        let scope = timer.scope.clone();
        let timers = &mut self.workers.entry(worker).or_default().timers;
        let before = timers.insert(scope, Running { timer, key: Some(key) });
        self.forget(before.as_ref());
    }

    fn stop(&mut self, worker: &W, scope: &Scope) {
        let Some(known) = self.workers.get_mut(worker) else { return };
        let before = known.timers.remove(scope);
        if known.timers.is_empty() {
            self.workers.remove(worker);
        }
        self.forget(before.as_ref());
    }

    /// Takes all timers of the worker out of the table.
    fn drop_worker(&mut self, worker: &W) -> Vec<Timer> {
        let Some(known) = self.workers.remove(worker) else { return Vec::new() };
        known.timers.values().for_each(|running| self.forget(Some(running)));
        sorted(known.timers.into_values().map(|running| running.timer))
    }

    /// Takes a timer that is in the table no more out of the wheel.
    fn forget(&mut self, running: Option<&Running>) {
        if let Some(key) = running.and_then(|running| running.key) {
            self.wheel.remove(key);
        }
    }
}

/// The earliest first, and those of one instant by name: whatever the order in which a table of hashes lists them.
fn sorted(timers: impl Iterator<Item = Timer>) -> Vec<Timer> {
    let mut timers: Vec<_> = timers.collect();
    timers.sort_by(|one, other| (one.deadline, &one.scope).cmp(&(other.deadline, &other.scope)));
    timers
}

impl<W: WorkerId> TimerServer<W> for TimerTable<W> {
    fn register(&mut self, requests: Vec<TimerRequest<W>>) -> Result<(), TimerError> {
        for TimerRequest { worker, demand } in requests {
            match demand {
                Demand::Acquire(timer) => self.start(worker, timer),
                Demand::Release(scope) => self.stop(&worker, &scope),
                Demand::Leave => drop(self.drop_worker(&worker)),
            }
        }
        Ok(())
    }

    fn clear(&mut self, workers: &[W]) -> Result<TimersOf<W>, TimerError> {
        let dropped = workers.iter().map(|worker| (worker.clone(), self.drop_worker(worker)));
        Ok(dropped.filter(|(_, timers)| !timers.is_empty()).collect())
    }

    fn expired(&mut self, now: Instant) -> Result<TimersOf<W>, TimerError> {
        while let Some((worker, scope)) = self.wheel.pop_due(now) {
            let known = self.workers.get_mut(&worker);
            let Some(known) = known else { continue };
            if let Some(running) = known.timers.get_mut(&scope) {
                running.key = None;
            }
            if !known.listed {
                known.listed = true;
                self.overdue.push(worker);
            }
        }
        let mut found = Vec::with_capacity(self.overdue.len());
        let mut seen = HashSet::with_capacity(self.overdue.len());
        for worker in std::mem::take(&mut self.overdue) {
            let Some(known) = self.workers.get_mut(&worker) else { continue };
            let expired = known.timers.values().filter(|running| running.key.is_none());
            let expired = sorted(expired.map(|running| running.timer.clone()));
            known.listed = !expired.is_empty();
            if known.listed && seen.insert(worker.clone()) {
                found.push((worker.clone(), expired));
                self.overdue.push(worker);
            }
        }
        Ok(found)
    }

    fn next_deadline(&mut self, _: Instant) -> Option<Instant> {
        self.wheel.earliest()
    }
}

impl<W: WorkerId> Default for TimerTable<W> {
    fn default() -> Self {
        TimerTable::new()
    }
}

impl<W: WorkerId> fmt::Debug for TimerTable<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerTable")
            .field("workers", &self.workers.len())
            .field("timers", &self.len())
            .finish()
    }
}
