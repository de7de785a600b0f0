//! [`Request`]: the handle to one computation and, later, its value.

use std::fmt;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::{self, NonNull};

use forebear_context::error::{CancelReason, Error, Failure, WaitError};
use forebear_context::lineage::Lineage;
use forebear_context::shim::atomic::Ordering;

use crate::any::{AnyRequest, RequestId, State};
use crate::attention::{HUNGRY, OLDER};
use crate::builder::{RequestBuilder, create};
use crate::cell::{self, BOXED_ABOVE, Birth, Boxed, Callable, Fallible, Plain};
use crate::header::{Ending, Header};
use crate::home;
use crate::hooks;
use crate::origin::{self, Rank};
use crate::run;
use crate::strand;
use crate::wait;
use crate::word::{self, CANCELLED, FAILED, FINISHED, HANDLE, HandleDrop, SEEN, SPAWNED};

/// A handle to one computation and, later, its value.
///
/// A request wraps one callable. Nothing runs before [`submit`](Self::submit) or [`wait`](Self::wait); the callable runs
/// at most once, however many wait. Handles are counted like [`Arc`](std::sync::Arc): clone one to share it. Dropping the
/// last handle of a submitted request does not stop it; its value is dropped as soon as nobody can reach it.
///
/// A handle is `Send` and `Sync` if the value is both. A value that is only `Send` is waited for and taken where it was
/// ordered.
///
/// ```
/// use forebear_runtime::Request;
///
/// let image = Request::new(|| vec![1.0, 2.0, 3.0]);
/// let (a, b) = (image.clone(), image.clone());
/// let sum = Request::try_new(move || Ok(a.wait()?.iter().sum::<f64>()));
/// let max = Request::try_new(move || Ok(b.wait()?.iter().fold(0.0_f64, |m, x| m.max(*x))));
/// max.submit(); // elsewhere, if anybody is idle
/// assert_eq!(sum.wait()? / max.wait()?, 2.0); // `sum` runs right here
/// # Ok::<(), forebear_runtime::WaitError>(())
/// ```
pub struct Request<T> {
    header: NonNull<Header>,
    value: PhantomData<T>,
}

// SAFETY: as `Arc<T>`: through a handle a `&T` can be had on any thread (hence `Sync`), and the last handle, wherever it
// is, drops or moves out the `T` (hence `Send`). The callable is `Send` by the bounds of whoever made the request.
unsafe impl<T: Send + Sync> Send for Request<T> {}
// SAFETY: as above: a `&Request<T>` can be cloned.
unsafe impl<T: Send + Sync> Sync for Request<T> {}
impl<T> Unpin for Request<T> {}
impl<T: RefUnwindSafe> UnwindSafe for Request<T> {}
impl<T: RefUnwindSafe> RefUnwindSafe for Request<T> {}

impl<T: Send + 'static> Request<T> {
    /// A request for what `f` returns. Nothing runs yet.
    ///
    /// It belongs to the runtime that is current here, and is a child of the current request, if there is one.
    ///
    /// ```
    /// # use forebear_runtime::Request;
    /// let answer = Request::new(|| 6 * 7);
    /// assert_eq!(answer.get(), None);
    /// assert_eq!(answer.wait()?, &42);
    /// # Ok::<(), forebear_runtime::WaitError>(())
    /// ```
    #[must_use = "a request does nothing until it is submitted or waited for"]
    #[inline]
    pub fn new(f: impl FnOnce() -> T + Send + 'static) -> Self {
        // SAFETY: the callable is `'static`.
        unsafe { new_with(Plain(f)) }
    }

    /// A request for what `f` returns, unless that is an error: then the request fails with it.
    ///
    /// ```
    /// # use forebear_runtime::{Request, WaitError};
    /// let read = Request::try_new(|| Ok(std::fs::read("no such file")?));
    /// let Err(WaitError::Failed(failure)) = read.wait() else { panic!() };
    /// assert!(failure.downcast_ref::<std::io::Error>().is_some());
    /// ```
    #[must_use = "a request does nothing until it is submitted or waited for"]
    #[inline]
    pub fn try_new(f: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Self {
        // SAFETY: the callable is `'static`.
        unsafe { new_with(Fallible(f)) }
    }
}

