//! What ends a wait, a request, or a closure early.
//!
//! Three types do three jobs, and the smaller ones fit into them:
//!
//! | type | job | is it a `std::error::Error`? |
//! | --- | --- | --- |
//! | [`Error`] | travels inside closures: `?` turns every error into it | no: that is the price of taking them all |
//! | [`WaitError`] | what a wait answers, the type to match on | yes |
//! | [`Failure`] | how a request failed, shared by all its waiters | yes |
//! | [`Cancelled`], [`TimeoutError`] | what everything else that waits answers | yes |
//! | [`Cycle`], [`StackError`] | a wait that can never end; a stack that could not be had | `StackError` is |
//!
//! # Words
//!
//! The *chain* of an error is the error itself, its `source()`, the source of that, and so on. A failure's
//! *origin* is the request in which it began, its *path* the names of the requests it came through since,
//! origin first.
//!
//! # Rules
//!
//! 1. **A cancel can be recognised.** Every error of ours that means "you were cancelled" has [`Cancelled`] in its
//!    chain. [`Cancelled`] can be found even behind wrappers that report only the source of what they wrap
//!    (`cancelled.rs` has the argument). The runtime calls [`Error::is_cancelled`] and nothing else.
//! 2. **No chain shows a thing twice.** What a `Display` says, the source does not say again: that of a
//!    [`Failure`] names the request, its source is the cause. [`WaitError::Failed`] is transparent. `{:#}`
//!    writes the whole chain.
//! 3. **A failure is not wrapped in itself.** A request that fails because it waited for one that had failed
//!    hands on the same failure, one name longer.
//! 4. **Nothing here runs user code under a lock,** and a payload whose destructor panics is contained.
//!
//! Everything here is safe code. `Arc` is std's, not the shim's, also under loom: what it counts never
//! changes, so there is nothing of ours to model in it.

mod any;
mod cancelled;
mod chain;
mod cycle;
mod failure;
mod location;
mod name;
mod panicked;
mod stack;
mod unwind;
mod wait;

pub use any::Error;
pub use cancelled::{CancelReason, Cancelled};
pub use chain::Chain;
pub use cycle::Cycle;
pub use failure::Failure;
pub use location::SourceLocation;
pub use stack::StackError;
#[cfg(panic = "unwind")]
pub use unwind::{OrUnwind, catch};
pub use wait::{TimeoutError, WaitError};

/// A `Result` whose error is [`Error`] unless another is named: what a `try_` closure returns.
///
/// ```
/// fn first_line(path: &str) -> forebear::Result<String> {
///     Ok(std::fs::read_to_string(path)?.lines().next().unwrap_or_default().to_owned())
/// }
/// assert!(first_line("/no/such/file").is_err());
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the sibling crates need and users do not. No promise of stability.
#[doc(hidden)]
pub mod internal {
    pub use super::name::ShownName;
    pub use super::panicked::{Each, drop_contained, drop_each};
    pub use super::unwind::{Unwound, caught, payload_into_error, resume, unwind_with};
}
