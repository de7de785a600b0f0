//! Homes: where headers are made, counted and freed.
//!
//! Every worker has a home, and every foreign thread that makes or runs requests of a runtime. Memory is taken from a
//! home's own free lists and comes back to them; homes exchange it in batches through the runtime's depot, so what one
//! worker freed is found by the next.
//!
//! # The end of a header
//!
//! Whoever brings both counts to 0 calls [`end`]. Children are counted plainly, on the home where their parent ran (H1),
//! so the end travels: first to `ran_on`, where it waits until the children are gone; then to `home`, where the parent
//! loses a child, which may be the parent's own end, and so on up the line: in a loop, never by recursion. To travel
//! means one push to the other home's list of returns, which is popped whole by its owner.
//!
//! # Closed homes
//!
//! A home whose thread is gone is lent to the next foreign thread. When the runtime is over its homes are *closed*: the
//! list of returns holds a mark, and who finds the mark does the work itself, under the one lock of all closed homes.
//! A home keeps the runtime's record alive while headers of it are about; the last one lets go.
//!
//! # Invariants
//!
//! * **M1** The plain fields of a home are touched by its owner: the thread it belongs to, or the holder of the lock of
//!   the closed homes once it is closed.
//! * **M2** A header is in one list of returns at most: it is pushed by whoever has it alone.
//! * **M3** `live` counts the headers of a home, by its owner; a closed home with none left lets the record go.

use forebear_context::shim::atomic::{AtomicPtr, Ordering};
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use forebear_context::shim::{Arc, Mutex};

use crate::header::{Header, Side};
use crate::shared::Shared;
use crate::strand;

/// Memory comes in steps of this many bytes.
const STEP: usize = 32;
/// Larger cells come from the system's allocator one by one.
const CLASSES: usize = 42;
/// The class of a cell that is too large, or too strictly aligned, for the free lists.
pub(crate) const LARGE: u8 = u8::MAX;
/// The class of a cell that belongs to no home: a ready value.
pub(crate) const HOMELESS: u8 = u8::MAX - 1;
const CHUNK: usize = 64 << 10;
/// How many cells go to and from the depot at a time.
const BATCH: u32 = 256;

/// A free cell: a link to the next.
struct Free {
    next: *mut Free,
}

struct FreeList {
    head: Cell<*mut Free>,
    len: Cell<u32>,
}

/// One thread's share of a runtime's memory. See the module head.
#[repr(align(128))]
pub(crate) struct Home {
    free: [FreeList; CLASSES],
    live: Cell<usize>,
    shared: *const Shared,
    /// The number of the worker it belongs to; `u32::MAX` for a foreign thread's.
    pub worker: u32,
    returns: Returns,
}

#[repr(align(128))]
struct Returns(AtomicPtr<Header>);

/// What homes of a runtime share: batches of free cells, and the chunks they were cut from.
#[derive(Default)]
pub(crate) struct Depot {
    state: Mutex<DepotState>,
    /// Held by whoever works for closed homes.
    closed: Mutex<()>,
}

#[derive(Default)]
struct DepotState {
    chunks: Vec<NonNull<u8>>,
    batches: Vec<(u8, *mut Free, u32)>,
    /// Homes whose thread is gone.
    spare: Vec<NonNull<Home>>,
    homes: Vec<NonNull<Home>>,
    /// The runtime is over: homes are closed, not spared.
    closing: bool,
}

// SAFETY: the pointers are to memory that belongs to the depot; cells and homes in it are touched by their one owner,
// and pass through the lock.
unsafe impl Send for DepotState {}

fn closed_mark() -> *mut Header {
    ptr::dangling_mut::<Header>()
}

/// The memory class of a cell of `layout`.
pub(crate) const fn class_of(layout: std::alloc::Layout) -> u8 {
    let class = layout.size().div_ceil(STEP);
    if class >= CLASSES || layout.align() > STEP { LARGE } else { class as u8 }
}

impl Home {
    fn new(shared: &Arc<Shared>, worker: u32) -> Home {
        Home {
            free: [const { FreeList { head: Cell::new(ptr::null_mut()), len: Cell::new(0) } }; CLASSES],
            live: Cell::new(0),
            shared: Arc::into_raw(shared.clone()),
            worker,
            returns: Returns(AtomicPtr::new(ptr::null_mut())),
        }
    }

