//! The intrusive list of the waiters for one target.
//!
//! A [`WaitNode`] lies in its waiter's frame and is in at most one [`WaitQueue`]. The queue has no lock of its own:
//! it belongs to the holder of its owner's lock, or to the thread that has taken the whole list.
//!
//! # Invariants
//!
//! * **Q1** The queue is touched only by the holder of its lock, or by the thread that has taken it whole.
//! * **Q2** A node is linked and unlinked by its owner under that lock, or walked by the taker of the whole list. The
//!   owner does not leave its frame before the node is unlinked, or the taker has released it.
//! * **Q3** The taker reads a node's link, context and ticket before it wakes the context. If it won, the node is never
//!   touched again. If it was refused, the owner has left its wait for another reason and waits for the taker: the
//!   taker's last access is the release store of `released`. The taker releases a node that is one of several even if
//!   it has won, since the owner cannot know which node won. It chooses first, then releases the node, and then wakes
//!   the waiter that it has chosen.
//! * **Q4** A *listener* is a node without a waiter: it lies in counted memory, and the list has a count of it. The thread that takes it out of the
//!   list gets that count. The taker of the whole list puts listeners aside, and notifies them when it holds no lock and has woken all waiters: a
//!   listener may call user code. The taker releases a listener as it puts it aside. The owner of a listener that is not listed any more waits for
//!   this release, and not for the notice. Until then the taker reads the queue, whose memory the owner may be the last to keep.
//! * **Q5** A node of a *record* has no waiter either: a record that is no stack is notified of the end. The taker puts the node aside like a listener, and
//!   reports it to the record, once. The record's owner keeps the node until then, and learns of the report by the record.

use std::cell::Cell;
use std::ptr::NonNull;

use super::{Cause, Context, Ticket, ready, unpark};
use crate::fetch;
use crate::shim::atomic::{AtomicBool, Ordering};
use crate::shim::{hint, mutant};

/// One waiter's place in a [`WaitQueue`].
#[derive(Debug)]
pub struct WaitNode {
    prev: Cell<Option<NonNull<WaitNode>>>,
    next: Cell<Option<NonNull<WaitNode>>>,
    /// A few nodes further on, or a node that has left: only ever an address to fetch. Nodes lie on cold stacks, and a
    /// walk by `next` alone would wait for memory at each.
    ahead: Cell<*const WaitNode>,
    /// Of a listener: its [`Listening`]. Of a record's: the record.
    context: NonNull<Context>,
    /// Of a listener: its key. Of a record's: the address of what it waits for.
    ticket: Ticket,
    /// It only watches: it is no demand for its target.
    watches: bool,
    kind: Kind,
    released: AtomicBool,
}

/// What the taker of a list does with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Its waiter is woken.
    One,
    /// The same, and its wait may be ended from several lists.
    Several,
    /// It has no waiter, and is notified (Q4).
    Listener,
    /// It has no waiter, and is reported to its record (Q5).
    Record,
}

// A declared wait is one node.
#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<WaitNode>() == 48);

/// What becomes of the listeners of one kind.
#[derive(Debug)]
pub struct Listening {
    /// What the listener waits for is over; `how` is what the taker of its list says of the end. The count that the list had goes with the call.
    pub notify: unsafe fn(node: NonNull<WaitNode>, how: u64),
    /// Whether that may call user code. Such listeners are notified after all others, which may be what the user code waits for.
    pub calls_user_code: bool,
    /// The request that has made a listener of this kind: an address, or null.
    pub maker: unsafe fn(node: NonNull<WaitNode>) -> *const (),
    /// Whether the call that enlists such a listener takes it out of its list before it returns. So the maker is not over while the node is listed.
    pub is_framed: bool,
}

/// The request that has made a listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenerMaker {
    /// Its address; null: a thread outside any request.
    pub request: *const (),
    /// Whether that request is not over while the node is listed. Else the address is only compared.
    pub is_framed: bool,
}

impl WaitNode {
    /// A node for the wait that `context` has begun under `ticket`.
    ///
    /// # Safety
    ///
    /// The context stays where it is, and readable, for as long as the node is used (C1).
    pub unsafe fn new(context: &Context, ticket: Ticket) -> WaitNode {
        WaitNode {
            prev: Cell::new(None),
            next: Cell::new(None),
            ahead: Cell::new(std::ptr::null()),
            context: NonNull::from(context),
            ticket,
            watches: false,
            kind: Kind::One,
            released: AtomicBool::new(false),
        }
    }

    /// The same for a waiter that only watches: it is woken, and does not spare its target from a cancel.
    ///
    /// # Safety
    ///
    /// As [`new`](Self::new).
    pub unsafe fn watching(context: &Context, ticket: Ticket) -> WaitNode {
        // SAFETY: by contract.
        let node = unsafe { WaitNode::new(context, ticket) };
        WaitNode { watches: true, ..node }
    }

