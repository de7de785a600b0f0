//! The header: what the runtime knows of a request, whatever its type.
//!
//! One allocation holds the header, then the callable, then the value in its place (see [`crate::record::cell`]). The optional [`Side`] block has what
//! few requests have: a name, a failure, callbacks.
//!
//! # Which thread may touch what
//!
//! | field | thread, and when |
//! |---|---|
//! | `bare` | any thread that has a handle, a link or a borrow of one (W1 to W16, [`crate::state::word`]) |
//! | `local` | the owner; a thread that asks for publication (SE2, [`crate::state::word`]) |
//! | `lineage` | written at birth; read by comparisons (LN1, LN2) |
//! | `arena` | written at birth |
//! | `ran_on`, `fiber` | written by the claimer, in this order, before it runs the callable; read in this order by waiters, by the deliverer of a cancel, and as a hint. While `ran_on` is null, and from the end on, `fiber` links the header into a list |
//! | `gone`, `state` | the owner of `ran_on` |
//! | `lender` | written by the claimer before it runs the callable; read by its worker, and under the word's lock while the request is lent |
//! | `next_rank`, `last_child` | the request's own stack, and the worker it runs on |
//! | `next`, `prev`, `place` | the owner of the list it stands in: of `arena`, but for the injector's inbox; raiders read the first and the last ([`crate::state::raid`]) |
//! | `waiters` | holder of the word's lock bit; the finisher from terminal on (W3) |
//! | `side` | [`crate::state::slot`] |
//! | `vtable`, `memory_class`, `flags`, `need_pages`, `scope` | written at birth |
//! | `has_value` | the claimer; then the holder of the last handle (W2) |
//!
//! Some parts are only for the owner of a list, or of a list of children (`next`, `prev`, `gone`, `last_child`, `next_rank`, `state`), and others only for
//! the maker. The layers above reach them by methods that say so. Decision 0102 says why the header is not split into records.
//!
//! # Invariants
//!
//! * **H1** Children of a request are made, counted, listed and freed on the worker (or foreign thread) that it runs on.
//!   Hence both counts are plain: how many it has made (`next_rank`), and how many of these have ended (`gone`). A request
//!   that ends before its children leaves them a link, which the last of them releases. So a header lives until its
//!   children's headers are freed.
//! * **H2** A header ends on `arena`: by its owner, or under the lock of the closed arenas. There it leaves its parent's list of children,
//!   the parent counts it as ended, and the memory is freed.
//! * **H3** `place` says which list the header stands in, and that list's owner alone changes it.

use forebear_context::shim::atomic::{AtomicPtr, Ordering};
use std::any::TypeId;
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::time::Instant;

use forebear_context::context::WaitQueue;
use forebear_context::error::Failure;
use forebear_context::lineage::Lineage;

use crate::record::arena::Arena;
use crate::record::fiber::{self, Fiber, PublishedPtr};
use crate::record::no_value::NoValue;
use crate::record::scope_core::ScopeCore;
use crate::record::side::{self, Side, SideSlot};
use crate::state::due::Due;
pub(crate) use crate::state::raid::HeaderPlace;
use crate::state::raid::Placed;
use crate::state::word::{COMPLETING, FINISHED, LocalStage, LocalState, LocalStep, Word};

mod family;
mod links;

/// What is specific to a request's types.
pub(crate) struct VTable {
    /// Moves the callable out, runs it, and writes the value to the place given. `None`: there is a value.
    ///
    /// To be called by the claimer only (W1), once.
    pub call: unsafe fn(NonNull<Header>, *mut ()) -> Option<Box<NoValue>>,
    /// Drops the callable unrun. By the claimer only (W1), instead of `call`.
    pub drop_callable: unsafe fn(NonNull<Header>),
    /// Whether a value has a destructor. Without one, no call is needed.
    pub value_needs_drop: bool,
    /// Drops the value in its place (W2).
    pub drop_value: unsafe fn(NonNull<Header>),
    /// Where the value lies, from the header's address.
    pub value_offset: usize,
    /// The size and alignment of the allocation.
    pub layout: std::alloc::Layout,
    /// The callable's type, the default name.
    pub type_name: fn() -> &'static str,
    /// It has no code: a completer ends it.
    pub is_completion: bool,
    /// Which type the callable is of, its lifetimes aside.
    pub type_id: fn() -> TypeId,
}

