//! How coroutines that may continue reach their workers: one alone, or many in one batch.
//!
//! # Who owns a coroutine on its way
//!
//! The thread that settles a wait owns the coroutine from that exchange on, until it pushes it into its worker's queue.
//! The coroutine is in no queue (K2), so this thread may write its `link`. After the push the coroutine may run, and
//! this thread accesses nothing of it any more.
//!
//! | from | to | by |
//! |---|---|---|
//! | a coroutine of the worker that settles | that worker's ready queue | [`WorkerRecord::make_all_ready`] |
//! | coroutines of one other worker, one after the other | that worker's mailbox, by one exchange | [`Chain::send`] |
//!
//! # The race
//!
//! *Handing over against the end of the runtime.* A coroutine that was handed over may run and be the last. Then the
//! runtime may end before the waker has woken the worker, whose record the waker still accesses. A worker of the same
//! runtime is joined before that end. Any other thread is a *visitor*: the end waits for it (VI1).

use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};

use forebear_context::context::{Cause, Context, Ticket};
use forebear_context::shim::atomic::Ordering;

use super::worker::WorkerRecord;
use crate::record::fiber::{self, Fiber};
use crate::shared::worker::OnRecord;
use crate::stack::coroutine::Coroutine;
use crate::stack::prefetch;
use crate::state::attention::OLDER;

/// Coroutines whose waits one thread ends one after the other, with one cause. They are handed to their workers in
/// batches. So their cold memory is prefetched for many at a time, and each worker is written to and woken once a
/// batch.
///
/// One line of each is asked for first: it takes a walk through the page table, and nothing else of that page comes before it. What the walk has
/// brought the rest needs.
pub(crate) struct Going {
    cause: Cause,
    some: [MaybeUninit<(NonNull<Coroutine>, Ticket)>; Going::PIECE],
    len: usize,
}

impl Going {
    /// As many as a processor may have misses outstanding, about.
    const PIECE: usize = 16;

    /// None yet.
    pub(crate) fn new(cause: Cause) -> Going {
        Going { cause, some: [const { MaybeUninit::uninit() }; Going::PIECE], len: 0 }
    }

    /// The wait that `ticket` names ends soon, at the latest when this is dropped, unless it is over.
    ///
    /// # Safety
    ///
    /// The context is a coroutine's, and its slab stays mapped until this is dropped.
    #[inline]
    pub(crate) unsafe fn add(&mut self, context: NonNull<Context>, ticket: Ticket) {
        prefetch::page(context);
        // SAFETY: by contract.
        self.some[self.len].write((unsafe { Coroutine::of(context) }, ticket));
        self.len += 1;
        if self.len == Going::PIECE {
            self.go();
        }
    }

    /// Ends them now.
    #[inline(never)]
    pub(crate) fn go(&mut self) {
        let here = fiber::get().map_or(ptr::null(), |here| here.worker);
        let mut own = [NonNull::dangling(); Going::PIECE];
        let mut owned = 0;
        let mut chain: Option<Chain<'_>> = None;
        // SAFETY: the first `len` are written.
        let each = self.some[..self.len].iter().map(|one| unsafe { one.assume_init() }.0.cast());
        each.for_each(prefetch::control);
        for one in &self.some[..mem::take(&mut self.len)] {
            // SAFETY: the first `len` are written.
            let (coroutine, ticket) = unsafe { one.assume_init() };
            // SAFETY: K3.
            let this = unsafe { coroutine.as_ref() };
            if !this.context.settle(ticket, self.cause) {
                continue;
            }
            if this.fiber.worker == here {
                own[owned] = NonNull::from(&this.fiber);
                owned += 1;
                continue;
            }
            match &mut chain {
                Some(chain) if ptr::from_ref(chain.worker).cast() == this.fiber.worker => {
                    chain.append(coroutine)
                }
                other => {
                    if let Some(chain) = other.take() {
                        chain.send();
                    }
                    // SAFETY: K1; its worker's record is there while its wait continues, and until all are sent.
                    *other =
                        Some(Chain::of(coroutine, unsafe { &*this.fiber.worker.cast::<WorkerRecord>() }));
                }
            }
        }
        if let Some(chain) = chain {
            chain.send();
        }
        // SAFETY: K1; we are on its thread, if there is one.
        if let Some(worker) = unsafe { here.cast::<WorkerRecord>().as_ref() } {
            worker.make_all_ready(&own[..owned]);
            // They go on soon, and by then too few may be left for the ready queue to look ahead.
            own[..owned].iter().for_each(|fiber| prefetch::whole(*fiber));
        }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.go();
    }
}

/// Coroutines of one worker, linked as its mailbox takes them.
pub(crate) struct Chain<'a> {
    worker: &'a WorkerRecord,
    latest: NonNull<Coroutine>,
    earliest: NonNull<Coroutine>,
    /// The most urgent one's.
    key: u64,
}

impl<'a> Chain<'a> {
    /// K2: the caller has settled its wait, so it is in no queue. So for [`append`](Self::append).
    pub(crate) fn of(coroutine: NonNull<Coroutine>, worker: &'a WorkerRecord) -> Chain<'a> {
        // SAFETY: K3.
        let key = unsafe { coroutine.as_ref() }.fiber.urgency.load(Ordering::Relaxed);
        Chain { worker, latest: coroutine, earliest: coroutine, key }
    }

    fn append(&mut self, coroutine: NonNull<Coroutine>) {
        // SAFETY: K3.
        let this = unsafe { coroutine.as_ref() };
        this.link.store(self.latest.as_ptr(), Ordering::Relaxed);
        self.latest = coroutine;
        self.key = self.key.min(this.fiber.urgency.load(Ordering::Relaxed));
    }

    #[inline]
    pub(crate) fn send(self) {
        let runtime = ptr::from_ref(self.worker.shared());
        let is_of_runtime = |here: &WorkerRecord| ptr::eq(here.shared(), runtime);
        if fiber::get().and_then(Fiber::worker_record).is_some_and(is_of_runtime) {
            // This thread is joined before the runtime is closed.
            self.hand_over();
        } else {
            self.hand_over_as_visitor();
        }
    }

    #[cold]
    #[inline(never)]
    fn hand_over_as_visitor(self) {
        let visits = &self.worker.shared().visits;
        // SAFETY: VI1: the coroutines have not been handed over.
        unsafe { visits.during(|| self.hand_over()) };
    }

    /// The worker's record stays until this returns: the caller is a worker of the same runtime, or visits it.
    #[inline]
    fn hand_over(self) {
        let (worker, key) = (self.worker, self.key);
        // SAFETY: K2, K3; linked by `append`.
        if unsafe { worker.post.mailbox.push_chain(self.latest, self.earliest) } {
            #[cfg(all(test, not(any(loom, shuttle))))]
            crate::state::visits::tests::after_the_push();
            worker.shared().wake(worker.index);
        }
        if key < worker.post.running_key() {
            worker.post.attention.raise(OLDER);
        }
    }
}
