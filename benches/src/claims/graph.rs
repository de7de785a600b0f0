//! Graphs whose edges are known beforehand. Each node starts after all its predecessors, and computes for as long as
//! the row says.
//!
//! forebear declares the edges (`builder().after_all(…)`); in the rows *by wait* each node is a request that waits for its predecessors. The
//! time includes making the graph. rayon runs one level after the other; it gets the levels ready-made. dagrs gets smaller graphs: it needs
//! about a hundred microseconds a node. oneTBB is a C++ program, and has to be built (`benches/compare`).

use crate::claim::{Bound, Claim, Goal, Measure, Row, Runner, runner};
use crate::load::{Edges, Load};
use crate::rivals::BY_WAIT;
use crate::rivals::outside::ONETBB;
use crate::work::graph::{IDEAL, Shape};

const fn load(shape: Shape, micros: u64) -> Load {
    Load::Graph { shape, micros, edges: Edges::Declared }
}

const ONE_INPUT: Shape = Shape::OneInput { consumers: 64 };
const LAYERED: Shape = Shape::Layered { layers: 100, width: 100, edges: 4 };
const FEW_LAYERS: Shape = Shape::Layered { layers: 10, width: 100, edges: 4 };
/// 99,856 nodes.
const WAVEFRONT: Shape = Shape::Wavefront { side: 316 };
const SMALL_WAVEFRONT: Shape = Shape::Wavefront { side: 32 };

const fn all(shape: Shape, small: Shape, micros: u64) -> [Runner; 6] {
    [
        runner("forebear", load(shape, micros)),
        runner(BY_WAIT, Load::Graph { shape, micros, edges: Edges::Waited }),
        runner("rayon", load(shape, micros)),
        runner("dag_exec", load(shape, micros)),
        runner("dagrs", load(small, micros)),
        runner(ONETBB, load(shape, micros)),
    ]
}

const GOALS: &[Goal] = &[
    Goal::times(0.8, ONETBB),
    Goal::times(0.5, "rayon"),
    Goal::times(0.5, "dag_exec"),
    Goal::times(0.5, "dagrs"),
];

const fn row(name: &'static str, runners: &'static [Runner]) -> Row {
    Row { name, workers: &[1, 2], runners, goals: GOALS }
}

const IDEALLY: &[Goal] = &[Goal::new(Measure::Figure(IDEAL), Bound::AtMost(1.05))];

/// One input, layers, and a wavefront.
pub const CLAIM: Claim = Claim {
    name: "graph",
    op: "node",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "one input, 64 consumers of 1 ms",
            workers: &[2],
            runners: &all(ONE_INPUT, ONE_INPUT, 1000),
            goals: IDEALLY,
        },
        row("layers, 0 us", &all(LAYERED, FEW_LAYERS, 0)),
        row("layers, 1 us", &all(LAYERED, FEW_LAYERS, 1)),
        row("layers, 100 us", &all(FEW_LAYERS, FEW_LAYERS, 100)),
        row("wavefront, 0 us", &all(WAVEFRONT, SMALL_WAVEFRONT, 0)),
        row("wavefront, 1 us", &all(WAVEFRONT, SMALL_WAVEFRONT, 1)),
        row("wavefront, 100 us", &all(SMALL_WAVEFRONT, SMALL_WAVEFRONT, 100)),
    ],
};
