//! A tree of tasks, ten children a node, a million leaves: the sum of the leaves' numbers.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::graph::CLAIM);
}
