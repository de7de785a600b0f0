//! Arenas: where headers are made, counted and freed.
//!
//! Every worker has an arena, and every foreign thread that makes or runs requests of a runtime. Memory is taken from a
//! arena's own free lists and comes back to them; arenas exchange it in batches through the runtime's [`stock`], so what one
//! worker freed is found by the next, and what nobody wants any more goes back to the system.
//!
//! # The end of a header
//!
//! The thread that brings both counts to 0 calls [`end()`]. By then the children are gone, since together they hold a link of a
//! parent that is over (H1). The end travels to `arena`, where the parent loses a child; the last one gives the parent's link
//! back, which may be the parent's own end, and so on up the line: in a loop, never by recursion. To travel means one push to
//! the other arena's list of returns, which is popped whole by its owner.
//!
//! # Closed arenas
//!
//! An arena whose thread is gone is lent to the next foreign thread. When the runtime is over its arenas are *closed*: the
//! list of returns holds a mark, and who finds the mark does the work itself, under the one lock of all closed arenas.
//! An arena keeps the runtime's record alive while headers of it are about; the last one lets go.
//!
//! # Who may touch what
//!
//! | field | who, when |
//! |---|---|
//! | `free`, `owned`, `large`, `sides` | the owner (M1) |
//! | `runtime`, `worker` | written when the arena is made; read by any thread that has a header of it |
//! | `owner_mailbox` | [`crate::state::owner_mailbox`]: any thread sends, the owner reads |
//! | `families` | a lock; taken by a thread that links or unlinks a child where the arena may have no owner (N1) |
//! | `local_owner` | the owner; a thread that asks for a local request ([`crate::state::word`]) |
//! | `returns` | any thread pushes; the owner takes the whole list |
//! | `direct` | the owner counts; any thread reads |
//!
//! # Invariants
//!
//! * **M1** The plain fields of an arena are touched by its owner: the thread it belongs to, or the holder of the lock of
//!   the closed arenas once it is closed.
//! * **M2** A header is in one list of returns at most: it is pushed by the thread that alone knows it.
//! * **M3** An arena knows how many of its cells are in use, by its owner; a closed arena with none left lets the record go. Each
//!   is counted once, with its class; how long a free list is follows from how many cells the arena has.

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
use self::end::end_on;
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
/// How many of a worker's local requests are asked for before it gives them up. Each costs who asks some 10 microseconds.
const PATIENCE: u32 = 64;
/// An owner that has nothing to do keeps at most so many free cells of a class: each may be of another chunk, and keep that from the system.
pub(crate) const KEPT: usize = 16;
/// A free list of so many batches is long.
const LONG: usize = 16;
/// How many batches a long list loses at a time, beside as many as have come.
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
    /// The first chunk of a class, while only its first page has been cut: a thread that makes few requests touches no more of it.
    uncut: [Cell<*mut u8>; CLASSES],
    /// Cells in use that came from the system one by one; and one while the arena is being closed.
    large: Cell<usize>,
    /// With a count, until the last header of a closed arena has gone.
    runtime: NonNull<RuntimeRecord>,
    /// The number of the worker it belongs to; `u32::MAX` for a foreign thread's.
    pub worker: u32,
    /// Requests that a foreign thread has run on its own stack here.
    pub direct: Counter,
    /// What others have left for the owner to do.
    pub owner_mailbox: OwnerMailbox<Message<Header>>,
    /// Guards the lists of children where others may touch them (N1).
    families: Mutex<()>,
    /// Whether requests made here are its owner's local requests at first.
    pub local_owner: LocalOwner,
    /// Memory of side blocks that were freed by this thread.
    pub sides: SideMemory,
    returns: Returns,
}

#[repr(align(128))]
struct Returns(AtomicPtr<Header>);

fn closed_mark() -> *mut Header {
    ptr::dangling_mut::<Header>()
}

/// Primes a cell that is being cut, so of a chunk of which nobody uses that part.
fn prime(cell: NonNull<u8>) {
    // SAFETY: a header is the least that a cell is for, and nobody uses it.
    unsafe { Header::prime(cell.cast()) };
}

