//! [`RemoteValue`]: a result that comes later, and [`Fetch`]: structures of them.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use forebear::TimeoutError;
use forebear::sync::Event;
use serde::de::DeserializeOwned;

use crate::coordinator::Shared;
use crate::engine::{TaskId, WorkerId};
use crate::error::{FetchError, TaskFailure};
use crate::stored::{Kept, Stored};

/// The result of a task, which may still have to come.
///
/// The coordinator keeps the result, in its encoded form, until the last clone of this handle is dropped; a large one stays in the engine's [store](Stored) for as long. It does not need the worker any more. That a handle is dropped does not cancel the task.
///
/// It is no argument of a task: pass on its token, by [`stored`](Self::stored), or [`fetch`](Self::fetch) it and pass the value.
///
/// ```compile_fail
/// use forebear_cluster::{ClusterCoordinator, RemoteValue, TaskFn};
///
/// const NEXT: TaskFn<RemoteValue<u32>, u32> = TaskFn::new("next", |_, value| Ok(value.fetch()? + 1));
///
/// fn chain(cluster: &ClusterCoordinator, value: RemoteValue<u32>) {
///     cluster.schedule(&NEXT, value); // `RemoteValue<u32>` is not `Serialize`
/// }
/// ```
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, RemoteState, TaskFn, tasks};
///
/// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![NEXT]).start()?;
/// let value = cluster.schedule(&NEXT, 1)?;
/// assert_eq!(value.fetch().unwrap(), 2);
/// assert_eq!(value.fetch().unwrap(), 2, "as often as you like");
/// assert!(matches!(value.state(), RemoteState::Done(_)));
/// # Ok::<(), ClusterError>(())
/// ```
pub struct RemoteValue<T> {
    held: Arc<Held>,
    of: PhantomData<fn() -> T>,
}

/// What the clones of a handle share. The board has a weak reference to the slot alone, so this counts the clones.
struct Held {
    task: TaskId,
    slot: Arc<Slot>,
    shared: Arc<Shared>,
}

/// Where a result comes in.
pub(crate) struct Slot {
    state: Mutex<RemoteState>,
    /// What holds the result's object, if it is in the store.
    kept: OnceLock<Arc<Kept>>,
    /// Set when it is over, and while the engine is away: who waits looks what it is. Both are told under the board's lock.
    over: Event,
    /// Set when it is over.
    some: Option<Arc<Event>>,
    /// So many callers wait in a fetch.
    fetching: AtomicUsize,
    /// What counts the handles, when there is one.
    held: OnceLock<Weak<Held>>,
}

/// How far a [`RemoteValue`] is.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, RemoteState, TaskFn, tasks};
///
/// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![NEXT]).start()?;
/// let value = cluster.schedule(&NEXT, 1)?;
/// if let RemoteState::Running { worker, progress, .. } = value.state() {
///     println!("{:.0} % on {worker}", 100.0 * progress);
/// }
/// cluster.join()?;
/// assert!(matches!(value.state(), RemoteState::Done(_)));
/// # Ok::<(), ClusterError>(())
/// ```
///
/// `Debug` shows how many bytes a result has, not the bytes.
#[derive(Clone)]
#[non_exhaustive]
pub enum RemoteState {
    /// Its task waits for a worker.
    Queued,
    /// A worker runs its task.
    #[non_exhaustive]
    Running {
        /// The worker.
        worker: WorkerId,
        /// Which attempt, from 1.
        attempt: u32,
        /// How far the task is, from 0 to 1, as it [reports](crate::TaskCtx::progress).
        progress: f64,
    },
    /// It is here, in its encoded form.
    Done(Arc<[u8]>),
    /// It is in the engine's store.
    #[non_exhaustive]
    Stored {
        /// Its size, in bytes.
        bytes: u64,
    },
    /// Its task failed.
    Failed(TaskFailure),
    /// Its task was cancelled. Schedule it again if it is still needed.
    Dropped,
    /// The cluster was shut down before its task ended.
    Closed,
}

impl fmt::Debug for RemoteState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteState::Queued => f.write_str("Queued"),
            RemoteState::Running { worker, attempt, progress } => f
                .debug_struct("Running")
                .field("worker", worker)
                .field("attempt", attempt)
                .field("progress", progress)
                .finish(),
            RemoteState::Done(bytes) => f.debug_struct("Done").field("bytes", &bytes.len()).finish(),
            RemoteState::Stored { bytes } => f.debug_struct("Stored").field("bytes", bytes).finish(),
            RemoteState::Failed(failure) => f.debug_tuple("Failed").field(failure).finish(),
            RemoteState::Dropped => f.write_str("Dropped"),
            RemoteState::Closed => f.write_str("Closed"),
        }
    }
}

