//! Arenas: where headers are made, counted and freed.
//!
//! Every worker has an arena, and every foreign thread that makes or runs requests of a runtime. An arena takes memory from its
//! own free lists and returns it to them. Arenas exchange memory in batches through the runtime's [`stock`], so one worker uses what another
//! has freed. The stock returns unused memory to the system.
//!
//! # The end of a header
//!
//! The thread that brings both counts to 0 calls [`end()`]. By then all children have ended, since together they hold a link of a
//! parent that is over (H1). The header travels to `arena`, where the parent's count of children falls. The last child releases the parent's link,
//! which may be the parent's own end, and so on up the ancestors: in a loop, never by recursion. To travel means one push to
//! the other arena's list of returns, which its owner takes whole.
//!
//! # Closed arenas
//!
//! An arena whose thread has exited is given to the next foreign thread. When the runtime is over its arenas are
//! *closed*: the list of returns has a mark. A thread that finds the mark ends the header itself, under the one lock of
//! all closed arenas. An arena keeps the runtime's record alive while it has headers; the last header releases the
//! record.
//!
//! # Which thread may touch what
//!
//! | field | thread, and when |
//! |---|---|
//! | `free`, `owned`, `large`, `sides`, `returns.uncut` | the owner (M1) |
//! | `runtime`, `worker` | written when the arena is made; read by any thread that has a header of it |
//! | `owner_mailbox` | [`crate::state::owner_mailbox`]: any thread sends, the owner reads |
//! | `families` | a lock; taken by a thread that links or unlinks a child where the arena may have no owner (N1) |
//! | `local_owner` | the owner; a thread that asks for the publication of a local request ([`crate::state::word`]) |
//! | `returns.list` | any thread pushes; the owner takes the whole list |
//! | `direct` | the owner counts; any thread reads |
//! | `owner` | the owner writes; a thread that has returned a header reads, under the lock of the waiters from outside |
//!
//! # Invariants
//!
//! * **M1** Only its owner accesses the plain fields of an arena. The owner is the thread that has the arena, or, after
//!   it is closed, the holder of the lock of the closed arenas.
//! * **M2** A header is in one list of returns at most: it is pushed by the thread that alone knows it.
//! * **M3** An arena counts its cells in use; its owner keeps the count. A closed arena with none left releases the record. Each cell
//!   is counted once, with its class. The length of a free list follows from the number of cells that the arena has.

use forebear_context::context::Context;
use forebear_context::shim::atomic::{AtomicPtr, Ordering};
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use forebear_context::shim::{Mutex, MutexGuard};

mod cells;
mod depot;
mod end;
mod poison;
mod stock;
#[cfg(all(test, not(any(forebear_threads, shuttle))))]
mod tests;

pub(crate) use self::cells::{LARGE, class_of};
pub(crate) use self::depot::Depot;
pub(crate) use self::end::{end, end_any_child, end_child, end_plain_child, release, take_place};
pub(crate) use self::stock::LOOK;

use self::cells::{CLASSES, Free, STEP};
use self::end::{Late, end_on};
use self::stock::{BATCH, Batch, Found};
use crate::record::counter::Counter;
use crate::record::fiber;
use crate::record::header::Header;
use crate::record::message::Message;
use crate::record::reclaim;
use crate::record::runtime::{KeptRuntime, RuntimeRecord};
use crate::record::side::SideMemory;
use crate::state::owner_mailbox::OwnerMailbox;
use crate::state::word::LocalOwner;

/// The class of a cell that belongs to no arena: a ready value.
pub(crate) const NO_ARENA: u8 = u8::MAX - 1;
/// How many of a worker's local requests other threads ask for before the worker makes no more. Each costs the asking thread some 10 microseconds.
const PATIENCE: u32 = 64;
/// How many free cells of a class an idle owner keeps at most: each may belong to another chunk, and keep that chunk from the system.
pub(crate) const KEPT: usize = 16;
/// How many batches make a free list long.
const LONG: usize = 16;
/// How many batches a long list gives away at a time, besides as many as have returned.
const SHED: usize = 8;

