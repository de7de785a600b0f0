//! A worker's post: the part of its record that other threads touch. All else of the record is the worker's own ([`super::worker`]).
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `attention` | any thread raises bits; the worker clears them ([`crate::state::attention`]) | the worker, at each scheduling point |
//! | `running`, `private`, `busy` | the worker | any thread, as a hint |
//! | `mailbox`, `shared_queue`, `held`, `raises`, `asked` | any thread, each by its own protocol | the worker; thieves take from the two queues |
//! | `coroutines` | the worker, under the lock (K5) | any thread, under the lock |
//! | `here` | the worker's thread, under the lock; taken out before its locals are destroyed | any thread, under the lock |
//! | `raids` | a raider, and the worker that waits for it ([`crate::state::raid`]) | both |

use std::any::Any;
use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::{AtomicU64, AtomicUsize, Ordering};
use forebear_context::shim::{Mutex, MutexGuard};
use forebear_pool::Mailbox;

use crate::record::fiber::{CurrentSlot, Fiber};
use crate::record::header::Header;
use crate::stack::coroutine::{Coroutine, CoroutineList};
use crate::state::attention::Attention;
use crate::state::inquiry::Asked;
use crate::state::raid::RaidGuard;
use crate::state::raises::Raises;
use crate::state::shared_queue::SharedQueue;

/// What a worker answers to a dump. Only the thread that asked knows its type.
pub(crate) type DumpAnswer = Box<dyn Any + Send>;

/// What has become more urgent: a request, with a link, or a stack of the worker.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Raised {
    Request(NonNull<Header>),
    Stack(NonNull<Fiber>),
}

/// What others touch of a worker.
#[repr(align(128))]
pub(crate) struct Post {
    pub attention: Attention,
    /// The root key of what it runs; [`NO_KEY`] when it looks for work.
    running: AtomicU64,
    /// The root key of the best it keeps private. May be one scan late.
    private: AtomicU64,
    pub mailbox: Mailbox<Coroutine>,
    pub shared_queue: SharedQueue<Header>,
    /// What it has taken and leaves unstarted for a while ([`crate::schedule::worker`]). Others may take it.
    pub held: SharedQueue<Header>,
    /// What has become more urgent, and the key.
    raises: Raises<(Raised, u64)>,
    /// All coroutines of this worker (K5).
    coroutines: Mutex<CoroutineList>,
    /// How many of them were in use when the worker last found nothing to do.
    busy: AtomicUsize,
    /// What dumps ask.
    pub asked: Asked<DumpAnswer>,
    /// Where the worker's thread says which fiber it is on, while there is the thread.
    here: Mutex<Option<CurrentSlot>>,
    /// The raids on its private queue.
    pub raids: RaidGuard<Header>,
}

/// Hints, which the worker alone writes.
impl Post {
    /// The root key of what the worker runs; [`NO_KEY`] when it searches for work.
    #[inline(always)]
    pub(crate) fn running_key(&self) -> u64 {
        self.running.load(Ordering::SeqCst)
    }

    /// The worker runs what has this root key.
    #[inline(always)]
    pub(crate) fn set_running_key(&self, key: u64) {
        self.running.store(key, Ordering::Relaxed);
    }

    /// The same, and what others push from now on they push after this, or the worker sees it: their push and their look ([`running_key`](Self::running_key)), and
    /// this and the worker's look at its mailbox and the injector, are in one order of sequentially consistent accesses.
    #[inline(always)]
    pub(crate) fn begin_running_key(&self, key: u64) {
        self.running.swap(key, Ordering::SeqCst);
    }

    /// The root key of the best that the worker keeps private.
    #[inline(always)]
    pub(crate) fn private_key(&self) -> u64 {
        self.private.load(Ordering::Relaxed)
    }

    /// The best that the worker keeps private has this root key.
    #[inline(always)]
    pub(crate) fn set_private_key(&self, key: u64) {
        self.private.store(key, Ordering::Relaxed);
    }

