//! A place in source code that can be kept.
//!
//! `std::panic::Location` would do, but a panic hook is lent one for the length of the call only, and no
//! stable constructor makes another; so the three values are kept.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;

/// A place in source code: file, line and column. `Display` writes `file:line:column`.
///
/// ```
/// use forebear::SourceLocation;
/// use std::panic::Location;
///
/// let here = SourceLocation::from(Location::caller());
/// assert_eq!(here.to_string(), format!("{}:{}:{}", here.file(), here.line(), here.column()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SourceLocation {
    file: Cow<'static, str>,
    line: u32,
    column: u32,
}

impl SourceLocation {
    /// A copy of a location that is only lent, as to a panic hook. Allocates; `From` does not.
    ///
    /// ```
    /// use std::panic::Location;
    /// use forebear::SourceLocation;
    ///
    /// let here = Location::caller();
    /// assert_eq!(SourceLocation::copied(here), SourceLocation::from(here));
    /// ```
    #[must_use]
    pub fn copied(location: &Location<'_>) -> Self {
        SourceLocation {
            file: Cow::Owned(location.file().to_owned()),
            line: location.line(),
            column: location.column(),
        }
    }

    /// The file, as the compiler was given it.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The line, from 1.
    #[must_use]
    pub fn line(&self) -> u32 {
        self.line
    }

    /// The column, from 1, in characters.
    #[must_use]
    pub fn column(&self) -> u32 {
        self.column
    }
}

impl From<&'static Location<'static>> for SourceLocation {
    fn from(location: &'static Location<'static>) -> Self {
        SourceLocation {
            file: Cow::Borrowed(location.file()),
            line: location.line(),
            column: location.column(),
        }
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}