impl Request<()> {
    /// The request that the caller runs in; `None` outside any request.
    ///
    /// Right everywhere: in directly run children, in the arms of a join (the request that called `join`, stolen or not),
    /// in foreign threads.
    ///
    /// ```
    /// # use forebear_runtime::Request;
    /// assert!(Request::current().is_none());
    /// let name = Request::builder().name("me").build(|| Request::current().unwrap().name().to_owned());
    /// assert_eq!(name.wait()?, "me");
    /// # Ok::<(), forebear_runtime::WaitError>(())
    /// ```
    pub fn current() -> Option<AnyRequest> {
        let mut top = strand::get()?.request()?;
        while top.is(crate::header::ARM) {
            top = top.parent()?;
        }
        // SAFETY: what runs is held by its runner.
        Some(unsafe { AnyRequest::linked(NonNull::from(top)) })
    }

    /// A description of requests to make: name, priority, stack size and more.
    pub fn builder() -> RequestBuilder {
        RequestBuilder::default()
    }
}

impl<T> Request<T> {
    /// A request that is already finished, with `value`. It is never scheduled.
    ///
    /// ```
    /// # use forebear_runtime::Request;
    /// assert_eq!(Request::ready(7).take().ok(), Some(7));
    /// ```
    pub fn ready(value: T) -> Self {
        // SAFETY: one handle, which this is.
        unsafe { Self::from_raw(cell::make_ready(FINISHED | HANDLE, Lineage::root(0, 0), value)) }
    }

    /// The handle that the word counts.
    ///
    /// # Safety
    ///
    /// One count of the header's handles is given to the result, and its value is a `T`.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(header: NonNull<Header>) -> Self {
        Request { header, value: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: this handle's count (W4).
        unsafe { self.header.as_ref() }
    }

    #[inline(always)]
    fn into_raw(self) -> NonNull<Header> {
        ManuallyDrop::new(self).header
    }

    /// Schedules the request, unless that has been done. Does not suspend.
    ///
    /// If the runtime is over, the request ends here, cancelled with [`CancelReason::Shutdown`].
    ///
    /// ```
    /// # use forebear_runtime::Request;
    /// let seven = Request::new(|| 7);
    /// assert_eq!(seven.submit().submit().wait()?, &7);
    /// # Ok::<(), forebear_runtime::WaitError>(())
    /// ```
    #[inline]
    pub fn submit(&self) -> &Self {
        // SAFETY: this handle.
        unsafe { wait::submit(self.header, wait::BY_CALL) };
        self
    }

    /// The value, waited for. Submits the request if need be.
    ///
    /// In a request this suspends; in a foreign thread it blocks. If the target has not started it may be run right here,
    /// on the caller's stack. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Failed`](WaitError::Failed) with the target's failure; [`TargetCancelled`](WaitError::TargetCancelled);
    /// [`CircularWait`](WaitError::CircularWait) if the target is the caller itself, or waits for it on the same stack.
    /// If there is no stack to go on with meanwhile, `Failed` with a [`StackError`](forebear_context::error::StackError).
    ///
    /// ```
    /// # use forebear_runtime::{Request, WaitError};
    /// let bad = Request::<u32>::new(|| panic!("no"));
    /// assert!(matches!(bad.wait(), Err(WaitError::Failed(failure)) if failure.is_panic()));
    /// ```
    #[inline]
    pub fn wait(&self) -> Result<&T, WaitError> {
        // SAFETY: this handle lasts as long as the borrow.
        unsafe { wait::until_over(self.header)? };
        self.get().ok_or_else(|| {
            // SAFETY: terminal, and this handle.
            unsafe { wait::refusal(self.header) }
        })
    }

    /// [`wait`](Self::wait)`().`[`or_unwind`](forebear_context::error::OrUnwind::or_unwind)`()`, in one word: for code
    /// that has no `Result` to return.
    ///
    /// Does not exist under `panic = "abort"`.
    ///
    /// # Panics
    ///
    /// Unwinds with the error that `wait` would return. No panic hook runs for it inside a request.
    ///
    /// ```
    /// # use forebear_runtime::Request;
    /// assert_eq!(*Request::new(|| 7).force(), 7);
    /// ```
    #[cfg(panic = "unwind")]
    #[inline]
    #[track_caller]
    pub fn force(&self) -> &T {
        match self.wait() {
            Ok(value) => value,
            Err(error) => forebear_context::error::internal::unwind_with(
                error.into(),
                forebear_context::context::in_request(),
            ),
        }
    }