struct FreeList {
    head: Cell<*mut Free>,
    /// Cells of this class that are in use.
    live: Cell<usize>,
}

/// One thread's share of a runtime's memory. See the module head.
#[repr(align(128))]
pub(crate) struct Arena {
    free: [FreeList; CLASSES],
    /// Cells that the arena has of each class, free or in use.
    owned: [Cell<usize>; CLASSES],
    /// Cells in use that came from the system one by one; and one while the arena is being closed.
    large: Cell<usize>,
    /// The runtime's record, with a count until the last header of a closed arena is freed.
    runtime: NonNull<RuntimeRecord>,
    /// The number of the worker it belongs to; `u32::MAX` for a foreign thread's.
    pub worker: u32,
    /// The context of the foreign thread that has the arena, or had it last; null if there was none. Meaningful only while that thread is listed as one
    /// that waits (`shared/parked.rs`).
    owner: AtomicPtr<Context>,
    /// Requests that a foreign thread has run on its own stack here.
    pub direct: Counter,
    /// Messages that other threads have left for the owner.
    pub owner_mailbox: OwnerMailbox<Message<Header>>,
    /// Guards the lists of children where other threads may touch them (N1).
    families: Mutex<()>,
    /// Whether requests made here are its owner's local requests at first.
    pub local_owner: LocalOwner,
    /// Memory of side blocks that were freed by this thread.
    pub sides: SideMemory,
    returns: Returns,
}

/// Ten cache lines: an idle program has one for each worker and for its main thread.
#[cfg(not(any(loom, shuttle, forebear_threads)))]
const _: () = assert!(size_of::<Arena>() <= 10 * 128);

/// In a line that other threads write.
#[repr(align(128))]
#[derive(Default)]
struct Returns {
    list: AtomicPtr<Header>,
    /// First chunks, with their classes, while only the first page of each has been cut: a thread that makes few requests touches no more of it. It
    /// stands here since its owner hardly touches it, and fills no line of its own.
    uncut: Cell<Vec<(usize, NonNull<u8>)>>,
}

fn closed_mark() -> *mut Header {
    ptr::dangling_mut::<Header>()
}

/// Primes a cell that is being cut out of an unused part of a chunk.
fn prime(cell: NonNull<u8>) {
    // SAFETY: each cell has room for a header, and no thread uses it.
    unsafe { Header::prime(cell.cast()) };
}

impl Arena {
    /// An empty arena of this runtime.
    ///
    /// # Safety
    ///
    /// RR1; the caller has a count of the record.
    unsafe fn new(runtime: NonNull<RuntimeRecord>, worker: u32) -> Arena {
        // SAFETY: by contract.
        let runtime = unsafe { KeptRuntime::new(runtime) };
        let is_driven = runtime.get().is_driven;
        Arena {
            free: [const { FreeList { head: Cell::new(ptr::null_mut()), live: Cell::new(0) } }; CLASSES],
            owned: [const { Cell::new(0) }; CLASSES],
            large: Cell::new(0),
            runtime: runtime.into_raw(),
            worker,
            owner: AtomicPtr::new(ptr::null_mut()),
            direct: Counter::default(),
            owner_mailbox: OwnerMailbox::default(),
            families: Mutex::new(()),
            local_owner: LocalOwner::new(if worker == u32::MAX || is_driven { 0 } else { PATIENCE }),
            sides: SideMemory::default(),
            returns: Returns::default(),
        }
    }

    /// Whether it belongs to no worker.
    #[inline(always)]
    pub(crate) fn is_foreign(&self) -> bool {
        self.worker == u32::MAX
    }

    /// Whether it may have no owner that reads its mailbox: a foreign thread's arena, or that of a worker that has left.
    pub(crate) fn is_unattended(&self) -> bool {
        self.is_foreign() || self.owner_mailbox.is_abandoned()
    }

