//! The admission of a pool: how a waiter for an included request that the pool holds back reaches the pool.
//!
//! # Vocabulary
//!
//! * **held back**: an included request that was new when the wait for its pool began. Its word says so (`HELD`): only
//!   the pool claims it, at its turn, or a canceller. The word remembers a submission before that.
//! * **to ask for it**: to wait for a request that is held back. That moves it to the front of its pool's order.
//! * **share**: a place within the bound. A member has one, together with all requests on its stack and all its descendants.
//!   The waiter for the pool has one too, since it hands values on.
//! * **over the bound**: admitted though there is no room. The request takes a place, so no other member starts for as long.
//!
//! # Which requests are admitted over the bound
//!
//! A request that is asked for *by a waiter with a share*: the place will not become free before the waiter has its
//! answer. And a request that is asked for by any waiter while *no member with a place can continue*. Each such member
//! is suspended, or runs on a foreign thread, whose waits are not known here. It may wait for the asking waiter. The
//! edges from a member to that waiter may lead through other requests, locks, channels and threads, and may be made
//! after it has asked.
//!
//! # The race
//!
//! Three kinds of threads check whether the members can continue: a waiter that asks, a worker that finds no work, and a
//! foreign thread that blocks. The foreign thread checks after the stack that it has left says that it waits. All access
//! [`ASKED`] by a read-modify-write in between. A waiter first puts its pool on the list and counts it, and then reads
//! the members. A thread without work first parks, and then reads the count. So the later of the two sees the earlier.
//!
//! # When the pool stops
//!
//! The thread that stops a pool takes out all requests that the pool holds back, and marks or releases them. Only then it ends unstarted ones. The captures
//! of a request that it ends may wait for one that was held back, or for a dependent of that. The waiter may be in the receiver of the results, which
//! may wait for the same.
//!
//! # Locks
//!
//! The order is: the list's, an admission's, the run's, the board's, that of the foreign stacks ([`crate::deadlock::foreign_stacks`]). None is held
//! while a request is submitted or ended.
//!
//! # Invariants
//!
//! * **HB1** An admission is open only while its run and the fiber that waits are there: its lock is taken to close it before
//!   `batch/request_pool/drive.rs`, `run`, is left. So the waiter may be woken under that lock.
//! * **HB2** The thread that takes an included request out of the run's `included` owes its admission, and the pool's link if it was held
//!   back. It has a link of its own.

mod board;

pub(crate) use self::board::{Board, Name, Why};

use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use forebear_context::context::Context;
use forebear_context::shim::atomic::{AtomicUsize, Ordering};
use forebear_context::shim::{Arc, Mutex, MutexGuard, mutant};

use crate::deadlock::foreign_stacks;
use crate::record::any::AnyRequest;
use crate::record::fiber::{self, Fiber};
use crate::record::header::{AFTER, Header};
use crate::record::scope_core::ScopeCore;
use crate::record::side::Holder;
use crate::shared::worker::OnRecord;
use crate::state::word::{self, HELD};

/// The pools that somebody has asked for a member, and that were full.
static POOLS: Mutex<Vec<Arc<Board>>> = Mutex::new(Vec::new());
/// How many those are.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// What an admission leads to: a pool's run, whatever its types.
pub(crate) trait Waited {
    /// Somebody asks for `request`. Answers it if it is admitted now; the caller sees to that (HB2).
    fn ask(&self, admission: &Admission, asker: &Fiber, request: NonNull<Header>) -> Option<AnyRequest>;

    /// Admits one that was asked for if no request that has a place can continue. As [`ask`](Self::ask).
    fn unstick(&self, admission: &Admission) -> Option<AnyRequest>;

    /// The pool has stopped, by the caller: takes the included requests that no lane has, and wakes the waiter.
    fn stopped(&self) -> Released;
}

/// Included requests that a pool has given up when it stopped.
#[derive(Default)]
pub(crate) struct Released {
    /// Those that it held back; the caller owes their admission (HB2).
    pub held: Vec<AnyRequest>,
    /// The others.
    pub others: Vec<AnyRequest>,
}

/// See the module head.
pub(crate) struct Admission {
    /// HB1.
    pub run: NonNull<dyn Waited>,
    /// The scope that members are jobs of. Only compared.
    pub scope: *const ScopeCore,
    /// The waiter for the pool. HB1.
    pub waiter: NonNull<Context>,
}

// SAFETY: HB1: what it leads to is made for sharing (the run is shared with lanes on other workers).
unsafe impl Send for Admission {}

