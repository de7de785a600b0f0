//! Waits for what one context holds: a lock, a value that is being made.
//!
//! A wait names the holder of what it waits for. So urgency reaches that holder, a dump names it, and a wait cycle
//! through locks is found ([`edge`](super::edge)). The holder of a lock changes while others wait for it. So the edge
//! of such a wait does not lead to a context, but to an [`OwnerWait`] in the waiter's frame, through which the lock is
//! asked.
//!
//! # Who may ask
//!
//! The record and the lock are there as long as the wait continues. Its own stack may ask; so may the thread that its context waits
//! on, while the stack is left; and anybody while the wait is *held* ([`Context::hold`](super::Context::hold)).
//!
//! # What the answer is worth
//!
//! A holder is a hint for order, dumps and cycles, never for soundness: a guard can be leaked, or be carried to another
//! stack of its thread. The memory of a leaked guard's holder may even be freed. So a thread that reads the context
//! first makes sure that it exists: its runtime is there, or its thread is registered. To see the context initialised,
//! it also needs an order: the exchange that stores the name releases, and the load that finds it acquires.
//!
//! # Why no cycle is missed
//!
//! The context that takes a lock becomes its holder in the same exchange, and runs. So an acquisition never closes a
//! cycle: a wait does, and each context that holds a lock walks when it waits. A walk may ask a lock too early, and get
//! an earlier holder. Then the present holder waits, too, or there is no cycle. If it bound its wait after the walker
//! had bound its own, its own walk finds the cycle. Else its walk has ended, by an exchange, where the walker's path
//! begins. So the walker's bind has acquired all that the holder knew, and the lock answers no older holder.

use std::fmt;
use std::panic::Location;
use std::ptr::NonNull;

use super::{Context, Label, Reason, Ticket};

/// What can be asked of a lock, or whatever else has a holder. A static per type.
#[derive(Clone, Copy)]
pub struct Lock {
    /// What it is called in messages: `Mutex`.
    pub what: &'static str,
    /// The name that a user gave to this one.
    pub name: unsafe fn(NonNull<()>) -> Option<&'static str>,
    /// The context that holds it now; null if nobody does, or it is not known.
    pub owner: unsafe fn(NonNull<()>) -> *const Context,
    /// If several may hold it, and the waiter waits for all of them: the key by which they have it among their [`Shares`](super::Shares). Then `owner`
    /// answers nobody.
    pub share: Option<unsafe fn(NonNull<()>) -> NonNull<()>>,
    /// The waiter whose node this is has become more urgent: by the new key. On the thread that the waiter waits on.
    pub promote: unsafe fn(NonNull<()>, node: NonNull<()>, key: u64),
}

/// A wait for what another context holds. It lies in the waiter's frame.
#[derive(Debug)]
pub struct OwnerWait {
    lock: NonNull<()>,
    node: NonNull<()>,
    of: &'static Lock,
    /// Where it is waited.
    at: &'static Location<'static>,
}

impl OwnerWait {
    /// A wait for `lock`, in whose list `node` stands for the waiter.
    ///
    /// # Safety
    ///
    /// `lock` and `node` are what the functions of `of` take. They stay as long as this record, and as a wait that has it for its target.
    #[must_use]
    pub unsafe fn new(
        lock: NonNull<()>,
        node: NonNull<()>,
        of: &'static Lock,
        at: &'static Location<'static>,
    ) -> OwnerWait {
        OwnerWait { lock, node, of, at }
    }

    /// The context that holds it now, if it is known; to be made sure of before it is read.
    ///
    /// # Safety
    ///
    /// The caller may ask; see the module head.
    #[must_use]
    pub unsafe fn owner(&self) -> Option<NonNull<Context>> {
        // SAFETY: by the contract of `new`.
        NonNull::new(unsafe { (self.of.owner)(self.lock) }.cast_mut())
    }

    /// The name that a user gave to what is waited for.
    #[must_use]
    pub fn name(&self) -> Option<&'static str> {
        // SAFETY: by the contract of `new`: the lock is there as long as this record.
        unsafe { (self.of.name)(self.lock) }
    }

    /// The key of what is waited for, if several hold it.
    #[must_use]
    pub fn whole(&self) -> Option<NonNull<()>> {
        // SAFETY: by the contract of `new`: the lock is there as long as this record.
        self.of.share.map(|share| unsafe { share(self.lock) })
    }

    /// Gives the waiter the place in the list that goes with a new key.
    ///
    /// # Safety
    ///
    /// On the waiter's own stack, or by the thread that it waits on while the stack is left.
    pub unsafe fn promote(&self, key: u64) {
        // SAFETY: by the contracts of `new` and this.
        unsafe { (self.of.promote)(self.lock, self.node, key) }
    }
}

/// What is waited for, its name if it has one, and where: `a Mutex "cache" (src/cache.rs:12)`.
impl fmt::Display for OwnerWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = self.name().map_or(Label::NONE, Label::new);
        // An R is spoken with a vowel before it, if it is spoken as a letter.
        let article = if self.of.what.starts_with("Rw") { "an" } else { "a" };
        write!(f, "{article} {}{label} ({}:{})", self.of.what, self.at.file(), self.at.line())
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("what", &self.what).finish_non_exhaustive()
    }
}

impl Context {
    /// Begins a wait for what another context holds. See [`begin`](Context::begin).
    ///
    /// # Safety
    ///
    /// As [`begin`](Context::begin), of a reason that has an owner; `wait` stays where it is until the wait is over.
    pub unsafe fn begin_owned(&self, reason: Reason, wait: &OwnerWait) -> Ticket {
        debug_assert!(reason.has_owner());
        // SAFETY: by contract: what waits of such a reason are for is such a record.
        unsafe { self.begin(reason, std::ptr::from_ref(wait).cast_mut().cast()) }
    }

    /// What this context waits for, if another context holds it.
    ///
    /// # Safety
    ///
    /// The caller may ask; see the module head. It keeps the answer no longer than the wait continues.
    pub unsafe fn owner_wait<'a>(&self) -> Option<&'a OwnerWait> {
        let (reason, target) = self.waits_for();
        // SAFETY: by contract.
        if reason.has_owner() { unsafe { target.cast::<OwnerWait>().as_ref() } } else { None }
    }
}
