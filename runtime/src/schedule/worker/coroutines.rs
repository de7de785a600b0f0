//! The coroutines of one worker: a cache of idle ones, last in, first out, in front of the runtime's slab.
//!
//! A stack keeps all memory that was ever touched of it, up to its whole size, for as long as it lies in the cache. So those that nobody
//! has taken for a while go back to the slab, which gives their memory back to the system ([`Worker::retire_unused`]).

use std::ptr::NonNull;

use forebear_context::error::StackError;

use super::Worker;
use crate::record::header::Header;
use crate::stack::coroutine::Coroutine;
use crate::stack::prefetch;
use crate::stack::{self, Class};

/// How many idle coroutines a worker keeps; above, the coldest go back to the slab.
const KEPT_COROUTINES: usize = 1024;
const RETIRED_AT_ONCE: usize = 256;
/// So many stay, however long nobody takes them.
const KEPT_UNUSED: usize = 16;
/// What is needed of coroutines that are retired is fetched so many ahead.
const SOON: usize = 8;

/// The coroutines of one worker that are built and not dismantled. One goes without a look at another, whose stack nobody may have
/// touched for long: its place is left empty for the next.
pub(super) struct CoroutineList {
    /// A coroutine; or nothing, and the number of the next such place in an odd address.
    places: Vec<*const Coroutine>,
    /// The number of an empty place, or [`NONE`].
    empty: usize,
}

impl Default for CoroutineList {
    fn default() -> CoroutineList {
        CoroutineList { places: Vec::new(), empty: NONE }
    }
}

/// The number of no place.
const NONE: usize = usize::MAX >> 1;

impl CoroutineList {
    /// Answers the place where it stands from now on.
    pub(super) fn add(&mut self, coroutine: NonNull<Coroutine>) -> usize {
        let place = self.empty;
        let Some(there) = self.places.get_mut(place) else {
            self.places.push(coroutine.as_ptr());
            return self.places.len() - 1;
        };
        // Coroutines are aligned, so an odd address is a number.
        self.empty = there.addr() >> 1;
        *there = coroutine.as_ptr();
        place
    }

    pub(super) fn remove(&mut self, place: usize) {
        self.places[place] = std::ptr::without_provenance(self.empty << 1 | 1);
        self.empty = place;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = NonNull<Coroutine>> {
        let coroutines = self.places.iter().filter(|at| at.addr() & 1 == 0);
        coroutines.filter_map(|at| NonNull::new(at.cast_mut()))
    }
}

/// An idle coroutine in its worker's cache.
struct IdleEntry {
    class: Class,
    /// It lay here at the last look, and has not been taken since.
    unused: bool,
    coroutine: NonNull<Coroutine>,
}

/// The idle coroutines of one worker, the coldest first.
#[derive(Default)]
pub(super) struct Idle(Vec<IdleEntry>);

impl Idle {
    #[inline]
    fn take(&mut self, class: Class) -> Option<NonNull<Coroutine>> {
        let at = self.0.iter().rposition(|entry| entry.class == class)?;
        Some(self.0.swap_remove(at).coroutine)
    }

    /// All of them, by address.
    pub(super) fn sorted(&self) -> Vec<NonNull<Coroutine>> {
        let mut all: Vec<_> = self.0.iter().map(|entry| entry.coroutine).collect();
        all.sort_unstable();
        all
    }

    fn has(&self, class: Class) -> bool {
        self.0.iter().rev().any(|entry| entry.class == class)
    }

    #[inline]
    fn put(&mut self, class: Class, coroutine: NonNull<Coroutine>) {
        self.0.push(IdleEntry { class, unused: false, coroutine });
    }

    /// How many there are beyond those that stay in any case.
    #[inline]
    fn spare(&self) -> usize {
        self.0.len().saturating_sub(KEPT_UNUSED)
    }

    /// How many of the coldest have been here since the look before, of those that go at once; when these are the last, the others are
    /// found at the next look, unless somebody takes them.
    fn look(&mut self) -> usize {
        let spare = self.spare();
        let unused = self.0[..spare].iter().take(RETIRED_AT_ONCE).take_while(|entry| entry.unused).count();
        if unused < RETIRED_AT_ONCE {
            self.0[unused..spare].iter_mut().for_each(|entry| entry.unused = true);
        }
        unused
    }
}

impl Worker {
    /// An idle coroutine of `class`, or a new one.
    pub(crate) fn coroutine(&self, class: Class) -> Result<NonNull<Coroutine>, StackError> {
        // SAFETY: V1.
        if let Some(coroutine) = unsafe { &mut *self.idle.get() }.take(class) {
            self.busy_coroutines.set(self.busy_coroutines.get() + 1);
            return Ok(coroutine);
        }
        let slot = self.shared().slab.take(class)?;
        self.busy_coroutines.set(self.busy_coroutines.get() + 1);
        let coroutine = Coroutine::build(slot, self);
        if let Some(driver) = &self.driver {
            driver.built(coroutine);
        }
        Ok(coroutine)
    }

