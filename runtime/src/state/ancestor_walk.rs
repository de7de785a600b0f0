//! The ancestor walk: a search up the line of ancestors, past those that cannot answer any more.
//!
//! A request asks whether an ancestor was cancelled when it is submitted, and when it ends before its children ([`crate::cancel`]). An ancestor
//! that is over, and was not cancelled, is *passed*: the walk continues with its parent, and always will. In a line of generations whose handles
//! are kept, all but the last are over, so each walk would pass all of its ancestors. Therefore a long walk leaves *skip links*. It writes one at
//! every [`STRIDE`]th ancestor that it passes, which leads to the next such ancestor. It also moves each skip link that it follows on to where
//! the next one leads. That is path splitting in a forest of disjoint sets (Tarjan and van Leeuwen, *Worst-case analysis of set union
//! algorithms*, 1984): n walks take some `STRIDE + log n` steps each, in any order. Nearly all lines are short, and a walk leaves no links there.
//! It leaves none either in a line whose handles are dropped, where finished parents are forgotten (decision 0005).
//!
//! # A cancel that has not reached a waiter
//!
//! A cancel marks the descendants of a request one after the other. It may have marked a target, and the target have notified its waiter,
//! before it marks the waiter. The waiter then *draws the cancel down* itself, by [`draw_down`]: it walks past ancestors that
//! still run to the nearest cancelled one. Then it asks all that it has passed to cancel, the highest first, as the cancel would have. So the
//! waiter is marked, unless a request in between is spared or shielded.
//!
//! # Invariants
//!
//! * **CL1** A skip link is at a passed ancestor, and leads to it or to an ancestor of it that is passed. All in between are passed, and each
//!   walk passes them. None of this is ever undone, and ancestors outlive their descendants (H1). The one request that changes its ancestors
//!   does so before it starts ([`take_place`](crate::record::arena::take_place)). It has no descendants then, so no skip link leads through it.
//! * **CL2** A skip link is written by a release and followed by an acquire. So a walk that follows it knows all that it could have read in
//!   those between, such as a mark that was set before one of them was over.

use std::ptr;

use forebear_context::shim::atomic::{AtomicPtr, Ordering};
use forebear_context::shim::mutant;

/// A walk is long when it has passed so many one by one; there are as many between two skip links.
pub const STRIDE: u32 = if cfg!(loom) { 1 } else { 16 };

/// The ancestor with which a walk may continue from a passed one. See the module head.
pub struct SkipLink<N>(AtomicPtr<N>);

impl<N> Default for SkipLink<N> {
    fn default() -> SkipLink<N> {
        SkipLink(AtomicPtr::new(ptr::null_mut()))
    }
}

impl<N> SkipLink<N> {
    /// Where the link leads. It is at an ancestor that lives for `'a`.
    fn follow<'a>(&self) -> Option<&'a N> {
        // SAFETY: CL1: null, or an ancestor, which outlives who descends from it; CL2 for what it was at birth.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    fn lead(&self, to: &N) {
        let to = ptr::from_ref(to).cast_mut();
        // Most walks end where the last one ended.
        if self.0.load(Ordering::Relaxed) != to {
            mutant!("skip_relaxed", self.0.store(to, Ordering::Relaxed), self.0.store(to, Ordering::Release));
        }
    }
}

impl<N> std::fmt::Debug for SkipLink<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SkipLink").field(&self.0).finish()
    }
}

/// What a line is made of.
pub trait Ancestry {
    /// Whom the question goes to next.
    fn above(&self) -> Option<&Self>;

    /// Whether it goes past this one. Acquires what came before; once true, true for ever.
    fn is_passed(&self) -> bool;

    /// Whether those below are to be cancelled for it.
    fn is_cancelled(&self) -> bool;

    /// Whether it is over, so that a cancel continues below it without it, though [`is_passed`](Self::is_passed) may say no.
    fn passes_on(&self) -> bool;

    /// The skip link that stands here, if there is a place for one.
    fn skip(&self) -> Option<&SkipLink<Self>>
    where
        Self: Sized;

    /// The same; the place is made if need be. `None`: there never is one here.
    fn skip_or_new(&self) -> Option<&SkipLink<Self>>
    where
        Self: Sized;
}

/// The first above `from` that is not passed.
pub fn first_above<N: Ancestry>(from: &N) -> Option<&N> {
    let mut at = from;
    for _ in 0..STRIDE {
        let above = at.above()?;
        if !above.is_passed() {
            return Some(above);
        }
        at = above;
    }
    walk_far(from)
}

#[cold]
#[inline(never)]
fn walk_far<N: Ancestry>(from: &N) -> Option<&N> {
    let (mut at, mut steps) = (from, 0);
    // The last place for a skip link that this has gone by.
    let mut last: Option<&SkipLink<N>> = None;
    let found = loop {
        let Some(above) = at.above() else { break None };
        if !above.is_passed() {
            break Some(above);
        }
        at = above;
        steps += 1;
        let known = above.skip().and_then(SkipLink::follow);
        if (known.is_some() || steps >= STRIDE)
            && let Some(here) = above.skip_or_new()
        {
            at = known.unwrap_or(above);
            steps = 0;
            if let Some(last) = last.replace(here) {
                last.lead(at);
            }
        }
    };
    if let Some(last) = last {
        last.lead(at);
    }
    found
}

