//! [`TaskFn`], [`ResourceFn`] and [`Tasks`]: functions that have a name on every worker.

mod shape;

use std::any::{Any, type_name};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use forebear::Error;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ctx::TaskCtx;
use crate::encoded::encoded;
use crate::engine::ResourceId;
use crate::error::{ClusterError, FailureKind};
use crate::holds::note;

/// A function that a worker can run: a name, and the types of its arguments and of its result.
///
/// A handle, made in a constant. A closure that captures something is no task: it would not exist on another worker, and it does not compile.
/// The name has to be the same in each program of the cluster, and unique there. Several arguments are a tuple.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
///
/// const SCALE: TaskFn<(u32, u32), u32> = TaskFn::new("example::scale", |_, (a, b)| Ok(a * b));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![SCALE]).start()?;
/// let value = cluster.schedule(&SCALE, (6, 7))?;
/// assert_eq!(value.fetch().unwrap(), 42);
/// # Ok::<(), ClusterError>(())
/// ```
///
/// ```compile_fail
/// use forebear_cluster::TaskFn;
/// let captured = 1;
/// let task: TaskFn<u32, u32> = TaskFn::new("adds", move |_, n| Ok(n + captured));
/// ```
pub struct TaskFn<A, R> {
    name: &'static str,
    run: fn(&TaskCtx, A) -> Result<R, Error>,
}

impl<A, R> TaskFn<A, R> {
    /// A task of this name. The function's context is the first argument.
    pub const fn new(name: &'static str, run: fn(&TaskCtx, A) -> Result<R, Error>) -> Self {
        TaskFn { name, run }
    }

    /// Its name.
    ///
    /// ```
    /// use forebear_cluster::TaskFn;
    ///
    /// const NEXT: TaskFn<u32, u32> = TaskFn::new("example::next", |_, n| Ok(n + 1));
    /// assert_eq!(NEXT.name(), "example::next");
    /// ```
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<A, R> Clone for TaskFn<A, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, R> Copy for TaskFn<A, R> {}

impl<A, R> fmt::Debug for TaskFn<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TaskFn").field(&self.name).finish()
    }
}

/// A function that makes a resource on a worker: see [`ClusterCoordinator::per_worker`](crate::ClusterCoordinator::per_worker). Its result stays on that
/// worker, and is never encoded.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, ResourceFn, tasks};
///
/// const TABLE: ResourceFn<u32, Vec<u32>> = ResourceFn::new("table", |_, rows| Ok((0..rows).collect()));
///
/// assert_eq!(TABLE.name(), "table");
/// let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![TABLE]).start()?;
/// let table = cluster.per_worker(&TABLE, 1_000)?; // an argument of tasks
/// # Ok::<(), ClusterError>(())
/// ```
///
/// As a [task](TaskFn) it captures nothing of the coordinator:
///
/// ```compile_fail
/// use forebear_cluster::ResourceFn;
/// let rows = 1_000;
/// let table: ResourceFn<(), Vec<u32>> = ResourceFn::new("table", move |_, ()| Ok((0..rows).collect()));
/// ```
pub struct ResourceFn<A, R> {
    name: &'static str,
    run: fn(&TaskCtx, A) -> Result<R, Error>,
}

impl<A, R> ResourceFn<A, R> {
    /// A resource of this name. The worker's context is the first argument.
    pub const fn new(name: &'static str, run: fn(&TaskCtx, A) -> Result<R, Error>) -> Self {
        ResourceFn { name, run }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<A, R> Clone for ResourceFn<A, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, R> Copy for ResourceFn<A, R> {}

impl<A, R> fmt::Debug for ResourceFn<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ResourceFn").field(&self.name).finish()
    }
}

