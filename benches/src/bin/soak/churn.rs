//! The load: rounds of many kinds, by several threads. A thread starts a round when its last one is over.
//!
//! In all of them as many objects as possible end on another thread than they began on. Roots come from the user's threads, and any worker
//! takes them. Children and handles go to a thread that drops them. Workers run requests that other workers made.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, PoisonError, RwLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use forebear::channel::{bounded, oneshot};
use forebear::sync::{Condvar, Event, Mutex};
use forebear::time::sleep;
use forebear::{Request, RequestPool, Runtime, WaitError, join, scope, spawn, yield_now};

/// The kinds of rounds, in the order of their numbers.
pub(crate) const NAMES: [&str; 12] = [
    "roots taken by their maker",
    "roots and children dropped elsewhere",
    "suspended before a gate",
    "pools",
    "cancelled in the middle",
    "timers and time-outs",
    "channels",
    "locks and conditions",
    "failures, names and callbacks",
    "threads that come and go",
    "depth on larger stacks",
    "joins and scopes",
];

/// How many threads of the user's there are.
const THREADS: u64 = 3;
/// At most so many batches of handles wait for the thread that drops them. Without a bound the memory in use would rise with every new
/// maximum.
const BATCHES: usize = 4;

type Rounds = [AtomicU64; NAMES.len()];
type Handles = Vec<Request<u64>>;

/// What the threads share.
struct State {
    runtime: Runtime,
    /// Each round holds it shared. A thread that holds it alone stops the rounds.
    turn: RwLock<()>,
    over: AtomicBool,
    failed: AtomicBool,
    /// Handles for the thread that drops them.
    held: AtomicU64,
    rounds: Rounds,
    /// The kinds of rounds to run.
    kinds: Vec<usize>,
    leak: Option<u64>,
    made: AtomicU64,
}

/// The threads at work.
pub(crate) struct Churn {
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

impl Churn {
    /// Starts them, for the kinds that have one of these parts in their names, or all. One request in `leak` is forgotten, if any.
    ///
    /// # Errors
    ///
    /// If there is no such kind.
    pub(crate) fn start(runtime: &Runtime, only: &[String], leak: Option<u64>) -> Result<Churn, String> {
        let wanted = |kind: &usize| only.is_empty() || only.iter().any(|part| NAMES[*kind].contains(&**part));
        let kinds: Vec<_> = (0..NAMES.len()).filter(wanted).collect();
        if kinds.is_empty() {
            return Err(format!("there is no such kind; there are: {}", NAMES.join(", ")));
        }
        let state = Arc::new(State {
            runtime: runtime.clone(),
            turn: RwLock::new(()),
            over: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            held: AtomicU64::new(0),
            rounds: Default::default(),
            kinds,
            leak,
            made: AtomicU64::new(0),
        });
        let (elsewhere, dropped) = mpsc::sync_channel::<Handles>(BATCHES);
        let mut threads: Vec<_> = (0..THREADS)
            .map(|seed| {
                let (state, elsewhere) = (state.clone(), elsewhere.clone());
                std::thread::spawn(move || state.work(seed, &elsewhere))
            })
            .collect();
        let counter = state.clone();
        threads.push(std::thread::spawn(move || {
            dropped.iter().for_each(|handles| {
                let n = handles.len() as u64;
                // Most are over then, some may not be.
                let _ = handles.last().map(Request::wait);
                drop(handles);
                counter.held.fetch_sub(n, AcqRel);
            });
        }));
        Ok(Churn { state, threads })
    }

    /// Calls `with` while no round runs.
    pub(crate) fn held_up<R>(&self, with: impl FnOnce() -> R) -> R {
        let _alone = self.state.turn.write().unwrap_or_else(PoisonError::into_inner);
        with()
    }

    /// How many handles wait to be dropped.
    pub(crate) fn held(&self) -> u64 {
        self.state.held.load(Acquire)
    }

    /// Whether a thread has ended by a panic.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.failed.load(Acquire)
    }

    /// Ends the threads, and answers how many rounds of each kind there were.
    ///
    /// # Panics
    ///
    /// If one of them has.
    pub(crate) fn stop(self) -> Rounds {
        self.state.over.store(true, Relaxed);
        for thread in self.threads {
            thread.join().expect("a round came to another end than it should");
        }
        let state = Arc::into_inner(self.state).expect("its threads are gone");
        state.rounds
    }
}

