//! Foreign threads: those that are no workers, and yet make, run and await requests.
//!
//! Such a thread gets a strand when it first needs one, and a home per runtime it deals with. A request that it runs
//! directly has its full context there: it is current, children are made and counted in the thread's home, and the
//! thread is its worker for life. Children are published at once, since the thread has no loop that would come to them.

use std::cell::{Cell, RefCell};
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use forebear_context::clock::deadline_after;
use forebear_context::context::{
    Alarm, Cause, Context, ForeignContext, OwnerWait, Table, Ticket, provide_foreign,
};
use forebear_context::error::Cycle;
use forebear_context::shim::atomic::{AtomicU64, Ordering};
use forebear_context::shim::{Arc, time};

use crate::cancel;
use crate::cycle;
use crate::deadlines::keep;
use crate::driver::{self, Seat};
use crate::header::Header;
use crate::home::Home;
use crate::no_suspend;
use crate::owner;
use crate::parked;
use crate::shared::Shared;
use crate::strand::{self, Strand};

#[repr(C)]
struct ForeignStrand {
    context: ForeignContext,
    strand: Strand,
}

/// What a foreign thread owns; given back when it exits.
struct Foreign {
    strand: Cell<*mut ForeignStrand>,
    homes: RefCell<Vec<(Arc<Shared>, NonNull<Home>)>>,
    seats: RefCell<Vec<Seat>>,
    /// Inside [`settle_homes`].
    settles: Cell<bool>,
}

forebear_context::shim::thread_local! {
    static FOREIGN: Foreign =
        const {
            Foreign {
                strand: Cell::new(ptr::null_mut()),
                homes: RefCell::new(Vec::new()),
                seats: RefCell::new(Vec::new()),
                settles: Cell::new(false),
            }
        };
}

const _: () = assert!(std::mem::offset_of!(ForeignStrand, strand) == strand::BEHIND_CONTEXT);

static TABLE: Table = Table {
    prepare,
    finish,
    unpark,
    in_request,
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
    turn: ForeignContext::TABLE.turn,
    ..ForeignContext::TABLE
};

/// From now on every thread that waits for anything of ours has a strand.
pub(crate) fn provide() {
    // SAFETY: a thread's strand is current from when it is made until the thread ends.
    unsafe { provide_foreign(|| strand().map(|strand| NonNull::from(strand.context()))) }
}

/// The strand this is called on, made if this is a thread that has none. `None` only while the thread's locals are being
/// destroyed.
pub(crate) fn strand() -> Option<&'static Strand> {
    if let Some(strand) = strand::get() {
        return Some(strand);
    }
    FOREIGN
        .try_with(|foreign| {
            let mut at = foreign.strand.get();
            if at.is_null() {
                at = Box::into_raw(Box::new(ForeignStrand {
                    context: ForeignContext::with_table(&TABLE),
                    strand: Strand::new(ptr::null(), ptr::null(), crate::stack::thread_limit()),
                }));
                // SAFETY: just made; it stays in place until the thread exits.
                unsafe {
                    (*at).strand =
                        Strand::new((*at).context.context(), ptr::null(), (*at).strand.limit.get());
                    (*at).strand.arms.init();
                    cycle::enrol_thread((*at).context.context());
                }
                foreign.strand.set(at);
            }
            // SAFETY: valid until the thread's locals are destroyed, which makes it no longer current.
            unsafe {
                strand::enter(&raw const (*at).strand);
                &(*at).strand
            }
        })
        .ok()
}

/// The context of this thread, if it has one: that of its own stack, whatever stack this is called on.
pub(crate) fn context() -> Option<NonNull<Context>> {
    let at = FOREIGN.try_with(|foreign| foreign.strand.get()).ok()?;
    // SAFETY: valid until the thread's locals are destroyed.
    unsafe { at.as_ref() }.map(|own| NonNull::from(own.context.context()))
}

/// This thread's home for `shared`; made if need be. `None` while the thread's locals are being destroyed.
pub(crate) fn home_for(shared: &Arc<Shared>) -> Option<NonNull<Home>> {
    FOREIGN
        .try_with(|foreign| {
            let mut homes = foreign.homes.borrow_mut();
            if let Some((_, home)) = homes.iter().find(|(of, _)| Arc::ptr_eq(of, shared)) {
                return *home;
            }
            homes.retain(|(of, home)| {
                let settles = foreign.settles.get();
                let over = !settles && !of.is_inherited() && of.is_over() && of.depot.is_closing();
                if over {
                    // SAFETY: we are the owner.
                    unsafe { of.depot.leave(*home) };
                }
                !over
            });
            let home = shared.depot.open(shared);
            homes.push((shared.clone(), home));
            home
        })
        .ok()
}

