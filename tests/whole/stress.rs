//! Random programs of everything at once, each compared with a plain sequential evaluation of the same program.
//!
//! A program is a tree of [`Node`]s drawn from a seed, over a table of *shared* requests that any node may wait for; entry
//! `i` of the table waits for entries before it only, so no program has a cycle. What a program comes to is a hash of all
//! its parts in their order, so a part that is lost, doubled or taken from elsewhere changes it.

#[path = "../support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebear::{Request, WaitError, join, scope, spawn, try_scope, yield_now};
use support::{Come, Modes, Random, Watchdog, kinds, mix, not_on, on_each, runtime};

/// A part of a random program.
#[derive(Debug)]
enum Node {
    Leaf(u64),
    /// Waits for an entry of the shared table.
    Shared(usize),
    Yield(Arc<Node>),
    Join(Arc<Node>, Arc<Node>),
    /// Spawned, then taken, the newest first or the oldest first.
    Take(Vec<Arc<Node>>, bool),
    /// Made, some submitted, then waited for by reference, each by two.
    Wait(Vec<Arc<Node>>, u64),
    /// Spawned in a scope, which borrows a place for each result.
    Scope(Vec<Arc<Node>>),
    /// One request, awaited by several others.
    Crowd(Arc<Node>, usize),
    /// Ends by a panic, whose message carries the value.
    Panic(Arc<Node>),
    /// An arm of a join that panics.
    PanicInJoin(Arc<Node>, Arc<Node>),
    /// A scope whose job fails, with nobody looking.
    PanicInScope(Arc<Node>, Arc<Node>),
    /// Spawned and forgotten; then something else.
    Forget(Arc<Node>, Arc<Node>),
    /// On a stack of its own of this many KiB.
    OwnStack(Arc<Node>, usize),
}

fn generate(random: &mut Random, depth: usize, shared: usize) -> Arc<Node> {
    let leaf = Node::Leaf(random.next());
    if depth == 0 {
        return Arc::new(leaf);
    }
    let some = |random: &mut Random| {
        let n = 1 + random.below(4);
        (0..n).map(|_| generate(random, depth - 1, shared)).collect::<Vec<_>>()
    };
    let node = match random.below(15) {
        0 => leaf,
        1 | 2 if shared > 0 => Node::Shared(random.below(shared)),
        1..=3 => Node::Yield(generate(random, depth - 1, shared)),
        4 | 5 => Node::Join(generate(random, depth - 1, shared), generate(random, depth - 1, shared)),
        6 | 7 => Node::Take(some(random), random.below(2) == 0),
        8 => Node::Wait(some(random), random.next()),
        9 => Node::Scope(some(random)),
        10 => Node::Crowd(generate(random, depth - 1, shared), 1 + random.below(4)),
        11 => Node::Panic(generate(random, depth - 1, shared)),
        12 => Node::PanicInJoin(generate(random, depth - 1, shared), generate(random, depth - 1, shared)),
        13 if random.below(2) == 0 => {
            Node::PanicInScope(generate(random, depth - 1, shared), generate(random, depth - 1, shared))
        }
        13 => Node::Forget(generate(random, depth - 1, shared), generate(random, depth - 1, shared)),
        _ => Node::OwnStack(generate(random, depth - 1, shared), [16, 100, 1000][random.below(3)]),
    };
    Arc::new(node)
}

fn fold(values: impl IntoIterator<Item = u64>, kind: u64) -> u64 {
    values.into_iter().fold(mix(kind), |sum, value| mix(sum.wrapping_mul(3).wrapping_add(value)))
}

/// What the program comes to, without any runtime.
fn plain(node: &Node, table: &[u64]) -> u64 {
    let of = |node: &Arc<Node>| plain(node, table);
    match node {
        Node::Leaf(value) => *value,
        Node::Shared(at) => table[*at],
        Node::Yield(inner) => of(inner),
        Node::Join(a, b) => fold([of(a), of(b)], 1),
        Node::Take(parts, _) => fold(parts.iter().map(of), 2),
        Node::Wait(parts, _) => fold(parts.iter().map(of), 3),
        Node::Scope(parts) => fold(parts.iter().map(of), 4),
        Node::Crowd(inner, waiters) => fold(std::iter::repeat_n(of(inner), *waiters), 5),
        Node::Panic(inner) => fold([of(inner)], 6),
        Node::PanicInJoin(a, b) => fold([of(a), of(b)], 7),
        Node::PanicInScope(a, b) => fold([of(a), of(b)], 8),
        Node::Forget(_, b) => of(b),
        Node::OwnStack(inner, _) => of(inner),
    }
}

/// A payload that no panic hook shows, since it is not thrown by `panic!`.
fn throw(value: u64) -> ! {
    std::panic::resume_unwind(Box::new(value))
}

fn caught(error: &WaitError) -> u64 {
    let failure = error.failure().unwrap_or_else(|| panic!("not a failure: {error:?}"));
    *failure.panic_payload::<u64>().expect("the payload is the value")
}

type Table = Arc<Vec<Request<u64>>>;

