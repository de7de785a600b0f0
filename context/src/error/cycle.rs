//! A wait that can never end, because it would wait for itself.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use super::name::ShownName;

/// The most names that `Display` writes.
const SHOWN: usize = 16;

/// Requests and threads that wait for one another, each for the next and the last for the first. Nothing would have ended these waits.
///
/// A lock knows on which stack its holder is. If several requests are on that stack, or a plain thread runs a request there, one name has them all, from the bottom:
/// `outer > inner, on one stack`. One of them holds the lock.
///
/// Cheap to clone. `Display` writes the cycle, long names and long cycles cut. It is an error, so `downcast_ref::<Cycle>()` finds
/// the one in a [`WaitError::CircularWait`](super::WaitError::CircularWait), as [`cycle`](super::WaitError::cycle) does.
///
/// ```
/// use forebear::Cycle;
/// # let cycle = Cycle::new(["parse", "load"]);
/// assert_eq!(cycle.names().collect::<Vec<_>>(), ["parse", "load", "parse"]);
/// assert_eq!(cycle.to_string(), "`parse` waits for `load`, which waits for `parse`");
/// ```
// Behind one thin pointer: with the length beside it, `WaitError` would not fit in 16 bytes.
#[derive(Clone, PartialEq, Eq)]
#[doc(alias = "deadlock")]
pub struct Cycle(Arc<Box<[Cow<'static, str>]>>);

impl Cycle {
    /// For the crates of this workspace: each name once, every one waiting for the next and the last for the
    /// first.
    #[doc(hidden)]
    pub fn new(names: impl IntoIterator<Item: Into<Cow<'static, str>>>) -> Cycle {
        Cycle(Arc::new(names.into_iter().map(Into::into).collect()))
    }

    /// The full names, each waiting for the one that follows; the first stands at the end once more.
    #[must_use]
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        let n = self.0.len();
        (0..n + usize::from(n > 0)).map(move |i| &*self.0[i % n])
    }
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.0.first() else { return f.write_str("somebody waits for itself") };
        if self.0.len() == 1 {
            return write!(f, "`{}` waits for itself", ShownName(first));
        }
        write!(f, "`{}` waits for ", ShownName(first))?;
        for name in self.0.iter().take(SHOWN).skip(1) {
            write!(f, "`{}`, which waits for ", ShownName(name))?;
        }
        if let Some(more @ 1..) = self.0.len().checked_sub(SHOWN) {
            write!(f, "{more} more, the last of which waits for ")?;
        }
        write!(f, "`{}`", ShownName(first))
    }
}

impl StdError for Cycle {}

impl fmt::Debug for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cycle ")?;
        f.debug_list().entries(self.names()).finish()
    }
}
