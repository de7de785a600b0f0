//! What steps cost, in nanoseconds.

/// A time, or a length of time.
pub type Nanos = u64;

/// The costs of one machine. The default is the two-core machine on which `docs/performance.md` was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// A line is read that this core has.
    pub hit: Nanos,
    /// A line is read or written that another core has written since: a hop from cache to cache.
    pub hop: Nanos,
    /// So many hops of one look are under way at a time, since its loads do not depend on each other.
    pub overlap: u64,
    /// An exchange on a line that this core has; also a lock and its unlock, which are one exchange and a store.
    pub exchange: Nanos,
    /// An entry is put in a shared queue or taken from it, under its lock.
    pub entry: Nanos,
    /// A request is made private: allocation, header, list.
    pub spawn: Nanos,
    /// A request of the private queue is run and ended: all but its own code.
    pub run: Nanos,
    /// On top of that for one that was published or came from outside: links, claim by exchange, memory that goes home.
    pub foreign_run: Nanos,
    /// A request is shown: links, its word, its entry.
    pub publish: Nanos,
    /// A suspended fiber is entered again.
    pub resume: Nanos,
    /// The way of a pick but for its loads.
    pub pick: Nanos,
    /// The clock is read.
    pub clock: Nanos,
    /// The call by which a thread goes to sleep.
    pub block: Nanos,
    /// What waking a sleeping thread takes of the waker's time.
    pub call: Nanos,
    /// From the call until the woken thread's first instruction, on a core that was idle.
    pub wake: Nanos,
    /// A core goes from one thread to another.
    pub switch: Nanos,
    /// How long a thread has a core while others want it.
    pub slice: Nanos,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            hit: 1,
            hop: 63,
            overlap: 4,
            exchange: 5,
            entry: 6,
            spawn: 8,
            run: 4,
            foreign_run: 60,
            publish: 25,
            resume: 5,
            pick: 8,
            clock: 20,
            block: 1_500,
            call: 10_000,
            wake: 28_000,
            switch: 2_000,
            slice: 3_000_000,
        }
    }
}

impl Costs {
    /// A machine on which everything but the work itself is free: for comparing with what can be calculated.
    #[must_use]
    pub const fn free() -> Costs {
        Costs {
            hit: 0,
            hop: 0,
            overlap: 1,
            exchange: 0,
            entry: 0,
            spawn: 0,
            run: 0,
            foreign_run: 0,
            publish: 0,
            resume: 0,
            pick: 0,
            clock: 0,
            block: 0,
            call: 0,
            wake: 0,
            switch: 0,
            slice: 3_000_000,
        }
    }
}

/// A worker searches for so long before it sleeps.
pub const SEARCH: Nanos = 28_000;
/// Between two looks of a searcher.
pub const ROUND: Nanos = 400;
/// Stolen work that lasted less makes a thief hold back,
pub const WORTH_IT: Nanos = 4_000;
/// or less a request,
pub const WORTH_IT_EACH: Nanos = 400;
/// if there were more than so many, or each time as few:
pub const FEW: u64 = 32;
/// at first for so long,
pub const SHORTEST_PAUSE: Nanos = 25_000;
/// at last for so long.
pub const LONGEST_PAUSE: Nanos = 400_000;
/// The first tick of a sleeper beside busy workers,
pub const TICK: Nanos = 200_000;
/// and the longest.
pub const LONGEST_TICK: Nanos = 5_000_000;
/// The most that one publication shows.
pub const LARGEST_BATCH: u32 = 64;
/// So many workers share a published word, if there are more.
pub const MEMBERS: usize = 8;
/// One look in so many is full.
pub const FULL_EVERY: u32 = 32;
