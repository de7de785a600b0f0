//! A million tasks made by a thread that is not the runtime's, and all waited for there.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::spawn_out::CLAIM);
}
