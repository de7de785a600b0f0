//! The header: what the runtime knows of a request, whatever its type.
//!
//! One allocation holds the header, then the callable, then the value in its place (see [`crate::cell`]). What few
//! requests have (a name, a stack size, a failure) stands in the optional [`Side`] block.
//!
//! # Who may touch what
//!
//! | field | who, when |
//! |---|---|
//! | `word` | anybody who holds a handle, a link or a borrow of one (W1 to W9, [`crate::word`]) |
//! | `lineage` | written at birth; read by whoever compares (L1, L2) |
//! | `home` | written at birth |
//! | `ran_on`, `strand` | written by the claimer before it runs the callable; read by whoever ends the header, and as a hint |
//! | `children`, `dead` | the owner of `ran_on` (of `home`, if it never ran) |
//! | `next_rank`, `last_child` | the request's own stack, and the worker it runs on |
//! | `next`, `prev`, `place` | the owner of the list it stands in |
//! | `waiters` | holder of the word's lock bit; the finisher from terminal on (W3) |
//! | `side` | made at birth by the builder, or by the claimer when it fails; the failure in it is written before terminal, read after |
//!
//! # Invariants
//!
//! * **H1** Children of a request are made, counted, listed and freed on the worker (or foreign thread) that it runs on,
//!   hence `children` is a plain count. A header lives until its children's headers are gone.
//! * **H2** A header's end has two stages: on `ran_on`, wait until `children` is 0; on `home`, take one off the parent's
//!   count and give the memory back. Each stage happens on its home's owner, or under the lock of the closed homes.
//! * **H3** `place` says which list the header stands in, and that list's owner alone changes it.

use forebear_context::shim::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::borrow::Cow;
use std::cell::{Cell, UnsafeCell};
use std::panic::Location;
use std::ptr::{self, NonNull};

use forebear_context::context::WaitQueue;
use forebear_context::error::{CancelReason, Failure};
use forebear_context::lineage::Lineage;

use crate::home::Home;
use crate::scope::ScopeCore;
use crate::strand::Strand;
use crate::word::Word;

/// How the callable ended, if not with a value.
pub(crate) enum Ending {
    /// A `try_` form returned an error.
    Error(forebear_context::error::Error),
    /// It panicked.
    Panic(Box<dyn std::any::Any + Send>),
}

/// What is specific to a request's types.
pub(crate) struct VTable {
    /// Moves the callable out, runs it, and writes the value to the place given. `None`: there is a value.
    ///
    /// To be called by the claimer only (W1), once.
    pub call: unsafe fn(NonNull<Header>, *mut ()) -> Option<Box<Ending>>,
    /// Drops the callable unrun. By the claimer only (W1), instead of `call`.
    pub drop_callable: unsafe fn(NonNull<Header>),
    /// Drops the value in its place (W2).
    pub drop_value: unsafe fn(NonNull<Header>),
    /// Where the value lies, from the header's address.
    pub value_offset: usize,
    /// The size and alignment of the allocation.
    pub layout: std::alloc::Layout,
    /// The callable's type, the default name.
    pub type_name: fn() -> &'static str,
}

/// Which list a header stands in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// None that it is linked into.
    Nowhere,
    /// The private list of the worker whose home is the header's.
    Private,
}

/// See the module head.
#[repr(C)]
pub(crate) struct Header {
    pub word: Word,
    pub vtable: &'static VTable,
    pub lineage: Lineage,
    pub home: Cell<*const Home>,
    pub ran_on: AtomicPtr<Home>,
    pub children: Cell<u32>,
    pub next_rank: Cell<u32>,
    pub next: AtomicPtr<Header>,
    pub prev: Cell<*const Header>,
    pub last_child: Cell<*const Header>,
    pub waiters: WaitQueue,
    pub side: AtomicPtr<Side>,
    pub scope: Cell<*const ScopeCore>,
    pub strand: AtomicPtr<Strand>,
    /// The root key of the most urgent that waits for this one, or its own.
    pub urgency: AtomicU64,
    pub memory_class: Cell<u8>,
    pub flags: Cell<u8>,
    pub place: Cell<Place>,
    pub dead: Cell<bool>,
    pub has_value: Cell<bool>,
    /// The stack it is guaranteed, in pages of 4 KiB.
    pub need_pages: Cell<u16>,
}