    /// The runtime it is a part of. Valid while the home has an owner or headers (M3).
    #[inline(always)]
    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: M3.
        unsafe { &*self.shared }
    }

    /// Memory for a cell. By the owner.
    #[inline(always)]
    pub(crate) fn allocate(&self, class: u8, layout: std::alloc::Layout) -> NonNull<u8> {
        self.live.set(self.live.get() + 1);
        if class != LARGE {
            let list = &self.free[usize::from(class)];
            let head = list.head.get();
            if !head.is_null() {
                // SAFETY: M1: free cells are the owner's.
                list.head.set(unsafe { (*head).next });
                list.len.set(list.len.get().wrapping_sub(1));
                // SAFETY: not null.
                return unsafe { NonNull::new_unchecked(head.cast()) };
            }
        }
        self.allocate_slow(class, layout)
    }

    #[cold]
    #[inline(never)]
    fn allocate_slow(&self, class: u8, layout: std::alloc::Layout) -> NonNull<u8> {
        if class == LARGE {
            // SAFETY: a header makes the size more than zero.
            let memory = unsafe { std::alloc::alloc(layout) };
            return NonNull::new(memory).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        }
        self.drain_returns();
        let list = &self.free[usize::from(class)];
        if list.head.get().is_null() {
            self.refill(class);
        }
        let head = list.head.get();
        // SAFETY: M1; the list was filled.
        unsafe {
            list.head.set((*head).next);
            list.len.set(list.len.get() - 1);
            NonNull::new_unchecked(head.cast())
        }
    }

    fn refill(&self, class: u8) {
        let list = &self.free[usize::from(class)];
        let mut depot = self.shared().depot.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = depot.batches.iter().rposition(|batch| batch.0 == class) {
            let (_, head, len) = depot.batches.swap_remove(at);
            list.head.set(head);
            list.len.set(len);
            return;
        }
        let layout = chunk_layout();
        // SAFETY: not of size zero.
        let Some(chunk) = NonNull::new(unsafe { std::alloc::alloc(layout) }) else {
            std::alloc::handle_alloc_error(layout)
        };
        depot.chunks.push(chunk);
        drop(depot);
        let size = usize::from(class) * STEP;
        // Last cell first, so that they are handed out in address order.
        for index in (0..CHUNK / size).rev() {
            // SAFETY: inside the chunk.
            unsafe { self.push_free(class, chunk.as_ptr().add(index * size).cast()) };
        }
    }

    /// Puts a cell on the free list.
    ///
    /// # Safety
    ///
    /// M1; the cell is of this class and unused.
    #[inline(always)]
    unsafe fn push_free(&self, class: u8, cell: *mut Free) {
        let list = &self.free[usize::from(class)];
        // SAFETY: by contract.
        unsafe { (*cell).next = list.head.get() };
        list.head.set(cell);
        list.len.set(list.len.get().wrapping_add(1));
    }

    /// Gives batches to the depot if a list has grown long. By the owner, now and then.
    fn shed(&self, class: u8) {
        let list = &self.free[usize::from(class)];
        if list.len.get() < BATCH * 16 {
            return;
        }
        let mut depot = self.shared().depot.state.lock().unwrap_or_else(PoisonError::into_inner);
        while list.len.get() >= BATCH * 8 {
            let head = list.head.get();
            let mut last = head;
            for _ in 1..BATCH {
                // SAFETY: M1; the list is longer than this.
                last = unsafe { (*last).next };
            }
            // SAFETY: as above.
            unsafe {
                list.head.set((*last).next);
                (*last).next = ptr::null_mut();
            }
            list.len.set(list.len.get() - BATCH);
            depot.batches.push((class, head, BATCH));
        }
    }

    /// Takes in what others have sent home. By the owner.
    pub(crate) fn drain_returns(&self) {
        if self.returns.0.load(Ordering::Relaxed).is_null() {
            return;
        }
        let mut at = self.returns.0.swap(ptr::null_mut(), Ordering::AcqRel);
        let mut last_class = 0;
        while let Some(header) = NonNull::new(at) {
            // SAFETY: M2: popped whole, so ours.
            unsafe {
                at = header.as_ref().next.load(Ordering::Relaxed);
                last_class = header.as_ref().memory_class.get();
                end_on(self, header, false);
            }
        }
        if usize::from(last_class) < CLASSES {
            self.shed(last_class);
        }
    }

    /// Sends a header here; false if the home is closed.
    fn send(&self, header: NonNull<Header>) -> bool {
        let mut seen = self.returns.0.load(Ordering::Relaxed);
        loop {
            if seen == closed_mark() {
                return false;
            }
            // SAFETY: M2: the header is the sender's alone.
            unsafe { header.as_ref() }.next.store(seen, Ordering::Relaxed);
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
        self.live.set(self.live.get() - 1);
        // SAFETY: by contract.
        unsafe {
            drop_side(header);
            let class = header.as_ref().memory_class.get();
            if class == LARGE {
                let layout = header.as_ref().vtable.layout;
                std::alloc::dealloc(header.as_ptr().cast(), layout);
            } else {
                self.push_free(class, header.as_ptr().cast());
            }
        }
    }
}

