//! Loads: what a runtime is asked to do. [`crate::rival`] has the runtimes that are asked.

use crate::work;
use crate::work::graph::Shape;

/// How the work is split up. Most rivals have only one of these ways and use it for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Two closures, both over when the call returns.
    Join,
    /// A scope whose end waits for everything spawned into it, without handles.
    Scope,
    /// A handle a task; the value is moved out of it (forebear: `spawn` + `take`).
    Value,
    /// A handle a task; the value is looked at through it (forebear: `submit` + `wait`).
    Reference,
}

/// Where the two sides of [`Load::PingPong`] are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Across {
    /// On one worker.
    One,
    /// On a worker each, with another task that yields in a loop, so that the worker never sleeps.
    Awake,
    /// On a worker each, which goes to sleep between two tokens.
    Asleep,
}

/// When the roots of a [`Load::Forest`] are submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// All at once, before any worker begins.
    Batch,
    /// At random times, independently of each other, so that the workers are busy for this share of their time (in
    /// percent).
    Poisson(u64),
}

/// The contenders of a [`Load::Contend`] or [`Load::Append`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contenders {
    /// Threads that are not the runtime's.
    Threads,
    /// Tasks. For a rival that has none: threads.
    Tasks,
    /// Half threads, half tasks. For a rival that has no tasks: threads.
    Mixed,
}

/// What two contexts hand to each other in a [`Load::HandOver`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handed {
    /// The only permit of a semaphore, held for some hundreds of nanoseconds. Two tasks.
    Permit,
    /// The turn at a barrier for two. Two tasks; for a rival that has none: threads.
    Turn,
    /// An item, over a bounded channel of this capacity. Two threads that are not the runtime's.
    Item(usize),
}

/// The number that grows in a [`Load::Growth`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grows {
    /// Requests, made by one and then waited for by it. An item is one of them.
    Requests,
    /// Requests each of which waits for the next. An item is a level.
    Depth,
    /// Requests that all wait for one request. An item is one of them, from its making to its end.
    WaitersOfRequest,
    /// Requests that wait for one lock. An item is one of them, from its making to its end.
    WaitersOfLock,
    /// Timers that are armed at a time, in no order. An item is one of them, armed, and disarmed when all are
    /// armed.
    Timers,
    /// Workers, while the work stays the same. An item is a piece of that work.
    Workers(Fixed),
}

/// Work that stays the same while the number of workers grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fixed {
    /// A tree of tiny tasks: [`Load::Skynet`].
    Tree,
    /// A fork-join of nearly nothing: [`Load::Fib`].
    Fib,
    /// Arms of 50 µs, forked by halving.
    Arms,
    /// Many roots with children that suspend: [`Load::Roots`].
    Roots,
    /// A lock that all tasks want, for a short time: [`Load::LockContended`].
    Lock,
}

/// Where the tasks of a [`Load::CancelAt`] are when they are cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stand {
    /// In no wait: they loop, check for a cancel each time, and yield.
    Checks,
    /// In a wait for a lock that another task holds.
    Lock,
    /// In a wait for room in a full channel.
    Channel,
    /// They sleep, for an hour.
    Sleep,
}

/// What the requests of a [`Load::Features`] have beside the callable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum With {
    /// Nothing: the base of comparison.
    Nothing,
    /// A name.
    Name,
    /// One callback.
    Callback,
    /// A deadline, an hour off.
    Deadline,
    /// A stack of its own, so that the waiter is suspended.
    OwnStack,
    /// A wait with a time-out of an hour. Such a wait never runs the request itself.
    TimeOut,
    /// One input, by `then`. The two of them are an operation.
    OneInput,
    /// Eight inputs, by `after`. The nine of them are an operation.
    EightInputs,
    /// No code: a completion that is fulfilled before it is waited for.
    Completion,
    /// A wait by its future, in `block_on`.
    Future,
    /// A region in which a cancel is held back, around what the callable does.
    Shield,
    /// The same in the first arm of a join, whose second arm does nothing.
    ShieldInJoin,
}

/// How the edges of a [`Load::Graph`] are expressed. Rivals have one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edges {
    /// They are declared when a node is made.
    Declared,
    /// Each node waits for its predecessors.
    Waited,
}