impl RemoteState {
    pub(crate) fn is_over(&self) -> bool {
        !matches!(self, RemoteState::Queued | RemoteState::Running { .. })
    }
}

impl Slot {
    /// `some` is set as well when the value is over.
    pub(crate) fn new(some: Option<Arc<Event>>) -> Slot {
        Slot {
            state: Mutex::new(RemoteState::Queued),
            kept: OnceLock::new(),
            over: Event::new(),
            some,
            fetching: AtomicUsize::new(0),
            held: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, RemoteState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the state. Those that wait for the end are notified by [`tell`](Self::tell).
    pub(crate) fn set(&self, new: RemoteState) {
        *self.lock() = new;
    }

    /// It is over: wakes the waiters.
    pub(crate) fn tell(&self) {
        self.over.set();
        self.some.iter().for_each(|some| some.set());
    }

    /// The engine is away, or is back: who waits for it is woken, or waits again.
    pub(crate) fn tell_away(&self, away: bool) {
        if away { self.over.set() } else { self.over.reset() }
    }

    fn is_over(&self) -> bool {
        self.over.is_set() && self.lock().is_over()
    }

    /// Somebody waits for it, or there are several handles. A value whose handle is about to be made counts as wanted.
    pub(crate) fn is_wanted(&self) -> bool {
        let handles = self.held.get().map(Weak::strong_count);
        handles.is_none_or(|handles| handles > 1) || self.fetching.load(Ordering::Acquire) > 0
    }

    /// The result is this object. Told before the state.
    pub(crate) fn keep(&self, kept: Arc<Kept>) {
        let _ = self.kept.set(kept);
    }
}

#[cfg(test)]
impl Slot {
    pub(crate) fn is_done(&self, with: &[u8]) -> bool {
        self.over.is_set() && matches!(&*self.lock(), RemoteState::Done(result) if **result == *with)
    }

    pub(crate) fn runs_at(&self, fraction: f64) -> bool {
        matches!(&*self.lock(), RemoteState::Running { progress, .. } if *progress == fraction)
    }
}

impl<T> RemoteValue<T> {
    pub(crate) fn new(task: TaskId, slot: Arc<Slot>, shared: Arc<Shared>) -> RemoteValue<T> {
        let held = Arc::new(Held { task, slot, shared });
        let _ = held.slot.held.set(Arc::downgrade(&held));
        RemoteValue { held, of: PhantomData }
    }

    /// How far it is. Does not suspend.
    #[must_use]
    pub fn state(&self) -> RemoteState {
        self.held.slot.lock().clone()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.held.slot.is_over()
    }

    /// Cancels its task, wherever it is. If it has not ended before, a fetch answers [`FetchError::Dropped`]. That is no error of the job. Does not suspend.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, FetchError, InProcess, TaskFn, tasks};
    /// use std::time::Duration;
    ///
    /// const NEVER: TaskFn<(), ()> = TaskFn::new("never", |_, ()| Ok(forebear::time::sleep(Duration::MAX)?));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![NEVER]).start()?;
    /// let value = cluster.schedule(&NEVER, ())?;
    /// value.cancel();
    /// assert!(matches!(value.fetch(), Err(FetchError::Dropped)));
    /// cluster.join()?;
    /// # Ok::<(), ClusterError>(())
    /// ```
    pub fn cancel(&self) {
        self.held.shared.cancel(self.held.task);
    }

    /// Cancels the task, if nobody else can want its result.
    fn cancel_if_unwanted(&self) {
        let held = &self.held;
        if !held.slot.is_wanted() && !held.shared.board.is_joined(held.task) {
            self.cancel();
        }
    }

    /// Waits so long at most until the task has ended, or the engine is away. A cancelled wait cancels nothing.
    pub(crate) fn over_within(&self, timeout: Duration) -> Result<(), TimeoutError> {
        let slot = &self.held.slot;
        slot.fetching.fetch_add(1, Ordering::AcqRel);
        let waited = slot.over.wait_timeout(timeout);
        slot.fetching.fetch_sub(1, Ordering::AcqRel);
        waited
    }

    /// Waits until the task has ended. `cancels`: a cancelled wait cancels what only it wanted.
    fn wait(&self, end: Option<Instant>, cancels: bool) -> Result<(), FetchError> {
        let slot = &self.held.slot;
        if slot.is_over() {
            return Ok(());
        }
        slot.fetching.fetch_add(1, Ordering::AcqRel);
        let waited = self.wait_over(end);
        slot.fetching.fetch_sub(1, Ordering::AcqRel);
        if matches!(waited, Err(FetchError::Cancelled)) && cancels {
            self.cancel_if_unwanted();
        }
        waited
    }

    fn wait_over(&self, end: Option<Instant>) -> Result<(), FetchError> {
        let (slot, shared) = (&self.held.slot, &self.held.shared);
        loop {
            let waited = match end {
                None => slot.over.wait().map_err(|_| TimeoutError::Cancelled),
                Some(end) => slot.over.wait_timeout(left(end)),
            };
            match waited {
                Ok(()) if slot.is_over() => return Ok(()),
                // It was woken since the engine is away. If that is back, the event is reset.
                Ok(()) => shared.check_away()?,
                Err(TimeoutError::TimedOut) => return Err(FetchError::TimedOut),
                Err(TimeoutError::Cancelled) => return Err(FetchError::Cancelled),
            }
        }
    }
}

impl<T: DeserializeOwned> RemoteValue<T> {
    /// Waits until the task has ended, and decodes its result. The answer is the same each time.
    ///
    /// A fetch that is cancelled cancels the task as well, if nothing else needs it. That is so if no other fetch waits
    /// for it, there is no other clone of this handle, and no `join` waits.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`FetchError`], but not `TimedOut`.
    pub fn fetch(&self) -> Result<T, FetchError> {
        self.get(None, true)
    }

    /// The same, but a cancelled call cancels nothing.
    pub(crate) fn fetch_only(&self) -> Result<T, FetchError> {
        self.get(None, false)
    }

    /// The same, and gives up after `timeout`. The task runs on. A timeout of zero checks once. A value that is in the engine's [store](Stored) has to be read within the time, too; if that
    /// takes longer, the engine reads on, and a later fetch gets the value.
    ///
    /// Suspends. A cancellation point.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, FetchError, InProcess, TaskFn, tasks};
    /// use std::time::Duration;
    ///
    /// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
    ///
    /// let engine = InProcess::new(0);
    /// let control = engine.control();
    /// let cluster = ClusterCoordinator::builder(engine).min_workers(0).tasks(tasks![NEXT]).start()?;
    /// let value = cluster.schedule(&NEXT, 1)?;
    /// assert!(matches!(value.fetch_timeout(Duration::from_millis(1)), Err(FetchError::TimedOut)));
    /// control.add("first");
    /// assert_eq!(value.fetch_timeout(Duration::from_secs(60)).unwrap(), 2);
    /// # Ok::<(), ClusterError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`FetchError`].
    pub fn fetch_timeout(&self, timeout: Duration) -> Result<T, FetchError> {
        self.get(Some(timeout), true)
    }

    fn get(&self, timeout: Option<Duration>, cancels: bool) -> Result<T, FetchError> {
        let begun = Instant::now();
        let end = timeout.and_then(|timeout| forebear::time::now().checked_add(timeout));
        self.wait(end, cancels)?;
        let shared = &self.held.shared;
        let value = match self.ended()? {
            Ended::Here(bytes) => postcard::from_bytes(&bytes)
                .map_err(|error| FetchError::Decode { message: error.to_string() })?,
            Ended::Stored(kept) => shared.fetch_object(kept.object, end.map(left))?,
        };
        shared.board.fetches.fetched(begun.elapsed());
        Ok(value)
    }
}

/// The time until then, on the clock of the caller's runtime.
fn left(end: Instant) -> Duration {
    end.saturating_duration_since(forebear::time::now())
}

/// Where a result is.
enum Ended {
    Here(Arc<[u8]>),
    Stored(Arc<Kept>),
}

impl<T> RemoteValue<T> {
    fn ended(&self) -> Result<Ended, FetchError> {
        match self.state() {
            RemoteState::Done(bytes) => Ok(Ended::Here(bytes)),
            RemoteState::Stored { .. } => match self.held.slot.kept.get() {
                Some(kept) => Ok(Ended::Stored(kept.clone())),
                None => Err(FetchError::Closed),
            },
            RemoteState::Failed(failure) => Err(FetchError::Task(failure)),
            RemoteState::Dropped => Err(FetchError::Dropped),
            RemoteState::Closed => Err(FetchError::Closed),
            RemoteState::Queued | RemoteState::Running { .. } => unreachable!("it is over"),
        }
    }

    /// Waits until the task has ended, and gives the token of its result, to pass it on as an argument. The value is not fetched.
    ///
    /// A result of more than 256 KiB is in the engine's store: the token names it there. The coordinator puts a smaller one into the store when this is called first.
    ///
    /// A call that is cancelled cancels the task as a [fetch](Self::fetch) does. Suspends. A cancellation point.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, Stored, TaskFn, tasks};
    ///
    /// const TABLE: TaskFn<u32, Vec<u32>> = TaskFn::new("table", |_, n| Ok((0..n).collect()));
    /// const SUM: TaskFn<Stored<Vec<u32>>, u32> = TaskFn::new("sum", |ctx, table| Ok(table.get(ctx)?.iter().sum()));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![TABLE, SUM]).start()?;
    /// let table = cluster.schedule(&TABLE, 5)?.stored().unwrap();
    /// assert_eq!(cluster.schedule(&SUM, table)?.fetch().unwrap(), 10);
    /// # Ok::<(), ClusterError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`FetchError`], but not `TimedOut`.
    pub fn stored(&self) -> Result<Stored<T>, FetchError> {
        self.wait(None, true)?;
        let (slot, shared) = (&self.held.slot, &self.held.shared);
        let kept = match (self.ended()?, slot.kept.get()) {
            (Ended::Stored(kept), _) => kept,
            (Ended::Here(_), Some(kept)) => kept.clone(),
            (Ended::Here(bytes), None) => {
                let kept = shared.keep(bytes).map_err(|error| shared.of_store(error))?;
                // Of two that were put at once the first one stays.
                slot.kept.get_or_init(|| kept).clone()
            }
        };
        Ok(Stored::new(kept))
    }
}

impl<T> Clone for RemoteValue<T> {
    fn clone(&self) -> Self {
        RemoteValue { held: self.held.clone(), of: PhantomData }
    }
}

impl<T> fmt::Debug for RemoteValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteValue").field("task", &self.held.task).field("state", &self.state()).finish()
    }
}

