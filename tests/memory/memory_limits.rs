//! Memory that has to go at a certain moment: values, captured arguments, stacks.
//!
//! What is measured of a process is measured in a child in which nothing else runs.

#![cfg(target_os = "linux")]

#[path = "../support/mod.rs"]
mod support;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebear::sync::Event;
use forebear::time::sleep;
use forebear::{Error, Request, Runtime, spawn};
use support::{
    Count, Flag, Watchdog, again_in_child, hold_thread_until, in_both_worlds, is_child, resident, runtime,
    soaking,
};

const MIB: usize = 1 << 20;

/// Runs `body` in a child process, once; what it says to have measured is shown by the parent.
fn alone(test: &str, body: impl FnOnce()) {
    let _dog = Watchdog::new("");
    if is_child(test) {
        return body();
    }
    // What is large goes back to the system when it is freed; by default glibc keeps up to 32 MiB of it after a while.
    let malloc = "export MALLOC_ARENA_MAX=1 MALLOC_MMAP_THRESHOLD_=131072;";
    let (ok, told) = again_in_child(test, ("ALONE", "1"), malloc);
    assert!(ok, "{told}");
    // The first such line stands behind what the harness has begun to say.
    for line in told.lines() {
        if let Some(at) = line.find("measured: ") {
            println!("{}", &line[at..]);
        }
    }
}

/// Bytes of address space, and how many mappings there are.
fn mapped() -> (usize, usize) {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().next().unwrap().parse().unwrap();
    (pages * 4096, std::fs::read_to_string("/proc/self/maps").unwrap().lines().count())
}

// ---- values and arguments ------------------------------------------------------------------------------------------------------

#[test]
fn a_value_is_dropped_with_the_last_handle_that_reaches_it() {
    in_both_worlds(|| {
        let drops = Count::new();
        let probe = drops.probe();
        let request = spawn(move || probe);
        request.wait().unwrap();
        let (second, any) = (request.clone(), request.to_untyped());
        drop(request);
        assert_eq!(drops.get(), 0, "one handle is left");
        drop(second);
        assert_eq!(drops.get(), 1, "an untyped handle keeps no value");
        assert!(any.is_done());
        let probe = drops.probe();
        let request = spawn(move || probe);
        request.wait().unwrap();
        let any = request.into_untyped();
        assert_eq!((drops.get(), any.is_done()), (2, true), "clean drops it");
        let probe = drops.probe();
        let taken = spawn(move || probe).take().unwrap();
        assert_eq!(drops.get(), 2, "taken is not dropped");
        drop(taken);
        assert_eq!(drops.get(), 3);
    });
}

#[test]
fn a_value_that_nobody_can_reach_any_more_is_dropped_when_the_request_ends() {
    in_both_worlds(|| {
        let (drops, go) = (Count::new(), Flag::new());
        let request = {
            let (probe, go) = (drops.probe(), go.clone());
            Request::builder().own_stack().spawn(move || {
                go.wait();
                probe
            })
        };
        let any = request.into_untyped();
        assert_eq!(drops.get(), 0, "it does not stop");
        go.raise();
        any.wait().unwrap();
        assert_eq!(drops.get(), 1);
    });
}

/// Each step makes its result from the one before it, which goes then: whoever asks for the last, and however.
#[test]
fn of_a_chain_of_big_results_two_are_alive_at_once() {
    type Take = fn(Request<Big>) -> Big;
    /// A result, counted while it is there.
    struct Big(Count, Count, u32);
    impl Big {
        fn new(made: &Count, gone: &Count, n: u32) -> Big {
            made.up();
            assert!(made.get() - gone.get() <= 2, "{} results at once", made.get() - gone.get());
            Big(made.clone(), gone.clone(), n)
        }
    }
    impl Drop for Big {
        fn drop(&mut self) {
            self.1.up();
        }
    }
    fn step(before: Option<Request<Big>>, counts: (Count, Count), take: Take) -> Big {
        let Some(before) = before else { return Big::new(&counts.0, &counts.1, 1) };
        let before = take(before);
        Big::new(&before.0, &before.1, before.2 + 1)
    }
    in_both_worlds(|| {
        let takes: [Take; 2] = [
            |before| before.take().unwrap(),
            // Waited for by reference first, and looked at.
            |before| {
                assert!(before.wait().unwrap().2 > 0);
                before.take().unwrap()
            },
        ];
        for take in takes {
            for submitted in [false, true] {
                let (made, gone) = (Count::new(), Count::new());
                let mut last = None;
                for _ in 0..5 {
                    let (before, counts) = (last.take(), (made.clone(), gone.clone()));
                    let next = Request::new(move || step(before, counts, take));
                    if submitted {
                        next.submit();
                    }
                    last = Some(next);
                }
                assert_eq!(last.unwrap().take().unwrap().2, 5);
                assert_eq!((made.get(), gone.get()), (5, 5));
            }
        }
    });
}