    /// The value itself, waited for as by [`wait`](Self::wait).
    ///
    /// The fastest way to a value: what was spawned and not shared is run right here without a single atomic exchange.
    ///
    /// # Errors
    ///
    /// As `wait`; and [`Shared`](WaitError::Shared) if other handles exist when the request has ended.
    ///
    /// ```
    /// # use forebear_runtime::{Request, WaitError, spawn};
    /// assert_eq!(spawn(|| String::from("mine")).take()?, "mine");
    /// let shared = spawn(|| 1);
    /// let _other = shared.clone();
    /// assert!(matches!(shared.take(), Err(WaitError::Shared)));
    /// # Ok::<(), WaitError>(())
    /// ```
    #[inline(always)]
    pub fn take(self) -> Result<T, WaitError> {
        let header = self.into_raw();
        // SAFETY: the handle's count is ours.
        let h = unsafe { header.as_ref() };
        if let Some(strand) = strand::get()
            && ptr::eq(h.home.get(), strand.home.get())
            && let Some(worker) = strand.worker()
            && worker.post.attention.get() & OLDER == 0
            && strand.room() >= h.need()
            && h.word.claim_sole()
        {
            // W8: nobody else knows of it, by the claim.
            worker.list.remove(h);
            worker.direct.count();
            h.ran_on.store(strand.home.get().cast_mut(), Ordering::Relaxed);
            h.strand.store(ptr::from_ref(strand).cast_mut(), Ordering::Relaxed);
            let below = strand.request.replace(header.as_ptr());
            let shield = strand.context().shield().replace(0);
            let mut value = MaybeUninit::<T>::uninit();
            // SAFETY: W1; the value goes into this frame.
            let ending = unsafe { (h.vtable.call)(header, value.as_mut_ptr().cast()) };
            strand.context().shield().set(shield);
            strand.request.set(below);
            if ending.is_none() && h.word.is_still_sole() && h.children.get() == 0 {
                let scope = h.scope.get();
                // SAFETY: still nobody else knows of it: the header is ours to end, on the home it was made and ran on.
                unsafe { home::end_child(worker.home(), header) };
                // SAFETY: a scope waits for its jobs, and this one is over now.
                if let Some(scope) = unsafe { scope.as_ref() } {
                    scope.job_taken();
                }
                // SAFETY: no ending, so there is a value.
                return Ok(unsafe { value.assume_init() });
            }
            // SAFETY: claimed by us; the handle's count is ours.
            return unsafe { finish_taken(header, ending, value) };
        }
        // SAFETY: the handle's count is ours.
        unsafe { take_slowly(header) }
    }

    /// The value if the request has finished and this is the only handle; otherwise the handle comes back. Never waits.
    ///
    /// # Errors
    ///
    /// The handle.
    pub fn try_take(self) -> Result<T, Self> {
        let bits = self.header().word.load();
        if bits.life() == FINISHED && bits.handles() == 1 && self.header().has_value.get() {
            let header = self.into_raw();
            // SAFETY: terminal with a value, and ours is the only handle.
            return Ok(unsafe { take_value(header) });
        }
        Err(self)
    }

