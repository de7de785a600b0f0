//! What is read of a connection: its messages, and the releases that its client could not send.

use std::io;
use std::os::fd::AsFd;

use super::{Connection, Kept, LocalQueue, Read, Watched};
use crate::expiry::{Scope, Timer, TimerRequest};
use crate::local::Refusal;
use crate::local::backlog::SLOTS;
use crate::local::kernel;
use crate::local::wire::{self, MAX_MESSAGE, Malformed};

/// Messages of one connection in one look. The shortest takes 768 bytes of a send buffer, which has 208 KiB: 277 of them.
pub(super) const PER_LOOK: usize = 320;
/// Messages of one connection in a row, before the next one's are read.
const IN_A_ROW: usize = 32;

const KILL: i32 = rustix::process::Signal::KILL.as_raw();

/// What a read has come to.
enum Heard {
    /// Go on.
    Said,
    /// There is no more for now.
    Nothing,
    /// The other side has closed.
    Closed,
    Refused(Refusal),
}

impl Connection {
    /// A look begins, if it has not yet.
    fn begin(&mut self, look: u64) {
        if self.read.look != look {
            self.read = Read { look, ..Read::default() };
        }
    }
}

impl Watched {
    /// It was killed: whatever it had said before it was over makes no second time of it.
    fn was_killed(&self) -> bool {
        self.worker.ending().is_some_and(|ending| ending.signal == KILL)
    }
}

impl LocalQueue {
    /// Reads a few messages of a connection, and then of its file. Whether there were any.
    pub(super) fn read(&mut self, number: u64) -> bool {
        let mut any = false;
        for _ in 0..IN_A_ROW {
            match self.hear(number) {
                Heard::Said => any = true,
                Heard::Nothing => break,
                Heard::Closed => {
                    self.close(number);
                    return true;
                }
                Heard::Refused(why) => {
                    self.refuse(number, why);
                    return true;
                }
            }
        }
        // R1 of the backlog: after the messages, each time.
        let heard = self.connections.get(&number).map_or(0, |connection| connection.heard);
        match self.take_unheard(number, heard) {
            Ok(taken) => any || taken,
            Err(why) => {
                self.refuse(number, why);
                true
            }
        }
    }

    /// Reads what there is of a connection whose process has ended, and of its file.
    pub(super) fn hear_all(&mut self, number: u64) {
        while let Heard::Said = self.hear(number) {}
        // What is no release of it changes nothing any more.
        _ = self.take_unheard(number, u64::MAX);
    }

    /// Reads one message.
    fn hear(&mut self, number: u64) -> Heard {
        let Some(connection) = self.connections.get_mut(&number) else { return Heard::Nothing };
        connection.begin(self.look);
        if connection.read.messages >= PER_LOOK {
            return Heard::Nothing;
        }
        connection.read.messages += 1;
        let mut bytes = [0; MAX_MESSAGE];
        let received = match kernel::receive(connection.socket.as_fd(), &mut bytes) {
            Ok(received) => received,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Heard::Nothing,
                io::ErrorKind::Interrupted => return Heard::Said,
                _ => return Heard::Closed,
            },
        };
        let Some(sender) = received.sender else { return Heard::Closed };
        if sender.pid != Some(connection.pid) {
            return Heard::Refused(Refusal::ForeignSender);
        }
        connection.heard += 1;
        let by = (number, connection.heard);
        let said = match wire::heard(&bytes[..received.len]) {
            Ok(said) if !received.cut => said,
            _ => return Heard::Refused(Refusal::Malformed),
        };
        let proven = match connection.proven {
            Some(proven) => proven,
            None => match self.prove(number) {
                Ok(Some(proven)) => proven,
                Ok(None) => return Heard::Closed,
                Err(why) => return Heard::Refused(why),
            },
        };
        let deadline = match said.deadline.map(|nanos| self.anchor.instant(nanos)) {
            None => None,
            Some(Some(deadline)) => Some(deadline),
            Some(None) => return Heard::Refused(Refusal::Malformed),
        };
        let scope = said.scope;
        if deadline.is_some() && !self.has_room(proven, &scope) {
            // It may have released some in its file: before this message, that is.
            if let Err(why) = self.take_unheard(number, by.1 - 1) {
                return Heard::Refused(why);
            }
            if !self.has_room(proven, &scope) {
                return Heard::Refused(Refusal::TooManyTimers);
            }
        }
        let Some(watched) = self.watched.get_mut(&proven) else { return Heard::Closed };
        if watched.was_killed() {
            return Heard::Said;
        }
        let worker = watched.worker.clone();
        let request = match deadline {
            None => {
                watched.scopes.remove(&scope);
                TimerRequest::release(worker, scope)
            }
            Some(deadline) => {
                watched.scopes.insert(scope.clone(), Kept { deadline, by });
                TimerRequest::acquire(worker, Timer::new(scope, deadline).with_signal(said.signal))
            }
        };
        self.ready.push_back(request);
        Heard::Said
    }

    /// Whether a watched process may have a timer of this scope.
    fn has_room(&self, proven: u64, scope: &Scope) -> bool {
        self.watched.get(&proven).is_none_or(|watched| {
            watched.scopes.len() < self.limits.timers_of_one
                || watched.scopes.contains_key(scope)
                || watched.was_killed()
        })
    }

    /// Takes what the client of a connection has released in its file, of that before which it had sent no more than `heard` messages.
    /// Whether there was any.
    pub(super) fn take_unheard(&mut self, number: u64, heard: u64) -> Result<bool, Refusal> {
        let mut any = false;
        while let Some(connection) = self.connections.get_mut(&number) {
            connection.begin(self.look);
            let watched = connection.proven.and_then(|proven| self.watched.get_mut(&proven));
            let (Some(watched), Some(backlog)) = (watched, &mut connection.backlog) else { break };
            if connection.read.unheard >= SLOTS {
                break;
            }
            let taken = backlog.take(heard).map_err(|Malformed| Refusal::Malformed)?;
            let Some(unheard) = taken else { break };
            connection.read.unheard += 1;
            any = true;
            let Some(kept) = watched.scopes.get(&unheard.scope) else { continue };
            // R2 of the backlog.
            let acquired_since = kept.by.0 == number && kept.by.1 > unheard.after;
            if acquired_since || watched.was_killed() {
                continue;
            }
            watched.scopes.remove(&unheard.scope);
            self.ready.push_back(TimerRequest::release(watched.worker.clone(), unheard.scope));
        }
        Ok(any)
    }
}
