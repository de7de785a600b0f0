//! Shared queues, the inbox of the roots, and the words of groups, as plain data with a [`Line`] for what their users wait for.

use std::collections::VecDeque;

use crate::line::Line;

/// No key: nothing is there.
pub const NO_KEY: u64 = u64::MAX;

/// An entry: the root's key, and the request.
pub type Entry = (u64, usize);

/// What one worker has published, or the roots that have been put into order.
#[derive(Debug, Clone, Default)]
pub struct SharedQueue {
    /// In order of keys; those of one key as they came.
    pub entries: VecDeque<Entry>,
    /// The lock and what it guards.
    pub lock: Line,
    /// The published key.
    pub word: Line,
}

impl SharedQueue {
    /// The key of the best.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.entries.front().map_or(NO_KEY, |first| first.0)
    }

    /// Behind all that are not younger.
    pub fn put(&mut self, entry: Entry) {
        let at = match self.entries.back() {
            Some(last) if last.0 > entry.0 => self.entries.partition_point(|listed| listed.0 <= entry.0),
            _ => self.entries.len(),
        };
        self.entries.insert(at, entry);
    }

    /// The best, if its key is at most `limit`.
    pub fn take(&mut self, limit: u64) -> Option<usize> {
        if self.key() == NO_KEY || self.key() > limit {
            return None;
        }
        self.entries.pop_front().map(|entry| entry.1)
    }

    /// Half of them, at least one, the oldest; none if the best is above `limit`.
    pub fn take_half(&mut self, limit: u64) -> Vec<Entry> {
        if self.key() == NO_KEY || self.key() > limit {
            return Vec::new();
        }
        let half = self.entries.len().div_ceil(2);
        self.entries.drain(..half).collect()
    }
}

/// The word of eight workers.
#[derive(Debug, Clone)]
pub struct Group {
    /// A bound of their keys.
    pub key: u64,
    /// Where it stands.
    pub word: Line,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_half_is_taken_and_equals_keep_their_order() {
        let mut shared_queue = SharedQueue::default();
        for (number, key) in [3, 1, 3, 2, 1].into_iter().enumerate() {
            shared_queue.put((key, number));
        }
        assert_eq!(shared_queue.take_half(0), []);
        assert_eq!(shared_queue.take_half(1), [(1, 1), (1, 4), (2, 3)]);
        assert_eq!((shared_queue.take(2), shared_queue.take(3), shared_queue.key()), (None, Some(0), 3));
    }
}
