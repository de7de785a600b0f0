//! Foreign threads: those that are no workers, and yet make, run and await requests.
//!
//! Such a thread gets a fiber when it first needs one, and an arena per runtime it deals with. A request that such a
//! thread runs directly has its full context there. It is the current request, its children are made and counted in the
//! thread's arena, and the thread is its worker for life. Children are published at once, since the thread has no loop
//! that would come to them.

mod exit;
pub(crate) mod fiber_table;
mod scope_wait;

#[cfg(shuttle)]
pub use self::exit::thread_exits;
pub(crate) use self::exit::watch;

use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use forebear_context::clock::deadline_after;
use forebear_context::context::{
    Alarm, Cause, Context, ForeignContext, ForeignThreads, Table, Ticket, is_known_now, provide_foreign,
};
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::{Arc, time};

use self::fiber_table::OF_FIBER;
use crate::cancel::unstarted;
use crate::deadlock::foreign_stacks;
use crate::record::above::above;
use crate::record::arena::{self, Arena};
use crate::record::fiber::{self, Fiber};
use crate::record::header::Header;
use crate::record::reclaim;
use crate::shared::Shared;
use crate::shared::driven::{Driven, Seat};
use crate::shared::parked;
use crate::shared::thread::{self, FOREIGN, Foreign, ForeignFiber, of, take_late, thread_name};
use crate::stack::lent::Lent;
use crate::time::deadlines::keep;

static TABLE: Table =
    Table { prepare, finish, unpark, name, now, deadline, arm, disarm, is_alone, ..OF_FIBER };

/// From now on every thread that waits for anything of ours has a fiber.
pub(crate) fn provide() {
    static FOREIGN_THREADS: ForeignThreads = ForeignThreads {
        provide: || fiber().map(|fiber| NonNull::from(fiber.context())),
        give_back: exit::give_back,
    };
    // SAFETY: a thread's fiber is current from when it is made until the thread ends.
    unsafe { provide_foreign(&FOREIGN_THREADS) }
}

/// The fiber this is called on, made if this is a thread that has none. `None` only while the thread's locals are being
/// destroyed.
#[inline]
pub(crate) fn fiber() -> Option<&'static Fiber> {
    fiber::get().or_else(make_fiber)
}

/// The same, where there is no current one.
#[cold]
#[inline(never)]
fn make_fiber() -> Option<&'static Fiber> {
    FOREIGN
        .try_with(|foreign| {
            let mut at = foreign.fiber.get();
            if at.is_null() {
                at = Box::into_raw(Box::new(ForeignFiber {
                    // SAFETY: the table is for the contexts of foreign fibers, which is where this one comes to lie.
                    context: unsafe { ForeignContext::with_table(&TABLE) },
                    fiber: Fiber::new(ptr::null(), ptr::null(), crate::stack::thread_limit()),
                    name: std::thread::current().name().map(Box::from),
                    waits: Cell::new(false),
                }));
                // SAFETY: just made; it stays in place until the thread exits.
                unsafe {
                    (*at).fiber = Fiber::new((*at).context.context(), ptr::null(), (*at).fiber.limit.get());
                    (*at).fiber.branches.init();
                    foreign_stacks::register_thread((*at).context.context());
                }
                foreign.fiber.set(at);
                // SAFETY: just made.
                let context = NonNull::from(unsafe { &*at }.context.context());
                for (_, own) in foreign.arenas.borrow().iter() {
                    // SAFETY: M3: the thread's own.
                    unsafe { own.as_ref() }.set_owner(Some(context));
                }
            }
            // SAFETY: valid until the thread's locals are destroyed, which makes it no longer current.
            let fiber = unsafe {
                fiber::enter(&raw const (*at).fiber);
                &(*at).fiber
            };
            is_known_now(NonNull::from(fiber.context()));
            fiber
        })
        .ok()
}

