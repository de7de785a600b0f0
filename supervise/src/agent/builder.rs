//! The settings of a [`LocalAgent`].

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use forebear::timer::local::{Limits, LocalTimerHandle, LocalTimerServer, LocalWorker};
use forebear::timer::{Reaper, TimerError, TimerEvent};

use super::error::AgentError;
use super::event::AgentEvent;
use super::ranks::Node;
use super::{LocalAgent, Shared};

/// Told by the timer server what happens to timers.
pub(super) type TimerHook = Box<dyn FnMut(&TimerEvent<'_, LocalWorker>) + Send>;
/// Starts a server for so many workers.
pub(super) type StartTimers =
    Box<dyn FnOnce(TimerHook, usize) -> Result<LocalTimerHandle, TimerError> + Send>;
pub(super) type Hook = Box<dyn FnMut(&AgentEvent<'_>) + Send>;

/// What is set. The defaults stand with the builder's methods.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
    pub(super) envs: Vec<(OsString, OsString)>,
    pub(super) dir: Option<PathBuf>,
    pub(super) launcher: Option<PathBuf>,
    pub(super) nodes: Vec<Node>,
    pub(super) own: usize,
    pub(super) max_restarts: u32,
    pub(super) refill_after: Option<Duration>,
    pub(super) backoff: (Duration, Duration),
    pub(super) logs: Option<PathBuf>,
    pub(super) run_id: String,
    pub(super) start_timeout: Duration,
    pub(super) stop_timeouts: (Duration, Duration),
    pub(super) result_limit: u64,
    pub(super) error_file: Option<PathBuf>,
    pub(super) signals: bool,
}

/// A [`LocalAgent`] that is being described. From [`LocalAgent::builder`].
///
/// ```no_run
/// use forebear_supervise::agent::{self, AgentEvent, LocalAgent};
/// use std::time::Duration;
///
/// agent::entry();
/// let agent = LocalAgent::builder("./worker")
///     .args(["--table", "big"])
///     .workers(4)
///     .max_restarts(3)
///     .backoff(Duration::from_millis(100), Duration::from_secs(10))
///     .stop_timeouts(Duration::from_secs(5), Duration::from_secs(5))
///     .logs("logs")
///     .on_event(|event| eprintln!("{event}"))
///     .build()?;
/// # Ok::<(), agent::AgentError>(())
/// ```
#[must_use = "a builder does nothing before `build`"]
pub struct LocalAgentBuilder {
    settings: Settings,
    timers: Option<StartTimers>,
    hook: Option<Hook>,
}

impl LocalAgentBuilder {
    pub(super) fn new(program: OsString) -> LocalAgentBuilder {
        LocalAgentBuilder {
            settings: Settings {
                program,
                args: Vec::new(),
                envs: Vec::new(),
                dir: None,
                launcher: None,
                nodes: vec![Node::new("worker", 1)],
                own: 0,
                max_restarts: 3,
                refill_after: None,
                backoff: (Duration::from_millis(100), Duration::from_secs(30)),
                logs: None,
                run_id: "run".into(),
                start_timeout: Duration::from_secs(30),
                stop_timeouts: (Duration::from_secs(30), Duration::from_secs(10)),
                result_limit: 64 << 20,
                error_file: None,
                signals: false,
            },
            timers: Some(Box::new(default_timers)),
            hook: None,
        }
    }

    /// Adds an argument for the workers' program. See [`LocalAgentBuilder`] for an example of this and of all that follow.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.settings.args.push(arg.into());
        self
    }

    /// Adds arguments for the workers' program.
    pub fn args(mut self, args: impl IntoIterator<Item: Into<OsString>>) -> Self {
        self.settings.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable for the workers. They have those of this process, and those of [`WorkerEnv`](super::WorkerEnv), which none of these replaces.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.settings.envs.push((name.into(), value.into()));
        self
    }

    /// The workers' directory: this process's if not given. A relative path to the program begins there.
    pub fn current_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.settings.dir = Some(dir.into());
        self
    }

    /// The program through which workers are started: one that calls [`entry`](super::entry) first in its `main`, such as `forebear-agent`. For a process that cannot call that
    /// itself, as a library of another language.
    pub fn launcher(mut self, program: impl Into<PathBuf>) -> Self {
        self.settings.launcher = Some(program.into());
        self
    }

    /// How many workers there are: 1 if not given. At most 65,536.
    pub fn workers(mut self, n: usize) -> Self {
        self.settings.nodes[self.settings.own].workers = n;
        self
    }

    /// What the workers do, for their environment: `worker` if not given.
    pub fn role(mut self, role: impl Into<String>) -> Self {
        self.settings.nodes[self.settings.own].role = role.into();
        self
    }

    /// This agent is number `own` of several, which run what `nodes` says; replaces [`workers`](Self::workers) and [`role`](Self::role). The agents do not talk to each other: this
    /// gives their workers ranks that fit together.
    ///
    /// ```
    /// use forebear_supervise::agent::{LocalAgent, Node};
    /// let nodes = [Node::new("trainer", 4), Node::new("reader", 1)];
    /// let second = LocalAgent::builder("./reader").among(nodes, 1).build()?; // its worker has rank 4 of 5
    /// # Ok::<(), forebear_supervise::agent::AgentError>(())
    /// ```
    pub fn among(mut self, nodes: impl IntoIterator<Item = Node>, own: usize) -> Self {
        let nodes: Vec<Node> = nodes.into_iter().collect();
        if own < nodes.len() {
            (self.settings.nodes, self.settings.own) = (nodes, own);
        } else {
            // Refused by `build`.
            (self.settings.nodes, self.settings.own) = (vec![Node::new("", 0)], 0);
        }
        self
    }

    /// How often the group is restarted because of a failure: 3 if not given. 0: the first failure is the last.
    pub fn max_restarts(mut self, n: u32) -> Self {
        self.settings.max_restarts = n;
        self
    }

    /// The budget of restarts is whole again when the group was healthy for so long after a restart. Without this it never is.
    pub fn refill_after(mut self, healthy: Duration) -> Self {
        self.settings.refill_after = Some(healthy);
        self
    }

    /// The pause before the first restart, and the longest: 100 ms and 30 s if not given. Each restart doubles it; a budget that is whole again begins anew.
    pub fn backoff(mut self, first: Duration, most: Duration) -> Self {
        self.settings.backoff = (first, most);
        self
    }

    /// Keeps what the workers write to standard output and standard error: in `DIR/<run id>/attempt_<n>/<local rank>/`, as `stdout.log` and `stderr.log`. The workers
    /// write there themselves, as much as they like. If there is a run of this id, this one's directory gets a number behind the name.
    ///
    /// Without this they write where this process does.
    pub fn logs(mut self, dir: impl Into<PathBuf>) -> Self {
        self.settings.logs = Some(dir.into());
        self
    }

    /// The name of the run, for logs and for the workers' environment: `run` if not given.
    pub fn run_id(mut self, id: impl Into<String>) -> Self {
        self.settings.run_id = id.into();
        self
    }

    /// How long it may take until all workers of an attempt are started: 30 s if not given.
    pub fn start_timeout(mut self, most: Duration) -> Self {
        self.settings.start_timeout = most;
        self
    }

    /// How long workers have to end after SIGTERM, and how long after the SIGKILL that follows: 30 s and 10 s if not given. A worker that is still there after both is
    /// [reported](AgentError::Unkillable), and not waited for. Zero looks once.
    pub fn stop_timeouts(mut self, term: Duration, kill: Duration) -> Self {
        self.settings.stop_timeouts = (term, kill);
        self
    }

    /// How many bytes a worker's result may have: 64 MiB if not given. A longer one is an [error](AgentError::Result).
    pub fn result_limit(mut self, bytes: u64) -> Self {
        self.settings.result_limit = bytes;
        self
    }

    /// Where the first failure is written if the group fails, as torchelastic writes it (JSON).
    pub fn error_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.settings.error_file = Some(file.into());
        self
    }

    /// SIGINT, SIGTERM, SIGHUP and SIGQUIT that this process is sent while a run is going on are passed on to the workers, and the run ends as
    /// [stopped](super::GroupState::Stopped). A second one has SIGKILL sent at once. To end by the signal as well is the program's:
    /// [`RunResult::signal`](super::RunResult::signal) says which it was.
    ///
    /// The handlers are installed once in the life of the process. A signal that the process ignores (as under `nohup`) stays ignored. While no run is
    /// going on, signals do what they would without this.
    pub fn pass_signals(mut self) -> Self {
        self.settings.signals = true;
        self
    }

    /// The server for the workers' expiration timers: one with the defaults, and room for four processes of each worker, if not given. The workers find it through their environment
    /// ([`configure_from_env`](forebear::timer::local::configure_from_env)).
    ///
    /// ```
    /// use forebear::timer::local::LocalTimerServer;
    /// use forebear_supervise::agent::LocalAgent;
    /// let server = LocalTimerServer::bind().map_err(forebear_supervise::agent::AgentError::Timers)?;
    /// let agent = LocalAgent::builder("./worker").timers(server.name("my timers")).build()?;
    /// # Ok::<(), forebear_supervise::agent::AgentError>(())
    /// ```
    pub fn timers<R: Reaper<LocalWorker>>(mut self, server: LocalTimerServer<R>) -> Self {
        self.timers = Some(Box::new(move |hook, _| server.on_event(hook).start()));
        self
    }

    /// The workers have no expiration timers.
    pub fn no_timers(mut self) -> Self {
        self.timers = None;
        self
    }

    /// Has `hook` called with what happens, on the thread of the run, which waits meanwhile. It may call all methods of the agent but `run`. A hook that panics is not called again.
    pub fn on_event(mut self, hook: impl FnMut(&AgentEvent<'_>) + Send + 'static) -> Self {
        self.hook = Some(Box::new(hook));
        self
    }

    /// Makes the agent. The timer server runs from here on; workers are started by [`LocalAgent::run`].
    ///
    /// # Errors
    ///
    /// [`AgentError::Invalid`] if there are no workers, or too many, the run's name is no name of a directory, or [`among`](Self::among) was given no node of that number; [`AgentError::Timers`];
    /// [`AgentError::Io`].
    pub fn build(self) -> Result<LocalAgent, AgentError> {
        let LocalAgentBuilder { mut settings, timers, hook } = self;
        check_workers(settings.nodes[settings.own].workers)?;
        let id = &settings.run_id;
        if id.is_empty() || id == "." || id == ".." || id.contains(['/', '\0']) {
            return Err(AgentError::Invalid(format!(
                "the run's name {id:?} is no name of a directory: leave out slashes"
            )));
        }
        if let Some(launcher) = &mut settings.launcher {
            // Absolute, since the workers may have another directory.
            *launcher = std::path::absolute(&*launcher)?;
        }
        Ok(LocalAgent(Shared::new(settings, timers, hook)?))
    }
}

/// How many workers an agent can have.
const MOST_WORKERS: usize = 1 << 16;

/// An error that says how many there may be.
pub(super) fn check_workers(n: usize) -> Result<(), AgentError> {
    match n {
        1..=MOST_WORKERS => Ok(()),
        _ => Err(AgentError::Invalid(format!("{n} workers: there must be from 1 to {MOST_WORKERS}"))),
    }
}

fn default_timers(hook: TimerHook, workers: usize) -> Result<LocalTimerHandle, TimerError> {
    let mut limits = Limits::default();
    limits.workers = limits.workers.max(4 * workers);
    limits.connections = limits.connections.max(8 * workers);
    LocalTimerServer::bind()?.limits(limits).on_event(hook).start()
}

impl fmt::Debug for LocalAgentBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalAgentBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}
