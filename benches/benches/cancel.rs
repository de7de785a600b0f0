//! What a cancel takes with 100,000 in flight.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::cancel::CLAIM);
}