    /// The lock of its lists of children, if other threads may touch them.
    pub(crate) fn lock_families(&self) -> Option<MutexGuard<'_, ()>> {
        self.is_unattended().then(|| self.families.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The runtime it is a part of. Valid while the arena has an owner or headers (M3).
    #[inline(always)]
    pub(crate) fn runtime(&self) -> &RuntimeRecord {
        // SAFETY: M3.
        unsafe { self.runtime.as_ref() }
    }

    /// The same, from which the whole record of the runtime may be reached (RR1).
    #[inline(always)]
    pub(crate) fn runtime_ptr(&self) -> NonNull<RuntimeRecord> {
        self.runtime
    }

    /// Memory for a cell, [primed](Header::prime). Called by the owner.
    #[inline(always)]
    pub(crate) fn allocate(&self, class: u8, layout: std::alloc::Layout) -> NonNull<u8> {
        match self.pop_free(class) {
            Some(cell) => cell,
            None => self.allocate_slow(class, layout),
        }
    }

    /// The same from the free list, if there is one of this class and it is not empty.
    #[inline(always)]
    pub(crate) fn pop_free(&self, class: u8) -> Option<NonNull<u8>> {
        if class == LARGE {
            return None;
        }
        let list = &self.free[usize::from(class)];
        let head = NonNull::new(list.head.get())?;
        // SAFETY: M1: free cells are the owner's.
        list.head.set(unsafe { head.as_ref() }.next);
        list.live.set(list.live.get() + 1);
        poison::take(head.as_ptr().cast(), usize::from(class) * STEP);
        Some(head.cast())
    }

    #[cold]
    #[inline(never)]
    fn allocate_slow(&self, class: u8, layout: std::alloc::Layout) -> NonNull<u8> {
        if class == LARGE {
            self.large.set(self.large.get() + 1);
            // SAFETY: a header makes the size more than zero.
            let Some(memory) = NonNull::new(unsafe { std::alloc::alloc(layout) }) else {
                std::alloc::handle_alloc_error(layout)
            };
            // SAFETY: fresh, and a header is the least that it is for.
            unsafe { Header::prime(memory.cast()) };
            return memory;
        }
        self.fill(class);
        match self.pop_free(class) {
            Some(cell) => cell,
            None => unreachable!("the list was filled"),
        }
    }

    /// Refills the free list of this class if it is empty. Not for the large class. Called by the owner.
    fn fill(&self, class: u8) {
        self.drain_returns();
        if self.free[usize::from(class)].head.get().is_null() {
            self.refill(class);
        }
    }

    fn refill(&self, class: u8) {
        let class = usize::from(class);
        if self.cut_rest(class) {
            return;
        }
        let batch = match self.runtime().depot.stock.take(class) {
            Found::Batch(batch) => batch,
            Found::Chunk(chunk) if self.owned[class].get() == 0 => {
                let mut uncut = self.returns.uncut.take();
                uncut.push((class, chunk));
                self.returns.uncut.set(uncut);
                // SAFETY: it is ours.
                unsafe { stock::cut(chunk, class, 0..stock::cells_of_a_page(class), prime) }
            }
            // SAFETY: it is ours.
            Found::Chunk(chunk) => unsafe {
                stock::cut(chunk, class, 0..stock::cells_of_a_chunk(class), prime)
            },
        };
        self.free[class].head.set(batch.head);
        self.own(class, batch.len);
    }

    /// Puts the uncut rest of the first chunk on the free list. False: there is none. Called by the owner.
    fn cut_rest(&self, class: usize) -> bool {
        let mut uncut = self.returns.uncut.take();
        let at = uncut.iter().position(|(of, _)| *of == class);
        let chunk = at.map(|at| uncut.swap_remove(at).1);
        self.returns.uncut.set(uncut);
        let Some(chunk) = chunk else { return false };
        let list = &self.free[class].head;
        let rest = stock::cells_of_a_page(class)..stock::cells_of_a_chunk(class);
        // SAFETY: M1: it is ours, and so is the list; a chunk is more than a page.
        let batch = unsafe { stock::cut_before(chunk, class, rest, prime, list.get()) };
        list.set(batch.head);
        self.own(class, batch.len);
        true
    }

    /// Puts the cell of a header that no other thread knows on the free list.
    ///
    /// # Safety
    ///
    /// M1; the cell is of this class and unused.
    #[inline(always)]
    unsafe fn put_back(&self, class: u8, header: NonNull<Header>) {
        let (list, cell) = (&self.free[usize::from(class)], header.as_ptr().cast::<Free>());
        list.live.set(list.live.get() - 1);
        // SAFETY: by contract.
        unsafe { (*cell).next = list.head.get() };
        list.head.set(cell);
        poison::free(cell.cast(), usize::from(class) * STEP);
    }

    /// Counts cells of this class that the arena has got.
    fn own(&self, class: usize, cells: usize) {
        self.owned[class].set(self.owned[class].get() + cells);
    }

    fn disown(&self, class: usize, cells: usize) {
        self.owned[class].set(self.owned[class].get() - cells);
    }

    /// How many free cells of this class the arena has.
    fn spare(&self, class: usize) -> usize {
        self.owned[class].get() - self.free[class].live.get()
    }

    /// Whether no cell of the arena is in use. Called by the owner.
    fn is_done(&self) -> bool {
        self.large.get() == 0 && self.free.iter().all(|list| list.live.get() == 0)
    }

    /// Gives batches to the stock if a list has grown long: as many cells as have just returned, and some more. Not all at once: cells far down in
    /// the list are cold, and the owner has requests to run. Called by the owner.
    fn shed(&self, class: usize, returned: usize) {
        if self.spare(class) < BATCH * LONG {
            return;
        }
        let most = returned.div_ceil(BATCH) + SHED;
        let list = &self.free[class].head;
        let mut batches = Vec::new();
        while batches.len() < most && self.spare(class) >= BATCH * (LONG - SHED) {
            let head = list.get();
            // SAFETY: M1; the list is longer than this.
            list.set(unsafe { stock::cut_off(head, BATCH) });
            self.disown(class, BATCH);
            batches.push(Batch { head, len: BATCH });
        }
        self.runtime().depot.stock.give(class, batches);
    }

    /// Whether an idle owner of the arena is to give free cells away. Called by the owner.
    #[inline]
    pub(crate) fn has_spare_cells(&self) -> bool {
        self.runtime().depot.stock.is_large() && (0..CLASSES).any(|class| self.is_spare(class))
    }

    /// The same for one class.
    #[inline]
    pub(crate) fn has_spare_of(&self, class: u8) -> bool {
        usize::from(class) < CLASSES && self.is_spare(usize::from(class))
    }

    /// The limit is doubled for a foreign thread. A worker checks once in a while, a foreign thread at each wait, and would give away cells that it
    /// needs again at once.
    fn is_spare(&self, class: usize) -> bool {
        self.spare(class) > if self.is_foreign() { 2 * KEPT } else { KEPT }
    }

    /// Gives away each list that is too long, in constant time. A worker gives the whole list. A foreign thread keeps the
    /// cells that it freed last. Called by the owner.
    #[cold]
    pub(crate) fn give_spare_cells(&self) {
        let kept = if self.is_foreign() { KEPT } else { 0 };
        (0..CLASSES).filter(|class| self.is_spare(*class)).for_each(|class| self.give_list(class, kept));
    }

    /// Gives away all free cells. Called by the owner.
    fn give_all(&self) {
        (0..CLASSES).filter(|class| self.spare(*class) > 0).for_each(|class| self.give_list(class, 0));
    }

    /// Gives away a list except its first `kept` cells. The list is longer than that.
    fn give_list(&self, class: usize, kept: usize) {
        // The stock returns whole chunks to the system.
        self.cut_rest(class);
        let list = &self.free[class].head;
        let head = match kept {
            0 => list.replace(ptr::null_mut()),
            // SAFETY: M1; the list is longer than this.
            _ => unsafe { stock::cut_off(list.get(), kept) },
        };
        let rest = Batch { head, len: self.spare(class) - kept };
        self.disown(class, rest.len);
        let runtime = self.runtime();
        runtime.depot.stock.give(class, [rest]);
        if self.is_foreign() && !runtime.is_driven && runtime.depot.stock.wants_a_watcher() {
            // All workers may sleep, for good.
            runtime.signals.wake(0);
        }
    }

    /// Takes the headers that other threads have returned. Called by the owner.
    pub(crate) fn drain_returns(&self) {
        if self.returns.list.load(Ordering::Relaxed).is_null() {
            return;
        }
        let late = Late::default();
        let mut at = self.returns.list.swap(ptr::null_mut(), Ordering::AcqRel);
        let (mut last_class, mut returned) = (0, 0);
        while let Some(header) = NonNull::new(at) {
            // SAFETY: M2: the list was taken whole, so this thread owns it.
            unsafe {
                at = header.as_ref().next_return();
                last_class = header.as_ref().memory_class.get();
                end_on(self, header, false, &late);
            }
            returned += 1;
        }
        if usize::from(last_class) < CLASSES {
            self.shed(usize::from(last_class), returned);
        }
        // Now that nothing is in hand.
        late.leave();
    }

    /// Whether there are returned headers that the owner has not taken.
    #[inline]
    pub(crate) fn has_returns(&self) -> bool {
        !self.returns.list.load(Ordering::Relaxed).is_null()
    }

    /// Says which foreign thread has the arena. Called by the owner, before another thread may have a header of it.
    pub(crate) fn set_owner(&self, context: Option<NonNull<Context>>) {
        self.owner.store(context.map_or(ptr::null_mut(), NonNull::as_ptr), Ordering::Relaxed);
    }

    /// The context of the foreign thread that has the arena, or had it last. It may be gone.
    pub(crate) fn owner(&self) -> *mut Context {
        self.owner.load(Ordering::Relaxed)
    }

    /// Pushes a header to this arena's returns; false if the arena is closed.
    fn send(&self, header: NonNull<Header>) -> bool {
        let mut seen = self.returns.list.load(Ordering::Relaxed);
        loop {
            if seen == closed_mark() {
                return false;
            }
            // SAFETY: M2: the header is the sender's alone.
            unsafe { header.as_ref() }.set_next_return(seen);
            match self.returns.list.compare_exchange_weak(
                seen,
                header.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Frees a header's memory and side block. Called by the owner, after the first stage of the end.
    ///
    /// # Safety
    ///
    /// M1; no other thread knows the header.
    #[inline(always)]
    pub(crate) unsafe fn free(&self, header: NonNull<Header>) {
        // SAFETY: no other thread knows the header, by contract: so its side block may be dropped and its memory freed; M1 for the lists.
        unsafe {
            drop_side(header);
            let class = header.as_ref().memory_class.get();
            // One comparison for two questions: whether the cell is from a free list, and whether the index is in range.
            if usize::from(class) < CLASSES {
                self.put_back(class, header);
            } else {
                self.large.set(self.large.get() - 1);
                let layout = header.as_ref().vtable.layout;
                reclaim::free_cell(header.cast(), layout);
            }
        }
    }
}

/// Makes the arena of the current fiber, which has one, fill its free list of this class.
#[cold]
#[inline(never)]
pub(crate) fn fill_here(class: u8) {
    // SAFETY: M3; M1: the thread's own.
    if let Some(arena) = unsafe { fiber::current_arena().as_ref() } {
        arena.fill(class);
    }
}

/// Drops the side block, which few requests have: a name, or a failure with a user's error, whose destructor may do anything.
///
/// # Safety
///
/// No other thread reads the side block from now on: only the caller knows the header, and it has no children.
#[inline(always)]
unsafe fn drop_side(header: NonNull<Header>) {
    // SAFETY: the caller has the header alone; without children its list of children is empty.
    if let Some(side) = unsafe { header.as_ref().side.take() } {
        reclaim::free_side(side);
    }
}
