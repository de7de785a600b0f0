//! [`TaskTable`]: what is listed by the numbers of tasks, in their order.
//!
//! Numbers are given one after the other, and most tasks end in about that order. So the table has pieces of [`PIECE`] numbers, found by the number of the piece. A piece goes with its last
//! entry: a task that stays for long keeps one piece, however many tasks come and go behind it.

use std::collections::BTreeMap;
use std::mem;

use crate::engine::TaskId;

/// So many numbers a piece has: as many as its word has bits.
const PIECE: u64 = u64::BITS as u64;

pub(super) struct TaskTable<T> {
    pieces: BTreeMap<u64, Piece<T>>,
    entries: usize,
    /// An empty piece, kept for the memory.
    spare: Option<Piece<T>>,
}

struct Piece<T> {
    /// A bit for each entry that is there.
    there: u64,
    entries: Box<[Option<T>]>,
}

impl<T> Default for TaskTable<T> {
    fn default() -> TaskTable<T> {
        TaskTable { pieces: BTreeMap::new(), entries: 0, spare: None }
    }
}

impl<T> Piece<T> {
    fn new() -> Piece<T> {
        Piece { there: 0, entries: (0..PIECE).map(|_| None).collect() }
    }

    /// Its entries, with the places of these.
    fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        (0..).zip(&self.entries).filter_map(|(at, entry)| Some((at, entry.as_ref()?)))
    }
}

/// The piece of a task, and the place in it.
fn place(task: TaskId) -> (u64, usize) {
    (task.0 / PIECE, (task.0 % PIECE) as usize)
}

impl<T> TaskTable<T> {
    pub(super) fn len(&self) -> usize {
        self.entries
    }

    /// Lists a task that is not listed.
    pub(super) fn insert(&mut self, task: TaskId, entry: T) {
        let (piece, at) = place(task);
        let spare = &mut self.spare;
        let piece = self.pieces.entry(piece).or_insert_with(|| spare.take().unwrap_or_else(Piece::new));
        piece.there |= 1 << at;
        let before = piece.entries[at].replace(entry);
        debug_assert!(before.is_none(), "a number is given once");
        self.entries += 1;
    }

    pub(super) fn get(&self, task: TaskId) -> Option<&T> {
        let (piece, at) = place(task);
        self.pieces.get(&piece)?.entries[at].as_ref()
    }

    pub(super) fn get_mut(&mut self, task: TaskId) -> Option<&mut T> {
        let (piece, at) = place(task);
        self.pieces.get_mut(&piece)?.entries[at].as_mut()
    }

    pub(super) fn remove(&mut self, task: TaskId) -> Option<T> {
        let (number, at) = place(task);
        let piece = self.pieces.get_mut(&number)?;
        let entry = piece.entries[at].take()?;
        piece.there &= !(1 << at);
        self.entries -= 1;
        if piece.there == 0 {
            self.spare = self.pieces.remove(&number);
        }
        Some(entry)
    }

    /// The first task that is listed.
    pub(super) fn first(&self) -> Option<TaskId> {
        let (number, piece) = self.pieces.first_key_value()?;
        Some(TaskId(number * PIECE + u64::from(piece.there.trailing_zeros())))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (TaskId, &T)> {
        self.from(TaskId(0))
    }

    /// From this task on.
    pub(super) fn from(&self, first: TaskId) -> impl Iterator<Item = (TaskId, &T)> {
        let (piece, _) = place(first);
        let all = self.pieces.range(piece..).flat_map(|(number, piece)| {
            piece.iter().map(move |(at, entry)| (TaskId(number * PIECE + at), entry))
        });
        all.skip_while(move |(task, _)| *task < first)
    }

    /// All entries, in the order of their tasks.
    pub(super) fn take(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.entries = 0;
        mem::take(&mut self.pieces).into_values().flat_map(|piece| piece.entries.into_iter().flatten())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Against a map, over numbers in a row that go in and out at random, with one that stays.
    #[test]
    fn a_table_has_what_a_map_has() {
        let (mut table, mut map) = (TaskTable::default(), BTreeMap::new());
        let mut draw = 1_u64;
        for number in 0..3_000 {
            let task = TaskId(number);
            table.insert(task, number);
            map.insert(task, number);
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // More and more of them, up to all but one.
            for back in 0..draw >> 62 {
                let other = TaskId(1 + ((draw >> 20) + back * 7) % (number + 1));
                assert_eq!(table.remove(other), map.remove(&other));
            }
            if let Some(entry) = table.get_mut(task) {
                *entry += 1;
                *map.get_mut(&task).unwrap() += 1;
            }
            assert_eq!(table.get(TaskId(number / 2)), map.get(&TaskId(number / 2)));
            assert_eq!((table.len(), table.first()), (map.len(), map.keys().next().copied()));
        }
        let of_map =
            |first: u64| map.range(TaskId(first)..).map(|(task, entry)| (*task, entry)).collect::<Vec<_>>();
        for first in [0, 1, PIECE, 1_000, 2_999, 3_000, 10_000] {
            assert_eq!(table.from(TaskId(first)).collect::<Vec<_>>(), of_map(first), "{first}");
        }
        assert!(table.iter().eq(of_map(0)));
        assert!(table.take().eq(map.into_values()));
        assert_eq!((table.len(), table.first()), (0, None));
    }

    #[test]
    fn a_task_that_stays_keeps_one_piece() {
        let mut table = TaskTable::default();
        table.insert(TaskId(5), 0);
        for number in 6..100_000 {
            table.insert(TaskId(number), number);
            if number > 100 {
                table.remove(TaskId(number - 90)).unwrap();
            }
        }
        assert!(table.pieces.len() <= 4, "{} pieces", table.pieces.len());
    }
}
