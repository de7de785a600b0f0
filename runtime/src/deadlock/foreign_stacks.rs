//! Foreign stacks: how a thread reads the record of a stack that may be another thread's.
//!
//! The *record* of a stack is its context and its fiber. A coroutine's record lies at the top of the coroutine's own stack, and goes when the
//! stacks of its runtime are unmapped. A thread's record is freed when the thread exits, unless the thread ends the process from a frame that uses
//! the record ([`crate::foreign`], `exit.rs`). Requests, locks and edges of waits name stacks by address only. So a reader keeps what it reads, by one of the rows below, or does not read it.
//!
//! A record is a *foreign stack* for a reader if only the registry keeps it valid. These are the records of threads, and those of the stacks of a
//! runtime that the reader is no worker of. A reader reads a foreign stack through [`with_holder`], under the lock of the
//! [`stack_registry`](crate::state::stack_registry).
//!
//! # Who reads what, and what keeps it
//!
//! | reader | what it reads | what keeps it |
//! |---|---|---|
//! | `AnyRequest::state`, and what prints a request | whether the stack of a request has parked | [`with_holder`] |
//! | a raise of urgency that comes to a request | nothing, if the request belongs to another runtime: its worker reads ([`crate::deadlock::urgency`]) | a link of the request, in the post of that worker |
//! | the same in one runtime | the urgency of the stack | K3: the reader is a worker of that runtime |
//! | a raise of urgency that comes to the holder of a lock | the urgency and the worker of the holder's stack | [`with_holder`] |
//! | a raise of urgency that continues from a stack | what the stack waits for | U1: it is the reader's own thread, and the stack is parked |
//! | a fall of urgency; a cancel that asks which requests wait; a cycle that is completed | the stacks of those that wait for one request | the lock of the request's word: a waiter takes itself out under it |
//! | a lock that asks whether its holder shares the waiter's thread | the number of the holder's thread | [`with_holder`] |
//! | who ends a wait by its ticket | the context, and the worker of the stack | C1 until the stack is handed over; then [`crate::state::visits`], for the worker's record alone |
//! | a timer | the same | T2: a shard's lock, which the waiter takes before it continues, unless the timer has woken it |
//! | a cancel that is delivered | the stack of the request, and what it waits for | the reader is the thread of that stack; other threads leave it a message, with a link |
//! | a walk along the edges of waits, and the survey ([`crate::deadlock::cycle`]) | the edges | Y1, or Y2: the lock of the registry |
//! | what confirms, names and breaks a cycle | the requests and locks on the stacks of the cycle | Y3: their waits are held, under the lock of the registry |
//! | a guard of a read lock that is dropped on another stack than it was acquired on | the list of read locks of that stack, from which it removes an entry | [`with_holder`] |
//! | a pool that asks whether a member that has a place can go on | whether the member's stack waits | [`with_holder`] |
//! | a pool that asks whether its waiter can go on | the context of the waiter | HB1: the lock of the gate |
//! | a worker that answers a dump | its own stacks and its private queue | it is their thread |
//! | a dump, or a report of laggards, from outside | the stacks of a worker | K5: the lock of the worker's list of coroutines; the wait is held, or the requests are read under [`reclaim::read_section`](crate::record::reclaim::read_section) |
//! | the same of threads that run requests, and that block | their records | the lock of the arena's mailbox; PK1: the lock of the list of parked threads |
//! | the same, of the holder of a lock that is none of these | the name of what runs there | [`with_holder`], under [`reclaim::read_section`](crate::record::reclaim::read_section) |
//! | an end of a runtime that has given up, and ends waits from outside | their contexts | PK1 |
//! | a thread without workers that looks for a standstill | the stacks of its own seats | it is their thread |
//! | a frame that is lent: jobs, arms, lanes, selects | what it borrows | `docs/loans.md` |
//! | prefetches | nothing: an address is a hint | |
//! | messages of panics, warnings and failures | names that were copied where they were known | |
//! | a forked child | nothing of other threads: it forgets the addresses ([`crate::api::runtime::fork`]) | |
//!
//! # What may be read of a foreign stack
//!
//! A record there may be in use, idle, given back, or just being built by its owner. So only its atomic parts may be
//! read, and [`StackView`] offers nothing else. Of the context these are its slot, its thread number, its list of read locks and whether it has
//! parked. Of the fiber they are its urgency and the request on top, whose header is read in a read section only. A
//! coroutine is built over such a record by [`Context::renew`] and `Fiber::renew`, which write these parts by atomic
//! stores. A stack that belongs to no worker has the thread number 0.

use std::ptr::{self, NonNull};

use forebear_context::context::Context;
use forebear_context::context::edge::Guide;
use forebear_context::shim::MutexGuard;
use forebear_context::shim::atomic::Ordering;

