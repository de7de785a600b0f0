//! Memory asked for before it is needed, so that who walks along cold stacks does not wait at each.
//!
//! A line is what the processor has from memory at a time, 64 bytes. To ask is a hint: whatever lies at the address, or nothing, is the
//! same, and the calling thread continues at once. Where a processor has no such hint, and in a model, nothing is done.

/// Asks for the line of an address.
#[inline(always)]
pub fn line(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    // SAFETY: a hint; any address will do.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle)))))]
    let _ = at;
}

/// Asks for so many lines from there upwards.
#[inline(always)]
pub fn lines(at: *const u8, many: usize) {
    for n in 0..many {
        line(at.wrapping_add(n * 64));
    }
}

/// Asks for so many lines from there downwards: of a stack.
#[inline(always)]
pub fn lines_below(at: *const u8, many: usize) {
    for n in 0..many {
        line(at.wrapping_sub(n * 64));
    }
}
