//! A task made and waited for before the next is made.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::spawn_wait_one::CLAIM);
}