/// Flag: it must not run on a waiter's stack.
pub(crate) const OWN_STACK: u8 = 1;
/// Flag: it is the second arm of a join, which goes by its maker's name.
pub(crate) const ARM: u8 = 2;
/// Flag: no parent, and the creator does not concern it.
pub(crate) const DETACHED: u8 = 4;
/// Flag: a root for the order, with a key of its own, though it may have a parent for all else.
pub(crate) const ROOT: u8 = 8;

/// A queued request costs no more than this, its closure aside.
const _: () = assert!(size_of::<Header>() <= 144);

impl Header {
    /// Whether `flag` was set at birth.
    #[inline(always)]
    pub(crate) fn is(&self, flag: u8) -> bool {
        self.flags.get() & flag != 0
    }

    /// The bytes of stack it is guaranteed.
    #[inline(always)]
    pub(crate) fn need(&self) -> usize {
        usize::from(self.need_pages.get()) << 12
    }

    /// The parent's header, if any. It is there (H1).
    #[inline(always)]
    pub(crate) fn parent(&self) -> Option<&Header> {
        let parent = self.lineage.parent();
        if parent.is_null() {
            return None;
        }
        let offset = std::mem::offset_of!(Header, lineage);
        // SAFETY: lineages of requests lie in headers, and by H1 the parent's is alive.
        Some(unsafe { &*parent.byte_sub(offset).cast::<Header>() })
    }

    /// The side block, if there is one.
    #[inline]
    pub(crate) fn side(&self) -> Option<&Side> {
        // SAFETY: set once, freed with the header.
        unsafe { self.side.load(Ordering::Acquire).as_ref() }
    }

    /// The side block, made if need be. By the maker before anybody else knows the header, or by the claimer.
    pub(crate) fn side_or_new(&self) -> &Side {
        if let Some(side) = self.side() {
            return side;
        }
        let made = Box::into_raw(Box::<Side>::default());
        match self.side.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just made, freed with the header.
            Ok(_) => unsafe { &*made },
            Err(other) => {
                // SAFETY: `made` was not shared; `other` is freed with the header.
                unsafe {
                    drop(Box::from_raw(made));
                    &*other
                }
            }
        }
    }

    /// Where the value lies.
    #[inline(always)]
    pub(crate) fn value<T>(this: NonNull<Header>) -> NonNull<T> {
        // SAFETY: the offset lies inside the allocation.
        unsafe { this.byte_add(this.as_ref().vtable.value_offset).cast() }
    }

    /// The name given, else the callable's type.
    pub(crate) fn name(&self) -> &str {
        match self.side().and_then(|side| side.name.as_deref()) {
            Some(name) => name,
            None => match self.parent() {
                Some(maker) if self.is(ARM) => maker.name(),
                _ => (self.vtable.type_name)(),
            },
        }
    }

    /// The failure. Meaningful once the life is `FAILED`.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        // SAFETY: written by the finisher before the terminal exchange, constant after (W1).
        self.side().and_then(|side| unsafe { &*side.failure.get() }.as_ref())
    }
}

/// What few requests have.
#[derive(Default)]
pub(crate) struct Side {
    pub name: Option<Cow<'static, str>>,
    pub location: Option<&'static Location<'static>>,
    pub failure: UnsafeCell<Option<Failure>>,
    /// The number by which this request is known, if anybody asked.
    pub id: AtomicU64,
    /// Why it was cancelled. Written by the claimer before terminal.
    pub reason: Cell<Option<CancelReason>>,
}
