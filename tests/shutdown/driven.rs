//! Runtimes without threads of their own: the caller drives what is aborted to its end.

use forebear::{Request, Runtime, yield_now};

use super::support::Watchdog;
use super::{LONG, is_shut_down};

fn seeded(test: impl Fn(&Runtime)) {
    let _dog = Watchdog::new("");
    test(&Runtime::builder().seeded(7).build().unwrap());
}

#[test]
fn the_synchronous_mode_refuses_what_comes_after() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(0).build().unwrap();
    let unsubmitted = runtime.enter(|| Request::new(|| 1));
    assert_eq!(runtime.spawn(|| 1).take().unwrap(), 1);
    runtime.shutdown(LONG).unwrap();
    is_shut_down(unsubmitted.wait());
    is_shut_down(runtime.spawn(|| 1).wait());
}

#[test]
fn finish_lets_it_end() {
    seeded(|runtime| {
        let requests: Vec<_> = (0..10)
            .map(|n| {
                runtime.spawn(move || {
                    for _ in 0..n {
                        yield_now().unwrap();
                    }
                    n
                })
            })
            .collect();
        runtime.finish(LONG).unwrap();
        for (n, request) in requests.into_iter().enumerate() {
            assert_eq!(request.take().unwrap(), n);
        }
        is_shut_down(runtime.spawn(|| 1).wait());
    });
}

/// Also what the seeded mode has put among those to draw from, and nobody has begun.
#[test]
fn what_a_seed_has_not_begun_is_refused_whatever_the_seed() {
    let _dog = Watchdog::new("");
    for seed in 0..100 {
        let runtime = Runtime::builder().seeded(seed).build().unwrap();
        let requests: Vec<_> = (0..5).map(|_| runtime.spawn(|| while yield_now().is_ok() {})).collect();
        runtime.enter(|| _ = yield_now());
        runtime.shutdown(LONG).unwrap();
        for request in requests {
            is_shut_down(request.wait());
        }
    }
}