/// One piece of work of a known size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Load {
    /// `tasks` tasks yield to each other `yields` times each, each yield behind `calls` (0, 1 or 3) calls that are not
    /// inlined. An operation is a yield.
    Switch {
        /// How many tasks take turns.
        tasks: u64,
        /// How often each yields.
        yields: u64,
        /// How many calls stand between the task's loop and the yield.
        calls: u8,
    },
    /// Doubly recursive Fibonacci without a cut-off. An operation is a fork.
    Fib {
        /// Which number.
        n: u64,
        /// How a fork is made.
        how: How,
    },
    /// `n` tasks that mark a byte, made by one task and waited for by it. An operation is a task.
    SpawnIn {
        /// How many tasks.
        n: u64,
        /// In a scope, or by handles.
        how: How,
    },
    /// The same, made by a thread that is not the runtime's.
    SpawnOut {
        /// How many tasks.
        n: u64,
        /// In a scope, or by handles.
        how: How,
    },
    /// `n` tasks, each made and waited for before the next is made. An operation is a task.
    SpawnWaitOne {
        /// How many tasks.
        n: u64,
        /// By value or by reference.
        how: How,
    },
    /// A tree of tasks, ten children a node, that adds up the numbers of its leaves. An operation is a node.
    Skynet {
        /// A power of ten.
        leaves: u64,
        /// How a node makes its children.
        how: How,
    },
    /// A graph of nodes that compute for so long, made and run. An operation is a node.
    Graph {
        /// Its shape.
        shape: Shape,
        /// How long a node computes, in microseconds.
        micros: u64,
        /// How its edges are expressed.
        edges: Edges,
    },
    /// `n` tasks in one collection, taken out of it in the order in which they end. An operation is a task.
    Set {
        /// How many.
        n: u64,
    },
    /// `n` tasks that are declared to be after `edges` others which have not run. An operation is a task.
    Dependents {
        /// How many.
        n: u64,
        /// After how many each is.
        edges: u64,
    },
    /// After a pause of 5 ms: `arms` arms of one millisecond of computing each, forked by halving. One operation.
    Coarse {
        /// How many arms.
        arms: u64,
    },
    /// `n` tasks are suspended, then all woken. An operation is a task woken.
    Suspended {
        /// How many tasks.
        n: u64,
        /// False: they wait for one event, and wake in the order of their making. True: for a thousand events, dealt out
        /// in turn, so that neighbours in the order of waking are far apart in memory.
        scattered: bool,
    },
    /// `n` tasks with a closure of two words are made by one task, and none has begun. An operation is a task made, run and
    /// waited for.
    Queued {
        /// How many tasks.
        n: u64,
    },
    /// `n` tasks are suspended, then all woken, and the runtime is left alone until it gives no memory back any more. An
    /// operation is a task's memory given back.
    Burst {
        /// How many tasks.
        n: u64,
    },
    /// A task that makes a task and waits for it, to that depth. An operation is a level.
    Depth {
        /// How many levels.
        levels: u64,
    },
    /// One task cancels its children: so many that wait, and so many that have not started. An operation is one of these.
    Cancel {
        /// How many wait.
        suspended: u64,
        /// How many were made just before, and have not started.
        queued: u64,
    },
    /// Of many that wait, some are cancelled one after the other. An operation is one of these, until it is over.
    CancelSome {
        /// How many wait.
        among: u64,
        /// How many are cancelled.
        victims: u64,
    },
    /// One task cancels `n` children that are all in the same kind of wait. An operation is one of these, until it is over.
    CancelAt {
        /// How many.
        n: u64,
        /// Where they wait.
        stand: Stand,
    },
    /// `n` tasks, each made with a feature beside its work, and waited for before the next is made. An operation is a task.
    Features {
        /// How many tasks.
        n: u64,
        /// Which feature.
        with: With,
    },
    /// `n` tasks, each made, given callbacks, and waited for before the next is made. An operation is a task.
    Callbacks {
        /// How many tasks.
        n: u64,
        /// How many callbacks each.
        each: u64,
    },
    /// `roots` tasks from outside, each with `children` children that yield once. An operation is a child.
    Roots {
        /// How many.
        roots: u64,
        /// How many each.
        children: u64,
    },
    /// `n` tasks that mark a byte, added to a collection at once and run with at most `bound` at a time; each value is handed
    /// on as it comes. An operation is a task.
    PoolMember {
        /// How many tasks.
        n: u64,
        /// How many at a time.
        bound: usize,
        /// By a task of the runtime's; otherwise by another thread.
        inside: bool,
    },
    /// Tiles of an image, smoothed at several scales, about a quarter millisecond each. One operation.
    TreeDog {
        /// How many tiles.
        tasks: u64,
    },
    /// One task takes a lock of its own, and adds one under it, `n` times. An operation is a lock and its unlock.
    Lock {
        /// How often.
        n: u64,
    },
    /// One task takes a reader-writer lock of its own for reading, and reads a one under it, `n` times. An operation is a lock and its unlock.
    ReadLock {
        /// How often.
        n: u64,
    },
    /// `tasks` tasks add one to one number under one lock, `each` times each. An operation is a lock and its unlock.
    LockContended {
        /// How many tasks.
        tasks: u64,
        /// How often each.
        each: u64,
    },
    /// The same, and the holder of the lock yields before it adds, so that all others wait. An operation is a lock, a yield and an
    /// unlock.
    LockYield {
        /// How many tasks.
        tasks: u64,
        /// How often each.
        each: u64,
    },
    /// `many` contenders take one lock again and again, until there have been `sections` sections of some hundreds of nanoseconds. An
    /// operation is a section. The waits are in the figures.
    Contend {
        /// Who.
        of: Contenders,
        /// How many.
        many: u64,
        /// How many sections, all together.
        sections: u64,
    },
    /// `many` contenders poll under one lock, each until the one before it has appended. The last is made first. One
    /// operation.
    Append {
        /// Who.
        of: Contenders,
        /// How many.
        many: u64,
    },
    /// Two tasks send a token back and forth over two bounded channels of capacity 1. An operation is a round trip.
    PingPong {
        /// How many round trips.
        n: u64,
        /// Whether they are on one worker.
        across: Across,
    },
    /// `senders` tasks send `each` items each to one task that receives them, over one bounded channel. An operation is an item.
    Mpsc {
        /// How many senders.
        senders: u64,
        /// How many items each.
        each: u64,
        /// How many items there may be in the channel.
        capacity: usize,
    },
    /// Two tasks, made by a thread that is not the runtime's and waits for them, or two such threads, hand something to each other `n` times. An operation is one of
    /// these times.
    HandOver {
        /// How often.
        n: u64,
        /// What.
        of: Handed,
    },
    /// `roots` trees of tasks, 85 in each, which stamp when they became known and when they began. The stamps show how often a
    /// runtime picks a younger task than the oldest that it could have picked. An operation is a task.
    Forest {
        /// How many trees.
        roots: u64,
        /// When they come.
        arrivals: Arrivals,
    },
    /// An idle time after some work. One operation; its time is the processor time of the runtime's threads.
    Idle {
        /// How long.
        millis: u64,
    },
    /// `n` tasks from outside, one at a time, each after a pause. An operation is a task; its time is that from the call
    /// outside to the task's first instruction.
    Wake {
        /// How many.
        n: u64,
        /// The pause before each, in microseconds.
        pause: u64,
    },
    /// The same with a growing number, up to so many: a curve. An operation is an item at the largest number.
    Growth {
        /// Of what.
        of: Grows,
        /// How many at most.
        up_to: u64,
    },
    /// `n` one-shot channels, each made, sent into and received from before the next is made. An operation is a channel.
    Oneshot {
        /// How many.
        n: u64,
        /// By a task made for it; otherwise by the receiver, just before.
        spawned: bool,
    },
    /// `tasks` tasks arm `each` timers each, an hour off and more, and disarm them: each before the next is armed, or all
    /// after all are armed. An operation is a timer armed and disarmed.
    Timer {
        /// How many tasks.
        tasks: u64,
        /// How many timers each.
        each: u64,
        /// Whether all of a task's timers are armed before the first is disarmed.
        standing: bool,
    },
    /// As [`PingPong`](Load::PingPong) on one worker, and each wait has a time-out of an hour. An operation is a round trip: two
    /// waits that others end in time.
    Timeouts {
        /// How many round trips.
        n: u64,
    },
    /// `n` tasks sleep until an instant after all of them have fallen asleep: the same for all, or spread evenly, in no order.
    /// An operation is a sleeper woken and over, from the last instant on. How late each of them continues is in the figures.
    Sleepers {
        /// How many tasks.
        n: u64,
        /// Over how many milliseconds their instants are spread.
        spread_ms: u64,
    },
    /// `urgent` tasks, made first, sleep until instants that are spread evenly; meanwhile one task, made after them, forks a tree by halving, whose leaves compute
    /// for so long. An operation is a leaf. How late each of the sleepers continues is in the figures.
    Urgent {
        /// How many sleep.
        urgent: u64,
        /// Over how many milliseconds their instants are spread.
        spread_ms: u64,
        /// How many leaves the tree has.
        leaves: u64,
        /// How long a leaf computes, in microseconds.
        micros: u64,
        /// Whether the tree is run by threads beside those of the runtime.
        apart: bool,
    },
}

