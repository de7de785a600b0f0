//! [`RequestBuilder`]: what a request is to be, apart from what it runs. [`make`] makes it.

use std::borrow::Cow;
use std::mem::ManuallyDrop;
use std::num::NonZero;
use std::panic::Location;
use std::sync::atomic::AtomicI64 as Counter; // not modelled: a counter, in a static, which loom has none of
use std::time::{Duration, Instant};

use forebear_context::error::Error;
#[cfg(doc)]
use forebear_context::error::{CancelReason, StackError};
use forebear_context::lineage::Priority;
use forebear_context::shim::Arc;
use forebear_context::shim::atomic::Ordering;

use self::make::{create_after, spawn_built};
use crate::api::origin::Rank;
use crate::api::request::Request;
use crate::api::runtime::Runtime;
use crate::api::scope::Scope;
use crate::api::then::dependent::HandleList;
use crate::record::cell::{Fallible, Plain};
use crate::shared::Shared;
use crate::state::estimated_clock;

pub(crate) mod make;

/// A description of requests to make. One description can make many.
///
/// ```
/// use forebear::{Priority, Request};
///
/// let tile = Request::builder().name("tile 3/12").priority(Priority::BACKGROUND).stack_size(128 << 10);
/// assert_eq!(tile.build(|| 5).take()?, 5);
/// # Ok::<(), forebear::WaitError>(())
/// ```
#[must_use = "a description makes nothing until `build` or `spawn`"]
#[derive(Clone, Debug, Default)]
pub struct RequestBuilder {
    name: Option<Cow<'static, str>>,
    rank: Rank,
    timeout: Option<Duration>,
    stack_size: Option<NonZero<usize>>,
    own_stack: bool,
    hint: Option<OrderHint>,
    on: Option<Arc<Shared>>,
    after: AfterList,
}

/// See [`RequestBuilder::order_hint`].
#[derive(Clone, Copy, Debug)]
enum OrderHint {
    Given(i64),
    Newest,
}

impl OrderHint {
    /// For one request.
    #[cold]
    fn draw(self) -> i64 {
        static NEWEST: Counter = Counter::new(0);
        match self {
            OrderHint::Given(hint) => hint,
            OrderHint::Newest => NEWEST.fetch_sub(1, Ordering::Relaxed),
        }
    }
}

/// What requests are after, if anything: one pointer, so that a description that says nothing of it is copied and dropped as fast as if there were no such
/// thing.
#[derive(Clone, Debug, Default)]
struct AfterList(ManuallyDrop<Option<Box<HandleList>>>);

impl AfterList {
    fn is_any(&self) -> bool {
        self.0.is_some()
    }

    #[cold]
    #[inline(never)]
    fn let_go(&mut self) {
        // SAFETY: by the drop alone, once.
        unsafe { ManuallyDrop::drop(&mut self.0) }
    }
}

impl Drop for AfterList {
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_any() {
            self.let_go();
        }
    }
}