fn taken<T>(request: Request<T>) -> T {
    request.take().expect("nobody cancels, nothing panics")
}

fn sum(all: Handles) -> u64 {
    all.into_iter().map(taken).sum()
}

impl State {
    fn work(&self, seed: u64, elsewhere: &mpsc::SyncSender<Handles>) {
        struct Failed<'a>(&'a AtomicBool);
        impl Drop for Failed<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.store(true, Relaxed);
                }
            }
        }
        let _failed = Failed(&self.failed);
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        while !self.over.load(Relaxed) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let kind = self.kinds[(random >> 32) as usize % self.kinds.len()];
            let _turn = self.turn.read().unwrap_or_else(PoisonError::into_inner);
            self.round(kind, elsewhere);
            self.rounds[kind].fetch_add(1, Relaxed);
        }
    }

    /// Sends handles to the thread that drops them, except those that are forgotten.
    fn give(&self, mut handles: Handles, elsewhere: &mpsc::SyncSender<Handles>) {
        if let Some(leak) = self.leak {
            let (n, before) = (handles.len() as u64, self.made.fetch_add(handles.len() as u64, Relaxed));
            for _ in 0..(before + n) / leak - before / leak {
                std::mem::forget(handles.pop());
            }
        }
        self.held.fetch_add(handles.len() as u64, AcqRel);
        elsewhere.send(handles).expect("somebody drops them");
    }

    fn round(&self, kind: usize, elsewhere: &mpsc::SyncSender<Handles>) {
        let runtime = &self.runtime;
        match kind {
            0 => {
                let all: Handles = (0..500).map(|n| runtime.spawn(move || n)).collect();
                assert_eq!(sum(all), 124_750);
            }
            1 => {
                let makers: Vec<_> = (0..4)
                    .map(|_| runtime.spawn(|| (0..250).map(|n| spawn(move || n)).collect::<Handles>()))
                    .collect();
                for maker in makers {
                    let children = taken(maker);
                    for child in &children {
                        child.wait().expect("nobody cancels, nothing panics");
                    }
                    self.give(children, elsewhere);
                }
                self.give((0..100).map(|n| runtime.spawn(move || n)).collect(), elsewhere);
            }
            2 => {
                let gate = Arc::new(Event::new());
                let all: Handles = (0..300)
                    .map(|n| {
                        let gate = gate.clone();
                        runtime.spawn(move || {
                            gate.wait().expect("nobody cancels");
                            n
                        })
                    })
                    .collect();
                runtime.spawn(move || gate.set());
                self.give(all, elsewhere);
            }
            3 => {
                let values = runtime.run(|| {
                    let mut pool = RequestPool::new().max_active(4);
                    for n in 0..100_u64 {
                        pool.add(move || {
                            yield_now().expect("nobody cancels");
                            n
                        });
                    }
                    pool.collect().expect("none fails")
                });
                assert_eq!(values.len(), 100);
                let inside = runtime.enter(|| {
                    let mut pool = RequestPool::new().max_active(2);
                    (0..20_u64).for_each(|n| _ = pool.add(move || n));
                    pool.collect().expect("none fails")
                });
                assert_eq!(inside.len(), 20);
            }
            4 => cancelled(runtime),
            5 => timed(runtime),
            6 => channels(runtime),
            7 => locks(runtime),
            8 => self.give(failures(runtime), elsewhere),
            9 => {
                let other = runtime.clone();
                let made = std::thread::spawn(move || {
                    other.enter(|| {
                        drop(Request::new(|| 1_u64));
                        (0..50).map(|n| spawn(move || n)).collect::<Handles>()
                    })
                });
                self.give(made.join().expect("it does not panic"), elsewhere);
            }
            10 => {
                fn nested(levels: u64) -> u64 {
                    if levels == 0 {
                        0
                    } else {
                        1 + taken(Request::builder().own_stack().spawn(move || nested(levels - 1)))
                    }
                }
                let deep = Request::builder().stack_size(600 << 10).on(runtime);
                assert_eq!(taken(deep.spawn(|| nested(50))), 50);
            }
            _ => {
                fn fib(n: u64) -> u64 {
                    if n < 2 {
                        return n;
                    }
                    let (a, b) = join(|| fib(n - 1), || fib(n - 2));
                    a + b
                }
                let done = runtime.run(|| {
                    let done = AtomicU64::new(0);
                    scope(|s| {
                        for _ in 0..200 {
                            s.spawn(|| {
                                yield_now().expect("nobody cancels");
                                done.fetch_add(1, Relaxed);
                            });
                        }
                    });
                    done.into_inner() + fib(12)
                });
                assert_eq!(done, 344);
            }
        }
    }
}

