//! A million tasks made by one task, and all waited for.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::spawn_in::CLAIM);
}
