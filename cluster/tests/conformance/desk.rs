//! [`Desk`]: what tasks tell a test, and what a test tells tasks, by files. And the tasks of the suite.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use forebear::time::sleep;
use forebear::{Cancelled, Error, Request, Runtime, scope, shield};
use forebear_cluster::{PerWorker, ResourceFn, Stored, TaskError, TaskFn, Tasks, tasks};
use serde::{Deserialize, Serialize};

use crate::until;
use crate::wild::{SPEAK, UNREAD, UNWRITTEN};

/// Ends the program if a test hangs.
pub(crate) struct Watchdog(
    #[allow(dead_code, reason = "its drop says that the test is over")] mpsc::Sender<()>,
);

impl Watchdog {
    pub(crate) fn new(test: &'static str) -> Watchdog {
        let (send, receive) = mpsc::channel();
        thread::spawn(move || {
            if receive.recv_timeout(Duration::from_secs(300)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{test} hangs");
                process::abort();
            }
        });
        Watchdog(send)
    }
}

/// A directory that both sides know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Desk(PathBuf);

impl Desk {
    pub(crate) fn new(dir: &tempfile::TempDir) -> Desk {
        Desk(dir.path().to_owned())
    }

    pub(crate) fn shut(&self, gate: &str) {
        fs::remove_file(self.0.join(gate)).unwrap();
    }

    /// Adds a line to the log.
    pub(crate) fn log(&self, line: &str) {
        // Nobody reads any more what a destructor logs after the test.
        if let Ok(mut log) = OpenOptions::new().create(true).append(true).open(self.0.join("log")) {
            log.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let log = fs::read_to_string(self.0.join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// How often the line was logged.
    pub(crate) fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|known| *known == line).count()
    }

    pub(crate) fn open(&self, gate: &str) {
        fs::write(self.0.join(gate), "").unwrap();
    }

    pub(crate) fn is_open(&self, gate: &str) -> bool {
        self.0.join(gate).exists()
    }

    /// Waits until a gate is open.
    pub(crate) fn pass(&self, gate: &str) -> Result<(), Cancelled> {
        while !self.is_open(gate) {
            sleep(Duration::from_millis(1))?;
        }
        Ok(())
    }

    /// The process that was named last.
    pub(crate) fn process(&self) -> u32 {
        let lines = self.lines();
        let last = lines.iter().rev().find_map(|line| line.strip_prefix("process "));
        last.unwrap().parse().unwrap()
    }

    /// Waits until the line was logged so often.
    pub(crate) fn await_lines(&self, line: &str, times: usize) {
        until(|| self.count(line) >= times);
    }
}

pub(crate) const ADD: TaskFn<(u32, u32), u32> = TaskFn::new("add", |_, (a, b)| Ok(a + b));

pub(crate) const NOTHING: TaskFn<(), ()> = TaskFn::new("nothing", |_, ()| Ok(()));

pub(crate) const LOG: TaskFn<(Desk, String), ()> = TaskFn::new("log", |_, (desk, line)| {
    desk.log(&line);
    Ok(())
});

pub(crate) const FAIL: TaskFn<String, u32> = TaskFn::new("fail", |_, text| Err(Error::other(text)));

pub(crate) const PANIC: TaskFn<String, ()> = TaskFn::new("panic", |_, text| panic!("{text}"));

type Shape = (Vec<Option<u32>>, String, (u8, bool));

pub(crate) const SHAPE: TaskFn<u32, Shape> =
    TaskFn::new("shape", |_, n| Ok((vec![Some(n), None], n.to_string(), (1, true))));

/// Runs until its gate is open, and returns the worker's name and the attempt.
pub(crate) const GATE: TaskFn<(Desk, String), (String, u32)> = TaskFn::new("gate", |ctx, (desk, gate)| {
    desk.log(&format!("started {gate}"));
    if let Err(cancelled) = desk.pass(&gate) {
        desk.log(&format!("cancelled {gate}"));
        return Err(cancelled.into());
    }
    desk.log(&format!("ended {gate}"));
    Ok((ctx.worker().name().to_owned(), ctx.attempt()))
});

/// As [`GATE`], and names its process first.
pub(crate) const SIGNED: TaskFn<(Desk, String), ()> = TaskFn::new("signed", |_, (desk, gate)| {
    desk.log(&format!("process {}", process::id()));
    desk.log(&format!("started {gate}"));
    Ok(desk.pass(&gate)?)
});

/// Keeps all threads that run requests on its worker until its gate is open, without a wait. It says that it has started when all are kept.
pub(crate) const STUCK: TaskFn<(Desk, String), ()> = TaskFn::new("stuck", |_, (desk, gate)| {
    let (threads, kept) = (Runtime::current().workers(), AtomicUsize::new(0));
    let spin = || {
        if kept.fetch_add(1, Ordering::Relaxed) + 1 == threads {
            desk.log(&format!("started {gate}"));
        }
        while !desk.is_open(&gate) {
            std::hint::spin_loop();
        }
    };
    scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(spin)).collect();
        spin();
        drop(others);
    });
    Ok(())
});

