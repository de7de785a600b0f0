//! The stages of a runtime's end, and which threads wait for it.
//!
//! The protocol itself stands in `api/runtime/finish.rs`. Here is what all threads of a runtime see of it.
//!
//! # Stages
//!
//! ```text
//!  open ──▶ shut ──▶ swept ──▶ given up
//! ```
//!
//! * **shut**: new work is refused: what is made or submitted from now on is cancelled, but below a shielded region.
//! * **swept**: every worker, and every foreign thread that runs a request here, aborts what it has as soon as it looks.
//! * **given up**: a grace is over. A thread that waits from outside for a request of this runtime that has not ended gets that answer.
//!
//! A runtime that is left to end by itself stays *open* until it is quiet. Stages only rise.
//!
//! # Quiet
//!
//! A runtime is *quiet* when the threads of all workers have exited and no foreign thread runs a request of it. The last worker
//! does not leave its loop while a foreign thread runs one: no worker would run what that request makes. All dependents that are after completions count as
//! one more such thread: no worker would run them when the completions come ([`super::completions`]). Both events are noted under
//! one lock, and a waiter checks, and registers, under the same lock.
//!
//! A thread that has left its loop destroys its thread-locals, and a destructor of the user's may wait there for ever. So that a thread *has exited* is
//! told by a thread-local of this module, which the thread uses before any other. Thread-locals are destroyed in the opposite order of their first
//! use. What goes after it is not the user's, so a join of the thread is short from then on.
//!
//! A foreign thread that stops running a request takes that lock only if a thread wants or waits for the end. One word counts the running
//! requests and says so: a thread that wants the end writes there before it looks, by an exchange. So either that look sees that none
//! runs any more, or the last foreign thread sees the bit.
//!
//! # Invariants
//!
//! * **EN1** A context stands among the waiters while its wait continues; its owner takes it out before it goes, under the
//!   lock, which also its waker holds.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::{PoisonError, Weak};
use std::time::Duration;

use forebear_context::context::{Cause, Context, Ticket, unpark};
use forebear_context::shim::atomic::{AtomicU8, AtomicUsize, Ordering};
use forebear_context::shim::{Arc, Condvar, Mutex, MutexGuard, time};

use super::Shared;

use crate::record::header::{ARM, DETACHED, Header};
use crate::state::word::SHIELDED;

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
    /// Foreign threads that run requests here; one that nests them counts as often. One more if dependents are after completions. And [`AWAITED`].
    foreign: AtomicUsize,
    state: Mutex<EndingState>,
    /// A worker's thread has exited.
    exited: Condvar,
    /// [`OPEN`], [`CLOSING`], [`CLOSED`].
    closed: AtomicU8,
}

/// Nobody closes it.
const OPEN: u8 = 0;
/// A thread is at it.
const CLOSING: u8 = 1;
/// That is done.
const CLOSED: u8 = 2;

/// A thread wants the end, or waits for it.
const AWAITED: usize = 1 << (usize::BITS - 1);

struct EndingState {
    /// Somebody wants the end.
    begun: bool,
    /// Which workers have left their loops.
    gone: Vec<bool>,
    /// Which workers' threads have exited.
    exited: Vec<bool>,
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
            state: Mutex::new(EndingState {
                begun: false,
                gone: vec![false; workers],
                exited: vec![false; workers],
                waiters: Vec::new(),
            }),
            exited: Condvar::new(),
            closed: AtomicU8::new(OPEN),
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

    /// A thread waits for the end: from now on threads that stop running requests notify it.
    pub(crate) fn begin(&self) {
        let mut state = self.lock();
        state.begun = true;
        self.foreign.fetch_or(AWAITED, Ordering::AcqRel);
    }

    /// A foreign thread begins to run a request here.
    pub(crate) fn foreign_begins(&self) {
        self.foreign.fetch_add(1, Ordering::AcqRel);
    }

    /// It has done. True: it was the last, and the end is wanted: the workers are to look whether they may go.
    pub(crate) fn foreign_ends(&self) -> bool {
        if self.foreign.fetch_sub(1, Ordering::AcqRel) != AWAITED | 1 {
            return false;
        }
        let mut state = self.lock();
        self.tell(&mut state);
        state.begun
    }

    /// Whether foreign threads run requests here, or dependents are after completions.
    pub(crate) fn has_foreign(&self) -> bool {
        self.foreign.load(Ordering::Acquire) & !AWAITED > 0
    }

    /// A worker has left its loop.
    pub(crate) fn worker_goes(&self, index: usize) {
        self.lock().gone[index] = true;
    }

