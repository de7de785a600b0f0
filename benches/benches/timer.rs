//! A timer armed and taken back: a million, one at a time and all at once, and around a wait.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::timer::CLAIM);
}
