//! The intrusive list of those who wait for one thing.
//!
//! A [`WaitNode`] lies in its waiter's frame and stands in at most one [`WaitQueue`]. The queue has no lock of its own:
//! it belongs to whoever holds the lock of the thing it is a part of, or has taken the whole list away.
//!
//! # Invariants
//!
//! * **Q1** The queue is touched only by the holder of its lock, or by the one who has taken it whole.
//! * **Q2** A node is linked and unlinked by its owner under that lock, or walked by the taker of the whole list. The
//!   owner does not leave its frame before the node is unlinked, or the taker has let go of it.
//! * **Q3** The taker reads a node's link, context and ticket before it wakes the context. If it won, the node is never
//!   touched again. If it was refused, the owner has left its wait for another reason and waits for the taker: the
//!   taker's last touch is the release store of `released`. A node that is one of several is let go of whoever wins, since its owner
//!   cannot tell: the taker chooses first, lets go, and wakes then what it has chosen.

use std::cell::Cell;
use std::ptr::NonNull;

use super::{Cause, Context, Ticket, ready, unpark};
use crate::fetch;
use crate::shim::atomic::{AtomicBool, Ordering};
use crate::shim::hint;

/// One waiter's place in a [`WaitQueue`].
#[derive(Debug)]
pub struct WaitNode {
    prev: Cell<Option<NonNull<WaitNode>>>,
    next: Cell<Option<NonNull<WaitNode>>>,
    /// A few nodes further on, or a node that has left: only ever an address to fetch. Nodes lie on cold stacks, and a
    /// walk by `next` alone would wait for memory at each.
    ahead: Cell<*const WaitNode>,
    context: NonNull<Context>,
    ticket: Ticket,
    /// It only watches: who asks whether anybody wants the thing waited for does not count it.
    watches: bool,
    /// Its wait may be ended from several lists.
    several: bool,
    released: AtomicBool,
}

impl WaitNode {
    /// A node for the wait that `context` has begun under `ticket`.
    pub fn new(context: &Context, ticket: Ticket) -> WaitNode {
        WaitNode {
            prev: Cell::new(None),
            next: Cell::new(None),
            ahead: Cell::new(std::ptr::null()),
            context: NonNull::from(context),
            ticket,
            watches: false,
            several: false,
            released: AtomicBool::new(false),
        }
    }

    /// The same for one that waits without wanting: it is told, and demands nothing.
    pub fn watching(context: &Context, ticket: Ticket) -> WaitNode {
        WaitNode { watches: true, ..WaitNode::new(context, ticket) }
    }

    /// The same for one that stands in other lists, too, by the same ticket. Whoever takes the list lets go of the node in any case.
    pub fn one_of_several(context: &Context, ticket: Ticket) -> WaitNode {
        WaitNode { several: true, ..WaitNode::new(context, ticket) }
    }

    /// Whether it only watches.
    pub fn watches(&self) -> bool {
        self.watches
    }

    /// Whose place this is.
    ///
    /// # Safety
    ///
    /// Q1, Q2: the caller holds the lock of the list that the node stands in.
    pub unsafe fn context(&self) -> &Context {
        // SAFETY: C1: the node is listed.
        unsafe { self.context.as_ref() }
    }

    /// Waits until the taker of the whole list has let go of this node. Called by an owner whose wait ended otherwise
    /// while its target went terminal; the taker is at most a few instructions away.
    pub fn await_release(&self) {
        #[cfg(not(mutant = "leaver_does_not_wait"))]
        while !self.released.load(Ordering::Acquire) {
            hint::spin_loop();
            #[cfg(not(any(loom, shuttle)))]
            std::thread::yield_now();
        }
    }
}

/// A list of waiters, first come first. One pointer: the nodes form a ring, and the head's predecessor is the tail.
#[derive(Debug, Default)]
pub struct WaitQueue {
    head: Cell<Option<NonNull<WaitNode>>>,
}

impl WaitQueue {
    /// An empty list.
    pub const fn new() -> WaitQueue {
        WaitQueue { head: Cell::new(None) }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.head.get().is_none()
    }

    /// Puts `node` last.
    ///
    /// # Safety
    ///
    /// Q1, Q2.
    pub unsafe fn push(&self, node: &WaitNode) {
        let this = NonNull::from(node);
        let Some(head) = self.head.get() else {
            node.prev.set(Some(this));
            node.next.set(Some(this));
            self.head.set(Some(this));
            return;
        };
        // SAFETY: Q1, Q2: listed nodes are alive, and a ring has no end.
        unsafe {
            let tail = head.as_ref().prev.get();
            node.prev.set(tail);
            node.next.set(Some(head));
            head.as_ref().prev.set(Some(this));
            if let Some(tail) = tail {
                tail.as_ref().next.set(Some(this));
                let mut behind = tail;
                for _ in 1..AHEAD {
                    behind = behind.as_ref().prev.get().unwrap_or(behind);
                }
                behind.as_ref().ahead.set(node);
            }
        }
    }

