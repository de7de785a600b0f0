//! A cache line: who has it, and who waits for it.
//!
//! A line that was written belongs to its writer; a reader has a copy until the next write. Writes to one line come one
//! after the other, in the order in which they are requested, each for as long as it takes. A lock is modelled alike: its holder
//! has the line for the length of its section. Reads wait for nobody, which flatters a line that is written all the time.

use crate::costs::{Costs, Nanos};

/// One line, or the lock in it with all that it guards.
#[derive(Debug, Clone, Default)]
pub struct Line {
    /// The cores that have a copy, a bit each.
    holders: Vec<u64>,
    free_at: Nanos,
    /// How long it was written or held,
    pub used: Nanos,
    /// how often,
    pub writes: u64,
    /// and how long writers waited for it.
    pub waited: Nanos,
}

impl Line {
    fn has(&self, who: usize) -> bool {
        self.holders.get(who / 64).is_some_and(|word| word >> (who % 64) & 1 == 1)
    }

    fn add(&mut self, who: usize) {
        if self.holders.len() <= who / 64 {
            self.holders.resize(who / 64 + 1, 0);
        }
        self.holders[who / 64] |= 1 << (who % 64);
    }

    /// `who` reads. Whether the line came from another core.
    pub fn read(&mut self, who: usize) -> bool {
        let misses = !self.has(who);
        if misses {
            self.add(who);
        }
        misses
    }

    /// `who` asks at `now` to write, which takes `long` once it has the line. The time at which that is done.
    pub fn write(&mut self, costs: &Costs, now: Nanos, who: usize, long: Nanos) -> Nanos {
        let alone = self.has(who) && self.holders.iter().map(|word| word.count_ones()).sum::<u32>() == 1;
        let takes = long + if alone { 0 } else { costs.hop };
        self.holders.iter_mut().for_each(|word| *word = 0);
        self.add(who);
        let begin = now.max(self.free_at);
        self.waited += begin - now;
        self.used += takes;
        self.writes += 1;
        self.free_at = begin + takes;
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_from_another_core_after_each_write_of_another() {
        let (costs, mut line) = (Costs::default(), Line::default());
        assert_eq!(line.write(&costs, 100, 0, 5), 168);
        assert_eq!(line.write(&costs, 200, 0, 5), 205, "it is here");
        assert!(line.read(70) && !line.read(70) && !line.read(0));
        assert_eq!(line.write(&costs, 300, 0, 5), 368, "somebody has a copy");
        assert!(line.read(70));
    }

    #[test]
    fn writers_wait_for_each_other() {
        let (costs, mut line) = (Costs { hop: 60, ..Costs::default() }, Line::default());
        assert_eq!(line.write(&costs, 0, 0, 10), 70);
        assert_eq!(line.write(&costs, 10, 1, 10), 140);
        assert_eq!((line.waited, line.used, line.writes), (60, 140, 2));
    }
}
