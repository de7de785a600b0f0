//! Lineage: the line of a request's ancestors, which decides which of two requests goes first.
//!
//! Every request has a [`Lineage`] in its header: the key of its root, its rank among its parent's children, and a
//! pointer to its parent's lineage. Smaller goes first: the oldest root, then the oldest ancestor below it, and so on;
//! a parent goes before its own children.
//!
//! # The root key
//!
//! ```text
//!   63      56 55 54                                        0
//!  [ priority |d | deadline in ns / 64, or the root's number ]
//! ```
//!
//! Deadlines count in steps of 64 ns, from ten years before the process first read them, to 63 years after. Later deadlines are all
//! equal.
//!
//! Priority is biased so that the number sorts unsigned; `d` is 0 with a deadline, so that within one priority a root
//! with a deadline goes before one without. Every descendant carries a copy, so most comparisons end after one word.
//!
//! # Comparing within one root
//!
//! By skew-binary jump pointers (Myers, *An applicative random-access stack*, 1983): a node's jump leads to an ancestor
//! so that any ancestor is reached in O(log depth) hops. A comparison makes a jump when it first needs it, not the birth, since most lineages
//! are never compared. Most comparisons are of close relatives, and take a few steps from parent to parent. The node determines its jump, so two
//! workers that compute it at once store the same value.
//!
//! # Invariants
//!
//! * **LN1** A lineage's ancestors outlive it: the header of a parent is kept by its children's headers.
//! * **LN2** Parent, rank, depth and root key do not change once the lineage can be seen by another thread or has
//!   children. (A request takes a finished parent's place before that, see [`take_place`](Lineage::take_place).)

use std::cell::Cell;
use std::cmp::Ordering as Order;
use std::ptr;
use std::sync::atomic::AtomicPtr as Once; // not modelled: an epoch, drawn once, in a static, which loom has none of
use std::sync::atomic::AtomicU64 as Counter; // not modelled: a counter, likewise
use std::time::{Duration, Instant};

use crate::shim::atomic::{AtomicPtr, Ordering};

/// How urgent a root is, before its age counts. Smaller goes first.
///
/// ```
/// use forebear::Priority;
/// assert!(Priority::URGENT < Priority::NORMAL && Priority::NORMAL < Priority::BACKGROUND);
/// assert_eq!(Priority::new(0), Priority::NORMAL);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(i8);

impl Priority {
    /// Before all normal work: work that a user waits for at this moment.
    pub const URGENT: Priority = Priority(-1);
    /// The default priority of a root.
    pub const NORMAL: Priority = Priority(0);
    /// After all normal work: prefetching, indexing, cleaning up.
    pub const BACKGROUND: Priority = Priority(1);

    /// A priority between and beyond the named ones; smaller goes first.
    #[must_use]
    pub const fn new(level: i8) -> Priority {
        Priority(level)
    }

    /// The number that [`new`](Self::new) takes; smaller goes first.
    ///
    /// ```
    /// use forebear::Priority;
    ///
    /// assert_eq!((Priority::NORMAL.level(), Priority::new(-3).level()), (0, -3));
    /// ```
    #[must_use]
    pub const fn level(self) -> i8 {
        self.0
    }
}

impl Default for Priority {
    fn default() -> Self {
        Priority::NORMAL
    }
}

impl std::fmt::Debug for Priority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Priority::URGENT => f.write_str("URGENT"),
            Priority::NORMAL => f.write_str("NORMAL"),
            Priority::BACKGROUND => f.write_str("BACKGROUND"),
            Priority(level) => write!(f, "Priority({level})"),
        }
    }
}

/// Larger than every key: there is no entry.
pub const NO_KEY: u64 = u64::MAX;

/// The key of a stack on which code runs that belongs to no root. It is larger than every root's key, but smaller than [`NO_KEY`]: such a stack may wait,
/// and is ready like any other when its wait has ended.
pub const LEAST_KEY: u64 = NO_KEY - 1;

