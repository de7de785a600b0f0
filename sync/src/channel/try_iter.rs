//! Iteration over the items that are in the channel, without waiting.

use super::Receiver;

/// The items that are in the channel, one by one. Never waits. See [`Receiver::try_iter`].
///
/// ```
/// use forebear::channel::unbounded;
///
/// let (sender, receiver) = unbounded();
/// (1..=3).for_each(|n| sender.send(n).unwrap());
/// let mut items = receiver.try_iter();
/// assert_eq!(items.by_ref().count(), 3);
/// assert_eq!(items.next(), None); // more may still arrive
/// ```
#[derive(Debug)]
pub struct TryIter<'a, T> {
    receiver: &'a Receiver<T>,
}

impl<T> Receiver<T> {
    /// The items that are in the channel. It ends when there is none, for the moment or for good.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// ```
    /// let (sender, receiver) = forebear::channel::unbounded();
    /// (1..4).for_each(|n| sender.send(n).unwrap());
    /// assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
    /// assert_eq!(receiver.try_iter().next(), None);
    /// ```
    #[must_use]
    pub fn try_iter(&self) -> TryIter<'_, T> {
        TryIter { receiver: self }
    }
}

impl<T> Iterator for TryIter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.receiver.try_recv().ok()
    }
}
