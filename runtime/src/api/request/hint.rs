//! Changing where a request stands among its like while it is queued.

use super::Request;
use crate::api::any::AnyRequest;
use crate::record::header::Header;
use crate::shared::OfRuntime;

impl<T> Request<T> {
    /// Gives a request another [`order_hint`](crate::RequestBuilder::order_hint), and answers whether it had not been started yet, so that the
    /// hint counts. False changes nothing: it has started, or is over, or was made without a hint. It may also be that a worker holds it back for a moment,
    /// since it and others like it wait for an input that runs.
    ///
    /// From any thread. It takes the lock of the runtime's queue to find the request by its hint, in logarithmic time. It neither waits
    /// for a request nor looks whether the caller is cancelled.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let tile = Request::builder().order_hint(3).build(|| 7);
    /// assert!(tile.set_order_hint(1));
    /// tile.wait()?;
    /// assert!(!tile.set_order_hint(2));
    /// assert!(!Request::new(|| 7).set_order_hint(1), "made without a hint");
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use = "false: nothing has changed"]
    pub fn set_order_hint(&self, hint: i64) -> bool {
        set(self.header(), hint)
    }
}

impl AnyRequest {
    /// As [`Request::set_order_hint`].
    #[must_use = "false: nothing has changed"]
    pub fn set_order_hint(&self, hint: i64) -> bool {
        // SAFETY: this handle's link.
        set(unsafe { self.raw().as_ref() }, hint)
    }
}

fn set(h: &Header, hint: i64) -> bool {
    // SAFETY: M3; a ready value has no runtime.
    let Some(arena) = (unsafe { h.arena.get().as_ref() }).filter(|_| h.is_hinted()) else { return false };
    arena.shared().injector.set_hint(h, hint) && h.word().load().is_unstarted()
}
