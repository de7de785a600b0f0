//! What callbacks cost.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::callbacks::CLAIM);
}
