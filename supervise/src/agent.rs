//! A group of worker processes as a unit: the local agent. Linux only.
//!
//! A [`LocalAgent`] starts processes of one program, and watches them. If one fails, the agent stops and restarts all of them, as often as a budget allows. The processes end with the
//! agent, also when it is killed. They have [expiration timers](forebear::timer::local): the agent kills a worker that is stuck, and restarts the group.
//!
//! Workers are programs in any language. Their [environment](WorkerEnv) is that of torchelastic, and `forebear-agent` is this agent as a command line. Workers that
//! use this crate call [`run_worker`].
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
//! # Guarantees
//!
//! * The group is a unit: it succeeds if all its workers exit with 0. There are results of all of them, or of none.
//! * A worker leads a process group of its own. What it forks is stopped with it, and gets SIGKILL when the attempt is over.
//! * Every wait has a limit: for the start, after SIGTERM, after SIGKILL. A process that survives SIGKILL is reported by its number.
//! * The agent signals no process number after it has reaped the process, so it hits no other process.
//! * When the agent's process ends, however it ends, its workers and the processes that they have forked get SIGKILL.
//!   The kernel kills each worker. A guard kills its process group: a second process of this program, which is a member
//!   of the group.
//! * What a killed agent leaves in the temporary directory, the next agent of the same user removes.
//! * The agent does not poll: pidfds report the ends.
//!
//! # What ends, and what survives
//!
//! | process | when its attempt is over | when the agent's process ends, however it ends |
//! |---|---|---|
//! | a worker | SIGTERM by the agent, then SIGKILL | SIGKILL by the kernel (parent-death signal) |
//! | a process that it has forked, in its process group, running or stopped | the same | SIGKILL by the guard |
//! | a process that has left that group (`setsid`, `setpgid`), and what it forks | survives | survives |
//! | a worker that has left its group | as each worker; what stays in the group it has joined survives | as each worker |
//! | a worker that has executed a set-user-ID program | as each worker: the agent's user is still its real user | SIGKILL by the guard: the kernel has cleared the parent-death signal |
//! | a process whose real user is no longer the agent's | survives, unless the agent may signal it | the same |
//! | the group of a worker whose guard some process has killed by its number | as each group | the worker ends, what it has forked survives |
//! | a process in an uninterruptible call of the kernel | is reported, and ends when the call returns | ends when the call returns |
//!
//! A process group is the widest set of processes that a program without privileges can signal. There is no such call
//! for a session, and a process id that was looked up may belong to another process by then. To end daemons, too, run
//! the agent as a unit of systemd, which ends a whole control group.
//!
//! In a terminal, workers are background processes: Ctrl-C reaches the agent alone ([`pass_signals`](LocalAgentBuilder::pass_signals)), and their standard input is empty.

mod builder;
mod environment;
mod error;
mod event;
mod group;
mod guard;
mod inbox;
mod inside;
mod launch;
mod outcome;
mod places;
mod ranks;
mod run;
mod scratch;
mod shared;
mod worker;

use std::ffi::OsString;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread;

use forebear::shield;
use forebear::sync::Event;
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

use self::inbox::Mail;
use self::run::Run;
use self::shared::{AgentShared, lock};
use crate::coordinator::signals::{listen, not_ignored};

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
pub struct LocalAgent(Arc<AgentShared>);

/// The status of a group. From [`LocalAgent::status`].
///
/// ```
/// use forebear_supervise::agent::{GroupState, LocalAgent};
///
/// let agent = LocalAgent::builder("./worker").max_restarts(5).build()?;
/// let status = agent.status();
/// assert_eq!((status.state, status.attempt, status.restarts_left), (GroupState::Init, 0, 5));
/// assert!(status.pids.is_empty());
/// # Ok::<(), forebear_supervise::agent::AgentError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStatus {
    /// The group's state. After a run: the state in which it has ended.
    pub state: GroupState,
    /// The number of the attempt: how many restarts because of failures there were.
    pub attempt: u32,
    /// How many more there may be.
    pub restarts_left: u32,
    /// The numbers of the processes, in the order of their local ranks; none while no group runs.
    pub pids: Vec<u32>,
}