impl Admission {
    /// Whether the one that waits for the pool stands still.
    pub(crate) fn waiter_stands(&self) -> bool {
        // SAFETY: HB1.
        unsafe { self.waiter.as_ref() }.is_waiting()
    }

    /// Whether `asker` has a share; `active` are the included requests that had a place when this was called. Only compared: what stands on the asker's
    /// stack was there before, so no other request has had its address since.
    pub(crate) fn has_share(&self, asker: &Fiber, active: &[*const Header]) -> bool {
        if ptr::eq(asker.context(), self.waiter.as_ptr()) {
            return true;
        }
        let mut below = asker.request.get();
        // SAFETY: what stands on the asker's stack, and the ancestors of that, are there (H1), and this is its thread.
        while let Some(on_stack) = unsafe { below.as_ref() } {
            let mut at = Some(on_stack);
            while let Some(h) = at {
                if ptr::eq(h.scope.get(), self.scope) || active.contains(&ptr::from_ref(h)) {
                    return true;
                }
                at = h.parent();
            }
            below = on_stack.lender.get();
        }
        false
    }
}

/// Whether a request that has a place will continue by itself, and so come to an end.
pub(crate) fn will_end(request: &AnyRequest) -> bool {
    // SAFETY: the handle's link.
    let h = unsafe { request.raw().as_ref() };
    match h.word().load().life() {
        // Another pool's; or a dependent, which stands as one that is suspended; or a completion, which nothing is known of.
        HELD => false,
        word::CLAIMED | word::COMPLETING => {
            // SAFETY: an arena stays while a header that ran on it does (M3).
            let Some(arena) = (unsafe { h.ran_on.load(Ordering::Acquire).as_ref() }) else { return true };
            if arena.worker == u32::MAX {
                return false;
            }
            let mut waits = false;
            if let Some(fiber) = NonNull::new(h.fiber.load(Ordering::Acquire)) {
                let here = fiber::get().and_then(Fiber::worker_record);
                foreign_stacks::with_holder(here, Fiber::context_at(fiber), |stack| {
                    waits = stack.is_waiting()
                });
            }
            !waits
        }
        _ => true,
    }
}

/// In the place of a pool: a request that its completer alone may claim ([`crate::api::completer`]), or that waits for what it is after
/// ([`crate::api::after`]). Only compared.
pub(crate) const NO_POOL: *const Board = ptr::dangling();

/// Which pool holds `h` back.
///
/// # Safety
///
/// W15: the caller has the word's lock, and it is held back.
pub(crate) unsafe fn holder(h: &Header) -> *const Board {
    // SAFETY: by contract.
    let holder = h.side().and_then(|side| unsafe { &*side.held_by.get() }.as_ref());
    holder.map_or(NO_POOL, |holder| Arc::as_ptr(holder).cast())
}

/// Whether `h` is a completion that nobody has completed: held back by no pool, and not for the sake of what it is after.
pub(crate) fn is_completion(h: &Header) -> bool {
    !h.is(AFTER) && held_by(h) == Some(NO_POOL)
}

/// Whether a pool holds `h` back.
pub(crate) fn is_held_by_pool(h: &Header) -> bool {
    held_by(h).is_some_and(|holder| holder != NO_POOL)
}

/// Which pool holds `h` back, if it is held back.
fn held_by(h: &Header) -> Option<*const Board> {
    let bits = h.word().lock().ok()?;
    // SAFETY: W15: the lock is ours.
    let holder = (bits.life() == HELD).then(|| unsafe { holder(h) });
    h.word().unlock(|bits| bits);
    holder
}

/// `asker`, which this is called on, is about to wait for a request that is held back. Answers the pool that was asked, as by [`holder`], and what is
/// admitted by that: the caller owes its admission (HB2).
///
/// # Safety
///
/// The caller has a count of the request.
pub(crate) unsafe fn ask_for(asker: &Fiber, header: NonNull<Header>) -> (*const Board, Option<AnyRequest>) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let Ok(locked) = h.word().lock() else { return (ptr::null(), None) };
    let held = locked.life() == HELD;
    let board = match h.side() {
        // SAFETY: W15: the lock is ours.
        Some(side) if held => unsafe { &*side.held_by.get() }.clone(),
        _ => None,
    };
    h.word().unlock(|bits| bits);
    let Some(board) = board.and_then(|holder| Arc::downcast::<Board>(holder).ok()) else {
        return (if held { NO_POOL } else { ptr::null() }, None);
    };
    let listed = mutant!("asked_and_not_listed", None::<bool>, board.with_admission(|_| board.is_asked()));
    if listed == Some(false) {
        let mut pools = lock_pools();
        // Under the admission's lock, so that it is not closed, and taken off the list, before it is on it.
        board.with_admission(|_| {
            if board.set_asked(true) {
                pools.push(board.clone());
                ASKED.fetch_add(1, Ordering::AcqRel);
            }
        });
    } else {
        ASKED.fetch_add(0, Ordering::AcqRel);
    }
    // SAFETY: HB1: by `with_admission`.
    let admitted = board
        .with_admission(|admission| unsafe { admission.run.as_ref() }.ask(admission, asker, header))
        .flatten();
    (Arc::as_ptr(&board), admitted)
}

