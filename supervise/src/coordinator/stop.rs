//! [`Stop`]: how a stop reaches a worker that is blocked.

/// How a worker is reached where it is blocked. The thread or request that requests the stop calls it, without any lock; it must not wait.
///
/// Given for closures, which are the [`stop`](Self::stop).
pub trait Stop: Send + 'static {
    /// A stop has been requested. Called once for each stop.
    fn stop(&mut self);

    /// The time that a join gives has passed: the last means, if there is one. Answers whether there is; the join then waits another second at most.
    fn kill(&mut self) -> bool {
        false
    }
}

impl<F: FnMut() + Send + 'static> Stop for F {
    fn stop(&mut self) {
        self();
    }
}
