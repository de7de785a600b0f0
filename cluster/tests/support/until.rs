//! A wait for something that another thread, process or server brings about.

use std::time::{Duration, Instant};

use forebear::time::sleep;

/// Waits until that holds. After two minutes it panics with the place of its caller: what never comes true is a failure that
/// names itself, and not a lane that is cut off.
#[track_caller]
pub(crate) fn until(mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "what the test waits for has not come true in two minutes"
        );
        sleep(Duration::from_millis(1)).unwrap();
    }
}
