//! Receiving as iteration that waits. A cancel ends it by an unwind, so it does not exist where panics abort.

use std::iter::FusedIterator;

use forebear_context::context::in_request;
use forebear_context::error::internal::unwind_with;

use super::{Receiver, RecvError};

/// The items as they arrive, until there is no sender any more. See [`Receiver::iter`].
///
/// ```
/// use forebear::channel::unbounded;
///
/// let (sender, receiver) = unbounded();
/// (1..=3).for_each(|n| sender.send(n).unwrap());
/// drop(sender);
/// let mut items = receiver.iter();
/// assert_eq!(items.next(), Some(1));
/// assert_eq!(items.collect::<Vec<_>>(), [2, 3]);
/// ```
#[derive(Debug)]
pub struct Iter<'a, T> {
    receiver: &'a Receiver<T>,
}

/// The items as they arrive, until there is no sender any more; it owns the [`Receiver`].
///
/// ```
/// use forebear::channel::unbounded;
///
/// let (sender, receiver) = unbounded();
/// (1..=3).for_each(|n| sender.send(n).unwrap());
/// drop(sender);
/// for (at, item) in receiver.into_iter().enumerate() {
///     assert_eq!(item, at + 1);
/// }
/// ```
#[derive(Debug)]
pub struct IntoIter<T> {
    receiver: Receiver<T>,
}

impl<T> Receiver<T> {
    /// The items as they arrive. It ends when the channel is empty and there is no sender any more.
    ///
    /// Suspends. A cancellation point: in a cancelled request the next step unwinds, since a silent end would look like the end
    /// of the items.
    ///
    /// Does not exist under `panic = "abort"`: `while let Ok(item) = receiver.recv()` does the same.
    ///
    /// ```
    /// let (sender, receiver) = forebear::channel::bounded(1);
    /// std::thread::spawn(move || (1..4).try_for_each(|n| sender.send(n)));
    /// assert_eq!(receiver.iter().sum::<u32>(), 6);
    /// ```
    #[must_use]
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { receiver: self }
    }
}

#[inline(always)]
#[track_caller]
fn next<T>(receiver: &Receiver<T>) -> Option<T> {
    match receiver.recv() {
        Ok(item) => Some(item),
        Err(RecvError::Disconnected) => None,
        Err(cancelled) => unwind_with(cancelled.into(), in_request()),
    }
}

impl<T> Iterator for Iter<'_, T> {
    type Item = T;

    #[track_caller]
    fn next(&mut self) -> Option<T> {
        next(self.receiver)
    }
}

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    #[track_caller]
    fn next(&mut self) -> Option<T> {
        next(&self.receiver)
    }
}

impl<T> FusedIterator for Iter<'_, T> {}
impl<T> FusedIterator for IntoIter<T> {}

impl<'a, T> IntoIterator for &'a Receiver<T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        IntoIter { receiver: self }
    }
}
