//! The side block: what few requests have. See [`crate::state::slot`] for how the header leads to it.
//!
//! Blocks are boxes. A thread that frees one keeps a few for the next that it makes. Programs that name one request
//! name many, and an allocation and its end are a third of the cost of a name.
//!
//! # Who may touch what
//!
//! | field | who, when |
//! |---|---|
//! | `name`, `location`, `due` | written before any other thread knows the header; constant then (`due` has atomic parts, [`crate::state::due`]) |
//! | `failure` | written by the finisher before the terminal exchange; read by a thread that has seen the end |
//! | `reason` | written under the word's lock before the mark, or by the claimer of an unstarted request; read by a thread that has seen the mark or the end |
//! | `callbacks` | under the word's lock, or by the finisher (CB1, [`crate::schedule::callbacks`]) |
//! | `held_by` | written under the word's lock while it is new; read under the lock while it is held (W15) |
//! | `id`, `urgency`, `hint`, `skip` | any thread that has a count; they are atomic |
//! | `children` | the owner of the arena that the children were made on, or under the lock of its families (N1) |

use std::alloc::Layout;
use std::any::Any;
use std::borrow::Cow;
use std::cell::{Cell, UnsafeCell};
use std::mem;
use std::panic::Location;
use std::ptr::{self, NonNull};

use forebear_context::error::internal::drop_contained;

use forebear_context::error::{CancelReason, Failure};
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::Arc;
use forebear_context::shim::atomic::AtomicU64;

use crate::record::call_list::Callbacks;
use crate::record::fiber;
use crate::record::header::Header;
use crate::state::ancestor_walk::SkipLink;
use crate::state::due::Due;
use crate::state::shared_queue::{Hint, HintGroup};
use crate::state::slot::{Block, BlockSlot};

/// The header's word for it.
pub(crate) type SideSlot = BlockSlot<Side>;

/// A count of what holds a request back. The scheduler knows of which type that is.
pub(crate) type Holder = Arc<dyn Any + Send + Sync>;

impl Block for Side {
    type Child = Header;

    fn first_child(&self) -> &Cell<*const Header> {
        &self.children
    }
}

/// What few requests have.
pub(crate) struct Side {
    /// Written before another thread knows the header.
    pub name: Option<Cow<'static, str>>,
    /// As `name`.
    pub location: Option<&'static Location<'static>>,
    /// Written by the finisher before terminal, constant after.
    pub failure: UnsafeCell<Option<Failure>>,
    /// The request's id, if it was asked for.
    pub id: AtomicU64,
    /// Why it was cancelled, if not by `cancel`. Written under the word's lock before the mark, or by the claimer of an
    /// unstarted one; read by threads that have seen the mark or the end.
    pub reason: Cell<Option<CancelReason>>,
    /// The root key of the most urgent that waits for it; see [`crate::deadlock::urgency`].
    pub urgency: AtomicU64,
    /// What is to be called at the end; see [`crate::schedule::callbacks`].
    pub callbacks: Callbacks<Header>,
    /// The pool that holds it back, or has. Written under the word's lock while it is new, read under the lock while it is
    /// held (W15).
    pub held_by: UnsafeCell<Option<Holder>>,
    /// Its own deadline, not one that it has inherited. Written as `name`.
    pub due: Option<Due>,
    /// Where it stands among its like; see [`crate::state::shared_queue`]. The block is there from birth iff the header is `HINTED`.
    pub hint: Hint,
    /// How a question continues from it once it is over ([`crate::state::ancestor_walk`]).
    pub skip: SkipLink<Header>,
    /// The first of its children that stand in its family's list.
    children: Cell<*const Header>,
}