impl Arena {
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
            uncut: [const { Cell::new(ptr::null_mut()) }; CLASSES],
            large: Cell::new(0),
            runtime: runtime.into_raw(),
            worker,
            direct: Counter::default(),
            owner_mailbox: OwnerMailbox::default(),
            families: Mutex::new(()),
            local_owner: LocalOwner::new(if worker == u32::MAX || is_driven { 0 } else { PATIENCE }),
            sides: SideMemory::default(),
            returns: Returns(AtomicPtr::new(ptr::null_mut())),
        }
    }

    /// Whether it belongs to no worker.
    #[inline(always)]
    pub(crate) fn is_foreign(&self) -> bool {
        self.worker == u32::MAX
    }

    /// Whether it may be without an owner that looks after it: a foreign thread's, or one of a worker that has gone.
    pub(crate) fn is_unattended(&self) -> bool {
        self.is_foreign() || self.owner_mailbox.is_abandoned()
    }

    /// The lock of its families, if others may touch them.
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

    /// Memory for a cell, [primed](Header::prime). By the owner.
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

    /// Sees to it that the free list of this class, which is not the large one, is not empty. By the owner.
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
                self.uncut[class].set(chunk.as_ptr());
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

    /// Puts what is uncut of the first chunk on the free list. False: nothing is. By the owner.
    fn cut_rest(&self, class: usize) -> bool {
        let Some(chunk) = NonNull::new(self.uncut[class].replace(ptr::null_mut())) else { return false };
        let list = &self.free[class].head;
        let rest = stock::cells_of_a_page(class)..stock::cells_of_a_chunk(class);
        // SAFETY: M1: it is ours, and so is the list; a chunk is more than a page.
        let batch = unsafe { stock::cut_before(chunk, class, rest, prime, list.get()) };
        list.set(batch.head);
        self.own(class, batch.len);
        true
    }

    /// Puts the cell of a header that nobody knows on the free list.
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

    /// The arena has got so many more cells of this class.
    fn own(&self, class: usize, cells: usize) {
        self.owned[class].set(self.owned[class].get() + cells);
    }

    fn disown(&self, class: usize, cells: usize) {
        self.owned[class].set(self.owned[class].get() - cells);
    }

    /// How many free cells of this class it has.
    fn spare(&self, class: usize) -> usize {
        self.owned[class].get() - self.free[class].live.get()
    }

    /// Whether no cell of the arena is in use. By the owner.
    fn is_done(&self) -> bool {
        self.large.get() == 0 && self.free.iter().all(|list| list.live.get() == 0)
    }

    /// Gives batches away if a list has grown long: as many cells as have just returned, and some more. What lies far down in the
    /// list is cold, and the owner has other things to do. By the owner.
    fn shed(&self, class: usize, came: usize) {
        if self.spare(class) < BATCH * LONG {
            return;
        }
        let most = came.div_ceil(BATCH) + SHED;
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

    /// Whether it has more free cells than is good if its owner has nothing to do.
    #[inline]
    pub(crate) fn has_spare_cells(&self) -> bool {
        self.runtime().depot.stock.is_large() && (0..CLASSES).any(|class| self.is_spare(class))
    }

    /// Whether it has more free cells of this class than is good.
    #[inline]
    pub(crate) fn has_spare_of(&self, class: u8) -> bool {
        usize::from(class) < CLASSES && self.is_spare(usize::from(class))
    }

    /// Twice as many for a foreign thread. A worker is asked once in a while, a foreign thread at each wait, and it is not to give what it
    /// takes at once again.
    fn is_spare(&self, class: usize) -> bool {
        self.spare(class) > if self.is_foreign() { 2 * KEPT } else { KEPT }
    }

    /// Gives away each list that is too long, in no more time however long it is. A worker gives the list whole. A foreign thread keeps the
    /// cells that it freed last. By the owner.
    #[cold]
    pub(crate) fn give_spare_cells(&self) {
        let kept = if self.is_foreign() { KEPT } else { 0 };
        (0..CLASSES).filter(|class| self.is_spare(*class)).for_each(|class| self.give_list(class, kept));
    }

    /// Gives away all that is free. By the owner.
    fn give_all(&self) {
        (0..CLASSES).filter(|class| self.spare(*class) > 0).for_each(|class| self.give_list(class, 0));
    }

    /// Gives away a list but for its first `kept` cells, of which it has more.
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

    /// Takes in what others have returned. By the owner.
    pub(crate) fn drain_returns(&self) {
        if self.returns.0.load(Ordering::Relaxed).is_null() {
            return;
        }
        let mut at = self.returns.0.swap(ptr::null_mut(), Ordering::AcqRel);
        let (mut last_class, mut came) = (0, 0);
        while let Some(header) = NonNull::new(at) {
            // SAFETY: M2: popped whole, so ours.
            unsafe {
                at = header.as_ref().next_return();
                last_class = header.as_ref().memory_class.get();
                end_on(self, header, None);
            }
            came += 1;
        }
        if usize::from(last_class) < CLASSES {
            self.shed(usize::from(last_class), came);
        }
    }

    /// Whether something is on its way here, or was sent and has not been taken in.
    #[inline]
    pub(crate) fn has_returns(&self) -> bool {
        !self.returns.0.load(Ordering::Relaxed).is_null()
    }

    /// Sends a header here; false if the arena is closed.
    fn send(&self, header: NonNull<Header>) -> bool {
        let mut seen = self.returns.0.load(Ordering::Relaxed);
        loop {
            if seen == closed_mark() {
                return false;
            }
            // SAFETY: M2: the header is the sender's alone.
            unsafe { header.as_ref() }.set_next_return(seen);
            match self.returns.0.compare_exchange_weak(
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

    /// Frees a header's memory and side block. By the owner, at the second stage.
    ///
    /// # Safety
    ///
    /// M1; nobody else knows the header.
    #[inline(always)]
    pub(crate) unsafe fn free(&self, header: NonNull<Header>) {
        // SAFETY: by contract.
        unsafe {
            drop_side(header);
            let class = header.as_ref().memory_class.get();
            // One comparison for both: what does not come from here, and an index that is in range.
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

/// Has the arena of this fiber, which has one, fill its free list of this class.
#[cold]
#[inline(never)]
pub(crate) fn fill_here(class: u8) {
    // SAFETY: M3; M1: the thread's own.
    if let Some(arena) = unsafe { fiber::current_arena().as_ref() } {
        arena.fill(class);
    }
}

/// Drops what few requests have: a name, a failure with somebody's error in it, whose destructor may do anything.
///
/// # Safety
///
/// Nobody else reads the side block or will: the caller has the header alone, and it has no children.
#[inline(always)]
unsafe fn drop_side(header: NonNull<Header>) {
    // SAFETY: the caller has the header alone; without children its list of children is empty.
    if let Some(side) = unsafe { header.as_ref().side.take() } {
        reclaim::free_side(side);
    }
}
