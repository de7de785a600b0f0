//! [`Coordinator::join`]: the wait for all workers, and what it answers.

use std::error::Error as StdError;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebear::dump::{Dump, RequestInfo};
use forebear::{Chain, Failure, RequestId};

use super::board::{Join, Left, since};
use super::{Coordinator, Joinable};
use crate::CANCELLED;
use crate::contain::contained;

/// How long a join waits for what it has killed.
const AFTER_KILL: Duration = Duration::from_secs(1);

type Also = Box<dyn FnOnce(&Coordinator) -> std::io::Result<()> + Send>;

/// How to join: see [`Coordinator::join_with`].
///
/// ```
/// use forebear_supervise::{Coordinator, JoinOptions};
/// use std::time::Duration;
///
/// let coordinator = Coordinator::builder().on_warning(|text| assert!(text.contains("forgets to look"))).build()?;
/// let me = coordinator.enlist("forgets to look");
/// coordinator.request_stop();
/// let thread = std::thread::spawn(|| ());
/// let options = JoinOptions::new().grace(Duration::from_millis(2)).also("helper", thread).ignore_stragglers();
/// coordinator.join_with(options)?; // a warning, and no error
/// # drop(me);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
#[must_use = "options do nothing by themselves"]
pub struct JoinOptions {
    grace: Option<Duration>,
    ignore_stragglers: bool,
    also: Vec<Also>,
}

impl JoinOptions {
    /// The defaults of [`Coordinator::join`].
    pub fn new() -> JoinOptions {
        JoinOptions::default()
    }

    /// The grace of this join, in place of the [coordinator's](super::CoordinatorBuilder::grace).
    pub fn grace(mut self, total: Duration) -> Self {
        self.grace = Some(total);
        self
    }

    /// This grace, unless another one was given.
    pub(crate) fn or_grace(mut self, total: Duration) -> Self {
        self.grace.get_or_insert(total);
        self
    }

    /// Registers the workers of [`also`](Self::also).
    pub(crate) fn register(&mut self, coordinator: &Coordinator) -> Result<(), JoinError> {
        std::mem::take(&mut self.also)
            .into_iter()
            .try_for_each(|register| register(coordinator))
            .map_err(|source| JoinError::Register { source: Arc::new(source) })
    }

    /// Workers that have not ended in time are no error. They are named in a warning.
    pub fn ignore_stragglers(mut self) -> Self {
        self.ignore_stragglers = true;
        self
    }

    /// Registers one more worker before the join begins. To register one a second time does no harm.
    pub fn also(mut self, name: impl Into<String>, worker: impl Joinable) -> Self {
        let name = name.into();
        self.also.push(Box::new(move |coordinator| coordinator.register(name, worker)));
        self
    }
}

impl fmt::Debug for JoinOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinOptions")
            .field("grace", &self.grace)
            .field("ignore_stragglers", &self.ignore_stragglers)
            .field("also", &self.also.len())
            .finish()
    }
}

/// Why a join is not `Ok`.
///
/// ```
/// use forebear_supervise::{Coordinator, JoinError};
///
/// let coordinator = Coordinator::new();
/// coordinator.spawn("reader", |_| Err(forebear::Error::other("no such file")));
/// match coordinator.join() {
///     Err(JoinError::Failed { failure, .. }) => assert_eq!(failure.request(), "reader"),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// An error was reported. This takes precedence over stragglers.
    #[non_exhaustive]
    Failed {
        /// The first one.
        failure: Failure,
        /// Later errors, of which 16 are kept.
        also: Vec<Failure>,
        /// Workers that have not ended in time.
        stragglers: Vec<Straggler>,
    },
    /// No error was reported, and these workers have not ended in time.
    #[non_exhaustive]
    Stragglers {
        /// The workers.
        stragglers: Vec<Straggler>,
        /// The time they had.
        grace: Duration,
    },
    /// A worker of [`JoinOptions::also`] could not be watched. Nothing was waited for.
    #[non_exhaustive]
    Register {
        /// Why.
        source: Arc<std::io::Error>,
    },
    /// The request that joins is itself a worker of the coordinator, so the join would wait for its own end. Nothing was waited for. A supervisor's `run` makes such a request, too.
    ///
    /// ```
    /// use forebear_supervise::{Coordinator, JoinError};
    ///
    /// let coordinator = Coordinator::new();
    /// let own = coordinator.clone();
    /// coordinator.spawn("tidies up", move |_| Ok(own.join()?));
    /// let error = coordinator.join().unwrap_err();
    /// let inner = error.failure().and_then(|failure| failure.downcast_ref::<JoinError>());
    /// assert!(matches!(inner, Some(JoinError::OwnWorker { worker, .. }) if worker == "tidies up"));
    /// ```
    #[non_exhaustive]
    OwnWorker {
        /// The name by which it was registered.
        worker: String,
    },
    /// The request that joins was cancelled. Nothing has changed: the join can be repeated.
    Cancelled,
}

