//! A job with a checkpoint, and what checks it from outside: by what its tasks have written into a file, and what it says at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebear::time::sleep;
use forebear_cluster::engine::Engine;
use forebear_cluster::{ClusterCoordinator, TaskFn, Tasks, tasks};
use forebear_supervise::{Snapshot, Supervisor};
use serde::{Deserialize, Serialize};

/// So many squares the job computes.
const SQUARES: u32 = 60;
/// So often its coordinator is killed.
const KILLS: u32 = 3;

/// Waits until the number is below the limit that a file says, writes down that it runs, and returns its square and which run of the coordinator has asked for it.
const SQUARE: TaskFn<(PathBuf, u32, u32), (u32, u32)> = TaskFn::new("square", |_, (dir, n, run)| {
    while n >= limit(&dir) {
        sleep(Duration::from_millis(1))?;
    }
    let mut log = OpenOptions::new().create(true).append(true).open(dir.join("log"))?;
    log.write_all(format!("{n}\n").as_bytes())?;
    Ok((n * n, run))
});

pub(crate) fn known() -> Tasks {
    tasks![SQUARE]
}

fn limit(dir: &Path) -> u32 {
    fs::read_to_string(dir.join("limit")).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The state of the job.
#[derive(Clone, Default, Serialize, Deserialize)]
struct State {
    runs: u32,
    /// Of each number: its square, the run that its task was scheduled in, and the run that has fetched it.
    squares: BTreeMap<u32, (u32, u32, u32)>,
}

/// The job, from where the last run was.
pub(crate) fn run(dir: &Path, engine: impl Engine) {
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
        let cluster = ClusterCoordinator::builder(engine).tasks(known()).start()?;
        let have = session.state().get().squares;
        let missing: Vec<u32> = (0..SQUARES).filter(|n| !have.contains_key(n)).collect();
        let args = missing.iter().map(|n| (dir.to_owned(), *n, run));
        for one in cluster.map(&SQUARE, args).window(4).unordered() {
            let (at, (square, its)) = one?;
            session
                .step(|state| state.update(|state| state.squares.insert(missing[at], (square, its, run))))?;
            session.save_now()?;
        }
        cluster.join()?;
        cluster.shutdown()?;
        Ok(())
    });
    ran.unwrap().unwrap();
    let mut text = String::new();
    for (n, (square, scheduled, fetched)) in supervisor.state().get().squares {
        text.push_str(&format!("{n} {square} {scheduled} {fetched}\n"));
    }
    fs::write(dir.join("end.new"), text).unwrap();
    fs::rename(dir.join("end.new"), dir.join("end")).unwrap();
}

fn numbers(file: &Path) -> Vec<Vec<u32>> {
    let text = fs::read_to_string(file).unwrap_or_default();
    // The last line may still be written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| line.split(' ').map(|number| number.parse().unwrap()).collect()).collect()
}

/// Runs the job, kills its coordinator in the middle so often, and looks at what came of it.
pub(crate) fn check(coordinator: impl Fn(&Path) -> Command) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ran = || numbers(&dir.join("log")).into_iter().map(|line| line[0]).collect::<BTreeSet<u32>>();
    let limit = |n: u32| {
        fs::write(dir.join("limit.new"), n.to_string()).unwrap();
        fs::rename(dir.join("limit.new"), dir.join("limit")).unwrap();
    };
    for kill in 1..=KILLS {
        let until = kill * SQUARES / (KILLS + 1);
        limit(until);
        let mut process = coordinator(dir).spawn().unwrap();
        while (0..until).any(|n| !ran().contains(&n)) {
            assert!(process.try_wait().unwrap().is_none(), "it has ended before it was killed");
            sleep(Duration::from_millis(1)).unwrap();
        }
        process.kill().unwrap();
        process.wait().unwrap();
    }
    limit(SQUARES);
    assert!(coordinator(dir).status().unwrap().success());
    assert_eq!(ran(), (0..SQUARES).collect());
    let end = numbers(&dir.join("end"));
    assert_eq!(end.len() as u32, SQUARES);
    for (n, line) in (0..).zip(&end) {
        assert_eq!(line[..2], [n, n * n]);
        assert_eq!(line[2], line[3], "no run takes what another one has scheduled");
    }
    let runs: BTreeSet<u32> = end.iter().map(|line| line[2]).collect();
    assert_eq!(runs, (1..=KILLS + 1).collect(), "each run has gone on where the last one was");
}
