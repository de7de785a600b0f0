//! For a thread that no runtime knows: the locks that it holds or reads, and the [`Once`](crate::Once)s that
//! it runs.
//!
//! Such a thread has a context only for the length of a call, so the word of a lock cannot have its address. Instead
//! the thread keeps a list of the locks that it holds here. So it detects a wait for itself, also if a runtime
//! has registered the thread since. The word of such a lock names no holder. So its release finds the entry here,
//! whatever context the thread has by then.
//!
//! When the thread gets its own context, the words of the `Once`s that it runs get that context's address, and the entries go
//! ([`take_runs`]). A lock's entry stays: a forgotten guard leaves an entry whose lock may be gone, so no thread follows it to the lock.
//!
//! A thread notes each read of an [`RwLock`](crate::RwLock), too, apart from its writers' lock. That detects only waits for itself:
//! other threads that wait for a lock that it reads do not see this list.
//!
//! # What an entry names
//!
//! A guard that is forgotten leaves its entry for good, and its lock may be dropped. So an entry names a lock by a [`Number`], not by its address, where
//! another lock may lie by then. The first thread that notes a lock draws its number. No other lock of the process has or gets it. A `Once` is
//! named by its address: what runs it cannot be forgotten.
//!
//! The list has room for a few entries in place, which also serve while the locals of the thread are destroyed. Further entries are in a `Vec`; those are
//! not noted at that time.

/// What a thread has noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// It holds the lock of this number.
    Holds(u32),
    /// It reads the lock whose writers' lock has this number.
    Reads(u32),
    /// It runs the `Once` at this address.
    Runs(usize),
}

#[cfg(not(loom))]
mod number {
    use std::sync::atomic::{AtomicU32, Ordering}; // not modelled: nothing else depends on a number

    /// The number of a lock among those that such threads have noted; 0 before that. Half as large as a pointer: it lies where [`RawLock`](super::super::RawLock)
    /// has room.
    #[derive(Debug)]
    pub(in super::super) struct Number(AtomicU32);

    impl Number {
        pub(in super::super) const fn new() -> Number {
            Number(AtomicU32::new(0))
        }

        /// The number, if it has been drawn.
        pub(in super::super) fn known(&self) -> Option<u32> {
            Some(self.0.load(Ordering::Relaxed)).filter(|number| *number != 0)
        }

        /// The number, drawn now if it has not been. `None` when all are used up: then the lock is not noted, rather than confused with another.
        pub(in super::super) fn draw(&self) -> Option<u32> {
            static LAST: AtomicU32 = AtomicU32::new(0);
            self.known().or_else(|| {
                let next = |last: u32| last.checked_add(1);
                let drawn = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()? + 1;
                // Threads may read it for the first time at once.
                match self.0.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => Some(drawn),
                    Err(other) => Some(other),
                }
            })
        }
    }
}

/// In a model no lock is noted.
#[cfg(loom)]
mod number {
    #[derive(Debug)]
    pub(in super::super) struct Number;

    impl Number {
        pub(in super::super) fn new() -> Number {
            Number
        }

        pub(in super::super) fn known(&self) -> Option<u32> {
            None
        }

        pub(in super::super) fn draw(&self) -> Option<u32> {
            None
        }
    }
}

pub(super) use self::number::Number;

#[cfg(not(loom))]
mod list {
    use std::cell::{Cell, RefCell};

    use super::Note;

    const ROOM: usize = 8;

    forebear_context::shim::thread_local! {
        static NOTES: [Cell<Option<Note>>; ROOM] = const { [const { Cell::new(None) }; ROOM] };
        static MORE: RefCell<Vec<Note>> = const { RefCell::new(Vec::new()) };
    }

    fn replace(from: Option<Note>, to: Option<Note>) -> bool {
        // While the thread's locals are destroyed, nothing may be known.
        let found = NOTES.try_with(|notes| {
            let place = notes.iter().find(|place| place.get() == from);
            place.map(|place| place.set(to)).is_some()
        });
        found.unwrap_or(false)
    }

    /// Calls `f` with the further notes, unless they are in use: by an allocator that takes locks.
    fn more(f: impl FnOnce(&mut Vec<Note>) -> bool) -> bool {
        MORE.try_with(|more| more.try_borrow_mut().is_ok_and(|mut more| f(&mut more))).unwrap_or(false)
    }

    #[cold]
    pub(crate) fn took(note: Note) {
        if !replace(None, Some(note)) {
            more(|more| {
                more.push(note);
                true
            });
        }
    }

    #[cold]
    pub(crate) fn gave(note: Note) {
        if !replace(Some(note), None) {
            more(|more| {
                more.iter().rposition(|known| *known == note).map(|at| more.swap_remove(at)).is_some()
            });
        }
    }

    /// Takes out the `Once`s, and calls `with` with the address of each.
    #[cold]
    pub(crate) fn take_runs(mut with: impl FnMut(usize)) {
        let mut take = |note: Option<Note>| match note {
            Some(Note::Runs(at)) => {
                with(at);
                None
            }
            other => other,
        };
        _ = NOTES.try_with(|notes| notes.iter().for_each(|place| place.set(take(place.get()))));
        more(|more| {
            more.retain(|note| take(Some(*note)).is_some());
            true
        });
    }

    #[cold]
    pub(crate) fn has(note: Note) -> bool {
        replace(Some(note), Some(note)) || more(|more| more.contains(&note))
    }
}

/// The threads of a model share what is not the model's.
#[cfg(loom)]
mod list {
    use super::Note;

    pub(crate) fn took(_: Note) {}

    pub(crate) fn gave(_: Note) {}

    pub(crate) fn take_runs(_: impl FnMut(usize)) {}

    pub(crate) fn has(_: Note) -> bool {
        false
    }
}

pub(crate) use self::list::{gave, has, take_runs, took};