impl JoinError {
    /// The first error that was reported, if there is one.
    ///
    /// ```
    /// use forebear_supervise::Coordinator;
    ///
    /// let coordinator = Coordinator::new();
    /// coordinator.spawn("parser", |_| Err("12x".parse::<u32>().unwrap_err().into()));
    /// let error = coordinator.join().unwrap_err();
    /// let failure = error.failure().unwrap();
    /// assert!(failure.downcast_ref::<std::num::ParseIntError>().is_some());
    /// assert!(error.stragglers().is_empty());
    /// ```
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            JoinError::Failed { failure, .. } => Some(failure),
            _ => None,
        }
    }

    /// The workers that have not ended in time.
    #[must_use]
    pub fn stragglers(&self) -> &[Straggler] {
        match self {
            JoinError::Failed { stragglers, .. } | JoinError::Stragglers { stragglers, .. } => stragglers,
            _ => &[],
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Failed { failure, stragglers, .. } => {
                failure.fmt(f)?;
                if !stragglers.is_empty() {
                    write!(f, "; still running: {}", Names(stragglers))?;
                }
                Ok(())
            }
            JoinError::Stragglers { stragglers, grace } => {
                write!(f, "still running {grace:?} after the stop: {}", Names(stragglers))
            }
            JoinError::Register { .. } | JoinError::Cancelled if f.alternate() => Chain::of(self).fmt(f),
            JoinError::Register { .. } => f.write_str("a worker could not be registered"),
            JoinError::OwnWorker { worker } => write!(
                f,
                "the worker `{worker}` joins its own coordinator and would wait for itself: wait for the requests of other workers, and join in the request or thread that made the coordinator"
            ),
            JoinError::Cancelled => f.write_str("the join was cut short"),
        }
    }
}

impl StdError for JoinError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            JoinError::Failed { failure, .. } => failure.source(),
            JoinError::Stragglers { .. } | JoinError::OwnWorker { .. } => None,
            JoinError::Register { source } => Some(source),
            JoinError::Cancelled => Some(&CANCELLED),
        }
    }
}

/// A worker that has not ended in time, and what is known of it.
///
/// ```
/// use forebear_supervise::{Coordinator, JoinOptions};
/// use std::time::Duration;
///
/// let coordinator = Coordinator::new();
/// let me = coordinator.enlist("counts");
/// coordinator.request_stop();
/// let _ = me.should_stop(); // and then forgets about it
/// let error = coordinator.join_with(JoinOptions::new().grace(Duration::from_millis(2))).unwrap_err();
/// let [straggler] = error.stragglers() else { panic!("{error}") };
/// assert_eq!(straggler.name, "counts");
/// let check = straggler.last_check.unwrap();
/// assert!(check.place.file().ends_with(".rs") && check.ago < Duration::from_secs(60));
/// # drop(me);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Straggler {
    /// The name by which the worker was registered.
    pub name: String,
    /// What the worker waits for, in the words of a [dump](forebear::Runtime::dump), if it is a suspended request of the coordinator's runtime, or of the joining caller's.
    pub waits_for: Option<String>,
    /// Where the worker last called [`Member::should_stop`](super::Member::should_stop). `None`: it has not.
    pub last_check: Option<LastCheck>,
    /// The worker is a request of the coordinator's runtime, or of the joining caller's, that computes or blocks its thread: it has come to no scheduling point in the 10 ms in which the join has
    /// looked. Other stragglers may stand on its thread. So those of this kind come first.
    pub holds_thread: bool,
    /// The join has ended the worker by force: by SIGKILL, or by its [`Stop::kill`](super::Stop::kill).
    pub killed: bool,
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.name)?;
        if self.holds_thread {
            f.write_str(" (computes, or blocks its thread, without a scheduling point")?;
            return match &self.last_check {
                Some(check) => write!(f, "; {check})"),
                None => f.write_str(")"),
            };
        }
        match (&self.waits_for, &self.last_check) {
            (Some(what), _) => write!(f, " (waits for {what})"),
            (None, Some(check)) => write!(f, " ({check})"),
            (None, None) if self.killed => f.write_str(" (killed)"),
            (None, None) => f.write_str(" (has never asked whether to stop)"),
        }
    }
}

/// Where and when a worker last called [`Member::should_stop`](super::Member::should_stop).
///
/// ```
/// use forebear_supervise::{Coordinator, JoinOptions};
/// use std::time::Duration;
///
/// let coordinator = Coordinator::new();
/// let me = coordinator.enlist("computes for long");
/// assert!(!me.should_stop());
/// coordinator.request_stop();
/// let error = coordinator.join_with(JoinOptions::new().grace(Duration::ZERO)).unwrap_err();
/// let check = error.stragglers()[0].last_check.unwrap();
/// println!("{}:{}", check.place.file(), check.place.line());
/// assert!(check.to_string().starts_with("has last asked at"));
/// drop(me);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastCheck {
    /// The place of the call.
    pub place: &'static Location<'static>,
    /// How long ago the call was, at most. After a stop the bound is within a 64th of the join's grace; for a call before the stop it is coarser.
    pub ago: Duration,
}

impl fmt::Display for LastCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "has last asked at {}:{}, at most {:.1?} ago",
            self.place.file(),
            self.place.line(),
            self.ago
        )
    }
}