    /// The value if the request has finished. Never waits.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        if self.header().word.load().life() == FINISHED {
            // SAFETY: W2: finished, and while this handle is there nobody moves the value out.
            return Some(unsafe { Header::value::<T>(self.header).as_ref() });
        }
        None
    }

    /// How the request ended; `None` while it has not. Never waits.
    ///
    /// ```
    /// # use forebear_runtime::{Outcome, Request};
    /// let seven = Request::ready(7);
    /// assert!(matches!(seven.outcome(), Some(Outcome::Finished(7))));
    /// ```
    pub fn outcome(&self) -> Option<Outcome<'_, T>> {
        let h = self.header();
        match h.word.load().life() {
            FINISHED => self.get().map(Outcome::Finished),
            FAILED => {
                h.word.mark_seen();
                h.failure().map(Outcome::Failed)
            }
            CANCELLED => {
                let reason = h.side().and_then(|side| side.reason.get());
                Some(Outcome::Cancelled(reason.unwrap_or(CancelReason::Asked)))
            }
            _ => None,
        }
    }

    /// Whether the request has ended, however.
    pub fn is_done(&self) -> bool {
        self.header().word.load().is_terminal()
    }

    /// What the request is doing: a snapshot, out of date as soon as it is there.
    pub fn state(&self) -> State {
        crate::any::state_of(self.header())
    }

    /// The name it was given, else the type of its callable.
    pub fn name(&self) -> &str {
        self.header().name()
    }

    /// A number that no other request of this process has.
    pub fn id(&self) -> RequestId {
        crate::any::id_of(self.header())
    }

    /// The number of the worker it runs on, for life; `None` before it has started and in foreign threads.
    pub fn assigned_worker(&self) -> Option<usize> {
        crate::any::worker_of(self.header())
    }

    /// The untyped handle.
    pub fn any(&self) -> AnyRequest {
        // SAFETY: this handle's count.
        unsafe { AnyRequest::linked(self.header) }
    }

    /// Drops the value as soon as nobody else can reach it, and keeps an untyped handle.
    ///
    /// ```
    /// # use forebear_runtime::Request;
    /// let big = Request::new(|| vec![0; 1 << 20]);
    /// big.wait()?;
    /// let rest = big.clean();
    /// assert!(rest.is_done());
    /// # Ok::<(), forebear_runtime::WaitError>(())
    /// ```
    pub fn clean(self) -> AnyRequest {
        self.any()
    }
}

/// The end of a fused take that was not alone after all, or whose callable did not return a value.
#[cold]
#[inline(never)]
unsafe fn finish_taken<T>(
    header: NonNull<Header>,
    ending: Option<Box<Ending>>,
    value: MaybeUninit<T>,
) -> Result<T, WaitError> {
    // SAFETY: W1: claimed by the caller.
    unsafe {
        match ending {
            None => {
                // The value stays in place until it is known who else may look.
                Header::value::<T>(header).write(value.assume_init());
                header.as_ref().has_value.set(true);
                run::finish(header, FINISHED, false);
            }
            Some(ending) => run::fail(header, *ending, false),
        }
        take_over(header)
    }
}

#[cold]
#[inline(never)]
unsafe fn take_slowly<T>(header: NonNull<Header>) -> Result<T, WaitError> {
    // SAFETY: the caller's handle.
    if let Err(error) = unsafe { wait::until_over(header) } {
        // SAFETY: as above; it is given back.
        drop(unsafe { Request::<T>::from_raw(header) });
        return Err(error);
    }
    // SAFETY: as above.
    unsafe { take_over(header) }
}

/// The answer of a take whose target is over.
unsafe fn take_over<T>(header: NonNull<Header>) -> Result<T, WaitError> {
    // SAFETY: the caller's handle.
    let bits = unsafe { header.as_ref() }.word.load();
    let answer = if bits.life() != FINISHED {
        // SAFETY: terminal.
        Err(unsafe { wait::refusal(header) })
    } else if bits.handles() > 1 {
        Err(WaitError::Shared)
    } else {
        // SAFETY: terminal with a value, and ours is the only handle (acquired: the others' reads are done).
        return Ok(unsafe { take_value(header) });
    };
    // SAFETY: the handle is given back.
    drop(unsafe { Request::<T>::from_raw(header) });
    answer
}

/// Moves the value out and gives the handle back.
unsafe fn take_value<T>(header: NonNull<Header>) -> T {
    // SAFETY: W2: the only handle, by value.
    unsafe {
        header.as_ref().has_value.set(false);
        let value = Header::value::<T>(header).read();
        drop(Request::<T>::from_raw(header));
        value
    }
}

impl<T> Clone for Request<T> {
    #[inline]
    fn clone(&self) -> Self {
        self.header().word.add_handle();
        Request { header: self.header, value: PhantomData }
    }
}

impl<T> Drop for Request<T> {
    #[inline]
    fn drop(&mut self) {
        let header = self.header;
        let h = self.header();
        let bits = h.word.load();
        // Spawned and let go: nobody else knows of it yet, so a plain store will do (W8), if the private list it stands
        // in is this worker's.
        if bits.0 == SPAWNED && ptr::eq(strand::current_home(), h.home.get()) && h.word.drop_sole() {
            return;
        }
        // Finished, and nobody else is left: what others did with it was seen with the load (W7).
        if bits.life() == FINISHED && bits.is_sole_handle() {
            // SAFETY: W2, W4: the last count of all is ours.
            unsafe { end_alone::<T>(header) };
            return;
        }
        match self.header().word.drop_handle() {
            HandleDrop::NotLast | HandleDrop::Running => {}
            // SAFETY: each by what the drop left us with.
            last => unsafe { drop_last(header, last) },
        }
    }
}

