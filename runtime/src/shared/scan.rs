//! Scans: which of the other workers' shared queues a worker compares its next pick with.
//!
//! With at most eight workers a scan reads all shared queues. With more, the queues are in [groups](crate::state::shared_queue::KeyGroup) of eight, by
//! number, and a scan reads the groups' words. It compares with the members of a group only if its word is older than the best key found
//! so far, and then also corrects the word. The scan begins at the picker's own group, and in each group behind the picker's own place. So
//! pickers that see several equally old queues go to different ones. A scan reads at most [`WORDS`] words, and the next scan the next
//! words. So with more than 32 workers not all pickers go for the one queue with the oldest root's next request, which only one of them gets
//! (decision 0025). Every [`FULL_EVERY`]th scan of a worker is *full*: it reads every shared queue, and every worker's oldest private key.
//!
//! # The bound
//!
//! A scan passes over work that was published before it began *only in two cases*. Either the work's group is not in turn, or the group's
//! word is too high at that moment, since a thread is between two steps (see [`KeyGroup`]). *No worker passes over the same work in more
//! than 31 scans in a row*. Nor does it in more than 31 picks in a row, since each pick scans at least once. With 32 workers and fewer each
//! group is always in turn. With more, each of G groups is in turn in one of G / 4 picks (rounded up): with 64 workers in every second.
//! With eight workers and fewer no published work is ever passed over.
//!
//! *Older work that another worker keeps private* is passed over until its owner publishes it. The first full scan of any picker finds the
//! owner, so at the latest the 32nd scan of each. With eight workers and fewer every pick finds it, also one by the short ways. A worker without any
//! work passes nothing over: it asks for work by its patience (`schedule/worker/patience.rs`).
//!
//! *A root* is taken up to the key that the scan has seen to come next ([`Best::next`]), not only if it is the one that was seen. So takers
//! that arrive late get the next roots, instead of taking the lock in turn to find theirs gone (decision 0020).
//!
//! Roots are in one queue, the injector, which every pick reads itself, so this module does not affect their order. No wake-up depends on a
//! scan by words either: a worker that searches, or is about to sleep, reads the keys of all shared queues (`schedule/worker/steal.rs`). A yield to
//! a ready fiber of its worker, and a wait that runs its target, scan nothing.

use std::cell::Cell;

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::Arc;

use super::Shared;
use super::worker::WorkerRecord;
use crate::record::header::Header;
use crate::state::ORDERED;
use crate::state::attention::HUNGRY;
use crate::state::shared_queue::{KeyGroup, SharedQueue};

/// So many workers share a word: a scan of one group costs what a scan costs where there are no groups.
const MEMBERS: usize = 8;

/// One scan in so many is full.
const FULL_EVERY: u32 = 32;

/// The groups of one runtime: none, or at least two.
#[derive(Debug)]
pub(crate) struct Groups(Box<[Arc<KeyGroup>]>);

impl Groups {
    /// The groups of so many workers.
    pub(crate) fn new(workers: usize) -> Groups {
        let groups = if workers > MEMBERS { workers.div_ceil(MEMBERS) } else { 0 };
        Groups((0..groups).map(|_| Arc::default()).collect())
    }

    /// The shared queue for worker number `worker`.
    pub(crate) fn shared_queue(&self, worker: usize) -> SharedQueue<Header> {
        match self.0.get(worker / MEMBERS) {
            Some(group) => SharedQueue::in_group(group.clone()),
            None => SharedQueue::new(),
        }
    }
}

/// A scan by words reads at most so many of them.
const WORDS: usize = 4;

/// What one worker's next scan reads. Accessed by the worker alone.
#[derive(Debug, Default)]
pub(crate) struct ScanTurns {
    /// How many scans may still read words only, before a full one.
    left: Cell<u32>,
    /// The group at which the next of them begins, counted from the worker's own.
    turn: Cell<usize>,
}

impl ScanTurns {
    /// Whether the scan that begins may read words only; counts it.
    fn by_words(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }

    /// The groups whose words the next scan of worker `index` reads, of so many.
    fn groups_in_turn(&self, index: usize, groups: usize) -> impl Iterator<Item = usize> + use<> {
        let start = (index / MEMBERS + self.turn.get()) % groups;
        (start..start + WORDS.min(groups))
            .map(move |number| if number < groups { number } else { number - groups })
    }

    /// The next scan reads other words, if this one has not read all.
    fn turn(&self, groups: usize) {
        if groups > WORDS {
            self.turn.set((self.turn.get() + WORDS) % groups);
        }
    }
}

/// The best key that a picker has seen so far, and the worker in whose shared queue it is, if that is another's.
pub(crate) struct Best<'a> {
    pub key: u64,
    pub victim: Option<&'a WorkerRecord>,
    /// If there is no victim: the scan has seen no key of another worker between the best and this.
    pub next: u64,
}

impl<'a> Best<'a> {
    /// Compares with the keys of `other`, and sets its hungry bit if it has better private work.
    #[inline(always)]
    pub(crate) fn compare(&mut self, other: &'a WorkerRecord) {
        let (theirs, private) = (other.post.shared_queue.key(), other.post.private_key());
        if theirs < self.key {
            self.key = theirs;
            self.victim = Some(other);
        }
        self.next = self.next.min(theirs);
        if private < self.key {
            // A worker without any work asks by its patience.
            if self.key != NO_KEY {
                other.post.attention.raise(HUNGRY);
            }
        } else {
            self.next = self.next.min(private);
        }
    }
}

