//! [`Shared`]: what the handles of a coordinator and its values share, and what they have the engine do.
//!
//! The link is called without the board's lock, and the engine tells events without its own.

use std::marker::PhantomData;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};

use forebear::sync::Event as Wake;
use forebear::{AnyRequest, Request, RequestId, TimeoutError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::TaskOptions;
use super::board::{self, Board, Listing, Raises, Then, Unheld, Unmet, Until};
use super::inquiry::Inquiries;
use super::journal::{self, Journal, Wanted};
use crate::encoded::encoded;
use crate::engine::{Answer, Envelope, Event, Link, ObjectId, ResourceId, StoreError, TaskId, WorkerState};
use crate::error::{ClusterError, FetchError};
use crate::holds::Hold;
use crate::remote::{RemoteState, RemoteValue, Slot};
use crate::stored::Kept;
use crate::task::{TaskFn, Tasks};

/// So many events are kept memory for.
const KEPT: usize = 1 << 10;

/// The state of a coordinator.
pub(crate) struct Shared {
    pub(crate) board: Board,
    pub(super) link: OnceLock<Box<dyn Link>>,
    pub(super) tasks: Tasks,
    pub(super) limit: board::Limit,
    pub(super) max_attempts: u32,
    pub(super) job: u64,
    /// The number of the newest resource.
    pub(super) resources: AtomicU64,
    /// The number of the newest object that was put.
    pub(super) objects: AtomicU64,
    pub(super) journal: Option<Journal>,
    pub(super) inquiries: Inquiries,
    /// Empty between two calls, and kept for the memory.
    pub(super) heard: Mutex<Vec<Event>>,
    /// Ends the watchdog when it is dropped.
    pub(super) watchdog: OnceLock<mpsc::Sender<()>>,
}

/// A call of a task that is about to be scheduled.
pub(super) struct Call<R> {
    name: Arc<str>,
    pub(super) args: Arc<[u8]>,
    slot: Arc<Slot>,
    max_attempts: u32,
    /// When it was made, and the time that it had then.
    due: Option<(Instant, Duration)>,
    raises: Raises,
    /// The request that schedules it.
    by: Option<RequestId>,
    /// Under which key its result is kept.
    kept: Option<Wanted>,
    of: PhantomData<fn() -> R>,
}

impl<R> Call<R> {
    /// Puts it on the board.
    pub(super) fn list(&self, state: &mut board::BoardState) -> (TaskId, u64) {
        let task = state.add(Listing {
            name: self.name.clone(),
            bytes: self.args.len(),
            slot: Arc::downgrade(&self.slot),
            raises: self.raises,
            by: self.by,
            kept: self.kept.clone(),
        });
        (task, state.generation)
    }
}

impl Shared {
    /// Tells the engine something. `start` hands out no coordinator before the link is there.
    pub(super) fn tell(&self, something: impl FnOnce(&dyn Link)) {
        if let Some(link) = self.link.get() {
            something(&**link);
        }
    }

    pub(super) fn wait<T>(
        &self,
        until: Until,
        timeout: Option<Duration>,
        f: impl FnOnce(&mut board::BoardState) -> T,
    ) -> Result<T, Unmet> {
        self.board.wait(until, timeout, f)
    }

    /// Makes a call of a task, and encodes its arguments.
    pub(super) fn prepare<A: Serialize, R>(
        &self,
        options: &TaskOptions,
        task: &TaskFn<A, R>,
        args: &A,
        some: Option<Arc<Wake>>,
    ) -> Result<Call<R>, ClusterError> {
        let name = self.tasks.check_task(task)?.clone();
        let me = Request::current();
        // On the clock of the request's runtime, and then on that of the machine.
        let inherited = me.as_ref().and_then(AnyRequest::deadline);
        let inherited = inherited.map(|at| at.saturating_duration_since(forebear::time::now()));
        let (time_left, raises) = match (options.timeout, inherited) {
            (Some(own), Some(inherited)) if own <= inherited => (Some(own), Raises::Always),
            (_, Some(inherited)) => (Some(inherited), Raises::ButTimeOut),
            (own, None) => (own, Raises::Always),
        };
        let args = encode(args)?;
        let taken = self.link.get().map_or(usize::MAX, |link| link.task_limit());
        let limit = self.limit.bytes.min(taken);
        if args.len() > limit {
            return Err(ClusterError::TooLarge { bytes: args.len(), limit });
        }
        let kept = match (&options.key, &self.journal) {
            (Some(key), Some(_)) => {
                let signature = self.tasks.signature(task.name()).unwrap_or_default();
                let call = journal::hash([task.name().as_bytes(), signature.as_bytes(), &args]);
                Some(Wanted { key: key.clone(), call })
            }
            _ => None,
        };
        Ok(Call {
            name,
            args,
            kept,
            slot: Arc::new(Slot::new(some)),
            max_attempts: options.max_attempts.unwrap_or(self.max_attempts),
            due: time_left.map(|left| (Instant::now(), left)),
            raises: if options.silent { Raises::Never } else { raises },
            by: me.map(|me| me.id()),
            of: PhantomData,
        })
    }

    /// The value of a task whose result is in the journal.
    pub(super) fn find<R>(self: &Arc<Self>, call: &Call<R>) -> Result<Option<RemoteValue<R>>, ClusterError> {
        let (Some(journal), Some(wanted)) = (&self.journal, &call.kept) else { return Ok(None) };
        let Some(result) = journal.find(wanted)? else { return Ok(None) };
        let task = self.wait(Until::Settled, None, board::BoardState::found).map_err(Unmet::error)?;
        call.slot.set(RemoteState::Done(result));
        call.slot.tell();
        Ok(Some(RemoteValue::new(task, call.slot.clone(), self.clone())))
    }

    /// Hands a task that is on the board to the engine.
    pub(super) fn submit<R>(
        self: &Arc<Self>,
        call: Call<R>,
        (task, generation): (TaskId, u64),
    ) -> RemoteValue<R> {
        let newest = self.resources.load(Ordering::Acquire);
        let envelope = Envelope {
            job: self.job,
            task,
            generation,
            name: call.name,
            args: call.args,
            needs: (newest > 0).then_some(ResourceId(newest)),
            max_attempts: call.max_attempts,
            time_left: call.due.map(|(begun, left)| left.saturating_sub(begun.elapsed())),
        };
        self.tell(|link| link.submit(envelope));
        RemoteValue::new(task, call.slot, self.clone())
    }

    pub(crate) fn cancel(&self, task: TaskId) {
        if self.board.cancelling(task) {
            self.tell(|link| link.cancel(task));
        }
    }

    /// Puts bytes into the store. Suspends.
    pub(crate) fn keep(self: &Arc<Self>, bytes: Arc<[u8]>) -> Result<Arc<Kept>, StoreError> {
        let object = ObjectId::put(self.job, self.objects.fetch_add(1, Ordering::Relaxed) + 1);
        let link = self.link.get().ok_or(StoreError::Missing)?;
        // Made first: what was put in part is dropped as well.
        let kept = Kept { shared: Arc::downgrade(self), object, bytes: bytes.len() as u64 };
        link.store().put(object, bytes)?;
        Ok(Arc::new(kept))
    }

    /// Reads a value from the store, within that time if there is a limit. Suspends.
    pub(crate) fn fetch_object<T: DeserializeOwned>(
        &self,
        object: ObjectId,
        timeout: Option<Duration>,
    ) -> Result<T, FetchError> {
        if !self.board.is_open() {
            return Err(FetchError::Closed);
        }
        let store = self.link.get().map(|link| link.store());
        let read = store.ok_or(StoreError::Missing).and_then(|store| match timeout {
            None => store.get(object),
            Some(timeout) => store.get_timeout(object, timeout),
        });
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) => return Err(self.of_store(error)),
        };
        self.board.fetches.read(bytes.len());
        postcard::from_bytes(&bytes).map_err(|error| FetchError::Decode { message: error.to_string() })
    }

    /// Whether the engine can carry tasks. The error is `Unavailable`.
    pub(crate) fn check_away(&self) -> Result<(), FetchError> {
        match self.board.check_away() {
            Err(ClusterError::Unavailable { since, reason }) => {
                Err(FetchError::Unavailable { since, reason })
            }
            _ => Ok(()),
        }
    }

    /// The caller's error if the store fails.
    pub(crate) fn of_store(&self, error: StoreError) -> FetchError {
        match error {
            StoreError::Cancelled => FetchError::Cancelled,
            StoreError::TimedOut => FetchError::TimedOut,
            StoreError::Unavailable { reason } => self.check_away().err().unwrap_or_else(|| {
                // It is back already.
                FetchError::Unavailable { since: Instant::now(), reason }
            }),
            _ if !self.board.is_open() => FetchError::Closed,
            error => FetchError::Store { message: error.to_string() },
        }
    }

    /// Events of the engine, in their order.
    pub(super) fn on_events(&self, events: &mut dyn Iterator<Item = Event>) {
        let spare = || self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let mut heard = mem::take(&mut *spare());
        heard.extend(events.filter_map(|event| self.heard(event)));
        let then = self.board.on_events(heard.drain(..));
        if heard.capacity() <= KEPT {
            *spare() = heard;
        }
        self.follow(then);
    }

    /// Does what comes before the board hears of it. `None`: the board need not.
    fn heard(&self, event: Event) -> Option<Event> {
        match event {
            Event::Dump { worker, inquiry, text } => {
                self.inquiries.answered(inquiry, &worker, text);
                return None;
            }
            Event::Ended { task, answer: Answer::Done(ref result), .. } => {
                if let Some(journal) = &self.journal
                    && let Some(wanted) = self.board.kept_as(task)
                {
                    journal.keep(&wanted, result);
                }
            }
            Event::Worker(ref status) if status.state == WorkerState::Gone => {
                self.inquiries.gone(&status.id);
            }
            _ => {}
        }
        Some(event)
    }

    pub(crate) fn follow(&self, then: impl IntoIterator<Item = Then>) {
        for one in then {
            match one {
                Then::CancelBefore(generation) => self.tell(|link| link.cancel_before(generation)),
                Then::Free(resource) => self.tell(|link| link.free(resource)),
                Then::Delete(object) => self.tell(|link| link.store().delete(object)),
                Then::DeleteResult(task, attempt) => {
                    let object = ObjectId::result(self.job, task, attempt);
                    self.tell(|link| link.store().delete(object));
                }
            }
        }
    }

    pub(super) fn close(&self) {
        self.board.close();
        self.inquiries.close();
        self.journal.iter().for_each(Journal::close);
        self.tell(|link| link.close());
    }

    /// Waits until the engine has ended. Suspends.
    pub(super) fn wait_closed(&self, timeout: Duration) -> Result<(), TimeoutError> {
        self.link.get().map_or(Ok(()), |link| link.wait_closed(timeout))
    }
}

/// What frees a resource when its last token is dropped.
pub(super) struct Owner {
    pub(super) shared: Weak<Shared>,
    pub(super) id: ResourceId,
    /// What its arguments name, dropped after it: a worker that comes makes it of these.
    pub(super) _holds: Vec<Hold>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.follow(shared.board.unhold(Unheld::Resource(self.id)));
        }
    }
}

pub(super) fn encode<A: Serialize>(args: &A) -> Result<Arc<[u8]>, ClusterError> {
    encoded(args).map_err(|error| ClusterError::Encode { message: error.to_string() })
}
