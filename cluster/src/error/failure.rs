//! [`TaskFailure`]: how a task failed, as it travels from the worker to the coordinator.
//!
//! The texts are those of the user's errors: they may have any length, and writing them may panic. So a text is cut at [`LONGEST`] bytes, and there are at most
//! [`CAUSES`] of them. What is left fits into a message of each engine.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt::{self, Write};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forebear::Error;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::engine::WorkerId;

/// A text of an error is cut at so many bytes.
const LONGEST: usize = 8 << 10;
/// So many sources of an error are read: a source may have itself as its source.
const CAUSES: usize = 16;
/// An error that keeps its type has at most so many bytes.
const TYPED: usize = 64 << 10;

/// How a task failed. Travels from the worker to the coordinator.
///
/// A clone is cheap. [`ClusterCoordinator::join`](crate::ClusterCoordinator::join) raises the first one;
/// [`RemoteValue::fetch`](crate::RemoteValue::fetch) returns the task's own each time.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, FailureKind, InProcess, TaskFn, tasks};
///
/// const PARSE: TaskFn<String, u32> = TaskFn::new("parse", |_, text| Ok(text.parse()?));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![PARSE]).start()?;
/// let _value = cluster.schedule(&PARSE, "12x".into())?;
/// let Err(ClusterError::Task(failure)) = cluster.join() else { unreachable!() };
/// assert_eq!((failure.task(), failure.attempt()), ("parse", 1));
/// assert_eq!(failure.worker().unwrap().name(), "worker-0");
/// assert!(matches!(failure.kind(), FailureKind::Error { message, .. } if message.contains("invalid digit")));
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Clone)]
pub struct TaskFailure(Arc<FailureInner>);

struct FailureInner {
    task: Arc<str>,
    worker: Option<WorkerId>,
    attempt: u32,
    kind: FailureKind,
}

/// What happened in the task.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, FailureKind, InProcess, TaskFn, tasks};
///
/// const DIVIDE: TaskFn<(u32, u32), u32> = TaskFn::new("divide", |_, (a, b)| Ok(a / b));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![DIVIDE]).start()?;
/// cluster.schedule(&DIVIDE, (1, 0))?;
/// let Err(ClusterError::Task(failure)) = cluster.join() else { unreachable!() };
/// match failure.kind() {
///     FailureKind::Panic { message } => assert_eq!(message, "attempt to divide by zero"),
///     FailureKind::Poisoned { attempts } => panic!("{attempts} workers have died"),
///     other => panic!("{other}"),
/// }
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FailureKind {
    /// The task returned an error. These are its text, and the texts of its sources: at most 16, each cut at 8 KiB.
    Error {
        /// The text of the error.
        message: String,
        /// The texts of its sources, the nearest first.
        causes: Vec<String>,
        /// The error itself, if the task has returned a [`TaskError`]. See [`TaskFailure::downcast`].
        typed: Option<TypedError>,
    },
    /// The task panicked.
    Panic {
        /// What the panic said.
        message: String,
    },
    /// A resource that the task asked for was not made on this worker. Mend what makes it.
    Resource {
        /// The name of the function that makes it.
        resource: String,
        /// What that function failed with. Never a [`Resource`](FailureKind::Resource) itself, unless it asked for another resource.
        cause: Box<FailureKind>,
    },
    /// So many workers died while they had the task as the [limit](crate::ClusterCoordinatorBuilder::max_attempts) allows, and in the last one it ran alone. It is not tried again: it may be what kills them.
    Poisoned {
        /// How many workers died with it: as many as the limit says, or one more, for the one in which it was alone.
        attempts: u32,
    },
    /// The task's [time](crate::TaskOptions::timeout) was over.
    TimedOut,
    /// The worker could not read the arguments, or not write the result. The programs of coordinator and worker differ, or the type's
    /// `Serialize` does not match its `Deserialize`.
    Codec {
        /// What the codec says.
        message: String,
    },
    /// The worker knows no task of this name. Give it the same tasks as the coordinator.
    NotRegistered,
    /// The engine's store did not take the result, or did not have a value that the task asked for. See its disk; schedule again what made the value.
    Store {
        /// What the store says.
        message: String,
    },
    /// The answer of the task is too long for a message of the engine. Return less, or write it elsewhere and return where it is.
    TooLarge {
        /// The size of the message, in bytes.
        bytes: u64,
        /// The limit, in bytes.
        limit: u64,
    },
}

