//! Graphs of nodes that compute equally long, each after some earlier nodes.

use std::collections::HashMap;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::{scattered, spin, steps_per_ms};
use crate::rival::Run;

/// The time of a run, divided by a lower bound: the longer of the longest chain and an even share of
/// all nodes.
pub const IDEAL: &str = "times the ideal";

/// The shape of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shape {
    /// One node, and so many after it.
    OneInput {
        /// How many.
        consumers: u32,
    },
    /// Layers of so many nodes, each after `edges` random nodes of the layer before.
    Layered {
        /// How many layers.
        layers: u32,
        /// How many nodes in each.
        width: u32,
        /// How many edges a node has.
        edges: u32,
    },
    /// A square of nodes, each after its left and its upper neighbour.
    Wavefront {
        /// How many nodes in a row.
        side: u32,
    },
}

impl Shape {
    /// How many nodes it has.
    #[must_use]
    pub fn nodes(self) -> u32 {
        match self {
            Shape::OneInput { consumers } => 1 + consumers,
            Shape::Layered { layers, width, .. } => layers * width,
            Shape::Wavefront { side } => side * side,
        }
    }

    /// How many nodes stand in its longest chain.
    fn depth(self) -> u32 {
        match self {
            Shape::OneInput { .. } => 2,
            Shape::Layered { layers, .. } => layers,
            Shape::Wavefront { side } => 2 * side - 1,
        }
    }

    /// The predecessors of node `i`.
    fn before(self, i: u32) -> Vec<u32> {
        match self {
            Shape::OneInput { .. } => (i > 0).then_some(0).into_iter().collect(),
            Shape::Layered { width, .. } if i < width => Vec::new(),
            Shape::Layered { width, edges, .. } => {
                let layer = (i / width - 1) * width;
                let of = |edge| layer + (scattered(u64::from(i * edges + edge)) % u64::from(width)) as u32;
                let mut before: Vec<_> = (0..edges).map(of).collect();
                before.sort_unstable();
                before.dedup();
                before
            }
            Shape::Wavefront { side } => {
                let (left, above) = ((!i.is_multiple_of(side)).then(|| i - 1), i.checked_sub(side));
                above.into_iter().chain(left).collect()
            }
        }
    }

    /// The level of node `i`. Nodes of one level have no edges between them.
    fn level(self, i: u32) -> usize {
        (match self {
            Shape::OneInput { .. } => u32::from(i > 0),
            Shape::Layered { width, .. } => i / width,
            Shape::Wavefront { side } => i / side + i % side,
        }) as usize
    }

    /// The same for the program of another language: a word and numbers.
    #[must_use]
    pub fn words(self) -> Vec<String> {
        let (word, numbers) = match self {
            Shape::OneInput { consumers } => ("one-input", [consumers, 0, 0]),
            Shape::Layered { layers, width, edges } => ("layered", [layers, width, edges]),
            Shape::Wavefront { side } => ("wavefront", [side, 0, 0]),
        };
        std::iter::once(word.into()).chain(numbers.map(|number| number.to_string())).collect()
    }
}

/// A graph, and which of its nodes have run.
#[derive(Debug)]
pub struct Graph {
    shape: Shape,
    /// The predecessors of each node.
    pub before: Vec<Vec<u32>>,
    /// The successors of each node.
    pub behind: Vec<Vec<u32>>,
    /// The nodes of each level.
    pub levels: Vec<Vec<u32>>,
    /// The nodes without successors.
    pub last: Vec<u32>,
    marks: Vec<AtomicU8>,
}

impl Graph {
    /// The graph of that shape: made once in a process.
    #[must_use]
    pub fn of(shape: Shape) -> &'static Graph {
        static GRAPHS: OnceLock<Mutex<HashMap<Shape, &'static Graph>>> = OnceLock::new();
        let mut graphs = GRAPHS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        graphs.entry(shape).or_insert_with(|| Box::leak(Box::new(Graph::new(shape))))
    }

    fn new(shape: Shape) -> Graph {
        let nodes = shape.nodes();
        let before: Vec<_> = (0..nodes).map(|i| shape.before(i)).collect();
        let mut behind = vec![Vec::new(); nodes as usize];
        let mut levels = vec![Vec::new(); shape.depth() as usize];
        for i in 0..nodes {
            before[i as usize].iter().for_each(|&of| behind[of as usize].push(i));
            levels[shape.level(i)].push(i);
        }
        let last = (0..nodes).filter(|&i| behind[i as usize].is_empty()).collect();
        let marks = (0..nodes).map(|_| AtomicU8::new(0)).collect();
        Graph { shape, before, behind, levels, last, marks }
    }

    /// How many nodes it has.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.shape.nodes()
    }

    /// Whether it has no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs a node: computes for so long.
    ///
    /// # Panics
    ///
    /// If a predecessor has not run, or the node has.
    pub fn run(&self, i: u32, micros: u64) {
        for &before in &self.before[i as usize] {
            assert_eq!(self.marks[before as usize].load(Acquire), 1, "node {before} goes before node {i}");
        }
        if micros > 0 {
            spin(steps_per_ms() * micros / 1000);
        }
        assert_eq!(self.marks[i as usize].swap(1, Release), 0, "node {i} has run");
    }

    /// Times `all`, which runs all nodes on so many workers.
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    pub fn timed(&self, workers: usize, micros: u64, all: impl FnOnce()) -> Run {
        steps_per_ms();
        self.marks.iter().for_each(|mark| mark.store(0, Relaxed));
        let mut run = Run::timed(|| {
            all();
            0
        });
        run.value = self.marks.iter().map(|mark| u64::from(mark.load(Acquire))).sum();
        if micros > 0 {
            // The nodes of a level share the workers, and no node is shared.
            let rounds: usize = self.levels.iter().map(|level| level.len().div_ceil(workers)).sum();
            let ideal = Duration::from_micros(micros) * rounds as u32;
            run.figures.push((IDEAL, run.elapsed.as_secs_f64() / ideal.as_secs_f64()));
        }
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_edge_leads_to_an_earlier_level() {
        for shape in [
            Shape::OneInput { consumers: 5 },
            Shape::Layered { layers: 4, width: 6, edges: 3 },
            Shape::Wavefront { side: 5 },
        ] {
            let graph = Graph::of(shape);
            assert_eq!(graph.levels.iter().map(Vec::len).sum::<usize>(), shape.nodes() as usize);
            for (i, before) in graph.before.iter().enumerate() {
                for &of in before {
                    assert!(
                        shape.level(of) < shape.level(i as u32)
                            && graph.behind[of as usize].contains(&(i as u32))
                    );
                }
                assert_eq!(before.is_empty(), shape.level(i as u32) == 0, "{shape:?}, {i}");
            }
        }
    }

    #[test]
    fn a_node_that_runs_too_early_is_found_out() {
        let graph = Graph::new(Shape::OneInput { consumers: 1 });
        assert!(std::panic::catch_unwind(|| graph.run(1, 0)).is_err());
        graph.run(0, 0);
        graph.run(1, 0);
    }
}
