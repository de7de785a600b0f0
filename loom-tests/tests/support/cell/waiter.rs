//! One who waits in a model: the shipped context and node, and a frame for them to lie in.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Instant;

use forebear_context::context::{Cause, Context, ForeignContext, Reason, Table, Ticket, WaitNode};
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::{AtomicU64, Ordering};
use forebear_context::shim::{Mutex, UnsafeCell, thread};
use forebear_runtime::model::word::{Bits, CLAIMED, HANDLE, LINK, SUBMITTED, Word};

/// One thread that waits: the shipped context and node, and the frame in which the node lies.
#[repr(C)]
pub struct Waiter {
    foreign: std::cell::UnsafeCell<ManuallyDrop<ForeignContext>>,
    /// The word of the request that waits.
    pub(super) request: Word,
    /// Held while a waker has the context in hand.
    in_hand: Mutex<()>,
    /// Whether the frame is there.
    frame: UnsafeCell<bool>,
    node: std::cell::UnsafeCell<Option<(WaitNode, Ticket)>>,
}

// SAFETY: J1, J2.
unsafe impl Send for Waiter {}
// SAFETY: as above.
unsafe impl Sync for Waiter {}

/// Parks as foreign threads do, under lock and condition: what is not woken is a deadlock.
pub static BLOCKING: Table = Table {
    prepare: block,
    finish,
    unpark: release,
    in_request,
    urgency,
    word,
    name,
    ..ForeignContext::TABLE
};
/// Parks by looking at the slot: nothing but the slot's own orders stands between waker and waiter.
pub static SPINNING: Table =
    Table { prepare: spin, finish, unpark: settle, in_request, urgency, word, name, ..ForeignContext::TABLE };

impl Waiter {
    /// A waiter that has begun nothing.
    pub(super) fn new(table: &'static Table) -> Arc<Waiter> {
        // SAFETY: every table of these models is for a waiter's context, which is its first field.
        let foreign = unsafe { ForeignContext::with_table(table) };
        Arc::new(Waiter {
            foreign: std::cell::UnsafeCell::new(ManuallyDrop::new(foreign)),
            request: Word::new(CLAIMED | SUBMITTED | HANDLE | LINK),
            in_hand: Mutex::new(()),
            frame: UnsafeCell::new(false),
            node: std::cell::UnsafeCell::new(None),
        })
    }

    /// The context proper.
    pub fn context(&self) -> &Context {
        // SAFETY: J1, J2: nobody has it exclusively while it is used.
        unsafe { &*self.foreign.get() }.context()
    }

    pub(super) fn begin(&self) {
        // SAFETY: C2: by the thread that stands for its stack; C4: for nothing that is followed.
        let ticket = unsafe { self.context().begin(Reason::Request, ptr::null_mut()) };
        // SAFETY: C1: J1, J2.
        let node = unsafe { WaitNode::new(self.context(), ticket) };
        // SAFETY: J1.
        self.frame.with_mut(|there| unsafe { *there = true });
        // SAFETY: J1, J2: the node is in no list.
        unsafe { *self.node.get() = Some((node, ticket)) };
    }

    /// The owner goes on; whatever comes to lie where the node was.
    pub(super) fn leave_frame(&self) {
        // SAFETY: J1.
        self.frame.with_mut(|there| unsafe { *there = false });
        // A node that stands nowhere: who reads on in it finds no next.
        // SAFETY: C1: J1, J2.
        let node = unsafe { WaitNode::new(self.context(), self.ticket()) };
        // SAFETY: J1, J2.
        unsafe { *self.node.get() = Some((node, self.ticket())) };
    }

    pub(super) fn node(&self) -> &WaitNode {
        // SAFETY: J1, J2.
        unsafe { &(*self.node.get()).as_ref().unwrap().0 }
    }

    pub(super) fn ticket(&self) -> Ticket {
        // SAFETY: J1, J2.
        unsafe { (*self.node.get()).as_ref().unwrap().1 }
    }

    /// Whose context it is.
    pub(super) fn of(context: &Context) -> &Waiter {
        // SAFETY: all contexts of a model are waiters'; `repr(C)`; J1.
        unsafe { &*ptr::from_ref(context).cast::<Waiter>() }
    }

    /// Whether the waiter is demand, as a scan of the list in which the node stands finds it: through the node.
    pub(super) fn is_demand(&self) -> bool {
        Waiter::touched(NonNull::from(self.context()));
        // SAFETY: the context's own table; J1.
        let word = unsafe { &*(self.context().table().word)(self.context()) };
        Bits(word.load(Ordering::Relaxed)).is_demand()
    }

    /// Wakes it as [`BLOCKING`] does, by one who has no node of it in hand.
    pub(super) fn wake(&self, cause: Cause) -> bool {
        let _in_hand = self.in_hand.lock().unwrap();
        // SAFETY: a waiter begins with a foreign context; J1.
        unsafe { ForeignContext::release(self.context().into(), self.ticket(), cause) }
    }

    /// The thread goes, and its context with it. By the owner, once.
    pub fn end(&self) {
        // SAFETY: J1, J2: dropped once, and its memory stays.
        unsafe { ManuallyDrop::drop(&mut *self.foreign.get()) };
        assert!(self.in_hand.try_lock().is_ok(), "a thread has gone while its waker has its context in hand");
    }

    /// Called by the waker, who has the node in hand.
    fn touched(context: NonNull<Context>) {
        // SAFETY: both tables are given to waiters only; `repr(C)`; J1.
        let this = unsafe { context.cast::<Waiter>().as_ref() };
        // SAFETY: J1.
        this.frame.with(|there| assert!(unsafe { *there }, "a node touched after its owner had gone"));
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").finish_non_exhaustive()
    }
}

unsafe fn block(context: &Context, deadline: Option<Instant>) -> Option<NonNull<Context>> {
    // SAFETY: the table is given to waiters only, which begin with a foreign context.
    while !unsafe { ForeignContext::block(context, deadline) } {}
    None
}

unsafe fn release(context: NonNull<Context>, ticket: Ticket, cause: Cause) -> bool {
    Waiter::touched(context);
    // SAFETY: the table is given to waiters only; `repr(C)`; J1.
    let this = unsafe { context.cast::<Waiter>().as_ref() };
    // The last that `release` does is to give up its lock, and loom does not switch between two unlockings.
    let _in_hand = this.in_hand.lock().unwrap();
    // SAFETY: as above.
    unsafe { ForeignContext::release(context, ticket, cause) }
}

unsafe fn spin(_: &Context, _: Option<Instant>) -> Option<NonNull<Context>> {
    thread::yield_now();
    None
}

unsafe fn settle(context: NonNull<Context>, ticket: Ticket, cause: Cause) -> bool {
    Waiter::touched(context);
    // SAFETY: J1.
    unsafe { context.as_ref() }.settle(ticket, cause)
}

unsafe fn finish(_: &Context) {}

unsafe fn in_request(_: &Context) -> bool {
    false
}

unsafe fn name(_: &Context, with: &mut dyn FnMut(&str)) {
    with("a waiter");
}

unsafe fn urgency(_: &Context) -> u64 {
    NO_KEY
}

unsafe fn word(context: &Context) -> *const AtomicU64 {
    Waiter::of(context).request.as_atomic()
}
