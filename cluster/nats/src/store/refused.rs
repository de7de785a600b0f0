//! [`Refused`]: since when the server, which is there, has refused something.

use std::time::{Duration, Instant};

use async_nats::connection::State as Connection;

use super::Store;

/// A connection over which nothing comes is taken for broken before this.
const SILENCE: Duration = Duration::from_secs(10);

/// What the server says if it does not have the stream, for instance while servers that are a cluster have no leader for it.
const NO_STREAM: &str = "no stream found";

/// Since when the server, which is there, has refused something.
#[derive(Default)]
pub(super) struct Refused(Option<Instant>);

impl Refused {
    /// It was refused once more. `true`: it has been for as long as that.
    fn again(&mut self, connected: bool, why: &str, patience: Duration, now: Instant) -> bool {
        if !connected {
            self.0 = None;
            return false;
        }
        // A connection that is half open is noticed within this time. A server that does not permit something does not answer, either.
        let silence = if why.contains("timed out") { SILENCE } else { Duration::ZERO };
        now.saturating_duration_since(*self.0.get_or_insert(now)) >= patience.saturating_add(silence)
    }
}

impl Store {
    /// Whether it is told now: the server has refused this once more.
    pub(super) fn is_refused(&self, refused: &mut Refused, why: &str) -> bool {
        let is_there = self.makes || !why.contains(NO_STREAM);
        let connected = is_there && self.client.connection_state() == Connection::Connected;
        refused.again(connected, why, self.patience, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_that_is_there_refuses_for_too_long_is_told() {
        let (mut refused, now, patience) = (Refused::default(), Instant::now(), Duration::from_secs(3));
        assert!(!refused.again(true, "full", patience, now));
        assert!(!refused.again(true, "full", patience, now + patience / 2));
        assert!(refused.again(true, "full", patience, now + patience));
        assert!(!refused.again(true, "timed out", patience, now + patience), "the connection may be broken");
        assert!(refused.again(true, "timed out", patience, now + patience + SILENCE));
        // The server was away.
        assert!(!refused.again(false, "full", patience, now + patience));
        assert!(!refused.again(true, "full", patience, now + patience));
        assert!(!refused.again(true, "timed out", Duration::MAX, now + patience), "no patience is too long");
    }
}
