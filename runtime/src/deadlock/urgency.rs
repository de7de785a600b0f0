//! Urgency: a request that others wait for is as urgent as the most urgent of them, and so is what it waits for itself.
//!
//! It travels as a root key (see `docs/decisions/0001`): from the waiter to the target, and if the target's stack is parked
//! in a wait of its own, on to that one's target, and so on, by a loop. A raise of something unstarted is a second entry by
//! the new key; of something started it lowers its fiber's urgency, which decides when the fiber is made ready.
//!
//! When the most urgent of those who wait gives up, the target *falls* to the most urgent of the others, along the same way: the
//! fiber's urgency is that of the requests on it, whose urgency is that of those who still wait. A ready fiber is moved by a raise
//! ([`Ready::raise`](crate::stack::ready::Ready::raise)), and not by a fall: it falls when it is next made ready; an unstarted request goes back to its own place when somebody comes to the entry by the higher key
//! ([`is_outdated`]). Of a crowd only the first [`LONGEST`] are asked. A raise that meets a fall may be lost until the next
//! wait: order is a preference.
//!
//! What a parked fiber waits for may be followed only on its own worker's thread: there it cannot go on meanwhile, so it
//! keeps its target alive. A chain that leads to another worker goes on there, in whatever runtime that is: the raise is left in that worker's
//! post. If the target has not started, and is of a runtime that the raiser is no worker of, its second entry stands in a shared queue of that runtime.
//!
//! What a fiber waits for may be held by another context: then that is raised, and what it waits for; the waiter gets the place in
//! the list there that goes with its new key.
//!
//! # Invariants
//!
//! * **U1** A chain is followed on the thread of the worker whose fiber is looked into.
//! * **U2** The thread that follows a chain has a count of the current request, or runs a parked fiber that has one.
//! * **U3** A waiter for a pool says where its lanes are: in its own frame, so they may be read on its worker's thread while
//!   it is parked, or was woken and has not gone on. The lanes' own waits lead to the members. So does who waits for several.
//! * **U4** What is left with a runtime, a raise or an entry, has a link. A runtime is marked as over before it takes out the last of that
//!   ([`Shared::close`](crate::shared::Shared::close)), and both lists have locks. So a thread that leaves something looks at the mark after that, and
//!   takes it back if the mark is set: nothing stays there for ever.

use std::ptr::{self, NonNull};

use forebear_context::context::Reason;
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::Ordering;
use forebear_context::source::Several;

use crate::deadlock::declared::dependencies;
use crate::deadlock::foreign_stacks::{self, StackView};
use crate::record::any::{AnyRequest, Lanes};
use crate::record::arena::{self, Arena};
use crate::record::fiber::Fiber;
use crate::record::header::{AFTER, Header};
use crate::shared::OfRuntime;
use crate::shared::post::Raised;
use crate::shared::worker::WorkerRecord;
use crate::state::word::{HELD, NEW};

/// In the place of a key: the urgency has fallen. A minimum with it changes nothing.
const FALLEN: u64 = NO_KEY;
/// A chain longer than this is cut: order is a preference, and nobody may stop a worker by it.
const LONGEST: usize = 64;

/// Something of root key `key` on this thread waits for the target. `here` is the worker whose thread this is.
///
/// # Safety
///
/// U2.
#[inline]
pub(crate) unsafe fn raise(here: Option<&WorkerRecord>, target: NonNull<Header>, key: u64) {
    // SAFETY: U2.
    let h = unsafe { target.as_ref() };
    if !h.raise_urgency(key) {
        // Each thread that raised it so far has followed the chain, and a wait that began since then has passed it on.
        return;
    }
    // SAFETY: U2.
    unsafe { follow(here, target, key) };
}

/// Who waited with this key has left the target's list, and the target goes on.
///
/// # Safety
///
/// U2.
pub(crate) unsafe fn leave(here: Option<&WorkerRecord>, target: NonNull<Header>, key: u64) {
    // SAFETY: U2.
    let h = unsafe { target.as_ref() };
    if h.risen_to() == Some(key) && sink(h, NO_KEY) {
        // SAFETY: U2.
        unsafe { follow(here, target, FALLEN) };
    }
}

