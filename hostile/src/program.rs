//! What a random program is made of. How a seed draws one stands in `draw`.
//!
//! A program is a [`Setting`] (which runtimes there are), a few hooks, and one body for each thread. A body is a row of
//! nodes, run one after the other. A node is an operation and the bodies that the operation calls: as a request, a job of
//! a scope, a callback, a destructor, and so on. Nodes are numbered, so that a failing program can be shrunk by leaving
//! nodes out ([`Program::without`]). A program has no loops, so it ends if everything that waits is woken.

use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::sync::Arc;

mod draw;

/// Nodes in the order in which they run.
pub(crate) type Body = Arc<[Node]>;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: u32,
    pub(crate) op: Op,
    pub(crate) on_error: OnError,
    pub(crate) bodies: Vec<Body>,
}

/// What a node does with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnError {
    Ignore,
    Return,
    Unwind,
}

/// How long a wait may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    None,
    Zero,
    Micros(u32),
}

/// How a request comes into being.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    /// `spawn`, on the runtime of the caller.
    Spawn,
    /// `Request::try_new`, not submitted.
    New,
    /// By a builder, on the runtime of this number.
    Built {
        runtime: u8,
        priority: i8,
        timeout: Option<u32>,
        hint: Option<Hint>,
        detached: bool,
        own_stack: bool,
        submit: bool,
    },
}

/// In which order a request takes a place among its like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    Given(i8),
    NewestFirst,
}

/// What a dependent gets of the request that it is after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Nothing,
    Value,
    Outcome,
    /// The value itself; the handle is used up.
    Whole,
    /// The values of this one and of another slot.
    Both {
        other: u8,
    },
}

/// What an error of a program's does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// It has a text, and no more.
    Text,
    /// The body runs in its destructor.
    Dropped,
    /// The body runs when it is asked for its source for the first time.
    Asked,
}

impl ErrorKind {
    /// Whether it has a body.
    pub(crate) fn runs(self) -> bool {
        self != ErrorKind::Text
    }
}

/// How a completion ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completes {
    Value,
    /// With an error, or one whose body is the first of the node.
    Error(ErrorKind),
    /// The completer is dropped.
    Never,
}

/// What is done with several requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Several {
    First,
    All,
    /// Through a set: so many are taken out, then the set is cancelled or dropped.
    Next {
        times: u8,
        limit: Limit,
        cancel: bool,
    },
}

/// What is done with the future of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polls {
    /// It is awaited, by `block_on`, until the world stops.
    BlockOn,
    /// The same by an untyped handle.
    BlockOnUntyped,
    /// It is polled once, and dropped.
    Once,
    /// The future that takes the value is polled once, and kept for others to poll.
    Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callback {
    Finished,
    Failed,
    Cancelled,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    Mutex,
    Read,
    Write,
    Reentrant,
    Permit,
}

