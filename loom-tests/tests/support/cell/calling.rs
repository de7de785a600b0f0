//! Callbacks of a request in a model.

use std::mem;
use std::sync::atomic::Ordering::Relaxed;

use forebear_runtime::model::word::{Bits, CANCELLED, MARKED};

use super::Job;

/// A callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// It returns at once.
    Plain,
    /// It subscribes a plain one.
    Subscribes,
}

impl Job {
    /// `on_done`, by a holder of a handle. True: the finisher calls it; else it was called on the spot.
    pub fn subscribe(&self, call: Call) -> bool {
        let turn = self.turn();
        self.touch();
        // SAFETY: J1.
        let pushed = self.word.subscribe(|| self.calls.with_mut(|calls| unsafe { (*calls).push(call) }));
        drop(turn);
        self.notes.subscribed.fetch_add(1, Relaxed);
        match pushed {
            Ok(()) => true,
            Err(bits) => {
                self.call_one(call, bits.life() == CANCELLED);
                false
            }
        }
    }

    /// By the finisher, which was told of callbacks: takes a batch, and calls it without the lock.
    pub(super) fn call_batch(&self) {
        self.touch();
        let mut batch = Vec::new();
        let bits: Bits = self.word.complete(|| {
            // SAFETY: J1.
            batch = self.calls.with_mut(|calls| unsafe { mem::take(&mut *calls) });
        });
        for call in batch {
            self.call_one(call, bits.has(MARKED));
        }
    }

    fn call_one(&self, call: Call, cancelled: bool) {
        let told = if cancelled { &self.notes.called_cancelled } else { &self.notes.called_finished };
        told.fetch_add(1, Relaxed);
        if !cancelled {
            // SAFETY: J1.
            self.value.with(|value| assert_eq!(unsafe { *value }, Some(7), "a value that is not there"));
        }
        if call == Call::Subscribes {
            self.subscribe(Call::Plain);
        }
    }
}
