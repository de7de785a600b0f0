//! A timer server for worker processes: the socket, the table of timers and the reaper together, and the
//! options.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::place::Place;
use super::queue::LocalQueue;
use super::reporter::EventHook;
use super::{ENVIRONMENT, KillProcess, Limits, LocalEvent, LocalWorker};
use crate::expiry::{Reaper, TimerError, TimerEvent, Watchdog, WatchdogHandle, WatchdogStats};

type TimerHook = Box<dyn FnMut(&TimerEvent<'_, LocalWorker>) + Send>;

/// A server of timers for processes of this machine and this user. See [the module](super).
///
/// It listens as soon as it is bound, and serves when it is started. The server sleeps until a message arrives or the next
/// deadline, to the nanosecond. It does not poll.
///
/// ```
/// use forebear::timer::{TimerError, TimerGuard};
/// use forebear::timer::local::{LocalTimerClient, LocalTimerServer};
/// use std::time::Duration;
///
/// let server = LocalTimerServer::bind()?.start()?;
/// let client = LocalTimerClient::connect(server.path())?;
/// let timer = TimerGuard::builder().client(&client).expires(Duration::from_secs(60))?;
/// timer.release()?;
/// server.stop()?;
/// # Ok::<(), TimerError>(())
/// ```
#[must_use = "a server does nothing until it is started"]
pub struct LocalTimerServer<R = KillProcess> {
    socket: (Place, OwnedFd),
    reaper: R,
    name: Option<String>,
    limits: Limits,
    patience: Duration,
    retry_after: Option<Duration>,
    timer_hooks: Vec<TimerHook>,
    process_hooks: Vec<EventHook>,
}

impl LocalTimerServer {
    /// A server in a directory of its own, which only this user can enter. It is removed when the server ends.
    ///
    /// # Errors
    ///
    /// The system refuses the directory or the socket.
    pub fn bind() -> Result<LocalTimerServer, TimerError> {
        Ok(LocalTimerServer::at(Place::own()?))
    }

    /// A server at a path, where clients also find its successor. The socket of a killed server is replaced: one of this user, at which nobody listens. Anything else that
    /// stands there is left alone.
    ///
    /// A lock file, `PATH.lock`, exists for as long as the server has the path. So of several servers that bind one path at once, one succeeds. A file of that
    /// name that no server has written is left alone.
    ///
    /// Only this user can connect. Choose a directory in which no other user can rename files: not `/tmp` itself.
    ///
    /// # Errors
    ///
    /// All are [`TimerError::Io`] with a [`BindError`](super::BindError) in it, which names the path. The kind is `AddrInUse` if there is a server already, or if one was killed and a
    /// child that it forked still has its socket. It is `AlreadyExists` if something else stands at the path, or at that of the lock file. Other kinds are those of the system. A path
    /// longer than an address can be (some 100 bytes) is refused.
    ///
    /// ```
    /// use forebear::timer::TimerError;
    /// use forebear::timer::local::LocalTimerServer;
    ///
    /// # let directory = std::env::temp_dir().join(format!("forebear-{}", std::process::id()));
    /// # std::fs::create_dir_all(&directory).unwrap();
    /// let path = directory.join("timers"); // in a directory that only this user can enter
    /// let server = LocalTimerServer::bind_at(&path)?.start()?;
    /// assert_eq!(server.path(), path);
    /// server.stop()?;
    /// # std::fs::remove_dir_all(&directory).unwrap();
    /// # Ok::<(), TimerError>(())
    /// ```
    pub fn bind_at(path: impl AsRef<Path>) -> Result<LocalTimerServer, TimerError> {
        Ok(LocalTimerServer::at(Place::given(path.as_ref())?))
    }

    fn at(socket: (Place, OwnedFd)) -> LocalTimerServer {
        LocalTimerServer {
            socket,
            reaper: KillProcess::new(),
            name: None,
            limits: Limits::default(),
            patience: Duration::from_secs(5),
            retry_after: None,
            timer_hooks: Vec::new(),
            process_hooks: Vec::new(),
        }
    }
}

impl<R: Reaper<LocalWorker>> LocalTimerServer<R> {
    /// What is done to a worker whose timer has expired. By default it is [killed](KillProcess).
    pub fn reaper<S: Reaper<LocalWorker>>(self, reaper: S) -> LocalTimerServer<S> {
        let LocalTimerServer { socket, name, limits, patience, retry_after, .. } = self;
        let LocalTimerServer { timer_hooks, process_hooks, .. } = self;
        LocalTimerServer { socket, reaper, name, limits, patience, retry_after, timer_hooks, process_hooks }
    }

    /// The name in messages, and of the thread. By default `timers`.
    pub fn name(self, name: impl Into<String>) -> Self {
        LocalTimerServer { name: Some(name.into()), ..self }
    }

    /// How many connections, processes and timers it accepts.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::timer::TimerError;
    /// use forebear::timer::local::{Ladder, Limits, LocalTimerServer};
    ///
    /// let mut limits = Limits::default();
    /// limits.workers = 64;
    /// let server = LocalTimerServer::bind()?
    ///     .name("tiles")
    ///     .limits(limits)
    ///     .reaper(Ladder::new().signal_after(Duration::ZERO, 15).kill_after(Duration::from_secs(5)))
    ///     .patience(Duration::from_secs(2))
    ///     .retry_after(Duration::from_secs(1))
    ///     .on_event(|event| eprintln!("{event}"))
    ///     .on_process(|event| eprintln!("{event}"))
    ///     .start()?;
    /// server.stop()?;
    /// # Ok::<(), TimerError>(())
    /// ```
    pub fn limits(self, limits: Limits) -> Self {
        LocalTimerServer { limits, ..self }
    }

    /// How long after a signal that was to end it a process that still lives is [reported](LocalEvent::Survives). By default 5 s.
    pub fn patience(self, patience: Duration) -> Self {
        LocalTimerServer { patience, ..self }
    }

    /// The pause before the server signals a process again that it could not signal. By default 100
    /// ms.
    pub fn retry_after(self, pause: Duration) -> Self {
        LocalTimerServer { retry_after: Some(pause), ..self }
    }

    /// Calls `hook` for each event of a timer, on the server's thread. There may be several hooks.
    ///
    /// Without a hook, all events but the start, the stop and orphans are written to standard
    /// error.
    pub fn on_event(mut self, hook: impl FnMut(&TimerEvent<'_, LocalWorker>) + Send + 'static) -> Self {
        self.timer_hooks.push(Box::new(hook));
        self
    }

    /// Calls `hook` for each event of a process at the socket, on the server's thread. There may be several hooks.
    ///
    /// Without a hook, failures are written to standard error.
    pub fn on_process(mut self, hook: impl FnMut(&LocalEvent<'_>) + Send + 'static) -> Self {
        self.process_hooks.push(Box::new(hook));
        self
    }

    /// Where clients find it.
    pub fn path(&self) -> &Path {
        self.socket.0.path()
    }

    /// Gives the server a thread of its own. The thread does not keep the process alive.
    ///
    /// # Errors
    ///
    /// The system refuses a thread, or descriptors.
    pub fn start(self) -> Result<LocalTimerHandle, TimerError> {
        let path = self.path().to_owned();
        let name = self.name.unwrap_or_else(|| "timers".into());
        let queue =
            LocalQueue::new(self.socket, self.limits, self.patience, name.clone(), self.process_hooks)?;
        let mut watchdog = Watchdog::new(queue, self.reaper).name(name);
        if let Some(pause) = self.retry_after {
            watchdog = watchdog.retry_after(pause);
        }
        for hook in self.timer_hooks {
            watchdog = watchdog.on_event(hook);
        }
        Ok(LocalTimerHandle { path, watchdog: watchdog.start()? })
    }
}

impl<R: fmt::Debug> fmt::Debug for LocalTimerServer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut s = f.debug_struct("LocalTimerServer");
        s.field("path", &self.socket.0.path()).field("reaper", &self.reaper).finish_non_exhaustive()
    }
}

/// A server that is running. Made by [`LocalTimerServer::start`].
///
/// Dropping it asks the server to stop, and does not wait for it. A process that exits just then ends before the server has removed its socket and its directory,
/// and they stay: call [`stop`](Self::stop) before the end of `main`.
///
/// ```
/// use std::process::Command;
/// use forebear::timer::TimerError;
/// use forebear::timer::local::{ENVIRONMENT, LocalTimerHandle, LocalTimerServer};
///
/// let server: LocalTimerHandle = LocalTimerServer::bind()?.start()?;
/// assert!(server.is_running() && server.path().exists());
/// let mut command = Command::new("worker");
/// server.pass_to(&mut command);
/// assert!(command.get_envs().any(|(name, _)| name == ENVIRONMENT));
/// assert_eq!(server.stats().reaped, 0);
/// server.stop()?;
/// assert!(!server.is_running());
/// # Ok::<(), TimerError>(())
/// ```
#[derive(Debug)]
#[must_use = "the server is stopped when the handle is dropped"]
pub struct LocalTimerHandle {
    path: PathBuf,
    watchdog: WatchdogHandle,
}

impl LocalTimerHandle {
    /// Where clients find it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the server's path into the environment of a process that is to be started, for
    /// [`configure_from_env`](super::configure_from_env).
    pub fn pass_to<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env(ENVIRONMENT, &self.path)
    }

    /// Stops the server and closes its connections; no process is killed any more. Waits for a reaper or a hook that
    /// is running, for a minute at most.
    ///
    /// # Errors
    ///
    /// [`TimerError::StillRunning`] if a reaper or a hook hangs. The server stops when it returns.
    pub fn stop(&self) -> Result<(), TimerError> {
        self.watchdog.stop()
    }

    /// Lets the server run without a handle until the process ends.
    ///
    /// ```no_run
    /// use forebear::timer::TimerError;
    /// use forebear::timer::local::LocalTimerServer;
    ///
    /// LocalTimerServer::bind()?.start()?.detach(); // until the process ends
    /// # Ok::<(), TimerError>(())
    /// ```
    pub fn detach(self) {
        self.watchdog.detach();
    }

    /// Whether the server's thread still runs.
    pub fn is_running(&self) -> bool {
        self.watchdog.is_running()
    }

    /// What it has counted so far.
    pub fn stats(&self) -> WatchdogStats {
        self.watchdog.stats()
    }
}
