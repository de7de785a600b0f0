//! The messages of an engine, as `cluster/src/engine.rs` has them, without serde.

use std::sync::Arc;
use std::time::Duration;

use crate::error::FailureKind;

pub(crate) const GONE: usize = 1 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TaskId(pub(crate) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ResourceId(pub(crate) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectId;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WorkerId(&'static str, u64);

impl WorkerId {
    pub(crate) fn new(name: &'static str, incarnation: u64) -> WorkerId {
        WorkerId(name, incarnation)
    }

    pub(crate) fn name(&self) -> &str {
        self.0
    }
}

#[derive(Clone)]
pub(crate) struct Envelope {
    pub(crate) task: TaskId,
    pub(crate) generation: u64,
    pub(crate) max_attempts: u32,
    pub(crate) time_left: Option<Duration>,
}

#[derive(Clone)]
pub(crate) struct Resource {
    pub(crate) id: ResourceId,
}

#[allow(dead_code, reason = "not every model sends each of them")]
pub(crate) enum Order {
    Run { envelope: Envelope, attempt: u32 },
    Cancel(TaskId),
    Make(Resource),
    Free(ResourceId),
    Begin,
    Dump { inquiry: u64 },
}

#[allow(dead_code, reason = "as above")]
pub(crate) enum Report {
    Ready,
    Draining,
    Progress { task: TaskId, thousandths: u32 },
    Dump { inquiry: u64, text: String },
    Answer { task: TaskId, attempt: u32, answer: Answer, ran: Duration },
}

#[allow(dead_code, reason = "as above")]
pub(crate) enum Answer {
    Done(Arc<[u8]>),
    Stored { object: ObjectId, bytes: u64 },
    Failed(FailureKind),
    Cancelled,
}

#[allow(dead_code, reason = "as above")]
pub(crate) enum Event {
    Started { task: TaskId, worker: WorkerId, attempt: u32 },
    Returned { task: TaskId },
    Progress { task: TaskId, thousandths: u32 },
    Ended { task: TaskId, worker: Option<WorkerId>, attempt: u32, answer: Answer, ran: Duration },
    Worker(WorkerStatus),
    Dump { worker: WorkerId, inquiry: u64, text: String },
    Unavailable { reason: String },
    Available,
    Drained { before: u64 },
}

#[derive(Clone)]
pub(crate) struct WorkerStatus {
    pub(crate) id: WorkerId,
    pub(crate) state: WorkerState,
    pub(crate) slots: usize,
    pub(crate) running: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerState {
    Starting,
    Ready,
    Draining,
    Gone,
}

type Batches = dyn Fn(&mut dyn Iterator<Item = Event>) + Send + Sync;

pub(crate) struct EventSink(Arc<Batches>);

impl EventSink {
    pub(crate) fn of_batches(
        all: impl Fn(&mut dyn Iterator<Item = Event>) + Send + Sync + 'static,
    ) -> EventSink {
        EventSink(Arc::new(all))
    }

    pub(crate) fn tell_all(&self, events: impl IntoIterator<Item = Event>) {
        (self.0)(&mut events.into_iter());
    }
}
