//! Calls that the C library makes as a thread exits, before it destroys the thread-locals that were in use at the registration.
//!
//! The C library keeps one list for each thread, of destructors of thread-locals and of other functions (`__cxa_thread_atexit_impl`). A
//! registration puts an entry first. At the exit of the thread, and of the process on the thread that calls `exit`, it takes the first entry off,
//! calls it, and repeats that. Rust registers a thread-local at its first use. So a call that is first in the list precedes the destructor of every
//! thread-local that has been used.
//!
//! # When a call is registered again
//!
//! An entry cannot be taken back, and is memory until the thread exits. So a call is registered only if none is first in the list. A program
//! has a limited number of thread-locals, so a thread registers a limited number of calls.
//!
//! Which entry is first says a word of the thread's memory that belongs to the C library. No function answers it, so the word is *found*: among the
//! words of the C library's own thread-locals it is the only one that each of four registrations changes, and that nothing else changes
//! between them. If not exactly one word is like that, or if a later registration leaves it as it was, every question is answered by one more
//! registration: that needs more memory, and is as safe.
//!
//! # A worker's question
//!
//! A worker asks at each suspension. [`LeavingCalls`] has the address of the word at hand, so the question is two loads and a comparison. If the word was not
//! found, a worker registers nothing: it would register a call at each suspension.
//!
//! # Invariants
//!
//! * **XC2** `LeavingCalls::word` is the word of the thread that asks, or [`NO_ENTRY`].
//! * **XC1** While [`ExitCalls`] holds an entry, that entry is in the list, and is the thread's latest call: the call itself forgets it. So the
//!   entry is first in the list if the word names it, since its memory is no other entry's.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering}; // not modelled: the C library's list is not

/// What is called. On the thread that exits.
pub(crate) type Call = unsafe extern "C" fn(*mut c_void);

/// The calls of one thread. Touched by that thread.
pub(crate) struct ExitCalls {
    /// The entry of the latest call. Null: none, or it is not known.
    latest: Cell<*mut c_void>,
}

impl ExitCalls {
    pub(crate) const fn new() -> ExitCalls {
        ExitCalls { latest: Cell::new(ptr::null_mut()) }
    }

    /// Sees to it that `call`, which calls [`forget`](Self::forget), is first in the list of this thread.
    pub(crate) fn ensure(&self, call: Call) {
        let latest = self.latest.get();
        if latest.is_null() || first() != latest {
            self.latest.set(register(call));
        }
    }

    /// A call is made, or has been: its entry leaves the list.
    pub(crate) fn forget(&self) {
        self.latest.set(ptr::null_mut());
    }
}

/// A word that names no entry, for a thread whose own was not found, or is not asked.
static NO_ENTRY: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The same for a worker, whose question is short.
pub(crate) struct LeavingCalls {
    /// XC2.
    word: Cell<&'static AtomicPtr<c_void>>,
    /// What it names while the worker's call is first.
    latest: Cell<*mut c_void>,
}

impl LeavingCalls {
    /// Whether the worker's call is first, or none is registered. By the worker's thread.
    #[inline(always)]
    pub(crate) fn are_first(&self) -> bool {
        self.difference() == 0
    }

    /// The same as a number, 0 if so: on the shortest ways it is tested together with others, by one branch.
    #[inline(always)]
    pub(crate) fn difference(&self) -> usize {
        self.word.get().load(Ordering::Relaxed).addr() ^ self.latest.get().addr()
    }

    /// Says that the worker's thread has begun and asks from now on. Where stacks are threads of their own it asks nothing: no two of them have a
    /// thread-local in common, and XC2 would not hold.
    pub(crate) fn begin(&self) {
        if !cfg!(forebear_threads) {
            // No entry's address.
            self.latest.set(ptr::dangling_mut());
        }
    }

    /// Registers `call`, which calls [`end`](Self::end).
    #[cold]
    #[inline(never)]
    pub(crate) fn register(&self, call: Call) {
        let latest = register(call);
        self.latest.set(latest);
        self.word.set(if latest.is_null() { &NO_ENTRY } else { list::word().unwrap_or(&NO_ENTRY) });
    }

