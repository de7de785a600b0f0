//! Order, told by stamps: what several workers pick, and what one worker does exactly.
//!
//! Nothing here is run by the threads that wait for it, so the runtimes are built without that.

#[path = "../support/mod.rs"]
mod support;

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebear::{Priority, Request, Runtime, State, join, spawn, yield_now};
use support::{Count, Flag, Random, Watchdog, hold_thread_until, hold_workers, mix};

/// A runtime whose requests are run by its workers only.
fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).name("order").run_on_caller(false).build().unwrap()
}

/// What was done, in order. Clones are the same log.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, what: impl ToString) {
        self.0.lock().unwrap().push(what.to_string());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn wait_all<T>(requests: &[Request<T>]) {
    for request in requests {
        request.wait().unwrap();
    }
}

/// Returns when the one worker has nothing left that it could do.
fn settle(runtime: &Runtime) {
    assert_eq!(runtime.workers(), 1);
    let last = Request::builder().on(runtime).priority(Priority::new(i8::MAX));
    last.spawn(|| ()).wait().unwrap();
}

/// What a request can wait for until the test says so: a request of another runtime.
struct Gate {
    runtime: Runtime,
    request: Request<()>,
    go: Flag,
}

impl Gate {
    fn new() -> Gate {
        let (runtime, go) = (runtime(1), Flag::new());
        let up = go.clone();
        let request = runtime.spawn(move || hold_thread_until(|| up.is_up()));
        Gate { runtime, request, go }
    }

    /// Returns when all who wait have been woken.
    fn open(&self) {
        self.go.raise();
        // On the same worker, hence after it has seen to the gate's end.
        self.runtime.run(|| ());
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.go.raise();
    }
}

// ---- one worker ----------------------------------------------------------------------------------------------------------------

#[test]
fn a_woken_older_root_goes_before_a_younger_one_that_is_ready() {
    let _dog = Watchdog::new("");
    for by_priority in [false, true] {
        let (runtime, log, gates) = (runtime(1), Log::default(), [0; 3].map(|_| Gate::new()));
        let waiters: Vec<_> = gates
            .iter()
            .enumerate()
            .map(|(n, gate)| {
                let (gate, log) = (gate.request.clone(), log.clone());
                let level = if by_priority { -(n as i8) } else { 0 };
                Request::builder().on(&runtime).priority(Priority::new(level)).spawn(move || {
                    gate.wait().unwrap();
                    log.add(n);
                })
            })
            .collect();
        settle(&runtime);
        let held = hold_workers(&runtime);
        for n in [1, 2, 0] {
            gates[n].open();
        }
        held.release();
        wait_all(&waiters);
        assert_eq!(log.take(), if by_priority { ["2", "1", "0"] } else { ["0", "1", "2"] });
    }
}

#[test]
fn a_yield_goes_behind_what_is_ready_however_old_the_yielder() {
    let _dog = Watchdog::new("");
    let (runtime, log, gate) = (runtime(1), Log::default(), Gate::new());
    let (started, opened) = (Flag::new(), Flag::new());
    let yielder = {
        let (log, started, opened) = (log.clone(), started.clone(), opened.clone());
        Request::builder().on(&runtime).priority(Priority::URGENT).build(move || {
            started.raise();
            hold_thread_until(|| opened.is_up());
            log.add("before");
            yield_now().unwrap();
            log.add("after");
        })
    };
    let waiters: Vec<_> = (0..3)
        .map(|n| {
            let (gate, log) = (gate.request.clone(), log.clone());
            runtime.spawn(move || {
                gate.wait().unwrap();
                log.add(n);
            })
        })
        .collect();
    settle(&runtime);
    yielder.submit();
    started.wait();
    gate.open();
    opened.raise();
    yielder.wait().unwrap();
    wait_all(&waiters);
    assert_eq!(log.take(), ["before", "0", "1", "2", "after"]);
}

#[test]
fn yielders_take_turns_first_in_first_out() {
    let _dog = Watchdog::new("");
    const YIELDERS: usize = 5;
    let (runtime, log, go, started) = (runtime(1), Log::default(), Flag::new(), Count::new());
    let yielders: Vec<_> = (0..YIELDERS)
        .map(|n| {
            let (log, go, started) = (log.clone(), go.clone(), started.clone());
            runtime.spawn(move || {
                started.up();
                go.wait();
                for _ in 0..20 {
                    log.add(n);
                    yield_now().unwrap();
                }
            })
        })
        .collect();
    started.wait_for(YIELDERS);
    go.raise();
    wait_all(&yielders);
    let turns = log.take();
    assert_eq!(turns.len(), YIELDERS * 20);
    assert!(turns.windows(YIELDERS + 1).all(|turn| turn[0] == turn[YIELDERS]), "{turns:?}");
}

