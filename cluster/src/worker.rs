//! [`Node`]: the worker's side of each engine. It takes [orders](Order) and answers by [reports](Report).
//!
//! # The rules
//!
//! * Each task, and each function that makes a resource, is a request of its own: a root of the worker's runtime.
//! * A task reports its [answer](Report::Answer) when its request has ended, so nothing of it runs any more. That comes once for each [`Order::Run`].
//! * A task that needs resources first waits until they are made, also if they fail: what it does not use does not concern it.
//! * A task that was cancelled by an order answers [`Answer::Cancelled`] if it returns a cancellation. If it returns a value, that is its answer.
//! * A task that was not cancelled by an order never answers `Cancelled`: its time was over, or it failed.
//! * User code (tasks, makers, destructors of resources) runs in requests, never in [`Node::order`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use forebear::sync::Event;
use forebear::{AnyRequest, CancelReason, Error, Outcome, Request, RequestBuilder, Runtime};

use crate::by_task::ByTask;
use crate::cache::{Cache, of_store};
use crate::ctx::TaskCtx;
use crate::engine::{
    Answer, DUMP, Envelope, INLINE, ObjectStore, Order, Report, Resource, ResourceId, StoreError, TaskId,
    WorkerId,
};
use crate::error::{FailureKind, Kinded};
use crate::task::{Entry, Made, Tasks};

/// Makes this process a worker, if a coordinator on this machine has started it as one (see `LocalProcesses`): then it follows orders, and does not return. In any other process this does nothing.
///
/// The first line of `main`, before threads and before a runtime. SIGTERM has the worker end what it has and leave; a second one ends it at once.
///
/// ```
/// use forebear_cluster::{TaskFn, Tasks, tasks, worker};
///
/// const SQUARE: TaskFn<u64, u64> = TaskFn::new("square", |_, n| Ok(n * n));
///
/// fn main() {
///     worker::entry(tasks![SQUARE]);
///     println!("this is no worker");
/// }
/// ```
pub fn entry(tasks: Tasks) {
    #[cfg(target_os = "linux")]
    if crate::local::worker::is_worker() {
        crate::local::worker::run(tasks);
    }
    #[cfg(not(target_os = "linux"))]
    drop(tasks);
}

/// A worker, without the transport: an engine gives it the orders, and carries its reports.
///
/// Orders are given one at a time. Reports come from several threads at once.
///
/// ```
/// use forebear::Runtime;
/// use forebear_cluster::engine::{Order, Report, WorkerId};
/// use forebear_cluster::worker::Node;
/// use forebear_cluster::tasks;
/// use std::sync::mpsc;
///
/// let (send, reports) = mpsc::channel();
/// let report = move |report| send.send(report).unwrap_or_default();
/// let node = Node::new(WorkerId::new("alone", 1), 0, tasks![], Runtime::current(), report);
/// node.order(Order::Begin);
/// assert_eq!(reports.recv(), Ok(Report::Ready));
/// ```
pub struct Node(Arc<NodeInner>);

pub(crate) struct NodeInner {
    pub(crate) id: WorkerId,
    pub(crate) index: usize,
    pub(crate) report: Box<dyn Fn(Report) + Send + Sync>,
    tasks: Tasks,
    runtime: Runtime,
    waiting: Arc<AtomicUsize>,
    cache: OnceLock<Cache>,
    state: Mutex<WorkerState>,
}