use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::shared::Shared;
use crate::shared::thread;
use crate::shared::worker::WorkerRecord;
use crate::stack::coroutine::Coroutine;
use crate::state::stack_registry::{RegisteredStacks, StackRegistry, Stacks};

/// Threads that run requests, and runtimes.
static FOREIGN_STACKS: StackRegistry<Context, Shared> = StackRegistry::new();

pub(crate) type ForeignStacks = RegisteredStacks<Context, Shared>;

pub(crate) fn lock_foreign_stacks() -> MutexGuard<'static, ForeignStacks> {
    FOREIGN_STACKS.lock()
}

/// A thread has a context now.
pub(crate) fn register_thread(context: &Context) {
    // SAFETY: EL1: `unregister_thread` comes before it is freed.
    unsafe { FOREIGN_STACKS.register_thread(NonNull::from(context)) };
}

/// It is about to free it. Returns when nobody reads it any more.
pub(crate) fn unregister_thread(context: &Context) {
    FOREIGN_STACKS.unregister_thread(NonNull::from(context));
}

/// A runtime is about to start.
pub(crate) fn register_runtime(shared: &Shared) {
    // SAFETY: EL1: `unregister_runtime` comes before its stacks are unmapped.
    unsafe { FOREIGN_STACKS.register_runtime(NonNull::from(shared)) };
}

/// It is about to unmap its stacks. Returns when nobody reads them any more.
pub(crate) fn unregister_runtime(shared: &Shared) {
    FOREIGN_STACKS.unregister_runtime(NonNull::from(shared));
}

/// In a forked child: nothing is left of all threads but of the one that forks, whose context `own` is, and of all runtimes.
pub(crate) fn forget(foreign_stacks: &mut ForeignStacks, own: Option<NonNull<Context>>) {
    foreign_stacks.threads.retain(|&thread| own == Some(thread));
    foreign_stacks.runtimes.clear();
}

// SAFETY: K4: a record lies there in every slot, filled with zeros before the first coroutine.
unsafe impl Stacks<Context> for Shared {
    /// Whether this is where a coroutine of this runtime has its context.
    #[inline]
    fn have(&self, context: NonNull<Context>) -> bool {
        self.slab.top_around(context.addr().get()).is_some_and(|top| Coroutine::context_in(top) == context)
    }
}

/// The record of a stack, which is kept while this is there. Offers what may be read of any record at any time.
pub(crate) struct StackView<'a> {
    at: NonNull<Context>,
    /// The runtime whose stack this is; `None`: it is a thread's own.
    of: Option<&'a Shared>,
}

impl<'a> StackView<'a> {
    /// A view of the record at this address.
    ///
    /// # Safety
    ///
    /// The record lies at this address, and is kept for `'a`; `of` is its runtime, if it is a coroutine's.
    unsafe fn new(at: NonNull<Context>, of: Option<&'a Shared>) -> StackView<'a> {
        StackView { at, of }
    }

    /// Of this only what is atomic is read.
    fn context(&self) -> &'a Context {
        // SAFETY: by the contract of `new`.
        unsafe { self.at.as_ref() }
    }

    /// Whether it waits: a snapshot.
    pub(crate) fn is_waiting(&self) -> bool {
        self.context().is_waiting()
    }

    /// Whether it waits, and each thread that may end the wait knows of it: a snapshot.
    pub(crate) fn is_parked(&self) -> bool {
        self.context().is_parked()
    }

    /// Whether the stack is on the same worker as that of `context`.
    pub(crate) fn is_on_the_thread_of(&self, context: &Context) -> bool {
        let number = context.place().get();
        number != 0 && self.context().place().get() == number
    }

    /// The worker whose stack this is, if it is one's.
    ///
    /// A stack belongs to its worker until that worker gives it back, so the worker itself can rely on the answer.
    pub(crate) fn worker(&self) -> Option<&'a WorkerRecord> {
        let number = self.context().place().get();
        self.of?.worker_records().iter().find(|worker| ptr::from_ref(*worker).addr() == number)
    }

    /// Where its fiber lies.
    pub(crate) fn fiber(&self) -> NonNull<Fiber> {
        Fiber::behind(self.at)
    }

    /// Makes the stack at least as urgent as `key`. False: it was.
    #[inline]
    pub(crate) fn lower_urgency(&self, key: u64) -> bool {
        // SAFETY: by the contract of `new`; a slot is mapped filled with zeros, which are a key.
        let urgency = unsafe { &(*self.fiber().as_ptr()).urgency };
        // A look first: mostly it is as urgent.
        urgency.load(Ordering::Relaxed) > key && urgency.fetch_min(key, Ordering::Relaxed) > key
    }

    /// It holds the share with this key no longer.
    pub(crate) fn lost_share(&self, share: NonNull<()>) {
        self.context().shares().lost(share);
    }

    /// The name of what runs there.
    ///
    /// # Safety
    ///
    /// Inside [`reclaim::read_section`](crate::record::reclaim::read_section).
    pub(crate) unsafe fn name(&self) -> String {
        if self.of.is_none() {
            // SAFETY: it is kept, and no coroutine's, so a foreign thread's of the runtime's table.
            return unsafe { thread::name_of_thread(self.at) }.to_owned();
        }
        // SAFETY: as in `lower_urgency`.
        let request = unsafe { &(*self.fiber().as_ptr()).request }.get();
        // SAFETY: it was on the stack after the look began, so its memory stays.
        unsafe { request.as_ref() }.map_or("worker", Header::name).to_owned()
    }
}

