//! The stock: memory for cells that is in no arena, and how it returns to the system.
//!
//! Cells of one class are cut from a *chunk*, and chunks from *pieces*. Pieces come from the allocator and stay until the runtime
//! is over. The first piece has one chunk, and each other one is as large as all before it, up to a bound. Arenas give free cells to the stock in
//! *batches*, which are lists of any length. An arena without a free cell of a class takes some of the latest batch, or else a chunk.
//!
//! # How a chunk returns
//!
//! The cells of a batch are from many chunks, in the order in which requests happened to end. To find the chunks that are wholly free, a
//! thread has to read each cell. There may be millions, so an idle worker does it (`schedule/worker/quiet.rs`), [`AT_ONCE`] cells at a time, and only
//! with cells that were not needed for a while. A *look* marks how many batches there are. Those of them that are still there at the next look, [`LOOK`]
//! later, are *gathered*: each cell is entered in its chunk's map. The memory of a chunk with a full map returns to the system, and its addresses to the
//! free chunks. From a chunk with a map that is not full, cells are taken before another chunk is cut, the lowest address first and in the
//! order of their addresses. So memory that was used in another order is in order again after a rest.
//!
//! One cell in a batch or in an arena's list keeps its chunk. So all marked cells are gathered, and an idle worker gives away its own, all but
//! a few ([`super::KEPT`]). Only a runtime with few chunks in all keeps them ([`FEW`]): no worker wakes for those.
//!
//! # Which worker wakes
//!
//! Workers that have looked wake by themselves until no cells are left. A thread that is no worker, and gives cells to the stock, wakes a worker only if
//! none does so ([`TrimWatch`]).
//!
//! # Readers of cells
//!
//! A thread that names laggards reads requests that may end meanwhile, and relies on their cells keeping their class. A cell changes its class only
//! after its whole chunk was gathered, and no cell is gathered while there are readers (GV1, [`crate::record::readers`]). A reader that begins
//! afterwards finds no request whose cell was free before.
//!
//! # Invariants
//!
//! * **ST1** A chunk is in one place: among the free ones, cut for one class, or with the thread that returns its memory.
//! * **ST2** A free cell of a chunk that is cut is in one place: in an arena's list, in a batch, or in its chunk's map. The lock guards batches
//!   and maps.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use forebear_context::shim::atomic::{AtomicUsize, Ordering};
use forebear_context::shim::{Mutex, MutexGuard};

use super::cells::{CLASSES, Free, STEP};
use super::poison;
use crate::record::readers;
use crate::state::trim_watch::TrimWatch;

/// The size and alignment of a chunk: a cell's address says which chunk it is from.
pub(super) const CHUNK: usize = 64 << 10;
/// The part of its first chunk that a thread with few requests uses.
const PAGE: usize = 4 << 10;
/// Chunks of the largest piece.
const LARGEST: usize = 256;
/// Cells that were not needed for so long are not needed soon.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// So many chunks may stay cut for good: a mebibyte.
const FEW: usize = 16;
/// Cells that are gathered at a time: a tenth of a millisecond.
const AT_ONCE: usize = 1024;
/// Cells that arenas give and get at a time, except for a list that is given whole. If an arena got all of a long list, a thread that makes one
/// request now and then would keep the cells of a burst.
pub(super) const BATCH: usize = 256;

/// A list of free cells of one class.
pub(super) struct Batch {
    pub head: *mut Free,
    pub len: usize,
}

/// What an arena without free cells gets.
pub(super) enum Found {
    /// Free cells.
    Batch(Batch),
    /// A chunk that is not cut.
    Chunk(NonNull<u8>),
}

/// See the module head.
pub(crate) struct Stock {
    state: Mutex<StockState>,
    /// Cells in batches.
    lying: AtomicUsize,
    /// Chunks that are not free.
    in_use: AtomicUsize,
    watch: TrimWatch,
}

struct StockState {
    pieces: Vec<(NonNull<u8>, Layout)>,
    /// Chunks of all pieces.
    chunks: usize,
    /// The free chunks, the next one last.
    free: Vec<NonNull<u8>>,
    /// By class, up to the largest that was given back: few programs need more than some, and the runtime's record is built on the stack.
    classes: Vec<OfClass>,
    /// When batches were marked last.
    looked: Option<Instant>,
}

