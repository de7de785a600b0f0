//! [`Read`]: the read of an object, which several callers may wait for, one after the other.
//!
//! It is no request: that would belong to the request which begins it, and be cancelled with that one.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebear::TimeoutError;
use forebear::sync::Event;
use forebear_cluster::engine::StoreError;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

type Answer = Result<Arc<[u8]>, StoreError>;

/// The read of an object. It is aborted when this is dropped.
pub(super) struct Read {
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    /// `None` after its end: the engine has ended first.
    answer: Mutex<Option<Answer>>,
    over: Event,
}

/// Says that the read is over, also if the engine's runtime ends before it is.
struct Ends(Arc<Shared>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.over.set();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Answer>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Read {
    pub(super) fn begin(runtime: &Handle, read: impl Future<Output = Answer> + Send + 'static) -> Read {
        let shared = Arc::new(Shared { answer: Mutex::new(None), over: Event::new() });
        let ends = Ends(shared.clone());
        let task = runtime.spawn(async move {
            // Moved in as a whole, so that it is dropped with the task.
            let ends = ends;
            let answer = read.await;
            *ends.0.lock() = Some(answer);
        });
        Read { shared, task: task.abort_handle() }
    }

    /// Waits until it is over. Suspends.
    pub(super) fn wait(&self, timeout: Duration) -> Result<(), TimeoutError> {
        self.shared.over.wait_timeout(timeout)
    }

    /// Whether it is over, and has no bytes.
    pub(super) fn has_failed(&self) -> bool {
        self.shared.over.is_set() && !matches!(*self.shared.lock(), Some(Ok(_)))
    }

    /// The answer, waited for. Suspends.
    pub(super) fn take(self) -> Answer {
        self.shared.over.wait().map_err(|_| StoreError::Cancelled)?;
        let answer = self.shared.lock().take();
        answer.unwrap_or_else(|| Err(StoreError::Failed { message: "the engine has ended".into() }))
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::future;
    use std::sync::mpsc;
    use std::thread;

    use tokio::sync::oneshot;

    use super::*;

    /// The runtime of a thread that ends when this is dropped.
    fn engine() -> (Handle, oneshot::Sender<()>) {
        let ((tell, handle), (ends, ended)) = (mpsc::channel(), oneshot::channel());
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            tell.send(runtime.handle().clone()).unwrap();
            let _ = runtime.block_on(ended);
        });
        (handle.recv().unwrap(), ends)
    }

    #[test]
    fn a_read_that_a_caller_has_given_up_is_taken_up_by_the_next_one() {
        let ((runtime, _engine), (go, gone)) = (engine(), oneshot::channel());
        let read = Read::begin(&runtime, async { Ok(gone.await.unwrap()) });
        assert_eq!(read.wait(Duration::ZERO), Err(TimeoutError::TimedOut));
        assert!(!read.has_failed());
        go.send(Arc::from([7])).unwrap();
        assert_eq!(*read.take().unwrap(), [7]);
    }

    #[test]
    fn a_read_ends_with_the_engine() {
        let (runtime, engine) = engine();
        let read = Read::begin(&runtime, future::pending());
        drop(engine);
        assert_eq!(read.wait(Duration::MAX), Ok(()));
        assert!(read.has_failed());
        assert!(matches!(read.take(), Err(StoreError::Failed { .. })));
    }
}
