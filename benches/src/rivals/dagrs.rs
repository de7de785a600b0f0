//! `dagrs`: nodes that are tasks of tokio, with channels as edges.

use std::sync::Arc;

use async_trait::async_trait;
use dagrs::{Action, Content, DefaultNode, EnvVar, InChannels, Node, NodeTable, OutChannels, Output};
use tokio::runtime::{Builder, Runtime};

use crate::load::Load;
use crate::rival::{Rival, Run};
use crate::work::graph::Graph;

/// A runtime of tokio's, for its graphs.
#[derive(Debug)]
pub struct Dagrs {
    runtime: Runtime,
    workers: usize,
}

impl Dagrs {
    /// Starts the runtime.
    ///
    /// # Panics
    ///
    /// If its threads cannot be started.
    #[must_use]
    pub fn start(workers: usize) -> Dagrs {
        let runtime = Builder::new_multi_thread().worker_threads(workers).enable_all().build();
        Dagrs { runtime: runtime.expect("tokio's runtime"), workers }
    }
}

struct One {
    graph: &'static Graph,
    i: u32,
    micros: u64,
}

#[async_trait]
impl Action for One {
    async fn run(&self, before: &mut InChannels, behind: &mut OutChannels, _: Arc<EnvVar>) -> Output {
        before.map(|content| content.is_ok()).await;
        self.graph.run(self.i, self.micros);
        behind.broadcast(Content::new(())).await;
        Output::Out(None)
    }
}

impl Rival for Dagrs {
    fn run(&self, load: Load) -> Option<Run> {
        let Load::Graph { shape, micros, .. } = load else { return None };
        let graph = Graph::of(shape);
        let all = async move {
            graph_of(graph, micros).async_start().await.expect("no node fails");
        };
        Some(graph.timed(self.workers, micros, || {
            let task = self.runtime.spawn(all);
            self.runtime.block_on(task).expect("a task panicked");
        }))
    }
}

fn graph_of(graph: &'static Graph, micros: u64) -> dagrs::Graph {
    let (mut table, mut made) = (NodeTable::default(), dagrs::Graph::new());
    let mut ids = Vec::with_capacity(graph.len() as usize);
    for i in 0..graph.len() {
        let node = DefaultNode::with_action(i.to_string(), One { graph, i, micros }, &mut table);
        ids.push(node.id());
        made.add_node(node).expect("each is made once");
    }
    for (i, behind) in graph.behind.iter().enumerate().filter(|(_, behind)| !behind.is_empty()) {
        let behind: Vec<_> = behind.iter().map(|&of| ids[of as usize]).collect();
        made.add_edge(ids[i], behind).expect("both are there");
    }
    made.set_env(EnvVar::new(table));
    made
}