#[inline(always)]
unsafe fn drop_side(header: NonNull<Header>) {
    // SAFETY: the caller has the header alone.
    let side: *mut Side = unsafe { header.as_ref() }.side.load(Ordering::Relaxed);
    if !side.is_null() {
        // SAFETY: made by `side_or_new`, freed once.
        drop(unsafe { Box::from_raw(side) });
    }
}

fn chunk_layout() -> std::alloc::Layout {
    const { assert!(CHUNK.is_multiple_of(STEP)) };
    match std::alloc::Layout::from_size_align(CHUNK, 64) {
        Ok(layout) => layout,
        Err(_) => unreachable!("a constant layout"),
    }
}

/// The end of a header whose counts are both 0, by whoever brought them there.
///
/// # Safety
///
/// W4: nobody else knows the header, but its children do.
pub(crate) unsafe fn end(header: NonNull<Header>) {
    // SAFETY: by contract.
    let (home, ran_on) =
        unsafe { (header.as_ref().home.get(), header.as_ref().ran_on.load(Ordering::Relaxed).cast_const()) };
    if home.is_null() {
        // SAFETY: a ready value has neither parent nor children.
        unsafe {
            drop_side(header);
            std::alloc::dealloc(header.as_ptr().cast(), header.as_ref().vtable.layout);
        }
        return;
    }
    let first = if ran_on.is_null() { home } else { ran_on };
    // SAFETY: homes live as long as their headers (M3), here and below.
    unsafe {
        if first == strand::current_home() {
            end_on(&*first, header, false);
        } else {
            travel(first, header);
        }
    }
}

/// The end of a header without children that was made and run on `here`, by its owner: both stages at once.
///
/// # Safety
///
/// M1; W4.
#[inline(always)]
pub(crate) unsafe fn end_child(here: &Home, header: NonNull<Header>) {
    // SAFETY: by contract; H1 for the parent.
    unsafe {
        let parent = header.as_ref().parent().map(NonNull::from);
        here.free(header);
        if let Some(parent) = parent {
            let left = parent.as_ref().children.get() - 1;
            parent.as_ref().children.set(left);
            if left == 0 && parent.as_ref().dead.get() {
                end_up(here, parent);
            }
        }
    }
}

#[cold]
#[inline(never)]
unsafe fn end_up(here: &Home, header: NonNull<Header>) {
    // SAFETY: by the caller.
    unsafe { end_on(here, header, false) };
}

/// A request about to start whose parent is over, forgotten, and without other children: takes its place, so that a line
/// of requests, each making the next and ending, needs no memory of its past.
///
/// Only if the parent was made on the home it ran on, else its own parent would be counted elsewhere (H1).
///
/// # Safety
///
/// M1 for the header's home, W8: nobody else can be looking at its lineage; its parent is dead.
#[cold]
pub(crate) unsafe fn take_place(header: NonNull<Header>) {
    // SAFETY: by contract; H1 for the parent.
    unsafe {
        let h = header.as_ref();
        let home = h.home.get();
        if let Some(parent) = h.parent()
            && parent.children.get() == 1
            && ptr::eq(parent.home.get(), home)
        {
            let parent = NonNull::from(parent);
            // The grandparent loses a child and gains one.
            h.lineage.take_place();
            (*home).free(parent);
        }
    }
}

/// Both stages as far as `here` can do them; `closed` if the lock of the closed homes is held, when all closed homes are
/// the caller's.
///
/// # Safety
///
/// M1 for `here`; the header is the caller's alone, its first stage is on `here` or done.
unsafe fn end_on(here: &Home, header: NonNull<Header>, closed: bool) {
    let mut header = header;
    let mut here = here;
    loop {
        // SAFETY: by contract, and for parents by H1.
        let h = unsafe { header.as_ref() };
        if h.children.get() > 0 {
            h.dead.set(true);
            return;
        }
        let home = h.home.get();
        if !ptr::eq(home, here) {
            // SAFETY: M3.
            unsafe {
                if closed && (*home).returns.0.load(Ordering::Relaxed) == closed_mark() {
                    here = &*home;
                } else if closed {
                    // An open home takes it, or it has been closed this moment: then the lock is ours already.
                    if (*home).send(header) {
                        return;
                    }
                    here = &*home;
                } else {
                    travel(home, header);
                    return;
                }
            }
        }
        let parent = h.parent().map(NonNull::from);
        // SAFETY: M1.
        unsafe { here.free(header) };
        let Some(parent) = parent else {
            release_if_done(here, closed);
            return;
        };
        // SAFETY: H1: the parent ran here, where its children are made.
        let p = unsafe { parent.as_ref() };
        p.children.set(p.children.get() - 1);
        if p.children.get() > 0 || !p.dead.get() {
            release_if_done(here, closed);
            return;
        }
        release_if_done(here, closed);
        header = parent;
    }
}