/// An operation. Numbers name slots, runtimes, locks and channels of the [`World`](crate::world::World).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// One body: the callable. `bomb`: the callable's captures and the value run a second body when they are dropped.
    Make {
        slot: u8,
        how: Make,
        bomb: bool,
    },
    Wait {
        slot: u8,
        limit: Limit,
    },
    WaitUntyped {
        slot: u8,
        limit: Limit,
    },
    Watch {
        slot: u8,
    },
    Take {
        slot: u8,
    },
    Poll {
        slot: u8,
    },
    Drop {
        slot: u8,
    },
    Forget {
        slot: u8,
    },
    Copy {
        from: u8,
        to: u8,
    },
    Cancel {
        slot: u8,
    },
    Abort {
        slot: u8,
    },
    CancelMyself,
    /// The body is called; `bomb`: what the callback has captured runs a second body when it is dropped.
    Callback {
        slot: u8,
        which: Callback,
        bomb: bool,
    },
    /// The first body is the scope's own, the others its jobs.
    /// `after`: each job is declared to be after the request in that slot; with `value`, it gets the value of that.
    Scope {
        fallible: bool,
        cancel: bool,
        stay: bool,
        after: Option<u8>,
        value: bool,
    },
    /// Two bodies.
    Join {
        fallible: bool,
    },
    /// Each body is a member; the requests in these slots are included before the last.
    Pool {
        bound: u8,
        cancel: bool,
        include: [Option<u8>; 2],
    },
    /// A dependent of the request in `from`. Bodies as those of `Make`.
    Then {
        slot: u8,
        from: u8,
        gets: Then,
        runtime: Option<u8>,
        timeout: Option<u32>,
        hint: Option<Hint>,
        own_stack: bool,
        submit: bool,
        bomb: bool,
    },
    /// A request without code, and its completer.
    Promise {
        slot: u8,
        completer: u8,
    },
    Complete {
        completer: u8,
        with: Completes,
    },
    Hint {
        slot: u8,
        hint: i8,
    },
    Several {
        slots: [u8; 3],
        how: Several,
    },
    /// The body runs in the waker, where one is called.
    Future {
        slot: u8,
        how: Polls,
    },
    /// Polls what was kept, or drops it.
    Kept {
        drop: bool,
    },
    /// The body runs on a thread outside the workers. `bomb`: what the call returns runs a second body when it is dropped.
    Blocking {
        bomb: bool,
    },
    Region {
        micros: u32,
    },
    NoSuspend,
    Shield,
    Catch,
    Repeat {
        times: u8,
    },
    /// The body runs while the lock is held. `forget` leaks the guard; only timed waits ask for that lock afterwards.
    Lock {
        lock: u8,
        kind: LockKind,
        limit: Limit,
        forget: bool,
    },
    Condition {
        lock: u8,
        limit: u32,
    },
    Notify {
        all: bool,
    },
    WaitEvent {
        limit: Limit,
    },
    SetEvent,
    ResetEvent,
    Barrier {
        micros: u32,
    },
    CallOnce,
    /// The body runs while the lock is held, which has no owner.
    RawLock {
        micros: u32,
    },
    /// Releases that lock, whoever has it.
    RawUnlock,
    CountDown,
    WaitLatch {
        limit: Limit,
    },
    /// The body makes the value.
    Initialise,
    WaitValue {
        limit: Limit,
    },
    /// Ticks of one interval.
    Ticks {
        micros: u32,
        times: u8,
    },
    SleepUntil {
        micros: u32,
    },
    /// The body runs under an expiration timer of the request; `forget`: its guard is leaked.
    Expires {
        micros: u32,
        forget: bool,
    },
    /// `bomb`: the body runs in the destructor of the item.
    Send {
        channel: u8,
        limit: Limit,
        bomb: bool,
    },
    Receive {
        channel: u8,
        limit: Limit,
    },
    TryReceive {
        channel: u8,
    },
    /// `set`: the requests in these slots are a set, which is one more arm; `cancel`: the set is cancelled afterwards, or else dropped.
    Select {
        channel: u8,
        slot: u8,
        set: Option<[u8; 2]>,
        cancel: bool,
        micros: u32,
    },
    /// The value of the watch channel is replaced. `bomb`: the body runs in the destructor of the new one.
    Publish {
        bomb: bool,
    },
    /// Waits for a newer value of the watch channel.
    Observe {
        limit: Limit,
    },
    /// A one-shot channel, whose ends stand in the places of this number.
    OneShot {
        place: u8,
    },
    /// `bomb`: the body runs in the destructor of the item.
    SendOnce {
        place: u8,
        bomb: bool,
    },
    ReceiveOnce {
        place: u8,
        limit: Limit,
    },
    /// Moves the manual clock.
    Advance {
        micros: u32,
    },
    /// The body is called at each move of the manual clock, in place of the one before.
    Subscribe,
    Unsubscribe,
    /// The body is a task of the plain pool. `bomb`: what the task has captured runs a second body when it is dropped.
    Submit {
        bomb: bool,
    },
    /// Waits for the threads of the plain pool.
    StopPool,
    DropPool,
    Sleep {
        micros: u32,
    },
    Yield,
    Spin {
        micros: u32,
    },
    /// `bomb`: the body runs in the destructor of the payload.
    Panic {
        bomb: bool,
    },
    Fail(ErrorKind),
    /// The body runs in a destructor, when the rest of this body has been run or is unwound.
    Bomb,
    /// The body runs in the destructor of a thread-local of whichever thread runs this.
    ThreadBomb,
    /// The body runs on a thread of its own, which nobody waits for before the end.
    Thread,
    Run {
        runtime: u8,
        fallible: bool,
    },
    Enter {
        runtime: u8,
    },
    Shutdown {
        runtime: u8,
        micros: u32,
    },
    Finish {
        runtime: u8,
        micros: u32,
    },
    DropRuntime {
        runtime: u8,
    },
    Look {
        runtime: u8,
    },
    Dump {
        runtime: u8,
    },
}

