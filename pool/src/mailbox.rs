//! A mailbox: many threads push, and one owner takes everything at once.
//!
//! A stack linked through the items themselves: no allocation, one exchange loop to push, one swap to take everything.
//! No thread pops a single item, so there is no ABA problem: an item may be pushed again while another pusher still has an old head. A pusher
//! puts its item *in front of* the head that it has read, and the exchange succeeds only if that is still the head.
//!
//! **States of an item.** *Out*: it belongs to the holder of its pointer. *In*: it belongs to the mailbox, from the exchange of its push until an
//! [`Arrived`] hands it over. Meanwhile only its link is accessed: by its pusher before the exchange, and then by the `Arrived` that swapped
//! it out.
//!
//! **Which pusher wakes the owner.** A push that finds the mailbox empty returns `true`, and its caller wakes the owner. A push that finds an
//! item need not: the caller that pushed the first item wakes the owner after that. The owner takes everything by one swap. So either it
//! takes both items, or the second push found the mailbox empty again.
//!
//! Invariants:
//!
//! 1. A pointer in the head or in a link is null or points to an item that is *in* (an obligation of `push`'s caller).
//! 2. Every item is in at most one mailbox, once (an obligation of the same caller).
//! 3. The swap that takes the list acquires, and every push releases. So the owner sees what each pusher did before its push, since pushes in
//!    between continue the release sequence.

use std::fmt;
use std::ptr::{NonNull, null_mut};

use forebear_context::shim::atomic::{
    AtomicPtr, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst,
};
use forebear_context::shim::mutant;

/// An item that can lie in a [`Mailbox`]: it has room for a link.
///
/// # Safety
///
/// `link` returns the same field of `*this` every time, and reads no other part of the item than it needs to find it. No other code uses the
/// field while the item is in a mailbox.
///
/// ```
/// use std::ptr::NonNull;
/// use std::sync::atomic::AtomicPtr;
/// use forebear::pool::engine::Linked;
///
/// struct Letter { link: AtomicPtr<Letter>, text: &'static str }
///
/// // SAFETY: always the same field, used by nobody else.
/// unsafe impl Linked for Letter {
///     unsafe fn link<'a>(this: NonNull<Letter>) -> &'a AtomicPtr<Letter> {
///         // SAFETY: live, by the caller's promise.
///         unsafe { &(*this.as_ptr()).link }
///     }
/// }
/// ```
pub unsafe trait Linked: Sized {
    /// The item's link.
    ///
    /// # Safety
    ///
    /// `this` points to a live item, which outlives `'a`.
    unsafe fn link<'a>(this: NonNull<Self>) -> &'a AtomicPtr<Self>;
}

/// A lock-free box of items for one owner, which takes them all at once, in order of arrival.
///
/// ```
/// use std::ptr::NonNull;
/// use std::sync::atomic::AtomicPtr;
/// use forebear::pool::engine::{Linked, Mailbox};
///
/// struct Letter { link: AtomicPtr<Letter>, text: &'static str }
///
/// // SAFETY: always the same field, used by nobody else.
/// unsafe impl Linked for Letter {
///     unsafe fn link<'a>(this: NonNull<Letter>) -> &'a AtomicPtr<Letter> {
///         // SAFETY: live, by the caller's promise.
///         unsafe { &(*this.as_ptr()).link }
///     }
/// }
///
/// let mailbox = Mailbox::new();
/// for (text, first) in [("one", true), ("two", false)] {
///     let letter = Box::leak(Box::new(Letter { link: AtomicPtr::default(), text }));
///     // SAFETY: fresh from a box, in no mailbox, freed only after it has come out.
///     let was_empty = unsafe { mailbox.push(NonNull::from(letter)) };
///     assert_eq!(was_empty, first, "who finds it empty wakes the owner");
/// }
/// // SAFETY: what comes out came from a box.
/// let letters = mailbox.take_all().map(|letter| unsafe { Box::from_raw(letter.as_ptr()) });
/// assert!(letters.map(|letter| letter.text).eq(["one", "two"]));
/// ```
///
/// Dropping it leaves the items where they are: it never owned their memory.
pub struct Mailbox<T: Linked> {
    /// The latest item, linked to the one before it, and so on.
    head: AtomicPtr<T>,
}

impl<T: Linked> Mailbox<T> {
    /// An empty mailbox.
    #[must_use]
    pub fn new() -> Mailbox<T> {
        Mailbox { head: AtomicPtr::new(null_mut()) }
    }

    /// Puts an item in. Returns whether the mailbox was empty. If so, the caller has to wake the owner, by
    /// [`Signals::wake`](crate::Signals::wake); no other thread does.
    ///
    /// Lock-free; may be called from any thread. When it returns, the owner may have taken the item and freed it.
    ///
    /// # Safety
    ///
    /// `item` points to a live item that is in no mailbox, and stays alive until an [`Arrived`] has handed it over.
    /// Items of a type that is not `Send` must not be pushed from a thread other than the owner's.
    #[inline]
    #[must_use = "a push into an empty mailbox must wake its owner"]
    pub unsafe fn push(&self, item: NonNull<T>) -> bool {
        // SAFETY: by the caller's promise; a chain of one has no links of its own.
        unsafe { self.push_chain(item, item) }
    }

