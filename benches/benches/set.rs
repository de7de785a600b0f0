//! Ten thousand tasks at once, taken in the order in which they end.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::set::CLAIM);
}