/// A resource that each worker has one of. A token: [`TaskCtx::local`] finds this worker's part.
///
/// It is an argument of tasks. A clone is the same resource. When the last clone on the coordinator goes, the workers drop theirs.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, PerWorker, ResourceFn, TaskFn, tasks};
///
/// const TABLE: ResourceFn<u32, Vec<u32>> = ResourceFn::new("table", |_, rows| Ok((0..rows).collect()));
/// const ROW: TaskFn<(PerWorker<Vec<u32>>, usize), u32> =
///     TaskFn::new("row", |ctx, (table, at)| Ok(ctx.local(&table)?[at]));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![TABLE, ROW]).start()?;
/// let table = cluster.per_worker(&TABLE, 1_000)?;
/// let rows: Result<Vec<u32>, ClusterError> = cluster.map(&ROW, (0..4).map(|at| (table.clone(), at))).collect();
/// assert_eq!(rows?, [0, 1, 2, 3]);
/// # Ok::<(), ClusterError>(())
/// ```
///
/// The coordinator has no part, so there is nothing to iterate over:
///
/// ```compile_fail
/// use forebear_cluster::PerWorker;
///
/// fn sum(table: PerWorker<Vec<u32>>) -> u32 {
///     table.into_iter().sum() // `PerWorker<Vec<u32>>` is not an iterator
/// }
/// ```
pub struct PerWorker<R> {
    pub(crate) job: u64,
    pub(crate) id: ResourceId,
    /// What frees it. Nothing, in a copy that came to a worker.
    pub(crate) owner: Option<Arc<dyn Any + Send + Sync>>,
    pub(crate) of: PhantomData<fn() -> R>,
}

impl<R> Clone for PerWorker<R> {
    fn clone(&self) -> Self {
        PerWorker { job: self.job, id: self.id, owner: self.owner.clone(), of: PhantomData }
    }
}

impl<R> fmt::Debug for PerWorker<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PerWorker").field(&self.id.0).finish()
    }
}

impl<R> Serialize for PerWorker<R> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        note(|| self.owner.clone());
        (self.job, self.id).serialize(to)
    }
}

impl<'de, R> Deserialize<'de> for PerWorker<R> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (job, id) = Deserialize::deserialize(from)?;
        Ok(PerWorker { job, id, owner: None, of: PhantomData })
    }
}

pub(crate) type Made = Arc<dyn Any + Send + Sync>;
type RunTask = Arc<dyn Fn(&TaskCtx, &[u8]) -> Result<Result<Arc<[u8]>, Error>, FailureKind> + Send + Sync>;
type RunResource = Arc<dyn Fn(&TaskCtx, &[u8]) -> Result<Result<Made, Error>, FailureKind> + Send + Sync>;

/// What a name stands for.
#[derive(Clone)]
pub(crate) enum Entry {
    Task(RunTask),
    Resource(RunResource),
}

/// What a function may return that the attribute [`task`](macro@crate::task) makes a task: a `Result`.
///
/// ```
/// use forebear_cluster::Returned;
///
/// type Score = <forebear::Result<u32> as Returned>::Value;
/// let score: Score = 7_u32;
/// assert_eq!(score, 7);
/// ```
#[diagnostic::on_unimplemented(
    message = "a task returns a `Result`, and so does a resource: `{Self}` is none",
    label = "not a `Result`"
)]
pub trait Returned {
    /// What it holds if all went well.
    type Value;
}

impl<T, E> Returned for Result<T, E> {
    type Value = T;
}

/// A function that [`Tasks`] can hold.
///
/// ```
/// use forebear_cluster::{Registered, TaskFn, Tasks};
///
/// /// One more task, with a line in the log.
/// fn add(tasks: Tasks, one: impl Registered + std::fmt::Debug) -> Tasks {
///     println!("{one:?}");
///     tasks.with(one)
/// }
///
/// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
/// assert_eq!(add(Tasks::new(), NEXT).signatures().count(), 1);
/// ```
pub trait Registered {
    /// Adds it.
    #[doc(hidden)]
    fn add_to(self, tasks: &mut Tasks);
}

