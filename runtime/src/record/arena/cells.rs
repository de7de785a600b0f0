//! The cells of an arena: their classes, and what stands in a free one.

/// Memory comes in steps of this many bytes.
pub(super) const STEP: usize = 32;
/// Larger cells come from the system's allocator one by one.
pub(super) const CLASSES: usize = 42;
/// The class of a cell that is too large, or too strictly aligned, for the free lists.
pub(crate) const LARGE: u8 = u8::MAX;

/// A free cell: a link to the next.
pub(super) struct Free {
    pub(super) next: *mut Free,
}

/// The memory class of a cell of `layout`.
pub(crate) const fn class_of(layout: std::alloc::Layout) -> u8 {
    let class = layout.size().div_ceil(STEP);
    if class >= CLASSES || layout.align() > STEP { LARGE } else { class as u8 }
}
