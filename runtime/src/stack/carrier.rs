//! Carriers: coroutines in which a worker's loop runs.
//!
//! The loop is *inside* a coroutine. A request that never suspends costs no switch: the loop calls it. Only when one
//! suspends does the carrier leave with it, and the worker goes on with another carrier from its cache; a carrier whose
//! request has ended goes on as the loop. So there is one coroutine per *suspended* request, not per request.
//!
//! A carrier's control block lies at the top of its own stack:
//!
//! ```text
//!  slot:  | guard | ... requests ... | loop, run | fiber's start | Carrier | colour |
//! ```
//!
//! # Invariants
//!
//! * **K1** A carrier belongs to one worker and is entered and left on that worker's thread only.
//! * **K2** A carrier is in exactly one state: *current* (it runs), *parked* (its request waits; whoever settles the wait
//!   makes it ready, once), *ready* (in the mailbox or the ready queue), or *idle* (in the worker's cache, its loop
//!   having nothing on top).
//! * **K3** Its memory stays until the slab is unmapped; a cached carrier's slot may be given back, when its frames are
//!   the loop's alone and are forgotten.
//! * **K4** The context and the strand lie at one place in every slot. As long as the slab is mapped any thread may read what is atomic of them
//!   ([`crate::deadlock::strays`]): before the first carrier it is all zeros, and later ones store there what others read ([`Context::renew`],
//!   [`Strand::renew`]).
//! * **K5** From being built to being dismantled it stands in its worker's list of carriers, under a lock. Whoever holds that
//!   may read what is atomic of it.
//! * **K6** The thread number of the context is the address of its worker from when it is built until it is dismantled, and else 0. So a worker that
//!   reads its own number there reads a carrier of its own.

use std::cell::Cell;
use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use forebear_context::context::{Alarm, Cause, Context, OwnerWait, Table, Ticket};
use forebear_context::error::Cycle;
use forebear_context::fiber::StackMemory;
use forebear_context::lineage::LEAST_KEY;
use forebear_context::shim::atomic::{AtomicPtr, AtomicU64, Ordering};
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
use crate::stack::lent::Lent;
use crate::stack::no_suspend;
use crate::stack::slab::Slot;
use crate::stack::strand::{self, BEHIND_CONTEXT, LEFT_PARKED, LEFT_UNWINDING, Strand};
use crate::state::alarms::Standing;
use crate::state::attention::OLDER;
use crate::time::deadlines::keep;

/// See the module head.
#[repr(C)]
pub(crate) struct Carrier {
    context: Context,
    /// So that every strand lies as far behind its context.
    _apart: [MaybeUninit<u8>; BEHIND_CONTEXT - size_of::<Context>()],
    /// What the runtime knows of this stack.
    pub strand: Strand,
    link: AtomicPtr<Carrier>,
    /// A claimed request that needs this carrier's larger stack; run first.
    pub pending: Cell<*const Header>,
    /// The memory it lies in. Taken out when it is given back.
    pub slot: Cell<Option<Slot>>,
    /// Its place in its worker's list of carriers.
    pub listed: Cell<usize>,
    /// Its alarm, which stays in the worker's wheel from one wait to the next.
    pub alarm: Standing,
}

// SAFETY: `link` is the mailbox's while the carrier is in it (K2).
unsafe impl Linked for Carrier {
    unsafe fn link<'a>(this: NonNull<Self>) -> &'a AtomicPtr<Self> {
        // SAFETY: K3.
        unsafe { &this.as_ref().link }
    }
}

const _: () = assert!(mem::offset_of!(Carrier, strand) == BEHIND_CONTEXT);

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
    verdict,
    gave_back,
    shares_thread,
    give_way,
    turn,
};

