//! Tasks that wait by a future for a request of a runtime, from outside of it.

use std::sync::PoisonError;

use forebear_context::shim::{Arc, Mutex, MutexGuard};

use crate::shared::by_address::{self, ByAddress};
use crate::state::listener::{Listener, Wakes};

/// The futures that wait for requests of one runtime from outside of it.
#[derive(Debug, Default)]
pub(crate) struct Futures(Mutex<ByAddress<Arc<Listener<Wakes>>>>);

impl Futures {
    fn lock(&self) -> MutexGuard<'_, ByAddress<Arc<Listener<Wakes>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn register(&self, listener: &Arc<Listener<Wakes>>) {
        self.lock().insert(Arc::as_ptr(listener).addr(), Arc::clone(listener));
    }

    pub(crate) fn forget(&self, listener: &Arc<Listener<Wakes>>) {
        let removed = by_address::remove(&mut self.lock(), Arc::as_ptr(listener).addr());
        drop(removed);
    }

    /// The runtime has given up: wakes all tasks that wait by a future. Calls the user's wakers.
    pub(crate) fn give_up(&self) {
        let waiting: Vec<_> = self.lock().values().cloned().collect();
        for listener in waiting {
            listener.notice().wake();
        }
    }
}
