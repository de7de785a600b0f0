//! Urgency: a request is as urgent as the most urgent of its waiters, and so is the target that it waits for itself.
//!
//! Urgency travels as a root key (see `docs/decisions/0001`), from the waiter to its target. If the target's stack is parked in a wait of its
//! own, a loop continues with the target of that wait, and so on: this is the *chain*. A raise of an unstarted request makes a second entry by
//! the new key. A raise of a started one lowers the key of its fiber, which decides when the fiber is made ready.
//!
//! When the most urgent waiter gives up, the target *falls* to the most urgent of the others, along the same chain. The urgency of a fiber
//! is that of the requests on it, and theirs is that of their remaining waiters. A raise moves a ready fiber
//! ([`Ready::raise`](crate::stack::ready::Ready::raise)). A fall does not: the fiber falls when it is next made ready. An unstarted request
//! falls when a worker pops the entry by the higher key ([`is_outdated`]). Of many waiters only the first [`LONGEST`] are read. A raise that
//! meets a fall may be lost until the next wait: order is a preference.
//!
//! Only the worker of a parked fiber may read what the fiber waits for. On that thread the fiber cannot continue meanwhile, so it
//! keeps its target alive. Where a chain leads to another worker, the thread leaves the raise in that worker's post, and that worker
//! follows the chain, whatever runtime it is of. If the target has not started, and the raiser is no worker of the target's runtime, the second
//! entry goes to a shared queue of that runtime.
//!
//! A fiber may wait for something that another context holds, such as a lock. Then the holder is raised, and its target. The waiter moves to the
//! place in the lock's queue that its new key gives it.
//!
//! # Invariants
//!
//! * **U1** A chain is followed on the thread of the worker whose fiber is read.
//! * **U2** The thread that follows a chain has a count of the current request, or runs a parked fiber that has one.
//! * **U3** The wait for a pool names the pool's lanes, in the waiter's frame. They may be read on its worker's thread while the waiter
//!   is parked, or was woken and has not continued. The lanes' own waits lead to the members. The same holds for a wait for several requests.
//! * **U4** A raise or an entry that is left with a runtime has a link. A runtime is marked as over before it takes out the last of these
//!   ([`Shared::close`](crate::shared::Shared::close)), and both lists have locks. A thread that leaves one reads the mark after that, and
//!   takes it back if the mark is set. So none stays there for ever.

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
/// A longer chain is cut: order is a preference, and no program may keep a worker busy by it.
const LONGEST: usize = 64;

/// A waiter of root key `key` on this thread waits for the target. `here` is the worker whose thread this is.
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

/// A waiter of this key has left the target's list, and the target continues.
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

/// Makes the request no more urgent than its waiters, and than `floor`. False: its urgency is as before.
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

/// Makes a stack as urgent as the requests on it, and no more. If it holds a lock that others may wait for, it falls when it has released
/// the lock. Called by the stack's own code, or on its worker's thread while it is suspended. A waiter that has raised it since has noted that
/// there.
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

/// Whether an entry by this key belongs to an unstarted request that has fallen since.
pub(crate) fn is_outdated(header: NonNull<Header>, key: u64) -> bool {
    // SAFETY: the entry's link (E1).
    let h = unsafe { header.as_ref() };
    h.side().is_some() && h.urgency() > key && h.word().load().is_unstarted()
}

/// The target has been raised to `key`, or has fallen ([`FALLEN`]). Follows the chain from it.
///
/// # Safety
///
/// U2.
#[inline(never)]
pub(crate) unsafe fn follow(here: Option<&WorkerRecord>, target: NonNull<Header>, key: u64) {
    // SAFETY: by contract.
    unsafe { follow_from(here, Link::Request(target), key) };
}

/// A waiter of root key `key` waits for a lock that this stack holds. Raises the stack, and the target that it waits for itself.
pub(crate) fn raise_holder(here: Option<&WorkerRecord>, holder: &StackView<'_>, key: u64) {
    if let Some(link) = raise_stack(here, holder, key) {
        // SAFETY: the stack is this worker's (K6).
        unsafe { follow_from(here, link, key) };
    }
}

