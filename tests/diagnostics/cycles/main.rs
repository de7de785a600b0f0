//! Cycles of waits: found as they close, of any length and through everything that waits, and named; and nothing else is taken
//! for one.

mod requests;
mod sets;
mod storms;
mod structure;
#[path = "../../support/mod.rs"]
mod support;
mod threads;
mod values;

use std::sync::{Arc, OnceLock};

use forebear::{Cycle, Request, Runtime, WaitError};

/// For tests whose requests wait for each other to come to a point: without worker threads nothing else runs meanwhile.
const WORKERS: [usize; 3] = [1, 2, 4];

/// What a wait was told, if it was told of a cycle; anything else goes on.
fn cycle<T>(answer: Result<T, WaitError>) -> Option<Cycle> {
    match answer {
        Err(WaitError::CircularWait(cycle)) => Some(cycle),
        _ => None,
    }
}

fn names(cycle: &Cycle) -> Vec<&str> {
    cycle.names().collect()
}

/// Whether the names go round by `ring`, beginning wherever they like.
#[track_caller]
fn assert_goes_round(cycle: &Cycle, ring: &[&str]) {
    let names = names(cycle);
    assert_eq!(names.len(), ring.len() + 1, "{cycle}");
    let first = ring.iter().position(|name| *name == names[0]).unwrap_or_else(|| panic!("{cycle}"));
    for (place, name) in names.iter().enumerate() {
        assert_eq!(*name, ring[(first + place) % ring.len()], "{cycle}");
    }
}

/// Requests that know each other: a place for their handles.
#[derive(Clone)]
struct Known(Arc<OnceLock<Vec<Request<()>>>>);

impl Known {
    fn new() -> Known {
        Known(Arc::default())
    }

    fn set(&self, requests: &[Request<()>]) {
        assert!(self.0.set(requests.to_vec()).is_ok());
    }

    fn get(&self, index: usize) -> &Request<()> {
        &self.0.get().expect("set before any of them is submitted")[index]
    }
}

/// Makes a request of `runtime` with this name, on a stack of its own.
fn make(runtime: &Runtime, name: &str, f: impl FnOnce() + Send + 'static) -> Request<()> {
    runtime.enter(|| Request::builder().name(name.to_owned()).own_stack().build(f))
}
