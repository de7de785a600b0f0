//! What scenarios share. The counts are outside of the model: they order nothing, and no thread stops at them.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebear_context::shim::atomic::{AtomicBool, Ordering::SeqCst};
use forebear_context::shim::thread::{self, JoinHandle};
use forebear_runtime::{Request, Runtime, shield, yield_now};
use shuttle::rand::Rng;

/// Longer than any scenario; a step is a microsecond.
pub(crate) const LONG: Duration = Duration::from_secs(3_600);

/// A runtime with so many workers.
pub(crate) fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().expect("it is small")
}

/// Everything there is ends by itself, and then the runtime.
pub(crate) fn finish(runtime: &Runtime) {
    runtime.finish(LONG).expect("nothing goes on");
}

/// A foreign thread of the scenario.
pub(crate) fn thread<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::spawn(f)
}

/// Goes on until the request on which it is called is cancelled.
pub(crate) fn until_cancelled() {
    while yield_now().is_ok() {
        // One that is alone does not leave its stack.
        thread::yield_now();
    }
}

/// So many steps, in which others may come to their turn.
pub(crate) fn steps(n: usize) {
    let nothing = AtomicBool::new(false);
    (0..n).for_each(|_| _ = nothing.load(SeqCst));
}

/// A number below `n`, drawn as a part of the schedule.
pub(crate) fn draw(n: usize) -> usize {
    shuttle::rand::thread_rng().gen_range(0..n)
}

/// Up to so many steps; how many is drawn, few more likely than many.
pub(crate) fn pause(longest: usize) {
    steps(draw((longest >> draw(6)) + 1));
}

/// How many things were made, and how many of these were dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(Arc<[AtomicUsize; 2]>);

/// One of them.
#[derive(Debug)]
pub(crate) struct Probe(Ledger);

impl Ledger {
    pub(crate) fn probe(&self) -> Probe {
        self.0[0].fetch_add(1, Relaxed);
        Probe(self.clone())
    }

    /// How many are there.
    pub(crate) fn alive(&self) -> usize {
        self.0[0].load(Relaxed) - self.0[1].load(Relaxed)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.0.0[1].fetch_add(1, Relaxed);
    }
}

/// Counts, and how often it came to how many at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count(Arc<[AtomicUsize; 2]>);

impl Count {
    pub(crate) fn up(&self) -> usize {
        let now = self.0[0].fetch_add(1, Relaxed) + 1;
        self.0[1].fetch_max(now, Relaxed);
        now
    }

    pub(crate) fn down(&self) {
        self.0[0].fetch_sub(1, Relaxed);
    }

    pub(crate) fn get(&self) -> usize {
        self.0[0].load(Relaxed)
    }

    pub(crate) fn most(&self) -> usize {
        self.0[1].load(Relaxed)
    }
}

/// Waits for a request when it is dropped.
pub(crate) struct Wants(pub Arc<OnceLock<Request<()>>>);

impl Drop for Wants {
    fn drop(&mut self) {
        let wanted = self.0.get().unwrap();
        _ = shield(|| wanted.wait().copied());
        assert!(wanted.is_done());
    }
}
