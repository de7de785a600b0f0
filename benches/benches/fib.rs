//! Fork-join without a cut-off: Fibonacci of 27, and 30 for two workers, where 27 is over before both are warm.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::fib::CLAIM);
}
