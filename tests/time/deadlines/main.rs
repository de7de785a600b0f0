//! Deadlines of requests: what they abort and when, who inherits them, where they order, and that nothing of them stays.

mod beside;
#[path = "../../support/cancelling.rs"]
mod cancelling;
mod coming;
mod inheriting;
#[path = "../../support/mod.rs"]
mod support;

use std::time::Duration;

use cancelling::asleep;
use forebear::time::sleep;
use forebear::{AnyRequest, Request, RequestBuilder, Runtime};
use support::order::root;
use support::settle;

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

/// A root with a second to live, on a stack of its own.
fn limited(runtime: &Runtime) -> RequestBuilder {
    root(runtime).timeout(SECOND)
}

/// What a request that sleeps for ever is.
fn sleeps(builder: &RequestBuilder) -> Request<()> {
    let request = builder.try_spawn(|| Ok(sleep(Duration::MAX)?));
    asleep(&request);
    request
}

/// What the two counts of a request are, as its description tells.
fn counts(request: &AnyRequest) -> String {
    let text = format!("{request:?}");
    text[text.find("handles").expect("it tells them")..].to_owned()
}

/// How much is armed on the clock of the runtime.
fn armed(runtime: &Runtime) -> usize {
    runtime.metrics().armed
}
