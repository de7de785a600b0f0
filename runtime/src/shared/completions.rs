//! The completions that dependents of a runtime are after.
//!
//! A dependent that was submitted is work of its runtime, and stands in no queue: it is *held*, in the lists of waiters of what it is after
//! (`schedule/dependents.rs`). Mostly that is in a queue or on a stack of the runtime, so the workers cannot leave before it has ended. A completion is in
//! neither. Any thread may complete it, and nothing of the runtime leads to it. So each completion whose list has an edge is noted here.
//!
//! What is after such a dependent needs no note: when that dependent ends, its finisher closes the next edges, before its worker can leave.
//!
//! # Who asks
//!
//! * **The end of a runtime.** While a completion is noted, the runtime is not quiet and its last worker stays: the note counts as a foreign thread that
//!   runs a request ([`super::ending`]). A shutdown finds here what it is to abort.
//! * **A dump**, and a warning that names what is left.
//!
//! A dependent without an edge to a completion costs nothing here.
//!
//! # The races
//!
//! *An edge enters against the end of its completion.* The submitter enters the node, then notes the edge, and then looks whether the completion is
//! over. Its finisher ends it, and then forgets it. So the note is forgotten by the finisher, or the submitter finds it over and takes its own note back.
//! Both may do so: a note that is not there any more is no fault, since no edge is left then.
//!
//! *An edge enters against a shutdown.* The submitter enters the node, notes it, and then looks whether the runtime is shut. The thread that shuts it down
//! says so, and then follows the notes and the lists. Each list and the notes have a lock. So that thread finds the dependent, or the submitter finds the
//! runtime shut. The same holds for the end of a runtime that nobody shuts down, and the look whether it is over.
//!
//! # Invariants
//!
//! * **CN1** What is noted is kept while the lock is held. Who notes an edge, or takes one note back, has the edge's handle of the completion. The finisher
//!   takes a link before it closes the first edge, and forgets the completion before it gives that up.

use std::ptr::NonNull;
use std::sync::PoisonError;

use forebear_context::shim::{Mutex, MutexGuard, mutant};

use super::Shared;
use crate::record::any::AnyRequest;
use crate::record::header::Header;
use crate::shared::by_address::{self, ByAddress};

/// See the module head.
#[derive(Default)]
pub(crate) struct Completions(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    all: ByAddress<Note>,
    /// How many have been noted.
    count: u64,
}

struct Note {
    completion: NonNull<Header>,
    /// How many edges stand in its list.
    edges: usize,
    /// How many were noted before it.
    at: u64,
}

// SAFETY: CN1: any thread may take a link of what is noted, under the lock.
unsafe impl Send for Note {}

impl Completions {
    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// The caller has entered an edge into the list of a completion.
    ///
    /// # Safety
    ///
    /// CN1: the edge has a handle of the completion. If the completion is over afterwards, the caller takes the note back.
    #[cold]
    pub(crate) unsafe fn note_edge(&self, completion: NonNull<Header>) {
        let mut noted = self.completions.lock();
        let at = noted.count;
        noted.count += 1;
        let note = noted.all.entry(completion.as_ptr().addr()).or_insert(Note { completion, edges: 0, at });
        note.edges += 1;
        if note.edges == 1 && noted.all.len() == 1 {
            mutant!("completions_are_no_work", (), self.ending.foreign_begins());
        }
    }

    /// An edge has been taken out of the list of a completion, or its note is taken back. Runs no user code.
    #[cold]
    pub(crate) fn forget_edge(&self, completion: NonNull<Header>) {
        let mut noted = self.completions.lock();
        let address = completion.as_ptr().addr();
        let Some(note) = noted.all.get_mut(&address) else { return };
        note.edges -= 1;
        if note.edges == 0 {
            self.forget(noted, address);
        }
    }

    /// A completion is over, and its edges are closed. Runs no user code.
    #[cold]
    pub(crate) fn forget_completion(&self, completion: NonNull<Header>) {
        self.forget(self.completions.lock(), completion.as_ptr().addr());
    }

    fn forget(&self, mut noted: MutexGuard<'_, Noted>, address: usize) {
        let is_last = by_address::remove(&mut noted.all, address).is_some() && noted.all.is_empty();
        drop(noted);
        if is_last
            && mutant!("completions_are_no_work", false, self.ending.foreign_ends() || self.driven.is_some())
        {
            // Threads that end the runtime wait for this.
            self.worker_records().iter().for_each(|worker| self.wake(worker.index));
        }
    }

    /// The completions that dependents are after, in the order in which they were noted.
    pub(crate) fn awaited_completions(&self) -> Vec<AnyRequest> {
        let noted = self.completions.lock();
        let mut all: Vec<_> = noted.all.values().collect();
        all.sort_unstable_by_key(|note| note.at);
        // SAFETY: CN1: under the lock.
        all.into_iter().map(|note| unsafe { AnyRequest::linked(note.completion) }).collect()
    }

    /// Whether dependents are after completions.
    pub(crate) fn awaits_completions(&self) -> bool {
        !self.completions.lock().all.is_empty()
    }
}
