//! A million suspended requests: what they hold, and what it costs to wake them.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::suspended::CLAIM);
}
