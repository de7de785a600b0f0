//! Poisons free cells for AddressSanitizer, which then reports each access to one.
//!
//! Cells of the free lists never return to the allocator one by one. So without poison a use of a header after its end
//! would find valid memory, and no tool would report it. A reader may read a header that ends meanwhile
//! ([`crate::record::reclaim`]), so no cell is poisoned while there is a reader.

#[cfg(feature = "sanitizer")]
mod asan {
    unsafe extern "C" {
        pub(super) fn __asan_poison_memory_region(at: *const u8, bytes: usize);
        pub(super) fn __asan_unpoison_memory_region(at: *const u8, bytes: usize);
    }
}

/// The cell has become free; its link stays in use.
#[inline(always)]
pub(super) fn free(cell: *const u8, bytes: usize) {
    #[cfg(feature = "sanitizer")]
    if !crate::record::readers::has_readers() {
        let link = size_of::<super::cells::Free>();
        // SAFETY: the cell is the caller's; this writes to the shadow only.
        unsafe { asan::__asan_poison_memory_region(cell.add(link), bytes - link) };
    }
    let _ = (cell, bytes);
}

/// The memory is in use.
#[inline(always)]
pub(super) fn take(at: *const u8, bytes: usize) {
    #[cfg(feature = "sanitizer")]
    // SAFETY: the memory is the caller's; this writes to the shadow only.
    unsafe {
        asan::__asan_unpoison_memory_region(at, bytes)
    };
    let _ = (at, bytes);
}