/// The cells of one class.
#[derive(Default)]
struct OfClass {
    batches: Vec<Batch>,
    /// So many of the first batches have been here since the last look.
    unwanted: usize,
    /// Chunks some of whose cells were gathered, by address.
    gathered: BTreeMap<usize, Map>,
}

// SAFETY: the pointers are to memory that belongs to the stock; cells in it are touched by the arena that has taken them from here.
unsafe impl Send for StockState {}

/// The gathered cells of a chunk.
struct Map {
    chunk: NonNull<u8>,
    bits: Box<[u64]>,
    count: usize,
}

/// How many cells of a class lie in the first page of a chunk.
pub(super) const fn cells_of_a_page(class: usize) -> usize {
    const { assert!(CLASSES * STEP < PAGE) };
    PAGE / (class * STEP)
}

/// How many cells of a class a chunk has.
pub(super) const fn cells_of_a_chunk(class: usize) -> usize {
    CHUNK / (class * STEP)
}

impl Map {
    fn new(chunk: NonNull<u8>, class: usize) -> Map {
        Map { chunk, bits: vec![0; cells_of_a_chunk(class).div_ceil(64)].into(), count: 0 }
    }

    fn enter(&mut self, cell: usize) {
        let (word, bit) = (cell / 64, 1 << (cell % 64));
        debug_assert!(self.bits[word] & bit == 0, "a cell that is free twice");
        self.bits[word] |= bit;
        self.count += 1;
    }

    /// The numbers of its cells, last first.
    fn backwards(&self) -> impl Iterator<Item = usize> {
        let all = (0..64 * self.bits.len()).rev();
        all.filter(|cell| self.bits[cell / 64] >> (cell % 64) & 1 == 1)
    }
}

impl Default for Stock {
    fn default() -> Stock {
        let state =
            StockState { pieces: Vec::new(), chunks: 0, free: Vec::new(), classes: Vec::new(), looked: None };
        Stock {
            state: Mutex::new(state),
            lying: AtomicUsize::new(0),
            in_use: AtomicUsize::new(0),
            watch: TrimWatch::default(),
        }
    }
}

impl Stock {
    fn lock(&self) -> MutexGuard<'_, StockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cells of this class, or a chunk for them.
    pub(super) fn take(&self, class: usize) -> Found {
        let mut state = self.lock();
        if let Some(here) = state.classes.get_mut(class) {
            if let Some(batch) = here.take_last() {
                self.lying.fetch_sub(batch.len, Ordering::Relaxed);
                return Found::Batch(batch);
            }
            if let Some(batch) = here.take_gathered(class) {
                return Found::Batch(batch);
            }
        }
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Found::Chunk(state.take_chunk())
    }

    /// Takes batches of free cells over.
    pub(super) fn give(&self, class: usize, batches: impl IntoIterator<Item = Batch>) {
        let mut state = self.lock();
        if state.classes.len() <= class {
            state.classes.resize_with(class + 1, OfClass::default);
        }
        let here = &mut state.classes[class].batches;
        let from = here.len();
        here.extend(batches);
        let added: usize = here[from..].iter().map(|batch| batch.len).sum();
        self.lying.fetch_add(added, Ordering::Relaxed);
    }