/// The thread may make nothing for a while: takes in what others have sent to its homes, and gives away what lies free there.
///
/// Not inside a wait: a destructor of the user's may be called, of what a request's parent failed with.
pub(crate) fn settle_homes() {
    let settle = |foreign: &Foreign| {
        if foreign.settles.replace(true) {
            return;
        }
        // A destructor may look for a home, and add one. None goes meanwhile.
        let many = foreign.homes.borrow().len();
        for n in 0..many {
            let Some(home) = foreign.usable_home(n) else { continue };
            // SAFETY: we are the owner.
            unsafe { home.as_ref() }.drain_returns();
        }
        foreign.give_spare_cells();
        foreign.settles.set(false);
    };
    // While the thread's locals are being destroyed its homes are given back anyway.
    let _ = FOREIGN.try_with(settle);
}

impl Foreign {
    /// A home of this thread's, by number. `None` if it is of a runtime that was left behind by a fork: its locks may be held by threads that
    /// are not here.
    fn usable_home(&self, n: usize) -> Option<NonNull<Home>> {
        self.homes.borrow().get(n).filter(|(shared, _)| !shared.is_inherited()).map(|(_, home)| *home)
    }

    /// Others may have more use for what lies free in the thread's homes.
    fn give_spare_cells(&self) {
        let many = self.homes.borrow().len();
        for home in (0..many).filter_map(|n| self.usable_home(n)) {
            // SAFETY: we are the owner.
            let home = unsafe { home.as_ref() };
            if home.has_spare_cells() {
                home.give_spare_cells();
            }
        }
    }
}

/// Whether this thread owns the home: it is one of its homes, and is not just being given back.
pub(crate) fn owns(home: *const Home) -> bool {
    let among = |foreign: &Foreign| {
        let homes = foreign.homes.try_borrow();
        homes.is_ok_and(|homes| homes.iter().any(|(_, own)| ptr::eq(own.as_ptr(), home)))
    };
    FOREIGN.try_with(among).unwrap_or(false)
}

/// This thread's seat in a runtime without threads, if it has one.
pub(crate) fn seat_taken(shared: &Arc<Shared>) -> Option<usize> {
    let find = |foreign: &Foreign| {
        let seats = foreign.seats.borrow();
        seats.iter().find(|seat| Arc::ptr_eq(&seat.shared, shared)).map(|seat| seat.index)
    };
    FOREIGN.try_with(find).ok().flatten()
}

/// The same; takes one if there is one to be had. On the thread's own strand.
pub(crate) fn seat(shared: &Arc<Shared>) -> Option<usize> {
    if let Some(index) = seat_taken(shared) {
        return Some(index);
    }
    let driven = shared.driven.as_ref()?;
    FOREIGN
        .try_with(|foreign| {
            // SAFETY: made by `strand`, freed with the thread.
            let strand = &unsafe { foreign.strand.get().as_ref() }?.strand;
            // SAFETY: D3: the seats are given back before the strand goes.
            let index = unsafe { driven.take(NonNull::from(strand.context())) }?;
            if shared.workers()[index].sit_down().is_err() {
                driven.give_back(index);
                return None;
            }
            foreign.seats.borrow_mut().push(Seat { shared: shared.clone(), index });
            Some(index)
        })
        .ok()
        .flatten()
}

/// This thread's seats, in all runtimes that have no threads and that it deals with; and one in which it has none.
pub(crate) fn seats() -> (Vec<Seat>, Option<Arc<Shared>>) {
    let driven = FOREIGN.try_with(|foreign| {
        let homes = foreign.homes.borrow();
        let driven = homes.iter().filter(|(of, _)| of.driven.is_some() && !of.is_over());
        driven.map(|(of, _)| of.clone()).collect::<Vec<_>>()
    });
    let mut lacking = None;
    for shared in driven.unwrap_or_default() {
        if seat(&shared).is_none() {
            lacking = Some(shared);
        }
    }
    (FOREIGN.try_with(|foreign| foreign.seats.borrow().clone()).unwrap_or_default(), lacking)
}

