//! A worker that leaves consumers of a running input unstarted.

use forebear_context::shim::thread;
use forebear_loom_tests::roam;
use forebear_runtime::{CancelReason, Request, Runtime, spawn};

use crate::support::{Count, LONG, Ledger, draw, finish, pause, runtime, until_cancelled};

/// More than a worker starts before it holds the others back.
const CONSUMERS: usize = 6;

/// A request that has spawned the consumers of `input` and waits for them; each counts when it begins.
fn maker(runtime: &Runtime, input: &Request<()>, begun: &Count, ledger: &Ledger) -> Request<()> {
    let (input, begun, probes) = (input.clone(), begun.clone(), ledger.clone());
    runtime.spawn(move || {
        let consumer = |_| {
            let (input, begun, probe) = (input.clone(), begun.clone(), probes.probe());
            spawn(move || {
                let _probe = probe;
                begun.up();
                _ = input.wait();
            })
        };
        let consumers: Vec<_> = (0..CONSUMERS).map(consumer).collect();
        consumers.iter().for_each(|consumer| _ = consumer.wait());
    })
}

/// An input that runs until as many have begun as it is told.
fn input(runtime: &Runtime, begun: &Count, until: usize) -> Request<()> {
    let (begun, up) = (begun.clone(), Count::default());
    let input = runtime.spawn({
        let up = up.clone();
        move || {
            up.up();
            while begun.get() < until {
                thread::yield_now();
            }
        }
    });
    while up.get() == 0 {
        thread::yield_now();
    }
    input
}

/// It runs until all, or all but some, of its consumers have begun: so what is held back must be started by a tick, or by the third worker. Then the
/// rest is there for all.
#[test]
fn an_input_that_needs_what_is_held_back_gets_it() {
    roam(12, &["all", "some"], |answers| {
        let (runtime, ledger, begun) = (runtime(2 + draw(2)), Ledger::default(), Count::default());
        let all = draw(2) == 0;
        answers.note(if all { "all" } else { "some" });
        let input = input(&runtime, &begun, if all { CONSUMERS } else { CONSUMERS - 2 });
        let maker = maker(&runtime, &input, &begun, &ledger);
        maker.watch().unwrap();
        assert_eq!(begun.get(), CONSUMERS);
        drop((maker, input));
        finish(&runtime);
        assert_eq!(ledger.alive(), 0);
    });
}

/// The runtime is shut down, or the input or the maker is cancelled, while consumers are held back: all of them end.
#[test]
fn what_is_held_back_ends_with_its_input_its_maker_and_its_runtime() {
    roam(12, &["input", "maker", "runtime"], |answers| {
        let (runtime, ledger, begun) = (runtime(2), Ledger::default(), Count::default());
        let running = Count::default();
        let input = runtime.spawn({
            let running = running.clone();
            move || {
                running.up();
                until_cancelled();
            }
        });
        while running.get() == 0 {
            thread::yield_now();
        }
        let maker = maker(&runtime, &input, &begun, &ledger);
        pause(4_000);
        let what = draw(3);
        answers.note(["input", "maker", "runtime"][what]);
        match what {
            0 => _ = input.abort(CancelReason::Asked),
            1 => _ = maker.abort(CancelReason::Asked),
            _ => {}
        }
        runtime.shutdown(LONG).expect("nothing is left");
        _ = maker.watch();
        drop((maker, input));
        assert_eq!(ledger.alive(), 0);
    });
}