    /// Whether there are enough chunks for looks, and for arenas to give their free cells.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.in_use.load(Ordering::Relaxed) > FEW
    }

    /// Whether there are cells for a look. Called by a worker, which sleeps without a limit if there are none.
    #[inline]
    pub(crate) fn is_to_be_inspected(&self) -> bool {
        self.has_unsorted() || self.watch.end(|| self.has_unsorted())
    }

    fn has_unsorted(&self) -> bool {
        self.is_large() && self.lying.load(Ordering::Relaxed) > 0
    }

    /// Whether to wake a worker, since there are cells and no worker would look. Called by the thread that has given them.
    pub(super) fn wants_a_watcher(&self) -> bool {
        self.has_unsorted() && self.watch.needs_worker()
    }

    /// Marks the batches, or gathers some of those that have been here since the last look. Returns after how long the worker should call
    /// this again, if there still are cells.
    pub(crate) fn inspect(&self, now: Instant) -> Duration {
        self.watch.begin();
        let mut state = self.lock();
        if let Some(last) = state.looked {
            let left = LOOK.saturating_sub(now - last);
            if !left.is_zero() {
                return left;
            }
        }
        // GV1.
        if readers::has_readers() {
            return LOOK;
        }
        let Some((cells, full)) = state.gather() else {
            state.looked = Some(now);
            state.classes.iter_mut().for_each(|class| class.unwanted = class.batches.len());
            return LOOK;
        };
        self.lying.fetch_sub(cells, Ordering::Relaxed);
        drop(state);
        for chunk in &full {
            // SAFETY: ST1: the chunk is ours, and nothing in it is needed. If the system refuses, its memory stays.
            unsafe { libc::madvise(chunk.as_ptr().cast(), CHUNK, libc::MADV_DONTNEED) };
        }
        if !full.is_empty() {
            let mut state = self.lock();
            self.in_use.fetch_sub(full.len(), Ordering::Relaxed);
            state.free.extend(full);
        }
        // If the worker finds no cells at the next call, it announces that it no longer watches.
        Duration::ZERO
    }

    /// Locks the stock.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.lock()
    }

    /// How many chunks are not free.
    #[cfg(test)]
    pub(super) fn chunks(&self) -> usize {
        let state = self.lock();
        let in_use = state.chunks - state.free.len();
        assert_eq!(in_use, self.in_use.load(Ordering::Relaxed));
        in_use
    }

    #[cfg(test)]
    pub(super) fn pieces(&self) -> usize {
        self.lock().pieces.len()
    }

    /// The layout of each piece, and where it begins.
    #[cfg(test)]
    pub(super) fn layouts(&self) -> Vec<(Layout, usize)> {
        self.lock().pieces.iter().map(|(at, layout)| (*layout, at.addr().get())).collect()
    }

    /// How many batches are to be gathered.
    #[cfg(test)]
    pub(super) fn unwanted(&self) -> usize {
        self.lock().classes.iter().map(|class| class.unwanted).sum()
    }

    /// How many batches there are.
    #[cfg(test)]
    pub(super) fn batches(&self) -> usize {
        self.lock().classes.iter().map(|class| class.batches.len()).sum()
    }
}

impl StockState {
    fn take_chunk(&mut self) -> NonNull<u8> {
        if let Some(chunk) = self.free.pop() {
            return chunk;
        }
        let chunks = self.chunks.clamp(1, LARGEST);
        let layout = layout_of(chunks);
        // SAFETY: not of size zero.
        let Some(piece) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        self.pieces.push((piece, layout));
        self.chunks += chunks;
        // SAFETY: a piece has room for one chunk more than it is cut into.
        let first = unsafe { piece.add(piece.as_ptr().align_offset(CHUNK)) };
        // SAFETY: inside the piece.
        self.free.extend((1..chunks).rev().map(|n| unsafe { first.add(n * CHUNK) }));
        first
    }

    /// Enters some of the marked cells in the maps of their chunks. Returns how many, and the chunks that are wholly free, which
    /// belong to the caller then. `None`: there are no such cells.
    fn gather(&mut self) -> Option<(usize, Vec<NonNull<u8>>)> {
        let class = self.classes.iter().position(|class| class.unwanted > 0)?;
        let here = &mut self.classes[class];
        let mut full = Vec::new();
        let mut left = AT_ONCE;
        while left > 0 && here.unwanted > 0 {
            let batch = &mut here.batches[here.unwanted - 1];
            let some = batch.len.min(left);
            for _ in 0..some {
                let cell = batch.head;
                // SAFETY: ST2: the list is the stock's, and as long as this.
                batch.head = unsafe { (*cell).next };
                let (begin, within) = (cell.addr() & !(CHUNK - 1), cell.addr() & (CHUNK - 1));
                let map = here.gathered.entry(begin).or_insert_with(|| {
                    // SAFETY: the chunk that the cell was cut from begins so far below it.
                    let chunk = unsafe { NonNull::new_unchecked(cell.cast::<u8>().sub(within)) };
                    Map::new(chunk, class)
                });
                map.enter(within / (class * STEP));
                if map.count == cells_of_a_chunk(class) {
                    full.push(map.chunk);
                    here.gathered.remove(&begin);
                }
            }
            batch.len -= some;
            left -= some;
            if batch.len == 0 {
                // The last batch, which may be recent, takes its place behind the marked ones.
                here.unwanted -= 1;
                here.batches.swap_remove(here.unwanted);
            }
        }
        if here.batches.is_empty() {
            // Many batches once are no reason to keep the memory of the list.
            here.batches = Vec::new();
        }
        Some((AT_ONCE - left, full))
    }
}

