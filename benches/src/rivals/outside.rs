//! The rivals that are programs of their own, in other languages: their names, and a load in their words.

use crate::load::{Across, Load};
use crate::work;

/// The name of oneTBB's flow graph: `benches/tbb/graph.cpp`.
pub const ONETBB: &str = "onetbb";

/// The name of Go: `benches/go/main.go`.
pub const GO: &str = "go";

/// The arguments by which that program runs a load; `None` if it is no such program, or has no means for the load.
#[must_use]
pub fn words(name: &str, load: Load, workers: usize, quick: bool) -> Option<Vec<String>> {
    let load = if quick { load.quick() } else { load };
    match name {
        ONETBB => words_for_onetbb(load, workers, if quick { 1 } else { 5 }),
        GO => words_for_go(load, workers, u64::from(quick)),
        _ => None,
    }
}

fn words_for_onetbb(load: Load, workers: usize, repeats: u64) -> Option<Vec<String>> {
    let Load::Graph { shape, micros, .. } = load else { return None };
    let numbers = [micros, workers as u64, work::steps_per_ms(), repeats];
    Some(shape.words().into_iter().chain(numbers.map(|number| number.to_string())).collect())
}

/// With 0 repeats the program repeats as [`measure`](crate::measure) does.
fn words_for_go(load: Load, workers: usize, repeats: u64) -> Option<Vec<String>> {
    let (name, numbers) = match load {
        Load::Switch { tasks, yields, calls } => ("switch", vec![tasks, yields, u64::from(calls)]),
        // Go has no outside.
        Load::SpawnIn { n, .. } | Load::SpawnOut { n, .. } => ("spawn-in", vec![n]),
        Load::Skynet { leaves, .. } => ("skynet", vec![leaves]),
        Load::Lock { n } => ("lock", vec![n]),
        Load::LockContended { tasks, each } => ("lock-contended", vec![tasks, each]),
        Load::LockYield { tasks, each } => ("lock-yield", vec![tasks, each]),
        Load::PingPong { n, across: Across::One } => ("ping-pong", vec![n]),
        Load::PingPong { n, across: Across::Awake } => ("ping-pong-awake", vec![n]),
        Load::PingPong { n, across: Across::Asleep } => ("ping-pong-asleep", vec![n]),
        Load::Mpsc { senders, each, capacity } => ("mpsc", vec![senders, each, capacity as u64]),
        Load::Timer { tasks, each, standing: false } => ("timer", vec![tasks, each]),
        Load::Timer { tasks, each, standing: true } => ("timer-standing", vec![tasks, each]),
        Load::Timeouts { n } => ("timeouts", vec![n]),
        Load::CancelSome { among, victims } => ("cancel-some", vec![among, victims]),
        _ => return None,
    };
    let words = [workers.to_string(), repeats.to_string(), name.to_string()];
    Some(words.into_iter().chain(numbers.iter().map(u64::to_string)).collect())
}
