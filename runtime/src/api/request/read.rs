//! What a handle reads of its request without a wait: the value, the outcome, the state, the name.

use std::time::Instant;

use super::{Outcome, Request};
use crate::api::any::{RequestId, State};
use crate::cancel;
use crate::record::header::Header;
use crate::state::word::{CANCELLED, FAILED, FINISHED};

impl<T> Request<T> {
    /// The value if the request has finished. Never waits.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](crate::yield_now).
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let seven = Request::new(|| 7);
    /// assert_eq!(seven.get(), None);
    /// seven.wait()?;
    /// assert_eq!(seven.get(), Some(&7));
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        if self.header().life_here() == FINISHED {
            // SAFETY: W2: finished, and while this handle is there nobody moves the value out (CB3, if it is completing).
            return Some(unsafe { Header::value::<T>(self.header).as_ref() });
        }
        None
    }

    /// How the request ended; `None` while it has not. Never waits.
    ///
    /// ```
    /// use forebear::{Outcome, Request};
    /// let seven = Request::ready(7);
    /// assert!(matches!(seven.outcome(), Some(Outcome::Finished(7))));
    /// ```
    pub fn outcome(&self) -> Option<Outcome<'_, T>> {
        let h = self.header();
        match h.life_here() {
            FINISHED => self.get().map(Outcome::Finished),
            FAILED => {
                h.word().mark_seen();
                h.failure().map(Outcome::Failed)
            }
            CANCELLED => Some(Outcome::Cancelled(cancel::reason(h))),
            _ => None,
        }
    }

    /// Whether the request has ended, however.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](crate::yield_now).
    #[doc(alias = "is_finished")]
    #[must_use]
    pub fn is_done(&self) -> bool {
        crate::api::any::is_done(self.header())
    }

    /// What the request is doing: a snapshot, which may be out of date at once. While the request's callbacks run, only they see its final state.
    /// Other code sees `Running` or `Suspended` until the last callback has returned.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](crate::yield_now).
    ///
    /// ```
    /// use forebear::{Request, State};
    ///
    /// let seven = Request::new(|| 7);
    /// assert_eq!((seven.state(), seven.is_done()), (State::New, false));
    /// seven.wait()?;
    /// assert_eq!((seven.state(), seven.is_done()), (State::Finished, true));
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use]
    pub fn state(&self) -> State {
        crate::api::any::state_of(self.header())
    }

    /// The name it was given, else the type of its callable.
    #[must_use]
    pub fn name(&self) -> &str {
        self.header().name()
    }

    /// A number that no other request of this process has.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let (one, another) = (Request::new(|| 1), Request::new(|| 2));
    /// assert!(one.id() == one.clone().id() && one.id() != another.id());
    /// ```
    #[must_use]
    pub fn id(&self) -> RequestId {
        crate::api::any::id_of(self.header())
    }

    /// The time by which it has to be over: the deadline it was made with, or one of an ancestor's if that is nearer. `None`: there is no limit.
    /// It does not change, not even when the request is over.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::{Request, spawn};
    ///
    /// let job = Request::builder().timeout(Duration::from_secs(60)).build(|| {
    ///     let child = Request::builder().timeout(Duration::from_secs(3600)).build(|| ());
    ///     let sooner = Request::builder().timeout(Duration::from_secs(1)).build(|| ());
    ///     (child.deadline(), sooner.deadline())
    /// });
    /// let due = job.deadline();
    /// let (child, sooner) = job.take()?;
    /// assert!(child == due && sooner < due);
    /// assert_eq!(spawn(|| ()).deadline(), None);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.header().deadline()
    }

    /// The number of the worker that runs it, from its start on; `None` before that, and if a foreign thread runs it.
    ///
    /// ```
    /// use forebear::{Request, Runtime};
    ///
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// assert_eq!(runtime.run(|| Request::current().and_then(|me| me.assigned_worker())), Some(0));
    /// assert_eq!(Request::new(|| 7).assigned_worker(), None);
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    #[must_use]
    pub fn assigned_worker(&self) -> Option<usize> {
        crate::api::any::worker_of(self.header())
    }
}
