//! The slab: one growing reservation per class, cut into guarded slots.
//!
//! A slot is mapped once and kept; its guard is installed once and never removed. With `MADV_GUARD_INSTALL` (Linux
//! 6.13) a guard does not split the mapping, so a million guarded stacks take a few dozen mappings. Elsewhere guards
//! are made by `mprotect`, which costs two mappings each, and the number is capped below the kernel's limit.
//!
//! # Trimming
//!
//! A free slot is **warm** as long as its memory is mapped in; warm slots are handed out first. To *trim* a slot is to
//! return that memory to the system, which makes the slot **bare**. That costs a system call for each run of
//! neighbours. Each call interrupts all processors that the process runs on, for microseconds. So an idle worker trims,
//! after a quiet period (`schedule/worker/quiet.rs`): by then most stacks that end together have ended, and most of
//! their neighbours. It sorts the slots first, so that there are runs. It trims in steps of one or two hundred
//! microseconds, so that new work does not wait for a million slots. No slot is trimmed twice unless it was handed out
//! in between. A few slots stay warm, unless slots were returned that had long been unused
//! ([`Slab::let_none_stay_warm`]).
//!
//! # Invariants
//!
//! * **S1** A slot is in exactly one place: handed out, in one of the lists of its pool, or with who trims it. The lock of the
//!   pool guards its lists and its growth.
//! * **S2** A slot's memory is readable and writable above its guard from the first time it is handed out until the
//!   slab is dropped. Its owner drops it only when no stack is in use any more.
//! * **S3** A slot that is handed out beyond the limit says so ([`StackSlot::is_beyond`]), and is counted apart.

use std::sync::{OnceLock, PoisonError};
use std::{fmt, io};

use forebear_context::shim::Mutex;

use forebear_context::error::StackError;
use forebear_context::shim::atomic::AtomicUsize;
use forebear_context::shim::atomic::Ordering::{Acquire, Relaxed, Release};

use self::warm::Warm;
use super::{Class, GUARD, SLOTS};

/// `MADV_GUARD_INSTALL`, which libc does not name everywhere yet.
const GUARD_INSTALL: libc::c_int = 102;
/// Guards made by `mprotect` stop short of `vm.max_map_count` (65,530 by default), two mappings each.
const PROTECTED_LIMIT: usize = 30_000;
const FIRST_CHUNK: usize = 16 << 20;
const LARGEST_CHUNK: usize = 1 << 30;
/// So many slots are trimmed in a piece, at most.
const PIECE: usize = 1_024;

/// One slot, handed out: where it begins, with its class and its colour in the bits that an address of a page has not. A million of them are
/// given back at once, and what a list of them takes is new memory then.
pub(crate) struct StackSlot(usize);

/// What an address of a page leaves.
const IN_PAGE: usize = 0xfff;
const COLOUR_SHIFT: u32 = 8;
/// S3.
const BEYOND: usize = 1 << 11;
const _: () = assert!(SLOTS.len() <= 1 << COLOUR_SHIFT && (super::COLOURS << COLOUR_SHIFT) <= BEYOND);

impl StackSlot {
    /// The slot that begins at `low` and was cut as the `number`th of its class.
    fn new(low: usize, class: Class, number: usize) -> StackSlot {
        debug_assert_eq!(low & IN_PAGE, 0, "slots begin with a page");
        let colour = (number + 1) % super::COLOURS;
        StackSlot(low | colour << COLOUR_SHIFT | usize::from(class))
    }

    /// The lowest address, of the guard.
    fn low(&self) -> usize {
        self.0 & !IN_PAGE
    }

    /// The class it belongs to.
    pub(crate) fn class(&self) -> Class {
        self.0 as u8
    }

    /// Whether it was handed out beyond the limit (S3).
    pub(crate) fn is_beyond(&self) -> bool {
        self.0 & BEYOND != 0
    }

    /// The lowest usable address, above the guard.
    pub(crate) fn limit(&self) -> usize {
        self.low() + GUARD
    }

    /// One past the highest address to use: the slot's end less its colour.
    pub(crate) fn top(&self) -> usize {
        let colour = (self.0 & IN_PAGE & !BEYOND) >> COLOUR_SHIFT;
        self.low() + SLOTS[usize::from(self.class())] - colour * super::COLOUR_STEP
    }
}

