//! When worker processes are started: the later ones of the start, and those that have ended by themselves. The head of [`local`](super) has the rules.

use std::mem;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, Weak, mpsc};
use std::time::{Duration, Instant};

use super::process::launch;
use super::{LocalCluster, LocalControl, LocalProcessesControl, Named, lock};
use crate::dispatch::Dispatcher;
use crate::engine::{Event, WarningHook, WorkerId};

/// The first pause.
const PAUSE: Duration = Duration::from_millis(50);

/// A pause doubles so often.
const DOUBLINGS: u32 = 7;

/// A worker has to live so many times as long as the last pause, until the next end costs none.
const FACTOR: u32 = 10;

/// And at least so long.
const WHILE: Duration = Duration::from_millis(500);

/// A worker that has lived for so long is sound, also if it had nothing to do.
const SOUND: Duration = Duration::from_secs(60);

/// The life of a worker process that has ended by itself.
pub(super) struct Life {
    /// For how long it was ready, if it ever was.
    pub(super) ready: Option<Duration>,
    /// It has finished a task.
    pub(super) finished: bool,
    /// It had tasks in hand.
    pub(super) busy: bool,
    /// Its exit status or signal.
    pub(super) how: String,
}

/// The workers of one name that have ended too soon.
///
/// Two things are counted, each in a row. An end *fails* if its worker has finished no task, and had none that could be the cause. If it had one, the poison limit of the tasks judges
/// that. A life is *short* if its worker finished no task, or did not live for a while. The pauses follow from that number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Failures {
    failed: u32,
    short: u32,
}

impl Failures {
    /// Another one has ended. The pause before the next one is started.
    fn ended(&mut self, life: &Life) -> Duration {
        let Some(lived) = life.ready else { return self.unready() };
        let sound = lived >= SOUND;
        if sound || life.finished {
            self.failed = 0;
        } else if !life.busy {
            self.failed = self.failed.saturating_add(1);
        }
        let pause = pause(self.short);
        if sound || life.finished && lived >= WHILE.max(pause * FACTOR) {
            self.short = 0;
        }
        let pause = self::pause(self.short);
        self.short = self.short.saturating_add(1);
        pause
    }

    /// One could not be started, or has ended before it was ready. The pause before the next one is started.
    fn unready(&mut self) -> Duration {
        self.failed = self.failed.saturating_add(1);
        self.short = self.short.saturating_add(1);
        pause(self.short)
    }
}

/// The pause after so many short lives.
fn pause(short: u32) -> Duration {
    match short {
        0 => Duration::ZERO,
        short => PAUSE * (1 << (short - 1).min(DOUBLINGS)),
    }
}

/// A worker has ended, and nobody wanted that: starts it again, after a [pause](Failures), also if there is no room for a process just now. One that was refused would be refused again, and is given up.
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
        let (failed, index) = (named.failures.failed, named.index);
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
                if named.failures.failed >= cluster.settings.restarts {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn life(ready: Option<u64>, finished: bool, busy: bool) -> Life {
        Life { ready: ready.map(Duration::from_millis), finished, busy, how: "exit status: 1".into() }
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_are_over_after_a_life_that_was_long_enough() {
        let mut failures = Failures::default();
        let mut pauses = |life: &Life| failures.ended(life).as_millis();
        // It has finished something each time, and dies at once.
        let short = life(Some(1), true, false);
        let doubled: Vec<u128> = (0..10).map(|_| pauses(&short)).collect();
        assert_eq!(doubled, [0, 50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 6_400]);
        // Its downtime stays below a tenth.
        assert_eq!(pauses(&life(Some(59_000), true, true)), 6_400);
        assert_eq!(pauses(&life(Some(64_000), true, true)), 0);
        assert_eq!(pauses(&life(Some(499), true, true)), 50);
        assert_eq!(pauses(&life(Some(501), true, true)), 100);
        assert_eq!(pauses(&life(Some(2_000), true, true)), 0);
    }

    #[test]
    fn only_ends_without_a_task_that_could_be_the_cause_count_as_failed() {
        let mut failures = Failures::default();
        let mut failed = |life: &Life| {
            failures.ended(life);
            failures.failed
        };
        assert_eq!(failed(&life(None, false, false)), 1);
        assert_eq!(failed(&life(Some(1), false, false)), 2);
        assert_eq!(failed(&life(Some(1), false, true)), 2, "its task is judged for that");
        assert_eq!(failed(&life(Some(1), true, false)), 0);
        assert_eq!(failed(&life(Some(1), false, false)), 1);
        assert_eq!(failed(&life(Some(61_000), false, false)), 0, "it had nothing to do");
    }
}