/// A task that has been counted as waiting. It is dropped when the task begins, or is cancelled before.
struct Waits(Arc<AtomicUsize>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct WorkerState {
    parts: BTreeMap<ResourceId, Arc<Part>>,
    /// So many parts are being made.
    making: usize,
    /// `Begin` has come, and `Ready` has not been reported.
    beginning: bool,
    running: ByTask<Running>,
    stopped: bool,
}

/// This worker's part of a resource.
pub(crate) struct Part {
    pub(crate) name: Arc<str>,
    job: u64,
    /// Set when `made` is.
    pub(crate) done: Event,
    pub(crate) made: OnceLock<Result<Made, FailureKind>>,
    maker: OnceLock<AnyRequest>,
}

struct Running {
    attempt: u32,
    request: AnyRequest,
    begun: Instant,
    /// An order has cancelled it.
    cancelled: bool,
}

impl Node {
    /// A worker that runs these tasks on that runtime. `index` is its number among the workers.
    pub fn new(
        id: WorkerId,
        index: usize,
        tasks: Tasks,
        runtime: Runtime,
        report: impl Fn(Report) + Send + Sync + 'static,
    ) -> Node {
        Node::counting(id, index, tasks, runtime, Arc::default(), report)
    }

    /// The same. Counts in `waiting` the tasks that have been ordered and have not begun.
    pub(crate) fn counting(
        id: WorkerId,
        index: usize,
        tasks: Tasks,
        runtime: Runtime,
        waiting: Arc<AtomicUsize>,
        report: impl Fn(Report) + Send + Sync + 'static,
    ) -> Node {
        let (report, state) = (Box::new(report), Mutex::default());
        Node(Arc::new(NodeInner {
            id,
            index,
            report,
            tasks,
            runtime,
            waiting,
            cache: OnceLock::new(),
            state,
        }))
    }

    /// Gives it the engine's store, before its first order. The worker keeps so many bytes of objects that it has read. Without a store all results travel as messages, and no object is found.
    ///
    /// ```
    /// use forebear::Runtime;
    /// use forebear_cluster::engine::{ObjectId, ObjectStore, StoreError, WorkerId};
    /// use forebear_cluster::{tasks, worker::Node};
    /// use std::sync::Arc;
    ///
    /// struct Full;
    ///
    /// impl ObjectStore for Full {
    ///     fn put(&self, _: ObjectId, _: Arc<[u8]>) -> Result<(), StoreError> {
    ///         Err(StoreError::Failed { message: "there is no room".into() })
    ///     }
    ///
    ///     fn get(&self, _: ObjectId) -> Result<Arc<[u8]>, StoreError> {
    ///         Err(StoreError::Missing)
    ///     }
    ///
    ///     fn delete(&self, _: ObjectId) {}
    /// }
    ///
    /// let node = Node::new(WorkerId::new("alone", 1), 0, tasks![], Runtime::current(), |_| ());
    /// let node = node.with_store(Arc::new(Full), 1 << 20);
    /// assert!(node.is_idle());
    /// ```
    #[must_use]
    pub fn with_store(self, store: Arc<dyn ObjectStore>, cache_bytes: u64) -> Node {
        let _ = self.0.cache.set(Cache::new(store, cache_bytes));
        self
    }

    /// Follows an order. Does not wait.
    pub fn order(&self, order: Order) {
        self.orders([order]);
    }

    /// Follows orders that have come together, in their order. All their tasks count as waiting before the first one begins. Does not wait.
    pub(crate) fn orders<O: AsRef<[Order]> + IntoIterator<Item = Order>>(&self, orders: O) {
        let runs = orders.as_ref().iter().filter(|order| matches!(order, Order::Run { .. })).count();
        self.0.waiting.fetch_add(runs, Ordering::Relaxed);
        orders.into_iter().for_each(|order| self.follow(order));
    }

    fn follow(&self, order: Order) {
        match order {
            Order::Run { envelope, attempt } => self.0.run(envelope, attempt),
            Order::Cancel(task) => {
                let mut state = self.0.lock();
                let request = state.running.get_mut(&task).map(|running| {
                    running.cancelled = true;
                    running.request.clone()
                });
                drop(state);
                request.inspect(AnyRequest::cancel_it);
            }
            Order::Make(resource) => self.0.make(resource),
            Order::Free(id) => {
                let part = self.0.lock().parts.remove(&id);
                part.into_iter().for_each(|part| self.0.free(part));
            }
            Order::Begin => {
                self.0.lock().beginning = true;
                self.0.report_if_ready();
            }
            Order::Dump { inquiry } => self.0.dump(inquiry),
        }
    }

    /// Cancels everything, and drops the resources. Answers still come, until all that ran has ended.
    ///
    /// ```
    /// use forebear::Runtime;
    /// use forebear_cluster::engine::{Order, WorkerId};
    /// use forebear_cluster::{tasks, worker::Node};
    ///
    /// let node = Node::new(WorkerId::new("alone", 1), 0, tasks![], Runtime::current(), |report| println!("{report:?}"));
    /// node.order(Order::Begin);
    /// node.stop();
    /// assert!(node.is_idle()); // it had no task
    /// ```
    pub fn stop(&self) {
        let mut state = self.0.lock();
        state.stopped = true;
        let requests: Vec<AnyRequest> = (state.running.values_mut())
            .map(|running| {
                running.cancelled = true;
                running.request.clone()
            })
            .collect();
        let parts = std::mem::take(&mut state.parts);
        drop(state);
        requests.iter().for_each(AnyRequest::cancel_it);
        parts.into_values().for_each(|part| self.0.free(part));
    }

    /// Whether nothing runs: no task, and no function that makes a resource.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let state = self.0.lock();
        state.running.is_empty() && state.making == 0
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("id", &self.0.id).finish_non_exhaustive()
    }
}