impl VTable {
    /// Whether both are tables of one callable. The compiler may make several tables for one type, so a comparison of addresses does not do.
    #[cold]
    #[inline(never)]
    pub(crate) fn is_of_callable_of(&self, other: &VTable) -> bool {
        ptr::eq(self, other) || (self.type_id)() == (other.type_id)()
    }
}

/// See the module head.
///
/// A birth is bound by its stores, so the fields are in the order in which they are written. First come those that are
/// given, the small ones in one word. Then those that begin as zero, 64 aligned bytes together. Then those that a birth
/// does not write: a list writes them when the header enters it.
#[repr(C)]
pub(crate) struct Header {
    /// The word. Use [`Header::word`]; this bare form is for code that handles local requests ([`crate::state::word`]).
    pub bare: Word,
    pub vtable: &'static VTable,
    pub(in crate::record) memory_class: Cell<u8>,
    pub(in crate::record) flags: Cell<u8>,
    /// The stack it is guaranteed, in pages of 4 KiB.
    pub(in crate::record) need_pages: Cell<u16>,
    /// How many of its children have ended.
    pub(in crate::record) gone: Cell<u32>,
    /// Its last field begins as zero.
    pub lineage: Lineage,
    pub ran_on: AtomicPtr<Arena>,
    pub fiber: AtomicPtr<Fiber>,
    pub(in crate::record) last_child: Cell<*const Header>,
    pub waiters: WaitQueue,
    pub(in crate::record) side: SideSlot,
    /// The request below it on the same stack, if it runs on a stack that was lent.
    pub lender: PublishedPtr,
    pub scope: Cell<*const ScopeCore>,
    pub arena: Cell<*const Arena>,
    /// Like `prev`, without meaning while `place` is `Nowhere`, except on the way through the injector's inbox: then it has the value that
    /// the cell's former header has left, or null.
    pub(in crate::record) next: AtomicPtr<Header>,
    pub(in crate::record) prev: Cell<*const Header>,
    pub place: Placed,
    /// The state of a local request, while the word does not have it.
    pub local: LocalState,
    pub has_value: Cell<bool>,
    /// Flags of its worker's: [`SETTLED`], [`DELIVERED`], [`KNOWN`], [`FAMILY`], [`SCATTERED`].
    pub(in crate::record) state: Cell<u8>,
    /// How many children it has made.
    pub(in crate::record) next_rank: Cell<u32>,
}

/// Flag: it must not run on a waiter's stack.
pub(crate) const OWN_STACK: u8 = 1;
/// Flag: it is the second branch of a join, which has its maker's identity.
pub(crate) const ARM: u8 = 2;
/// Flag: it is detached: it has no parent, and its creator's end or cancel does not concern it.
pub(crate) const DETACHED: u8 = 4;
/// Flag: a root for the order, with a key of its own, though it may have a parent for all else.
pub(crate) const ROOT: u8 = 8;
/// Flag: an arm that was made while its maker was in a shielded region.
pub(crate) const SHELTERED: u8 = 16;
/// Flag, the same bit for a request that is no arm: it has an order hint ([`crate::state::shared_queue`]), and is in the injector while it is queued.
pub(crate) const HINTED: u8 = SHELTERED;
/// Flag: it has a deadline of its own.
pub(crate) const LIMITED: u8 = 32;

/// Flag: it borrows from the frame that made it, which waits for it, and is no job of a scope. So its end is never put off.
pub(crate) const BORROWS: u8 = 64;

/// Flag: its cell begins with edges to what it is after ([`crate::api::after`], AF1).
pub(crate) const AFTER: u8 = 128;

/// State: it and all requests below it on its stack are in their parents' lists of children.
pub(crate) const SETTLED: u8 = 1;
/// State: its mark has been delivered, and its worker counts it.
pub(crate) const DELIVERED: u8 = 2;
/// State: those that waited for it before it started know where it runs ([`crate::deadlock::cycle`]).
pub(crate) const KNOWN: u8 = 4;
/// State: it ended before its children, which own a link of it.
pub(crate) const FAMILY: u8 = 8;
/// State: its children in the private queue may stand apart ([`crate::record::private_queue`]).
pub(crate) const SCATTERED: u8 = 32;
/// State: it is a region of the request below it on its stack ([`crate::api::region`]), and runs.
pub(crate) const REGION: u8 = 16;

