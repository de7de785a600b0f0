//! [`Lossy`]: an engine with a planted bug, which the checker must find.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebear_cluster::ClusterError;
use forebear_cluster::engine::{
    Answer, Engine, Envelope, Event, EventSink, Job, Link, ObjectStore, Resource, ResourceId, TaskId,
};

use crate::job::{self, Asked, Squared};

/// Runs the job: on the engine, or on a lossy one if `FOREBEAR_TEST_PLANT` is set.
pub(crate) fn run(dir: &Path, engine: impl Engine) {
    match std::env::var_os("FOREBEAR_TEST_PLANT") {
        None => job::run(dir, engine),
        Some(_) => job::run(dir, Lossy(engine)),
    }
}

/// Loses the seventh task, and says that it has ended, with the right result.
struct Lossy<E>(E);

struct LossyLink {
    inner: Box<dyn Link>,
    events: EventSink,
    submitted: AtomicU32,
}

impl<E: Engine> Engine for Lossy<E> {
    fn start(self: Box<Self>, job: Job) -> Result<Box<dyn Link>, ClusterError> {
        let events = job.events.clone();
        let inner = Box::new(self.0).start(job)?;
        Ok(Box::new(LossyLink { inner, events, submitted: AtomicU32::new(0) }))
    }
}

impl Link for LossyLink {
    fn submit(&self, envelope: Envelope) {
        if self.submitted.fetch_add(1, Ordering::Relaxed) != 6 {
            return self.inner.submit(envelope);
        }
        let (_, n, run): Asked = postcard::from_bytes(&envelope.args).unwrap();
        let squared: Squared = (n * n, run, 1);
        let answer = Answer::Done(postcard::to_stdvec(&squared).unwrap().into());
        let (task, ran) = (envelope.task, Duration::ZERO);
        self.events.tell(Event::Ended { task, worker: None, attempt: 1, answer, ran });
    }

    fn cancel(&self, task: TaskId) {
        self.inner.cancel(task);
    }

    fn cancel_before(&self, generation: u64) {
        self.inner.cancel_before(generation);
    }

    fn make(&self, resource: Resource) {
        self.inner.make(resource);
    }

    fn free(&self, resource: ResourceId) {
        self.inner.free(resource);
    }

    fn close(&self) {
        self.inner.close();
    }

    fn store(&self) -> Arc<dyn ObjectStore> {
        self.inner.store()
    }
}
