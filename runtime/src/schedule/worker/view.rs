//! The scheduler's view of what the layers below know by a worker's record.

use std::ptr;

use super::Worker;
use crate::record::fiber::Fiber;
use crate::shared::Shared;

/// Of a stack: its worker.
pub(crate) trait OnWorker {
    /// The worker, unless this is a foreign thread.
    fn worker(&self) -> Option<&Worker>;

    /// The same, where it is known that there is one.
    ///
    /// # Safety
    ///
    /// A worker's arena is, or was just now, this fiber's: no other fiber gets one.
    unsafe fn worker_of_arena(&self) -> &Worker;
}

impl OnWorker for Fiber {
    #[inline(always)]
    fn worker(&self) -> Option<&Worker> {
        // SAFETY: WR1: all records are workers'; a coroutine's worker outlives it.
        unsafe { self.worker.cast::<Worker>().as_ref() }
    }

    #[inline(always)]
    unsafe fn worker_of_arena(&self) -> &Worker {
        debug_assert!(self.has_worker());
        // SAFETY: WR1; by contract.
        unsafe { &*self.worker.cast::<Worker>() }
    }
}

/// Of a runtime: its workers.
pub(crate) trait HasWorkers {
    /// All workers.
    fn workers(&self) -> &[Worker];
}

impl HasWorkers for Shared {
    #[inline(always)]
    fn workers(&self) -> &[Worker] {
        let records = self.worker_records();
        if records.len() == 0 {
            return &[];
        }
        // SAFETY: WR1: they were made by `Worker::all_of`, as one slice.
        unsafe { &*ptr::slice_from_raw_parts(records.start().cast::<Worker>(), records.len()) }
    }
}