/// A queued request costs no more than this, its closure aside.
#[cfg(not(shuttle))]
const _: () = assert!(size_of::<Header>() <= 144);

impl Header {
    /// Writes the fields that a birth does not write, once, when the memory is new.
    ///
    /// # Safety
    ///
    /// `at` is unused memory for a header.
    #[inline(always)]
    pub(crate) unsafe fn prime(at: NonNull<Header>) {
        let h = at.as_ptr();
        // SAFETY: `at` is unused memory for a header, by contract: its fields may be written, and hold nothing to be dropped.
        unsafe {
            (&raw mut (*h).next).write(AtomicPtr::new(std::ptr::null_mut()));
            (&raw mut (*h).prev).write(Cell::new(std::ptr::null()));
        }
    }

    /// The word; publishes it first if the request is local.
    #[inline(always)]
    pub(crate) fn word(&self) -> &Word {
        if self.bare.is_local() {
            self.publish_state();
        }
        &self.bare
    }

    /// Whether this thread owns the local state of the request.
    #[inline(always)]
    pub(crate) fn is_kept_here(&self) -> bool {
        ptr::eq(fiber::current_arena(), self.arena.get())
    }

    /// Claims a request that its owner has just taken out of the private queue. False: a stale entry.
    #[inline(always)]
    pub(crate) fn claim_popped(&self) -> bool {
        self.bare.claim_detached() || self.word().claim_by_queue()
    }

    #[cold]
    #[inline(never)]
    fn publish_state(&self) {
        if self.is_kept_here() {
            self.bare.publish_state(&self.local, 0);
        // SAFETY: M3: a local one's maker is a worker.
        } else if let Some(arena) = unsafe { self.arena.get().as_ref() } {
            self.bare.revoke(&self.local, &arena.local_owner);
        }
    }

    /// The next step of a local request of this thread's; see [`Word::advance_local`].
    ///
    /// # Safety
    ///
    /// The word was found to be `NEW_LOCAL` by the owner of `arena`, which is the header's.
    #[inline(always)]
    pub(crate) unsafe fn advance_local(&self, arena: &Arena, from: LocalStage, step: LocalStep) -> bool {
        self.bare.advance_local(&self.local, &arena.local_owner, from, step)
    }

    /// Whether it is a local request of this thread's, and over.
    #[inline(always)]
    pub(crate) fn is_done_locally(&self) -> bool {
        self.bare.is_local() && self.local.is(LocalStep::Done) && self.is_kept_here()
    }

    /// Whether `flag` was set at birth.
    #[inline(always)]
    pub(crate) fn is(&self, flag: u8) -> bool {
        self.flags.get() & flag != 0
    }

    /// Whether it is an arm that was made in a shielded region.
    #[inline(always)]
    pub(crate) fn is_sheltered(&self) -> bool {
        self.flags.get() & (ARM | SHELTERED) == ARM | SHELTERED
    }

    /// Whether it has a hint.
    #[inline(always)]
    pub(crate) fn is_hinted(&self) -> bool {
        self.flags.get() & (ARM | HINTED) == HINTED
    }

    /// The bytes of stack it is guaranteed.
    #[inline(always)]
    pub(crate) fn need(&self) -> usize {
        usize::from(self.need_pages.get()) << 12
    }

    /// The root key of its most urgent waiter, or its own.
    #[inline(always)]
    pub(crate) fn urgency(&self) -> u64 {
        match self.side() {
            None => self.lineage.key(),
            Some(side) => side.urgency.load(Ordering::Relaxed).min(self.lineage.key()),
        }
    }

    /// Makes it at least as urgent as `key`. False: it already was.
    #[inline]
    pub(crate) fn raise_urgency(&self, key: u64) -> bool {
        self.urgency() > key && self.note_urgency(key)
    }