impl RequestBuilder {
    /// The name, for errors, dumps and the message of a stack overflow. A literal costs no allocation of its own.
    pub fn name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How urgent it is; smaller goes first. Inside another request this makes it a root for the order: its own number
    /// counts, not its ancestors'. For all else it remains a child of the request it is made in.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.rank.priority = Some(priority);
        self
    }

    /// For how long it may take, from when it is made, on the clock of its runtime: then it is aborted, with
    /// [`CancelReason::Deadline`], also while others wait for it. That is a [`deadline`](Self::deadline); of two the nearer one counts. A
    /// duration that an `Instant` cannot express is no limit. A timeout of zero ends it at once, and its callable is not called.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::{CancelReason, Request, WaitError, yield_now};
    ///
    /// let endless = Request::builder().timeout(Duration::from_millis(5)).spawn(|| while yield_now().is_ok() {});
    /// assert!(matches!(endless.wait(), Err(WaitError::TargetCancelled(CancelReason::Deadline))));
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The time by which it has to be over, on the clock of its runtime (`forebear::time::now()`). Then it is aborted, submitted or not,
    /// with [`CancelReason::Deadline`], also while others wait for it. A deadline that is past when the request is made ends it at once.
    ///
    /// The abort spreads as any does: to what the request has made, except to what a request or thread that is not cancelled waits for. So
    /// children inherit the deadline, also those that outlive their parent; of several the nearest counts. A
    /// [`detached`](Self::detached) request has no parent to inherit from. A [`shield`](fn@crate::shield) holds the abort back.
    ///
    /// A deadline is part of the order: among roots of one priority those with a deadline go first, the nearest before all. A child's
    /// deadline does not order.
    ///
    /// While it counts, a wait inside does not run its target on its own stack, unless that has to be over by then, too.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::time::now;
    /// use forebear::{CancelReason, Request, WaitError};
    ///
    /// let late = Request::builder().deadline(now() - Duration::from_millis(1)).spawn(|| 7);
    /// assert!(matches!(late.wait(), Err(WaitError::TargetCancelled(CancelReason::Deadline))));
    /// ```
    pub fn deadline(mut self, at: Instant) -> Self {
        self.rank.deadline = Some(at);
        self
    }

    /// How many bytes of stack it is guaranteed, wherever it runs. The largest is 16 MiB less 16 KiB; a request that asks for more
    /// fails with [`StackError::TooLarge`].
    ///
    /// Values of some hundred kilobytes need a larger stack in builds without optimisation: see
    /// [`RuntimeBuilder::stack_size`](crate::RuntimeBuilder::stack_size).
    pub fn stack_size(mut self, bytes: usize) -> Self {
        // 0 asks for nothing, and so does 1.
        self.stack_size = NonZero::new(bytes.max(1));
        self
    }

    /// It never runs on a waiter's stack.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let seven = Request::builder().own_stack().build(|| 7);
    /// assert_eq!(seven.take()?, 7); // on another stack than the caller's
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    pub fn own_stack(mut self) -> Self {
        self.own_stack = true;
        self
    }

    /// It has no parent: it is a root of its own, and the end or the cancel of its creator does not reach it.
    ///
    /// ```
    /// use forebear::{Request, spawn};
    ///
    /// let has_parent = spawn(|| {
    ///     let job = Request::builder().detached();
    ///     job.spawn(|| Request::current().unwrap().parent().is_some()).take().unwrap()
    /// });
    /// assert!(!has_parent.take()?);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    pub fn detached(mut self) -> Self {
        self.rank.detached = true;
        self
    }

    /// Where it stands, while it waits to be started, among those that have such a hint too: the smaller goes first, and of equal ones the older. It
    /// is compared with the hints of its siblings; a root's, and that of a request with a [`priority`](Self::priority), with those of roots of
    /// the same priority and [`deadline`](Self::deadline).
    ///
    /// Only their order among each other changes. The places that they share are those of their ages, so requests without a hint go neither
    /// earlier nor later for it. Once a request has started, its age decides. A wait may run its target at any time, whatever has a
    /// smaller hint. A runtime without workers runs what is submitted there and then, so only what becomes ready at once is ordered there; the seeded
    /// mode takes any order. A [`RequestPool`](crate::RequestPool) begins members in the order of adding; a hint counts for an included request
    /// that it has admitted.
    ///
    /// [`Request::set_order_hint`] changes it.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// // What is near to where the user looks goes first.
    /// let tiles: Vec<_> = [7, 2, 5]
    ///     .map(|distance| Request::builder().order_hint(distance).spawn(move || distance))
    ///     .into();
    /// // The user moves.
    /// for (tile, distance) in tiles.iter().zip([1, 4, 3]) {
    ///     let _was_waiting: bool = tile.set_order_hint(distance);
    /// }
    /// # for tile in &tiles { tile.wait().unwrap(); }
    /// ```
    pub fn order_hint(mut self, hint: i64) -> Self {
        self.hint = Some(OrderHint::Given(hint));
        self
    }

    /// The newest goes first among those that say so: an [`order_hint`](Self::order_hint) that is smaller for each request made. The numbers
    /// count down from 0 in this process.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let preview = Request::builder().name("preview").newest_first();
    /// let previews: Vec<_> = (0..3).map(|n| preview.spawn(move || n)).collect();
    /// # for preview in &previews { preview.wait().unwrap(); }
    /// ```
    pub fn newest_first(mut self) -> Self {
        self.hint = Some(OrderHint::Newest);
        self
    }

    /// It belongs to `runtime`, not to the runtime that is current where it is made.
    ///
    /// ```
    /// use forebear::{Request, Runtime, parallelism};
    ///
    /// let runtime = Runtime::builder().workers(3).build()?;
    /// let count = Request::builder().on(&runtime).spawn(|| parallelism().get());
    /// assert_eq!(count.take()?, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on(mut self, runtime: &Runtime) -> Self {
        self.on = Some(runtime.shared().clone());
        self
    }

    /// What the requests are after, if anything.
    pub(crate) fn dependencies(&self) -> Option<&HandleList> {
        self.after.0.as_deref()
    }

    /// The same, for more of them.
    #[cold]
    pub(crate) fn dependencies_mut(&mut self) -> &mut HandleList {
        self.after.0.get_or_insert_default()
    }

    /// A request for what `f` returns; see [`Request::new`].
    #[must_use = "a request does nothing until it is submitted or waited for"]
    #[track_caller]
    pub fn build<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Request<T> {
        create_after(self, Plain(f), Some(Location::caller()))
    }

    /// A request for what `f` returns, unless that is an error; see [`Request::try_new`].
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let parse = Request::builder().name("parse").try_build(|| Ok("12".parse::<u32>()?));
    /// assert_eq!(parse.take()?, 12);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use = "a request does nothing until it is submitted or waited for"]
    #[track_caller]
    pub fn try_build<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Request<T> {
        create_after(self, Fallible(f), Some(Location::caller()))
    }

    /// As [`build`](Self::build), submitted.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let sum = Request::builder().name("sum").spawn(|| (1..=4).sum::<u32>());
    /// assert_eq!(sum.take()?, 10);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[track_caller]
    pub fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Request<T> {
        spawn_built(self, Plain(f), Location::caller())
    }

    /// As [`try_build`](Self::try_build), submitted.
    ///
    /// ```
    /// use forebear::{Request, WaitError};
    ///
    /// let parse = Request::builder().name("parse").try_spawn(|| Ok("x".parse::<u32>()?));
    /// let Err(WaitError::Failed(failure)) = parse.take() else { panic!() };
    /// assert_eq!(failure.request(), "parse");
    /// ```
    #[track_caller]
    pub fn try_spawn<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Request<T> {
        spawn_built(self, Fallible(f), Location::caller())
    }

    /// As [`Scope::spawn`].
    ///
    /// ```
    /// use forebear::{Request, scope};
    ///
    /// let words = ["a", "bb", "ccc"];
    /// let count = scope(|s| Request::builder().name("count").spawn_in(s, || words.len()));
    /// assert_eq!(count.take()?, 3);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    pub fn spawn_in<'scope, T: Send + 'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        f: impl FnOnce() -> T + Send + 'scope,
    ) -> Request<T> {
        scope.spawn_built(self, Plain(f))
    }

    /// As [`Scope::try_spawn`].
    ///
    /// ```
    /// use forebear::{Request, try_scope};
    ///
    /// let text = String::from("12");
    /// let number = try_scope(|s| {
    ///     let parse = Request::builder().name("parse").try_spawn_in(s, || Ok(text.parse::<u32>()?));
    ///     Ok(parse.take()?)
    /// })?;
    /// assert_eq!(number, 12);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    pub fn try_spawn_in<'scope, T: Send + 'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        f: impl FnOnce() -> Result<T, Error> + Send + 'scope,
    ) -> Request<T> {
        scope.spawn_built(self, Fallible(f))
    }
}

impl RequestBuilder {
    /// Whether it says nothing but a name and a time-out that is no matter of microseconds.
    #[inline]
    fn is_common(&self) -> bool {
        let Rank { priority, detached, deadline } = self.rank;
        priority.is_none()
            && !detached
            && deadline.is_none()
            && self.stack_size.is_none()
            && !self.own_stack
            && self.hint.is_none()
            && self.on.is_none()
            && !self.after.is_any()
            && self.timeout.is_none_or(|timeout| timeout >= estimated_clock::SHORT)
    }
}
