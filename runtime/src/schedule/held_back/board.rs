//! A pool's board: whether it has stopped, and whom a stop concerns.
//!
//! It knows nothing of the members' types or borrows, so that a [`Canceller`](crate::Canceller) may share it and come
//! at any time, also when the pool is long gone.
//!
//! # Stopping
//!
//! The first reason stays. The thread that sets it takes, in the same moment, all requests that are *listed* and all
//! that the pool holds back. It marks all of them, releases those that it does not abort, and then ends the unstarted
//! ones, without a lock. That drops captures, which may wait for another of them. What is listed later is aborted by
//! the lane that lists it. So everything that has been admitted is aborted, by the later of the two.
//!
//! A member is listed under the number of its lane, before it is waited for, and is forgotten when the lane lists its
//! next. To abort one that is over does nothing.

use std::fmt;
use std::sync::PoisonError;

use forebear_context::error::{CancelReason, WaitError};
use forebear_context::shim::atomic::{AtomicBool, Ordering};
use forebear_context::shim::{Mutex, MutexGuard, mutant};

use super::{Admission, Released, will_end};
use crate::cancel::{self, Marked};
use crate::record::any::{self, AnyRequest};
use crate::record::header::Header;

/// Why a pool has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The member of this lane has not come to a value.
    Member(usize),
    /// A lane was cancelled for this reason, and not by the pool.
    Lane(CancelReason),
    /// Somebody cancelled the pool.
    Cancelled,
    /// The receiver of the results has failed.
    Failed,
    /// The waiter is cancelled.
    PoolWaiter,
    /// The receiver of the results has unwound.
    Unwound,
}

impl Why {
    /// The reason that the members' aborts carry.
    pub(crate) fn reason(self) -> CancelReason {
        match self {
            Why::Member(_) => CancelReason::SiblingFailed,
            Why::Lane(reason) => reason,
            Why::Cancelled | Why::Failed => CancelReason::PoolCancelled,
            Why::PoolWaiter => CancelReason::Parent,
            Why::Unwound => CancelReason::ScopeUnwound,
        }
    }

    /// Whether included requests are aborted too. If only the waiter is cancelled they are left as by any wait: the
    /// lane that waits for them is cancelled, and asks.
    pub(crate) fn concerns_included(self) -> bool {
        self != Why::PoolWaiter
    }
}

/// What an admitted member is known by.
pub(crate) enum Name {
    Own(AnyRequest),
    Included(AnyRequest),
}

impl Name {
    /// The request, if a stop for this reason aborts it.
    fn concerned(self, why: Why) -> Option<AnyRequest> {
        match self {
            Name::Included(_) if !why.concerns_included() => None,
            Name::Own(request) | Name::Included(request) => Some(request),
        }
    }
}

/// See the module head.
pub(crate) struct Board {
    state: Mutex<BoardState>,
    /// Whether there is a reason: a look without the lock.
    stopped: AtomicBool,
    /// Open while the pool is waited for.
    admission: Mutex<Option<Admission>>,
    /// It stands on the list of pools that were asked for a member; see [`super`].
    asked: AtomicBool,
}

#[derive(Default)]
struct BoardState {
    why: Option<Why>,
    /// What the wait answers, if the reason does not say it. Set before the lane, or the waiter, continues.
    answer: Option<WaitError>,
    /// By number of the lane.
    names: Vec<Option<Name>>,
}

