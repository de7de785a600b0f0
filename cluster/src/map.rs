//! [`Map`], [`Unordered`] and [`Each`]: tasks over an iterator of arguments, in a window.
//!
//! All three drive a [`Flight`]: the tasks that are scheduled and whose results have not been taken. They differ in which result they take next, and in what a failure does.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebear::TimeoutError;
use forebear::sync::Event as Wake;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::coordinator::{ClusterCoordinator, TaskOptions};
use crate::engine::WorkerState;
use crate::error::{ClusterError, FetchError, TaskFailure};
use crate::remote::RemoteValue;
use crate::task::TaskFn;

/// How often a wait for a result looks whether the engine is away.
const LOOK: Duration = Duration::from_secs(1);

/// Results in the order of their arguments: see [`ClusterCoordinator::map`].
///
/// So many tasks are scheduled at once as the [window](Self::window) allows. [`next`](Iterator::next) suspends, and is a cancellation point. After an error there is nothing
/// more. If this is dropped before its end, the tasks that it has scheduled are cancelled.
///
/// An error of a task is raised here, and not again by the coordinator. While the engine is away, [`ClusterError::Unavailable`] is the error, within a second.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, TaskOptions, tasks};
///
/// const SQUARE: TaskFn<u64, u64> = TaskFn::new("square", |_, n| Ok(n * n));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![SQUARE]).start()?;
/// let once = TaskOptions::new().max_attempts(1);
/// let mut sum = 0;
/// for square in cluster.map(&SQUARE, 0..100).window(10).options(&once) {
///     sum += square?;
/// }
/// assert_eq!(sum, 328_350);
/// # Ok::<(), ClusterError>(())
/// ```
#[must_use = "it schedules when it is iterated"]
pub struct Map<I, A, R>(Flight<I, A, R>);

/// Results in the order in which they come, each with the number of its argument: see [`Map::unordered`]. For all else as [`Map`].
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
///
/// const SQUARE: TaskFn<u64, u64> = TaskFn::new("square", |_, n| Ok(n * n));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![SQUARE]).start()?;
/// for one in cluster.map(&SQUARE, 10..20).unordered() {
///     let (number, square) = one?; // the first argument has the number 0
///     assert_eq!(square, (number as u64 + 10).pow(2));
/// }
/// # Ok::<(), ClusterError>(())
/// ```
#[must_use = "it schedules when it is iterated"]
pub struct Unordered<I, A, R>(Flight<I, A, R>);

/// Results and failures, each with the number of its argument: see [`Map::each`] and [`Unordered::each`].
///
/// A failure is an item, and the other tasks run on. An `Err` of the iterator itself is not about one item: the cluster was shut down, the caller was cancelled, or a task of another caller has failed. After that there is nothing more.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
///
/// const PARSE: TaskFn<String, i32> = TaskFn::new("parse", |_, text| Ok(text.parse()?));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![PARSE]).start()?;
/// for one in cluster.map(&PARSE, ["1", "two"].map(String::from)).each() {
///     match one? {
///         (number, Ok(value)) => assert_eq!((number, value), (0, 1)),
///         (number, Err(failure)) => assert_eq!((number, failure.task()), (1, "parse")),
///     }
/// }
/// # Ok::<(), ClusterError>(())
/// ```
#[must_use = "it schedules when it is iterated"]
pub struct Each<I, A, R> {
    flight: Flight<I, A, R>,
    ordered: bool,
}

/// What is scheduled and not taken.
struct Flight<I, A, R> {
    cluster: ClusterCoordinator,
    task: TaskFn<A, R>,
    options: TaskOptions,
    args: I,
    /// `None`: by the workers.
    window: Option<usize>,
    /// With the numbers of their arguments, in their order.
    ahead: VecDeque<(usize, RemoteValue<R>)>,
    /// So many arguments were taken.
    taken: usize,
    /// Set when one of them ends.
    some: Arc<Wake>,
    ended: bool,
}

impl<I: Iterator<Item = A>, A: Serialize, R> Map<I, A, R> {
    pub(crate) fn new(cluster: ClusterCoordinator, task: TaskFn<A, R>, args: I) -> Self {
        Map(Flight {
            cluster,
            task,
            options: TaskOptions::new(),
            args,
            window: None,
            ahead: VecDeque::new(),
            taken: 0,
            some: Arc::new(Wake::new()),
            ended: false,
        })
    }

