//! Coroutines: coroutines in which a worker's loop runs.
//!
//! The loop is *inside* a coroutine. A request that never suspends costs no switch: the loop calls it. Only when one
//! suspends does the coroutine leave with it, and the worker goes on with another coroutine from its cache; a coroutine whose
//! request has ended goes on as the loop. So there is one coroutine per *suspended* request, not per request.
//!
//! A coroutine's control block lies at the top of its own stack:
//!
//! ```text
//!  slot:  | guard | ... requests ... | loop, run | fiber's start | Coroutine | colour |
//! ```
//!
//! # Invariants
//!
//! * **K1** A coroutine belongs to one worker and is entered and left on that worker's thread only.
//! * **K2** A coroutine is in exactly one state: *current* (it runs), *parked* (its request waits; whoever settles the wait
//!   makes it ready, once), *ready* (in the mailbox or the ready queue), or *idle* (in the worker's cache, its loop
//!   having nothing on top).
//! * **K3** Its memory stays until the slab is unmapped; a cached coroutine's slot may be given back, when its frames are
//!   the loop's alone and are forgotten.
//! * **K4** The context and the fiber lie at one place in every slot. As long as the slab is mapped any thread may read what is atomic of them
//!   ([`crate::deadlock::foreign_stacks`]): before the first coroutine it is all zeros, and later ones store there what others read ([`Context::renew`],
//!   [`Fiber::renew`]).
//! * **K5** From being built to being dismantled it stands in its worker's list of coroutines, under a lock. Whoever holds that
//!   may read what is atomic of it.
//! * **K6** The thread number of the context is the address of its worker from when it is built until it is dismantled, and else 0. So a worker that
//!   reads its own number there reads a coroutine of its own.

use std::cell::Cell;
use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use forebear_context::context::{Alarm, Cause, Context, OwnerWait, Table, Ticket};
use forebear_context::error::Cycle;
use forebear_context::lineage::LEAST_KEY;
use forebear_context::shim::atomic::{AtomicPtr, AtomicU64, Ordering};
use forebear_context::switch::StackMemory;
use forebear_pool::Linked;

use crate::api::any;
use crate::cancel;
use crate::deadlock::owner;
use crate::foreign;
use crate::record::header::Header;
use crate::record::prefetch;
use crate::schedule::worker::{Next, Worker};
use crate::shared::Shared;
use crate::shared::parked;
use crate::stack::fiber::{self, BEHIND_CONTEXT, Fiber, LEFT_PARKED, LEFT_UNWINDING};
use crate::stack::lent::Lent;
use crate::stack::no_suspend;
use crate::stack::slab::StackSlot;
use crate::state::alarms::Standing;
use crate::state::attention::OLDER;
use crate::time::deadlines::keep;

/// See the module head.
#[repr(C)]
pub(crate) struct Coroutine {
    context: Context,
    /// So that every fiber lies as far behind its context.
    _apart: [MaybeUninit<u8>; BEHIND_CONTEXT - size_of::<Context>()],
    /// What the runtime knows of this stack.
    pub fiber: Fiber,
    link: AtomicPtr<Coroutine>,
    /// A claimed request that needs this coroutine's larger stack; run first.
    pub pending: Cell<*const Header>,
    /// The memory it lies in. Taken out when it is given back.
    pub slot: Cell<Option<StackSlot>>,
    /// Its place in its worker's list of coroutines.
    pub listed: Cell<usize>,
    /// Its alarm, which stays in the worker's wheel from one wait to the next.
    pub alarm: Standing,
}

// SAFETY: `link` is the mailbox's while the coroutine is in it (K2).
unsafe impl Linked for Coroutine {
    unsafe fn link<'a>(this: NonNull<Self>) -> &'a AtomicPtr<Self> {
        // SAFETY: K3.
        unsafe { &this.as_ref().link }
    }
}

const _: () = assert!(mem::offset_of!(Coroutine, fiber) == BEHIND_CONTEXT);

static TABLE: Table = Table {
    prepare,
    finish,
    unpark,
    ready,
    in_request,
    requester,
    request_number,
    urgency,
    word,
    name,
    is_cancelled,
    refuse_wait,
    now,
    deadline,
    arm,
    disarm,
    wait_for_owner,
    take_cycle,
    gave_back,
    shares_thread,
    give_way,
    turn,
};

