//! A veto is remembered, and leaves nothing behind: the last live waiter leaves in each way there is, the target is over within
//! one scheduling point, and every count of its word is what it was before anybody came to wait.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::thread;
use std::time::Duration;

use cancelling::{Gate, asleep, on_each_clocked, sleeper};
use forebear::time::ManualClock;
use forebear::{AnyRequest, CancelReason, Cancellation, Request, Runtime, State, WaitError};
use support::order::root;
use support::until;

const SECOND: Duration = Duration::from_secs(1);

type Target = Request<Result<(), WaitError>>;

/// The counts of its word: handles, links.
fn counts(request: &AnyRequest) -> [usize; 2] {
    let text = format!("{request:?}");
    ["handles: ", "links: "].map(|name| {
        let from = &text[text.find(name).expect("it tells them") + name.len()..];
        from[..from.find(|c: char| !c.is_ascii_digit()).unwrap_or(from.len())].parse().unwrap()
    })
}

/// Vetoes a cancel by the one waiter that `come` brings, which `go` has leave. Checks the target when that has gone.
fn leaves<W>(come: impl Fn(&Runtime, &Target) -> W, go: impl Fn(&ManualClock, W), life: State) {
    // Nothing tells that a thread waits but the veto: if the cancel was there first, once more.
    on_each_clocked(|runtime, clock| while !left(runtime, clock, &come, &go, life) {});
}

fn left<W>(
    runtime: &Runtime,
    clock: &ManualClock,
    come: &impl Fn(&Runtime, &Target) -> W,
    go: &impl Fn(&ManualClock, W),
    life: State,
) -> bool {
    let mut gate = Gate::new(runtime);
    let target = sleeper(runtime, &gate);
    let looks = target.to_untyped();
    let before = counts(&looks);
    let waiter = come(runtime, &target);
    if target.cancel() == Cancellation::Marked {
        return false;
    }
    assert!(!target.is_cancelled(), "spared while it is waited for");
    if life == State::Finished {
        gate.open();
    }
    go(clock, waiter);
    if runtime.workers() == 1 {
        // What the only worker does next, after what it has ready; this thread does not run it itself.
        let seen = target.to_untyped();
        assert!(root(runtime).spawn(move || seen.is_done()).take().unwrap(), "over by then");
    }
    assert_eq!(target.watch().is_err(), life == State::Cancelled);
    assert_eq!(target.state(), life);
    // Its runner's link is gone, and nothing else has come or gone.
    until(|| counts(&looks) == [before[0], before[1] - 1]);
    assert_eq!(target.cancel(), Cancellation::AlreadyDone);
    true
}

/// A root that waits for the target, asleep; and answers.
fn waiting(
    runtime: &Runtime,
    target: &Target,
    wait: fn(&Target) -> Result<(), WaitError>,
) -> Request<Result<(), WaitError>> {
    let target = target.clone();
    let waiter = root(runtime).spawn(move || wait(&target));
    asleep(&waiter);
    waiter
}

#[test]
fn the_last_waiter_leaves_by_cancel() {
    leaves(
        |runtime, target| waiting(runtime, target, |target| target.wait().map(drop)),
        |_, waiter| {
            assert_eq!(waiter.cancel(), Cancellation::Marked);
            assert!(waiter.watch().is_err());
        },
        State::Cancelled,
    );
}

#[test]
fn the_last_waiter_leaves_by_abort() {
    leaves(
        |runtime, target| waiting(runtime, target, |target| target.to_untyped().wait()),
        |_, waiter| {
            assert_eq!(waiter.abort(CancelReason::Other(1)), Cancellation::Marked);
            assert!(waiter.watch().is_err());
        },
        State::Cancelled,
    );
}

#[test]
fn the_last_waiter_leaves_by_time_out() {
    leaves(
        |runtime, target| waiting(runtime, target, |target| target.wait_timeout(SECOND).map(drop)),
        |clock, waiter| {
            clock.advance(SECOND);
            assert!(matches!(waiter.take().unwrap(), Err(WaitError::TimedOut)));
        },
        State::Cancelled,
    );
}

#[test]
fn the_last_waiter_is_a_foreign_thread_whose_time_is_up() {
    leaves(
        |_, target| {
            let target = target.clone();
            thread::spawn(move || target.wait_timeout(SECOND).map(drop))
        },
        |clock, waiter| {
            clock.advance(SECOND);
            assert!(matches!(waiter.join().unwrap(), Err(WaitError::TimedOut)));
        },
        State::Cancelled,
    );
}

#[test]
fn the_last_waiter_leaves_by_the_targets_end() {
    leaves(
        |runtime, target| waiting(runtime, target, |target| target.wait().map(drop)),
        |_, waiter| assert!(waiter.take().unwrap().is_ok()),
        State::Finished,
    );
}