    /// At most so many tasks are scheduled whose results have not been taken. Default: twice as many as the workers can run at once, and at least 2. The least window is 1.
    pub fn window(mut self, tasks: usize) -> Self {
        self.0.window = Some(tasks.max(1));
        self
    }

    /// The tasks are scheduled with these options.
    pub fn options(mut self, options: &TaskOptions) -> Self {
        self.0.options = options.clone();
        self
    }

    /// Results as they come. A slow task holds no others up.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
    ///
    /// const SQUARE: TaskFn<u64, u64> = TaskFn::new("square", |_, n| Ok(n * n));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![SQUARE]).start()?;
    /// let mut squares = vec![0; 5];
    /// for one in cluster.map(&SQUARE, 0..5).unordered() {
    ///     let (number, square) = one?;
    ///     squares[number] = square;
    /// }
    /// assert_eq!(squares, [0, 1, 4, 9, 16]);
    /// # Ok::<(), ClusterError>(())
    /// ```
    pub fn unordered(self) -> Unordered<I, A, R> {
        Unordered(self.0)
    }

    /// Results and failures, in the order of their arguments. A failure cancels nothing, and the coordinator does not raise it.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
    ///
    /// const PARSE: TaskFn<String, i32> = TaskFn::new("parse", |_, text| Ok(text.parse()?));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![PARSE]).start()?;
    /// let texts = ["1", "two", "3"].map(String::from);
    /// let parsed: Result<Vec<_>, ClusterError> = cluster.map(&PARSE, texts).each().collect();
    /// let parsed: Vec<Option<i32>> = parsed?.into_iter().map(|(_, parsed)| parsed.ok()).collect();
    /// assert_eq!(parsed, [Some(1), None, Some(3)]);
    /// assert!(cluster.join().is_ok());
    /// # Ok::<(), ClusterError>(())
    /// ```
    pub fn each(self) -> Each<I, A, R> {
        Each::new(self.0, true)
    }
}

impl<I: Iterator<Item = A>, A: Serialize, R> Unordered<I, A, R> {
    /// Results and failures, as they come. A failure cancels nothing, and the coordinator does not raise it.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
    ///
    /// const PARSE: TaskFn<String, i32> = TaskFn::new("parse", |_, text| Ok(text.parse()?));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![PARSE]).start()?;
    /// let mut failed = Vec::new();
    /// for one in cluster.map(&PARSE, ["1", "two", "3"].map(String::from)).unordered().each() {
    ///     let (number, parsed) = one?;
    ///     if parsed.is_err() {
    ///         failed.push(number);
    ///     }
    /// }
    /// assert_eq!(failed, [1]);
    /// # Ok::<(), ClusterError>(())
    /// ```
    pub fn each(self) -> Each<I, A, R> {
        Each::new(self.0, false)
    }
}

impl<I, A, R> Each<I, A, R> {
    fn new(mut flight: Flight<I, A, R>, ordered: bool) -> Self {
        flight.options = flight.options.clone().raise(false);
        Each { flight, ordered }
    }
}

impl<I: Iterator<Item = A>, A: Serialize, R: DeserializeOwned> Iterator for Map<I, A, R> {
    type Item = Result<R, ClusterError>;

    fn next(&mut self) -> Option<Self::Item> {
        let taken = self.0.take(true)?.and_then(|(_, value)| value.map_err(|error| self.0.cause(error)));
        Some(self.0.end_if(taken))
    }
}

impl<I: Iterator<Item = A>, A: Serialize, R: DeserializeOwned> Iterator for Unordered<I, A, R> {
    type Item = Result<(usize, R), ClusterError>;

    fn next(&mut self) -> Option<Self::Item> {
        let taken = self.0.take(false)?.and_then(|(number, value)| {
            value.map(|value| (number, value)).map_err(|error| self.0.cause(error))
        });
        Some(self.0.end_if(taken))
    }
}

impl<I: Iterator<Item = A>, A: Serialize, R: DeserializeOwned> Iterator for Each<I, A, R> {
    type Item = Result<(usize, Result<R, TaskFailure>), ClusterError>;

    fn next(&mut self) -> Option<Self::Item> {
        let taken = self.flight.take(self.ordered)?.and_then(|(number, value)| match value {
            Ok(value) => Ok((number, Ok(value))),
            Err(FetchError::Task(failure)) => Ok((number, Err(failure))),
            Err(error) => Err(self.flight.cause(error)),
        });
        Some(self.flight.end_if(taken))
    }
}

/// What was taken: the number of its argument, and what a fetch answers.
type Taken<R> = Result<(usize, Result<R, FetchError>), ClusterError>;