impl Coroutine {
    /// Builds a coroutine at the top of `slot`, its loop not yet begun.
    pub(crate) fn build(slot: StackSlot, worker: &Worker) -> NonNull<Coroutine> {
        let context = Self::context_in(slot.top());
        let (at, limit) = (context.addr().get(), slot.limit());
        let coroutine = context.as_ptr().cast::<Coroutine>();
        // SAFETY: the top of a fresh slot (S1, S2), aligned. K4 for the context and the fiber.
        unsafe {
            Context::renew(context, &TABLE);
            // The loop runs destructors and callbacks of the user's, which may wait before the first request has begun here. A ready
            // fiber must have a key.
            Fiber::renew(Fiber::behind(context), context.as_ptr(), worker, limit, LEAST_KEY);
            (&raw mut (*coroutine).link).write(AtomicPtr::new(ptr::null_mut()));
            (&raw mut (*coroutine).pending).write(Cell::new(ptr::null()));
            (&raw mut (*coroutine).slot).write(Cell::new(Some(slot)));
            (&raw mut (*coroutine).listed).write(Cell::new(0));
            (&raw mut (*coroutine).alarm).write(Standing::default());
            let this = &*coroutine;
            this.fiber.branches.init();
            this.fiber.arena.set(worker.arena());
            // From here on it is this worker's (K6).
            this.context.place().set(ptr::from_ref(worker).addr());
            let memory = StackMemory { base: at, limit };
            this.context.switch().start(memory, body, NonNull::from(&this.context));
            let coroutine = NonNull::new_unchecked(coroutine);
            worker.post.list_coroutine(coroutine);
            coroutine
        }
    }

    /// Nothing runs on it, and something is about to. On its own stack.
    #[inline(always)]
    pub(crate) fn begins_anew(&self) {
        self.context.shares().clear();
    }

    /// Where the context of a coroutine lies in a slot with this top.
    pub(crate) fn context_in(top: usize) -> NonNull<Context> {
        let at = (top - size_of::<Coroutine>()) & !63;
        let context = ptr::with_exposed_provenance_mut::<Context>(at);
        // SAFETY: inside a slot.
        unsafe { NonNull::new_unchecked(context) }
    }

    /// The coroutine whose context this is.
    ///
    /// # Safety
    ///
    /// The context is a coroutine's: its table says so.
    #[inline(always)]
    pub(crate) unsafe fn of(context: NonNull<Context>) -> NonNull<Coroutine> {
        // The context is the first field.
        context.cast()
    }

    /// The coroutine whose fiber this is.
    ///
    /// # Safety
    ///
    /// The fiber is a coroutine's: it has a worker.
    #[inline(always)]
    pub(crate) unsafe fn of_fiber(fiber: NonNull<Fiber>) -> NonNull<Coroutine> {
        // SAFETY: by contract.
        unsafe { fiber.byte_sub(mem::offset_of!(Coroutine, fiber)).cast() }
    }

    /// Its context.
    #[inline(always)]
    pub(crate) fn context(&self) -> NonNull<Context> {
        NonNull::from(&self.context)
    }

    /// Forgets its frames and hands its memory over.
    ///
    /// # Safety
    ///
    /// K3: it is idle, and is not used afterwards.
    pub(crate) unsafe fn dismantle(this: NonNull<Coroutine>) -> Option<StackSlot> {
        // SAFETY: by contract.
        unsafe {
            let worker = &*this.as_ref().fiber.worker;
            worker.shared().deadlines.dismiss(worker, &this.as_ref().alarm);
            this.as_ref().context.switch().reset();
            // K6.
            this.as_ref().context.place().set(0);
            this.as_ref().slot.take()
        }
    }
}

