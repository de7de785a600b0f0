//! [`Session`]: what a job and its services hold while it runs.
//!
//! # A save never falls into a step
//!
//! Steps ([`Session::step`]) and saves ([`Session::save_now`]) go through one [`Gate`].
//!
//! # Handles that outlive their session
//!
//! A worker that has not ended in time keeps its handle. The end of the session ([`Session::end`]) makes it no chief, so a later save is refused, and then waits for a save that has
//! begun: a save looks whether it is the chief's once more, under the lock that this wait takes. Only then is the chief's place given up. If that save does not end in time, the session is
//! left with it. So no handle writes a checkpoint beside a later chief. A watch that takes the place of a dead chief does that under the lock of the [`Seat`], as the end does, so it takes
//! none after the end.
//!
//! The drop of a supervisor may not wait. It *leaves* the session ([`Session::leave`]): that makes it no chief as well, and the last save or turn of a service that has begun gives the
//! place up, or the drop itself where none has. A service whose session ends in its turn is refused what it wanted to write, which is no failure of the job ([`Session::turn`]).

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebear::{Cancelled, Error, Failure, Request, TimeoutError, blocking, shield, yield_now};

use super::builder::SupervisorSettings;
use super::chief::{self, Phase, Place};
use super::error::SuperviseError;
use super::gate::Gate;
use super::seat::Seat;
use crate::coordinator::caller_name;
use crate::{
    Checkpoint, Checkpoints, Coordinator, CopiedState, EventWriter, Every, Looper, SavedSections, Sections,
    SessionLog, State, StepCounter, Summary,
};

/// A job that runs under a [`Supervisor`](super::Supervisor). A handle: clone it for services and workers of your own.
///
/// ```
/// use forebear_supervise::{Every, Snapshot, Supervisor};
/// use std::time::Duration;
///
/// # let dir = std::env::temp_dir().join(format!("session-{}", std::process::id()));
/// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).dir(&dir).build();
/// supervisor.run(|session| {
///     let steps = session.steps().clone();
///     session.every("progress", Every::Skip(Duration::from_secs(1)), move || {
///         println!("{} steps", steps.get());
///         Ok(())
///     });
///     while !session.should_stop() && session.steps().get() < 100 {
///         session.step(|sum| sum.update(|sum| *sum += 1))?;
///     }
///     Ok(())
/// })?;
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), forebear_supervise::SuperviseError>(())
/// ```
pub struct Session<S>(pub(super) Arc<Running<S>>);

/// What all handles of a session share.
pub(super) struct Running<S> {
    pub(super) settings: Arc<SupervisorSettings<S>>,
    pub(super) checkpoints: Option<Checkpoints>,
    pub(super) restored_from: Option<Checkpoint>,
    /// From [`Supervisor::recover`](super::Supervisor::recover): why the state is not ready.
    pub(super) not_ready: Option<String>,
    pub(super) is_chief: AtomicBool,
    pub(super) seat: Seat<Place>,
    pub(super) events: Mutex<Option<Arc<EventWriter>>>,
    /// The services have been started.
    pub(super) serves: AtomicBool,
    /// This process has become the chief while its job ran.
    pub(super) took_over: AtomicBool,
    /// The record says that the chief is ready.
    pub(super) begun: AtomicBool,
    gate: Gate,
}

impl<S> Running<S> {
    pub(super) fn new(settings: Arc<SupervisorSettings<S>>, checkpoints: Option<Checkpoints>) -> Running<S> {
        Running {
            settings,
            checkpoints,
            restored_from: None,
            not_ready: None,
            is_chief: AtomicBool::new(false),
            seat: Seat::new(None),
            events: Mutex::new(None),
            serves: AtomicBool::new(false),
            took_over: AtomicBool::new(false),
            begun: AtomicBool::new(false),
            gate: Gate::new(),
        }
    }
}

impl<S: State> Session<S> {
    /// The state.
    #[must_use]
    pub fn state(&self) -> &Arc<S> {
        &self.0.settings.state
    }

    /// The counter of steps.
    #[must_use]
    pub fn steps(&self) -> &StepCounter {
        &self.0.settings.steps
    }