impl Carrier {
    /// Builds a carrier at the top of `slot`, its loop not yet begun.
    pub(crate) fn build(slot: Slot, worker: &Worker) -> NonNull<Carrier> {
        let context = Self::context_in(slot.top());
        let (at, limit) = (context.addr().get(), slot.limit());
        let carrier = context.as_ptr().cast::<Carrier>();
        // SAFETY: the top of a fresh slot (S1, S2), aligned. K4 for the context and the strand.
        unsafe {
            Context::renew(context, &TABLE);
            // The loop runs destructors and callbacks of the user's, which may wait before the first request has begun here. A ready
            // strand must have a key.
            Strand::renew(Strand::behind(context), context.as_ptr(), worker, limit, LEAST_KEY);
            (&raw mut (*carrier).link).write(AtomicPtr::new(ptr::null_mut()));
            (&raw mut (*carrier).pending).write(Cell::new(ptr::null()));
            (&raw mut (*carrier).slot).write(Cell::new(Some(slot)));
            (&raw mut (*carrier).listed).write(Cell::new(0));
            (&raw mut (*carrier).alarm).write(Standing::default());
            let this = &*carrier;
            this.strand.arms.init();
            this.strand.home.set(worker.home());
            // From here on it is this worker's (K6).
            this.context.place().set(ptr::from_ref(worker).addr());
            let memory = StackMemory { base: at, limit };
            this.context.fiber().start(memory, body, NonNull::from(&this.context));
            let carrier = NonNull::new_unchecked(carrier);
            worker.post.list_carrier(carrier);
            carrier
        }
    }

    /// Nothing runs on it, and something is about to. On its own stack.
    #[inline(always)]
    pub(crate) fn begins_anew(&self) {
        self.context.shares().clear();
    }

    /// Where the context of a carrier lies in a slot with this top.
    pub(crate) fn context_in(top: usize) -> NonNull<Context> {
        let at = (top - size_of::<Carrier>()) & !63;
        let context = ptr::with_exposed_provenance_mut::<Context>(at);
        // SAFETY: inside a slot.
        unsafe { NonNull::new_unchecked(context) }
    }

    /// The carrier whose context this is.
    ///
    /// # Safety
    ///
    /// The context is a carrier's: its table says so.
    #[inline(always)]
    pub(crate) unsafe fn of(context: NonNull<Context>) -> NonNull<Carrier> {
        // The context is the first field.
        context.cast()
    }

