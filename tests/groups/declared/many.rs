//! Many: chains and fans, without recursion.

use std::time::Duration;

use forebear::{CancelReason, Request, Runtime, State, WaitError, then_all};

use crate::cancelling::{Gate, ends_cancelled};
use crate::support::{Count, fitting, inside_each, on_each};

/// A million with two workers, and a tenth elsewhere; in debug builds a tenth of that.
fn many() -> usize {
    let million = if cfg!(debug_assertions) { fitting(100_000) } else { fitting(1_000_000) };
    if Runtime::current().workers() == 2 { million } else { million / 10 }
}

fn chain(first: Request<usize>, len: usize) -> Request<usize> {
    let mut last = first;
    for _ in 0..len {
        last = last.into_then(|n| n + 1);
    }
    last
}

#[test]
fn a_long_chain_is_run_by_the_wait_for_its_end() {
    inside_each(|| {
        let many = many();
        let last = chain(Request::new(|| 0), many);
        assert_eq!(last.take().unwrap(), many);
    });
}

#[test]
fn a_long_chain_that_was_submitted_runs() {
    on_each(|runtime| {
        runtime.enter(|| {
            let (many, mut gate) = (many(), Gate::new(runtime));
            let last = chain(gate.request().then(|()| 0), many);
            last.submit();
            assert_eq!(last.state(), State::Queued);
            gate.open();
            assert_eq!(last.take().unwrap(), many);
        });
    });
}

#[test]
fn a_long_chain_is_dropped_and_cancelled() {
    on_each(|runtime| {
        runtime.enter(|| {
            let many = many();
            drop(chain(Request::new(|| 0), many));
            let gate = Gate::new(runtime);
            let first = gate.request().then(|()| 0);
            let last = chain(first.clone(), many);
            last.submit();
            // Nobody else wants any of them.
            last.cancel();
            ends_cancelled(&last);
            ends_cancelled(&first);
        });
    });
}

/// Each is submitted for the sake of the next, and refused.
#[test]
fn a_long_chain_that_is_submitted_after_the_shutdown_ends() {
    on_each(|runtime| {
        let last = runtime.enter(|| chain(Request::new(|| 0), many()));
        runtime.shutdown(Duration::from_secs(60)).unwrap();
        last.submit();
        assert_eq!(ends_cancelled(&last), CancelReason::Shutdown);
    });
}

#[test]
fn a_long_chain_ends_when_its_first_is_aborted() {
    on_each(|runtime| {
        runtime.enter(|| {
            let gate = Gate::new(runtime);
            let first = gate.request().then(|()| 0);
            let last = chain(first.clone(), fitting(1_000));
            last.submit();
            first.abort(CancelReason::Aborted);
            let Err(WaitError::Failed(failure)) = last.wait() else { panic!("{last:?}") };
            assert!(failure.chain().count() >= 1);
        });
    });
}

#[test]
fn a_wide_fan_runs_fails_and_is_cancelled() {
    on_each(|runtime| {
        runtime.enter(|| {
            let (many, ran) = (many(), Count::new());
            let mut gate = Gate::new(runtime);
            let input = gate.request().then(|()| 1);
            let fan: Vec<_> = (0..many)
                .map(|_| {
                    let ran = ran.clone();
                    input.then(move |n| {
                        ran.up();
                        *n
                    })
                })
                .collect();
            let sum = then_all(&fan[..], |all| all.into_iter().sum::<usize>());
            sum.submit();
            gate.open();
            assert_eq!((*sum.wait().unwrap(), ran.get()), (many, many));
            let gate = Gate::new(runtime);
            let input = gate.request().then(|()| 1);
            let fan: Vec<_> = (0..many).map(|_| input.then(|n| *n)).collect();
            let sum = then_all(&fan[..], |all| all.len());
            sum.submit();
            sum.cancel();
            fan.iter().for_each(|one| assert!(one.is_cancelled()));
            ends_cancelled(&input);
            let gate = Gate::new(runtime);
            let input = gate.request().then(|()| 1);
            let fan: Vec<_> = (0..many / 10).map(|_| input.then(|n| *n)).collect();
            fan.iter().for_each(|one| _ = one.submit());
            input.abort(CancelReason::Aborted);
            fan.iter().for_each(|one| assert!(matches!(one.wait(), Err(WaitError::Failed(_)))));
        });
    });
}