const NUMBER_BITS: u32 = 55;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;

/// The key of a root without a deadline: the priority, a bit that places it behind all deadlines of that priority, and the number.
#[inline]
#[must_use]
pub fn root_key(priority: Priority, number: u64) -> u64 {
    let biased = (i16::from(priority.0) + 128) as u64;
    biased << 56 | 1 << NUMBER_BITS | number & NUMBER
}

/// The key of a root with a deadline.
#[must_use]
pub fn root_key_with_deadline(priority: Priority, deadline: Instant) -> u64 {
    let steps = deadline.saturating_duration_since(epoch()).as_nanos() >> 6;
    let biased = (i16::from(priority.0) + 128) as u64;
    // 0 is no root's key.
    biased << 56 | u64::try_from(steps).unwrap_or(NUMBER).clamp(1, NUMBER)
}

/// The instant from which deadlines and the coarse times of waits are counted. It is ten years before the first call,
/// since a manual clock may be behind the machine's.
pub fn epoch() -> Instant {
    const YEARS: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
    // Not a OnceLock, whose order a sanitizer does not see. Made once and never freed.
    static EPOCH: Once<Instant> = Once::new(ptr::null_mut());
    let made = EPOCH.load(Ordering::Acquire);
    // SAFETY: the instant was made below, and is never freed.
    if let Some(epoch) = unsafe { made.as_ref() } {
        return *epoch;
    }
    let now = Instant::now();
    let epoch = now.checked_sub(YEARS).unwrap_or(now);
    let mine = Box::into_raw(Box::new(epoch));
    match EPOCH.compare_exchange(ptr::null_mut(), mine, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => epoch,
        // SAFETY: no other thread has seen ours; theirs is never freed.
        Err(theirs) => unsafe {
            drop(Box::from_raw(mine));
            *theirs
        },
    }
}

/// The priority that a root key was made with.
#[must_use]
pub fn priority_of(key: u64) -> Priority {
    Priority(((key >> 56) as i16 - 128) as i8)
}

/// The part of a root key without the number: priority and deadline.
#[must_use]
pub fn but_for_number(key: u64) -> u64 {
    let has_deadline = key & 1 << NUMBER_BITS == 0;
    if has_deadline { key } else { key & !NUMBER }
}

/// The number of the next root: global to the process, so that requests of several runtimes compare, and with them the threads that
/// wait for the same locks.
static NEXT_ROOT: Counter = Counter::new(1);

/// Draws a root's number.
#[inline(always)]
pub fn next_root() -> u64 {
    NEXT_ROOT.fetch_add(1, Ordering::Relaxed)
}

/// Relatives within so many generations are found from parent to parent. A jump that has not been made costs an allocation, and a store to a
/// header that may be cold.
const STEPS: u32 = 4;

/// A request's place in the order. See the module head.
#[derive(Debug)]
#[repr(C)]
pub struct Lineage {
    rank: Cell<u32>,
    depth: Cell<u32>,
    root_key: Cell<u64>,
    parent: Cell<*const Lineage>,
    /// Last: it begins as null, as does what follows in a header.
    jump: AtomicPtr<Lineage>,
}

impl Lineage {
    /// The lineage of a root. `number` decides between roots with equal keys.
    #[inline(always)]
    #[must_use]
    pub fn root(key: u64, number: u64) -> Lineage {
        Lineage {
            root_key: Cell::new(key),
            parent: Cell::new(ptr::null()),
            jump: AtomicPtr::new(ptr::null_mut()),
            rank: Cell::new(number as u32),
            depth: Cell::new(0),
        }
    }

