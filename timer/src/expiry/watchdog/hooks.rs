//! The hooks that get a server's events. Without any, events are written to standard error.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebear_context::error::internal::{ShownName, drop_contained};

use crate::expiry::TimerEvent;

type Hook<W> = Box<dyn FnMut(&TimerEvent<'_, W>) + Send>;

/// The hooks of a server, and its name in messages.
pub(super) struct Hooks<W> {
    pub(super) name: String,
    hooks: Vec<Hook<W>>,
}

impl<W> Default for Hooks<W> {
    fn default() -> Self {
        Hooks { name: String::from("timers"), hooks: Vec::new() }
    }
}

impl<W: fmt::Debug> Hooks<W> {
    pub(super) fn add(&mut self, hook: impl FnMut(&TimerEvent<'_, W>) + Send + 'static) {
        self.hooks.push(Box::new(hook));
    }

    pub(super) fn tell(&mut self, event: &TimerEvent<'_, W>) {
        let quiet = matches!(event, TimerEvent::Started | TimerEvent::Stopped | TimerEvent::Orphaned { .. });
        if self.hooks.is_empty() && !quiet {
            eprintln!("forebear: {}: {event}", ShownName(&self.name));
        }
        for hook in &mut self.hooks {
            // A hook that panics has had its say through the panic hook.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| hook(event))) {
                drop_contained(payload);
            }
        }
    }
}
