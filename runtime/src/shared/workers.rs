//! The workers of a runtime, as the layers below the scheduler see them: the records with which what the scheduler keeps of each worker begins.
//!
//! # Invariants
//!
//! * **WR1** Each record is the first field of a larger one of the scheduler's, and these lie in one allocation, which stays until the runtime's
//!   record goes.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::worker::WorkerRecord;

/// The allocation. See the module head.
pub(crate) struct Workers {
    first: NonNull<WorkerRecord>,
    /// From one record to the next, in bytes.
    distance: usize,
    len: usize,
    drop_all: unsafe fn(NonNull<WorkerRecord>, usize),
}

// SAFETY: a record may be used and dropped by any thread, and so may what the scheduler has behind it: `new` asks for that.
unsafe impl Send for Workers {}
// SAFETY: as above.
unsafe impl Sync for Workers {}

impl Workers {
    /// The workers of a runtime, which begin with their records.
    ///
    /// # Safety
    ///
    /// `W` begins with a [`WorkerRecord`] (WR1).
    pub(crate) unsafe fn new<W: Send + Sync>(workers: Box<[W]>) -> Workers {
        /// Drops the workers, in the type that they were made in.
        ///
        /// # Safety
        ///
        /// Made by `new` of the same `W`; not used any more.
        unsafe fn drop_all<W>(first: NonNull<WorkerRecord>, len: usize) {
            let all = ptr::slice_from_raw_parts_mut(first.as_ptr().cast::<W>(), len);
            // SAFETY: by contract.
            drop(unsafe { Box::from_raw(all) });
        }
        let workers = NonNull::from(Box::leak(workers));
        Workers {
            first: workers.cast(),
            distance: size_of::<W>(),
            len: workers.len(),
            drop_all: drop_all::<W>,
        }
    }

    /// The records.
    #[inline(always)]
    pub(crate) fn records(&self) -> WorkerRecords<'_> {
        WorkerRecords { first: self.first.as_ptr(), distance: self.distance, len: self.len, of: PhantomData }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // SAFETY: made by `new`.
        unsafe { (self.drop_all)(self.first, self.len) };
    }
}

/// Some of the records, one behind the other.
#[derive(Clone, Copy)]
pub(crate) struct WorkerRecords<'a> {
    first: *const WorkerRecord,
    distance: usize,
    len: usize,
    of: PhantomData<&'a WorkerRecord>,
}

impl<'a> WorkerRecords<'a> {
    /// None.
    pub(crate) const NONE: WorkerRecords<'static> =
        WorkerRecords { first: ptr::null(), distance: 0, len: 0, of: PhantomData };

    /// How many.
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Where the first lies, for a cast to what the scheduler has. Null or dangling if there is none.
    #[inline(always)]
    pub(crate) fn start(self) -> *const WorkerRecord {
        self.first
    }

    /// The one of this number, if there is one.
    #[inline(always)]
    pub(crate) fn get(self, index: usize) -> Option<&'a WorkerRecord> {
        (index < self.len).then(|| {
            // SAFETY: WR1: there are `len` workers, `distance` bytes apart.
            let worker = unsafe { self.first.byte_add(index * self.distance) };
            // SAFETY: WR1: each worker begins with its record, and lives for `'a`.
            unsafe { &*worker }
        })
    }

    /// The one of this number, which there is.
    #[inline(always)]
    pub(crate) fn at(self, index: usize) -> &'a WorkerRecord {
        match self.get(index) {
            Some(record) => record,
            None => unreachable!("a runtime has as many workers from when it is made until it goes"),
        }
    }

    /// Those from `first` on, and before `end`.
    pub(crate) fn range(self, first: usize, end: usize) -> WorkerRecords<'a> {
        let (first, end) = (first.min(self.len), end.min(self.len));
        // SAFETY: WR1; at the end at most.
        let at = unsafe { self.first.byte_add(first * self.distance) };
        WorkerRecords { first: at, len: end.saturating_sub(first), ..self }
    }

    /// All of them.
    #[inline(always)]
    pub(crate) fn iter(self) -> impl Iterator<Item = &'a WorkerRecord> {
        let (mut at, mut left) = (self.first, self.len);
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            // SAFETY: WR1.
            let record = unsafe { &*at };
            // SAFETY: WR1: behind the last at most.
            at = unsafe { at.byte_add(self.distance) };
            Some(record)
        })
    }

    /// All of them from number `index` on, and then those before it.
    #[inline(always)]
    pub(crate) fn iter_from(self, index: usize) -> impl Iterator<Item = &'a WorkerRecord> {
        self.range(index, self.len).iter().chain(self.range(0, index).iter())
    }
}
