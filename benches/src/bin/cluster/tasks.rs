//! The tasks: one that does nothing, and one that reports where it runs and then waits.

use std::os::unix::net::UnixDatagram;
use std::process;
use std::time::Duration;

use forebear_cluster::{TaskFn, Tasks, tasks};
use rustix::time::{ClockId, clock_gettime};

/// Returns its argument.
pub(crate) const NOOP: TaskFn<u64, u64> = TaskFn::new("noop", |_, n| Ok(n));

/// Reports to that socket which process it runs in, and when it began by [`clock`]. The first attempt then waits to be
/// killed.
pub(crate) const HOLD: TaskFn<String, u32> = TaskFn::new("hold", |ctx, socket| {
    let begun = clock();
    UnixDatagram::unbound()?.send_to(format!("{} {begun}", process::id()).as_bytes(), socket)?;
    if ctx.attempt() == 1 {
        forebear::time::sleep(Duration::from_secs(600))?;
    }
    Ok(ctx.attempt())
});

pub(crate) fn known() -> Tasks {
    tasks![NOOP, HOLD]
}

/// Nanoseconds of a clock that all processes of the machine share.
pub(crate) fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