/// This thread's arena for `shared`; made if need be. `None` while the thread's locals are being destroyed.
///
/// What the thread has an arena in already is not counted for it: a count is two exchanges on a line that all threads share.
#[inline]
pub(crate) fn arena_for(shared: &Shared) -> Option<NonNull<Arena>> {
    match FOREIGN.try_with(|foreign| foreign.arena_of(shared)).ok()? {
        None => open_arena(&shared.arc()),
        arena => arena,
    }
}

/// A new arena of this thread's.
#[cold]
fn open_arena(shared: &Arc<Shared>) -> Option<NonNull<Arena>> {
    let open = |foreign: &Foreign| {
        // SAFETY: RR1; the caller's count.
        let arena = unsafe { shared.depot.open(shared.record_ptr()) };
        // SAFETY: made by `fiber`, freed when the thread's locals are destroyed.
        let own = unsafe { foreign.fiber.get().as_ref() };
        // SAFETY: M3: the thread's own.
        unsafe { arena.as_ref() }.set_owner(own.map(|own| NonNull::from(own.context.context())));
        let mut arenas = foreign.arenas.borrow_mut();
        let settles = foreign.settles.get();
        let is_over = |of: &Shared| !settles && !of.is_inherited() && of.is_over() && of.depot.is_closing();
        let over: Vec<_> = arenas.extract_if(.., |(of, _)| is_over(of)).collect();
        arenas.push((shared.clone(), arena));
        foreign.last.set(Some(arena));
        (arena, over)
    };
    let (arena, over) = FOREIGN.try_with(open).ok()?;
    // Destructors of the user's are called, of what a request's parent failed with and of what the record of a runtime holds. They may deal with
    // runtimes themselves, so nothing is borrowed here.
    for (of, arena) in over {
        // SAFETY: we are the owner: it is no longer among the thread's arenas.
        unsafe { of.depot.leave(arena) };
    }
    Some(arena)
}

/// Drops them. Not inside a wait.
fn drop_late() {
    while let Some(side) = take_late() {
        reclaim::free_side(side);
    }
}

/// The thread is about to block: takes in what others have sent to its arenas. It is listed as one that waits, so who sends something that keeps an error
/// later nudges it. Inside a wait: what users own is kept for later.
pub(crate) fn take_returns() {
    thread::each_arena(Arena::drain_returns);
}

/// The thread is about to block, and has no seat, so it drops nothing that it has kept before its next wait: others do it.
pub(crate) fn drop_late_elsewhere() {
    while let Some(side) = take_late() {
        if !thread::drop_elsewhere(side) {
            return;
        }
    }
}

/// The thread may make nothing for a while: takes in what others have sent to its arenas, and gives away what lies free there.
///
/// Not inside a wait: a destructor of the user's may be called, of what a request's parent failed with.
pub(crate) fn settle_arenas() {
    settle(usize::MAX);
}

/// The same after a request that the thread has run itself. All classes of cells are checked only if something was made
/// there, if `arena` has many free cells of the request's class, or now and then. The thread's other arenas are checked
/// no more often.
pub(crate) fn settle_arenas_after(h: &Header, arena: &Arena) {
    let many = h.made_children() || arena.has_spare_of(h.memory_class());
    let counts = |foreign: &Foreign| {
        let unlooked = foreign.unlooked.get() + 1;
        let counts = unlooked < arena::KEPT && foreign.has_nothing_late();
        if counts {
            foreign.unlooked.set(unlooked);
        }
        counts
    };
    if many || arena.has_returns() || !FOREIGN.try_with(counts).unwrap_or(false) {
        settle(if many { usize::MAX } else { 1 });
    }
}

/// `freed` is how many cells may have become free since the last time.
fn settle(freed: usize) {
    drop_late();
    let settle = |foreign: &Foreign| {
        if foreign.settles.replace(true) {
            return;
        }
        // A destructor may look for an arena, and add one. None goes meanwhile.
        let many = foreign.arenas.borrow().len();
        for n in 0..many {
            let Some(arena) = foreign.usable_arena(n) else { continue };
            // SAFETY: we are the owner.
            unsafe { arena.as_ref() }.drain_returns();
        }
        let unlooked = foreign.unlooked.get().saturating_add(freed);
        if unlooked >= arena::KEPT {
            foreign.give_spare_cells();
        } else {
            foreign.unlooked.set(unlooked);
        }
        foreign.settles.set(false);
    };
    // While the thread's locals are being destroyed its arenas are given back anyway.
    let _ = FOREIGN.try_with(settle);
}