/// What a walk may read: its own runtime's stacks, and foreign stacks from when their lock is needed on.
pub(crate) struct ReadableStacks<'a> {
    own: Option<&'a Shared>,
    foreign_stacks: Option<MutexGuard<'static, ForeignStacks>>,
    /// A coroutine of its own runtime that was looked up before.
    known: Option<NonNull<Context>>,
}

impl<'a> ReadableStacks<'a> {
    pub(crate) fn by(worker: Option<&'a WorkerRecord>) -> ReadableStacks<'a> {
        ReadableStacks { own: worker.map(WorkerRecord::shared), foreign_stacks: None, known: None }
    }

    /// As the function of this name. From when the holder was found to be a foreign stack, foreign stacks are kept until this goes.
    pub(crate) fn with_holder(&mut self, holder: NonNull<Context>, with: impl FnOnce(&StackView<'_>)) {
        if self.has_own(holder) {
            // SAFETY: Y1.
            return with(&unsafe { StackView::new(holder, self.own) });
        }
        self.keep_foreign();
        if let Some(of) = self.foreign_stacks.as_ref().and_then(|foreign_stacks| foreign_stacks.find(holder))
        {
            // SAFETY: Y2.
            let of = of.map(|of| unsafe { of.as_ref() });
            // SAFETY: Y2.
            with(&unsafe { StackView::new(holder, of) });
        }
    }

    /// Whether they were not kept before.
    pub(crate) fn keep_foreign(&mut self) -> bool {
        let is_new = self.foreign_stacks.is_none();
        self.foreign_stacks.get_or_insert_with(lock_foreign_stacks);
        is_new
    }

    /// Calls `with` for each runtime whose stacks are mapped.
    pub(crate) fn each_runtime(&mut self, mut with: impl FnMut(&Shared)) {
        self.keep_foreign();
        for runtime in self.foreign_stacks.iter().flat_map(|stacks| &stacks.runtimes) {
            // SAFETY: Y2: it leaves the list, under the lock, before its record goes.
            with(unsafe { runtime.as_ref() });
        }
    }

    /// They are no longer kept.
    pub(crate) fn release_foreign(&mut self) {
        self.foreign_stacks = None;
    }

    fn has_own(&mut self, holder: NonNull<Context>) -> bool {
        if self.known == Some(holder) {
            return true;
        }
        let has = self.own.is_some_and(|own| own.have(holder));
        if has {
            self.known = Some(holder);
        }
        has
    }
}

// SAFETY: Y1: a coroutine's context stays as long as its runtime's slab, and the waiter is of that runtime; Y2: a foreign stack leaves the list
// under the lock that this holds, before it is freed.
unsafe impl Guide for ReadableStacks<'_> {
    fn keep_foreign_stacks(&mut self) -> bool {
        self.keep_foreign()
    }

    fn admits(&mut self, holder: NonNull<Context>) -> bool {
        self.has_own(holder)
            || self
                .foreign_stacks
                .as_ref()
                .is_some_and(|foreign_stacks| foreign_stacks.find(holder).is_some())
    }
}

/// Calls `with` if a record lies at this address, which a lock or a request has named; it stays there until `with` has returned. `here` is the
/// worker whose thread this is. If the record is none of that worker's runtime, `with` is called under the lock of the foreign stacks.
pub(crate) fn with_holder(
    here: Option<&WorkerRecord>,
    holder: NonNull<Context>,
    with: impl FnOnce(&StackView<'_>),
) {
    match here.map(WorkerRecord::shared).filter(|own| own.have(holder)) {
        // SAFETY: Y1.
        Some(own) => with(&unsafe { StackView::new(holder, Some(own)) }),
        // SAFETY: Y2.
        None => FOREIGN_STACKS.with(holder, |_, of| with(&unsafe { StackView::new(holder, of) })),
    }
}

#[cfg(test)]
mod tests;
