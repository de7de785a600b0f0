//! The default runtime of the process: what free functions mean outside any runtime.
//!
//! It is made on first use, or by [`RuntimeBuilder::build_global`], which also replaces one that has nothing to do. It does
//! not hold up the end of the process: its threads are simply gone then. With debug assertions the process says at its end
//! what was left there.
//!
//! # Who may touch what
//!
//! Any thread reads the pointer, which leads to a record that is never freed: a reader may have read it a moment before it
//! was replaced. It is written under the lock. A replaced runtime is ended, and stays behind as an empty record.

use std::ptr;
use std::sync::{Once, PoisonError};
use std::time::Duration;

use forebear_context::shim::atomic::{AtomicPtr, Ordering};
use forebear_context::shim::{Arc, Mutex, MutexGuard, thread};

use super::{BuildError, Runtime, RuntimeBuilder, laggards};
use crate::shared::Shared;

static DEFAULT: AtomicPtr<Runtime> = AtomicPtr::new(ptr::null_mut());
/// Held while a thread makes or replaces it.
static MAKING: Mutex<()> = Mutex::new(());

/// Keeps other threads from replacing it.
#[derive(Debug)]
pub(crate) struct HeldDefault {
    _making: MutexGuard<'static, ()>,
}

fn lock() -> MutexGuard<'static, ()> {
    MAKING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds it as it is, over a fork.
pub(crate) fn hold() -> HeldDefault {
    HeldDefault { _making: lock() }
}

/// In a forked child: the default runtime is the parent's, and is made anew when it is needed.
pub(crate) fn forget(_: &mut HeldDefault) {
    DEFAULT.store(ptr::null_mut(), Ordering::Relaxed);
}

/// The default runtime, if there is one.
fn current() -> Option<&'static Runtime> {
    // SAFETY: what was stored is never freed.
    unsafe { DEFAULT.load(Ordering::Acquire).as_ref() }
}

/// By the holder of the lock.
fn set(runtime: &Runtime) -> &'static Runtime {
    report_at_exit();
    let kept: &'static Runtime = Box::leak(Box::new(runtime.clone()));
    DEFAULT.store(ptr::from_ref(kept).cast_mut(), Ordering::Release);
    kept
}

/// The default runtime, made by `make` if there is none.
pub(super) fn get_or_make(make: impl FnOnce() -> Runtime) -> &'static Arc<Shared> {
    if let Some(runtime) = current() {
        return runtime.shared();
    }
    let _making = lock();
    current().unwrap_or_else(|| set(&make())).shared()
}

/// How often to check whether the present one is at rest. A worker counts itself out a moment after it has given the last answer. A program that
/// has got that answer would be refused without this, or told at its end of work that is over.
const LOOKS: usize = 1_000;

/// Whether it has work, and not only a worker that is about to find that it has none.
fn stays_busy(shared: &Shared) -> bool {
    (0..LOOKS).all(|_| {
        let busy = shared.has_work();
        if busy {
            thread::yield_now();
        }
        busy
    })
}

/// Builds the default runtime; see [`RuntimeBuilder::build_global`].
///
/// No user code is called or waited for under the lock: a clock that is subscribed to, or a request of the present runtime, may come here, too.
pub(super) fn replace(builder: RuntimeBuilder) -> Result<Runtime, BuildError> {
    let is_busy = || current().is_some_and(|present| stays_busy(present.shared()));
    if is_busy() {
        return Err(BuildError::DefaultBusy);
    }
    let runtime = builder.build()?;
    let making = lock();
    let present = current();
    if is_busy() {
        drop(making);
        return Err(BuildError::DefaultBusy);
    }
    set(&runtime);
    drop(making);
    if let Some(present) = present {
        // Waits for requests that were submitted in this moment. No caller is left that could get an error.
        let _ = present.finish(Duration::MAX);
    }
    Ok(runtime)
}

/// With debug assertions, the end of the process reports unfinished work.
fn report_at_exit() {
    static REGISTERED: Once = Once::new();
    if cfg!(debug_assertions) {
        REGISTERED.call_once(|| {
            // SAFETY: the function unwinds into nobody, and needs no thread-locals. If it is refused nothing is said.
            let _ = unsafe { libc::atexit(at_exit) };
        });
    }
}

extern "C" fn at_exit() {
    let _ = std::panic::catch_unwind(|| {
        let Some(runtime) = current() else { return };
        let shared = runtime.shared();
        if shared.is_inherited() || !stays_busy(shared) {
            return;
        }
        let left: Vec<String> = laggards::find(shared).iter().map(ToString::to_string).collect();
        let unstarted = shared.has_unstarted().then(|| "requests that have not started".to_owned());
        let left: Vec<String> = left.into_iter().chain(laggards::held(shared)).chain(unstarted).collect();
        if !left.is_empty() {
            eprintln!(
                "forebear: the process ends and leaves undone in the default runtime: {}; \
                 Runtime::current().finish(grace) waits for it",
                left.join(", ")
            );
        }
    });
}
