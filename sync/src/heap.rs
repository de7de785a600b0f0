//! A heap of places that lie in their owners' frames: a line, and a pairing heap (Fredman, Sedgewick, Sleator, Tarjan: *The pairing
//! heap*, 1986).
//!
//! Entries that arrive in order, no key smaller than the one before, go to the end of a list. So entries with equal
//! keys cost a few stores to insert, to take out first, and to take out anywhere. Entries that arrive out of order go
//! into the pairing heap. An insertion takes constant time; to take out the first or any other takes O(log n),
//! amortised. The heap allocates nothing, and nothing recurses.
//!
//! # Invariants
//!
//! * **P1** A heap is touched by the holder of its lock only.
//! * **P2** An entry does not move in memory until it has been taken out of the heap.
//! * **P3** `back` of a first child is its parent, of any other child its left sibling, of the root null. In the line it is the entry
//!   before.
//! * **P4** The keys in the line do not fall from its head to its tail.

use std::cell::Cell;
use std::ptr::NonNull;

/// What ties a place to its heap.
#[derive(Debug)]
pub(crate) struct Links<N> {
    /// The key, and the number of its coming: smaller goes first.
    pub key: Cell<(u64, u64)>,
    child: Cell<Option<NonNull<N>>>,
    next: Cell<Option<NonNull<N>>>,
    back: Cell<Option<NonNull<N>>>,
    /// It stands in the line.
    in_line: Cell<bool>,
}

impl<N> Links<N> {
    pub(crate) fn new(key: u64) -> Links<N> {
        Links {
            key: Cell::new((key, 0)),
            child: Cell::new(None),
            next: Cell::new(None),
            back: Cell::new(None),
            in_line: Cell::new(false),
        }
    }

    /// The next in a list of nodes that are in no heap. By the thread that has taken them out.
    pub(crate) fn next(&self) -> &Cell<Option<NonNull<N>>> {
        &self.next
    }
}

/// What can stand in a heap.
pub(crate) trait Linked: Sized {
    fn links(&self) -> &Links<Self>;
}

/// See the module head.
#[derive(Debug)]
pub(crate) struct Heap<N> {
    head: Cell<Option<NonNull<N>>>,
    tail: Cell<Option<NonNull<N>>>,
    root: Cell<Option<NonNull<N>>>,
}

impl<N> Heap<N> {
    pub(crate) const fn new() -> Heap<N> {
        Heap { head: Cell::new(None), tail: Cell::new(None), root: Cell::new(None) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.get().is_none() && self.root.get().is_none()
    }
}

impl<N: Linked> Heap<N> {
    /// The head of the line.
    ///
    /// # Safety
    ///
    /// P1.
    #[inline(always)]
    pub(crate) unsafe fn head(&self) -> Option<NonNull<N>> {
        self.head.get()
    }

    /// Takes out the only entry, which stands in the line.
    ///
    /// # Safety
    ///
    /// P1; the heap has no other entry.
    #[inline(always)]
    pub(crate) unsafe fn take_only(&self) {
        self.head.set(None);
        self.tail.set(None);
    }

    /// Inserts an entry into the empty heap.
    ///
    /// # Safety
    ///
    /// P1; P2; it stands in no heap, and this one is empty.
    #[inline(always)]
    pub(crate) unsafe fn push_only(&self, node: &N) {
        let (this, links) = (Some(NonNull::from(node)), node.links());
        links.next.set(None);
        links.back.set(None);
        links.in_line.set(true);
        self.head.set(this);
        self.tail.set(this);
    }

    /// The first, which stays.
    ///
    /// # Safety
    ///
    /// P1.
    #[inline]
    pub(crate) unsafe fn first(&self) -> Option<NonNull<N>> {
        let (head, root) = (self.head.get(), self.root.get());
        let (Some(a), Some(b)) = (head, root) else { return head.or(root) };
        // SAFETY: P2: both lead to nodes of this heap, which stay while they are in it.
        Some(if unsafe { b.as_ref().links().key.get() < a.as_ref().links().key.get() } { b } else { a })
    }

    /// Whether one of this key would be the last; also false where that takes more than a look.
    ///
    /// # Safety
    ///
    /// P1.
    #[inline]
    pub(crate) unsafe fn is_last(&self, key: u64) -> bool {
        // SAFETY: P2.
        let is_behind = |last: NonNull<N>| unsafe { last.as_ref() }.links().key.get().0 <= key;
        self.root.get().is_none() && self.tail.get().is_none_or(is_behind)
    }

