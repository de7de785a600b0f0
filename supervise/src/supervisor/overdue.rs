//! [`Overdue`]: the warning that the closure of a `run` has not ended though the grace of its stop has passed.
//!
//! The closure may borrow, so `run` cannot leave it behind as a join leaves a straggler. It can stand on the thread of another request that computes without end: a request that has been
//! started goes on where it was started. Nothing would say so before that request ends. So the stop that reaches the closure starts a thread, which waits for the end of the closure or of
//! the grace. A run without a stop has no such thread.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;

use forebear::{AnyRequest, Runtime};

use super::builder::SupervisorSettings;
use crate::State;
use crate::coordinator::holder_of_its_worker;

/// See the module head.
pub(super) struct Overdue<S: State> {
    settings: Arc<SupervisorSettings<S>>,
    /// `run` holds it: this neither keeps a runtime nor ends one.
    runtime: Weak<Runtime>,
    ended: Receiver<()>,
}

impl<S: State> Overdue<S> {
    /// The closure has ended when the sender is dropped.
    pub(super) fn new(
        settings: &Arc<SupervisorSettings<S>>,
        runtime: &Arc<Runtime>,
    ) -> (Sender<()>, Overdue<S>) {
        let (ends, ended) = channel();
        (ends, Overdue { settings: settings.clone(), runtime: Arc::downgrade(runtime), ended })
    }

    /// What a stop calls, for this request. If the system starts no thread, there is no warning.
    pub(super) fn of(self, main: AnyRequest) -> impl FnOnce() + Send + 'static {
        move || {
            let thread = thread::Builder::new().name("supervisor: overdue".into());
            let _ = thread.spawn(move || self.wait(&main));
        }
    }

    fn wait(&self, main: &AnyRequest) {
        let grace = self.settings.stop_grace;
        if self.ended.recv_timeout(grace) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let Some(runtime) = self.runtime.upgrade() else { return };
        let dump = runtime.dump();
        drop(runtime);
        let why = match holder_of_its_worker(&dump, main.id()) {
            Some(holder) if holder.id == main.id() => {
                "it computes, or blocks its thread, without a scheduling point".to_owned()
            }
            Some(holder) => format!(
                "the request `{}` computes, or blocks its thread, without a scheduling point, and `main` was started on that thread",
                holder.name
            ),
            None => match dump.request(main.id()).and_then(|main| main.waits_for.as_ref()) {
                Some(wait) => format!("it waits for {}", wait.what),
                None => "it runs".to_owned(),
            },
        };
        self.settings.warn(&format!(
            "`run` has not returned {grace:?} after the stop, since its closure, the worker `main`, has not ended: {why}"
        ));
    }
}
