//! The same with more and more of something: time an item must stay about the same. The points of each curve are its figures.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::growth::CLAIM);
}