/// A pool releases what it has admitted, and what is not queued yet: from now on it is as held back by nobody.
///
/// # Safety
///
/// W15: the caller has the word's lock, and it is held back. What is answered is dropped without the lock.
pub(crate) unsafe fn forget_holder(h: &Header) -> Option<Holder> {
    // SAFETY: by contract.
    h.side().and_then(|side| unsafe { &mut *side.held_by.get() }.take())
}

/// Closes the admission of `board`: its run is about to go.
pub(crate) fn close(board: &Arc<Board>) {
    board.set_admission(None);
    if board.set_asked(false) {
        let mut pools = lock_pools();
        // It is there, unless it was forgotten.
        if let Some(at) = pools.iter().position(|pool| Arc::ptr_eq(pool, board)) {
            pools.remove(at);
            ASKED.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Keeps everybody else from the list of pools.
pub(crate) struct HeldPools(MutexGuard<'static, Vec<Arc<Board>>>);

/// Holds the list over a fork.
pub(crate) fn hold() -> HeldPools {
    HeldPools(lock_pools())
}

/// Whether any pool was asked, and was full. See *The race* in the module head.
#[inline]
pub(crate) fn is_any_asked() -> bool {
    ASKED.fetch_add(0, Ordering::AcqRel) != 0
}

/// Those pools.
pub(crate) fn asked_pools() -> Vec<Arc<Board>> {
    lock_pools().clone()
}

/// Nothing more goes on here: what the pool admits for that. The caller owes its admission (HB2).
pub(crate) fn unstick(board: &Board) -> Option<AnyRequest> {
    // SAFETY: HB1: by `with_admission`.
    board.with_admission(|admission| unsafe { admission.run.as_ref() }.unstick(admission)).flatten()
}

/// In a forked child: those who waited for these pools are not there, and the child's own threads use their stacks again.
pub(crate) fn forget(held: &mut HeldPools) {
    // Not dropped: what they lead to may be locked by threads that are not here.
    held.0.drain(..).for_each(std::mem::forget);
    ASKED.store(0, Ordering::Relaxed);
}

fn lock_pools() -> MutexGuard<'static, Vec<Arc<Board>>> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::runtime::fork::tests::in_a_child;
    use crate::foreign;

    /// A run that counts how often it was looked at.
    struct Looked(AtomicUsize);

    impl Waited for Looked {
        fn ask(&self, _: &Admission, _: &Fiber, _: NonNull<Header>) -> Option<AnyRequest> {
            None
        }

        fn unstick(&self, _: &Admission) -> Option<AnyRequest> {
            self.0.fetch_add(1, Ordering::Relaxed);
            None
        }

        fn stopped(&self) -> Released {
            Released::default()
        }
    }

    #[test]
    fn a_child_looks_at_no_pool_that_a_thread_of_the_parent_waits_for() {
        let run = Looked(AtomicUsize::new(0));
        foreign::fiber();
        let waiter = crate::shared::thread::context().unwrap();
        let board = Arc::new(Board::new());
        board.set_admission(Some(Admission {
            run: NonNull::from(&run as &dyn Waited),
            scope: ptr::null(),
            waiter,
        }));
        {
            let mut pools = lock_pools();
            assert!(board.set_asked(true));
            pools.push(board.clone());
            ASKED.fetch_add(1, Ordering::AcqRel);
        }
        let is_looked_at = || {
            let before = run.0.load(Ordering::Relaxed);
            crate::schedule::admission::unstick();
            run.0.load(Ordering::Relaxed) != before
        };
        assert!(is_looked_at());
        assert!(in_a_child(|| {
            let looked_at = is_looked_at();
            // As the one does who forks below it, and comes back there.
            close(&board);
            !looked_at && ASKED.load(Ordering::Relaxed) == 0
        }));
        assert!(is_looked_at());
        close(&board);
        assert!(!is_looked_at());
    }
}
