//! What a wait is for: one byte in its context, which says how the wait may end and what a dump shows.

use std::fmt;

/// What a request or a thread waits for; shown in dumps.
///
/// ```
/// use forebear::dump::Reason;
/// use forebear::sync::Event;
/// use forebear::{Request, Runtime};
///
/// let runtime = Runtime::builder().seeded(1).build()?;
/// let reason = runtime.run({
///     let runtime = runtime.clone();
///     move || {
///         static GO: Event = Event::new();
///         let waits = Request::builder().name("waits").spawn(|| GO.wait().is_ok());
///         let seen = loop {
///             forebear::yield_now().unwrap();
///             if let Some(wait) = runtime.dump().find("waits").and_then(|found| found.waits_for.clone()) {
///                 break wait.reason;
///             }
///         };
///         GO.set();
///         waits.take().map(|_| seen)
///     }
/// })?;
/// assert_eq!(reason, Reason::Event);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum Reason {
    /// Not waiting.
    #[default]
    None = 0,
    /// For a request to end.
    Request = 1,
    /// For the second branch of a join to end elsewhere.
    Arm = 2,
    /// For all requests of a scope to end.
    Scope = 3,
    /// It let others go first.
    Yield = 4,
    /// For a member of a pool to end.
    Pool = 5,
    /// For a runtime to end.
    Runtime = 6,
    /// For a lock, come what may.
    Lock = 7,
    /// For a lock, unless it is cancelled.
    LockOrCancelled = 8,
    /// For a condition to be notified.
    Condition = 9,
    /// For permits of a semaphore.
    Permits = 10,
    /// For the others at a barrier.
    Barrier = 11,
    /// For an event.
    Event = 12,
    /// For a value that somebody else is making.
    Once = 13,
    /// For something to come out of a channel.
    Receive = 14,
    /// For room in a channel.
    Send = 15,
    /// For the first of several.
    Select = 16,
    /// For a time to come.
    Sleep = 17,
    /// For a future to be ready.
    Future = 18,
    /// For a blocking call that another thread makes.
    Blocking = 19,
    /// For a thread that begins its blocking call: all of them are in calls, and no more may be started.
    BlockingThread = 20,
}

impl Reason {
    /// Whether a cancel of its request ends such a wait.
    ///
    /// ```
    /// use forebear::dump::Reason;
    ///
    /// assert!(Reason::Sleep.is_cancellable());
    /// assert!(!Reason::Lock.is_cancellable());
    /// ```
    #[must_use]
    pub fn is_cancellable(self) -> bool {
        use Reason::*;
        match self {
            None | Arm | Scope | Yield | Runtime | Lock | Once => false,
            Request | Pool | LockOrCancelled | Condition | Permits | Barrier | Event | Receive | Send
            | Select | Sleep | Future | Blocking | BlockingThread => true,
        }
    }

    /// Whether the target of such a wait is an [`OwnerWait`](super::OwnerWait). For the crates of this workspace.
    #[doc(hidden)]
    #[must_use]
    pub fn has_owner(self) -> bool {
        matches!(self, Reason::Lock | Reason::LockOrCancelled | Reason::Once)
    }

    pub(super) fn from_u8(value: u8) -> Reason {
        use Reason::*;
        const ALL: [Reason; 21] = [
            None,
            Request,
            Arm,
            Scope,
            Yield,
            Pool,
            Runtime,
            Lock,
            LockOrCancelled,
            Condition,
            Permits,
            Barrier,
            Event,
            Once,
            Receive,
            Send,
            Select,
            Sleep,
            Future,
            Blocking,
            BlockingThread,
        ];
        ALL.get(usize::from(value)).copied().unwrap_or_default()
    }
}

/// What is waited for, in words: `an event`.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Reason::None => "nothing",
            Reason::Request => "a request",
            Reason::Arm => "the other branch of its join",
            Reason::Scope => "the jobs of its scope",
            Reason::Yield => "its turn",
            Reason::Pool => "the members of its pool",
            Reason::Runtime => "the end of a runtime",
            Reason::Lock | Reason::LockOrCancelled => "a lock",
            Reason::Condition => "a condition",
            Reason::Permits => "permits of a semaphore",
            Reason::Barrier => "the others at a barrier",
            Reason::Event => "an event",
            Reason::Once => "a value that another request or thread makes",
            Reason::Receive => "an item from a channel",
            Reason::Send => "room in a channel",
            Reason::Select => "the first of several",
            Reason::Sleep => "a time to come",
            Reason::Future => "a future",
            Reason::Blocking => "a blocking call",
            Reason::BlockingThread => "a thread for a blocking call, as all are in calls",
        })
    }
}
