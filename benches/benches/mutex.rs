//! A lock held for one addition: alone, and by 64 tasks.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::mutex::CLAIM);
}
