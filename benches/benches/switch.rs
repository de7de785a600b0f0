//! A yield on one worker: eight tasks take turns.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::switch::CLAIM);
}
