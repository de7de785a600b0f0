//! Work that is worth sharing at once, after a pause in which every worker fell asleep.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::coarse::CLAIM);
}