/// The loop. See `pool/src/worker.rs` for the steps it drives.
///
/// # Safety
///
/// The context is of a coroutine that [`Coroutine::build`] has written, and this is the first code on its stack.
unsafe fn body(context: NonNull<Context>) -> ! {
    // SAFETY: `build` gives a coroutine's context.
    let coroutine = unsafe { Coroutine::of(context).as_ref() };
    // Only the OS-thread backend needs telling: it has its own thread-locals.
    #[cfg(any(forebear_threads, shuttle))]
    // SAFETY: K3.
    unsafe {
        fiber::enter(&coroutine.fiber);
        coroutine.fiber.limit.set(crate::stack::thread_limit());
    }
    // SAFETY: K1: the worker outlives its coroutines.
    let worker = unsafe { &*coroutine.fiber.worker };
    loop {
        if let Some(header) = NonNull::new(coroutine.pending.replace(ptr::null()).cast_mut()) {
            coroutine.begins_anew();
            // SAFETY: claimed by the code that left it here, with the runner's link.
            unsafe { crate::schedule::run::start(&coroutine.fiber, header) };
            continue;
        }
        let to = match worker.next() {
            Some(Next::Start(header)) => {
                // SAFETY: claimed, with the runner's link.
                match unsafe { worker.start(header, coroutine) } {
                    None => continue,
                    Some(larger) => Some(larger),
                }
            }
            Some(Next::End(header)) => {
                coroutine.begins_anew();
                // SAFETY: what was put aside is the taker's to end, and this fiber has nothing on top.
                unsafe { worker.end_put_aside(&coroutine.fiber, header) };
                continue;
            }
            Some(Next::Fail(header)) => {
                coroutine.begins_anew();
                // SAFETY: claimed, with the runner's link.
                match unsafe { worker.start_elsewhere(header, coroutine) } {
                    None => continue,
                    Some(other) => Some(other),
                }
            }
            Some(Next::Late) => {
                coroutine.begins_anew();
                worker.drop_late();
                foreign::drop_late();
                continue;
            }
            Some(Next::Warn) => {
                coroutine.begins_anew();
                worker.warn_now();
                continue;
            }
            // SAFETY: a ready fiber of a worker is a coroutine's.
            Some(Next::Resume(fiber)) => Some(unsafe { Coroutine::of_fiber(fiber) }),
            None => None,
        };
        worker.put_idle(NonNull::from(coroutine));
        // SAFETY: K2: this coroutine is idle now, and the one we name is no longer ready.
        unsafe { coroutine.context.switch().leave(to.map(|to| to.as_ref().context())) };
    }
}

unsafe fn prepare(context: &Context, _deadline: Option<Instant>) -> Option<NonNull<Context>> {
    // SAFETY: this table is given to coroutines only.
    let coroutine = unsafe { Coroutine::of(NonNull::from(context)).as_ref() };
    // SAFETY: K1.
    let worker = unsafe { &*coroutine.fiber.worker };
    // The wait has begun: its record in this stack's frames may stand in a list.
    let lent = Lent::to(|| "those who may end its wait");
    let next = worker.leave_parked(&coroutine.fiber);
    lent.given_back();
    match next {
        // SAFETY: K3.
        Some(next) => Some(unsafe { next.as_ref() }.context()),
        None => {
            if coroutine.fiber.left.get() != 0 {
                back(&coroutine.fiber);
            }
            None
        }
    }
}

unsafe fn finish(context: &Context) {
    // SAFETY: as in `prepare`.
    let fiber = unsafe { &Coroutine::of(NonNull::from(context)).as_ref().fiber };
    if fiber.left.get() != 0 {
        back(fiber);
    }
}

/// A fiber was entered again that had left something to see to.
#[cold]
#[inline(never)]
fn back(fiber: &Fiber) {
    if fiber.left.get() & LEFT_UNWINDING != 0
        && let Some(worker) = fiber.worker()
    {
        worker.back_unwinding(fiber);
    }
    if fiber.left.get() & LEFT_PARKED != 0 {
        fiber.left.set(fiber.left.get() & !LEFT_PARKED);
        parked::leave(fiber.context());
    }
}

unsafe fn unpark(context: NonNull<Context>, ticket: Ticket, cause: Cause) -> bool {
    // SAFETY: this table is given to coroutines only. K3: coroutines' memory stays, so even a late ticket may look.
    let coroutine = unsafe { Coroutine::of(context) };
    // SAFETY: as above.
    if !unsafe { coroutine.as_ref() }.context.settle(ticket, cause) {
        return false;
    }
    // SAFETY: settled by us.
    unsafe { let_go_on(coroutine) };
    true
}

unsafe fn ready(context: NonNull<Context>, ticket: Ticket) {
    // SAFETY: this table is given to coroutines only.
    let coroutine = unsafe { Coroutine::of(context) };
    // SAFETY: K3; chosen by the caller.
    unsafe { coroutine.as_ref().context.settle_chosen(ticket) };
    // SAFETY: K3; settled just now, by us.
    unsafe { let_go_on(coroutine) };
}

