//! Registry: which threads and which runtimes other threads may read.
//!
//! A reader that has nothing but an address finds out here whether what lies there may be read. What may be read is *registered* when it is made,
//! and *dismissed* before it is freed or unmapped. A reader looks under the lock, and reads under the same hold of the lock. A thread that
//! unregisters takes the lock too. So either the reader finds the address and is done before the memory goes, or it does not find it.
//!
//! An address that was dismissed may be registered again, for something else. So a reader gets what lies there now.
//!
//! # Invariants
//!
//! * **EL1** What is registered is there. Its owner unregisters it before it frees it.
//! * **EL2** What a reader finds it reads before it releases the lock.

use std::fmt;
use std::ptr::NonNull;
use std::sync::PoisonError;

use forebear_context::shim::{Mutex, MutexGuard, mutant};

/// A runtime, as far as its stacks are asked for.
///
/// # Safety
///
/// Where `have` answers true a record can be read as long as the runtime is registered.
pub unsafe trait Stacks<C> {
    /// Whether a stack of the runtime has its record at this address.
    fn have(&self, record: NonNull<C>) -> bool;
}

/// What is registered: records of threads, and runtimes. See the module head.
pub struct StackRegistry<C, R>(Mutex<RegisteredStacks<C, R>>);

/// What is registered, under the lock.
pub struct RegisteredStacks<C, R> {
    /// The records of threads that run requests.
    pub(crate) threads: Vec<NonNull<C>>,
    /// Runtimes whose stacks are mapped.
    pub(crate) runtimes: Vec<NonNull<R>>,
}

// SAFETY: addresses of what is made to be read by other threads, EL1.
unsafe impl<C, R> Send for RegisteredStacks<C, R> {}

impl<C, R: Stacks<C>> Default for StackRegistry<C, R> {
    fn default() -> Self {
        StackRegistry::new()
    }
}

impl<C, R: Stacks<C>> StackRegistry<C, R> {
    /// Nothing.
    #[cfg(not(loom))]
    pub const fn new() -> StackRegistry<C, R> {
        StackRegistry(Mutex::new(RegisteredStacks { threads: Vec::new(), runtimes: Vec::new() }))
    }

    /// Nothing.
    #[cfg(loom)]
    pub fn new() -> StackRegistry<C, R> {
        StackRegistry(Mutex::new(RegisteredStacks { threads: Vec::new(), runtimes: Vec::new() }))
    }

    /// What is registered stays while this is held.
    pub fn lock(&self) -> MutexGuard<'_, RegisteredStacks<C, R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread has a record now.
    ///
    /// # Safety
    ///
    /// EL1.
    pub unsafe fn register_thread(&self, record: NonNull<C>) {
        self.lock().threads.push(record);
    }

    /// It is about to free it. Returns when nobody reads it any more.
    pub fn unregister_thread(&self, record: NonNull<C>) {
        let dismiss =
            |registered: &mut RegisteredStacks<C, R>| registered.threads.retain(|thread| *thread != record);
        mutant!("thread_unregistered_unless_locked", {
            let _ = self.0.try_lock().map(|mut registered| dismiss(&mut registered));
            return;
        });
        dismiss(&mut self.lock());
    }

    /// A runtime is about to start.
    ///
    /// # Safety
    ///
    /// EL1.
    pub unsafe fn register_runtime(&self, runtime: NonNull<R>) {
        self.lock().runtimes.push(runtime);
    }

    /// It is about to unmap its stacks. Returns when no thread reads them any more.
    pub fn unregister_runtime(&self, runtime: NonNull<R>) {
        let dismiss =
            |registered: &mut RegisteredStacks<C, R>| registered.runtimes.retain(|one| *one != runtime);
        mutant!("runtime_unregistered_unless_locked", {
            let _ = self.0.try_lock().map(|mut registered| dismiss(&mut registered));
            return;
        });
        dismiss(&mut self.lock());
    }

    /// Calls `read` with the record and, if it is a stack's, its runtime, if the address is that of a record that may be read. Under the lock.
    pub fn with(&self, record: NonNull<C>, read: impl FnOnce(&C, Option<&R>)) {
        let registered = self.lock();
        mutant!("registered_is_read_without_a_lookup", {
            // SAFETY: none: it may be gone.
            return read(unsafe { record.as_ref() }, None);
        });
        if let Some(runtime) = registered.find(record) {
            #[cfg(mutant = "registered_is_read_after_the_unlock")]
            drop(registered);
            // SAFETY: EL1, EL2.
            let runtime = runtime.map(|runtime| unsafe { runtime.as_ref() });
            // SAFETY: EL1, EL2.
            read(unsafe { record.as_ref() }, runtime);
        }
    }
}

impl<C, R: Stacks<C>> RegisteredStacks<C, R> {
    /// The runtime of this record, or `Some(None)` if it is a thread's. `None`: nothing is known to lie there.
    pub fn find(&self, record: NonNull<C>) -> Option<Option<NonNull<R>>> {
        if self.threads.contains(&record) {
            return Some(None);
        }
        // SAFETY: EL1.
        let has = |runtime: &&NonNull<R>| unsafe { runtime.as_ref() }.have(record);
        self.runtimes.iter().find(has).map(|runtime| Some(*runtime))
    }
}

impl<C, R> fmt::Debug for StackRegistry<C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackRegistry").finish_non_exhaustive()
    }
}

impl<C, R> fmt::Debug for RegisteredStacks<C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = (self.threads.len(), self.runtimes.len());
        f.debug_tuple("RegisteredStacks").field(&counts).finish()
    }
}
