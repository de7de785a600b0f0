//! Walking from an error to its causes, in one place, so that every type here answers alike.

use std::error::Error as StdError;
use std::fmt;
use std::iter::FusedIterator;

use super::cancelled::Mark;
use super::{Cancelled, WaitError};

/// An error and its sources, outermost first. From [`Error::chain`](super::Error::chain) and
/// [`Failure::chain`](super::Failure::chain).
///
/// A [`Cancelled`] ends the chain. It is shown also where a wrapper passed on only its source.
#[derive(Debug, Clone)]
#[must_use = "iterators are lazy"]
pub struct Chain<'a> {
    next: Option<&'a (dyn StdError + 'static)>,
}

impl<'a> Chain<'a> {
    pub(super) fn new(first: &'a (dyn StdError + 'static)) -> Self {
        Chain { next: Some(first) }
    }
}

impl<'a> Iterator for Chain<'a> {
    type Item = &'a (dyn StdError + 'static);

    fn next(&mut self) -> Option<Self::Item> {
        let link = self.next.take()?;
        if link.is::<Mark>() {
            return Some(&Cancelled);
        }
        if !link.is::<Cancelled>() {
            self.next = link.source();
        }
        Some(link)
    }
}

impl FusedIterator for Chain<'_> {}

/// The first `E` in the chain of `first`. A [`WaitError::Failed`] shows its source in place of the failure in
/// it, so that one is looked at here.
pub(super) fn find<'a, E: StdError + 'static>(first: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    Chain::new(first).find_map(|link| {
        link.downcast_ref::<E>().or_else(|| match link.downcast_ref::<WaitError>()? {
            WaitError::Failed(failure) => (failure as &(dyn StdError + 'static)).downcast_ref::<E>(),
            _ => None,
        })
    })
}

/// Writes the chain in one line, as `{:#}` does: each link, and what caused it, after a colon.
pub(super) fn write_line(f: &mut fmt::Formatter<'_>, chain: Chain<'_>) -> fmt::Result {
    for (n, link) in chain.enumerate() {
        if n > 0 {
            f.write_str(": ")?;
        }
        // Not `link.fmt(f)`: with `{:#}` handed on, a link that writes its own chain would write it again.
        write!(f, "{link}")?;
    }
    Ok(())
}