/// Makes the request no more urgent than those who wait for it, and than `floor`. False: it is as urgent as before.
fn sink(h: &Header, floor: u64) -> bool {
    let Some(risen) = h.risen_to() else { return false };
    if h.word().lock().is_err() {
        return false;
    }
    let (mut most, mut asked) = (floor, 0);
    // SAFETY: Q1: the lock; a listed node's context is valid.
    let stays = unsafe {
        h.waiters.find_to_front(|node| {
            asked += 1;
            if let Some(dependent) = node.record() {
                // An edge that is listed is open, so its dependent is there (AF4).
                most = most.min(dependent.cast::<Header>().as_ref().urgency());
            } else if !node.watches() {
                most = most.min(node.urgency());
            }
            most <= risen || asked == LONGEST
        })
    };
    h.word().unlock(|bits| bits);
    !stays && most > risen && h.fall(risen, most)
}

/// Makes a stack as urgent as the requests on it, and nothing more, unless it holds what others may wait for: then it is made so
/// when it has given that back. By the stack's own code, or on its worker's thread while it is left. A waiter that has raised it
/// since has noted that there.
pub(crate) fn fall(fiber: &Fiber) {
    if fiber.context().locks().get() > 0 {
        return;
    }
    let (mut key, mut at) = (None, fiber.request());
    while let Some(h) = at {
        key = Some(key.map_or(h.urgency(), |key: u64| key.min(h.urgency())));
        // SAFETY: what is below another on a stack is not over.
        at = unsafe { h.lender.get().as_ref() };
    }
    if let Some(key) = key {
        fiber.urgency.store(key, Ordering::Relaxed);
    }
}

/// Whether an entry by this key is of an unstarted request that has fallen since.
pub(crate) fn is_outdated(header: NonNull<Header>, key: u64) -> bool {
    // SAFETY: the entry's link (E1).
    let h = unsafe { header.as_ref() };
    h.side().is_some() && h.urgency() > key && h.word().load().is_unstarted()
}

/// The target's urgency has been lowered to `key`, or is no more what it was ([`FALLEN`]): does what follows from it.
///
/// # Safety
///
/// U2.
#[inline(never)]
pub(crate) unsafe fn follow(here: Option<&WorkerRecord>, target: NonNull<Header>, key: u64) {
    // SAFETY: by contract.
    unsafe { follow_from(here, Link::Request(target), key) };
}

/// Somebody of root key `key` waits for what this stack holds: the stack becomes as urgent, and what it waits for itself.
pub(crate) fn raise_holder(here: Option<&WorkerRecord>, holder: &StackView<'_>, key: u64) {
    if let Some(link) = raise_stack(here, holder, key) {
        // SAFETY: the stack is this worker's (K6).
        unsafe { follow_from(here, link, key) };
    }
}

/// Makes a stack as urgent as `key`. If it was less urgent, answers the stack if the chain goes on from it on this thread, or leaves that with the
/// worker whose stack it is. If not, each thread that raised it so far has followed the chain, and a wait that began since then has passed it on.
#[inline]
fn raise_stack(here: Option<&WorkerRecord>, holder: &StackView<'_>, key: u64) -> Option<Link> {
    holder.lower_urgency(key).then(|| link_to_stack(here, holder, key)).flatten()
}

/// The stack, if the chain goes on from it on this thread. If not, it leaves that with the worker whose stack it is.
#[cold]
#[inline(never)]
fn link_to_stack(here: Option<&WorkerRecord>, holder: &StackView<'_>, key: u64) -> Option<Link> {
    // On a foreign thread, which has no order; or given back meanwhile.
    let worker = holder.worker()?;
    if here.is_some_and(|here| ptr::eq(here, worker)) {
        return Some(Link::Stack(holder.fiber()));
    }
    worker.post.leave_raise_of_stack(holder.fiber(), key);
    worker.shared().wake(worker.index);
    None
}

/// Whether it was less urgent.
fn lower(fiber: &Fiber, key: u64) -> bool {
    // A look first: mostly it is as urgent.
    fiber.urgency.load(Ordering::Relaxed) > key && fiber.urgency.fetch_min(key, Ordering::Relaxed) > key
}

/// What a chain leads through, its urgency lowered already.
#[derive(Clone, Copy)]
enum Link {
    Request(NonNull<Header>),
    /// Which holds what is waited for, and is, or was, a stack of the worker whose thread this is.
    Stack(NonNull<Fiber>),
}

/// Follows the chain from `link` on.
///
/// # Safety
///
/// U2 for a request; a stack is there.
unsafe fn follow_from(here: Option<&WorkerRecord>, link: Link, key: u64) {
    // Further branches of the way: allocated only where there is one.
    let mut rest = Vec::new();
    let mut link = link;
    for _ in 0..LONGEST {
        // SAFETY: U2; what a fiber on this thread waits for stays as it is while nothing runs here.
        let next = unsafe { step(here, link, key, &mut rest) };
        match next.or_else(|| rest.pop()) {
            Some(next) => link = next,
            None => return,
        }
    }
}

