//! A group of worker processes as a unit: the local agent. Linux only.
//!
//! A [`LocalAgent`] starts some processes of one program, and watches them. If one fails, all are stopped and started anew, as often as a budget allows. They end with the agent,
//! also when it is killed. They have [expiration timers](forebear::timer::local): the agent kills a worker that is stuck, and the group starts again.
//!
//! The workers are programs in any language: their [environment](WorkerEnv) is that of torchelastic, and `forebear-agent` is this agent as a command line. Those that
//! are written with this crate call [`run_worker`].
//!
//! ```no_run
//! use forebear_supervise::agent::{self, AgentEvent, LocalAgent, WorkerEnv, run_worker};
//! use std::process::ExitCode;
//!
//! fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
//!     agent::entry(); // first: workers are started through this program
//!     if WorkerEnv::from_env().is_some() {
//!         return Ok(run_worker(|me| Ok(me.ranks.rank as u64 * 10)));
//!     }
//!     let itself = std::env::current_exe()?;
//!     let result = LocalAgent::builder(itself).workers(4).on_event(|event| eprintln!("{event}")).build()?.run()?;
//!     if let Some(first) = result.first_failure() {
//!         eprintln!("{first}");
//!         return Ok(ExitCode::FAILURE);
//!     }
//!     let mut total = 0;
//!     for rank in 0..4 {
//!         total += result.get::<u64>(rank)?.unwrap_or(0);
//!     }
//!     println!("{total} after {} restarts", result.restarts);
//!     Ok(ExitCode::SUCCESS)
//! }
//! ```
//!
//! # What holds
//!
//! * The group is a unit: it succeeds if all its workers exit with 0. There are results of all of them, or of none.
//! * A worker leads a process group of its own. What it forks is stopped with it, and what is left of it when the attempt is over gets SIGKILL. A process that
//!   leaves the group (`setsid`) is not reached.
//! * No wait lacks a limit: not for the start, not after SIGTERM, not after SIGKILL. A process that cannot be killed is reported by its number.
//! * A number is never signalled after its process was reaped, so no stranger is hit.
//! * When the agent's process ends, however it ends, the kernel sends SIGKILL to its workers, but not to what they have forked.
//!   A worker whose program is set-user-id loses that setting.
//! * Nothing is polled: ends come from pidfds.
//!
//! In a terminal, workers are background processes: Ctrl-C reaches the agent alone ([`pass_signals`](LocalAgentBuilder::pass_signals)), and their standard input is empty.

mod builder;
mod environment;
mod error;
mod event;
mod group;
mod inbox;
mod inside;
mod launch;
mod outcome;
mod places;
mod ranks;
mod run;
mod worker;

use std::ffi::OsString;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use forebear::shield;
use forebear::sync::Event;
use forebear::timer::local::{LocalTimerHandle, LocalWorker};
use forebear::timer::{Signal as TimerSignal, TimerEvent};
use rustix::process::{Pid, getpgid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

pub use self::builder::LocalAgentBuilder;
pub use self::environment::WorkerEnv;
pub use self::error::AgentError;
pub use self::event::AgentEvent;
pub use self::inside::run_worker;
pub use self::launch::entry;
pub use self::outcome::{AgentMetrics, GroupState, RunResult, WorkerFailure};
pub use self::ranks::{Node, Ranks, assign_ranks};
pub use self::worker::End;

use self::builder::{Hook, Settings};
use self::inbox::{Expired, Inbox};
use self::run::Run;
use crate::coordinator::signals::{Heard, listen};

/// Runs a group of worker processes. See [the module](self). Clones are the same agent.
///
/// ```no_run
/// use forebear_supervise::agent::{self, GroupState, LocalAgent};
///
/// agent::entry();
/// let agent = LocalAgent::builder("./worker").workers(2).build()?;
/// assert_eq!(agent.run()?.state, GroupState::Succeeded);
/// # Ok::<(), agent::AgentError>(())
/// ```
#[derive(Clone)]
pub struct LocalAgent(Arc<Shared>);

struct Shared {
    settings: Settings,
    inbox: Arc<Inbox>,
    timers: Option<LocalTimerHandle>,
    /// Called without any other lock.
    hook: Mutex<Option<Hook>>,
    now: Mutex<Now>,
}

/// What others ask for.
#[derive(Debug)]
struct Now {
    running: bool,
    /// Whether signals come here.
    listens: bool,
    status: GroupStatus,
    /// How many workers the next attempt has.
    size: usize,
    metrics: AgentMetrics,
}

/// What is known of a group at a moment. From [`LocalAgent::status`], which has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStatus {
    /// Its state; after a run the one in which it has ended.
    pub state: GroupState,
    /// The number of the attempt: how many restarts because of failures there were.
    pub attempt: u32,
    /// How many more there may be.
    pub restarts_left: u32,
    /// The numbers of the processes, in the order of their local ranks; none while no group runs.
    pub pids: Vec<u32>,
}

