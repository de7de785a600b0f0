//! A request with a name, a callback, a deadline, a time-out.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::features::CLAIM);
}
