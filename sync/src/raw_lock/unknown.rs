//! For a thread that no runtime knows: the locks that it holds or reads, and the [`Once`](crate::Once)s that
//! it runs.
//!
//! Such a thread has a context only for the length of a call, so the word of a lock cannot have its address. Instead
//! the thread keeps the addresses of the locks that it holds here. So it detects a wait for itself, also if a runtime
//! has registered the thread since. The word of such a lock names no holder. So its release finds the entry here,
//! whatever context the thread has by then.
//!
//! A thread notes each read of an [`RwLock`](crate::RwLock), too, by an address other than the writers' lock's. That detects only waits for itself:
//! other threads that wait for a lock that it reads do not see this list.
//!
//! The list is short. A lock that finds no room is not noted, and a thread that waits for itself through that lock
//! waits for ever.

#[cfg(not(loom))]
mod list {
    use std::cell::Cell;

    const ROOM: usize = 8;

    forebear_context::shim::thread_local! {
        static HELD: [Cell<usize>; ROOM] = const { [const { Cell::new(0) }; ROOM] };
    }

    fn replace(from: usize, to: usize) -> bool {
        // While the thread's locals are destroyed, nothing is known.
        let found = HELD.try_with(|held| {
            let place = held.iter().find(|place| place.get() == from);
            place.map(|place| place.set(to)).is_some()
        });
        found.unwrap_or(false)
    }

    #[cold]
    pub(crate) fn took(lock: usize) {
        replace(0, lock);
    }

    #[cold]
    pub(crate) fn gave(lock: usize) {
        replace(lock, 0);
    }

    #[cold]
    pub(crate) fn holds(lock: usize) -> bool {
        replace(lock, lock)
    }
}

/// The threads of a model share what is not the model's.
#[cfg(loom)]
mod list {
    pub(crate) fn took(_: usize) {}

    pub(crate) fn gave(_: usize) {}

    pub(crate) fn holds(_: usize) -> bool {
        false
    }
}

pub(crate) use self::list::{gave, holds, took};