/// Brings a coroutine to its worker, to be entered again.
///
/// # Safety
///
/// The caller has just settled its wait.
#[inline]
unsafe fn let_go_on(coroutine: NonNull<Coroutine>) {
    // SAFETY: K3.
    let this = unsafe { coroutine.as_ref() };
    // SAFETY: K1.
    let worker = unsafe { &*this.fiber.worker };
    if fiber::get().is_some_and(|here| ptr::eq(here.worker, worker)) {
        worker.make_ready(NonNull::from(&this.fiber));
    } else {
        Chain::of(coroutine, worker).send();
    }
}

/// Whether the context is a coroutine's, whose memory stays (K3).
pub(crate) fn is_coroutines(context: &Context) -> bool {
    ptr::eq(context.table(), &TABLE)
}

/// Where a coroutine's alarm stands.
///
/// # Safety
///
/// The context is a coroutine's.
#[inline(always)]
pub(crate) unsafe fn alarm_of(context: NonNull<Context>) -> NonNull<Standing> {
    // SAFETY: by contract.
    unsafe { NonNull::from(&Coroutine::of(context).as_ref().alarm) }
}

/// A coroutine's worker.
///
/// # Safety
///
/// The context is a coroutine's.
pub(crate) unsafe fn worker_of(context: &Context) -> &Worker {
    // SAFETY: by contract; K1.
    unsafe { &*fiber_of(context).worker }
}

/// Coroutines whose waits one thread ends one after the other, with one cause. They are brought to their workers in pieces, so that
/// what they need from memory is fetched for many at a time, and each worker is written to and woken once a piece.
///
/// One line of each is asked for first: it takes a walk through the page table, and nothing else of that page comes before it. What the walk has
/// brought the rest needs.
pub(crate) struct Going {
    cause: Cause,
    some: [MaybeUninit<(NonNull<Coroutine>, Ticket)>; Going::PIECE],
    len: usize,
}

impl Going {
    /// As many as a processor may have misses outstanding, about.
    const PIECE: usize = 16;

    /// None yet.
    pub(crate) fn new(cause: Cause) -> Going {
        Going { cause, some: [const { MaybeUninit::uninit() }; Going::PIECE], len: 0 }
    }

    /// The wait that `ticket` names ends soon, at the latest when this is dropped, unless it is over.
    ///
    /// # Safety
    ///
    /// The context is a coroutine's, and its slab stays mapped until this is dropped.
    #[inline]
    pub(crate) unsafe fn add(&mut self, context: NonNull<Context>, ticket: Ticket) {
        prefetch::page(context);
        // SAFETY: by contract.
        self.some[self.len].write((unsafe { Coroutine::of(context) }, ticket));
        self.len += 1;
        if self.len == Going::PIECE {
            self.go();
        }
    }

    /// Ends them now.
    #[inline(never)]
    pub(crate) fn go(&mut self) {
        let here = fiber::get().map_or(ptr::null(), |here| here.worker);
        let mut own = [NonNull::dangling(); Going::PIECE];
        let mut owned = 0;
        let mut chain: Option<Chain<'_>> = None;
        // SAFETY: the first `len` are written.
        let each = self.some[..self.len].iter().map(|one| unsafe { one.assume_init() }.0.cast());
        each.for_each(prefetch::control);
        for one in &self.some[..mem::take(&mut self.len)] {
            // SAFETY: the first `len` are written.
            let (coroutine, ticket) = unsafe { one.assume_init() };
            // SAFETY: K3.
            let this = unsafe { coroutine.as_ref() };
            if !this.context.settle(ticket, self.cause) {
                continue;
            }
            if this.fiber.worker == here {
                own[owned] = NonNull::from(&this.fiber);
                owned += 1;
                continue;
            }
            match &mut chain {
                Some(chain) if ptr::eq(chain.worker, this.fiber.worker) => chain.append(coroutine),
                other => {
                    if let Some(chain) = other.take() {
                        chain.send();
                    }
                    // SAFETY: K1; its worker's record is there while its wait goes on, and until all are sent.
                    *other = Some(Chain::of(coroutine, unsafe { &*this.fiber.worker }));
                }
            }
        }
        if let Some(chain) = chain {
            chain.send();
        }
        // SAFETY: K1; we are on its thread, if there is one.
        if let Some(worker) = unsafe { here.as_ref() } {
            worker.make_all_ready(&own[..owned]);
            // They go on soon, and by then too few may be left for the ready queue to look ahead.
            own[..owned].iter().for_each(|fiber| prefetch::whole(*fiber));
        }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.go();
    }
}