impl Foreign {
    fn has_nothing_late(&self) -> bool {
        self.late.try_borrow().is_ok_and(|late| late.is_empty())
    }

    /// Others may have more use for what lies free in the thread's arenas.
    fn give_spare_cells(&self) {
        self.unlooked.set(0);
        let many = self.arenas.borrow().len();
        for arena in (0..many).filter_map(|n| self.usable_arena(n)) {
            // SAFETY: we are the owner.
            let arena = unsafe { arena.as_ref() };
            if arena.has_spare_cells() {
                arena.give_spare_cells();
            }
        }
    }
}

/// This thread's seat in a runtime without threads, if it has one.
pub(crate) fn seat_taken(shared: &Arc<Shared>) -> Option<usize> {
    let find = |foreign: &Foreign| {
        let seats = foreign.seats.borrow();
        seats.iter().find(|seat| Arc::ptr_eq(&seat.shared, shared)).map(|seat| seat.index)
    };
    FOREIGN.try_with(find).ok().flatten()
}

/// The same; takes one if there is one to be had. On the thread's own fiber.
pub(crate) fn seat(shared: &Arc<Shared>) -> Option<usize> {
    if let Some(index) = seat_taken(shared) {
        return Some(index);
    }
    let driven = shared.driven.as_ref()?;
    FOREIGN
        .try_with(|foreign| {
            // SAFETY: made by `fiber`, freed with the thread.
            let fiber = &unsafe { foreign.fiber.get().as_ref() }?.fiber;
            // SAFETY: D3: the seats are given back before the fiber goes.
            let index = unsafe { driven.take(NonNull::from(fiber.context())) }?;
            let answer = (shared.calls.sit_down)(shared.worker_records().at(index));
            driven.sat_down(index, &answer);
            answer.ok()?;
            foreign.seats.borrow_mut().push(Seat { shared: shared.clone(), index });
            Some(index)
        })
        .ok()
        .flatten()
}

/// Where a thread stands in the runtimes that have no threads and that it deals with.
#[derive(Default)]
pub(crate) struct Seats {
    /// Its seats.
    pub seats: Vec<Seat>,
    /// Where it has none, and wants one.
    pub lacking: Vec<Arc<Shared>>,
    /// There are runtimes whose last handle has gone, where others have seats and this thread takes none: nothing is there for it.
    pub others: bool,
}

/// This thread's seats. Takes those that it wants and that there are to be had.
pub(crate) fn seats() -> Seats {
    let mut others = false;
    let without = FOREIGN.try_with(|foreign| {
        let (arenas, seats) = (foreign.arenas.borrow(), foreign.seats.borrow());
        let mut without = Vec::new();
        for (of, _) in arenas.iter().filter(|(of, _)| of.driven.is_some() && !of.is_over()) {
            if seats.iter().any(|seat| Arc::ptr_eq(&seat.shared, of)) {
                continue;
            }
            // Each seat is given back when the wait is over, and to take one builds two stacks.
            match of.signals.is_stopping() && !has_for_any_seat(of) {
                true => others = true,
                false => without.push(of.clone()),
            }
        }
        without
    });
    let mut lacking = without.unwrap_or_default();
    lacking.retain(|shared| seat(shared).is_none());
    let seats = FOREIGN.try_with(|foreign| foreign.seats.borrow().clone()).unwrap_or_default();
    Seats { seats, lacking, others }
}

/// Whether something is to be run or ended there that a new seat could take.
fn has_for_any_seat(shared: &Shared) -> bool {
    shared.injector.key() != NO_KEY
        || shared.driven.as_ref().is_some_and(Driven::has_aside)
        || shared.worker_records().iter().any(|worker| worker.post.shared_queue.key() != NO_KEY)
}

