//! A listener in a model: `future.rs` and `cancel.rs`, `withdraw`.

use forebear_context::shim::Arc;
use forebear_runtime::model::listener::{Listener, Notice};
use forebear_runtime::model::word::{Bits, Cancel, Demand, WAITERS};

use super::Job;

impl Job {
    /// Enlists it. False: the request is over.
    pub fn enlist<N: Notice>(&self, listener: &Arc<Listener<N>>) -> bool {
        let listed = Listener::enlist(listener, |node| {
            self.touch();
            self.word.lock().map_err(drop)?;
            // SAFETY: Q1: the lock is ours; Q2: the list has a count of it.
            self.list.with_mut(|_| unsafe { self.waiters.push(node) });
            self.touch();
            self.word.unlock(|bits| Bits(bits.0 | WAITERS));
            Ok::<(), ()>(())
        });
        listed.is_ok()
    }

    /// Its owner takes it out. `None`: the finisher has it.
    pub fn delist<N: Notice>(&self, listener: &Arc<Listener<N>>) -> Option<Cancel> {
        self.touch();
        let answer = self.word.leave(false, |scan| {
            self.touch();
            // SAFETY: Q1: the lock is ours; Q2: it stands in the list.
            self.list.with_mut(|_| unsafe { self.waiters.unlink(listener.node()) });
            if scan || self.waiters.is_empty() { self.demand() } else { Demand::Live }
        });
        let Ok(answer) = answer else {
            Listener::left(listener);
            return None;
        };
        // SAFETY: LI1: taken out just now.
        unsafe { Listener::delisted(listener) };
        Some(self.act(answer))
    }
}