impl Op {
    /// Whether it may suspend its request or block its thread.
    pub(crate) fn waits(self) -> bool {
        use Op::*;
        !matches!(
            self,
            Make { .. }
                | Poll { .. }
                | Drop { .. }
                | Forget { .. }
                | Copy { .. }
                | Cancel { .. }
                | Abort { .. }
                | CancelMyself
                | Callback { .. }
                | NoSuspend
                | Shield
                | Catch
                | Repeat { .. }
                | Notify { .. }
                | SetEvent
                | ResetEvent
                | TryReceive { .. }
                | Spin { .. }
                | Panic { .. }
                | Fail(_)
                | Bomb
                | ThreadBomb
                | Thread
                | Enter { .. }
                | Look { .. }
                | Dump { .. }
                | RawUnlock
                | CountDown
                | Then { .. }
                | Promise { .. }
                | Complete { .. }
                | Hint { .. }
                | Kept { .. }
                | DropRuntime { .. }
                | Publish { .. }
                | OneShot { .. }
                | SendOnce { .. }
                | Advance { .. }
                | Subscribe
                | Unsubscribe
                | Submit { .. }
                | DropPool
        )
    }
}

/// Which runtimes there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// So many runtimes, each with so many workers, and plain threads that use them.
    Workers(Vec<usize>),
    /// One runtime without workers, driven by one thread.
    Synchronous,
    /// One runtime in the seeded mode; every context is one of its requests. The seed of the program replays the schedule.
    Seeded,
}

/// A whole program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) seed: u64,
    pub(crate) setting: Setting,
    /// Destructors may wait while their thread unwinds. The runtime may abort such a program, by name.
    pub(crate) wild: bool,
    /// What the hooks of each runtime do: the warning hook, the hook for failures that nobody looked at, the clock.
    pub(crate) hooks: [Option<Body>; 3],
    /// A plain pool, and what its hooks do: for a task that panics, for tasks that were not begun, for the end of a thread.
    pub(crate) pool: Option<[Option<Body>; 3]>,
    /// The runtimes are on the manual clock, which a thread of its own moves, too.
    pub(crate) manual: bool,
    pub(crate) threads: Vec<Body>,
    pub(crate) without: HashSet<u32>,
    pub(crate) nodes: u32,
}

pub(crate) const SLOTS: u8 = 8;
/// How many locks there are of each kind. There is one mutex more, of which nobody forgets a guard.
pub(crate) const LOCKS: u8 = 3;
pub(crate) const CHANNELS: u8 = 4;
pub(crate) const COMPLETERS: u8 = 3;
pub(crate) const ONE_SHOTS: u8 = 2;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (wild, manual) =
            (if self.wild { ", wild" } else { "" }, if self.manual { ", on a manual clock" } else { "" });
        writeln!(f, "program {}: {:?}{wild}{manual}", self.seed, self.setting)?;
        let of_pool = self.pool.iter().flatten();
        let hooks = ["the warning hook", "the hook for unseen failures", "the clock"].iter().zip(&self.hooks);
        let pool = ["the pool's hook for panics", "for tasks not begun", "for the end of a thread"];
        for (what, hook) in hooks.chain(pool.iter().zip(of_pool)) {
            if let Some(hook) = hook {
                writeln!(f, "{what}:")?;
                self.tell(f, hook, 1)?;
            }
        }
        for (number, body) in self.threads.iter().enumerate() {
            writeln!(f, "thread {number}:")?;
            self.tell(f, body, 1)?;
        }
        Ok(())
    }
}

impl Program {
    fn tell(&self, f: &mut fmt::Formatter<'_>, body: &Body, depth: usize) -> fmt::Result {
        for node in body.iter().filter(|node| !self.without.contains(&node.id)) {
            let mut line = String::new();
            write!(line, "{:?}", node.op)?;
            if node.on_error != OnError::Ignore {
                write!(line, ", on error {:?}", node.on_error)?;
            }
            writeln!(f, "{:depth$}{}: {line}", "", node.id, depth = depth * 2)?;
            for (number, inner) in node.bodies.iter().enumerate() {
                if node.bodies.len() > 1 {
                    writeln!(f, "{:depth$}body {number}:", "", depth = depth * 2 + 2)?;
                }
                self.tell(f, inner, depth + 2)?;
            }
        }
        Ok(())
    }
}