impl LocalAgent {
    /// Describes an agent that runs this program. One without a slash is looked for in `PATH`.
    ///
    /// See [`LocalAgentBuilder`] for an example.
    pub fn builder(program: impl Into<OsString>) -> LocalAgentBuilder {
        LocalAgentBuilder::new(program.into())
    }

    /// Runs the group until it has succeeded, has failed for good, or was stopped. When this returns no worker runs, but those that it reports as unkillable. It can be called again, for
    /// another run.
    ///
    /// Suspends. A cancellation point: a cancelled caller stops the group, waits for its end, and gets [`AgentError::Cancelled`].
    ///
    /// # Errors
    ///
    /// What the agent could not do, see [`AgentError`]. A group that has failed is a result.
    ///
    /// See [`LocalAgent`] for an example.
    pub fn run(&self) -> Result<RunResult, AgentError> {
        let shared = &self.0;
        if shared.settings.launcher.is_none() && !launch::entered() {
            return Err(AgentError::EntryMissing); // AL3
        }
        if shared.settings.signals {
            self.hear_signals()?;
        }
        let running = Running::begin(shared)?;
        let outcome = Arc::new(Outcome { over: Event::new(), result: Mutex::new(None) });
        let (of_thread, agent) = (outcome.clone(), self.clone());
        // A thread of its own: the one that starts workers must live as long as they do (AL1).
        let work = move || {
            let _told = TellOver(&of_thread);
            let result = Run::new(&agent.0).and_then(|mut run| {
                let result = run.run();
                // Files that do not stay go before anybody hears of the end.
                drop(run);
                result
            });
            *lock(&of_thread.result) = Some(result);
        };
        let thread = thread::Builder::new().name("agent".into()).spawn(work)?;
        let cancelled = outcome.over.wait().is_err();
        if cancelled {
            self.request_stop();
            // What cannot be shielded is waited for below.
            let _ = shield(|| outcome.over.wait());
        }
        // It ends now, and with it its handle of the agent.
        let _ = thread.join();
        if cancelled {
            // The stop was for this run.
            drop(shared.inbox.take());
        }
        let result = lock(&outcome.result).take();
        let result = match result {
            Some(Ok(_)) if cancelled => Err(AgentError::Cancelled),
            Some(result) => result,
            None => Err(AgentError::Io(std::io::Error::other("the thread of the run has panicked"))),
        };
        running.end(&result);
        result
    }

    /// Stops the group, as for a signal. The run that is going on ends as [`Stopped`](GroupState::Stopped); if none is, the next one does, and starts nothing.
    ///
    /// ```
    /// use forebear_supervise::agent::{GroupState, LocalAgent};
    /// # let launcher = "/proc/self/exe";
    /// let agent = LocalAgent::builder("./worker").launcher(launcher).build()?;
    /// agent.request_stop();
    /// assert_eq!(agent.run()?.state, GroupState::Stopped);
    /// # Ok::<(), forebear_supervise::agent::AgentError>(())
    /// ```
    pub fn request_stop(&self) {
        self.0.inbox.tell(|mail| mail.stop = true);
    }

    /// Has the group run with so many workers: it is stopped and started anew, at no cost to the budget of restarts. Its logs replace those of the attempt that it
    /// ends. If no run is going on, the next one begins with so many.
    ///
    /// # Errors
    ///
    /// [`AgentError::Invalid`] for 0, and for more than 65,536. To end the group, [request a stop](Self::request_stop).
    ///
    /// ```
    /// use forebear_supervise::agent::LocalAgent;
    /// let agent = LocalAgent::builder("./worker").workers(2).build()?;
    /// agent.resize(3)?;
    /// assert!(agent.resize(0).is_err());
    /// # Ok::<(), forebear_supervise::agent::AgentError>(())
    /// ```
    pub fn resize(&self, workers: usize) -> Result<(), AgentError> {
        builder::check_workers(workers)?;
        let mut now = lock(&self.0.now);
        now.size = workers;
        if now.running {
            self.0.inbox.tell(|mail| mail.resize = Some(workers));
        }
        Ok(())
    }

    /// What is known of the group now.
    ///
    /// ```
    /// use forebear_supervise::agent::{GroupState, LocalAgent};
    /// let agent = LocalAgent::builder("./worker").build()?;
    /// let status = agent.status();
    /// assert_eq!((status.state, status.restarts_left), (GroupState::Init, 3));
    /// # Ok::<(), forebear_supervise::agent::AgentError>(())
    /// ```
    #[must_use]
    pub fn status(&self) -> GroupStatus {
        lock(&self.0.now).status.clone()
    }