/// Bounded: not only in the end. All three stand there together when the worker is let go.
#[test]
fn two_pollers_let_an_unstarted_root_in_within_two_yields_each() {
    let _dog = Watchdog::new("");
    let (runtime, flag) = (runtime(1), Flag::new());
    let held = hold_workers(&runtime);
    let pollers: Vec<_> = (0..2)
        .map(|_| {
            let flag = flag.clone();
            runtime.spawn(move || {
                let mut turns = 0;
                while !flag.is_up() {
                    turns += 1;
                    yield_now().unwrap();
                }
                turns
            })
        })
        .collect();
    let root = runtime.spawn(move || flag.raise());
    held.release();
    root.wait().unwrap();
    let turns: Vec<_> = pollers.into_iter().map(|poller| poller.take().unwrap()).collect();
    assert!(turns.iter().all(|&turns| turns <= 2), "{turns:?}");
}

/// Also if the worker could enter the ready one at once: what the fiber that leaves has published stands in a shared queue.
#[test]
fn a_published_arm_of_an_older_root_goes_before_a_younger_one_that_is_ready() {
    let _dog = Watchdog::new("");
    let (runtime, log, gates) = (runtime(1), Log::default(), [0; 2].map(|_| Gate::new()));
    let (started, opened) = (Flag::new(), Flag::new());
    let older = {
        let (gate, log) = (gates[0].request.clone(), log.clone());
        let (started, opened) = (started.clone(), opened.clone());
        Request::builder().on(&runtime).build(move || {
            started.raise();
            hold_thread_until(|| opened.is_up());
            let (waited, ()) = join(|| gate.wait().copied(), || log.add("arm"));
            waited.unwrap();
        })
    };
    let younger = {
        let (gate, log) = (gates[1].request.clone(), log.clone());
        runtime.spawn(move || {
            gate.wait().unwrap();
            log.add("younger");
        })
    };
    settle(&runtime);
    older.submit();
    started.wait();
    gates[1].open();
    opened.raise();
    younger.wait().unwrap();
    gates[0].open();
    older.wait().unwrap();
    assert_eq!(log.take(), ["arm", "younger"]);
}

// ---- several workers -----------------------------------------------------------------------------------------------------------

/// An arm of an older root stands in one worker's shared queue, all others are held, and something of a younger root is there for
/// another worker: ready on it, or in the injector. What does that worker take first when its request parks?
fn first_of_arm_and_younger(workers: usize, resumed: bool) -> Vec<String> {
    let (runtime, log, gates) = (runtime(workers), Log::default(), [0; 3].map(|_| Gate::new()));
    let [to_end, to_resume, to_park] = &gates;
    // What the request on each worker is to do next, by the worker's number.
    const HOLD: u64 = 0;
    const PUBLISH: u64 = 1;
    const PARK: u64 = 2;
    const END: u64 = 3;
    let orders: Arc<Vec<_>> = Arc::new((0..workers).map(|_| AtomicU64::new(HOLD)).collect());
    let (started, urgent_started) = (Count::new(), Flag::new());
    let older: Vec<_> = (0..workers)
        .map(|_| {
            let (orders, started, log) = (orders.clone(), started.clone(), log.clone());
            let (to_end, to_park) = (to_end.request.clone(), to_park.request.clone());
            Request::builder().on(&runtime).build(move || {
                let order = &orders[Request::current().unwrap().assigned_worker().unwrap()];
                started.up();
                hold_thread_until(|| order.load(Ordering::SeqCst) != HOLD);
                match order.load(Ordering::SeqCst) {
                    PUBLISH => join(|| to_end.wait().copied(), || log.add("arm")).0.unwrap(),
                    PARK => *to_park.wait().unwrap(),
                    _ => {}
                }
            })
        })
        .collect();
    let place = Arc::new(AtomicU64::new(0));
    let younger = {
        let (gate, log, place) = (to_resume.request.clone(), log.clone(), place.clone());
        Request::builder().on(&runtime).build(move || {
            if resumed {
                place.store(Request::current().unwrap().assigned_worker().unwrap() as u64, Ordering::SeqCst);
                gate.wait().unwrap();
            }
            log.add("younger");
        })
    };
    if resumed {
        younger.submit();
        hold_thread_until(|| younger.state() == State::Suspended);
    }
    for request in &older {
        request.submit();
    }
    hold_thread_until(|| started.get() == workers);
    let parks = place.load(Ordering::SeqCst) as usize;
    // Far away if there are many, so that they are in different groups.
    let publishes = (parks + workers / 2) % workers;
    let urgent = {
        let (orders, up) = (orders.clone(), urgent_started.clone());
        Request::builder().on(&runtime).priority(Priority::URGENT).spawn(move || {
            up.raise();
            hold_thread_until(|| orders[publishes].load(Ordering::SeqCst) == END);
        })
    };
    // It parks, its arm is published, and its worker goes on with the urgent one.
    orders[publishes].store(PUBLISH, Ordering::SeqCst);
    hold_thread_until(|| urgent_started.is_up());
    if resumed {
        to_resume.open();
    } else {
        younger.submit();
    }
    orders[parks].store(PARK, Ordering::SeqCst);
    younger.wait().unwrap();
    let order = log.take();
    orders.iter().for_each(|order| order.store(END, Ordering::SeqCst));
    to_end.open();
    to_park.open();
    urgent.wait().unwrap();
    wait_all(&older);
    order
}