impl fmt::Debug for StackSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackSlot")
            .field("limit", &self.limit())
            .field("top", &self.top())
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Chunk {
    at: usize,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Pool {
    chunks: Vec<Chunk>,
    /// Never handed out yet: the rest of the newest chunk.
    fresh: std::ops::Range<usize>,
    /// The fresh slot whose guard has been installed, if there is one.
    guarded: Option<usize>,
    /// Handed out before, guard in place, and warm: the last that was given back is handed out first.
    free: Vec<StackSlot>,
    /// The same, by their addresses; to be trimmed from the end.
    sorted: Vec<StackSlot>,
    /// Bare. The lowest last, as good as always, so that it is handed out first.
    bare: Vec<StackSlot>,
    next_chunk: usize,
    /// How many slots have been cut.
    cut: usize,
}

/// A chunk, for a look without a lock.
#[derive(Debug)]
struct Piece {
    at: usize,
    bytes: usize,
    class: Class,
    /// How many slots of its class lie in earlier chunks.
    before: usize,
}

impl Piece {
    #[inline]
    fn top_around(&self, address: usize) -> Option<usize> {
        let offset = address.checked_sub(self.at).filter(|offset| *offset < self.bytes)?;
        // Powers of two; a division would cost more than all else here.
        let bits = SLOTS[usize::from(self.class)].trailing_zeros();
        let (number, low) = (offset >> bits, self.at + (offset >> bits << bits));
        Some(StackSlot::new(low, self.class, self.before + number).top())
    }
}

/// So many chunks are found without a lock.
const PIECES: usize = 16;

/// How guards are made on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guarding {
    Install,
    Protect,
}

/// All stacks of one runtime.
#[derive(Debug)]
pub(crate) struct Slab {
    pools: [Mutex<Pool>; SLOTS.len()],
    /// The first chunks, in order of their coming, so many as `shown` says.
    pieces: [OnceLock<Piece>; PIECES],
    shown: AtomicUsize,
    /// Held while a thread publishes one more.
    showing: Mutex<()>,
    /// Slots handed out, all classes together.
    live: AtomicUsize,
    /// Those beyond the limit (S3).
    beyond: AtomicUsize,
    /// Slots that lie free and are warm.
    warm: Warm,
    limit: usize,
    guarding: Guarding,
}

impl Slab {
    /// A slab that hands out at most `limit` stacks at once. Maps a chunk for stacks of class `first`, none of whose pages has memory yet: the
    /// guard of its first slot shows how guards are made on this machine. If the system gives no chunk, a later [`take`](Self::take) says so.
    pub(crate) fn new(limit: usize, first: Class) -> Slab {
        let mut slab = Slab {
            pools: Default::default(),
            pieces: Default::default(),
            shown: AtomicUsize::new(0),
            showing: Mutex::new(()),
            live: AtomicUsize::new(0),
            beyond: AtomicUsize::new(0),
            warm: Warm::new(),
            limit,
            guarding: Guarding::Install,
        };
        if !slab.has_installed(first) {
            slab.guarding = Guarding::Protect;
            slab.limit = limit.min(PROTECTED_LIMIT);
        }
        slab
    }

    /// Maps the first chunk of this class, and installs the guard of its first slot. False: older kernels refuse a guard, and so does locked
    /// memory, with the same error; or there is no chunk.
    fn has_installed(&self, class: Class) -> bool {
        let mut pool = self.pools[usize::from(class)].lock().unwrap_or_else(PoisonError::into_inner);
        if !cfg!(target_os = "linux") || self.grow(&mut pool, class).is_err() {
            return false;
        }
        let low = pool.fresh.start;
        pool.guarded = self.guard(low).is_ok().then_some(low);
        pool.guarded.is_some()
    }

    /// How many stacks may be handed out at once.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// How many stacks are handed out, but for those beyond the limit.
    pub(crate) fn live(&self) -> usize {
        self.live.load(Relaxed)
    }

    /// Hands out a slot of `class`.
    ///
    /// # Errors
    ///
    /// [`StackError::Exhausted`] when the limit is reached or the system gives no more memory or mappings.
    pub(crate) fn take(&self, class: Class) -> Result<StackSlot, StackError> {
        // A refused caller is never counted, not even for a moment. Else other threads would read a count above the limit, and a caller
        // that comes when a slot has just been returned would be refused too.
        let room = |live: usize| (live < self.limit).then_some(live + 1);
        let refused = |live, why: Option<&io::Error>| StackError::exhausted(live, self.limit, self.hint(why));
        let live = self.live.fetch_update(Relaxed, Relaxed, room).map_err(|live| refused(live, None))?;
        self.cut(class).map_err(|why| {
            self.live.fetch_sub(1, Relaxed);
            refused(live, Some(&why))
        })
    }