    /// The thread exits: it asks no more.
    pub(crate) fn end(&self) {
        self.word.set(&NO_ENTRY);
        self.latest.set(ptr::null_mut());
    }
}

impl Default for LeavingCalls {
    fn default() -> LeavingCalls {
        LeavingCalls { word: Cell::new(&NO_ENTRY), latest: Cell::new(ptr::null_mut()) }
    }
}

pub(crate) use self::list::{are_possible, first, register};

#[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
mod list {
    use std::ffi::c_int;
    use std::slice;
    use std::sync::atomic::{AtomicIsize, AtomicUsize}; // not modelled: the C library's list is not

    use super::*;

    type Register = unsafe extern "C" fn(Call, *mut c_void, *mut c_void) -> c_int;

    /// The function. Null until it has been looked for, and if there is none. Each thread that looks finds the same.
    static REGISTER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    /// Any address in the object that has this code, which is not to be unloaded before.
    static HERE: u8 = 0;
    /// How many bytes after `errno` the word is, in every thread; or one of these.
    static DISTANCE: AtomicIsize = AtomicIsize::new(NOT_SOUGHT);
    const NOT_SOUGHT: isize = 0;
    /// No distance, since the word and `errno` are aligned.
    const NOT_FOUND: isize = 1;
    /// So many registrations must change the word.
    const TRIALS: usize = 4;
    /// The C library's thread-locals are larger than this only in a program without shared libraries.
    const MOST_WORDS: usize = 1 << 12;

    /// Whether the C library has such a list.
    pub(crate) fn are_possible() -> bool {
        function().is_some()
    }