impl Board {
    pub(crate) fn new() -> Board {
        Board {
            state: Mutex::default(),
            stopped: AtomicBool::new(false),
            admission: Mutex::new(None),
            asked: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the pool has stopped.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Stops the pool and marks what is listed, unless it has stopped before. The caller passes on what is released, and carries the marks out
    /// ([`stop`](crate::schedule::admission::stop)).
    #[cold]
    pub(crate) fn begin_stop(&self, why: Why) -> Option<(Released, Marked)> {
        let mut state = self.lock();
        if state.why.is_some() {
            return None;
        }
        state.why = Some(why);
        self.stopped.store(true, Ordering::Release);
        let listed = std::mem::take(&mut state.names);
        drop(state);
        // SAFETY: HB1: by `with_admission`.
        let released = self.with_admission(|admission| unsafe { admission.run.as_ref() }.stopped());
        let mut released = released.unwrap_or_default();
        let mut marked = Marked::default();
        // Not the one that has failed: marked, it might count as cancelled.
        let names = listed.into_iter().enumerate().filter(|(lane, _)| why != Why::Member(*lane));
        let listed = names.filter_map(|(_, name)| name?.concerned(why));
        listed.for_each(|request| marked.abort(request, why.reason()));
        if why.concerns_included() {
            released.others.drain(..).for_each(|request| marked.abort(request, why.reason()));
            released.held.iter().for_each(|request| marked.abort(request.clone(), why.reason()));
        }
        Some((released, marked))
    }

    /// This is what the wait answers if it has stopped for this reason.
    #[cold]
    pub(crate) fn note_answer(&self, why: Why, answer: WaitError) {
        let mut state = self.lock();
        if state.why == Some(why) && state.answer.is_none() {
            state.answer = Some(answer);
        }
        // What is not noted goes with this call, without the lock: its error is a user's.
    }

    /// Lists what `lane` runs. If the pool has stopped it is aborted instead.
    pub(crate) fn list(&self, lane: usize, name: Name) {
        let mut state = self.lock();
        let stopped = mutant!("listed_past_the_stop", None::<Why>, state.why);
        let unlisted = match stopped {
            None => {
                if state.names.len() <= lane {
                    state.names.resize_with(lane + 1, || None);
                }
                state.names[lane].replace(name)
            }
            Some(why) => {
                drop(state);
                if let Some(request) = name.concerned(why) {
                    // SAFETY: the handle's link.
                    unsafe { cancel::abort(request.raw(), why.reason()) };
                }
                return;
            }
        };
        // The last count of a header does not go under the lock.
        drop(state);
        drop(unlisted);
    }

    /// How many of the listed are not over, and cannot continue by themselves.
    pub(crate) fn standing(&self) -> usize {
        let state = self.lock();
        let stands = |name: &&Name| match name {
            Name::Own(request) | Name::Included(request) => {
                !any::is_done(request.header()) && !will_end(request)
            }
        };
        state.names.iter().flatten().filter(stands).count()
    }

    /// The included requests that are listed: only to be compared with what the caller knows to be there. Links of them could become the last ones, and
    /// would go under the caller's locks.
    pub(crate) fn included(&self) -> Vec<*const Header> {
        let of = |name: &Name| match name {
            Name::Own(_) => None,
            Name::Included(request) => Some(request.raw().as_ptr().cast_const()),
        };
        self.lock().names.iter().flatten().filter_map(of).collect()
    }

    /// Calls `with` unless the admission is closed; it stays open meanwhile.
    pub(crate) fn with_admission<R>(&self, with: impl FnOnce(&Admission) -> R) -> Option<R> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(with)
    }

    /// Opens or closes the admission.
    pub(crate) fn set_admission(&self, admission: Option<Admission>) {
        *self.admission.lock().unwrap_or_else(PoisonError::into_inner) = admission;
    }

    /// Whether it stands on the list of those that were asked.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Says so. True: that is a change.
    pub(crate) fn set_asked(&self, asked: bool) -> bool {
        self.asked.swap(asked, Ordering::Relaxed) != asked
    }

    /// Why the pool has stopped, and what there is to answer. Forgets all names: the wait is over.
    pub(crate) fn close(&self) -> Option<(Why, Option<WaitError>)> {
        let mut state = self.lock();
        let names = std::mem::take(&mut state.names);
        let answer = state.answer.take();
        let why = state.why;
        drop(state);
        drop(names);
        why.map(|why| (why, answer))
    }

    /// Why the pool has stopped.
    pub(crate) fn why(&self) -> Option<Why> {
        self.lock().why
    }
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").field("stopped", &self.is_stopped()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::mpsc; // not modelled: a test

    use forebear_context::error::Failure;

    use super::*;

    /// An error that says, when it is dropped, whether the board's lock is free.
    #[derive(Debug)]
    struct Looks(std::sync::Arc<Board>, mpsc::Sender<bool>);

    impl fmt::Display for Looks {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("looks")
        }
    }

    impl std::error::Error for Looks {}

    impl Drop for Looks {
        fn drop(&mut self) {
            self.1.send(self.0.state.try_lock().is_ok()).unwrap();
        }
    }

    #[test]
    fn an_answer_that_is_not_noted_goes_without_the_lock() {
        let board = std::sync::Arc::new(Board::new());
        let (tell, told) = mpsc::channel();
        let answer = || {
            let error = Looks(board.clone(), tell.clone());
            WaitError::Failed(Failure::from_error(error.into(), "member".to_owned(), None))
        };
        let (_, marked) = board.begin_stop(Why::Failed).expect("it has not stopped before");
        marked.carry_out();
        // One for another reason, the first for this reason, and another for it.
        for (why, is_noted) in [(Why::Cancelled, false), (Why::Failed, true), (Why::Failed, false)] {
            board.note_answer(why, answer());
            assert_eq!(told.try_recv().ok(), (!is_noted).then_some(true));
        }
        drop(board.close());
        assert_eq!(told.try_recv(), Ok(true));
    }
}