/// A structure of [`RemoteValue`]s that [`ClusterCoordinator::fetch`](crate::ClusterCoordinator::fetch) turns into the same structure of values.
///
/// Structures are options, vectors, arrays and tuples. [`Plain`] is what passes through as it is.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, Plain, TaskFn, tasks};
///
/// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![NEXT]).start()?;
/// let (a, b) = (cluster.schedule(&NEXT, 1)?, cluster.schedule(&NEXT, 2)?);
/// let fetched = cluster.fetch((&a, vec![Some(&b), None], Plain("text"))).unwrap();
/// assert_eq!(fetched, (2, vec![Some(3), None], "text"));
/// # Ok::<(), ClusterError>(())
/// ```
pub trait Fetch {
    /// The structure of values.
    type Output;

    /// Fetches one value after the other.
    ///
    /// Suspends while a value is not there. A cancellation point then.
    ///
    /// # Errors
    ///
    /// The first error.
    fn fetch_all(self) -> Result<Self::Output, FetchError>;
}

/// What is no remote value, in a structure that is [fetched](Fetch): it passes through.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, Plain, TaskFn, tasks};
///
/// const LENGTH: TaskFn<String, usize> = TaskFn::new("length", |_, text| Ok(text.len()));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![LENGTH]).start()?;
/// let named = (Plain("four"), cluster.schedule(&LENGTH, "four".into())?);
/// assert_eq!(cluster.fetch(named).unwrap(), ("four", 4));
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Plain<T>(pub T);