    fn function() -> Option<Register> {
        let mut found = REGISTER.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: the name is a C string.
            found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__cxa_thread_atexit_impl".as_ptr()) };
            REGISTER.store(found, Ordering::Relaxed);
        }
        // SAFETY: this is the function's type, by the ABI for C++; null is none.
        unsafe { std::mem::transmute::<*mut c_void, Option<Register>>(found) }
    }

    /// Puts a call first in the list. The entry, if it is known.
    #[cold]
    pub(crate) fn register(call: Call) -> *mut c_void {
        if DISTANCE.load(Ordering::Relaxed) == NOT_SOUGHT {
            DISTANCE.store(seek(call).unwrap_or(NOT_FOUND), Ordering::Relaxed);
        }
        let before = first();
        put(call);
        let after = first();
        if before == after {
            DISTANCE.store(NOT_FOUND, Ordering::Relaxed);
            return ptr::null_mut();
        }
        after
    }

    fn put(call: Call) {
        if let Some(register) = function() {
            // SAFETY: the function is called on this thread, with nothing. glibc ends the process if it has no memory.
            let _ = unsafe { register(call, ptr::null_mut(), (&raw const HERE).cast_mut().cast()) };
        }
    }

    /// The first entry. Null: there is none, or it is not known.
    pub(crate) fn first() -> *mut c_void {
        word().map_or(ptr::null_mut(), |word| word.load(Ordering::Relaxed))
    }

    /// The word of the calling thread, if it is known. Valid as long as the thread.
    pub(crate) fn word<'a>() -> Option<&'a AtomicPtr<c_void>> {
        match DISTANCE.load(Ordering::Relaxed) {
            NOT_SOUGHT | NOT_FOUND => None,
            distance => {
                // SAFETY: the distance leads to a word of the same block (`seek`).
                let word = unsafe { errno().byte_offset(distance) }.cast::<AtomicPtr<c_void>>();
                // SAFETY: the word is this thread's, aligned, lives as long as the thread, and is valid with any value.
                Some(unsafe { &*word })
            }
        }
    }

    fn errno() -> *const c_int {
        // SAFETY: asks nothing of its caller.
        unsafe { libc::__errno_location() }
    }

    /// The distance of the word.
    fn seek(call: Call) -> Option<isize> {
        let words = own_words()?;
        let read = || words.iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let mut fits = vec![true; words.len()];
        let mut before = read();
        for _ in 0..TRIALS {
            // Whatever allocates, asks for the time or fails in a call is not to change it.
            let other = read();
            before.iter().zip(&other).zip(&mut fits).for_each(|((a, b), fits)| *fits &= a == b);
            put(call);
            before = read();
            before.iter().zip(&other).zip(&mut fits).for_each(|((a, b), fits)| *fits &= a != b);
        }
        let mut found = fits.iter().zip(words).filter(|(fits, _)| **fits);
        let (_, word) = found.next().filter(|_| found.next().is_none())?;
        // SAFETY: both are in the same block.
        Some(unsafe { ptr::from_ref(word).byte_offset_from(errno()) })
    }

    /// This thread's block of the C library's thread-locals, as words.
    fn own_words() -> Option<&'static [AtomicUsize]> {
        /// # Safety
        ///
        /// Called by `dl_iterate_phdr`, with the address of the variable below.
        unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
            // SAFETY: by `dl_iterate_phdr`, the record and its headers are valid for the call.
            let info = unsafe { &*info };
            // SAFETY: it is the variable below, and nobody else refers to it meanwhile.
            let found = unsafe { &mut *found.cast::<Option<(usize, usize)>>() };
            // SAFETY: as above.
            let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
            let block = info.dlpi_tls_data.addr();
            for header in headers.iter().filter(|header| header.p_type == libc::PT_TLS && block != 0) {
                let end = block + header.p_memsz as usize;
                if (block..end).contains(&errno().addr()) {
                    *found = Some((block, end));
                }
            }
            c_int::from(found.is_some())
        }

        let mut found = None::<(usize, usize)>;
        // SAFETY: `look` follows the rules of this function, and gets what it asks for.
        let _ = unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
        let (start, end) = found?;
        let start = start.next_multiple_of(size_of::<usize>());
        let many = end.saturating_sub(start) / size_of::<usize>();
        // SAFETY: the block is memory of this thread's, which nobody else writes, and lives until the thread is gone; any bytes are a number.
        let words = || unsafe { slice::from_raw_parts(errno().with_addr(start).cast::<AtomicUsize>(), many) };
        (many <= MOST_WORDS).then(words)
    }

    #[cfg(test)]
    mod tests {
        use std::thread;

        use super::*;

        /// # Safety
        ///
        /// None, as for the runtime's own call.
        unsafe extern "C" fn nothing(_: *mut c_void) {}

        struct Dropped;

        impl Drop for Dropped {
            fn drop(&mut self) {}
        }

        thread_local! {
            static LOCAL: Dropped = const { Dropped };
        }

        #[test]
        fn a_call_is_registered_again_only_when_another_thread_local_was_used() {
            for _ in 0..2 {
                let there = || {
                    let calls = ExitCalls::new();
                    let entry = |calls: &ExitCalls| {
                        calls.ensure(nothing);
                        calls.latest.get()
                    };
                    let first = entry(&calls);
                    assert!(!first.is_null(), "the C library's list was not found");
                    assert_eq!([entry(&calls), entry(&calls)], [first; 2]);
                    LOCAL.with(|_| ());
                    let second = entry(&calls);
                    assert_ne!(second, first);
                    assert_eq!(entry(&calls), second);
                    calls.forget();
                    assert_ne!(entry(&calls), second);
                };
                thread::spawn(there).join().unwrap();
            }
        }
    }
}

#[cfg(not(all(target_os = "linux", not(any(loom, shuttle)))))]
mod list {
    use super::*;

    /// In a model no thread exits with thread-locals that matter.
    pub(crate) fn are_possible() -> bool {
        cfg!(any(loom, shuttle))
    }

    pub(crate) fn register(_: Call) -> *mut c_void {
        ptr::null_mut()
    }

    pub(crate) fn first() -> *mut c_void {
        ptr::null_mut()
    }

    pub(crate) fn word() -> Option<&'static AtomicPtr<c_void>> {
        None
    }
}
