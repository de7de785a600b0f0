//! A hundred thousand sleepers, and how late they continue.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::sleepers::CLAIM);
}
