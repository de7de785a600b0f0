//! [`ByTask`]: a map by the numbers of tasks, each of which takes one multiplication to find.
//!
//! The coordinator gives the numbers, one after the other, and a peer cannot make a map grow by numbers of its own. So no hash with a secret is needed.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::engine::TaskId;

pub(crate) type ByTask<T> = HashMap<TaskId, T, BuildHasherDefault<Spread>>;

/// Numbers in a row get places in a row, and differ in their upper bits, too.
#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
