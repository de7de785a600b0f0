//! The memory of the process: with suspended tasks, with unstarted tasks, and when all are over.

use std::time::{Duration, Instant};

use crate::rival::Run;

/// In the order of [`Memory::figures`].
pub const HELD: [&str; 3] = ["bytes", "of them page tables", "create ns"];

/// Bytes a task that has not begun, its closure and its handle not counted.
pub const BARE: &str = "bytes beside closure and handle";

/// The figures of [`burst`]: bytes a task when all are suspended, when all are over, and when no more memory is returned to the
/// system for a while. Also the milliseconds until then, and bytes a task after a [`REST`].
pub const TRIMMED: [&str; 5] =
    ["bytes at the peak", "bytes when over", "bytes when trimmed", "ms until trimmed", "bytes after a rest"];

/// If no memory is released for so long, none will be.
const SETTLES: Duration = Duration::from_millis(200);

/// A runtime releases idle memory after a second, in pieces: wait for that.
const REST: Duration = Duration::from_secs(4);

/// The memory of the process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    /// Resident bytes.
    pub resident: u64,
    /// Bytes of page tables.
    pub tables: u64,
}

impl Memory {
    /// Reads `/proc/self/status`; zeros where there is none.
    #[must_use]
    pub fn now() -> Memory {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = |key| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        Memory { resident: kib("VmRSS:").unwrap_or(0) * 1024, tables: kib("VmPTE:").unwrap_or(0) * 1024 }
    }

    /// Bytes a task of `n` that came after `before`: resident, and page tables.
    fn since(self, before: Memory, n: u64) -> (f64, f64) {
        let each = |now: u64, before: u64| now.saturating_sub(before) as f64 / n as f64;
        (each(self.resident, before.resident), each(self.tables, before.tables))
    }

    /// The figures of [`Load::Suspended`](crate::Load::Suspended): bytes a task, resident and with page tables.
    #[must_use]
    pub fn figures(before: Memory, after: Memory, n: u64, create: Duration) -> Vec<(&'static str, f64)> {
        let (resident, tables) = after.since(before, n);
        let create = create.as_nanos() as f64 / n as f64;
        HELD.into_iter().zip([resident + tables, tables, create]).collect()
    }

    /// The figure of [`Load::Queued`](crate::Load::Queued): bytes a task, without the user's closure and the handle.
    #[must_use]
    pub fn bare(before: Memory, n: u64, closure: usize, handle: usize) -> Vec<(&'static str, f64)> {
        let (resident, tables) = Memory::now().since(before, n);
        vec![(BARE, resident + tables - (closure + handle) as f64)]
    }
}

#[allow(clippy::disallowed_methods, reason = "nobody tells when memory is given back")]
fn pass(time: Duration) {
    std::thread::sleep(time);
}

/// Runs `suspend`, which answers the [figures](HELD) of `n` suspended tasks when all are over, and waits until the
/// process releases no more memory. The time is that of the release.
pub fn burst(n: u64, suspend: impl FnOnce() -> Run) -> Run {
    let before = Memory::now();
    let run = suspend();
    let (start, over) = (Instant::now(), Memory::now());
    let (mut least, mut last) = (over, Duration::ZERO);
    while start.elapsed() < last + SETTLES {
        pass(Duration::from_millis(1));
        let now = Memory::now();
        // What stays takes pages here and there for itself; a thousandth is no news.
        if now.resident + over.resident / 1_000 < least.resident {
            (least, last) = (now, start.elapsed());
        }
    }
    pass(REST.saturating_sub(start.elapsed()));
    let total = |of: Memory| {
        let (resident, tables) = of.since(before, n);
        resident + tables
    };
    let peak = run.figures.iter().find(|(name, _)| *name == HELD[0]).map_or(0.0, |(_, bytes)| *bytes);
    let figures = [peak, total(over), total(least), last.as_secs_f64() * 1e3, total(Memory::now())];
    Run { elapsed: last, value: run.value, figures: TRIMMED.into_iter().zip(figures).collect() }
}
