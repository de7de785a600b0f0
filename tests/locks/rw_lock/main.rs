//! `RwLock`: who has it together, in which order, and the ways from one kind of having it to another.

#[path = "../../support/cancelling.rs"]
mod cancelling;
mod guards;
#[path = "../../support/mod.rs"]
mod support;
mod waits;

use std::sync::Arc;

use cancelling::asleep;
use forebear::sync::RwLock;
use forebear::{Request, Runtime};
use support::order::root;
use support::settle;

type Shared = Arc<RwLock<usize>>;

/// A request that does `f` with the lock, and sleeps when this returns.
fn sleeper<T: Send + 'static>(
    runtime: &Runtime,
    lock: &Shared,
    f: impl FnOnce(&RwLock<usize>) -> T + Send + 'static,
) -> Request<T> {
    let lock = lock.clone();
    let request = root(runtime).spawn(move || f(&lock));
    asleep(&request);
    settle(runtime);
    request
}
