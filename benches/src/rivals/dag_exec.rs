//! `dag_exec`: a graph of functions, dispatched to threads of its own for each run.

use dag_exec::{DagBuilder, Executor, ExecutorConfig};

use crate::load::Load;
use crate::rival::{Rival, Run};
use crate::work::graph::Graph;

/// How many threads a run has.
#[derive(Debug)]
pub struct DagExec(usize);

impl DagExec {
    /// Notes the number of threads; each run starts its own.
    #[must_use]
    pub fn start(workers: usize) -> DagExec {
        DagExec(workers)
    }
}

impl Rival for DagExec {
    fn run(&self, load: Load) -> Option<Run> {
        let Load::Graph { shape, micros, .. } = load else { return None };
        let graph = Graph::of(shape);
        let config = ExecutorConfig { max_workers: self.0, max_in_flight: 64 * self.0, worker_queue_cap: 64 };
        Some(graph.timed(self.0, micros, || {
            let mut builder = DagBuilder::<u32, (), ()>::new();
            for i in 0..graph.len() {
                let run = move |_: &[std::sync::Arc<()>]| {
                    graph.run(i, micros);
                    Ok(())
                };
                builder.add_task(i, graph.before[i as usize].clone(), run).expect("each is made once");
            }
            let dag = builder.build().expect("each edge leads back");
            let last = graph.last.iter().copied();
            Executor::new(config).run_parallel(&dag, last).expect("no node fails");
        }))
    }
}
