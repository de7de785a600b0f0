//! The stock: memory for cells that no arena has, and how it goes back to the system.
//!
//! Cells of one class are cut from a *chunk*; chunks from *pieces*, which come from the allocator and stay until the runtime
//! is over: the first is of one chunk, each other one as large as all before it, up to a bound. Arenas give free cells away in *batches*,
//! lists of any length. An arena without a cell of a class takes some of the batch that came last, or else a chunk.
//!
//! # How a chunk goes back
//!
//! The cells of a batch are of many chunks, in the order in which requests happened to end. To find out which chunks are wholly free
//! each cell has to be looked at, and a crowd's are millions, so it is done by a worker that has nothing to do
//! (`schedule/worker/quiet.rs`), in pieces ([`AT_ONCE`]), and only with what nobody has wanted for a while: a *look* marks how many batches there
//! are, and those of them that are still there at the next one, [`LOOK`] later, are *gathered*: each cell is entered in its chunk's map. A chunk whose
//! map is full goes: its memory back to the system, its addresses to the free chunks. One that is not full is
//! taken from before a chunk is cut, lowest address first, and its cells come in the order of their addresses, as if it were new.
//! So memory that was used in another order than it lies in is in order again after a rest.
//!
//! One cell that lies in a batch or in an arena's list keeps its chunk. So all that is marked is gathered, and an idle worker gives what it
//! has, all but a few cells ([`super::KEPT`]). Only a runtime that has few chunks in all keeps them ([`FEW`]): nobody is to wake for those.
//!
//! # Who wakes
//!
//! Workers that have looked wake by themselves until nothing is left; a thread that is no worker and gives something wakes one only if none
//! does ([`TrimWatch`]).
//!
//! # Who may still look
//!
//! A thread that names laggards reads requests that may end meanwhile, and relies on their cells keeping their class. A cell is another class's only
//! when its whole chunk was gathered, and nothing is gathered while anybody looks (GV1, [`crate::record::reclaim`]). A look that begins afterwards
//! finds no request whose cell was free before.
//!
//! # Invariants
//!
//! * **ST1** A chunk is in one place: among the free ones, cut for one class, or with who gives its memory back.
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

/// What cells are cut from; aligned to its size, so that a cell's address says which it is of.
pub(super) const CHUNK: usize = 64 << 10;
/// What a thread that makes few requests touches of its first chunk.
const PAGE: usize = 4 << 10;
/// Chunks of the largest piece.
const LARGEST: usize = 256;
/// What nobody has wanted for so long is not wanted soon.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// So many chunks may stay cut for good: a mebibyte.
const FEW: usize = 16;
/// Cells that are gathered at a time: a tenth of a millisecond.
const AT_ONCE: usize = 1024;
/// Cells that arenas give and get at a time, but for a list that is given whole. If an arena got all of it, a thread that makes one request now and
/// then would keep what a burst has left.
pub(super) const BATCH: usize = 256;

/// A list of free cells of one class.
pub(super) struct Batch {
    pub head: *mut Free,
    pub len: usize,
}

/// What an arena gets that has no cell left.
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
    /// Chunks that are not cut, the next one last.
    free: Vec<NonNull<u8>>,
    classes: [OfClass; CLASSES],
    /// When it was last marked what lies here.
    looked: Option<Instant>,
}

/// What there is of one class.
#[derive(Default)]
struct OfClass {
    batches: Vec<Batch>,
    /// So many of the first have lain here since the last look.
    unwanted: usize,
    /// Chunks some of whose cells were gathered, by address.
    gathered: BTreeMap<usize, Map>,
}

// SAFETY: the pointers are to memory that belongs to the stock; cells in it are touched by the arena that has taken them from here.
unsafe impl Send for StockState {}

/// Which cells of a chunk are here.
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
        let state = StockState {
            pieces: Vec::new(),
            chunks: 0,
            free: Vec::new(),
            classes: [const { OfClass { batches: Vec::new(), unwanted: 0, gathered: BTreeMap::new() } };
                CLASSES],
            looked: None,
        };
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
        let here = &mut state.classes[class];
        if let Some(batch) = here.take_last() {
            self.lying.fetch_sub(batch.len, Ordering::Relaxed);
            return Found::Batch(batch);
        }
        if let Some(batch) = here.take_gathered(class) {
            return Found::Batch(batch);
        }
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Found::Chunk(state.take_chunk())
    }

    /// Takes over cells that nobody uses.
    pub(super) fn give(&self, class: usize, batches: impl IntoIterator<Item = Batch>) {
        let mut state = self.lock();
        let here = &mut state.classes[class].batches;
        let from = here.len();
        here.extend(batches);
        let added: usize = here[from..].iter().map(|batch| batch.len).sum();
        self.lying.fetch_add(added, Ordering::Relaxed);
    }

    /// Whether it is of use to look what lies here, and to give what lies elsewhere.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.in_use.load(Ordering::Relaxed) > FEW
    }

    /// Whether something lies here that is to be looked at. By a worker that sleeps for as long as it likes if not.
    #[inline]
    pub(crate) fn is_to_be_looked_at(&self) -> bool {
        self.has_unsorted() || self.watch.ends(|| self.has_unsorted())
    }

    fn has_unsorted(&self) -> bool {
        self.is_large() && self.lying.load(Ordering::Relaxed) > 0
    }

    /// Whether a worker is to be woken, since something lies here and nobody would look. By the thread that has given it.
    pub(super) fn wants_a_watcher(&self) -> bool {
        self.has_unsorted() && self.watch.wants_one()
    }

    /// Looks what has not been wanted since the last look, or gathers some of that. Answers after how long somebody is to ask again whether
    /// there is something to look at.
    pub(crate) fn look(&self, now: Instant) -> Duration {
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
        // A worker that finds nothing then announces that it no longer watches.
        Duration::ZERO
    }

    /// Keeps everybody else from it.
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

    /// How many batches are to be gathered.
    #[cfg(test)]
    pub(super) fn unwanted(&self) -> usize {
        self.lock().classes.iter().map(|class| class.unwanted).sum()
    }

    /// How many batches lie here.
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
        // SAFETY: inside the piece.
        self.free.extend((1..chunks).rev().map(|n| unsafe { piece.add(n * CHUNK) }));
        piece
    }

    /// Enters some of the cells that nobody has wanted in the maps of their chunks. Answers how many, and the chunks that are wholly free,
    /// which are the caller's then. `None`: there are no such cells.
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
                // The last, which may not have lain here for long, takes its place behind those that have.
                here.unwanted -= 1;
                here.batches.swap_remove(here.unwanted);
            }
        }
        if here.batches.is_empty() {
            // A crowd once is no reason to keep room for it.
            here.batches = Vec::new();
        }
        Some((AT_ONCE - left, full))
    }
}

impl OfClass {
    /// The first cells of the batch that came last. What is left of it has lain here as long as before.
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

/// Ends a list after so many cells, and answers where the rest begins.
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

/// Cuts these of a chunk's cells, each primed by `prime`, in a list by address.
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
    // Perhaps it was cut before.
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

fn layout_of(chunks: usize) -> Layout {
    const { assert!(CHUNK.is_multiple_of(STEP) && CHUNK.is_power_of_two()) };
    match Layout::from_size_align(chunks * CHUNK, CHUNK) {
        Ok(layout) => layout,
        Err(_) => unreachable!("no more than a bound"),
    }
}