impl<A: DeserializeOwned + 'static, R: Serialize + DeserializeOwned + 'static> Registered for TaskFn<A, R> {
    fn add_to(self, tasks: &mut Tasks) {
        let run: RunTask = Arc::new(move |ctx, args| {
            let args = postcard::from_bytes(args).map_err(codec)?;
            match (self.run)(ctx, args) {
                Ok(value) => Ok(Ok(encoded(&value).map_err(codec)?)),
                Err(error) => Ok(Err(error)),
            }
        });
        let (args, result) = (shape::of::<A>(), shape::of::<R>());
        let shapes = (args.has_names() || result.has_names()).then(|| format!("{args} -> {result}"));
        tasks.insert(self.name, Signature::new(types::<A, R>("task"), shapes), Entry::Task(run));
    }
}

impl<A: DeserializeOwned + 'static, R: Send + Sync + 'static> Registered for ResourceFn<A, R> {
    fn add_to(self, tasks: &mut Tasks) {
        let run: RunResource = Arc::new(move |ctx, args| {
            let args = postcard::from_bytes(args).map_err(codec)?;
            Ok((self.run)(ctx, args).map(|made| Arc::new(made) as Made))
        });
        // What it makes is never encoded.
        let args = shape::of::<A>();
        let shapes = args.has_names().then(|| args.to_string());
        tasks.insert(self.name, Signature::new(types::<A, R>("resource"), shapes), Entry::Resource(run));
    }
}

fn codec(error: postcard::Error) -> FailureKind {
    FailureKind::Codec { message: error.to_string() }
}

/// What two programs compare of a task or a resource: the names of its types, and the [shapes](shape) of those that have names.
#[derive(Clone)]
struct Signature {
    text: String,
    /// So much of the text are the names of the types.
    types: usize,
}

impl Signature {
    fn new(types: String, shapes: Option<String>) -> Signature {
        let length = types.len();
        let text = match shapes {
            Some(shapes) => format!("{types} as {shapes}"),
            None => types,
        };
        Signature { text, types: length }
    }

    /// Whether these are its types. Each `schedule` asks, so it makes no text.
    fn is_of<A, R>(&self, kind: &str) -> bool {
        let parts = [kind, " ", type_name::<A>(), " -> ", type_name::<R>()];
        let known = &self.text[..self.types];
        parts.iter().try_fold(known, |rest, part| rest.strip_prefix(part)) == Some("")
    }
}

/// What is known of a name.
#[derive(Clone)]
struct Known {
    /// The name, for messages.
    name: Arc<str>,
    /// What requests are called that run it.
    request: &'static str,
    signature: Signature,
    entry: Entry,
}

/// The name of a task's requests. It is made once, however many requests have it, and stays, as the name of the task does.
fn request_name(name: &str) -> &'static str {
    static KNOWN: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let name = format!("task {name}");
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known.get(name.as_str()) {
        return known;
    }
    let name = name.leak();
    known.insert(name);
    name
}

/// The types, as the compiler writes them.
fn types<A, R>(kind: &str) -> String {
    format!("{kind} {} -> {}", type_name::<A>(), type_name::<R>())
}

/// The tasks and resources that a program knows, by name. Made by [`tasks!`](crate::tasks).
///
/// ```
/// use forebear_cluster::{TaskFn, Tasks};
///
/// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
///
/// let tasks = Tasks::new().with(NEXT); // as `tasks![NEXT]`
/// assert!(tasks.signatures().eq([(NEXT.name(), "task u32 -> u32")]));
/// ```
#[derive(Clone, Default)]
pub struct Tasks {
    table: BTreeMap<&'static str, Known>,
    /// A name that was given twice.
    twice: Option<&'static str>,
}

impl Tasks {
    /// No tasks.
    #[must_use]
    pub fn new() -> Tasks {
        Tasks::default()
    }

    /// Adds a task or a resource. If a name is given twice, the start of the cluster fails with [`ClusterError::NameTaken`].
    #[must_use]
    pub fn with(mut self, one: impl Registered) -> Tasks {
        one.add_to(&mut self);
        self
    }

