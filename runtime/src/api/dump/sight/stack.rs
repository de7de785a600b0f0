//! What stands on the stacks of a runtime: of its workers, of the threads that run its requests, and of those that wait for them.

use std::ptr;

use forebear_context::context::Reason;
use forebear_context::shim::atomic::{Ordering, fence};
use forebear_context::shim::thread;

use super::wait::{SeenWait, describe, hold};
use super::{Blocked, Certainty, Seen, StackPlace, is_over, is_terminal, see, see_blocked};
use crate::api::any::State;
use crate::api::dump::{Party, ThreadInfo, WaitInfo, text};
use crate::record::fiber::Fiber;
use crate::record::header::{ARM, Header};
use crate::schedule::worker::HasWorkers;
use crate::shared::parked;
use crate::shared::{OfRuntime, Shared};
use crate::time::coarse;

/// How often a stack is looked at that changes all the while.
const LOOKS: usize = 100;
/// Behind the name of a request that runs on its waiter's stack.
pub(crate) const ON_THE_SAME_STACK: &str = ", on the same stack";
/// No stack holds more requests than this.
const DEEPEST: usize = 1 << 20;

/// All requests of `place` on one stack, from the top down. `own`: this is the thread of that stack.
pub(in crate::api::dump) fn see_stack(fiber: &Fiber, place: &StackPlace<'_>, own: bool, out: &mut Vec<Seen>) {
    if fiber.request.get().is_null() {
        return;
    }
    let held = hold(fiber.context());
    if held.is_some() || own {
        let wait = held.as_ref().map(|held| describe(held, fiber));
        let top = fiber.request.get();
        let (mut here, _) = frames(fiber, top, place, wait, true);
        out.append(&mut here);
        return;
    }
    for _ in 0..LOOKS {
        let before = place.count();
        fence(Ordering::Acquire);
        let top = fiber.request.get();
        let (mut here, fits) = frames(fiber, top, place, None, false);
        fence(Ordering::Acquire);
        if fits && ptr::eq(top, fiber.request.get()) && before == place.count() {
            out.append(&mut here);
            return;
        }
        thread::yield_now();
    }
}

/// The requests on a stack from `top` down; and whether they belong together.
fn frames(
    fiber: &Fiber,
    top: *const Header,
    place: &StackPlace<'_>,
    wait: Option<SeenWait>,
    sure: bool,
) -> (Vec<Seen>, bool) {
    let mut frames: Vec<Seen> = Vec::new();
    let (mut wait, mut above) = (wait, None::<Party>);
    let fits = walk(fiber, top, |h| {
        let on_top = above.is_none();
        let is_here = ptr::eq(h.ran_on.load(Ordering::Relaxed), place.arena);
        let waits = !on_top || wait.is_some();
        let state = if waits { State::Suspended } else { State::Running };
        let mut seen = see(h, state, Certainty::Started, sure);
        seen.info.worker = place.worker.map(|worker| worker.index);
        seen.info.thread = place.thread.map(str::to_owned);
        if on_top {
            seen.context = ptr::from_ref(fiber.context()).addr();
            if sure {
                seen.shares = fiber.context().shares().iter().map(|whole| whole.addr().get()).collect();
            }
        }
        let mut target = None;
        match (above.take(), wait.take()) {
            (Some(above), _) => {
                let what = format!("request {}{ON_THE_SAME_STACK}", text::quoted(above.name()));
                let owners = vec![above];
                seen.info.waits_for = Some(WaitInfo { reason: Reason::Request, what, owners, since: None });
            }
            (None, Some(of)) => {
                let since = coarse::between(fiber.since.load(Ordering::Relaxed), place.now);
                seen.leads = of.leads;
                seen.info.waits_for = Some(WaitInfo { since, ..of.info });
                target = of.target.filter(|_| ptr::eq(of.of, place.arena.shared()));
            }
            (None, None) => {}
        }
        above = Some(seen.party());
        if is_here && !is_over(h) {
            frames.push(seen);
            if sure {
                see_blocked(h, &mut frames);
            }
        }
        // Held back by a pool, or on its way from one place to another: then nobody else sees it.
        frames.extend(target.filter(|target| !is_terminal(target.info.state)));
    });
    (frames, fits)
}