    /// Hands out a slot of `class` whatever the limit is, for what has to end when all others are in use.
    ///
    /// # Errors
    ///
    /// When the system gives no more memory or mappings.
    pub(crate) fn take_beyond(&self, class: Class) -> Result<StackSlot, StackError> {
        let slot = self
            .cut(class)
            .map_err(|why| StackError::exhausted(self.live(), self.limit, self.hint(Some(&why))))?;
        self.beyond.fetch_add(1, Relaxed);
        Ok(StackSlot(slot.0 | BEYOND))
    }

    fn cut(&self, class: Class) -> io::Result<StackSlot> {
        let mut pool = self.pools[usize::from(class)].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = pool.free.pop().or_else(|| pool.sorted.pop()) {
            self.warm.remove(1);
            return Ok(slot);
        }
        if let Some(slot) = pool.bare.pop() {
            return Ok(slot);
        }
        if pool.fresh.is_empty() {
            self.grow(&mut pool, class)?;
        }
        let low = pool.fresh.start;
        if pool.guarded != Some(low) {
            self.guard(low)?;
        }
        pool.fresh.start += SLOTS[usize::from(class)];
        pool.cut += 1;
        Ok(StackSlot::new(low, class, pool.cut - 1))
    }

    /// Maps one more chunk.
    fn grow(&self, pool: &mut Pool, class: Class) -> io::Result<()> {
        let bytes = pool.next_chunk.max(FIRST_CHUNK).max(SLOTS[usize::from(class)] * 4);
        let at = map(bytes)?;
        pool.next_chunk = (bytes * 2).min(LARGEST_CHUNK);
        pool.chunks.push(Chunk { at, bytes });
        self.show(Piece { at, bytes, class, before: pool.cut });
        pool.fresh = at..at + bytes;
        Ok(())
    }

    /// Has the chunk found without a lock, if there is a place left.
    fn show(&self, piece: Piece) {
        let _turn = self.showing.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = self.shown.load(Relaxed);
        if let Some(place) = self.pieces.get(shown) {
            let _ = place.set(piece);
            // A thread that reads the number can read the chunk: by an order of our own, since a sanitizer sees none of std's.
            self.shown.store(shown + 1, Release);
        }
    }

    fn guard(&self, low: usize) -> io::Result<()> {
        let done = match self.guarding {
            // SAFETY: S1: the slot is fresh, so nothing lies in these pages.
            Guarding::Install => unsafe { libc::madvise(low as *mut _, GUARD, GUARD_INSTALL) },
            // SAFETY: as above.
            Guarding::Protect => unsafe { libc::mprotect(low as *mut _, GUARD, libc::PROT_NONE) },
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn hint(&self, why: Option<&io::Error>) -> &'static str {
        match (why.and_then(io::Error::raw_os_error), self.guarding) {
            (None, Guarding::Install) => {
                "let fewer requests be suspended at once, or raise RuntimeBuilder::max_stacks"
            }
            (None, Guarding::Protect) | (Some(libc::ENOMEM), Guarding::Protect) => {
                "let fewer requests be suspended at once; guards take two mappings each on this kernel (raise vm.max_map_count, or use Linux 6.13 or newer)"
            }
            _ => "let fewer requests be suspended at once, or give the process more memory",
        }
    }

    /// Takes back slots whose frames are dead. Their memory stays for now; see [`trim_some`](Self::trim_some).
    pub(crate) fn give_back(&self, slots: impl IntoIterator<Item = StackSlot>) {
        let mut slots = slots.into_iter().peekable();
        while let Some(class) = slots.peek().map(StackSlot::class) {
            let mut pool = self.pools[usize::from(class)].lock().unwrap_or_else(PoisonError::into_inner);
            let (before, mut beyond) = (pool.free.len(), 0);
            let same = std::iter::from_fn(|| slots.next_if(|slot| slot.class() == class));
            pool.free.extend(same.map(|slot| {
                beyond += usize::from(slot.is_beyond());
                StackSlot(slot.0 & !BEYOND)
            }));
            let count = pool.free.len() - before;
            self.warm.add(count);
            self.beyond.fetch_sub(beyond, Relaxed);
            self.live.fetch_sub(count - beyond, Relaxed);
        }
    }

    /// Whether so many slots lie free that their memory is to be given back.
    #[inline]
    pub(crate) fn is_to_be_trimmed(&self) -> bool {
        self.warm.is_to_be_trimmed()
    }

    /// What lies free has not been wanted for long: all of it is to be trimmed, however few.
    pub(crate) fn let_none_stay_warm(&self) {
        self.warm.let_none_stay();
    }

    /// Trims all there is.
    pub(crate) fn trim_all(&self) {
        while self.warm.count() != 0 && self.trim_some(usize::MAX) {}
    }

    /// Trims a piece, by so many calls of the system at most. False: there was nothing to trim, or others are trimming all there is.
    pub(crate) fn trim_some(&self, calls: usize) -> bool {
        (0..self.pools.len()).any(|class| self.trim_class(class, calls))
    }

    fn trim_class(&self, class: usize, calls: usize) -> bool {
        let lock = || self.pools[class].lock().unwrap_or_else(PoisonError::into_inner);
        let size = SLOTS[class];
        let mut pool = lock();
        if pool.sorted.is_empty() {
            let mut free = std::mem::take(&mut pool.free);
            if free.is_empty() {
                return false;
            }
            drop(pool);
            free.sort_unstable_by_key(StackSlot::low);
            pool = lock();
            free.append(&mut pool.sorted);
            pool.sorted = free;
        }
        let at = pool.sorted.len().saturating_sub(PIECE);
        let mut piece = pool.sorted.split_off(at);
        if pool.sorted.is_empty() {
            // A crowd once is no reason to keep room for it.
            pool.sorted = Vec::new();
        }
        drop(pool);
        let mut left = piece.len();
        for run in piece.chunk_by(|a, b| a.low() + size == b.low()).rev().take(calls) {
            // SAFETY: S1: the slots are ours while they are in no list. Guards survive this call.
            unsafe { libc::madvise(run[0].low() as *mut _, run.len() * size, libc::MADV_DONTNEED) };
            left -= run.len();
        }
        let trimmed = piece.split_off(left);
        self.warm.remove(trimmed.len());
        let mut pool = lock();
        pool.sorted.append(&mut piece);
        pool.bare.extend(trimmed.into_iter().rev());
        true
    }
}

impl Slab {
    /// How many slots lie free and are warm.
    #[cfg(test)]
    fn warm(&self) -> usize {
        self.warm.count()
    }

