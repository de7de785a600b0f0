//! The carriers of one worker: a cache of idle ones, last in, first out, in front of the runtime's slab.

use std::ptr::NonNull;

use forebear_context::error::StackError;

use super::Worker;
use crate::carrier::Carrier;
use crate::header::Header;
use crate::stack::{self, Class};

/// How many idle carriers a worker keeps; above, the coldest go back to the slab.
const KEPT_CARRIERS: usize = 1024;
const RETIRED_AT_ONCE: usize = 256;

impl Worker {
    /// An idle carrier of `class`, or a new one.
    pub(crate) fn carrier(&self, class: Class) -> Result<NonNull<Carrier>, StackError> {
        // SAFETY: V1.
        let idle = unsafe { &mut *self.idle.get() };
        if let Some(at) = idle.iter().rposition(|entry| entry.0 == class) {
            self.busy_carriers.set(self.busy_carriers.get() + 1);
            return Ok(idle.swap_remove(at).1);
        }
        let slot = self.shared().slab.take(class)?;
        self.busy_carriers.set(self.busy_carriers.get() + 1);
        let carrier = Carrier::build(slot, self);
        if let Some(driver) = &self.driver {
            driver.built(carrier);
        }
        Ok(carrier)
    }

    /// Makes sure that the next suspension finds a carrier to go on with.
    pub(crate) fn reserve_carrier(&self) -> Result<(), StackError> {
        // SAFETY: V1.
        let idle = unsafe { &*self.idle.get() };
        let class = self.shared().default_class;
        if idle.iter().rev().any(|entry| entry.0 == class) {
            return Ok(());
        }
        let carrier = self.carrier(class)?;
        self.put_idle(carrier);
        Ok(())
    }

    /// Runs `header` here, or answers the carrier that has the stack for it; the request is left there as pending.
    ///
    /// # Safety
    ///
    /// The request is claimed, and the runner's link is the caller's.
    #[inline(always)]
    pub(crate) unsafe fn start(&self, header: NonNull<Header>, here: &Carrier) -> Option<NonNull<Carrier>> {
        // SAFETY: by contract.
        unsafe {
            if here.strand.room() < header.as_ref().need() {
                return self.start_on_larger(header, here);
            }
            here.begins_anew();
            crate::run::start(&here.strand, header);
        }
        None
    }

    #[cold]
    unsafe fn start_on_larger(&self, header: NonNull<Header>, here: &Carrier) -> Option<NonNull<Carrier>> {
        // SAFETY: by contract.
        let need = unsafe { header.as_ref() }.need();
        let class = stack::class_for(need).unwrap_or(stack::SLOTS.len() as Class - 1);
        match self.carrier(class) {
            Ok(larger) => {
                // SAFETY: K3.
                unsafe { larger.as_ref() }.pending.set(header.as_ptr());
                Some(larger)
            }
            Err(error) => {
                // SAFETY: claimed by us.
                unsafe { crate::run::fail_unstarted(&here.strand, header, error) };
                None
            }
        }
    }

    /// A carrier has nothing on top.
    pub(crate) fn put_idle(&self, carrier: NonNull<Carrier>) {
        if self.driver.as_ref().is_some_and(|driver| driver.is_door(carrier)) {
            return;
        }
        self.busy_carriers.set(self.busy_carriers.get() - 1);
        // SAFETY: K3.
        let class = match unsafe { carrier.as_ref() }.slot.take() {
            Some(slot) => {
                let class = slot.class();
                // SAFETY: as above.
                unsafe { carrier.as_ref() }.slot.set(Some(slot));
                class
            }
            None => 0,
        };
        // SAFETY: V1.
        let idle = unsafe { &mut *self.idle.get() };
        // Where stacks are few, what lies idle here must not be missing elsewhere.
        let fair = self.shared().slab.limit() / (2 * self.shared().workers().len());
        if idle.len() >= KEPT_CARRIERS.min(fair.max(1)) {
            self.retire(RETIRED_AT_ONCE.min(idle.len()));
        }
        // SAFETY: V1.
        unsafe { &mut *self.idle.get() }.push((class, carrier));
    }

    /// Gives the coldest idle carriers back to the slab.
    pub(super) fn retire(&self, count: usize) {
        // SAFETY: V1.
        let idle = unsafe { &mut *self.idle.get() };
        let count = count.min(idle.len());
        if count == 0 {
            return;
        }
        let mut listed = self.post.lock_carriers();
        // SAFETY: K5, here and below: listed carriers are there.
        idle[..count].iter().for_each(|(_, carrier)| unsafe {
            let at = carrier.as_ref().listed.get();
            listed.swap_remove(at);
            if let Some(moved) = listed.get(at) {
                moved.as_ref().listed.set(at);
            }
        });
        drop(listed);
        if let Some(driver) = &self.driver {
            driver.retired(idle[..count].iter().map(|entry| entry.1));
        }
        // SAFETY: K3: idle carriers hold nothing but loop frames; the one that runs is not among them.
        let slots = idle.drain(..count).filter_map(|(_, carrier)| unsafe { Carrier::dismantle(carrier) });
        self.shared().slab.give_back(slots);
    }
}
