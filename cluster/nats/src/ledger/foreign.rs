//! Requests to join of another version: nothing of them is known but that version.

use super::{Act, Ledger};
use crate::wire::{VERSION, Welcome};

impl Ledger {
    /// Answers it, counts it among what was dropped, and warns of that version once.
    pub(crate) fn foreign(&mut self, version: u8, reply: String) {
        self.dropped += 1;
        let why = format!(
            "a worker cannot join: it has version {version} of the messages, and this coordinator {VERSION}. Build both with the same forebear-cluster-nats"
        );
        if self.foreign.insert(version) {
            self.acts.push(Act::Warn(why.clone()));
        }
        self.acts.push(Act::Reply { to: reply, welcome: Welcome::Refused { why } });
    }
}
