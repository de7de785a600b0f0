//! A lock held across a yield, by 64 tasks.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::mutex_yield::CLAIM);
}