/// Does what follows for the link alone. Answers what it waits for itself, if that has become more urgent by this; more
/// of that goes to `rest`.
///
/// # Safety
///
/// As [`follow_from`].
unsafe fn step(here: Option<&WorkerRecord>, link: Link, key: u64, rest: &mut Vec<Link>) -> Option<Link> {
    match link {
        // SAFETY: by contract.
        Link::Request(target) => unsafe { step_from_request(here, target, key, rest) },
        Link::Stack(fiber) => {
            let number = ptr::from_ref(here?).addr();
            // SAFETY: K4.
            if unsafe { Fiber::context_at(fiber).as_ref() }.place().get() != number {
                // Given back since it was raised.
                return None;
            }
            // SAFETY: U1: this is the thread of the worker whose number the context has; K6: so the fiber is one of its coroutines, and
            // alive.
            unsafe { on_from(here, fiber.as_ref(), key, rest) }
        }
    }
}

/// # Safety
///
/// U2.
unsafe fn step_from_request(
    here: Option<&WorkerRecord>,
    target: NonNull<Header>,
    key: u64,
    rest: &mut Vec<Link>,
) -> Option<Link> {
    // SAFETY: U2.
    let h = unsafe { target.as_ref() };
    let bits = h.word().load();
    if bits.is_terminal() {
        return None;
    }
    if bits.is_unstarted() {
        if key != FALLEN {
            if h.is(AFTER) && bits.life() == HELD {
                raise_dependencies(h, key);
            }
            enter_again(here, target, key);
        }
        return None;
    }
    let fiber = h.fiber.load(Ordering::Acquire);
    // SAFETY: an arena that a request ran on stays while the request does (M3).
    let ran_on = unsafe { h.ran_on.load(Ordering::Acquire).as_ref() };
    // On a foreign thread, which has no order; or just claimed, and its start will see the urgency.
    let arena = ran_on.filter(|arena| arena.worker != u32::MAX && !fiber.is_null())?;
    let worker = arena.shared().worker_records().get(arena.worker as usize)?;
    if !here.is_some_and(|here| ptr::eq(here.shared(), worker.shared())) {
        // Its stacks may be unmapped meanwhile: they are not touched here. The worker does it when it follows the raise.
        leave_with(worker, target, key);
        return None;
    }
    // SAFETY: a coroutine's fiber stays (K3) while a worker of its runtime, which this is, runs; if it has gone on to another request
    // meanwhile, that one is raised until it ends, which does no harm.
    let fiber = unsafe { &*fiber };
    lower(fiber, key);
    if !here.is_some_and(|here| ptr::eq(here, worker)) {
        leave_with(worker, target, key);
        return None;
    }
    // SAFETY: U1.
    unsafe { on_from(here, fiber, key, rest) }
}

/// What is after others has become more urgent: so do those. Each is left to a worker, which follows it on: so this is no recursion.
#[cold]
fn raise_dependencies(h: &Header, key: u64) {
    // SAFETY: M3.
    let Some(arena) = (unsafe { h.arena.get().as_ref() }) else { return };
    let workers = arena.shared().worker_records();
    let Some(worker) = workers.get(arena.worker as usize).or_else(|| workers.get(0)) else { return };
    for dependency in dependencies(h, LONGEST) {
        // SAFETY: the handle's link.
        if unsafe { dependency.raw().as_ref() }.raise_urgency(key) {
            worker.post.leave_raise(dependency.into_raw(), key);
            arena.shared().wake(worker.index);
        }
    }
}

