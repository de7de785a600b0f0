//! [`RequestPool`]: many requests, a bound on how many are active, and one wait for all of them.
//!
//! # Vocabulary
//!
//! * **member**: an added callable, or a request that was *included*.
//! * **held**: not started. A held callable is a box in a queue and no request, so no thread can claim, wait for or cancel it. A pool that is
//!   forgotten leaks callables that never ran. An included request that is new when the wait begins is *held back* by its word. A waiter for such a
//!   request asks the pool's [`held_back`]. See `docs/decisions/0008`.
//! * **admitted**: taken out of the queue, with a place in the bound. It has started and is not over, or it is over and its value has not yet been
//!   handed on. The bound limits the number of admitted members and the sum of their declared memory. Members are admitted in the order in which
//!   they were added: no other member overtakes one for which there is no room.
//! * **waiter**: the caller of [`wait`](RequestPool::wait) or one of its variants.
//! * **lane**: a request of the waiter's that takes members out of the queue and runs them, one at a time ([`lane`]).
//!
//! # The walk of a member
//!
//! 1. The waiter opens a [`scope`](mod@crate::api::scope) and spawns lanes in it ([`drive`]). A lane admits the first held member
//!    ([`run`]) and spawns it in the same scope. So the invariants of the scope make borrowing sound, and this module adds none: no wait for
//!    a pool returns, or unwinds, before all admitted members are over.
//! 2. The lane lists the member on the pool's board ([`board`]), where a stop of the pool finds it. Then it waits for the member, mostly by running
//!    it.
//! 3. When the member is over, callbacks included, the lane leaves the value to the waiter, and wakes it. If values are not handed on one by
//!    one, the lane continues with the next member.
//!
//! # How it stops
//!
//! A pool stops once, for the first of several reasons. A member has ended without a value, a canceller has stopped the pool, the waiter was
//! cancelled, or the receiver of the results has failed. The thread that stops the pool aborts the admitted members itself. The waiter's
//! worker may be busy with a member that polls for a cancel, and the waiter with a result. The same thread aborts or releases the included requests
//! that are held back. The waiter drops the callables that are held, and then waits for the remaining members in any case.
//!
//! # What it does not do
//!
//! The waiter never runs a member on its own stack: meanwhile no thread would hand results on, or make lanes.

use std::collections::VecDeque;
use std::fmt;

use forebear_context::error::internal::Each;
use forebear_context::error::{Error, WaitError};
use forebear_context::shim::Arc;

mod drive;
mod lane;
mod member;
mod run;

use self::member::{HeldMember, MemberHandle, Work};
use self::run::Values;
use crate::api::any::AnyRequest;
use crate::api::request::Request;
use crate::record::cell::{Fallible, Plain};
use crate::schedule::admission;
#[cfg(doc)]
use crate::schedule::held_back;
#[cfg(doc)]
use crate::schedule::held_back as board;
use crate::schedule::held_back::{Board, Why};