/// As [`GATE`], but when it is cancelled it still waits for its gate, and then fails with an error of its own.
pub(crate) const LINGER: TaskFn<(Desk, String), ()> = TaskFn::new("linger", |_, (desk, gate)| {
    desk.log(&format!("started {gate}"));
    while !forebear::is_cancelled() {
        let _ = sleep(Duration::from_millis(1));
    }
    desk.log(&format!("cancelled {gate}"));
    let _ = shield(|| desk.pass(&gate));
    desk.log(&format!("ended {gate}"));
    Err(Error::other("what I wrote to is gone"))
});

/// Says how far it is, then waits for its gate.
pub(crate) const PROGRESS: TaskFn<(Desk, f64), ()> = TaskFn::new("progress", |ctx, (desk, fraction)| {
    ctx.progress(fraction);
    Ok(desk.pass("progress")?)
});

/// What each worker has one of. Its making and its drop are logged.
pub(crate) struct Counter {
    desk: Desk,
    label: String,
    count: AtomicU32,
    index: usize,
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.desk.log(&format!("dropped {}", self.label));
    }
}

pub(crate) const COUNTER: ResourceFn<(Desk, String), Counter> =
    ResourceFn::new("counter", |ctx, (desk, label)| {
        desk.log(&format!("made {label}"));
        Ok(Counter { desk, label, count: AtomicU32::new(0), index: ctx.worker_index() })
    });

/// The same, once its gate is open.
pub(crate) const GATED_COUNTER: ResourceFn<(Desk, String), Counter> =
    ResourceFn::new("gated counter", |ctx, (desk, label)| {
        desk.log(&format!("making {label}"));
        desk.pass(&label)?;
        desk.log(&format!("made {label}"));
        Ok(Counter { desk, label, count: AtomicU32::new(0), index: ctx.worker_index() })
    });

pub(crate) const BROKEN: ResourceFn<String, Counter> =
    ResourceFn::new("broken", |_, text| Err(Error::other(text)));

/// The number of the worker, that of its part, and the count.
type Counted = (usize, usize, u32);

/// Counts by one.
pub(crate) const COUNT: TaskFn<PerWorker<Counter>, Counted> = TaskFn::new("count", |ctx, counter| {
    let counter = ctx.local(&counter)?;
    Ok((ctx.worker_index(), counter.index, counter.count.fetch_add(1, Ordering::Relaxed) + 1))
});

pub(crate) const COUNT_TWO: TaskFn<(PerWorker<Counter>, PerWorker<Counter>), (u32, u32)> =
    TaskFn::new("count two", |ctx, (a, b)| {
        let count = |counter: &PerWorker<Counter>| -> Result<u32, Error> {
            Ok(ctx.local(counter)?.count.fetch_add(1, Ordering::Relaxed) + 1)
        };
        Ok((count(&a)?, count(&b)?))
    });

/// Counts by one when its gate is open, so that it keeps its worker until then.
pub(crate) const COUNT_GATED: TaskFn<(Desk, String, PerWorker<Counter>), Counted> =
    TaskFn::new("count gated", |ctx, (desk, gate, counter)| {
        desk.log(&format!("started {gate}"));
        desk.pass(&gate)?;
        let counter = ctx.local(&counter)?;
        Ok((ctx.worker_index(), counter.index, counter.count.fetch_add(1, Ordering::Relaxed) + 1))
    });

/// Some bytes, and more of them in the store.
type Tables = (Vec<u8>, Stored<Vec<u8>>);

