//! A fence of which one side costs nothing.
//!
//! Of two threads that each write and then look at what the other wrote, at least one must see the other's write. Usually both pay a
//! fence for it between the two. Where one of them does so all the time and the other hardly ever, all of it can be paid by the
//! second: its [`heavy`] side makes every thread of the process that is running execute a fence, wherever it is, so that for the first it is enough
//! that the compiler keeps the order ([`light`]). Linux does this by `membarrier`: some 0.1 µs while the other threads sleep, 10 µs
//! while they run.
//!
//! In a model both sides are fences.

#![allow(unreachable_pub, reason = "the loom models see it through the word")]

pub use self::kind::{heavy, is_available, light};

#[cfg(all(target_os = "linux", not(loom), not(shuttle)))]
mod kind {
    use std::sync::atomic::{AtomicU8, Ordering, compiler_fence}; // not modelled: in a model both sides are fences

    const YES: u8 = 1;
    const NO: u8 = 2;

    /// Whether there is one here. The kernel is asked by the first; who comes at the same time asks it too, and hears the same.
    pub fn is_available() -> bool {
        static ANSWER: AtomicU8 = AtomicU8::new(0);
        match ANSWER.load(Ordering::Relaxed) {
            YES => true,
            NO => false,
            _ => {
                let answer = call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
                ANSWER.store(if answer { YES } else { NO }, Ordering::Relaxed);
                answer
            }
        }
    }

    /// The side that costs nothing.
    #[inline(always)]
    pub fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    /// The side that pays. Only where it [is available](is_available).
    #[cold]
    pub fn heavy() {
        // The kernel may have no memory for the first at the moment; the second, slow, wants none.
        while !call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) && !call(libc::MEMBARRIER_CMD_GLOBAL) {
            std::thread::yield_now();
        }
    }

    fn call(command: libc::c_int) -> bool {
        // SAFETY: it takes three numbers and touches no memory.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }
}

#[cfg(all(not(target_os = "linux"), not(loom), not(shuttle)))]
mod kind {
    /// There is none.
    pub fn is_available() -> bool {
        false
    }

    /// Not called.
    #[inline(always)]
    pub fn light() {}

    /// Not called.
    pub fn heavy() {}
}

#[cfg(any(loom, shuttle))]
mod kind {
    use forebear_context::shim::atomic::{Ordering, fence};

    /// Always.
    pub fn is_available() -> bool {
        true
    }

    /// A fence.
    pub fn light() {
        #[cfg(not(mutant = "secret_without_light_fence"))]
        fence(Ordering::SeqCst);
    }

    /// A fence.
    pub fn heavy() {
        #[cfg(not(mutant = "asked_without_heavy_fence"))]
        fence(Ordering::SeqCst);
    }
}