    /// The names, and with each the signature: the types as the compiler writes them, and the shapes of structs and enums in them.
    ///
    /// The shape of a type is what its `Deserialize` asks for. It is found when the task is added, by values that are made of samples and dropped again. A type may refuse them; what follows it in the
    /// same value is not seen then. Two programs whose shapes differ do not work together.
    ///
    /// ```
    /// use forebear_cluster::{TaskFn, Tasks};
    /// use serde::Deserialize;
    ///
    /// #[derive(Deserialize)]
    /// struct Size {
    ///     width: u32,
    ///     height: Option<u32>,
    /// }
    ///
    /// const AREA: TaskFn<Size, u32> = TaskFn::new("area", |_, size| Ok(size.width * size.height.unwrap_or(1)));
    ///
    /// let (_, signature) = Tasks::new().with(AREA).signatures().next().map(|(name, text)| (name, text.to_owned())).unwrap();
    /// assert!(signature.ends_with("Size -> u32 as Size {width: u32, height: Option<u32>} -> u32"));
    /// ```
    pub fn signatures(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.table.iter().map(|(name, known)| (*name, known.signature.text.as_str()))
    }

    fn insert(&mut self, name: &'static str, signature: Signature, entry: Entry) {
        if let Some(first) = self
            .table
            .insert(name, Known { name: name.into(), request: request_name(name), signature, entry })
        {
            self.twice.get_or_insert(name);
            // A worker's coordinator sees by that what is wrong with the worker's program.
            let twice = Signature::new("two of this name".into(), None);
            self.table.insert(name, Known { signature: twice, ..first });
        }
    }

    pub(crate) fn signature(&self, name: &str) -> Option<&str> {
        self.table.get(name).map(|known| known.signature.text.as_str())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Entry> {
        self.table.get(name).map(|known| &known.entry)
    }

    /// What the request is called that runs a task of this name.
    pub(crate) fn request_name(&self, name: &str) -> Cow<'static, str> {
        match self.table.get(name) {
            Some(known) => Cow::Borrowed(known.request),
            None => Cow::Owned(format!("task {name}")),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ClusterError> {
        match self.twice {
            Some(task) => Err(ClusterError::NameTaken { task: task.into() }),
            None => Ok(()),
        }
    }

    /// The name of this very task, if it is known.
    pub(crate) fn check_task<A, R>(&self, task: &TaskFn<A, R>) -> Result<&Arc<str>, ClusterError> {
        self.check_one::<A, R>(task.name, "task")
    }

    pub(crate) fn check_resource<A, R>(
        &self,
        resource: &ResourceFn<A, R>,
    ) -> Result<&Arc<str>, ClusterError> {
        self.check_one::<A, R>(resource.name, "resource")
    }

    fn check_one<A, R>(&self, name: &str, kind: &str) -> Result<&Arc<str>, ClusterError> {
        match self.table.get(name) {
            None => Err(ClusterError::NotRegistered { task: name.into() }),
            Some(known) if !known.signature.is_of::<A, R>(kind) => {
                Err(ClusterError::NameTaken { task: name.into() })
            }
            Some(known) => Ok(&known.name),
        }
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.signatures()).finish()
    }
}

/// The [`Tasks`] of a program: `tasks![SCORE, RENDER, TABLE]`, of [`TaskFn`]s and [`ResourceFn`]s.
///
/// ```
/// use forebear_cluster::{ResourceFn, TaskFn, tasks};
///
/// const SCORE: TaskFn<u32, f64> = TaskFn::new("score", |_, n| Ok(f64::from(n).sqrt()));
/// const TABLE: ResourceFn<usize, Vec<u8>> = ResourceFn::new("table", |_, bytes| Ok(vec![0; bytes]));
///
/// let names: Vec<_> = tasks![SCORE, TABLE].signatures().map(|(name, _)| name).collect();
/// assert_eq!(names, ["score", "table"]);
/// ```
#[macro_export]
macro_rules! tasks {
    ($($one:expr),* $(,)?) => { $crate::Tasks::new()$(.with($one))* };
}
