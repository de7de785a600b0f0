//! Signals to this process: SIGINT and SIGTERM for coordinators, these and others for agents.
//!
//! One thread of the process receives all signals, by the crate `signal-hook`: what a handler may do is next to nothing. The first call of `listen` starts this thread,
//! and it stays. A handler cannot be taken back without a race, so a signal that no listener takes does what it would have done without us.

use std::any::Any;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle as Handlers, Signals};
use signal_hook::low_level::emulate_default_handler;

use super::{Coordinator, Handle};

/// What a listener makes of a signal.
pub(crate) enum Heard {
    /// The signal is not for it.
    Declined,
    /// The signal is for it. This is called without a lock.
    Taken(Box<dyn FnOnce() + Send>),
}

/// Asks for signals. `hears` is called under the lock: it decides, and does no more.
struct Listener {
    signals: Vec<i32>,
    /// The coordinator or agent that listens. After that has gone, `hears` is not called again.
    listener: Weak<dyn Any + Send + Sync>,
    hears: Box<dyn FnMut(i32) -> Heard + Send>,
}

/// The handlers, once there are some, and the listeners.
struct Listeners {
    handlers: Handlers,
    list: Vec<Listener>,
}

static LISTENERS: Mutex<Option<Listeners>> = Mutex::new(None);

/// Has the coordinator stopped by the next signal.
pub(super) fn watch(coordinator: &Coordinator) -> io::Result<()> {
    let watched: Handle = Arc::downgrade(&coordinator.0);
    let mut notified = false;
    listen(not_ignored(vec![SIGINT, SIGTERM]), watched.clone(), move |_| {
        let Some(shared) = watched.upgrade() else { return Heard::Declined };
        // A stop that was taken back lets the next signal be a first one.
        if notified && shared.board.should_stop() {
            return Heard::Declined;
        }
        notified = true;
        Heard::Taken(Box::new(move || Coordinator(shared).request_stop()))
    })
}

/// Those of these signals that this process does not ignore. As under `nohup`, an ignored signal is meant to do nothing. Where that cannot be known, all of them.
pub(crate) fn not_ignored(mut signals: Vec<i32>) -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    signals.retain(|signal| ignored & (1 << (signal - 1)) == 0);
    signals
}

/// Has `hears` called with each of these signals, as long as `listener` is there.
pub(crate) fn listen(
    signals: Vec<i32>,
    listener: Weak<dyn Any + Send + Sync>,
    hears: impl FnMut(i32) -> Heard + Send + 'static,
) -> io::Result<()> {
    let mut listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    let listeners = match &mut *listeners {
        Some(listeners) => listeners,
        none => {
            let mut heard = Signals::new([0_i32; 0])?;
            let handlers = heard.handle();
            thread::Builder::new().name("coordinator: signals".into()).spawn(move || {
                for signal in heard.forever() {
                    if !tell_all(signal) {
                        // It ends the process. If the system refuses that, nothing is left to try.
                        let _ = emulate_default_handler(signal);
                    }
                }
            })?;
            none.insert(Listeners { handlers, list: Vec::new() })
        }
    };
    signals.iter().try_for_each(|signal| listeners.handlers.add_signal(*signal))?;
    // Listeners that have gone leave the list here, so that it does not grow.
    listeners.list.retain(|known| known.listener.strong_count() > 0);
    listeners.list.push(Listener { signals, listener, hears: Box::new(hears) });
    Ok(())
}

/// Answers whether a listener has taken it.
fn tell_all(signal: i32) -> bool {
    let mut taken = Vec::new();
    if let Some(listeners) = &mut *LISTENERS.lock().unwrap_or_else(PoisonError::into_inner) {
        for listener in &mut listeners.list {
            if listener.signals.contains(&signal)
                && let Heard::Taken(act) = (listener.hears)(signal)
            {
                taken.push(act);
            }
        }
    }
    let heard = !taken.is_empty();
    taken.into_iter().for_each(|act| act());
    heard
}