/// All of them.
pub(crate) const TABLE: ResourceFn<Tables, Vec<u8>> =
    ResourceFn::new("table", |ctx, (bytes, more)| Ok([bytes, more.get(ctx)?.to_vec()].concat()));

/// Their sum.
pub(crate) const TOTAL: ResourceFn<PerWorker<Vec<u8>>, u64> =
    ResourceFn::new("total", |ctx, table| Ok(sum_of(&ctx.local(&table)?)));

pub(crate) const KNOWN_TOTAL: TaskFn<PerWorker<u64>, u64> =
    TaskFn::new("known total", |ctx, total| Ok(*ctx.local(&total)?));

/// The numbers below this one, in an order that the worker's number gives.
pub(crate) const SHUFFLED: ResourceFn<u32, Vec<u32>> = ResourceFn::new("shuffled", |ctx, n| {
    let factor = (2 * ctx.worker_index() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut numbers: Vec<u32> = (0..n).collect();
    numbers.sort_by_key(|number| u64::from(*number).wrapping_mul(factor));
    Ok(numbers)
});

/// A desk, a gate, and the numbers.
type Shuffled = (Desk, String, PerWorker<Vec<u32>>);

/// When its gate is open, so that it keeps its worker until then: the worker's number, and its order.
pub(crate) const SHUFFLE: TaskFn<Shuffled, (usize, Vec<u32>)> =
    TaskFn::new("shuffle", |ctx, (desk, gate, numbers)| {
        desk.log(&format!("started {gate}"));
        desk.pass(&gate)?;
        Ok((ctx.worker_index(), ctx.local(&numbers)?.to_vec()))
    });

/// A result that is too large for a message, beyond a thousand.
pub(crate) const BYTES: TaskFn<u32, Vec<u8>> = TaskFn::new("bytes", |_, n| Ok(bytes(n)));

pub(crate) fn bytes(n: u32) -> Vec<u8> {
    (0..n * 1_000).map(|n| (n % 251) as u8).collect()
}

pub(crate) fn sum_of(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

/// A desk, a gate, and the value.
type Summed = (Desk, String, Stored<Vec<u8>>);

/// Waits for its gate, and then says which worker it is and the sum of the value.
pub(crate) const SUM: TaskFn<Summed, (String, u64)> = TaskFn::new("sum", |ctx, (desk, gate, bytes)| {
    desk.log(&format!("started {gate}"));
    desk.pass(&gate)?;
    Ok((ctx.worker().name().to_owned(), sum_of(&bytes.get(ctx)?)))
});

/// A value that logs when it is decoded.
#[derive(Serialize)]
pub(crate) struct Logged(pub(crate) Desk, pub(crate) u32);

impl<'de> Deserialize<'de> for Logged {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (desk, n): (Desk, u32) = Deserialize::deserialize(from)?;
        desk.log("decoded");
        Ok(Logged(desk, n))
    }
}

pub(crate) const NUMBER: TaskFn<Stored<Logged>, u32> =
    TaskFn::new("number", |ctx, logged| Ok(logged.get(ctx)?.1));

/// The time that the task has left.
pub(crate) const TIME_LEFT: TaskFn<(), Option<Duration>> = TaskFn::new("time left", |_, ()| {
    let deadline = Request::current().and_then(|task| task.deadline());
    Ok(deadline.map(|at| at.saturating_duration_since(forebear::time::now())))
});

/// An error with a type of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refused {
    Negative { number: i32 },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is negative")
    }
}

impl std::error::Error for Refused {}

pub(crate) const POSITIVE: TaskFn<i32, u32> = TaskFn::new("positive", |_, number| {
    Ok(u32::try_from(number).map_err(|_| TaskError::new(Refused::Negative { number }))?)
});

pub(crate) fn all_tasks() -> Tasks {
    tasks![
        ADD,
        NOTHING,
        LOG,
        FAIL,
        PANIC,
        SHAPE,
        GATE,
        SIGNED,
        STUCK,
        LINGER,
        PROGRESS,
        COUNTER,
        GATED_COUNTER,
        BROKEN,
        COUNT,
        COUNT_TWO,
        COUNT_GATED,
        TABLE,
        TOTAL,
        KNOWN_TOTAL,
        SHUFFLED,
        SHUFFLE,
        BYTES,
        SUM,
        NUMBER,
        TIME_LEFT,
        POSITIVE,
        SPEAK,
        UNWRITTEN,
        UNREAD,
    ]
}
