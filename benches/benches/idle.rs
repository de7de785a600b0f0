//! What a runtime costs that has nothing to do, and how long it takes to wake it from outside.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::idle::CLAIM);
}
