//! Small fixed workloads for callgrind, on one worker: `counts WORKLOAD RUNTIME N`, or `counts --list`.
//!
//! Prints `ops` and how many operations it did. Starting and stopping cost the same for any N. So the difference between
//! two runs, divided by the difference of their operations, is the number of instructions of an operation; `ci/counts`
//! does that. On one worker the number is the same each time, except for the work of other threads.
//!
//! may is not among the rivals: its pool of stacks has more mappings than valgrind supports.

use std::process::ExitCode;

use forebear_benches::work::graph::Shape;
use forebear_benches::{Across, Edges, How, Load, With, rivals};

/// A workload by name: its load for a given size, a size that is quick enough under callgrind, and the runtimes
/// that run it.
struct Count {
    name: &'static str,
    load: fn(u64) -> (Load, u64),
    size: u64,
    runtimes: &'static [&'static str],
}

/// Fork-join of a fixed size, `times` times over: a fork costs the same at any depth, so no n is the double of another.
fn fib(how: How, times: u64) -> (Load, u64) {
    (Load::Fib { n: 21, how }, times)
}

fn features(n: u64, with: With) -> (Load, u64) {
    (Load::Features { n, with }, 1)
}

/// One graph, `times` times over: it is made once in a process.
fn graph(shape: Shape, times: u64) -> (Load, u64) {
    (Load::Graph { shape, micros: 0, edges: Edges::Declared }, times)
}

