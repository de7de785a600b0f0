//! Which worker will check the free memory in the stock: `TrimWatch`, as it ships.
//!
//! Transcribed: the few lines of `runtime/src/record/arena/stock.rs` and `schedule/worker/quiet.rs` that use it. What lies there is a plain count that orders
//! nothing, as there; a worker that looks takes all of it. A sleep with a limit ends some time, so nothing is lost by one that watches.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | who sleeps for good does not look again | what was given meanwhile lies there, and nobody comes | `watch_ends_without_a_look` |
//! | it looks, and has not seen who gave | the same | `watch_ends_unseeing` |
#![cfg(loom)]

use forebear_context::shim::atomic::{AtomicUsize, Ordering::Relaxed};
use forebear_context::shim::{Arc, thread};
use forebear_loom_tests::exhaust;
use forebear_runtime::model::trim_watch::TrimWatch;

#[derive(Default)]
struct Stock {
    watch: TrimWatch,
    lying: AtomicUsize,
}

impl Stock {
    fn something(&self) -> bool {
        self.lying.load(Relaxed) > 0
    }

    /// A worker has nothing to do. Whether it sleeps with a limit then, since it has looked.
    fn goes_to_sleep(&self) -> bool {
        let looks = self.something() || self.watch.end(|| self.something());
        if looks {
            self.watch.begin();
            self.lying.swap(0, Relaxed);
        }
        looks
    }

    /// Until it sleeps without a limit. Each look but the first has taken something.
    fn rests(&self) {
        while self.goes_to_sleep() {}
    }

    /// Whether somebody is to be woken.
    fn give(&self) -> bool {
        self.lying.fetch_add(1, Relaxed);
        self.something() && self.watch.needs_worker()
    }
}

/// It is seen by the worker that has looked and comes to rest meanwhile, or somebody is woken.
#[test]
fn what_is_given_while_a_worker_goes_to_sleep_is_seen_or_somebody_is_woken() {
    exhaust(&["woken", "seen"], |answers| {
        let stock = Arc::new(Stock::default());
        stock.watch.begin();
        let worker = {
            let stock = stock.clone();
            thread::spawn(move || stock.rests())
        };
        let woken = stock.give();
        worker.join().unwrap();
        assert!(woken || !stock.something(), "it lies there, and nobody comes");
        answers.note(if woken { "woken" } else { "seen" });
    });
}
