//! A member of a pool that is bounded, and its value handed on.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::pool_member::CLAIM);
}