/// What the program comes to, run by requests.
fn run(node: &Arc<Node>, table: &Table) -> u64 {
    let job = |node: &Arc<Node>| {
        let (node, table) = (node.clone(), table.clone());
        move || run(&node, &table)
    };
    match &**node {
        Node::Leaf(value) => *value,
        // By a handle of its own: then a sanitizer sees what orders the last look before the drop.
        Node::Shared(at) => *table[*at].clone().wait().unwrap(),
        Node::Yield(inner) => {
            yield_now().unwrap();
            run(inner, table)
        }
        Node::Join(a, b) => {
            let (a, b) = join(|| run(a, table), || run(b, table));
            fold([a, b], 1)
        }
        Node::Take(parts, newest_first) => {
            let requests: Vec<_> = parts.iter().map(|part| spawn(job(part))).collect();
            let mut values: Vec<u64> = if *newest_first {
                requests.into_iter().rev().map(|request| request.take().unwrap()).collect()
            } else {
                requests.into_iter().map(|request| request.take().unwrap()).collect()
            };
            if *newest_first {
                values.reverse();
            }
            fold(values, 2)
        }
        Node::Wait(parts, submitted) => {
            let requests: Vec<_> = parts.iter().map(|part| Request::new(job(part))).collect();
            for (at, request) in requests.iter().enumerate() {
                if submitted >> at & 1 == 1 {
                    request.submit();
                }
            }
            let others = requests.clone();
            let second = spawn(move || fold(others.iter().map(|request| *request.wait().unwrap()), 3));
            let first = fold(requests.iter().map(|request| *request.wait().unwrap()), 3);
            assert_eq!(second.take().unwrap(), first);
            first
        }
        Node::Scope(parts) => {
            let mut values = vec![0; parts.len()];
            scope(|s| {
                for (place, part) in values.iter_mut().zip(parts) {
                    s.spawn(|| *place = run(part, table));
                }
            });
            fold(values, 4)
        }
        Node::Crowd(inner, waiters) => {
            let one = Request::new(job(inner));
            let crowd: Vec<_> = (0..*waiters)
                .map(|_| {
                    let one = one.clone();
                    spawn(move || *one.wait().unwrap())
                })
                .collect();
            fold(crowd.into_iter().map(|waiter| waiter.take().unwrap()), 5)
        }
        Node::Panic(inner) => {
            let inner = job(inner);
            let bad = spawn(move || throw(inner()));
            fold([caught(&bad.wait().unwrap_err())], 6)
        }
        Node::PanicInJoin(a, b) => {
            let mut second = 0;
            let result = catch_unwind(AssertUnwindSafe(|| {
                join(|| throw(run(a, table)), || second = run(b, table));
            }));
            let first = *result.unwrap_err().downcast::<u64>().unwrap();
            fold([first, second], 7)
        }
        Node::PanicInScope(a, b) => {
            let mut second = 0;
            let result = try_scope(|s| {
                s.spawn(|| throw(run(a, table)));
                // Waited for, or the failure would end it.
                s.spawn(|| second = run(b, table)).wait()?;
                Ok(())
            });
            fold([caught(&result.unwrap_err()), second], 8)
        }
        Node::Forget(a, b) => {
            // Nobody's child: if a request above fails, this one and what it alone waits for are to go on.
            Request::builder().detached().spawn(job(a));
            run(b, table)
        }
        Node::OwnStack(inner, kib) => {
            Request::builder().own_stack().stack_size(kib << 10).build(job(inner)).take().unwrap()
        }
    }
}

/// One random program: its table, the main part, and what it comes to.
fn program(seed: u64) -> (Vec<Arc<Node>>, Arc<Node>, u64) {
    let mut random = Random::new(seed);
    let entries = random.below(6);
    let (mut parts, mut values) = (Vec::new(), Vec::new());
    for at in 0..entries {
        let part = generate(&mut random, 3, at);
        values.push(plain(&part, &values));
        parts.push(part);
    }
    let main = generate(&mut random, 5, entries);
    let expected = plain(&main, &values);
    (parts, main, expected)
}

/// Makes the requests of a table. Entry `i` holds those before it.
fn table_of(parts: Vec<Arc<Node>>) -> Table {
    let mut requests: Vec<Request<u64>> = Vec::new();
    for part in parts {
        let before: Table = Arc::new(requests.clone());
        requests.push(Request::new(move || run(&part, &before)));
    }
    Arc::new(requests)
}

/// How many programs: enough to meet every pair of kinds in debug, more in release, and many with `FOREBEAR_SOAK=1`.
fn programs() -> u64 {
    let some = if cfg!(debug_assertions) { 2_000 } else { 10_000 };
    if support::soaking() { 50 * some } else { some }
}

#[test]
fn random_programs_come_to_what_they_come_to_sequentially() {
    for kind in kinds() {
        let dog = Watchdog::new(format_args!("{kind:?}"));
        let runtime = kind.builder().on_unhandled_failure(|_| ()).build().unwrap();
        for seed in 0..programs() {
            let (parts, main, expected) = program(seed);
            let got = runtime.run(|| run(&main, &table_of(parts)));
            assert_eq!(got, expected, "program {seed} on {kind:?}");
        }
        drop(runtime);
        drop(dog);
    }
}

