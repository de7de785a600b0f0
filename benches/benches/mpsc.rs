//! A bounded channel, four to one and one to one.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::mpsc::CLAIM);
}
