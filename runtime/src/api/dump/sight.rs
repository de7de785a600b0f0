//! Seeing: how a dump is made, what stands on one stack or in one queue, and where a wait leads.
//!
//! # How a dump is made
//!
//! 1. It looks at the shared queues, whose entries anybody may read.
//! 2. It asks each worker ([`crate::state::inquiry`]). The worker answers at its next scheduling point with all that stands on its
//!    stacks and in its private queue; it reads its own memory, which nobody changes meanwhile.
//! 3. It looks at the threads that run requests themselves, and at those that are blocked in a wait.
//! 4. A worker that does not answer within `PATIENCE` (`answer.rs`) is in user code without a scheduling point. The dump looks at that worker's
//!    stacks from outside, and counts what is private to it.
//! 5. It looks at the shared queues again, for what was published meanwhile. What was seen twice is listed once.
//! 6. It finds out who holds or owes what each of them waits for.
//!
//! What stands still from the beginning to the end of this is in the dump. What moves from one place to another meanwhile may be
//! missed, or be told where it was.
//!
//! # Why it is sound
//!
//! * A worker that answers reads what is its own.
//! * Where a wait leads is read while the wait is *held* ([`Context::hold`](forebear_context::context::Context::hold)): it does not end
//!   then, so the waiter's frame and what it waits for are there, and the waiter's stack does not change. A wait is held only when it
//!   has parked: before that its own stack may take it back without a look.
//! * What stands on a stack that is neither held nor the reader's own is read under [`reclaim::read_section`](crate::record::reclaim::read_section): it may be out of date, and is
//!   never gone. What does not fit together is read again.
//! * Entries of shared queues are read by a link of the reader's.

use std::ptr::{self, NonNull};

use forebear_context::context::edge::Held;
use forebear_context::context::{Context, Label, Reason};
use forebear_context::error::SourceLocation;
use forebear_context::lineage::priority_of;
use forebear_context::shim::atomic::{Ordering, fence};
use forebear_context::shim::thread;

use super::{Party, RequestInfo, ThreadInfo, WaitInfo};
use crate::api::any::{self, AnyRequest, State};
use crate::deadlock::declared;
use crate::deadlock::foreign_stacks;
use crate::record::arena::Arena;
use crate::record::dependents;
use crate::record::fiber::Fiber;
use crate::record::header::{ARM, Header};
use crate::schedule::worker::{HasWorkers, Worker};
use crate::shared::parked;
use crate::shared::{OfRuntime, Shared};
use crate::state::word::{self, LOCAL, LocalStep, MARKED};
use crate::time::coarse;

/// How often a stack is looked at that changes all the while.
const LOOKS: usize = 100;
/// How often it is tried to hold a wait that somebody else holds, or has chosen.
const TRIES: usize = 100;
/// Behind the name of a request that runs on its waiter's stack.
pub(crate) const ON_THE_SAME_STACK: &str = ", on the same stack";
/// So many are named of what one request is after.
const SHOWN: usize = 8;
/// No stack holds more requests than this.
const DEEPEST: usize = 1 << 20;

/// Where a wait leads, by address: to be made out when all has been seen. 0: nowhere.
#[derive(Clone, Copy, Default)]
pub(crate) struct Leads {
    /// The scope whose jobs are waited for.
    pub scope: usize,
    /// The context that holds what is waited for.
    pub holder: usize,
    /// What several hold.
    pub whole: usize,
}

/// How sure it is that a request is where it was seen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Certainty {
    /// Somebody waits for it.
    Wanted,
    Unstarted,
    Started,
}

/// What was seen of one request.
pub(crate) struct Seen {
    pub info: RequestInfo,
    pub certainty: Certainty,
    pub header: usize,
    /// The stack that it is on top of.
    pub context: usize,
    /// The scope that it is a job of.
    pub scope: usize,
    /// What its stack holds together with others, if it is on top.
    pub shares: Vec<usize>,
    pub leads: Leads,
    pub key: u64,
    pub depth: u32,
    pub rank: u32,
}

