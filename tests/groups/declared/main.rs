//! Declared dependencies: a request that is after others is not started before they are over, and then behaves as one that waits for them first.

#[path = "../../support/cancelling.rs"]
mod cancelling;
mod completions;
mod ends;
mod forms;
mod graphs;
mod many;
mod places;
#[path = "../../support/mod.rs"]
mod support;