impl LocalAgent {
    /// Describes an agent that runs this program. A name without a slash is searched for in `PATH`.
    ///
    /// See [`LocalAgentBuilder`] for an example.
    pub fn builder(program: impl Into<OsString>) -> LocalAgentBuilder {
        LocalAgentBuilder::new(program.into())
    }

    /// Runs the group until it has succeeded, has used up its restarts, or was stopped. When this returns, no worker runs, except those that it reports as unkillable. It can be called
    /// again, for another run.
    ///
    /// Suspends. A cancellation point: a cancelled caller stops the group, waits for its end, and gets [`AgentError::Cancelled`].
    ///
    /// # Errors
    ///
    /// [`AgentError`]: the agent could not run the group. A group that has failed is a result, not an error.
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
        let running = RunGuard::begin(shared)?;
        let outcome = Arc::new(Outcome { over: Event::new(), result: Mutex::new(None) });
        let (of_thread, agent) = (outcome.clone(), self.clone());
        // A thread of its own: the one that starts workers must live as long as they do (AL1).
        let work = move || {
            let _told = TellOver(&of_thread);
            let result = Run::new(&agent.0).and_then(|mut run| {
                let result = run.run();
                // Files that do not stay go before the caller of `run` learns of the end.
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
            let mail = shared.inbox.take();
            shared.tell_of_timers(&mail.timers_failed);
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

    /// Stops the group, as a signal does. The current run ends as [`Stopped`](GroupState::Stopped). Without one, the next run ends so, and starts nothing. Does not suspend.
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

    /// Changes the number of workers. The group is stopped and started again, which does not use the budget of restarts. The new logs replace those of the attempt that
    /// ends. Without a run, the next one begins with this number. Does not suspend.
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

    /// The status of the group. Does not suspend.
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

    /// The counts of this agent over all its runs. Does not suspend.
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
        let signals = not_ignored(vec![SIGINT, SIGTERM, SIGHUP, SIGQUIT]);
        let mut now = lock(&self.0.now);
        if now.listens {
            return Ok(());
        }
        listen(signals, Arc::downgrade(&self.0) as _, self.0.hears_signals())?;
        now.listens = true;
        Ok(())
    }
}

/// The caller of `run` waits for this.
struct Outcome {
    over: Event,
    result: Mutex<Option<Result<RunResult, AgentError>>>,
}

/// Sets the event, also if the thread panics.
struct TellOver<'a>(&'a Outcome);

impl Drop for TellOver<'_> {
    fn drop(&mut self) {
        self.0.over.set();
    }
}

/// A run that is continuing; until it is dropped no other begins.
struct RunGuard<'a>(&'a AgentShared);

impl<'a> RunGuard<'a> {
    fn begin(shared: &'a AgentShared) -> Result<RunGuard<'a>, AgentError> {
        let mut now = lock(&shared.now);
        if now.running {
            return Err(AgentError::AlreadyRunning);
        }
        now.running = true;
        drop(now);
        // What is left of the run before concerns this one no more, but for a stop, and for what the timer server could not do.
        let Mail { stop, timers_failed, .. } = shared.inbox.take();
        shared.inbox.tell(|mail| {
            mail.stop |= stop;
            mail.timers_failed.splice(..0, timers_failed);
        });
        Ok(RunGuard(shared))
    }

    fn end(self, result: &Result<RunResult, AgentError>) {
        lock(&self.0.now).metrics.count(result);
        let state = match result {
            Ok(result) => result.state,
            Err(AgentError::Cancelled) => GroupState::Stopped,
            // The state says where it failed.
            Err(_) => return,
        };
        self.0.set_state(state);
        self.0.tell(&AgentEvent::Over(state));
    }
}

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        let mut now = lock(&self.0.now);
        now.running = false;
        now.status.pids.clear();
    }
}

impl fmt::Debug for LocalAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalAgent")
            .field("program", &self.0.settings.program)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
