//! The runtimes, a file each, and how to start one by name.

use crate::claim::NATURAL;
use crate::rival::Rival;

#[cfg(feature = "rivals")]
pub mod chili;
#[cfg(feature = "rivals")]
pub mod crossbeam;
#[cfg(feature = "graphs")]
pub mod dag_exec;
#[cfg(feature = "graphs")]
pub mod dagrs;
#[cfg(feature = "rivals")]
pub mod flume;
#[cfg(feature = "forebear")]
pub mod forebear;
#[cfg(feature = "forte")]
pub mod forte;
pub mod line;
#[cfg(feature = "rivals")]
pub mod may;
#[cfg(feature = "forebear")]
pub mod natural;
pub mod outside;
pub mod pages;
#[cfg(feature = "rivals")]
pub mod parking_lot;
#[cfg(feature = "forebear")]
pub mod plain;
#[cfg(feature = "rivals")]
pub mod rayon;
pub mod single;
#[cfg(feature = "rivals")]
pub mod smol;
pub mod threads;
#[cfg(feature = "rivals")]
pub mod tokio;
#[cfg(feature = "graphs")]
pub mod unordered;

/// The name under which forebear built with `--cfg forebear_unordered` appears in a row.
pub const UNORDERED: &str = "forebear-unordered";

/// The name under which tokio with `FuturesUnordered` appears in a row.
pub const UNORDERED_FUTURES: &str = "tokio-unordered";

/// The name under which tokio appears where it computes in `spawn_blocking`.
pub const BLOCKING: &str = "tokio-blocking";

/// The name of forebear's first driver where graphs are built by waits instead of declared dependencies.
pub const BY_WAIT: &str = "forebear by wait";

/// Whether [`start`] knows the name in this build.
#[must_use]
pub fn is_built_in(name: &str) -> bool {
    match name {
        "forte" => cfg!(feature = "forte"),
        BLOCKING => cfg!(feature = "rivals"),
        "dag_exec" | "dagrs" | UNORDERED_FUTURES => cfg!(feature = "graphs"),
        "forebear" | BY_WAIT => cfg!(all(feature = "forebear", not(forebear_unordered))),
        NATURAL => cfg!(all(feature = "forebear", not(forebear_unordered))),
        UNORDERED => cfg!(all(feature = "forebear", forebear_unordered)),
        "pool-fifo" | "pool-lifo" => cfg!(feature = "forebear"),
        "single" | "threads" | "line" | "pages" => true,
        _ => {
            cfg!(feature = "rivals")
                && matches!(
                    name,
                    "rayon"
                        | "chili"
                        | "tokio"
                        | "smol"
                        | "may"
                        | "parking_lot"
                        | "crossbeam-channel"
                        | "flume"
                )
        }
    }
}

/// Starts the runtime of that name with so many workers; `None` if it was not built in.
///
/// `may` and `forte` live in statics: they take the number of workers of their first start in a process.
#[must_use]
pub fn start(name: &str, workers: usize) -> Option<Box<dyn Rival>> {
    Some(match name {
        "single" => Box::new(single::Single),
        "line" => Box::new(line::Line),
        "pages" => Box::new(pages::Pages),
        "threads" => Box::new(threads::Threads::start(workers)),
        #[cfg(feature = "rivals")]
        "rayon" => Box::new(rayon::Rayon::start(workers)),
        #[cfg(feature = "rivals")]
        "chili" => Box::new(chili::Chili::start(workers)),
        #[cfg(feature = "forte")]
        "forte" => Box::new(forte::Forte::start(workers)),
        #[cfg(feature = "graphs")]
        "dag_exec" => Box::new(dag_exec::DagExec::start(workers)),
        #[cfg(feature = "graphs")]
        "dagrs" => Box::new(dagrs::Dagrs::start(workers)),
        #[cfg(feature = "graphs")]
        UNORDERED_FUTURES => Box::new(unordered::Unordered::start(workers)),
        #[cfg(feature = "rivals")]
        "tokio" | BLOCKING => Box::new(tokio::Tokio::start(workers)),
        #[cfg(feature = "rivals")]
        "smol" => Box::new(smol::Smol::start(workers)),
        #[cfg(feature = "rivals")]
        "may" => Box::new(may::May::start(workers)),
        #[cfg(feature = "rivals")]
        "parking_lot" => Box::new(parking_lot::ParkingLot::start(workers)),
        #[cfg(feature = "rivals")]
        "crossbeam-channel" => Box::new(crossbeam::Crossbeam::start(workers)),
        #[cfg(feature = "rivals")]
        "flume" => Box::new(flume::Flume::start(workers)),
        #[cfg(feature = "forebear")]
        "pool-fifo" => Box::new(plain::Plain::fifo(workers)),
        #[cfg(feature = "forebear")]
        "pool-lifo" => Box::new(plain::Plain::lifo(workers)),
        #[cfg(feature = "forebear")]
        "forebear" | BY_WAIT if !cfg!(forebear_unordered) => Box::new(forebear::Forebear::start(workers)),
        #[cfg(feature = "forebear")]
        NATURAL if !cfg!(forebear_unordered) => Box::new(natural::Natural::start(workers)),
        #[cfg(feature = "forebear")]
        UNORDERED if cfg!(forebear_unordered) => Box::new(forebear::Forebear::start(workers)),
        _ => return None,
    })
}

/// The same with one worker, for counting instructions. Under valgrind the processor's time stamp counter does not run beside
/// the clock, so forebear would take every reading for torn. So there it reads the clock, as on machines without such a counter.
#[must_use]
pub fn start_to_count(name: &str) -> Option<Box<dyn Rival>> {
    match name {
        #[cfg(feature = "forebear")]
        "forebear" if !cfg!(forebear_unordered) => {
            Some(Box::new(forebear::Forebear::by_a_clock_that_is_read()))
        }
        #[cfg(feature = "forebear")]
        NATURAL if !cfg!(forebear_unordered) => Some(Box::new(natural::Natural::by_a_clock_that_is_read())),
        _ => start(name, 1),
    }
}