/// The same, driven by a foreign thread: it joins, opens scopes and runs requests itself.
#[test]
fn random_programs_come_to_the_same_in_foreign_threads() {
    for kind in kinds() {
        let dog = Watchdog::new(format_args!("{kind:?}"));
        let runtime = kind.builder().on_unhandled_failure(|_| ()).build().unwrap();
        for seed in 0..programs() / 2 {
            let (parts, main, expected) = program(seed);
            let got = runtime.enter(|| run(&main, &table_of(parts)));
            assert_eq!(got, expected, "program {seed} on {kind:?}");
        }
        drop(runtime);
        drop(dog);
    }
}

/// Several programs at once over one shared table, from requests and foreign threads, the runtime's handle dropped
/// before they are done.
#[test]
fn random_programs_do_not_disturb_each_other() {
    let _not = not_on(
        Modes::Synchronous,
        "a thread that exits aborts what it has suspended of the shared table, for which others wait",
    );
    for kind in kinds() {
        let dog = Watchdog::new(format_args!("{kind:?}"));
        for round in 0..programs() / 20 {
            let runtime = kind.builder().on_unhandled_failure(|_| ()).build().unwrap();
            let (parts, _, _) = program(round);
            let mut values = Vec::new();
            for part in &parts {
                values.push(plain(part, &values));
            }
            let table = runtime.enter(|| table_of(parts));
            let mains: Vec<_> = (0..6)
                .map(|n| {
                    let main = generate(&mut Random::new(round * 100 + n), 4, table.len());
                    let expected = plain(&main, &values);
                    (main, expected)
                })
                .collect();
            let requests: Vec<_> = mains[..4]
                .iter()
                .map(|(main, expected)| {
                    let (main, expected, table) = (main.clone(), *expected, table.clone());
                    runtime.spawn(move || assert_eq!(run(&main, &table), expected))
                })
                .collect();
            std::thread::scope(|threads| {
                let others: Vec<_> = mains[4..]
                    .iter()
                    .map(|(main, expected)| {
                        let (runtime, table) = (runtime.clone(), &table);
                        threads.spawn(move || assert_eq!(runtime.enter(|| run(main, table)), *expected))
                    })
                    .collect();
                drop(runtime);
                support::join_all(others);
            });
            for request in requests {
                request.take().unwrap();
            }
        }
        drop(dog);
    }
}

/// The runner counts as no handle, and neither do untyped handles or those that format it.
#[test]
fn take_is_never_refused_because_of_the_runner_an_untyped_handle_or_a_look() {
    let takes = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    for kind in kinds() {
        let dog = Watchdog::new(format_args!("{kind:?}"));
        let runtime = kind.build();
        let over = AtomicBool::new(false);
        let (send, looked_at) = std::sync::mpsc::sync_channel::<forebear::AnyRequest>(64);
        std::thread::scope(|threads| {
            let over = &over;
            let looker = threads.spawn(move || {
                let mut seen = 0;
                while let Ok(any) = looked_at.come() {
                    while !any.is_done() && !over.load(Ordering::Relaxed) {
                        seen += format!("{any:?}").len();
                    }
                    seen += format!("{any:?}").len();
                }
                assert!(seen > 0);
            });
            // Half from a foreign thread against the workers, half from a request.
            for n in 0..takes / 6 {
                let request = runtime.spawn(move || n);
                let _ = send.try_send(request.to_untyped());
                assert_eq!(request.take().unwrap(), n);
            }
            runtime.run(|| {
                for n in 0..takes / 6 {
                    let request = spawn(move || n);
                    let _ = send.try_send(request.to_untyped());
                    if n % 3 == 0 {
                        let _ = yield_now();
                    }
                    assert_eq!(request.take().unwrap(), n);
                }
            });
            over.store(true, Ordering::Relaxed);
            drop(send);
            support::join_all([looker]);
        });
        drop(dog);
    }
}

/// Work that is on its way when the last handle of the runtime goes is still done.
#[test]
fn dropping_the_runtime_at_once_loses_no_work() {
    let rounds = if cfg!(debug_assertions) { 150 } else { 1_500 };
    on_each(|sized| {
        for round in 0..rounds {
            let runtime = runtime(sized.workers());
            let done = support::Count::new();
            for _ in 0..round % 7 {
                let done = done.clone();
                runtime.spawn(move || {
                    let children: Vec<_> = (0..3)
                        .map(|_| {
                            let done = done.clone();
                            spawn(move || {
                                let _ = yield_now();
                                done.up();
                            })
                        })
                        .collect();
                    if round % 2 == 0 {
                        for child in children {
                            child.take().unwrap();
                        }
                    }
                    done.up();
                });
            }
            drop(runtime);
            assert_eq!(done.get(), 4 * (round % 7), "round {round}");
        }
    });
}