/// How far up a cancel is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Height {
    /// To the first ancestor that is not passed: one that still runs ends the walk, be it cancelled or not.
    First,
    /// To the root.
    Root,
}

/// Asks `from` on behalf of the nearest cancelled ancestor, after those in between. `ask` asks one, on behalf of the other that it
/// is given, and answers whether the cancel continues below it. False: there is no such ancestor, or the cancel ends on the way.
pub fn draw_down<N: Ancestry>(from: &N, height: Height, mut ask: impl FnMut(&N, &N) -> bool) -> bool {
    let mut asked = vec![from];
    let mut at = from;
    let cancelled = loop {
        let Some(above) = first_above(at) else { return false };
        if above.is_cancelled() {
            break above;
        }
        if !above.passes_on() {
            #[cfg(mutant = "drawn_from_the_first_only")]
            let height = Height::First;
            if height == Height::First {
                return false;
            }
            asked.push(above);
        }
        at = above;
    };
    asked.into_iter().rev().all(|next| ask(next, cancelled))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct Node {
        parent: *const Node,
        passed: Cell<bool>,
        skip: SkipLink<Node>,
    }

    thread_local! {
        static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    impl Ancestry for Node {
        fn above(&self) -> Option<&Node> {
            STEPS.set(STEPS.get() + 1);
            // SAFETY: the lines of these tests live to their end.
            unsafe { self.parent.as_ref() }
        }

        fn is_passed(&self) -> bool {
            self.passed.get()
        }

        fn is_cancelled(&self) -> bool {
            false
        }

        fn passes_on(&self) -> bool {
            self.passed.get()
        }

        fn skip(&self) -> Option<&SkipLink<Node>> {
            Some(&self.skip)
        }

        fn skip_or_new(&self) -> Option<&SkipLink<Node>> {
            Some(&self.skip)
        }
    }

    fn below(parent: *const Node, passed: bool) -> Box<Node> {
        Box::new(Node { parent, passed: Cell::new(passed), skip: SkipLink::default() })
    }

    /// A line of `len` that are passed, below one that is not.
    #[allow(clippy::vec_box, reason = "nodes are pointed at")]
    fn line(len: usize) -> Vec<Box<Node>> {
        let mut line = vec![below(ptr::null(), false)];
        for _ in 0..len {
            let next = below(&raw const **line.last().unwrap(), true);
            line.push(next);
        }
        line
    }

    /// The steps that it takes to ask from all of these.
    fn steps<'a>(asked: impl Iterator<Item = &'a Node>, first: &Node) -> usize {
        STEPS.set(0);
        for node in asked {
            assert!(first_above(node).is_some_and(|found| ptr::eq(found, first)));
        }
        STEPS.get()
    }

    const MANY: usize = 100_000;
    const FEW_STEPS: usize = MANY * 4 * STRIDE as usize;

    #[test]
    fn generations_that_ask_one_after_the_other_do_not_walk_all_before_them() {
        let line = line(MANY);
        assert!(steps(line[1..].iter().map(|node| &**node), &line[0]) < FEW_STEPS);
    }

    #[test]
    fn generations_that_ask_the_last_first_do_not_walk_all_before_them() {
        let line = line(MANY);
        assert!(steps(line[1..].iter().rev().map(|node| &**node), &line[0]) < FEW_STEPS);
    }

    #[test]
    fn generations_that_ask_in_any_order_do_not_walk_all_before_them() {
        let line = line(MANY);
        // A step that has no divisor with the length visits each once.
        let scattered = (0..MANY).map(|n| &*line[1 + n * 38_119 % MANY]);
        assert!(steps(scattered, &line[0]) < FEW_STEPS);
    }

    #[test]
    fn generations_that_end_the_first_last_do_not_walk_all_before_them() {
        let line = line(MANY);
        let last = below(&raw const **line.last().unwrap(), false);
        line.iter().for_each(|node| node.passed.set(false));
        STEPS.set(0);
        // Each ends, and the one at the far end asks: what is in the way comes ever nearer to the top.
        for above in (0..MANY).rev() {
            line[above + 1].passed.set(true);
            assert!(first_above(&*last).is_some_and(|found| ptr::eq(found, &*line[above])));
        }
        assert!(STEPS.get() < FEW_STEPS);
    }

    #[test]
    fn a_walk_finds_the_first_that_is_not_passed() {
        let mut state = 7_u64;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as usize % below
        };
        let mut tree = line(0);
        for n in 1..5_000 {
            let parent = n - 1 - random(n.min(3));
            let next = below(&raw const *tree[parent], random(200) != 0);
            tree.push(next);
        }
        for _ in 0..20_000 {
            let from = &*tree[random(tree.len())];
            let mut at = from.parent;
            // SAFETY: as above.
            while let Some(node) = unsafe { at.as_ref() }
                && node.is_passed()
            {
                at = node.parent;
            }
            let found = first_above(from).map_or(ptr::null(), ptr::from_ref);
            assert!(ptr::eq(found, at));
            // Some end meanwhile.
            tree[random(tree.len())].passed.set(true);
        }
    }
}
