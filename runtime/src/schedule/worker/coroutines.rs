//! The coroutines of one worker: a cache of idle ones, last in, first out, in front of the runtime's slab.
//!
//! A stack keeps all memory that was ever touched of it, up to its whole size, for as long as it lies in the cache. So those that nobody
//! has taken for a while go back to the slab, which gives their memory back to the system ([`Worker::retire_unused`]).

use std::ptr::NonNull;

use forebear_context::error::StackError;

use super::Worker;
use super::idle::RETIRED_AT_ONCE;
use crate::record::header::Header;
use crate::stack::coroutine::Coroutine;
use crate::stack::prefetch;
use crate::stack::{self, Class};

/// How many idle coroutines a worker keeps; above, the coldest go back to the slab.
const KEPT_COROUTINES: usize = 1024;
/// What is needed of coroutines that are retired is fetched so many ahead.
const SOON: usize = 8;

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

    /// Makes sure that the next suspension finds a coroutine to continue with.
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
        // SAFETY: the runner's link by contract, which keeps the header.
        if here.fiber.room() < unsafe { header.as_ref() }.need() {
            // SAFETY: W1 and the runner's link by contract.
            return unsafe { self.start_elsewhere(header, here) };
        }
        here.begins_anew();
        // SAFETY: W1 and the runner's link by contract; `here` is the coroutine that calls, so it has nothing on top.
        unsafe { crate::schedule::run::start(&here.fiber, header) };
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
        let fair = self.shared().slab.limit() / (2 * self.shared().worker_records().len());
        if idle.len() >= KEPT_COROUTINES.min(fair.max(1)) {
            self.retire(RETIRED_AT_ONCE);
        }
        // SAFETY: V1.
        unsafe { &mut *self.idle.get() }.put(class, coroutine);
    }

    /// Gives the coldest idle coroutines back to the slab.
    pub(super) fn retire(&self, count: usize) {
        // SAFETY: V1.
        let idle = &mut unsafe { &mut *self.idle.get() }.0;
        let count = count.min(idle.len());
        if count == 0 {
            return;
        }
        let mut listed = self.post.lock_coroutines();
        for (at, entry) in idle[..count].iter().enumerate() {
            if let Some(soon) = idle.get(at + SOON) {
                // The coldest have lain here for long.
                // SAFETY: K5: listed coroutines are there.
                prefetch::control(unsafe { soon.coroutine.as_ref() }.context());
            }
            // SAFETY: as above.
            listed.remove(unsafe { entry.coroutine.as_ref() }.listed.get());
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
        let unused = unsafe { &mut *self.idle.get() }.find_unused();
        if unused > 0 {
            self.retire(unused);
            self.shared().slab.let_none_stay_warm();
        }
        unused < RETIRED_AT_ONCE
    }
}