/// Sends the header to `to`, or does its work if that home is closed.
///
/// # Safety
///
/// As [`end_on`], for `to`.
unsafe fn travel(to: *const Home, header: NonNull<Header>) {
    // SAFETY: M3: the header keeps its homes' record alive, until it is pushed; after that it is not touched.
    unsafe {
        if (*to).send(header) {
            return;
        }
        // Closed: the lock makes us the owner of all closed homes. The record must outlive the lock.
        let shared = Arc::clone(&*std::mem::ManuallyDrop::new(Arc::from_raw((*to).shared)));
        let guard = shared.depot.closed.lock().unwrap_or_else(PoisonError::into_inner);
        end_on(&*to, header, true);
        drop(guard);
    }
}

fn release_if_done(home: &Home, closed: bool) {
    if closed && home.live.get() == 0 {
        // SAFETY: M3: the count taken in `Home::new`, given back once: `live` of a closed home only falls. The caller
        // holds a count of its own.
        unsafe { drop(Arc::from_raw(home.shared)) };
    }
}

impl Depot {
    /// A home for a foreign thread: a spare one, or a new one.
    pub(crate) fn open(&self, shared: &Arc<Shared>) -> NonNull<Home> {
        let spare = self.state.lock().unwrap_or_else(PoisonError::into_inner).spare.pop();
        spare.unwrap_or_else(|| self.open_for(shared, u32::MAX))
    }

    /// The home of worker number `worker`.
    pub(crate) fn open_for(&self, shared: &Arc<Shared>, worker: u32) -> NonNull<Home> {
        let home = NonNull::from(Box::leak(Box::new(Home::new(shared, worker))));
        self.state.lock().unwrap_or_else(PoisonError::into_inner).homes.push(home);
        home
    }

    /// A foreign thread ends: its home is kept for the next, unless the runtime is over.
    ///
    /// # Safety
    ///
    /// The caller is the owner, and is not any more afterwards; it holds a count of the record.
    pub(crate) unsafe fn leave(&self, home: NonNull<Home>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closing {
            drop(state);
            // SAFETY: by contract.
            unsafe { self.close(home) };
        } else {
            state.spare.push(home);
        }
    }

    /// The runtime is over: closes the spare homes, and from now on every home that is left.
    pub(crate) fn close_spare(&self) {
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.closing = true;
            let spare = state.spare.pop();
            drop(state);
            match spare {
                // SAFETY: a spare home has no owner but the lock it was popped under.
                Some(home) => unsafe { self.close(home) },
                None => return,
            }
        }
    }

    /// Whether the runtime is over and its threads are gone.
    pub(crate) fn is_closing(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closing
    }

    /// Closes a home: from now on the end of its headers is worked by whoever brings it.
    ///
    /// # Safety
    ///
    /// The caller is the owner, and holds a count of the runtime's record.
    pub(crate) unsafe fn close(&self, home: NonNull<Home>) {
        let guard = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: by contract.
        let home = unsafe { home.as_ref() };
        // One header more, so that the home cannot be done while its returns are being worked.
        home.live.set(home.live.get() + 1);
        let mut at = home.returns.0.swap(closed_mark(), Ordering::AcqRel);
        while let Some(header) = NonNull::new(at) {
            // SAFETY: M2; M1 by the lock.
            unsafe {
                at = header.as_ref().next.load(Ordering::Relaxed);
                end_on(home, header, true);
            }
        }
        home.live.set(home.live.get() - 1);
        release_if_done(home, true);
        drop(guard);
    }
}

impl Drop for Depot {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for home in state.homes.drain(..) {
            // SAFETY: made by `open`; the record goes only when every home has let go of it.
            drop(unsafe { Box::from_raw(home.as_ptr()) });
        }
        for chunk in state.chunks.drain(..) {
            // SAFETY: allocated with this layout; all cells are free.
            unsafe { std::alloc::dealloc(chunk.as_ptr(), chunk_layout()) };
        }
    }
}
