//! The settings of a [`LocalAgent`].

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fmt, io};

use forebear::timer::local::{Limits, LocalTimerHandle, LocalTimerServer, LocalWorker};
use forebear::timer::{Reaper, TimerError, TimerEvent};

use super::LocalAgent;
use super::error::AgentError;
use super::event::AgentEvent;
use super::ranks::{MOST_WORKERS, Node};
use super::scratch::Scratch;
use super::shared::AgentShared;
use crate::contain::print;

/// The timer server calls it for each event of a timer.
pub(super) type TimerHook = Box<dyn FnMut(&TimerEvent<'_, LocalWorker>) + Send>;
/// Starts the timer server.
pub(super) type StartTimers = Box<dyn FnOnce(TimerHook) -> Result<LocalTimerHandle, TimerError> + Send>;
pub(super) type Hook = Box<dyn FnMut(&AgentEvent<'_>) + Send>;

/// The server for the workers' expiration timers.
pub(super) enum Timers {
    /// One with the defaults.
    Own,
    Given(StartTimers),
    None,
}

/// The settings. The builder's methods document the defaults.
#[derive(Clone, Debug)]
pub(super) struct AgentSettings {
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
    settings: AgentSettings,
    timers: Timers,
    hook: Hook,
}

/// The hook of an agent that is given none.
fn print_troubles(event: &AgentEvent<'_>) {
    if matches!(event, AgentEvent::TimersFailed { .. } | AgentEvent::ErrorFile { .. }) {
        print(format_args!("forebear: {event}"));
    }
}

impl LocalAgentBuilder {
    pub(super) fn new(program: OsString) -> LocalAgentBuilder {
        LocalAgentBuilder {
            settings: AgentSettings {
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
            timers: Timers::Own,
            hook: Box::new(print_troubles),
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

    /// Sets an environment variable for the workers. They inherit those of this process, and have those of [`WorkerEnv`](super::WorkerEnv), which this does not replace.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.settings.envs.push((name.into(), value.into()));
        self
    }

    /// The workers' current directory. Default: that of this process. A relative path to the program begins there.
    pub fn current_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.settings.dir = Some(dir.into());
        self
    }

    /// The program through which workers are started. It calls [`entry`](super::entry) first in its `main`, as `forebear-agent` does. For a process that cannot call that
    /// itself, such as a library in another language.
    ///
    /// ```
    /// use forebear_supervise::agent::{GroupState, LocalAgent};
    ///
    /// let agent = LocalAgent::builder("./worker").launcher("/usr/bin/forebear-agent").build()?;
    /// agent.request_stop(); // so that the run starts no worker
    /// assert_eq!(agent.run()?.state, GroupState::Stopped);
    /// # Ok::<(), forebear_supervise::agent::AgentError>(())
    /// ```
    pub fn launcher(mut self, program: impl Into<PathBuf>) -> Self {
        self.settings.launcher = Some(program.into());
        self
    }

    /// How many workers there are, up to 65,536. Default: 1.
    pub fn workers(mut self, n: usize) -> Self {
        if let Some(own) = self.settings.nodes.get_mut(self.settings.own) {
            own.workers = n;
        }
        self
    }

    /// The workers' role, for their environment. Default: `worker`.
    pub fn role(mut self, role: impl Into<String>) -> Self {
        if let Some(own) = self.settings.nodes.get_mut(self.settings.own) {
            own.role = role.into();
        }
        self
    }

    /// Makes this agent number `own` of several, which run the workers of `nodes`; replaces [`workers`](Self::workers) and [`role`](Self::role). The agents do not communicate: this
    /// gives their workers consecutive ranks.
    ///
    /// ```
    /// use forebear_supervise::agent::{LocalAgent, Node};
    /// let nodes = [Node::new("trainer", 4), Node::new("reader", 1)];
    /// let second = LocalAgent::builder("./reader").among(nodes, 1).build()?; // its worker has rank 4 of 5
    /// # Ok::<(), forebear_supervise::agent::AgentError>(())
    /// ```
    pub fn among(mut self, nodes: impl IntoIterator<Item = Node>, own: usize) -> Self {
        // `build` refuses a number that no node has.
        (self.settings.nodes, self.settings.own) = (nodes.into_iter().collect(), own);
        self
    }

    /// How often the group is restarted because of a failure. Default: 3. With 0 the first failure ends the run.
    pub fn max_restarts(mut self, n: u32) -> Self {
        self.settings.max_restarts = n;
        self
    }

    /// Restores the full budget of restarts when the group was healthy for this time after a restart. Default: never.
    pub fn refill_after(mut self, healthy: Duration) -> Self {
        self.settings.refill_after = Some(healthy);
        self
    }

    /// The pause before the first restart, and the longest pause. Default: 100 ms and 30 s. Each restart doubles the pause; a restored budget begins with the first one again.
    pub fn backoff(mut self, first: Duration, most: Duration) -> Self {
        self.settings.backoff = (first, most);
        self
    }

    /// Keeps the workers' standard output and standard error: in `DIR/<run id>/attempt_<n>/<local rank>/`, as `stdout.log` and `stderr.log`. The workers
    /// write to the files directly, without a limit. If a run of this id exists, the new directory's name has a number added.
    ///
    /// Default: the workers inherit the output of this process.
    pub fn logs(mut self, dir: impl Into<PathBuf>) -> Self {
        self.settings.logs = Some(dir.into());
        self
    }

    /// The name of the run, for logs and for the workers' environment. Default: `run`.
    ///
    /// ```
    /// use forebear_supervise::agent::{AgentError, LocalAgent};
    /// use std::time::Duration;
    ///
    /// let agent = LocalAgent::builder("./worker")
    ///     .arg("--fast")
    ///     .env("TABLE", "big")
    ///     .current_dir("/")
    ///     .role("trainer")
    ///     .run_id("night-7")
    ///     .refill_after(Duration::from_secs(3600))
    ///     .start_timeout(Duration::from_secs(10))
    ///     .result_limit(1 << 20)
    ///     .error_file("/tmp/night-7.json")
    ///     .no_timers()
    ///     .build()?;
    /// # drop(agent);
    /// # Ok::<(), AgentError>(())
    /// ```
    pub fn run_id(mut self, id: impl Into<String>) -> Self {
        self.settings.run_id = id.into();
        self
    }

    /// The limit for the start of all workers of an attempt. Default: 30 s.
    pub fn start_timeout(mut self, most: Duration) -> Self {
        self.settings.start_timeout = most;
        self
    }

    /// The limits for the end of workers after SIGTERM, and after the SIGKILL that follows. Default: 30 s and 10 s. A worker that exceeds both is
    /// [reported](AgentError::Unkillable), and not waited for. With zero the agent checks once.
    pub fn stop_timeouts(mut self, term: Duration, kill: Duration) -> Self {
        self.settings.stop_timeouts = (term, kill);
        self
    }

    /// How many bytes a worker's result may have. Default: 64 MiB. A longer one is an [error](AgentError::Result).
    pub fn result_limit(mut self, bytes: u64) -> Self {
        self.settings.result_limit = bytes;
        self
    }

    /// The file for the first failure if the group fails, in torchelastic's form (JSON). Default: none. If it cannot be written, that is an
    /// [event](AgentEvent::ErrorFile), and the run returns the failure all the same.
    pub fn error_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.settings.error_file = Some(file.into());
        self
    }

    /// Passes SIGINT, SIGTERM, SIGHUP and SIGQUIT to the workers if this process gets them during a run. The run then ends as
    /// [stopped](super::GroupState::Stopped). At a second signal the agent sends SIGKILL at once. The program itself may then end by the signal that
    /// [`RunResult::signal`](super::RunResult::signal) names.
    ///
    /// The handlers are installed once in the life of the process. A signal that the process ignores (as under `nohup`) remains ignored. Without a run,
    /// signals have their usual effect.
    ///
    /// ```no_run
    /// use forebear_supervise::agent::{self, LocalAgent};
    ///
    /// agent::entry();
    /// let result = LocalAgent::builder("./worker").workers(4).pass_signals().build()?.run()?;
    /// if let Some(signal) = result.signal {
    ///     std::process::exit(128 + signal); // as a shell reports it
    /// }
    /// # Ok::<(), agent::AgentError>(())
    /// ```
    pub fn pass_signals(mut self) -> Self {
        self.settings.signals = true;
        self
    }

    /// The server for the workers' expiration timers. Default: one with default settings, and room for four processes of each worker. The workers find it through their environment
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
        self.timers = Timers::Given(Box::new(move |hook| server.on_event(hook).start()));
        self
    }

    /// Gives the workers no expiration timers.
    pub fn no_timers(mut self) -> Self {
        self.timers = Timers::None;
        self
    }

    /// Calls `hook` for each event, on the thread of the run, which waits for it. The hook may call all methods of the agent but `run`. A hook that panics is not called again.
    ///
    /// Failures of the timer server that come between two runs are events of the later run. Default: [`AgentEvent::TimersFailed`] and
    /// [`AgentEvent::ErrorFile`] are written to standard error, and nothing else.
    ///
    /// ```
    /// use forebear_supervise::agent::{AgentEvent, LocalAgent};
    /// let agent = LocalAgent::builder("./worker").on_event(|event| match event {
    ///     AgentEvent::Failed(failure) => eprintln!("{failure}"),
    ///     AgentEvent::TimersFailed { .. } => eprintln!("{event}"),
    ///     _ => {}
    /// });
    /// # drop(agent);
    /// ```
    pub fn on_event(mut self, hook: impl FnMut(&AgentEvent<'_>) + Send + 'static) -> Self {
        self.hook = Box::new(hook);
        self
    }

    /// Makes the agent. The timer server runs from here on. [`LocalAgent::run`] starts the workers.
    ///
    /// # Errors
    ///
    /// [`AgentError::Invalid`] if the number of workers is out of range, of this agent or of another one that [`among`](Self::among) was given, the run's name is no name of a
    /// directory, or `among` was given no node of that number.
    /// [`AgentError::Timers`], [`AgentError::Io`].
    pub fn build(self) -> Result<LocalAgent, AgentError> {
        let LocalAgentBuilder { mut settings, timers, hook } = self;
        check_nodes(&settings.nodes, settings.own)?;
        let id = &settings.run_id;
        if id.contains('\0') {
            return Err(AgentError::Invalid(format!(
                "the run's name {id:?} is no name of a directory: leave out the zero byte"
            )));
        }
        if id.is_empty() || id == "." || id == ".." || id.contains('/') {
            return Err(AgentError::Invalid(format!(
                "the run's name {id:?} is no name of a directory: leave out slashes"
            )));
        }
        if let Some(launcher) = &mut settings.launcher {
            // Absolute, since the workers may have another directory.
            *launcher = std::path::absolute(&*launcher)?;
        }
        Ok(LocalAgent(AgentShared::new(settings, timers, hook)?))
    }
}

/// An error that says how many workers there may be.
pub(super) fn check_workers(n: usize) -> Result<(), AgentError> {
    match n {
        1..=MOST_WORKERS => Ok(()),
        _ => Err(AgentError::Invalid(format!("{n} workers: there must be from 1 to {MOST_WORKERS}"))),
    }
}

/// An error that names the agent that cannot be.
fn check_nodes(nodes: &[Node], own: usize) -> Result<(), AgentError> {
    let count = nodes.len();
    if own >= count {
        return Err(AgentError::Invalid(format!(
            "this agent is to be number {own} of {count}: the numbers begin at 0, and each agent is named to `among`"
        )));
    }
    for (number, node) in nodes.iter().enumerate() {
        check_workers(node.workers).map_err(|error| match error {
            AgentError::Invalid(text) if count > 1 => {
                AgentError::Invalid(format!("agent {number} of {count}: {text}"))
            }
            error => error,
        })?;
    }
    Ok(())
}

/// The directory for the socket of an agent's own timer server.
pub(super) fn scratch_for_timers() -> io::Result<Scratch> {
    // For the short name, since a socket's has a hundred bytes.
    let place = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
    Scratch::new(&place.unwrap_or_else(env::temp_dir))
}

/// A server with the defaults, and room for so many workers.
pub(super) fn own_timers(
    scratch: &Scratch,
    hook: TimerHook,
    workers: usize,
) -> Result<LocalTimerHandle, TimerError> {
    let mut limits = Limits::default();
    limits.workers = limits.workers.max(4 * workers);
    limits.connections = limits.connections.max(8 * workers);
    LocalTimerServer::bind_at(scratch.path().join("timers"))?.limits(limits).on_event(hook).start()
}

impl fmt::Debug for LocalAgentBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalAgentBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}
