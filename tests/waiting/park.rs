//! Regression: a waiter that is woken between the moment it can be found and the moment it parks.
//!
//! Its coroutine then stands in a queue while it still runs. It once went on without taking itself out, and was entered a
//! second time by the stale entry: two owners of one stack, or a mailbox linked to itself.

#[path = "../support/mod.rs"]
mod support;

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use forebear::{Request, Runtime};
use support::Watchdog;

/// On one processor the other side has to have it for that.
fn spin_until(flag: &AtomicBool) {
    for _ in 0..200 {
        if flag.load(SeqCst) {
            return;
        }
        spin_loop();
    }
    while !flag.load(SeqCst) {
        thread::yield_now();
    }
}

#[test]
fn a_waiter_that_is_woken_before_it_parks_is_woken_once() {
    const ROUNDS: u32 = if cfg!(debug_assertions) { 30_000 } else { 200_000 };
    // Each round waits for a thread to have a processor, several times: on a busy machine there are fewer rounds.
    let limit = Instant::now() + Duration::from_secs(30);
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(2).build().unwrap();
    runtime.run(|| {
        let mut seed = 1_u64;
        for n in 0..ROUNDS {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // How long each side dawdles, so that they meet at every distance.
            let (mine, theirs) = ((seed >> 40) % 64, (seed >> 50) % 64);
            let flags = Arc::new((AtomicBool::new(false), AtomicBool::new(false)));
            let f = flags.clone();
            let target = Request::builder().detached().own_stack().spawn(move || {
                f.0.store(true, SeqCst);
                spin_until(&f.1);
                (0..theirs).for_each(|_| _ = black_box(0));
                n
            });
            spin_until(&flags.0);
            flags.1.store(true, SeqCst);
            (0..mine).for_each(|_| _ = black_box(0));
            assert_eq!(*target.wait().unwrap(), n);
            if Instant::now() > limit {
                break;
            }
        }
    });
}
