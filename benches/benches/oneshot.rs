//! A channel of one item.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::oneshot::CLAIM);
}