impl Shared {
    /// A lower bound of the keys in the injector and in the shared queues of workers other than `index`. For the short ways: they take the request at
    /// hand, of key `mine`, if that is not younger, and otherwise [scan](Self::scan). Like a scan this sets the hungry bit of a worker with older
    /// private work. Otherwise a worker with many children of one root would never set it.
    #[inline(always)]
    pub(crate) fn best_published(&self, index: usize, turns: &ScanTurns, mine: u64) -> u64 {
        if !ORDERED {
            return NO_KEY;
        }
        let (mut best, workers) = (self.injector.key(), self.worker_records());
        // Before the loop, of which a single worker would only see that it is its own place.
        if workers.len() == 1 {
            return best;
        }
        if workers.len() > MEMBERS {
            return best.min(self.best_of_groups(index, turns, mine));
        }
        // By place: the field `index` lies beside what its worker writes all the time.
        for (place, other) in workers.iter().enumerate() {
            if place != index {
                best = best.min(other.post.shared_queue.key());
                if other.post.private_key() < mine {
                    other.post.attention.raise(HUNGRY);
                }
            }
        }
        best
    }

    /// Whether there is one worker, so that no queue of another is to be looked at.
    #[inline(always)]
    pub(crate) fn is_of_one(&self) -> bool {
        self.worker_records().len() == 1
    }

    /// Whether a look at each queue of other workers says, without a call, that nothing there goes before what worker `index` has with the key `mine`.
    /// False also if older work is private to another worker, which a [scan](Self::scan) asks for it, or if the words of groups decide.
    #[inline(always)]
    pub(crate) fn goes_before_others(&self, index: usize, mine: u64) -> bool {
        if !ORDERED {
            return true;
        }
        let workers = self.worker_records();
        if workers.len() > MEMBERS {
            return false;
        }
        for (place, other) in workers.iter().enumerate() {
            if place != index && (other.post.shared_queue.key() < mine || other.post.private_key() < mine) {
                return false;
            }
        }
        true
    }

    /// The least of the words in turn; or less than every key, if the next scan has to be full. If it is older than `mine`, the
    /// scan that follows reads the same words.
    #[inline(never)]
    fn best_of_groups(&self, index: usize, turns: &ScanTurns, mine: u64) -> u64 {
        if !turns.by_words() {
            return 0;
        }
        let groups = &self.groups.0;
        let least = turns.groups_in_turn(index, groups.len()).map(|number| groups[number].key()).min();
        let least = least.unwrap_or(NO_KEY);
        if least >= mine {
            turns.turn(groups.len());
        }
        least
    }

    /// Worker `index` compares the best so far with the other workers' keys.
    #[inline(always)]
    pub(crate) fn scan<'a>(&'a self, index: usize, turns: &ScanTurns, best: &mut Best<'a>) {
        if !ORDERED {
            return;
        }
        if self.worker_records().len() > MEMBERS {
            return self.scan_by_groups(index, turns, best);
        }
        self.other_records(index).for_each(|other| best.compare(other));
    }

    #[inline(never)]
    fn scan_by_groups<'a>(&'a self, index: usize, turns: &ScanTurns, best: &mut Best<'a>) {
        if !turns.by_words() {
            turns.left.set(FULL_EVERY - 1);
            self.other_records(index).for_each(|other| best.compare(other));
            return;
        }
        let (groups, workers) = (&self.groups.0, self.worker_records());
        for number in turns.groups_in_turn(index, groups.len()) {
            let (group, first) = (&groups[number], number * MEMBERS);
            let members = workers.range(first, first + MEMBERS);
            let seen = group.key();
            if seen < best.key {
                // Of equal queues each picker sees a different one first.
                let others = members.iter_from(index % MEMBERS).filter(|other| other.index != index);
                others.for_each(|other| best.compare(other));
                let keys = || members.iter().map(|member| member.post.shared_queue.key());
                group.mend(seen, || keys().min().unwrap_or(NO_KEY));
            } else {
                best.next = best.next.min(seen);
            }
        }
        turns.turn(groups.len());
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
        let turns = ScanTurns::default();
        assert!(!turns.by_words(), "the first");
        turns.left.set(FULL_EVERY - 1);
        let by_words = (0..).take_while(|_| turns.by_words()).count();
        assert_eq!(by_words, 31);
    }

    #[test]
    fn looks_by_words_read_all_of_them_up_to_32_workers_and_else_each_in_turn() {
        for groups in [2, 4, 5, 8, 32, 124] {
            for index in [0, 7, 8, 8 * groups - 1] {
                let turns = ScanTurns::default();
                let mut unread: Vec<usize> = (0..groups).collect();
                for _ in 0..groups.div_ceil(WORDS) {
                    let read: Vec<usize> = turns.groups_in_turn(index, groups).collect();
                    assert_eq!(read.len(), groups.min(WORDS), "{groups} groups");
                    unread.retain(|number| !read.contains(number));
                    turns.turn(groups);
                }
                assert!(unread.is_empty(), "{groups} groups, worker {index}: {unread:?}");
            }
        }
    }
}
