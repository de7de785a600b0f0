//! A token between two tasks, on one worker and across two.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::pingpong::CLAIM);
}