impl<I: Iterator<Item = A>, A: Serialize, R: DeserializeOwned> Flight<I, A, R> {
    /// The next result: that of the first argument, or one that is there.
    fn take(&mut self, ordered: bool) -> Option<Taken<R>> {
        if self.ended {
            return None;
        }
        if let Err(error) = self.fill() {
            return Some(Err(error));
        }
        let at = match self.next_over(ordered)? {
            Ok(at) => at,
            Err(away) => return Some(Err(away)),
        };
        let (number, value) = self.ahead.remove(at)?;
        let fetched = value.fetch_only();
        if matches!(fetched, Err(FetchError::Cancelled)) {
            // It is cancelled with the others, and after them.
            self.ahead.push_front((number, value));
        }
        Some(Ok((number, fetched)))
    }

    /// Where the next one is that has ended: the first, or any. `None`: there is none to wait for. A cancelled caller is sent to the first one, whose fetch says
    /// so. An error: the engine is away, so it may never end.
    fn next_over(&self, ordered: bool) -> Option<Result<usize, ClusterError>> {
        loop {
            self.some.reset();
            let (_, first) = self.ahead.front()?;
            let over = if ordered {
                first.is_over().then_some(0)
            } else {
                self.ahead.iter().position(|(_, value)| value.is_over())
            };
            if let Some(at) = over {
                return Some(Ok(at));
            }
            let waited = if ordered { first.over_within(LOOK) } else { self.some.wait_timeout(LOOK) };
            match waited {
                Ok(()) if !ordered || first.is_over() => {}
                Err(TimeoutError::Cancelled) => return Some(Ok(0)),
                Ok(()) | Err(TimeoutError::TimedOut) => {
                    if let Err(away) = self.cluster.check_away() {
                        return Some(Err(away));
                    }
                }
            }
        }
    }
}

impl<I: Iterator<Item = A>, A: Serialize, R> Flight<I, A, R> {
    fn room(&self) -> usize {
        self.window.unwrap_or_else(|| {
            let workers = self.cluster.workers();
            let ready = workers.iter().filter(|worker| worker.state == WorkerState::Ready);
            (2 * ready.map(|worker| worker.slots).sum::<usize>()).max(2)
        })
    }

    fn fill(&mut self) -> Result<(), ClusterError> {
        let room = self.room();
        while self.ahead.len() < room {
            let Some(args) = self.args.next() else { break };
            let some = Some(self.some.clone());
            let value = self.cluster.schedule_noted(&self.options, &self.task, args, some)?;
            self.ahead.push_back((self.taken, value));
            self.taken += 1;
        }
        Ok(())
    }

    /// After an error there is nothing more.
    fn end_if<T>(&mut self, taken: Result<T, ClusterError>) -> Result<T, ClusterError> {
        if taken.is_err() {
            self.ended = true;
            self.cancel();
        }
        taken
    }

    /// The cause, if a value has not come.
    fn cause(&self, error: FetchError) -> ClusterError {
        match error {
            FetchError::Cancelled => ClusterError::Cancelled,
            FetchError::Closed => ClusterError::Closed,
            FetchError::Unavailable { since, reason } => ClusterError::Unavailable { since, reason },
            FetchError::Task(_) | FetchError::Dropped => match (self.cluster.raise(), error) {
                (Err(cause), _) => cause,
                // Somebody else has been given it.
                (Ok(()), FetchError::Task(failure)) => ClusterError::Task(failure),
                (Ok(()), error) => ClusterError::Fetch(error),
            },
            error => ClusterError::Fetch(error),
        }
    }
}

impl<I, A, R> Flight<I, A, R> {
    /// The last first: a queued one is not to start in the place of a running one.
    fn cancel(&mut self) {
        self.ahead.drain(..).rev().for_each(|(_, value)| value.cancel());
    }
}

impl<I, A, R> Drop for Flight<I, A, R> {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl<I, A, R> fmt::Debug for Flight<I, A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flight")
            .field("task", &self.task)
            .field("ahead", &self.ahead.len())
            .finish_non_exhaustive()
    }
}

impl<I, A, R> fmt::Debug for Map<I, A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Map").field(&self.0).finish()
    }
}

impl<I, A, R> fmt::Debug for Unordered<I, A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Unordered").field(&self.0).finish()
    }
}

impl<I, A, R> fmt::Debug for Each<I, A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Each").field(&self.flight).finish()
    }
}
