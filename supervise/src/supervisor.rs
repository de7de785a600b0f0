//! [`Supervisor`]: a job that begins where it has stopped, and is saved and shown while it runs.
//!
//! # The parts
//!
//! * `builder`: the settings.
//! * `chief`: which process may write into the directory: a lock that the kernel releases, and a record beside it.
//! * `watch`: how other processes are notified of what happens to the chief.
//! * `role`, `preparing`: what a user decides of that: which process is chief, and how the state is prepared.
//! * `start`: what a session begins with.
//! * `session`: what the job and its services hold.
//! * `gate`: how a save excludes the steps.
//! * `seat`: when the chief's place may be given up.
//! * `overdue`: the warning that `run` waits longer than the grace.
//! * `published`: a value that one thread sets, and whose changes others wait for.
//! * `services`: checkpoints, summaries, the rate of steps.
//! * `steps`: the counter of steps.
//! * `error`: what can go wrong.
//!
//! A session ends in this order. All workers are joined. The state is saved, if the job has not failed. The event file is closed, in any case. Handles that are kept
//! can save and make steps no more. The chief releases its lock.
//!
//! The next session takes back the stop and the errors that this join has answered, and nothing else: a stop that was requested in between ends that session before it begins,
//! and so does an error that no join has answered.

mod builder;
mod chief;
mod error;
mod gate;
mod overdue;
mod preparing;
mod published;
mod role;
mod seat;
mod services;
mod session;
mod start;
mod steps;
mod watch;

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebear::{Error, Failure, Request, WaitError, is_cancelled, shield};

pub use self::builder::SupervisorBuilder;
pub use self::error::{ChiefDied, JobCancelled, SuperviseError};
pub use self::preparing::{Prepared, Preparing, Readiness, SessionManager};
pub use self::role::{Chief, ChiefDeath};
pub use self::session::Session;
pub use self::steps::StepCounter;

use self::builder::SupervisorSettings;
use self::chief::Phase;
use self::overdue::Overdue;
use self::session::lock;
use self::start::Mode;
use crate::coordinator::attempt;
use crate::{Coordinator, EventWriter, JoinError, JoinOptions, State};

/// So long the end of a session waits, after the grace, for a save that a straggler has begun.
const AFTER_GRACE: Duration = Duration::from_secs(1);

/// What prepares a state.
type Task<S> = Box<dyn Fn(&S) -> Result<(), Error> + Send + Sync>;

/// A job under supervision: a [`Coordinator`], [`Checkpoints`](crate::Checkpoints) and services around it.
///
/// [`run`](Self::run) or [`start`](Self::start) begins a session: it restores the state from the newest valid checkpoint, or initialises it. Services write
/// checkpoints and summaries while the session runs; the failure of a service stops the job. A clean stop saves the state once more.
///
/// Several processes may work at one job. One is the [chief](Chief), which does all that. The others begin when the chief is ready, and are notified of its death.
///
/// ```
/// use forebear_supervise::{Snapshot, SuperviseError, Supervisor};
///
/// fn job(dir: &std::path::Path, steps: u64) -> Result<u64, SuperviseError> {
///     let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).dir(dir).build();
///     supervisor.run(|session| {
///         for _ in 0..steps {
///             session.step(|sum| sum.update(|sum| *sum += 1))?; // an error after a stop: ends the job cleanly
///         }
///         Ok(())
///     })?;
///     Ok(supervisor.state().get())
/// }
///
/// # let dir = std::env::temp_dir().join(format!("supervisor-{}", std::process::id()));
/// assert_eq!(job(&dir, 100)?, 100);
/// assert_eq!(job(&dir, 10)?, 110); // continues where the first one ended
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), SuperviseError>(())
/// ```
///
/// # Source
///
/// `tf.train.Supervisor` of TensorFlow. `docs/coordination.md` in the repository lists the differences, row by row.
pub struct Supervisor<S: State> {
    settings: Arc<SupervisorSettings<S>>,
    /// A session has been started, or is being, and has not been stopped.
    busy: AtomicBool,
    session: Mutex<Option<Session<S>>>,
    /// The next start takes the coordinator's stop back, since it is that of the session before.
    clears: AtomicBool,
    kept_events: Mutex<Option<Arc<EventWriter>>>,
}

