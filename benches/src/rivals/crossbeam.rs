//! crossbeam-channel's channels, on plain threads.

use super::threads::sync::channels_only;

channels_only!(
    /// Threads that send and receive.
    Crossbeam,
    crossbeam_channel
);
