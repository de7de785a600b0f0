//! Depth: chains of a million, on small stacks, without recursion anywhere.
//!
//! Each promise is tested in requests, in a plain foreign thread, and on a main thread that the shell has limited to
//! 256 KiB. The last needs a child process, and in it the body must run on the main thread proper, where the harness runs
//! nothing; so a function among the program's initialisers asks whether it is meant.

#[path = "../support/mod.rs"]
mod support;

use std::sync::{Mutex, PoisonError, mpsc};

use forebear::{Priority, Request, RequestBuilder, Runtime, join, scope, spawn};
use support::{Come, Joined, Watchdog, fitting, inside_each, on_each, on_each_of, runtime};

/// With debug assertions a tenth of it: there a million stacked frames take a minute and several gigabytes. ci/test runs
/// these tests in release builds, too.
const MILLION: u64 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };

/// A million stacked frames take gigabytes without optimisation, so these tests go one after the other, and on fewer
/// sizes of runtime than most.
fn one_at_a_time(test: impl Fn(&Runtime)) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    on_each_of(&[1, 2], test);
}

/// `n` requests, each of which waits for the one before; the last is the answer, and none is submitted.
fn chain(n: u64) -> Request<u64> {
    (0..n).fold(Request::new(|| 0), |last, _| Request::new(move || *last.wait().unwrap() + 1))
}

/// Each makes the next and waits for it.
fn nested(n: u64) -> u64 {
    if n == 0 { 0 } else { Request::new(move || nested(n - 1)).wait().unwrap() + 1 }
}

#[test]
fn a_million_nested_waits_complete_in_requests() {
    one_at_a_time(|runtime| {
        let depth = runtime.run(|| *chain(MILLION).wait().unwrap());
        assert_eq!(depth, MILLION);
    });
}

#[test]
fn a_million_waits_that_each_make_the_next_complete() {
    one_at_a_time(|runtime| assert_eq!(runtime.run(|| nested(MILLION)), MILLION));
}

#[test]
fn a_million_takes_that_each_spawn_the_next_complete() {
    fn nested(n: u64) -> u64 {
        if n == 0 { 0 } else { spawn(move || nested(n - 1)).take().unwrap() + 1 }
    }
    one_at_a_time(|runtime| assert_eq!(runtime.run(|| nested(MILLION)), MILLION));
}

#[test]
fn a_million_nested_waits_complete_in_a_plain_foreign_thread() {
    one_at_a_time(|runtime| {
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let runtime = runtime.clone();
        let thread = small.spawn(move || {
            runtime.enter(|| {
                assert_eq!(*chain(MILLION).wait().unwrap(), MILLION);
                assert_eq!(nested(MILLION), MILLION);
            })
        });
        thread.unwrap().joined().unwrap();
    });
}

#[test]
fn a_chain_of_a_million_unsubmitted_requests_is_dropped_without_recursion() {
    on_each(|runtime| {
        runtime.run(|| drop(chain(MILLION)));
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let runtime = runtime.clone();
        small.spawn(move || runtime.enter(|| drop(chain(MILLION)))).unwrap().joined().unwrap();
    });
}

/// The chain is made in a thread that is gone when it is dropped, by one that the runtime has never met.
#[test]
fn a_chain_of_a_million_is_dropped_by_a_thread_that_never_met_the_runtime() {
    on_each(|runtime| {
        let made = runtime.run(|| chain(MILLION));
        let small = std::thread::Builder::new().stack_size(256 << 10);
        small.spawn(move || drop(made)).unwrap().joined().unwrap();
    });
}

/// The captured handles go when a panicking request unwinds, too.
#[test]
fn a_failure_passes_through_a_long_chain_of_waits() {
    let depth = 100_000;
    on_each(|runtime| {
        let failure = runtime.run(|| {
            let bad: Request<u64> = Request::builder().name("bad").try_build(|| Ok("x".parse()?));
            let last = (0..depth).fold(bad, |last, _| Request::try_new(move || Ok(last.wait()? + 1)));
            last.wait().unwrap_err()
        });
        let failure = failure.failure().unwrap();
        assert_eq!(failure.request(), "bad");
        assert_eq!(failure.path().len(), depth + 1);
    });
}