/// Where the chain leads on from a stack of this thread.
///
/// # Safety
///
/// U1; U2.
unsafe fn on_from(
    here: Option<&WorkerRecord>,
    fiber: &Fiber,
    key: u64,
    rest: &mut Vec<Link>,
) -> Option<Link> {
    if key == FALLEN {
        fall(fiber);
    }
    if crate::record::fiber::get().is_some_and(|current| ptr::eq(current, fiber)) {
        return None;
    }
    let changes = |next: &Header, floor: u64| match key {
        FALLEN => sink(next, floor),
        key => next.raise_urgency(key),
    };
    if key != FALLEN
        && let Some(here) = here
    {
        here.raise_ready(NonNull::from(fiber));
    }
    // On this very thread, and not current: it is parked, or was woken and has not gone on.
    match fiber.context().waits_for() {
        (Reason::Request, next) => {
            let next = NonNull::new(next.cast::<Header>())?;
            // SAFETY: U2: the fiber waits for it, so it holds a count.
            changes(unsafe { next.as_ref() }, NO_KEY).then_some(Link::Request(next))
        }
        (Reason::Pool, lanes) => {
            // SAFETY: U3.
            let lanes = unsafe { lanes.cast::<Lanes>().as_ref() }?;
            // The waiter for the pool stands in no lane's list.
            let floor = fiber.urgency.load(Ordering::Relaxed);
            // SAFETY: U2: the handle's link.
            let changed = |lane: &NonNull<Header>| changes(unsafe { lane.as_ref() }, floor);
            rest.extend(lanes.iter().map(AnyRequest::raw).filter(changed).map(Link::Request));
            rest.pop()
        }
        (Reason::Select, several) => {
            // SAFETY: U3.
            let several = unsafe { several.cast::<Several>().as_ref() }?;
            let mut pass_on = |next: NonNull<()>| {
                let next = next.cast::<Header>();
                // SAFETY: U2: the select has a count of what it waits for.
                if changes(unsafe { next.as_ref() }, NO_KEY) {
                    rest.push(Link::Request(next));
                }
            };
            // SAFETY: U3.
            unsafe { several.each_request(&mut pass_on) };
            rest.pop()
        }
        // The holder's urgency falls when it has released the lock.
        (reason, _) if reason.has_owner() && key != FALLEN && fiber.context().is_waiting() => {
            // SAFETY: U1: the stack is left, and its wait goes on until this thread enters it again.
            let wait = unsafe { fiber.context().owner_wait() }?;
            // SAFETY: as above.
            unsafe { wait.promote(key) };
            // SAFETY: as above.
            let holder = unsafe { wait.owner() }?;
            let mut next = None;
            foreign_stacks::with_holder(here, holder, |holder| next = raise_stack(here, holder, key));
            next
        }
        _ => None,
    }
}

/// It stands somewhere among the less urgent: a second entry by the new key, in a shared queue of its runtime. The worker that comes to the first one finds a
/// stale entry.
fn enter_again(here: Option<&WorkerRecord>, target: NonNull<Header>, key: u64) {
    // SAFETY: U2 by the callers.
    let h = unsafe { target.as_ref() };
    // SAFETY: M3.
    let Some(arena) = (unsafe { h.arena.get().as_ref() }) else { return };
    if matches!(h.word().load().life(), NEW | HELD) {
        // It has no entry. A pool that holds it back looks at its urgency when it admits it.
        return;
    }
    let shared = arena.shared();
    let own = here.filter(|here| ptr::eq(here.shared(), shared));
    let Some(worker) = own.or_else(|| shared_queue_for(arena)) else { return };
    h.word().add_link();
    worker.post.shared_queue.push(key, target);
    // Its runtime may have ended since the word was read (U4).
    let left_behind = |entry: &Header| ptr::eq(entry, h);
    if own.is_none() && shared.is_over() && worker.post.shared_queue.take_where(left_behind).is_some() {
        h.word().release_link();
        return;
    }
    shared.signals.notify_any();
}

/// In whose shared queue a thread that is no worker of the runtime puts what was made at `arena`. Each worker looks at all shared queues; a thread that drives a
/// runtime without workers looks at its own.
fn shared_queue_for(arena: &Arena) -> Option<&WorkerRecord> {
    let shared = arena.shared();
    match arena.worker {
        u32::MAX if shared.driven.is_some() => None,
        u32::MAX => shared.worker_records().get(0),
        index => shared.worker_records().get(index as usize),
    }
}

/// Leaves the raise with the worker that the target runs on, of whatever runtime.
fn leave_with(worker: &WorkerRecord, target: NonNull<Header>, key: u64) {
    // SAFETY: U2 by the callers.
    let h = unsafe { target.as_ref() };
    h.word().add_link();
    worker.post.leave_raise(target, key);
    if worker.shared().is_over() && worker.post.take_back_raise(target) {
        // U4.
        h.word().release_link();
        return;
    }
    worker.shared().wake(worker.index);
}

/// Follows the chains that others have left with this worker. On its thread, or when it has none.
#[cold]
pub(crate) fn follow_raises(worker: &WorkerRecord) {
    for (raised, key) in worker.post.take_raises() {
        match raised {
            // SAFETY: K3: a coroutine's fiber stays.
            Raised::Stack(fiber) => unsafe { follow_from(Some(worker), Link::Stack(fiber), key) },
            // SAFETY: the link that came with it.
            Raised::Request(target) => unsafe {
                follow(Some(worker), target, key);
                if target.as_ref().word().release_link() {
                    arena::end(target);
                }
            },
        }
    }
}
