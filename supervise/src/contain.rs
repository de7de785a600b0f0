//! What must go on whatever a user's code does: hooks that panic, and a standard error that takes nothing.

use std::fmt::Display;
use std::io::{self, Write};
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls a user's code. `None`: it has panicked. The panic hook has reported that, and the panic ends here.
pub(crate) fn contained<R>(f: impl FnOnce() -> R) -> Option<R> {
    // A payload may panic when it is dropped.
    catch_unwind(AssertUnwindSafe(f)).map_err(forget).ok()
}

/// Writes a line to standard error. `eprintln` would panic if the terminal, the pipe or the disk behind it is gone.
pub(crate) fn print(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
