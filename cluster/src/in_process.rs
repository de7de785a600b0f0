//! [`InProcess`]: workers in this process.

mod objects;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use forebear::Runtime;

use self::objects::Objects;
use crate::cache::CACHE;
use crate::dispatch::{Dispatcher, Going, Port};
use crate::engine::{
    Engine, Envelope, Job, Link, MAX_SLOTS, ObjectStore, Order, Resource, ResourceId, TaskId, WorkerId,
};
use crate::error::ClusterError;
use crate::task::Tasks;
use crate::worker::Node;

/// The engine whose workers live in this process, as requests on a runtime.
///
/// For programs that may outgrow one machine, and for tests: arguments and results are encoded as for any other engine, so what works here works there. A task
/// that panics fails; one that aborts ends the program.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
///
/// const LENGTH: TaskFn<String, usize> = TaskFn::new("length", |_, text| Ok(text.len()));
///
/// let engine = InProcess::new(2).slots(4); // two workers, of which each runs four tasks at once
/// let cluster = ClusterCoordinator::builder(engine).tasks(tasks![LENGTH]).start()?;
/// assert_eq!(cluster.schedule(&LENGTH, "four".into())?.fetch().unwrap(), 4);
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Clone)]
pub struct InProcess {
    workers: usize,
    slots: usize,
    cache: u64,
    runtime: Option<Runtime>,
    control: InProcessControl,
}

/// Adds workers to a cluster [in this process](InProcess), and takes them away, while it runs.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
///
/// const TWICE: TaskFn<u32, u32> = TaskFn::new("twice", |_, n| Ok(2 * n));
///
/// let engine = InProcess::new(1);
/// let control = engine.control();
/// let cluster = ClusterCoordinator::builder(engine).tasks(tasks![TWICE]).start()?;
/// let second = control.add("second").expect("the cluster runs");
/// control.drain(cluster.workers()[0].id.name()); // the first one leaves
/// assert_eq!(cluster.schedule(&TWICE, 4)?.fetch().unwrap(), 8);
/// assert_eq!(second.incarnation(), 1);
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Clone, Default)]
pub struct InProcessControl(Arc<Mutex<InProcessState>>);

#[derive(Default)]
struct InProcessState {
    running: Option<InProcessCluster>,
    /// The incarnation of each name, and its number.
    names: BTreeMap<String, (u64, usize)>,
}

#[derive(Clone)]
struct InProcessCluster {
    dispatcher: Weak<Dispatcher>,
    tasks: Tasks,
    runtime: Runtime,
    slots: usize,
    cache: u64,
    store: Weak<Objects>,
}

impl InProcess {
    /// So many workers, named `worker-0` and so on. Each runs one task at a time. With 0 all come by the [control](Self::control), and [`min_workers`](crate::ClusterCoordinatorBuilder::min_workers) is 0, too.
    #[must_use]
    pub fn new(workers: usize) -> InProcess {
        InProcess { workers, slots: 1, cache: CACHE, runtime: None, control: InProcessControl::default() }
    }

    /// Each worker runs so many tasks at once. Default: 1, which is also the least; the most is [`MAX_SLOTS`].
    #[must_use]
    pub fn slots(mut self, slots: usize) -> InProcess {
        self.slots = slots.clamp(1, MAX_SLOTS);
        self
    }

    /// Each worker keeps so many bytes of [`Stored`](crate::Stored) values that it has read. Default: 256 MiB.
    #[must_use]
    pub fn cache(mut self, bytes: u64) -> InProcess {
        self.cache = bytes;
        self
    }

    /// The runtime on which the tasks run. Default: the current runtime of the caller that starts the cluster.
    ///
    /// ```
    /// use forebear::Runtime;
    /// use forebear_cluster::{ClusterCoordinator, InProcess, TaskFn, tasks};
    ///
    /// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
    ///
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// let engine = InProcess::new(2).runtime(&runtime).cache(64 << 20);
    /// let cluster = ClusterCoordinator::builder(engine).tasks(tasks![NEXT]).start()?;
    /// assert_eq!(cluster.schedule(&NEXT, 1)?.fetch()?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn runtime(mut self, runtime: &Runtime) -> InProcess {
        self.runtime = Some(runtime.clone());
        self
    }

    /// What changes the workers of this cluster later on.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess};
    ///
    /// let engine = InProcess::new(0);
    /// let control = engine.control();
    /// let cluster = ClusterCoordinator::builder(engine).min_workers(0).start()?;
    /// control.add("late");
    /// assert_eq!(cluster.workers()[0].id.name(), "late");
    /// # Ok::<(), ClusterError>(())
    /// ```
    #[must_use]
    pub fn control(&self) -> InProcessControl {
        self.control.clone()
    }
}

