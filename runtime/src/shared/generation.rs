//! Which process a runtime belongs to: how many forks lie between the first process and the one that made it.
//!
//! Each runtime notes the *generation* of the process ([`forebear_pool::Generation`]) when it is made. A thread compares
//! it with this process's where it comes from outside: when it makes, submits, awaits or cancels a request there, and when it ends the runtime. Requests
//! themselves, on a worker, never compare.

use crate::shared::Shared;

impl Shared {
    /// Whether its threads are in the parent process.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.born.is_inherited()
    }

    /// A thread enters from outside.
    ///
    /// # Panics
    ///
    /// If the threads are in the parent process.
    #[inline]
    #[track_caller]
    pub(crate) fn check_process(&self) {
        if self.is_inherited() {
            refuse();
        }
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn refuse() -> ! {
    panic!("forebear: this runtime's threads are in the parent process; build a new one after fork")
}
