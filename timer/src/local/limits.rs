//! How many connections, processes and timers a server accepts, so that no client can exhaust its
//! memory.

/// The bounds of a [`LocalTimerServer`](super::LocalTimerServer), of each process and in sum. The server refuses a process that exceeds them,
/// and calls the hooks.
///
/// ```
/// # #[cfg(target_os = "linux")] {
/// use forebear::timer::local::Limits;
///
/// let mut limits = Limits::default();
/// limits.workers = 64;
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// How many processes may have timers: 256. Each takes a descriptor here.
    pub workers: usize,
    /// How many connections there may be: 512. Each takes two or three descriptors here.
    pub connections: usize,
    /// How many of them one process may have: 4. Its threads share one; a second client makes another.
    pub connections_of_one: usize,
    /// How many timers one process may have at a time: 1024. One that has expired counts until it is released, or the server has dropped it: when its
    /// process is ended or spared, or if it only logs.
    pub timers_of_one: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { workers: 256, connections: 512, connections_of_one: 4, timers_of_one: 1024 }
    }
}
