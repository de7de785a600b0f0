//! Waiting for the first of some requests, and for all of them.

use crate::api::request::Request;
use crate::cancel::Marked;
use crate::foreign;
use crate::schedule::registration::{RegisterResult, Registration};
use crate::schedule::wait;
use crate::state::listener::Notice;
use crate::state::set::{Core, SetPlace};
use crate::state::word::FINISHED;

use super::RequestSet;

use forebear_context::error::{Cancelled, WaitError};
use forebear_context::shim::Arc;

/// Waits until one of the requests has ended, however, and answers which: its number in the order in which they were given, from 0. `None`:
/// there are none. If several are over, the one that was given first. The others continue.
///
/// Each is submitted, and counts as wanted meanwhile. In a request this suspends; in a foreign thread it blocks. A cancellation point. For a
/// limit in time, see [`time::timeout`](https://docs.rs/forebear/latest/forebear/time/fn.timeout.html). Cycles of waits are found as for a
/// [`RequestSet`].
///
/// # Errors
///
/// [`Cancelled`].
///
/// # Panics
///
/// In a `no_suspend` region, if it would have to wait.
///
/// ```
/// use forebear::{Request, wait_first};
///
/// let (_late, never) = Request::<u32>::completer("never");
/// let requests = [never, Request::new(|| 7)];
/// assert_eq!(wait_first(&requests)?, Some(1));
/// # Ok::<(), forebear::Cancelled>(())
/// ```
#[doc(alias = "race")]
#[doc(alias = "select")]
#[track_caller]
pub fn wait_first<'a, T: 'a>(
    requests: impl IntoIterator<Item = &'a Request<T>>,
) -> Result<Option<usize>, Cancelled> {
    let mut set: RequestSet<T> = requests.into_iter().cloned().collect();
    let first = set.wait_next()?;
    Ok(first.map(|(number, _)| number))
}

/// Waits until all of the requests have finished, and answers their values in the order in which they were given. If one does not finish, it answers
/// why as soon as that is known; the others continue.
///
/// Each is submitted, and counts as wanted meanwhile. Those that have not started when their turn comes may be run right here, on the caller's
/// stack. In a request this suspends; in a foreign thread it blocks. A cancellation point. For a limit in time, see
/// [`time::timeout`](https://docs.rs/forebear/latest/forebear/time/fn.timeout.html).
///
/// # Errors
///
/// As [`Request::wait`], of the first that has not finished: if several have not by then, of the one that ended first.
/// [`CircularWait`](WaitError::CircularWait) if one of them waits for the caller, by the time that it is this one's turn.
///
/// # Panics
///
/// In a `no_suspend` region, if it would have to wait.
///
/// ```
/// use forebear::{Request, WaitError, spawn, wait_all};
///
/// let squares: Vec<_> = (0..4).map(|n| spawn(move || n * n)).collect();
/// assert_eq!(wait_all(&squares)?, [&0, &1, &4, &9]);
///
/// let (_late, never) = Request::<u32>::completer("never");
/// let bad = Request::try_new(|| Ok("x".parse()?));
/// assert!(matches!(wait_all([&never, &bad]), Err(WaitError::Failed(_)))); // and `never` is not waited for
/// # Ok::<(), WaitError>(())
/// ```
#[doc(alias = "join_all")]
#[track_caller]
pub fn wait_all<'a, T: 'a>(
    requests: impl IntoIterator<Item = &'a Request<T>>,
) -> Result<Vec<&'a T>, WaitError> {
    let requests: Vec<&Request<T>> = requests.into_iter().collect();
    let core = Arc::<Core>::default();
    // Withdrawn when it is dropped.
    let mut registered =
        Registered { requests: &requests, registrations: Vec::with_capacity(requests.len()) };
    for (slot, request) in requests.iter().enumerate() {
        let place = SetPlace { slot, number: slot };
        let mut registration = Registration::default();
        let notice = || Failure { core: Arc::clone(&core), place };
        if let Some(fiber) = foreign::fiber() {
            // SAFETY: RG1: the handle is borrowed; RG3: `registered` is dropped in this frame.
            match unsafe { registration.enter(fiber, request.header_ptr(), notice) } {
                RegisterResult::Over => _ = request.answer()?,
                RegisterResult::Refused(error) => return Err(error),
                RegisterResult::Entered(..) | RegisterResult::Stands(_) => {}
            }
        }
        registered.registrations.push(registration);
    }
    let mut values = Vec::with_capacity(requests.len());
    for &request in &requests {
        values.push(in_turn(request, &requests, &core)?);
    }
    Ok(values)
}

/// The value of one of them, when its turn has come.
#[track_caller]
fn in_turn<'a, T>(
    request: &'a Request<T>,
    requests: &[&'a Request<T>],
    core: &Core,
) -> Result<&'a T, WaitError> {
    loop {
        if let Some(failed) = core.pop() {
            requests[failed.slot].answer()?;
        }
        // SAFETY: the handle is borrowed.
        let waited = unsafe { wait::until_over_or(request.header_ptr(), core) };
        core.leave();
        match waited {
            Ok(()) => return request.answer(),
            // Interrupted: the check above says by which.
            Err(WaitError::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The notice of a request that [`wait_all`] waits for: of its end, if that is no value.
///
/// It stands in the list while `wait_all` waits for another request, also for one that runs on the caller's stack: then the call cannot return before that
/// one is over. So it is framed, and wants what the caller wants: a cancelled caller wants nothing. A veto that was decided before the mark of the caller
/// takes effect when the call returns, and the listener leaves.
struct Failure {
    core: Arc<Core>,
    place: SetPlace,
}

impl Notice for Failure {
    const CALLS_USER_CODE: bool = false;
    const IS_FRAMED: bool = true;

    fn over(&self, life: u64) {
        if life != FINISHED {
            self.core.tell(self.place);
        }
    }
}

/// The registrations of [`wait_all`].
struct Registered<'r, 'a, T> {
    requests: &'r [&'a Request<T>],
    registrations: Vec<Registration<Failure>>,
}

impl<T> Drop for Registered<'_, '_, T> {
    fn drop(&mut self) {
        let mut marked = Marked::default();
        for (request, registration) in self.requests.iter().zip(&mut self.registrations) {
            // SAFETY: RG1: the handle is borrowed.
            drop(unsafe { registration.leave(request.header_ptr(), &mut marked) });
        }
        marked.carry_out();
    }
}
