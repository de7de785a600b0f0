//! [`blocking()`]: a call that blocks its thread, made on a thread that may be blocked.
//!
//! The threads have one queue for the process (`threads.rs`). The caller waits in the list of the call's own signal.
//!
//! # Which side drops the value
//!
//! The result of `f` goes into a slot with a reference count, one reference for each side, and the caller takes the result out. A cancelled
//! caller drops its reference. If `f` still runs, the thread of the call later drops the slot with the result. If `f` has returned, the
//! caller drops both.

mod error;
mod threads;

pub use self::error::BlockingError;

use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError}; // not modelled: what races is the signal

use forebear_context::context::{Reason, for_another, give_back_foreign};
use forebear_context::error::internal::drop_contained;
use forebear_context::shim::Mutex;

use self::threads::Begins;
use crate::block_on::Signal;
use crate::here::with_context;

/// The state that the caller and the thread of the call share.
struct Call<R> {
    slot: Mutex<Option<std::thread::Result<R>>>,
    begun: Signal,
    done: Signal,
}

/// Calls `f` on a thread outside the workers, which `f` may block, and returns its result.
///
/// In a request this suspends the request, and its worker runs other work meanwhile. On a plain thread it blocks the thread. A blocked worker
/// stops every request that has started on it, since no other worker can take these over. It also stops the unstarted ones in its private queue.
/// So wrap calls that wait for the outside world by blocking their thread:
///
/// * files, directories, `std::io::stdin`, name look-ups, sockets of `std::net`;
/// * child processes: `Command::output`, `status`, `Child::wait`;
/// * locks, channels and joins of `std` that are held, or waited for, longer than a moment; libraries that use them inside;
/// * foreign functions that sleep.
///
/// Work that computes needs no wrapping, nor does a short write to a log. A call that is not wrapped gives the same result, but its worker
/// does nothing else meanwhile. With all workers in such calls no request makes progress.
///
/// The threads are started when they are needed, 500 at most (`BLOCKING_MAX_THREADS` says otherwise). One that has had no call for ten seconds leaves,
/// but for the last. A call that finds all of them in calls, and may not
/// start another, begins when one of these calls has ended. The queue is first in, first out: urgency
/// and priority have no effect there. `f` runs outside of any request, on a thread's stack:
/// [`Request::current`](https://docs.rs/forebear/latest/forebear/struct.Request.html) is `None` in it. A dump shows the caller as waiting for a
/// blocking call, or, while its call is queued, for a [thread for it](https://docs.rs/forebear/latest/forebear/dump/enum.Reason.html#variant.BlockingThread). So it shows calls that wait for
/// each other and use up the threads. `f` may drop the last handle of a runtime, also of the caller's: as inside a request, another thread then waits for the
/// runtime's end.
///
/// Suspends. A cancellation point: a cancelled caller returns at once. `f` still runs to its end, and its value is dropped on that
/// thread. In a request that is cancelled already, `f` is dropped uncalled. For a child process that a cancel should kill, see
/// [`block_on`](fn@crate::block_on).
///
/// # Errors
///
/// [`BlockingError`]: `Cancelled`; `NoThread` if the system starts no thread and there is none yet.
///
/// # Panics
///
/// With the panic of `f`, so the request fails with it. If the caller was cancelled, the panic of `f` is dropped. In a `no_suspend` region, with the
/// region's name.
///
/// ```
/// use forebear::{Request, blocking};
///
/// let size = Request::try_new(|| {
///     let text = blocking(|| std::fs::read_to_string("Cargo.toml"))??; // the worker goes on meanwhile
///     Ok(text.len())
/// });
/// assert!(*size.wait()? > 0);
/// # Ok::<(), forebear::WaitError>(())
/// ```
#[doc(alias = "spawn_blocking")]
#[doc(alias = "unblock")]
#[doc(alias = "block_in_place")]
#[track_caller]
pub fn blocking<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> Result<R, BlockingError> {
    let caller = Location::caller();
    if with_context!(|context| {
        context.about_to_wait("a blocking call");
        context.is_cancelled()
    }) {
        return Err(BlockingError::Cancelled);
    }
    let call = Arc::new(Call { slot: Mutex::new(None), begun: Signal::new(), done: Signal::new() });
    let other = Arc::clone(&call);
    // To the end: what is dropped here may own the last handle of a runtime, whose end may wait for a call that needs this thread.
    let make = move || {
        other.begun.set();
        let outcome = catch_unwind(AssertUnwindSafe(f));
        *other.slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        other.done.set();
        // The last count, if the caller was cancelled.
        drop_contained(other);
        // The thread stays, and may have nothing to do from now on.
        give_back_foreign();
    };
    let begins = threads::make(Box::new(|| for_another(make))).map_err(BlockingError::NoThread)?;
    // Two waits, so that a dump tells a call that runs from one that none of the threads comes to.
    let begun = match begins {
        Begins::AtOnce => Ok(()),
        Begins::AfterOthers => call.begun.wait(Reason::BlockingThread, "a blocking call", caller),
    };
    let done = begun.and_then(|()| call.done.wait(Reason::Blocking, "a blocking call", caller));
    if let Err(cancelled) = done {
        // The call may be over by now, and this the last count.
        drop_contained(call);
        return Err(cancelled.into());
    }
    let outcome = call.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    match outcome {
        Some(Ok(value)) => Ok(value),
        Some(Err(payload)) => resume_unwind(payload),
        None => unreachable!("it is there before it is said to be"),
    }
}
