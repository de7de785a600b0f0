//! [`Outcome`]: how a request ended.

use forebear_context::error::{CancelReason, Failure};

/// How a request ended.
///
/// ```
/// use forebear::{Outcome, Request};
///
/// fn line(request: &Request<u32>) -> String {
///     match request.outcome() {
///         None => String::from("not yet"),
///         Some(Outcome::Finished(value)) => format!("finished with {value}"),
///         Some(Outcome::Failed(failure)) => format!("failed: {failure}"),
///         Some(Outcome::Cancelled(why)) => format!("cancelled: {why}"),
///     }
/// }
/// let seven = Request::new(|| 7);
/// assert_eq!(line(&seven), "not yet");
/// seven.wait()?;
/// assert_eq!(line(&seven), "finished with 7");
/// # Ok::<(), forebear::WaitError>(())
/// ```
#[derive(Debug)]
pub enum Outcome<'a, T> {
    /// With this value.
    Finished(&'a T),
    /// With this failure.
    Failed(&'a Failure),
    /// Cancelled, for this reason.
    Cancelled(CancelReason),
}

impl<T> Clone for Outcome<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Outcome<'_, T> {}
