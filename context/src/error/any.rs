//! The error that takes every other: what `?` makes inside a `try_` closure.
//!
//! It is a box of a box. So a `Result<&T, Error>` is two words, and a closure returns little. An error is cold enough
//! for a second allocation. A type that converts from all errors cannot be an error itself: `From<E> for Error` would
//! collide with `From<Error> for Error`. It dereferences to an error instead.

use std::error::Error as StdError;
use std::fmt;
use std::ops::Deref;

use super::chain::{self, Chain};
use super::{Cancelled, Cycle};

/// Any error, or a cancellation, on its way out of a closure.
///
/// `?` converts every `std::error::Error + Send + Sync + 'static` into it. [`Error::other`] converts anything else:
/// text, a box, an `anyhow::Error`. It is one pointer wide, and dereferences to the error inside. It converts into both
/// kinds of boxed error, so `?` works where a `Box<dyn Error>` is returned. `anyhow::Error::from_boxed(error.into())`
/// converts it into an `anyhow::Error`.
///
/// `Display` writes the error inside; `{:#}` the whole chain in one line; `{:?}` the chain, one cause a line.
///
/// ```
/// use forebear::Error;
///
/// fn parse(text: &str) -> Result<u32, Error> {
///     let n: u32 = text.parse()?;
///     if n == 0 { Err(Error::other("zero is no size")) } else { Ok(n) }
/// }
/// assert!(parse("x").unwrap_err().downcast_ref::<std::num::ParseIntError>().is_some());
/// assert_eq!(parse("0").unwrap_err().to_string(), "zero is no size");
/// ```
pub struct Error(Box<Box<dyn StdError + Send + Sync>>);

const _: () = assert!(size_of::<Option<Error>>() == size_of::<usize>());

impl Error {
    /// An error from what is no `std::error::Error` itself: text, a boxed error, an `anyhow::Error`.
    ///
    /// ```
    /// use forebear::Error;
    /// let legacy: Result<(), Box<dyn std::error::Error + Send + Sync>> = Err("no licence".into());
    /// assert_eq!(legacy.map_err(Error::other).unwrap_err().to_string(), "no licence");
    /// ```
    pub fn other(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error(Box::new(error.into()))
    }

    /// Whether it means a cancellation, of any request: whether [`Cancelled`] stands anywhere in the chain.
    ///
    /// Whether the calling request was cancelled is another question: ask [`WaitError::is_cancelled`](super::WaitError::is_cancelled) or
    /// [`check_cancelled`](https://docs.rs/forebear/latest/forebear/fn.check_cancelled.html).
    ///
    /// True through any wrapper that keeps its source, `anyhow`, `io::Error::other` and transparent ones
    /// included. A cancelled request that ends with such an error is cancelled; one that was not cancelled
    /// has failed.
    ///
    /// ```
    /// use forebear::{Error, TimeoutError};
    ///
    /// let wrapped = std::io::Error::other(TimeoutError::Cancelled);
    /// assert!(Error::from(wrapped).is_cancelled());
    /// assert!(!Error::from(TimeoutError::TimedOut).is_cancelled());
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.chain().any(|link| link.is::<Cancelled>())
    }

    /// The first `E` in the chain, the error itself included.
    #[must_use]
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        chain::find(&**self.0)
    }

    /// The wait cycle in the chain, if there is one; see [`WaitError::cycle`](super::WaitError::cycle).
    ///
    /// ```
    /// use forebear::{Error, TimeoutError};
    ///
    /// assert_eq!(Error::from(TimeoutError::TimedOut).cycle(), None);
    /// ```
    #[must_use]
    pub fn cycle(&self) -> Option<&Cycle> {
        chain::cycle(&**self.0)
    }

    /// The error itself, by value, if it is an `E`; else this, unchanged. Causes further down are only lent.
    ///
    /// # Errors
    ///
    /// The same `Error`, if it is not an `E`.
    ///
    /// ```
    /// use std::num::ParseIntError;
    /// use forebear::Error;
    ///
    /// let error = Error::from("x".parse::<u32>().unwrap_err());
    /// let error = error.downcast::<std::io::Error>().unwrap_err(); // it is none
    /// let parse: ParseIntError = error.downcast().unwrap();
    /// assert_eq!(parse.to_string(), "invalid digit found in string");
    /// ```
    pub fn downcast<E: StdError + 'static>(self) -> Result<E, Error> {
        match self.0.downcast::<E>() {
            Ok(error) => Ok(*error),
            Err(error) => Err(Error(Box::new(error))),
        }
    }

    /// The error and its causes, outermost first.
    ///
    /// ```
    /// use forebear::{Error, TimeoutError};
    ///
    /// let error = Error::from(std::io::Error::other(TimeoutError::TimedOut));
    /// let links: Vec<_> = error.chain().map(|link| link.to_string()).collect();
    /// assert_eq!(links.last().map(String::as_str), Some("the wait timed out"));
    /// ```
    pub fn chain(&self) -> Chain<'_> {
        Chain::new(&**self.0)
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for Error {
    #[cold]
    fn from(error: E) -> Error {
        Error(Box::new(Box::new(error)))
    }
}

impl Deref for Error {
    type Target = dyn StdError + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &**self.0
    }
}

impl From<Error> for Box<dyn StdError + Send + Sync> {
    fn from(error: Error) -> Self {
        *error.0
    }
}

impl From<Error> for Box<dyn StdError> {
    fn from(error: Error) -> Self {
        *error.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() { chain::write_line(f, self.chain()) } else { fmt::Display::fmt(&**self.0, f) }
    }
}

/// The chain, one cause a line: what `main` prints if it returns this. `{:#?}` is the `Debug` of the error
/// inside.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return fmt::Debug::fmt(&**self.0, f);
        }
        let mut chain = self.chain();
        if let Some(first) = chain.next() {
            write!(f, "{first}")?;
        }
        for cause in chain {
            write!(f, "\n  caused by: {cause}")?;
        }
        Ok(())
    }
}