impl Seen {
    pub(super) fn party(&self) -> Party {
        Party::Request { id: self.info.id, name: self.info.name.clone() }
    }
}

/// A plain thread that waits.
pub(super) struct Blocked {
    pub info: ThreadInfo,
    pub leads: Leads,
    pub shares: Vec<usize>,
    /// It waits for a request of the runtime.
    pub of_runtime: bool,
}

/// Where stacks stand.
pub(super) struct StackPlace<'a> {
    arena: &'a Arena,
    worker: Option<&'a Worker>,
    thread: Option<&'a str>,
    /// The time.
    now: u64,
}

impl<'a> StackPlace<'a> {
    pub(super) fn of_worker(worker: &'a Worker, shared: &Shared) -> StackPlace<'a> {
        StackPlace { arena: worker.arena(), worker: Some(worker), thread: None, now: coarse::now(shared) }
    }

    /// Changes whenever something is started here.
    fn count(&self) -> u64 {
        match self.worker {
            Some(worker) => worker.started.get() + worker.direct.get(),
            None => self.arena.direct.get(),
        }
    }
}

/// Whether an entry of a queue is not a stale entry.
pub(super) fn is_live_entry(h: &Header) -> bool {
    let bits = h.bare.load();
    bits.is_unstarted() && !(bits.has(LOCAL) && h.local.is(LocalStep::Done))
}

/// A request that has not started. Its memory stays while this looks, and nobody writes its plain fields.
pub(super) fn see_unstarted(h: &Header, place: &StackPlace<'_>) -> Seen {
    let mut seen = see(h, State::Queued, Certainty::Unstarted, true);
    seen.info.worker = place.worker.map(|worker| worker.index);
    seen
}

/// The same with all that is after it.
pub(super) fn see_unstarted_and_blocked(h: &Header, place: &StackPlace<'_>, out: &mut Vec<Seen>) {
    out.push(see_unstarted(h, place));
    see_blocked(h, out);
}

/// What a request that has not started is after, if it is.
fn see_edges(h: &Header) -> Option<WaitInfo> {
    let awaited = declared::dependencies(h, SHOWN + 1);
    // SAFETY: the handles' links.
    let of = |any: &AnyRequest| unsafe { any.raw().as_ref() };
    let first = awaited.first().map(of)?;
    let owners: Vec<_> = awaited
        .iter()
        .take(SHOWN)
        .map(of)
        .map(|h| see(h, life_of(h), Certainty::Wanted, true).party())
        .collect();
    let name = super::text::quoted(first.name());
    let what = match awaited.len() {
        1 => format!("request {name}, declared"),
        n if n > SHOWN => format!("request {name} and more, declared"),
        n => format!("request {name} and {} more, declared", n - 1),
    };
    Some(WaitInfo { reason: Reason::Request, what, owners, since: None })
}

/// What is after a request that does not end meanwhile, directly or not.
fn see_blocked(h: &Header, out: &mut Vec<Seen>) {
    dependents::each_blocked(h, |blocked| {
        if same_runtime(blocked, h) {
            let mut seen = see(blocked, life_of(blocked), Certainty::Unstarted, true);
            seen.info.waits_for = see_edges(blocked);
            out.push(seen);
        }
        false
    });
}

fn same_runtime(a: &Header, b: &Header) -> bool {
    let of = |h: &Header| {
        // SAFETY: M3, for both.
        let arena = unsafe { h.arena.get().as_ref() };
        arena.map_or(ptr::null(), |arena| ptr::from_ref(arena.shared()))
    };
    ptr::eq(of(a), of(b))
}

/// What is known of a request by itself. `sure`: it does not end meanwhile.
fn see(h: &Header, state: State, certainty: Certainty, sure: bool) -> Seen {
    let whose = h.identity();
    let key = h.lineage.key();
    // A parent's header stays as long as its child's.
    let parent = if sure { whose.parent().map(|parent| any::id_of(parent.identity())) } else { None };
    Seen {
        info: RequestInfo {
            id: any::id_of(whose),
            name: whose.name().to_owned(),
            is_arm: h.is(ARM),
            made_at: whose.side().and_then(|side| side.location).map(SourceLocation::from),
            state,
            is_cancelled: whose.bare.load().has(MARKED),
            worker: None,
            thread: None,
            parent,
            priority: priority_of(key),
            raised_to: h.risen_to().map(priority_of).filter(|risen| *risen < priority_of(key)),
            waits_for: None,
        },
        certainty,
        header: ptr::from_ref(h).addr(),
        context: 0,
        scope: h.scope.get().addr(),
        shares: Vec::new(),
        leads: Leads::default(),
        key,
        depth: h.lineage.depth(),
        rank: h.lineage.rank(),
    }
}

/// Holds the wait that goes on, if it has parked.
fn hold(context: &Context) -> Option<Held<'_>> {
    for _ in 0..TRIES {
        let ticket = context.ticket();
        if !context.is_parked() {
            return None;
        }
        if let held @ Some(_) = context.hold(ticket) {
            return held;
        }
        // Somebody else holds it, or it has been chosen, and goes on soon.
        thread::yield_now();
    }
    None
}

