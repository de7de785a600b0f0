//! SIGTERM to a process that is a worker: the first one has its workers leave, any other one ends the process.
//!
//! A handler cannot be taken back without a race. So one thread of the process receives the signals, from the first worker on, and stays. While no worker runs, SIGTERM does what it would have done without it:
//! it ends the process, unless the program had a handler of its own before, or ignored it.

use std::fs;
use std::io;
use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use tokio::sync::watch;

use super::Outside;

struct Listeners {
    /// The workers that run.
    list: Vec<(u64, watch::Sender<Outside>)>,
    last: u64,
    /// A SIGTERM has had workers leave.
    taken: bool,
    /// The program has a handler of its own, or ignores the signal.
    theirs: bool,
}

static LISTENERS: Mutex<Option<Listeners>> = Mutex::new(None);

/// A worker that listens, until this is dropped.
pub(super) struct Listening(u64);

fn lock() -> MutexGuard<'static, Option<Listeners>> {
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has SIGTERM tell a worker to drain.
pub(super) fn listen(tell: watch::Sender<Outside>) -> io::Result<Listening> {
    let mut listeners = lock();
    let listeners = match &mut *listeners {
        Some(listeners) => listeners,
        none => {
            let theirs = is_handled();
            let mut signals = Signals::new([SIGTERM])?;
            thread::Builder::new()
                .name("cluster: signals".into())
                .spawn(move || signals.forever().for_each(follow))?;
            none.insert(Listeners { list: Vec::new(), last: 0, taken: false, theirs })
        }
    };
    listeners.last += 1;
    listeners.list.push((listeners.last, tell));
    Ok(Listening(listeners.last))
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(listeners) = &mut *lock() {
            listeners.list.retain(|(number, _)| *number != self.0);
        }
    }
}

fn follow(signal: i32) {
    let mut listeners = lock();
    let Some(its) = &mut *listeners else { return };
    if its.list.is_empty() {
        let theirs = its.theirs;
        drop(listeners);
        if !theirs {
            // It ends the process. If the system refuses that, nothing is left to try.
            let _ = emulate_default_handler(signal);
        }
        return;
    }
    if its.taken {
        drop(listeners);
        process::exit(128 + signal);
    }
    its.taken = true;
    for (_, tell) in &its.list {
        tell.send_modify(|now| *now = (*now).max(Outside::Drain));
    }
}

/// Whether the program does something by SIGTERM, or ignores it. The kernel says so as bits, of which the lowest is that of signal 1.
fn is_handled() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bits = |line: &str| {
        let (name, bits) = line.split_once(':')?;
        matches!(name, "SigCgt" | "SigIgn").then(|| u64::from_str_radix(bits.trim(), 16).ok())?
    };
    status.lines().filter_map(bits).any(|bits| bits >> (SIGTERM - 1) & 1 == 1)
}