impl Load {
    /// How many operations the figure per operation is divided by.
    #[must_use]
    pub fn ops(self) -> u64 {
        match self {
            Load::Switch { tasks, yields, .. } => tasks * yields,
            Load::Fib { n, .. } => work::fib(n + 1) - 1,
            Load::SpawnIn { n, .. } | Load::SpawnOut { n, .. } | Load::SpawnWaitOne { n, .. } => n,
            Load::Skynet { leaves, .. } => (10 * leaves - 1) / 9,
            Load::Graph { shape, .. } => u64::from(shape.nodes()),
            Load::Set { n } | Load::Dependents { n, .. } => n,
            Load::Coarse { .. } | Load::TreeDog { .. } | Load::Append { .. } => 1,
            Load::Contend { sections, .. } => sections,
            Load::Suspended { n, .. } | Load::PoolMember { n, .. } => n,
            Load::Queued { n } | Load::Burst { n } => n,
            Load::Depth { levels } => levels,
            Load::Cancel { suspended, queued } => suspended + queued,
            Load::CancelSome { victims, .. } => victims,
            Load::Callbacks { n, .. } | Load::CancelAt { n, .. } | Load::Features { n, .. } => n,
            Load::Roots { roots, children } => roots * children,
            Load::Lock { n } | Load::ReadLock { n } | Load::PingPong { n, .. } | Load::Oneshot { n, .. } => n,
            Load::LockContended { tasks, each } | Load::LockYield { tasks, each } => tasks * each,
            Load::HandOver { n, .. } => n,
            Load::Mpsc { senders, each, .. } => senders * each,
            Load::Forest { roots, .. } => work::forest::tasks(roots),
            Load::Idle { .. } => 1,
            Load::Growth { .. } => work::ITEMS,
            Load::Wake { n, .. } => n,
            Load::Timer { tasks, each, .. } => tasks * each,
            Load::Timeouts { n } | Load::Sleepers { n, .. } => n,
            Load::Urgent { leaves, .. } => leaves,
        }
    }

