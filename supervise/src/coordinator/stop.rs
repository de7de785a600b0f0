//! [`Stop`]: how a stop reaches a worker that is blocked.

/// How a stop wakes a worker that is blocked. The thread or request that requests the stop calls it, without any lock. It must not wait. If it
/// panics, that is a failure of the worker.
///
/// Given for closures, which are the [`stop`](Self::stop).
///
/// ```
/// use forebear_supervise::Coordinator;
/// use std::sync::mpsc;
///
/// let coordinator = Coordinator::new();
/// let (stop, stopped) = mpsc::channel();
/// let me = coordinator.enlist("blocked in a channel of std");
/// me.stop_by(move || stop.send(()).unwrap()); // a closure is a `Stop`
/// coordinator.request_stop();
/// stopped.recv()?;
/// drop(me);
/// coordinator.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Stop: Send + 'static {
    /// A stop has been requested. Called once for each stop.
    fn stop(&mut self);

    /// Ends the worker by force, if that is possible: the grace of a join has passed. Returns whether it is; the join then waits another second at most.
    fn kill(&mut self) -> bool {
        false
    }
}

impl<F: FnMut() + Send + 'static> Stop for F {
    fn stop(&mut self) {
        self();
    }
}
