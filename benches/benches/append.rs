//! Ninety-nine that poll under one lock for their turn.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::append::CLAIM);
}