    /// The same for a waiter that is in other lists, too, by the same ticket. The taker of the list releases the node in any case.
    ///
    /// # Safety
    ///
    /// As [`new`](Self::new).
    pub unsafe fn one_of_several(context: &Context, ticket: Ticket) -> WaitNode {
        // SAFETY: by contract.
        let node = unsafe { WaitNode::new(context, ticket) };
        WaitNode { kind: Kind::Several, ..node }
    }

    /// A node without a waiter: `listening` says what is called when the target is over. `key` is its urgency.
    #[must_use]
    pub fn listening(listening: &'static Listening, key: u64) -> WaitNode {
        WaitNode {
            prev: Cell::new(None),
            next: Cell::new(None),
            ahead: Cell::new(std::ptr::null()),
            context: NonNull::from(listening).cast(),
            ticket: Ticket(key),
            watches: false,
            kind: Kind::Listener,
            released: AtomicBool::new(false),
        }
    }

    /// A node of a record that is no stack, and that waits for `target`. The node returns both addresses and never follows them.
    ///
    /// # Safety
    ///
    /// Q5: the record stays where it is while the node is listed, or taken and not yet reported.
    #[must_use]
    pub unsafe fn of_record(record: NonNull<()>, target: NonNull<()>) -> WaitNode {
        WaitNode {
            prev: Cell::new(None),
            next: Cell::new(None),
            ahead: Cell::new(std::ptr::null()),
            context: record.cast(),
            ticket: Ticket(target.as_ptr().expose_provenance() as u64),
            watches: false,
            kind: Kind::Record,
            released: AtomicBool::new(false),
        }
    }

    /// Whether it is a listener's.
    pub fn is_listener(&self) -> bool {
        self.kind == Kind::Listener
    }

    /// The request that has made the listener, if it is one.
    ///
    /// # Safety
    ///
    /// Q1: the caller holds the lock of the list that the node stands in.
    pub unsafe fn listener_maker(&self) -> Option<ListenerMaker> {
        if self.kind != Kind::Listener {
            return None;
        }
        let node = NonNull::from(self);
        // SAFETY: it is a listener's.
        let kind = unsafe { listening(node) };
        // SAFETY: Q4: it is listed, by contract, so the listener is there; its kind is the node's.
        let request = unsafe { (kind.maker)(node) };
        Some(ListenerMaker { request, is_framed: kind.is_framed })
    }

    /// The record whose place this is, if it is one's.
    pub fn record(&self) -> Option<NonNull<()>> {
        (self.kind == Kind::Record).then(|| self.context.cast())
    }

    /// What the record waits for, if it is one's.
    pub fn target(&self) -> Option<NonNull<()>> {
        if self.kind != Kind::Record {
            return None;
        }
        NonNull::new(std::ptr::with_exposed_provenance_mut(self.ticket.0 as usize))
    }

    /// Notes that a record's node was put into its list. By the record's owner.
    pub fn set_listed(&self) {
        self.released.store(true, Ordering::Relaxed);
    }

    /// Notes that it was taken out of its list before the end. Under the lock of the list.
    pub fn set_unlisted(&self) {
        mutant!("declared_early_stays_listed", (), self.released.store(false, Ordering::Relaxed));
    }

    /// Whether it was put into its list, and not taken out again before the end. By the record's owner, or by a thread to which the owner has
    /// handed the record.
    pub fn is_listed(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }

    /// Whether it only watches.
    pub fn watches(&self) -> bool {
        self.watches
    }

    /// The context whose place this is; `None` if it is a listener's, or a record's.
    ///
    /// # Safety
    ///
    /// Q1, Q2: the caller holds the lock of the list that the node stands in.
    pub unsafe fn context(&self) -> Option<&Context> {
        if matches!(self.kind, Kind::Listener | Kind::Record) {
            return None;
        }
        // SAFETY: C1: the node is listed.
        Some(unsafe { self.context.as_ref() })
    }

    /// The root key of this waiter, which is no record; smaller goes first.
    ///
    /// # Safety
    ///
    /// As [`context`](Self::context).
    pub unsafe fn urgency(&self) -> u64 {
        // SAFETY: by contract.
        unsafe { self.context() }.map_or(self.ticket.0, Context::urgency)
    }

    /// Waits until the taker of the whole list has released this node. Called by an owner whose wait ended otherwise, or that gives its listener up,
    /// while its target went terminal. The taker has at most the nodes before this one to go through.
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
    #[must_use]
    pub const fn new() -> WaitQueue {
        WaitQueue { head: Cell::new(None) }
    }

    /// Whether the list is empty.
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

