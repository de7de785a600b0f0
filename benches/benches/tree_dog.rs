//! Image work, 768 tasks of a quarter millisecond: a scheduler must not show.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::tree_dog::CLAIM);
}
