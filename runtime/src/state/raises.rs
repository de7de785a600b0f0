//! Raises of urgency that other threads leave with a worker, and the bit by which it learns of them.
//!
//! # The race, and the argument
//!
//! A thread puts the raise into the list first, and then raises the bit by [`Attention::raise`], which does nothing if it sees the bit up. The worker
//! takes the bit down first, and then takes the list. Both change the list under its lock. If the worker has the lock later, it takes this raise. If
//! the thread has it later, it has acquired what the worker did before: it sees the bit down, or up for a later look.
//!
//! A worker that took the bit down after the list would leave a raise without a bit: nobody would follow it before the next one comes.

use std::mem;
use std::sync::PoisonError;

use forebear_context::shim::mutant;
use forebear_context::shim::{Mutex, MutexGuard};

use crate::state::attention::{Attention, RAISED};

/// See the module head.
#[derive(Debug)]
pub struct Raises<T>(Mutex<Vec<T>>);

impl<T> Default for Raises<T> {
    fn default() -> Raises<T> {
        Raises(Mutex::new(Vec::new()))
    }
}

impl<T> Raises<T> {
    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a raise with the worker of `attention`. The caller wakes it afterwards.
    pub fn leave(&self, attention: &Attention, raise: T) {
        mutant!("raised_before_it_is_left", attention.raise(RAISED));
        self.lock().push(raise);
        mutant!("raised_before_it_is_left", (), attention.raise(RAISED));
    }

    /// Takes back the first that `is_it`. `None`: the worker, or the thread that closes the runtime, has it.
    pub fn take_back(&self, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        let mut left = self.lock();
        let at = left.iter().position(is_it)?;
        Some(left.swap_remove(at))
    }

    /// Takes all. By the worker of `attention`, or by the thread that closes the runtime.
    pub fn take(&self, attention: &Attention) -> Vec<T> {
        mutant!("raises_cleared_late", (), attention.clear(RAISED));
        let taken = mem::take(&mut *self.lock());
        mutant!("raises_cleared_late", attention.clear(RAISED));
        taken
    }
}
