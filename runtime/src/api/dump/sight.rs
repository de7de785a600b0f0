//! What a dump sees of one request or one queue; and, in this head, how a dump is made. What stands on stacks is seen by [`stack`], and where
//! a wait leads by [`wait`].
//!
//! # How a dump is made
//!
//! 1. The dumping thread reads the shared queues, whose entries any thread may read.
//! 2. It sends an inquiry to each worker ([`crate::state::inquiry`]). The worker answers at its next scheduling point with the requests on its
//!    stacks and in its private queue. It reads its own memory, which no other thread changes meanwhile.
//! 3. The dumping thread reads the threads that run requests themselves, and those that are blocked in a wait.
//! 4. A worker that does not answer within `PATIENCE` (`answer.rs`) is in user code without a scheduling point. The dumping thread reads that
//!    worker's stacks from outside, and counts its private requests.
//! 5. It reads the shared queues again, for requests that were published meanwhile. A request that was seen twice is listed once.
//! 6. It finds the holders of what each request waits for.
//!
//! A request that stays in one place from the first step to the last is in the dump. One that moves meanwhile may be
//! missing, or be shown where it was.
//!
//! # Why it is sound
//!
//! * A worker that answers reads its own memory.
//! * A dump reads where a wait leads while the wait is *held* ([`Context::hold`](forebear_context::context::Context::hold)). A held wait does not
//!   end, so the waiter's frame and its target stay, and the waiter's stack does not change. Only a parked wait is held: before it
//!   parks, its own stack may withdraw it without a check.
//! * A stack that is neither held nor the reader's own is read under [`reclaim::read_section`](crate::record::reclaim::read_section). What is read may be out of date, and is
//!   never freed memory. Frames that do not fit together are read again.
//! * For an entry of a shared queue the reader takes a link of its own.

mod stack;
mod wait;

pub(crate) use self::stack::ON_THE_SAME_STACK;
pub(super) use self::stack::{depth, each_stack, see_foreign, see_nameless, see_stack};

use std::ptr::{self, NonNull};

use forebear_context::context::{Context, Reason};
use forebear_context::error::SourceLocation;
use forebear_context::lineage::priority_of;

use super::{Party, RequestInfo, ThreadInfo, WaitInfo};
use crate::api::any::{self, AnyRequest, State};
use crate::deadlock::declared;
use crate::deadlock::foreign_stacks;
use crate::record::arena::Arena;
use crate::record::dependents;
use crate::record::header::{ARM, Header};
use crate::schedule::worker::Worker;
use crate::shared::{OfRuntime, Shared};
use crate::state::word::{self, LOCAL, LocalStep, MARKED};
use crate::time::coarse;

/// So many are named of what one request is after.
const SHOWN: usize = 8;

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
    /// Another request or a thread waits for it.
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
            Some(worker) => {
                let totals = worker.totals();
                totals.started + totals.direct
            }
            None => self.arena.direct.get(),
        }
    }
}

/// Whether an entry of a queue is not a stale entry.
pub(super) fn is_live_entry(h: &Header) -> bool {
    let bits = h.bare.load();
    bits.is_unstarted() && !(bits.has(LOCAL) && h.local.is(LocalStep::Done))
}

/// A request that has not started. Its memory stays while this reads it, and no thread writes its plain
/// fields.
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
            known_for: None,
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

/// The completions that dependents are after, and all these dependents.
pub(super) fn see_completions(shared: &Shared, out: &mut Vec<Seen>) {
    for completion in shared.awaited_completions() {
        let h = completion.header();
        let state = life_of(h);
        if !is_terminal(state) {
            out.push(see(h, state, Certainty::Wanted, true));
        }
        see_blocked(h, out);
    }
}

/// In the order of their names.
pub(super) fn thread_infos(threads: Vec<Blocked>) -> Vec<ThreadInfo> {
    let mut infos: Vec<_> = threads.into_iter().map(|thread| thread.info).collect();
    infos.sort_by(|a, b| (&a.name, &a.waits_for.what).cmp(&(&b.name, &b.waits_for.what)));
    infos
}

/// The holder of a lock that was not seen among the runtime's own requests and threads. The lock has named this context, which may be gone.
pub(super) fn stranger(holder: NonNull<Context>) -> Option<Party> {
    let mut party = None;
    foreign_stacks::with_holder(None, holder, |stack| {
        // SAFETY: a dump is made inside a look.
        let name = unsafe { stack.name() };
        party = Some(Party::Other { name });
    });
    party
}