impl InProcessControl {
    fn lock(&self) -> MutexGuard<'_, InProcessState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a worker. If there was one of this name, the new one is its next incarnation; if that is still there, it is [ended](Self::fail) first.
    ///
    /// `None` if the cluster does not run. Does not suspend.
    pub fn add(&self, name: &str) -> Option<WorkerId> {
        self.fail(name);
        let mut control = self.lock();
        let cluster = control.running.clone()?;
        let dispatcher = cluster.dispatcher.upgrade()?;
        let index = control.names.len();
        let known = control.names.entry(name.to_owned()).or_insert((0, index));
        known.0 += 1;
        let (id, index) = (WorkerId::new(name, known.0), known.1);
        drop(control);
        let (weak, its) = (cluster.dispatcher.clone(), id.clone());
        let report = move |report| {
            if let Some(dispatcher) = weak.upgrade() {
                dispatcher.report(&its, report);
            }
        };
        let node = Node::new(id.clone(), index, cluster.tasks, cluster.runtime, report)
            .with_store(cluster.store.upgrade()?, cluster.cache);
        dispatcher.join(id.clone(), cluster.slots, Arc::new(node));
        Some(id)
    }

    /// The worker of this name ends the tasks that it has, takes no more, and leaves. Nothing happens if there is none. Does not suspend.
    pub fn drain(&self, name: &str) {
        if let Some((dispatcher, id)) = self.find(name) {
            dispatcher.drain(&id);
        }
    }

    /// Ends the worker of this name, as if it had died: its tasks are cancelled on it and run again on others. Nothing happens if there is none. Does not suspend.
    ///
    /// For tests of what a program does when workers die. A task that does not heed the cancel runs on, beside its next attempt.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
    ///
    /// const PLACE: TaskFn<(), String> = TaskFn::new("place", |ctx, ()| Ok(ctx.worker().to_string()));
    ///
    /// let engine = InProcess::new(1);
    /// let control = engine.control();
    /// let cluster = ClusterCoordinator::builder(engine).tasks(tasks![PLACE]).start()?;
    /// control.fail("worker-0");
    /// let value = cluster.schedule(&PLACE, ())?;
    /// control.add("worker-0");
    /// assert_eq!(value.fetch().unwrap(), "worker-0 (2)"); // the next incarnation
    /// # Ok::<(), ClusterError>(())
    /// ```
    pub fn fail(&self, name: &str) {
        if let Some((dispatcher, id)) = self.find(name) {
            dispatcher.gone(&id, Going::RunsOn);
        }
    }

    fn find(&self, name: &str) -> Option<(Arc<Dispatcher>, WorkerId)> {
        let control = self.lock();
        let dispatcher = control.running.as_ref()?.dispatcher.upgrade()?;
        let (incarnation, _) = control.names.get(name)?;
        Some((dispatcher, WorkerId::new(name, *incarnation)))
    }
}

impl Engine for InProcess {
    fn workers_at_start(&self) -> Option<usize> {
        Some(self.workers)
    }

    fn start(self: Box<Self>, job: Job) -> Result<Box<dyn Link>, ClusterError> {
        let dispatcher = Arc::new(Dispatcher::new(job.events));
        let store = Arc::new(Objects::default());
        let cluster = InProcessCluster {
            dispatcher: Arc::downgrade(&dispatcher),
            tasks: job.tasks,
            runtime: self.runtime.unwrap_or_else(Runtime::current),
            slots: self.slots,
            cache: self.cache,
            store: Arc::downgrade(&store),
        };
        let mut control = self.control.lock();
        let old = control.running.as_ref().and_then(|old| old.dispatcher.upgrade());
        if old.is_some_and(|old| old.is_open()) {
            return Err(crate::engine::start_error(
                "a clone of this engine runs already; make another engine",
            ));
        }
        *control = InProcessState { running: Some(cluster), names: BTreeMap::new() };
        drop(control);
        for number in 0..self.workers {
            self.control.add(&format!("worker-{number}"));
        }
        Ok(Box::new(LocalLink { dispatcher, store, args_limit: usize::MAX }))
    }
}

/// The link of an engine whose queue is a [`Dispatcher`].
pub(crate) struct LocalLink {
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) store: Arc<dyn ObjectStore>,
    /// The arguments of a task or a resource have at most so many bytes.
    pub(crate) args_limit: usize,
}

impl Link for LocalLink {
    fn task_limit(&self) -> usize {
        self.args_limit
    }

    fn resource_limit(&self) -> usize {
        self.args_limit
    }

    fn submit(&self, envelope: Envelope) {
        self.dispatcher.submit(envelope);
    }

    fn cancel(&self, task: TaskId) {
        self.dispatcher.cancel(task);
    }

    fn cancel_before(&self, generation: u64) {
        self.dispatcher.cancel_before(generation);
    }

    fn make(&self, resource: Resource) {
        self.dispatcher.make(resource);
    }

    fn free(&self, resource: ResourceId) {
        self.dispatcher.free(resource);
    }

    fn dump(&self, inquiry: u64, workers: &[WorkerId]) {
        self.dispatcher.dump(inquiry, workers);
    }

    fn close(&self) {
        self.dispatcher.close();
    }

    fn store(&self) -> Arc<dyn ObjectStore> {
        self.store.clone()
    }
}

impl Port for Node {
    fn order(&self, order: Order) {
        Node::order(self, order);
    }

    fn stop(&self) {
        Node::stop(self);
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcess")
            .field("workers", &self.workers)
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for InProcessControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcessControl").finish_non_exhaustive()
    }
}
