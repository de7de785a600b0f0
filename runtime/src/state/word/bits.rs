//! The fields of the word, and a reading of them. The head of [`super`] says what they mean.

use forebear_context::shim::mutant;

const LIFE: u64 = 0b111;

/// Created, not submitted.
pub const NEW: u64 = 0;
/// Held back by a pool until it is admitted.
pub const HELD: u64 = 1;
/// Submitted, not started.
pub const QUEUED: u64 = 2;
/// Somebody runs it, or ends it.
pub const CLAIMED: u64 = 3;
/// The callable has returned, callbacks run. The outcome is fixed.
pub const COMPLETING: u64 = 4;
/// Terminal: there is, or was, a value.
pub const FINISHED: u64 = 5;
/// Terminal: there is a failure.
pub const FAILED: u64 = 6;
/// Terminal: cancelled.
pub const CANCELLED: u64 = 7;

/// A cancel took hold.
pub const MARKED: u64 = 1 << 3;
/// A cancel was refused by demand and is remembered.
pub const VETOED: u64 = 1 << 4;
/// The outermost shielded region is open.
pub const SHIELDED: u64 = 1 << 5;
/// Submitted by other than a wait.
pub const SUBMITTED: u64 = 1 << 6;
/// The list of waiters is not empty.
pub const WAITERS: u64 = 1 << 7;
/// Guards the lists.
pub const LOCK: u64 = 1 << 8;
/// The list of callbacks is not empty.
pub const CALLBACKS: u64 = 1 << 9;
/// Somebody looked at the failure.
pub const SEEN: u64 = 1 << 10;
/// Marked for no other reason than that its parent was cancelled.
pub const INHERITED: u64 = 1 << 11;
/// In the private queue of the worker that made it.
pub const PRIVATE: u64 = 1 << 12;
/// Runs on a waiter's stack.
pub const LENT: u64 = 1 << 13;
/// What has become of it is its maker's local request.
pub const LOCAL: u64 = 1 << 14;
/// Somebody asks for the local request.
pub const REVOKING: u64 = 1 << 15;

/// One handle.
pub const HANDLE: u64 = 1 << 16;
/// One link.
pub const LINK: u64 = 1 << 40;
pub(super) const COUNT: u64 = (1 << 24) - 1;
/// A count this high aborts the process, as `Arc` does: leaked clones must not wrap into a use after free.
pub(super) const COUNT_LIMIT: u64 = 1 << 23;

/// Just made by a worker that keeps local requests: known by its one handle, and what becomes of it by that worker ([`super::local`]).
pub const NEW_LOCAL: u64 = NEW | LOCAL | HANDLE;
/// Just spawned: in its maker's private queue, known by its one handle and the list.
pub const SPAWNED: u64 = QUEUED | PRIVATE | SUBMITTED | HANDLE | LINK;
/// The same with a deadline. The second link is that of its entry with the timer, which may fire before the request stands in the queue.
pub const SPAWNED_LIMITED: u64 = mutant!("limited_without_a_link", SPAWNED, SPAWNED + LINK);
/// The same after its handle was dropped.
pub const SPAWNED_DETACHED: u64 = QUEUED | PRIVATE | SUBMITTED | LINK;
/// Taken by value by its sole holder, who runs it; nobody else knows of it.
pub const TAKEN_SOLE: u64 = CLAIMED | SUBMITTED | LENT | HANDLE;
/// Popped from the private queue with no handle left; nobody else knows of it.
pub const POPPED_SOLE: u64 = CLAIMED | SUBMITTED | LINK;

/// A reading of the word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bits(pub u64);

impl Bits {
    /// The life field.
    #[inline(always)]
    pub fn life(self) -> u64 {
        self.0 & LIFE
    }

    /// Whether `flag` is set.
    #[inline(always)]
    pub fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    /// Not claimed by anybody yet.
    #[inline(always)]
    pub fn is_unstarted(self) -> bool {
        self.life() <= QUEUED
    }

    /// Over for good.
    #[inline(always)]
    pub fn is_terminal(self) -> bool {
        self.life() >= FINISHED
    }

    /// Whether a request with this word that waits for another is demand for it: not marked, or within a shielded region, which
    /// it will wait to the end of.
    pub fn is_demand(self) -> bool {
        mutant!("shielded_is_no_demand", !self.has(MARKED), self.0 & (MARKED | SHIELDED) != MARKED)
    }

    /// How many handles there are.
    #[inline(always)]
    pub fn handles(self) -> u64 {
        self.0 >> 16 & COUNT
    }

    /// How many links there are.
    #[inline(always)]
    pub fn links(self) -> u64 {
        self.0 >> 40
    }

    /// One handle, and nothing else.
    #[inline(always)]
    pub fn is_sole_handle(self) -> bool {
        self.0 >> 16 == 1
    }

    /// Over, and known to nobody but its children, who hold one link together.
    #[inline(always)]
    pub fn is_family_only(self) -> bool {
        self.is_terminal() && self.0 >> 16 == LINK >> 16
    }

    /// No handle and no link.
    #[inline(always)]
    pub fn is_forgotten(self) -> bool {
        self.0 >> 16 == 0
    }

    pub(super) fn with_life(self, life: u64) -> Bits {
        Bits(self.0 & !LIFE | life)
    }
}

impl std::fmt::Debug for Bits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const LIVES: [&str; 8] =
            ["new", "held", "queued", "claimed", "completing", "finished", "failed", "cancelled"];
        const FLAGS: [(u64, &str); 13] = [
            (MARKED, "marked"),
            (VETOED, "vetoed"),
            (SHIELDED, "shielded"),
            (SUBMITTED, "submitted"),
            (WAITERS, "waiters"),
            (LOCK, "lock"),
            (CALLBACKS, "callbacks"),
            (SEEN, "seen"),
            (INHERITED, "inherited"),
            (PRIVATE, "private"),
            (LENT, "lent"),
            (LOCAL, "local request"),
            (REVOKING, "asked"),
        ];
        write!(f, "{}", LIVES[self.life() as usize])?;
        for (flag, name) in FLAGS {
            if self.has(flag) {
                write!(f, " {name}")?;
            }
        }
        write!(f, " handles={} links={}", self.handles(), self.links())
    }
}