    /// A coroutine beyond the limit, in use, or idle for a driver. See `schedule/worker/driven/spare.rs`.
    pub(super) fn coroutine_beyond(&self) -> Result<NonNull<Coroutine>, StackError> {
        let slot = self.shared().slab.take_beyond(self.shared().default_class)?;
        let coroutine = Coroutine::build(slot, self);
        if let Some(driver) = &self.driver {
            driver.built(coroutine);
        }
        Ok(coroutine)
    }

    /// Makes sure that the next suspension finds a coroutine to go on with.
    pub(crate) fn reserve_coroutine(&self) -> Result<(), StackError> {
        // SAFETY: V1.
        let idle = unsafe { &*self.idle.get() };
        let class = self.shared().default_class;
        if idle.has(class) {
            return Ok(());
        }
        let coroutine = self.coroutine(class)?;
        self.put_idle(coroutine);
        Ok(())
    }

    /// Runs `header` here, or answers the coroutine that has the stack for it; the request is left there as pending.
    ///
    /// # Safety
    ///
    /// The request is claimed, and the runner's link is the caller's.
    #[inline(always)]
    pub(crate) unsafe fn start(
        &self,
        header: NonNull<Header>,
        here: &Coroutine,
    ) -> Option<NonNull<Coroutine>> {
        // SAFETY: by contract.
        unsafe {
            if here.fiber.room() < header.as_ref().need() {
                return self.start_elsewhere(header, here);
            }
            here.begins_anew();
            crate::schedule::run::start(&here.fiber, header);
        }
        None
    }

    /// The same, not here: the coroutine, or if there is none the request fails.
    ///
    /// # Safety
    ///
    /// As [`start`](Self::start).
    #[cold]
    pub(crate) unsafe fn start_elsewhere(
        &self,
        header: NonNull<Header>,
        here: &Coroutine,
    ) -> Option<NonNull<Coroutine>> {
        // SAFETY: by contract.
        let need = unsafe { header.as_ref() }.need();
        let class = stack::class_for(need).unwrap_or(stack::SLOTS.len() as Class - 1);
        match self.coroutine(class) {
            Ok(larger) => {
                // SAFETY: K3.
                unsafe { larger.as_ref() }.pending.set(header.as_ptr());
                Some(larger)
            }
            Err(error) => {
                // SAFETY: claimed by us.
                unsafe { crate::schedule::finish::fail_unstarted(&here.fiber, header, error) };
                None
            }
        }
    }

    /// A coroutine has nothing on top.
    pub(crate) fn put_idle(&self, coroutine: NonNull<Coroutine>) {
        if self.driver.as_ref().is_some_and(|driver| driver.is_door(coroutine)) {
            return;
        }
        self.busy_coroutines.set(self.busy_coroutines.get() - 1);
        if self.driver.is_some() && self.keep_spare(coroutine) {
            return;
        }
        self.put_among_idle(coroutine);
    }

    /// A coroutine that has nothing on top, and is not counted as busy any more.
    #[inline(always)]
    pub(super) fn put_among_idle(&self, coroutine: NonNull<Coroutine>) {
        // SAFETY: K3.
        let class = match unsafe { coroutine.as_ref() }.slot.take() {
            Some(slot) => {
                let class = slot.class();
                // SAFETY: as above.
                unsafe { coroutine.as_ref() }.slot.set(Some(slot));
                class
            }
            None => 0,
        };
        // SAFETY: V1.
        let idle = unsafe { &mut *self.idle.get() };
        // Where stacks are few, what lies idle here must not be missing elsewhere.
        let fair = self.shared().slab.limit() / (2 * self.shared().workers().len());
        if idle.0.len() >= KEPT_COROUTINES.min(fair.max(1)) {
            self.retire(RETIRED_AT_ONCE);
        }
        // SAFETY: V1.
        unsafe { &mut *self.idle.get() }.put(class, coroutine);
    }

