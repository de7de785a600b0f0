//! Reading from a connection: its messages, and the releases that its client could not send.

use std::io;
use std::os::fd::AsFd;

use super::{Connection, Kept, LocalQueue, Read, Watched};
use crate::expiry::{Scope, Timer, TimerRequest};
use crate::local::Refusal;
use crate::local::backlog::SLOTS;
use crate::local::kernel;
use crate::local::wire::{self, MAX_MESSAGE, Malformed};

/// How many messages of one connection are read in one pass. The shortest takes 768 bytes of a send buffer of 208 KiB,
/// which holds 277 of them.
pub(super) const PER_PASS: usize = 320;
/// How many messages of one connection are read in a row.
const IN_A_ROW: usize = 32;

const KILL: i32 = rustix::process::Signal::KILL.as_raw();

/// The result of reading one message.
enum ReadStep {
    /// A message was handled.
    Message,
    /// There is no message now.
    Empty,
    /// The other side has closed.
    Closed,
    Refused(Refusal),
}

impl Connection {
    /// Resets the counts if this is the first read of the pass.
    fn begin(&mut self, pass: u64) {
        if self.read.pass != pass {
            self.read = Read { pass, ..Read::default() };
        }
    }
}

impl Watched {
    /// Whether the server has killed it. Then messages that it sent before its end start and stop
    /// no timer.
    fn was_killed(&self) -> bool {
        self.worker.ending().is_some_and(|ending| ending.signal == KILL)
    }
}

impl LocalQueue {
    /// Reads a few messages of a connection, then the releases in its file. Answers whether there
    /// were any.
    pub(super) fn read(&mut self, number: u64) -> bool {
        let mut any = false;
        for _ in 0..IN_A_ROW {
            match self.read_message(number) {
                ReadStep::Message => any = true,
                ReadStep::Empty => break,
                ReadStep::Closed => {
                    self.close(number);
                    return true;
                }
                ReadStep::Refused(why) => {
                    self.refuse(number, why);
                    return true;
                }
            }
        }
        // R1 of the backlog: after the messages, each time.
        let received = self.connections.get(&number).map_or(0, |connection| connection.received);
        match self.take_releases(number, received) {
            Ok(taken) => any || taken,
            Err(why) => {
                self.refuse(number, why);
                true
            }
        }
    }

    /// Reads all messages of a connection whose process has ended, and all releases in its file.
    pub(super) fn read_all(&mut self, number: u64) {
        while let ReadStep::Message = self.read_message(number) {}
        // A malformed release no longer matters.
        _ = self.take_releases(number, u64::MAX);
    }

    /// Reads one message.
    fn read_message(&mut self, number: u64) -> ReadStep {
        let Some(connection) = self.connections.get_mut(&number) else { return ReadStep::Empty };
        connection.begin(self.pass);
        if connection.read.messages >= PER_PASS {
            return ReadStep::Empty;
        }
        connection.read.messages += 1;
        let mut bytes = [0; MAX_MESSAGE];
        let received = match kernel::receive(connection.socket.as_fd(), &mut bytes) {
            Ok(received) => received,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return ReadStep::Empty,
                io::ErrorKind::Interrupted => return ReadStep::Message,
                _ => return ReadStep::Closed,
            },
        };
        let Some(sender) = received.sender else { return ReadStep::Closed };
        if sender.pid != Some(connection.pid) {
            return ReadStep::Refused(Refusal::ForeignSender);
        }
        connection.received += 1;
        let by = (number, connection.received);
        let request = match wire::parse_request(&bytes[..received.len]) {
            Ok(request) if !received.cut => request,
            _ => return ReadStep::Refused(Refusal::Malformed),
        };
        let proven = match connection.proven {
            Some(proven) => proven,
            None => match self.prove(number) {
                Ok(Some(proven)) => proven,
                Ok(None) => return ReadStep::Closed,
                Err(why) => return ReadStep::Refused(why),
            },
        };
        let deadline = match request.deadline.map(|nanos| self.anchor.instant(nanos)) {
            None => None,
            Some(Some(deadline)) => Some(deadline),
            Some(None) => return ReadStep::Refused(Refusal::Malformed),
        };
        let scope = request.scope;
        if deadline.is_some() && !self.has_room(proven, &scope) {
            // The client may have released timers through its file before this message.
            if let Err(why) = self.take_releases(number, by.1 - 1) {
                return ReadStep::Refused(why);
            }
            if !self.has_room(proven, &scope) {
                return ReadStep::Refused(Refusal::TooManyTimers);
            }
        }
        let Some(watched) = self.watched.get_mut(&proven) else { return ReadStep::Closed };
        if watched.was_killed() {
            return ReadStep::Message;
        }
        let worker = watched.worker.clone();
        let request = match deadline {
            None => {
                watched.scopes.remove(&scope);
                TimerRequest::release(worker, scope)
            }
            Some(deadline) => {
                watched.scopes.insert(scope.clone(), Kept { deadline, by });
                TimerRequest::acquire(worker, Timer::new(scope, deadline).with_signal(request.signal))
            }
        };
        self.ready.push_back(request);
        ReadStep::Message
    }

    /// Whether a watched process may have a timer of this scope.
    fn has_room(&self, proven: u64, scope: &Scope) -> bool {
        self.watched.get(&proven).is_none_or(|watched| {
            watched.scopes.len() < self.limits.timers_of_one
                || watched.scopes.contains_key(scope)
                || watched.was_killed()
        })
    }

    /// Takes the releases from a connection's file that the client wrote after at most `received` messages. Answers whether there was
    /// any.
    pub(super) fn take_releases(&mut self, number: u64, received: u64) -> Result<bool, Refusal> {
        let mut any = false;
        while let Some(connection) = self.connections.get_mut(&number) {
            connection.begin(self.pass);
            let watched = connection.proven.and_then(|proven| self.watched.get_mut(&proven));
            let (Some(watched), Some(backlog)) = (watched, &mut connection.backlog) else { break };
            if connection.read.released >= SLOTS {
                break;
            }
            let taken = backlog.take(received).map_err(|Malformed| Refusal::Malformed)?;
            let Some(written) = taken else { break };
            connection.read.released += 1;
            any = true;
            let Some(kept) = watched.scopes.get(&written.scope) else { continue };
            // R2 of the backlog.
            let acquired_since = kept.by.0 == number && kept.by.1 > written.after;
            if acquired_since || watched.was_killed() {
                continue;
            }
            watched.scopes.remove(&written.scope);
            self.ready.push_back(TimerRequest::release(watched.worker.clone(), written.scope));
        }
        Ok(any)
    }
}