    /// Inserts an entry.
    ///
    /// # Safety
    ///
    /// P1; P2; it stands in no heap.
    #[inline]
    pub(crate) unsafe fn push(&self, node: &N) {
        let (this, links, tail) = (Some(NonNull::from(node)), node.links(), self.tail.get());
        links.next.set(None);
        match tail {
            // SAFETY: P2.
            Some(last) if links.key.get() < unsafe { last.as_ref() }.links().key.get() => {
                // SAFETY: by contract.
                unsafe { self.push_out_of_order(node) };
                return;
            }
            // SAFETY: P2.
            Some(last) => unsafe { last.as_ref() }.links().next.set(this),
            None => self.head.set(this),
        }
        links.back.set(tail);
        links.in_line.set(true);
        self.tail.set(this);
    }

    /// Inserts an entry whose key is smaller than the last one of the line.
    ///
    /// # Safety
    ///
    /// P1, P2: as for [`push`](Self::push), whose slow half this is.
    #[inline(never)]
    unsafe fn push_out_of_order(&self, node: &N) {
        let links = node.links();
        links.child.set(None);
        links.back.set(None);
        links.in_line.set(false);
        // SAFETY: P2: both are roots.
        self.root.set(unsafe { meld(self.root.get(), Some(NonNull::from(node))) });
    }

    /// Takes the entry with the smallest key out.
    ///
    /// # Safety
    ///
    /// P1.
    #[inline]
    pub(crate) unsafe fn pop(&self) -> Option<NonNull<N>> {
        // SAFETY: P1 by contract, for both calls; P2: the first is a node of this heap.
        unsafe {
            let first = self.first()?;
            self.remove(first.as_ref());
            Some(first)
        }
    }

    /// Takes this entry out.
    ///
    /// # Safety
    ///
    /// P1; `node` stands in this heap.
    #[inline]
    pub(crate) unsafe fn remove(&self, node: &N) {
        let links = node.links();
        if !links.in_line.get() {
            // SAFETY: by contract.
            return unsafe { self.remove_from_tree(node) };
        }
        let (next, back) = (links.next.take(), links.back.get());
        // SAFETY: P3: `node` is in the line, so both neighbours are nodes of this heap, or there is none; P2 for them.
        unsafe {
            match back {
                Some(back) => back.as_ref().links().next.set(next),
                None => self.head.set(next),
            }
            match next {
                Some(next) => next.as_ref().links().back.set(back),
                None => self.tail.set(back),
            }
        }
    }