    /// The value that proves the work was done.
    #[must_use]
    pub fn expected(self) -> u64 {
        match self {
            Load::Fib { n, .. } => work::fib(n),
            Load::Skynet { leaves, .. } => leaves * (leaves - 1) / 2,
            Load::Coarse { arms } => arms,
            Load::Append { many, .. } => many,
            Load::TreeDog { tasks } => work::image::digest(tasks),
            Load::Callbacks { n, each } => n * (1 + each),
            _ => self.ops(),
        }
    }

    /// The same load, smaller: for trying out the benches, not for figures.
    #[must_use]
    pub fn quick(self) -> Load {
        match self {
            Load::Switch { tasks, yields, calls } => {
                Load::Switch { tasks, yields: (yields / 10).max(10), calls }
            }
            Load::Fib { n, how } => Load::Fib { n: n.min(20), how },
            Load::SpawnIn { n, how } => Load::SpawnIn { n: n.min(10_000), how },
            Load::SpawnOut { n, how } => Load::SpawnOut { n: n.min(10_000), how },
            Load::PoolMember { n, bound, inside } => Load::PoolMember { n: n.min(10_000), bound, inside },
            Load::SpawnWaitOne { n, how } => Load::SpawnWaitOne { n: n.min(2_000), how },
            Load::Skynet { leaves, how } => Load::Skynet { leaves: leaves.min(10_000), how },
            Load::Suspended { n, scattered } => Load::Suspended { n: n.min(20_000), scattered },
            Load::Queued { n } => Load::Queued { n: n.min(10_000) },
            Load::Burst { n } => Load::Burst { n: n.min(5_000) },
            Load::Cancel { suspended, queued } => {
                Load::Cancel { suspended: suspended / 20, queued: queued / 20 }
            }
            Load::CancelSome { among, victims } => {
                Load::CancelSome { among: among / 20, victims: victims / 20 }
            }
            Load::CancelAt { n, stand } => Load::CancelAt { n: n / 20, stand },
            Load::Features { n, with } => Load::Features { n: n.min(2_000), with },
            Load::Callbacks { n, each } => Load::Callbacks { n: n.min(2_000), each },
            Load::Roots { roots, children } => Load::Roots { roots, children: (children / 8).max(1) },
            Load::TreeDog { tasks } => Load::TreeDog { tasks: tasks.min(48) },
            Load::Lock { n } => Load::Lock { n: n.min(10_000) },
            Load::ReadLock { n } => Load::ReadLock { n: n.min(10_000) },
            Load::LockContended { tasks, each } => Load::LockContended { tasks, each: (each / 20).max(1) },
            Load::LockYield { tasks, each } => Load::LockYield { tasks, each: (each / 20).max(1) },
            Load::Contend { of, many, .. } => Load::Contend { of, many: many.min(10), sections: 1_000 },
            Load::Append { of, many } => Load::Append { of, many: many.min(9) },
            Load::PingPong { n, across } => Load::PingPong { n: n.min(100), across },
            Load::Mpsc { senders, each, capacity } => Load::Mpsc { senders, each: each.min(1_000), capacity },
            Load::HandOver { n, of } => Load::HandOver { n: n.min(1_000), of },
            Load::Oneshot { n, spawned } => Load::Oneshot { n: n.min(1_000), spawned },
            Load::Forest { roots, arrivals } => Load::Forest { roots: roots.min(8), arrivals },
            Load::Idle { millis } => Load::Idle { millis: millis.min(20) },
            Load::Wake { n, pause } => Load::Wake { n: n.min(5), pause },
            Load::Growth { of: of @ Grows::Workers(_), .. } => Load::Growth { of, up_to: 4 },
            Load::Growth { of, up_to } => Load::Growth { of, up_to: up_to.min(1_000) },
            Load::Timer { tasks, each, standing } => Load::Timer { tasks, each: each.min(1_000), standing },
            Load::Timeouts { n } => Load::Timeouts { n: n.min(100) },
            Load::Sleepers { n, spread_ms } => Load::Sleepers { n: n.min(1_000), spread_ms },
            Load::Urgent { urgent, leaves, micros, apart, .. } => {
                Load::Urgent { urgent: urgent.min(5), spread_ms: 5, leaves: leaves.min(1_000), micros, apart }
            }
            Load::Graph { shape, micros, edges } => {
                let shape = match shape {
                    Shape::OneInput { .. } => Shape::OneInput { consumers: 8 },
                    Shape::Layered { edges, .. } => Shape::Layered { layers: 5, width: 10, edges },
                    Shape::Wavefront { side } => Shape::Wavefront { side: side.min(10) },
                };
                Load::Graph { shape, micros: micros.min(100), edges }
            }
            Load::Set { n } => Load::Set { n: n.min(1_000) },
            Load::Dependents { n, edges } => Load::Dependents { n: n.min(10_000), edges },
            whole @ (Load::Coarse { .. } | Load::Depth { .. }) => whole,
        }
    }

    /// Run first, and not counted: enough coarse work for the system to spread the workers over the cores. The
    /// system may wake a sleeping thread on its last core, so two of them may share a core for a long time.
    pub const SETTLING: Load = Load::Coarse { arms: 20 };

    /// Whether [`SETTLING`](Load::SETTLING) is needed before each repeat and not only before the first: two arms are over
    /// before the system balances its cores again.
    #[must_use]
    pub fn unsettles(self) -> bool {
        matches!(self, Load::Coarse { arms } if arms < 20)
    }

    /// Whether a process runs the load once only: memory is measured, the machine is filled, or the load takes very long.
    #[must_use]
    pub fn is_single_shot(self) -> bool {
        matches!(
            self,
            Load::Suspended { .. }
                | Load::Queued { .. }
                | Load::Dependents { .. }
                | Load::Burst { .. }
                | Load::Depth { .. }
                | Load::Idle { .. }
                | Load::Contend { .. }
                | Load::Append { .. }
                | Load::Growth { .. }
                | Load::Sleepers { .. }
                | Load::Urgent { .. }
        )
    }
}
