//! What comes while the last worker leaves.

use std::cell::RefCell;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fmt, thread};

use crate::record::fiber::{self, Fiber};
use crate::schedule::worker::OnWorker;
use crate::{CancelReason, Request, Runtime, WaitError};

const LONG: Duration = Duration::from_secs(60);

thread_local! {
    /// What a test does where this worker is about to leave as the last.
    static LEAVING: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// This worker has found nothing to do, and is the last.
pub(super) fn about_to_leave() {
    if let Ok(Some(leaving)) = LEAVING.try_with(RefCell::take) {
        leaving();
    }
}

/// Captures whose destructor calls this.
struct AtDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for AtDrop<F> {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            f();
        }
    }
}

impl<F: FnOnce()> fmt::Debug for AtDrop<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtDrop").finish_non_exhaustive()
    }
}

/// Has the worker that runs this call `leaving` when it is about to leave, and occupies it until `release` says so.
fn occupy(leaving: impl FnOnce() + 'static, release: &mpsc::Receiver<()>) {
    LEAVING.set(Some(Box::new(leaving)));
    release.recv_timeout(LONG).unwrap();
}

#[test]
fn a_shutdown_ends_what_it_has_left_to_a_worker_that_was_about_to_leave() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (begun, has_begun) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let (leaves, is_leaving) = mpsc::channel();
    let (got, answer) = mpsc::channel();

    let occupied = runtime.spawn(move || {
        let worker = fiber::get().and_then(Fiber::worker).unwrap();
        begun.send(()).unwrap();
        occupy(
            move || {
                leaves.send(()).unwrap();
                let limit = Instant::now() + LONG;
                while worker.arena().owner_mailbox.is_empty() && Instant::now() < limit {
                    thread::yield_now();
                }
                assert!(!worker.arena().owner_mailbox.is_empty(), "nothing was left to the worker");
            },
            &released,
        );
    });
    has_begun.recv_timeout(LONG).unwrap();

    // The worker is occupied, so neither of these begins. The shutdown ends the first of them first, on this thread.
    let (second, the_second) = mpsc::channel::<Request<()>>();
    let first = AtDrop(Some(move || {
        let second = the_second.recv().unwrap();
        release.send(()).unwrap();
        is_leaving.recv_timeout(LONG).unwrap();
        // This thread leaves the end of the second to the worker before it blocks.
        got.send(second.wait_timeout(LONG).copied()).unwrap();
    }));
    let first = runtime.spawn(move || drop(first));
    second.send(runtime.spawn(|| ())).unwrap();

    runtime.shutdown(LONG).unwrap();
    let answer = answer.try_recv().unwrap();
    assert!(matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Shutdown))), "{answer:?}");
    assert!(matches!(first.wait(), Err(WaitError::TargetCancelled(CancelReason::Shutdown))));
    occupied.wait().unwrap();
}