#[test]
fn captured_arguments_are_dropped_when_the_callable_is_over_however_it_ended() {
    in_both_worlds(|| {
        for own_stack in [false, true] {
            let builder = || if own_stack { Request::builder().own_stack() } else { Request::builder() };
            let drops = Count::new();
            let captured = drops.probe();
            let finished = builder().build(move || drop(captured));
            assert_eq!(drops.get(), 0);
            finished.wait().unwrap();
            assert_eq!(drops.get(), 1, "returned; the handle is still there");
            let captured = drops.probe();
            let failed = builder().try_build(move || -> Result<(), Error> {
                let _captured = &captured;
                Err(Error::other("no"))
            });
            failed.wait().unwrap_err();
            assert_eq!(drops.get(), 2, "failed by an error");
            let captured = drops.probe();
            let panicked = builder().build(move || {
                let _captured = &captured;
                std::panic::resume_unwind(Box::new("no"))
            });
            let panicked: Request<()> = panicked;
            panicked.wait().unwrap_err();
            assert_eq!(drops.get(), 3, "failed by a panic");
        }
    });
}

// ---- resident memory -----------------------------------------------------------------------------------------------------------

/// In every wave two roots wait for each other first, so both workers are there and take from the rest.
#[test]
fn roots_that_land_on_both_workers_need_no_more_memory_in_the_end() {
    const WAVE: usize = 1_000;
    alone("roots_that_land_on_both_workers_need_no_more_memory_in_the_end", || {
        let requests = if soaking() { 100_000_000 } else { 1_000_000 };
        let runtime = Runtime::builder().workers(2).run_on_caller(false).build().unwrap();
        static LANDED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let mut early = 0;
        for wave in 0..requests / WAVE {
            if wave == requests / WAVE / 10 {
                early = resident();
            }
            let (met, over) = (Count::new(), Count::new());
            for n in 0..WAVE {
                let (met, over) = (met.clone(), over.clone());
                let root = runtime.spawn(move || {
                    if n < 2 {
                        met.up();
                        hold_thread_until(|| met.get() == 2);
                    }
                    let worker = Request::current().unwrap().assigned_worker().unwrap();
                    LANDED[worker].fetch_add(1, Ordering::Relaxed);
                    over.up();
                    n
                });
                // Some are dropped before they run, some are waited for.
                if n % 100 == 99 {
                    assert_eq!(root.take().unwrap(), n);
                }
            }
            hold_thread_until(|| over.get() == WAVE);
        }
        let (late, landed) = (resident(), LANDED.each_ref().map(|n| n.load(Ordering::Relaxed)));
        println!(
            "measured: {requests} roots, {landed:?} on each worker: {early} bytes after a tenth, {late} at the end"
        );
        if !soaking() {
            println!("measured: not run: 10^8 (set FOREBEAR_SOAK=1)");
        }
        assert!(landed.iter().all(|&n| n >= requests / WAVE));
        assert!(late <= early + early / 100 + MIB, "{early} bytes after a tenth, {late} at the end");
    });
}

/// Suspends so many roots, each after it has called `first`, and answers what lets them go on and waits until they are over.
fn suspend(runtime: &Runtime, count: usize, first: fn()) -> impl FnOnce() {
    let (go, gates) = (Flag::new(), support::runtime(1));
    let gate = {
        let go = go.clone();
        gates.spawn(move || hold_thread_until(|| go.is_up()))
    };
    let (waiting, over) = (Count::new(), Count::new());
    for _ in 0..count {
        let (gate, waiting, over) = (gate.to_untyped(), waiting.clone(), over.clone());
        runtime.spawn(move || {
            first();
            waiting.up();
            gate.wait().unwrap();
            over.up();
        });
    }
    hold_thread_until(|| waiting.get() == count && runtime.metrics().live_stacks >= count);
    move || {
        go.raise();
        hold_thread_until(|| over.get() == count);
        drop(gates);
    }
}

