//! A hundred tasks that are due while a tree of joins computes.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::urgent::CLAIM);
}