/// Coroutines of one worker, linked as its mailbox takes them.
struct Chain<'a> {
    worker: &'a Worker,
    latest: NonNull<Coroutine>,
    earliest: NonNull<Coroutine>,
    /// The most urgent one's.
    key: u64,
}

impl<'a> Chain<'a> {
    /// K2: the caller has settled its wait, so it is in no queue. So for [`append`](Self::append).
    fn of(coroutine: NonNull<Coroutine>, worker: &'a Worker) -> Chain<'a> {
        // SAFETY: K3.
        let key = unsafe { coroutine.as_ref() }.fiber.urgency.load(Ordering::Relaxed);
        Chain { worker, latest: coroutine, earliest: coroutine, key }
    }

    fn append(&mut self, coroutine: NonNull<Coroutine>) {
        // SAFETY: K3.
        let this = unsafe { coroutine.as_ref() };
        this.link.store(self.latest.as_ptr(), Ordering::Relaxed);
        self.latest = coroutine;
        self.key = self.key.min(this.fiber.urgency.load(Ordering::Relaxed));
    }

    #[inline]
    fn send(self) {
        let runtime = ptr::from_ref(self.worker.shared());
        let is_of_runtime = |here: &Worker| ptr::eq(here.shared(), runtime);
        if fiber::get().and_then(Fiber::worker).is_some_and(is_of_runtime) {
            // This thread is joined before the runtime is closed.
            self.hand_over();
        } else {
            self.hand_over_as_visitor();
        }
    }

    #[cold]
    #[inline(never)]
    fn hand_over_as_visitor(self) {
        let visits = &self.worker.shared().visits;
        // SAFETY: VI1: the coroutines have not been handed over.
        unsafe { visits.during(|| self.hand_over()) };
    }

    /// The worker's record stays until this returns: the caller is a worker of the same runtime, or visits it.
    #[inline]
    fn hand_over(self) {
        let (worker, key) = (self.worker, self.key);
        // SAFETY: K2, K3; linked by `append`.
        if unsafe { worker.post.mailbox.push_chain(self.latest, self.earliest) } {
            #[cfg(all(test, not(any(loom, shuttle))))]
            crate::state::visits::tests::after_the_push();
            worker.shared().wake(worker.index);
        }
        if key < worker.post.running.load(Ordering::Relaxed) {
            worker.post.attention.raise(OLDER);
        }
    }
}

/// The fiber of a coroutine's context.
///
/// # Safety
///
/// The context is a coroutine's.
unsafe fn fiber_of(context: &Context) -> &Fiber {
    // SAFETY: by contract.
    unsafe { &(*Coroutine::of(NonNull::from(context)).as_ptr()).fiber }
}

unsafe fn is_cancelled(context: &Context) -> bool {
    // SAFETY: by the table.
    cancel::refuses(unsafe { fiber_of(context) })
}

unsafe fn refuse_wait(context: &Context, what: &str) {
    // SAFETY: by the table.
    no_suspend::refuse(unsafe { fiber_of(context) }, what, true);
}

/// The coroutine's runtime.
///
/// # Safety
///
/// The context is a coroutine's, and its worker has not ended.
unsafe fn shared(context: &Context) -> &Shared {
    // SAFETY: by the table; K1, and a worker's record is its runtime's.
    unsafe { (*fiber_of(context).worker).shared() }
}

unsafe fn now(context: &Context) -> Instant {
    // SAFETY: by the table.
    unsafe { shared(context) }.deadlines.now()
}

unsafe fn deadline(context: &Context, timeout: Duration) -> Option<Instant> {
    // SAFETY: by the table.
    let worker = unsafe { worker_of(context) };
    worker.shared().deadlines.after_on(worker, timeout)
}

unsafe fn arm(context: &Context, ticket: Ticket, at: Instant) -> Alarm {
    // SAFETY: by the table: the alarm is taken back before the context goes.
    unsafe {
        let worker = worker_of(context);
        let shared = worker.shared();
        match shared.deadlines.arm_own(worker, at, context, ticket) {
            Some(alarm) => alarm,
            None => keep(&shared.deadlines, shared.driven.as_ref(), at, context, ticket),
        }
    }
}

unsafe fn disarm(context: &Context, alarm: Alarm) {
    // The timer has taken the entry out, and the memory stays (K3): no need to wait until the timer has done with it.
    if context.cause() != Cause::TimedOut {
        // SAFETY: by the table; K1.
        unsafe {
            let worker = worker_of(context);
            worker.shared().deadlines.put_to_rest(worker, context, alarm);
        }
    }
}

unsafe fn wait_for_owner(
    context: &Context,
    ticket: Ticket,
    wait: &OwnerWait,
    limited: bool,
) -> Option<Cycle> {
    // SAFETY: by the table.
    unsafe { owner::wait_for_owner(fiber_of(context), ticket, wait, limited) }
}

unsafe fn shares_thread(context: &Context, holder: NonNull<Context>) -> bool {
    // SAFETY: by the table.
    owner::shares_worker(unsafe { fiber_of(context) }, holder)
}

unsafe fn give_way(context: &Context) -> Option<NonNull<Context>> {
    // SAFETY: by the table.
    let fiber = unsafe { fiber_of(context) };
    let next = fiber.worker()?.leave_to_others(fiber)?;
    // SAFETY: K3.
    Some(unsafe { next.as_ref() }.context())
}

unsafe fn take_cycle(context: &Context, ticket: Ticket) -> Option<Cycle> {
    // SAFETY: by the table.
    owner::take_cycle(unsafe { fiber_of(context) }, ticket)
}

unsafe fn gave_back(context: &Context) {
    // SAFETY: by the table.
    owner::gave_back(unsafe { fiber_of(context) });
}

/// Counted by the worker, so that a seed replays it.
unsafe fn turn(context: &Context) -> u64 {
    // SAFETY: by the table; K1.
    let turns = unsafe { &(*fiber_of(context).worker).turns };
    turns.replace(turns.get() + 1)
}

unsafe fn in_request(context: &Context) -> bool {
    // SAFETY: as in `prepare`.
    let coroutine = unsafe { Coroutine::of(NonNull::from(context)).as_ref() };
    coroutine.fiber.request().is_some()
}

unsafe fn requester(context: &Context) -> usize {
    // SAFETY: by the table.
    owner::requester(unsafe { fiber_of(context) }).map_or(0, |h| std::ptr::from_ref(h).addr())
}

unsafe fn request_number(context: &Context) -> u64 {
    // SAFETY: by the table.
    owner::requester(unsafe { fiber_of(context) }).map_or(0, |h| any::id_of(h).as_u64())
}

unsafe fn urgency(context: &Context) -> u64 {
    // SAFETY: by the table.
    unsafe { Coroutine::of(NonNull::from(context)).as_ref() }.fiber.urgency.load(Ordering::Relaxed)
}

unsafe fn word(context: &Context) -> *const AtomicU64 {
    // SAFETY: by the table.
    unsafe { Coroutine::of(NonNull::from(context)).as_ref() }
        .fiber
        .request()
        .map_or(ptr::null(), |request| request.identity().bare.as_atomic())
}

unsafe fn name(context: &Context, with: &mut dyn FnMut(&str)) {
    // SAFETY: as in `prepare`.
    let coroutine = unsafe { Coroutine::of(NonNull::from(context)).as_ref() };
    with(coroutine.fiber.request().map_or("worker", Header::name));
}

#[cfg(all(test, not(forebear_threads)))]
mod tests {
    use crate::stack::fiber;
    use crate::{Runtime, spawn};

    /// So that a parked request's stack stays within one page, colour included.
    #[test]
    #[cfg_attr(debug_assertions, ignore = "frames are larger without optimisation")]
    fn the_frames_below_a_parked_request_fit_two_kibibytes() {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let used = runtime.run(|| {
            let parked = spawn(|| {
                let fiber = fiber::get().unwrap();
                let coroutine = std::ptr::from_ref(fiber) as usize;
                (coroutine - crate::stack::here(), crate::yield_now()).0
            });
            crate::yield_now().unwrap();
            parked.take().unwrap()
        });
        assert!(used + size_of::<super::Coroutine>() < 2048, "{used} bytes of frames");
        println!("{used} bytes of frames, {} of control block", size_of::<super::Coroutine>());
    }
}