    /// Whether this process is the chief. That changes when it [takes over](super::ChiefDeath::TakeOver), and at the end of the session.
    ///
    /// ```
    /// use forebear_supervise::{Snapshot, Supervisor};
    ///
    /// # let dir = std::env::temp_dir().join(format!("is-chief-{}", std::process::id()));
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).dir(&dir).build();
    /// supervisor.run(|session| {
    ///     session.step(|sum| sum.set(7))?;
    ///     if session.is_chief() {
    ///         assert_eq!(session.save_now()?.step, 1);
    ///     }
    ///     Ok(())
    /// })?;
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), forebear_supervise::SuperviseError>(())
    /// ```
    #[must_use]
    pub fn is_chief(&self) -> bool {
        self.0.is_chief.load(Ordering::Acquire)
    }

    /// The coordinator of the job's workers.
    ///
    /// ```
    /// use forebear_supervise::{Snapshot, Supervisor};
    ///
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).build();
    /// supervisor.run(|session| {
    ///     let (own, coordinator) = (session.clone(), session.coordinator());
    ///     coordinator.spawn("adder", move |_| Ok(own.step(|sum| sum.set(7))?)).wait()?;
    ///     assert_eq!(session.state().get(), 7);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), forebear_supervise::SuperviseError>(())
    /// ```
    #[must_use]
    pub fn coordinator(&self) -> &Coordinator {
        &self.0.settings.coordinator
    }

    /// The checkpoint that the state was restored from. `None`: the state was initialised.
    ///
    /// ```
    /// use forebear_supervise::{Snapshot, Supervisor};
    ///
    /// # let dir = std::env::temp_dir().join(format!("restored-from-{}", std::process::id()));
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).dir(&dir).build();
    /// supervisor.run(|session| Ok(session.step(|sum| sum.set(7))?))?;
    /// supervisor.run(|session| {
    ///     assert_eq!(session.restored_from().map(|file| file.step), Some(1));
    ///     Ok(())
    /// })?;
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), forebear_supervise::SuperviseError>(())
    /// ```
    #[must_use]
    pub fn restored_from(&self) -> Option<&Checkpoint> {
        self.0.restored_from.as_ref()
    }

    /// After [`recover`](super::Supervisor::recover): why the state cannot be used. `None`: it can.
    ///
    /// ```
    /// use forebear_supervise::{Readiness, Snapshot, Supervisor};
    ///
    /// # let dir = std::env::temp_dir().join(format!("not-ready-{}", std::process::id()));
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64))
    ///     .dir(&dir)
    ///     .ready(|_| Readiness::NotReady("the table is empty".into()))
    ///     .build();
    /// let session = supervisor.recover()?;
    /// assert!(session.not_ready().is_some_and(|why| why.contains("the table is empty")));
    /// supervisor.stop()?;
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), forebear_supervise::SuperviseError>(())
    /// ```
    #[must_use]
    pub fn not_ready(&self) -> Option<&str> {
        self.0.not_ready.as_deref()
    }

    /// The job's checkpoints. `None`: they are disabled, or there is no directory.
    ///
    /// ```
    /// use forebear_supervise::{Snapshot, Supervisor};
    ///
    /// # let dir = std::env::temp_dir().join(format!("session-files-{}", std::process::id()));
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).dir(&dir).build();
    /// supervisor.run(|session| {
    ///     let saved = session.save_now()?;
    ///     let checkpoints = session.checkpoints().expect("the job has a directory");
    ///     assert_eq!(checkpoints.list()?[0], saved);
    ///     Ok(())
    /// })?;
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), forebear_supervise::SuperviseError>(())
    /// ```
    #[must_use]
    pub fn checkpoints(&self) -> Option<&Checkpoints> {
        self.0.checkpoints.as_ref()
    }

    /// The file that summaries are written to. `None`: there is no writer in this process.
    ///
    /// ```
    /// use forebear_supervise::{Snapshot, Summary, Supervisor};
    ///
    /// # let dir = std::env::temp_dir().join(format!("event-file-{}", std::process::id()));
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).dir(&dir).build();
    /// supervisor.run(|session| {
    ///     session.summary_computed(Summary::new().scalar("loss", 0.5), None)?;
    ///     assert!(session.event_file().is_some_and(|file| file.starts_with(&dir)));
    ///     Ok(())
    /// })?;
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), forebear_supervise::SuperviseError>(())
    /// ```
    #[must_use]
    pub fn event_file(&self) -> Option<PathBuf> {
        self.events().map(|events| events.path().to_owned())
    }

    /// As [`Coordinator::should_stop`]. True from the end of the session on, also while another session runs.
    #[must_use]
    pub fn should_stop(&self) -> bool {
        self.is_over() || self.coordinator().should_stop()
    }

    /// An error if a stop has been requested, for `?`. Does not suspend.
    ///
    /// ```
    /// use forebear_supervise::{Snapshot, SuperviseError, Supervisor};
    ///
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).build();
    /// let ended = supervisor.run(|session| {
    ///     for n in 0_u64.. {
    ///         session.check_stop()?; // ends the job cleanly after a stop
    ///         if n == 10 {
    ///             session.request_stop();
    ///         }
    ///     }
    ///     Ok(())
    /// })?;
    /// assert!(ended.is_none());
    /// # Ok::<(), SuperviseError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    pub fn check_stop(&self) -> Result<(), Cancelled> {
        if self.should_stop() { Err(Cancelled::new()) } else { Ok(()) }
    }

    /// As [`Coordinator::request_stop`]. Does nothing after the end of the session: it would stop the next one.
    pub fn request_stop(&self) {
        if !self.is_over() {
            self.coordinator().request_stop();
        }
    }

    /// As [`Coordinator::report`].
    ///
    /// ```
    /// use forebear_supervise::{Snapshot, Supervisor};
    /// use std::io;
    ///
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).build();
    /// let error = supervisor.run(|session| Ok(session.report(io::Error::other("no such file"))?)).unwrap_err();
    /// assert!(error.failure().unwrap().downcast_ref::<io::Error>().is_some());
    /// ```
    ///
    /// # Errors
    ///
    /// As there. The same error also after the end of the session.
    pub fn report(&self, error: impl Into<Error>) -> Result<(), Failure> {
        if self.is_over() {
            return Err(Failure::from_error(error.into(), caller_name(), None));
        }
        self.coordinator().report(error)
    }

    /// As [`Coordinator::wait_for_stop`]. Suspends. A cancellation point.
    ///
    /// ```
    /// use forebear_supervise::{Snapshot, Supervisor};
    ///
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).build();
    /// supervisor.run(|session| {
    ///     let own = session.clone();
    ///     session.coordinator().spawn("door", move |_| Ok(own.request_stop()));
    ///     session.wait_for_stop()?; // then closes its connections
    ///     Ok(())
    /// })?;
    /// # Ok::<(), forebear_supervise::SuperviseError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As there.
    pub fn wait_for_stop(&self) -> Result<(), Cancelled> {
        if self.is_over() { Ok(()) } else { self.coordinator().wait_for_stop() }
    }

    /// Makes a step: calls `f`, and counts one. A checkpoint never holds the state in the middle of a step. Steps of several workers may overlap. While a
    /// save copies the state, a step waits; if the state has no [copy](State::copy), it waits for the whole save.
    ///
    /// `f` may wait, but must neither save nor make another step: it would wait for itself.
    ///
    /// Each step yields to other requests of its worker first, so that services run beside a job that makes nothing but steps.
    ///
    /// A stop ends a loop of steps: it cancels the requests that are workers. A thread is not cancelled, so its next step after a stop is refused.
    ///
    /// ```
    /// use forebear_supervise::{Snapshot, SuperviseError, Supervisor};
    ///
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).build();
    /// let session = supervisor.start()?;
    /// session.step(|sum| sum.update(|sum| *sum += 1))?;
    /// session.request_stop(); // as Ctrl-C does
    /// assert!(session.step(|sum| sum.update(|sum| *sum += 1)).is_err());
    /// supervisor.stop()?;
    /// # Ok::<(), SuperviseError>(())
    /// ```
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`], also after the end of the session; `f` was not called.
    pub fn step<R>(&self, f: impl FnOnce(&S) -> R) -> Result<R, Cancelled> {
        if self.is_over() || self.coordinator().should_stop() && Request::current().is_none() {
            return Err(Cancelled::new());
        }
        yield_now()?;
        self.0.gate.step(|| f(self.state()), || _ = self.steps().add(1))
    }

    /// Runs a service of your own, as [`Coordinator::every`] does. An error of the service stops the job. Does not suspend.
    pub fn every(&self, name: impl Into<String>, every: Every, looper: impl Looper) -> Request<()> {
        self.coordinator().every(name, every, looper)
    }

    /// Saves the state, and returns when the checkpoint is on disk. Waits for another save that is running.
    ///
    /// Suspends. No cancellation point: the save is finished in any case.
    ///
    /// # Errors
    ///
    /// [`SuperviseError`]: `NotChief`, also after the end of the session; `NoCheckpoints`, `Checkpoint`, `Events`; `SecondChief` if the file of the chief's lock was replaced, as by a job that was
    /// started in a new directory of the same name.
    pub fn save_now(&self) -> Result<Checkpoint, SuperviseError> {
        if !self.is_chief() {
            return Err(SuperviseError::NotChief);
        }
        let Some(_writes) = self.0.seat.begin() else { return Err(SuperviseError::NotChief) };
        let Some(checkpoints) = self.checkpoints() else { return Err(SuperviseError::NoCheckpoints) };
        if let Some(dir) = self.0.settings.dir.as_ref().filter(|_| self.is_replaced()) {
            return Err(SuperviseError::SecondChief { dir: dir.clone(), process: chief::process_at(dir) });
        }
        shield(|| {
            self.0.gate.save(
                || self.read(),
                |taken| taken.copied.is_some(),
                |taken| {
                    let saved = self.write(checkpoints, taken)?;
                    if let Some(events) = self.events() {
                        events.session(Some(saved.step), SessionLog::Checkpoint(saved.path.clone()))?;
                    }
                    Ok(saved)
                },
            )
        })
    }

    /// What a save writes.
    fn read(&self) -> Result<Taken, SuperviseError> {
        // Once more, where the end of the session waits for this save (module head).
        if !self.is_chief() {
            return Err(SuperviseError::NotChief);
        }
        let (step, state) = (self.steps().get(), self.state().clone());
        let copied = blocking(move || state.copy().map(|copy| (state.schema(), copy)))?;
        Ok(Taken { step, copied })
    }

    fn write(&self, checkpoints: &Checkpoints, taken: Taken) -> Result<Checkpoint, SuperviseError> {
        Ok(match taken.copied {
            Some((schema, copy)) => {
                checkpoints.save(taken.step, &Arc::new(Copied { schema, copy: copy.into() }))?
            }
            None => checkpoints.save(taken.step, self.state())?,
        })
    }

    /// Writes a summary for TensorBoard. `step`: the step that it belongs to; `None` is the current one.
    ///
    /// Suspends while the writer's queue is full. A cancellation point then.
    ///
    /// # Errors
    ///
    /// [`SuperviseError`]: `NotChief`, `NoWriter`, `Events`, `Cancelled`.
    pub fn summary_computed(
        &self,
        summary: impl Into<Summary>,
        step: impl Into<Option<u64>>,
    ) -> Result<(), SuperviseError> {
        if !self.is_chief() {
            return Err(SuperviseError::NotChief);
        }
        let events = self.events().ok_or(SuperviseError::NoWriter)?;
        let step = step.into().unwrap_or_else(|| self.steps().get());
        Ok(events.write(step, summary)?)
    }

    pub(super) fn events(&self) -> Option<Arc<EventWriter>> {
        lock(&self.0.events).clone()
    }

    fn is_replaced(&self) -> bool {
        self.0.seat.with(|place| place.is_replaced()).unwrap_or(false)
    }

    fn is_over(&self) -> bool {
        self.0.seat.is_over()
    }

    /// A turn of a service, which writes. A session that is over has no turns: one that ends in the middle of a turn refuses what is left of that, and nobody is told.
    pub(super) fn turn(
        &self,
        turn: impl FnOnce() -> Result<(), SuperviseError>,
    ) -> Result<(), SuperviseError> {
        let Some(_writes) = self.0.seat.begin() else { return Ok(()) };
        match turn() {
            Err(SuperviseError::NotChief) if self.is_over() => Ok(()),
            turned => turned,
        }
    }

    /// Makes this process the chief, unless the session is over. The place is dropped then.
    pub(super) fn take_over(&self, place: Place) {
        self.0.seat.take_over(place, || {
            self.0.took_over.store(true, Ordering::Relaxed);
            self.0.is_chief.store(true, Ordering::Release);
        });
    }

    /// Ends the session: see the module head. Answers the chief's place, which is to be given up. `Err`: a save that was begun has not ended in this time, and gives the place up itself.
    pub(super) fn end(&self, at_most: Duration) -> Result<Option<Place>, TimeoutError> {
        self.0.seat.end(|| self.0.is_chief.store(false, Ordering::Release));
        if self.0.gate.wait_for_save(at_most) {
            Ok(self.0.seat.take())
        } else {
            self.leave();
            Err(TimeoutError::TimedOut)
        }
    }

    /// Ends the session without a wait: see the module head. Does not suspend.
    pub(super) fn leave(&self) {
        self.0.seat.leave(|| self.0.is_chief.store(false, Ordering::Release));
    }

    /// Changes what the other processes see of the chief.
    pub(super) fn tell(&self, phase: Phase) -> Result<(), SuperviseError> {
        match self.0.seat.with(|place| place.tell(phase)) {
            Some(told) => Ok(told?),
            None => Ok(()),
        }
    }
}

/// Held for a few steps only.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a save has read while no step continued.
struct Taken {
    step: u64,
    /// Schema and copy. `None`: the state is written itself, before the next step.
    copied: Option<(u64, Box<dyn CopiedState>)>,
}

/// A copy of a state, which is written while the job continues.
struct Copied {
    schema: u64,
    copy: Mutex<Box<dyn CopiedState>>,
}

impl State for Copied {
    fn schema(&self) -> u64 {
        self.schema
    }

    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
        lock(&self.copy).save(out)
    }

    fn restore(&self, _: &SavedSections) -> Result<(), Error> {
        Err(Error::other("a copy is written only"))
    }
}

impl<S> Clone for Session<S> {
    fn clone(&self) -> Self {
        Session(self.0.clone())
    }
}

impl<S> fmt::Debug for Session<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("dir", &self.0.settings.dir)
            .field("step", &self.0.settings.steps.get())
            .field("is_chief", &self.0.is_chief)
            .field("restored_from", &self.0.restored_from)
            .finish_non_exhaustive()
    }
}
