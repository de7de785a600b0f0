//! `RequestPool`: many requests, a bound on how many are active, one wait.

mod admission;
mod bounds;
mod cancelling;
mod failures;
mod included;
mod nested;
mod running;
#[path = "../../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebear::{CancelReason, Error, RequestPool, WaitError, yield_now};
use support::Count;

/// How many there are now, and the most there have been.
#[derive(Default)]
pub(crate) struct Gauge {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Gauge {
    pub(crate) fn enter(&self) -> Inside<'_> {
        let now = self.now.fetch_add(1, Ordering::AcqRel) + 1;
        self.most.fetch_max(now, Ordering::AcqRel);
        Inside(self)
    }

    pub(crate) fn probe(self: &Arc<Gauge>) -> Probe {
        std::mem::forget(self.enter());
        Probe(self.clone())
    }

    pub(crate) fn now(&self) -> usize {
        self.now.load(Ordering::Acquire)
    }

    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Acquire)
    }
}

pub(crate) struct Inside<'a>(&'a Gauge);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::AcqRel);
    }
}

/// As [`Inside`], to be passed around.
pub(crate) struct Probe(Arc<Gauge>);

impl Drop for Probe {
    fn drop(&mut self) {
        drop(Inside(&self.0));
    }
}

pub(crate) fn yields(n: usize) {
    for _ in 0..n {
        let _ = yield_now();
    }
}

/// Waits until it is cancelled; never by itself.
pub(crate) fn until_cancelled() -> Result<(), Error> {
    loop {
        yield_now()?;
    }
}

#[track_caller]
pub(crate) fn is_stopped_by(answer: &Result<(), WaitError>, why: CancelReason) {
    assert!(matches!(answer, Err(WaitError::TargetCancelled(reason)) if *reason == why), "{answer:?}");
}

/// A pool of which three members run until they are cancelled, and more never begin.
pub(crate) fn endless<'a>(began: &'a Count, running: &'a Gauge) -> RequestPool<'a> {
    let mut pool = RequestPool::new().max_active(3);
    for _ in 0..3 {
        pool.try_add(|| {
            let _inside = running.enter();
            began.up();
            until_cancelled()
        });
    }
    for _ in 0..10 {
        pool.add(|| unreachable!("held"));
    }
    pool
}