/// Calls `with` for the requests on a stack from `top` down. False: they do not belong together.
fn walk(fiber: &Fiber, top: *const Header, mut with: impl FnMut(&Header)) -> bool {
    let mut at = top;
    for _ in 0..DEEPEST {
        // SAFETY: the stack is the caller's own, or held; or it was on the stack after a look has begun, so its memory stays, and what
        // is or was a header has nothing but headers below it.
        let Some(h) = (unsafe { at.as_ref() }) else { return true };
        if !ptr::eq(h.fiber.load(Ordering::Relaxed), fiber) {
            return false;
        }
        let below = h.lender.get();
        with(h);
        at = below;
    }
    false
}

/// Calls `with` for each stack of the runtime's workers and of the plain threads that run requests of it.
pub(in crate::api::dump) fn each_stack(shared: &Shared, mut with: impl FnMut(&Fiber, &StackPlace<'_>)) {
    for worker in shared.workers() {
        let place = StackPlace::of_worker(worker, shared);
        // SAFETY: K5: the list is locked.
        worker.post.each_coroutine(|coroutine| with(unsafe { &coroutine.as_ref().fiber }, &place));
    }
    each_stack_of_threads(shared, with);
}

/// What a stack waits for that runs no request: of a destructor or a callback that a worker's loop has called. And the worker.
pub(in crate::api::dump) fn see_nameless(fiber: &Fiber, place: &StackPlace<'_>) -> Option<(usize, WaitInfo)> {
    let worker = place.worker.filter(|_| fiber.request.get().is_null())?;
    let held = hold(fiber.context())?;
    Some((worker.index, describe(&held, fiber).info))
}

fn each_stack_of_threads(shared: &Shared, mut with: impl FnMut(&Fiber, &StackPlace<'_>)) {
    let now = coarse::now(shared);
    for arena in shared.depot.foreign() {
        // SAFETY: arenas stay as long as the record.
        let arena = unsafe { arena.as_ref() };
        arena.owner_mailbox.with_running(|context| {
            // SAFETY: what a mailbox names is a foreign fiber's, which stays while the mailbox is locked.
            let fiber = unsafe { crate::shared::thread::of_context(context) };
            // SAFETY: as above.
            let name = unsafe { crate::shared::thread::name_of_thread(context) };
            with(fiber, &StackPlace { arena, worker: None, thread: Some(name), now });
        });
    }
}

/// How many requests of `place` stand on one stack, arms not counted.
pub(in crate::api::dump) fn depth(fiber: &Fiber, place: &StackPlace<'_>) -> usize {
    let look = || {
        let mut depth = 0;
        let is_here = |h: &Header| ptr::eq(h.ran_on.load(Ordering::Relaxed), place.arena);
        let count = |h: &Header| depth += usize::from(is_here(h) && !is_over(h) && !h.is(ARM));
        walk(fiber, fiber.request.get(), count).then_some(depth)
    };
    (0..LOOKS).find_map(|_| look()).unwrap_or(1)
}

/// What plain threads run, and what they wait for.
pub(in crate::api::dump) fn see_foreign(shared: &Shared, out: &mut Vec<Seen>, threads: &mut Vec<Blocked>) {
    each_stack_of_threads(shared, |fiber, place| see_stack(fiber, place, false, out));
    parked::each_thread(|context| {
        // SAFETY: Y1: listed, so it is there.
        let fiber = unsafe { crate::shared::thread::of_context(context) };
        // SAFETY: as above.
        let name = unsafe { crate::shared::thread::name_of_thread(context) };
        if !fiber.request.get().is_null() {
            // The request that it runs stands for it.
            return;
        }
        let Some(held) = hold(fiber.context()) else { return };
        let wait = describe(&held, fiber);
        let shares = fiber.context().shares().iter().map(|whole| whole.addr().get()).collect();
        drop(held);
        let of_runtime = ptr::eq(wait.of, shared);
        if wait.target.is_some() && !of_runtime {
            // It waits for a request of another runtime.
            return;
        }
        out.extend(wait.target.filter(|target| of_runtime && !is_terminal(target.info.state)));
        threads.push(Blocked {
            info: ThreadInfo { name: name.to_owned(), waits_for: wait.info },
            leads: wait.leads,
            shares,
            of_runtime,
        });
    });
}