const COUNTS: &[Count] = &[
    Count {
        name: "fib-join",
        load: |n| fib(How::Join, n),
        size: 4,
        runtimes: &["forebear", "chili", "forte", "rayon", "single"],
    },
    Count {
        name: "fib-value",
        load: |n| fib(How::Value, n),
        size: 2,
        runtimes: &["forebear", "smol", "tokio"],
    },
    Count { name: "fib-reference", load: |n| fib(How::Reference, n), size: 2, runtimes: &["forebear"] },
    Count {
        name: "switch",
        load: |n| (Load::Switch { tasks: 8, yields: n, calls: 0 }, 1),
        size: 2_000,
        runtimes: &["forebear", "smol", "tokio"],
    },
    Count {
        name: "switch-behind-a-call",
        load: |n| (Load::Switch { tasks: 8, yields: n, calls: 1 }, 1),
        size: 5_000,
        runtimes: &["forebear", "natural"],
    },
    Count {
        name: "spawn-in",
        load: |n| (Load::SpawnIn { n, how: How::Scope }, 1),
        size: 10_000,
        runtimes: &["forebear", "chili", "forte", "rayon", "smol", "tokio"],
    },
    Count {
        name: "spawn-in-handles",
        load: |n| (Load::SpawnIn { n, how: How::Value }, 1),
        size: 10_000,
        runtimes: &["forebear"],
    },
    Count {
        name: "spawn-wait-one",
        load: |n| (Load::SpawnWaitOne { n, how: How::Value }, 1),
        size: 5_000,
        runtimes: &["forebear", "forte", "rayon", "smol", "tokio"],
    },
    Count {
        name: "spawn-wait-one-reference",
        load: |n| (Load::SpawnWaitOne { n, how: How::Reference }, 1),
        size: 5_000,
        runtimes: &["forebear"],
    },
    Count {
        name: "skynet",
        // Large, since a thread waits for each repeat, and checks for a while before it blocks.
        load: |n| (Load::Skynet { leaves: 10_000, how: How::Value }, n),
        size: 2,
        runtimes: &["forebear", "natural", "chili", "forte", "rayon", "smol", "tokio"],
    },
    Count {
        name: "skynet-scopes",
        load: |n| (Load::Skynet { leaves: 10_000, how: How::Scope }, n),
        size: 2,
        runtimes: &["natural", "rayon"],
    },
    Count {
        // By a thread that is not the runtime's, with one worker beside it.
        name: "spawn-out",
        load: |n| (Load::SpawnOut { n, how: How::Value }, 1),
        size: 20_000,
        runtimes: &["natural", "smol", "tokio"],
    },
    Count {
        name: "spawn-out-reference",
        load: |n| (Load::SpawnOut { n, how: How::Reference }, 1),
        size: 20_000,
        runtimes: &["natural"],
    },
    Count {
        // Made, suspended, woken all at once and taken one after the other.
        name: "suspended",
        load: |n| (Load::Suspended { n, scattered: false }, 1),
        size: 5_000,
        runtimes: &["forebear", "smol", "tokio"],
    },
    Count {
        name: "cancel-suspended",
        load: |n| (Load::Cancel { suspended: n, queued: 0 }, 1),
        size: 5_000,
        runtimes: &["forebear", "tokio"],
    },
    Count {
        name: "cancel-queued",
        load: |n| (Load::Cancel { suspended: 0, queued: n }, 1),
        size: 5_000,
        runtimes: &["forebear", "tokio"],
    },
    Count {
        // All that were made, one after the other: what `cancel-suspended` has all at once.
        name: "cancel-one",
        load: |n| (Load::CancelSome { among: n, victims: n }, 1),
        size: 2_000,
        runtimes: &["forebear", "tokio"],
    },
    Count {
        name: "callbacks-one",
        load: |n| (Load::Callbacks { n, each: 1 }, 1),
        size: 5_000,
        runtimes: &["forebear", "tokio"],
    },
    Count {
        name: "callbacks-eight",
        load: |n| (Load::Callbacks { n, each: 8 }, 1),
        size: 5_000,
        runtimes: &["forebear", "tokio"],
    },
    Count { name: "plain", load: |n| features(n, With::Nothing), size: 5_000, runtimes: &["forebear"] },
    Count { name: "named", load: |n| features(n, With::Name), size: 5_000, runtimes: &["forebear"] },
    Count { name: "deadline", load: |n| features(n, With::Deadline), size: 5_000, runtimes: &["forebear"] },
    Count { name: "own-stack", load: |n| features(n, With::OwnStack), size: 5_000, runtimes: &["forebear"] },
    Count { name: "time-out", load: |n| features(n, With::TimeOut), size: 5_000, runtimes: &["forebear"] },
    Count { name: "then-one", load: |n| features(n, With::OneInput), size: 5_000, runtimes: &["forebear"] },
    Count {
        name: "after-eight",
        load: |n| features(n, With::EightInputs),
        size: 2_000,
        runtimes: &["forebear"],
    },
    Count {
        name: "layers",
        load: |n| graph(Shape::Layered { layers: 20, width: 100, edges: 4 }, n),
        size: 10,
        runtimes: &["forebear"],
    },
    Count {
        name: "wavefront",
        load: |n| graph(Shape::Wavefront { side: 50 }, n),
        size: 10,
        runtimes: &["forebear"],
    },
    Count {
        name: "completion",
        load: |n| features(n, With::Completion),
        size: 5_000,
        runtimes: &["forebear"],
    },
    Count { name: "shield", load: |n| features(n, With::Shield), size: 5_000, runtimes: &["forebear"] },
    Count {
        name: "shield-in-join",
        load: |n| features(n, With::ShieldInJoin),
        size: 5_000,
        runtimes: &["forebear"],
    },
    Count { name: "future", load: |n| features(n, With::Future), size: 5_000, runtimes: &["forebear"] },
    Count {
        name: "depth",
        load: |n| (Load::Depth { levels: n }, 1),
        size: 5_000,
        runtimes: &["forebear", "tokio"],
    },
    Count {
        name: "lock",
        load: |n| (Load::Lock { n }, 1),
        size: 200_000,
        runtimes: &["forebear", "parking_lot", "threads", "smol", "tokio"],
    },
    Count {
        name: "read-lock",
        load: |n| (Load::ReadLock { n }, 1),
        size: 200_000,
        runtimes: &["forebear", "parking_lot", "threads"],
    },
    Count {
        name: "lock-yield",
        load: |n| (Load::LockYield { tasks: 64, each: n }, 1),
        size: 200,
        runtimes: &["forebear", "smol", "tokio"],
    },
    Count {
        name: "pingpong",
        load: |n| (Load::PingPong { n, across: Across::One }, 1),
        size: 5_000,
        runtimes: &["forebear", "smol", "tokio"],
    },
    Count {
        name: "mpsc",
        load: |n| (Load::Mpsc { senders: 4, each: n, capacity: 64 }, 1),
        size: 5_000,
        runtimes: &["forebear", "smol", "tokio"],
    },
    Count {
        name: "oneshot",
        load: |n| (Load::Oneshot { n, spawned: true }, 1),
        size: 5_000,
        runtimes: &["forebear", "smol", "tokio"],
    },
    Count {
        name: "oneshot-own",
        load: |n| (Load::Oneshot { n, spawned: false }, 1),
        size: 5_000,
        runtimes: &["forebear", "smol", "tokio"],
    },
    Count {
        name: "timer",
        load: |n| (Load::Timer { tasks: 1, each: n, standing: false }, 1),
        size: 20_000,
        runtimes: &["forebear", "natural", "smol", "tokio"],
    },
    Count {
        name: "timer-standing",
        load: |n| (Load::Timer { tasks: 1, each: n, standing: true }, 1),
        size: 20_000,
        runtimes: &["forebear", "smol", "tokio"],
    },
    Count {
        name: "timeouts",
        load: |n| (Load::Timeouts { n }, 1),
        size: 5_000,
        runtimes: &["forebear", "smol", "tokio"],
    },
];

fn run(args: &[String]) -> Result<(), String> {
    if args == ["--list"] {
        for count in COUNTS {
            for runtime in count.runtimes.iter().filter(|name| rivals::is_built_in(name)) {
                println!("{} {runtime} {}", count.name, count.size);
            }
        }
        return Ok(());
    }
    let [name, runtime, n] = args else { return Err("counts WORKLOAD RUNTIME N, or counts --list".into()) };
    let count = COUNTS.iter().find(|count| count.name == name).ok_or("no such workload; see --list")?;
    let n = n.parse().map_err(|_| "N is a number")?;
    let rival = rivals::start_to_count(runtime).ok_or("not in this build")?;
    let (load, times) = (count.load)(n);
    for _ in 0..times {
        let run = rival.run(load).ok_or("this runtime has no means for this load")?;
        if run.value != load.expected() {
            return Err(format!("{runtime} did not do the work of {load:?}"));
        }
    }
    println!("ops {}", load.ops() * times);
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("counts: {error}");
            ExitCode::from(2)
        }
    }
}
