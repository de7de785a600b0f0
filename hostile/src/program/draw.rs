//! How a seed draws a program.

use std::collections::HashSet;

use super::*;
use crate::random::Random;

/// How deep bodies stand in bodies.
const DEPTH: u32 = 5;

struct Draw {
    random: Random,
    next: u32,
    budget: u32,
    runtimes: u8,
    plain_threads: bool,
    forgets: bool,
    /// In how many bodies that run under a lock, or while something is made once, this one stands.
    held: u32,
    /// In how many that run as a thread exits.
    exits: u32,
    /// In how many that the destructor of an item of a channel runs.
    items: u32,
    /// There is a plain pool.
    pool: bool,
}

/// Whether the one body of this runs when, and where, something goes that it has made.
fn runs_late(op: Op) -> bool {
    match op {
        Op::Fail(kind) | Op::Complete { with: Completes::Error(kind), .. } => kind.runs(),
        Op::Send { bomb, .. } | Op::Publish { bomb } | Op::SendOnce { bomb, .. } | Op::Panic { bomb } => bomb,
        _ => false,
    }
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
        let pool = plain_threads && random.one_in(3);
        let manual = plain_threads && random.one_in(8);
        let mut draw = Draw {
            random,
            next: 0,
            budget,
            runtimes,
            plain_threads,
            forgets,
            held: 0,
            exits: 0,
            items: 0,
            pool,
        };
        let threads = if plain_threads { 1 + draw.random.below(3) } else { 1 };
        let threads = (0..threads).map(|_| draw.body(0, 6)).collect();
        let hooks = [(); 3].map(|()| draw.hook(16));
        let pool = pool.then(|| [(); 3].map(|()| draw.hook(4)));
        Program { seed, setting, wild, hooks, pool, manual, threads, without, nodes: draw.next }
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

    /// The body of a hook, in one of so many programs.
    fn hook(&mut self, of: usize) -> Option<Body> {
        self.random.one_in(of).then(|| {
            self.budget += 3;
            self.body(DEPTH - 2, 2)
        })
    }

    fn node(&mut self, depth: u32) -> Node {
        let id = self.next;
        self.next += 1;
        let op = self.op(depth);
        let bodies = match op {
            Op::Make { bomb: true, .. } | Op::Then { bomb: true, .. } | Op::Join { .. } => 2,
            Op::Callback { bomb: true, .. } | Op::Blocking { bomb: true } | Op::Submit { bomb: true } => 2,
            Op::Submit { .. } | Op::Subscribe => 1,
            Op::Scope { .. } => 2 + self.random.below(3),
            Op::Pool { .. } => 1 + self.random.below(4),
            Op::Make { .. }
            | Op::Then { .. }
            | Op::Future { .. }
            | Op::Blocking { .. }
            | Op::Callback { .. }
            | Op::Region { .. }
            | Op::NoSuspend
            | Op::Shield
            | Op::Catch => 1,
            Op::Repeat { .. } | Op::Lock { .. } | Op::CallOnce | Op::Bomb | Op::ThreadBomb | Op::Thread => 1,
            Op::Run { .. } | Op::Enter { .. } | Op::RawLock { .. } | Op::Initialise | Op::Expires { .. } => 1,
            op if runs_late(op) => 1,
            _ => 0,
        };
        let holds = matches!(op, Op::Lock { .. } | Op::RawLock { .. } | Op::CallOnce | Op::Initialise);
        // What runs late runs anywhere.
        let late = runs_late(op);
        let (held, exits) = (u32::from(holds || late), u32::from(op == Op::ThreadBomb || late));
        self.held += held;
        self.exits += exits;
        let items =
            u32::from(runs_late(op) && !matches!(op, Op::Fail(_) | Op::Complete { .. } | Op::Panic { .. }));
        self.items += items;
        let bodies = (0..bodies).map(|_| self.body(depth + 1, 4)).collect();
        self.held -= held;
        self.exits -= exits;
        self.items -= items;
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
                hint: self.hint(),
                detached: self.random.one_in(4),
                own_stack: self.random.one_in(4),
                submit: !self.random.one_in(3),
            },
        }
    }

    fn hint(&mut self) -> Option<Hint> {
        match self.random.below(6) {
            0 => Some(Hint::Given(self.random.below(3) as i8)),
            1 => Some(Hint::NewestFirst),
            _ => None,
        }
    }

    fn then(&mut self) -> Op {
        Op::Then {
            slot: self.slot(),
            from: self.slot(),
            gets: match self.random.below(6) {
                0 => Then::Nothing,
                1 => Then::Outcome,
                2 => Then::Whole,
                3 => Then::Both { other: self.slot() },
                _ => Then::Value,
            },
            runtime: self.random.one_in(4).then(|| self.runtime()),
            timeout: self.random.one_in(6).then(|| self.micros()),
            hint: self.hint(),
            own_stack: self.random.one_in(4),
            submit: !self.random.one_in(3),
            bomb: self.random.one_in(3),
        }
    }

    fn error(&mut self) -> ErrorKind {
        self.random.of(&[ErrorKind::Text, ErrorKind::Text, ErrorKind::Dropped, ErrorKind::Asked])
    }

    fn several(&mut self) -> Several {
        match self.random.below(4) {
            0 => Several::First,
            1 => Several::All,
            _ => Several::Next {
                times: self.random.below(4) as u8,
                limit: self.limit(),
                cancel: self.random.one_in(2),
            },
        }
    }

    fn op(&mut self, depth: u32) -> Op {
        loop {
            let op = match self.random.below(166) {
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
                    bomb: self.random.one_in(4),
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
                    after: self.random.one_in(4).then(|| self.slot()),
                    value: self.random.one_in(2),
                },
                46..=48 => Op::Join { fallible: self.random.one_in(2) },
                49..=50 | 114..=115 => Op::Pool {
                    bound: self.random.below(4) as u8,
                    cancel: self.random.one_in(4),
                    include: [(); 2].map(|()| self.random.one_in(2).then(|| self.slot())),
                },
                116..=125 => self.then(),
                126..=128 => {
                    let completer = self.random.below(usize::from(COMPLETERS)) as u8;
                    Op::Promise { slot: self.slot(), completer }
                }
                129..=132 => Op::Complete {
                    completer: self.random.below(usize::from(COMPLETERS)) as u8,
                    with: match self.random.below(4) {
                        0 | 1 => Completes::Value,
                        2 => Completes::Error(self.error()),
                        _ => Completes::Never,
                    },
                },
                133 => Op::Hint { slot: self.slot(), hint: self.random.below(3) as i8 },
                134..=138 => Op::Several { slots: [(); 3].map(|()| self.slot()), how: self.several() },
                139..=142 => Op::Future {
                    slot: self.slot(),
                    how: self.random.of(&[Polls::BlockOn, Polls::BlockOnUntyped, Polls::Once, Polls::Keep]),
                },
                143 => Op::Kept { drop: self.random.one_in(3) },
                144..=145 => Op::Blocking { bomb: self.random.one_in(3) },
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
                    let lock = self.random.below(usize::from(LOCKS)) as u8;
                    // The wait takes the lock again, without a limit: where guards are forgotten, one that nobody forgets.
                    Op::Condition { lock: if self.forgets { LOCKS } else { lock }, limit: self.micros() }
                }
                63 => Op::Notify { all: self.random.one_in(2) },
                64..=65 => Op::WaitEvent { limit: self.limit() },
                66..=67 => Op::SetEvent,
                68 => Op::ResetEvent,
                69 => Op::Barrier { micros: self.micros() },
                70 => Op::CallOnce,
                71..=73 => {
                    Op::Send { channel: self.channel(), limit: self.limit(), bomb: self.random.one_in(3) }
                }
                74..=76 => Op::Receive { channel: self.channel(), limit: self.limit() },
                77 => Op::TryReceive { channel: self.channel() },
                78..=79 | 146..=147 => Op::Select {
                    channel: self.channel(),
                    slot: self.slot(),
                    set: self.random.one_in(2).then(|| [(); 2].map(|()| self.slot())),
                    cancel: self.random.one_in(3),
                    micros: self.micros(),
                },
                148..=149 => Op::Publish { bomb: self.random.one_in(3) },
                150..=151 => Op::Observe { limit: self.limit() },
                152..=153 => Op::OneShot { place: self.one_shot() },
                154..=155 => Op::SendOnce { place: self.one_shot(), bomb: self.random.one_in(3) },
                156..=157 => Op::ReceiveOnce { place: self.one_shot(), limit: self.limit() },
                158 => Op::Advance { micros: self.micros() },
                159 => Op::Subscribe,
                160 => Op::Unsubscribe,
                161..=163 => Op::Submit { bomb: self.random.one_in(3) },
                164 => Op::StopPool,
                165 => Op::DropPool,
                80 => Op::Sleep { micros: self.micros() },
                81..=82 => Op::Yield,
                83 => Op::Spin { micros: self.random.of(&[5, 50, 300]) },
                84 => Op::Panic { bomb: self.random.one_in(2) },
                85 => Op::Fail(self.error()),
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
                    | Op::Then { .. }
                    | Op::Future { .. }
                    | Op::Blocking { .. }
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
                    | Op::Subscribe
                    | Op::Submit { .. }
            );
            if (nests || runs_late(op)) && depth >= DEPTH {
                continue;
            }
            // Ends of runtimes are seldom, or little else would happen.
            let end = matches!(op, Op::Shutdown { .. } | Op::Finish { .. } | Op::DropRuntime { .. });
            if end && !self.random.one_in(2) {
                continue;
            }
            if !self.pool && matches!(op, Op::Submit { .. } | Op::StopPool | Op::DropPool) {
                continue;
            }
            // It waits for tasks, which may wait for any request: so it stands where a thread runs none, and holds nothing.
            if op == Op::StopPool && depth > 0 {
                continue;
            }
            if !self.plain_threads && matches!(op, Op::Thread | Op::ThreadBomb | Op::Blocking { .. }) {
                continue;
            }
            return self.without_deadlocks(op);
        }
    }

    /// A thread that drops the last handle waits for all requests and for the thread-locals of the workers' threads, without a limit. If either holds
    /// what the other waits for, no code of the library can help.
    fn without_deadlocks(&self, op: Op) -> Op {
        match op {
            Op::DropRuntime { runtime } if self.held > 0 => Op::Look { runtime },
            Op::Lock { lock, kind, limit: Limit::None, forget } if self.exits > 0 => {
                Op::Lock { lock, kind, limit: Limit::Micros(100), forget }
            }
            Op::CallOnce | Op::Initialise | Op::Condition { .. } if self.exits > 0 => Op::Yield,
            // The thread or request that drops the item may have an end of that channel, which stays open as long.
            Op::Send { channel, limit: Limit::None, bomb } if self.items > 0 => {
                Op::Send { channel, limit: Limit::Micros(100), bomb }
            }
            Op::Receive { channel, limit: Limit::None } if self.items > 0 => {
                Op::Receive { channel, limit: Limit::Micros(100) }
            }
            Op::Observe { limit: Limit::None } if self.items > 0 => Op::Observe { limit: Limit::Micros(100) },
            Op::ReceiveOnce { place, limit: Limit::None } if self.items > 0 => {
                Op::ReceiveOnce { place, limit: Limit::Micros(100) }
            }
            op => op,
        }
    }

    fn one_shot(&mut self) -> u8 {
        self.random.below(usize::from(ONE_SHOTS)) as u8
    }

    fn channel(&mut self) -> u8 {
        self.random.below(usize::from(CHANNELS)) as u8
    }
}
