//! Makes a failing program small: leaves nodes out for as long as it still fails.
//!
//! What fails seldom is run several times for each try, by how often it failed at first. So what is left may be larger than it need
//! be; it never is a program that has not failed.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use crate::program::Program;
use crate::supervise::{Finding, run_batch};

/// How long one finding is worked on.
const PATIENCE: Duration = Duration::from_secs(150);

/// The grace of each run, in seconds: most of what fails hangs, and is waited for so long.
const GRACE: u64 = 3;

/// How often a program is run to see how often it fails.
const TRIES: u32 = 20;

#[derive(Debug)]
pub(crate) struct Shrunk {
    pub(crate) without: HashSet<u32>,
    /// How many runs of how many failed, as it was drawn, and as it is left.
    pub(crate) before: (u32, u32),
    pub(crate) after: (u32, u32),
}

/// How many of at most `tries` runs fail; stops at the first failure if only that is asked for.
fn failures(
    seed: u64,
    without: &HashSet<u32>,
    tries: u32,
    first: bool,
    until: Instant,
) -> io::Result<(u32, u32)> {
    let (mut failed, mut ran) = (0, 0);
    while ran < tries && Instant::now() < until && !(first && failed > 0) {
        ran += 1;
        failed += u32::from(run_batch(seed, 1, without, false, GRACE, None)?.1.is_some());
    }
    Ok((failed, ran))
}

/// Shrinks the program of a finding.
pub(crate) fn shrink(finding: &Finding, given: &HashSet<u32>) -> io::Result<Shrunk> {
    let until = Instant::now() + PATIENCE;
    let seed = finding.seed;
    let before = failures(seed, given, TRIES, false, until)?;
    let mut shrunk = Shrunk { without: given.clone(), before, after: before };
    if before.0 == 0 {
        return Ok(shrunk);
    }
    let tries = (3 * before.1 / before.0).max(2);
    let nodes = Program::draw(seed, given.clone()).nodes;
    let mut chunk = nodes.div_ceil(2).max(1);
    loop {
        let mut gone = false;
        for from in (0..nodes).step_by(chunk as usize) {
            let with: Vec<u32> =
                (from..nodes.min(from + chunk)).filter(|id| !shrunk.without.contains(id)).collect();
            if with.is_empty() || Instant::now() > until {
                continue;
            }
            let mut without = shrunk.without.clone();
            without.extend(with);
            if failures(seed, &without, tries, true, until)?.0 > 0 {
                shrunk.without = without;
                gone = true;
            }
        }
        if Instant::now() > until || (chunk == 1 && !gone) {
            break;
        }
        chunk = if chunk > 1 { chunk / 2 } else { 1 };
    }
    shrunk.after = failures(seed, &shrunk.without, TRIES, false, until + PATIENCE / 3)?;
    Ok(shrunk)
}