/// What a wait is for.
struct SeenWait {
    info: WaitInfo,
    leads: Leads,
    /// The request that is waited for.
    target: Option<Seen>,
    /// The runtime of that.
    of: *const Shared,
}

/// What a held wait is for.
fn describe(held: &Held<'_>, fiber: &Fiber) -> SeenWait {
    let (reason, target) = held.waits_for();
    let mut wait = SeenWait {
        info: WaitInfo { reason, what: reason.to_string(), owners: Vec::new(), since: None },
        leads: Leads::default(),
        target: None,
        of: ptr::null(),
    };
    match reason {
        Reason::Request | Reason::Arm => {
            // SAFETY: the waiter has a count of its target, and the wait is held.
            if let Some(target) = unsafe { target.cast::<Header>().as_ref() } {
                let mut seen = see(target, life_of(target), Certainty::Wanted, true);
                seen.info.waits_for = see_edges(target);
                // SAFETY: M3: the target has an arena.
                wait.of = unsafe { target.arena.get().as_ref() }.map_or(ptr::null(), |arena| arena.shared());
                wait.info.owners.push(seen.party());
                if reason == Reason::Request {
                    wait.info.what = format!("request {}", super::text::quoted(&seen.info.name));
                }
                wait.target = Some(seen);
            }
        }
        Reason::Scope => wait.leads.scope = target.addr(),
        // The innermost scope is the pool's.
        Reason::Pool => wait.leads.scope = fiber.scopes.get().addr(),
        // SAFETY: the wait is held.
        _ => match unsafe { held.context().owner_wait() } {
            Some(owned) => {
                wait.info.what = owned.to_string();
                // SAFETY: the wait is held.
                wait.leads.holder =
                    unsafe { owned.owner() }.map_or(0, |holder| holder.as_ptr().expose_provenance());
                wait.leads.whole = owned.whole().map_or(0, |whole| whole.addr().get());
            }
            None => {
                // SAFETY: the wait is held.
                let label = unsafe { held.context().awaited_name() }.map_or(Label::NONE, Label::new);
                wait.info.what = format!("{reason}{label}");
            }
        },
    }
    wait
}