    /// The lineage of the child of `parent` that has `rank` among its children.
    ///
    /// # Safety
    ///
    /// LN1: the parent stays where it is, and readable, for as long as this lineage and those of its descendants are used.
    #[inline(always)]
    pub unsafe fn child(parent: &Lineage, rank: u32) -> Lineage {
        Lineage {
            root_key: Cell::new(parent.root_key.get()),
            parent: Cell::new(parent),
            jump: AtomicPtr::new(ptr::null_mut()),
            rank: Cell::new(rank),
            depth: Cell::new(parent.depth.get().saturating_add(1)),
        }
    }

    /// The lineage of a request that is a root for the order, and a child of `parent` in all other respects. No descendant of another request
    /// has its key, so its ancestors never decide a comparison.
    ///
    /// # Safety
    ///
    /// As [`child`](Self::child).
    pub unsafe fn rooted_child(parent: &Lineage, rank: u32, key: u64) -> Lineage {
        // SAFETY: by contract.
        let lineage = unsafe { Lineage::child(parent, rank) };
        lineage.root_key.set(key);
        lineage
    }

    /// The root's key.
    #[inline(always)]
    pub fn key(&self) -> u64 {
        self.root_key.get()
    }

    /// The parent's lineage; null for a root.
    #[inline(always)]
    pub fn parent(&self) -> *const Lineage {
        self.parent.get()
    }

    /// How many ancestors there are.
    #[inline(always)]
    pub fn depth(&self) -> u32 {
        self.depth.get()
    }

    /// The rank among the parent's children.
    pub fn rank(&self) -> u32 {
        self.rank.get()
    }

