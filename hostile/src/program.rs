//! What a random program is made of, and how a seed draws one.
//!
//! A program is a [`Setting`] (which runtimes there are), a few hooks, and one body for each thread. A body is a row of
//! nodes, run one after the other. A node is an operation and the bodies that the operation calls: as a request, a job of
//! a scope, a callback, a destructor, and so on. Nodes are numbered, so that a failing program can be shrunk by leaving
//! nodes out ([`Program::without`]). A program has no loops, so it ends if everything that waits is woken.

use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use crate::random::Random;

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
    Built { runtime: u8, priority: i8, timeout: Option<u32>, detached: bool, own_stack: bool, submit: bool },
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
    Callback {
        slot: u8,
        which: Callback,
    },
    /// The first body is the scope's own, the others its jobs.
    Scope {
        fallible: bool,
        cancel: bool,
        stay: bool,
    },
    /// Two bodies.
    Join {
        fallible: bool,
    },
    /// Each body is a member.
    Pool {
        bound: u8,
        cancel: bool,
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
    Send {
        channel: u8,
        limit: Limit,
    },
    Receive {
        channel: u8,
        limit: Limit,
    },
    TryReceive {
        channel: u8,
    },
    Select {
        channel: u8,
        slot: u8,
        micros: u32,
    },
    Sleep {
        micros: u32,
    },
    Yield,
    Spin {
        micros: u32,
    },
    Panic,
    Fail,
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
                | Panic
                | Fail
                | Bomb
                | ThreadBomb
                | Thread
                | Enter { .. }
                | Look { .. }
                | Dump { .. }
                | RawUnlock
                | CountDown
                | DropRuntime { .. }
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
    pub(crate) threads: Vec<Body>,
    pub(crate) without: HashSet<u32>,
    pub(crate) nodes: u32,
}

pub(crate) const SLOTS: u8 = 8;
pub(crate) const LOCKS: u8 = 3;
pub(crate) const CHANNELS: u8 = 4;

/// How deep bodies stand in bodies.
const DEPTH: u32 = 5;

struct Draw {
    random: Random,
    next: u32,
    budget: u32,
    runtimes: u8,
    plain_threads: bool,
    forgets: bool,
}

impl Program {
    /// The program of this seed, without the nodes of these numbers.
    pub(crate) fn draw(seed: u64, without: HashSet<u32>) -> Program {
        let mut random = Random::new(seed);
        let setting = match random.below(8) {
            0 => Setting::Synchronous,
            1 | 2 => Setting::Seeded,
            3 => Setting::Workers(vec![1]),
            4 => Setting::Workers(vec![2]),
            5 => Setting::Workers(vec![1, 2]),
            6 => Setting::Workers(vec![1, 1, 2]),
            _ => Setting::Workers(vec![3]),
        };
        let wild = random.one_in(12);
        let budget = 6 + random.below(60) as u32;
        let runtimes = if let Setting::Workers(each) = &setting { each.len() as u8 } else { 1 };
        let plain_threads = matches!(setting, Setting::Workers(_));
        let forgets = random.one_in(8);
        let mut draw = Draw { random, next: 0, budget, runtimes, plain_threads, forgets };
        let threads = if plain_threads { 1 + draw.random.below(3) } else { 1 };
        let threads = (0..threads).map(|_| draw.body(0, 6)).collect();
        let mut hooks = [None, None, None];
        for hook in &mut hooks {
            if draw.random.one_in(16) {
                draw.budget += 3;
                *hook = Some(draw.body(DEPTH - 2, 2));
            }
        }
        Program { seed, setting, wild, hooks, threads, without, nodes: draw.next }
    }
}

impl Draw {
    fn body(&mut self, depth: u32, most: usize) -> Body {
        let wanted = 1 + self.random.below(most);
        let mut nodes = Vec::new();
        for _ in 0..wanted {
            if self.budget == 0 {
                break;
            }
            self.budget -= 1;
            nodes.push(self.node(depth));
        }
        nodes.into()
    }