    /// A worker's thread has exited.
    fn worker_exits(&self, index: usize) {
        let mut state = self.lock();
        // Otherwise the process exits, by a call inside the loop.
        if state.gone[index] {
            state.exited[index] = true;
            self.tell(&mut state);
            self.exited.notify_all();
        }
    }

    fn quiet(&self, state: &EndingState) -> bool {
        !self.has_foreign() && state.exited.iter().all(|exited| *exited)
    }

    fn tell(&self, state: &mut EndingState) {
        if self.quiet(state) {
            for EndWaiter(context, ticket) in state.waiters.drain(..) {
                // SAFETY: EN1. If it is refused its time was up first.
                unsafe { unpark(context, ticket, Cause::Woken) };
            }
        }
    }

    /// Whether nothing is left that could continue.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet(&self.lock())
    }

    /// Which workers have left their loops.
    pub(crate) fn workers_left(&self) -> Vec<bool> {
        self.lock().gone.clone()
    }

    /// Whether all workers have left their loops.
    pub(crate) fn all_workers_left(&self) -> bool {
        self.lock().gone.iter().all(|gone| *gone)
    }

    /// Which workers' threads have exited.
    pub(crate) fn workers_exited(&self) -> Vec<bool> {
        self.lock().exited.clone()
    }

    /// The workers that have left their loops and whose threads have not exited.
    pub(crate) fn workers_exiting(&self) -> Vec<usize> {
        let state = self.lock();
        (0..state.gone.len()).filter(|&index| state.gone[index] && !state.exited[index]).collect()
    }

    /// Blocks the thread until all workers' threads have exited, for `limit` at most. Answers whether they have.
    pub(crate) fn exits_within(&self, limit: Duration) -> bool {
        let end = time::now() + limit;
        let mut state = self.lock();
        loop {
            let over = state.exited.iter().all(|exited| *exited);
            let left = end.saturating_duration_since(time::now());
            if over || left.is_zero() {
                return over;
            }
            state = self.exited.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Registers `context` as a waiter for quiet. False: it is quiet already.
    ///
    /// # Safety
    ///
    /// EN1: the caller takes it back, by [`leave`](Self::leave), before the context goes.
    pub(crate) unsafe fn wait(&self, context: &Context, ticket: Ticket) -> bool {
        let mut state = self.lock();
        self.foreign.fetch_or(AWAITED, Ordering::AcqRel);
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

    /// Does the closing once: `close` answers whether it has. A caller that finds another one at it does not wait: the closing drops errors of the user's, whose
    /// destructors may come here, or wait for a thread that does. Each caller has a handle, or is the drop of the last one, which finds nobody at it.
    pub(crate) fn close_once(&self, close: impl FnOnce() -> bool) {
        if self.closed.compare_exchange(OPEN, CLOSING, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            let done = close();
            self.closed.store(if done { CLOSED } else { OPEN }, Ordering::Release);
        }
    }
}

impl std::fmt::Debug for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ending").field("stage", &self.stage.load(Ordering::Relaxed)).finish_non_exhaustive()
    }
}

/// Tells when its thread exits.
struct ThreadExit {
    /// Not a count: the record may go before, if the runtime was given up.
    shared: Weak<Shared>,
    index: usize,
}

impl Drop for ThreadExit {
    fn drop(&mut self) {
        // In a forked child the locks may be held by threads that are not here.
        if let Some(shared) = self.shared.upgrade().filter(|shared| !shared.is_inherited()) {
            shared.ending.worker_exits(self.index);
        }
    }
}

forebear_context::shim::thread_local! {
    static EXIT: RefCell<Option<ThreadExit>> = const { RefCell::new(None) };
}

/// The calling thread is that of worker `index`, and has used no thread-local of the user's: has its exit told.
pub(crate) fn tell_of_exit(shared: &Arc<Shared>, index: usize) {
    let exit = ThreadExit { shared: Arc::downgrade(shared), index };
    EXIT.with(|place| *place.borrow_mut() = Some(exit));
}

/// Whether a request that has not started has a shielded region above it.
pub(crate) fn is_sheltered(h: &Header) -> bool {
    let mut at = h;
    while let Some(parent) = at.parent().filter(|_| !at.is(DETACHED)) {
        let bits = parent.bare.load();
        // An arm has a word of its own, for regions that it has opened.
        if !bits.is_terminal() && bits.has(SHIELDED) {
            return true;
        }
        at = parent;
    }
    false
}

/// Whether a request may still be put into the shared queue of a runtime that is shut.
pub(crate) fn may_still(h: &Header) -> bool {
    h.is(ARM) || is_sheltered(h)
}