impl<S: State> Supervisor<S> {
    /// Describes a supervisor of this state.
    ///
    /// ```
    /// use forebear_supervise::{Checkpoints, Chief, Coordinator, Snapshot, Summary, Supervisor};
    /// use std::time::Duration;
    ///
    /// # let dir = std::env::temp_dir().join(format!("builder-{}", std::process::id()));
    /// let supervisor = Supervisor::builder(Snapshot::new(1, vec![0.0; 10]))
    ///     .dir(&dir)
    ///     .checkpoints(Checkpoints::open(&dir)?.keep(20))
    ///     .coordinator(&Coordinator::builder().stop_on_signals().build()?)
    ///     .init(|weights| Ok(weights.update(|weights| weights.fill(0.5))))
    ///     .summary(|weights| Ok(Summary::new().histogram("weights", &weights.get())))
    ///     .save_every(Duration::from_secs(60))
    ///     .build();
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(state: S) -> SupervisorBuilder<S> {
        SupervisorBuilder::new(state)
    }

    fn new(settings: SupervisorSettings<S>) -> Self {
        Supervisor {
            settings: Arc::new(settings),
            busy: AtomicBool::new(false),
            session: Mutex::new(None),
            clears: AtomicBool::new(false),
            kept_events: Mutex::new(None),
        }
    }

