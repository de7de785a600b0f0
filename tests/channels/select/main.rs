//! `select!`: which arm is taken, what becomes of the others, and how it ends.

mod arms;
#[path = "../../support/cancelling.rs"]
mod cancelling;
mod sets;
#[path = "../../support/mod.rs"]
mod support;
mod waits;

use std::time::Duration;

const LONG: Duration = Duration::from_secs(100);