impl Default for Side {
    fn default() -> Side {
        Side {
            name: None,
            location: None,
            failure: UnsafeCell::new(None),
            id: AtomicU64::new(0),
            reason: Cell::new(None),
            urgency: AtomicU64::new(NO_KEY),
            callbacks: Callbacks::default(),
            held_by: UnsafeCell::new(None),
            due: None,
            hint: Hint::new(0, HintGroup::Roots(0)),
            skip: SkipLink::default(),
            children: Cell::new(ptr::null()),
        }
    }
}

impl Side {
    /// Whether code of the user's may run when it goes.
    pub(crate) fn owns(&mut self) -> bool {
        self.failure.get_mut().is_some() || !self.callbacks.is_empty() || self.held_by.get_mut().is_some()
    }
}

/// A block, of memory that this thread has kept if there is any.
pub(crate) fn new() -> Box<Side> {
    // SAFETY: the arena of the fiber that this is called on is this thread's (M1).
    new_of(unsafe { fiber::current_arena().as_ref() }.and_then(|arena| arena.sides.take()))
}

/// The same of this memory, which is of the arena of this thread.
#[inline]
pub(crate) fn new_of_memory(memory: &SideMemory) -> Box<Side> {
    new_of(memory.take())
}

#[inline]
fn new_of(kept: Option<NonNull<Side>>) -> Box<Side> {
    match kept {
        Some(memory) => {
            // SAFETY: the memory is a box's, of this layout, and no other thread knows it.
            unsafe { memory.write(Side::default()) };
            // SAFETY: as above, and it was just written.
            unsafe { Box::from_raw(memory.as_ptr()) }
        }
        None => Box::default(),
    }
}

/// Drops what is in a block, whatever its destructors do, and keeps the memory or gives it back.
pub(crate) fn free(mut side: Box<Side>) {
    let owned =
        (side.failure.get_mut().take(), mem::take(&mut side.callbacks), side.held_by.get_mut().take());
    drop_contained(owned);
    free_plain(side);
}

/// The same for a block that owns nothing whose end runs code of the user's.
#[inline]
pub(crate) fn free_plain(mut side: Box<Side>) {
    debug_assert!(!side.owns());
    let side = Box::into_raw(side);
    // SAFETY: a box's, once.
    unsafe { ptr::drop_in_place(side) };
    // SAFETY: from a box.
    let memory = unsafe { NonNull::new_unchecked(side) };
    // SAFETY: M1, as in `new`.
    match unsafe { fiber::current_arena().as_ref() } {
        Some(arena) => arena.sides.keep(memory),
        None => give_back(memory),
    }
}

fn give_back(memory: NonNull<Side>) {
    // SAFETY: a box's memory, whose content has been dropped.
    unsafe { std::alloc::dealloc(memory.as_ptr().cast(), Layout::new::<Side>()) };
}

/// Memory of blocks that are gone: a list through its first words.
#[derive(Default)]
pub(crate) struct SideMemory {
    head: Cell<Option<NonNull<Side>>>,
    len: Cell<u32>,
}

impl SideMemory {
    /// So many at most: some ten kilobytes.
    const MOST: u32 = 32;

    #[inline]
    fn take(&self) -> Option<NonNull<Side>> {
        let memory = self.head.get()?;
        // SAFETY: what is kept holds the next.
        self.head.set(unsafe { memory.cast::<Option<NonNull<Side>>>().read() });
        self.len.set(self.len.get() - 1);
        Some(memory)
    }

    fn keep(&self, memory: NonNull<Side>) {
        if self.len.get() == SideMemory::MOST {
            return give_back(memory);
        }
        const { assert!(size_of::<Side>() >= size_of::<Option<NonNull<Side>>>()) };
        // SAFETY: nobody else's, and large enough.
        unsafe { memory.cast::<Option<NonNull<Side>>>().write(self.head.get()) };
        self.head.set(Some(memory));
        self.len.set(self.len.get() + 1);
    }
}

impl Drop for SideMemory {
    fn drop(&mut self) {
        while let Some(memory) = self.take() {
            give_back(memory);
        }
    }
}