/// The end of a finished request that nobody else knows of.
///
/// # Safety
///
/// W2, W4.
#[inline(always)]
unsafe fn end_alone<T>(header: NonNull<Header>) {
    // SAFETY: by contract.
    unsafe {
        let h = header.as_ref();
        if const { std::mem::needs_drop::<T>() } {
            cell::drop_value_contained(header);
        }
        let home = h.home.get();
        let ran_on = h.ran_on.load(Ordering::Relaxed).cast_const();
        if ptr::eq(strand::current_home(), home)
            && ptr::eq(ran_on, home)
            && h.children.get() == 0
            && !home.is_null()
        {
            home::end_child(&*home, header);
        } else {
            home::end(header);
        }
    }
}

#[cold]
#[inline(never)]
unsafe fn drop_last(header: NonNull<Header>, last: HandleDrop) {
    // SAFETY: by the answer of `drop_handle`.
    unsafe {
        if last == HandleDrop::Unstarted {
            // Its callable is `'static`: only such are ever unsubmitted.
            cell::end_unstarted(header);
            return;
        }
        let h = header.as_ref();
        let bits = h.word.load();
        if bits.life() == FAILED
            && !bits.has(SEEN)
            && h.scope.get().is_null()
            && let Some(failure) = h.failure()
        {
            hooks::unseen_failure(h.home.get().as_ref().map(|home| home.shared()), failure);
        }
        cell::drop_value_contained(header);
        if last == HandleDrop::TerminalAlone || h.word.release_link() {
            home::end(header);
        }
    }
}

impl<T> fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::any::describe(self.header(), "Request", f)
    }
}

/// How a request ended.
#[derive(Debug)]
pub enum Outcome<'a, T> {
    /// With this value.
    Finished(&'a T),
    /// With this failure.
    Failed(&'a Failure),
    /// Cancelled, for this reason.
    Cancelled(CancelReason),
}

impl<T> Clone for Outcome<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Outcome<'_, T> {}

/// Makes a request and submits it: faster than the two steps, since nobody else has it yet. The handle may be dropped.
///
/// Inside a request, what was spawned stays private to the worker until somebody is hungry.
///
/// ```
/// use forebear_runtime::spawn;
///
/// fn fib(n: u64) -> u64 {
///     if n < 2 {
///         return n;
///     }
///     let a = spawn(move || fib(n - 1));
///     fib(n - 2) + a.take().unwrap()
/// }
/// assert_eq!(spawn(|| fib(15)).take().ok(), Some(610));
/// ```
#[inline(always)]
pub fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Request<T> {
    // SAFETY: the callable is `'static`.
    unsafe { spawn_with(Plain(f), ptr::null()) }
}

/// As [`spawn`], for a callable that may return an error.
///
/// ```
/// # use forebear_runtime::try_spawn;
/// let parsed = try_spawn(|| Ok("12".parse::<u32>()?));
/// assert_eq!(parsed.take().ok(), Some(12));
/// ```
#[inline(always)]
pub fn try_spawn<T: Send + 'static>(f: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Request<T> {
    // SAFETY: the callable is `'static`.
    unsafe { spawn_with(Fallible(f), ptr::null()) }
}

/// The common way of all that spawns.
///
/// # Safety
///
/// The callable may borrow only what outlives its run or drop: the caller waits.
#[inline(always)]
pub(crate) unsafe fn spawn_with<T, C: Callable<T>>(
    callable: C,
    scope: *const crate::scope::ScopeCore,
) -> Request<T> {
    if const { size_of::<C>() > BOXED_ABOVE || align_of::<C>() > 16 } {
        // SAFETY: by contract.
        return unsafe { spawn_small(Boxed(Box::new(callable)), scope) };
    }
    // SAFETY: by contract.
    unsafe { spawn_small(callable, scope) }
}