impl FailureKind {
    pub(crate) fn of_error(error: &(dyn StdError + 'static)) -> FailureKind {
        let causes = std::iter::successors(error.source(), |cause| (*cause).source()).take(CAUSES);
        FailureKind::Error { message: text(error), causes: causes.map(text).collect(), typed: None }
    }

    /// The kind of a request's failure. The user's error may panic while it is read.
    pub(crate) fn of_failure(failure: &forebear::Failure) -> FailureKind {
        catch_unwind(AssertUnwindSafe(|| FailureKind::read(failure))).unwrap_or_else(|panic| {
            drop_payload(panic);
            let message = "an error whose text cannot be had: its `Display` or `source` has panicked".into();
            FailureKind::Error { message, causes: Vec::new(), typed: None }
        })
    }

    fn read(failure: &forebear::Failure) -> FailureKind {
        if let Some(Kinded(kind)) = failure.downcast_ref::<Kinded>() {
            return kind.clone();
        }
        if let Some(TaskError(kind)) = failure.downcast_ref::<TaskError>() {
            return kind.clone();
        }
        match failure.panic_message() {
            Some(message) => FailureKind::Panic { message: text(message) },
            None if failure.is_panic() => FailureKind::Panic { message: "(no text)".into() },
            None => FailureKind::of_error(failure.error()),
        }
    }
}

/// Drops what a panic carried. Its destructor may panic, too; what that carries is forgotten.
pub(crate) fn drop_payload(payload: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(second);
    }
}

/// What takes a text until it is too long.
#[derive(Default)]
struct Short {
    text: String,
    full: bool,
}

impl Write for Short {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if self.full {
            return Err(fmt::Error);
        }
        let room = LONGEST - self.text.len();
        if more.len() <= room {
            self.text.push_str(more);
            return Ok(());
        }
        let end = (0..=room).rev().find(|end| more.is_char_boundary(*end)).unwrap_or(0);
        self.text.push_str(&more[..end]);
        self.text.push('…');
        self.full = true;
        Err(fmt::Error)
    }
}

/// The text of something, cut if it is too long.
fn text<T: fmt::Display + ?Sized>(of: &T) -> String {
    let mut short = Short::default();
    // If `of` itself says that it cannot be written, what is there has to do.
    let _ = write!(short, "{of}");
    short.text
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FailureKind::Error { message, causes, .. } => {
                f.write_str(message)?;
                causes.iter().try_for_each(|cause| write!(f, ": {cause}"))
            }
            FailureKind::Panic { message } => write!(f, "panicked: {message}"),
            FailureKind::Resource { resource, cause } => {
                write!(f, "its resource `{resource}` failed: {cause}")
            }
            FailureKind::Poisoned { attempts: 1 } => {
                f.write_str("a worker died while it ran this, and it is not tried again; see `max_attempts`")
            }
            FailureKind::Poisoned { attempts } => write!(
                f,
                "{attempts} workers died while they ran it, and it is not tried again; see `max_attempts`"
            ),
            FailureKind::TimedOut => f.write_str("its time was over"),
            FailureKind::Codec { message } => {
                write!(f, "arguments or result do not fit between coordinator and worker: {message}")
            }
            FailureKind::NotRegistered => {
                f.write_str("the worker does not know it; give the worker the coordinator's tasks")
            }
            FailureKind::Store { message } => write!(f, "a value could not be kept or read: {message}"),
            FailureKind::TooLarge { bytes, limit } => write!(
                f,
                "its answer takes {bytes} bytes, and the limit is {limit}: return less, or where the data is"
            ),
        }
    }
}

impl TaskFailure {
    /// A failure as an engine reports it.
    #[must_use]
    pub fn new(task: Arc<str>, worker: Option<WorkerId>, attempt: u32, kind: FailureKind) -> TaskFailure {
        TaskFailure(Arc::new(FailureInner { task, worker, attempt, kind }))
    }

    /// The name of the task.
    #[must_use]
    pub fn task(&self) -> &str {
        &self.0.task
    }

    /// The worker on which it failed. `None`: on no worker, as with [`FailureKind::Poisoned`].
    #[must_use]
    pub fn worker(&self) -> Option<&WorkerId> {
        self.0.worker.as_ref()
    }

    /// Which attempt that was, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// What happened.
    #[must_use]
    pub fn kind(&self) -> &FailureKind {
        &self.0.kind
    }

    /// The error that the task has returned by [`TaskError`], if it has that type.
    ///
    /// An error of the function that makes a resource is the error of each task that asks for the resource.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, FetchError, InProcess, TaskError, TaskFn, tasks};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Debug, PartialEq, Serialize, Deserialize)]
    /// enum Refused {
    ///     TooOld { years: u32 },
    /// }
    ///
    /// impl std::fmt::Display for Refused {
    ///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    ///         write!(f, "{self:?}")
    ///     }
    /// }
    ///
    /// impl std::error::Error for Refused {}
    ///
    /// fn check(years: u32) -> Result<(), Refused> {
    ///     if years > 9 { Err(Refused::TooOld { years }) } else { Ok(()) }
    /// }
    ///
    /// const CHECK: TaskFn<u32, ()> = TaskFn::new("check", |_, years| Ok(check(years).map_err(TaskError::new)?));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![CHECK]).start()?;
    /// cluster.schedule(&CHECK, 12)?;
    /// let Err(ClusterError::Task(failure)) = cluster.join() else { unreachable!() };
    /// assert_eq!(failure.downcast(), Some(Refused::TooOld { years: 12 }));
    /// # Ok::<(), ClusterError>(())
    /// ```
    #[must_use]
    pub fn downcast<E: DeserializeOwned + 'static>(&self) -> Option<E> {
        let mut kind = &self.0.kind;
        while let FailureKind::Resource { cause, .. } = kind {
            kind = cause;
        }
        match kind {
            FailureKind::Error { typed: Some(typed), .. } => typed.get(),
            _ => None,
        }
    }
}

