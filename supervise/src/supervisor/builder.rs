//! [`SupervisorBuilder`]: the settings of a supervisor.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebear::Error;

use super::preparing::{Readiness, SessionManager};
use super::role::{Chief, ChiefDeath};
use super::{Supervisor, Task};
use crate::contain::print;
use crate::ordinary;
use crate::{Checkpoints, Coordinator, EventWriter, State, StepCounter, Summary};

pub(super) type Check<S> = Box<dyn Fn(&S) -> Readiness + Send + Sync>;
type Summarise<S> = Box<dyn Fn(&S) -> Result<Summary, Error> + Send + Sync>;
type OnWarning = Box<dyn Fn(&str) + Send + Sync>;

/// What the builder leaves to the supervisor.
pub(super) struct SupervisorSettings<S> {
    pub(super) state: Arc<S>,
    pub(super) steps: StepCounter,
    pub(super) dir: Option<PathBuf>,
    pub(super) chief: Chief,
    pub(super) when_chief_dies: ChiefDeath,
    pub(super) init: Vec<Task<S>>,
    pub(super) local_init: Vec<Task<S>>,
    pub(super) local_init_when: Option<Check<S>>,
    pub(super) ready: Option<Check<S>>,
    pub(super) summary: Option<Summarise<S>>,
    pub(super) has_events: bool,
    pub(super) own_events: Option<Arc<EventWriter>>,
    pub(super) has_checkpoints: bool,
    pub(super) own_checkpoints: Option<Checkpoints>,
    pub(super) save_every: Option<Duration>,
    pub(super) summarise_every: Option<Duration>,
    pub(super) count_steps_every: Option<Duration>,
    pub(super) save_on_stop: bool,
    pub(super) keep_event_file: bool,
    pub(super) services: bool,
    pub(super) wait_for_checkpoint: Duration,
    pub(super) wait_for_chief: Duration,
    pub(super) look_every: Duration,
    pub(super) stop_grace: Duration,
    pub(super) restore_from: Option<PathBuf>,
    pub(super) session_manager: Option<Box<dyn SessionManager<S>>>,
    pub(super) coordinator: Coordinator,
    pub(super) on_warning: OnWarning,
}

/// A [`Supervisor`] that is being described. From [`Supervisor::builder`].
///
/// ```
/// use forebear_supervise::{EventWriter, Snapshot, StepCounter, Summary, Supervisor};
/// use std::time::Duration;
///
/// # let dir = std::env::temp_dir().join(format!("settings-{}", std::process::id()));
/// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64))
///     .dir(&dir)
///     .steps(StepCounter::new("epochs"))
///     .init(|sum| Ok(sum.set(5))) // without a checkpoint
///     .local_init(|sum| Ok(println!("begins with {}", sum.get())))
///     .summary(|sum| Ok(Summary::new().scalar("sum", sum.get() as f64)))
///     .events(EventWriter::create(dir.join("events"))?)
///     .save_every(Duration::from_secs(60))
///     .summarise_every(Duration::from_secs(1))
///     .count_steps_every(None)
///     .save_on_stop(true)
///     .stop_grace(Duration::from_secs(10))
///     .on_warning(|text| eprintln!("{text}"))
///     .build();
/// assert_eq!(supervisor.steps().name(), "epochs");
/// assert_eq!((supervisor.dir(), supervisor.count_steps_every()), (Some(dir.as_path()), None));
/// let last = supervisor.run(|session| {
///     assert!(session.is_chief() && session.restored_from().is_none());
///     session.step(|sum| sum.update(|sum| *sum += 1))?;
///     session.summary_computed(Summary::new().text("notes", "one step"), None)?;
///     Ok(session.save_now()?.step)
/// })?;
/// assert_eq!((last, supervisor.state().get()), (Some(1), 6));
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```
/// use forebear_supervise::{
///     Checkpoints, Chief, ChiefDeath, Coordinator, Readiness, Snapshot, SuperviseError, Supervisor,
/// };
/// use std::time::Duration;
///
/// # let dir = std::env::temp_dir().join(format!("elected-{}", std::process::id()));
/// let coordinator = Coordinator::new();
/// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64))
///     .dir(&dir)
///     .chief(Chief::Elect) // several processes of one job
///     .when_chief_dies(ChiefDeath::TakeOver)
///     .wait_for_chief(Duration::from_secs(60))
///     .look_every(Duration::from_secs(5))
///     .checkpoints(Checkpoints::open(&dir)?.keep(20))
///     .coordinator(&coordinator)
///     .keep_event_file(true)
///     .local_init_when(|_| Readiness::Ready, |sum| Ok(println!("ready with {}", sum.get())))
///     .ready(|_| Readiness::Ready)
///     .build();
/// assert_eq!(supervisor.run(|session| Ok(session.is_chief()))?, Some(true));
///
/// let unsaved = Supervisor::builder(Snapshot::new(1, 0_u64))
///     .no_checkpoints()
///     .no_events()
///     .services(false)
///     .on_warning(|_| ()) // there is no directory
///     .build();
/// assert_eq!(unsaved.run(|session| Ok(session.steps().get()))?, Some(0));
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), SuperviseError>(())
/// ```
#[must_use = "a builder does nothing before `build`"]
pub struct SupervisorBuilder<S> {
    settings: SupervisorSettings<S>,
    when_chief_dies: Option<ChiefDeath>,
}

