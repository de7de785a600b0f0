//! [`Known`]: the names of workers, with their incarnations and numbers.
//!
//! A worker without a name of its own has another one each time it joins. So names of workers that are gone are forgotten, the oldest first, when there are many. The coordinator has
//! forgotten such a worker before, so a name that comes back after that may begin with the first incarnation again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebear_cluster::engine::GONE;

/// So many names of workers that are gone are kept: more than the coordinator shows.
const KEPT: usize = 4 * GONE;

#[derive(Default)]
pub(super) struct Known {
    names: BTreeMap<String, Named>,
    /// Names of workers that have gone, the oldest first, each with the incarnation that has. One that has come back since is passed over.
    gone: VecDeque<(String, u64)>,
    /// Numbers of names that are forgotten. They are given again: so they stay below the most names that there were at a time.
    free: BTreeSet<u64>,
}

struct Named {
    incarnation: u64,
    index: u64,
}

impl Known {
    /// A worker of this name comes: which incarnation it is, and which number it has.
    pub(super) fn come(&mut self, name: &str) -> (u64, u64) {
        if let Some(named) = self.names.get_mut(name) {
            named.incarnation += 1;
            return (named.incarnation, named.index);
        }
        let index = self.free.pop_first().unwrap_or(self.names.len() as u64);
        self.names.insert(name.to_owned(), Named { incarnation: 1, index });
        (1, index)
    }

    /// This one is gone.
    pub(super) fn go(&mut self, name: &str, incarnation: u64) {
        self.gone.push_back((name.to_owned(), incarnation));
        while self.gone.len() > KEPT {
            let Some((name, incarnation)) = self.gone.pop_front() else { return };
            if let Some(named) = self.names.get(&name).filter(|named| named.incarnation == incarnation) {
                self.free.insert(named.index);
                self.names.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_workers_that_are_gone_are_forgotten_and_those_of_workers_that_are_there_are_not() {
        let mut known = Known::default();
        assert_eq!(known.come("stays"), (1, 0));
        assert_eq!(known.come("returns"), (1, 1));
        for n in 0..10 * KEPT {
            let name = format!("worker-{n}");
            let (incarnation, index) = known.come(&name);
            assert!(incarnation == 1 && index <= KEPT as u64 + 2, "{index}");
            known.go(&name, 1);
            if n % 100 == 0 {
                let (before, _) = known.come("returns");
                known.go("returns", before);
            }
        }
        assert!(known.names.len() <= KEPT + 2 && known.gone.len() <= KEPT);
        assert_eq!(known.come("stays"), (2, 0));
        assert_eq!(known.come("returns"), ((10 * KEPT).div_ceil(100) as u64 + 2, 1));
        let numbers: BTreeSet<u64> = known.names.values().map(|named| named.index).collect();
        assert_eq!(numbers.len(), known.names.len(), "each has a number of its own");
    }
}