    /// Starts a session, calls `f`, and stops the session. Returns the value of `f`. Returns `None` if the job has ended cleanly before `f` returned a value: by
    /// [`EndOfInput`](crate::EndOfInput), or because a stop interrupted `f`.
    ///
    /// `f` runs in a request of its own, as a worker named `main`. A stop cancels it, which wakes it wherever it waits. Its error or panic stops the job. The error of
    /// `run` is the first failure of the job. `f` waits for other workers by their requests, since a [join](Coordinator::join) in it would wait for `f` as well.
    ///
    /// A stop may be requested before `f` is called, as by a signal between two sessions or during [`init`](SupervisorBuilder::init). Then `f` is not
    /// called, and the answer is `None`. An error that was reported before is the error of `run`.
    ///
    /// # What bounds it
    ///
    /// `run` returns after `f` has, since `f` may borrow. So the [grace](SupervisorBuilder::stop_grace) bounds the wait for services and other workers, which begins then, and not the wait
    /// for `f`. A stop ends the waits of `f`. It does not end `f` while that computes or blocks its thread. Nor does it while another request does so on the same thread of the runtime: a request that
    /// has been started goes on where it was started. If `f` has not ended when the grace has passed since the stop, the supervisor [warns](SupervisorBuilder::on_warning), and names the
    /// request that keeps the thread. Let workers that compute for long [look](Session::should_stop) for a stop, and [yield](forebear::yield_now) or run in
    /// [a thread of their own](Coordinator::spawn_thread). Where the grace has to bound all of it, [`start`](Self::start) the session, spawn the job as a worker, and [`stop`](Self::stop).
    ///
    /// Suspends. A cancellation point: a cancelled caller cancels `f`, and stops the session in order.
    ///
    /// # Errors
    ///
    /// [`SuperviseError`]: those of [`start`](Self::start) and of [`stop`](Self::stop).
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start). A panic of `f` is an error.
    pub fn run<R: Send>(
        &self,
        f: impl FnOnce(&Session<S>) -> Result<R, Error> + Send,
    ) -> Result<Option<R>, SuperviseError> {
        let coordinator = self.coordinator();
        if !self.busy.load(Ordering::Relaxed) {
            self.is_no_worker()?;
        }
        let session = match self.start() {
            Err(SuperviseError::Stopped) => return Ok(None),
            started => started?,
        };
        let mut ran = None;
        let runtime = Arc::new(coordinator.runtime());
        let (ends, overdue) = Overdue::new(&self.settings, &runtime);
        let body = || {
            // One that has come since the start began.
            if coordinator.should_stop() {
                return Ok(());
            }
            let member = coordinator.enlist("main");
            if let Some(request) = Request::current() {
                member.is_request_and(&request, overdue.of(request.clone()));
            }
            ran = Some(attempt(member.name(), || f(&session)));
            Ok(())
        };
        let waited = runtime.try_run(body);
        drop(ends);
        // The request may count as cancelled though `f` has come to its end. What `f` has returned counts.
        let ran = match (ran, waited) {
            // `f` says that it was cancelled, and only its request knows why.
            (Some(Err((failure, true))), Err(WaitError::TargetCancelled(reason))) => {
                Err((JobCancelled::failure(reason, failure), true))
            }
            (Some(ran), _) => ran,
            (None, waited) => {
                let error = waited.err().map_or_else(|| Error::from(forebear::Cancelled::new()), Error::from);
                let follows = error.is_cancelled();
                Err((Failure::from_error(error, "main", None), follows))
            }
        };
        drop(session);
        let cut_short = is_cancelled();
        let (value, own) = match ran {
            Ok(value) => (Some(value), None),
            Err((failure, _)) if coordinator.is_clean(&failure) => (None, None),
            Err((_, true)) if cut_short || coordinator.should_stop() => (None, None),
            Err((failure, follows)) => {
                // After a plain stop no join answers it; it comes out of here.
                if !coordinator.should_stop() || coordinator.requested_error().is_some() {
                    let _ = coordinator.record(failure.clone(), follows);
                }
                (None, Some(failure))
            }
        };
        self.finish(JoinOptions::new(), own)?;
        if cut_short && value.is_none() { Err(SuperviseError::Cancelled) } else { Ok(value) }
    }

    /// Starts a session, for programs that [`run`](Self::run) does not fit. [`stop`](Self::stop) ends it. After that another session can be started.
    ///
    /// The chief restores or initialises the state. Another process waits until the chief is ready, up to a [limit](SupervisorBuilder::wait_for_chief).
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`SuperviseError`]. Nothing is left running then, and the start can be repeated. `Stopped` and `Job`: a stop was requested, or an error was reported, since the last session
    /// has ended or while this one prepared its state; they stay until [`Coordinator::clear_stop`].
    ///
    /// # Panics
    ///
    /// With the panic of a closure that prepares or checks the state, or of the state's own code. Nothing is left running then, and the start can be repeated.
    ///
    /// ```
    /// use forebear_supervise::{Chief, JoinOptions, Snapshot, SuperviseError, Supervisor};
    /// use std::time::Duration;
    ///
    /// # let dir = std::env::temp_dir().join(format!("start-{}", std::process::id()));
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).dir(&dir).build();
    /// assert_eq!((supervisor.chief(), supervisor.session().is_some()), (Chief::Yes, false));
    /// let session = supervisor.start()?;
    /// session.step(|sum| sum.update(|sum| *sum += 1))?;
    /// assert_eq!(supervisor.session().map(|session| session.steps().get()), Some(1));
    /// supervisor.stop_with(JoinOptions::new().grace(Duration::from_secs(10)))?;
    /// assert_eq!((supervisor.steps().get(), supervisor.session().is_none()), (1, true));
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), SuperviseError>(())
    /// ```
    pub fn start(&self) -> Result<Session<S>, SuperviseError> {
        self.start_as(Mode::Start)
    }

    /// Starts a session without services and without [`init`](SupervisorBuilder::init). It restores the state if there is a checkpoint, and calls
    /// [`local_init`](SupervisorBuilder::local_init) in any case. [`Session::restored_from`] names the checkpoint if the state is ready, and
    /// [`Session::not_ready`] says why it is not. It does not wait for the chief.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`SuperviseError`].
    ///
    /// ```
    /// use forebear_supervise::{Snapshot, SuperviseError, Supervisor};
    ///
    /// # let dir = std::env::temp_dir().join(format!("recover-{}", std::process::id()));
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).dir(&dir).build();
    /// supervisor.run(|session| Ok(session.step(|sum| sum.set(7))?))?;
    ///
    /// let later = Supervisor::builder(Snapshot::new(1, 0_u64)).dir(&dir).build();
    /// let session = later.recover()?;
    /// assert!(session.restored_from().is_some() && session.not_ready().is_none());
    /// assert_eq!(session.state().get(), 7);
    /// later.stop()?;
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), SuperviseError>(())
    /// ```
    pub fn recover(&self) -> Result<Session<S>, SuperviseError> {
        self.start_as(Mode::Recover)
    }

    fn start_as(&self, mode: Mode) -> Result<Session<S>, SuperviseError> {
        if self.busy.swap(true, Ordering::Acquire) {
            return Err(SuperviseError::AlreadyRunning);
        }
        if self.clears.swap(false, Ordering::Relaxed) {
            self.coordinator().renew();
        }
        let free = FreeOnDrop(&self.busy);
        let session = self.prepare(mode)?;
        std::mem::forget(free);
        *lock(&self.session) = Some(session.clone());
        Ok(session)
    }

    /// Stops the session: requests a stop, waits for all services and workers, saves the state if the job has not failed, and closes the event file in any case. Does nothing
    /// without a session. A worker that has not ended in time counts as a failure: the state is as saved last, so have workers [look](Session::should_stop) or
    /// [save](Session::save_now) often enough.
    ///
    /// The [grace](SupervisorBuilder::stop_grace) bounds the wait for services and workers. A second each is added for child processes that are killed then, and for a save
    /// that a straggler has begun. The grace does not bound the last save, which takes as long as [`State::save`] and the disk: a save that was given up would lose
    /// the end of the job. Nor does it bound the close of the event file, which writes what is queued. A job that must end by a certain time makes its own
    /// save before, and sets [`save_on_stop`](SupervisorBuilder::save_on_stop) to false.
    ///
    /// Suspends. No cancellation point.
    ///
    /// # Errors
    ///
    /// [`SuperviseError`]: `Job`, `Checkpoint`, `Events`, `Io`, the first of them that holds. A request that is a worker of the job gets `Job` with
    /// [`JoinError::OwnWorker`] at once, and the session goes on: the closure of [`run`](Self::run) returns instead, or calls [`Session::request_stop`].
    pub fn stop(&self) -> Result<(), SuperviseError> {
        self.stop_with(JoinOptions::new())
    }

    /// As [`stop`](Self::stop), with options: another grace, more workers, or ignored stragglers.
    ///
    /// # Errors
    ///
    /// As [`stop`](Self::stop).
    pub fn stop_with(&self, mut options: JoinOptions) -> Result<(), SuperviseError> {
        if lock(&self.session).is_none() {
            return Ok(());
        }
        self.is_no_worker()?;
        options.register(self.coordinator()).map_err(SuperviseError::Job)?;
        self.finish(options, None)
    }

    /// The caller is no worker of the coordinator, whose end it is about to wait for.
    fn is_no_worker(&self) -> Result<(), SuperviseError> {
        match self.coordinator().calling_worker() {
            Some(worker) => Err(SuperviseError::Job(JoinError::OwnWorker { worker })),
            None => Ok(()),
        }
    }

    /// Ends the session. `own`: what its main part has failed with.
    fn finish(&self, options: JoinOptions, own: Option<Failure>) -> Result<(), SuperviseError> {
        let Some(session) = lock(&self.session).take() else { return Ok(()) };
        let (coordinator, settings) = (self.coordinator(), &self.settings);
        coordinator.request_stop();
        shield(|| {
            let joined = coordinator.join_with(options.or_grace(settings.stop_grace));
            let job = match (joined, own) {
                (Ok(()), None) => Ok(()),
                (Err(error @ JoinError::Failed { .. }), _) | (Err(error), None) => {
                    Err(SuperviseError::Job(error))
                }
                (other, Some(failure)) => {
                    let stragglers = other.err().map_or_else(Vec::new, |error| error.stragglers().to_vec());
                    Err(SuperviseError::Job(JoinError::Failed { failure, also: Vec::new(), stragglers }))
                }
            };
            let saves = settings.save_on_stop && session.0.begun.load(Ordering::Relaxed);
            let saved = match &job {
                Ok(()) if saves && session.is_chief() && session.checkpoints().is_some() => {
                    save_last(&session)
                }
                _ => Ok(()),
            };
            let closed = session.close_events();
            let written = closed.map(|kept| *lock(&self.kept_events) = kept);
            match session.end(AFTER_GRACE) {
                Ok(None) => {}
                Ok(Some(mut place)) => {
                    let published =
                        if job.is_ok() && saved.is_ok() { place.tell(Phase::Stopped) } else { Ok(()) };
                    if let Err((path, error)) = published {
                        settings.warn(&format!("{}: the clean stop is not noted: {error}", path.display()));
                    }
                }
                Err(_) => settings.warn(
                    "a checkpoint that a worker has begun is still being written: this process remains the chief until that is done",
                ),
            }
            drop(session);
            self.clears.store(true, Ordering::Relaxed);
            self.busy.store(false, Ordering::Release);
            job.and(saved).and(written)
        })
    }

    /// The session that runs, if there is one.
    pub fn session(&self) -> Option<Session<S>> {
        lock(&self.session).clone()
    }

    /// The coordinator of the job's workers.
    pub fn coordinator(&self) -> &Coordinator {
        &self.settings.coordinator
    }

    /// The state.
    pub fn state(&self) -> &Arc<S> {
        &self.settings.state
    }

    /// The counter of steps.
    pub fn steps(&self) -> &StepCounter {
        &self.settings.steps
    }

    /// The directory for checkpoints and summaries. `None`: the builder was given none.
    pub fn dir(&self) -> Option<&Path> {
        self.settings.dir.as_deref()
    }

    /// The setting [`chief`](SupervisorBuilder::chief). [`Session::is_chief`] says whether this process is the chief now.
    pub fn chief(&self) -> Chief {
        self.settings.chief
    }

    /// How often a checkpoint is written. `None`: only by [`Session::save_now`] and at the end.
    ///
    /// ```
    /// use forebear_supervise::{Snapshot, Supervisor};
    /// use std::time::Duration;
    ///
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).save_every(None).build();
    /// assert_eq!(supervisor.save_every(), None);
    /// assert_eq!(supervisor.summarise_every(), Some(Duration::from_secs(120)));
    /// assert_eq!(supervisor.count_steps_every(), Some(Duration::from_secs(120)));
    /// assert_eq!(supervisor.stop_grace(), Duration::from_secs(120));
    /// ```
    pub fn save_every(&self) -> Option<Duration> {
        self.settings.save_every
    }

    /// How often the summary is written. `None`: never.
    pub fn summarise_every(&self) -> Option<Duration> {
        self.settings.summarise_every
    }

    /// How often the rate of steps is written. `None`: never.
    pub fn count_steps_every(&self) -> Option<Duration> {
        self.settings.count_steps_every
    }

    /// How long a stop waits for all services and workers together.
    pub fn stop_grace(&self) -> Duration {
        self.settings.stop_grace
    }
}

