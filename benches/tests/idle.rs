//! Alone in its process: beside it there is only the thread that waits for the test's end. Were there others, what they used would go from the
//! count when they end.

use std::sync::mpsc;
use std::time::Duration;

use forebear_benches::work::idle::Used;
use forebear_benches::work::spin;

#[test]
#[allow(clippy::disallowed_methods, reason = "a sleep is what is to be seen")]
fn what_another_thread_computes_and_sleeps_is_seen() {
    let (tell, told) = mpsc::channel::<()>();
    let (said, heard) = mpsc::channel();
    let before = Used::by_others();
    let other = std::thread::spawn(move || {
        for () in told {
            spin(10_000_000);
            std::thread::sleep(Duration::from_millis(1));
            said.send(()).expect("it is waited for");
        }
    });
    for _ in 0..5 {
        tell.send(()).expect("it listens");
        heard.recv().expect("it answers");
    }
    let after = Used::by_others();
    drop(tell);
    other.join().expect("it ends");
    assert!(after.cpu - before.cpu > Duration::from_millis(5), "{before:?}, {after:?}");
    assert!(after.switches >= before.switches + 5, "{before:?}, {after:?}");
}
