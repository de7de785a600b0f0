//! The coordinator's behaviours, row by row: `rNN` is the row of `docs/coordination.md`.
#![allow(clippy::unit_arg, reason = "`Ok(wait()?)` turns one error into another")]

mod beyond;
#[path = "../broken/mod.rs"]
mod broken_error;
mod errors;
mod hostile;
mod joins;
mod stops;
#[path = "../../../tests/support/mod.rs"]
mod support;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebear::Failure;
use forebear_supervise::{Coordinator, JoinError};

use self::broken_error::Broken;

const MS: Duration = Duration::from_millis(1);

/// An error with a cause.
#[derive(Debug)]
struct Wrapped(Broken);

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("wrapped")
    }
}

impl std::error::Error for Wrapped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// What went to the hook for failures that nobody sees.
#[derive(Clone, Default)]
struct Unseen(Arc<Mutex<Vec<Failure>>>);

impl Unseen {
    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Of the workers whose failures went there, in order.
    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|failure| failure.request().to_owned()).collect()
    }

    fn coordinator(&self) -> Coordinator {
        let list = self.0.clone();
        Coordinator::builder()
            .on_unhandled_failure(move |failure| list.lock().unwrap().push(failure.clone()))
            .build()
            .unwrap()
    }
}

fn broken(answer: Result<(), JoinError>) -> u32 {
    answer.unwrap_err().failure().expect("a failure").downcast_ref::<Broken>().expect("the same error").0
}

fn until_a_join_has_begun(coordinator: &Coordinator) {
    support::until(|| format!("{coordinator:?}").contains("joins: 1"));
}
