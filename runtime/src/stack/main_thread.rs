//! The end of the main thread's stack, without the C library: that reads `/proc/self/maps` line by line, which takes some
//! 40 microseconds before the first result of a program.
//!
//! The kernel puts the path of the program, its terminating zero byte and a word of zeros at the top of that stack. The auxiliary vector has
//! the address of the path, so the top is where the page of that word ends. From there the stack may grow by the limit of the process.

/// The kernel keeps so much address space free below the top, whatever the limit was when the program started.
const GAP: usize = 128 << 20;

/// Whether the calling thread is the main one, or the only one of a process that was forked.
pub(super) fn is_current() -> bool {
    // SAFETY: it has no precondition.
    let process = unsafe { libc::getpid() };
    // SAFETY: as above.
    let thread = unsafe { libc::gettid() };
    process == thread
}

/// The lowest usable address, if the calling thread runs on the main stack. `None` too if the kernel has not told enough. In a process that another thread than
/// the main one has forked, the only thread is the main one by its number and stands elsewhere: farther below the top than [`GAP`].
pub(super) fn limit() -> Option<usize> {
    if !is_current() {
        return None;
    }
    let mut allowed = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the place for the answer is a local.
    if unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut allowed) } != 0 {
        return None;
    }
    let size = usize::try_from(allowed.rlim_cur).unwrap_or(usize::MAX).min(GAP);
    let (low, here) = (top()?.checked_sub(size)?, (&raw const allowed).addr());
    // A page more: the lowest one may already be the kernel's gap.
    (low < here && here - low < size).then_some(low + (4 << 10))
}

/// Where the main thread's stack begins.
fn top() -> Option<usize> {
    // SAFETY: it has no precondition.
    let path = unsafe { libc::getauxval(libc::AT_EXECFN) };
    // SAFETY: as above.
    let page = unsafe { libc::getauxval(libc::AT_PAGESZ) };
    let path = std::ptr::with_exposed_provenance::<libc::c_char>(path as usize);
    if path.is_null() || page == 0 {
        return None;
    }
    // SAFETY: the kernel has put a string there, which stays for the life of the process.
    let length = unsafe { libc::strlen(path) };
    Some((path.addr() + length + 1 + size_of::<usize>()).next_multiple_of(page as usize))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_top_of_the_main_stack_is_where_the_kernel_says() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let stack = maps.lines().find(|line| line.ends_with("[stack]")).expect("the main thread has a stack");
        let end = stack.split(['-', ' ']).nth(1).expect("a range");
        assert_eq!(super::top(), Some(usize::from_str_radix(end, 16).unwrap()));
    }

    #[test]
    fn another_thread_is_left_to_the_c_library() {
        forebear_context::shim::thread::spawn(|| assert_eq!(super::limit(), None)).join().unwrap();
    }
}
