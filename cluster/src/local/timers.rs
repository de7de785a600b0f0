//! The expiration timers of worker processes: a server in the coordinator's process, which kills a worker that is stuck beyond its timer.
//!
//! The server identifies each worker by a pidfd of its own, so it kills nobody else. It kills the process that has the timer; the [watcher](super) sees that death as any other.

use std::path::Path;
use std::sync::{Mutex, Weak};

use forebear::timer::local::{Limits, LocalTimerHandle, LocalTimerServer, LocalWorker};
use forebear::timer::{TimerError, TimerEvent};

use super::{LocalControl, lock};
use crate::engine::{WarningHook, WorkerId};

/// An address has room for so many bytes of a path.
const LONGEST: usize = 90;

/// A server for so many workers, and for those that come.
pub(super) fn start(
    dir: &Path,
    workers: usize,
    names: Weak<Mutex<LocalControl>>,
    warnings: WarningHook,
) -> Result<LocalTimerHandle, TimerError> {
    let path = dir.join("timers");
    let server = match path.as_os_str().len() {
        ..=LONGEST => LocalTimerServer::bind_at(path)?,
        _ => LocalTimerServer::bind()?,
    };
    let mut limits = Limits::default();
    limits.workers = limits.workers.max(4 * workers);
    limits.connections = limits.connections.max(8 * workers);
    let tell = move |event: &TimerEvent<'_, LocalWorker>| warn(event, &names, &warnings);
    server.name("cluster: timers").limits(limits).on_event(tell).start()
}

fn warn(event: &TimerEvent<'_, LocalWorker>, names: &Weak<Mutex<LocalControl>>, warnings: &WarningHook) {
    match event {
        TimerEvent::Expired { worker, timer, .. } => match name_of(worker, names) {
            Some(id) => {
                warnings.warn(format_args!("the timer {} of the worker `{id}` has expired", timer.scope));
            }
            None => warnings.warn(format_args!(
                "the timer {} of the process {} has expired",
                timer.scope,
                worker.pid()
            )),
        },
        TimerEvent::ReapFailed { .. } | TimerEvent::ReaperPanicked { .. } | TimerEvent::TurnFailed { .. } => {
            warnings.warn(format_args!("expiration timers: {event}"));
        }
        _ => {}
    }
}

/// Which worker that process is. A process that a worker has started is none.
fn name_of(process: &LocalWorker, names: &Weak<Mutex<LocalControl>>) -> Option<WorkerId> {
    let control = names.upgrade()?;
    let control = lock(&control);
    let (name, named) = control
        .names
        .iter()
        .find(|(_, named)| named.process.upgrade().is_some_and(|its| its.pid == process.pid()))?;
    Some(WorkerId::new(name.as_str(), named.incarnation))
}
