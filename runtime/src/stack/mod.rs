//! Stacks: where they come from, how large they are, and what happens when one is not enough.
//!
//! # Vocabulary
//!
//! * **class**: a slot size. Every class guarantees its slot less the [overhead](OVERHEAD): guard, colour, control
//!   block and the frames of the loop.
//! * **colour**: tops of stacks are shifted by a few cache lines from slot to slot. So the hot ends of many stacks do
//!   not all map to the same set of the first-level cache.
//! * **guard**: the lowest pages of a slot; touching them faults, and [`overflow`] says whose stack it was.
//!
//! ```text
//!  slot:  | guard | ............ grows down ............ | frames of the loop | control block | colour |
//!         ^       ^ limit                                                     ^ base                   ^ slot end
//! ```

pub(crate) mod coroutine;
pub(crate) mod lent;
#[cfg(all(target_os = "linux", not(shuttle)))]
mod main_thread;
pub(crate) mod overflow;
pub(crate) mod prefetch;
pub(crate) mod ready;
pub(crate) mod slab;

/// Bytes at the low end of a slot that fault when touched: three pages, since foreign code without stack probes may
/// step over one.
pub(crate) const GUARD: usize = 12 << 10;
/// What a slot does not give to its user: guard, colour, control block, and the frames of loop, run, wait and park.
pub(crate) const OVERHEAD: usize = 16 << 10;
/// The slot sizes, smallest first.
pub(crate) const SLOTS: [usize; 5] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// How many colours there are, and how far apart.
pub(crate) const COLOURS: usize = 8;
/// Two cache lines: neighbouring lines are fetched in pairs.
pub(crate) const COLOUR_STEP: usize = 128;

/// A stack class: an index into [`SLOTS`].
pub(crate) type Class = u8;

/// What class `class` guarantees to the request on it.
pub(crate) const fn guaranteed(class: Class) -> usize {
    SLOTS[class as usize] - OVERHEAD
}

/// The largest stack that can be asked for.
pub(crate) const MAX: usize = guaranteed(SLOTS.len() as Class - 1);

/// The smallest class that guarantees `bytes`.
pub(crate) fn class_for(bytes: usize) -> Option<Class> {
    (0..SLOTS.len() as Class).find(|&class| guaranteed(class) >= bytes)
}

/// What a request is guaranteed unless it, or its runtime, asks otherwise. Frames are several times as large without
/// optimisation, and the memory is virtual until touched.
pub(crate) const DEFAULT: usize = if cfg!(debug_assertions) { 512 << 10 } else { 64 << 10 };

/// Whether this is the main thread, whose exit is that of the process.
pub(crate) fn is_main_thread() -> bool {
    #[cfg(all(target_os = "linux", not(shuttle)))]
    return main_thread::is_current();
    #[cfg(not(all(target_os = "linux", not(shuttle))))]
    false
}

/// The lowest usable address of the calling thread's own stack; 0 if the system will not say, so that everything fits.
pub(crate) fn thread_limit() -> usize {
    #[cfg(shuttle)]
    return 0;
    #[cfg(all(not(shuttle), any(target_os = "linux", target_os = "android")))]
    {
        #[cfg(target_os = "linux")]
        if let Some(limit) = main_thread::limit() {
            return limit;
        }
        // SAFETY: the attributes are initialised by the call that fills them and destroyed after; the pointers are to
        // locals.
        unsafe {
            let mut attributes = std::mem::zeroed();
            if libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) != 0 {
                return 0;
            }
            let (mut low, mut size, mut guard) = (std::ptr::null_mut(), 0, 0);
            let known = libc::pthread_attr_getstack(&attributes, &mut low, &mut size) == 0;
            libc::pthread_attr_getguardsize(&attributes, &mut guard);
            libc::pthread_attr_destroy(&mut attributes);
            // A page more than the guard: the main thread's lowest page may already be the kernel's gap.
            if known { low as usize + guard + (4 << 10) } else { 0 }
        }
    }
    #[cfg(target_os = "macos")]
    {
        // SAFETY: both calls only read the calling thread's record.
        unsafe {
            let thread = libc::pthread_self();
            libc::pthread_get_stackaddr_np(thread) as usize - libc::pthread_get_stacksize_np(thread)
        }
    }
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
    0
}
