//! A hundred thousand sleepers, and how late they go on.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::sleepers::CLAIM);
}