/// The seat is about to be given back.
pub(crate) fn forget_seat(shared: &Arc<Shared>) {
    let _ = FOREIGN
        .try_with(|foreign| foreign.seats.borrow_mut().retain(|seat| !Arc::ptr_eq(&seat.shared, shared)));
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let at = self.strand.get();
        for seat in self.seats.take() {
            // SAFETY: whoever has a seat has a strand; it is there until below.
            unsafe {
                strand::enter(&raw const (*at).strand);
                seat.leave(&(*at).strand);
            }
        }
        if !at.is_null() {
            // SAFETY: no strand is always valid; nothing runs on this one any more.
            unsafe {
                if ptr::eq(strand::current(), &raw const (*at).strand) {
                    strand::enter(ptr::null());
                }
                cycle::dismiss_thread((*at).context.context());
                drop(Box::from_raw(at));
            }
        }
        for (shared, home) in self.homes.get_mut().drain(..) {
            if shared.is_inherited() {
                // Its locks may be held by threads that are not here.
                continue;
            }
            // SAFETY: we are the owner.
            unsafe {
                home.as_ref().drain_returns();
                shared.depot.leave(home);
            }
        }
    }
}

unsafe fn of(context: &Context) -> &ForeignStrand {
    // SAFETY: this table is given to foreign strands only, whose first field is the context.
    unsafe { &*ptr::from_ref(context).cast::<ForeignStrand>() }
}

/// The strand of a foreign thread's context.
///
/// # Safety
///
/// The context is a foreign thread's, of this table, and is there.
pub(crate) unsafe fn of_context<'a>(context: NonNull<Context>) -> &'a Strand {
    // SAFETY: by contract.
    unsafe { &context.cast::<ForeignStrand>().as_ref().strand }
}

unsafe fn prepare(context: &Context, deadline: Option<Instant>) -> Option<NonNull<Context>> {
    // SAFETY: by the table.
    let strand = unsafe { &of(context).strand };
    let _ = FOREIGN.try_with(Foreign::give_spare_cells);
    // If its wait is ended here it does not block.
    parked::enter(strand);
    // Until whoever has ended it is done with the context (C1), also after a nudge.
    // SAFETY: by the table: `ForeignContext` is the first field, and this is its thread.
    while !unsafe { driver::wait(strand, deadline) } {}
    parked::leave(context);
    None
}

unsafe fn finish(_: &Context) {}

unsafe fn unpark(context: NonNull<Context>, ticket: Ticket, cause: Cause) -> bool {
    // SAFETY: as in `prepare`; C1 by the caller.
    unsafe { ForeignContext::release(context, ticket, cause) }
}

unsafe fn in_request(context: &Context) -> bool {
    // SAFETY: by the table.
    unsafe { of(context) }.strand.request().is_some()
}

unsafe fn urgency(context: &Context) -> u64 {
    // SAFETY: by the table.
    unsafe { of(context) }.strand.urgency.load(Ordering::Relaxed)
}

unsafe fn word(context: &Context) -> *const AtomicU64 {
    // SAFETY: by the table.
    unsafe { of(context) }.strand.request().map_or(ptr::null(), |request| request.identity().bare.as_atomic())
}

unsafe fn name(context: &Context, with: &mut dyn FnMut(&str)) {
    // SAFETY: by the table.
    match unsafe { of(context) }.strand.request().map(Header::name) {
        Some(name) => with(name),
        None => with(std::thread::current().name().unwrap_or("unnamed thread")),
    }
}

unsafe fn is_cancelled(context: &Context) -> bool {
    // SAFETY: by the table.
    cancel::refuses(&unsafe { of(context) }.strand)
}

unsafe fn refuse_wait(context: &Context, what: &str) {
    // SAFETY: by the table.
    no_suspend::refuse(&unsafe { of(context) }.strand, what, true);
}

/// The runtime that this thread is in, if it is in one.
fn entered(strand: &Strand) -> Option<&Shared> {
    // SAFETY: while a runtime is entered its record is there.
    unsafe { strand.entered.get().as_ref() }
}

unsafe fn now(context: &Context) -> Instant {
    // SAFETY: by the table.
    entered(&unsafe { of(context) }.strand).map_or_else(time::now, |shared| shared.deadlines.now())
}

