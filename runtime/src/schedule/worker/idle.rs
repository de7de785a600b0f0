//! The idle coroutines of a worker: a cache, last in, first out. The worker fills and trims it (`schedule/worker/coroutines.rs`).

use std::ptr::NonNull;

use crate::stack::Class;
use crate::stack::coroutine::Coroutine;

/// So many go at once, at most.
pub(super) const RETIRED_AT_ONCE: usize = 256;
/// So many stay, however long nobody takes them.
const KEPT_UNUSED: usize = 16;

/// An idle coroutine in its worker's cache.
pub(super) struct IdleEntry {
    class: Class,
    /// It lay here at the last look, and has not been taken since.
    unused: bool,
    pub(super) coroutine: NonNull<Coroutine>,
}

/// The idle coroutines of one worker, the coldest first.
#[derive(Default)]
pub(super) struct Idle(pub(super) Vec<IdleEntry>);

impl Idle {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(super) fn take(&mut self, class: Class) -> Option<NonNull<Coroutine>> {
        let at = self.0.iter().rposition(|entry| entry.class == class)?;
        Some(self.0.swap_remove(at).coroutine)
    }

    /// All of them, by address.
    pub(super) fn sorted(&self) -> Vec<NonNull<Coroutine>> {
        let mut all: Vec<_> = self.0.iter().map(|entry| entry.coroutine).collect();
        all.sort_unstable();
        all
    }

    pub(super) fn has(&self, class: Class) -> bool {
        self.0.iter().rev().any(|entry| entry.class == class)
    }

    #[inline]
    pub(super) fn put(&mut self, class: Class, coroutine: NonNull<Coroutine>) {
        self.0.push(IdleEntry { class, unused: false, coroutine });
    }

    /// How many there are beyond those that stay in any case.
    #[inline]
    pub(super) fn spare(&self) -> usize {
        self.0.len().saturating_sub(KEPT_UNUSED)
    }

    /// How many of the coldest entries are to be retired now: those that have been here since the previous call, up to
    /// a limit. The next call finds the others, unless a request takes them.
    pub(super) fn find_unused(&mut self) -> usize {
        let spare = self.spare();
        let unused = self.0[..spare].iter().take(RETIRED_AT_ONCE).take_while(|entry| entry.unused).count();
        if unused < RETIRED_AT_ONCE {
            self.0[unused..spare].iter_mut().for_each(|entry| entry.unused = true);
        }
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coroutine(n: usize) -> NonNull<Coroutine> {
        NonNull::new(std::ptr::without_provenance_mut::<Coroutine>(64 * n + 64)).unwrap()
    }

    #[test]
    fn who_is_taken_between_two_looks_is_no_more_unused_and_a_few_always_stay() {
        const MANY: usize = 100;
        let mut idle = Idle::default();
        (0..MANY).for_each(|n| idle.put(1, coroutine(n)));
        assert_eq!(idle.find_unused(), 0, "it has only just seen them");
        // The last come are taken first.
        let taken: Vec<_> = (0..30).map(|_| idle.take(1).unwrap()).collect();
        assert_eq!(taken[0], coroutine(MANY - 1));
        assert_eq!(idle.take(2), None);
        taken.into_iter().rev().for_each(|coroutine| idle.put(1, coroutine));
        assert_eq!(idle.find_unused(), MANY - 30);
        idle.0.drain(..MANY - 30);
        assert_eq!(idle.find_unused(), 30 - KEPT_UNUSED);
        idle.0.drain(..30 - KEPT_UNUSED);
        assert_eq!((idle.spare(), idle.find_unused()), (0, 0));
        // Many go in pieces, and what has come meanwhile stays for another look.
        (0..2 * RETIRED_AT_ONCE).for_each(|n| idle.put(1, coroutine(n)));
        idle.find_unused();
        (0..MANY).for_each(|n| idle.put(1, coroutine(n)));
        for _ in 0..2 {
            assert_eq!(idle.find_unused(), RETIRED_AT_ONCE);
            idle.0.drain(..RETIRED_AT_ONCE);
        }
        assert_eq!(idle.find_unused(), 0);
        idle.0.clear();
        // The last takes the place of one of another class that lay among them.
        (0..MANY).for_each(|n| idle.put(if n == 5 { 2 } else { 1 }, coroutine(n)));
        idle.find_unused();
        assert_eq!(idle.take(2), Some(coroutine(5)));
        assert_eq!(idle.0.iter().filter(|entry| entry.coroutine == coroutine(MANY - 1)).count(), 1);
    }
}