/// Waits until it is so, for a minute at most.
fn comes_to(is_so: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() && Instant::now() < deadline {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    is_so()
}

#[test]
fn stacks_of_a_spike_of_suspended_requests_are_given_back_when_idle() {
    const SPIKE: usize = 20_000;
    alone("stacks_of_a_spike_of_suspended_requests_are_given_back_when_idle", || {
        let runtime = runtime(2);
        let before = resident();
        let end = suspend(&runtime, SPIKE, || ());
        let spike = resident();
        assert!(
            spike - before > SPIKE * 4096,
            "{before} before, {spike}: each holds a page of stack at least"
        );
        end();
        // Each worker keeps up to 1,024 stacks at first, a tenth of these in all; what else is kept is records.
        let allowed = before + (spike - before) / 3;
        let is_well = comes_to(|| resident() <= allowed);
        let after = resident();
        println!("measured: {before} bytes before, {spike} with {SPIKE} suspended, {after} when idle");
        assert!(is_well, "{before} before, {spike} in the spike, still {after}");
    });
}

/// Few enough that the workers keep all of them for what suspends next, and each of them was deep once.
#[test]
fn deep_stacks_that_nobody_uses_any_more_are_given_back() {
    const CROWD: usize = 600;
    const DEEP: usize = 160 << 10;
    #[inline(never)]
    fn deep() {
        // Each page is written to.
        std::hint::black_box([1_u8; DEEP]);
    }
    alone("deep_stacks_that_nobody_uses_any_more_are_given_back", || {
        let runtime = runtime(2);
        let before = resident();
        let end = suspend(&runtime, CROWD, deep);
        let crowd = resident();
        assert!(crowd - before > CROWD * DEEP, "{before} before, {crowd} with {CROWD} that were deep");
        end();
        // Sixteen a worker stay whole.
        let allowed = before + (crowd - before) / 8;
        let is_well = comes_to(|| resident() <= allowed && runtime.metrics().live_stacks < CROWD / 8);
        let (after, stacks) = (resident(), runtime.metrics().live_stacks);
        println!(
            "measured: {before} bytes before, {crowd} with {CROWD} suspended, {after} and {stacks} stacks when idle"
        );
        assert!(is_well, "{before} before, {crowd} with the crowd, still {after} and {stacks} stacks");
        assert!(comes_to_rest(&runtime), "workers go on waking");
    });
}

/// Whether nobody wakes to look any more: not for longer than from one look to the next.
fn comes_to_rest(runtime: &Runtime) -> bool {
    let last = Cell::new((u64::MAX, Instant::now()));
    comes_to(|| {
        let sleeps = runtime.metrics().sleeps;
        if last.get().0 != sleeps {
            last.set((sleeps, Instant::now()));
        }
        last.get().1.elapsed() > Duration::from_millis(1_500)
    })
}

/// Whoever made them, and wherever they ended.
#[test]
fn what_queued_requests_have_taken_is_given_back_when_nobody_needs_it_any_more() {
    const CROWD: usize = 300_000;
    /// Answers what is resident while all are there. They end here, and not in the order in which they lie in memory.
    fn unsubmitted() -> usize {
        let mut all: Vec<_> = (0..CROWD).map(|n| Request::new(move || n)).collect();
        let crowd = resident();
        (0..CROWD).for_each(|n| all.swap(n, n * 7919 % CROWD));
        crowd
    }
    /// The same of those that end on a worker.
    fn submitted(runtime: &Runtime) -> usize {
        let go = Arc::new(AtomicBool::new(false));
        let holders = [(); 2].map(|()| {
            let go = go.clone();
            runtime.spawn(move || hold_thread_until(|| go.load(Ordering::Relaxed)))
        });
        let all: Vec<_> = (0..CROWD).map(|n| runtime.spawn(move || n)).collect();
        let crowd = resident();
        drop(all);
        go.store(true, Ordering::Relaxed);
        holders.into_iter().for_each(|holder| holder.take().unwrap());
        crowd
    }
    type Maker = (&'static str, fn(&Runtime) -> usize, fn(&Runtime));
    const ON_A_WORKER: Maker = (
        "a request on a worker",
        |runtime| {
            let made = runtime.spawn(unsubmitted);
            comes_to(|| made.is_done());
            made.take().unwrap()
        },
        |_| (),
    );
    const DIRECTLY: Maker = (
        "a request in a thread that is no worker",
        |runtime| runtime.enter(|| Request::new(unsubmitted).take().unwrap()),
        |_| (),
    );
    const WHO_WAITS: Maker = (
        "a thread that waits for something else",
        |runtime| {
            let crowd = runtime.enter(unsubmitted);
            Event::new().wait_timeout(Duration::from_millis(1)).unwrap_err();
            crowd
        },
        |_| (),
    );
    // Which has use for one of them, now and then.
    const WHO_GOES_ON: Maker = ("a thread that waits for requests", submitted, |runtime| {
        runtime.try_spawn(|| sleep(Duration::from_millis(1)).map_err(Error::from)).take().unwrap();
    });
    const WHO_ENDS: Maker = (
        "a thread that ends",
        |runtime| std::thread::scope(|scope| scope.spawn(|| runtime.enter(unsubmitted)).join().unwrap()),
        |_| (),
    );
    alone("what_queued_requests_have_taken_is_given_back_when_nobody_needs_it_any_more", || {
        for (maker, make, goes_on) in [ON_A_WORKER, DIRECTLY, WHO_WAITS, WHO_GOES_ON, WHO_ENDS] {
            let runtime = runtime(2);
            let before = resident();
            let crowd = make(&runtime);
            assert!(crowd > before + CROWD * 144, "{before} before, {crowd} with {CROWD} made by {maker}");
            // Sixteen cells stay with each worker and twice as many with this thread, each in a chunk of 64 KiB, and sixteen chunks in all:
            // 5 MiB. Some 4 MiB that malloc keeps of a crowd's handles.
            let allowed = before + (crowd - before) / 5;
            let is_well = comes_to(|| {
                goes_on(&runtime);
                resident() <= allowed
            });
            let after = resident();
            println!(
                "measured: {before} bytes before, {crowd} with {CROWD} made by {maker}, {after} when idle"
            );
            assert!(is_well, "made by {maker}: {before} before, {crowd} with them, still {after}");
            assert!(comes_to_rest(&runtime), "workers go on waking");
        }
    });
}

// ---- address space -------------------------------------------------------------------------------------------------------------

#[test]
fn stacks_are_unmapped_when_the_last_handle_of_a_runtime_goes() {
    alone("stacks_are_unmapped_when_the_last_handle_of_a_runtime_goes", || {
        let one = |handles: &mut Vec<Request<usize>>| {
            let runtime = runtime(2);
            runtime.run(|| {
                let gate = Request::builder().own_stack().spawn(|| ());
                let waiters: Vec<_> = (0..20)
                    .map(|_| {
                        let gate = gate.clone();
                        Request::builder().own_stack().spawn(move || *gate.wait().unwrap())
                    })
                    .collect();
                waiters.iter().for_each(|waiter| waiter.wait().copied().unwrap());
                assert_eq!(*Request::builder().stack_size(MIB).own_stack().spawn(|| 1).wait().unwrap(), 1);
            });
            // A handle that outlives the runtime keeps a record, no stack.
            handles.push(runtime.spawn(|| 7));
        };
        let mut handles = Vec::new();
        (0..5).for_each(|_| one(&mut handles));
        let before = mapped();
        const MORE: usize = 50;
        (0..MORE).for_each(|_| one(&mut handles));
        let after = mapped();
        println!("measured: {before:?} bytes and mappings, {after:?} fifty runtimes later");
        // One chunk of stacks is 16 MiB; two that stay would show, and so would the guards of theirs. A record that a handle keeps may be a mapping of its own: whether it
        // touches the one before depends on when the threads of that runtime have exited.
        assert!(
            after.0 <= before.0 + 32 * MIB && after.1 <= before.1 + MORE + 16,
            "{before:?}, then {after:?}"
        );
        assert!(handles.into_iter().all(|handle| handle.take().unwrap() == 7));
    });
}