/// All requests of `place` on one stack, from the top down. `own`: this is the thread of that stack.
pub(super) fn see_stack(fiber: &Fiber, place: &StackPlace<'_>, own: bool, out: &mut Vec<Seen>) {
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
                let what = format!("request {}{ON_THE_SAME_STACK}", super::text::quoted(above.name()));
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

/// What the word says that a request is doing; of one that has started not whether it waits.
fn life_of(h: &Header) -> State {
    match h.bare.load().life() {
        word::NEW => State::New,
        word::HELD | word::QUEUED => State::Queued,
        word::FINISHED => State::Finished,
        word::FAILED => State::Failed,
        word::CANCELLED => State::Cancelled,
        _ => State::Running,
    }
}

fn is_terminal(state: State) -> bool {
    matches!(state, State::Finished | State::Failed | State::Cancelled)
}

fn is_over(h: &Header) -> bool {
    let bits = h.bare.load();
    bits.is_terminal() || bits.has(LOCAL) && h.local.is(LocalStep::Done)
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

/// What stands in the shared queues and has not started.
pub(super) fn see_shared_queues(shared: &Shared, out: &mut Vec<Seen>) {
    let mut entries = Vec::new();
    let mut link = |h: &Header| {
        if h.word().load().is_unstarted() && !h.is(ARM) {
            // SAFETY: E1: the entry's link, under the shared queue's lock.
            entries.push(unsafe { AnyRequest::linked(NonNull::from(h)) });
        }
        false
    };
    let link = std::cell::RefCell::new(&mut link);
    shared.injector.any(|h| (link.borrow_mut())(h));
    for worker in shared.worker_records().iter() {
        worker.post.shared_queue.any(|h| (link.borrow_mut())(h));
        worker.post.held.any(|h| (link.borrow_mut())(h));
    }
    for entry in entries {
        // SAFETY: the link.
        let h = unsafe { entry.raw().as_ref() };
        out.push(see(h, State::Queued, Certainty::Unstarted, true));
        see_blocked(h, out);
    }
}

/// Calls `with` for each stack of the runtime's workers and of the plain threads that run requests of it.
pub(super) fn each_stack(shared: &Shared, mut with: impl FnMut(&Fiber, &StackPlace<'_>)) {
    for worker in shared.workers() {
        let place = StackPlace::of_worker(worker, shared);
        // SAFETY: K5: the list is locked.
        worker.post.each_coroutine(|coroutine| with(unsafe { &coroutine.as_ref().fiber }, &place));
    }
    each_stack_of_threads(shared, with);
}

/// What a stack waits for that runs no request: of a destructor or a callback that a worker's loop has called. And the worker.
pub(super) fn see_nameless(fiber: &Fiber, place: &StackPlace<'_>) -> Option<(usize, WaitInfo)> {
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
            let (fiber, name) = unsafe {
                (crate::shared::thread::of_context(context), crate::shared::thread::name_of_thread(context))
            };
            with(fiber, &StackPlace { arena, worker: None, thread: Some(name), now });
        });
    }
}

/// How many requests of `place` stand on one stack, arms not counted.
pub(super) fn depth(fiber: &Fiber, place: &StackPlace<'_>) -> usize {
    let look = || {
        let mut depth = 0;
        let is_here = |h: &Header| ptr::eq(h.ran_on.load(Ordering::Relaxed), place.arena);
        let count = |h: &Header| depth += usize::from(is_here(h) && !is_over(h) && !h.is(ARM));
        walk(fiber, fiber.request.get(), count).then_some(depth)
    };
    (0..LOOKS).find_map(|_| look()).unwrap_or(1)
}

/// What plain threads run, and what they wait for.
pub(super) fn see_foreign(shared: &Shared, out: &mut Vec<Seen>, threads: &mut Vec<Blocked>) {
    each_stack_of_threads(shared, |fiber, place| see_stack(fiber, place, false, out));
    parked::each_thread(|context| {
        // SAFETY: Y1: listed, so it is there.
        let (fiber, name) = unsafe {
            (crate::shared::thread::of_context(context), crate::shared::thread::name_of_thread(context))
        };
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

/// In the order of their names.
pub(super) fn thread_infos(threads: Vec<Blocked>) -> Vec<ThreadInfo> {
    let mut infos: Vec<_> = threads.into_iter().map(|thread| thread.info).collect();
    infos.sort_by(|a, b| (&a.name, &a.waits_for.what).cmp(&(&b.name, &b.waits_for.what)));
    infos
}

/// Who holds something, and was not seen among the runtime's own: the context was named by a lock, and may be gone.
pub(super) fn stranger(holder: NonNull<Context>) -> Option<Party> {
    let mut party = None;
    foreign_stacks::with_holder(None, holder, |stack| {
        // SAFETY: a dump is made inside a look.
        let name = unsafe { stack.name() };
        party = Some(Party::Other { name });
    });
    party
}
