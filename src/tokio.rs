//! Futures that need tokio's reactor: its sockets, timers, child processes. Feature `tokio`.
//!
//! This module has the name of the crate. Where `use forebear::*` brings it in, write `::tokio` for the crate.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

use ::tokio::runtime::Handle;

use crate::{Cancelled, no_suspend};

/// As [`block_on`](crate::block_on()), with tokio's runtime entered while the future is polled and dropped.
///
/// The runtime goes on in its own threads, so it is one with threads (`Builder::new_multi_thread`), or one that another
/// thread drives. Between the polls it is not entered: other requests of the worker find nothing of it.
///
/// Suspends. A cancellation point: if the caller is cancelled before the future is ready, the future is dropped, with the runtime
/// entered, and the answer is `Cancelled`.
///
/// # Errors
///
/// [`Cancelled`].
///
/// # Panics
///
/// - With the panic of the future.
/// - If a poll of the future waits by a call of forebear. tokio requires that its runtime is left in the reverse order
///   of entry, so a poll is a region that must not suspend.
/// - In a `no_suspend` region, if it would have to wait.
///
/// ```
/// use std::time::Duration;
/// use forebear::{Request, tokio::block_on};
///
/// let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
/// let handle = tokio.handle().clone();
/// let request = Request::try_new(move || {
///     Ok(block_on(&handle, async {
///         tokio::time::sleep(Duration::from_millis(1)).await;
///         7
///     })?)
/// });
/// assert_eq!(request.take().unwrap(), 7);
/// # Ok::<(), std::io::Error>(())
/// ```
#[track_caller]
pub fn block_on<F: IntoFuture>(runtime: &Handle, future: F) -> Result<F::Output, Cancelled> {
    crate::block_on(Entered { runtime, future: Some(Box::pin(future.into_future())) })
}

/// A future that is polled and dropped where a runtime of tokio's is entered.
struct Entered<'a, F> {
    runtime: &'a Handle,
    future: Option<Pin<Box<F>>>,
}

/// Says whose region it is, where a poll waits.
const REGION: &str = "tokio's runtime is entered";

impl<F: Future> Future for Entered<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<F::Output> {
        let runtime = self.runtime;
        let Some(future) = &mut self.future else { unreachable!("it is there until it is dropped") };
        no_suspend(REGION, || {
            let _entered = runtime.enter();
            future.as_mut().poll(task)
        })
    }
}

impl<F> Drop for Entered<'_, F> {
    fn drop(&mut self) {
        let (runtime, future) = (self.runtime, self.future.take());
        no_suspend(REGION, || {
            let _entered = runtime.enter();
            drop(future);
        });
    }
}
