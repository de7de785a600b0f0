//! A fence of which one side costs nothing.
//!
//! Two threads each write, and then read what the other writes. At least one must see the other's write. Usually both
//! execute a fence between the two steps. If one of them does so all the time and the other hardly ever, the second can
//! pay for both. Its [`heavy`] side makes every running thread of the process execute a fence, wherever it is. Then the
//! first only needs the compiler to keep the order ([`light`]). Linux does this by `membarrier`: some 0.1 µs while the
//! other threads sleep, 10 µs while they run.
//!
//! In a model both sides are fences.
//!
//! # When the kernel refuses
//!
//! A program may install a seccomp filter after its first runtime has started, and the filter may refuse `membarrier`. By then other
//! threads rely on the heavy side. So [`heavy`] never returns without the fence:
//!
//! 1. It asks for `membarrier`, both forms. While the kernel lacks memory for it, it asks again.
//! 2. Else it makes [`is_available`] answer false, for good. Then it runs on each core in turn ([`tour`]), which takes the core
//!    from whichever thread runs there. That takes from 0.1 ms to some milliseconds a core.
//! 3. If the filter refuses that too, it ends the process and says which calls to allow. Neither going on nor waiting is sound.
//!
//! # Invariants
//!
//! * **AS1** When `heavy` returns, each thread of the process has passed a full fence since `heavy` was called.
//! * **AS2** [`is_available`] turns from true to false at most once, and never back. A caller that calls `heavy` often asks afterwards; on
//!   false it changes for good to a mode in which its fast side pays a fence or a lock. One more `heavy` makes that mode known to
//!   every fast side.

#[cfg(all(target_os = "linux", not(loom), not(shuttle)))]
mod tour;

pub use self::kind::{heavy, is_available, light};

#[cfg(all(target_os = "linux", not(loom), not(shuttle)))]
mod kind {
    use std::io::{Error, ErrorKind};
    use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence}; // not modelled: in a model both sides are fences

    use super::tour;

    const YES: u8 = 1;
    const NO: u8 = 2;

    static ANSWER: AtomicU8 = AtomicU8::new(0);

    /// So often the kernel is asked again when it lacks memory.
    const TRIES: usize = 1_000;

    /// Whether there is one here. The kernel is asked by the first; who comes at the same time asks it too, and hears the same. It may
    /// turn false later (AS2).
    pub fn is_available() -> bool {
        match ANSWER.load(Ordering::Relaxed) {
            YES => true,
            NO => false,
            _ => {
                let answer = call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_ok();
                let answer = if answer { YES } else { NO };
                match ANSWER.compare_exchange(0, answer, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => answer == YES,
                    Err(now) => now == YES,
                }
            }
        }
    }

    /// The side that costs nothing.
    #[inline(always)]
    pub fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    /// The side that pays (AS1). It ends the process where the kernel allows no way to do it.
    #[cold]
    pub fn heavy() {
        if !by_membarrier() {
            heavy_without_membarrier();
        }
    }

    fn by_membarrier() -> bool {
        for _ in 0..TRIES {
            // The kernel may have no memory for the first at the moment; the second, slow, wants none.
            let Err(first) = call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) else { return true };
            let Err(_) = call(libc::MEMBARRIER_CMD_GLOBAL) else { return true };
            if !matches!(
                first.kind(),
                ErrorKind::OutOfMemory | ErrorKind::Interrupted | ErrorKind::WouldBlock
            ) {
                return false;
            }
            std::thread::yield_now();
        }
        false
    }

    #[cold]
    pub(super) fn heavy_without_membarrier() {
        ANSWER.store(NO, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if let Err(error) = tour::every_core() {
            eprintln!(
                "forebear: the kernel has refused membarrier since a runtime was started, and sched_setaffinity, which would do \
                 instead ({error}): let the program's system call filter allow one of them, or install it before the first runtime"
            );
            std::process::abort()
        }
        fence(Ordering::SeqCst);
    }

    fn call(command: libc::c_int) -> Result<(), Error> {
        // SAFETY: it takes three numbers and touches no memory.
        match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
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
    use forebear_context::shim::mutant;

    /// Always.
    pub fn is_available() -> bool {
        true
    }

    /// A fence.
    pub fn light() {
        mutant!("local_without_light_fence", (), fence(Ordering::SeqCst));
    }

    /// A fence.
    pub fn heavy() {
        mutant!("revoked_without_heavy_fence", (), fence(Ordering::SeqCst));
    }
}