    /// The carrier whose strand this is.
    ///
    /// # Safety
    ///
    /// The strand is a carrier's: it has a worker.
    #[inline(always)]
    pub(crate) unsafe fn of_strand(strand: NonNull<Strand>) -> NonNull<Carrier> {
        // SAFETY: by contract.
        unsafe { strand.byte_sub(mem::offset_of!(Carrier, strand)).cast() }
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
    pub(crate) unsafe fn dismantle(this: NonNull<Carrier>) -> Option<Slot> {
        // SAFETY: by contract.
        unsafe {
            let worker = &*this.as_ref().strand.worker;
            worker.shared().deadlines.dismiss(worker, &this.as_ref().alarm);
            this.as_ref().context.fiber().reset();
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
/// The context is of a carrier that [`Carrier::build`] has written, and this is the first code on its stack.
unsafe fn body(context: NonNull<Context>) -> ! {
    // SAFETY: `build` gives a carrier's context.
    let carrier = unsafe { Carrier::of(context).as_ref() };
    // Only the OS-thread backend needs telling: it has its own thread-locals.
    #[cfg(any(forebear_threads, shuttle))]
    // SAFETY: K3.
    unsafe {
        strand::enter(&carrier.strand);
        carrier.strand.limit.set(crate::stack::thread_limit());
    }
    // SAFETY: K1: the worker outlives its carriers.
    let worker = unsafe { &*carrier.strand.worker };
    loop {
        if let Some(header) = NonNull::new(carrier.pending.replace(ptr::null()).cast_mut()) {
            carrier.begins_anew();
            // SAFETY: claimed by whoever left it here, with the runner's link.
            unsafe { crate::schedule::run::start(&carrier.strand, header) };
            continue;
        }
        let to = match worker.next() {
            Some(Next::Start(header)) => {
                // SAFETY: claimed, with the runner's link.
                match unsafe { worker.start(header, carrier) } {
                    None => continue,
                    Some(larger) => Some(larger),
                }
            }
            Some(Next::End(header)) => {
                carrier.begins_anew();
                // SAFETY: what was put aside is the taker's to end, and this strand has nothing on top.
                unsafe { worker.end_put_aside(&carrier.strand, header) };
                continue;
            }
            Some(Next::Fail(header)) => {
                carrier.begins_anew();
                // SAFETY: claimed, with the runner's link.
                match unsafe { worker.start_elsewhere(header, carrier) } {
                    None => continue,
                    Some(other) => Some(other),
                }
            }
            Some(Next::Late) => {
                carrier.begins_anew();
                worker.drop_late();
                foreign::drop_late();
                continue;
            }
            Some(Next::Warn) => {
                carrier.begins_anew();
                worker.warn_now();
                continue;
            }
            // SAFETY: a ready strand of a worker is a carrier's.
            Some(Next::Resume(strand)) => Some(unsafe { Carrier::of_strand(strand) }),
            None => None,
        };
        worker.put_idle(NonNull::from(carrier));
        // SAFETY: K2: this carrier is idle now, and the one we name is no longer ready.
        unsafe { carrier.context.fiber().leave(to.map(|to| to.as_ref().context())) };
    }
}

unsafe fn prepare(context: &Context, _deadline: Option<Instant>) -> Option<NonNull<Context>> {
    // SAFETY: this table is given to carriers only.
    let carrier = unsafe { Carrier::of(NonNull::from(context)).as_ref() };
    // SAFETY: K1.
    let worker = unsafe { &*carrier.strand.worker };
    // The wait has begun: its record in this stack's frames may stand in a list.
    let lent = Lent::to(|| "those who may end its wait");
    let next = worker.leave_parked(&carrier.strand);
    lent.given_back();
    match next {
        // SAFETY: K3.
        Some(next) => Some(unsafe { next.as_ref() }.context()),
        None => {
            if carrier.strand.left.get() != 0 {
                back(&carrier.strand);
            }
            None
        }
    }
}

unsafe fn finish(context: &Context) {
    // SAFETY: as in `prepare`.
    let strand = unsafe { &Carrier::of(NonNull::from(context)).as_ref().strand };
    if strand.left.get() != 0 {
        back(strand);
    }
}

/// A strand was entered again that had left something to see to.
#[cold]
#[inline(never)]
fn back(strand: &Strand) {
    if strand.left.get() & LEFT_UNWINDING != 0
        && let Some(worker) = strand.worker()
    {
        worker.back_unwinding(strand);
    }
    if strand.left.get() & LEFT_PARKED != 0 {
        strand.left.set(strand.left.get() & !LEFT_PARKED);
        parked::leave(strand.context());
    }
}

unsafe fn unpark(context: NonNull<Context>, ticket: Ticket, cause: Cause) -> bool {
    // SAFETY: this table is given to carriers only. K3: carriers' memory stays, so even a late ticket may look.
    let carrier = unsafe { Carrier::of(context) };
    // SAFETY: as above.
    if !unsafe { carrier.as_ref() }.context.settle(ticket, cause) {
        return false;
    }
    // SAFETY: settled by us.
    unsafe { let_go_on(carrier) };
    true
}

unsafe fn ready(context: NonNull<Context>, ticket: Ticket) {
    // SAFETY: this table is given to carriers only.
    let carrier = unsafe { Carrier::of(context) };
    // SAFETY: K3; chosen by the caller.
    unsafe { carrier.as_ref().context.settle_chosen(ticket) };
    // SAFETY: K3; settled just now, by us.
    unsafe { let_go_on(carrier) };
}

/// Brings a carrier to its worker, to be entered again.
///
/// # Safety
///
/// The caller has just settled its wait.
#[inline]
unsafe fn let_go_on(carrier: NonNull<Carrier>) {
    // SAFETY: K3.
    let this = unsafe { carrier.as_ref() };
    // SAFETY: K1.
    let worker = unsafe { &*this.strand.worker };
    if strand::get().is_some_and(|here| ptr::eq(here.worker, worker)) {
        worker.make_ready(NonNull::from(&this.strand));
    } else {
        Chain::of(carrier, worker).send();
    }
}

/// Whether the context is a carrier's, whose memory stays (K3).
pub(crate) fn is_carriers(context: &Context) -> bool {
    ptr::eq(context.table(), &TABLE)
}

/// Where a carrier's alarm stands.
///
/// # Safety
///
/// The context is a carrier's.
#[inline(always)]
pub(crate) unsafe fn alarm_of(context: NonNull<Context>) -> NonNull<Standing> {
    // SAFETY: by contract.
    unsafe { NonNull::from(&Carrier::of(context).as_ref().alarm) }
}

/// A carrier's worker.
///
/// # Safety
///
/// The context is a carrier's.
pub(crate) unsafe fn worker_of(context: &Context) -> &Worker {
    // SAFETY: by contract; K1.
    unsafe { &*strand_of(context).worker }
}

/// Carriers whose waits one thread ends one after the other, with one cause. They are brought to their workers in pieces, so that
/// what they need from memory is fetched for many at a time, and each worker is written to and woken once a piece.
///
/// One line of each is asked for first: it takes a walk through the page table, and nothing else of that page comes before it. What the walk has
/// brought the rest needs.
pub(crate) struct Going {
    cause: Cause,
    some: [MaybeUninit<(NonNull<Carrier>, Ticket)>; Going::PIECE],
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
    /// The context is a carrier's, and its slab stays mapped until this is dropped.
    #[inline]
    pub(crate) unsafe fn add(&mut self, context: NonNull<Context>, ticket: Ticket) {
        prefetch::page(context);
        // SAFETY: by contract.
        self.some[self.len].write((unsafe { Carrier::of(context) }, ticket));
        self.len += 1;
        if self.len == Going::PIECE {
            self.go();
        }
    }

    /// Ends them now.
    #[inline(never)]
    pub(crate) fn go(&mut self) {
        let here = strand::get().map_or(ptr::null(), |here| here.worker);
        let mut own = [NonNull::dangling(); Going::PIECE];
        let mut owned = 0;
        let mut chain: Option<Chain<'_>> = None;
        // SAFETY: the first `len` are written.
        let each = self.some[..self.len].iter().map(|one| unsafe { one.assume_init() }.0.cast());
        each.for_each(prefetch::control);
        for one in &self.some[..mem::take(&mut self.len)] {
            // SAFETY: the first `len` are written.
            let (carrier, ticket) = unsafe { one.assume_init() };
            // SAFETY: K3.
            let this = unsafe { carrier.as_ref() };
            if !this.context.settle(ticket, self.cause) {
                continue;
            }
            if this.strand.worker == here {
                own[owned] = NonNull::from(&this.strand);
                owned += 1;
                continue;
            }
            match &mut chain {
                Some(chain) if ptr::eq(chain.worker, this.strand.worker) => chain.append(carrier),
                other => {
                    if let Some(chain) = other.take() {
                        chain.send();
                    }
                    // SAFETY: K1; its worker's record is there while its wait goes on, and until all are sent.
                    *other = Some(Chain::of(carrier, unsafe { &*this.strand.worker }));
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
            own[..owned].iter().for_each(|strand| prefetch::whole(*strand));
        }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.go();
    }
}

/// Carriers of one worker, linked as its mailbox takes them.
struct Chain<'a> {
    worker: &'a Worker,
    latest: NonNull<Carrier>,
    earliest: NonNull<Carrier>,
    /// The most urgent one's.
    key: u64,
}

impl<'a> Chain<'a> {
    /// K2: the caller has settled its wait, so it is in no queue. So for [`append`](Self::append).
    fn of(carrier: NonNull<Carrier>, worker: &'a Worker) -> Chain<'a> {
        // SAFETY: K3.
        let key = unsafe { carrier.as_ref() }.strand.urgency.load(Ordering::Relaxed);
        Chain { worker, latest: carrier, earliest: carrier, key }
    }

    fn append(&mut self, carrier: NonNull<Carrier>) {
        // SAFETY: K3.
        let this = unsafe { carrier.as_ref() };
        this.link.store(self.latest.as_ptr(), Ordering::Relaxed);
        self.latest = carrier;
        self.key = self.key.min(this.strand.urgency.load(Ordering::Relaxed));
    }

    #[inline]
    fn send(self) {
        let runtime = ptr::from_ref(self.worker.shared());
        let is_of_runtime = |here: &Worker| ptr::eq(here.shared(), runtime);
        if strand::get().and_then(Strand::worker).is_some_and(is_of_runtime) {
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
        // SAFETY: VI1: the carriers have not been handed over.
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

/// The strand of a carrier's context.
///
/// # Safety
///
/// The context is a carrier's.
unsafe fn strand_of(context: &Context) -> &Strand {
    // SAFETY: by contract.
    unsafe { &(*Carrier::of(NonNull::from(context)).as_ptr()).strand }
}

unsafe fn is_cancelled(context: &Context) -> bool {
    // SAFETY: by the table.
    cancel::refuses(unsafe { strand_of(context) })
}

unsafe fn refuse_wait(context: &Context, what: &str) {
    // SAFETY: by the table.
    no_suspend::refuse(unsafe { strand_of(context) }, what, true);
}

/// The carrier's runtime.
///
/// # Safety
///
/// The context is a carrier's, and its worker has not ended.
unsafe fn shared(context: &Context) -> &Shared {
    // SAFETY: by the table; K1, and a worker's record is its runtime's.
    unsafe { (*strand_of(context).worker).shared() }
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
    // Whoever timed it out has taken the entry out, and the memory stays (K3): no need to wait until the timer has done with it.
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
    unsafe { owner::wait_for_owner(strand_of(context), ticket, wait, limited) }
}

unsafe fn shares_thread(context: &Context, holder: NonNull<Context>) -> bool {
    // SAFETY: by the table.
    owner::shares_worker(unsafe { strand_of(context) }, holder)
}

unsafe fn give_way(context: &Context) -> Option<NonNull<Context>> {
    // SAFETY: by the table.
    let strand = unsafe { strand_of(context) };
    let next = strand.worker()?.leave_to_others(strand)?;
    // SAFETY: K3.
    Some(unsafe { next.as_ref() }.context())
}

unsafe fn verdict(context: &Context, ticket: Ticket) -> Option<Cycle> {
    // SAFETY: by the table.
    owner::verdict(unsafe { strand_of(context) }, ticket)
}

unsafe fn gave_back(context: &Context) {
    // SAFETY: by the table.
    owner::gave_back(unsafe { strand_of(context) });
}

/// Counted by the worker, so that a seed replays it.
unsafe fn turn(context: &Context) -> u64 {
    // SAFETY: by the table; K1.
    let turns = unsafe { &(*strand_of(context).worker).turns };
    turns.replace(turns.get() + 1)
}

unsafe fn in_request(context: &Context) -> bool {
    // SAFETY: as in `prepare`.
    let carrier = unsafe { Carrier::of(NonNull::from(context)).as_ref() };
    carrier.strand.request().is_some()
}

unsafe fn requester(context: &Context) -> usize {
    // SAFETY: by the table.
    owner::requester(unsafe { strand_of(context) }).map_or(0, |h| std::ptr::from_ref(h).addr())
}

unsafe fn request_number(context: &Context) -> u64 {
    // SAFETY: by the table.
    owner::requester(unsafe { strand_of(context) }).map_or(0, |h| any::id_of(h).as_u64())
}

unsafe fn urgency(context: &Context) -> u64 {
    // SAFETY: by the table.
    unsafe { Carrier::of(NonNull::from(context)).as_ref() }.strand.urgency.load(Ordering::Relaxed)
}

unsafe fn word(context: &Context) -> *const AtomicU64 {
    // SAFETY: by the table.
    unsafe { Carrier::of(NonNull::from(context)).as_ref() }
        .strand
        .request()
        .map_or(ptr::null(), |request| request.identity().bare.as_atomic())
}

unsafe fn name(context: &Context, with: &mut dyn FnMut(&str)) {
    // SAFETY: as in `prepare`.
    let carrier = unsafe { Carrier::of(NonNull::from(context)).as_ref() };
    with(carrier.strand.request().map_or("worker", Header::name));
}

#[cfg(all(test, not(forebear_threads)))]
mod tests {
    use crate::stack::strand;
    use crate::{Runtime, spawn};

    /// So that a parked request's stack stays within one page, colour included.
    #[test]
    #[cfg_attr(debug_assertions, ignore = "frames are larger without optimisation")]
    fn the_frames_below_a_parked_request_fit_two_kibibytes() {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let used = runtime.run(|| {
            let parked = spawn(|| {
                let strand = strand::get().unwrap();
                let carrier = std::ptr::from_ref(strand) as usize;
                (carrier - crate::stack::here(), crate::yield_now()).0
            });
            crate::yield_now().unwrap();
            parked.take().unwrap()
        });
        assert!(used + size_of::<super::Carrier>() < 2048, "{used} bytes of frames");
        println!("{used} bytes of frames, {} of control block", size_of::<super::Carrier>());
    }
}