impl OfClass {
    /// The first cells of the latest batch. The remaining ones keep their age.
    fn take_last(&mut self) -> Option<Batch> {
        let last = self.batches.last_mut()?;
        if last.len <= BATCH {
            let batch = self.batches.pop();
            self.unwanted = self.unwanted.min(self.batches.len());
            return batch;
        }
        let head = last.head;
        // SAFETY: ST2: the list is the stock's, and longer than this.
        last.head = unsafe { cut_off(head, BATCH) };
        last.len -= BATCH;
        Some(Batch { head, len: BATCH })
    }

    /// Cells of chunks that are not wholly free, in the order of their addresses.
    fn take_gathered(&mut self, class: usize) -> Option<Batch> {
        let mut maps = Vec::new();
        let mut len = 0;
        while len < BATCH
            && let Some((_, map)) = self.gathered.pop_first()
        {
            len += map.count;
            maps.push(map);
        }
        let mut head: *mut Free = ptr::null_mut();
        for map in maps.iter().rev() {
            for cell in map.backwards() {
                // SAFETY: inside the chunk. ST2: free, and in no other place.
                unsafe {
                    let at = map.chunk.add(cell * class * STEP).as_ptr().cast::<Free>();
                    (*at).next = head;
                    head = at;
                }
            }
        }
        (len > 0).then_some(Batch { head, len })
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (piece, layout) in state.pieces.drain(..) {
            // SAFETY: allocated with this layout; who drops the stock knows that all cells are free.
            unsafe { dealloc(piece.as_ptr(), layout) };
        }
    }
}

/// Ends a list after so many cells, and returns where the rest begins.
///
/// # Safety
///
/// The list is the caller's, and as long as this, which is not zero.
pub(super) unsafe fn cut_off(head: *mut Free, cells: usize) -> *mut Free {
    let mut last = head;
    for _ in 1..cells {
        // SAFETY: by contract.
        last = unsafe { (*last).next };
    }
    // SAFETY: by contract: the list is the caller's, and has at least `cells` cells, so `last` is one of them.
    unsafe { ptr::replace(&raw mut (*last).next, ptr::null_mut()) }
}

/// Cuts these cells from a chunk, each primed by `prime`, in a list by address.
///
/// # Safety
///
/// The chunk is the caller's, and so many cells fit in.
pub(super) unsafe fn cut(
    chunk: NonNull<u8>,
    class: usize,
    cells: Range<usize>,
    prime: impl Fn(NonNull<u8>),
) -> Batch {
    // The chunk may have been cut before.
    poison::take(chunk.as_ptr(), CHUNK);
    // SAFETY: by contract.
    unsafe { cut_before(chunk, class, cells, prime, ptr::null_mut()) }
}

/// The same, before the list that begins with `head`, which is not counted. The chunk has been cut in part.
///
/// # Safety
///
/// As [`cut`], and these cells have not been cut.
pub(super) unsafe fn cut_before(
    chunk: NonNull<u8>,
    class: usize,
    cells: Range<usize>,
    prime: impl Fn(NonNull<u8>),
    head: *mut Free,
) -> Batch {
    let (mut head, len) = (head, cells.len());
    for index in cells.rev() {
        // SAFETY: inside the chunk; a header is the least that a cell is for.
        unsafe {
            let cell = chunk.add(index * class * STEP);
            prime(cell);
            let cell = cell.as_ptr().cast::<Free>();
            (*cell).next = head;
            head = cell;
        }
    }
    Batch { head, len }
}

/// A piece that so many chunks are cut from. It is not aligned as a chunk is, and is larger by one instead: an allocator that is asked for such an
/// alignment gets as much from the system, and writes into one page more to keep its records.
fn layout_of(chunks: usize) -> Layout {
    const { assert!(CHUNK.is_multiple_of(STEP) && CHUNK.is_power_of_two()) };
    match Layout::from_size_align((chunks + 1) * CHUNK, STEP) {
        Ok(layout) => layout,
        Err(_) => unreachable!("no more than a bound"),
    }
}
