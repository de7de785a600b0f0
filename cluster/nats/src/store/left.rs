//! [`Left`]: objects that could not be deleted, since there was no server then, or it has refused that.
//!
//! The coordinator deletes them when a look at the streams has succeeded. So they are tried as often as the streams are looked at, and a coordinator that may have lost its job deletes nothing: the
//! arguments of a task have the same name in each run.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Store;

/// So many names are kept. What is beyond goes with the job. Objects are not dropped faster than they were made, and none is made without a server: only one that refuses each deletion has so many left.
const MOST: usize = 1 << 16;

#[derive(Clone, Default)]
pub(super) struct Left(Arc<Mutex<VecDeque<String>>>);

impl Left {
    fn lock(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This one could not be deleted.
    pub(super) fn note(&self, name: &str) {
        let mut names = self.lock();
        if names.len() < MOST {
            names.push_back(name.to_owned());
        }
    }

    fn take(&self) -> VecDeque<String> {
        mem::take(&mut self.lock())
    }

    /// These are left again, before those that were noted meanwhile.
    fn put_back(&self, mut names: VecDeque<String>) {
        let mut noted = self.lock();
        names.append(&mut noted);
        names.truncate(MOST);
        *noted = names;
    }
}

impl Store {
    /// Whether objects are there that could not be deleted.
    pub(crate) fn has_left(&self) -> bool {
        !self.left.lock().is_empty()
    }

    /// Deletes objects that could not be deleted before, while `may`. After one that fails again the others wait for the next call: there may be no server. That one comes last then.
    pub(crate) async fn delete_left(&self, may: impl Fn() -> bool) {
        let mut names = self.left.take();
        while may()
            && let Some(name) = names.pop_front()
        {
            if self.try_delete(&name).await.is_err() {
                names.push_back(name);
                break;
            }
        }
        self.left.put_back(names);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_refuses_each_deletion_costs_no_more_than_so_many_names() {
        let left = Left::default();
        (0..MOST + 9).for_each(|n| left.note(&format!("args.{n}")));
        let first = left.take();
        assert_eq!(first.len(), MOST);
        left.note("args.new");
        left.put_back(first);
        let names = left.take();
        assert_eq!((names.len(), names[0].as_str()), (MOST, "args.0"));
    }
}
