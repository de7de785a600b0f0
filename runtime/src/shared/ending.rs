//! How a runtime comes to its end: how far it is, and who waits for it.
//!
//! The protocol itself is told in `api/runtime/finish.rs`. Here is what all threads of a runtime see of it.
//!
//! # Stages
//!
//! ```text
//!  open ──▶ shut ──▶ swept ──▶ given up
//! ```
//!
//! * **shut**: new work is refused: what is made or submitted from now on is cancelled, but below a shielded region.
//! * **swept**: every worker, and every foreign thread that runs a request here, aborts what it has as soon as it looks.
//! * **given up**: a grace is over. Who waits from outside for a request of this runtime that has not ended is told so.
//!
//! A runtime that is left to end by itself stays *open* until its last worker goes. Stages only rise.
//!
//! # Quiet
//!
//! A runtime is *quiet* when all workers have left their loops and no foreign thread runs a request of it. The last worker
//! does not leave while a foreign thread runs one: what that makes would have nobody to run it. Both events are noted under
//! one lock, and a waiter checks, and registers, under the same lock.
//!
//! # Invariants
//!
//! * **EN1** A context stands among the waiters while its wait goes on; its owner takes it out before it goes, under the
//!   lock, which also its waker holds.

use std::ptr::NonNull;
use std::sync::PoisonError;

use forebear_context::context::{Cause, Context, Ticket, unpark};
use forebear_context::shim::atomic::{AtomicU8, AtomicUsize, Ordering};
use forebear_context::shim::{Mutex, MutexGuard};

/// How far the end is. See the module head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Stage {
    Open = 0,
    Shut = 1,
    Swept = 2,
    GivenUp = 3,
}

/// See the module head.
pub(crate) struct Ending {
    stage: AtomicU8,
    /// Foreign threads that run requests here; one that nests them counts as often.
    foreign: AtomicUsize,
    state: Mutex<EndingState>,
    /// Held by the closing thread; true: done.
    closed: Mutex<bool>,
}

struct EndingState {
    /// Somebody wants the end.
    begun: bool,
    /// Which workers have left their loops.
    gone: Vec<bool>,
    waiters: Vec<EndWaiter>,
}

struct EndWaiter(NonNull<Context>, Ticket);

// SAFETY: EN1: it is there to be woken from anywhere.
unsafe impl Send for EndWaiter {}

impl Ending {
    /// Of a runtime of so many workers.
    pub(crate) fn new(workers: usize) -> Ending {
        Ending {
            stage: AtomicU8::new(Stage::Open as u8),
            foreign: AtomicUsize::new(0),
            state: Mutex::new(EndingState { begun: false, gone: vec![false; workers], waiters: Vec::new() }),
            closed: Mutex::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, EndingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has come as far as `stage`.
    #[inline]
    pub(crate) fn is(&self, stage: Stage) -> bool {
        self.stage.load(Ordering::Acquire) >= stage as u8
    }

    /// Whether new work is refused.
    #[inline]
    pub(crate) fn is_shut(&self) -> bool {
        self.is(Stage::Shut)
    }

    /// Goes as far as `stage`.
    pub(crate) fn advance(&self, stage: Stage) {
        // Under the lock there is one writer.
        let _state = self.lock();
        if !self.is(stage) {
            self.stage.store(stage as u8, Ordering::Release);
        }
    }

    /// Somebody wants the end: from now on who stops running requests says so.
    pub(crate) fn begin(&self) {
        self.lock().begun = true;
    }

    /// A foreign thread begins to run a request here.
    pub(crate) fn foreign_begins(&self) {
        self.foreign.fetch_add(1, Ordering::AcqRel);
    }

    /// It has done. True: it was the last, and the end is wanted: the workers are to look whether they may go.
    pub(crate) fn foreign_ends(&self) -> bool {
        if self.foreign.fetch_sub(1, Ordering::AcqRel) != 1 {
            return false;
        }
        let mut state = self.lock();
        self.tell(&mut state);
        state.begun
    }

    /// Whether foreign threads run requests here.
    pub(crate) fn has_foreign(&self) -> bool {
        self.foreign.load(Ordering::Acquire) > 0
    }

    /// A worker has left its loop.
    pub(crate) fn worker_goes(&self, index: usize) {
        let mut state = self.lock();
        state.gone[index] = true;
        self.tell(&mut state);
    }

    fn quiet(&self, state: &EndingState) -> bool {
        !self.has_foreign() && state.gone.iter().all(|gone| *gone)
    }

    fn tell(&self, state: &mut EndingState) {
        if self.quiet(state) {
            for EndWaiter(context, ticket) in state.waiters.drain(..) {
                // SAFETY: EN1. If it is refused its time was up first.
                unsafe { unpark(context, ticket, Cause::Woken) };
            }
        }
    }

    /// Whether nothing is left that could go on.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet(&self.lock())
    }

    /// Which workers have left their loops.
    pub(crate) fn gone(&self) -> Vec<bool> {
        self.lock().gone.clone()
    }

    /// Leaves word that `context` waits for quiet. False: it is quiet already.
    ///
    /// # Safety
    ///
    /// EN1: the caller takes it back, by [`leave`](Self::leave), before the context goes.
    pub(crate) unsafe fn wait(&self, context: &Context, ticket: Ticket) -> bool {
        let mut state = self.lock();
        if self.quiet(&state) {
            return false;
        }
        state.waiters.push(EndWaiter(NonNull::from(context), ticket));
        true
    }

    /// Takes it back. When this returns nobody touches the context any more.
    pub(crate) fn leave(&self, context: &Context) {
        self.lock().waiters.retain(|waiter| waiter.0 != NonNull::from(context));
    }

    /// Does the closing once: `close` answers whether it has.
    pub(crate) fn close_once(&self, close: impl FnOnce() -> bool) {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if !*closed {
            *closed = close();
        }
    }
}

impl std::fmt::Debug for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ending").field("stage", &self.stage.load(Ordering::Relaxed)).finish_non_exhaustive()
    }
}