    /// The same where it seemed less urgent.
    #[cold]
    #[inline(never)]
    fn note_urgency(&self, key: u64) -> bool {
        self.side_or_new().urgency.fetch_min(key, Ordering::Relaxed) > key
    }

    /// The key to which waiters have raised it above its own.
    pub(crate) fn risen_to(&self) -> Option<u64> {
        let risen = self.side()?.urgency.load(Ordering::Relaxed);
        (risen < self.lineage.key()).then_some(risen)
    }

    /// Makes it as urgent as `key`, if it still is as urgent as `risen`. False: it has changed.
    pub(crate) fn fall(&self, risen: u64, key: u64) -> bool {
        let urgency = &self.side_or_new().urgency;
        urgency.compare_exchange(risen, key, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The request that this header stands for: itself, or for a published arm of a join the request that called `join`.
    #[inline]
    pub(crate) fn identity(&self) -> &Header {
        let mut this = self;
        while this.is(ARM)
            && let Some(maker) = this.parent()
        {
            this = maker;
        }
        this
    }

    /// The parent's header, if any, which is alive (H1).
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
    #[inline(always)]
    pub(crate) fn side(&self) -> Option<&Side> {
        self.side.get()
    }

    /// The side block, made if need be.
    pub(crate) fn side_or_new(&self) -> &Side {
        self.side.get_or_make(side::new)
    }

    /// Gives it a side block. Called by its maker, before any other thread knows it.
    pub(crate) fn put_side(&self, side: Box<Side>) {
        self.side.put(side);
    }

    /// The same if it has none, and the block.
    #[inline]
    pub(crate) fn put_first_side(&self, side: Box<Side>) -> &Side {
        self.side.put_first(side)
    }

    /// Sets its flags. Called by its maker, before any other thread knows it.
    #[inline(always)]
    pub(crate) fn set_flags(&self, flags: u8) {
        self.flags.set(flags);
    }

    /// The class of its memory.
    #[inline(always)]
    pub(crate) fn memory_class(&self) -> u8 {
        self.memory_class.get()
    }

    /// Where the value lies.
    #[inline(always)]
    pub(crate) fn value<T>(this: NonNull<Header>) -> NonNull<T> {
        // SAFETY: the offset lies inside the allocation.
        unsafe { this.byte_add(this.as_ref().vtable.value_offset).cast() }
    }

    /// Its own deadline, if it has one.
    #[inline]
    pub(crate) fn due(&self) -> Option<&Due> {
        if !self.is(LIMITED) {
            return None;
        }
        self.side()?.due.as_ref()
    }

    /// When it is to be over: its own deadline or an ancestor's, whichever is nearer.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let line = std::iter::successors(Some(self), |h| h.parent());
        line.filter_map(|h| Some(h.due()?.at())).min()
    }

    /// Whether its deadline passed after its outcome was settled.
    pub(crate) fn came_late(&self) -> bool {
        self.due().is_some_and(Due::came_late)
    }

    /// The name given, else the callable's type.
    pub(crate) fn name(&self) -> &str {
        match self.side().and_then(|side| side.name.as_deref()) {
            Some(name) => name,
            None if self.is(ARM) && self.parent().is_some() => self.identity().name(),
            None => (self.vtable.type_name)(),
        }
    }

    /// Its life as the caller may see it: its own callbacks see it as over.
    #[inline]
    pub(crate) fn life_here(&self) -> u64 {
        if self.is_done_locally() {
            return FINISHED;
        }
        match self.word().load().life() {
            COMPLETING => self.life_in_callbacks(),
            life => life,
        }
    }

    /// The same of one that is completing.
    #[cold]
    #[inline(never)]
    fn life_in_callbacks(&self) -> u64 {
        // Not if an arm of a callback is on top: that may be on another thread (CB3).
        match fiber::get() {
            Some(fiber) if ptr::eq(fiber.request.get(), self) => {
                self.side_or_new().callbacks.reported_life.get()
            }
            _ => COMPLETING,
        }
    }

    /// The failure. Meaningful once the life is `FAILED`.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        // SAFETY: written by the finisher before the terminal exchange, and before its own callbacks see that life; constant
        // after (W1).
        self.side().and_then(|side| unsafe { &*side.failure.get() }.as_ref())
    }
}