    /// Calls `with` for the top of each slot that has ever been handed out, until it answers false. They may be in use.
    pub(crate) fn each_top(&self, mut with: impl FnMut(usize) -> bool) {
        for (class, pool) in self.pools.iter().enumerate() {
            let (chunks, fresh) = {
                let pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
                let chunks: Vec<_> =
                    pool.chunks.iter().map(|chunk| chunk.at..chunk.at + chunk.bytes).collect();
                (chunks, pool.fresh.clone())
            };
            let size = SLOTS[class];
            let lows = chunks
                .into_iter()
                .flat_map(|chunk| chunk.step_by(size).take_while(|low| !fresh.contains(low)));
            for (number, low) in lows.enumerate() {
                let slot = StackSlot::new(low, class as Class, number);
                if !with(slot.top()) {
                    return;
                }
            }
        }
    }

    /// The top of the slot that this address lies in, if it lies in the slab: for addresses that may be anything.
    #[inline]
    pub(crate) fn top_around(&self, address: usize) -> Option<usize> {
        let shown = self.shown.load(Acquire);
        for piece in self.pieces.iter().take(shown) {
            if let Some(top) = piece.get()?.top_around(address) {
                return Some(top);
            }
        }
        if shown < PIECES { None } else { self.top_around_further(address) }
    }

    /// The same for what is not among the first chunks.
    #[cold]
    fn top_around_further(&self, address: usize) -> Option<usize> {
        self.pools.iter().enumerate().find_map(|(class, pool)| {
            let pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
            let mut before = 0;
            pool.chunks.iter().find_map(|chunk| {
                let piece = Piece { at: chunk.at, bytes: chunk.bytes, class: class as Class, before };
                before += chunk.bytes / SLOTS[class];
                piece.top_around(address)
            })
        })
    }

    /// Gives all memory back to the system, unless a stack is in use: then its frames may be borrowed from for ever, and
    /// everything is leaked.
    ///
    /// # Safety
    ///
    /// S2: nobody takes a slot any more.
    pub(crate) unsafe fn unmap(&self) {
        if self.live() > 0 || self.beyond.load(Relaxed) > 0 {
            return;
        }
        for pool in &self.pools {
            let mut pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
            pool.free.clear();
            pool.sorted.clear();
            pool.bare.clear();
            pool.fresh = 0..0;
            for chunk in pool.chunks.drain(..) {
                // SAFETY: S2, and no stack is in use.
                unsafe { libc::munmap(chunk.at as *mut _, chunk.bytes) };
            }
        }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { self.unmap() };
    }
}

fn map(bytes: usize) -> io::Result<usize> {
    // SAFETY: a fresh anonymous mapping wherever the system likes.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // A huge page would make a parked stack cost 2 MiB. Refused where there are none.
    #[cfg(target_os = "linux")]
    // SAFETY: the mapping is ours.
    unsafe {
        libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE);
    }
    Ok(at as usize)
}

#[cfg(test)]
mod tests;
mod warm;
