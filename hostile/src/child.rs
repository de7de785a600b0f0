//! The process that runs the programs, one after the other, and tells the supervisor which one it is at.

use std::cell::RefCell;
use std::io::Write;
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use crate::Options;
use crate::program::Program;
use crate::value::{Value, violation};
use crate::world::World;

/// What the library's documentation says it panics with, in programs such as these. Any other panic from its files is a defect.
const DOCUMENTED: &[&str] = &["forebear: ", "circular wait"];

/// The folders of the library's crates, as the compiler names them.
const OWN: &[&str] = &["context/src/", "pool/src/", "runtime/src/", "sync/src/", "timer/src/"];

thread_local! {
    /// Where this thread has panicked last, and the message: most panics are planned, so they are not shown.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs the programs that the options name.
pub(crate) fn run(options: &Options) {
    panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        if payload.is::<Value>() {
            return;
        }
        let message = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied());
        let Some(at) = info.location() else { return };
        let message = message.unwrap_or("(no text)");
        let _ = LAST.try_with(|last| *last.borrow_mut() = format!("at {at}: {message}"));
        let ours = OWN.iter().any(|folder| at.file().contains(folder)) && !at.file().contains("hostile/src/");
        if ours && !DOCUMENTED.iter().any(|known| message.starts_with(known)) {
            violation(format_args!("a panic inside the library, at {at}: {message}"));
        }
    }));
    for seed in options.seed..options.seed.saturating_add(options.programs) {
        tell("begin", seed);
        let grace = Duration::from_secs(options.grace);
        let world = || World::run(Program::draw(seed, options.without.clone()), options.canary, grace);
        if panic::catch_unwind(AssertUnwindSafe(world)).is_err() {
            violation(format_args!("the main thread has panicked {}", LAST.take()));
        }
        tell("end", seed);
    }
}

fn tell(what: &str, seed: u64) {
    let mut out = std::io::stdout().lock();
    // Without a supervisor there is nobody to run programs for.
    if writeln!(out, "{what} {seed}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}