/// Makes a stack as urgent as `key`. If it was less urgent, the chain continues from it: the answer is the stack if this is its worker's
/// thread, and otherwise the raise is left with that worker. If it was not, the threads that raised it before have followed the chain, and a wait
/// that began since has passed the urgency on.
#[inline]
fn raise_stack(here: Option<&WorkerRecord>, holder: &StackView<'_>, key: u64) -> Option<Link> {
    holder.lower_urgency(key).then(|| link_to_stack(here, holder, key)).flatten()
}

/// The stack, if this is its worker's thread. Otherwise leaves the raise with that worker.
#[cold]
#[inline(never)]
fn link_to_stack(here: Option<&WorkerRecord>, holder: &StackView<'_>, key: u64) -> Option<Link> {
    // It is on a foreign thread, which has no order; or the lock has been released meanwhile.
    let worker = holder.worker()?;
    if here.is_some_and(|here| ptr::eq(here, worker)) {
        return Some(Link::Stack(holder.fiber()));
    }
    worker.post.leave_raise_of_stack(holder.fiber(), key);
    worker.shared().wake(worker.index);
    None
}

/// Raises the urgency; whether it was lower.
fn lower(fiber: &Fiber, key: u64) -> bool {
    // A load first: mostly it is as urgent.
    fiber.urgency.load(Ordering::Relaxed) > key && fiber.urgency.fetch_min(key, Ordering::Relaxed) > key
}

/// A link of a chain, already raised.
#[derive(Clone, Copy)]
enum Link {
    Request(NonNull<Header>),
    /// The holder of what is waited for: it is, or was, a stack of the worker whose thread this is.
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

/// Follows the chain by one link. Returns the next link, if this one has raised it; further ones go to `rest`.
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
                // It has released the lock since it was raised.
                return None;
            }
            // SAFETY: U1: this is the thread of the worker whose number the context has; K6: so the fiber is one of its coroutines, and
            // alive.
            unsafe { on_from(here, fiber.as_ref(), key, rest) }
        }
    }
}

/// One step of a raise along the waits, from the request that is waited for. Answers the next link.
///
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
    // It is on a foreign thread, which has no order; or it was just claimed, and its start will see the urgency.
    let arena = ran_on.filter(|arena| arena.worker != u32::MAX && !fiber.is_null())?;
    let worker = arena.shared().worker_records().get(arena.worker as usize)?;
    if !here.is_some_and(|here| ptr::eq(here.shared(), worker.shared())) {
        // Its stacks may be unmapped meanwhile, so this thread does not touch them. The worker raises them when it follows the raise.
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

/// A dependent has been raised, so its dependencies are. Each raise is left to a worker, which follows the chain; so this does not recurse.
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

/// The next link of the chain behind a stack of this thread.
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
    // The stack is on this very thread, and not current: it is parked, or was woken and has not continued.
    match fiber.context().waits_for() {
        (Reason::Request, next) => {
            let next = NonNull::new(next.cast::<Header>())?;
            // SAFETY: U2: the fiber waits for it, so it holds a count.
            changes(unsafe { next.as_ref() }, NO_KEY).then_some(Link::Request(next))
        }
        (Reason::Pool, lanes) => {
            // SAFETY: U3.
            let lanes = unsafe { lanes.cast::<Lanes>().as_ref() }?;
            // The waiter for the pool is in no lane's list.
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
            // SAFETY: U1: the stack is suspended, and its wait lasts until this thread enters it again.
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

/// The request's entry is among less urgent ones. Pushes a second entry by the new key to a shared queue of its runtime. The worker that pops
/// the first one finds a stale entry.
fn enter_again(here: Option<&WorkerRecord>, target: NonNull<Header>, key: u64) {
    // SAFETY: U2 by the callers.
    let h = unsafe { target.as_ref() };
    // SAFETY: M3.
    let Some(arena) = (unsafe { h.arena.get().as_ref() }) else { return };
    if matches!(h.word().load().life(), NEW | HELD) {
        // It has no entry. A pool that holds it back reads its urgency when it admits it.
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

/// The worker to whose shared queue a thread that is no worker of the runtime pushes a request made at `arena`. Each worker scans all shared
/// queues; a thread that drives a runtime without workers scans its own.
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