    /// Searches for a node for which `with` returns true, in order of arrival, and moves it to the front. False: there is none.
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
        // SAFETY: Q1, Q2: `node` stands in this list, so its neighbours do, and listed nodes are alive.
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
    /// Wakes all waiters, in order of arrival. Touches nothing but the nodes, by Q3. Returns the listeners, which the caller notifies (Q4).
    ///
    /// # Safety
    ///
    /// Q1: the list was taken whole, and no other thread can reach it any more.
    pub unsafe fn wake_all(mut self) -> Listeners {
        let mut listeners = Listeners { ends: None };
        let mut soon = self.next;
        for _ in 0..SOON {
            // SAFETY: Q2: those further on are not woken yet.
            soon = soon.and_then(|node| unsafe { node.as_ref() }.next.get());
        }
        while let Some(node) = self.next {
            // SAFETY: Q2: the owner does not leave before the taker releases the node.
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
            let kind = unsafe { node.as_ref() }.kind;
            if matches!(kind, Kind::Listener | Kind::Record) {
                // SAFETY: Q4: the taker has the list's count; Q5.
                unsafe {
                    listeners.append(node);
                    if kind == Kind::Listener {
                        node.as_ref().released.store(true, Ordering::Release);
                    }
                }
                continue;
            }
            if kind == Kind::Several {
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
                let order = mutant!("released_relaxed", Ordering::Relaxed, Ordering::Release);
                // SAFETY: Q3: refused, so the owner is waiting for exactly this store.
                unsafe { node.as_ref() }.released.store(true, order);
            }
            #[cfg(mutant = "node_read_after_wake")]
            {
                crate::shim::thread::yield_now();
                // SAFETY: none: its owner may have left.
                self.next = unsafe { node.as_ref() }.next.get();
            }
        }
        listeners
    }
}

/// What kind of listener this is.
///
/// # Safety
///
/// Q4: the node is a listener's, and the caller has its count.
unsafe fn listening<'a>(node: NonNull<WaitNode>) -> &'a Listening {
    // SAFETY: by contract.
    let node = unsafe { node.as_ref() };
    // SAFETY: Q4: a listener's node has this in place of a context.
    unsafe { node.context.cast::<Listening>().as_ref() }
}

/// The listeners of a list that was taken, and the nodes of records (Q4, Q5).
#[derive(Debug)]
#[must_use = "listeners that are not notified wait for ever"]
pub struct Listeners {
    /// The first and the last.
    ends: Option<(NonNull<WaitNode>, NonNull<WaitNode>)>,
}

impl Listeners {
    /// Whether there are none.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_none()
    }

    /// Appends a node that was taken out of a queue.
    ///
    /// # Safety
    ///
    /// Q4: the list's count is the caller's, and goes with the node.
    #[cold]
    unsafe fn append(&mut self, node: NonNull<WaitNode>) {
        // SAFETY: by contract; nobody else touches the links of a node that was taken.
        unsafe { node.as_ref() }.next.set(None);
        self.ends = match self.ends {
            None => Some((node, node)),
            Some((first, last)) => {
                // SAFETY: Q4: put aside before.
                unsafe { last.as_ref() }.next.set(Some(node));
                Some((first, node))
            }
        };
    }

    /// Calls `report` with the record of each node that is one's, and leaves the listeners. After the call the node may be gone.
    ///
    /// # Safety
    ///
    /// Q5: by the taker, who reports each to its record.
    pub unsafe fn report(&mut self, mut report: impl FnMut(NonNull<()>)) {
        let mut at = self.ends.take().map(|(first, _)| first);
        while let Some(node) = at {
            // SAFETY: Q4, Q5: neither notified nor reported yet.
            let (next, record) = unsafe { (node.as_ref().next.get(), node.as_ref().record()) };
            at = next;
            match record {
                Some(record) => report(record),
                // SAFETY: Q4, as when it was put aside.
                None => unsafe { self.append(node) },
            }
        }
    }

    /// Notifies them, in order of arrival, each with `how`: first those that call no user code. Records have been reported. The caller holds no lock.
    #[cold]
    #[inline(never)]
    pub fn notify(self, how: u64) {
        let mut last = Listeners { ends: None };
        let mut at = self.ends.map(|(first, _)| first);
        while let Some(node) = at {
            // SAFETY: Q4: this thread has its count until it is notified.
            at = unsafe { node.as_ref() }.next.get();
            #[cfg(mutant = "last_listener_forgotten")]
            if at.is_none() {
                break;
            }
            // SAFETY: Q4, as above.
            let kind = unsafe { listening(node) };
            if mutant!("wakers_in_their_turn", false, kind.calls_user_code) {
                // SAFETY: Q4: the count goes with the node.
                unsafe { last.append(node) };
            } else {
                // SAFETY: Q4: the count goes with the call.
                unsafe { (kind.notify)(node, how) };
            }
        }
        let mut at = last.ends.map(|(first, _)| first);
        while let Some(node) = at {
            // SAFETY: Q4, as above.
            at = unsafe { node.as_ref() }.next.get();
            // SAFETY: Q4, as above.
            let kind = unsafe { listening(node) };
            // SAFETY: Q4: the count goes with the call.
            unsafe { (kind.notify)(node, how) };
        }
    }
}

/// How far ahead of the walk a node is prefetched. The first access to a page that was not used for long also walks its page
/// tables; one access suffices for that.
const AHEAD: usize = 10;
/// How far ahead a waiter's record is prefetched, after its node, which is on the same page.
const SOON: usize = 3;
/// The lines of a waiter's record: its context, and what its owner keeps behind it.
const RECORD: usize = 5;