    /// Puts several items in by one exchange, as if they were pushed one after the other, the earliest first. The link of each leads to the
    /// one before it, down to the earliest. Returns what [`push`](Self::push) does, for all of them.
    ///
    /// # Safety
    ///
    /// As [`push`](Self::push), for each item of the chain; `earliest` is reached from `watch` by links.
    #[must_use = "a push into an empty mailbox must wake its owner"]
    pub unsafe fn push_chain(&self, latest: NonNull<T>, earliest: NonNull<T>) -> bool {
        // SAFETY: live, by the caller's promise; ours alone until the exchange.
        let link = unsafe { T::link(earliest) };
        let release = mutant!("mailbox_push_relaxed", Relaxed, SeqCst);
        let mut head = self.head.load(Relaxed);
        loop {
            link.store(head, Relaxed);
            match self.head.compare_exchange_weak(head, latest.as_ptr(), release, Relaxed) {
                // From here on the items may be gone.
                Ok(_) => return head.is_null() && !cfg!(mutant = "mailbox_never_says_empty"),
                Err(other) => head = other,
            }
        }
    }

    /// Takes all items, in order of arrival.
    pub fn take_all(&self) -> Arrived<T> {
        let latest = self.take_latest_first();
        Arrived { next: reversed(latest.next) }
    }

    /// Takes all items, the latest first. Each item's link is read once, and none is written.
    ///
    /// ```
    /// use std::ptr::NonNull;
    /// use std::sync::atomic::{AtomicPtr, Ordering};
    /// use forebear::pool::engine::{Linked, Mailbox};
    ///
    /// struct Letter { link: AtomicPtr<Letter>, text: &'static str }
    ///
    /// // SAFETY: always the same field, used by nobody else.
    /// unsafe impl Linked for Letter {
    ///     unsafe fn link<'a>(this: NonNull<Letter>) -> &'a AtomicPtr<Letter> {
    ///         // SAFETY: live, by the caller's promise.
    ///         unsafe { &(*this.as_ptr()).link }
    ///     }
    /// }
    /// let letter = |text| NonNull::from(Box::leak(Box::new(Letter { link: AtomicPtr::default(), text })));
    ///
    /// let mailbox = Mailbox::new();
    /// let (earliest, latest) = (letter("one"), letter("two"));
    /// // SAFETY: fresh from a box, and linked by the field that `Linked` names.
    /// unsafe { latest.as_ref() }.link.store(earliest.as_ptr(), Ordering::Relaxed);
    /// // SAFETY: both are alive, in no mailbox, and freed only after they have come out.
    /// assert!(unsafe { mailbox.push_chain(latest, earliest) });
    /// assert!(!mailbox.is_empty());
    /// // SAFETY: what comes out came from a box.
    /// let letters = mailbox.take_latest_first().map(|letter| unsafe { Box::from_raw(letter.as_ptr()) });
    /// assert!(letters.map(|letter| letter.text).eq(["two", "one"]));
    /// ```
    pub fn take_latest_first(&self) -> Arrived<T> {
        let latest = mutant!(
            "mailbox_take_two_steps",
            {
                let latest = self.head.load(Acquire);
                self.head.store(null_mut(), std::sync::atomic::Ordering::Release);
                latest
            },
            self.head.swap(null_mut(), AcqRel)
        );
        Arrived { next: latest }
    }

    /// Whether the mailbox was empty a moment ago. This look and each push are in the one order of sequentially consistent accesses.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head.load(SeqCst).is_null()
    }
}

/// Reverses a list that this thread alone has; returns its new first item.
fn reversed<T: Linked>(mut latest: *mut T) -> *mut T {
    let mut first = null_mut();
    while let Some(item) = NonNull::new(latest) {
        // SAFETY: the item is in (invariant 1), in this list only (invariant 2), and its link is visible (invariant 3).
        let link = unsafe { T::link(item) };
        latest = link.load(Relaxed);
        link.store(first, Relaxed);
        first = item.as_ptr();
    }
    first
}

impl<T: Linked> Default for Mailbox<T> {
    fn default() -> Mailbox<T> {
        Mailbox::new()
    }
}

impl<T: Linked> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("empty", &self.is_empty()).finish()
    }
}

/// What was in a [`Mailbox`]. Whatever is not taken from it is leaked, not lost: the items stay
/// alive, and nothing points to them.
///
/// ```
/// use std::ptr::NonNull;
/// use std::sync::atomic::AtomicPtr;
/// use forebear::pool::engine::{Arrived, Linked, Mailbox};
///
/// struct Letter(AtomicPtr<Letter>);
///
/// // SAFETY: always the same field, used by nobody else.
/// unsafe impl Linked for Letter {
///     unsafe fn link<'a>(this: NonNull<Letter>) -> &'a AtomicPtr<Letter> {
///         // SAFETY: live, by the caller's promise.
///         unsafe { &(*this.as_ptr()).0 }
///     }
/// }
/// let arrived: Arrived<Letter> = Mailbox::new().take_all();
/// assert!(arrived.is_empty());
/// assert_eq!(arrived.count(), 0);
/// ```
#[must_use = "the items that are not taken from it are leaked"]
pub struct Arrived<T: Linked> {
    next: *mut T,
}

impl<T: Linked> Arrived<T> {
    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.next.is_null()
    }
}

impl<T: Linked> Iterator for Arrived<T> {
    type Item = NonNull<T>;

    /// The next item, which belongs to the caller from now on and may be pushed again at once.
    fn next(&mut self) -> Option<NonNull<T>> {
        let item = NonNull::new(self.next)?;
        // SAFETY: the item is in (invariant 1) until we hand it over; the list is ours (invariant 2).
        self.next = unsafe { T::link(item) }.load(Relaxed);
        Some(item)
    }
}

impl<T: Linked> fmt::Debug for Arrived<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrived").field("empty", &self.is_empty()).finish()
    }
}