    /// What this agent has counted over its runs.
    ///
    /// ```
    /// use forebear_supervise::agent::LocalAgent;
    /// let agent = LocalAgent::builder("./worker").build()?;
    /// assert_eq!(agent.metrics().runs, 0);
    /// # Ok::<(), forebear_supervise::agent::AgentError>(())
    /// ```
    #[must_use]
    pub fn metrics(&self) -> AgentMetrics {
        lock(&self.0.now).metrics
    }

    fn hear_signals(&self) -> Result<(), AgentError> {
        let ignored = ignored_signals();
        let mut signals = vec![SIGINT, SIGTERM, SIGHUP, SIGQUIT];
        signals.retain(|signal| ignored & (1 << (signal - 1)) == 0);
        let mut now = lock(&self.0.now);
        if now.listens {
            return Ok(());
        }
        let agent = Arc::downgrade(&self.0);
        listen(signals, agent.clone(), move |signal| {
            let Some(agent) = agent.upgrade() else { return Heard::Declined };
            if !lock(&agent.now).running {
                return Heard::Declined;
            }
            Heard::Taken(Box::new(move || agent.inbox.tell(|mail| mail.signals.push(signal))))
        })?;
        now.listens = true;
        Ok(())
    }
}

/// The signals that this process ignores, as bits; none if that cannot be known.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

/// The caller of `run` waits for this.
struct Outcome {
    over: Event,
    result: Mutex<Option<Result<RunResult, AgentError>>>,
}

/// Tells it, also if the thread panics.
struct TellOver<'a>(&'a Outcome);

impl Drop for TellOver<'_> {
    fn drop(&mut self) {
        self.0.over.set();
    }
}

/// A run that is going on; until it is dropped no other begins.
struct Running<'a>(&'a Shared);

impl<'a> Running<'a> {
    fn begin(shared: &'a Shared) -> Result<Running<'a>, AgentError> {
        let mut now = lock(&shared.now);
        if now.running {
            return Err(AgentError::AlreadyRunning);
        }
        now.running = true;
        drop(now);
        // What is left of the run before concerns this one no more, but for a stop.
        let stop = shared.inbox.take().stop;
        if stop {
            shared.inbox.tell(|mail| mail.stop = true);
        }
        Ok(Running(shared))
    }

    fn end(self, result: &Result<RunResult, AgentError>) {
        lock(&self.0.now).metrics.count(result);
        if let Ok(result) = result {
            self.0.set_state(result.state);
            self.0.tell(&AgentEvent::Over(result.state));
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut now = lock(&self.0.now);
        now.running = false;
        now.status.pids.clear();
    }
}

impl Shared {
    fn new(
        settings: Settings,
        timers: Option<builder::StartTimers>,
        hook: Option<Hook>,
    ) -> Result<Arc<Shared>, AgentError> {
        let inbox = Arc::new(Inbox::new()?);
        let told = inbox.clone();
        let workers = settings.nodes[settings.own].workers;
        let timers = timers.map(|start| start(Box::new(move |event| tell_of_timer(&told, event)), workers));
        let timers = timers.transpose().map_err(AgentError::Timers)?;
        let status = GroupStatus {
            state: GroupState::Init,
            attempt: 0,
            restarts_left: settings.max_restarts,
            pids: Vec::new(),
        };
        let now =
            Now { running: false, listens: false, status, size: workers, metrics: AgentMetrics::default() };
        Ok(Arc::new(Shared { settings, inbox, timers, hook: Mutex::new(hook), now: Mutex::new(now) }))
    }

    fn size(&self) -> usize {
        lock(&self.now).size
    }

    fn set_state(&self, state: GroupState) {
        lock(&self.now).status.state = state;
    }

    fn set_restarts(&self, attempt: u32, left: u32) {
        let mut now = lock(&self.now);
        (now.status.attempt, now.status.restarts_left) = (attempt, left);
    }

    fn set_pids(&self, pids: Vec<u32>) {
        lock(&self.now).status.pids = pids;
    }

    fn count(&self, count: impl FnOnce(&mut AgentMetrics)) {
        count(&mut lock(&self.now).metrics);
    }

    /// Calls the hook. One that panics is not called again.
    fn tell(&self, event: &AgentEvent<'_>) {
        let mut hook = lock(&self.hook);
        if let Some(f) = &mut *hook
            && catch_unwind(AssertUnwindSafe(|| f(event))).is_err()
        {
            *hook = None;
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(timers) = &self.timers {
            // So that its socket and directory are gone when the process ends. A server that hangs in its user's hook is left behind.
            let _ = timers.stop();
        }
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
            eprintln!("forebear: timers: {event}");
        }
        _ => {}
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for LocalAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalAgent")
            .field("program", &self.0.settings.program)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