impl<S: State> SupervisorBuilder<S> {
    pub(super) fn new(state: S) -> Self {
        let settings = SupervisorSettings {
            state: Arc::new(state),
            steps: StepCounter::default(),
            dir: None,
            chief: Chief::Yes,
            when_chief_dies: ChiefDeath::Stop,
            init: Vec::new(),
            local_init: Vec::new(),
            local_init_when: None,
            ready: None,
            summary: None,
            has_events: true,
            own_events: None,
            has_checkpoints: true,
            own_checkpoints: None,
            save_every: Some(Duration::from_secs(600)),
            summarise_every: Some(Duration::from_secs(120)),
            count_steps_every: Some(Duration::from_secs(120)),
            save_on_stop: true,
            keep_event_file: false,
            services: true,
            wait_for_checkpoint: Duration::ZERO,
            wait_for_chief: Duration::from_secs(7_200),
            look_every: Duration::from_secs(1),
            stop_grace: Duration::from_secs(120),
            restore_from: None,
            session_manager: None,
            coordinator: Coordinator::new(),
            on_warning: Box::new(|text| print(format_args!("forebear: {text}"))),
        };
        SupervisorBuilder { settings, when_chief_dies: None }
    }

    /// The directory for checkpoints and summaries, relative to the current directory at [`build`](Self::build). All processes of a job are given the same one. The start creates it. Without a directory nothing is saved, and the start
    /// warns of that.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.settings.dir = Some(dir.into());
        self
    }

    /// Whether this process is the chief. Default: it is.
    pub fn chief(mut self, chief: Chief) -> Self {
        self.settings.chief = chief;
        self
    }

    /// What this process does when the chief dies, if it is not the chief itself.
    pub fn when_chief_dies(mut self, what: ChiefDeath) -> Self {
        self.when_chief_dies = Some(what);
        self
    }

    /// Initialises the state, in the chief, if there is no checkpoint. Several closures are called in the order in which they were given. Without any, the state counts as
    /// initialised by its own value, unless it names something that is [missing](State::missing).
    ///
    /// It is called by the thread or request that starts the session. A stop or a failure that comes meanwhile ends the start after these closures, and does not wake
    /// them where they wait. A closure that takes long asks a clone of the [coordinator](Self::coordinator) whether it
    /// [should stop](crate::Coordinator::should_stop), or waits by [`wait_for_stop_timeout`](crate::Coordinator::wait_for_stop_timeout).
    ///
    /// ```
    /// use forebear_supervise::{Coordinator, Snapshot, Supervisor};
    ///
    /// let coordinator = Coordinator::builder().stop_on_signals().build()?;
    /// let asked = coordinator.clone();
    /// let supervisor = Supervisor::builder(Snapshot::new(1, Vec::<u64>::new()))
    ///     .coordinator(&coordinator)
    ///     .init(move |rows| {
    ///         for n in 0..1_000 {
    ///             if asked.should_stop() {
    ///                 break; // the job does not begin
    ///             }
    ///             rows.update(|rows| rows.push(n * n));
    ///         }
    ///         Ok(())
    ///     })
    ///     .build();
    /// assert_eq!(supervisor.run(|session| Ok(session.state().get().len()))?, Some(1_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn init(mut self, f: impl Fn(&S) -> Result<(), Error> + Send + Sync + 'static) -> Self {
        self.settings.init.push(Box::new(f));
        self
    }

    /// Prepares what is not in a checkpoint. Called in each process, after the state was initialised or restored. May be given several times. A stop
    /// reaches it as it reaches [`init`](Self::init).
    pub fn local_init(mut self, f: impl Fn(&S) -> Result<(), Error> + Send + Sync + 'static) -> Self {
        self.settings.local_init.push(Box::new(f));
        self
    }

    /// As [`local_init`](Self::local_init), once `ready` returns [`Readiness::Ready`]. In the chief it must return that at once; another process waits for it.
    pub fn local_init_when(
        mut self,
        ready: impl Fn(&S) -> Readiness + Send + Sync + 'static,
        f: impl Fn(&S) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Self {
        self.settings.local_init_when = Some(Box::new(ready));
        self.local_init(f)
    }

    /// Whether the state can be used. Called after everything else was prepared. In the chief it must be ready at once; another process waits until it is.
    pub fn ready(mut self, ready: impl Fn(&S) -> Readiness + Send + Sync + 'static) -> Self {
        self.settings.ready = Some(Box::new(ready));
        self
    }

    /// Makes the summary for TensorBoard. Called in the chief, [periodically](Self::summarise_every), in a request, while the job runs.
    pub fn summary(mut self, f: impl Fn(&S) -> Result<Summary, Error> + Send + Sync + 'static) -> Self {
        self.settings.summary = Some(Box::new(f));
        self
    }

    /// The counter of steps. Default: one named `global_step` that begins at zero.
    pub fn steps(mut self, steps: StepCounter) -> Self {
        self.settings.steps = steps;
        self
    }

    /// The writer for summaries, in place of a new one in the directory for each session. All sessions of the supervisor use it.
    pub fn events(mut self, writer: EventWriter) -> Self {
        self.settings.own_events = Some(Arc::new(writer));
        self.settings.has_events = true;
        self
    }

    /// Writes no summaries.
    pub fn no_events(mut self) -> Self {
        self.settings.own_events = None;
        self.settings.has_events = false;
        self
    }

    /// The checkpoints, in place of those in the directory with default settings.
    pub fn checkpoints(mut self, checkpoints: Checkpoints) -> Self {
        self.settings.own_checkpoints = Some(checkpoints);
        self.settings.has_checkpoints = true;
        self
    }

    /// Neither saves nor restores.
    pub fn no_checkpoints(mut self) -> Self {
        self.settings.own_checkpoints = None;
        self.settings.has_checkpoints = false;
        self
    }

    /// How often a checkpoint is written. Default: every 600 seconds. The first one is written when the job starts. `None`: only by
    /// [`save_now`](super::Session::save_now) and [at the end](Self::save_on_stop).
    pub fn save_every(mut self, period: impl Into<Option<Duration>>) -> Self {
        self.settings.save_every = period.into();
        self
    }

    /// How often the [summary](Self::summary) is written, beginning with the start of the job. Default: every 120 seconds. `None`: never.
    pub fn summarise_every(mut self, period: impl Into<Option<Duration>>) -> Self {
        self.settings.summarise_every = period.into();
        self
    }

    /// How often the rate of steps is written, beginning with the start of the job. Default: every 120 seconds. `None`: never.
    pub fn count_steps_every(mut self, period: impl Into<Option<Duration>>) -> Self {
        self.settings.count_steps_every = period.into();
        self
    }

    /// Whether a checkpoint is written when the job has ended without a failure. Default: `true`.
    pub fn save_on_stop(mut self, yes: bool) -> Self {
        self.settings.save_on_stop = yes;
        self
    }

    /// Whether all sessions of this supervisor write into one event file. Default: `false`, each session has a file of its own.
    pub fn keep_event_file(mut self, yes: bool) -> Self {
        self.settings.keep_event_file = yes;
        self
    }

    /// Whether a start also starts the services. Default: `true`. See [`start_services`](super::Session::start_services).
    pub fn services(mut self, yes: bool) -> Self {
        self.settings.services = yes;
        self
    }

    /// How long the chief waits for a first checkpoint, which another program writes, before it initialises the state. Default: it does not wait. The other program should
    /// write no checkpoint after that, since of two concurrent saves into a directory one is [refused](crate::CheckpointError::Busy).
    ///
    /// ```
    /// use forebear_supervise::{Checkpoints, Snapshot, Supervisor};
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// # let dir = std::env::temp_dir().join(format!("wait-for-{}", std::process::id()));
    /// Checkpoints::open(&dir)?.save(100, &Arc::new(Snapshot::new(1, 7_u64)))?; // another program
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64))
    ///     .dir(&dir)
    ///     .wait_for_checkpoint(Duration::from_secs(60))
    ///     .build();
    /// assert_eq!(supervisor.run(|session| Ok(session.state().get()))?, Some(7));
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), forebear_supervise::SuperviseError>(())
    /// ```
    pub fn wait_for_checkpoint(mut self, at_most: Duration) -> Self {
        self.settings.wait_for_checkpoint = at_most;
        self
    }

    /// How long a process that is not the chief waits until it can begin. Default: two hours. `Duration::MAX`: without limit.
    pub fn wait_for_chief(mut self, at_most: Duration) -> Self {
        self.settings.wait_for_chief = at_most;
        self
    }

    /// How often a process that waits for the chief, or for a checkpoint, polls. Default: every second. On Linux the kernel notifies it of changes in a directory of this
    /// machine and of the chief's end. Polling is for directories that machines share, for what [`ready`](Self::ready) checks, and for other systems.
    pub fn look_every(mut self, period: Duration) -> Self {
        self.settings.look_every = period.max(Duration::from_millis(1));
        self
    }

    /// How long a stop waits for all services and workers together. Default: 120 seconds. The last save comes after that, and is
    /// [not bounded](Supervisor::stop).
    pub fn stop_grace(mut self, total: Duration) -> Self {
        self.settings.stop_grace = total;
        self
    }

    /// A checkpoint file to restore if the directory has no checkpoint; [`init`](Self::init) is not called then. A job that is started again continues at its own
    /// newest checkpoint, not at this file.
    ///
    /// ```
    /// use forebear_supervise::{Checkpoints, Snapshot, SuperviseError, Supervisor};
    /// use std::sync::Arc;
    ///
    /// # let dir = std::env::temp_dir().join(format!("trained-{}", std::process::id()));
    /// # let new = std::env::temp_dir().join(format!("tuned-{}", std::process::id()));
    /// let trained = Checkpoints::open(&dir)?.save(100, &Arc::new(Snapshot::new(1, 7_u64)))?;
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).dir(&new).restore_from(&trained.path).build();
    /// supervisor.run(|session| Ok(assert_eq!(session.steps().get(), 100)))?;
    /// assert_eq!(supervisor.state().get(), 7);
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # std::fs::remove_dir_all(&new).unwrap();
    /// # Ok::<(), SuperviseError>(())
    /// ```
    pub fn restore_from(mut self, file: impl Into<PathBuf>) -> Self {
        self.settings.restore_from = Some(file.into());
        self
    }

    /// Prepares the state, in place of all closures above.
    ///
    /// ```
    /// use forebear_supervise::{Prepared, Preparing, Snapshot, Supervisor};
    /// use std::sync::Arc;
    ///
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64))
    ///     .session_manager(|sum: &Arc<Snapshot<u64>>, _: &Preparing| {
    ///         sum.set(7);
    ///         Ok(Prepared { step: 0, restored_from: None })
    ///     })
    ///     .build();
    /// assert_eq!(supervisor.run(|session| Ok(session.state().get()))?, Some(7));
    /// # Ok::<(), forebear_supervise::SuperviseError>(())
    /// ```
    pub fn session_manager(mut self, manager: impl SessionManager<S>) -> Self {
        self.settings.session_manager = Some(Box::new(manager));
        self
    }

    /// The coordinator of the job's workers, in place of one with default settings. Its builder has settings for signals, kinds of clean stops, and the runtime.
    pub fn coordinator(mut self, coordinator: &Coordinator) -> Self {
        self.settings.coordinator = coordinator.clone();
        self
    }

    /// Receives warnings, as text for a human reader: what the start waits for, what is not saved, and what
    /// [`run`](Supervisor::run) waits for longer than the grace. Default: they are written to standard error. The hook must not wait.
    pub fn on_warning(mut self, hook: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.settings.on_warning = Box::new(hook);
        self
    }

    /// Makes the supervisor. It writes nothing to disk before a start.
    #[must_use]
    pub fn build(mut self) -> Supervisor<S> {
        self.settings.when_chief_dies = match (self.settings.chief, self.when_chief_dies) {
            (Chief::Elect, None) => ChiefDeath::TakeOver,
            (Chief::No, Some(ChiefDeath::TakeOver)) | (_, None) => ChiefDeath::Stop,
            (_, Some(what)) => what,
        };
        // The job may change the directory of its process.
        self.settings.dir = self.settings.dir.map(ordinary::absolute);
        Supervisor::new(self.settings)
    }
}

impl<S> fmt::Debug for SupervisorBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SupervisorBuilder")
            .field("dir", &self.settings.dir)
            .field("chief", &self.settings.chief)
            .finish_non_exhaustive()
    }
}
