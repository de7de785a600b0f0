//! Graphs whose edges are known beforehand, and one input with many consumers.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::graph::CLAIM);
}