/// The seat is about to be given back.
pub(crate) fn forget_seat(shared: &Arc<Shared>) {
    let _ = FOREIGN
        .try_with(|foreign| foreign.seats.borrow_mut().retain(|seat| !Arc::ptr_eq(&seat.shared, shared)));
}

/// # Safety
///
/// As [`Table::prepare`].
unsafe fn prepare(context: &Context, deadline: Option<Instant>) -> Option<NonNull<Context>> {
    // SAFETY: by the table.
    let fiber = unsafe { &of(context).fiber };
    // The wait has begun: its record in this stack's frames may stand in a list.
    let lent = Lent::to(|| "those who may end its wait");
    let _ = FOREIGN.try_with(Foreign::give_spare_cells);
    // If its wait is ended here it does not block.
    parked::enter(fiber);
    // SAFETY: by the table.
    let waits = unsafe { &of(context).waits };
    waits.set(true);
    if !fiber.dropping.get().is_null() {
        unstarted::give_away_put_off(fiber);
    }
    // Until the thread that has ended it is done with the context (C1), also after a nudge.
    // SAFETY: by the table: `ForeignContext` is the first field, and this is its thread.
    let mut look = scope_wait::first_look(context);
    // SAFETY: as above.
    while !unsafe { (above().drive)(fiber, deadline, look) } {
        if look.is_some_and(|at| at <= time::now()) {
            look = scope_wait::look(fiber);
        }
    }
    waits.set(false);
    parked::leave(context);
    lent.given_back();
    None
}

/// # Safety
///
/// As [`Table::finish`].
unsafe fn finish(_: &Context) {}

/// # Safety
///
/// As [`Table::unpark`].
unsafe fn unpark(context: NonNull<Context>, ticket: Ticket, cause: Cause) -> bool {
    // SAFETY: as in `prepare`; C1 by the caller.
    unsafe { ForeignContext::release(context, ticket, cause) }
}

/// # Safety
///
/// As [`Table::name`].
unsafe fn name(context: &Context, with: &mut dyn FnMut(&str)) {
    // SAFETY: by the table.
    match unsafe { of(context) }.fiber.request().map(Header::name) {
        Some(name) => with(name),
        // SAFETY: by the table.
        None => with(thread_name(unsafe { of(context) })),
    }
}

/// The runtime that this thread is in, if it is in one.
fn entered(fiber: &Fiber) -> Option<&Shared> {
    // SAFETY: while a runtime is entered its record is there.
    unsafe { Shared::of_ptr(fiber.entered.get()) }
}

/// # Safety
///
/// As [`Table::now`].
unsafe fn now(context: &Context) -> Instant {
    // SAFETY: by the table.
    entered(&unsafe { of(context) }.fiber).map_or_else(time::now, |shared| shared.deadlines.now())
}

/// # Safety
///
/// As [`Table::deadline`].
unsafe fn deadline(context: &Context, timeout: Duration) -> Option<Instant> {
    // SAFETY: by the table.
    deadline_after(unsafe { now(context) }, timeout)
}

/// # Safety
///
/// As [`Table::arm`].
unsafe fn arm(context: &Context, ticket: Ticket, at: Instant) -> Alarm {
    // SAFETY: by the table.
    match entered(&unsafe { of(context) }.fiber) {
        // SAFETY: by the table: the alarm is taken back before the context goes.
        Some(shared) => unsafe { keep(&shared.deadlines, shared.driven.as_ref(), at, context, ticket) },
        None => Alarm { number: 0, own: Some(at) },
    }
}

/// # Safety
///
/// As [`Table::disarm`].
unsafe fn disarm(context: &Context, alarm: Alarm) {
    // SAFETY: by the table.
    if let Some(shared) = entered(&unsafe { of(context) }.fiber) {
        shared.deadlines.disarm(context, alarm);
    }
}

/// A thread with a seat is a worker itself: what holds a lock may be its own to run.
///
/// # Safety
///
/// As [`Table::is_alone`].
unsafe fn is_alone(_: &Context) -> bool {
    FOREIGN.try_with(|foreign| foreign.seats.borrow().is_empty()).unwrap_or(false)
}

#[cfg(test)]
mod tests;