    fn node(&mut self, depth: u32) -> Node {
        let id = self.next;
        self.next += 1;
        let op = self.op(depth);
        let bodies = match op {
            Op::Make { bomb: true, .. } | Op::Join { .. } => 2,
            Op::Scope { .. } => 2 + self.random.below(3),
            Op::Pool { .. } => 1 + self.random.below(4),
            Op::Make { .. }
            | Op::Callback { .. }
            | Op::Region { .. }
            | Op::NoSuspend
            | Op::Shield
            | Op::Catch => 1,
            Op::Repeat { .. } | Op::Lock { .. } | Op::CallOnce | Op::Bomb | Op::ThreadBomb | Op::Thread => 1,
            Op::Run { .. } | Op::Enter { .. } | Op::RawLock { .. } | Op::Initialise | Op::Expires { .. } => 1,
            _ => 0,
        };
        let bodies = (0..bodies).map(|_| self.body(depth + 1, 4)).collect();
        let on_error = self.random.of(&[OnError::Ignore, OnError::Ignore, OnError::Return, OnError::Unwind]);
        Node { id, op, on_error, bodies }
    }

    fn limit(&mut self) -> Limit {
        match self.random.below(6) {
            0 => Limit::Zero,
            1 | 2 => Limit::Micros(self.micros()),
            _ => Limit::None,
        }
    }

    fn micros(&mut self) -> u32 {
        self.random.of(&[1, 20, 100, 500, 2_000])
    }

    fn slot(&mut self) -> u8 {
        self.random.below(usize::from(SLOTS)) as u8
    }

    fn runtime(&mut self) -> u8 {
        self.random.below(usize::from(self.runtimes)) as u8
    }

    fn make(&mut self) -> Make {
        match self.random.below(5) {
            0 | 1 => Make::Spawn,
            2 => Make::New,
            _ => Make::Built {
                runtime: self.runtime(),
                priority: self.random.of(&[-1, 0, 0, 0, 1]),
                timeout: self.random.one_in(4).then(|| self.micros()),
                detached: self.random.one_in(4),
                own_stack: self.random.one_in(4),
                submit: !self.random.one_in(3),
            },
        }
    }

