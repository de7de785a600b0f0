//! flume's channels, on plain threads.

use super::threads::sync::channels_only;

channels_only!(
    /// Threads that send and receive.
    Flume,
    flume
);
