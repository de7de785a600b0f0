//! Random graphs, both ways: by declared edges, and by waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebear::{CancelReason, Request, Runtime, WaitError, then_all};

use crate::support::{Joined, Watchdog, on_each};

/// What a node does beside looking at its dependencies.
#[derive(Clone, Copy, Debug)]
enum Act {
    Yields,
    Fails,
    Is(u64),
}

struct Graph(Vec<(Vec<usize>, Act)>);

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

impl Graph {
    fn draw(seed: u64) -> Graph {
        let mut random = Random(seed | 1);
        let len = 2 + random.below(40);
        let nodes = (0..len).map(|at| {
            let most = at.min(4);
            let mut after: Vec<_> = (0..random.below(most + 1)).map(|_| random.below(at)).collect();
            after.dedup();
            let act = match random.below(12) {
                0 => Act::Fails,
                1..4 => Act::Yields,
                n => Act::Is(n as u64),
            };
            (after, act)
        });
        Graph(nodes.collect())
    }
}

fn act(act: Act, values: &[u64]) -> Result<u64, forebear::Error> {
    let sum = values.iter().fold(1_u64, |sum, value| sum.wrapping_mul(31).wrapping_add(*value));
    match act {
        Act::Fails => Err("fails".parse::<u64>().unwrap_err().into()),
        Act::Yields => {
            forebear::yield_now()?;
            Ok(sum)
        }
        Act::Is(n) => Ok(sum.wrapping_add(n)),
    }
}

/// Counts for each request of a graph how often it has run.
fn counts(graph: &Graph) -> Arc<[AtomicUsize]> {
    graph.0.iter().map(|_| AtomicUsize::new(0)).collect()
}

/// Makes the requests; `declared` or not. `ran` notes who has run.
fn make(graph: &Graph, declared: bool, ran: &Arc<[AtomicUsize]>) -> Vec<Request<u64>> {
    let mut made: Vec<Request<u64>> = Vec::new();
    for (at, (after, what)) in graph.0.iter().enumerate() {
        let what = *what;
        let after: Vec<_> = after.iter().map(|at| made[*at].clone()).collect();
        let ran = ran.clone();
        let run = move |values: &[u64]| {
            ran[at].fetch_add(1, Ordering::Relaxed);
            act(what, values)
        };
        let builder = Request::builder().name(format!("n{at}"));
        made.push(if !declared {
            builder.try_build(move || {
                let values: Result<Vec<_>, WaitError> = after.iter().map(|one| one.wait().copied()).collect();
                run(&values?)
            })
        } else if let [one] = &after[..] {
            builder.try_then(one, move |value| run(&[*value]))
        } else {
            let values = after.clone();
            builder.after_all(&after).try_build(move || {
                let values: Vec<_> = values.iter().map(|one| *one.get().unwrap()).collect();
                run(&values)
            })
        });
    }
    made
}

#[derive(Debug, PartialEq)]
enum End {
    Value(u64),
    Failed(Vec<String>),
    Cancelled,
}

fn end(request: &Request<u64>) -> End {
    match request.wait() {
        Ok(value) => End::Value(*value),
        Err(WaitError::Failed(failure)) => End::Failed(failure.path().map(|link| link.to_owned()).collect()),
        Err(WaitError::TargetCancelled(_)) => End::Cancelled,
        Err(error) => panic!("{error}"),
    }
}

fn run(runtime: &Runtime, graph: &Graph, seed: u64, declared: bool) -> (Vec<End>, Vec<usize>) {
    let ran = counts(graph);
    let requests = runtime.enter(|| make(graph, declared, &ran));
    let mut random = Random(seed.wrapping_mul(7) | 1);
    // One is cancelled before anything begins.
    if random.below(3) == 0 {
        requests[random.below(requests.len())].abort(CancelReason::Aborted);
    }
    for request in &requests {
        if random.below(2) == 0 {
            request.submit();
        }
    }
    let ends = requests.iter().map(end).collect();
    (ends, ran.iter().map(|ran| ran.load(Ordering::Relaxed)).collect())
}

#[test]
fn a_random_graph_comes_to_the_same_by_then_and_by_wait() {
    let cases = if crate::support::soaking() { 5_000 } else { 150 };
    on_each(|runtime| {
        for seed in 1..=cases {
            let graph = Graph::draw(seed * 0x9e37_79b9);
            let (declared, waited) = (run(runtime, &graph, seed, true), run(runtime, &graph, seed, false));
            assert_eq!(declared, waited, "seed {seed}: {:?}", graph.0);
        }
    });
}

/// Dependents, cancels, deadlines and drops, from several threads at once: each comes to an end, and nothing is left.
#[test]
fn in_a_storm_of_cancels_each_comes_to_an_end() {
    for workers in [1, 2, 4] {
        let _dog = Watchdog::new(format_args!("{workers} workers"));
        // Nobody looks at most failures.
        let runtime = Runtime::builder().workers(workers).on_unhandled_failure(|_| ()).build().unwrap();
        for seed in 1..=60 {
            let graph = Graph::draw(seed * 0x1234_5677);
            let ran = counts(&graph);
            let requests = runtime.enter(|| make(&graph, true, &ran));
            std::thread::scope(|s| {
                let threads = [0, 1, 2].map(|thread| {
                    let (requests, mut random) = (&requests, Random((seed * 31 + thread) | 1));
                    s.spawn(move || {
                        for _ in 0..60 {
                            let request = &requests[random.below(requests.len())];
                            match random.below(5) {
                                0 => _ = request.cancel(),
                                1 => _ = request.abort(CancelReason::Aborted),
                                2 => _ = request.wait(),
                                3 => _ = request.then(|n| *n).submit(),
                                _ => _ = request.submit(),
                            }
                        }
                    })
                });
                threads.into_iter().for_each(|thread| thread.joined().unwrap());
            });
            let last = runtime.enter(|| then_all(&requests[..], |all| all.len()));
            let _ = last.wait();
            for request in &requests {
                let _ = request.wait();
                assert!(request.is_done());
            }
        }
    }
}