/// Collects callables and requests, and runs them with a bound on how many are active at a time. Nothing runs before a
/// wait.
///
/// * At most [`max_active`](Self::max_active) members are started and not over; suspended ones count. The default, and the meaning of
///   0, is the number of the runtime's workers. When a member is over the next one starts, in the order in which they were added.
/// * The wait hands each result over as it arrives, on the waiter's thread, and does not keep it. Never more results are alive than the
///   bound ([`wait_each`](Self::wait_each)).
/// * The first failure stops the pool. The other members are aborted with [`CancelReason::SiblingFailed`] and waited for, held members never
///   start, and the wait returns the failure.
/// * A [`Canceller`] stops the pool from any thread.
///
/// Members may borrow what outlives the pool, also disjoint `&mut` pieces of a buffer. Each member is a request, which descends from the request
/// that waits (through a request of the pool's). Members may use pools themselves, to any depth and on one worker; every pool has a bound of its
/// own.
///
/// A pool that is dropped before a wait, also by an unwind, drops its members unrun. A pool that is forgotten leaks them. A
/// pool waits once, and takes no members after that, which the compiler checks.
///
/// ```
/// use forebear::{RequestPool, WaitError};
///
/// fn doubled(numbers: &[u32], block: usize) -> Result<Vec<u32>, WaitError> {
///     let mut out = vec![0; numbers.len()];
///     let mut pool = RequestPool::new().max_active(8);
///     for (from, to) in numbers.chunks(block).zip(out.chunks_mut(block)) {
///         pool.add(move || from.iter().zip(to).for_each(|(n, out)| *out = 2 * n));
///     }
///     pool.wait()?;
///     Ok(out)
/// }
/// assert_eq!(doubled(&[1, 2, 3, 4, 5], 2)?, [2, 4, 6, 8, 10]);
/// # Ok::<(), WaitError>(())
/// ```
///
/// What was lent to a pool is locked until it has been waited for:
///
/// ```compile_fail,E0505
/// use forebear::RequestPool;
/// let mut out = vec![0; 2];
/// let mut pool = RequestPool::new();
/// pool.add(|| out[0] = 1);
/// drop(out);
/// pool.wait();
/// ```
///
/// ```compile_fail,E0499
/// use forebear::RequestPool;
/// let mut out = vec![0; 2];
/// let mut pool = RequestPool::new();
/// pool.add(|| out[0] = 1);
/// pool.add(|| out[1] = 2); // not seen to be disjoint: use `split_at_mut`
/// pool.wait();
/// ```
///
/// A member is sent to a worker, and so is its value:
///
/// ```compile_fail,E0277
/// use forebear::RequestPool;
/// let here = std::rc::Rc::new(1);
/// RequestPool::new().add(move || println!("{here}"));
/// ```
///
/// ```compile_fail,E0382
/// use forebear::RequestPool;
/// let mut pool = RequestPool::new();
/// pool.add(|| ());
/// pool.wait();
/// pool.add(|| ());
/// ```
///
/// [`CancelReason::SiblingFailed`]: crate::CancelReason::SiblingFailed
#[doc(alias = "par_iter")]
#[doc(alias = "ThreadPoolExecutor")]
#[must_use = "a pool runs nothing before it is waited for"]
pub struct RequestPool<'env, T = ()> {
    held: Each<VecDeque<HeldMember<'env, T>>>,
    /// The included requests.
    kept: Vec<Option<IncludedHandle<'env>>>,
    /// How many members yield a value.
    values: usize,
    limits: Limits,
    board: Arc<Board>,
}

/// An included request, kept until it is over. Its typed handle stays here, since it need not be `Send`.
struct IncludedHandle<'env> {
    request: AnyRequest,
    _handle: Box<dyn MemberHandle + 'env>,
}

/// The bounds of the admitted members.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// 0: the number of workers.
    active: usize,
    /// The bound of the declared sum, in bytes.
    memory: Option<u64>,
}

