//! What requests hold that have not begun, and what a burst of suspended ones leaves behind.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::memory::CLAIM);
}