/// A parent with children that wait for ever and children that have not started.
fn cancelled(runtime: &Runtime) {
    let stand = || spawn(|| Event::new().wait().map_or(0, |()| 1));
    let parent = runtime.spawn(move || {
        let children: Handles = (0..100).map(|_| stand()).collect();
        // The cancel may come at any time.
        let _ = (0..10).try_for_each(|_| yield_now());
        let late: Handles = (0..50).map(|_| stand()).collect();
        children[0].wait().copied().is_err() && late.len() == 50
    });
    loop {
        match parent.wait_timeout(Duration::from_micros(200)) {
            Err(WaitError::TimedOut) => _ = parent.cancel(),
            Err(WaitError::TargetCancelled(_)) => return,
            ended => panic!("it came to another end: {ended:?}"),
        }
    }
}

fn timed(runtime: &Runtime) {
    let sleepers: Vec<_> = (0..100)
        .map(|n| runtime.spawn(move || sleep(Duration::from_micros(n * 20)).map_or(0, |()| n)))
        .collect();
    let limited = runtime.run(|| {
        let never =
            Request::builder().timeout(Duration::from_micros(300)).spawn(|| Event::new().wait().is_ok());
        let (event, hour) = (Event::new(), Duration::from_secs(3_600));
        let timed_out = event.wait_timeout(Duration::from_micros(100)).is_err();
        let in_time = spawn(|| 1).wait_timeout(hour).is_ok();
        timed_out && in_time && never.wait().is_err()
    });
    assert!(limited);
    assert_eq!(sum(sleepers), 4_950);
}

fn channels(runtime: &Runtime) {
    let (sender, receiver) = bounded(8);
    let senders: Handles = (0..4)
        .map(|_| {
            let sender = sender.clone();
            runtime.spawn(move || {
                (0..200).for_each(|n: u64| sender.send(vec![n; 4]).expect("somebody receives"));
                1
            })
        })
        .collect();
    drop(sender);
    let received = runtime.spawn(move || receiver.iter().count());
    assert_eq!((sum(senders), taken(received)), (4, 800));
    let (answer, asked) = oneshot::channel();
    let asker = runtime.spawn(move || asked.recv().expect("somebody answers"));
    runtime.spawn(move || answer.send(7_u64).expect("somebody asks"));
    assert_eq!(taken(asker), 7);
}

fn locks(runtime: &Runtime) {
    let shared = Arc::new((Mutex::new(0_u64), Condvar::new()));
    let add: Handles = (0..40)
        .map(|_| {
            let shared = shared.clone();
            runtime.spawn(move || {
                let mut number = shared.0.lock();
                yield_now().expect("nobody cancels");
                *number += 1;
                shared.1.notify_all();
                1
            })
        })
        .collect();
    let whole = runtime.spawn(move || {
        let mut number = shared.0.lock();
        while *number < 40 {
            shared.1.wait(&mut number).expect("nobody cancels");
        }
        *number
    });
    assert_eq!((taken(whole), sum(add)), (40, 40));
}

fn failures(runtime: &Runtime) -> Handles {
    (0..60)
        .map(|n: u64| {
            let request = Request::builder().name(format!("request {n}")).on(runtime).build(move || {
                if n.is_multiple_of(3) {
                    std::panic::resume_unwind(Box::new(vec![n; 16]));
                }
                n
            });
            request.on_done(move |outcome| _ = std::hint::black_box(outcome));
            request.on_finished(|value| _ = std::hint::black_box(*value));
            request.submit();
            if n.is_multiple_of(2) {
                let _ = request.wait();
            }
            request
        })
        .collect()
}
