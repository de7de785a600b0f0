//! A wait for something that another thread, process or server brings about.

use std::time::{Duration, Instant};

use forebear::time::sleep;

const PATIENCE: Duration = Duration::from_secs(200);

/// Waits until that holds. After some minutes it panics with the place of its caller: what never comes true is a failure that
/// names itself, and not a lane that is cut off. A delivery that is lost with its connection comes again after a lease, which is a minute in some tests,
/// and may be lost once more.
#[track_caller]
pub(crate) fn until(mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "what the test waits for has not come true in {PATIENCE:?}");
        sleep(Duration::from_millis(1)).unwrap();
    }
}