    /// The worker has found nothing to do while so many of its coroutines are in use.
    #[inline(always)]
    pub(crate) fn set_coroutines_in_use(&self, count: usize) {
        self.busy.store(count, Ordering::Relaxed);
    }

    /// Whether the worker runs something, has a fiber that waits, or has mail.
    pub(crate) fn is_busy(&self) -> bool {
        // The worker lowers `running` after it has stored `busy`.
        self.running.load(Ordering::Acquire) != NO_KEY
            || self.busy.load(Ordering::Relaxed) > 1
            || !self.mailbox.is_empty()
    }
}

impl Post {
    /// The post of a worker whose thread has yet to start.
    pub(crate) fn new(attention: Attention, shared_queue: SharedQueue<Header>) -> Post {
        Post {
            attention,
            running: AtomicU64::new(NO_KEY),
            private: AtomicU64::new(NO_KEY),
            mailbox: Mailbox::new(),
            shared_queue,
            held: SharedQueue::new(),
            raises: Raises::default(),
            coroutines: Mutex::default(),
            busy: AtomicUsize::new(0),
            asked: Asked::default(),
            here: Mutex::new(None),
            raids: RaidGuard::new(),
        }
    }

    /// Leaves word that a request of this worker has become more urgent. The link goes with it.
    pub(crate) fn leave_raise(&self, target: NonNull<Header>, key: u64) {
        self.raises.leave(&self.attention, (Raised::Request(target), key));
    }

    /// Takes back what [`leave_raise`](Self::leave_raise) left for this target. False: the worker, or who closes the runtime, has it. The link comes
    /// with it.
    pub(crate) fn take_back_raise(&self, target: NonNull<Header>) -> bool {
        self.raises.take_back(|raise| raise.0 == Raised::Request(target)).is_some()
    }

    /// Leaves word that a stack of this worker has become more urgent. Stacks stay (K3), so nothing else goes with it.
    pub(crate) fn leave_raise_of_stack(&self, fiber: NonNull<Fiber>, key: u64) {
        self.raises.leave(&self.attention, (Raised::Stack(fiber), key));
    }

    /// Which fiber the worker's thread is on: a hint. Null if it is not known.
    pub(crate) fn current(&self) -> *const Fiber {
        let here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the thread takes it out, under the lock, before its locals are destroyed.
        here.map_or(ptr::null(), |here| unsafe { here.as_ref() }.load(Ordering::Relaxed))
    }

    /// By the worker's thread: where it says which fiber it is on.
    pub(crate) fn show_current(&self, here: Option<CurrentSlot>) {
        *self.here.lock().unwrap_or_else(PoisonError::into_inner) = here;
    }

    pub(crate) fn lock_coroutines(&self) -> MutexGuard<'_, CoroutineList> {
        self.coroutines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A coroutine was built (K5).
    pub(crate) fn list_coroutine(&self, coroutine: NonNull<Coroutine>) {
        let place = self.lock_coroutines().add(coroutine);
        // SAFETY: just built by the caller, the worker, which alone goes by its place.
        unsafe { coroutine.as_ref() }.listed.set(place);
    }

    /// A coroutine is about to be dismantled by a test.
    #[cfg(test)]
    pub(crate) fn unlist_coroutine(&self, coroutine: NonNull<Coroutine>) {
        // SAFETY: it is listed, so it is there.
        self.lock_coroutines().remove(unsafe { coroutine.as_ref() }.listed.get());
    }

    /// Calls `with` for each coroutine. None is dismantled meanwhile.
    pub(crate) fn each_coroutine(&self, with: impl FnMut(NonNull<Coroutine>)) {
        self.lock_coroutines().iter().for_each(with);
    }

    /// Takes the raises that were left.
    pub(crate) fn take_raises(&self) -> Vec<(Raised, u64)> {
        self.raises.take(&self.attention)
    }
}
