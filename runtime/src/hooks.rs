//! What is called when something goes wrong that has nobody to be told: hooks, and their one-line defaults.
//!
//! The panic hook of the process is wrapped once, by the first runtime, around whatever hook was there: a panic inside a
//! request is shown by the hook that the program chose, but on the thread's own stack, since a backtrace needs more
//! stack than a small request has. A hook that is set later replaces the wrapper and runs on the request's stack; it
//! is set before the first runtime, or asks for larger stacks.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use forebear_context::context;
use forebear_context::error::{Failure, SourceLocation};

use crate::header::Header;
use crate::shared::Shared;
use crate::strand;

forebear_context::shim::thread_local! {
    static PANICKED_AT: RefCell<Option<SourceLocation>> = const { RefCell::new(None) };
}

/// Where the panic was that this thread has just caught, if the hook saw it.
pub(crate) fn take_location() -> Option<SourceLocation> {
    PANICKED_AT.try_with(|at| at.borrow_mut().take()).ok().flatten()
}

/// Wraps the panic hook, once in the life of the process.
pub(crate) fn wrap_panic_hook() {
    if cfg!(shuttle) {
        return; // the hook says in which schedule it was
    }
    static WRAPPED: Once = Once::new();
    WRAPPED.call_once(|| {
        let inner = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let here = info.location().map(SourceLocation::copied);
            let _ = PANICKED_AT.try_with(|at| *at.borrow_mut() = here);
            let carrier = strand::get().filter(|strand| strand.worker().is_some());
            match (carrier, context::current()) {
                (Some(strand), Some(context)) => {
                    // SAFETY: the context of this stack is valid.
                    let context = unsafe { context.as_ref() };
                    // On the thread's stack nothing can be suspended, and what this strand knows of its stack is not
                    // true: so the hook can neither wait nor run requests directly.
                    let home = strand.home.replace(std::ptr::null());
                    context.no_suspend().set(context.no_suspend().get() + 1);
                    // SAFETY: we are on that context's stack (F2), and the hook does not wait. If it panics, the
                    // process aborts, as it does for any hook.
                    unsafe { context.fiber().on_thread_stack(&mut || inner(info)) };
                    context.no_suspend().set(context.no_suspend().get() - 1);
                    strand.home.set(home);
                }
                _ => inner(info),
            }
        }));
    });
}

/// Calls a hook of the user's, whose panic is nobody's affair any more.
fn contained(hook: impl FnOnce()) {
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(hook)) {
        forebear_context::error::internal::drop_contained(payload);
    }
}

/// Reports a failure that nobody looked at: to the runtime's hook, else to `tracing` if that feature is on, else in one
/// line on standard error.
#[cold]
pub(crate) fn unseen_failure(shared: Option<&Shared>, failure: &Failure) {
    match shared.and_then(|shared| shared.on_unseen_failure.as_ref()) {
        Some(hook) => {
            // A hook that panics has had its say through the panic hook.
            contained(|| hook(failure));
        }
        None => {
            #[cfg(feature = "tracing")]
            tracing::error!(request = failure.request(), "nobody looked at a failure: {failure:#}");
            #[cfg(not(feature = "tracing"))]
            eprintln!("forebear: nobody looked at a failure: {failure:#}");
        }
    }
}

/// A destructor of a request's value or captures, or a callback that cannot change the outcome, has panicked: reported like
/// a failure that nobody looked at.
#[cold]
pub(crate) fn aside_panicked(header: &Header, payload: Box<dyn std::any::Any + Send>) {
    let failure = Failure::from_panic(payload, header.name().to_owned(), take_location());
    // SAFETY: the header is alive, hence the record of its home (M3).
    let shared = unsafe { header.home.get().as_ref() }.map(|home| home.shared());
    unseen_failure(shared, &failure);
}

/// Says what a user ought to know: to the runtime's hook, else to `tracing` if that feature is on, else in one line on
/// standard error.
#[cold]
pub(crate) fn warn(shared: &Shared, what: &str) {
    match &shared.on_warning {
        Some(hook) => {
            contained(|| hook(what));
        }
        None => {
            #[cfg(feature = "tracing")]
            tracing::warn!("{what}");
            #[cfg(not(feature = "tracing"))]
            eprintln!("forebear: {what}");
        }
    }
}

/// A worker cannot do its work at all.
#[cold]
pub(crate) fn die(why: &dyn std::fmt::Display) -> ! {
    eprintln!("forebear: a worker cannot go on: {why}");
    std::process::abort()
}
