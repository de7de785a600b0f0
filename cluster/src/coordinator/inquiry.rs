//! [`Inquiries`]: what workers do, asked of them. And [`WorkerDump`], the answer of one.
//!
//! An inquiry has a number, and a list of workers that have not answered. [`Shared::ask`] has the engine ask them, and waits. Each answer is taken once; what comes after the wait is passed over.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebear::TimeoutError;
use forebear::sync::Event as Wake;

use super::Shared;
use crate::engine::WorkerId;
use crate::error::ClusterError;

/// What a worker does: see [`ClusterCoordinator::dump`](crate::ClusterCoordinator::dump). Its text is the worker's, below a line with its name.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, WorkerDump};
/// use std::time::Duration;
///
/// /// The workers that have not answered: they may stand still.
/// fn silent(dumps: &[WorkerDump]) -> Vec<&str> {
///     dumps.iter().filter(|dump| dump.text.is_none()).map(|dump| dump.worker.name()).collect()
/// }
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(2)).min_workers(2).start()?;
/// assert!(silent(&cluster.dump(Duration::from_secs(60))?).is_empty());
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerDump {
    /// The worker.
    pub worker: WorkerId,
    /// How many tasks it runs and how many resources it makes, and below that what each request of its runtime does, as [`Runtime::dump`](forebear::Runtime::dump) writes it. At most 64 KiB. `None`:
    /// it has not answered in time.
    pub text: Option<String>,
}

impl fmt::Display for WorkerDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            None => write!(f, "{} does not say what it does", self.worker),
            Some(text) => {
                write!(f, "{}:", self.worker)?;
                text.lines().try_for_each(|line| write!(f, "\n  {line}"))
            }
        }
    }
}

/// The inquiries whose answers are waited for.
#[derive(Default)]
pub(crate) struct Inquiries(Mutex<InquiryState>);

#[derive(Default)]
struct InquiryState {
    last: u64,
    open: BTreeMap<u64, Inquiry>,
}

struct Inquiry {
    texts: BTreeMap<WorkerId, Option<String>>,
    wake: Arc<Wake>,
}

impl Inquiries {
    /// Nothing that is done under the lock can leave it half done, so a panic there changes nothing.
    fn lock(&self) -> MutexGuard<'_, InquiryState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, workers: &[WorkerId], wake: &Arc<Wake>) -> u64 {
        let texts = workers.iter().map(|worker| (worker.clone(), None)).collect();
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        state.open.insert(number, Inquiry { texts, wake: wake.clone() });
        number
    }

    /// A worker has answered.
    pub(super) fn answered(&self, number: u64, worker: &WorkerId, text: String) {
        let mut state = self.lock();
        let Some(inquiry) = state.open.get_mut(&number) else { return };
        if let Some(its @ None) = inquiry.texts.get_mut(worker) {
            *its = Some(text);
        }
        if inquiry.texts.values().all(Option::is_some) {
            inquiry.wake.set();
        }
    }

    /// A worker is gone: nobody waits for its answer.
    pub(super) fn gone(&self, worker: &WorkerId) {
        for inquiry in self.lock().open.values_mut() {
            inquiry.texts.retain(|asked, text| asked != worker || text.is_some());
            if inquiry.texts.values().all(Option::is_some) {
                inquiry.wake.set();
            }
        }
    }

    /// Nobody answers any more.
    pub(super) fn close(&self) {
        self.lock().open.values().for_each(|inquiry| inquiry.wake.set());
    }

    fn end(&self, number: u64) -> Vec<WorkerDump> {
        let texts = self.lock().open.remove(&number).map(|inquiry| inquiry.texts).unwrap_or_default();
        texts.into_iter().map(|(worker, text)| WorkerDump { worker, text }).collect()
    }
}

impl Shared {
    /// Asks these workers what they do, and waits for their answers, at most so long. Suspends. A cancellation point.
    pub(super) fn ask(&self, workers: &[WorkerId], limit: Duration) -> Result<Vec<WorkerDump>, ClusterError> {
        if !self.board.is_open() {
            return Err(ClusterError::Closed);
        }
        if workers.is_empty() {
            return Ok(Vec::new());
        }
        let wake = Arc::new(Wake::new());
        let number = self.inquiries.begin(workers, &wake);
        self.tell(|link| link.dump(number, workers));
        let waited = wake.wait_timeout(limit);
        let dumps = self.inquiries.end(number);
        match waited {
            Err(TimeoutError::Cancelled) => Err(ClusterError::Cancelled),
            Ok(()) | Err(TimeoutError::TimedOut) => Ok(dumps),
        }
    }
}
