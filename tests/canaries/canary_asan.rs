//! Planted bugs for ci/asan: each test must *fail* there, reported by AddressSanitizer. Not part of any other build.
#![cfg(canary)]

use forebear::{Request, Runtime};
use std::hint::black_box;

/// Runs `bug` in a request that has waited before, so that it is on a coroutine's stack and that stack has been
/// switched away from and back to, or has lent itself.
fn in_a_request(bug: fn() -> u64) -> u64 {
    let runtime = Runtime::builder().workers(2).build().expect("two workers");
    runtime.run(move || {
        let other = forebear::spawn(|| 1_u64);
        let outcome = forebear::spawn(move || {
            let one = other.take().expect("no failure");
            one + bug()
        });
        outcome.take().expect("no failure")
    })
}

#[test]
fn a_use_after_free_in_a_request() {
    println!(
        "{}",
        in_a_request(|| {
            let pointer = Box::into_raw(Box::new(black_box(7_u64)));
            // SAFETY: none, the second line reads what the first has freed. This is the planted bug.
            unsafe {
                drop(Box::from_raw(pointer));
                black_box(pointer).read_volatile()
            }
        })
    );
}

#[test]
fn an_overrun_on_a_request_stack() {
    println!(
        "{}",
        in_a_request(|| {
            let numbers = black_box([1_u64; 8]);
            let past = black_box(numbers.len());
            // SAFETY: none, it reads one past the end of an array on the stack. This is the planted bug.
            unsafe { black_box(&numbers).as_ptr().add(past).read_volatile() }
        })
    );
}

#[test]
fn a_leak_in_a_request() {
    // Waited for by another handle as well, so that the request's memory takes the usual way out.
    let leaked = in_a_request(|| {
        let lost = Request::new(|| 7_u64);
        let value = lost.wait().copied().expect("no failure");
        for n in 0..64_u64 {
            // Written over by the next one and by the calls that follow, so that no pointer stays on the stack.
            black_box(Box::leak(Box::new(black_box([n; 64]))));
        }
        value
    });
    println!("{leaked}");
}
