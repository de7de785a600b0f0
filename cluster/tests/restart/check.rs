//! Kills the coordinator of the [job](crate::job) in the middle, and looks at what came of it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebear::time::sleep;

use crate::job::{ENDED, SQUARES, numbers, put};

/// So often its coordinator is killed.
const KILLS: u32 = 3;

/// Runs the job, kills its coordinator in the middle so often, and looks at what came of it.
pub(crate) fn check(coordinator: impl Fn(&Path) -> Command) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ran = || {
        let lines = numbers(&dir.join("log")).into_iter();
        lines.filter(|line| line[1] == ENDED).map(|line| line[0]).collect::<BTreeSet<u32>>()
    };
    let limit = |n: u32| put(&dir.join("limit"), &n.to_string());
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
