//! The last handle goes: which thread waits for the end, and what happens when that takes long.
//!
//! A destructor never suspends a request. A drop on a plain thread blocks that thread. In five other places a drop
//! starts a thread that waits. They are a worker's thread, a request that a plain thread runs, and user code that the end
//! of a request calls. They are also a blocking call, and a timer thread that calls a user's clock. What the runtime owns
//! is then released a little later.

use forebear_context::context::is_for_another;
use forebear_context::shim::ThreadBody;
use forebear_pool::Engine;

use super::{RuntimeHandle, laggards};
use crate::cancel;
use crate::record::dropping;
use crate::record::fiber;
use crate::record::report;
use crate::schedule::driver;
use crate::shared::Shared;
use crate::shared::ending::Stage;
pub use crate::shared::late_end::LateEnd;
use crate::shared::late_end::{LateStep, QUIET};
use crate::shared::parked;

/// So many are named.
const NAMED: usize = 16;

/// The wait for the end takes too long: reports what it waits for, and carries out the policy.
#[cold]
pub(crate) fn settle_late(shared: &Shared) -> LateStep {
    say_who_is_waited_for(shared);
    match shared.late_end {
        LateEnd::Wait => LateStep::Endless,
        LateEnd::Abort => std::process::abort(),
        LateEnd::ShutDown => {
            let unstarted = shared.refuse_and_sweep();
            shared.signals.stop();
            cancel::abort_unstarted(unstarted);
            LateStep::OneMore
        }
    }
}

/// Names the requests that have not ended though the last handle has gone.
#[cold]
fn say_who_is_waited_for(shared: &Shared) {
    let what = format!("the last handle of runtime '{}' has gone, and its end waits for", shared.name);
    say_who_is_left(
        shared,
        &what,
        "Runtime::shutdown ends them; RuntimeBuilder::late_end sets what happens here",
    );
}

/// An end without a limit has taken a while: names what `call`, the user's, waits for.
#[cold]
pub(super) fn say_that_it_is_endless(shared: &Shared, call: &str) {
    let what = format!("Runtime::{call} of runtime '{}' waits for ever, for", shared.name);
    say_who_is_left(shared, &what, "A finite grace period ends the wait");
}

/// Names the requests that have not ended.
#[cold]
pub(super) fn say_who_is_left(shared: &Shared, what: &str, advice: &str) {
    let found = laggards::find(shared).into_iter().chain(laggards::exiting(shared));
    let found = found.map(|laggard| laggard.to_string()).chain(laggards::held(shared));
    let mut left: Vec<String> = cut(found.collect());
    left.extend(shared.has_unstarted().then(|| "requests that have not started".to_owned()));
    if left.is_empty() {
        left.push("a thread that runs a request of it".to_owned());
    }
    report::warn(&shared.hooks, &format!("{what}: {}. {advice}", left.join(", ")));
}

/// The first [`NAMED`] of these, and how many more there are.
fn cut(mut names: Vec<String>) -> Vec<String> {
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    names.extend((more > 0).then(|| format!("{more} more")));
    names
}

/// The same as one text.
pub(super) fn list(names: Vec<String>) -> String {
    cut(names).join(", ")
}

/// Waits until the threads of all workers have exited. False: some never may, and stay.
fn await_end(shared: &Shared) -> bool {
    if cfg!(shuttle) || shared.ending.exits_within(QUIET) || settle_late(shared) == LateStep::Endless {
        return true;
    }
    if shared.ending.exits_within(QUIET) {
        return true;
    }
    shared.ending.advance(Stage::GivenUp);
    parked::give_up(shared);
    shared.futures.give_up();
    say_who_is_waited_for(shared);
    false
}

fn take_down(shared: &Shared, engine: &Engine<Shared>) {
    shared.ending.close_once(|| {
        // After a shutdown those that have not ended may never do: then all that is left stays.
        if (!shared.ending.is(Stage::GivenUp) || shared.ending.is_quiet()) && await_end(shared) {
            engine.join();
            // SAFETY: the threads are gone.
            unsafe { shared.close() };
        }
        true
    });
}

impl Drop for RuntimeHandle {
    fn drop(&mut self) {
        if self.shared.driven.is_some() {
            return driver::handle_gone(&self.shared);
        }
        let waits_elsewhere = self.is_on_a_worker()
            || fiber::get().is_some_and(|fiber| {
                fiber.has_worker() || fiber.request().is_some() || dropping::ends_any(fiber)
            })
            || is_for_another();
        let Some(engine) = self.engine.take() else { return };
        if self.shared.is_inherited() {
            // The threads are in the parent; so may be those that hold its locks.
            std::mem::forget(engine);
            return;
        }
        self.shared.ending.begin();
        self.shared.signals.stop();
        if !waits_elsewhere {
            return take_down(&self.shared, &engine);
        }
        let shared = self.shared.clone();
        let end = std::thread::Builder::new().name("forebear end".into()); // not modelled: it joins and ends
        let take_down: ThreadBody = Box::new(move || take_down(&shared, &engine));
        if let Err(error) = end.spawn(take_down) {
            // The workers end by themselves.
            let what = format!(
                "the last handle of runtime '{}' went inside a request, and no thread could be started to free its memory: {error}",
                self.shared.name
            );
            report::warn(&self.shared.hooks, &what);
        }
    }
}
