//! A heap of places that lie in their owners' frames: a pairing heap (Fredman, Sedgewick, Sleator, Tarjan: *The pairing heap*, 1986).
//!
//! To put one in takes constant time; to take the first out, or any, O(log n) amortised. It allocates nothing, and nothing recurses.
//!
//! # Invariants
//!
//! * **P1** A heap is touched by the holder of its lock only.
//! * **P2** What stands in a heap stays where it is until it has been taken out.
//! * **P3** `back` of a first child is its parent, of any other its left sibling, of the root none.

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
}

impl<N> Links<N> {
    pub(crate) fn new(key: u64) -> Links<N> {
        Links {
            key: Cell::new((key, 0)),
            child: Cell::new(None),
            next: Cell::new(None),
            back: Cell::new(None),
        }
    }

    /// The next in a list of such that stand in no heap. By whoever has taken them out.
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
    root: Cell<Option<NonNull<N>>>,
}

impl<N> Heap<N> {
    pub(crate) const fn new() -> Heap<N> {
        Heap { root: Cell::new(None) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.root.get().is_none()
    }

    /// The first, which stays.
    pub(crate) fn first(&self) -> Option<NonNull<N>> {
        self.root.get()
    }
}

impl<N: Linked> Heap<N> {
    /// # Safety
    ///
    /// P1; P2; it stands in no heap.
    pub(crate) unsafe fn push(&self, node: &N) {
        let links = node.links();
        links.child.set(None);
        links.next.set(None);
        links.back.set(None);
        // SAFETY: P2: both are roots.
        self.root.set(unsafe { meld(self.root.get(), Some(NonNull::from(node))) });
    }

    /// # Safety
    ///
    /// P1.
    pub(crate) unsafe fn pop(&self) -> Option<NonNull<N>> {
        let root = self.root.get()?;
        // SAFETY: P2.
        self.root.set(unsafe { meld_all(root.as_ref().links().child.take()) });
        Some(root)
    }

    /// # Safety
    ///
    /// P1; `node` stands in this heap.
    pub(crate) unsafe fn remove(&self, node: &N) {
        let this = NonNull::from(node);
        if self.root.get() == Some(this) {
            // SAFETY: by contract.
            unsafe { self.pop() };
            return;
        }
        let links = node.links();
        let (next, back) = (links.next.take(), links.back.take());
        // SAFETY: P2, P3.
        unsafe {
            if let Some(back) = back {
                let back = back.as_ref().links();
                if back.child.get() == Some(this) { back.child.set(next) } else { back.next.set(next) }
            }
            if let Some(next) = next {
                next.as_ref().links().back.set(back);
            }
            let orphans = meld_all(links.child.take());
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
    // SAFETY: P2.
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
    // SAFETY: P2.
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
