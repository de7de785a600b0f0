//! No runtime: two threads that poll one number, and pass it back and forth. A bound, not a rival: how long a memory line takes from core to
//! core and back, in this process on this machine.

use std::hint::spin_loop;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;

use crate::load::{Across, Load};
use crate::rival::{Rival, Run};

/// One memory line.
#[derive(Debug)]
pub struct Line;

/// Alone on its line, and on that which the processor fetches with it.
#[repr(align(128))]
struct Token(AtomicU64);

impl Token {
    /// Passes on each number of one parity, up to the last.
    fn pass(&self, first: u64, last: u64) {
        for number in (first..last).step_by(2) {
            while self.0.load(Acquire) != number {
                spin_loop();
            }
            self.0.store(number + 1, Release);
        }
    }
}

impl Rival for Line {
    fn run(&self, load: Load) -> Option<Run> {
        let Load::PingPong { n, across: Across::Awake | Across::Asleep } = load else { return None };
        let token = Token(AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| token.pass(1, 2 * n + 2));
            token.pass(0, 2);
            while token.0.load(Acquire) != 2 {
                spin_loop();
            }
            Some(Run::timed(|| {
                token.pass(2, 2 * n + 2);
                while token.0.load(Acquire) != 2 * n + 2 {
                    spin_loop();
                }
                n
            }))
        })
    }
}
