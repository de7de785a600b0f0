//! How far picks are from the exact order, and how soon the oldest root is over.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::inversions::CLAIM);
}
