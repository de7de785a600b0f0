//! A job with a checkpoint. What checks it from outside goes by what its tasks have written into a file, and what it says at its end: `check.rs` here, and `tests/chaos`.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebear::time::sleep;
use forebear_cluster::engine::Engine;
use forebear_cluster::{ClusterCoordinator, TaskFn, Tasks, tasks};
use forebear_supervise::{Snapshot, Supervisor};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// So many squares the job computes, unless a file says otherwise.
pub(crate) const SQUARES: u32 = 60;

/// What a task has done when it adds a line to the log.
pub(crate) const BEGUN: u32 = 0;
pub(crate) const ENDED: u32 = 1;

/// A directory, a number, and the run of the coordinator that asks for its square.
pub(crate) type Asked = (PathBuf, u32, u32);
/// The square, the run that has asked for it, and the attempt.
pub(crate) type Squared = (u32, u32, u32);

/// Waits until the number is below the limit that a file says. Writes into the log when it begins and when it ends: the number, which of the two, the run, the attempt, and the process.
const SQUARE: TaskFn<Asked, Squared> = TaskFn::new("square", |ctx, (dir, n, run)| {
    let mut log = OpenOptions::new().create(true).append(true).open(dir.join("log"))?;
    let mut say = |what: u32| {
        let line = format!("{n} {what} {run} {} {}\n", ctx.attempt(), std::process::id());
        log.write_all(line.as_bytes())
    };
    say(BEGUN)?;
    while n >= number_in(&dir.join("limit")).unwrap_or(0) {
        sleep(Duration::from_millis(1))?;
    }
    say(ENDED)?;
    Ok((n * n, run, ctx.attempt()))
});

pub(crate) fn known() -> Tasks {
    tasks![SQUARE]
}

fn number_in(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.parse().ok()
}

/// How many squares the job computes.
pub(crate) fn size(dir: &Path) -> u32 {
    number_in(&dir.join("size")).unwrap_or(SQUARES)
}

/// Writes a file that readers find whole.
pub(crate) fn put(file: &Path, text: &str) {
    fs::write(file.with_extension("new"), text).unwrap();
    fs::rename(file.with_extension("new"), file).unwrap();
}

/// The state of the job.
#[derive(Clone, Default, Serialize, Deserialize)]
struct State {
    runs: u32,
    /// Of each number: its square, the run that its task was scheduled in, the attempt, and the run that has fetched it.
    squares: BTreeMap<u32, (Squared, u32)>,
}

/// A worker that the last run was starting when it was killed holds that run's locks until it runs its own program.
fn await_lock(dir: &Path) {
    while let Ok(lock) = File::open(dir.join("state/chief.lock"))
        && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err()
    {
        sleep(Duration::from_millis(1)).unwrap();
    }
}

/// The job, from where the last run was.
pub(crate) fn run(dir: &Path, engine: impl Engine) {
    await_lock(dir);
    let snapshot = Snapshot::new(1, State::default());
    let supervisor =
        Supervisor::builder(snapshot).dir(dir.join("state")).no_events().save_every(None).build();
    let ran = supervisor.run(|session| {
        let run = session.step(|state| {
            state.update(|state| {
                state.runs += 1;
                state.runs
            })
        })?;
        session.save_now()?;
        // However often its worker is killed, no task is given up.
        let cluster = ClusterCoordinator::builder(engine).tasks(known()).max_attempts(u32::MAX).start()?;
        let have = session.state().get().squares;
        let missing: Vec<u32> = (0..size(dir)).filter(|n| !have.contains_key(n)).collect();
        let args = missing.iter().map(|n| (dir.to_owned(), *n, run));
        for one in cluster.map(&SQUARE, args).window(4).unordered() {
            let (at, squared) = one?;
            session.step(|state| state.update(|state| state.squares.insert(missing[at], (squared, run))))?;
            session.save_now()?;
        }
        cluster.join()?;
        cluster.shutdown()?;
        Ok(())
    });
    ran.unwrap().unwrap();
    let mut text = String::new();
    for (n, ((square, scheduled, attempt), fetched)) in supervisor.state().get().squares {
        text.push_str(&format!("{n} {square} {scheduled} {fetched} {attempt}\n"));
    }
    put(&dir.join("end"), &text);
}

/// The numbers of each line.
pub(crate) fn numbers(file: &Path) -> Vec<Vec<u32>> {
    let text = fs::read_to_string(file).unwrap_or_default();
    // The last line may still be written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| line.split(' ').map(|number| number.parse().unwrap()).collect()).collect()
}
