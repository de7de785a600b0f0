//! An idle runtime: the processor time of its threads, and how long it takes to wake one.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::measure::{median, quantile};
use crate::rival::{Run, Spawn};

/// How often the threads gave up their core voluntarily in the pause: each is a sleep that ended.
pub const SWITCHES: &str = "switches";
/// What the call outside took, in microseconds.
pub const WAKER: &str = "waker us";
/// The hundredth part of the tasks took longer, in microseconds.
pub const P99: &str = "p99 us";

/// So long after its last work a runtime may still be falling asleep.
const GOES_TO_SLEEP: Duration = Duration::from_millis(100);

/// The use of all threads of the process but the calling one so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Used {
    /// Time on a core.
    pub cpu: Duration,
    /// Voluntary switches.
    pub switches: u64,
}

impl Used {
    /// Reads `/proc/self/task`; zeros where there is none.
    #[must_use]
    pub fn by_others() -> Used {
        let me = std::fs::read_link("/proc/thread-self").unwrap_or_default();
        let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let mut all = Used::default();
        for thread in threads.filter(|thread| Some(&*thread.file_name()) != me.file_name()) {
            // One that ends meanwhile has no files any more.
            let read = |name| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let number =
                |text: Option<&str>| text.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
            all.cpu += Duration::from_nanos(number(read("schedstat").split(' ').next()));
            let status = read("status");
            all.switches +=
                number(status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")));
        }
        all
    }
}

#[allow(clippy::disallowed_methods, reason = "that nothing happens for so long is the load")]
fn nothing_for(time: Duration) {
    std::thread::sleep(time);
}

/// Does nothing for so many milliseconds.
#[must_use]
pub fn idle(millis: u64) -> Run {
    nothing_for(GOES_TO_SLEEP);
    let before = Used::by_others();
    nothing_for(Duration::from_millis(millis));
    let after = Used::by_others();
    let switches = after.switches.saturating_sub(before.switches) as f64;
    Run { elapsed: after.cpu.saturating_sub(before.cpu), value: 1, figures: vec![(SWITCHES, switches)] }
}

/// `n` tasks, each after a pause of `pause` microseconds; the time is the median times `n`.
///
/// # Panics
///
/// If the runtime drops a task.
#[must_use]
pub fn wakes(spawner: &dyn Spawn, n: u64, pause: u64) -> Run {
    let (tell, told) = mpsc::channel();
    let (mut slept, mut called) = (Vec::new(), Vec::new());
    for _ in 0..n {
        nothing_for(Duration::from_micros(pause));
        let tell = tell.clone();
        let start = Instant::now();
        spawner.spawn(Box::new(move || {
            let latency = start.elapsed();
            tell.send(latency).expect("the caller listens");
        }));
        called.push(start.elapsed().as_nanos() as f64);
        slept.push(told.recv().expect("the task was run").as_nanos() as f64);
    }
    slept.sort_by(f64::total_cmp);
    called.sort_by(f64::total_cmp);
    Run {
        elapsed: Duration::from_nanos((median(&slept) * n as f64) as u64),
        value: n,
        figures: vec![(WAKER, median(&called) / 1e3), (P99, quantile(&slept, 0.99) / 1e3)],
    }
}