unsafe fn deadline(context: &Context, timeout: Duration) -> Option<Instant> {
    // SAFETY: by the table.
    deadline_after(unsafe { now(context) }, timeout)
}

unsafe fn arm(context: &Context, ticket: Ticket, at: Instant) -> Alarm {
    // SAFETY: by the table.
    match entered(&unsafe { of(context) }.strand) {
        // SAFETY: by the table: the alarm is taken back before the context goes.
        Some(shared) => unsafe { keep(&shared.deadlines, shared.driven.as_ref(), at, context, ticket) },
        None => Alarm { number: 0, own: Some(at) },
    }
}

unsafe fn disarm(context: &Context, alarm: Alarm) {
    // SAFETY: by the table.
    if let Some(shared) = entered(&unsafe { of(context) }.strand) {
        shared.deadlines.disarm(context, alarm);
    }
}

unsafe fn wait_for_owner(
    context: &Context,
    ticket: Ticket,
    wait: &OwnerWait,
    limited: bool,
) -> Option<Cycle> {
    // SAFETY: by the table.
    unsafe { owner::wait_for_owner(&of(context).strand, ticket, wait, limited) }
}

unsafe fn verdict(context: &Context, ticket: Ticket) -> Option<Cycle> {
    // SAFETY: by the table.
    owner::verdict(&unsafe { of(context) }.strand, ticket)
}

unsafe fn gave_back(context: &Context) {
    // SAFETY: by the table.
    owner::gave_back(&unsafe { of(context) }.strand);
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::Runtime;

    fn home_of(runtime: &Runtime) -> NonNull<Home> {
        home_for(runtime.shared()).unwrap()
    }

    #[test]
    fn a_thread_owns_its_homes_and_nobody_elses() {
        let runtimes = [(); 2].map(|()| Runtime::builder().workers(1).build().unwrap());
        let own = runtimes.each_ref().map(home_of);
        assert_ne!(own[0], own[1], "a home for each runtime");
        assert!(own.iter().all(|home| owns(home.as_ptr())));
        let worker = runtimes[0].shared().workers()[0].home();
        assert!(!owns(worker), "a worker's");
        assert!(!owns(ptr::null()));
        let own = own.map(|home| home.as_ptr().addr());
        thread::scope(|scope| {
            scope.spawn(|| {
                let at = |n: usize| ptr::with_exposed_provenance::<Home>(own[n]);
                assert!(!owns(at(0)) && !owns(at(1)), "another thread's");
                let here = home_of(&runtimes[0]);
                assert!(here.as_ptr().addr() != own[0] && owns(here.as_ptr()) && !owns(at(0)));
            });
        });
    }

    #[test]
    fn a_home_that_is_lent_to_the_next_thread_is_the_next_threads() {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let on_a_thread = || {
            let there = || {
                let home = home_of(&runtime);
                (home.as_ptr().expose_provenance(), owns(home.as_ptr()))
            };
            thread::scope(|scope| scope.spawn(there).join().unwrap())
        };
        let (first, second) = (on_a_thread(), on_a_thread());
        assert_eq!(first, second);
        assert!(first.1);
        assert!(!owns(ptr::with_exposed_provenance(first.0)), "never ours");
    }

    /// What ends meanwhile asks this, and must neither be told that the home is this thread's nor find the list locked.
    #[test]
    fn a_home_that_is_being_given_back_is_nobodys() {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let home = home_of(&runtime);
        FOREIGN.with(|foreign| {
            let _given_back = foreign.homes.borrow_mut();
            assert!(!owns(home.as_ptr()));
        });
        assert!(owns(home.as_ptr()));
    }

    /// What a thread makes outside, and drops there, is back in its home at once: not on its way, where the next round would not find it.
    #[test]
    fn what_ends_on_its_own_foreign_thread_makes_no_journey() {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let make = || runtime.enter(|| crate::Request::new(|| 7));
        // SAFETY: M3: this thread's, and the runtime is there.
        let home = unsafe { home_of(&runtime).as_ref() };
        for _ in 0..3 {
            drop(make());
            assert!(!home.has_returns());
        }
        // One that ends elsewhere does travel.
        let request = make();
        thread::scope(|scope| drop(scope.spawn(move || drop(request))));
        assert!(home.has_returns());
    }
}