/// An error that keeps its type on its way to the coordinator: a task returns it, and [`TaskFailure::downcast`] gives it back. Without this an error travels as its text.
///
/// ```
/// use forebear_cluster::{TaskError, TaskFn};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Serialize, Deserialize)]
/// struct TooOld(u32);
///
/// impl std::fmt::Display for TooOld {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         write!(f, "{} years are too many", self.0)
///     }
/// }
///
/// impl std::error::Error for TooOld {}
///
/// const CHECK: TaskFn<u32, ()> = TaskFn::new("check", |_, years| match years {
///     0..10 => Ok(()),
///     _ => Err(TaskError::new(TooOld(years)).into()),
/// });
/// assert_eq!(TaskError::new(TooOld(12)).to_string(), "12 years are too many");
/// ```
#[derive(Clone)]
pub struct TaskError(FailureKind);

impl TaskError {
    /// The error, with its text, the texts of its sources, and its encoded form. If that cannot be made, or takes more than 64 KiB, only the texts travel.
    pub fn new<E: StdError + Serialize + 'static>(error: E) -> TaskError {
        let bytes = postcard::to_stdvec(&error).ok().filter(|bytes| bytes.len() <= TYPED);
        let typed = bytes.map(|bytes| TypedError { type_name: std::any::type_name::<E>().into(), bytes });
        match FailureKind::of_error(&error) {
            FailureKind::Error { message, causes, .. } => {
                TaskError(FailureKind::Error { message, causes, typed })
            }
            kind => TaskError(kind),
        }
    }
}

impl fmt::Debug for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TaskError").field(&self.0).finish()
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            FailureKind::Error { message, .. } => f.write_str(message),
            kind => kind.fmt(f),
        }
    }
}

impl StdError for TaskError {}

/// The encoded form of an error, and the name of its type as the compiler writes it.
///
/// ```
/// use forebear_cluster::{FailureKind, TaskFailure, TypedError};
///
/// /// The type of the error, for a log.
/// fn type_of(failure: &TaskFailure) -> &str {
///     match failure.kind() {
///         FailureKind::Error { typed, .. } => typed.as_ref().map_or("an error", TypedError::type_name),
///         _ => "no error",
///     }
/// }
/// assert_eq!(type_of(&TaskFailure::new("check".into(), None, 1, FailureKind::TimedOut)), "no error");
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypedError {
    type_name: String,
    bytes: Vec<u8>,
}

impl TypedError {
    /// The name of its type.
    #[must_use]
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    fn get<E: DeserializeOwned + 'static>(&self) -> Option<E> {
        (self.type_name == std::any::type_name::<E>()).then(|| postcard::from_bytes(&self.bytes).ok())?
    }
}

impl fmt::Debug for TypedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {} bytes", self.type_name, self.bytes.len())
    }
}

impl fmt::Debug for TaskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskFailure")
            .field("task", &self.0.task)
            .field("worker", &self.0.worker)
            .field("attempt", &self.0.attempt)
            .field("kind", &self.0.kind)
            .finish()
    }
}

impl fmt::Display for TaskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task `{}`", self.0.task)?;
        if let Some(worker) = &self.0.worker {
            write!(f, " on {worker}")?;
        }
        write!(f, ": {}", self.0.kind)
    }
}

impl StdError for TaskFailure {}

/// An error whose kind is known: what [`TaskCtx::local`](crate::TaskCtx::local) answers in place of a resource, for instance.
#[derive(Clone, Debug)]
pub(crate) struct Kinded(pub(crate) FailureKind);

impl fmt::Display for Kinded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Kinded {}

impl Kinded {
    /// What `local` answers.
    pub(crate) fn resource(resource: &str, cause: &FailureKind) -> Error {
        let cause = Box::new(cause.clone());
        Kinded(FailureKind::Resource { resource: resource.to_owned(), cause }).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Endless;

    impl fmt::Display for Endless {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            loop {
                f.write_str("äöü")?;
            }
        }
    }

    impl StdError for Endless {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(self)
        }
    }

    #[test]
    fn a_task_that_is_not_tried_again_says_how_many_workers_died_with_it() {
        let text = |attempts| FailureKind::Poisoned { attempts }.to_string();
        assert!(
            text(1).starts_with("a worker died while it ran this, and")
                && text(2).starts_with("2 workers died")
        );
    }

    #[test]
    fn an_error_without_end_is_cut_to_what_fits_into_a_message() {
        let FailureKind::Error { message, causes, .. } = FailureKind::of_error(&Endless) else { panic!() };
        assert!(message.starts_with("äöü") && message.ends_with('…') && message.len() < LONGEST + 8);
        assert_eq!(causes.len(), CAUSES);
        let whole = "x".repeat(LONGEST);
        assert_eq!(text(&whole), whole);
        assert_eq!(text(&format!("{whole}y")), format!("{whole}…"));
    }
}
