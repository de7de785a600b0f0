//! An error that the tests of several programs can tell from others.

use std::fmt;

/// An error that a test can tell from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) u32);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken: {}", self.0)
    }
}

impl std::error::Error for Broken {}
