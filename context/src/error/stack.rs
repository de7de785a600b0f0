//! A stack that could not be had. The request that needed it fails with this; the runtime continues.

use std::fmt;

/// A request could not be given a stack.
///
/// It is the [`error`](super::Failure::error) of the request's failure. `Display` ends with the remedy.
///
/// ```
/// use forebear::StackError;
/// # let error = StackError::too_large(1 << 30, 1 << 26);
/// match error {
///     StackError::TooLarge { asked, max, .. } => assert!(asked > max),
///     other => panic!("{other}"),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StackError {
    /// The limit of the runtime was reached, or the system had no memory, or no further memory map, for one more
    /// stack.
    #[non_exhaustive]
    Exhausted {
        /// How many stacks the runtime had at that moment, suspended and cached ones included.
        live: usize,
        /// How many it may have at most.
        limit: usize,
        /// What to change so that it does not happen again.
        remedy: &'static str,
    },
    /// The size asked for is beyond the largest class there is.
    #[non_exhaustive]
    TooLarge {
        /// The size asked for, in bytes.
        asked: usize,
        /// The size of the largest class, in bytes.
        max: usize,
    },
}

impl StackError {
    /// For the crates of this workspace.
    #[doc(hidden)]
    #[must_use]
    pub const fn exhausted(live: usize, limit: usize, remedy: &'static str) -> Self {
        StackError::Exhausted { live, limit, remedy }
    }

    /// For the crates of this workspace.
    #[doc(hidden)]
    #[must_use]
    pub const fn too_large(asked: usize, max: usize) -> Self {
        StackError::TooLarge { asked, max }
    }

    /// What to change so that it does not happen again.
    ///
    /// ```
    /// use forebear::{Request, StackError, WaitError};
    ///
    /// let greedy = Request::builder().stack_size(1 << 30).spawn(|| ());
    /// let Err(WaitError::Failed(failure)) = greedy.wait() else { panic!() };
    /// let error = failure.downcast_ref::<StackError>().unwrap();
    /// assert!(!error.hint().is_empty());
    /// ```
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            StackError::Exhausted { remedy, .. } => remedy,
            StackError::TooLarge { .. } => "ask for less, or move large values from the stack to the heap",
        }
    }
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StackError::Exhausted { live, limit, .. } => {
                write!(f, "no room for another stack: {live} exist, at most {limit}")?;
            }
            StackError::TooLarge { asked, max } => {
                write!(f, "a stack of {asked} bytes was asked for, the largest has {max}")?;
            }
        }
        write!(f, ": {}", self.hint())
    }
}

impl std::error::Error for StackError {}