struct Names<'a>(&'a [Straggler]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, straggler) in self.0.iter().enumerate() {
            write!(f, "{}{straggler}", if n == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl Coordinator {
    /// Waits until all workers have ended, and returns the first error that was reported.
    ///
    /// The join waits for the workers that are registered when it begins, and for no later ones. Before a stop it waits without limit. From the stop on, or from the
    /// beginning of the join if that is later, all workers together have the [grace](super::CoordinatorBuilder::grace). Stragglers are no longer registered after
    /// the join: the next one does not wait for them.
    ///
    /// A request that was [spawned](Self::spawn) or [registered](Self::register) as a worker and joins its own coordinator gets [`JoinError::OwnWorker`], or
    /// [`JoinError::Cancelled`] after a stop. A thread that is a worker waits for itself, and so does a request that has [enlisted](Self::enlist) itself: without limit
    /// before a stop, and then as a straggler of its own join. Join where no worker runs, as the request or thread that made the coordinator.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`JoinError`].
    pub fn join(&self) -> Result<(), JoinError> {
        self.join_with(JoinOptions::default())
    }

    /// As [`join`](Self::join), with options: another grace, more workers, or ignored stragglers.
    ///
    /// ```
    /// use forebear_supervise::{Coordinator, JoinOptions};
    /// use std::time::Duration;
    ///
    /// let coordinator = Coordinator::new();
    /// let me = coordinator.enlist("forgets to look");
    /// coordinator.request_stop();
    /// let error = coordinator.join_with(JoinOptions::new().grace(Duration::from_millis(2))).unwrap_err();
    /// assert_eq!(error.stragglers()[0].name, "forgets to look");
    /// # drop(me);
    /// ```
    ///
    /// # Errors
    ///
    /// [`JoinError`].
    pub fn join_with(&self, mut options: JoinOptions) -> Result<(), JoinError> {
        options.register(self)?;
        if let Some(worker) = self.calling_worker() {
            forebear::check_cancelled().map_err(|_| JoinError::Cancelled)?;
            return Err(JoinError::OwnWorker { worker });
        }
        let grace = options.grace.unwrap_or(self.0.grace);
        let join = self.0.board.begin_join();
        let waited = self.0.board.wait_for(&join, grace);
        if waited.is_err() {
            self.0.board.end_join(&join, false);
            return Err(JoinError::Cancelled);
        }
        let stragglers = self.stragglers(&join);
        let answer = self.0.board.end_join(&join, true);
        match answer {
            Some((failure, also)) => Err(JoinError::Failed { failure, also, stragglers }),
            None if stragglers.is_empty() => Ok(()),
            None if options.ignore_stragglers => {
                let text = format!("a join has not waited for what is still running: {}", Names(&stragglers));
                self.0.warn(&text);
                Ok(())
            }
            None => Err(JoinError::Stragglers { stragglers, grace }),
        }
    }

    /// The stragglers. The join has ended by force each one whose stopper can do that.
    fn stragglers(&self, join: &Arc<Join>) -> Vec<Straggler> {
        if self.0.board.look(join).left == 0 {
            return Vec::new();
        }
        let left = self.0.board.left(join);
        let dump = left.iter().any(|left| left.request.is_some()).then(|| self.runtime().dump());
        let mut stragglers: Vec<Straggler> = left.iter().map(|left| describe(left, dump.as_ref())).collect();
        for (left, straggler) in left.into_iter().zip(&mut stragglers) {
            if let Some(mut stopper) = left.stopper {
                straggler.killed = contained(|| stopper.kill()).unwrap_or(false);
            }
        }
        if stragglers.iter().any(|straggler| straggler.killed) {
            let end = Instant::now() + AFTER_KILL;
            loop {
                join.wake.reset();
                let left = end.saturating_duration_since(Instant::now());
                if self.0.board.look(join).left == 0 || join.wake.wait_timeout(left).is_err() {
                    break;
                }
            }
        }
        // The order of registration otherwise.
        stragglers.sort_by_key(|straggler| !straggler.holds_thread);
        stragglers
    }
}

fn describe(left: &Left, dump: Option<&Dump>) -> Straggler {
    let request = left.request.as_ref().zip(dump).and_then(|(request, dump)| dump.request(request.id()));
    Straggler {
        name: left.slot.name.clone(),
        waits_for: request.and_then(|request| Some(request.waits_for.as_ref()?.what.clone())),
        last_check: left.last.map(|(place, at)| LastCheck { place, ago: since(at) }),
        holds_thread: request
            .zip(dump)
            .and_then(|(request, dump)| holder_of_its_worker(dump, request.id))
            .is_some_and(|holder| Some(holder.id) == request.map(|request| request.id)),
        killed: false,
    }
}

/// The request that keeps the runtime's worker on which this request is: that has come to no scheduling point in time. It may be the request itself.
pub(crate) fn holder_of_its_worker(dump: &Dump, id: RequestId) -> Option<&RequestInfo> {
    let index = dump.request(id)?.worker?;
    let worker = dump.workers.iter().find(|worker| worker.index == index && !worker.answered)?;
    dump.request(worker.runs?)
}