impl<T> Fetch for Plain<T> {
    type Output = T;

    fn fetch_all(self) -> Result<T, FetchError> {
        Ok(self.0)
    }
}

impl<T: DeserializeOwned> Fetch for RemoteValue<T> {
    type Output = T;

    fn fetch_all(self) -> Result<T, FetchError> {
        RemoteValue::fetch(&self)
    }
}

impl<T: DeserializeOwned> Fetch for &RemoteValue<T> {
    type Output = T;

    fn fetch_all(self) -> Result<T, FetchError> {
        RemoteValue::fetch(self)
    }
}

impl<F: Fetch> Fetch for Option<F> {
    type Output = Option<F::Output>;

    fn fetch_all(self) -> Result<Self::Output, FetchError> {
        self.map(F::fetch_all).transpose()
    }
}

impl<F: Fetch> Fetch for Vec<F> {
    type Output = Vec<F::Output>;

    fn fetch_all(self) -> Result<Self::Output, FetchError> {
        self.into_iter().map(F::fetch_all).collect()
    }
}

impl<'a, F> Fetch for &'a [F]
where
    &'a F: Fetch,
{
    type Output = Vec<<&'a F as Fetch>::Output>;

    fn fetch_all(self) -> Result<Self::Output, FetchError> {
        self.iter().map(Fetch::fetch_all).collect()
    }
}

impl<F: Fetch, const N: usize> Fetch for [F; N] {
    type Output = [F::Output; N];

    fn fetch_all(self) -> Result<Self::Output, FetchError> {
        let fetched = Vec::from(self).fetch_all()?;
        Ok(fetched.try_into().unwrap_or_else(|_| unreachable!("one for each")))
    }
}

macro_rules! tuples {
    ($(($($name:ident)+))+) => { $(
        impl<$($name: Fetch),+> Fetch for ($($name,)+) {
            type Output = ($($name::Output,)+);

            fn fetch_all(self) -> Result<Self::Output, FetchError> {
                #[allow(non_snake_case, reason = "the names of the types serve for the values")]
                let ($($name,)+) = self;
                Ok(($($name.fetch_all()?,)+))
            }
        }
    )+ };
}

tuples! { (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) }
