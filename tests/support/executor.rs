//! A hand-written executor: it polls as any executor outside of forebear.

#![allow(dead_code, reason = "not every program that includes this uses all of it")]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use forebear::{Request, Runtime};

use crate::cancelling::Gate;
use crate::support::order::root;

/// Wakes a thread, and counts.
pub(crate) struct Unparker {
    thread: thread::Thread,
    woken: AtomicUsize,
}

impl Unparker {
    pub(crate) fn here() -> Arc<Unparker> {
        Arc::new(Unparker { thread: thread::current(), woken: AtomicUsize::new(0) })
    }

    pub(crate) fn times(&self) -> usize {
        self.woken.load(Ordering::Acquire)
    }
}

impl Wake for Unparker {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::AcqRel);
        self.thread.unpark();
    }
}

/// Polls until it is ready, as any executor outside of forebear: the thread sleeps in std.
pub(crate) fn drive<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let unparker = Unparker::here();
    let waker = Waker::from(unparker.clone());
    loop {
        let seen = unparker.times();
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        while unparker.times() == seen {
            thread::park();
        }
    }
}

pub(crate) fn poll_by<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

pub(crate) fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_by(future, Waker::noop())
}

/// A request of the runtime that waits for the gate.
pub(crate) fn behind(runtime: &Runtime, gate: &Gate) -> Request<u32> {
    let target = gate.request();
    root(runtime).name("behind").try_build(move || {
        target.wait()?;
        Ok(7)
    })
}
