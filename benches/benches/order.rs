//! What the strict order costs: forebear against itself, built with `--cfg forebear_unordered`.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::order::CLAIM);
}
