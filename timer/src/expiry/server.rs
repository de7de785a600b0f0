//! What a server knows: which timers run, and which have expired.

use std::time::Instant;

use super::{Timer, TimerError, TimerRequest};

/// Timers of workers, each with those of them that were found.
///
/// ```
/// use std::time::Instant;
/// use forebear::timer::{Timer, TimerError, TimerRequest, TimerServer, TimerTable, TimersOf};
///
/// let mut table = TimerTable::new();
/// table.register(vec![TimerRequest::acquire(7, Timer::new("load", Instant::now()))])?;
/// let dropped: TimersOf<u32> = table.clear(&[7])?;
/// assert_eq!((dropped[0].0, dropped[0].1[0].scope.name()), (7, "load"));
/// # Ok::<(), TimerError>(())
/// ```
pub type TimersOf<W> = Vec<(W, Vec<Timer>)>;

/// Keeps the timers of all workers. [`TimerTable`](super::TimerTable) does so in memory, and is what a [`Watchdog`](super::Watchdog) has
/// unless it is given another.
///
/// ```
/// use std::time::Instant;
/// use forebear::timer::{TimerError, TimerRequest, TimerServer, TimerTable, TimersOf};
///
/// /// A table that counts the requests.
/// #[derive(Default)]
/// struct Counting {
///     table: TimerTable<u32>,
///     requests: usize,
/// }
///
/// impl TimerServer<u32> for Counting {
///     fn register(&mut self, requests: Vec<TimerRequest<u32>>) -> Result<(), TimerError> {
///         self.requests += requests.len();
///         self.table.register(requests)
///     }
///     fn clear(&mut self, workers: &[u32]) -> Result<TimersOf<u32>, TimerError> {
///         self.table.clear(workers)
///     }
///     fn expired(&mut self, now: Instant) -> Result<TimersOf<u32>, TimerError> {
///         self.table.expired(now)
///     }
///     fn next_deadline(&mut self, looked: Instant) -> Option<Instant> {
///         self.table.next_deadline(looked)
///     }
/// }
///
/// let mut server = Counting::default();
/// server.register(vec![TimerRequest::release(7, "load")])?;
/// assert_eq!((server.requests, server.next_deadline(Instant::now())), (1, None));
/// # Ok::<(), TimerError>(())
/// ```
pub trait TimerServer<W>: Send + 'static {
    /// Starts, moves and stops timers, in the order of the requests. To stop one that is not there is nothing.
    ///
    /// [`Demand::Leave`](super::Demand::Leave) does not come here: for it [`clear`](Self::clear) is called.
    ///
    /// # Errors
    ///
    /// The round ends, the hooks get an event, and the server continues with the next round.
    fn register(&mut self, requests: Vec<TimerRequest<W>>) -> Result<(), TimerError>;

    /// Drops all timers of these workers, and says which they were.
    ///
    /// # Errors
    ///
    /// As for [`register`](Self::register).
    fn clear(&mut self, workers: &[W]) -> Result<TimersOf<W>, TimerError>;

    /// For each worker that has any, its timers that have expired: those whose deadline is `now` or earlier. They stay, and are answered
    /// again, until they are stopped, moved or cleared.
    ///
    /// # Errors
    ///
    /// As for [`register`](Self::register).
    fn expired(&mut self, now: Instant) -> Result<TimersOf<W>, TimerError>;

    /// The earliest deadline after `looked`, the time for which [`expired`](Self::expired) was asked last; `None` if there is none. To answer with
    /// an earlier one is the same as `None`; with one that is nobody's, a turn for nothing.
    fn next_deadline(&mut self, looked: Instant) -> Option<Instant>;
}