/// Ends the session, if there is one, and does not wait: the drop requests a stop, and saves nothing. From then on the [`Session`] handles that are left make no step and save nothing, those
/// of workers as well, which may save at a [stop](Supervisor::stop). The services end by themselves. The chief's lock is released at once, or with the last save or turn of a service that has
/// begun.
///
/// ```
/// use forebear_supervise::{Snapshot, SuperviseError, Supervisor};
///
/// # let dir = std::env::temp_dir().join(format!("dropped-{}", std::process::id()));
/// let job = || Supervisor::builder(Snapshot::new(1, 0_u64)).dir(&dir).build();
/// let dropped = job();
/// let old = dropped.start()?;
/// let saved = old.save_now()?; // nothing else would save the end of the job
/// drop(dropped);
/// assert!(matches!(old.save_now(), Err(SuperviseError::NotChief)));
/// let next = job();
/// assert_eq!(next.start()?.restored_from().map(|file| file.step), Some(saved.step));
/// next.stop()?;
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), SuperviseError>(())
/// ```
impl<S: State> Drop for Supervisor<S> {
    fn drop(&mut self) {
        let Some(session) = lock(&self.session).take() else { return };
        session.leave();
        self.coordinator().request_stop();
    }
}

impl<S: State> fmt::Debug for Supervisor<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor")
            .field("dir", &self.settings.dir)
            .field("chief", &self.settings.chief)
            .field("step", &self.settings.steps.get())
            .field("session", &self.session())
            .finish_non_exhaustive()
    }
}

/// Saves at a clean stop. If the state panics, that is the job's failure, and the stop continues.
fn save_last<S: State>(session: &Session<S>) -> Result<(), SuperviseError> {
    let saved = attempt("last checkpoint", || Ok(session.save_now()));
    let failed = |failure| {
        SuperviseError::Job(JoinError::Failed { failure, also: Vec::new(), stragglers: Vec::new() })
    };
    saved.map_err(|(failure, _)| failed(failure))?.map(drop)
}

/// Sets a mark back: after a start that has failed, another one is possible.
struct FreeOnDrop<'a>(&'a AtomicBool);

impl Drop for FreeOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