/// The common way of all that makes a request without submitting it.
///
/// # Safety
///
/// The callable is `'static`.
#[inline]
unsafe fn new_with<T, C: Callable<T> + 'static>(callable: C) -> Request<T> {
    if const { size_of::<C>() <= BOXED_ABOVE && align_of::<C>() <= 16 }
        && let Some(strand) = strand::get()
        && let Some(worker) = strand.worker()
        && let Some(maker) = strand.request()
        // SAFETY: M3.
        && let Some(home) = unsafe { strand.home.get().as_ref() }
    {
        let birth = Birth {
            word: word::NEW | HANDLE,
            lineage: origin::child_of(maker),
            need_pages: worker.need_pages,
        };
        // SAFETY: M1: this worker's home; the one handle of the word.
        return unsafe { Request::from_raw(cell::make(home, birth, callable)) };
    }
    create(&RequestBuilder::default(), callable, None)
}

#[inline(always)]
unsafe fn spawn_small<T, C: Callable<T>>(callable: C, scope: *const crate::scope::ScopeCore) -> Request<T> {
    if let Some(strand) = strand::get()
        && let Some(worker) = strand.worker()
        && let Some(maker) = strand.request()
        // SAFETY: M3.
        && let Some(home) = unsafe { strand.home.get().as_ref() }
    {
        let lineage = origin::child_of(maker);
        let key = lineage.key();
        let birth = Birth { word: SPAWNED, lineage, need_pages: worker.need_pages };
        // SAFETY: M1: this worker's home.
        let header = unsafe { cell::make(home, birth, callable) };
        // SAFETY: just made.
        let h = unsafe { header.as_ref() };
        h.scope.set(scope);
        worker.list.insert(h);
        worker.note_inserted(key);
        if worker.post.attention.get() & HUNGRY != 0 {
            worker.feed();
        }
        // SAFETY: the one handle of `SPAWNED`.
        return unsafe { Request::from_raw(header) };
    }
    // SAFETY: by contract.
    unsafe { spawn_outside(callable, scope) }
}

#[cold]
#[inline(never)]
unsafe fn spawn_outside<T, C: Callable<T>>(callable: C, scope: *const crate::scope::ScopeCore) -> Request<T> {
    let origin = origin::here(None);
    let lineage = origin.lineage(Rank::default());
    let word = word::QUEUED | word::SUBMITTED | HANDLE | word::LINK;
    let birth = Birth { word, lineage, need_pages: origin.shared.default_need };
    // SAFETY: M1: the home is this thread's.
    let header = unsafe { cell::make(origin.home, birth, callable) };
    // SAFETY: just made; the entry's link is in the word.
    unsafe {
        header.as_ref().scope.set(scope);
        wait::push_root(header);
        Request::from_raw(header)
    }
}

/// Lets everything else that is ready on this worker go first.
///
/// Suspends. In a foreign thread it yields the thread's time slice.
///
/// # Errors
///
/// [`Cancelled`](forebear_context::error::Cancelled) if the current request was cancelled.
///
/// ```
/// # use forebear_runtime::{spawn, yield_now};
/// spawn(|| yield_now()).take()??;
/// # Ok::<(), forebear_runtime::Error>(())
/// ```
#[inline(always)]
pub fn yield_now() -> Result<(), forebear_context::error::Cancelled> {
    let Some(strand) = strand::get() else {
        std::thread::yield_now();
        return Ok(());
    };
    let Some(worker) = strand.worker() else {
        std::thread::yield_now();
        return Ok(());
    };
    let next = match worker.rotate(strand) {
        Ok(next) => next,
        Err(()) => worker.leave_yielding(strand),
    };
    if let Some(next) = next {
        // SAFETY: K3; F2: we are on the strand's stack. The yielder stands in the ready queue, and `next` does not.
        unsafe { strand.context().fiber().leave(Some(next.as_ref().context())) };
    }
    Ok(())
}

/// How many requests can run at once: the number of workers of the current runtime. A sizing hint.
///
/// ```
/// assert!(forebear_runtime::parallelism().get() >= 1);
/// ```
pub fn parallelism() -> std::num::NonZero<usize> {
    let workers = match crate::foreign::strand() {
        Some(strand) => origin::current_runtime(strand).workers().len(),
        None => 1,
    };
    std::num::NonZero::new(workers).unwrap_or(std::num::NonZero::<usize>::MIN)
}

const _: () = {
    // `Request` is one pointer, also in an `Option`.
    assert!(size_of::<Option<Request<u64>>>() == size_of::<usize>());
};