#[test]
fn an_older_roots_arm_in_another_workers_shared_queue_goes_first() {
    for workers in [2, 4, 8, 9, 16, 20, 32] {
        for round in 0..10 {
            for resumed in [false, true] {
                let _dog = Watchdog::new(format_args!("{workers} workers, round {round}, {resumed}"));
                let order = first_of_arm_and_younger(workers, resumed);
                assert_eq!(order, ["arm", "younger"], "{workers} workers, round {round}, ready: {resumed}");
            }
        }
    }
}

/// Numbers from one counter: what has the smaller one came first. Clones are the same counter.
#[derive(Clone, Debug, Default)]
struct Stamps(Arc<AtomicU64>);

impl Stamps {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// Calls `bottom` under that many requests, each run by the one that waits for it.
fn deep(levels: usize, bottom: Box<dyn FnOnce() -> u64 + Send>) -> u64 {
    if levels == 0 {
        return bottom();
    }
    *Request::new(move || deep(levels - 1, bottom)).wait().unwrap()
}

/// Every worker is deep in direct runs when a root comes that goes before all of them: the one that runs the youngest,
/// let go alone, must not go on before that root has started.
fn gets_in_at_the_next_wait(priority: Priority) {
    const LEVELS: usize = 20;
    for kind in support::kinds() {
        for round in 0..10 {
            let _dog = Watchdog::new(format_args!("{kind:?}, round {round}"));
            let (runtime, stamps, down) = (kind.build(), Stamps::default(), Count::new());
            let late = {
                let stamps = stamps.clone();
                // The oldest, if it is not urgent.
                Request::builder().on(&runtime).priority(priority).build(move || stamps.next())
            };
            let go: Vec<_> = (0..runtime.workers()).map(|_| Flag::new()).collect();
            let chains: Vec<_> = go
                .iter()
                .map(|go| {
                    let (down, go, stamps) = (down.clone(), go.clone(), stamps.clone());
                    let bottom = move || {
                        down.up();
                        hold_thread_until(|| go.is_up());
                        *Request::new(move || stamps.next()).wait().unwrap()
                    };
                    runtime.spawn(move || deep(LEVELS, Box::new(bottom)))
                })
                .collect();
            down.wait_for(runtime.workers());
            assert_eq!(runtime.metrics().direct as usize, LEVELS * runtime.workers(), "all run directly");
            late.submit();
            go[runtime.workers() - 1].raise();
            let went_on = *chains[runtime.workers() - 1].wait().unwrap();
            let came_in = late.get().copied();
            // Before any assertion can leave workers held.
            go.iter().for_each(Flag::raise);
            wait_all(&chains);
            assert!(came_in.is_some_and(|at| at < went_on), "{kind:?}: {came_in:?}, {went_on}");
        }
    }
}

#[test]
fn an_urgent_root_gets_in_at_the_next_wait_of_the_worker_that_runs_the_youngest() {
    let _not = support::not_on(support::Modes::Both, "it holds its workers");
    gets_in_at_the_next_wait(Priority::URGENT);
}

#[test]
fn an_older_root_gets_in_at_the_next_wait_of_the_worker_that_runs_the_youngest() {
    let _not = support::not_on(support::Modes::Both, "it holds its workers");
    gets_in_at_the_next_wait(Priority::NORMAL);
}

/// One task that a worker picked.
#[derive(Clone, Copy, Debug)]
struct Pick {
    root: usize,
    is_root: bool,
    /// When it became known: submitted or spawned.
    known: u64,
    /// When the worker had ended what it did before: its look began after this.
    before: u64,
    /// When the task began: the look was over before this.
    began: u64,
}

/// What is stamped in one round.
struct Trace {
    stamps: Stamps,
    /// Per worker: when it ended its last task, and what it picked.
    workers: Vec<Mutex<(u64, Vec<Pick>)>>,
    over: Count,
}

const CHILDREN: usize = 3;
/// A root, its children, and theirs.
const TASKS: usize = 1 + CHILDREN + CHILDREN * CHILDREN;

/// A task of `root`, `level` levels below it. It never waits, so whatever runs was picked.
fn task(trace: &Arc<Trace>, root: usize, level: usize, known: u64) {
    let began = trace.stamps.next();
    let worker = Request::current().unwrap().assigned_worker().unwrap();
    let before = trace.workers[worker].lock().unwrap().0;
    black_box((0..mix(began) % 2_000).fold(0, |sum, n| black_box(sum + n)));
    if level < 2 {
        for _ in 0..CHILDREN {
            let (trace, known) = (trace.clone(), trace.stamps.next());
            spawn(move || task(&trace, root, level + 1, known));
        }
    }
    let mut mine = trace.workers[worker].lock().unwrap();
    mine.1.push(Pick { root, is_root: level == 0, known, before, began });
    mine.0 = trace.stamps.next();
    trace.over.up();
}

/// How often something of a younger root was picked although something of an older one could have been seen before the
/// look began, and was picked by a look that began later: roots, which stand where all can see them, and the rest. What
/// may have been on its way at that moment does not count, so none of these is an accident of stamping.
fn inversions(picks: &[Pick], rank: impl Fn(usize) -> (Priority, usize)) -> (usize, usize) {
    let (mut roots, mut rest) = (0, 0);
    for picked in picks {
        for passed_over in picks {
            if rank(passed_over.root) < rank(picked.root)
                && passed_over.known < picked.before
                && passed_over.before > picked.began
            {
                *(if passed_over.is_root { &mut roots } else { &mut rest }) += 1;
            }
        }
    }
    (roots, rest)
}

/// What is private to a busy worker may be passed over (decision 0002): that is counted, printed, and not judged.
#[test]
fn no_younger_roots_task_is_picked_while_an_older_root_waits_in_the_injector() {
    const ROOTS: usize = 64;
    for workers in [2, 4, 16, 20, 40] {
        let (mut picked, mut of_roots, mut of_rest) = (0, Vec::new(), 0);
        for round in 0..30 {
            let _dog = Watchdog::new(format_args!("{workers} workers, round {round}"));
            let (runtime, mut random) = (runtime(workers), Random::new(round));
            let trace = Arc::new(Trace {
                stamps: Stamps::default(),
                workers: (0..workers).map(|_| Mutex::default()).collect(),
                over: Count::new(),
            });
            let levels = [Priority::URGENT, Priority::NORMAL, Priority::BACKGROUND];
            let priorities: Vec<_> = (0..ROOTS).map(|_| levels[random.below(3)]).collect();
            let mut submitted = [0; ROOTS];
            let mut roots: Vec<_> = (0..ROOTS)
                .map(|root| {
                    let trace = trace.clone();
                    let builder = Request::builder().on(&runtime).priority(priorities[root]);
                    // When it becomes known is filled in below.
                    (root, builder.build(move || task(&trace, root, 0, 0)))
                })
                .collect();
            let held = hold_workers(&runtime);
            let mut submit = |roots: &mut Vec<(usize, Request<()>)>| {
                let (root, request) = roots.swap_remove(random.below(roots.len()));
                request.submit();
                submitted[root] = trace.stamps.next();
            };
            while roots.len() > ROOTS / 2 {
                submit(&mut roots);
            }
            held.release();
            // The others come while the workers are busy.
            while !roots.is_empty() {
                let due = (ROOTS - roots.len() - ROOTS / 2) * TASKS;
                hold_thread_until(|| trace.over.get() >= due);
                submit(&mut roots);
            }
            hold_thread_until(|| trace.over.get() == ROOTS * TASKS);
            let mut picks: Vec<_> = trace.workers.iter().flat_map(|w| w.lock().unwrap().1.clone()).collect();
            for pick in picks.iter_mut().filter(|pick| pick.is_root) {
                pick.known = submitted[pick.root];
            }
            let (roots, rest) = inversions(&picks, |root| (priorities[root], root));
            if roots > 0 {
                of_roots.push((round, roots));
            }
            picked += picks.len();
            of_rest += rest;
        }
        println!("{workers} workers: {picked} picks, {of_rest} passed over older work that was not a root");
        assert!(of_roots.is_empty(), "{workers} workers: passed over roots, by round: {of_roots:?}");
    }
}
