//! What must go on whatever a user's code does: hooks that panic, and a standard error that takes nothing.

use std::any::Any;
use std::fmt::Display;
use std::io::{self, Write};
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls a user's code. `None`: it has panicked. The panic hook has reported that, and the panic ends here.
pub(crate) fn contained<R>(f: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(f)).map_err(discard).ok()
}

/// Drops what a panic carried. If its destructor panics, what that panic carried is forgotten, since it may panic as well.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        forget(next);
    }
}

/// Writes a line to standard error. `eprintln` would panic if the terminal, the pipe or the disk behind it is gone.
pub(crate) fn print(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
