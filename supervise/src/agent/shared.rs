//! What all handles of an agent and the thread of its run share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebear::timer::local::{LocalTimerHandle, LocalWorker};
use forebear::timer::{Signal as TimerSignal, TimerEvent};
use rustix::process::{Pid, getpgid};

use super::GroupStatus;
use super::builder::{self, AgentSettings, Hook, TimerHook, Timers};
use super::error::AgentError;
use super::event::AgentEvent;
use super::inbox::{Expired, Inbox};
use super::outcome::{AgentMetrics, GroupState};
use super::scratch::Scratch;
use crate::coordinator::signals::Heard;

/// So many failures of the timer server are kept until the thread of a run takes them.
const MOST_FAILURES: usize = 64;

/// See the module head.
pub(super) struct AgentShared {
    pub(super) settings: AgentSettings,
    pub(super) inbox: Arc<Inbox>,
    pub(super) timers: Option<LocalTimerHandle>,
    /// Of the socket of those timers. Removed after the server has ended.
    _scratch: Option<Scratch>,
    /// Called without any other lock.
    hook: Mutex<Option<Hook>>,
    /// Apart, since the thread that receives signals reads it: see [`hears_signals`](AgentShared::hears_signals).
    pub(super) now: Arc<Mutex<Now>>,
}

/// The state that other threads read and change.
#[derive(Debug)]
pub(super) struct Now {
    pub(super) running: bool,
    /// Whether the handlers for signals are installed.
    pub(super) listens: bool,
    pub(super) status: GroupStatus,
    /// How many workers the next attempt has.
    pub(super) size: usize,
    pub(super) metrics: AgentMetrics,
}

impl AgentShared {
    pub(super) fn new(
        settings: AgentSettings,
        timers: Timers,
        hook: Hook,
    ) -> Result<Arc<AgentShared>, AgentError> {
        let inbox = Arc::new(Inbox::new()?);
        let for_timer = inbox.clone();
        let workers = settings.nodes[settings.own].workers;
        let tells: TimerHook = Box::new(move |event| tell_of_timer(&for_timer, event));
        let scratch = matches!(timers, Timers::Own).then(builder::scratch_for_timers).transpose()?;
        let timers = match (timers, &scratch) {
            (Timers::Given(start), _) => Some(start(tells)),
            (_, Some(scratch)) => Some(builder::own_timers(scratch, tells, workers)),
            _ => None,
        };
        let timers = timers.transpose().map_err(AgentError::Timers)?;
        let status = GroupStatus {
            state: GroupState::Init,
            attempt: 0,
            restarts_left: settings.max_restarts,
            pids: Vec::new(),
        };
        let now =
            Now { running: false, listens: false, status, size: workers, metrics: AgentMetrics::default() };
        Ok(Arc::new(AgentShared {
            settings,
            inbox,
            timers,
            _scratch: scratch,
            hook: Mutex::new(Some(hook)),
            now: Arc::new(Mutex::new(now)),
        }))
    }

    /// What a signal does: it is passed on to the run, if there is one.
    ///
    /// It has no handle of the agent. The run may end by the signal at once, and the process with it. The last handle removes what the agent has in the file system, so it must not be
    /// with the thread that receives signals, which does not outlive `main`.
    pub(super) fn hears_signals(&self) -> impl FnMut(i32) -> Heard + Send + use<> {
        let (inbox, now) = (self.inbox.clone(), self.now.clone());
        move |signal| {
            if !lock(&now).running {
                return Heard::Declined;
            }
            let inbox = inbox.clone();
            Heard::Taken(Box::new(move || inbox.tell(|mail| mail.signals.push(signal))))
        }
    }

    pub(super) fn size(&self) -> usize {
        lock(&self.now).size
    }

    pub(super) fn set_state(&self, state: GroupState) {
        lock(&self.now).status.state = state;
    }

    pub(super) fn set_restarts(&self, attempt: u32, left: u32) {
        let mut now = lock(&self.now);
        (now.status.attempt, now.status.restarts_left) = (attempt, left);
    }

    pub(super) fn set_pids(&self, pids: Vec<u32>) {
        lock(&self.now).status.pids = pids;
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut AgentMetrics)) {
        count(&mut lock(&self.now).metrics);
    }

    /// Tells the hook what the timer server could not do.
    pub(super) fn tell_of_timers(&self, failed: &[String]) {
        failed.iter().for_each(|message| self.tell(&AgentEvent::TimersFailed { message }));
    }

    /// Calls the hook. One that panics is not called again.
    pub(super) fn tell(&self, event: &AgentEvent<'_>) {
        let mut hook = lock(&self.hook);
        if let Some(f) = &mut *hook
            && catch_unwind(AssertUnwindSafe(|| f(event))).is_err()
        {
            *hook = None;
        }
    }
}

impl Drop for AgentShared {
    fn drop(&mut self) {
        if let Some(timers) = &self.timers {
            // So that its socket is gone when the process ends. A server that hangs in its user's hook is left behind.
            let _ = timers.stop();
        }
        // No run follows that would pass it on.
        let mail = self.inbox.take();
        self.tell_of_timers(&mail.timers_failed);
    }
}

/// On the thread of the timer server.
fn tell_of_timer(inbox: &Inbox, event: &TimerEvent<'_, LocalWorker>) {
    match event {
        TimerEvent::Expired { worker, timer, .. } => {
            let pid = worker.pid();
            let group = i32::try_from(pid).ok().and_then(Pid::from_raw).map(|pid| getpgid(Some(pid)));
            let leader = group.and_then(Result::ok).map(|pid| pid.as_raw_nonzero().get());
            let ends = timer.signal != TimerSignal::LogOnly;
            let expired = Expired { pid, leader, scope: timer.scope.to_string(), ends };
            inbox.tell(|mail| mail.expired.push(expired));
        }
        TimerEvent::ReapFailed { .. } | TimerEvent::ReaperPanicked { .. } | TimerEvent::TurnFailed { .. } => {
            let message = event.to_string();
            inbox.tell(|mail| {
                if mail.timers_failed.len() < MOST_FAILURES {
                    mail.timers_failed.push(message);
                }
            });
        }
        _ => {}
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::SIGTERM;

    use super::*;
    use crate::agent::LocalAgent;

    #[test]
    fn a_signal_that_is_heard_keeps_no_handle_of_the_agent() {
        let agent = LocalAgent::builder("./worker").build().unwrap();
        let mut hears = agent.0.hears_signals();
        assert!(matches!(hears(SIGTERM), Heard::Declined), "there is no run");
        lock(&agent.0.now).running = true;
        let Heard::Taken(act) = hears(SIGTERM) else { panic!("declined, though there is a run") };
        assert_eq!(Arc::strong_count(&agent.0), 1, "its last handle goes when `main` drops it");
        act();
        assert_eq!(agent.0.inbox.take().signals, [SIGTERM]);
        lock(&agent.0.now).running = false;
    }
}
