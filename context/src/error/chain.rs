//! Walking from an error to its causes, in one place, so that every type here answers alike.

use std::error::Error as StdError;
use std::fmt;
use std::iter::FusedIterator;

use super::cancelled::Mark;
use super::{Cancelled, Cycle, Failure, WaitError};

/// An error and its sources, outermost first. From [`Error::chain`](super::Error::chain) and
/// [`Failure::chain`](super::Failure::chain).
///
/// A [`Cancelled`] ends the chain. It is shown also where a wrapper passed on only its source. An error may name itself as its source, so the
/// chain ends after 1,000 links at most.
///
/// ```
/// use forebear::{Chain, Error};
///
/// let error = Error::from("x".parse::<u32>().unwrap_err());
/// let chain: Chain<'_> = error.chain();
/// assert_eq!(chain.clone().count(), 1);
/// assert_eq!(chain.to_string(), "invalid digit found in string");
/// ```
#[derive(Debug, Clone)]
#[must_use = "iterators are lazy"]
pub struct Chain<'a> {
    next: Option<&'a (dyn StdError + 'static)>,
    /// How many links may follow the next one.
    left: u16,
}

/// So many links has a chain at most.
const LONGEST: u16 = 1_000;

impl<'a> Chain<'a> {
    /// The chain that begins with this error. Its `Display` is what the types of this crate write with `{:#}`: an error type of your own writes it
    /// there, too.
    ///
    /// ```
    /// use std::{error, fmt};
    /// use forebear::{Chain, TimeoutError};
    ///
    /// #[derive(Debug)]
    /// struct NotLoaded(TimeoutError);
    ///
    /// impl error::Error for NotLoaded {
    ///     fn source(&self) -> Option<&(dyn error::Error + 'static)> {
    ///         Some(&self.0)
    ///     }
    /// }
    ///
    /// impl fmt::Display for NotLoaded {
    ///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    ///         if f.alternate() { Chain::of(self).fmt(f) } else { f.write_str("not loaded") }
    ///     }
    /// }
    /// let error = NotLoaded(TimeoutError::TimedOut);
    /// assert_eq!(format!("{error:#}"), "not loaded: the wait timed out");
    /// ```
    pub fn of(error: &'a (dyn StdError + 'static)) -> Self {
        Chain::new(error)
    }

    pub(super) fn new(first: &'a (dyn StdError + 'static)) -> Self {
        Chain { next: Some(first), left: LONGEST - 1 }
    }
}

impl<'a> Iterator for Chain<'a> {
    type Item = &'a (dyn StdError + 'static);

    fn next(&mut self) -> Option<Self::Item> {
        let link = self.next.take()?;
        if link.is::<Mark>() {
            return Some(&Cancelled);
        }
        if !link.is::<Cancelled>()
            && let Some(left) = self.left.checked_sub(1)
        {
            self.left = left;
            self.next = link.source();
        }
        Some(link)
    }
}

impl FusedIterator for Chain<'_> {}

/// The links that are left, in one line: each link, and what caused it, after a colon; last, which requests have passed a failure on. Flags have no effect.
impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(f, self.clone())
    }
}

/// The first `E` in the chain of `first`. A [`WaitError`] shows neither the failure nor the cycle in it as its source, since it
/// writes them itself; so these two are looked at here.
pub(super) fn find<'a, E: StdError + 'static>(first: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    Chain::new(first).find_map(|link| {
        link.downcast_ref::<E>().or_else(|| match link.downcast_ref::<WaitError>()? {
            WaitError::Failed(failure) => (failure as &(dyn StdError + 'static)).downcast_ref::<E>(),
            WaitError::CircularWait(cycle) => (cycle as &(dyn StdError + 'static)).downcast_ref::<E>(),
            _ => None,
        })
    })
}

/// The cycle of waits in the chain of `first`, if one of the links reports one.
pub(super) fn cycle<'a>(first: &'a (dyn StdError + 'static)) -> Option<&'a Cycle> {
    find(first)
}

/// Writes the chain in one line, as `{:#}` does: each link, and what caused it, after a colon; last, which requests have passed a
/// failure on.
pub(super) fn write_line(f: &mut fmt::Formatter<'_>, chain: Chain<'_>) -> fmt::Result {
    let mut failure = None;
    for (n, link) in chain.enumerate() {
        let here = link.downcast_ref::<Failure>();
        failure = failure.or(here).or_else(|| link.downcast_ref::<WaitError>()?.failure());
        if n > 0 {
            f.write_str(": ")?;
        }
        // Not `link.fmt(f)`: with `{:#}` handed on, a link that writes its own chain would write it again.
        write!(f, "{link}")?;
    }
    failure.map_or(Ok(()), |failure| failure.write_path(f))
}
