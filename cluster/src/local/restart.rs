//! When worker processes are started: the later ones of the start, and those that have ended by themselves. The head of [`local`](super) has the rules.

use std::mem;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, Weak, mpsc};
use std::time::{Duration, Instant};

use super::process::launch;
use super::{LocalCluster, LocalControl, LocalProcessesControl, Named, lock};
use crate::dispatch::Dispatcher;
use crate::engine::{Event, Life, WarningHook, WorkerId};

/// A worker has ended, and nobody wanted that: starts it again, after a [pause](crate::engine::Failures), also if there is no room for a process just now. One that was refused would be refused again, and is given up.
pub(super) fn restart(cluster: &LocalCluster, id: &WorkerId, life: &Life, refused: Option<String>) {
    let Some(shared) = cluster.control.upgrade() else { return };
    let mut control = lock(&shared);
    let Some(named) = newest(&mut control, id) else { return };
    let mut pause = named.failures.ended(life);
    named.refused = refused;
    named.ended.clone_from(&life.how);
    let when = if life.ready.is_some() { "before it had finished a task" } else { "before it was ready" };
    let why = loop {
        let Some(named) = newest(&mut control, id) else { return };
        let (failed, index) = (named.failures.failed(), named.index);
        if let Some(why) = &named.refused {
            break format!("it was refused: {why}");
        }
        if failed > cluster.settings.restarts {
            break format!("it has ended {failed} times in a row {when} ({})", named.ended);
        }
        if !pause.is_zero() {
            drop(control);
            let (_open, never) = mpsc::channel::<()>();
            let _ = never.recv_timeout(pause);
            control = lock(&shared);
        }
        let Some(dispatcher) = open(cluster) else { return };
        if newest(&mut control, id).is_none() {
            return;
        }
        let next = WorkerId::new(id.name(), id.incarnation() + 1);
        let launched = launch(cluster, &dispatcher, next, index);
        let Some(named) = newest(&mut control, id) else { return };
        match launched {
            Ok(process) => {
                named.incarnation += 1;
                named.process = Arc::downgrade(&process);
                return;
            }
            Err(error) => {
                named.ended = format!("it cannot be started: {error}");
                if named.failures.failed() >= cluster.settings.restarts {
                    break named.ended.clone();
                }
                pause = named.failures.unready();
            }
        }
    };
    if let Some(named) = newest(&mut control, id) {
        named.given_up = true;
    }
    drop(control);
    cluster.settings.warnings.warn(format_args!("the worker `{}` is not started again: {why}", id.name()));
    tell_if_away(cluster, lock(&shared));
}

/// A worker has ended, and somebody wanted that: nobody starts it again. The others may be given up.
pub(super) fn left(cluster: &LocalCluster, id: &WorkerId) {
    let Some(shared) = cluster.control.upgrade() else { return };
    let mut control = lock(&shared);
    if let Some(named) = newest(&mut control, id) {
        named.left = true;
    }
    tell_if_away(cluster, control);
}

/// Tells the coordinator if nobody will ever take a task.
fn tell_if_away(cluster: &LocalCluster, mut control: MutexGuard<'_, LocalControl>) {
    let away = is_away(&mut control);
    drop(control);
    if let (Some(reason), Some(dispatcher)) = (away, open(cluster)) {
        dispatcher.tell(Event::Unavailable { reason });
    }
}

/// What is known of the worker's name. `None`: a newer one of that name is there.
fn newest<'a>(control: &'a mut LocalControl, id: &WorkerId) -> Option<&'a mut Named> {
    control.names.get_mut(id.name()).filter(|named| named.incarnation == id.incarnation())
}

fn open(cluster: &LocalCluster) -> Option<Arc<Dispatcher>> {
    cluster.dispatcher.upgrade().filter(|dispatcher| dispatcher.is_open())
}

/// The reason, if all names are given up, but for those that were killed or drained, and the coordinator does not know it yet. If all were killed or drained
/// the engine is not away: whoever wanted that may start others.
fn is_away(control: &mut LocalControl) -> Option<String> {
    let given_up = control.names.values().any(|named| named.given_up);
    let there = control.names.values().any(|named| !named.given_up && !named.left);
    if !given_up || there || mem::replace(&mut control.away, true) {
        return None;
    }
    let refused = control.names.iter().find_map(|(name, named)| Some((name, named.refused.clone()?)));
    if let Some((name, why)) = refused {
        return Some(format!("no worker can be started; `{name}` was refused: {why}"));
    }
    let (name, named) = control.names.iter().find(|(_, named)| named.given_up)?;
    Some(format!(
        "each worker process that nobody stopped has ended again and again before it had finished a task, `{name}` at last so: {}; see what they wrote",
        named.ended
    ))
}

/// Starts the workers of these numbers, each so long after the one before, and all within `most`. Ends with the cluster.
pub(super) fn start_later(
    control: &Weak<Mutex<LocalControl>>,
    workers: Range<usize>,
    each: Duration,
    most: Duration,
    warnings: &WarningHook,
) {
    let begun = Instant::now();
    for number in workers {
        let delay = each.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX)).min(most);
        while begun.elapsed() < delay {
            // It looks now and then whether the cluster is still there.
            let (_open, never) = mpsc::channel::<()>();
            let _ = never.recv_timeout(delay.saturating_sub(begun.elapsed()).min(Duration::from_secs(1)));
            let Some(control) = control.upgrade() else { return };
            let dispatcher = lock(&control).cluster.as_ref().and_then(|cluster| cluster.dispatcher.upgrade());
            if dispatcher.is_none_or(|dispatcher| !dispatcher.is_open()) {
                return;
            }
        }
        let Some(control) = control.upgrade().map(LocalProcessesControl) else { return };
        if let Err(error) = control.add(&format!("worker-{number}")) {
            warnings.warn(format_args!("the worker `worker-{number}` cannot be started: {error}"));
        }
    }
}
