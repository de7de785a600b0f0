//! A planted race for ci/tsan: the test must *fail* there, reported by ThreadSanitizer. Not part of any other build.
#![cfg(canary)]

use forebear::Runtime;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number that two requests write without any order between them.
struct Racy(UnsafeCell<u64>);

// SAFETY: none. Sharing it is the planted bug.
unsafe impl Sync for Racy {}

static RACY: Racy = Racy(UnsafeCell::new(0));
static ARRIVED: AtomicUsize = AtomicUsize::new(0);

/// One race may go by unseen: a report needs the stack of the earlier write, and if the later writer is kept off its core
/// meanwhile, the sanitizer has forgotten that by then and says nothing. So they meet so many times.
const ROUNDS: usize = 1000;

#[inline(never)]
fn write_without_order(value: u64) {
    // SAFETY: none, the other request writes it at the same time. This is the planted bug.
    unsafe { *RACY.0.get() = value }
}

fn write_and_meet(value: u64) {
    // Both are running, on two workers: neither goes on before the other has come. Relaxed, so that meeting here orders
    // nothing.
    for round in 1..=ROUNDS {
        ARRIVED.fetch_add(1, Ordering::Relaxed);
        while ARRIVED.load(Ordering::Relaxed) < 2 * round {
            std::thread::yield_now();
        }
        write_without_order(value);
    }
}

#[test]
fn a_race_between_two_requests() {
    let runtime = Runtime::builder().workers(2).build().expect("two workers");
    // From outside, so that they are two roots and none runs inside the other; held until both have begun.
    let (one, two) = (runtime.spawn(|| write_and_meet(1)), runtime.spawn(|| write_and_meet(2)));
    while ARRIVED.load(Ordering::Relaxed) < 2 {
        std::thread::yield_now();
    }
    one.take().expect("no failure");
    two.take().expect("no failure");
    // Without a reader the compiler may leave out the writes.
    // SAFETY: both writers have ended.
    println!("{}", unsafe { *RACY.0.get() });
}