/// The request is a root that nobody waits for, so a cancel is never refused.
trait CancelIt {
    fn cancel_it(&self);
}

impl CancelIt for AnyRequest {
    fn cancel_it(&self) {
        self.cancel();
    }
}

impl NodeInner {
    /// Nothing that is done under the lock can leave it half done, so a panic there changes nothing.
    fn lock(&self) -> MutexGuard<'_, WorkerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn root(&self, name: impl Into<Cow<'static, str>>) -> RequestBuilder {
        Request::builder().name(name).detached().on(&self.runtime)
    }

    pub(crate) fn part(&self, job: u64, id: ResourceId) -> Option<Arc<Part>> {
        self.lock().parts.get(&id).filter(|part| part.job == job).cloned()
    }

    fn run(self: &Arc<Self>, envelope: Envelope, attempt: u32) {
        let task = envelope.task;
        let ctx = TaskCtx { node: self.clone(), task: Some(task), attempt };
        let mut builder = self.root(self.tasks.request_name(&envelope.name));
        if let Some(left) = envelope.time_left {
            builder = builder.timeout(left);
        }
        let waits = Waits(self.waiting.clone());
        let request = builder.try_build(move || {
            drop(waits);
            run(&ctx, &envelope)
        });
        let (begun, any) = (Instant::now(), request.to_untyped());
        let mut state = self.lock();
        // A worker that stops gives an answer to what still comes.
        let cancelled = state.stopped;
        state.running.insert(task, Running { attempt, request: any, begun, cancelled });
        drop(state);
        // Its time may be over already: so the callback is added after the task is listed.
        let node = self.clone();
        request.on_done(move |outcome| node.ended(task, attempt, outcome));
        if cancelled {
            request.cancel();
        }
        request.submit();
    }

    /// The request of a task has ended.
    fn ended(&self, task: TaskId, attempt: u32, outcome: Outcome<'_, Answer>) {
        let Some(running) = self.lock().running.remove(&task) else { return };
        debug_assert_eq!(running.attempt, attempt);
        let answer = match outcome {
            Outcome::Finished(answer) => answer.clone(),
            Outcome::Failed(failure) if running.cancelled && is_cancelled(failure) => Answer::Cancelled,
            Outcome::Failed(failure) => Answer::Failed(FailureKind::of_failure(failure)),
            Outcome::Cancelled(_) if running.cancelled => Answer::Cancelled,
            Outcome::Cancelled(reason) => Answer::Failed(of_reason(reason)),
        };
        let ran = running.begun.elapsed();
        drop(running);
        (self.report)(Report::Answer { task, attempt, answer, ran });
    }

    pub(crate) fn cache(&self) -> Result<&Cache, Error> {
        self.cache.get().ok_or_else(|| of_store(&StoreError::Missing))
    }

    /// What a task answers that has this result. A large one is kept in the store first.
    fn answer(&self, envelope: &Envelope, attempt: u32, result: Arc<[u8]>) -> Result<Answer, Error> {
        match self.cache.get() {
            Some(cache) if result.len() > INLINE => {
                let object = envelope.result(attempt);
                let bytes = result.len() as u64;
                cache.store().put(object, result).map_err(|error| of_store(&error))?;
                Ok(Answer::Stored { object, bytes })
            }
            _ => Ok(Answer::Done(result)),
        }
    }

    fn make(self: &Arc<Self>, resource: Resource) {
        let name = resource.name.clone();
        let part = Arc::new(Part {
            name: name.clone(),
            job: resource.job,
            done: Event::new(),
            made: OnceLock::new(),
            maker: OnceLock::new(),
        });
        let mut state = self.lock();
        if state.stopped {
            return;
        }
        state.making += 1;
        state.parts.insert(resource.id, part.clone());
        drop(state);
        let ctx = TaskCtx { node: self.clone(), task: None, attempt: 0 };
        let maker =
            self.root(format!("resource {name}")).try_build(move || match ctx.node.tasks.get(&name) {
                Some(Entry::Resource(run)) => run(&ctx, &resource.args).map_err(Kinded)?,
                _ => Err(Kinded(FailureKind::NotRegistered).into()),
            });
        let (node, its) = (self.clone(), part.clone());
        maker.on_done(move |outcome| {
            let made = match outcome {
                Outcome::Finished(made) => Ok(made.clone()),
                Outcome::Failed(failure) => Err(FailureKind::of_failure(failure)),
                Outcome::Cancelled(reason) => Err(of_reason(reason)),
            };
            let _ = its.made.set(made);
            its.done.set();
            node.lock().making -= 1;
            node.report_if_ready();
        });
        let _ = part.maker.set(maker.to_untyped());
        maker.submit();
    }

    fn report_if_ready(&self) {
        let mut state = self.lock();
        let ready = state.beginning && state.making == 0 && !state.stopped;
        if ready {
            state.beginning = false;
        }
        drop(state);
        if ready {
            (self.report)(Report::Ready);
        }
    }

    /// Says what the requests do. On a thread of its own: all that run requests may be busy, and that is what is asked.
    fn dump(self: &Arc<Self>, inquiry: u64) {
        let node = self.clone();
        let dump = move || {
            let state = node.lock();
            let (tasks, making) = (state.running.len(), state.making);
            drop(state);
            let mut text =
                format!("{tasks} tasks, {making} resources are being made\n{}", node.runtime.dump());
            let end = (0..=DUMP).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            text.truncate(end);
            (node.report)(Report::Dump { inquiry, text });
        };
        // Without a thread there is no answer.
        let _ = thread::Builder::new().name("cluster: dump".into()).spawn(dump);
    }

    /// Drops a part in a request: its destructor may do anything.
    fn free(&self, part: Arc<Part>) {
        if let Some(maker) = part.maker.get() {
            maker.cancel();
        }
        let name = format!("drop of resource {}", part.name);
        self.root(name).spawn(move || drop(part));
    }
}

/// What the request of a task does.
fn run(ctx: &TaskCtx, envelope: &Envelope) -> Result<Answer, Error> {
    if let Some(newest) = envelope.needs {
        let parts: Vec<Arc<Part>> =
            ctx.node.lock().parts.range(..=newest).map(|(_, part)| part.clone()).collect();
        for part in parts {
            part.done.wait()?;
        }
    }
    match ctx.node.tasks.get(&envelope.name) {
        Some(Entry::Task(run)) => {
            let result = run(ctx, &envelope.args).map_err(Kinded)??;
            ctx.node.answer(envelope, ctx.attempt, result)
        }
        _ => Err(Kinded(FailureKind::NotRegistered).into()),
    }
}

fn is_cancelled(failure: &forebear::Failure) -> bool {
    failure.downcast_ref::<forebear::Cancelled>().is_some()
}

/// The kind of a request that was cancelled, but by no order.
fn of_reason(reason: CancelReason) -> FailureKind {
    match reason {
        CancelReason::Deadline => FailureKind::TimedOut,
        _ => {
            let message = format!("cancelled on its worker: {reason:?}");
            FailureKind::Error { message, causes: Vec::new(), typed: None }
        }
    }
}