    fn op(&mut self, depth: u32) -> Op {
        loop {
            let op = match self.random.below(114) {
                0..=17 => Op::Make { slot: self.slot(), how: self.make(), bomb: self.random.one_in(3) },
                18..=23 => Op::Wait { slot: self.slot(), limit: self.limit() },
                24 => Op::WaitUntyped { slot: self.slot(), limit: self.limit() },
                25 => Op::Watch { slot: self.slot() },
                26..=28 => Op::Take { slot: self.slot() },
                29 => Op::Poll { slot: self.slot() },
                30 => Op::Drop { slot: self.slot() },
                31 => Op::Forget { slot: self.slot() },
                32 => Op::Copy { from: self.slot(), to: self.slot() },
                33..=35 => Op::Cancel { slot: self.slot() },
                36 => Op::Abort { slot: self.slot() },
                37 => Op::CancelMyself,
                38..=40 => Op::Callback {
                    slot: self.slot(),
                    which: self.random.of(&[
                        Callback::Finished,
                        Callback::Failed,
                        Callback::Cancelled,
                        Callback::Done,
                    ]),
                },
                41..=45 => Op::Scope {
                    fallible: self.random.one_in(2),
                    cancel: self.random.one_in(5),
                    stay: self.random.one_in(4),
                },
                46..=48 => Op::Join { fallible: self.random.one_in(2) },
                49..=50 => Op::Pool { bound: self.random.below(4) as u8, cancel: self.random.one_in(4) },
                51 => Op::Region { micros: self.micros() },
                52 => Op::NoSuspend,
                53 => Op::Shield,
                54 => Op::Catch,
                55 => Op::Repeat { times: 2 + self.random.below(6) as u8 },
                56..=61 => {
                    let forget = self.forgets && self.random.one_in(3);
                    Op::Lock {
                        lock: self.random.below(usize::from(LOCKS)) as u8,
                        kind: self.random.of(&[
                            LockKind::Mutex,
                            LockKind::Mutex,
                            LockKind::Read,
                            LockKind::Write,
                            LockKind::Reentrant,
                            LockKind::Permit,
                        ]),
                        // Where guards are forgotten, nobody waits without a limit.
                        limit: match self.limit() {
                            Limit::None if self.forgets => Limit::Micros(100),
                            limit => limit,
                        },
                        forget,
                    }
                }
                62 => {
                    Op::Condition { lock: self.random.below(usize::from(LOCKS)) as u8, limit: self.micros() }
                }
                63 => Op::Notify { all: self.random.one_in(2) },
                64..=65 => Op::WaitEvent { limit: self.limit() },
                66..=67 => Op::SetEvent,
                68 => Op::ResetEvent,
                69 => Op::Barrier { micros: self.micros() },
                70 => Op::CallOnce,
                71..=73 => Op::Send { channel: self.channel(), limit: self.limit() },
                74..=76 => Op::Receive { channel: self.channel(), limit: self.limit() },
                77 => Op::TryReceive { channel: self.channel() },
                78..=79 => Op::Select { channel: self.channel(), slot: self.slot(), micros: self.micros() },
                80 => Op::Sleep { micros: self.micros() },
                81..=82 => Op::Yield,
                83 => Op::Spin { micros: self.random.of(&[5, 50, 300]) },
                84 => Op::Panic,
                85 => Op::Fail,
                86..=88 => Op::Bomb,
                89 => Op::ThreadBomb,
                90 => Op::Thread,
                91..=93 => Op::Run { runtime: self.runtime(), fallible: self.random.one_in(2) },
                94 => Op::Enter { runtime: self.runtime() },
                95 => Op::Shutdown { runtime: self.runtime(), micros: self.micros() },
                96 => Op::Finish { runtime: self.runtime(), micros: self.micros() },
                97 => Op::DropRuntime { runtime: self.runtime() },
                98 => Op::Look { runtime: self.runtime() },
                99..=100 => Op::RawLock { micros: self.micros() },
                101 => Op::RawUnlock,
                102 => Op::CountDown,
                103 => Op::WaitLatch { limit: self.limit() },
                104..=105 => Op::Initialise,
                106 => Op::WaitValue { limit: self.limit() },
                107 => Op::Ticks { micros: self.micros(), times: 1 + self.random.below(4) as u8 },
                108 => Op::SleepUntil { micros: self.micros() },
                109..=110 => Op::Expires { micros: self.micros(), forget: self.random.one_in(4) },
                _ => Op::Dump { runtime: self.runtime() },
            };
            let nests = matches!(
                op,
                Op::Make { .. }
                    | Op::Callback { .. }
                    | Op::Scope { .. }
                    | Op::Join { .. }
                    | Op::Pool { .. }
                    | Op::Region { .. }
                    | Op::NoSuspend
                    | Op::Shield
                    | Op::Catch
                    | Op::Repeat { .. }
                    | Op::Lock { .. }
                    | Op::CallOnce
                    | Op::Bomb
                    | Op::ThreadBomb
                    | Op::Thread
                    | Op::Run { .. }
                    | Op::Enter { .. }
                    | Op::RawLock { .. }
                    | Op::Initialise
                    | Op::Expires { .. }
            );
            if nests && depth >= DEPTH {
                continue;
            }
            // Ends of runtimes are seldom, or little else would happen.
            let end = matches!(op, Op::Shutdown { .. } | Op::Finish { .. } | Op::DropRuntime { .. });
            if end && !self.random.one_in(2) {
                continue;
            }
            if !self.plain_threads && matches!(op, Op::Thread | Op::ThreadBomb) {
                continue;
            }
            return op;
        }
    }

    fn channel(&mut self) -> u8 {
        self.random.below(usize::from(CHANNELS)) as u8
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {}: {:?}{}", self.seed, self.setting, if self.wild { ", wild" } else { "" })?;
        for (what, hook) in
            ["the warning hook", "the hook for unseen failures", "the clock"].iter().zip(&self.hooks)
        {
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
