//! Spreading: a cancel goes on to all that descends from the cancelled one, wherever it is, and to nobody else.

#[path = "../../support/cancelling.rs"]
mod cancelling;
mod children;
mod families;
mod spared;
#[path = "../../support/mod.rs"]
mod support;

use std::sync::mpsc;

use cancelling::{Gate, asleep, ends_cancelled, was_cancelled};
use forebear::{AnyRequest, CancelReason, Cancellation, Request, WaitError};
use support::order::root;
use support::{Come, on_each};

/// A wait as long as the gate is shut.
type Sleep = Request<Result<(), WaitError>>;

fn sleeping(gate: &Request<()>) -> impl FnOnce() -> Result<(), WaitError> + Send + 'static {
    let gate = gate.clone();
    move || gate.wait().copied()
}

/// Cancels a parent that has made a request by `make` and waits for something else, and checks that the request ends.
#[track_caller]
fn spreads_to(make: impl Fn(&Request<()>) -> AnyRequest + Send + Copy + 'static) {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            give.send(make(&closed)).unwrap();
            closed.wait().copied()
        });
        let made = given.come().unwrap();
        asleep(&parent);
        assert_eq!(parent.cancel(), Cancellation::Marked);
        assert_eq!(was_cancelled(&made), CancelReason::Parent);
        assert_eq!(ends_cancelled(&parent), CancelReason::Asked);
    });
}