/// Joins and scopes nest on the same stack, so their depth is the program's own affair; but as requests of their own they
/// may be as deep as any.
#[test]
fn scopes_and_joins_may_nest_deeply_through_requests() {
    fn joined(n: u64) -> u64 {
        if n == 0 {
            return 0;
        }
        let (a, b) = join(|| 1, || spawn(move || joined(n - 1)).take().unwrap());
        a + b
    }
    fn scoped(n: u64) -> u64 {
        if n == 0 { 0 } else { scope(|s| s.spawn(move || scoped(n - 1)).take().unwrap()) + 1 }
    }
    let depth = fitting(50_000) as u64;
    inside_each(|| {
        assert_eq!(joined(depth), depth);
        assert_eq!(scoped(depth), depth);
    });
}

/// What is remembered of a line of ancestors that are over does not grow with it. A link that stayed would cost 200 bytes
/// or so; what the arenas of the workers keep for reuse is far less than that.
#[cfg(target_os = "linux")]
#[test]
fn a_line_of_requests_each_spawning_the_next_runs_in_constant_memory() {
    const NAME: &str = "a_line_of_requests_each_spawning_the_next_runs_in_constant_memory";
    // Two workers that take tiny roots from each other keep a header at each turn, and look at what they keep (record 0005).
    const LENGTH: u64 = if cfg!(debug_assertions) { 200_000 } else { 1_000_000 };
    // In a process of its own, where nobody else takes memory.
    if !support::is_child(NAME) {
        let (ok, told) = support::again_in_child(NAME, ("LINE", "1"), "");
        assert!(ok, "{told}");
        return;
    }
    // Measured inside the line, so that what would be given back at its end is counted.
    fn line(next: &'static RequestBuilder, left: u64, early: usize, ends: mpsc::Sender<(usize, usize)>) {
        if left == 0 {
            ends.send((early, support::resident())).unwrap();
            return;
        }
        let early = if left == LENGTH * 9 / 10 { support::resident() } else { early };
        drop(next.spawn(move || line(next, left - 1, early, ends)));
    }
    on_each_of(&[1, 2], |runtime| {
        // A root for the order is its maker's child all the same.
        let root = Request::builder().priority(Priority::NORMAL);
        for next in [Request::builder(), root] {
            let next: &'static RequestBuilder = Box::leak(Box::new(next));
            let (ends, end) = mpsc::channel();
            runtime.spawn(move || line(next, LENGTH, 0, ends));
            let (early, late) = end.come().unwrap();
            assert!(
                late < early + (32 << 20),
                "{next:?}: {early} bytes early in the line, {late} at its end"
            );
        }
    });
}

/// What the child process does, on its main thread. Any panic or overflow ends it with another code than 0.
#[cfg(target_os = "linux")]
extern "C" fn on_the_main_thread() {
    let Ok(part) = std::env::var(PART) else { return };
    let _dog = Watchdog::new("on a main thread of 256 KiB");
    let runtime: Runtime = runtime(2);
    runtime.enter(|| match &*part {
        "waits" => {
            assert_eq!(*chain(MILLION).wait().unwrap(), MILLION);
            assert_eq!(nested(MILLION), MILLION);
        }
        "drops" => drop(chain(MILLION)),
        other => panic!("no part {other}"),
    });
    println!("done {part}");
    std::process::exit(0);
}

#[cfg(target_os = "linux")]
const PART: &str = "FOREBEAR_TEST_ON_MAIN";

#[cfg(target_os = "linux")]
#[used]
// SAFETY: glibc and musl call what stands here once, on the main thread, before `main`.
#[unsafe(link_section = ".init_array")]
static INITIALISER: extern "C" fn() = on_the_main_thread;

#[cfg(target_os = "linux")]
fn on_a_small_main_thread(part: &str) {
    let (_, told) = support::again_in_child("no test at all", (PART, part), "ulimit -s 256;");
    assert!(told.contains(&format!("done {part}")), "{told}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_million_nested_waits_complete_on_a_main_thread_of_256_kib() {
    on_a_small_main_thread("waits");
}

#[cfg(target_os = "linux")]
#[test]
fn a_chain_of_a_million_is_dropped_on_a_main_thread_of_256_kib() {
    on_a_small_main_thread("drops");
}
