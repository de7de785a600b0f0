//! Two contexts on two processors that hand something to each other all the time.

mod harness;

fn main() {
    harness::run(&forebear_benches::claims::hand_over::CLAIM);
}
