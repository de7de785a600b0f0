//! Requests that are cancelled together, by a pool, a set, a scope, a `select!` or a dependent: when the captures of one are dropped, they wait for
//! another of them.

#[path = "../../support/cancelling.rs"]
mod cancelling;
#[path = "../../support/mod.rs"]
mod support;

mod dependents;
mod held_back;
mod outside;
mod pools;
mod scopes;
mod waits;

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use cancelling::{asleep, ends_cancelled, on_each_clocked};
use forebear::sync::Event;
use forebear::{
    AnyRequest, CancelReason, Cancellation, Completer, Error, Request, RequestPool, RequestSet, Runtime,
    State, WaitError, is_cancelled, scope, select, shield, then_all, try_scope, wait_all, yield_now,
};
use support::{
    Count, Flag, Joined, Kind, Watchdog, hold_thread_until, in_both_worlds, on_each, on_each_of, until,
};

/// Waits for a request when it is dropped, and counts that.
#[derive(Debug)]
struct WaitsFor {
    wanted: Arc<OnceLock<Request<()>>>,
    ends: Count,
}

impl Drop for WaitsFor {
    fn drop(&mut self) {
        let wanted = self.wanted.get().unwrap();
        let _ = shield(|| wanted.wait().copied());
        assert!(wanted.is_done());
        self.ends.up();
    }
}

/// What to capture, where to put what it waits for, and how often it has waited.
fn waits_for() -> (WaitsFor, Arc<OnceLock<Request<()>>>, Count) {
    let (wanted, ends) = (Arc::new(OnceLock::new()), Count::new());
    (WaitsFor { wanted: wanted.clone(), ends: ends.clone() }, wanted, ends)
}

fn until_cancelled() -> Result<(), Error> {
    loop {
        yield_now()?;
    }
}

/// A request that runs until it is cancelled, and runs already.
fn endless(runtime: &Runtime) -> Request<()> {
    let began = Flag::new();
    let up = began.clone();
    let endless = Request::builder().name("endless").detached().on(runtime).try_spawn(move || {
        up.raise();
        until_cancelled()
    });
    began.wait();
    endless
}

/// A request that has been submitted and does not start, with these captures. The completer keeps it from starting.
fn unstarted(runtime: &Runtime, captures: WaitsFor) -> (Completer<()>, Request<()>) {
    let (completer, gate) = Request::completer("gate");
    let unstarted = Request::builder()
        .name("unstarted")
        .detached()
        .on(runtime)
        .after(&gate)
        .build(move || drop(captures));
    unstarted.submit();
    (completer, unstarted)
}