    /// Takes the place of its finished parent, of which it is the only child. So a line of requests, each of which makes the next and ends,
    /// needs no memory for its past. No other thread has seen this lineage yet (LN2).
    ///
    /// # Safety
    ///
    /// LN1 for the parent's parent: its claim on it passes to this lineage.
    pub unsafe fn take_place(&self) {
        // SAFETY: LN1: the parent is still there.
        let parent = unsafe { &*self.parent.get() };
        // The key is the parent's already, or its own as a root for the order.
        self.rank.set(parent.rank.get());
        self.depth.set(parent.depth.get());
        self.parent.set(parent.parent.get());
        self.jump.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// The jump.
    #[inline]
    fn jump(&self) -> *const Lineage {
        let known = self.jump.load(Ordering::Acquire);
        if known.is_null() { self.make_jumps() } else { known }
    }

    /// The jump, computed for this node and all above it that lack it. Each node is computed once in its life, so the detour through memory is
    /// paid once per node.
    #[cold]
    fn make_jumps(&self) -> *const Lineage {
        // Up to the first ancestor whose jump is known; then down again.
        let mut path = vec![self];
        let mut at = self.parent.get();
        // SAFETY: LN1, here and below.
        while let Some(node) = unsafe { at.as_ref() } {
            if !node.jump.load(Ordering::Acquire).is_null() {
                break;
            }
            path.push(node);
            at = node.parent.get();
        }
        for node in path.into_iter().rev() {
            // SAFETY: LN1.
            let jump = match unsafe { node.parent.get().as_ref() } {
                // A root's jump is itself, so that no reader has to check for null.
                None => ptr::from_ref(node),
                Some(parent) => {
                    // SAFETY: LN1; the parent's jump is known, it is next on the way down or ended the way up.
                    let far = unsafe { &*parent.jump.load(Ordering::Acquire) };
                    // SAFETY: LN1; an ancestor's jump is known as well.
                    let farther = unsafe { &*far.jump.load(Ordering::Acquire) };
                    let first = parent.depth.get() - far.depth.get();
                    let second = far.depth.get() - farther.depth.get();
                    if first == second && !ptr::eq(parent, far) {
                        ptr::from_ref(farther)
                    } else {
                        ptr::from_ref(parent)
                    }
                }
            };
            node.jump.store(jump.cast_mut(), Ordering::Release);
        }
        self.jump.load(Ordering::Acquire)
    }

    /// The ancestor at `depth`, which is not more than this one's.
    fn at_depth(&self, depth: u32) -> &Lineage {
        let mut at = self;
        while at.depth.get() > depth {
            // SAFETY: LN1; the depth is above 0, so there is a parent.
            let parent = unsafe { &*at.parent.get() };
            if at.depth.get() - depth <= STEPS {
                at = parent;
                continue;
            }
            // SAFETY: LN1.
            let jump = unsafe { &*at.jump() };
            at = if jump.depth.get() >= depth && !ptr::eq(jump, at) { jump } else { parent };
        }
        at
    }

    /// Whether `other` is among its ancestors.
    pub fn descends_from(&self, other: &Lineage) -> bool {
        let depth = other.depth.get();
        self.depth.get() > depth && ptr::eq(self.at_depth(depth), other)
    }

    /// Which of two requests goes first. Equal only for the same lineage.
    #[inline]
    pub fn compare(&self, other: &Lineage) -> Order {
        match self.root_key.get().cmp(&other.root_key.get()) {
            Order::Equal if ptr::eq(self.parent.get(), other.parent.get()) => {
                self.rank.get().cmp(&other.rank.get())
            }
            Order::Equal => self.compare_paths(other),
            different => different,
        }
    }

    /// Which of two requests goes first by the ranks from the roots down, whatever the roots' keys.
    #[cold]
    pub fn compare_paths(&self, other: &Lineage) -> Order {
        let depth = self.depth.get().min(other.depth.get());
        let (mut a, mut b) = (self.at_depth(depth), other.at_depth(depth));
        if ptr::eq(a, b) {
            // One is the other's ancestor: it goes first.
            return self.depth.get().cmp(&other.depth.get());
        }
        let mut steps = 0;
        while !ptr::eq(a.parent.get(), b.parent.get()) {
            // SAFETY: LN1; the parents differ, so both are there (two roots are compared by rank below).
            let parents = unsafe { (&*a.parent.get(), &*b.parent.get()) };
            if steps < STEPS {
                steps += 1;
                (a, b) = parents;
                continue;
            }
            // Nodes of one depth have jumps of one depth, so both stay level.
            let (ja, jb) = (a.jump(), b.jump());
            (a, b) = if ptr::eq(ja, jb) || ptr::eq(ja, a) || ptr::eq(jb, b) {
                parents
            } else {
                // SAFETY: LN1: a jump leads to an ancestor of a living lineage, and ancestors outlive it.
                unsafe { (&*ja, &*jb) }
            };
        }
        a.rank.get().cmp(&b.rank.get())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn child(parent: &Lineage, rank: u32) -> Lineage {
        // SAFETY: LN1: the trees of these tests live to their end, each parent in a box or before its children in its frame.
        unsafe { Lineage::child(parent, rank) }
    }

    fn rooted_child(parent: &Lineage, rank: u32, key: u64) -> Lineage {
        // SAFETY: as above.
        unsafe { Lineage::rooted_child(parent, rank, key) }
    }

    fn path(mut node: &Lineage) -> Vec<u32> {
        let mut ranks = vec![node.rank()];
        // SAFETY: the trees of these tests live to their end.
        while let Some(parent) = unsafe { node.parent().as_ref() } {
            ranks.push(parent.rank());
            node = parent;
        }
        ranks.reverse();
        ranks
    }

    /// A tree in which every new node hangs below a pseudo-random earlier one; `spine` makes it deep.
    #[allow(clippy::vec_box, reason = "lineages are pointed at")]
    fn tree(seed: u64, nodes: usize, spine: u64) -> Vec<Box<Lineage>> {
        let mut state = seed * 2 + 1;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut tree = vec![Box::new(Lineage::root(root_key(Priority::NORMAL, 7), 7))];
        for rank in 1..nodes as u32 {
            let at = if random() % 100 < spine { tree.len() - 1 } else { random() as usize % tree.len() };
            let child = Box::new(child(&tree[at], rank));
            tree.push(child);
        }
        tree
    }

    #[test]
    fn order_is_that_of_the_paths_of_ranks() {
        for (seed, spine) in [(1, 0), (2, 50), (3, 95), (4, 100)] {
            let tree = tree(seed, 400, spine);
            for a in &tree {
                for b in tree.iter().step_by(7) {
                    assert_eq!(a.compare(b), path(a).cmp(&path(b)), "seed {seed}, spine {spine}");
                }
            }
        }
    }

    #[test]
    fn a_priority_goes_before_a_deadline_and_that_before_age() {
        let old = root_key(Priority::NORMAL, 1);
        let young = root_key(Priority::NORMAL, 2);
        let now = Instant::now();
        let soon = root_key_with_deadline(Priority::NORMAL, now);
        let later = root_key_with_deadline(Priority::NORMAL, now + Duration::from_nanos(64));
        let hundred_years = Duration::from_secs(100 * 365 * 24 * 3600);
        let far = root_key_with_deadline(Priority::NORMAL, now + hundred_years);
        let urgent = root_key(Priority::URGENT, 3);
        let background = root_key_with_deadline(Priority::BACKGROUND, now);
        let mut keys = [young, background, later, far, old, soon, urgent];
        keys.sort_unstable();
        assert_eq!(keys, [urgent, soon, later, far, old, young, background]);
        let long_ago = now.checked_sub(hundred_years).unwrap_or(now);
        assert!(root_key_with_deadline(Priority::new(i8::MIN), long_ago) > 0);
        assert!(keys.iter().all(|&key| key < NO_KEY));
        assert_eq!(priority_of(background), Priority::BACKGROUND);
        assert!(root_key(Priority::new(i8::MAX), 1 << 50) < LEAST_KEY);
    }

    #[test]
    fn a_root_for_the_order_below_others_goes_by_its_own_key_and_before_its_children() {
        let old = Lineage::root(root_key(Priority::NORMAL, 1), 1);
        let urgent = rooted_child(&old, 5, root_key(Priority::URGENT, 2));
        let late = rooted_child(&old, 6, root_key(Priority::BACKGROUND, 3));
        let (a, b) = (child(&urgent, 0), child(&urgent, 1));
        let mut order = [&late, &b, &a, &old, &urgent];
        order.sort_by(|x, y| x.compare(y));
        assert!(order.iter().zip([&urgent, &a, &b, &old, &late]).all(|(x, y)| ptr::eq(*x, y)));
    }

    /// A jump is an allocation, and a store to somebody else's memory.
    #[test]
    fn close_relatives_are_compared_without_making_jumps() {
        let root = Lineage::root(root_key(Priority::NORMAL, 1), 1);
        let mut lines: [Vec<Box<Lineage>>; 2] = Default::default();
        for (rank, line) in lines.iter_mut().enumerate() {
            for depth in 0..4 {
                let parent = if depth == 0 { &root } else { &*line[depth - 1] };
                let child = Box::new(child(parent, rank as u32));
                line.push(child);
            }
        }
        for a in lines[0].iter().map(|one| &**one).chain([&root]) {
            for b in lines.iter().flatten() {
                assert_eq!(a.compare(b), path(a).cmp(&path(b)));
            }
        }
        let made = lines.iter().flatten().filter(|one| !one.jump.load(Ordering::Relaxed).is_null());
        assert_eq!(made.count(), 0);
    }

    #[test]
    fn a_deep_line_is_compared_without_recursion_and_in_few_hops() {
        let mut line = vec![Box::new(Lineage::root(root_key(Priority::NORMAL, 1), 1))];
        for _ in 0..200_000 {
            let child = Box::new(child(line.last().unwrap(), 0));
            line.push(child);
        }
        let side = child(&line[100], 1);
        assert_eq!(line[200_000].compare(&side), Order::Less);
        assert_eq!(line[200_000].compare(&line[100_000]), Order::Greater);
    }
}