    /// Gives the coldest idle coroutines back to the slab.
    pub(super) fn retire(&self, count: usize) {
        // SAFETY: V1.
        let Idle(idle) = unsafe { &mut *self.idle.get() };
        let count = count.min(idle.len());
        if count == 0 {
            return;
        }
        let mut listed = self.post.lock_coroutines();
        for (at, IdleEntry { coroutine, .. }) in idle[..count].iter().enumerate() {
            if let Some(soon) = idle.get(at + SOON) {
                // The coldest have lain here for long.
                // SAFETY: K5: listed coroutines are there.
                prefetch::control(unsafe { soon.coroutine.as_ref() }.context());
            }
            // SAFETY: as above.
            listed.remove(unsafe { coroutine.as_ref() }.listed.get());
        }
        drop(listed);
        if let Some(driver) = &self.driver {
            driver.retired(idle[..count].iter().map(|entry| entry.coroutine));
        }
        // SAFETY: K3: idle coroutines hold nothing but loop frames; the one that runs is not among them.
        let slots = idle.drain(..count).filter_map(|entry| unsafe { Coroutine::dismantle(entry.coroutine) });
        // Not under the slab's lock.
        let slots: Vec<_> = slots.collect();
        self.shared().slab.give_back(slots);
    }

    /// Whether there are idle coroutines that go if nobody takes them.
    #[inline]
    pub(super) fn has_spare_coroutines(&self) -> bool {
        // SAFETY: V1.
        unsafe { &*self.idle.get() }.spare() > 0
    }

    /// Gives back the idle coroutines that nobody has taken since the look before, all but a few. False: there are more, since only so many
    /// go at once.
    pub(super) fn retire_unused(&self) -> bool {
        // SAFETY: V1.
        let unused = unsafe { &mut *self.idle.get() }.look();
        if unused > 0 {
            self.retire(unused);
            self.shared().slab.let_none_stay_warm();
        }
        unused < RETIRED_AT_ONCE
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
        assert_eq!(idle.look(), 0, "it has only just seen them");
        // The last come are taken first.
        let taken: Vec<_> = (0..30).map(|_| idle.take(1).unwrap()).collect();
        assert_eq!(taken[0], coroutine(MANY - 1));
        assert_eq!(idle.take(2), None);
        taken.into_iter().rev().for_each(|coroutine| idle.put(1, coroutine));
        assert_eq!(idle.look(), MANY - 30);
        idle.0.drain(..MANY - 30);
        assert_eq!(idle.look(), 30 - KEPT_UNUSED);
        idle.0.drain(..30 - KEPT_UNUSED);
        assert_eq!((idle.spare(), idle.look()), (0, 0));
        // Many go in pieces, and what has come meanwhile stays for another look.
        (0..2 * RETIRED_AT_ONCE).for_each(|n| idle.put(1, coroutine(n)));
        idle.look();
        (0..MANY).for_each(|n| idle.put(1, coroutine(n)));
        for _ in 0..2 {
            assert_eq!(idle.look(), RETIRED_AT_ONCE);
            idle.0.drain(..RETIRED_AT_ONCE);
        }
        assert_eq!(idle.look(), 0);
        idle.0.clear();
        // The last takes the place of one of another class that lay among them.
        (0..MANY).for_each(|n| idle.put(if n == 5 { 2 } else { 1 }, coroutine(n)));
        idle.look();
        assert_eq!(idle.take(2), Some(coroutine(5)));
        assert_eq!(idle.0.iter().filter(|entry| entry.coroutine == coroutine(MANY - 1)).count(), 1);
    }

    #[test]
    fn coroutines_are_listed_each_once_and_their_places_are_used_again() {
        const MANY: usize = 1_000;
        let mut listed = CoroutineList::default();
        for round in 0..4 {
            let mut there: Vec<_> = (0..MANY).map(|n| (listed.add(coroutine(n)), n)).collect();
            match round {
                // The first come goes first, the last, or now this one and now that.
                0 => {}
                1 => there.reverse(),
                _ => there.sort_by_key(|(_, n)| n.wrapping_mul(0x9e37_79b9) % MANY),
            }
            let gone: Vec<_> = there.drain(..MANY / 2).collect();
            gone.iter().for_each(|(place, _)| listed.remove(*place));
            // Some come again.
            there.extend(gone[..MANY / 10].iter().map(|&(_, n)| (listed.add(coroutine(n)), n)));
            let mut found: Vec<_> = listed.iter().collect();
            let mut wanted: Vec<_> = there.iter().map(|(_, n)| coroutine(*n)).collect();
            found.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(found, wanted);
            there.iter().for_each(|(place, _)| listed.remove(*place));
            assert_eq!((listed.iter().count(), listed.places.len()), (0, MANY));
        }
    }
}
