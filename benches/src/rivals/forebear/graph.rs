//! Graphs of requests, and sets of them.

use forebear::{Request, RequestSet, spawn};

use super::taken;
use crate::load::Edges;
use crate::rival::Run;
use crate::work::graph::Graph;
use crate::work::{self, Memory};

/// All nodes are made, then the last of them are waited for.
pub(super) fn run(graph: &'static Graph, workers: usize, micros: u64, edges: Edges) -> Run {
    graph.timed(workers, micros, || {
        let mut all: Vec<Request<()>> = Vec::with_capacity(graph.len() as usize);
        for i in 0..graph.len() {
            let before = graph.before[i as usize].iter().map(|&of| &all[of as usize]);
            let request = match edges {
                _ if graph.before[i as usize].is_empty() => spawn(move || graph.run(i, micros)),
                Edges::Declared => Request::builder().after_all(before).spawn(move || graph.run(i, micros)),
                Edges::Waited => {
                    let before: Vec<_> = before.cloned().collect();
                    spawn(move || {
                        before.iter().for_each(|it| *it.wait().expect("nobody cancels, nothing panics"));
                        graph.run(i, micros);
                    })
                }
            };
            all.push(request);
        }
        for &i in &graph.last {
            all[i as usize].wait().expect("nobody cancels, nothing panics");
        }
    })
}

pub(super) fn set(n: u64) -> Run {
    Run::timed(|| {
        let mut set = RequestSet::new();
        for i in 0..n {
            set.insert(spawn(move || work::one(i)));
        }
        let mut sum = 0;
        while let Some((_, request)) = set.wait_next().expect("nobody cancels") {
            sum += taken(request);
        }
        sum
    })
}

/// Requests that are after others which have not run, submitted. The figure is for one of them, without the closure and the handle.
pub(super) fn dependents(n: u64, edges: u64) -> Run {
    let inputs: Vec<_> = (0..edges).map(|_| Request::new(|| ())).collect();
    let (before, start) = (Memory::now(), std::time::Instant::now());
    let mut closure = 0;
    let all: Vec<Request<u64>> = (0..n)
        .map(|i| {
            let work = work::two_words(i);
            closure = size_of_val(&work);
            Request::builder().after_all(&inputs).spawn(work)
        })
        .collect();
    let figures = Memory::bare(before, n, closure, size_of::<Request<u64>>());
    inputs.iter().for_each(|input| _ = input.submit());
    let value = all.iter().map(|one| one.wait().expect("nobody cancels, nothing panics")).sum();
    Run { value, elapsed: start.elapsed(), figures }
}
