//! [`TaskCtx`]: what a running task knows about itself.

use std::any::type_name;
use std::fmt;
use std::sync::Arc;

use forebear::Error;

use crate::engine::{Report, TaskId, WorkerId};
use crate::error::Kinded;
use crate::task::PerWorker;
use crate::worker::NodeInner;

/// What a running task knows about itself: the first argument of each task, and of each function that makes a resource.
///
/// A task is a request on its worker's runtime. Everything in forebear works in it: a cancel of the task answers its waits with
/// [`Cancelled`](forebear::Cancelled), and [`is_cancelled`](forebear::is_cancelled) asks for it.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
///
/// const STEPS: TaskFn<u32, String> = TaskFn::new("steps", |ctx, n| {
///     for step in 0..n {
///         forebear::check_cancelled()?;
///         ctx.progress(f64::from(step) / f64::from(n));
///     }
///     Ok(format!("{n} steps on {}", ctx.worker().name()))
/// });
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![STEPS]).start()?;
/// assert_eq!(cluster.schedule(&STEPS, 3)?.fetch().unwrap(), "3 steps on worker-0");
/// # Ok::<(), ClusterError>(())
/// ```
///
/// Outside a task there is none: a program cannot make one, and a task cannot keep its own for later.
///
/// ```compile_fail
/// use forebear_cluster::{TaskCtx, TaskFn};
/// use std::sync::Mutex;
///
/// static KEPT: Mutex<Option<&'static TaskCtx>> = Mutex::new(None);
///
/// const KEEP: TaskFn<(), ()> = TaskFn::new("keep", |ctx, ()| {
///     *KEPT.lock().unwrap() = Some(ctx); // it does not live so long
///     Ok(())
/// });
/// ```
pub struct TaskCtx {
    pub(crate) node: Arc<NodeInner>,
    pub(crate) task: Option<TaskId>,
    pub(crate) attempt: u32,
}

impl TaskCtx {
    /// The worker on which it runs.
    #[must_use]
    pub fn worker(&self) -> &WorkerId {
        &self.node.id
    }

    /// The number of this worker, from 0. A worker that is started again under its name has its number again.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
    ///
    /// const PLACE: TaskFn<(), (usize, u32)> = TaskFn::new("place", |ctx, ()| Ok((ctx.worker_index(), ctx.attempt())));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![PLACE]).start()?;
    /// assert_eq!(cluster.schedule(&PLACE, ())?.fetch().unwrap(), (0, 1));
    /// # Ok::<(), ClusterError>(())
    /// ```
    #[must_use]
    pub fn worker_index(&self) -> usize {
        self.node.index
    }

    /// Which attempt this is, from 1: more than 1 means that a worker died with the task, which may have had effects. It is 0 while a resource is made.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the task was cancelled, as [`forebear::is_cancelled`]: then its result is not wanted any more. Does not suspend.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
    ///
    /// const COUNT: TaskFn<u64, u64> = TaskFn::new("count", |ctx, to| Ok((0..to).take_while(|_| !ctx.is_cancelled()).sum()));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![COUNT]).start()?;
    /// assert_eq!(cluster.schedule(&COUNT, 10)?.fetch().unwrap(), 45);
    /// # Ok::<(), ClusterError>(())
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        forebear::is_cancelled()
    }

    /// Says how far the task is, from 0 to 1: [`RemoteValue::state`](crate::RemoteValue::state) shows it. It is known to a thousandth. Does not suspend.
    pub fn progress(&self, fraction: f64) {
        if let Some(task) = self.task {
            let thousandths = (fraction.clamp(0.0, 1.0) * 1_000.0) as u32;
            (self.node.report)(Report::Progress { task, thousandths });
        }
    }

    /// This worker's part of a resource.
    ///
    /// Suspends if it is still being made. A cancellation point then.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, PerWorker, ResourceFn, TaskFn, tasks};
    ///
    /// const WORDS: ResourceFn<String, Vec<String>> =
    ///     ResourceFn::new("words", |_, text| Ok(text.split(' ').map(String::from).collect()));
    /// const WORD: TaskFn<(PerWorker<Vec<String>>, usize), String> =
    ///     TaskFn::new("word", |ctx, (words, at)| Ok(ctx.local(&words)?[at].clone()));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![WORDS, WORD]).start()?;
    /// let words = cluster.per_worker(&WORDS, "a b c".into())?;
    /// assert_eq!(cluster.schedule(&WORD, (words, 1))?.fetch().unwrap(), "b");
    /// # Ok::<(), ClusterError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// * The resource could not be made on this worker. A task that returns this error fails with [`FailureKind::Resource`](crate::FailureKind::Resource), which says why.
    /// * The token is that of another cluster.
    /// * [`Cancelled`](forebear::Cancelled): the task was cancelled during the wait.
    pub fn local<R: Send + Sync + 'static>(&self, resource: &PerWorker<R>) -> Result<Arc<R>, Error> {
        let Some(part) = self.node.part(resource.job, resource.id) else {
            return Err(Error::other(format!("this cluster has no {resource:?}: another one made it")));
        };
        part.done.wait()?;
        match part.made.get() {
            Some(Ok(made)) => made.clone().downcast().map_err(|_| {
                Error::other(format!("the resource `{}` is no {}", part.name, type_name::<R>()))
            }),
            Some(Err(kind)) => Err(Kinded::resource(&part.name, kind)),
            None => unreachable!("it is set before the event"),
        }
    }
}

impl fmt::Debug for TaskCtx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskCtx")
            .field("worker", &self.node.id)
            .field("task", &self.task)
            .field("attempt", &self.attempt)
            .finish()
    }
}
