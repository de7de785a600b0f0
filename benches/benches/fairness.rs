//! A lock that many want: the longest wait beside the median.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::fairness::CLAIM);
}