impl<'env, T: Send + 'env> RequestPool<'env, T> {
    /// A pool without members, bounded by the number of workers.
    ///
    /// ```
    /// use forebear::RequestPool;
    /// let pool = RequestPool::<u32>::new();
    /// assert!(pool.is_empty());
    /// assert!(pool.collect()?.is_empty());
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    pub fn new() -> Self {
        RequestPool {
            held: Each::default(),
            kept: Vec::new(),
            values: 0,
            limits: Limits { active: 0, memory: None },
            board: Arc::new(Board::new()),
        }
    }

    /// At most `n` members are active at a time: started and not over, or with a result that is not yet handed on. 0, the default, means the
    /// number of workers of the runtime that is current where the pool is waited for.
    ///
    /// ```
    /// use forebear::RequestPool;
    /// use std::sync::Mutex;
    ///
    /// let out = Mutex::new(String::new());
    /// let mut pool = RequestPool::new().max_active(1); // one after the other
    /// for word in ["a", "b", "c"] {
    ///     pool.add(|| out.lock().unwrap().push_str(word));
    /// }
    /// pool.wait()?;
    /// assert_eq!(out.into_inner().unwrap(), "abc");
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    pub fn max_active(mut self, n: usize) -> Self {
        self.limits.active = n;
        self
    }

    /// The active members have declared at most `bytes` together ([`add_sized`](Self::add_sized)). A member that declares
    /// more runs alone. The default is no bound.
    ///
    /// Later members do not overtake one for which there is no room.
    ///
    /// ```
    /// use forebear::RequestPool;
    /// let mut pool = RequestPool::new().memory_limit(1 << 30);
    /// for block in 0..4_u64 {
    ///     pool.add_sized(block << 28, move || block); // three of these never run at once with the last
    /// }
    /// assert_eq!(pool.collect()?, [0, 1, 2, 3]);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.limits.memory = Some(bytes);
        self
    }

    /// Adds a member: `f` will be run, once, by a request of its own. Its name is the type of `f`.
    ///
    /// The member has no handle: the wait hands its result on. Does not suspend.
    pub fn add(&mut self, f: impl FnOnce() -> T + Send + 'env) -> &mut Self {
        self.add_sized(0, f)
    }

    /// As [`add`](Self::add), for a callable that may return an error. That is a failure of the member.
    ///
    /// ```
    /// use forebear::{RequestPool, WaitError};
    /// let mut pool = RequestPool::new();
    /// for text in ["1", "x"] {
    ///     pool.try_add(move || Ok(text.parse::<u32>()?));
    /// }
    /// let Err(WaitError::Failed(failure)) = pool.collect() else { panic!() };
    /// assert!(failure.downcast_ref::<std::num::ParseIntError>().is_some());
    /// ```
    pub fn try_add(&mut self, f: impl FnOnce() -> Result<T, Error> + Send + 'env) -> &mut Self {
        self.try_add_sized(0, f)
    }

    /// As [`add`](Self::add), with the memory that the member and its result take, for [`memory`](Self::memory_limit).
    pub fn add_sized(&mut self, bytes: u64, f: impl FnOnce() -> T + Send + 'env) -> &mut Self {
        self.hold(bytes, |index| Work::Own { index, job: Box::new(Plain(f)) })
    }

    /// As [`try_add`](Self::try_add), with the memory that the member and its result take, for [`memory`](Self::memory_limit).
    ///
    /// ```
    /// use forebear::RequestPool;
    ///
    /// let mut pool = RequestPool::new().memory_limit(1 << 30);
    /// for text in ["1", "2"] {
    ///     pool.try_add_sized(1 << 29, move || Ok(text.parse::<u32>()?));
    /// }
    /// assert_eq!(pool.collect()?, [1, 2]);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    pub fn try_add_sized(
        &mut self,
        bytes: u64,
        f: impl FnOnce() -> Result<T, Error> + Send + 'env,
    ) -> &mut Self {
        self.hold(bytes, |index| Work::Own { index, job: Box::new(Fallible(f)) })
    }

    /// Makes an existing request a member. The pool runs it if it has not run yet, and waits for it, and its failure is the pool's. It
    /// yields no value; keep a clone to read that.
    ///
    /// From the beginning of the pool's wait the request is held back until its turn. Until then it does not run, also if it is
    /// submitted or waited for, but it can be cancelled. A waiter moves it to the front.
    ///
    /// If there is no room, the pool admits it over the bound where its waiter would else wait for ever. That is so if the waiter is a member, was
    /// made by one, or receives the results. It is also so while all active members are suspended, or run on threads that are no
    /// workers. The request takes a place all the same, so no other member begins for as long, and
    /// [`Metrics::over_bound`](crate::Metrics::over_bound) counts it. If the wait for the pool ends early because the
    /// *waiter* is cancelled, the request is released, as if it had not been included.
    ///
    /// A request that was submitted before the wait takes its place at once. It may be over already, or be included twice, or
    /// in two pools: the pool that begins first holds it back, and the other admits it in its turn. When the pool stops, it aborts its members,
    /// even if others wait for them. If only the pool's *waiter* is cancelled, a request that others wait for is spared. To spare it always,
    /// wait for it in a member.
    ///
    /// ```
    /// use forebear::{Request, RequestPool};
    /// let answer = Request::new(|| 6 * 7);
    /// let mut pool = RequestPool::<()>::new();
    /// pool.include(answer.clone()).include(answer.clone()).include(Request::ready("there already"));
    /// pool.wait()?;
    /// assert_eq!(answer.get(), Some(&42));
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    pub fn include<U: 'env>(&mut self, request: Request<U>) -> &mut Self {
        self.held.push_back(HeldMember { bytes: 0, work: Work::Included { kept: self.kept.len() } });
        self.kept.push(Some(IncludedHandle { request: request.to_untyped(), _handle: Box::new(request) }));
        self
    }

    fn hold(&mut self, bytes: u64, work: impl FnOnce(usize) -> Work<'env, T>) -> &mut Self {
        let work = work(self.values);
        self.values += 1;
        self.held.push_back(HeldMember { bytes, work });
        self
    }

    /// A canceller, which stops the pool from any thread, before the wait or during it.
    ///
    /// ```
    /// use forebear::{CancelReason, RequestPool, WaitError, yield_now};
    /// let mut pool = RequestPool::new();
    /// pool.try_add(|| loop {
    ///     yield_now()?; // until it is cancelled
    /// });
    /// let canceller = pool.canceller();
    /// let window = std::thread::spawn(move || canceller.cancel());
    /// let answer = pool.wait_each(|_, ()| ());
    /// assert!(matches!(answer, Err(WaitError::TargetCancelled(CancelReason::PoolCancelled))));
    /// # window.join().unwrap();
    /// ```
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller { board: self.board.clone() }
    }

    /// How many members there are, included ones too.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether there are no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Runs all members and waits for them. Each member drops its own value.
    ///
    /// Suspends, or blocks a foreign thread; returns at once if there are no members. A cancellation point. When it
    /// returns, in any case, all members that have started are over, callbacks included.
    ///
    /// # Errors
    ///
    /// The first of these, after the rest has been aborted and is over:
    ///
    /// * [`Cancelled`](WaitError::Cancelled) if the *caller* was cancelled, whatever else has failed;
    /// * [`Failed`](WaitError::Failed) with the first failure of a member;
    /// * [`TargetCancelled`](WaitError::TargetCancelled) with [`PoolCancelled`](crate::CancelReason::PoolCancelled) if
    ///   a [`Canceller`] stopped the pool, or with the reason why a member was cancelled by others;
    /// * [`CircularWait`](WaitError::CircularWait) if an included request is the caller itself, or waits for it on the
    ///   same stack; then nothing has begun. Also if a member waits for the caller when the pool begins to wait for the
    ///   member. If the member begins to wait later, its wait returns the error, and the member fails with it.
    ///
    /// # Panics
    ///
    /// In a region of [`no_suspend`](crate::no_suspend()), if there are members.
    ///
    /// ```
    /// use forebear::RequestPool;
    /// let (mut left, mut right) = (0, 0);
    /// let mut pool = RequestPool::new();
    /// pool.add(|| left = 1);
    /// pool.add(|| right = 2);
    /// pool.wait()?;
    /// assert_eq!((left, right), (1, 2));
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[track_caller]
    pub fn wait(self) -> Result<(), WaitError> {
        drive::run(self, Values::Dropped, &mut |_, _| Ok(()))
    }

    /// As [`wait`](Self::wait), and calls `f` with each value as it arrives, on the caller's thread and as a part of its
    /// request. The first argument says which of the values it is, in order of adding, from 0; included requests have
    /// none.
    ///
    /// A member is active until `f` has returned. So with a bound as small as the number of workers a worker
    /// may be idle until the caller takes a result: allow for a few more. `f` may wait. After a pool is
    /// stopped it delivers no more values.
    ///
    /// A thread that is no request is woken for several results at a time if they arrive fast. Each of them is then delivered at most
    /// some 50 µs late.
    ///
    /// # Errors
    ///
    /// As `wait`.
    ///
    /// # Panics
    ///
    /// As `wait`. A panic of `f` continues after the rest was aborted, with
    /// [`ScopeUnwound`](crate::CancelReason::ScopeUnwound), and waited for.
    ///
    /// ```
    /// use forebear::RequestPool;
    /// let words = ["a", "bb", "ccc"];
    /// let mut pool = RequestPool::new();
    /// for word in &words {
    ///     pool.add(|| word.len());
    /// }
    /// let mut lengths = [0; 3];
    /// pool.wait_each(|index, length| lengths[index] = length)?;
    /// assert_eq!(lengths, [1, 2, 3]);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[track_caller]
    pub fn wait_each(self, mut f: impl FnMut(usize, T)) -> Result<(), WaitError> {
        drive::run(self, Values::HandedOn, &mut |index, value| {
            f(index, value);
            Ok(())
        })
    }

    /// As [`wait_each`](Self::wait_each), for an `f` that may return an error. The first one stops the pool as a
    /// [`Canceller`] does, and comes out when the rest is over.
    ///
    /// # Errors
    ///
    /// As `wait`; the error of `f` as [`Failed`](WaitError::Failed), or as it is if it is a [`WaitError`].
    ///
    /// # Panics
    ///
    /// As `wait_each`.
    ///
    /// ```
    /// use forebear::{RequestPool, WaitError};
    /// use std::io::Write;
    ///
    /// let mut pool = RequestPool::new().max_active(1);
    /// for n in 0..10_u8 {
    ///     pool.add(move || [n]);
    /// }
    /// let mut file = [0; 3]; // a small one
    /// let mut end = &mut file[..];
    /// let full = pool.try_wait_each(|_, bytes| Ok(end.write_all(&bytes)?));
    /// assert!(matches!(full, Err(WaitError::Failed(_))));
    /// assert_eq!(file, [0, 1, 2]);
    /// ```
    #[track_caller]
    pub fn try_wait_each(self, mut f: impl FnMut(usize, T) -> Result<(), Error>) -> Result<(), WaitError> {
        drive::run(self, Values::HandedOn, &mut f)
    }

    /// As [`wait`](Self::wait), and answers all values in order of adding.
    ///
    /// # Errors
    ///
    /// As `wait`; then the values that have come are dropped.
    ///
    /// ```
    /// use forebear::RequestPool;
    /// let mut pool = RequestPool::new();
    /// for n in 0..4 {
    ///     pool.add(move || n * n);
    /// }
    /// assert_eq!(pool.collect()?, [0, 1, 4, 9]);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[track_caller]
    pub fn collect(self) -> Result<Vec<T>, WaitError> {
        let mut values = Each(Vec::new());
        values.resize_with(self.values, || None);
        drive::run(self, Values::IncludedHandle, &mut |index, value| {
            values[index] = Some(value);
            Ok(())
        })?;
        Ok(values.take().into_iter().flatten().collect())
    }
}

