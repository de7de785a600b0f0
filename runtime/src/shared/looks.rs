//! Looks: which of the other workers' shelves a picker compares with.
//!
//! With at most eight workers, all of them. With more, their shelves stand in [groups](crate::shelf::Group) of eight, by
//! number, and a look goes by the groups' words: it compares with the members of a group only if its word is older than
//! the best that the picker has so far, and mends the word in passing. Every [`FULL_EVERY`]th look of a worker is *full*
//! all the same: at every shelf, and at what every worker keeps private.
//!
//! # The bound
//!
//! *What was published before a look began is passed over by it only at a moment at which its group's word is too high
//! (a thread stands between two steps, see [`Group`]), and by no worker in more than 31 looks in a row*, so in no more
//! than 31 picks in a row, since a pick looks at least once. With eight workers and fewer it is never passed over.
//!
//! *Older work that another worker keeps private* is passed over, as it always is until its owner publishes it. The owner
//! is told by the first full look of any picker, hence by the 32nd look of each at the latest; with eight workers and fewer
//! by every pick, the short ways included.
//!
//! *A root* is taken up to what the look has seen to come next ([`Best::next`]), not only if it is the one that was seen: the
//! takers that come late have the next one each, where they would else come to the lock in turn to find theirs gone (decision 0020).
//!
//! Roots stand on one shelf, which every pick looks at itself: nothing here concerns their order. No wake-up rests on a
//! look by words either: whoever searches, or is about to sleep, looks at all shelves (`worker/steal.rs`). A yield that
//! gives way to what is ready on its worker, and a wait that runs its target, look at nobody, however many there are.

use std::cell::Cell;

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::Arc;
use forebear_context::shim::atomic::Ordering;

use super::Shared;
use crate::attention::HUNGRY;
use crate::header::Header;
use crate::shelf::{Group, Shelf};
use crate::worker::Worker;

/// So many workers share a word: a look into a group costs what a look costs where there are none.
const MEMBERS: usize = 8;

/// One look in so many is full.
const FULL_EVERY: u32 = 32;

/// The groups of one runtime: none, or at least two.
#[derive(Debug)]
pub(crate) struct Groups(Box<[Arc<Group>]>);

impl Groups {
    /// The groups of so many workers.
    pub(crate) fn new(workers: usize) -> Groups {
        let groups = if workers > MEMBERS { workers.div_ceil(MEMBERS) } else { 0 };
        Groups((0..groups).map(|_| Arc::default()).collect())
    }

    /// The shelf for worker number `worker`.
    pub(crate) fn shelf(&self, worker: usize) -> Shelf<Header> {
        match self.0.get(worker / MEMBERS) {
            Some(group) => Shelf::in_group(group.clone()),
            None => Shelf::new(),
        }
    }
}

/// How many looks of one worker may still go by the words. Touched by the worker alone.
#[derive(Debug, Default)]
pub(crate) struct Looks(Cell<u32>);

impl Looks {
    /// Whether the look that begins may go by the words; counts it.
    fn by_words(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left > 0
    }
}

/// The best that a picker has seen so far, and the worker on whose shelf it stands, if that is another's.
pub(crate) struct Best<'a> {
    pub key: u64,
    pub victim: Option<&'a Worker>,
    /// If there is no victim: of what was seen of others nothing stands between the best and this.
    pub next: u64,
}

impl<'a> Best<'a> {
    /// Compares with what `other` has, and tells it if it keeps something better private.
    #[inline(always)]
    pub(crate) fn compare(&mut self, other: &'a Worker) {
        let (theirs, private) = (other.post.shelf.key(), other.post.private.load(Ordering::Relaxed));
        if theirs < self.key {
            self.key = theirs;
            self.victim = Some(other);
        }
        self.next = self.next.min(theirs);
        if private < self.key {
            // Who has nothing at all goes by its patience.
            if self.key != NO_KEY {
                other.post.attention.raise(HUNGRY);
            }
        } else {
            self.next = self.next.min(private);
        }
    }
}

impl Shared {
    /// A bound of what stands on the roots' shelf and on those of others than worker `index`: nothing is older. For the
    /// short ways, which take what is at hand, of key `mine`, if that is not younger, and else make a [look](Self::look). Who
    /// keeps something older private is told here as there, or a worker with many children of one root would never tell.
    #[inline(always)]
    pub(crate) fn best_published(&self, index: usize, looks: &Looks, mine: u64) -> u64 {
        if !super::ORDERED {
            return NO_KEY;
        }
        let (mut best, workers) = (self.roots.key(), self.workers());
        if workers.len() > MEMBERS {
            return best.min(self.best_of_groups(looks));
        }
        for other in workers {
            if other.index != index {
                best = best.min(other.post.shelf.key());
                if other.post.private.load(Ordering::Relaxed) < mine {
                    other.post.attention.raise(HUNGRY);
                }
            }
        }
        best
    }

    /// The least of the words; or less than every key, if the next look has to be full.
    #[inline(never)]
    fn best_of_groups(&self, looks: &Looks) -> u64 {
        if !looks.by_words() {
            return 0;
        }
        self.groups.0.iter().map(|group| group.key()).min().unwrap_or(NO_KEY)
    }

    /// Worker `index` compares with the others.
    #[inline(always)]
    pub(crate) fn look<'a>(&'a self, index: usize, looks: &Looks, best: &mut Best<'a>) {
        if !super::ORDERED {
            return;
        }
        if self.workers().len() > MEMBERS {
            return self.look_by_groups(index, looks, best);
        }
        self.others(index).for_each(|other| best.compare(other));
    }

    #[inline(never)]
    fn look_by_groups<'a>(&'a self, index: usize, looks: &Looks, best: &mut Best<'a>) {
        if !looks.by_words() {
            looks.0.set(FULL_EVERY - 1);
            self.others(index).for_each(|other| best.compare(other));
            return;
        }
        for (group, members) in self.groups.0.iter().zip(self.workers().chunks(MEMBERS)) {
            let seen = group.key();
            if seen < best.key {
                members.iter().filter(|other| other.index != index).for_each(|other| best.compare(other));
                let keys = || members.iter().map(|member| member.post.shelf.key());
                group.mend(seen, || keys().min().unwrap_or(NO_KEY));
            } else {
                best.next = best.next.min(seen);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_workers_have_no_groups_and_more_have_one_for_every_eight() {
        for (workers, groups) in [(1, 0), (2, 0), (8, 0), (9, 2), (16, 2), (17, 3), (1024, 128)] {
            assert_eq!(Groups::new(workers).0.len(), groups, "{workers} workers");
        }
    }

    #[test]
    fn of_thirty_two_looks_one_is_full() {
        let looks = Looks::default();
        assert!(!looks.by_words(), "the first");
        looks.0.set(FULL_EVERY - 1);
        let by_words = (0..).take_while(|_| looks.by_words()).count();
        assert_eq!(by_words, 31);
    }
}