    /// Looks for a node of which `with` says true, first come first, and puts it in front. False: there is none.
    ///
    /// # Safety
    ///
    /// Q1. `with` does not touch the list.
    pub unsafe fn find_to_front(&self, mut with: impl FnMut(&WaitNode) -> bool) -> bool {
        let head = self.head.get();
        let mut at = head;
        while let Some(found) = at {
            // SAFETY: Q1, Q2.
            let node = unsafe { found.as_ref() };
            if with(node) {
                if at != head {
                    // In a ring that is: the last, with the head moved to it.
                    // SAFETY: Q1, Q2: it stands here.
                    unsafe {
                        self.unlink(node);
                        self.push(node);
                    }
                    self.head.set(at);
                }
                return true;
            }
            at = node.next.get().filter(|next| Some(*next) != head);
        }
        false
    }

    /// Takes `node` out.
    ///
    /// # Safety
    ///
    /// Q1, Q2; `node` stands in this list.
    pub unsafe fn unlink(&self, node: &WaitNode) {
        let this = NonNull::from(node);
        let (prev, next) = (node.prev.get(), node.next.get());
        if next == Some(this) {
            self.head.set(None);
            return;
        }
        // SAFETY: Q1, Q2.
        unsafe {
            if let (Some(prev), Some(next)) = (prev, next) {
                prev.as_ref().next.set(Some(next));
                next.as_ref().prev.set(Some(prev));
            }
        }
        if self.head.get() == Some(this) {
            self.head.set(next);
        }
    }

    /// Takes the whole list away.
    ///
    /// # Safety
    ///
    /// Q1.
    pub unsafe fn take(&self) -> WaitList {
        let next = self.head.take();
        // SAFETY: Q1, Q2.
        if let Some(tail) = next.and_then(|head| unsafe { head.as_ref() }.prev.get()) {
            // The ring is opened at its end, so that the walk ends there.
            // SAFETY: Q1, Q2.
            unsafe { tail.as_ref() }.next.set(None);
        }
        WaitList { next }
    }
}

/// A list taken whole; waking it consumes it.
#[derive(Debug)]
#[must_use]
pub struct WaitList {
    next: Option<NonNull<WaitNode>>,
}

impl WaitList {
    /// Wakes everybody, first come first. Touches nothing but the nodes, by Q3.
    ///
    /// # Safety
    ///
    /// Q1: the list was taken whole, and nobody can reach it otherwise any more.
    pub unsafe fn wake_all(mut self) {
        let mut soon = self.next;
        for _ in 0..SOON {
            // SAFETY: Q2: those further on are not woken yet.
            soon = soon.and_then(|node| unsafe { node.as_ref() }.next.get());
        }
        while let Some(node) = self.next {
            // SAFETY: Q2: the owner does not leave before we let go.
            let (next, context, ticket) = unsafe {
                let node = node.as_ref();
                fetch::line(node.ahead.get().cast());
                (node.next.get(), node.context, node.ticket)
            };
            self.next = next;
            if let Some(node) = soon {
                // SAFETY: as above.
                let node = unsafe { node.as_ref() };
                fetch::lines(node.context.as_ptr().cast(), RECORD);
                soon = node.next.get();
            }
            // SAFETY: Q3.
            if unsafe { node.as_ref() }.several {
                // SAFETY: as above; C1; what was chosen is woken, once.
                unsafe {
                    let chosen = context.as_ref().choose(ticket);
                    #[cfg(mutant = "several_let_go_of_if_refused")]
                    if chosen {
                        ready(context, ticket);
                        continue;
                    }
                    node.as_ref().released.store(true, Ordering::Release);
                    if chosen {
                        ready(context, ticket);
                    }
                }
                continue;
            }
            // SAFETY: C1: the node is still listed.
            if !unsafe { unpark(context, ticket, Cause::Woken) } {
                #[cfg(not(mutant = "released_relaxed"))]
                let order = Ordering::Release;
                #[cfg(mutant = "released_relaxed")]
                let order = Ordering::Relaxed;
                // SAFETY: Q3: refused, so the owner is waiting for exactly this store.
                unsafe { node.as_ref() }.released.store(true, order);
            }
            #[cfg(mutant = "node_read_after_wake")]
            {
                crate::shim::thread::yield_now();
                // SAFETY: none: its owner may have gone.
                self.next = unsafe { node.as_ref() }.next.get();
            }
        }
    }
}

/// How far ahead of the walk a node is asked for. The first access to a page nobody has touched for long is a walk through its page
/// tables, too, and one suffices.
const AHEAD: usize = 10;
/// How far ahead a waiter's record is asked for, when its node, on the same page, is there.
const SOON: usize = 3;
/// The lines of a waiter's record: its context, and what its owner keeps behind it.
const RECORD: usize = 5;
