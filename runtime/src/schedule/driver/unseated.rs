//! The wait of a thread that deals with a runtime without workers and has no seat there: all are taken, or there is no memory for its stacks.
//!
//! Another thread with a seat may run what this one waits for. When a seat is given back, this thread is nudged and takes it. Nobody tells it that
//! there is memory again, so it tries at intervals, and a warning names it once if that lasts.

use std::time::{Duration, Instant};

use forebear_context::clock::deadline_after;
use forebear_context::context::Context;
use forebear_context::error::StackError;
use forebear_context::shim::{Arc, time};

use crate::record::report;
use crate::shared::Shared;
use crate::shared::thread::warn_elsewhere;

/// How long a thread sleeps that lacks seats in several runtimes, and is nudged by one of them; or that takes none where a runtime ends.
pub(super) const TURN: Duration = Duration::from_millis(10);

/// Blocks until a seat may be had in one of these runtimes, the wait is over, or it is nudged otherwise. Whether it is over. It returns at `look`, too.
///
/// # Safety
///
/// As [`ForeignContext::block`](forebear_context::context::ForeignContext::block).
pub(super) unsafe fn block(
    context: &Context,
    lacking: &[Arc<Shared>],
    deadline: Option<Instant>,
    look: Option<Instant>,
) -> bool {
    let turn = if lacking.len() > 1 { deadline_after(time::now(), TURN) } else { None };
    let look = look.into_iter().chain(turn).min();
    let with_seats = || lacking.iter().filter_map(|shared| Some((shared, shared.driven.as_ref()?)));
    for (shared, driven) in with_seats() {
        if let Some(error) = driven.lasting_shortage() {
            say_that_it_waits(shared, &error);
        }
    }
    // SAFETY: by contract.
    with_seats().next().is_some_and(|(_, driven)| unsafe { driven.block_for_seat(context, deadline, look) })
}

#[cold]
fn say_that_it_waits(shared: &Arc<Shared>, error: &StackError) {
    let thread = std::thread::current();
    let what = format!(
        "thread '{}' waits in runtime '{}', which has no workers, and can have no stack to run its requests on. It tries again until it has one: {error}",
        thread.name().unwrap_or("unnamed thread"),
        shared.name
    );
    // Where memory is short the system may start no thread either. The hook may not be called here, in the middle of the wait.
    if warn_elsewhere(shared.clone(), what.clone()).is_err() {
        report::say(&what);
    }
}
