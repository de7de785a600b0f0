//! What crosses two workers.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::across::CLAIM);
}