    /// Takes this entry out of the pairing heap.
    ///
    /// # Safety
    ///
    /// As for [`remove`](Self::remove), for a node that does not stand in the line.
    #[inline(never)]
    unsafe fn remove_from_tree(&self, node: &N) {
        let (this, links) = (NonNull::from(node), node.links());
        // SAFETY: P3: children, parent and sibling of `node` are nodes of this heap, or there is none; P2 for them, and P1, P2 for melding.
        unsafe {
            let orphans = meld_all(links.child.take());
            if self.root.get() == Some(this) {
                self.root.set(orphans);
                return;
            }
            let (next, back) = (links.next.take(), links.back.take());
            if let Some(back) = back {
                let back = back.as_ref().links();
                if back.child.get() == Some(this) { back.child.set(next) } else { back.next.set(next) }
            }
            if let Some(next) = next {
                next.as_ref().links().back.set(back);
            }
            self.root.set(meld(self.root.get(), orphans));
        }
    }
}

/// One tree of two roots without siblings.
///
/// # Safety
///
/// P1, P2.
unsafe fn meld<N: Linked>(a: Option<NonNull<N>>, b: Option<NonNull<N>>) -> Option<NonNull<N>> {
    let (Some(a), Some(b)) = (a, b) else { return a.or(b) };
    // SAFETY: P2: both roots, and the first child of either, are nodes of this heap, which stay while they are in it.
    unsafe {
        let (up, down) =
            if b.as_ref().links().key.get() < a.as_ref().links().key.get() { (b, a) } else { (a, b) };
        let (parent, child) = (up.as_ref().links(), down.as_ref().links());
        let first = parent.child.replace(Some(down));
        child.next.set(first);
        child.back.set(Some(up));
        if let Some(first) = first {
            first.as_ref().links().back.set(Some(down));
        }
        Some(up)
    }
}

/// One tree of a list of siblings: in pairs from the left, then these from the right.
///
/// # Safety
///
/// P1, P2.
unsafe fn meld_all<N: Linked>(first: Option<NonNull<N>>) -> Option<NonNull<N>> {
    let mut rest = first;
    let mut pairs: Option<NonNull<N>> = None;
    // SAFETY: P2: all that `next` leads to from `first`, and the pairs that are made of them, are nodes of this heap; P1, P2 for melding.
    unsafe {
        while let Some(a) = rest {
            let links = a.as_ref().links();
            let b = links.next.take();
            links.back.set(None);
            rest = b.and_then(|b| {
                let links = b.as_ref().links();
                links.back.set(None);
                links.next.take()
            });
            if let Some(pair) = meld(Some(a), b) {
                // A root's `next` is free: it holds the pairs, last first.
                pair.as_ref().links().next.set(pairs);
                pairs = Some(pair);
            }
        }
        let mut whole = None;
        while let Some(pair) = pairs {
            pairs = pair.as_ref().links().next.take();
            whole = meld(whole, Some(pair));
        }
        whole
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Node(Links<Node>);

    impl Linked for Node {
        fn links(&self) -> &Links<Node> {
            &self.0
        }
    }

    fn node(key: u64, number: u64) -> Node {
        let links = Links::new(key);
        links.key.set((key, number));
        Node(links)
    }

    /// Numbers that look random and are the same each time.
    fn scramble(n: u64) -> u64 {
        n.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) % 1000
    }

    #[test]
    fn what_is_popped_comes_by_key_and_equals_by_age() {
        let nodes: Vec<_> = (0..5000).map(|n| node(scramble(n) % 40, n)).collect();
        let heap = Heap::new();
        // SAFETY: one thread; the nodes stay.
        unsafe {
            nodes.iter().for_each(|node| heap.push(node));
            // Every third leaves before.
            nodes.iter().step_by(3).for_each(|node| heap.remove(node));
            let mut left: Vec<_> = nodes
                .iter()
                .enumerate()
                .filter(|(n, _)| n % 3 != 0)
                .map(|(_, node)| node.0.key.get())
                .collect();
            left.sort_unstable();
            let popped: Vec<_> =
                std::iter::from_fn(|| heap.pop()).map(|node| node.as_ref().0.key.get()).collect();
            assert_eq!(popped, left);
            assert!(heap.is_empty());
        }
    }

    #[test]
    fn equals_stand_in_line_and_any_may_leave_it() {
        let nodes: Vec<_> = (0..100).map(|n| node(7, n)).collect();
        let heap = Heap::new();
        // SAFETY: as above.
        unsafe {
            nodes.iter().for_each(|node| heap.push(node));
            assert!(heap.root.get().is_none(), "nothing came out of order");
            // The last, the first, and some between.
            for n in [99, 0, 98, 1, 50, 51] {
                heap.remove(&nodes[n]);
            }
            // It goes first, though it came last.
            let urgent = node(3, 100);
            heap.push(&urgent);
            assert_eq!(heap.pop(), Some(NonNull::from(&urgent)));
            let popped = std::iter::from_fn(|| heap.pop()).map(|node| node.as_ref().0.key.get().1);
            assert!(popped.eq((2..50).chain(52..98)));
            assert!(heap.is_empty() && heap.tail.get().is_none());
        }
    }

    #[test]
    fn pops_and_removals_may_alternate() {
        let nodes: Vec<_> = (0..2000).map(|n| node(scramble(n), n)).collect();
        let heap = Heap::new();
        let mut inside = std::collections::BTreeMap::new();
        // SAFETY: as above.
        unsafe {
            for (n, node) in nodes.iter().enumerate() {
                heap.push(node);
                inside.insert(node.0.key.get(), n);
                if n % 3 == 1 {
                    let popped = heap.pop().map(|node| node.as_ref().0.key.get());
                    assert_eq!(popped, inside.pop_first().map(|(key, _)| key));
                }
                if n % 5 == 4
                    && let Some((&key, &n)) = inside.iter().nth(inside.len() / 2)
                {
                    heap.remove(&nodes[n]);
                    inside.remove(&key);
                }
            }
            let popped: Vec<_> =
                std::iter::from_fn(|| heap.pop()).map(|node| node.as_ref().0.key.get()).collect();
            assert_eq!(popped, inside.into_keys().collect::<Vec<_>>());
        }
    }
}