impl<'env, T: Send + 'env> Default for RequestPool<'env, T> {
    fn default() -> Self {
        RequestPool::new()
    }
}

impl<T> fmt::Debug for RequestPool<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("RequestPool");
        out.field("members", &self.held.len()).field("max_active", &self.limits.active);
        if let Some(memory) = self.limits.memory {
            out.field("memory", &memory);
        }
        out.field("stopped", &self.board.is_stopped()).finish()
    }
}

/// Stops a [`RequestPool`] from anywhere. Clones stop the same pool, and it does no harm to keep one.
///
/// ```
/// use forebear::{CancelReason, RequestPool, WaitError};
/// let mut pool = RequestPool::new();
/// pool.add(|| unreachable!());
/// pool.canceller().cancel();
/// assert!(matches!(pool.wait(), Err(WaitError::TargetCancelled(CancelReason::PoolCancelled))));
/// ```
#[derive(Clone)]
pub struct Canceller {
    board: Arc<Board>,
}

impl Canceller {
    /// Cancels the pool: what has not begun never does, what has is aborted with
    /// [`PoolCancelled`](crate::CancelReason::PoolCancelled), and the wait, when it has been waited for, answers
    /// [`TargetCancelled`](WaitError::TargetCancelled) with this reason. Nothing if the pool has stopped before, or if
    /// all members are over and their results have been handed on.
    ///
    /// Does not wait for the members to end, and does not suspend. May be called from anywhere: by a member, by the
    /// receiver of the results, before the wait and after it. What had not started is ended, its captures dropped, here
    /// and now.
    pub fn cancel(&self) {
        admission::stop(&self.board, Why::Cancelled);
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller").field("stopped", &self.board.is_stopped()).finish()
    }
}
