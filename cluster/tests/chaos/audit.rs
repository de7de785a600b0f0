//! The checker: what the tasks have written and what the job says at its end, against each other. It knows no coordinator and no worker.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::{BEGUN, ENDED};

/// What a checker is given.
pub(crate) struct Account<'a> {
    /// How many squares were to be computed.
    pub(crate) size: u32,
    /// The lines of the tasks: number, what, run, attempt, process.
    pub(crate) log: &'a [Vec<u32>],
    /// The lines of the job's end: number, square, the run that scheduled it, the run that fetched it, attempt.
    pub(crate) end: &'a [Vec<u32>],
    /// How often a coordinator was started.
    pub(crate) runs: u32,
    /// So many workers were lost, if that is known exactly: no more tasks than that have begun again in one run.
    pub(crate) losses: Option<u32>,
}

impl Account<'_> {
    /// All that is wrong.
    pub(crate) fn findings(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut said = BTreeSet::new();
        let mut attempts: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for line in self.log {
            let &[n, what, run, attempt, _process] = &line[..] else {
                found.push(format!("the line {line:?} is none of a task"));
                continue;
            };
            if n >= self.size || run == 0 || run > self.runs || attempt == 0 {
                found.push(format!("the line {line:?} is of no task of this job"));
            }
            if !said.insert((n, what, run, attempt)) {
                found.push(format!("task {n} of run {run}: attempt {attempt} ran twice"));
            }
            let most = attempts.entry((n, run)).or_default();
            *most = attempt.max(*most);
        }
        for &(n, what, run, attempt) in &said {
            if what == ENDED && !said.contains(&(n, BEGUN, run, attempt)) {
                found.push(format!("task {n} of run {run}: attempt {attempt} has ended and not begun"));
            }
        }
        self.compare(&said, &mut found);
        let again: u32 = attempts.values().map(|most| most - 1).sum();
        if let Some(losses) = self.losses.filter(|losses| again > *losses) {
            found.push(format!("{again} attempts were made again, and {losses} workers were lost"));
        }
        let begun = said.iter().filter(|(_, what, ..)| *what == BEGUN).count() as u32;
        if self.runs == 1 && self.losses == Some(0) && begun != self.size {
            found.push(format!("nothing failed, and {} tasks began {begun} times", self.size));
        }
        found
    }

    /// Each result is right, and the attempt that it is of has ended.
    fn compare(&self, said: &BTreeSet<(u32, u32, u32, u32)>, found: &mut Vec<String>) {
        let results: BTreeMap<u32, &[u32]> = self.end.iter().map(|line| (line[0], &line[1..])).collect();
        if results.len() != self.end.len() {
            found.push("a number has two results".into());
        }
        for n in 0..self.size {
            match results.get(&n).copied() {
                None => found.push(format!("task {n} is lost: it has no result")),
                Some(&[square, scheduled, fetched, attempt]) => {
                    if square != n * n {
                        found.push(format!("task {n} has the result {square}"));
                    }
                    if scheduled != fetched {
                        found.push(format!("run {fetched} has taken task {n} of run {scheduled}"));
                    }
                    if !said.contains(&(n, ENDED, scheduled, attempt)) {
                        found.push(format!(
                            "task {n} is lost: run {scheduled} has a result of attempt {attempt}, which has not ended"
                        ));
                    }
                }
                Some(line) => found.push(format!("the line {n} {line:?} is no result")),
            }
        }
    }
}

/// A checker that finds nothing proves nothing: each finding is made once.
#[test]
fn the_checker_finds_what_is_lost_doubled_mixed_and_wrong() {
    let log = vec![vec![0, 0, 1, 1, 9], vec![0, 1, 1, 1, 9], vec![1, 0, 1, 1, 9], vec![1, 1, 1, 1, 9]];
    let end = vec![vec![0, 0, 1, 1, 1], vec![1, 1, 1, 1, 1]];
    let check = |log: &[Vec<u32>], end: &[Vec<u32>], runs, losses| {
        Account { size: 2, log, end, runs, losses }.findings().join("; ")
    };
    assert_eq!(check(&log, &end, 1, Some(0)), "");
    let with = |lines: &[Vec<u32>], line: &[u32]| [lines, &[line.to_vec()]].concat();
    let finds = |found: String, what: &str| assert!(found.contains(what), "`{found}` has no `{what}`");
    finds(check(&log, &end[..1], 1, None), "task 1 is lost: it has no result");
    finds(check(&log[..3], &end, 1, None), "task 1 is lost: run 1 has a result of attempt 1");
    finds(check(&with(&log, &[1, 1, 1, 1, 8]), &end, 1, None), "ran twice");
    finds(check(&with(&log, &[1, 1, 1, 2, 8]), &end, 1, None), "ended and not begun");
    finds(check(&with(&log, &[1, 0, 2, 1, 8]), &end, 1, None), "no task of this job");
    finds(check(&with(&log, &[1, 0, 1, 2, 8]), &end, 1, Some(0)), "1 attempts were made again");
    finds(
        check(&with(&log, &[1, 0, 1, 2, 8]), &end, 1, Some(0)),
        "nothing failed, and 2 tasks began 3 times",
    );
    finds(check(&log, &with(&end[..1], &[1, 2, 1, 1, 1]), 1, None), "task 1 has the result 2");
    finds(check(&log, &with(&end[..1], &[1, 1, 1, 2, 1]), 2, None), "run 2 has taken task 1 of run 1");
    finds(check(&log, &with(&end, &[1, 1, 1, 1, 1]), 1, None), "two results");
}
